"""The earliest time at which a blocked unit fits, if others end when they should.

Moves a fork of the cluster through time: room comes back at the ends that the ledger knows, and
promises made to others take theirs at their start. Between two such starts more time means more
room, so the first fitting moment is found by doubling steps and then halving; `reserve` keeps the
cluster as it is then as the promise's shadow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import looks, models, place, quota_forecast, releases, shadows
from windlass.core.cluster import Cluster
from windlass.core.crowd import Crowd
from windlass.core.facts import Seat, Unit
from windlass.core.place import Failure, Scene, Wish
from windlass.core.shadows import Held

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]

ATTEMPTS = 8
"""Moments tried for a unit of several shapes, where enough room in all proves nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    unit: Unit
    """As it is if it starts then: windows of advance reservations bind it by its start."""
    time: float
    seats: tuple[Seat, ...]
    cluster: Cluster
    """As it is then, with the seats taken."""


def find(cycle: Cycle, unit: Unit, before: float) -> Start | None:
    """The first moment before `before` (and not before now), or None when there is none."""
    wishes = place.least_of(unit)
    cluster = cycle.scene.cluster
    shapes = [cluster.shape_of(wish.role) for wish in wishes]
    for wish, shape in zip(wishes, shapes, strict=True):
        if cycle.most_when_empty(shape) < wish.count:
            return None
    cycle.ledger.refresh(cycle)
    search = _Search(cycle, unit, wishes, cluster.fork(shapes))
    points = [point for point in search.points() if point < before]
    for at, point in enumerate(points):
        found = search.at(point)
        if found is None:
            limit = points[at + 1] if at + 1 < len(points) else before
            found = search.between(point, limit)
        if found is not None or search.given_up:
            return found
    return None


def never_fits(cycle: Cycle, unit: Unit) -> bool:
    """Whether there is too little for the workload even when all workloads with a known end have
    ended and nothing is reserved, of capacity or of quota. Capacity only shrinks in one decision
    unless more workloads are preempted, so what was found once is not looked at again."""
    if cycle.windows is not None:
        return False  # it may use other nodes in another window
    known = cycle.memory.final
    if known is None or known[0] != len(cycle.evictions):
        cluster, scene = cycle.scene.cluster.fork(()), cycle.scene
        cycle.ledger.refresh(cycle)
        cycle.ledger.move(cluster, releases.AT_ONCE, float("inf"))
        final = Scene(cluster, cycle.work, scene.crowd, limits=scene.limits, scorer=scene.scorer)
        known = cycle.memory.final = (len(cycle.evictions), final)
    if quota_forecast.shortage_at(cycle, unit, cycle.need(unit), float("inf")) is not None:
        return True
    return not fits_by_count(known[1], unit, place.least_of(unit))


def fits_by_count(scene: Scene, unit: Unit, wishes: Sequence[Wish]) -> bool:
    """Whether there is room enough for each role alone, in one domain where one is required.
    For a unit of one shape and no terms that is the whole answer."""
    cluster, topology = scene.cluster, unit.topology
    for wish in wishes:
        caps = scene.caps(scene.shape(wish.role))
        most = int(caps.sum())
        if topology is not None and topology.required:
            if topology.level in cluster.levels:
                sums = cluster.by_domain(cluster.levels.index(topology.level), caps)
                most = int(sums.max(initial=0))
            else:
                most = int(caps.max(initial=0)) if topology.level == "node" else 0
        if most < wish.count:
            return False
    return True


