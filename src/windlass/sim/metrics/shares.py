"""Shares against entitlements: by queue, by user, and as one index of fairness.

All figures are integrals over time of what `sim.metrics.usage` wrote down. A queue or user counts
only while it is *backlogged*: while a workload of it waits that could be admitted. A queue that
asks for less than its entitlement is owed nothing.

The fairness index is Jain's: for every group of siblings, over what each held divided by what it
was entitled to, both as dominant shares of the cluster. 1: all siblings got the same part of what
they were entitled to. 1/n: one of n got everything.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from windlass.sim.metrics.usage import Change, Usage

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

WINDOW, STEP = 24 * 3600.0, 3600.0
"""Fairness is also measured over windows of this length, one beginning at every step."""
_ROWS = 4096
"""Moments of all users of a queue that are processed together: it bounds memory."""
_TINY = 1e-12


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """One queue or user."""

    device_seconds: float
    backlogged: float
    """Seconds."""
    allocated: float | None
    """Its part of all that was held while it was backlogged; None: it never was."""
    entitled: float | None
    """Its part of all entitlements over the same time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fairness:
    """The least fair group of siblings."""

    jain: float
    worst: float
    """What the worst sibling held of what it was entitled to, relative to all."""
    worst_name: str
    group: str
    """The parent of the siblings; the queue, where they are users; empty: the roots."""
    windows: float | None
    """The lowest index over all windows in which two siblings or more were backlogged throughout;
    None: there was no such window."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Rows:
    """Some siblings over some moments: a column for each, a row for each moment."""

    allocated: Floats
    """Of the main resource."""
    share: Floats
    """Dominant."""
    entitled: Floats
    backlogged: Flags


class Shares:
    def __init__(self, usage: Usage, end: float) -> None:
        self.usage = usage
        self.times = np.array([*usage.times, max(end, usage.times[-1])], np.float64)
        self.spans = np.diff(self.times)
        shape = (len(usage.times), len(usage.queues))
        self._all = _Rows(
            np.array(usage.allocated, np.float64).reshape(shape),
            np.array(usage.shares, np.float64).reshape(shape),
            np.array(usage.entitled, np.float64).reshape(shape),
            np.array(usage.backlogged, np.bool_).reshape(shape),
        )
        roots = [not usage.parents[name] for name in usage.queues]
        self.whole = np.column_stack(
            [values[:, roots].sum(axis=1)
             for values in (self._all.allocated, self._all.share, self._all.entitled)]
        )  # fmt: skip
        """Of all queues together: held, dominant shares, entitlements."""
        self.marks = np.arange(self.times[0], self.times[-1] + 1e-6, STEP)
        """Where windows begin and end."""

    def by_queue(self) -> dict[str, Share]:
        tally = self._tally("", self.usage.queues, range(len(self.usage.queues)))
        return dict(zip(tally.names, tally.shares(), strict=True))

    def by_user(self) -> dict[tuple[str, str], Share]:
        """By queue and user."""
        return {
            (tally.group, name): share
            for tally in self._users
            for name, share in zip(tally.names, tally.shares(), strict=True)
        }

    def queue_fairness(self) -> Fairness | None:
        """None: no two siblings were ever backlogged at the same time."""
        children = collections.defaultdict(list)
        for number, name in enumerate(self.usage.queues):
            children[self.usage.parents[name]].append(number)
        return _least_fair(
            self._tally(parent, [self.usage.queues[number] for number in columns], columns)
            for parent, columns in sorted(children.items())
            if len(columns) > 1
        )

    def user_fairness(self) -> Fairness | None:
        """The same among the users of each queue."""
        return _least_fair(self._users)

    def over_time(self, names: Iterable[str]) -> tuple[Floats, Floats]:
        """What some queues held together, and what they were entitled to, at each moment; `whole`
        has the same of all queues."""
        columns = [self.usage.queues.index(name) for name in names]
        allocated, entitled = self._all.allocated[:, columns], self._all.entitled[:, columns]
        return allocated.sum(axis=1), entitled.sum(axis=1)

    def _tally(self, group: str, names: Sequence[str], columns: Iterable[int]) -> _Tally:
        tally, chosen = _Tally(self, group, names), list(columns)
        everything = self._all
        tally.add(slice(None), _Rows(
            everything.allocated[:, chosen], everything.share[:, chosen],
            everything.entitled[:, chosen], everything.backlogged[:, chosen],
        ))  # fmt: skip
        return tally

    @functools.cached_property
    def _users(self) -> list[_Tally]:
        """The users of each queue, as siblings of the same weight."""
        users = collections.defaultdict(list)
        for queue, user in sorted(self.usage.changes):
            users[queue].append(user)
        return [self._users_of(queue, names) for queue, names in users.items()]

    def _users_of(self, queue: str, names: list[str]) -> _Tally:
        """What a queue is entitled to is divided among its users by max-min fairness: none gets
        more than it asks for, and all others get the same."""
        tally = _Tally(self, queue, names)
        columns = [_Column.of(self.usage.changes[queue, name]) for name in names]
        entitled = self._all.entitled[:, self.usage.queues.index(queue)]
        for begin in range(0, len(self.spans), _ROWS):
            part = slice(begin, min(begin + _ROWS, len(self.spans)))
            at = [column.at(np.arange(part.start, part.stop)) for column in columns]
            allocated, share, demand, backlogged = (
                np.column_stack([getattr(column, what)[rows]
                                 for column, rows in zip(columns, at, strict=True)])
                for what in ("allocated", "share", "demand", "backlogged")
            )  # fmt: skip
            parts = divided(demand, entitled[part])
            tally.add(part, _Rows(allocated, share, parts, backlogged > 0))
        return tally


class _Tally:
    """Integrals over time of what siblings held and were entitled to."""

    def __init__(self, clock: Shares, group: str, names: Sequence[str]) -> None:
        self.group, self.names, self._clock = group, names, clock
        size = len(names)
        self._device_seconds, self._seconds = np.zeros(size), np.zeros(size)
        self._backlogged = np.zeros((2, 2, size))
        """While each was backlogged: held and entitled; of it and of all."""
        self._together = np.zeros((2, 2, size))
        """While a sibling was, too: dominant share and entitled; of it and of all."""
        self._sums = np.zeros((3, size))
        """Until now: dominant share, entitled, seconds of backlog."""
        self._at = np.zeros((3, len(clock.marks), size))
        """The same until each mark."""

    def add(self, part: slice, rows: _Rows) -> None:
        """The next moments."""
        spans, whole = self._clock.spans[part], self._clock.whole[part]
        self._device_seconds += spans @ rows.allocated / 1000
        weights = spans[:, None] * rows.backlogged
        self._seconds += weights.sum(axis=0)
        self._backlogged += [
            [(weights * rows.allocated).sum(axis=0), whole[:, 0] @ weights],
            [(weights * rows.entitled).sum(axis=0), whole[:, 2] @ weights],
        ]
        weights *= (rows.backlogged.sum(axis=1) >= 2)[:, None]
        self._together += [
            [(weights * rows.share).sum(axis=0), whole[:, 1] @ weights],
            [(weights * rows.entitled).sum(axis=0), whole[:, 2] @ weights],
        ]
        times = self._clock.times[part.start or 0 :][: len(spans) + 1]
        marks = (self._clock.marks >= times[0]) & (self._clock.marks <= times[-1])
        followed: tuple[Floats, ...] = (rows.share, rows.entitled, rows.backlogged.astype(float))
        for number, values in enumerate(followed):
            steps = np.vstack((np.zeros(len(self.names)), np.cumsum(values * spans[:, None], 0)))
            self._at[number, marks] = self._sums[number] + _read_off(
                self._clock.marks[marks], times, steps
            )
            self._sums[number] += steps[-1]

    def shares(self) -> Iterator[Share]:
        allocated, entitled = (_quotient(some, whole) for some, whole in self._backlogged)
        for number, seconds in enumerate(self._seconds):
            yield Share(
                float(self._device_seconds[number]),
                float(seconds),
                float(allocated[number]) if seconds > 0 else None,
                float(entitled[number]) if seconds > 0 else None,
            )

    def fairness(self) -> Fairness | None:
        """Over the time in which at least two of the siblings were backlogged."""
        ratios = _ratios(*self._together[0], *self._together[1])
        known = np.flatnonzero(~np.isnan(ratios))
        if len(known) < 2:
            return None
        worst = min(map(int, known), key=lambda number: (ratios[number], self.names[number]))
        jain = float(_jain(ratios[None, :])[0])
        return Fairness(jain, float(ratios[worst]), self.names[worst], self.group, self._windows())

    def _windows(self) -> float | None:
        length = round(WINDOW / STEP)
        if len(self._clock.marks) <= length:
            return None
        share, entitled, backlogged = self._at[:, length:] - self._at[:, :-length]
        marks, times = self._clock.marks, self._clock.times
        spans, whole = self._clock.spans, self._clock.whole
        sums = np.vstack((np.zeros(3), np.cumsum(whole * spans[:, None], axis=0)))
        at = _read_off(marks, times, sums)
        of_all = at[length:] - at[:-length]
        ratios = _ratios(share, of_all[:, 1:2], entitled, of_all[:, 2:3])
        ratios[backlogged < WINDOW - 1e-3] = np.nan
        ratios = ratios[(~np.isnan(ratios)).sum(axis=1) >= 2]
        return float(_jain(ratios).min()) if len(ratios) else None


def _least_fair(tallies: Iterable[_Tally]) -> Fairness | None:
    found = [each for tally in tallies if (each := tally.fairness()) is not None]
    if not found:
        return None
    windows = [each.windows for each in found if each.windows is not None]
    least = min(found, key=lambda each: (each.jain, each.group))
    return dataclasses.replace(least, windows=min(windows, default=None))


@dataclasses.dataclass(frozen=True, slots=True)
class _Column:
    """The changes of one user, behind a first row for the time before them."""

    moments: npt.NDArray[np.int64]
    allocated: Floats
    share: Floats
    demand: Floats
    backlogged: Floats

    @classmethod
    def of(cls, changes: Sequence[Change]) -> _Column:
        rows = [
            (change.allocated, change.share, change.demand, change.backlogged) for change in changes
        ]
        table = np.array([(0.0, 0.0, 0.0, 0.0), *rows], np.float64)
        moments = np.array([change.moment for change in changes], np.int64)
        return cls(moments, *table.T)

    def at(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The row of the changes that holds at each moment."""
        return np.searchsorted(self.moments, rows, side="right")


