"""When room comes back: what running units give back at their expected ends, as arrays.

The snapshot keeps one `Releases`, changed by every event; a decision adds what it placed itself in
a `Ledger` and moves a fork of the cluster to and fro in time with it. Nothing here looks at one
running unit after another: the cost of a decision grows with what changed, and with how far into
the future it must look.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, looks
from windlass.core.choosing import PARTITIONED
from windlass.core.cluster import Cluster
from windlass.core.facts import Nomination, Placement, Role, Running, Seat, Unit
from windlass.core.numbers import Numbers

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]

Footprint = tuple[int, int, int, int, int]
"""Of a grant, as `Bank.footprint` has it."""

_Entry = tuple[Unit, Iterable[Seat], float]
"""A unit, what it gives back, and when."""

AT_ONCE = float("-inf")
"""The end of who was told to go: any moment now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """What seats hold, in the form that `Cluster.shift` takes."""

    members: Ints
    """Per role and node (of a bundle, per NUMA node): the node, then amounts by column of the
    cluster's resources."""
    devices: Ints
    """Per grant: the device's flat number, compute, memory, used, mode."""
    ports: tuple[tuple[int, int], ...]
    """(host port, node)"""


def rows_of(cluster: Cluster, unit: Unit, seats: Iterable[Seat]) -> Rows:
    members, devices, ports = _listed(cluster, unit, seats)
    return Rows(_members(cluster, members), _devices(devices), tuple(ports))


def _listed(
    cluster: Cluster, unit: Unit, seats: Iterable[Seat]
) -> tuple[list[list[int]], list[Footprint], list[tuple[int, int]]]:
    """What `Rows` has, one after another."""
    roles = {role.name: role for role in unit.roles}
    counts: dict[tuple[str, int, int], int] = {}
    devices: list[Footprint] = []
    ports: list[tuple[int, int]] = []
    for seat in seats:
        node, role = cluster.index.get(seat.node), roles.get(seat.role)
        if node is None or role is None:
            continue
        numa = cluster.bank.numa_of(node, seat.grants) if role.bundle else -1
        there = seat.role, node, numa
        counts[there] = counts.get(there, 0) + 1
        if seat.grants:
            devices += cluster.bank.footprint(node, seat.grants)
        if role.ports:
            ports += [(port, node) for port in role.ports]
    members: list[list[int]] = []
    for (name, node, numa), count in counts.items():
        shape = cluster.shape_of(roles[name])
        member = [node] + [0] * len(cluster.resources)
        for column, need in cluster.needs_on(shape, node, numa) if shape.bundle else shape.needs:
            member[1 + column] = need * count
        members.append(member)
    return members, devices, ports


def _members(cluster: Cluster, members: list[list[int]]) -> Ints:
    return np.array(members, np.int64).reshape(-1, 1 + len(cluster.resources)).T


def _devices(devices: list[Footprint]) -> Ints:
    return np.array(devices, np.int64).reshape(-1, 5).T


def expected_end(cycle: Cycle, running: Running) -> float | None:
    """When a running unit should end, by its own word or by what others like it did."""
    if running.expected_end is not None or cycle.policy.unknown_runtime != "learned":
        return running.expected_end
    before = running.unit.attained
    age = looks.age(before, max(0.0, cycle.now - running.started))
    left = cycle.standing.predictor.left(running.unit, age)
    return None if left is None else running.started + (age - before) + left


def move(cluster: Cluster, rows: Rows, sign: int) -> None:
    """Gives back (+1) or takes (-1) what seats hold."""
    cluster.shift(rows.members, rows.devices, sign)
    for port, node in rows.ports:
        cluster.shift_port(port, node, sign)


def move_all(cluster: Cluster, several: Sequence[Rows], sign: int) -> None:
    """The same of many, at once."""
    if several:
        members = np.concatenate([rows.members for rows in several], axis=1)
        devices = np.concatenate([rows.devices for rows in several], axis=1)
        ports = tuple([port for rows in several for port in rows.ports])
        move(cluster, Rows(members, devices, ports), sign)


def insist(cluster: Cluster, role: Role, seat: Seat) -> None:
    """Ports and slices of a seat are taken, whoever else has them: two may not share them, so that
    they are counted once and gone with the first who leaves."""
    node = cluster.index.get(seat.node)
    if node is None:
        return
    for port in role.ports:
        cluster.ports.setdefault(port, set()).add(node)
    for device, _, _, slices, mode in cluster.bank.footprint(node, seat.grants):
        if mode == PARTITIONED:
            cluster.bank.used.reshape(-1)[device] |= slices
    cluster.touch(np.array([node]))


