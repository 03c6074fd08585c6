"""Whether preemption could help a workload at all: bounds that are cheaper than a search.

A bound may say "yes" where the search then finds nothing. It never says "no" where the search
would find victims.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from windlass.core.decision import free_capacity, terminating
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption import batch_bounds, capacity_bounds, future_capacity
from windlass.core.preemption.capacity_bounds import NOT_ENOUGH, CapacityBound
from windlass.core.preemption.victims import victim_candidates
from windlass.core.preemption.victims.victim_candidates import LowerPriorityCandidates
from windlass.core.queueing import queue_order
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota.quota_tree import Sums


class Futility(NamedTuple):
    """Whether preemption surely does not help a workload until another eviction."""

    in_vain: bool
    for_class: bool = False
    """It holds for all workloads of its equivalence class, not only beside the reservations that
    this one must not delay."""
    why: str = ""
    """Why no workload is preempted for it; empty: there is none that it may preempt."""


@dataclasses.dataclass(slots=True)
class LowerPriorityCache:
    """Candidates by queue and rank of the preemptor, as of one round of preemption."""

    found: dict[tuple[str, queue_order.Key], LowerPriorityCandidates] = dataclasses.field(
        default_factory=dict
    )
    evictions: int = 0
    """Evictions that are taken into account."""

    def follow(self, state: DecisionState) -> None:
        """Drops the candidates of queues that lost workloads since."""
        running = state.snapshot.running
        new = state.evictions[self.evictions :]
        queues = {running[eviction.workload].workload.queue for eviction in new}
        self.found = {at: each for at, each in self.found.items() if at[0] not in queues}
        self.evictions = len(state.evictions)


def lower_priority(
    state: DecisionState, workload: Workload, rank: queue_order.Key
) -> LowerPriorityCandidates:
    """What a workload of this rank may preempt in its own queue, and surplus of other queues."""
    cache = state.cache(LowerPriorityCache)
    if cache.evictions != len(state.evictions):
        cache.follow(state)
    found = cache.found.get((workload.queue, rank))
    if found is None:
        found = victim_candidates.lower_priority(state, workload)
        cache.found[workload.queue, rank] = found
    return found


def rank(state: DecisionState, workload: Workload) -> queue_order.Key:
    """By which workloads of one queue may preempt each other; smaller is stronger."""
    queue = state.queue_of(workload)
    key: queue_order.Key = (-queue_order.priority(queue, workload),)
    if queue.order == "attained":
        key += (state.ordering.predictor.index(workload, workload.attained),)
    return key


def may_preempt(state: DecisionState, failure: PlacementFailure) -> bool:
    """Whether preemption is on and an empty cluster would hold what was short of capacity."""
    if not (state.policy.preempt or state.policy.reclaim):
        return False
    shape = state.context.cluster.shape_of(failure.role)
    return state.most_when_empty(shape) >= failure.wanted


def may_reclaim(
    state: DecisionState, queue: str, need: Sums, candidates: LowerPriorityCandidates
) -> bool:
    """Whether the queue would be within its guarantee if all terminating workloads were gone, all
    that the workload outranks, and all that queues below may have to give back."""
    tree, concerned = state.tree, False
    own, used = tree.guarantee[queue], tree.used[queue]
    if not own:
        return False
    left, held = terminating.of(state).left().get(queue, {}), candidates.held
    for resource, amount in own.items():
        asked = need.get(resource, 0)
        if asked:
            stays = used.get(resource, 0) - held.get(resource, 0) - left.get(resource, 0)
            if stays - tree.preemptible_below(queue, resource) + asked > amount:
                return False
            concerned = True
    return concerned


def in_vain(
    state: DecisionState,
    info: WorkloadInfo,
    failure: PlacementFailure,
    reservations: tuple[Reservation, ...],
) -> Futility:
    """Whether preemption surely does not help a workload beside these reservations."""
    workload, unreserved = info.workload, failure.reserved_until is None
    if not workload.preempts or not may_preempt(state, failure):
        return Futility(in_vain=True, for_class=unreserved)
    candidates = lower_priority(state, workload, rank(state, workload))
    if state.policy.reclaim and may_reclaim(state, workload.queue, info.need, candidates):
        return Futility(in_vain=False)
    if not candidates or not (state.snapshot.running or victim_candidates.cache_of(state).late):
        return Futility(in_vain=True, for_class=unreserved)
    shape, may_gain = state.context.cluster.shape_of(failure.role), batch_bounds.of(state).may_gain
    missing = failure.wanted - failure.fitting
    if unreserved and not may_gain(state, info, shape, missing, ()):
        return Futility(in_vain=True, for_class=True, why=NOT_ENOUGH)
    if reservations:
        free = free_capacity.of(state).outside(shape, failure.wanted, reservations)
        if not may_gain(state, info, shape, failure.wanted - free, reservations):
            return Futility(in_vain=True, why=NOT_ENOUGH)
    if unreserved and not _may_fit(state, workload, candidates, failure, ()):
        return Futility(in_vain=True, for_class=True, why=NOT_ENOUGH)
    beside = bool(reservations) and not _may_fit(state, workload, candidates, failure, reservations)
    return Futility(in_vain=beside, why=NOT_ENOUGH)


def might_help(
    state: DecisionState,
    attempt: Attempt,
    candidates: LowerPriorityCandidates,
    failure: PlacementFailure,
) -> bool:
    """Whether preemption might free enough: by sums, then by a quick check of the nodes."""
    shape, reservations = state.context.cluster.shape_of(failure.role), attempt.overlapping
    free, wanted = free_capacity.of(state), failure.wanted
    there = (
        free.outside(shape, wanted, reservations) if reservations else free.in_all(shape, wanted)
    )
    info = state.info(attempt.workload)
    return batch_bounds.of(state).may_gain(
        state, info, shape, wanted - there, reservations
    ) and _may_fit(state, attempt.workload, candidates, failure, reservations)


def _may_fit(
    state: DecisionState,
    workload: Workload,
    candidates: LowerPriorityCandidates,
    failure: PlacementFailure,
    reservations: tuple[Reservation, ...],
) -> bool:
    """Whether what was short of capacity might fit, by nodes where any can come free: if all
    candidates of its own queue went, or if only all terminating workloads did."""
    if not failure.resolved:
        return True
    topology = workload.topology
    level = topology.level if topology is not None and topology.required else ""
    state.work.spend(candidates.count)
    cluster, future = state.context.cluster, future_capacity.of(state)
    shape, bounds = cluster.shape_of(failure.role), list[CapacityBound]()
    if candidates:
        bounds.append(candidates.bound(cluster, terminating.of(state).nominated()))
    if future is not None:
        bounds.append(future.worst_bound)
    if (
        future is not None
        and future.most_later(cluster, shape, level, reservations) >= failure.wanted
    ):
        return True
    most = capacity_bounds.most_with(cluster, bounds, shape, level, reservations)
    return most >= failure.wanted
