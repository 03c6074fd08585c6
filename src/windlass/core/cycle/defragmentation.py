"""Which moves of running workloads would let a waiting workload start now.

A gang may wait although enough capacity is free in sum: it is free in the wrong places. Here are
the fewest workloads found that leave its place and fit elsewhere, in what is free now, so that
no workload waits longer for it, and no reservation is delayed. They are stopped by the checkpoint
contract and start again on capacity that is nominated to them.

`look` carries that out with workloads whose owners allow it, that lose little work by it and were
not moved lately. `propose` finds what would help any workload, for explanations.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from windlass.core.cluster.devices.device_allocation import UNLOCKED
from windlass.core.decision import free_capacity, terminating
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.state import DecisionState
from windlass.core.model import gangs, pod_sets
from windlass.core.model.types import Eviction, PodAssignment, Running, Workload
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption import future_capacity, preemption_request
from windlass.core.preemption.victims import victim_candidates, victim_selection
from windlass.core.preemption.victims.candidates import FIRST, Candidates, Mask, PreemptionRequest
from windlass.core.preemption.victims.simulation import PreemptionSimulation
from windlass.core.quota import device_models
from windlass.core.reservation import backfill, commit, overlap, quota_forecast
from windlass.core.verdicts import messages
from windlass.kinds.reasons import Reason

HEADS = 2
"""Blocked workloads for which moves are looked for in one decision, the first in turn."""
LOOKED_AT = 64
"""Blocked workloads of which it is asked whether enough is free in sum."""
CANDIDATES, PAIRED = 48, 16
"""Workloads that are tried alone and in pairs, those that lose the least work first."""
_PLACE = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.RESERVED_UNTIL)


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A running workload that is moved."""

    running: Running
    pods: tuple[PodAssignment, ...]
    """Where its minimum starts again."""


@dataclasses.dataclass(frozen=True, slots=True)
class Moves:
    """What lets a waiting workload start."""

    pods: tuple[PodAssignment, ...]
    """Where it starts."""
    moves: tuple[Move, ...]


def run(state: DecisionState) -> None:
    """Moves workloads for the first that wait for place. Costs nothing where none is movable."""
    if not state.policy.defragment or not state.snapshot.running_index.movable:
        return
    tried = 0
    for workload in _blocked(state):
        if tried >= HEADS or state.work.exhausted:
            return
        if _is_free_in_sum(state, workload):
            tried += 1
            found = _find(state, workload, _movable(state, workload))
            if found is not None:
                _commit(state, workload, found)


def propose(state: DecisionState, workload: Workload) -> Moves | None:
    """What would let the workload start, allowed or not. Leaves the state unfit for more."""
    verdict = state.verdicts.get(workload.key)
    if verdict is None or verdict.reason not in _PLACE or not _is_free_in_sum(state, workload):
        return None
    return _find(state, workload, _stoppable(state))


def allows(running: Running) -> bool:
    """Whether the owner of a workload allows that it is moved."""
    return running.workload.movable and running.workload.preemptible


# --- for which, and which -------------------------------------------------------------------------


def _blocked(state: DecisionState) -> Iterator[Workload]:
    """Workloads that wait for place, in the order of their turns."""
    for key in itertools.islice(dict.fromkeys(state.considered), LOOKED_AT):
        verdict, workload = state.verdicts.get(key), state.snapshot.waiting.get(key)
        if verdict is None or workload is None or verdict.reason not in _PLACE:
            continue
        if key not in state.placements and key not in state.nominations:
            yield workload


def _is_free_in_sum(state: DecisionState, workload: Workload) -> bool:
    """Whether all nodes together have what the workload needs: else no move can help."""
    cluster = state.context.cluster
    for pod_set in pod_sets.minimum(workload):
        role, usable = pod_set.role, cluster.mask(pod_set.role.constraint)
        usable = usable & cluster.schedulable(role.constraint)
        for name, need in role.needs.items():
            column = cluster.resources.get(name)
            if need and column is not None:
                free = int(np.maximum(cluster.free[column, usable], 0).sum())
                if free < need * pod_set.count:
                    return False
        for request in role.devices:
            if request.form != "whole":
                continue
            free_devices = cluster.device_table.eligible(request) & (
                cluster.device_table.mode == UNLOCKED
            )
            if int(free_devices[usable].sum()) < request.count * pod_set.count:
                return False
    return True


def _movable(state: DecisionState, workload: Workload) -> dict[str, list[Running]]:
    """By queue, workloads that may be moved for this one now."""
    found: dict[str, list[Running]] = {}
    for queue, keys in sorted(state.snapshot.running_index.movable.items()):
        for key in sorted(keys):
            running = state.snapshot.running[key]
            if _is_free_to_go(state, running) and _may_move(state, running, workload):
                found.setdefault(queue, []).append(running)
    return found


def _may_move(state: DecisionState, running: Running, workload: Workload) -> bool:
    """Whether it loses little work and was not moved lately, nor for the same workload. Asks for a
    decision when time alone makes it movable again."""
    policy, now = state.policy, state.now
    saved = running.started if running.checkpoint_at is None else running.checkpoint_at
    if now - max(running.started, saved) > policy.move_loses:
        return False
    if any(gang == workload.key for _, gang in running.workload.moved):
        return False
    rested = max((at + policy.move_every for at, _ in running.workload.moved), default=now)
    due = max(rested, running.protected_until)
    if due > now:
        state.wakeups.append(due)
    return due <= now


