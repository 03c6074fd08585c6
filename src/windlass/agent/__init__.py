"""What runs on a node when embedded: the machine as a Node, its pods as process trees.

A kubelet for a stated part of the pod spec (docs/design/agent.md). It speaks to the API through
the `Store` protocol only.
"""
