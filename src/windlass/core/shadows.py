"""The cluster as it will be when a promise is due, and who fits beside it.

`reserve` keeps one shadow per promise, with the promised seats taken. A stay that falls into a
promise's start is tried in its shadow, node by node, down to the very devices; promised members may
get other devices of the same node, never another node. Nothing here decides who gets a promise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core import place, releases
from windlass.core.cluster import Cluster
from windlass.core.facts import Reservation, Seat, Unit
from windlass.core.gauge import Gauge
from windlass.core.place import Scene, Wish
from windlass.core.shapes import Shape

Ints = npt.NDArray[np.int64]

_MANY = np.int64(1 << 40)


@dataclasses.dataclass(slots=True, eq=False)
class Held:
    """A promise, and the cluster as it will be when it is due."""

    unit: Unit
    start: float
    end: float
    seats: list[Seat]
    shadow: Cluster
    """At `start`, with these seats taken; right on the nodes of the seats, nowhere else."""
    fresh: bool
    """Made, or made again, by this decision."""
    firm: bool
    """See `facts.Reservation`."""
    made: float | None = None
    """See `facts.Reservation`."""
    given: float = 0.0
    """The start that the workload was told; `start` is later once that has passed."""
    by_node: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    """Node -> which of the seats are there."""
    nodes: Ints = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    names: frozenset[str] = frozenset()
    """Of the same nodes."""
    version: int = 0
    """Changes whenever what is free beside it changes; not where something was only tried."""
    _rows: releases.Rows | None = None
    _beside: tuple[int, Gauge, Ints] | None = None

    def __post_init__(self) -> None:
        for at, seat in enumerate(self.seats):
            self.by_node.setdefault(self.shadow.index[seat.node], []).append(at)
        self.nodes = np.fromiter(self.by_node, np.int64, len(self.by_node))
        self.names = frozenset([seat.node for seat in self.seats])
        self.given = self.given or self.start

    @property
    def reservation(self) -> Reservation:
        return Reservation(self.unit.key, self.given, tuple(self.seats), self.firm, self.made)

    @property
    def rows(self) -> releases.Rows:
        if self._rows is None:
            self._rows = releases.rows_of(self.shadow, self.unit, self.seats)
        return self._rows

    def reseat(self, seats: list[Seat]) -> None:
        """The same members on other devices of the same nodes."""
        self.seats, self._rows = seats, None

    def room_beside(self, shape: Shape, others: Gauge) -> Ints:
        """Members of a shape that each of `nodes` takes beside the promise. Read only."""
        row = others.number.get(shape.id)
        if row is None:
            return self.shadow.caps_at(shape, self.nodes)
        room: Ints = self.rooms_beside(others)[row]
        return room

    def rooms_beside(self, shapes: Gauge) -> Ints:
        """The same of many shapes, by shape and node: who asks for one asks for the others too."""
        known = self._beside
        if known is None or known[0] != self.version or known[1] is not shapes:
            known = (self.version, shapes, self.shadow.caps_of(shapes, self.nodes))
            self._beside = known
        return known[2]

    def settle(self) -> None:
        """What was done to the shadow so far stays."""
        self.shadow.settle()
        self.version += 1

    def on(self, node: int) -> list[Seat]:
        return [self.seats[at] for at in self.by_node.get(node, ())]


class Stay:
    """A unit on its seats from one time to another."""

    def __init__(self, unit: Unit, start: float, end: float, seats: Sequence[Seat]) -> None:
        self.unit, self.start, self.end = unit, start, end
        self.by_name: dict[str, list[Seat]] = {}
        for seat in seats:
            self.by_name.setdefault(seat.node, []).append(seat)


class Ceilings:
    """What some promises, as they are now, leave to others."""

    def __init__(self, beside: Sequence[Held], at: tuple[int, ...], shapes: Gauge) -> None:
        self.at = at
        self._beside, self._shapes = beside, shapes
        self._nodes = np.concatenate([held.nodes for held in beside])
        self._rooms = np.concatenate([held.rooms_beside(shapes) for held in beside], axis=1)
        self._limits: dict[int, Ints] = {}

    def of(self, shape: Shape, size: int) -> Ints:
        """Most members of the shape that each of so many nodes may take. Read only."""
        limit = self._limits.get(shape.id)
        if limit is None:
            limit = self._limits[shape.id] = np.full(size, _MANY)
            np.minimum.at(limit, self._nodes, self._room(shape))
        return limit

    def _room(self, shape: Shape) -> Ints:
        row = self._shapes.number.get(shape.id)
        if row is None:
            parts = [held.room_beside(shape, self._shapes) for held in self._beside]
            return np.concatenate(parts)
        room: Ints = self._rooms[row]
        return room


def ceilings(
    scene: Scene,
    beside: tuple[Held, ...],
    wishes: Sequence[Wish],
    others: Gauge | None = None,
) -> dict[int, Ints]:
    """Shape -> most members that each node may take and still keep every one of the promises. Read
    only: kept in the scene until one of the shadows changes. `others`: shapes that may be asked
    for next; if not given, those that the scene's cluster keeps."""
    if not beside:
        return {}
    at, known = tuple([held.version for held in beside]), scene.limits.get(beside)
    if known is None or known.at != at:
        known = Ceilings(beside, at, others or scene.cluster.kept_shapes())
        scene.limits[beside] = known
    size, shapes = len(scene.cluster), [scene.shape(wish.role) for wish in wishes]
    return {shape.id: known.of(shape, size) for shape in shapes}


