"""How long workloads run, learned from those that ran: nothing else is known about the future.

`History` records observations: the order of submission, how long each workload has run, which
ended. `History.at(now)` returns the `Predictions` that `decide` uses: the order `attained` ranks by
`index`, the order `shortest` and backfill use `expected` and `quantile`. It never reads a
workload's true duration. No clock, no randomness: the same observations give the same answers, in
whatever portions they came.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from windlass.core.model.types import Workload
from windlass.core.packing.scorer import Fragmentation
from windlass.core.prediction import aging, hazard
from windlass.core.prediction.estimate_trust import Trust
from windlass.core.prediction.hazard import Floats
from windlass.core.prediction.history import Evidence
from windlass.core.queueing.queue_order import size


@dataclasses.dataclass(frozen=True, slots=True)
class Hysteresis:
    """How firmly running workloads hold their places under the order `attained`."""

    factor: float
    """A running workload loses its place only to one whose index is this many times smaller."""
    min_run: float
    """Seconds after its start during which it does not lose it at all."""
    min_share: float
    """The same, as a share of what it had had before it was started: the older a workload, the
    longer it is left alone, so that the number of its stops grows with the logarithm of its
    length."""

    def left_alone(self, before: float) -> float:
        """Seconds after its start in which a workload does not lose its place that had had so
        many."""
        return max(self.min_run, self.min_share * before)

    def all_left_alone(self, before: Floats) -> Floats:
        """The same of many."""
        return np.maximum(self.min_run, self.min_share * before)

    def defended(self, index: float, ran: float, before: float) -> float:
        """The index with which a workload holds its place that was started `ran` seconds ago and
        had had `before` seconds until then."""
        if ran < self.left_alone(before) - aging.EARLY:
            return 0.0
        return index / self.factor


EAGER = Hysteresis(factor=2.0, min_run=600.0, min_share=0.1)
"""Shortest waits where stopping costs little."""
LIGHT = Hysteresis(factor=2.0, min_run=3600.0, min_share=0.25)
"""Fewer stops, at somewhat longer waits."""
POOL_WEIGHT = 2.0
"""The weight of the prior, in workloads, for the whole platform, where seconds are predicted."""
DOUBT = 30.0
"""The same where ranks are predicted. Workloads come in runs of ten or so that are alike: a hundred
of them are ten independent observations, not a hundred. With a weight of 2, hundreds of short
workloads after a run of long ones were not even tried: a predictor that expects only long ones
never learns otherwise."""
SIZE_WEIGHT = 10.0
"""So many workloads that behave like the whole platform are added to those of one size."""
GROUP_WEIGHT = 1.0
"""So many workloads that behave like others of their size are added to a workload's neighbours."""

LIKELY = 0.8
"""`expected` is not exceeded by this share of workloads alike: an early end costs less than a
late."""
ENOUGH_IN_GROUP = 3
ENOUGH_SIMILAR = 30
"""Workloads of the same group and size, or else of the same size, that must have ended before
seconds of a workload are predicted."""


_Group = str | int | tuple[str, int]
_AT_ONCE = 256
"""Rows of hazards that are worked on together: so many stay in the processor's cache."""


class History:
    """Observations of workloads, by group and size. Changed only by `register`, `remove` and
    `observe`."""

    def __init__(self) -> None:
        self._evidence = Evidence()
        self._running: dict[str, tuple[float, float]] = {}
        """Key -> (attained before, started)."""
        self._predictions: Predictions | None = None
        self.trust = Trust()
        """How far estimates are trusted."""
        self.demand = Fragmentation()
        """Which shapes were asked for, for `pack: fragmentation`."""

    def register(self, workload: Workload, started: float | None = None) -> None:
        """A workload waits, or runs since `started`; call again when that changes.

        The first call sets its position in the order of submission of its group.
        """
        if workload.history_key is None:
            return
        self._predictions = None
        entry = self._evidence.arrive(workload.key, workload.history_key, size(workload))
        if started is None:
            self._running.pop(workload.key, None)
            self._evidence.reach(entry, workload.attained)
        else:
            self._running[workload.key] = (workload.attained, started)

    def remove(self, key: str, attained: float) -> None:
        """A workload was taken away after so many seconds: how long it would have run is not
        known."""
        self._predictions = None
        self._running.pop(key, None)
        entry = self._evidence.alive.get(key)
        if entry is not None:
            self._evidence.end(entry, attained, died=False)

    def observe(self, workload: Workload, ran: float) -> None:
        """A workload ended by itself after so many seconds."""
        if workload.history_key is None:
            return
        self._predictions = None
        self._running.pop(workload.key, None)
        devices = size(workload)
        if workload.expected is not None:
            self.trust.observe(
                workload.history_key, devices, workload.expected, ran - workload.attained
            )
        entry = self._evidence.arrive(workload.key, workload.history_key, devices)
        self._evidence.end(entry, ran, died=True)

    def at(self, now: float) -> Predictions:
        """The predictions at this time; running workloads count with their discrete age
        (`aging`)."""
        if self._predictions is None or self._predictions.now != now:
            self._predictions = Predictions(self, now)
        return self._predictions

    def estimate(self, workload: Workload) -> float | None:
        """The stated runtime in seconds, corrected by the trust in the user's estimates, and no
        longer than the limit at which the workload is stopped. None: none is stated."""
        estimate, limit = workload.expected, workload.max_runtime
        if estimate is None:
            return None
        if self.trust.doubts(workload.history_key or ""):
            estimate *= self.trust.factor(workload.history_key or "", size(workload))
        return estimate if limit is None else min(estimate, limit)

    def expected(self, workload: Workload) -> float | None:
        """As of `Predictions`, with running workloads counted as at their start."""
        return self.at(float("-inf")).expected(workload)

    def index(self, workload: Workload, attained: float) -> float:
        """As of `Predictions`, with running workloads counted as at their start."""
        return self.at(float("-inf")).index(workload, attained)

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
        """The evidence with running workloads advanced to their discrete age at this time."""
        alive = self._evidence.alive
        times = np.array(list(self._running.values())).reshape(-1, 2)
        ages = aging.ages(times[:, 0], np.maximum(0.0, now - times[:, 1]))
        bins = hazard.bins_of(ages).tolist()
        for key, reached in zip(self._running, bins, strict=True):
            entry = alive[key]
            if entry.bin != reached:
                self._evidence.move(entry, reached)
        return self._evidence


