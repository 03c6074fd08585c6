"""How long units run, learned from those that ran: nothing else is known about the future.

`History` is what was seen: who was submitted in which order, how long each has run, who ended.
`History.at(now)` is the outlook that `decide` asks: the order `attained` ranks by its `index`,
the order `shortest` and backfill by `expected` and `quantile`. It never looks at a unit's true
duration: only at what was attained and who ended. No clock, no randomness: the same observations
give the same answers, in whatever portions they came.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from windlass.core import hazard, looks
from windlass.core.evidence import Evidence
from windlass.core.facts import Unit
from windlass.core.fragmentation import Fragmentation
from windlass.core.hazard import Floats
from windlass.core.order import size
from windlass.core.trust import Trust


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How firmly running units hold their places under the order `attained`."""

    hysteresis: float
    """A running unit loses its place only to one whose index is this many times smaller."""
    least_run: float
    """Seconds after its start during which it does not lose it at all."""
    least_share: float
    """The same, as a share of what it had had before it was started: the older a unit, the longer
    it is left alone, so that the number of its stops grows with the logarithm of its length."""

    def left_alone(self, before: float) -> float:
        """Seconds after its start in which a unit does not lose its place that had had so many."""
        return max(self.least_run, self.least_share * before)

    def all_left_alone(self, before: Floats) -> Floats:
        """The same of many."""
        return np.maximum(self.least_run, self.least_share * before)

    def defended(self, index: float, ran: float, before: float) -> float:
        """The index with which a unit holds its place that was started `ran` seconds ago and had
        had `before` seconds until then."""
        if ran < self.left_alone(before) - looks.EARLY:
            return 0.0
        return index / self.hysteresis


EAGER = Patience(hysteresis=2.0, least_run=600.0, least_share=0.1)
"""Shortest waits where stopping costs little."""
LIGHT = Patience(hysteresis=2.0, least_run=3600.0, least_share=0.25)
"""Fewer stops, at somewhat longer waits."""
POOL_WEIGHT = 2.0
"""So many units that behave like the prior are added to what the whole platform showed, where
seconds are told."""
DOUBT = 30.0
"""The same where ranks are. Units come in runs of ten or so that are alike: a hundred of them have
seen the world ten times, not a hundred times. With a weight of 2, once a run of long units had been
seen, hundreds of short ones that came next were not even tried: who believes that all are long
never finds out."""
SIZE_WEIGHT = 10.0
"""So many units that behave like the whole platform are added to those of one size."""
KIN_WEIGHT = 1.0
"""So many units that behave like others of their size are added to a unit's neighbours."""

LIKELY = 0.8
"""`expected` is not exceeded by this share of units alike: an early end costs less than a late."""
ENOUGH_KIN = 3
ENOUGH_ALIKE = 30
"""Units of the same kin and size, or else of the same size, that must have ended before anything
is said about the seconds of a unit."""


_Who = str | int | tuple[str, int]
_AT_ONCE = 256
"""Rows of hazards that are worked on together: so many stay in the processor's cache."""


