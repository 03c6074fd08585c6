"""The earliest time at which a blocked workload fits, if others end when expected.

Moves a fork of the cluster through time: capacity comes back at the ends that the availability
profile knows, and reservations take theirs at their start. Between two such starts more time means
more capacity, so the first fitting moment is found by doubling steps and then halving. The cluster
as it is then becomes the shadow of the reservation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.pod_label_index import PodLabelIndex
from windlass.core.decision import profile_cursor, shadows
from windlass.core.decision.shadows import LimitCache, Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import PodAssignment, Workload
from windlass.core.placement import gang_placement, placement_context
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure
from windlass.core.prediction import aging
from windlass.core.quota import device_models
from windlass.core.reservation import quota_forecast
from windlass.core.snapshot import availability_profile

Ints = npt.NDArray[np.int64]

ATTEMPTS = 8
"""Moments tried for a workload of several shapes, where enough capacity in all proves nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    workload: Workload
    """As it is if it starts then: windows of advance reservations bind it by its start."""
    time: float
    pods: tuple[PodAssignment, ...]
    cluster: Cluster
    """As it is then, with the pods in place."""


@dataclasses.dataclass(slots=True)
class FinalCapacity:
    """The cluster when all workloads with a known end have ended, after so many evictions."""

    evictions: int = -1
    context: PlacementContext | None = None


def find(state: DecisionState, workload: Workload, before: float) -> Start | None:
    """The first moment before `before` (and not before now), or None when there is none."""
    requests = pod_sets.minimum(workload)
    cluster = state.context.cluster
    shapes = [cluster.shape_of(request.role) for request in requests]
    for request, shape in zip(requests, shapes, strict=True):
        if state.most_when_empty(shape) < request.count:
            return None
    profile_cursor.of(state).refresh(state)
    search = _Search(state, workload, requests, cluster.fork(shapes))
    points = [point for point in search.points() if point < before]
    for at, point in enumerate(points):
        found = search.at(point)
        if found is None:
            limit = points[at + 1] if at + 1 < len(points) else before
            found = search.between(point, limit)
        if found is not None or search.given_up:
            return found
    return None


def has_final(state: DecisionState) -> bool:
    """Whether a search looked at the cluster when all workloads with a known end have ended."""
    return state.cache(FinalCapacity).context is not None


def never_fits(state: DecisionState, workload: Workload) -> bool:
    """Whether there is too little for the workload even when all workloads with a known end have
    ended and nothing is reserved, of capacity or of quota. Capacity only shrinks in one decision
    unless more workloads are preempted, so what was found once is not looked at again."""
    if state.windows is not None:
        return False  # it may use other nodes in another window
    cache = state.cache(FinalCapacity)
    if cache.context is None or cache.evictions != len(state.evictions):
        cluster, context = state.context.cluster.fork(()), state.context
        profile_cursor.of(state).refresh(state)
        profile_cursor.of(state).move(cluster, availability_profile.AT_ONCE, float("inf"))
        cache.evictions = len(state.evictions)
        cache.context = PlacementContext(cluster, state.work, context.pod_index, context.scorer)
    if quota_forecast.shortage_at(state, workload, state.need(workload), float("inf")) is not None:
        return True
    return not placement_context.fits_by_count(cache.context, workload, pod_sets.minimum(workload))


