"""HTTP: the embedded Kubernetes API over the in-process `store.embedded.api.Api`.

`python -m windlass.server` is the process; `app.make_app` is what it serves. What a request means
for the objects is the Api's; this room knows paths, content types, people and their rights.
"""