def nodes_of(beside: Sequence[Held]) -> Ints:
    """Nodes of which anything is promised."""
    return np.array(sorted(set[int]().union(*(held.by_node for held in beside))), np.int64)


def clashing(beside: Iterable[Held], stay: Stay) -> list[int]:
    """Nodes on which a promise would not hold beside the stay; changes nothing."""
    met = affected(beside, stay)
    if not met:
        return []
    index = met[0].shadow.index
    return [
        index[name]
        for name, seats in stay.by_name.items()
        if admit(met, Stay(stay.unit, stay.start, stay.end, seats), keep=False) is not None
    ]


def affected(beside: Iterable[Held], stay: Stay) -> list[Held]:
    """Promises that fall into a stay and share a node with it, by their start; with those after it
    there, which one that has to move for the stay may meet on its new devices."""
    found = near(beside, stay)
    if not any(held.start < stay.end for held in found):
        return []
    return sorted(found, key=lambda held: held.start)


def near(beside: Iterable[Held], stay: Stay) -> list[Held]:
    """Promises that share a node with a stay and start no earlier."""
    names, start = stay.by_name, stay.start
    return [held for held in beside if start <= held.start and not held.names.isdisjoint(names)]


def admit(met: Sequence[Held], stay: Stay, *, keep: bool) -> Held | None:
    """Seats a stay in the shadows it falls into; promised members may get other devices of the
    same node. If one of them has no room left nothing is changed, and this says which."""
    before = [(held, held.shadow.mark(), held.seats) for held in met]
    refused = next(filter(None, (_admit_on(met, stay, name) for name in stay.by_name)), None)
    for held, mark, seats in before:
        if held.shadow.mark() == mark:
            continue  # it saw nothing of this
        if refused is None and keep:
            held.settle()
        else:
            held.shadow.rollback(mark)
            if held.seats is not seats:
                held.reseat(seats)
    return refused


def leave(held: Held, stay: Stay) -> None:
    """Takes a stay that was admitted out of a shadow again, if it fell into it."""
    if held.start >= stay.end:
        return
    for name, seats in stay.by_name.items():
        if name in held.names:
            _move(held.shadow, stay.unit, seats, +1)
    held.settle()


