"""What a placement happens in, what it was short of, and how much fits by count alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import Spot
from windlass.core.cluster.devices.partitions import Requested
from windlass.core.cluster.pod_label_index import PodLabelIndex
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Role, Workload

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementFailure:
    """What was missing."""

    role: Role
    wanted: int
    fitting: int
    """How many pods of the role fit, in the best domain that counts."""
    topology: bool = False
    """Enough in all, not enough in any one domain of the required level."""
    resolved: bool = True
    reserved_until: float | None = None
    """The pods fit, but the capacity is reserved for another workload from then on."""
    rule: str = ""
    """What keeps it from nodes that have the capacity, as a phrase: terms about other pods."""


class Scorer(Protocol):
    """How `pack: fragmentation` chooses; see `core.packing.scorer`."""

    def is_informed(self, cluster: Cluster, shape: Shape) -> bool:
        """Whether the demand history suffices for this shape; until then `binpack` places it."""
        ...

    def requested_profiles(self, cluster: Cluster, shape: Shape) -> Requested:
        """How often each partition profile was requested; empty: too little is known."""
        ...

    def wanted(self, cluster: Cluster) -> Mask:
        """Nodes with devices that a workload asked for."""
        ...

    def assign(
        self, cluster: Cluster, shape: Shape, nodes: Ints, fitting: Ints, count: int
    ) -> list[Spot]:
        """Spots for `count` members, where they break the least that is useful."""
        ...


@dataclasses.dataclass(slots=True)
class Work:
    """Counts node-visits against a budget."""

    left: int

    def spend(self, visits: int) -> None:
        self.left -= visits

    @property
    def exhausted(self) -> bool:
        return self.left <= 0


@dataclasses.dataclass(slots=True)
class PlacementContext:
    """What a placement happens in."""

    cluster: Cluster
    work: Work
    pod_index: PodLabelIndex
    """Pods on nodes by labels, for affinity and spread terms."""
    scorer: Scorer | None = None
    limits: Mapping[int, Ints] = dataclasses.field(default_factory=dict)
    """Shape id -> most pods per node, where reserved capacity must stay free."""
    model: str = ""
    """Of several acceptable models, only this one."""
    within: Mask | None = None
    """Only these nodes."""

    def limited(
        self,
        *,
        limits: Mapping[int, Ints] | None = None,
        model: str | None = None,
        within: Mask | None = None,
    ) -> PlacementContext:
        """The same cluster and pods, with narrower limits. What is not given stays as it is."""
        return PlacementContext(
            self.cluster,
            self.work,
            self.pod_index,
            self.scorer,
            self.limits if limits is None else limits,
            self.model if model is None else model,
            self.within if within is None else within,
        )

    def shape(self, role: Role) -> Shape:
        return self.cluster.shape_of(role, self.model)

    def caps(self, shape: Shape) -> Ints:
        caps = self.cluster.pod_capacity(shape)
        self.work.spend(len(caps))
        ceiling = self.limits.get(shape.id)
        if ceiling is not None:
            caps = np.minimum(caps, ceiling)
        return caps if self.within is None else np.where(self.within, caps, 0)


def restate(failure: PlacementFailure, requests: Sequence[PodSetRequest]) -> PlacementFailure:
    """The failure of one workload, for another of its class that asks for as much or more."""
    if len(requests) > 1:
        return failure
    (request,) = requests
    return PlacementFailure(
        request.role, request.count, failure.fitting, failure.topology, failure.resolved,
        failure.reserved_until, failure.rule,
    )  # fmt: skip


def fits_by_count(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest]
) -> bool:
    """Whether each role alone fits, in one domain where one is required. For a workload of one
    shape and no terms that is the whole answer."""
    cluster, topology = context.cluster, workload.topology
    for request in requests:
        caps = context.caps(context.shape(request.role))
        most = int(caps.sum())
        if topology is not None and topology.required:
            if topology.level in cluster.levels:
                sums = cluster.by_domain(cluster.levels.index(topology.level), caps)
                most = int(sums.max(initial=0))
            else:
                most = int(caps.max(initial=0)) if topology.level == "node" else 0
        if most < request.count:
            return False
    return True
