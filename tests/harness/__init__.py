"""Real servers for tests and benchmarks: a Kubernetes control plane, and the embedded server.

`build` makes the binaries, `control_plane` and `embedded` start and stop servers, `plugin` hands
them to pytest. Nothing here is imported by `windlass` itself.
"""
