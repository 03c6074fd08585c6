"""Starts beside reservations: a workload that would still run at a reserved start stays out of it.

A reservation keeps a *shadow*: the cluster at its start with the reserved pods in place. A workload
that would still run then may be placed only where the shadow has free capacity as well. A workload
that ends before is free to use the capacity until then. So workloads pass a blocked head only if
they cannot delay it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windlass.core.decision import shadows
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.shadows import Interval, LimitCache, Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import PodAssignment, Running, Workload
from windlass.core.placement import gang_placement, placement_context
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure
from windlass.core.reservation import backfill, quota_forecast, withdrawals

TRIES = 5
"""Arrangements tried beside reservations before the answer is "unresolved"."""


def place(
    state: DecisionState, attempt: Attempt, context: PlacementContext
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """As `gang_placement.place`, without delaying any of the overlapping reservations."""
    workload, requests, reservations = attempt.workload, attempt.requests, attempt.overlapping
    if not reservations:
        return gang_placement.place(context, workload, requests)
    limits = state.cache(LimitCache).limits(context, reservations, requests)
    clashes = list[int]()
    until = backfill.stays_until(state, workload, attempt.end)
    for number in range(TRIES):
        mark, apart = context.cluster.mark(), number == 1
        limited = context.limited(limits=limits)
        if apart:
            answer = _place_apart(limited, attempt, clashes)
        else:
            answer = gang_placement.place(limited, workload, requests)
        if not isinstance(answer, PlacementFailure):
            found = clashing(state, Interval(workload, state.now, until, answer))
            if not found:
                return answer
            context.cluster.rollback(mark)
            clashes += found
        elif not apart:
            if placement_context.fits_by_count(context, workload, requests):
                due = min(each.start for each in reservations)
                answer = dataclasses.replace(answer, reserved_until=due)
            return answer
        if number:
            limits = {shape: limit.copy() for shape, limit in limits.items()}
            for limit in limits.values():
                limit[clashes] = 0
    return PlacementFailure(requests[0].role, requests[0].count, 0, resolved=False)


def clashing(state: DecisionState, stay: Interval) -> list[int]:
    """Nodes on which a reservation that binds the workload would not hold beside its stay."""
    near = shadows.near(state.reservations, stay)  # mostly none
    return shadows.clashing(backfill.binding(state, stay.workload, near), stay) if near else []


def _place_apart(
    context: PlacementContext, attempt: Attempt, nodes: Sequence[int]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """As `gang_placement.place`, on devices of these nodes of which nothing is reserved: reserved
    pods cannot always get other devices."""
    mark = context.cluster.mark()
    for reservation in attempt.overlapping:
        for pod in (pod for node in sorted({*nodes}) for pod in reservation.on(node)):
            context.cluster.bar(pod)
    answer = gang_placement.place(context, attempt.workload, attempt.requests)
    context.cluster.rollback(mark)
    if not isinstance(answer, PlacementFailure):
        gang_placement.allocate_exact(context.cluster, attempt.workload, answer)
    return answer


def one_pod(
    state: DecisionState, workload: Workload, request: PodSetRequest, end: float | None
) -> Attempt:
    """One more pod of a workload that runs until then. Its need is not counted here."""
    reservations = backfill.overlapping(state, workload, end)
    return Attempt(workload, [request], {}, request.count, end, reservations)


def take(
    state: DecisionState, workload: Workload, pods: Sequence[PodAssignment], end: float | None
) -> None:
    """Takes what starts now from every shadow that it runs into. A reservation that does not hold
    beside it is withdrawn: only one that does not bind the workload, since the others were left
    their capacity."""
    if not state.reservations:
        return
    _take_quota(state, workload)
    stay = Interval(workload, state.now, backfill.stays_until(state, workload, end), pods)
    met = shadows.affected(state.reservations, stay)
    if not met:
        return
    passed = [each for each in met if not backfill.binds(state, workload, each)]
    while (refused := shadows.admit(met, stay, keep=True)) is not None:
        # One that is passed and has no capacity left; else a passed one moved to where it would be.
        gone = refused if refused in passed or not passed else passed[-1]
        passed = [each for each in passed if each is not gone]
        met.remove(gone)
        withdraw(state, gone, withdrawals.passed_by(state, workload, gone.workload))


def _take_quota(state: DecisionState, workload: Workload) -> None:
    """Withdraws reservations that the workload may pass and that have no quota left beside it."""
    shared = set(state.tree.path(workload.queue))
    for reservation in list(state.reservations):
        reserved = reservation.workload
        queue, non_preemptible = reserved.queue, not reserved.preemptible
        if not state.tree.is_bound(queue, non_preemptible=non_preemptible) or backfill.binds(
            state, workload, reservation
        ):
            continue
        if not state.tree.withholding and shared.isdisjoint(state.tree.path(queue)):
            continue
        fresh = reservation.fresh
        release(state, reserved)
        need = state.need(reserved)
        if quota_forecast.shortage_at(state, reserved, need, reservation.start) is None:
            put_back(state, reservation)
            reservation.fresh = fresh
        else:
            reason = withdrawals.passed_by(state, workload, reserved)
            withdrawals.note(state, reserved.key, reason)
            state.release()


def give_back(state: DecisionState, running: Running) -> None:
    """A start is retracted: the shadows that it runs into have its capacity again."""
    until = backfill.stays_until(state, running.workload, running.expected_end)
    stay = Interval(running.workload, state.now, until, running.pods)
    for reservation in shadows.affected(state.reservations, stay):
        shadows.leave(reservation, stay)


# --- reservations that come and go ----------------------------------------------------------------


def release(state: DecisionState, workload: Workload) -> Reservation | None:
    """Takes the reservation of a workload back, if it has one."""
    found = state.remove_reservation(workload)
    if found is not None:
        shadows.move_in_shadows(state.reservations, found, +1)
    return found


def withdraw(state: DecisionState, reservation: Reservation, reason: str) -> None:
    """The workload loses its reservation: other workloads may have the capacity."""
    release(state, reservation.workload)
    withdrawals.note(state, reservation.workload.key, reason)
    state.release()


def put_back(state: DecisionState, reservation: Reservation) -> None:
    """A reservation that was released holds again, as it was."""
    reservation.fresh = True
    shadows.move_in_shadows(state.reservations, reservation, -1)
    state.add_reservation(reservation)


def add(state: DecisionState, reservation: Reservation) -> bool:
    """Adds a reservation if those that start while it runs still hold. They may get other devices
    for it; those under way at its start do not, since it was found beside them."""
    stay = Interval(reservation.workload, reservation.start, reservation.end, reservation.pods)
    if shadows.admit(shadows.affected(state.reservations, stay), stay, keep=True) is not None:
        return False
    state.add_reservation(reservation)
    return True