class Table:
    """Rows of numbers, each with a time. Sorting again costs little where little changed."""

    def __init__(self, width: int) -> None:
        self.values: Ints = np.zeros((width, 64), np.int64)
        self._time: Times = np.zeros(64)
        self._live = np.zeros(64, np.bool_)
        self._stale = np.zeros(64, np.bool_)
        """Rows whose place in the order no longer holds."""
        self._free = list(range(63, -1, -1))
        self._added: list[int] = []
        self._changed = False
        self._order: Ints = np.zeros(0, np.int64)
        self._times: Times = np.zeros(0)

    def put(self, times: Sequence[float], values: Ints) -> list[int]:
        """Each at its time."""
        count = values.shape[1]
        if not count:
            return []
        while len(self._free) < count:
            self._grow()
        rows = self._free[-count:]
        del self._free[-count:]
        self.values[:, rows] = values
        self._time[rows] = times
        self._live[rows] = True
        self._added += rows
        self._changed = True
        return rows

    def drop(self, rows: list[int]) -> None:
        if rows:
            self._live[rows] = False
            self._stale[rows] = True
            self._free += rows
            self._changed = True

    def in_order(self) -> tuple[Ints, Times]:
        """Rows by time, and their times."""
        if self._changed:
            kept = self._order[~self._stale[self._order]]
            new = arrays.distinct(self._added, len(self._live))
            new = new[self._live[new]]
            new = new[np.argsort(self._time[new], kind="stable")]
            at = np.searchsorted(self._time[kept], self._time[new], side="right")
            self._order = np.insert(kept, at, new)
            self._times = self._time[self._order]
            self._stale[:] = False
            self._added, self._changed = [], False
        return self._order, self._times

    def carry_over(self, numbers: Ints) -> None:
        """What rows are about, their first value, has other numbers by now."""
        live = np.flatnonzero(self._live)
        self.values[0, live] = numbers[self.values[0, live]]

    def _grow(self) -> None:
        size = len(self._time)
        self.values = np.concatenate([self.values, np.zeros_like(self.values)], axis=1)
        self._time = np.concatenate([self._time, np.zeros(size)])
        self._live = np.concatenate([self._live, np.zeros(size, np.bool_)])
        self._stale = np.concatenate([self._stale, np.zeros(size, np.bool_)])
        self._free[:0] = range(2 * size - 1, size - 1, -1)


class Releases:
    """Who gives back what, and when."""

    def __init__(self, cluster: Cluster) -> None:
        self.members = Table(1 + len(cluster.resources))
        self.devices = Table(5)
        self.ports: dict[str, list[tuple[float, int, int]]] = {}
        """Unit -> (end, host port, node)"""
        self.unknown: dict[str, Running] = {}
        """Units that run and say nothing about their end."""
        self._rows: dict[str, tuple[list[int], list[int]]] = {}

    def follow(self, cluster: Cluster, running: Running) -> None:
        """A unit holds room; it gives it back at its expected end, if one is known."""
        unit, staying = running.unit, running.seats
        if running.leaving:
            told = set(running.leaving)
            leaving = [seat for seat in staying if (seat.role, seat.index) in told]
            staying = tuple(seat for seat in staying if (seat.role, seat.index) not in told)
            self.enter(cluster, unit, leaving, AT_ONCE)
        if running.expected_end is None:
            self.unknown[unit.key] = running
        else:
            self.enter(cluster, unit, staying, running.expected_end)

    def enter(self, cluster: Cluster, unit: Unit, seats: Iterable[Seat], end: float) -> None:
        self.enter_all(cluster, [(unit, seats, end)])

    def enter_all(self, cluster: Cluster, stays: Iterable[_Entry]) -> None:
        """Hundreds start in a decision: arrays are made once for all of them."""
        members, devices = list[list[int]](), list[Footprint]()
        ends, owners = (list[float](), list[float]()), list[tuple[str, int, int]]()
        for unit, seats, end in stays:
            mine, granted, ports = _listed(cluster, unit, seats)
            members += mine
            devices += granted
            ends[0].extend([end] * len(mine))
            ends[1].extend([end] * len(granted))
            owners.append((unit.key, len(mine), len(granted)))
            if ports:
                self.ports.setdefault(unit.key, []).extend((end, *each) for each in ports)
        seated = iter(self.members.put(ends[0], _members(cluster, members)))
        held = iter(self.devices.put(ends[1], _devices(devices)))
        for key, seats_of_it, grants_of_it in owners:
            rows = self._rows.setdefault(key, ([], []))
            rows[0].extend(itertools.islice(seated, seats_of_it))
            rows[1].extend(itertools.islice(held, grants_of_it))

    def leave(self, key: str) -> None:
        members, devices = self._rows.pop(key, ([], []))
        self.members.drop(members)
        self.devices.drop(devices)
        self.ports.pop(key, None)
        self.unknown.pop(key, None)

    def carry_over(self, numbers: Numbers) -> None:
        """Nodes have other numbers; nobody is left on one that has none."""
        self.members.carry_over(numbers.node)
        self.devices.carry_over(numbers.device)
        for entries in self.ports.values():
            entries[:] = [(end, port, int(numbers.node[node])) for end, port, node in entries]

    def rows(self, key: str) -> tuple[list[int], list[int]]:
        return self._rows.get(key, ([], []))