class Predictions:
    """Predictions at one time, from what was observed until then.

    Valid until the history that gave it changes. Everything is computed on first use: most queues
    never ask.
    """

    def __init__(self, history: History, now: float) -> None:
        self.now = now
        self._history = history
        self._tables: dict[tuple[_Group, float], Floats] = {}
        """Hazards of those that were asked for, with so much doubt."""
        self._by_size: dict[float, dict[int, Floats]] = {}
        self._indexes: dict[tuple[_Group, int], float] = {}
        """Group and age -> seconds to invest per completion."""

    @functools.cached_property
    def _evidence(self) -> Evidence:
        return self._history.evidence_at(self.now)

    def _of_sizes(self, doubt: float) -> dict[int, Floats]:
        if doubt not in self._by_size:
            self._by_size[doubt] = _hazards_by_size(self._evidence, doubt)
        return self._by_size[doubt]

    def estimate(self, workload: Workload) -> float | None:
        """As of `History`."""
        return self._history.estimate(workload)

    def index(self, workload: Workload, attained: float) -> float:
        """Device-seconds to invest per completion, by what similar workloads did: small goes
        first."""
        if not self._indexes:
            self._rank_all()
        group, devices = self._group_of(workload)
        age = hazard.bin_of(attained)
        found = self._indexes.get((group, age))
        if found is None:
            row = self._hazards(group, devices, DOUBT)
            found = float(hazard.seconds_per_end(row[None, :], np.array([age]))[0])
            self._indexes[group, age] = found
        return found * devices

    def quantile(self, workload: Workload, share: float, attained: float = 0.0) -> float | None:
        """Seconds, from its start, after which such a share of similar workloads has ended; None if
        too little is known. Infinite where so many never end."""
        group, devices = self._group_of(workload)
        counts = self._evidence.tallies.get(devices)
        similar = 0 if counts is None else int(counts.died.sum())
        if (
            similar < ENOUGH_SIMILAR
            and self._evidence.ended_of(workload.history_key or "", devices) < ENOUGH_IN_GROUP
        ):
            return None
        return hazard.quantile(self._hazards(group, devices, POOL_WEIGHT), attained, share)

    def expected(self, workload: Workload) -> float | None:
        """Seconds that it will probably not exceed; None if too little is known to say."""
        found = self.quantile(workload, LIKELY, workload.attained)
        return None if found is None or np.isinf(found) else found

    def left(self, workload: Workload, attained: float) -> float | None:
        """Seconds that it will probably not run any longer, now that it has run for so long in
        all; None if too little is known to say."""
        found = self.quantile(workload, LIKELY, attained)
        return None if found is None or np.isinf(found) else max(0.0, found - attained)

    def _group_of(self, workload: Workload) -> tuple[_Group, int]:
        """(The workloads with the same prediction, their size): the workload itself where
        neighbours have data, else its size. A workload without an entry counts as the next of its
        group."""
        entry = self._evidence.alive.get(workload.key)
        if entry is None:
            devices = size(workload)
            return (workload.history_key or "", devices), devices
        return (workload.key if entry.row >= 0 else entry.size), entry.size

    def _hazards(self, group: _Group, devices: int, doubt: float) -> Floats:
        found = self._tables.get((group, doubt))
        if found is None:
            sizes = self._of_sizes(doubt)
            parent = sizes.get(devices, sizes[0])
            match group:
                case (str(history_key), _):
                    deaths, at_risk = self._evidence.newest(history_key, devices)
                    found = hazard.blend(parent, deaths, at_risk, GROUP_WEIGHT)
                case str(key):
                    deaths, at_risk = self._evidence.around(key)
                    found = hazard.blend(parent, deaths, at_risk, GROUP_WEIGHT)
                case _:
                    found = parent
            self._tables[group, doubt] = found
        return found

    def _rank_all(self) -> None:
        """The index of all workloads with neighbours, at their present age, many at one go."""
        sizes = self._of_sizes(DOUBT)
        for entries, deaths, at_risk in self._evidence.rows(_AT_ONCE):
            parents = np.array([sizes[entry.size] for entry in entries])
            table = hazard.blend(parents, deaths, at_risk, GROUP_WEIGHT)
            ages = np.array([entry.bin for entry in entries])
            found = hazard.seconds_per_end(table, ages).tolist()
            for entry, seconds in zip(entries, found, strict=True):
                self._indexes[entry.key, entry.bin] = seconds


def _hazards_by_size(evidence: Evidence, doubt: float) -> dict[int, Floats]:
    """What workloads of each size did; at 0, what all did."""
    tallies = evidence.tallies
    nothing = np.zeros(hazard.BINS)
    deaths = sum((counts.died for counts in tallies.values()), nothing)
    at_risk = sum((counts.at_risk() for counts in tallies.values()), nothing)
    pooled = hazard.blend(hazard.PRIOR, deaths, at_risk, doubt)
    found = {0: pooled}
    for devices, counts in tallies.items():
        found[devices] = hazard.blend(pooled, counts.died, counts.at_risk(), SIZE_WEIGHT)
    return found
