"""The contract of reclaim (I8), counted again from the facts by other means than the core's.

No queue is left below its guarantee by what other queues take from it, or below what it held before
if that was less. The one exception is a workload that goes only as a whole and reaches into the
guarantee, after it ran long enough. And whoever takes is inside its own guarantee afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from windlass.core import amounts, fairshare, place
from windlass.core.facts import (
    Decision,
    Eviction,
    Nomination,
    Placement,
    Running,
    Seat,
    Unit,
)
from windlass.core.state import Snapshot

Sums = Counter[str]
LEAST_RUN = 600.0


def problems(snapshot: Snapshot, decision: Decision, now: float) -> Iterator[str]:
    """What is wrong with what queues take from each other, in sentences."""
    check = _Check(snapshot, decision, now)
    if check.taken:
        yield from check.left_below()
        yield from check.not_entitled()


class _Check:
    def __init__(self, snapshot: Snapshot, decision: Decision, now: float) -> None:
        self.snapshot, self.decision, self.now = snapshot, decision, now
        self.tree = fairshare.tree_with_owed_shares(snapshot)
        self.taken = [
            each
            for each in decision.evictions
            if not each.move
            and each.gainer in snapshot.waiting
            and snapshot.waiting[each.gainer].queue != self._victim(each).unit.queue
        ]
        self.moved = {each.unit for each in decision.evictions if each.move}

    def _victim(self, eviction: Eviction) -> Running:
        return self.snapshot.running[eviction.unit]

    # --- the queues that give

    def left_below(self) -> Iterator[str]:
        """Judged where preemptor and victim part, and at every level below that."""
        by_level: dict[tuple[str, bool], list[Eviction]] = {}
        for eviction in self.taken:
            for level in self._levels(eviction):
                by_level.setdefault(level, []).append(eviction)
        for (name, direct), evictions in sorted(by_level.items()):
            problem = self._below(name, direct, evictions)
            if problem:
                yield problem

    def _levels(self, eviction: Eviction) -> list[tuple[str, bool]]:
        """Queues of the victim's side; a queue above the preemptor's stands only for its own
        workloads."""
        mine = self.snapshot.waiting[eviction.gainer].queue
        theirs = self._victim(eviction).unit.queue
        if theirs in self.tree.path(mine):
            return [(theirs, True)]
        return [(name, False) for name in self.tree.parting(mine, theirs)[1]]

    def _below(self, name: str, direct: bool, evictions: list[Eviction]) -> str:
        """Of the resources that preemptors may have taken back, one at least must be in order:
        which of them were scarce is not told again here."""
        wanted = set[str]()
        for each in evictions:
            own = self._reclaimable(self.snapshot.waiting[each.gainer])
            wanted |= own or self.tree.guaranteed  # surplus yields also without a guarantee
        gone = [self._held(self._victim(each).unit, self._seats(each)) for each in evictions]
        total = sum(gone, Counter[str]())
        taken = sorted(resource for resource in wanted if total[resource])
        if not taken and all(self._is_surplus(each) for each in evictions):
            return ""  # nothing of it is guaranteed to any queue
        before, more = self._before(name, direct), self._coming(name, direct)
        for resource in taken:
            kept = min(self._guarantee(name, direct, resource), before[resource])
            left = before[resource] + more[resource] - total[resource]
            if left >= kept:
                return ""
            reach = [
                amount[resource]
                for amount, each in zip(gone, evictions, strict=True)
                if self._ran_long_enough(each)
            ]
            if left + max(reach, default=0) > kept:
                return ""
        return (
            f"I8 at {self.now}: queue {name} is left below its guarantee by "
            f"{', '.join(sorted({each.unit for each in evictions}))}"
        )

    def _ran_long_enough(self, eviction: Eviction) -> bool:
        victim = self._victim(eviction)
        queue = self.snapshot.queues[victim.unit.queue]
        base = max(queue.min_runtime, LEAST_RUN)
        return victim.started + base * 2.0**victim.unit.preemptions <= self.now

    def _before(self, name: str, direct: bool) -> Sums:
        """What the queue held, without those who leave already."""
        found: Sums = Counter()
        for running in self.snapshot.running.values():
            if self._counts(running.unit, name, direct):
                stay = [s for s in running.seats if (s.role, s.index) not in running.leaving]
                found.update(self._held(running.unit, stay))
        return found

    def _coming(self, name: str, direct: bool) -> Sums:
        """What starts there in this decision or is promised room, beyond what goes for it in the
        queue itself."""
        found: Sums = Counter()
        coming: list[Placement | Nomination] = [*self.decision.placements]
        coming += [each for each in self.decision.nominations if each.unit not in self.moved]
        for each in coming:
            waiting = self.snapshot.waiting.get(each.unit)
            unit = waiting or self.snapshot.running[each.unit].unit
            if self._counts(unit, name, direct):
                own = self._held(unit, each.seats)
                for eviction in self.decision.evictions:
                    victim = self._victim(eviction).unit
                    if eviction.gainer == each.unit and self._counts(victim, name, direct):
                        own.subtract(self._held(victim, self._seats(eviction)))
                found.update(+own)
        return found

    def _counts(self, unit: Unit, name: str, direct: bool) -> bool:
        return unit.queue == name if direct else name in self.tree.path(unit.queue)

    def _guarantee(self, name: str, direct: bool, resource: str) -> int:
        own = self.tree.guarantee[name].get(resource, 0)
        children = self.tree.children.get(name, ()) if direct else ()
        return max(0, own - sum(self.tree.guarantee[c].get(resource, 0) for c in children))

    # --- the queue that takes

    def not_entitled(self) -> Iterator[str]:
        """Its own queue is inside its guarantee with all that was decided, unless it takes only
        surplus, which yields to any waiting minimum."""
        for key in sorted({each.gainer for each in self.taken if not self._is_surplus(each)}):
            unit = self.snapshot.waiting[key]
            used = self._before(unit.queue, direct=False)
            for each in self.decision.evictions:
                if self._counts(self._victim(each).unit, unit.queue, direct=False):
                    used.subtract(self._held(self._victim(each).unit, self._seats(each)))
            need = amounts.of_wishes(self.snapshot.cluster, place.least_of(unit))
            for resource, own in self.tree.guarantee[unit.queue].items():
                if need.get(resource) and used[resource] + need[resource] > own:
                    yield (
                        f"I8 at {self.now}: {key} takes from other queues, and queue {unit.queue} "
                        f"would use {used[resource] + need[resource]} of {own} {resource}"
                    )

    def _is_surplus(self, eviction: Eviction) -> bool:
        """Whether the victim keeps its minimum."""
        running = self._victim(eviction)
        gone = {*eviction.seats, *running.leaving}
        left = Counter(s.role for s in running.seats if (s.role, s.index) not in gone)
        return all(left[role.name] >= max(1, role.least) for role in running.unit.roles)

    def _reclaimable(self, unit: Unit) -> set[str]:
        need = amounts.of_wishes(self.snapshot.cluster, place.least_of(unit))
        return {r for r in self.tree.guarantee[unit.queue] if need.get(r)}

    def _seats(self, eviction: Eviction) -> list[Seat]:
        gone = set(eviction.seats)
        return [s for s in self._victim(eviction).seats if (s.role, s.index) in gone]

    def _held(self, unit: Unit, seats: list[Seat] | tuple[Seat, ...]) -> Sums:
        return Counter(amounts.of_seats(self.snapshot.cluster, unit.roles, seats))
