"""Preemption: evicting pods of running workloads so that one that has the right can start.

The driver calls `preempt_for` for a workload that does not fit, and `within_queue` for one that a
quota keeps waiting. No workload is evicted unless the preemptor then surely fits: its place, with
what is free of it now, is nominated to the preemptor and kept from others until it starts there.
Victims keep their capacity until their pods are gone. What terminating workloads give back is
counted on before any other workload is evicted.

`victim_candidates` and `reclaim` know which workloads may be evicted for which, `victim_selection`
and `reclaim_search` find the cheapest that suffice.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import attempt as attempts
from windlass.core.decision import terminating
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption import evict, feasibility, future_capacity, preemption_request
from windlass.core.preemption.capacity_bounds import NOT_ENOUGH
from windlass.core.preemption.future_capacity import FutureCapacity
from windlass.core.preemption.plan import Chances
from windlass.core.preemption.victims import (
    reclaim,
    simulation,
    victim_candidates,
    victim_selection,
)
from windlass.core.preemption.victims.candidates import Candidates, PreemptionRequest
from windlass.core.preemption.victims.simulation import PreemptionSimulation
from windlass.core.queueing import queue_order
from windlass.core.quota import device_models
from windlass.core.quota.quota_tree import Shortage


class Outcome(NamedTuple):
    """What preemption did for a workload."""

    found: bool
    """The workload starts, or capacity is nominated to it."""
    why: str = ""
    """Why no workload was evicted for it; empty: there is none that it may preempt."""


@dataclasses.dataclass(slots=True)
class Refusal:
    """Workloads like this one, with as many pods and no better rank, are in vain too."""

    pods: int
    rank: queue_order.Key
    why: str
    evictions: int
    """Evictions until then: later ones leave something to count on."""


@dataclasses.dataclass(slots=True)
class PreemptionCache:
    """What did not help, as of one round of preemption."""

    refused: dict[object, Refusal] = dataclasses.field(default_factory=dict)
    without_candidates: dict[object, Cluster] = dataclasses.field(default_factory=dict)
    """Per rights of a request: the cluster without all that could go for it. Free capacity only
    shrinks in one round, so what does not fit there need not be searched for."""


@dataclasses.dataclass(slots=True)
class ReclaimRights:
    """Refused workloads that may take back what other queues borrow."""

    over: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)
    """Workload -> the resources whose quota is in its way."""


def rights(state: DecisionState) -> dict[str, frozenset[str]]:
    """Refused workloads that may reclaim, and the resources whose quota is in their way."""
    return state.cache(ReclaimRights).over


def same_rights(state: DecisionState, known: str, workload: Workload) -> None:
    """A workload gets the verdict of another one of its class: it has the same rights."""
    over = rights(state).get(known)
    if over is not None:
        rights(state)[workload.key] = over


def within_queue(state: DecisionState, attempt: Attempt, shortage: Shortage) -> Outcome:
    """Preempts for a workload that a quota keeps waiting: workloads that it outranks, or that
    borrow from its queue."""
    if shortage.rule == "guarantee":
        return Outcome(found=False)  # it is used by workloads that must not be preempted
    return preempt(state, attempt, frozenset((shortage.resource,)), None)


def preempt_for(state: DecisionState, attempt: Attempt, failure: PlacementFailure) -> Outcome:
    """Preempts for a workload that its quotas let start, but that does not fit."""
    if not feasibility.may_preempt(state, failure):
        return Outcome(found=False)
    return preempt(state, attempt, frozenset(), failure)


def preempt(
    state: DecisionState, attempt: Attempt, over: frozenset[str], failure: PlacementFailure | None
) -> Outcome:
    """`over`: resources whose quota is in the way."""
    workload, cache = attempt.workload, state.cache(PreemptionCache)
    if not (state.policy.preempt or state.policy.reclaim) or not workload.preempts:
        return Outcome(found=False)
    rank = feasibility.rank(state, workload)
    candidates = feasibility.lower_priority(state, workload, rank)
    reclaims = state.policy.reclaim and feasibility.may_reclaim(
        state, workload.queue, attempt.need, candidates
    )
    if reclaims:
        rights(state)[workload.key] = over
    if not (reclaims or candidates) or not (
        state.snapshot.running or victim_candidates.cache_of(state).late
    ):
        return Outcome(found=False)
    kind = (
        workload.queue, workload.preemptible, over, attempts.equivalence_key(state, attempt)
    )  # fmt: skip
    known = cache.refused.get(kind)
    if known is not None and attempt.pods >= known.pods and rank >= known.rank:
        if len(state.evictions) == known.evictions or state.work.exhausted:
            return Outcome(found=False, why=known.why)
        found = _find_in_terminating(state, attempt, over, reclaims=reclaims)
        return Outcome(found, "" if found else known.why)
    if reclaims or failure is None or feasibility.might_help(state, attempt, candidates, failure):
        outcome = Outcome(found=False)
        if not state.work.exhausted:
            outcome = _find(state, attempt, over, reclaims=reclaims)
        if outcome.found:
            return outcome
    else:
        outcome = Outcome(found=False, why=NOT_ENOUGH)
    if known is None or attempt.pods <= known.pods:
        cache.refused[kind] = Refusal(attempt.pods, rank, outcome.why, len(state.evictions))
    return outcome


def _find(
    state: DecisionState, attempt: Attempt, over: frozenset[str], *, reclaims: bool
) -> Outcome:
    workload, without_candidates = attempt.workload, state.cache(PreemptionCache).without_candidates
    request = preemption_request.make(state, attempt, over, may_reclaim=reclaims)
    rank = feasibility.rank(state, workload)
    key = (
        workload.queue,
        rank,
        request.scarce,
        request.contested,
        request.borrowed,
        request.inside,
    )
    emptied = without_candidates.get(key)
    if emptied is not None and not simulation.may_fit(state, workload, emptied):
        return Outcome(found=False, why=NOT_ENOUGH)
    anyway = request.inside or victim_candidates.has_outranked(state, request)
    if anyway and _count_on_terminating(state, request):
        return Outcome(found=True)
    pool = reclaim.pool(state, request)
    if not anyway and len(pool) and _count_on_terminating(state, request):
        return Outcome(found=True)
    future = future_capacity.of(state)
    base = future.worst if future is not None else state.context.cluster
    quota = bool(over) or not request.inside

    def trial_of(part: Candidates) -> PreemptionSimulation:
        return PreemptionSimulation(state, request, part, base, quota=quota)

    chances = Chances(state, request, trial_of, pool)
    found = chances.plan(state.now)
    if found is not None:
        evict.carry_out(state, workload, *found)
        return Outcome(found=True)
    if not len(pool) and not len(chances.all_victims):
        return Outcome(found=False)
    why = chances.why_protected() or NOT_ENOUGH
    if reclaims:
        without_candidates[key] = simulation.without(state, base, chances.all_victims)
    return Outcome(found=False, why=why)


def _find_in_terminating(
    state: DecisionState, attempt: Attempt, over: frozenset[str], *, reclaims: bool
) -> bool:
    """As `_find`, for a workload for which it is in vain to evict any other workload."""
    future = future_capacity.of(state)
    if future is None or not _may_suffice(state, attempt.workload, future):
        return False
    request = preemption_request.make(state, attempt, over, may_reclaim=reclaims)
    has_candidates = (
        request.inside
        or victim_candidates.has_outranked(state, request)
        or reclaim.pool(state, request)
    )
    return bool(has_candidates) and _count_on_terminating(state, request)


def _count_on_terminating(state: DecisionState, request: PreemptionRequest) -> bool:
    """Whether what terminating workloads give back, beyond what is nominated of it, is enough: no
    other workload must go."""
    future = future_capacity.of(state)
    if future is None or not _may_suffice(state, request.workload, future):
        return False
    none = victim_candidates.no_candidates(state, request)
    if request.is_bound:
        request = dataclasses.replace(request, tree=terminating.of(state).tree_without())
    trial = PreemptionSimulation(state, request, none, future.later, quota=True)
    plan = victim_selection.plan_without_victims(trial, device_models.in_turn(request.workload))
    if plan is not None:
        evict.carry_out(state, request.workload, none, plan)
    return plan is not None


def _may_suffice(state: DecisionState, workload: Workload, future: FutureCapacity) -> bool:
    """A quick look, at each role alone: what is free now, with what others give back."""
    cluster, info = state.context.cluster, state.info(workload)
    return not info.exact or all(
        future.most_later(cluster, shape, info.level, ()) >= request.count
        for request, shape in zip(info.requests, info.shapes, strict=True)
    )
