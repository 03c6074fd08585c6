"""When time alone changes the decision: the next moment at which deciding again is worth it.

Everything in a decision that follows the clock moves in steps, and the moments of these steps are
gathered here: reserved starts, minimum runtimes and pauses that end (noted where they are in the
way), windows of advance reservations and the last moments before them, reservation delays that end,
ages of running workloads, and expected ends that pass. Until the first of them the same facts give
the same decision.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from windlass.core.decision import fair_share, profile_cursor
from windlass.core.decision.state import DecisionState
from windlass.core.prediction import aging, predictor
from windlass.core.quota import overcommit
from windlass.core.reservation import allowance, backfill


def next_moment(state: DecisionState) -> float | None:
    """None: nothing changes before something happens."""
    moments = itertools.chain(
        state.wakeups,
        () if state.windows is None else state.windows.moments,
        (reservation.start for reservation in state.reservations),
        allowance.reservation_delays(state),
        _aging_steps(state),
        _ends(state),
        fair_share.next_preemption(state.snapshot, state.now),
        _guarantee_turns(state),
    )
    first = min((at for at in moments if state.now < at < backfill.FOREVER), default=None)
    return None if first is None else float(first)  # some come out of arrays


def _aging_steps(state: DecisionState) -> Iterator[float]:
    """When the ages of running workloads advance, while the decision depends on what is learned of
    them: a running workload of any queue changes predictions for waiting ones."""
    if state.running and _is_learned(state):
        started = np.array([each.started for each in state.running.values()], np.float64)
        before = np.array([each.workload.attained for each in state.running.values()], np.float64)
        alone = predictor.EAGER.all_left_alone(before)
        yield float(aging.next_rank_changes(state.now, started, before, alone).min())


def _is_learned(state: DecisionState) -> bool:
    """Whether the decision depends on what is learned from running workloads: as ranks, or as ends
    that reservations count on."""
    reserving = bool(state.reservations or allowance.searches(state).in_vain)
    if reserving and profile_cursor.of(state).uses_predictions(state):
        return True
    for name in state.snapshot.nonempty_queues():
        queue = state.tree.queues.get(name)
        if queue is None:
            continue
        if queue.order == "attained":
            return True
        silent = (
            workload for workload in state.snapshot.pending_in(name) if workload.expected is None
        )
        if (reserving or queue.order == "shortest") and any(
            state.predicted(workload) is not None for workload in silent
        ):
            return True
    return False


def _ends(state: DecisionState) -> Iterator[float]:
    """When running workloads should have ended: if they have not, they are expected to end later,
    and reservations that count on it start later. One that starts before the estimated end counts
    on nothing then."""
    if not state.reservations and not allowance.searches(state).failed_in:
        return
    until = backfill.FOREVER
    if not allowance.searches(state).failed_in:
        until = max(reservation.start for reservation in state.reservations)
    yield from profile_cursor.of(state).next_ends(state, until)
    for key in state.placements:  # the ledger may not know them yet
        end = state.running_end(state.running[key])
        if end is not None and end <= until:
            yield float(aging.next_reestimates(np.array([end]), state.now)[0])


def _guarantee_turns(state: DecisionState) -> Iterator[float]:
    """When another queue may have its turn to use an overcommitted guarantee."""
    snapshot = state.snapshot
    return overcommit.next_turn(snapshot.tree, snapshot.accounted_at if snapshot.waiting else None)
