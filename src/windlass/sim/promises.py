"""Promised starts held against what really happens (I9).

A unit that was promised a start starts by then, as long as runtimes are honest and no node is
lost, unless somebody passed it who could stop it if it ran: of its own queue with a higher
priority, or of another queue that takes back its guarantee where this one would borrow. The rule
is told again here, from the facts, and not asked of the core.
"""

from __future__ import annotations

from windlass.core import amounts, place
from windlass.core.facts import Decision, Unit
from windlass.core.invariants import Broken
from windlass.core.state import Snapshot


class Promises:
    """Told every decision before it is carried out, and every start."""

    def __init__(self, late: float) -> None:
        self.late = late
        """Seconds that a start may be late by rounding alone."""
        self._due: dict[str, float] = {}
        self._passed: set[str] = set()
        """Promised units that somebody passed who had the right to."""

    def decided(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        known = snapshot.nominations
        coming = [each.unit for each in decision.placements if each.unit in snapshot.waiting]
        coming += [each.unit for each in decision.nominations if known.get(each.unit) != each]
        passing = [snapshot.waiting[key] for key in coming]
        for key in self._due.keys() - self._passed:
            unit = snapshot.waiting.get(key)
            if unit is not None and any(
                _may_pass(snapshot, each, unit, passing) for each in passing
            ):
                self._passed.add(key)
        for reservation in decision.reservations:
            known_due = self._due.get(reservation.unit, reservation.start)
            self._due[reservation.unit] = min(known_due, reservation.start)
        for key in self._due.keys() - self._passed - set(coming):
            if now > self._due[key] + self.late:
                raise Broken(f"I9 at {now}: {key} was promised {self._due[key]} and still waits")

    def started(self, key: str, now: float) -> None:
        due = self._due.pop(key, now)
        if key not in self._passed and now > due + self.late:
            raise Broken(
                f"I9 at {now}: {key} was promised {due} and starts {now - due:.3f} s later"
            )
        self._passed.discard(key)


def _may_pass(snapshot: Snapshot, unit: Unit, promised: Unit, passing: list[Unit]) -> bool:
    if unit.key == promised.key:
        return False
    if unit.queue == promised.queue:
        most = snapshot.queues[unit.queue].max_priority
        mine, theirs = (
            each.priority if most is None else min(each.priority, most) for each in (unit, promised)
        )
        return mine > theirs
    return _inside(snapshot, unit, []) and not _inside(snapshot, promised, passing)


def _inside(snapshot: Snapshot, unit: Unit, others: list[Unit]) -> bool:
    """Whether its queue would stay within its guarantee with it, and with those others that start
    in the same decision."""
    tree, cluster = snapshot.tree, snapshot.cluster
    own = tree.guarantee[unit.queue]
    used = dict(tree.used[unit.queue])
    for other in others:
        if unit.queue in tree.path(other.queue):
            for resource, amount in amounts.of_wishes(cluster, place.least_of(other)).items():
                used[resource] = used.get(resource, 0) + amount
    need = amounts.of_wishes(cluster, place.least_of(unit))
    counted = [resource for resource in need if need[resource] and resource in tree.guaranteed]
    return any(need.get(resource) for resource in own) and all(
        used.get(resource, 0) + need[resource] <= own.get(resource, 0) for resource in counted
    )
