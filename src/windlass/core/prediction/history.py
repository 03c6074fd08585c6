"""Who ended where and who came how far, counted per size and around each unit.

`core.predict` keeps one. Units of one kin stand in a line in their order of submission; those
that stand close are neighbours, the closer the heavier, other sizes lighter. All counts are
integers, so that they are the same however often a unit moved on its way to where it is.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windlass.core import hazard
from windlass.core.hazard import BINS, Floats, Ints

REACH = 21
"""Places in the line of its kin on either side in which a unit has neighbours."""
FADE = 5.0
"""Places after which a neighbour counts for 1/e as much."""
UNIT = 1 << 16
"""The weight 1 as an integer."""
KEPT = 64
"""Ended units that are remembered per kin beyond those that waiting ones stand near to."""
LINES = 10_000
"""Kins that are remembered; those that submitted nothing for longest are forgotten first."""

WEIGHTS: Ints = np.round(UNIT * np.exp(-np.arange(REACH + 1) / FADE)).astype(np.int64)
OTHER_SIZE: Ints = np.round(0.3 * WEIGHTS).astype(np.int64)
"""A neighbour of another size tells less."""


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A unit in the line of its kin."""

    key: str
    kin: str
    size: int
    number: int
    bin: int = 0
    alive: bool = True
    died: bool = False
    row: int = -1
    """Its row in the counts around units; -1 while none of its neighbours has shown anything."""


@dataclasses.dataclass(slots=True)
class Line:
    """The units of one kin."""

    next: int = 0
    entries: list[Entry] = dataclasses.field(default_factory=list)
    """In the order of their numbers."""
    ended: int = 0
    """Units that ended since those that nobody needs were last forgotten."""
    deaths: Counter[int] | None = None
    """Size -> entries that ended by themselves; None: to be counted again."""


@dataclasses.dataclass(slots=True)
class Tally:
    """How many units of one size are, or were, in each bin when last seen."""

    came: Ints = dataclasses.field(default_factory=lambda: np.zeros(BINS, np.int64))
    died: Ints = dataclasses.field(default_factory=lambda: np.zeros(BINS, np.int64))

    def at_risk(self) -> Floats:
        return (hazard.outlived(self.came) + self.died).astype(np.float64)


