"""Reserved starts compared with what really happens (I9; R2 and R4 of docs/reference/sharing.md).

A workload with a firm start begins by then, or the start is withdrawn before it is due, with a
reason. With honest runtimes and no lost node only three things justify a withdrawal: a workload of
a higher priority in its own queue, another queue that reclaims its guarantee where this one would
borrow, or the beneficiary of an advance reservation in its window. The check derives that rule from
the facts and does not ask the core. Tentative reservations are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.invariants import advance_reservations
from windlass.core.invariants.invariants import Broken
from windlass.core.model import pod_sets
from windlass.core.model.types import Decision, Workload
from windlass.core.quota import usage
from windlass.core.snapshot.snapshot import Snapshot


class ReservationCheck:
    """Sees every decision before it is carried out, and every start."""

    def __init__(self, late: float) -> None:
        self.late = late
        """Seconds that a start may be late by rounding alone."""
        self._due: dict[str, float] = {}
        """Workload -> the firm start that it was given and that was not withdrawn."""
        self._passed: set[str] = set()
        """Workloads with a firm start that another passed which had the right to."""

    def decided(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        known = snapshot.nominations
        coming = [
            each.workload for each in decision.placements if each.workload in snapshot.waiting
        ]
        coming += [
            each.workload for each in decision.nominations if known.get(each.workload) != each
        ]
        passing = [snapshot.waiting[key] for key in coming]
        given = {each.workload: each.start for each in snapshot.reservations}
        sooner = [
            snapshot.waiting[each.workload]
            for each in decision.reservations
            if each.workload in snapshot.waiting and given.get(each.workload) != each.start
        ]
        for key in self._due.keys() - self._passed:
            workload = snapshot.waiting.get(key)
            if workload is None:
                continue
            if any(_may_pass(snapshot, each, workload, passing, now) for each in passing) or any(
                each.queue == workload.queue and _may_pass(snapshot, each, workload, (), now)
                for each in sooner
            ):
                self._passed.add(key)
        self._withdrawn(decision, now)
        for reservation in decision.reservations:
            if reservation.firm:
                known_due = self._due.get(reservation.workload, reservation.start)
                self._due[reservation.workload] = min(known_due, reservation.start)
        for key in self._due.keys() - set(coming):
            if now > self._due[key] + self.late:
                due = self._due[key]
                raise Broken(f"I9 at {now}: {key} has a reservation at {due} and still waits")

    def _withdrawn(self, decision: Decision, now: float) -> None:
        for withdrawal in decision.withdrawals:
            key, due = withdrawal.workload, self._due.pop(withdrawal.workload, None)
            problem = f"I9 at {now}: the start of {key} at {due} was withdrawn"
            if due is None:
                raise Broken(f"{problem}, but it had none")
            if now > due + self.late:
                raise Broken(f"{problem} after it was due: {withdrawal.reason}")
            if key not in self._passed:
                raise Broken(f"{problem} although no workload passed it: {withdrawal.reason}")
            self._passed.discard(key)

    def started(self, key: str, now: float) -> None:
        due = self._due.pop(key, now)
        if now > due + self.late:
            raise Broken(
                f"I9 at {now}: {key} has a reservation at {due} and starts {now - due:.3f} s later"
            )
        self._passed.discard(key)


def _may_pass(
    snapshot: Snapshot,
    workload: Workload,
    reserved: Workload,
    passing: Sequence[Workload],
    now: float,
) -> bool:
    if workload.key == reserved.key:
        return False
    if any(
        window.start <= now < window.end
        and advance_reservations.may_use(window, snapshot.queues, workload)
        and not advance_reservations.may_use(window, snapshot.queues, reserved)
        for window in snapshot.calendar.windows
    ):
        return True
    if workload.queue == reserved.queue:
        most = snapshot.queues[workload.queue].max_priority
        mine, theirs = (
            each.priority if most is None else min(each.priority, most)
            for each in (workload, reserved)
        )
        return mine > theirs
    return _inside(snapshot, workload, []) and not _inside(snapshot, reserved, passing)


def _inside(snapshot: Snapshot, workload: Workload, others: Sequence[Workload]) -> bool:
    """Whether its queue would stay within its guarantee with it, and with those others that start
    in the same decision; of resources that the queue itself is guaranteed."""
    tree, cluster = snapshot.tree, snapshot.cluster
    own = tree.guarantee[workload.queue]
    used = dict(tree.used[workload.queue])
    for other in others:
        if workload.queue in tree.path(other.queue):
            for resource, amount in usage.of_requests(cluster, pod_sets.minimum(other)).items():
                used[resource] = used.get(resource, 0) + amount
    need = usage.of_requests(cluster, pod_sets.minimum(workload))
    counted = [resource for resource in own if need.get(resource)]
    return bool(counted) and all(
        used.get(resource, 0) + need[resource] <= own[resource] for resource in counted
    )
