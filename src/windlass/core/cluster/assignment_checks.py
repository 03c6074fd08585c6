"""Whether a known assignment of a pod can be had: its node, its amounts and its specific
devices."""

from __future__ import annotations

import numpy as np

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.host_ports import clashing
from windlass.core.model.types import PodAssignment, Role


def serves(cluster: Cluster, role: Role, pod: PodAssignment) -> bool:
    """Whether the node and the devices of a pod exist and take such pods at all."""
    node = cluster.index.get(pod.node)
    if node is None or not (
        cluster.schedulable(role.constraint)[node] and cluster.mask(role.constraint)[node]
    ):
        return False
    return cluster.device_table.has(node, pod.grants)


def admits(cluster: Cluster, role: Role, pod: PodAssignment) -> bool:
    """Whether what a pod needs is free, down to its specific devices."""
    node, shape = cluster.index[pod.node], cluster.shape_of(role)
    return (
        not shape.unknown
        and all(
            cluster.free[column, node] >= need
            for column, need in cluster.needs_of(shape, node, pod.grants)
        )
        and not any(node in cluster.ports[port] for port in clashing(shape.ports, cluster.ports))
        and cluster.device_table.admits(node, pod.grants)
        and not (shape.constraint.reserved and not cluster.fit(shape, np.array([node]))[0])
    )
