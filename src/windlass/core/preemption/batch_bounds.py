"""Who surely waits, found for everybody at one look.

`screening` asks this first. Thousands wait, nearly each a little different from the next, so here
they stand in arrays: what each asks for against the room there is, and against what would be left
if all went whom its rank allows to stop. Room, quota and who may be stopped only shrink while a
decision is made, so an answer holds until somebody else is told to go; then only what those leave
is looked at again. Who is not told to wait here is not said to start: it is looked at more closely,
like everybody for whom arrays do not tell the whole truth.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, order, preempt, screening, shadows, verdicts, victims
from windlass.core.asked import Asked
from windlass.core.cluster import Cluster
from windlass.core.facts import Unit, Verdict
from windlass.core.gauge import Gauge, Left, Sums
from windlass.core.place import Failure, Wish
from windlass.core.queues import Tree
from windlass.core.roster import Flat
from windlass.core.shadows import Held
from windlass.core.shapes import Shape

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNKNOWN, _NOBODY, _NOT_ENOUGH = range(3)
"""What a look tells of a unit: nothing; it finds no room, and there is nobody to stop for it; or
not even all of them would do."""
MANY = 64
"""Fewer who wait are asked one by one."""
_OUT_OF_DATE = 16
"""Units that had to be looked at more closely only to be told to wait, before all are looked at
again: room has shrunk since. More of them where more wait: a look costs as much as it looks at."""


# Told of thousands in each decision: read without a line of Python for each.
_FIRST, _COUNT, _PREEMPTS, _KEY, _RANK, _NEED, _SHAPES, _ID = map(
    operator.attrgetter, ("first", "count", "preempts", "key", "rank", "need", "shapes", "id")
)


class _Seen(NamedTuple):
    """By row, what a look finds. Room only shrinks, and with it whom one could stop, so what is
    missing is so much at least until room comes back."""

    shape: Ints
    """Of several roles, of the one that is shortest of room."""
    missing: Ints
    short: Mask
    asks: Mask
    """Who is short and might have somebody stopped."""


class Foresight:
    def __init__(self, cycle: Cycle, units: Iterable[Unit]) -> None:
        self.plain = {name for name in cycle.tree.queues if _is_plain(cycle.tree, name)}
        """Queues whose units are asked whatever others are told, and rank by priority alone."""
        cluster, rows = cycle.scene.cluster, _countable(cycle, units, self.plain)
        shapes = set(itertools.chain.from_iterable(dict.fromkeys(map(_SHAPES, rows))))
        self.gauge = Gauge(sorted(shapes, key=_ID), len(cluster.resources))
        cluster.keep(self.gauge.shapes, cycle.snapshot.cluster)
        self._row = dict(zip(map(_KEY, rows), itertools.count(), strict=False))
        self._several = [(i, told) for i, told in enumerate(rows) if len(told.wishes) > 1]
        number, size = self.gauge.number, len(rows)
        self._shape = np.fromiter(map(number.__getitem__, map(_FIRST, rows)), np.int64, size)
        self._count = np.fromiter(map(_COUNT, rows), np.int64, size)
        self._preempts = np.fromiter(map(_PREEMPTS, rows), np.bool_, size)
        self._level: list[tuple[str, Ints]] = _by_level(rows)
        self._ranks = _Ranks(cycle, rows, self.gauge)
        self._most = np.array([cycle.most_when_empty(s) for s in self.gauge.shapes], np.int64)
        self._seen: _Seen | None = None
        """What the last look found; None: nobody looked since room came back."""
        self._told: list[int] = []
        """By row, what it tells; empty: nobody asked since somebody was told to go."""
        self._wished: dict[int, Wish] = {}
        """Row of a unit of several roles -> the one that is shortest of room."""
        self._room: list[int] = []
        self._near: list[bool] = []
        """By row, whether there is room in all, but not in any one domain."""
        self._missed = 0
        self._words: dict[object, Verdict] = {}

    def somebody_goes(self, queues: Iterable[str]) -> None:
        """Others may count on what they leave; in their queues there are fewer to stop."""
        self._told = []
        self._ranks.forget(queues)

    def somebody_counts_on_others(self) -> None:
        """What they leave is promised to one who waited: less of it is left for everybody else."""
        self._told = []
        self._ranks.forget_gains()

    def forget(self) -> None:
        """Room came back."""
        self._told, self._seen = [], None
        self._ranks.forget_all()

    def missed(self) -> None:
        """Somebody of whom nothing was told had to wait."""
        self._missed += 1

    def refusal(self, cycle: Cycle, told: Asked) -> Verdict | None:
        """What the unit is told if it surely waits, as far as room and rank go."""
        row = self._row.get(told.unit.key)
        if row is None:
            return None
        found = self._looked(cycle)[row]
        if not found:
            return None
        cycle.desk.why = why = preempt.NOT_ENOUGH if found == _NOT_ENOUGH else ""
        wish, near = self._wished.get(row) or told.wishes[0], self._near[row]
        known = self._words.get(_said_to(told, wish.role.name, wish.count, near, None, why))
        if known is not None:  # most miss the same as somebody before
            return known
        return self.words(cycle, told, Failure(wish.role, wish.count, self._room[row], near))

    def words(self, cycle: Cycle, told: Asked, failure: Failure) -> Verdict:
        """`verdicts.no_room`, said once to all who miss the same: it names one of them, and the
        room there was when it was first said."""
        key = _said_to(
            told, failure.role.name, failure.wanted, failure.topology, failure.reserved_until,
            cycle.desk.why,
        )  # fmt: skip
        found = self._words.get(key)
        if found is None:
            found = verdicts.no_room(cycle, told.unit, failure, cycle.desk.why)
            self._words[key] = found
        return found

    def may_gain(
        self, cycle: Cycle, told: Asked, shape: Shape, count: int, beside: tuple[Held, ...]
    ) -> bool:
        """Whether so many more members might find room, away from these promises, if all go whom
        the unit may stop, or who were told to go anyway."""
        row, number = self._row.get(told.unit.key), self.gauge.number.get(shape.id)
        if row is None or number is None:
            return True
        self._looked(cycle)
        return self._ranks.may_gain(cycle, self.gauge, (row, number), count, beside)

    def _looked(self, cycle: Cycle) -> list[int]:
        """By row, what is told of it by now."""
        seen = self._seen
        if seen is None or self._missed >= max(_OUT_OF_DATE, len(self._row) // 50):
            seen, self._told = self._look(cycle), []
        if not self._told:
            self._told = self._judged(cycle, seen)
        return self._told

    def _look(self, cycle: Cycle) -> _Seen:
        """At the room there is, and at who could be stopped."""
        self._missed, self._wished = 0, {}
        count, shape, cluster = self._count.copy(), self._shape.copy(), cycle.scene.cluster
        rooms = cluster.totals_of(self.gauge.shapes)
        room = rooms[shape]
        near = np.zeros(len(room), np.bool_)
        for level, rows in self._level:
            enough = rows[room[rows] >= count[rows]]
            best = self._best_domains(cluster, shape[enough], level)
            near[enough] = best < count[enough]
            room[enough[near[enough]]] = best[near[enough]]
        for row, told in self._several:
            wish, shape[row], room[row] = _shortest(told, self.gauge, rooms)
            count[row], self._wished[row] = wish.count, wish
        short = room < count
        asks = short & self._preempts & (self._most[shape] >= count)
        if not (cycle.policy.preempt or cycle.policy.reclaim):
            asks[:] = False
        self._ranks.look(cycle, self.gauge, asks)
        fits = asks & self._ranks.somebody
        fits &= self._ranks.enough(cycle, self.gauge, shape, count - room)
        self._ranks.look_closer(self.gauge, self._ranks.pairs(fits, shape))
        self._room, self._near = room.tolist(), near.tolist()
        cycle.work.spend(len(cluster))
        self._seen = _Seen(shape, count - room, short, asks)
        return self._seen

    def _judged(self, cycle: Cycle, seen: _Seen) -> list[int]:
        """By row, what follows with what others leave who were told to go meanwhile."""
        found = np.where(seen.short, _NOBODY, _UNKNOWN)
        fits = self._ranks.enough(cycle, self.gauge, seen.shape, seen.missing)
        asks = seen.asks & self._ranks.somebody
        found[asks] = _NOT_ENOUGH
        found[asks & fits] = _UNKNOWN
        if cycle.policy.reclaim:
            found[seen.asks & self._ranks.may_be_inside(cycle)] = _UNKNOWN
        told: list[int] = found.tolist()
        return told

    def _best_domains(self, cluster: Cluster, shape: Ints, level: str) -> Ints:
        """Of these shapes, how many members fit in the best domain of a level."""
        found = np.zeros(len(self.gauge.shapes), np.int64)
        for i in set(shape.tolist()):
            caps = cluster.caps(self.gauge.shapes[i])
            if level in cluster.levels:
                caps = cluster.by_domain(cluster.levels.index(level), caps)
            found[i] = caps.max(initial=0)
        return found[shape]


class _Ranks:
    """Everybody who waits by queue and rank: whom they could stop at all, and what is left if all
    those go."""

    def __init__(self, cycle: Cycle, rows: list[Asked], shapes: Gauge) -> None:
        tree, said = cycle.tree, list(map(_RANK, rows))
        ranks = {(q, p): (q, order.counted(tree.queues[q], p)) for q, p in dict.fromkeys(said)}
        self._numbers = {rank: i for i, rank in enumerate(dict.fromkeys(ranks.values()))}
        """(queue, priority) -> number."""
        number = {rank: self._numbers[counts] for rank, counts in ranks.items()}
        self._group = np.fromiter(map(number.__getitem__, said), np.int64, len(rows))
        self._resources, needs = sorted(tree.guaranteed), list(map(_NEED, rows))
        self._need = np.array(
            [[need.get(resource, 0) for need in needs] for resource in self._resources], np.int64
        ).reshape(len(self._resources), len(rows)).T  # fmt: skip
        self._own = _guarantees(tree, self._numbers, self._resources)
        self._held = np.zeros_like(self._own)
        """By rank, what those hold whom it outranks."""
        self._victims = np.zeros(len(self._numbers), np.int64)
        self._bounds = np.zeros((len(self._numbers), len(shapes.shapes)), np.int64)
        """By rank and shape, no more than so many fit where those go."""
        self._below: dict[int, tuple[_Ground, list[tuple[Flat, Mask]]]] = {}
        """By rank, where they are, what all pieces of some queues hold, and which of them it could
        stop: of its own queue, and surplus of others."""
        self._there: dict[int, Left] = {}
        """By rank, what is left on their nodes without them; of others it is known only what a
        stronger rank would find."""
        self._closer: set[tuple[int, int]] = set()
        """Ranks and shapes of which it was counted node by node."""
        self._known: set[int] = set()
        """Ranks whose victims and bounds were counted since room came back."""
        self._outdated: set[str] = set()
        """Queues of which somebody was told to go since."""
        self._inside: Mask | None = None
        self._gains: dict[tuple[Held, ...], Ints] = {}
        self._ground: _Ground | None = None

    def forget(self, queues: Iterable[str]) -> None:
        """There are fewer to stop in these: no more than is known, and counted at the next look."""
        self._outdated.update(queues)
        self._inside, self._gains = None, {}

    def forget_gains(self) -> None:
        """Of what others leave, something was given away."""
        self._gains = {}

    def forget_all(self) -> None:
        self._inside, self._gains, self._ground = None, {}, None
        self._below, self._there = {}, {}
        self._known.clear()
        self._outdated.clear()

    def look(self, cycle: Cycle, shapes: Gauge, asks: Mask) -> None:
        """Brings up to date what is known of all who ask."""
        self._gains, gone, self._outdated = {}, self._outdated, set()
        self._known -= {number for (queue, _), number in self._numbers.items() if queue in gone}
        asking = set(self._group[asks].tolist()) - self._known
        if asking and cycle.policy.preempt:
            self._bring_up(cycle, shapes, asking)

    def _bring_up(self, cycle: Cycle, shapes: Gauge, asking: set[int]) -> None:
        """Of each queue only those are laid out whom its strongest rank may stop: where not even
        all of them would do, there is no need to ask how many the others may."""
        queues: dict[str, list[tuple[int, int]]] = {}
        for (queue, priority), number in self._numbers.items():
            if number in asking:
                queues.setdefault(queue, []).append((priority, number))
        ground = self._ground = self._ground or _Ground(cycle)
        self._closer = {each for each in self._closer if each[0] not in asking}
        where, sums = list[list[int]](), list[Sums]()
        for queue, ranks in queues.items():
            self._look_at(cycle, ground, queue, ranks)
            strongest = max(ranks)[1]
            if self._victims[strongest]:
                where.append([number for _, number in ranks])
                sums.append(self._without(strongest).sums())
        for numbers, most in zip(where, shapes.most(sums) if sums else (), strict=True):
            self._bounds[numbers] = most
        self._inside = None
        self._known |= asking

    def look_closer(self, shapes: Gauge, pairs: set[tuple[int, int]]) -> None:
        """Counts node by node for some ranks and shapes: where there is enough in all, there may be
        too little of everything together anywhere."""
        by_rank: dict[int, list[int]] = {}
        for rank, shape in pairs - self._closer:
            if rank in self._below:
                by_rank.setdefault(rank, []).append(shape)
        for rank, numbers in by_rank.items():
            found = shapes.fit_on(np.array(numbers, np.int64), self._without(rank))
            self._bounds[rank, numbers] = np.minimum(self._bounds[rank, numbers], found)
        self._closer |= pairs

    def pairs(self, rows: Mask, shape: Ints) -> set[tuple[int, int]]:
        """Of some rows, with the shape of each."""
        return set(zip(self._group[rows].tolist(), shape[rows].tolist(), strict=True))

    def _look_at(
        self, cycle: Cycle, ground: _Ground, queue: str, ranks: list[tuple[int, int]]
    ) -> None:
        """Whom units of these ranks could stop."""
        columns = victims.columns_of(cycle, queue)
        priority = victims.priorities(cycle.tree.queues[queue], columns)
        may_go = victims.may_go(cycle, queue, columns)
        held = [columns.held_of(resource) for resource in self._resources]
        others = [(each.flat, mask) for _, each, mask in victims.surplus_of_others(cycle, queue)]
        surplus = sum(int(mask.sum()) for _, mask in others)
        for rank, number in ranks:
            below = may_go & ((priority < rank) | columns.surplus)
            self._victims[number] = below.sum() + surplus
            self._held[number] = [int(each[below].sum()) for each in held]
            self._below[number] = (ground, [(columns.flat, below), *others])
            self._there.pop(number, None)

    def _without(self, rank: int) -> Left:
        """What is there once all are gone whom it could stop."""
        known = self._there.get(rank)
        if known is not None:
            return known
        ground, parts = self._below[rank]
        rows = [_rows_of(flat, mask) for flat, mask in parts]
        members, devices = rows[0]
        if len(rows) > 1:
            members = np.concatenate([each for each, _ in rows], axis=1)
            devices = np.concatenate([each for _, each in rows], axis=1)
        self._there[rank] = left = ground.without(members, devices)
        return left

    @property
    def somebody(self) -> Mask:
        """By row, whether there is anybody whom it could stop."""
        return np.asarray(self._victims[self._group] > 0)

    def enough(self, cycle: Cycle, shapes: Gauge, shape: Ints, missing: Ints) -> Mask:
        """By row, whether that might leave what is missing, with what others leave anyway."""
        own, later = self._bounds[self._group, shape], self._gains_beside(cycle, shapes, ())
        return np.asarray(own + later[shape] >= missing)

    def may_gain(
        self,
        cycle: Cycle,
        shapes: Gauge,
        row_and_shape: tuple[int, int],
        count: int,
        beside: tuple[Held, ...],
    ) -> bool:
        """Of one row and shape: whether this might leave so much in addition."""
        row, shape = row_and_shape
        rank = int(self._group[row])
        if rank not in self._known and cycle.policy.preempt:
            self._bring_up(cycle, shapes, set(self._numbers.values()) - self._known)
        count -= int(self._gains_beside(cycle, shapes, beside)[shape])
        if self._bounds[rank, shape] >= count:
            self.look_closer(shapes, {(rank, shape)})
        return bool(self._bounds[rank, shape] >= count)

    def _gains_beside(self, cycle: Cycle, shapes: Gauge, beside: tuple[Held, ...]) -> Ints:
        """By shape, how many more fit, away from these promises, once those are gone who were told
        to go: at least as many as can be counted on now."""
        found = self._gains.get(beside)
        if found is None:
            outlook, found = cycle.departures.outlook(), np.zeros(len(shapes.shapes), np.int64)
            if outlook is not None:
                cluster, out = cycle.scene.cluster, shadows.nodes_of(beside)
                found = outlook.later_hope.gains(cluster, shapes, out)
            self._gains[beside] = found
        return found

    def may_be_inside(self, cycle: Cycle) -> Mask:
        """By row, as `preempt` asks it: whether its queue would be inside its guarantee if all were
        gone that must go, or that it outranks. Queues only fill up until somebody else goes."""
        if self._inside is None:
            self._inside = self._may_be_inside(cycle)
        return self._inside

    def _may_be_inside(self, cycle: Cycle) -> Mask:
        left, by_queue = cycle.departures.left(), dict[str, list[int]]()
        below = cycle.tree.preemptible_below
        for queue in {queue for queue, _ in self._numbers}:
            mine, gone = cycle.tree.used[queue], left.get(queue, {})
            by_queue[queue] = [
                mine.get(r, 0) - gone.get(r, 0) - below(queue, r) for r in self._resources
            ]
        used = np.array([by_queue[queue] for queue, _ in self._numbers], np.int64)
        used = used.reshape(self._own.shape)
        need, own = self._need, self._own[self._group]
        beyond = (used - self._held)[self._group] + need > own
        counted = (need > 0) & (own > 0)  # only what the queue itself is guaranteed
        return np.asarray(counted.any(axis=1) & ~(beyond & counted).any(axis=1))


def _rows_of(flat: Flat, chosen: Mask) -> tuple[Ints, Ints]:
    """What these pieces hold."""
    if chosen.all():
        return flat.members, flat.devices
    return (
        flat.members.take(chosen[flat.seat_of].nonzero()[0], axis=1),
        flat.devices.take(chosen[flat.grant_of].nonzero()[0], axis=1),
    )


class _Ground:
    """The cluster that victims are of, with what is held for others on top of those who leave it
    given back."""

    def __init__(self, cycle: Cycle) -> None:
        cluster, promised = cycle.scene.cluster, cycle.departures.promised()
        bank = cluster.bank
        self._width = max(bank.compute.shape[1], 1)
        self._free = np.maximum(cluster.free, 0)
        for column, amounts in enumerate(promised.members[1:]):
            np.add.at(self._free[column], promised.members[0], amounts)
        compute, memory = bank.compute.copy(), bank.memory.copy()
        self._devices = _Devices(compute, memory, bank.shareable(), bank.full)
        again = self._devices.give_back(promised.devices[0], promised.devices)
        self._unlocked = bank.unlocked + np.bincount(again // self._width, minlength=len(cluster))

    def without(self, members: Ints, devices: Ints) -> Left:
        """Once these are gone, on the nodes where they are."""
        size = len(self._unlocked)
        nodes = arrays.distinct(members[0], size)
        number = np.empty(size, np.int64)
        number[nodes] = np.arange(len(nodes))
        free, at = self._free.take(nodes, axis=1), number[members[0]]
        for column, amounts in enumerate(members[1:]):
            np.add.at(free[column], at, amounts)
        there = self._devices.of(nodes)
        owners = devices[0] // self._width
        where = number[owners] * self._width + devices[0] - owners * self._width
        again = there.give_back(where, devices)
        unlocked = self._unlocked[nodes] + np.bincount(again // self._width, minlength=len(nodes))
        return Left(free, unlocked, there.compute, there.memory, there.shared)


class _Devices:
    """By node and device: what is free of it, and whether shares of it can be had."""

    def __init__(self, compute: Ints, memory: Ints, shared: Mask, full: tuple[Ints, Ints]) -> None:
        """Copies of what there is: they are changed. `full` is of all nodes, also for some."""
        self.compute, self.memory, self.shared, self._full = compute, memory, shared, full

    def of(self, nodes: Ints) -> _Devices:
        """Those of some nodes, numbered anew."""
        return _Devices(self.compute[nodes], self.memory[nodes], self.shared[nodes], self._full)

    def give_back(self, at: Ints, devices: Ints) -> Ints:
        """What is held of the devices at these numbers; says which of them nobody holds a part of
        any more."""
        left = (self.compute.reshape(-1), self.memory.reshape(-1))
        np.add.at(left[0], at, devices[1])
        np.add.at(left[1], at, devices[2])
        self.shared.reshape(-1)[at] = True
        whole = left[0][at] == self._full[0].reshape(-1)[devices[0]]
        whole &= left[1][at] == self._full[1].reshape(-1)[devices[0]]
        return arrays.distinct(at[whole], self.compute.size)


# --- the arrays


def _countable(cycle: Cycle, units: Iterable[Unit], plain: Set[str]) -> list[Asked]:
    """Those of whom arrays tell the truth."""
    asked = (cycle.asked(unit) for unit in units if unit.queue in plain)
    found = [told for told in asked if told.countable]
    if not cycle.scene.crowd.repels:
        return found
    return [told for told in found if screening.is_counted(cycle, told)]


def _is_plain(tree: Tree, name: str) -> bool:
    queue = tree.queues[name]
    return not (queue.strict or queue.order == "attained" or name in tree.broken)


def _said_to(
    told: Asked, role: str, wanted: int, near: bool, until: float | None, why: str
) -> object:
    """Everything that the words depend on but the room there is: to whom the same is said."""
    return told.shapes, told.level, role, wanted, near, until, why


def _by_level(rows: list[Asked]) -> list[tuple[str, Ints]]:
    """Level -> units of one role that must be in one domain of it."""
    found: dict[str, list[int]] = {}
    for i, told in enumerate(rows):
        if told.level and len(told.wishes) == 1:
            found.setdefault(told.level, []).append(i)
    return [(level, np.array(at, np.int64)) for level, at in sorted(found.items())]


def _shortest(told: Asked, shapes: Gauge, rooms: Ints) -> tuple[Wish, int, int]:
    """Of several roles, the one that is shortest of room: its shape and room."""
    found = []
    for wish, shape in zip(told.wishes, told.shapes, strict=True):
        number = shapes.number[shape.id]
        found.append((rooms[number] / wish.count, wish.role.name, number, wish))
    _, _, number, wish = min(found, key=lambda each: each[:2])
    return wish, number, rooms[number]


def _guarantees(tree: Tree, ranks: Mapping[tuple[str, int], int], resources: Sequence[str]) -> Ints:
    """By rank, what its queue is guaranteed."""
    found = np.zeros((len(ranks), len(resources)), np.int64)
    for (queue, _), number in ranks.items():
        found[number] = [tree.guarantee[queue].get(r, 0) for r in resources]
    return found
