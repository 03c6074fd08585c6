"""The node agent: registers the machine as a Node and runs its pods as process trees.

A kubelet for a documented part of the pod spec (docs/design/agent.md). It uses the API only
through the `Store` protocol. On Kubernetes, `agent.daemonset` runs beside kubelet instead.
"""