class Evidence:
    """What is known of units, as counts over bins of age."""

    def __init__(self) -> None:
        self.alive: dict[str, Entry] = {}
        self.tallies: dict[int, Tally] = {}
        self._lines: dict[str, Line] = {}
        self._deaths: NDArray[np.int32] = np.zeros((64, BINS), np.int32)
        self._at_risk: NDArray[np.int32] = np.zeros((64, BINS), np.int32)
        self._rows: list[Entry | None] = []
        self._free: list[int] = []

    # --- what happens to units

    def arrive(self, key: str, kin: str, size: int) -> Entry:
        """The unit's entry; a new one goes to the end of the line."""
        entry = self.alive.get(key)
        if entry is None or (entry.kin, entry.size) != (kin, size):
            if entry is not None:
                self._finish(entry, died=False)
            entry = self._append(key, kin, size)
        return entry

    def reach(self, entry: Entry, seconds: float) -> None:
        """The unit has run for so long."""
        self.move(entry, hazard.bin_of(seconds))

    def end(self, entry: Entry, seconds: float, died: bool) -> None:
        """The unit runs no more; `died` if that was its own end."""
        self.reach(entry, seconds)
        self._finish(entry, died)

    def move(self, entry: Entry, to: int) -> None:
        if entry.bin == to:
            return
        tally = self._tally(entry.size)
        tally.came[entry.bin] -= 1
        tally.came[to] += 1
        low, high = sorted((entry.bin, to))
        self._tell_neighbours(entry, slice(low, high), 1 if to > entry.bin else -1)
        entry.bin = to

    # --- what can be read

    def rows(self, at_once: int) -> Iterator[tuple[list[Entry], Floats, Floats]]:
        """Units that have neighbours with something to tell: (them, deaths, at risk), by weight."""
        for first in range(0, len(self._rows), at_once):
            entries = [entry for entry in self._rows[first : first + at_once] if entry is not None]
            if not entries:
                continue
            which = [entry.row for entry in entries]
            yield entries, self._deaths[which] / UNIT, self._at_risk[which] / UNIT

    def around(self, key: str) -> tuple[Floats, Floats]:
        """(deaths, at risk) around a living unit."""
        row = self.alive[key].row
        return self._deaths[row] / UNIT, self._at_risk[row] / UNIT

    def newest(self, kin: str, size: int) -> tuple[Floats, Floats]:
        """(deaths, at risk) around a unit that would be submitted next."""
        line = self._lines.get(kin, Line())
        deaths, at_risk = _around(line, size, line.next)
        return deaths / UNIT, at_risk / UNIT

    def ended_of(self, kin: str, size: int) -> int:
        """How many units of this kin and size are remembered to have ended by themselves."""
        line = self._lines.get(kin, Line())
        if line.deaths is None:
            line.deaths = Counter(entry.size for entry in line.entries if entry.died)
        return line.deaths[size]

    # --- as plain values

    def to_state(self) -> dict[str, Any]:
        return {
            "tallies": {
                str(size): [tally.came.tolist(), tally.died.tolist()]
                for size, tally in self.tallies.items()
            },
            "lines": {
                kin: [
                    line.next,
                    [[e.key, e.size, e.number, e.bin, e.alive, e.died] for e in line.entries],
                ]
                for kin, line in self._lines.items()
            },
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Evidence:
        made = cls()
        for size, (came, died) in state["tallies"].items():
            made.tallies[int(size)] = Tally(np.array(came, np.int64), np.array(died, np.int64))
        for kin, (following, entries) in state["lines"].items():
            line = made._lines[kin] = Line(following)
            for key, size, number, reached, alive, died in entries:
                entry = Entry(key, kin, size, number, reached, alive, died)
                line.entries.append(entry)
                if alive:
                    made.alive[key] = entry
        for entry in made.alive.values():
            made._look_around(entry)
        return made

    # --- keeping the counts

    def _append(self, key: str, kin: str, size: int) -> Entry:
        line = self._lines.pop(kin, None) or Line()
        self._lines[kin] = line  # to the end: forgotten last
        entry = Entry(key, kin, size, line.next)
        line.next += 1
        line.entries.append(entry)
        self.alive[key] = entry
        self._tally(size).came[0] += 1
        self._look_around(entry)
        if len(self._lines) > LINES:
            self._forget_a_line()
        return entry

    def _finish(self, entry: Entry, died: bool) -> None:
        entry.alive, entry.died = False, died
        if died:
            self._tally(entry.size).died[entry.bin] += 1
            self._tell_neighbours(entry, slice(entry.bin, entry.bin + 1), 1, died=True)
        del self.alive[entry.key]
        if entry.row >= 0:
            self._rows[entry.row] = None
            self._free.append(entry.row)
            entry.row = -1
        line = self._lines[entry.kin]
        line.deaths = None
        line.ended += 1
        if line.ended > max(2 * KEPT, line.next // 4):
            line.ended = 0
            line.entries = _pruned(line.entries)

    def _tell_neighbours(self, entry: Entry, where: slice, sign: int, died: bool = False) -> None:
        near = [e for e in _near(self._lines[entry.kin], entry.number) if e.alive]
        for each in near:
            if each.row < 0:
                self._give_row(each)
        rows = [each.row for each in near]
        weights = sign * _weights(near, entry.size, entry.number)[:, None].astype(np.int32)
        self._at_risk[rows, where] += weights
        if died:
            self._deaths[rows, where] += weights

    def _look_around(self, entry: Entry) -> None:
        line = self._lines[entry.kin]
        if any(e.bin or e.died for e in _near(line, entry.number)):
            self._give_row(entry)
            deaths, at_risk = _around(line, entry.size, entry.number)
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

    def _tally(self, size: int) -> Tally:
        found = self.tallies.get(size)
        if found is None:
            found = self.tallies[size] = Tally()
        return found

    def _forget_a_line(self) -> None:
        for kin, line in self._lines.items():
            if not any(entry.alive for entry in line.entries):
                del self._lines[kin]
                return


def _near(line: Line, number: int) -> list[Entry]:
    """Units that stand around a place in the line, but not at it."""
    first = bisect.bisect_left(line.entries, number - REACH, key=_number)
    last = bisect.bisect_right(line.entries, number + REACH, key=_number)
    return [entry for entry in line.entries[first:last] if entry.number != number]


def _number(entry: Entry) -> int:
    return entry.number


def _weights(near: list[Entry], size: int, number: int) -> Ints:
    """How much a unit of this size, at this place, and each of these tell about each other."""
    places = [abs(entry.number - number) for entry in near]
    same = np.array([entry.size == size for entry in near], np.bool_)
    return np.where(same, WEIGHTS[places], OTHER_SIZE[places])


def _around(line: Line, size: int, number: int) -> tuple[Ints, Ints]:
    """(deaths, at risk) around a place in the line, by weight."""
    near = _near(line, number)
    bins = np.array([entry.bin for entry in near], np.int64)
    died = np.array([entry.died for entry in near], np.bool_)
    weights = _weights(near, size, number)
    came, deaths = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    np.add.at(came, bins, weights)
    np.add.at(deaths, bins[died], weights[died])
    return deaths, hazard.outlived(came) + deaths


def _pruned(entries: list[Entry]) -> list[Entry]:
    """Without the oldest ended units that no living one stands near to."""
    living = [entry.number for entry in entries if entry.alive]
    ended = [entry.number for entry in entries if not entry.alive]
    recent = ended[-KEPT] if len(ended) > KEPT else 0

    def needed(entry: Entry) -> bool:
        place = bisect.bisect_left(living, entry.number - REACH)
        near = place < len(living) and living[place] <= entry.number + REACH
        return near or entry.number >= recent

    return [entry for entry in entries if needed(entry)]
