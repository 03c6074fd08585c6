"""A reservation that is due: its workload starts, or the workloads in its place are preempted."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.decision import shadows
from windlass.core.decision.shadows import Interval, Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Eviction, PodAssignment, Workload
from windlass.core.placement import gang_placement
from windlass.core.reservation import backfill, commit, overlap, overruns
from windlass.core.verdicts import messages


def is_due(state: DecisionState, reservation: Reservation | None) -> bool:
    return reservation is not None and reservation.start <= state.now


def redeem(state: DecisionState, workload: Workload, reservation: Reservation | None) -> bool:
    """For a reservation that is due: the workload starts on the reserved nodes, or workloads are
    evicted that started there on condition that they leave. Returns whether it did."""
    if reservation is None or not is_due(state, reservation):
        return False
    cluster = state.context.cluster
    mark = cluster.mark()
    pods: Sequence[PodAssignment] | None = reservation.pods
    if not gang_placement.allocate_exact(
        cluster, workload, reservation.pods
    ):  # other devices may be reserved
        pods = shadows.reallocate_on_node(cluster, workload, reservation.pods)
    if pods is not None:
        until = backfill.stays_until(state, workload, state.expected_end(workload))
        stay = Interval(workload, state.now, until, pods)
        if not overlap.clashing(state, stay):
            commit.start(state, workload, tuple(pods))
            return True
    cluster.rollback(mark)
    return _preempt_guests(state, workload, reservation)


def _preempt_guests(state: DecisionState, workload: Workload, reservation: Reservation) -> bool:
    """Evicts as few of them as it takes to free the reserved place."""
    cluster = state.context.cluster
    gone = {eviction.workload for eviction in state.evictions}
    nodes = {pod.node for pod in reservation.pods}
    guests = overruns.candidates(state, workload, nodes, reservation.made, state.now)
    mark, pods, stopped = cluster.mark(), None, []
    for guest in guests:
        if guest.workload.key in gone:
            continue
        overruns.free(cluster, guest)
        stopped.append(guest)
        between = cluster.mark()
        pods = shadows.reallocate_on_node(cluster, workload, reservation.pods)
        if pods is not None:
            break
        cluster.rollback(between)
    cluster.rollback(mark)
    if pods is None:
        return False
    for guest in stopped:
        members = tuple((pod.role, pod.index) for pod in guest.pods)
        reason = overruns.UNKNOWN if guest.expected_end is None else overruns.OVERRAN
        state.evictions.append(Eviction(guest.workload.key, members, workload.key, reason))
    commit.nominate(state, workload, tuple(pods))
    state.verdicts[workload.key] = messages.being_freed(workload)
    return True
