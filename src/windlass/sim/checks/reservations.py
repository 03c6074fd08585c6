"""Firm starts held against what really happens (I9; R2 and R4 of docs/sharing.md).

A workload with a firm start begins by then, or the start is withdrawn before it is due, with a
reason. With honest runtimes and no lost node only three things justify a withdrawal: a workload of
a higher priority in its own queue, another queue that takes back its guarantee where this one would
borrow, or the beneficiary of an advance reservation in its window. That rule is told again here,
from the facts, and not asked of the core. Tentative reservations promise nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core import advance_invariants, amounts, place
from windlass.core.facts import Decision, Unit
from windlass.core.invariants import Broken
from windlass.core.state import Snapshot


class Promises:
    """Told every decision before it is carried out, and every start."""

    def __init__(self, late: float) -> None:
        self.late = late
        """Seconds that a start may be late by rounding alone."""
        self._due: dict[str, float] = {}
        """Workload -> the firm start that it was given and that was not withdrawn."""
        self._passed: set[str] = set()
        """Workloads with a firm start that another passed which had the right to."""

    def decided(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        known = snapshot.nominations
        coming = [each.unit for each in decision.placements if each.unit in snapshot.waiting]
        coming += [each.unit for each in decision.nominations if known.get(each.unit) != each]
        passing = [snapshot.waiting[key] for key in coming]
        given = {each.unit: each.start for each in snapshot.reservations}
        sooner = [
            snapshot.waiting[each.unit]
            for each in decision.reservations
            if each.unit in snapshot.waiting and given.get(each.unit) != each.start
        ]
        for key in self._due.keys() - self._passed:
            unit = snapshot.waiting.get(key)
            if unit is None:
                continue
            if any(_may_pass(snapshot, each, unit, passing, now) for each in passing) or any(
                each.queue == unit.queue and _may_pass(snapshot, each, unit, (), now)
                for each in sooner
            ):
                self._passed.add(key)
        self._withdrawn(decision, now)
        for reservation in decision.reservations:
            if reservation.firm:
                known_due = self._due.get(reservation.unit, reservation.start)
                self._due[reservation.unit] = min(known_due, reservation.start)
        for key in self._due.keys() - set(coming):
            if now > self._due[key] + self.late:
                raise Broken(f"I9 at {now}: {key} was promised {self._due[key]} and still waits")

    def _withdrawn(self, decision: Decision, now: float) -> None:
        for withdrawal in decision.withdrawals:
            key, due = withdrawal.unit, self._due.pop(withdrawal.unit, None)
            told = f"I9 at {now}: the start of {key} at {due} was withdrawn"
            if due is None:
                raise Broken(f"{told}, but it had none")
            if now > due + self.late:
                raise Broken(f"{told} after it was due: {withdrawal.reason}")
            if key not in self._passed:
                raise Broken(f"{told} although no workload passed it: {withdrawal.reason}")
            self._passed.discard(key)

    def started(self, key: str, now: float) -> None:
        due = self._due.pop(key, now)
        if now > due + self.late:
            raise Broken(
                f"I9 at {now}: {key} was promised {due} and starts {now - due:.3f} s later"
            )
        self._passed.discard(key)


def _may_pass(
    snapshot: Snapshot, unit: Unit, promised: Unit, passing: Sequence[Unit], now: float
) -> bool:
    if unit.key == promised.key:
        return False
    if any(
        window.start <= now < window.end
        and advance_invariants.may_use(window, snapshot.queues, unit)
        and not advance_invariants.may_use(window, snapshot.queues, promised)
        for window in snapshot.calendar.windows
    ):
        return True
    if unit.queue == promised.queue:
        most = snapshot.queues[unit.queue].max_priority
        mine, theirs = (
            each.priority if most is None else min(each.priority, most) for each in (unit, promised)
        )
        return mine > theirs
    return _inside(snapshot, unit, []) and not _inside(snapshot, promised, passing)


def _inside(snapshot: Snapshot, unit: Unit, others: Sequence[Unit]) -> bool:
    """Whether its queue would stay within its guarantee with it, and with those others that start
    in the same decision; of resources that the queue itself is guaranteed."""
    tree, cluster = snapshot.tree, snapshot.cluster
    own = tree.guarantee[unit.queue]
    used = dict(tree.used[unit.queue])
    for other in others:
        if unit.queue in tree.path(other.queue):
            for resource, amount in amounts.of_wishes(cluster, place.least_of(other)).items():
                used[resource] = used.get(resource, 0) + amount
    need = amounts.of_wishes(cluster, place.least_of(unit))
    counted = [resource for resource in own if need.get(resource)]
    return bool(counted) and all(
        used.get(resource, 0) + need[resource] <= own[resource] for resource in counted
    )
