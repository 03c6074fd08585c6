"""Running units by queue, in pieces that can go one by one, told in numbers.

A piece is the least of a unit, which goes as a whole, or one member above it. The snapshot keeps
the roster up to date event by event; preemption reads it. What one queue's pieces hold is laid out
in arrays once and kept until the queue changes, so that thousands of possible victims cost a few
array operations. It says who is there, never who may be stopped.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core import amounts
from windlass.core.cluster import Cluster
from windlass.core.facts import Role, Running, Seat
from windlass.core.numbers import NOWHERE, Numbers
from windlass.core.queues import Sums

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Members of one running unit that go together."""

    running: Running
    seats: tuple[Seat, ...]
    surplus: bool
    """One member above the least; else the least, which goes only when all surplus goes."""
    held: Sums
    size: int
    """Devices it holds, or members where it holds none."""
    members: tuple[tuple[int, ...], ...]
    """Of each seat: the node, then amounts by column of the cluster's resources."""
    grants: tuple[tuple[int, int, int, int, int], ...]
    """Of each device: its flat number and what is held of it, as `Bank.footprint` has it."""

    @property
    def key(self) -> str:
        return self.running.unit.key


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """What pieces hold, in rows that `Cluster.shift` takes: one per seat, one per grant."""

    seat_of: Ints
    """Which piece a seat belongs to."""
    members: Ints
    """The node, then amounts by column of the cluster's resources."""
    grant_of: Ints
    devices: Ints
    """As `Bank.footprint` has them."""

    def only(self, chosen: Ints) -> Flat:
        """Of these pieces, ascending; they are numbered anew in that order."""
        last = max(self.seat_of.max(initial=-1), chosen.max(initial=-1))
        number = np.full(last + 1, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        seat_of, grant_of = number[self.seat_of], number[self.grant_of]
        seats, grants = (seat_of >= 0).nonzero()[0], (grant_of >= 0).nonzero()[0]
        return Flat(
            seat_of[seats], self.members.take(seats, axis=1),
            grant_of[grants], self.devices.take(grants, axis=1),
        )  # fmt: skip


def flatten(pieces: Sequence[Piece], resources: int) -> Flat:
    numbers = np.arange(len(pieces))
    seats = list(chain.from_iterable(piece.members for piece in pieces))
    grants = list(chain.from_iterable(piece.grants for piece in pieces))
    return Flat(
        np.repeat(numbers, [len(piece.members) for piece in pieces]),
        np.array(seats, np.int64).reshape(len(seats), 1 + resources).T,
        np.repeat(numbers, [len(piece.grants) for piece in pieces]),
        np.array(grants, np.int64).reshape(len(grants), 5).T,
    )


def _renumbered(flats: Sequence[Flat], numbers: Sequence[Ints]) -> Flat:
    """The pieces of several as pieces of one, each with its new number (-1: it is not there any
    more), in the order of these."""
    seats = np.concatenate([new[flat.seat_of] for flat, new in zip(flats, numbers, strict=True)])
    grants = np.concatenate([new[flat.grant_of] for flat, new in zip(flats, numbers, strict=True)])
    in_order = [np.argsort(each, kind="stable")[(each < 0).sum() :] for each in (seats, grants)]
    return Flat(
        seats[in_order[0]],
        np.concatenate([flat.members for flat in flats], axis=1)[:, in_order[0]],
        grants[in_order[1]],
        np.concatenate([flat.devices for flat in flats], axis=1)[:, in_order[1]],
    )


def join(flats: Sequence[Flat], sizes: Sequence[int], resources: int) -> Flat:
    """One numbering for the pieces of several."""
    if not flats:
        return flatten((), resources)
    offsets = list(zip(flats, np.cumsum([0, *sizes]), strict=False))
    return Flat(
        np.concatenate([flat.seat_of + offset for flat, offset in offsets]),
        np.concatenate([flat.members for flat in flats], axis=1),
        np.concatenate([flat.grant_of + offset for flat, offset in offsets]),
        np.concatenate([flat.devices for flat in flats], axis=1),
    )


@dataclasses.dataclass(slots=True, eq=False)
class Columns:
    """The pieces of one queue, sorted by key, the least of a unit before its surplus. Read only."""

    pieces: Objects
    """An array, so that choosing some of them costs little."""
    keys: Objects
    """Of the units."""
    first: Ints
    """Unit -> the row of its least; its surplus follows."""
    least: Ints
    """Row -> the row of the same unit's least; its own, if that is what it is."""
    priority: Ints
    started: Floats
    since: Floats
    """What it computed since then would be lost."""
    protected: Floats
    doubled: Floats
    """2 to the power of how often it was preempted before."""
    size: Ints
    firm: Mask
    surplus: Mask
    leaving: Mask
    flat: Flat
    """What they hold where."""
    held: dict[str, Ints] = dataclasses.field(default_factory=dict)

    def rows(self, key: str) -> slice:
        """Where the pieces of one unit are."""
        at = bisect.bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return slice(0, 0)
        after = self.first[at + 1] if at + 1 < len(self.keys) else len(self.pieces)
        return slice(int(self.first[at]), int(after))

    def rows_told(self, told: Piece) -> Ints:
        """Of a unit of which members were told to go: where those pieces are."""
        rows = self.rows(told.key)
        found = np.arange(rows.start, rows.stop)
        if len(told.seats) == len(told.running.seats):
            return found
        gone = {(seat.role, seat.index) for seat in told.seats}
        seats = (self.pieces[row].seats for row in found)
        go = (any((seat.role, seat.index) in gone for seat in each) for each in seats)
        return found[np.fromiter(go, np.bool_, len(found))]

    def held_of(self, resource: str) -> Ints:
        found = self.held.get(resource)
        if found is None:
            amounts_held = (piece.held.get(resource, 0) for piece in self.pieces)
            found = np.fromiter(amounts_held, np.int64, len(self.pieces))
            self.held[resource] = found
        return found


class Roster:
    """Fed by the snapshot: `enter` when a unit holds room, `leave` when it does not any more."""

    def __init__(self) -> None:
        self.leaving: dict[str, None] = {}
        """Units of which some members were told to go."""
        self.growing: dict[str, None] = {}
        """Units with fewer members than they can use."""
        self.movable: dict[str, dict[str, None]] = {}
        """Queue -> units that may be moved; only queues with such units are named."""
        self.elastic: dict[str, dict[str, None]] = {}
        """Queue -> units that have surplus; only queues with such units are named."""
        self._queues: dict[str, dict[str, tuple[Piece, ...]]] = {}
        self._columns: dict[str, Columns] = {}
        self._changed: dict[str, set[str]] = {}
        """Queue -> units that came or went since its columns were laid out."""
        self._read: set[str] = set()
        """Queues whose columns the last decision asked for."""

    def enter(self, cluster: Cluster, running: Running, held: Sums) -> None:
        unit = running.unit
        pieces = pieces_of(cluster, running, held)
        self._queues.setdefault(unit.queue, {})[unit.key] = pieces
        if len(pieces) > 1:
            self.elastic.setdefault(unit.queue, {})[unit.key] = None
        if unit.movable and unit.preemptible:
            self.movable.setdefault(unit.queue, {})[unit.key] = None
        self._changed.setdefault(unit.queue, set()).add(unit.key)
        if running.leaving:
            self.leaving[unit.key] = None
        if len(running.seats) < sum(role.most for role in unit.roles):
            self.growing[unit.key] = None

    def leave(self, running: Running) -> None:
        unit = running.unit
        self._queues[unit.queue].pop(unit.key, None)
        self._changed.setdefault(unit.queue, set()).add(unit.key)
        self.leaving.pop(unit.key, None)
        self.growing.pop(unit.key, None)
        for index in (self.elastic, self.movable):
            named = index.get(unit.queue, {})
            if named.pop(unit.key, 0) is None and not named:
                del index[unit.queue]

    def carry_over(self, numbers: Numbers) -> None:
        """Nodes have other numbers; nobody is left on one that has none."""
        node, device = numbers.node.tolist(), numbers.device.tolist()
        for name, units in self._queues.items():
            moved = {
                key: tuple([_moved(p, node, device) for p in own]) for key, own in units.items()
            }
            self._queues[name] = moved
        for name, columns in self._columns.items():
            self._columns[name] = _carried_over(columns, self._queues.get(name, {}), numbers)

    def lay_out(self, resources: int) -> None:
        """Prepares the columns of all queues, so that no decision has to."""
        for name in self._queues:
            self._laid_out(name, resources)

    def lay_out_again(self, resources: int) -> None:
        """Prepares those that the last decision asked for: the next one will ask again."""
        for name in self._read & self._changed.keys():
            self._laid_out(name, resources)

    def begin(self) -> None:
        """A decision begins: what it asks for is what will be prepared for the next."""
        self._read.clear()

    def columns(self, queue: str, resources: int) -> Columns:
        self._read.add(queue)
        return self._laid_out(queue, resources)

    def _laid_out(self, queue: str, resources: int) -> Columns:
        """Anew, or, where little changed, patched."""
        known, changed = self._columns.get(queue), self._changed.pop(queue, set())
        if known is not None and not changed:
            return known
        units = self._queues.get(queue, {})
        if known is None or 4 * len(changed) > len(units):
            found = _columns(units, resources)
        else:
            new = _columns({key: units[key] for key in changed & units.keys()}, resources)
            found = _patched(known, changed, new)
        self._columns[queue] = found
        return found


def with_more(columns: Columns, units: Mapping[str, tuple[Piece, ...]], resources: int) -> Columns:
    """Columns with units that are not among them yet."""
    return _patched(columns, set(), _columns(units, resources)) if units else columns


def pieces_of(cluster: Cluster, running: Running, held: Sums) -> tuple[Piece, ...]:
    """The least first, then the surplus, highest number first."""
    roles = {role.name: role for role in running.unit.roles}
    extra = surplus(running)
    if not extra:
        return (_piece(cluster, running, roles, running.seats, False, held),)
    taken = {(seat.role, seat.index) for seat in extra}
    groups = [tuple(s for s in running.seats if (s.role, s.index) not in taken)]
    groups += [(seat,) for seat in extra]
    return tuple(
        _piece(cluster, running, roles, seats, number > 0,
               amounts.of_seats(cluster, running.unit.roles, seats))
        for number, seats in enumerate(groups)
    )  # fmt: skip


def surplus(running: Running) -> list[Seat]:
    """Members above the least of their role, the highest number first; never number 0."""
    found: list[Seat] = []
    for role in running.unit.roles:
        if role.most <= role.least:
            continue
        seats = sorted((s for s in running.seats if s.role == role.name), key=lambda s: -s.index)
        above = max(0, len(seats) - max(role.least, 1))
        found += [seat for seat in seats if seat.index != 0][:above]
    return found


def part_of(cluster: Cluster, running: Running, seats: Iterable[Seat]) -> Piece:
    """Some members of a unit as one piece, whatever they are."""
    roles = {role.name: role for role in running.unit.roles}
    chosen = tuple(seats)
    held = amounts.of_seats(cluster, running.unit.roles, chosen)
    return _piece(cluster, running, roles, chosen, False, held)


def _piece(
    cluster: Cluster,
    running: Running,
    roles: dict[str, Role],
    seats: tuple[Seat, ...],
    is_surplus: bool,
    held: Sums,
) -> Piece:
    members: list[tuple[int, ...]] = []
    grants: list[tuple[int, int, int, int, int]] = []
    for seat in seats:
        node, role = cluster.index.get(seat.node), roles.get(seat.role)
        if node is None or role is None:
            continue
        by_column = dict(cluster.needs_of(cluster.shape_of(role), node, seat.grants))
        columns = range(len(cluster.resources))
        members.append((node, *map(by_column.get, columns, repeat(0))))
        grants += cluster.bank.footprint(node, seat.grants)
    size = len(grants) or len(members)
    return Piece(running, seats, is_surplus, held, size, tuple(members), tuple(grants))


def _columns(units: Mapping[str, tuple[Piece, ...]], resources: int) -> Columns:
    keys = _objects(sorted(units))
    pieces = list(chain.from_iterable(units[key] for key in keys))
    running = [piece.running for piece in pieces]
    started = np.array([each.started for each in running], np.float64)
    saved = [each.started if each.checkpoint_at is None else each.checkpoint_at for each in running]
    surplus_rows = np.array([piece.surplus for piece in pieces], np.bool_)
    return Columns(
        _objects(pieces),
        keys,
        np.flatnonzero(~surplus_rows),
        _least(surplus_rows),
        np.array([each.unit.priority for each in running], np.int64),
        started,
        np.maximum(started, np.array(saved, np.float64)),
        np.array([each.protected_until for each in running], np.float64),
        np.array([2.0 ** min(each.unit.preemptions, 40) for each in running], np.float64),
        np.array([piece.size for piece in pieces], np.int64),
        np.array([not each.unit.preemptible for each in running], np.bool_),
        surplus_rows,
        np.array([_is_leaving(piece) for piece in pieces], np.bool_),
        flatten(pieces, resources),
    )


def _moved(piece: Piece, node: Sequence[int], device: Sequence[int]) -> Piece:
    """The same where nodes and devices have other numbers."""
    return Piece(
        piece.running, piece.seats, piece.surplus, piece.held, piece.size,
        tuple([(node[member[0]], *member[1:]) for member in piece.members]),
        tuple([(device[grant[0]], *grant[1:]) for grant in piece.grants]),
    )  # fmt: skip


def _looked_up(table: Ints, old: Ints) -> Ints:
    """New numbers for old ones. Rows of workloads that changed since they were laid out may have
    numbers that no node has any more."""
    found = np.full(len(old), NOWHERE, np.int64)
    known = (old >= 0) & (old < len(table))
    found[known] = table[old[known]]
    return found


def _carried_over(
    columns: Columns, units: Mapping[str, tuple[Piece, ...]], numbers: Numbers
) -> Columns:
    """Columns with the pieces by their new numbers. Who changed since they were laid out stays
    what it was: the next to ask has it replaced."""
    flat, old = columns.flat, columns.pieces
    members, devices = flat.members.copy(), flat.devices.copy()
    members[0] = _looked_up(numbers.node, members[0])
    devices[0] = _looked_up(numbers.device, devices[0])
    lengths = np.diff(np.append(columns.first, len(old)))
    pieces: list[Piece] = []
    for key, begin, length in zip(columns.keys, columns.first, lengths, strict=True):
        own = units.get(key, ())
        pieces.extend(own if len(own) == length else old[begin : begin + length])
    return dataclasses.replace(
        columns,
        pieces=_objects(pieces),
        flat=dataclasses.replace(flat, members=members, devices=devices),
    )


def _is_leaving(piece: Piece) -> bool:
    """Whether members of it were told to go."""
    told = piece.running.leaving
    return bool(told) and any((seat.role, seat.index) in told for seat in piece.seats)


def _objects(values: Sequence[object]) -> Objects:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def _least(surplus_rows: Mask) -> Ints:
    rows = np.where(surplus_rows, 0, np.arange(len(surplus_rows)))
    return np.maximum.accumulate(rows) if len(rows) else rows


def _patched(old: Columns, changed: Set[str], new: Columns) -> Columns:
    """Without the units that changed, with those that are there now, all in order."""
    stays = np.ones(len(old.pieces), np.bool_)
    for key in changed:
        stays[old.rows(key)] = False
    kept = np.flatnonzero(stays)
    kept_keys = old.keys[stays[old.first]]
    kept_first = np.flatnonzero(~old.surplus[kept])
    units_before = [bisect.bisect_left(kept_keys, key) for key in new.keys]
    starts = np.append(kept_first, len(kept))[units_before]
    lengths = np.diff(np.append(new.first, len(new.pieces)))
    order = np.insert(
        np.arange(len(kept)),
        np.repeat(starts, lengths),
        len(kept) + np.arange(len(new.pieces)),
    )

    def merged(name: str) -> npt.NDArray[Any]:
        values = np.concatenate([getattr(old, name)[kept], getattr(new, name)])[order]
        return np.asarray(values)

    number = np.full(len(order), -1, np.int64)
    number[order] = np.arange(len(order))
    of_old = np.full(len(old.pieces), -1, np.int64)
    of_old[kept] = number[: len(kept)]
    surplus_rows = merged("surplus")
    held = {
        resource: np.concatenate([amounts_held[kept], new.held_of(resource)])[order]
        for resource, amounts_held in old.held.items()
    }
    return Columns(
        merged("pieces"),
        np.insert(kept_keys, units_before, new.keys),
        np.flatnonzero(~surplus_rows),
        _least(surplus_rows),
        merged("priority"),
        merged("started"),
        merged("since"),
        merged("protected"),
        merged("doubled"),
        merged("size"),
        merged("firm"),
        surplus_rows,
        merged("leaving"),
        _renumbered([old.flat, new.flat], [of_old, number[len(kept) :]]),
        held,
    )
