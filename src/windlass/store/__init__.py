"""The object API: one client protocol, an embedded and a Kubernetes back end, the informer.

Packages above depend on the protocol, not on a back end.
"""