class _Search:
    def __init__(self, cycle: Cycle, unit: Unit, wishes: list[Wish], cluster: Cluster) -> None:
        self.cycle, self.unit, self.wishes, self.cluster = cycle, unit, wishes, cluster
        estimate = cycle.estimate(unit)
        self.runs = float("inf") if estimate is None else estimate
        self.tries = ATTEMPTS
        self._time = releases.AT_ONCE
        self._is_bound = cycle.tree.is_bound(unit.queue, firm=not unit.preemptible)
        scene = cycle.scene
        self.scene = Scene(
            cluster, cycle.work, scene.crowd, limits=scene.limits, scorer=scene.scorer
        )

    @property
    def given_up(self) -> bool:
        return self.tries <= 0 or self.cycle.work.exhausted

    def points(self) -> list[float]:
        """Moments at which promises to others, or advance reservations, change what is free or
        what must stay free."""
        now = self.cycle.now
        points = {now}
        for held in self.cycle.reservations:
            points |= {held.start, held.end, held.start - self.runs}
        if self.cycle.windows is not None:
            points |= set(self.cycle.windows.points(self.unit))
        return sorted(point for point in points if now <= point < float("inf"))

    def at(self, time: float) -> Start | None:
        return self._attempt(time) if self._fits(time) else None

    def between(self, after: float, limit: float) -> Start | None:
        """The first fitting moment strictly between two points."""
        times = self.cycle.ledger.times(after, limit)
        lo, hi = 0, len(times)
        if limit < float("inf") and lo < hi and not self._fits(float(times[hi - 1])):
            return None  # at its end there is the most room
        while lo < hi and not self.given_up:
            first = _first(lo, hi, lambda at: self._fits(float(times[at])))
            if first is None:
                return None
            found = self._attempt(float(times[first]))
            if found is not None:
                return found
            lo = first + 1
        return None

    def _fits(self, time: float) -> bool:
        if self._is_bound and not self._has_quota(time):
            return False
        self._go(time)
        unit, wishes = self._as_of(time)
        self.scene.ceilings = self._ceilings(self._ahead(time), wishes)
        fits = fits_by_count(self.scene, unit, wishes)
        self.scene.ceilings = {}
        return fits

    def _has_quota(self, time: float) -> bool:
        """Whether its queues may use so much more then, and at the start of every reservation that
        begins while it runs. Like capacity, quota only grows between two points."""
        cycle, unit = self.cycle, self.unit
        need = cycle.need(unit)
        if quota_forecast.shortage_at(cycle, unit, need, time) is not None:
            return False
        return quota_forecast.shortage_beside(cycle, unit, need, self._ahead(time)) is None

    def _attempt(self, time: float) -> Start | None:
        """Really places it at that time, with the best model that fits."""
        self.tries -= 1
        self._go(time)
        ahead = self._ahead(time)
        unit, wishes = self._as_of(time)
        self.scene.crowd = self._crowd(time)
        for model in models.in_turn(unit):
            self.scene.model = model
            self.scene.ceilings = self._ceilings(ahead, wishes)
            answer = place.place(self.scene, unit, wishes)
            self.scene.model, self.scene.ceilings = "", {}
            if isinstance(answer, Failure):
                continue
            stay = shadows.Stay(unit, time, time + self.runs, answer)
            if not shadows.clashing(self._after(time), stay):
                self.cluster.settle()
                return Start(unit, time, answer, self.cluster)
            self.cluster.rollback(0)
        return None

    def _ahead(self, time: float) -> tuple[Held, ...]:
        """Promises that start while the unit would run."""
        until = time + self.runs
        return tuple(held for held in self.cycle.reservations if time < held.start < until)

    def _as_of(self, time: float) -> tuple[Unit, list[Wish]]:
        """The unit and what it asks for if it starts then."""
        if self.cycle.windows is None:
            return self.unit, self.wishes
        unit = self.cycle.windows.starting(self.unit, time)
        return unit, place.least_of(unit)

    def _ceilings(self, ahead: tuple[Held, ...], wishes: list[Wish]) -> dict[int, Ints]:
        others = self.cycle.scene.cluster.kept_shapes()
        return shadows.ceilings(self.scene, ahead, wishes, others)

    def _after(self, time: float) -> list[Held]:
        return [held for held in self.cycle.reservations if time < held.start]

    def _go(self, time: float) -> None:
        since, self._time = self._time, time
        if since == time:
            return
        # Who goes before who comes: a port is given back by the one and taken by the other.
        if time > since:
            self.cycle.ledger.move(self.cluster, since, time)
        for sign in (+1, -1):
            before, after = (since, time) if sign > 0 else (time, since)
            moved = [
                held.rows
                for held in self.cycle.reservations
                if held.start <= before < held.end and not held.start <= after < held.end
            ]
            releases.move_all(self.cluster, moved, sign)
        if time < since:
            self.cycle.ledger.move(self.cluster, since, time)

    def _crowd(self, time: float) -> Crowd:
        """Who is still there then; only units with affinity or spread terms look at it."""
        crowd = self.cycle.scene.crowd
        if not any(crowd.concerns(self.unit, wish.role) for wish in self.wishes):
            return crowd
        crowd = crowd.fork()
        for running in self.cycle.running.values():
            end = looks.believed(running.expected_end, self.cycle.now)
            if end is not None and end <= time:
                crowd.leave(running)
        return crowd


def _first(lo: int, hi: int, fits: Callable[[int], bool]) -> int | None:
    """The first of a range that fits, given that all after it fit too."""
    step = 1
    while True:
        probe = min(lo + step, hi) - 1
        if fits(probe):
            break
        if (lo := probe + 1) >= hi:
            return None
        step *= 2
    hi = probe
    while lo < hi:
        middle = (lo + hi) // 2
        if fits(middle):
            hi = middle
        else:
            lo = middle + 1
    return hi
