"""How much free capacity there is for pods of a shape: in all, in one domain, beside reservations.

These are sums over nodes, kept per shape. They show quickly that there is too little; whether pods
really fit is for `core.placement` to find out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import shadows
from windlass.core.decision.shadows import LimitCache, Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.placement.placement_context import PlacementContext, Work
from windlass.core.queueing.workload_info import WorkloadInfo

Ints = npt.NDArray[np.int64]

_FEW_CHANGES = 64
"""So many are cheaper to leave out than to count again."""


class FreeCapacity:
    """How many pods of a shape fit at most, as of when it was last too little. Free capacity only
    shrinks until a start is retracted, so what was too little stays too little."""

    def __init__(self, cluster: Cluster, work: Work, limits: LimitCache) -> None:
        self._cluster, self._work, self._limits = cluster, work, limits
        self._known: dict[tuple[int, str], tuple[int, int, Ints]] = {}
        """(shape, level) -> as of which version of the cluster, how many, and on which nodes."""
        self._beside: dict[object, tuple[object, int, int]] = {}
        """(shape, level, reservations) -> what fits beside them, and at which versions of them and
        of the cluster."""
        self._outside: dict[object, tuple[int, int]] = {}
        self._reserved: dict[tuple[Reservation, ...], Ints] = {}
        """Nodes of which these reserve anything."""

    def in_all(self, shape: Shape, count: int) -> int:
        return self._most(shape, "", count)

    def in_one(self, shape: Shape, level: str, count: int) -> int:
        """In the best domain of a level."""
        return self._most(shape, level, count)

    def beside(
        self,
        context: PlacementContext,
        shape: Shape,
        level: str,
        request: PodSetRequest,
        reservations: tuple[Reservation, ...],
    ) -> int:
        """As it is, or was when it was last too little, without delaying these reservations."""
        key, at = (shape.id, level, reservations), tuple([held.version for held in reservations])
        then, version, known = self._beside.get(key, (None, -1, 0))
        if then == at and (known < request.count or version == self._cluster.version):
            return known
        self._work.spend(len(self._cluster))
        limit = self._limits.limits(context, reservations, (request,))[shape.id]
        known = self._best(level, np.minimum(self._cluster.pod_capacity(shape), limit))
        self._beside[key] = (at, self._cluster.version, known)
        return known

    def outside(self, shape: Shape, count: int, reservations: tuple[Reservation, ...]) -> int:
        """How many fit on nodes of which these reserve nothing, or did when that was last too
        little."""
        key, version = (shape.id, reservations), self._cluster.version
        at, known = self._outside.get(key, (-1, 0))
        if at < 0 or (known >= count and at < version):
            known = self._count_outside(shape, reservations)
            self._outside[key] = (version, known)
        return known

    def _count_outside(self, shape: Shape, reservations: tuple[Reservation, ...]) -> int:
        nodes = self._reserved.get(reservations)
        if nodes is None:
            nodes = self._reserved[reservations] = shadows.nodes_of(reservations)
        caps = self._cluster.pod_capacity(shape)
        return int(caps.sum() - caps[nodes].sum())

    def _most(self, shape: Shape, level: str, count: int) -> int:
        found = self._known.get((shape.id, level))
        if found is not None:
            version, known, there = found
            if known < count:
                return known
            touched = self._cluster.touched_since(version)
            if not touched:
                return known
            if not level and len(touched) <= _FEW_CHANGES:
                untouched = known - int(there[touched].sum())
                if untouched >= count:
                    return untouched  # nothing need be counted again
        self._work.spend(len(self._cluster))
        caps = self._cluster.pod_capacity(shape)
        most = self._best(level, caps)
        self._known[shape.id, level] = (self._cluster.version, most, caps.copy())
        return most

    def _best(self, level: str, caps: Ints) -> int:
        """In the best domain of a level, or in all."""
        if level in self._cluster.levels:
            caps = self._cluster.by_domain(self._cluster.levels.index(level), caps)
        return int(caps.max(initial=0) if level else caps.sum())


def of(state: DecisionState) -> FreeCapacity:
    return state.shrinking_cache(
        FreeCapacity,
        lambda: FreeCapacity(state.context.cluster, state.work, state.cache(LimitCache)),
    )


def is_counted(state: DecisionState, info: WorkloadInfo) -> bool:
    """Whether sums over nodes decide where the workload fits, beside the running pods."""
    pod_index = state.context.pod_index
    return info.countable and not (
        pod_index.has_anti_affinity
        and any(pod_index.has_terms_for(info.workload, request.role) for request in info.requests)
    )
