"""The Kubernetes back end of the object API: HTTP to a cluster, or to `windlass up`.

The only room that speaks HTTP to Kubernetes. `store.connect` chooses the server and opens a
`client.KubernetesStore`; everybody else sees the `store.client.Store` protocol.
"""