def _stoppable(state: DecisionState) -> dict[str, list[Running]]:
    """By queue, workloads that could be stopped and started again, allowed or not."""
    found: dict[str, list[Running]] = {}
    for key in sorted(state.snapshot.running):
        running = state.snapshot.running[key]
        if running.workload.preemptible and _is_free_to_go(state, running):
            found.setdefault(running.workload.queue, []).append(running)
    return found


def _is_free_to_go(state: DecisionState, running: Running) -> bool:
    """Whether nothing else is being done with it."""
    workload = running.workload
    return (
        workload.queue in state.tree.queues
        and workload.queue not in state.tree.paused
        and not running.leaving
        and workload.key not in terminating.of(state).evicted()
        and workload.key not in state.placements
        and not gangs.missing_pods(running)
        and not any(
            state.context.pod_index.has_terms_for(workload, role) for role in workload.roles
        )
    )


# --- the search -----------------------------------------------------------------------------------


def _find(
    state: DecisionState, workload: Workload, candidates: Mapping[str, list[Running]]
) -> Moves | None:
    """The fewest moves that let the workload start, of these the ones that lose the least work."""
    if not candidates or any(
        state.context.pod_index.has_terms_for(workload, role) for role in workload.roles
    ):
        return None
    reservation = overlap.release(state, workload)  # it would start now
    found = None
    narrowed = device_models.permitted(state.context.cluster, state.tree, workload)
    if isinstance(narrowed, Workload):
        attempt = backfill.attempt(state, narrowed)
        if _quota_allows(state, attempt):
            claim = preemption_request.make(state, attempt, frozenset(), may_reclaim=False)
            found = _Search(state, claim, candidates).run()
    if reservation is not None and found is None:
        overlap.put_back(state, reservation)
    return found


def _quota_allows(state: DecisionState, attempt: Attempt) -> bool:
    workload = attempt.workload
    return (
        state.namespace_shortage(workload) is None
        and state.tree.shortage(
            workload.queue, attempt.need, non_preemptible=not workload.preemptible
        )
        is None
        and (
            not attempt.overlapping
            or quota_forecast.shortage_beside(state, workload, attempt.need, attempt.overlapping)
            is None
        )
    )