def sit_again(cluster: Cluster, unit: Unit, seats: Sequence[Seat]) -> list[Seat] | None:
    """Takes room for the same members on the same nodes, whichever devices; None: there is none,
    and the caller undoes what was taken."""
    roles = {role.name: role for role in unit.roles}
    found = []
    for seat in seats:
        node, role = cluster.index.get(seat.node), roles.get(seat.role)
        if node is None or role is None:
            return None
        shape = cluster.shape_of(role)
        grants = cluster.take(shape, node, 1) if cluster.caps(shape)[node] else None
        if grants is None:
            return None
        found.append(dataclasses.replace(seat, grants=grants[0]))
    return found


def move_in_shadows(others: Iterable[Held], promise: Held, sign: int) -> None:
    """A promise comes (-1) or goes (+1): those that start while it runs see it."""
    for held in others:
        shared = held.by_node.keys() & promise.by_node.keys()
        if shared and promise.start <= held.start < promise.end:
            for node in shared:
                _move(held.shadow, promise.unit, promise.on(node), sign)
            held.settle()


# --- one node


@dataclasses.dataclass(slots=True)
class _Change:
    """On one node, a unit sits on other devices than before."""

    unit: Unit
    start: float
    end: float
    before: list[Seat]
    after: list[Seat]


def _admit_on(met: Sequence[Held], stay: Stay, name: str) -> Held | None:
    """One node, promise after promise in the order of their starts: those already under way at
    each start sit where they sit, the one that starts takes of what is left. The first for which
    nothing is left, if there is one."""
    here = [held for held in met if name in held.names]
    changes = [_Change(stay.unit, stay.start, stay.end, [], stay.by_name[name])]
    for at, held in enumerate(here):
        present = [change for change in changes if change.start <= held.start < change.end]
        if not present:
            continue
        node = held.shadow.index[name]
        before = held.on(node)
        _move(held.shadow, held.unit, before, +1)
        _change(held.shadow, present)
        after = _seat(held, node, here[at + 1 :])
        if after is None:
            return held
        if after != before:
            change = _Change(held.unit, held.start, held.end, before, after)
            for other in here[:at]:
                if other.start == held.start < held.end:  # it was looked at before this one moved
                    _see_moved(other, node, present, change)
            changes.append(change)
            seats = list(held.seats)
            for number, seat in zip(held.by_node[node], after, strict=True):
                seats[number] = seat
            held.reseat(seats)
    return None


def _change(shadow: Cluster, changes: Sequence[_Change]) -> None:
    """All leave before anybody comes: a device is in one mode at a time."""
    for change in changes:
        _move(shadow, change.unit, change.before, +1)
    for change in changes:
        _move(shadow, change.unit, change.after, -1)


def _see_moved(held: Held, node: int, present: Sequence[_Change], change: _Change) -> None:
    """Somebody who starts with it moved for the others: until then they shared devices."""
    seated = [(each.unit, each.after) for each in present if each.unit is not held.unit]
    seated.append((held.unit, held.on(node)))
    for unit, seats in seated:
        _move(held.shadow, unit, seats, +1)
    _change(held.shadow, [change])
    for unit, seats in seated:
        _move(held.shadow, unit, seats, -1)


def _seat(held: Held, node: int, later: Sequence[Held]) -> list[Seat] | None:
    """Takes seats for the promised members of a node: their own, or on devices of which nothing is
    promised to others while they run, or on any."""
    shadow, before = held.shadow, held.on(node)
    if place.sit_down(shadow, held.unit, before):
        return before
    met = [other for other in later if held.start < other.start < held.end]
    for others in (met, ()) if met else ((),):
        mark = shadow.mark()
        for other in others:
            for seat in other.on(node):
                shadow.bar(seat)
        found = sit_again(shadow, held.unit, before)
        shadow.rollback(mark)
        if found is not None:
            _move(shadow, held.unit, found, -1)
            return found
    return None


def _move(cluster: Cluster, unit: Unit, seats: Iterable[Seat], sign: int) -> None:
    roles = {role.name: role for role in unit.roles}
    for seat in seats:
        if sign < 0:
            cluster.occupy(roles[seat.role], seat)
        else:
            cluster.release(roles[seat.role], seat)
