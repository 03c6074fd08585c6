"""Carrying out a plan: victims are evicted or retracted, and the preemptor gets their place."""

from __future__ import annotations

import dataclasses
from typing import Final

import numpy as np

from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model import gangs
from windlass.core.model.types import Eviction, Workload
from windlass.core.placement.gang_placement import allocate_exact
from windlass.core.preemption.victims.candidates import YIELDING, Candidates
from windlass.core.preemption.victims.victim_selection import Plan
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import Sums
from windlass.core.reservation import commit
from windlass.core.snapshot import running_index
from windlass.core.snapshot.running_index import EvictionUnit
from windlass.core.verdicts import formatting, messages

PREEMPTED_BY: Final = "preempted by a workload"
SURPLUS: Final = "its surplus is needed for the minimum of a workload of queue"
"""How the reason of an eviction by a workload of the same queue begins."""


@dataclasses.dataclass(slots=True)
class RetractedStarts:
    """Starts that were retracted for other workloads. They do not retract others themselves: else
    two workloads that both have a right would do so in turns."""

    keys: set[str] = dataclasses.field(default_factory=set)


def carry_out(state: DecisionState, workload: Workload, pool: Candidates, plan: Plan) -> None:
    """Evicts the victims of a plan. The preemptor starts at once if none of them still holds its
    place; else the place is nominated to it."""
    freed = _evict(state, workload, pool, plan)
    may_start = not state.namespace_shortage(workload) and not state.tree.shortage(
        workload.queue, state.need(workload), non_preemptible=not workload.preemptible
    )
    pods = gangs.numbered(state.snapshot.running.get(workload.key), plan.pods)
    if not freed and may_start and allocate_exact(state.context.cluster, workload, pods):
        commit.start(state, workload, pods)
        return
    commit.nominate(state, workload, pods)
    state.context.cluster.settle()
    message = _being_freed(state.need(workload), freed)
    state.verdicts[workload.key] = dataclasses.replace(
        messages.being_freed(workload), message=message
    )


def _evict(
    state: DecisionState, workload: Workload, pool: Candidates, plan: Plan
) -> dict[str, Sums]:
    """By queue, what evicted workloads will give back. Starts of this decision are retracted."""
    freed = dict[str, Sums]()
    right = "entitled to" if state.tree.shares_are_owed else "guaranteed"
    first = f"{PREEMPTED_BY} that is before it in queue {workload.queue}"
    reasons = {workload.queue: first}
    surplus = f"{SURPLUS} {workload.queue}"
    rightful = np.flatnonzero(plan.gone & (pool.kind != YIELDING)).tolist()
    by_right = {pool.pieces[i].key for i in rightful}
    for piece in _victims(state, pool, plan):
        if piece.key in state.snapshot.waiting:
            state.cache(RetractedStarts).keys.add(piece.key)
            commit.retract(state, piece.key)
            continue
        pods = tuple([(pod.role, pod.index) for pod in piece.pods])
        queue = piece.running.workload.queue
        reason = reasons.setdefault(
            queue, f"reclaimed by queue {workload.queue}, which is {right} it"
        )
        if queue == workload.queue and workload.priority > piece.running.workload.priority:
            ranks = f"priority {workload.priority} > {piece.running.workload.priority}"
            reason = f"{PREEMPTED_BY} of queue {queue} ({ranks})"
        reason = reason if piece.key in by_right else surplus
        state.evictions.append(Eviction(piece.key, pods, workload.key, reason))
        quota_tree.add(freed.setdefault(queue, {}), piece.usage)
    return freed


def _victims(state: DecisionState, pool: Candidates, plan: Plan) -> list[EvictionUnit]:
    """The pieces of each victim as one: some of its surplus, or all that is left of it."""
    by_workload: dict[str, list[EvictionUnit]] = {}
    for i in np.flatnonzero(plan.gone).tolist():
        piece = pool.pieces[i]
        by_workload.setdefault(piece.key, []).append(piece)
    return [_as_one(state, pieces) for pieces in by_workload.values()]


def _as_one(state: DecisionState, pieces: list[EvictionUnit]) -> EvictionUnit:
    running = pieces[0].running
    if any(not piece.surplus for piece in pieces):
        evicted = terminating.of(state).evicted().get(running.workload.key)
        gone = evicted.pods if evicted is not None else ()
        pods = tuple([pod for pod in running.pods if pod not in gone])
    else:
        pods = tuple(pod for piece in pieces for pod in piece.pods)
    if len(pieces) == 1 and len(pods) == len(pieces[0].pods):
        return pieces[0]
    return running_index.part_of(state.context.cluster, running, pods)


def _being_freed(need: Sums, freed: dict[str, Sums]) -> str:
    parts = []
    for queue, sums in sorted(freed.items()):
        shown = [formatting.amount(r, n) for r, n in sorted(sums.items()) if n and need.get(r)]
        parts.append(f"{', '.join(shown)} in queue {queue}" if shown else f"queue {queue}")
    if not parts:
        return "waiting for preempted workloads to exit"
    return f"waiting for preempted workloads to exit: {'; '.join(parts)}"