class Ledger:
    """Releases as one decision sees them: with what it placed, stopped and believes itself."""

    def __init__(self, base: Releases) -> None:
        self._base = base
        self._own: Releases | None = None
        self._stopped: set[str] = set()
        self._placed = self._evicted = 0
        self._nominated: set[str] = set()
        self._lanes: list[tuple[_Lane, _Lane]] = []
        self._lasting: tuple[int, tuple[_Lane, _Lane]] | None = None
        """Of the snapshot's own, after so many were stopped."""
        self._ports: list[tuple[float, int, int]] = []
        self._insistent: list[tuple[Role, Seat]] = []
        """Ports and slices that are held for somebody on top of who leaves them."""
        self._now, self._believed = 0.0, False
        self._looked_at = AT_ONCE
        """The latest time to which a cluster was moved."""
        self._later: list[_Entry] = []
        """Who starts now and ends after that: mostly nobody ever looks so far ahead."""

    def refresh(self, cycle: Cycle) -> None:
        """Takes in what the decision has done since the last time."""
        cluster = cycle.scene.cluster
        if self._own is None:
            self._own = Releases(cluster)
            self._believe(cycle, self._own)
        elif (self._placed, self._evicted, self._nominated) == (
            len(cycle.placements),
            len(cycle.evictions),
            set(cycle.nominations),
        ):
            return
        self._insistent, self._now = cycle.departures.insistent(), cycle.now
        self._looked_at = max(self._looked_at, cycle.now)
        self._take_in(cycle, self._own)
        self._sort(cycle.now)

    def believes(self, cycle: Cycle) -> bool:
        """Whether it counts on an end that nobody but others like it speak for."""
        if self._own is None:
            self.refresh(cycle)
        return self._believed

    def next_ends(self, cycle: Cycle, until: float) -> Iterator[float]:
        """Of the ends that it expects up to a time, when the first of them is estimated anew if the
        workload has not ended."""
        if self._own is None:
            self.refresh(cycle)
        for members, _ in self._lanes:
            yield members.believed_until(until)
            nearest = members.times[np.searchsorted(members.times, cycle.now, side="right") :][:1]
            yield from nearest[nearest <= until]

    def times(self, after: float, before: float) -> Times:
        """When room comes back, strictly between two moments, ascending."""
        times, more = (_between(members.times, after, before) for members, _ in self._lanes)
        later = [end for _, _, end in self._later if after < end < before]
        more = np.sort(np.concatenate([more, later]))
        return _distinct(np.insert(times, np.searchsorted(times, more), more))

    def move(self, cluster: Cluster, since: float, until: float) -> None:
        """Brings a cluster from how it will be at one time to how it will be at another."""
        self._look_at(cluster, max(since, until))
        if since == AT_ONCE and self._insistent:
            self._move(cluster, since, self._now)
            for role, seat in self._insistent:
                insist(cluster, role, seat)
            since = self._now
        self._move(cluster, since, until)

    def _look_at(self, cluster: Cluster, time: float) -> None:
        """Enters who ends until then."""
        if time > self._looked_at and self._own is not None:
            self._looked_at = time
            if any(end <= time for _, _, end in self._later):
                self._enter(cluster, self._own, self._later)
                self._sort(self._now)

    def _enter(self, cluster: Cluster, own: Releases, stays: Iterable[_Entry]) -> None:
        """Those who end until the latest time that was looked at; others are kept for later."""
        due, self._later = list[_Entry](), []
        for stay in stays:
            (due if stay[2] <= self._looked_at else self._later).append(stay)
        own.enter_all(cluster, due)

    def _move(self, cluster: Cluster, since: float, until: float) -> None:
        sign = 1 if until > since else -1
        after, upto = min(since, until), max(since, until)
        for members, devices in self._lanes:
            cluster.shift(members.between(after, upto), devices.between(after, upto), sign)
        for end, port, node in self._ports:
            if after < end <= upto:
                cluster.shift_port(port, node, sign)

    def _believe(self, cycle: Cycle, own: Releases) -> None:
        """Where running units say nothing about their end, what others like them did."""
        for running in self._base.unknown.values():
            end = expected_end(cycle, running)
            self._believed = self._believed or end is not None
            if end is not None:
                own.enter(cycle.scene.cluster, running.unit, running.seats, end)

    def _take_in(self, cycle: Cycle, own: Releases) -> None:
        cluster = cycle.scene.cluster
        for eviction in cycle.evictions[self._evicted :]:
            running = cycle.snapshot.running.get(eviction.unit)
            if running is not None:
                self._stopped.add(eviction.unit)
                own.leave(eviction.unit)
                self._later = [stay for stay in self._later if stay[0].key != eviction.unit]
                told = tuple(
                    (s.role, s.index) for s in cycle.departures.told()[eviction.unit].seats
                )
                own.follow(cluster, dataclasses.replace(running, leaving=told))
        self._evicted = len(cycle.evictions)
        self._enter(cluster, own, [*self._later, *self._new_stays(cycle)])
        self._placed, self._nominated = len(cycle.placements), set(cycle.nominations)

    def _new_stays(self, cycle: Cycle) -> Iterator[_Entry]:
        """Who was placed or nominated since, and gives back at a known time."""
        started = cycle.running.maps[0]
        placed = itertools.islice(cycle.placements.values(), self._placed, None)
        nominated = (n for n in cycle.nominations.values() if n.unit not in self._nominated)
        for each in itertools.chain[Placement | Nomination](placed, nominated):
            running = started.get(each.unit) or cycle.running.get(each.unit)
            unit = running.unit if running is not None else cycle.snapshot.waiting[each.unit]
            end = running.expected_end if running is not None else cycle.expected_end(unit)
            if end is not None:
                yield unit, each.seats, end

    def _sort(self, now: float) -> None:
        if self._own is None:
            return
        own = (_Lane(self._own.members, now, []), _Lane(self._own.devices, now, []))
        self._lanes = [self._of_base(now), own]
        self._ports = [
            (float(_effective(np.array([end]), now)[0]), port, node)
            for releases, stopped in ((self._base, self._stopped), (self._own, set[str]()))
            for key, entries in releases.ports.items()
            if key not in stopped
            for end, port, node in entries
        ]

    def _of_base(self, now: float) -> tuple[_Lane, _Lane]:
        """What runs, but for those who were stopped: long, and seldom another."""
        if self._lasting is None or self._lasting[0] != len(self._stopped):
            skipped = [self._base.rows(key) for key in sorted(self._stopped)]
            members = _Lane(self._base.members, now, [row for rows, _ in skipped for row in rows])
            devices = _Lane(self._base.devices, now, [row for _, rows in skipped for row in rows])
            self._lasting = (len(self._stopped), (members, devices))
        return self._lasting[1]


