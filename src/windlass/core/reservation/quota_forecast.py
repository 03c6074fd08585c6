"""Use of the queues at a later time: whether a reserved start has its quota then.

A reservation needs capacity and quota. Quota comes back as running workloads end, and reservations
of the same queues take theirs at their start. The forecast is the quota tree of that time: what is
used now, less what ends by then, with the reservations that are under way then. Queues below other
roots matter only where queues lend a part of their guarantee, and to non-preemptible workloads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.core import queues, releases
from windlass.core.facts import Unit
from windlass.core.queues import Shortage, Tree
from windlass.core.shadows import Held

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

_ALL = ""
"""The scope of queues whose use depends on that of all queues."""


class QuotaForecast:
    """Of one decision. It keeps what was computed as long as the decision did not move."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, float], _Ended] = {}
        self._evicted = 0
        """Evictions that are in `_ended`."""
        self._trees: dict[tuple[str, float], Tree] = {}
        self._moves = -1
        """The state of the decision that `_trees` is about."""
        self._silent: dict[str, list[str]] | None = None
        """Queue -> running workloads that say nothing about their end."""

    def tree_at(self, cycle: Cycle, unit: Unit, time: float) -> Tree:
        """The tree as the workload's queue will see it then. Read only."""
        if len(cycle.evictions) != self._evicted:
            self._evicted, self._moves = len(cycle.evictions), -1
            self._ended.clear()
        if self._moves != cycle.memory.moves:
            self._moves = cycle.memory.moves
            self._trees.clear()
        key = (_scope(cycle.tree, unit), time)
        found = self._trees.get(key)
        if found is None:
            found = self._trees[key] = self._made(cycle, *key)
        return found

    def _made(self, cycle: Cycle, scope: str, time: float) -> Tree:
        ended = self._ended.get((scope, time))
        if ended is None:
            ended = self._ended[scope, time] = _Ended(cycle.tree.empty())
            for key in self._ending(cycle, scope, time):
                ended.add(cycle, key)
        ended.follow(cycle, scope, time)
        tree = cycle.departures.tree_without().less(ended.tree, ended.tree)
        for key in cycle.nominations:
            nominee = cycle.workload(key)
            end = cycle.expected_end(nominee) if nominee is not None else None
            if nominee is None or end is None or end > time:
                continue
            if _is_in(cycle.tree, nominee.queue, scope):
                firm = not nominee.preemptible
                tree.add(nominee.queue, cycle.need(nominee), firm=firm, sign=-1)
        for held in cycle.reservations:
            if held.start <= time < held.end and _is_in(cycle.tree, held.unit.queue, scope):
                unit = held.unit
                tree.add(unit.queue, cycle.need(unit), firm=not unit.preemptible)
        return tree

    def _ending(self, cycle: Cycle, scope: str, time: float) -> Iterator[str]:
        """Workloads that run since before this decision and are expected to end by then."""
        for name in _queues_of(cycle.tree, scope):
            yield from cycle.snapshot.profile.ending(name, cycle.now, time)
            for key in self._silent_of(cycle, name):
                end = releases.expected_end(cycle, cycle.snapshot.running[key])
                if end is not None and end <= time:
                    yield key

    def _silent_of(self, cycle: Cycle, name: str) -> Iterable[str]:
        if self._silent is None:
            self._silent = {}
            for key, running in cycle.snapshot.releases.unknown.items():
                self._silent.setdefault(running.unit.queue, []).append(key)
        return self._silent.get(name, ())


class _Ended:
    """What the queues of a scope give back by one time."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._placed = 0
        """Starts of this decision that were looked at."""

    def add(self, cycle: Cycle, key: str) -> None:
        """A workload has ended; what its preempted replicas hold is counted elsewhere."""
        unit, amounts = cycle.running[key].unit, cycle.held.get(key, {})
        leaving = cycle.departures.told().get(key)
        if leaving is not None:
            amounts = dict(amounts)
            queues.add(amounts, leaving.held, -1)
        self.tree.add(unit.queue, amounts, firm=not unit.preemptible)

    def follow(self, cycle: Cycle, scope: str, time: float) -> None:
        """Takes in the starts of this decision since the last time."""
        if self._placed == len(cycle.placements):
            return
        for key in list(cycle.placements)[self._placed :]:
            running = cycle.running[key]
            end = running.expected_end
            ends = key not in cycle.snapshot.running and end is not None and end <= time
            if ends and _is_in(cycle.tree, running.unit.queue, scope):
                self.add(cycle, key)
        self._placed = len(cycle.placements)


def shortage_at(cycle: Cycle, unit: Unit, need: Mapping[str, int], time: float) -> Shortage | None:
    """The rule that forbids the workload to use so much at a later time."""
    if not cycle.tree.is_bound(unit.queue, firm=not unit.preemptible):
        return None
    tree = cycle.quota_forecast.tree_at(cycle, unit, time)
    return tree.shortage(unit.queue, need, firm=not unit.preemptible)


def shortage_beside(
    cycle: Cycle, unit: Unit, need: Mapping[str, int], reservations: Iterable[Held]
) -> Shortage | None:
    """The rule that would be broken, for the workload or for these reservations, at the start of
    one of them, if the workload still runs then."""
    tree, firm = cycle.tree, not unit.preemptible
    if not tree.is_bound(unit.queue, firm=firm):
        return None
    concerned = _concerned(tree, unit, firm, reservations)
    for time in sorted({held.start for held in concerned}):
        then = cycle.quota_forecast.tree_at(cycle, unit, time)
        found = then.shortage(unit.queue, need, firm=firm)
        if found is None and tree.withholding:
            starting = [held for held in concerned if held.start == time]
            found = _short_of_loans(cycle, then, unit, need, starting)
        if found is not None:
            return found
    return None


def _concerned(tree: Tree, unit: Unit, firm: bool, reservations: Iterable[Held]) -> Sequence[Held]:
    """Those that share a rule with the workload."""
    if tree.withholding:
        return list(reservations)
    shared = {name for name in tree.path(unit.queue) if tree.queues[name].limit}
    fixed = firm and bool(tree.guaranteed)  # then it counts what all such workloads hold
    return [
        held
        for held in reservations
        if not shared.isdisjoint(tree.path(held.unit.queue))
        or (fixed and not held.unit.preemptible)
    ]


def _short_of_loans(
    cycle: Cycle, then: Tree, unit: Unit, need: Mapping[str, int], starting: Iterable[Held]
) -> Shortage | None:
    """What one of the reserved workloads could not borrow if this one ran, where queues lend a part
    of their guarantee."""
    tree = then.fork()
    tree.add(unit.queue, need, firm=not unit.preemptible)
    for held in starting:
        reserved, firm = held.unit, not held.unit.preemptible
        asked = cycle.need(reserved)
        tree.add(reserved.queue, asked, firm=firm, sign=-1)
        found = tree.shortage(reserved.queue, asked, firm=firm)
        tree.add(reserved.queue, asked, firm=firm)
        if found is not None:
            return found
    return None


def _scope(tree: Tree, unit: Unit) -> str:
    everywhere = tree.withholding or (tree.guaranteed and not unit.preemptible)
    return _ALL if everywhere else tree.path(unit.queue)[-1]


def _is_in(tree: Tree, queue: str, scope: str) -> bool:
    return scope == _ALL or scope in tree.path(queue)


def _queues_of(tree: Tree, scope: str) -> Iterable[str]:
    if scope == _ALL:
        return tree.queues
    found = [scope]
    for name in found:
        found += tree.children.get(name, ())
    return found