class History:
    """What was seen of units, by kin and size. Changed by `know`, `leave` and `observe` only."""

    def __init__(self) -> None:
        self._evidence = Evidence()
        self._running: dict[str, tuple[float, float]] = {}
        """Key -> (attained before, started)."""
        self._outlook: Outlook | None = None
        self.trust = Trust()
        """How far estimates are believed."""
        self.demand = Fragmentation()
        """Which shapes were asked for, for `pack: fragmentation`."""

    def know(self, unit: Unit, started: float | None = None) -> None:
        """A unit waits, or runs since `started`; call again when that changes.

        The first call gives it its place in the order of submission of its kin.
        """
        if unit.kin is None:
            return
        self._outlook = None
        entry = self._evidence.arrive(unit.key, unit.kin, size(unit))
        if started is None:
            self._running.pop(unit.key, None)
            self._evidence.reach(entry, unit.attained)
        else:
            self._running[unit.key] = (unit.attained, started)

    def leave(self, key: str, attained: float) -> None:
        """A unit was taken away after so many seconds: how long it would have run is not known."""
        self._outlook = None
        self._running.pop(key, None)
        entry = self._evidence.alive.get(key)
        if entry is not None:
            self._evidence.end(entry, attained, died=False)

    def observe(self, unit: Unit, ran: float) -> None:
        """A unit ended by itself after so many seconds."""
        if unit.kin is None:
            return
        self._outlook = None
        self._running.pop(unit.key, None)
        devices = size(unit)
        if unit.expected is not None:
            self.trust.observe(unit.kin, devices, unit.expected, ran - unit.attained)
        entry = self._evidence.arrive(unit.key, unit.kin, devices)
        self._evidence.end(entry, ran, died=True)

    def at(self, now: float) -> Outlook:
        """What can be said at this time; running units count as of their last look."""
        if self._outlook is None or self._outlook.now != now:
            self._outlook = Outlook(self, now)
        return self._outlook

    def estimate(self, unit: Unit) -> float | None:
        """Seconds that the workload says it runs, as far as that is believed: no longer than the
        limit at which it is stopped. None: it says nothing."""
        said, limit = unit.expected, unit.max_runtime
        if said is None:
            return None
        if self.trust.doubts(unit.kin or ""):
            said *= self.trust.factor(unit.kin or "", size(unit))
        return said if limit is None else min(said, limit)

    def expected(self, unit: Unit) -> float | None:
        """As of `Outlook`, with running units counted as at their start."""
        return self.at(float("-inf")).expected(unit)

    def index(self, unit: Unit, attained: float) -> float:
        """As of `Outlook`, with running units counted as at their start."""
        return self.at(float("-inf")).index(unit, attained)

    def to_state(self) -> dict[str, Any]:
        """Everything it knows, as plain values that can be written down."""
        running = {key: list(times) for key, times in self._running.items()}
        return {
            "running": running,
            "evidence": self._evidence.to_state(),
            "trust": self.trust.to_state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> History:
        made = cls()
        made._evidence = Evidence.from_state(state["evidence"])
        made._running = {key: (had, since) for key, (had, since) in state["running"].items()}
        made.trust = Trust.from_state(state.get("trust", {}))
        return made

    def evidence_at(self, now: float) -> Evidence:
        """The evidence with running units brought to their last look before this time."""
        alive = self._evidence.alive
        times = np.array(list(self._running.values())).reshape(-1, 2)
        ages = looks.ages(times[:, 0], np.maximum(0.0, now - times[:, 1]))
        bins = hazard.bins_of(ages).tolist()
        for key, reached in zip(self._running, bins, strict=True):
            entry = alive[key]
            if entry.bin != reached:
                self._evidence.move(entry, reached)
        return self._evidence


class Outlook:
    """What can be said about units at one time, from what was seen until then.

    Valid until the history that gave it changes. Nothing is worked out before it is asked for:
    most queues never ask.
    """

    def __init__(self, history: History, now: float) -> None:
        self.now = now
        self._history = history
        self._tables: dict[tuple[_Who, float], Floats] = {}
        """Hazards of those that were asked for, with so much doubt."""
        self._by_size: dict[float, dict[int, Floats]] = {}
        self._indexes: dict[tuple[_Who, int], float] = {}
        """Who, at which age -> seconds to invest per completion."""

    @functools.cached_property
    def _evidence(self) -> Evidence:
        return self._history.evidence_at(self.now)

    def _of_sizes(self, doubt: float) -> dict[int, Floats]:
        if doubt not in self._by_size:
            self._by_size[doubt] = _hazards_by_size(self._evidence, doubt)
        return self._by_size[doubt]

    def estimate(self, unit: Unit) -> float | None:
        """As of `History`."""
        return self._history.estimate(unit)

    def index(self, unit: Unit, attained: float) -> float:
        """Device-seconds to invest per completion, by what units like it did: small goes first."""
        if not self._indexes:
            self._rank_all()
        who, devices = self._who(unit)
        age = hazard.bin_of(attained)
        found = self._indexes.get((who, age))
        if found is None:
            row = self._hazards(who, devices, DOUBT)
            found = float(hazard.seconds_per_end(row[None, :], np.array([age]))[0])
            self._indexes[who, age] = found
        return found * devices

    def quantile(self, unit: Unit, share: float, attained: float = 0.0) -> float | None:
        """Seconds, from its start, after which such a share of units like it has ended; None if
        too little is known to say. Infinite where so many never end."""
        who, devices = self._who(unit)
        tally = self._evidence.tallies.get(devices)
        alike = 0 if tally is None else int(tally.died.sum())
        if alike < ENOUGH_ALIKE and self._evidence.ended_of(unit.kin or "", devices) < ENOUGH_KIN:
            return None
        return hazard.quantile(self._hazards(who, devices, POOL_WEIGHT), attained, share)

    def expected(self, unit: Unit) -> float | None:
        """Seconds that it will probably not exceed; None if too little is known to say."""
        found = self.quantile(unit, LIKELY, unit.attained)
        return None if found is None or np.isinf(found) else found

    def left(self, unit: Unit, attained: float) -> float | None:
        """Seconds that it will probably not run any longer, now that it has run for so long in
        all; None if too little is known to say."""
        found = self.quantile(unit, LIKELY, attained)
        return None if found is None or np.isinf(found) else max(0.0, found - attained)

    def _who(self, unit: Unit) -> tuple[_Who, int]:
        """(Units of which the same is known, their size): the unit itself where neighbours tell
        something, else its size; who is not in the line counts as the next of its kin."""
        entry = self._evidence.alive.get(unit.key)
        if entry is None:
            devices = size(unit)
            return (unit.kin or "", devices), devices
        return (unit.key if entry.row >= 0 else entry.size), entry.size

    def _hazards(self, who: _Who, devices: int, doubt: float) -> Floats:
        found = self._tables.get((who, doubt))
        if found is None:
            sizes = self._of_sizes(doubt)
            parent = sizes.get(devices, sizes[0])
            match who:
                case (str(kin), _):
                    deaths, at_risk = self._evidence.newest(kin, devices)
                    found = hazard.blend(parent, deaths, at_risk, KIN_WEIGHT)
                case str(key):
                    deaths, at_risk = self._evidence.around(key)
                    found = hazard.blend(parent, deaths, at_risk, KIN_WEIGHT)
                case _:
                    found = parent
            self._tables[who, doubt] = found
        return found

    def _rank_all(self) -> None:
        """The index of all units with neighbours, at their present age, many at one go."""
        sizes = self._of_sizes(DOUBT)
        for entries, deaths, at_risk in self._evidence.rows(_AT_ONCE):
            parents = np.array([sizes[entry.size] for entry in entries])
            table = hazard.blend(parents, deaths, at_risk, KIN_WEIGHT)
            ages = np.array([entry.bin for entry in entries])
            found = hazard.seconds_per_end(table, ages).tolist()
            for entry, seconds in zip(entries, found, strict=True):
                self._indexes[entry.key, entry.bin] = seconds


def _hazards_by_size(evidence: Evidence, doubt: float) -> dict[int, Floats]:
    """What units of each size did; at 0, what all did."""
    tallies = evidence.tallies
    nothing = np.zeros(hazard.BINS)
    deaths = sum((tally.died for tally in tallies.values()), nothing)
    at_risk = sum((tally.at_risk() for tally in tallies.values()), nothing)
    pooled = hazard.blend(hazard.PRIOR, deaths, at_risk, doubt)
    found = {0: pooled}
    for devices, tally in tallies.items():
        found[devices] = hazard.blend(pooled, tally.died, tally.at_risk(), SIZE_WEIGHT)
    return found