def divided(demands: Floats, whole: Floats) -> Floats:
    """Max-min fair parts of a whole, row by row: all rise together, none above its demand."""
    ordered = np.sort(demands, axis=1)
    below = np.cumsum(ordered, axis=1) - ordered
    count = demands.shape[1]
    levels = (whole[:, None] - below) / (count - np.arange(count))
    fits = levels <= ordered
    first = fits.argmax(axis=1)
    level = np.where(fits.any(axis=1), levels[np.arange(len(levels)), first], np.inf)
    found: Floats = np.minimum(demands, np.maximum(level, 0.0)[:, None])
    return found


def _read_off(at: Floats, times: Floats, sums: Floats) -> Floats:
    """Integrals, column by column, at moments between those that they are known for."""
    found: Floats = np.column_stack(
        [np.interp(at, times, sums[:, column]) for column in range(sums.shape[1])]
    )
    return found


def _ratios(share: Floats, shares: Floats, entitled: Floats, entitlements: Floats) -> Floats:
    """What each held of what it was entitled to; not a number where it was entitled to nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(shares > _TINY, share / shares, 0.0)
        found: Floats = np.where(
            (entitled > _TINY) & (entitlements > _TINY), part / (entitled / entitlements), np.nan
        )
    return found


def _jain(ratios: Floats) -> Floats:
    """Jain's index, row by row, over the ratios that are known."""
    count = (~np.isnan(ratios)).sum(axis=1)
    squares = np.nansum(ratios * ratios, axis=1)
    sums = np.nansum(ratios, axis=1)
    found: Floats = np.where(squares > 0, sums * sums / np.maximum(count * squares, _TINY), 1.0)
    return found


def _quotient(some: Floats, whole: Floats) -> Floats:
    found: Floats = np.divide(some, whole, out=np.zeros_like(some), where=whole > _TINY)
    return found