class _Lane:
    """A table's rows by the time at which they really count."""

    def __init__(self, table: Table, now: float, skipped: list[int]) -> None:
        self._values = table.values
        self._order, self.times = table.in_order()
        self._late: tuple[Times, Times] | None = None
        """Estimated ends of workloads that are late, and when each is estimated anew."""
        if skipped:
            stays = np.ones(self._values.shape[1], np.bool_)
            stays[skipped] = False
            keep = stays[self._order]
            self._order, self.times = self._order[keep], self.times[keep]
        if len(self.times) and self.times[0] <= now:
            late = int(np.searchsorted(self.times, now, side="right"))
            ends = self.times[:late][~np.isneginf(self.times[:late])]
            self._late = (looks.ends_believed(ends, now), looks.beliefs_end(ends, now))
            times = np.concatenate([_effective(self.times[:late], now), self.times[late:]])
            order = np.argsort(times, kind="stable")
            self._order, self.times = self._order[order], times[order]

    def believed_until(self, until: float) -> float:
        """When the first late workload is estimated anew that is expected to end by a time."""
        if self._late is None:
            return float("inf")
        ends, anew = self._late
        return float(anew[ends <= until].min(initial=np.inf))

    def between(self, after: float, until: float) -> Ints:
        lo = int(np.searchsorted(self.times, after, side="right"))
        hi = int(np.searchsorted(self.times, until, side="right"))
        return self._values[:, self._order[lo:hi]]


def _effective(ends: Times, now: float) -> Times:
    """Who was told to go ends now; who runs longer than expected is believed to run on."""
    gone = np.isneginf(ends)
    return np.where(gone, now, looks.ends_believed(np.where(gone, now, ends), now))


def _between(ascending: Times, after: float, before: float) -> Times:
    first = int(np.searchsorted(ascending, after, side="right"))
    return ascending[first : int(np.searchsorted(ascending, before, side="left"))]


def _distinct(ascending: Times) -> Times:
    return ascending[np.diff(ascending, prepend=-np.inf) > 0]
