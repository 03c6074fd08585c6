"""The Kubernetes back end of the object API: HTTP to a cluster, or to `windlass up`.

The only package that speaks HTTP to an API server. `store.connect` chooses the server and opens a
`client.KubernetesStore`; other packages use the `store.interface.Store` protocol.
"""
