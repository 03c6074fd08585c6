"""HTTP: the embedded Kubernetes API over the in-process `store.embedded.api.Api`.

`python -m windlass.server` is the process; `app.make_app` is what it serves. The Api implements the
objects; this package implements paths, content types, users and permissions.
"""
