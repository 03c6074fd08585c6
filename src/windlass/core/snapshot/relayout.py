"""Which changes of nodes need the whole cluster to be laid out anew, and which count at once."""

from __future__ import annotations

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices import numa
from windlass.core.model.types import Node
from windlass.core.quota import usage


def mean_the_same(old: Cluster, new: Cluster) -> bool:
    """Whether pods hold the same columns in both, and count for as much in quotas."""
    return list(old.resources) == list(new.resources) and all(
        usage.charge(new, request) == part for request, part in old.charges.items()
    )


def layout(node: Node) -> tuple[object, ...]:
    """What cannot change without everything being laid out anew."""
    named = (node.allocatable.keys(), node.attach_limits.keys(), numa.names(node))
    return node.path, node.devices, *named


def size(node: Node) -> tuple[object, ...]:
    """What the node adds to the totals that guarantees are measured against."""
    return node.ready, node.ready_in, node.allocatable
