"""Which reservations a workload must not delay, and which it may pass.

Asked for every waiting workload, more than once, so what holds for one of a class is kept for all
of it as long as nothing moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Set

from windlass.core.decision.attempt import Attempt
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import UNIQUE
from windlass.core.model.types import Workload
from windlass.core.queueing import queue_order

FOREVER = float("inf")


@dataclasses.dataclass(slots=True)
class BackfillCache:
    """Which reservations workloads may pass, as long as nothing changes that decides it."""

    passed: dict[int, frozenset[str]] = dataclasses.field(default_factory=dict)
    """Equivalence class -> reservations that it may delay, as of `generation`."""
    generation: int = -1
    within_guarantee: dict[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)
    """Reserved workload -> whether it would stay within its queue's guarantee, as of which change
    of its queue."""
    by_share: dict[tuple[str, str], tuple[tuple[int, int], bool]] = dataclasses.field(
        default_factory=dict
    )
    """(Queue, other) -> whether its workloads pass tentative reservations of the other, as of which
    changes of both."""


def attempt(state: DecisionState, workload: Workload) -> Attempt:
    """The workload at its turn, with the reservations that it must not delay."""
    info, end = state.info(workload), state.expected_end(workload)
    reservations = overlapping(state, workload, end)
    return Attempt(workload, info.requests, state.need(workload), info.members, end, reservations)


def overlapping(
    state: DecisionState, workload: Workload, end: float | None
) -> tuple[Reservation, ...]:
    """Reservations that the workload, started now, would run into and must not delay."""
    if not state.reservations:
        return ()
    until = stays_until(state, workload, end)
    # A list: this is asked for every waiting workload, more than once.
    met = [reservation for reservation in state.reservations if reservation.start < until]
    if workload.key in state.reserved_for:  # its own is not in its way
        met = [reservation for reservation in met if reservation.workload.key != workload.key]
    return tuple(binding(state, workload, met))


def binds(state: DecisionState, workload: Workload, reservation: Reservation) -> bool:
    """Whether the workload must not delay a reservation."""
    return reservation.workload.key not in _passed(state, workload)


def binding(
    state: DecisionState, workload: Workload, reservations: list[Reservation]
) -> list[Reservation]:
    """Those that the workload must not delay."""
    passed = _passed(state, workload)
    return (
        [reservation for reservation in reservations if reservation.workload.key not in passed]
        if passed
        else reservations
    )


def _passed(state: DecisionState, workload: Workload) -> Set[str]:
    """Reservations that the workload may delay. Found once for all of its kind, as long as nothing
    moves: every waiting workload asks, more than once."""
    if workload.queue not in state.tree.queues:
        return frozenset()
    kind, cache = state.info(workload).equivalence_class, state.cache(BackfillCache)
    if cache.generation != state.generation:
        cache.generation, cache.passed = state.generation, {}
    known = cache.passed.get(kind) if kind != UNIQUE else None
    if known is None:
        known = frozenset(_all_passed(state, cache, workload))
        if kind != UNIQUE:
            cache.passed[kind] = known
    return known


def passes_in_queue(state: DecisionState, workload: Workload, reservation: Reservation) -> bool:
    """Whether a workload may delay a reservation of its own queue: the higher priority passes one
    of an earlier decision. The order among equals says which workload gets a reservation, and once
    given it is kept."""
    if reservation.fresh:
        return False
    queue = state.queue_of(workload)
    return queue_order.priority(queue, workload) > queue_order.priority(queue, reservation.workload)


def _all_passed(state: DecisionState, cache: BackfillCache, workload: Workload) -> Iterator[str]:
    """Between queues a workload passes that takes back its queue's guarantee where the other would
    borrow, or whose queue is below its share where the other is not and has only a tentative
    reservation. In a window of an advance reservation its beneficiaries pass reservations of others
    that are for the same nodes after the window."""
    own = workload.queue
    takes_back = state.tree.within_guarantee(own, state.need(workload))
    for reservation in state.reservations:
        other = reservation.workload.queue
        if state.windows is not None and state.windows.may_pass(
            workload, reservation.workload, reservation.start, reservation.names
        ):
            passes = True
        elif own == other:
            passes = passes_in_queue(state, workload, reservation)
        elif (reservation.firm and (reservation.fresh or not takes_back)) or _is_inside(
            state, cache, reservation
        ):
            passes = False
        else:
            passes = takes_back or (
                not reservation.firm and _passes_by_share(state, cache, own, other)
            )
        if passes:
            yield reservation.workload.key


def _is_inside(state: DecisionState, cache: BackfillCache, reservation: Reservation) -> bool:
    """Whether the reserved workload would stay within its queue's guarantee; found again when its
    queue has moved."""
    known, workload = cache.within_guarantee, reservation.workload
    moved = state.tree.last_change(workload.queue)
    found = known.get(workload.key)
    if found is None or found[0] != moved:
        inside = state.tree.within_guarantee(workload.queue, state.need(workload))
        found = known[workload.key] = (moved, inside)
    return found[1]


def _passes_by_share(state: DecisionState, cache: BackfillCache, own: str, other: str) -> bool:
    """As `FairShares.may_pass`; found again when one of the queues has moved."""
    known, tree = cache.by_share, state.tree
    moved = (tree.last_change(own), tree.last_change(other))
    found = known.get((own, other))
    if found is None or found[0] != moved:
        found = known[own, other] = (moved, state.fair_shares.may_pass(own, other))
    return found[1]


def stays_until(state: DecisionState, workload: Workload, end: float | None) -> float:
    """When it is gone: never if that is unknown, unless the policy lets reservations preempt it."""
    if end is not None:
        return end
    stopped = state.policy.unknown_runtime == "preemptible" and workload.preemptible
    return state.now if stopped else FOREVER
