"""Those who were told to go: what they leave, what is promised of it, what others can count on.

Victims keep their room until they are gone, and what they leave is mostly promised to somebody. So
there are three clusters: as it is *now* without what is promised, as it will be *later* when all of
them are gone, and at *worst*, the less of both, which is all that can be counted on. They follow
the decision step by step: their cost grows with what was decided since they were last asked for.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, bounds, freeing, releases, roster
from windlass.core.bounds import Hope
from windlass.core.choosing import PARTITIONED
from windlass.core.cluster import Cluster
from windlass.core.facts import Role, Running, Seat, Unit
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Flat, Piece
from windlass.core.shadows import Held
from windlass.core.shapes import Shape

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]


class Departures:
    """What one decision knows about those who go."""

    def __init__(self, cycle: Cycle) -> None:
        self._cycle: Cycle = weakref.proxy(cycle)
        """Without keeping it alive: a decision's clusters go as soon as it is made, not when
        garbage is looked for."""
        self._told: dict[str, Piece] = {}
        self._parts: list[Piece] = []
        """The same, part by part: a unit may be told more than once, for one gainer each."""
        self._evicted = -1
        """Evictions that are among the told already; -1: not even those of earlier decisions."""
        self._left = cycle.tree.empty()
        """What they hold, by queue."""
        self._held_for = cycle.tree.empty()
        """What is promised to others on top of that."""
        self._promises: dict[str, _Promise] = {}
        self._promised = roster.flatten((), len(cycle.scene.cluster.resources))
        self._worst: tuple[tuple[int, int, int], Tree] | None = None
        """The tree by what can be counted on, and after how many starts, promises and evictions."""
        self._outlook: Outlook | None = None

    def forget(self) -> None:
        """A start was withdrawn: what followed the decision is made anew."""
        self._worst = self._outlook = None

    def told(self) -> dict[str, Piece]:
        """Units told to go, by earlier decisions and by this one, and those of their members that
        do."""
        cycle = self._cycle
        if self._evicted < 0:
            self._evicted = 0
            for key in sorted(cycle.snapshot.roster.leaving):
                self._tell(key, cycle.snapshot.running[key].leaving)
        for eviction in cycle.evictions[self._evicted :]:
            self._tell(eviction.unit, eviction.seats)
        self._evicted = len(cycle.evictions)
        return self._told

    def _tell(self, key: str, members: Iterable[tuple[str, int]]) -> None:
        cluster, running = self._cycle.scene.cluster, self._cycle.snapshot.running[key]
        before, chosen = self._told.get(key), set(members)
        seats = [seat for seat in running.seats if (seat.role, seat.index) in chosen]
        part = whole = roster.part_of(cluster, running, seats)
        if before is not None:
            whole = roster.part_of(cluster, running, (*before.seats, *seats))
        self._told[key] = whole
        self._parts.append(part)
        unit = running.unit
        self._left.add(unit.queue, part.held, firm=not unit.preemptible)

    def leaving(self) -> Flat:
        """What they hold."""
        resources = len(self._cycle.scene.cluster.resources)
        return roster.flatten(list(self.told().values()), resources)

    def left(self) -> dict[str, Sums]:
        """By queue, with those below it: what they leave."""
        self.told()
        return self._left.used

    def promised(self) -> Flat:
        """What is held for others on top of those who leave it."""
        self._promises_so_far()
        return self._promised

    def insistent(self) -> list[tuple[Role, Seat]]:
        """Promised seats with ports or slices: what one leaves there another cannot share."""
        return [each for promise in self._promises_so_far() for each in promise.insistent]

    def _promises_so_far(self) -> Iterable[_Promise]:
        new = [
            _Promise(self._cycle, key)
            for key in itertools.islice(self._cycle.nominations, len(self._promises), None)
        ]
        if new:
            size, resources = len(self._promises), len(self._cycle.scene.cluster.resources)
            more = roster.flatten([promise.piece for promise in new], resources)
            self._promised = roster.join([self._promised, more], [size, len(new)], resources)
            self._promises |= {promise.piece.key: promise for promise in new}
            for promise in new:
                unit = promise.unit
                self._held_for.add(unit.queue, promise.piece.held, firm=not unit.preemptible)
        return self._promises.values()

    # --- what it means for others

    def tree_without(self) -> Tree:
        """Once all of them are gone."""
        self.told()
        return self._cycle.tree.less(self._left, self._left)

    def tree_at_worst(self) -> Tree:
        """What every queue holds at worst while they leave. Read only."""
        cycle = self._cycle
        if not self.told():
            return cycle.tree
        at = (len(cycle.placements), len(cycle.nominations), len(cycle.evictions))
        if self._worst is None or self._worst[0] != at:
            self._promises_so_far()
            self._worst = (at, cycle.tree.less(self._left, self._held_for))
        return self._worst[1]

    def outlook(self) -> Outlook | None:
        """None: nobody was told to go."""
        cycle = self._cycle
        if self._evicted != len(cycle.evictions):
            self.told()
        told = self._parts
        if not told:
            return None
        if self._outlook is None:
            self._outlook = Outlook(cycle)
        if self._outlook.knows != (len(cycle.placements), len(told), len(cycle.nominations)):
            self._outlook.follow(cycle, told, list(self._promises_so_far()))
        return self._outlook


class _Promise:
    """Nominated room, as a piece of a unit that does not run yet."""

    def __init__(self, cycle: Cycle, key: str) -> None:
        seats = cycle.nominations[key].seats
        cluster, self.unit = cycle.scene.cluster, _workload(cycle, key)
        running = Running(self.unit, seats, cycle.now)
        self.piece = roster.part_of(cluster, running, seats)
        self.rows = releases.rows_of(cluster, self.unit, seats)
        roles = {role.name: role for role in self.unit.roles}
        self.insistent = [
            (roles[seat.role], seat)
            for seat in seats
            if roles[seat.role].ports or any(g.form == "partition" for g in seat.grants)
        ]


class Outlook:
    """The cluster while they leave."""

    def __init__(self, cycle: Cycle) -> None:
        cluster = cycle.scene.cluster
        self._cluster, self._resources = cluster, len(cluster.resources)
        self.knows = (len(cycle.placements), 0, 0)
        """Of how many starts, departures and promises."""
        self._now, self.later, self.worst = (cluster.fork(()) for _ in range(3))
        """`worst` is what can be counted on beside new victims. What others will have left counts
        only once they are gone: else a decision about the same facts could go further than the
        one before it."""
        self._left: Ints = np.zeros(0, np.int64)
        self._touched: Ints = np.zeros(0, np.int64)
        self._hopes: dict[str, Hope] = {}
        self._most: dict[object, int] = {}
        """What was found out about `later` since it last changed."""
        taken = [releases.rows_of(cluster, *each) for each in _held(cycle)]
        for rows in taken:  # the fork has it already
            releases.move(self._now, rows, +1)
            releases.move(self.later, rows, +1)

    @property
    def worst_hope(self) -> Hope:
        if "worst" not in self._hopes:
            self._hopes["worst"] = Hope(self.worst, self._touched)
        return self._hopes["worst"]

    @property
    def later_hope(self) -> Hope:
        if "later" not in self._hopes:
            self._hopes["later"] = Hope(self.later, self._left)
        return self._hopes["later"]

    def most_later(
        self, cluster: Cluster, shape: Shape, level: str, beside: tuple[Held, ...]
    ) -> int:
        """As `bounds.most_with`, once all of them are gone: the same for everybody who asks."""
        key = (shape.id, level, beside, cluster.looked_at(shape))
        found = self._most.get(key)
        if found is None:
            found = bounds.most_with(cluster, [self.later_hope], shape, level, beside)
            self._most[key] = found
        return found

    def follow(self, cycle: Cycle, told: list[Piece], promises: list[_Promise]) -> None:
        """Takes in what was decided since."""
        self._most = {}
        starts, gone, promised = self.knows
        placements = itertools.islice(cycle.placements.values(), starts, None)
        changed = [
            np.zeros(0, np.int64),
            *(self._start(cycle.running[each.unit].unit, each.seats) for each in placements),
        ]
        if len(told) > gone:
            changed.append(self._let_go(told[gone:]))
        changed += [self._promise(promise) for promise in promises[promised:]]
        self.knows = (len(cycle.placements), len(told), len(promises))
        nodes = arrays.distinct(np.concatenate(changed), len(self._cluster))
        if len(nodes):
            _less_of(self.worst, self._cluster, self._now, self.later, nodes)

    def _start(self, unit: Unit, seats: Iterable[Seat]) -> Ints:
        rows = releases.rows_of(self._cluster, unit, seats)
        for each in (self._now, self.later):
            releases.move(each, rows, -1)
        for port, node in rows.ports:
            self.worst.shift_port(port, node, -1)
        nodes: Ints = rows.members[0]
        return nodes

    def _let_go(self, pieces: list[Piece]) -> Ints:
        flat = roster.flatten(pieces, self._resources)
        self.later.shift(flat.members, flat.devices, +1)
        freeing.free_ports(self.later, pieces)
        nodes: Ints = flat.members[0]
        self._see(nodes, gone=True)
        return nodes

    def _promise(self, promise: _Promise) -> Ints:
        releases.move(self.later, promise.rows, -1)
        for role, seat in promise.insistent:
            for each in (self.later, self.worst):
                releases.insist(each, role, seat)
        nodes: Ints = promise.rows.members[0]
        self._see(nodes)
        return nodes

    def _see(self, nodes: Ints, *, gone: bool = False) -> None:
        if len(nodes):
            self._hopes = {}
            self._touched = np.union1d(self._touched, nodes)
            if gone:
                self._left = np.union1d(self._left, nodes)


def _held(cycle: Cycle) -> Iterable[tuple[Unit, tuple[Seat, ...]]]:
    """What is promised by now."""
    for key, nomination in cycle.nominations.items():
        yield _workload(cycle, key), nomination.seats


def _workload(cycle: Cycle, key: str) -> Unit:
    found = cycle.workload(key)
    assert found is not None, f"capacity is nominated to {key}, which wants none"  # noqa: S101
    return found


def _less_of(worst: Cluster, held: Cluster, now: Cluster, later: Cluster, nodes: Ints) -> None:
    """On some nodes, what is free now and stays free when those leave and those come."""
    worst.free[:, nodes] = np.minimum(now.free[:, nodes], later.free[:, nodes])
    bank, first, second = worst.bank, now.bank, later.bank
    bank.mode[nodes], bank.unlocked[nodes] = held.bank.mode[nodes], held.bank.unlocked[nodes]
    bank.compute[nodes] = np.minimum(first.compute[nodes], second.compute[nodes])
    bank.memory[nodes] = np.minimum(first.memory[nodes], second.memory[nodes])
    one, other = first.used[nodes], second.used[nodes]
    slices = bank.mode[nodes] == PARTITIONED
    bank.used[nodes] = np.where(slices, one | other, np.maximum(one, other))
    worst.touch(nodes)
