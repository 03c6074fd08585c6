"""Reservations of blocked heads: when and where they start.

The driver asks for a reservation for the first blocked heads of a queue. A reservation never gets
later while workloads end when they are expected to, or before. The reservations of the last
decision come back with the snapshot and hold from the start of this decision, against all workloads
of no higher rank; each is made again at the turn of its workload, for the same time or an earlier
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from windlass.core.cluster import assignment_checks
from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import profile_cursor, shadows
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.types import PodAssignment, ReservationRecord, Role, Workload
from windlass.core.placement import gang_placement
from windlass.core.prediction import aging
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import Sums
from windlass.core.reservation import (
    allowance,
    backfill,
    earliest_start,
    overlap,
    overruns,
    quota_forecast,
    withdrawals,
)
from windlass.core.snapshot import availability_profile

FOREVER = backfill.FOREVER


def restore_all(state: DecisionState) -> None:
    """Reservations of the last decision hold from the start of this one, where they still can."""
    due = [
        (workload, old, max(old.start, state.now))
        for old in state.snapshot.reservations
        if (workload := state.snapshot.waiting.get(old.workload)) is not None
        and workload.key not in state.placements
        and workload.key not in state.nominations
        and workload.queue in state.tree.queues
        and workload.queue not in state.tree.paused
        and not _has_terms(state, workload)
    ]
    left, moment = Counter(start for _, _, start in due), None
    for workload, old, start in due:
        left[start] -= 1
        refusal = _not_recalled(state, workload, old, start)
        if refusal:
            withdrawals.note(state, workload.key, refusal)
            continue
        _make_way(state, workload.queue)
        moment = _Moment.of(state, start, moment)
        shadow = moment.cluster.fork(()) if left[start] else moment.cluster
        bound = workload if state.windows is None else state.windows.starting(workload, start)
        reservation = _restored(state, bound, old, start, shadow)
        if reservation is None or not overlap.add(state, reservation):
            withdrawals.note(state, workload.key, withdrawals.why_lost(state, old))


def _not_recalled(
    state: DecisionState, workload: Workload, old: ReservationRecord, start: float
) -> str:
    """What keeps a reservation of the last decision from holding, besides capacity."""
    if not _asks_for(workload, old):
        return "the workload asks for something else now"
    if not allowance.has_one_left(state, workload.queue):
        return _too_many(state)
    short = quota_forecast.shortage_at(state, workload, state.need(workload), start)
    if short is not None and start > state.now:
        return f"queue {short.queue} will not have the quota by then"
    return ""


def _too_many(state: DecisionState) -> str:
    most = allowance.most(state)
    return f"there are {most} reservations at most, and queues with a smaller share come first"


def _make_way(state: DecisionState, queue: str) -> None:
    """Where there are as many reservations as may be, the first one of a queue takes the place of
    another."""
    while sum(state.reserved_in.values()) >= allowance.most(state):
        gone = allowance.gives_way(state, queue)
        if gone is None:
            return
        overlap.withdraw(state, gone, _too_many(state))


def restore(state: DecisionState, workload: Workload) -> None:
    """A workload that was about to start does not: it has its reservation again, if it had one and
    the place is still there."""
    for old in state.snapshot.reservations:
        if (
            old.workload == workload.key
            and old.start > state.now
            and not _has_terms(state, workload)
        ):
            shadow = _Moment.of(state, old.start, None).cluster
            bound = (
                workload if state.windows is None else state.windows.starting(workload, old.start)
            )
            reservation = _restored(state, bound, old, old.start, shadow)
            if reservation is not None:
                overlap.add(state, reservation)


class _Moment:
    """The cluster at a time, with the reservations that are under way then. Many start together, so
    it is kept from one to the next."""

    def __init__(self, state: DecisionState, time: float) -> None:
        self.time = time
        self.cluster = state.context.cluster.fork(())
        self.allocated = list[availability_profile.AllocationRows]()
        profile_cursor.of(state).refresh(state)
        profile_cursor.of(state).move(self.cluster, availability_profile.AT_ONCE, time)

    @staticmethod
    def of(state: DecisionState, time: float, last: _Moment | None) -> _Moment:
        rows = [
            reservation.rows
            for reservation in state.reservations
            if reservation.start <= time < reservation.end
        ]
        if (
            last is None
            or last.time != time
            or any(one is not other for one, other in zip(last.allocated, rows, strict=False))
        ):  # another time, or reserved pods have other devices by now
            last = _Moment(state, time)
        availability_profile.shift_all(last.cluster, rows[len(last.allocated) :], -1)
        last.allocated = rows
        return last


def reserve(
    state: DecisionState, workload: Workload, previous: Reservation | None = None
) -> Reservation | None:
    """A reservation for the earliest time at which capacity and quota suffice if other workloads
    end when expected. `previous` is kept if nothing earlier is found; once its start has passed
    it is replaced by a later one, or lost."""
    overdue = previous is not None and _is_overdue(state, previous)
    if previous is not None and overdue:
        withdrawals.note(state, workload.key, withdrawals.why_lost(state, previous.record))
    if previous is None:
        if not allowance.may_reserve(state, workload):
            return None
        if earliest_start.has_final(state) and earliest_start.never_fits(state, workload):
            allowance.searched_in_vain(state, workload, never=True)
            return None
    before = FOREVER if previous is None or overdue else previous.start
    younger = _without_younger(state, workload) if previous is None else None
    found = earliest_start.find(state, workload, before)
    if found is None and younger is not None:
        overlap.put_back(state, younger)
    if found is not None:
        if previous is None:
            _make_way(state, workload.queue)
        end = _end(state, workload, found.time)
        firm = (previous is not None and previous.firm) or _is_firm(state, workload, found.time)
        made = _made(state, workload) if previous is None else previous.made
        reservation = Reservation(
            found.workload, found.time, end, list(found.pods), found.cluster, fresh=True, firm=firm,
            made=made,
        )  # fmt: skip
        if overlap.add(state, reservation):
            return reservation
    if previous is None:
        allowance.searched_in_vain(
            state, workload, never=earliest_start.never_fits(state, workload)
        )
        return None
    if overdue:
        return None  # no later start is known: one that moves with the clock says nothing
    overlap.put_back(state, previous)
    return previous


def _without_younger(state: DecisionState, workload: Workload) -> Reservation | None:
    """Takes back what a workload of its patient queue was given in this decision that was submitted
    later, if there is no reservation left for this one."""
    wanted = state.queue_of(workload).max_reservations
    if state.reserved_in.get(workload.queue, 0) < wanted:
        return None
    younger = allowance.younger(state, workload)
    return None if younger is None else overlap.release(state, younger.workload)


def _end(state: DecisionState, workload: Workload, start: float) -> float:
    estimate = state.estimate(workload)
    return FOREVER if estimate is None else start + estimate


def _made(state: DecisionState, workload: Workload) -> float:
    """Now, or when it got the reservation that is looked for anew in every decision."""
    if workload.key not in state.lost_reservations:
        for old in state.snapshot.reservations:
            if old.workload == workload.key and old.made is not None:
                return old.made
    return state.now


def _is_overdue(state: DecisionState, previous: Reservation) -> bool:
    """Whether a start has passed that could not be kept; not while a workload ends in this very
    moment, but for rounding."""
    if previous.start > state.now:
        return False
    if previous.given + withdrawals.LATE < state.now:
        return True
    profile_cursor.of(state).refresh(state)
    return not len(profile_cursor.of(state).times(state.now, state.now + 2 * withdrawals.LATE))


def _is_firm(state: DecisionState, workload: Workload, start: float) -> bool:
    """Whether the start is firm: it is the turn of the workload's queue by then, at every
    level of the tree. Otherwise another queue that is below its share may still take the place, and
    the reservation is tentative."""
    tree, need = state.tree, state.need(workload)
    if _has_terms(state, workload):
        return False  # its place is looked for anew in every decision
    if len(tree.queues) == 1:
        return True
    if tree.is_overcommitted:
        return False  # what other queues keep changes with the turn of their guarantees
    return all(
        tree.within_guarantee(name, need) or _has_its_turn(state, name, start)
        for name in tree.path(workload.queue)
    )


def _has_its_turn(state: DecisionState, name: str, time: float) -> bool:
    """Whether a queue is below its claim by then, and no waiting sibling below its own claim has a
    smaller share by then: the next workloads of such a sibling have no reservations yet."""
    tree, shares = state.tree, state.fair_shares
    change = _change_until(state, name, time)
    if not shares.is_below(name, change):
        return False
    own = tree.share_after(name, change)
    return not any(
        tree.share_after(other, _change_until(state, other, time)) < own
        for other in shares.further_behind(name, own)
    )


def _change_until(state: DecisionState, branch: str, time: float) -> Sums:
    """How the use of a queue and those below it changes by then as running workloads end and
    reserved ones start, without those that end before."""
    tree, snapshot, found = state.tree, state.snapshot, Sums()
    below = [branch]
    for name in below:
        below += tree.children.get(name, ())
        for key in snapshot.profile.ending(name, state.now, time):
            quota_tree.add(found, state.usage.get(key, {}), -1)
    for reservation in state.reservations:
        if reservation.start <= time < reservation.end and branch in tree.path(
            reservation.workload.queue
        ):
            quota_tree.add(found, state.need(reservation.workload))
    return found


def retain(state: DecisionState, previous: Reservation | None) -> None:
    """A quota keeps the workload waiting now, but may not when its reservation is due: it stays."""
    if previous is not None and previous.start > state.now:
        overlap.put_back(state, previous)


def _asks_for(workload: Workload, old: ReservationRecord) -> bool:
    """Whether the workload still asks for what is reserved."""
    wanted = {request.role.name: request.count for request in pod_sets.minimum(workload)}
    return Counter([pod.role for pod in old.pods]) == wanted


def _restored(
    state: DecisionState, workload: Workload, old: ReservationRecord, start: float, shadow: Cluster
) -> Reservation | None:
    """The reservation as it was, in the cluster as it will be then; None: it does not fit."""
    rows = availability_profile.allocation_rows(shadow, workload, old.pods)
    pods: list[PodAssignment] | None = list(old.pods)
    there = _all_there(shadow, workload, old.pods, rows)
    if not there:
        pods = shadows.reallocate_on_node(shadow, workload, old.pods)
    if pods is None:
        shadow.rollback(0)
        nodes = {pod.node for pod in old.pods}
        for guest in overruns.candidates(state, workload, nodes, old.made, start):
            end = aging.estimated_end(guest.expected_end, state.now)
            if end is None or end > start:  # else the shadow is without it already
                overruns.free(shadow, guest)
        pods = shadows.reallocate_on_node(shadow, workload, old.pods)
    if pods is None:
        return None
    shadow.settle()
    end = _end(state, workload, start)
    return Reservation(
        workload, start, end, pods, shadow, fresh=False, firm=old.firm, made=old.made,
        given=old.start, _rows=rows if there else None,
    )  # fmt: skip


def _all_there(
    cluster: Cluster,
    workload: Workload,
    pods: Sequence[PodAssignment],
    rows: availability_profile.AllocationRows,
) -> bool:
    """Takes the specific devices of all pods if every one of them is free; else nothing."""
    if not all(
        assignment_checks.serves(cluster, role, pod) for role, pod in _one_pod_each(workload, pods)
    ):
        return False
    if rows.ports:
        return gang_placement.allocate_exact(cluster, workload, pods)
    if rows.devices.shape[1] and not cluster.device_table.has_capacity(rows.devices):
        return False
    cluster.shift(rows.members, rows.devices, -1)
    if cluster.free[:, rows.members[0]].min(initial=0) >= 0:
        return True
    cluster.shift(rows.members, rows.devices, +1)
    return False


def _one_pod_each(
    workload: Workload, pods: Sequence[PodAssignment]
) -> Iterator[tuple[Role, PodAssignment]]:
    """Of every role and node, one pod."""
    roles = {role.name: role for role in workload.roles}
    for role_and_node, pod in {(pod.role, pod.node): pod for pod in pods}.items():
        yield roles[role_and_node[0]], pod


def _has_terms(state: DecisionState, workload: Workload) -> bool:
    """Whether terms about other pods decide where it may be: then its place is searched anew."""
    return any(state.context.pod_index.has_terms_for(workload, role) for role in workload.roles)
