"""A dry run of preemption: would the preemptor fit without these eviction units?

`PreemptionSimulation` answers that for any set of pieces by a few array operations on a copy of the
cluster. It changes nothing but its own copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import PodAssignment, Workload
from windlass.core.placement import gang_placement
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure
from windlass.core.preemption.victims.candidates import Candidates, PreemptionRequest
from windlass.core.preemption.victims.quota_check import QuotaCheck
from windlass.core.reservation import backfill
from windlass.core.snapshot import availability_profile
from windlass.core.snapshot.running_index import ResourceRows

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class PreemptionSimulation:
    """One preemptor, and the cluster that it can count on."""

    def __init__(
        self,
        state: DecisionState,
        claim: PreemptionRequest,
        pool: Candidates,
        base: Cluster,
        *,
        quota: bool,
    ) -> None:
        self.state, self.claim, self.workload, self.pool = state, claim, claim.workload, pool
        others = pool.is_of_others(claim.workload.queue)
        self.quota = (quota and (claim.is_bound or others)) or (pool.conditional and others)
        """Whether quotas are in the way, or would be with the wrong victims."""
        self.base, self.nodes = base, np.arange(len(base))
        """The nodes that are simulated, and their numbers in the cluster."""
        self.requests = pod_sets.minimum(self.workload)
        self.within = _outside_reservations(state, self.workload)
        pod_index = state.context.pod_index
        terms = any(
            pod_index.has_terms_for(self.workload, request.role) for request in self.requests
        )
        self.identical = len(self.requests) == 1 and not terms
        """Members of one shape whose neighbours do not matter: counting is exact."""
        if self.identical and self.workload.pack != "fragmentation":
            self._restrict_nodes()
        self.domains = domains_of(self.base, self.workload)
        """Per node, the number of the domain inside which all members must be."""

    def _restrict_nodes(self) -> None:
        """Of a full cluster few nodes count: those with free capacity or with candidates."""
        base, flat = self.base, self.pool.flat
        if is_intricate(self.shape):
            return
        some = base.pod_capacity(self.shape) > 0
        some[flat.members[0]] = True
        self.nodes = np.flatnonzero(some)
        rows = arrays.rows_in(
            self.nodes, base.device_table.compute.shape[1], flat.members, flat.devices
        )
        self.pool = dataclasses.replace(
            self.pool, flat=dataclasses.replace(flat, members=rows[0], devices=rows[1])
        )
        self.base = base.part(self.nodes)
        if self.within is not None:
            self.within = self.within[self.nodes]

    def suffices(self, gone: Mask) -> bool:
        """Whether quotas and capacity let the preemptor start without these units."""
        return (not self.quota or QuotaCheck(self.claim, self.pool, gone).allow()) and self.fits(
            gone
        )

    def cluster(self, gone: Mask) -> Cluster:
        shapes = (
            []
            if self.identical
            else [self.base.shape_of(request.role) for request in self.requests]
        )
        return without(self.state, self.base, self.pool, gone, shapes)

    def fits(self, gone: Mask) -> bool:
        if not self.identical:
            return not isinstance(self.place(self.cluster(gone), gone), PlacementFailure)
        return self.enough(self.caps(gone, self.shape))

    def enough(self, caps: Ints) -> bool:
        """Whether identical pods all fit in one domain."""
        sums = np.bincount(self.domains, weights=caps)
        return bool(len(sums)) and int(sums.max()) >= self.requests[0].count

    def caps(self, gone: Mask, shape: Shape) -> Ints:
        """By node, how many pods of a shape fit without these units."""
        if is_intricate(shape):
            return self.allowed(self.cluster(gone).pod_capacity(shape))
        return self.allowed(self.base.pod_capacity_without(shape, *self.rows(gone)))

    def allowed(self, caps: Ints) -> Ints:
        """Without the nodes that are reserved for others."""
        self.state.work.spend(len(self.base))
        return caps if self.within is None else np.where(self.within, caps, 0)

    @property
    def shape(self) -> Shape:
        return self.base.shape_of(self.requests[0].role)

    def rows(self, gone: Mask) -> tuple[Ints, Ints]:
        """What these units hold, as `Cluster.shift` takes it."""
        flat = self.pool.flat
        return (
            flat.members.compress(gone[flat.pod_of], axis=1),
            flat.devices.compress(gone[flat.grant_of], axis=1),
        )

    def place(
        self,
        cluster: Cluster,
        gone: Mask,
        within: Mask | None = None,
        models: Iterable[str] = ("",),
    ) -> tuple[PodAssignment, ...] | PlacementFailure:
        """The assignment of each pod; it is allocated in the given cluster."""
        pod_index = self.state.context.pod_index
        if not self.identical:
            pod_index = pod_index.fork()
            for i in np.flatnonzero(gone).tolist():
                piece = self.pool.pieces[i]
                pod_index.remove(dataclasses.replace(piece.running, pods=piece.pods))
        context = PlacementContext(
            cluster,
            self.state.work,
            pod_index,
            self.state.context.scorer,
            within=self.within if within is None else within,
        )
        answer: tuple[PodAssignment, ...] | PlacementFailure = PlacementFailure(
            self.requests[0].role, self.requests[0].count, 0
        )
        for model in models:
            limited = context.limited(model=model)
            answer = gang_placement.place(limited, self.workload, self.requests)
            if not isinstance(answer, PlacementFailure):
                break
        return answer


def is_intricate(shape: Shape) -> bool:
    """Whether it needs more than sums and whole devices: host ports, partitions of devices."""
    return bool(shape.ports) or any(request.form == "partition" for request in shape.requests)


def may_fit(state: DecisionState, workload: Workload, cluster: Cluster) -> bool:
    """A quick check: whether each role alone would fit in one domain of such a cluster."""
    domains = domains_of(cluster, workload)
    for request in pod_sets.minimum(workload):
        state.work.spend(len(cluster))
        sums = np.bincount(domains, weights=cluster.pod_capacity(cluster.shape_of(request.role)))
        if sums.max(initial=0) < request.count:
            return False
    return True


def without(
    state: DecisionState,
    base: Cluster,
    pool: Candidates,
    gone: Mask | None = None,
    shapes: Iterable[Shape] = (),
) -> Cluster:
    """A fork without these candidates (all of them without a mask), with what is nominated to
    others. `shapes`: those that will be asked about."""
    trial = relieved(base, pool.flat, gone, shapes)
    if trial.ports:
        chosen = range(len(pool)) if gone is None else np.flatnonzero(gone).tolist()
        terminating.free_ports(trial, [pool.pieces[i] for i in chosen])
    keep_nominated(state, trial)
    return trial


def relieved(
    cluster: Cluster, flat: ResourceRows, gone: Mask | None, shapes: Iterable[Shape] = ()
) -> Cluster:
    """A fork in which these units (all of them without a mask) hold nothing."""
    trial = cluster.fork(shapes)
    if gone is None:
        trial.shift(flat.members, flat.devices, +1)
    elif gone.any():
        trial.shift(flat.members[:, gone[flat.pod_of]], flat.devices[:, gone[flat.grant_of]], +1)
    return trial


def keep_nominated(state: DecisionState, cluster: Cluster) -> None:
    """Ports and partitions that are nominated to others stay taken, also where a victim still has
    them."""
    for role, pod in terminating.of(state).exclusive():
        availability_profile.force_allocate(cluster, role, pod)


def domains_of(cluster: Cluster, workload: Workload) -> Ints:
    topology = workload.topology
    if topology is not None and topology.required:
        if topology.level in cluster.levels:
            return cluster.domains[cluster.levels.index(topology.level)]
        return np.arange(len(cluster))
    return np.zeros(len(cluster), np.int64)


def _outside_reservations(state: DecisionState, workload: Workload) -> Mask | None:
    """Nodes outside the reservations that the workload would overlap."""
    reservations = backfill.overlapping(state, workload, state.expected_end(workload))
    if not reservations:
        return None
    mask = np.ones(len(state.context.cluster), np.bool_)
    for reservation in reservations:
        mask[list(reservation.by_node)] = False
    return mask
