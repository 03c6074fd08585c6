"""Ends and attained ages of workloads, counted per size and in the neighbourhood of each workload.

`core.prediction.predictor` keeps one. Workloads of one history group are in the order of their
submission; those that are close are neighbours, the closer the heavier, other sizes lighter. All
counts are integers, so that they do not depend on the number of steps in which a workload advanced.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.core.prediction import hazard
from windlass.core.prediction.hazard import BINS, Floats, Ints

REACH = 21
"""Positions in its group on either side at which a workload has neighbours."""
FADE = 5.0
"""Places after which a neighbour counts for 1/e as much."""
UNIT = 1 << 16
"""The weight 1 as an integer."""
KEPT = 64
"""Ended workloads that are remembered per group beyond the neighbours of waiting ones."""
GROUPS = 10_000
"""Kins that are remembered; those that submitted nothing for longest are forgotten first."""

WEIGHTS: Ints = np.round(UNIT * np.exp(-np.arange(REACH + 1) / FADE)).astype(np.int64)
OTHER_SIZE: Ints = np.round(0.3 * WEIGHTS).astype(np.int64)
"""The lower weight of a neighbour of another size."""


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A workload in its history group."""

    key: str
    history_key: str
    size: int
    number: int
    bin: int = 0
    alive: bool = True
    died: bool = False
    row: int = -1
    """Its row in the counts around workloads; -1 while none of its neighbours has shown
    anything."""


@dataclasses.dataclass(slots=True)
class GroupEntries:
    """The workloads of one history group."""

    next: int = 0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    """In the order of their numbers."""
    ended: int = 0
    """Workloads that ended since unneeded ones were last forgotten."""
    deaths: Counter[int] | None = None
    """Size -> entries that ended by themselves; None: to be counted again."""


@dataclasses.dataclass(slots=True)
class SizeCounts:
    """How many workloads of one size are, or were, in each bin when last seen."""

    entered: Ints = dataclasses.field(default_factory=lambda: np.zeros(BINS, np.int64))
    died: Ints = dataclasses.field(default_factory=lambda: np.zeros(BINS, np.int64))

    def at_risk(self) -> Floats:
        return (hazard.outlived(self.entered) + self.died).astype(np.float64)


