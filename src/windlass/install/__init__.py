"""Installs Windlass on a Kubernetes cluster.

`render` creates the objects from the options; `apply` applies and removes them; `readiness` waits
until they work; `preflight` finds problems of the cluster. Called by `windlass install`, `upgrade`,
`uninstall` and `doctor`. Nothing here runs in the cluster.
"""
