"""Derived data of a waiting workload: pods, shapes and quota.

The same workloads are considered decision after decision. What follows from a workload and the
devices of the cluster alone is computed once and kept as long as both are there.
"""

from __future__ import annotations

import dataclasses

from windlass.core.cluster.cluster import Cluster
from windlass.core.model import pod_sets
from windlass.core.model.equivalence import UNIQUE, Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Workload
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import Sums


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class WorkloadInfo:
    workload: Workload
    key: str
    rank: tuple[str, int]
    """Its queue and its own priority."""
    preempts: bool
    equivalence_class: int
    """As `Shapes.kind_of` numbers them."""
    requests: list[PodSetRequest]
    """Its least."""
    shapes: tuple[Shape, ...]
    """One per request."""
    first: int
    """The number of its first shape and the count of that; -1: it has no pods."""
    count: int
    need: Sums
    """What its least counts for in quotas."""
    members: int
    level: str
    """All of them in one domain of this level; empty: anywhere."""
    exact: bool
    """Whether "how many fit" is the true number for each of its shapes."""
    resource_class: str
    """What it competes for."""
    terms: bool
    """Whether its pods must be placed one by one, because of terms about other pods."""
    countable: bool
    """Whether sums over nodes determine whether it fits, with the same result for its whole
    equivalence class."""


def describe(cluster: Cluster, workload: Workload) -> WorkloadInfo:
    requests = pod_sets.minimum(workload)
    shapes = tuple(cluster.shape_of(request.role) for request in requests)
    topology, equivalence_class = (
        workload.topology,
        cluster.shapes.equivalence_class(workload, cluster.resources),
    )
    exact = all(shape.is_counted_exactly for shape in shapes)
    terms = any(request.role.affinities or request.role.spreads for request in requests)
    return WorkloadInfo(
        workload,
        workload.key,
        (workload.queue, workload.priority),
        workload.preempts,
        equivalence_class,
        requests,
        shapes,
        shapes[0].id if shapes else -1,
        requests[0].count if requests else 0,
        usage.of_requests(cluster, requests),
        sum(request.count for request in requests),
        topology.level if topology is not None and topology.required else "",
        exact,
        cluster.shapes.resource_class_of(workload, cluster.resources),
        terms,
        bool(requests)
        and equivalence_class != UNIQUE
        and not terms
        and (exact or len(requests) > 1),
    )