class Evidence:
    """What is known of workloads, as counts over bins of age."""

    def __init__(self) -> None:
        self.alive: dict[str, Entry] = {}
        self.tallies: dict[int, SizeCounts] = {}
        self._groups: dict[str, GroupEntries] = {}
        self._deaths: NDArray[np.int32] = np.zeros((64, BINS), np.int32)
        self._at_risk: NDArray[np.int32] = np.zeros((64, BINS), np.int32)
        self._rows: list[Entry | None] = []
        self._free: list[int] = []

    # --- what happens to workloads

    def arrive(self, key: str, history_key: str, size: int) -> Entry:
        """The workload's entry; a new one is appended to its group."""
        entry = self.alive.get(key)
        if entry is None or (entry.history_key, entry.size) != (history_key, size):
            if entry is not None:
                self._finish(entry, died=False)
            entry = self._append(key, history_key, size)
        return entry

    def reach(self, entry: Entry, seconds: float) -> None:
        """The workload has run for so long."""
        self.move(entry, hazard.bin_of(seconds))

    def end(self, entry: Entry, seconds: float, died: bool) -> None:
        """The workload runs no more; `died` if that was its own end."""
        self.reach(entry, seconds)
        self._finish(entry, died)

    def move(self, entry: Entry, to: int) -> None:
        if entry.bin == to:
            return
        counts = self._counts_of(entry.size)
        counts.entered[entry.bin] -= 1
        counts.entered[to] += 1
        low, high = sorted((entry.bin, to))
        self._update_neighbours(entry, slice(low, high), 1 if to > entry.bin else -1)
        entry.bin = to

    # --- what can be read

    def rows(self, at_once: int) -> Iterator[tuple[list[Entry], Floats, Floats]]:
        """Workloads that have neighbours with data: (them, deaths, at risk), by weight."""
        for first in range(0, len(self._rows), at_once):
            entries = [entry for entry in self._rows[first : first + at_once] if entry is not None]
            if not entries:
                continue
            which = [entry.row for entry in entries]
            yield entries, self._deaths[which] / UNIT, self._at_risk[which] / UNIT

    def around(self, key: str) -> tuple[Floats, Floats]:
        """(deaths, at risk) around a living workload."""
        row = self.alive[key].row
        return self._deaths[row] / UNIT, self._at_risk[row] / UNIT

    def newest(self, history_key: str, size: int) -> tuple[Floats, Floats]:
        """(deaths, at risk) around a workload that would be submitted next."""
        group = self._groups.get(history_key, GroupEntries())
        deaths, at_risk = _around(group, size, group.next)
        return deaths / UNIT, at_risk / UNIT

    def ended_of(self, history_key: str, size: int) -> int:
        """How many workloads of this group and size are remembered to have ended by themselves."""
        group = self._groups.get(history_key, GroupEntries())
        if group.deaths is None:
            group.deaths = Counter(entry.size for entry in group.entries if entry.died)
        return group.deaths[size]

    # --- as plain values

    def to_state(self) -> dict[str, Any]:
        return {
            "tallies": {
                str(size): [counts.entered.tolist(), counts.died.tolist()]
                for size, counts in self.tallies.items()
            },
            "lines": {
                history_key: [
                    group.next,
                    [[e.key, e.size, e.number, e.bin, e.alive, e.died] for e in group.entries],
                ]
                for history_key, group in self._groups.items()
            },
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Evidence:
        made = cls()
        for size, (entered, died) in state["tallies"].items():
            made.tallies[int(size)] = SizeCounts(
                np.array(entered, np.int64), np.array(died, np.int64)
            )
        for history_key, (following, entries) in state["lines"].items():
            group = made._groups[history_key] = GroupEntries(following)
            for key, size, number, reached, alive, died in entries:
                entry = Entry(key, history_key, size, number, reached, alive, died)
                group.entries.append(entry)
                if alive:
                    made.alive[key] = entry
        for entry in made.alive.values():
            made._count_neighbours(entry)
        return made

    # --- keeping the counts

    def _append(self, key: str, history_key: str, size: int) -> Entry:
        group = self._groups.pop(history_key, None) or GroupEntries()
        self._groups[history_key] = group  # to the end: forgotten last
        entry = Entry(key, history_key, size, group.next)
        group.next += 1
        group.entries.append(entry)
        self.alive[key] = entry
        self._counts_of(size).entered[0] += 1
        self._count_neighbours(entry)
        if len(self._groups) > GROUPS:
            self._forget_oldest()
        return entry

    def _finish(self, entry: Entry, died: bool) -> None:
        entry.alive, entry.died = False, died
        if died:
            self._counts_of(entry.size).died[entry.bin] += 1
            self._update_neighbours(entry, slice(entry.bin, entry.bin + 1), 1, died=True)
        del self.alive[entry.key]
        if entry.row >= 0:
            self._rows[entry.row] = None
            self._free.append(entry.row)
            entry.row = -1
        group = self._groups[entry.history_key]
        group.deaths = None
        group.ended += 1
        if group.ended > max(2 * KEPT, group.next // 4):
            group.ended = 0
            group.entries = _pruned(group.entries)

    def _update_neighbours(self, entry: Entry, where: slice, sign: int, died: bool = False) -> None:
        near = [e for e in _near(self._groups[entry.history_key], entry.number) if e.alive]
        for each in near:
            if each.row < 0:
                self._give_row(each)
        rows = [each.row for each in near]
        weights = sign * _weights(near, entry.size, entry.number)[:, None].astype(np.int32)
        self._at_risk[rows, where] += weights
        if died:
            self._deaths[rows, where] += weights

    def _count_neighbours(self, entry: Entry) -> None:
        group = self._groups[entry.history_key]
        if any(e.bin or e.died for e in _near(group, entry.number)):
            self._give_row(entry)
            deaths, at_risk = _around(group, entry.size, entry.number)
            self._deaths[entry.row], self._at_risk[entry.row] = deaths, at_risk

    def _give_row(self, entry: Entry) -> None:
        if self._free:
            entry.row = self._free.pop()
            self._rows[entry.row] = entry
        else:
            entry.row = len(self._rows)
            self._rows.append(entry)
            if entry.row == len(self._deaths):
                more = np.zeros_like(self._deaths)
                self._deaths = np.concatenate([self._deaths, more])
                self._at_risk = np.concatenate([self._at_risk, more])
        self._deaths[entry.row] = self._at_risk[entry.row] = 0

    def _counts_of(self, size: int) -> SizeCounts:
        found = self.tallies.get(size)
        if found is None:
            found = self.tallies[size] = SizeCounts()
        return found

    def _forget_oldest(self) -> None:
        for history_key, group in self._groups.items():
            if not any(entry.alive for entry in group.entries):
                del self._groups[history_key]
                return


def _near(group: GroupEntries, number: int) -> list[Entry]:
    """The workloads around a position in the group, without the one at it."""
    first = bisect.bisect_left(group.entries, number - REACH, key=_number)
    last = bisect.bisect_right(group.entries, number + REACH, key=_number)
    return [entry for entry in group.entries[first:last] if entry.number != number]


def _number(entry: Entry) -> int:
    return entry.number


def _weights(near: list[Entry], size: int, number: int) -> Ints:
    """The weights of these workloads as neighbours of one of this size at this position."""
    places = [abs(entry.number - number) for entry in near]
    same = np.array([entry.size == size for entry in near], np.bool_)
    return np.where(same, WEIGHTS[places], OTHER_SIZE[places])


def _around(group: GroupEntries, size: int, number: int) -> tuple[Ints, Ints]:
    """(deaths, at risk) around a position in the group, by weight."""
    near = _near(group, number)
    bins = np.array([entry.bin for entry in near], np.int64)
    died = np.array([entry.died for entry in near], np.bool_)
    weights = _weights(near, size, number)
    entered, deaths = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    np.add.at(entered, bins, weights)
    np.add.at(deaths, bins[died], weights[died])
    return deaths, hazard.outlived(entered) + deaths


def _pruned(entries: list[Entry]) -> list[Entry]:
    """Without the oldest ended workloads that no living one stands near to."""
    living = [entry.number for entry in entries if entry.alive]
    ended = [entry.number for entry in entries if not entry.alive]
    recent = ended[-KEPT] if len(ended) > KEPT else 0

    def needed(entry: Entry) -> bool:
        place = bisect.bisect_left(living, entry.number - REACH)
        near = place < len(living) and living[place] <= entry.number + REACH
        return near or entry.number >= recent

    return [entry for entry in entries if needed(entry)]
