"""A gang that lost pods is completed before any other workload starts.

Until it is whole again it wastes what it holds. Its missing pods are a workload of their own,
with the rights that the gang had when it waited: they may preempt, get a nomination, stay out of
capacity that is reserved for others, and get a verdict where they cannot be placed. They go near
the rest: inside the domain that the topology of the gang requires.
"""

from __future__ import annotations

import dataclasses

from windlass.core.admission import checks, user_limits
from windlass.core.decision import incomplete_gangs
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.state import DecisionState
from windlass.core.model import gangs
from windlass.core.model.types import Running, Verdict, Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption import preemption
from windlass.core.quota import device_models
from windlass.core.quota.quota_tree import Shortage
from windlass.core.reservation import backfill, commit, overlap, quota_forecast
from windlass.core.verdicts import messages


def repair(state: DecisionState) -> None:
    evicted = {eviction.workload for eviction in state.evictions}
    for key, missing in state.missing.items():
        if key in state.placements or key in state.nominations or key in evicted:
            continue  # capacity was nominated to it before, or it must leave a reservation
        verdict = _complete(state, state.running[key], missing)
        if verdict is not None:
            state.verdicts[key] = _incomplete(state.running[key], verdict)
            state.unresolved |= not verdict.resolved


def _complete(state: DecisionState, running: Running, missing: Workload) -> Verdict | None:
    """Why the members cannot be placed; None: they are, or capacity is being freed for them."""
    tree, workload = state.tree, missing
    if workload.queue not in tree.queues:
        failure = _place(state, running, backfill.attempt(state, workload))
        return messages.no_capacity(state, workload, failure) if failure is not None else None
    may_preempt = checks.barred(state, workload) is None
    over = state.namespace_shortage(workload)
    if over is not None:
        return messages.over_space(workload, over)
    narrowed = device_models.permitted(state.context.cluster, tree, workload)
    if isinstance(narrowed, Shortage):
        return messages.over_quota(workload, narrowed)
    attempt = backfill.attempt(state, narrowed)
    short = tree.shortage(workload.queue, attempt.need, non_preemptible=not workload.preemptible)
    if short is not None:
        if may_preempt and preemption.within_queue(state, attempt, short).found:
            return None
        return messages.over_quota(workload, short)
    user_short = user_limits.shortage(state, workload, attempt.requests, attempt.need, workloads=0)
    if user_short is not None:
        return messages.over_quota(workload, user_short)
    kept = (
        quota_forecast.shortage_beside(state, workload, attempt.need, attempt.overlapping)
        if attempt.overlapping
        else None
    )
    if kept is not None:
        return messages.over_quota(workload, kept)
    failure = _place(state, running, attempt)
    if failure is None:
        return None
    outcome = preemption.Outcome(found=False)
    if may_preempt:
        outcome = preemption.preempt_for(state, attempt, failure)
    return None if outcome.found else messages.no_capacity(state, narrowed, failure, outcome.why)


def _place(state: DecisionState, running: Running, attempt: Attempt) -> PlacementFailure | None:
    """Starts the pods in the domain where the others are; elsewhere only if that was merely
    preferred."""
    domain = incomplete_gangs.domain(state.context.cluster, running)
    failure: PlacementFailure | None = None
    for near_others in dict.fromkeys((domain is not None, False)):
        context = state.context.limited(within=domain) if near_others else state.context
        answer = overlap.place(state, attempt, context)
        if not isinstance(answer, PlacementFailure):
            commit.start(state, attempt.workload, gangs.numbered(running, answer))
            return None
        failure = answer
    return failure


def _incomplete(running: Running, verdict: Verdict) -> Verdict:
    least = sum(role.min_count for role in running.workload.roles)
    count = sum(len(indexes) for indexes in gangs.missing_pods(running).values())
    members = f"{count} of {least} pods " + ("are" if count > 1 else "is")
    return dataclasses.replace(verdict, message=f"{members} missing: {verdict.message}")