class _Search:
    def __init__(
        self,
        state: DecisionState,
        workload: Workload,
        requests: list[PodSetRequest],
        cluster: Cluster,
    ) -> None:
        self.state, self.workload, self.requests, self.cluster = state, workload, requests, cluster
        estimate = state.estimate(workload)
        self.runs = float("inf") if estimate is None else estimate
        self.tries = ATTEMPTS
        self._time = availability_profile.AT_ONCE
        self._is_bound = state.tree.is_bound(
            workload.queue, non_preemptible=not workload.preemptible
        )
        context = state.context
        self.context = PlacementContext(cluster, state.work, context.pod_index, context.scorer)

    @property
    def given_up(self) -> bool:
        return self.tries <= 0 or self.state.work.exhausted

    def points(self) -> list[float]:
        """Moments at which reservations of others, or advance reservations, change what is free or
        what must stay free."""
        now = self.state.now
        points = {now}
        for reservation in self.state.reservations:
            points |= {reservation.start, reservation.end, reservation.start - self.runs}
        if self.state.windows is not None:
            points |= set(self.state.windows.points(self.workload))
        return sorted(point for point in points if now <= point < float("inf"))

    def at(self, time: float) -> Start | None:
        return self._attempt(time) if self._fits(time) else None

    def between(self, after: float, limit: float) -> Start | None:
        """The first fitting moment strictly between two points."""
        times = profile_cursor.of(self.state).times(after, limit)
        lo, hi = 0, len(times)
        if limit < float("inf") and lo < hi and not self._fits(float(times[hi - 1])):
            return None  # at its end there is the most capacity
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
        workload, requests = self._as_of(time)
        limits = self._limits(self.context, self._ahead(time), requests)
        limited = self.context.limited(limits=limits)
        return placement_context.fits_by_count(limited, workload, requests)

    def _has_quota(self, time: float) -> bool:
        """Whether its queues may use so much more then, and at the start of every reservation that
        begins while it runs. Like capacity, quota only grows between two points."""
        state, workload = self.state, self.workload
        need = state.need(workload)
        if quota_forecast.shortage_at(state, workload, need, time) is not None:
            return False
        return quota_forecast.shortage_beside(state, workload, need, self._ahead(time)) is None

    def _attempt(self, time: float) -> Start | None:
        """Really places it at that time, with the best model that fits."""
        self.tries -= 1
        self._go(time)
        ahead = self._ahead(time)
        workload, requests = self._as_of(time)
        context = dataclasses.replace(self.context, pod_index=self._pod_index(time))
        for model in device_models.in_turn(workload):
            narrowed = context.limited(model=model)
            limited = narrowed.limited(limits=self._limits(narrowed, ahead, requests))
            answer = gang_placement.place(limited, workload, requests)
            if isinstance(answer, PlacementFailure):
                continue
            stay = shadows.Interval(workload, time, time + self.runs, answer)
            if not shadows.clashing(self._after(time), stay):
                self.cluster.settle()
                return Start(workload, time, answer, self.cluster)
            self.cluster.rollback(0)
        return None

    def _ahead(self, time: float) -> tuple[Reservation, ...]:
        """Reservations that start while the workload would run."""
        until = time + self.runs
        return tuple(
            reservation
            for reservation in self.state.reservations
            if time < reservation.start < until
        )

    def _as_of(self, time: float) -> tuple[Workload, list[PodSetRequest]]:
        """The workload and what it asks for if it starts then."""
        if self.state.windows is None:
            return self.workload, self.requests
        workload = self.state.windows.starting(self.workload, time)
        return workload, pod_sets.minimum(workload)

    def _limits(
        self,
        context: PlacementContext,
        ahead: tuple[Reservation, ...],
        requests: list[PodSetRequest],
    ) -> dict[int, Ints]:
        others = self.state.context.cluster.cached_shapes()
        return self.state.cache(LimitCache).limits(context, ahead, requests, others)

    def _after(self, time: float) -> list[Reservation]:
        return [reservation for reservation in self.state.reservations if time < reservation.start]

    def _go(self, time: float) -> None:
        since, self._time = self._time, time
        if since == time:
            return
        # Ends before starts: a port is given back by the one and taken by the other.
        if time > since:
            profile_cursor.of(self.state).move(self.cluster, since, time)
        for sign in (+1, -1):
            before, after = (since, time) if sign > 0 else (time, since)
            moved = [
                reservation.rows
                for reservation in self.state.reservations
                if reservation.start <= before < reservation.end
                and not reservation.start <= after < reservation.end
            ]
            availability_profile.shift_all(self.cluster, moved, sign)
        if time < since:
            profile_cursor.of(self.state).move(self.cluster, since, time)

    def _pod_index(self, time: float) -> PodLabelIndex:
        """The pods that are still there then; for workloads with terms about other pods."""
        pod_index = self.state.context.pod_index
        if not any(
            pod_index.has_terms_for(self.workload, request.role) for request in self.requests
        ):
            return pod_index
        pod_index = pod_index.fork()
        for running in self.state.running.values():
            end = aging.estimated_end(running.expected_end, self.state.now)
            if end is not None and end <= time:
                pod_index.remove(running)
        return pod_index


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