class _Search:
    """One workload that waits, and the workloads that may be moved for it."""

    def __init__(
        self,
        state: DecisionState,
        claim: PreemptionRequest,
        candidates: Mapping[str, list[Running]],
    ) -> None:
        self._state, self._claim, self._workload = state, claim, claim.workload
        future = future_capacity.of(state)
        self._base = future.worst if future is not None else state.context.cluster
        self._pool = _pool(state, claim, candidates)
        self._trial = self._trial_of(self._pool)
        self._workloads = self._worth_trying() if len(self._pool) else []
        """Pieces of workloads that could help, those that lose the least work first."""

    def run(self) -> Moves | None:
        all_moves = np.ones(len(self._pool), np.bool_)
        if not self._workloads or not self._trial.suffices(all_moves):
            return None
        for gone in self._sets():
            if self._state.work.exhausted:
                return None
            found = self._arranged(gone) if self._trial.suffices(gone) else None
            if found is not None:
                return found
        return None

    def _trial_of(self, part: Candidates) -> PreemptionSimulation:
        return PreemptionSimulation(self._state, self._claim, part, self._base, quota=False)

    def _worth_trying(self) -> list[Mask]:
        """Workloads on nodes with capacity for more pods of the waiting one once all are gone, that
        fit elsewhere now."""
        pool, trial = self._pool, self._trial
        touching = np.ones(len(pool), np.bool_)
        if trial.identical:
            all_gone = np.ones(len(pool), np.bool_)
            more = trial.caps(all_gone, trial.shape) > trial.caps(~all_gone, trial.shape)
            flat = trial.pool.flat
            touching[:] = False
            touching[flat.pod_of[more[flat.members[0]]]] = True
        numbers = np.unique(pool.least[touching])
        elsewhere = [n for n in numbers.tolist() if self._fits_elsewhere(pool.pieces[n].running)]
        workloads = [np.asarray(pool.least == n) for n in elsewhere]
        cost = pool.lost * pool.size
        workloads.sort(key=lambda rows: (float(cost[rows].sum()), int(pool.size[rows].sum())))
        return workloads

    def _fits_elsewhere(self, running: Running) -> bool:
        """Whether its minimum fits now, looking at each role alone."""
        cluster, free_sums = self._state.context.cluster, free_capacity.of(self._state)
        return all(
            free_sums.in_all(cluster.shape_of(request.role), request.count) >= request.count
            for request in pod_sets.minimum(running.workload)
        )

    def _sets(self) -> Iterator[Mask]:
        """One workload, two, then those that suffice with the least work lost."""
        most = self._state.policy.moves
        yield from self._workloads[:CANDIDATES]
        if most >= 2:
            for one, other in itertools.combinations(self._workloads[:PAIRED], 2):
                yield one | other
        if most > 2:
            chosen = np.logical_or.reduce(self._workloads)
            plan = victim_selection.plan(
                self._trial_of, self._pool, chosen, device_models.in_turn(self._workload)
            )
            if plan is not None and 2 < len(self._victims(plan.gone)) <= most:
                yield plan.gone

    def _victims(self, gone: Mask) -> list[Running]:
        """The workloads of some pieces, the largest first: they are the hardest to place."""
        rows = np.unique(self._pool.least[gone]).tolist()
        found = [self._pool.pieces[row].running for row in rows]
        return sorted(found, key=lambda each: (-len(each.pods), each.workload.key))

    def _arranged(self, gone: Mask) -> Moves | None:
        """Where the waiting workload starts and where these go; None: not all find a place. The
        first place of the one may leave none for the others, so several are tried."""
        victims_gone = self._victims(gone)
        pods = self._pods(gone)
        if pods is None:
            return None
        for avoid in ("", *dict.fromkeys(pod.node for pod in pods)):
            chosen = pods if not avoid else self._pods(gone, avoid)
            moves = self._relocated(victims_gone, chosen) if chosen is not None else None
            if chosen is not None and moves is not None:
                return Moves(chosen, moves)
        for avoid in ("", *sorted({pod.node for each in victims_gone for pod in each.pods})):
            moves = self._relocated(victims_gone, (), avoid)
            chosen = self._pods(gone, beside=moves) if moves is not None else None
            if chosen is not None and moves is not None:
                return Moves(chosen, moves)
        return None

    def _pods(
        self, gone: Mask, avoid: str = "", beside: Sequence[Move] = ()
    ) -> tuple[PodAssignment, ...] | None:
        """Where the waiting workload would be once these are gone: away from one node, beside
        workloads that moved."""
        trial, cluster = self._trial, self._trial.cluster(gone)
        for move in beside:
            roles = {role.name: role for role in move.running.workload.roles}
            for pod in move.pods:
                if pod.node in cluster.index:
                    cluster.occupy(roles[pod.role], pod)
        within = trial.within
        if avoid:
            within = np.ones(len(cluster), np.bool_) if within is None else within.copy()
            within[cluster.index[avoid]] = False
        answer = trial.place(cluster, gone, within, device_models.in_turn(self._workload))
        return None if isinstance(answer, PlacementFailure) else answer

    def _relocated(
        self, gone: list[Running], beside: tuple[PodAssignment, ...], avoid: str = ""
    ) -> tuple[Move, ...] | None:
        """Places for these in what is free now, away from one node, beside the waiting workload
        in its place and without delaying a reservation. Takes nothing."""
        state, context, cluster = self._state, self._state.context, self._state.context.cluster
        roles, mark = {role.name: role for role in self._workload.roles}, cluster.mark()
        for pod in beside:
            cluster.occupy(roles[pod.role], pod)
        if avoid:
            within = np.ones(len(cluster), np.bool_)
            within[cluster.index[avoid]] = False
            context = context.limited(within=within)
        moves: list[Move] = []
        for running in gone:
            answer = overlap.place(state, backfill.attempt(state, running.workload), context)
            if isinstance(answer, PlacementFailure):
                break
            moves.append(Move(running, answer))
        cluster.rollback(mark)
        return tuple(moves) if len(moves) == len(gone) else None


def _pool(
    state: DecisionState, claim: PreemptionRequest, candidates: Mapping[str, list[Running]]
) -> Candidates:
    """Their pieces; the minimum of a workload and its surplus go together."""
    parts: list[Candidates] = []
    for queue, runs in sorted(candidates.items()):
        columns = victim_candidates.columns_of(state, queue)
        rows = [
            np.arange(*columns.rows(each.workload.key).indices(len(columns.pieces)))
            for each in runs
        ]
        chosen = np.sort(np.concatenate(rows))
        kinds = np.full_like(columns.size, FIRST)
        parts.append(victim_candidates.part_of(state, queue, columns, chosen, kinds))
    return victim_candidates.joined(state, claim, parts)


# --- what was decided -----------------------------------------------------------------------------


def _commit(state: DecisionState, workload: Workload, found: Moves) -> None:
    for move in found.moves:
        members = tuple((pod.role, pod.index) for pod in move.running.pods)
        nodes = ", ".join(sorted({pod.node for pod in move.pods}))
        reason = f"moved to {nodes} so that a waiting workload of queue {workload.queue} can start"
        key = move.running.workload.key
        state.evictions.append(Eviction(key, members, workload.key, reason, move=True))
        state.moving[key] = move.running.workload
    for each, pods in (
        (workload, found.pods),
        *((m.running.workload, m.pods) for m in found.moves),
    ):
        commit.nominate(state, each, pods)
    state.context.cluster.settle()
    count = len(found.moves)
    message = f"{count} running workload{'s are' if count > 1 else ' is'} being moved to make place"
    verdict = messages.being_freed(workload)
    state.verdicts[workload.key] = dataclasses.replace(verdict, message=message)
