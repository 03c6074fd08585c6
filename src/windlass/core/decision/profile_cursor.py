"""When capacity comes back, as one decision sees it.

The availability profile of the snapshot, with what the decision itself starts, nominates and
evicts, and with ends that are learned from similar workloads.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Nomination, Placement, PodAssignment, Role
from windlass.core.prediction import aging
from windlass.core.snapshot import availability_profile
from windlass.core.snapshot.availability_profile import AT_ONCE, AvailabilityProfile, Release, Table

Ints = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


class ProfileCursor:
    """The availability profile as one decision sees it: with its placements and evictions, and with
    its own estimates of ends."""

    def __init__(self, base: AvailabilityProfile) -> None:
        self._base = base
        self._own: AvailabilityProfile | None = None
        self._stopped: set[str] = set()
        self._placed = self._evicted = 0
        self._nominated: set[str] = set()
        self._lanes: list[tuple[_Lane, _Lane]] = []
        self._base_lanes: tuple[int, tuple[_Lane, _Lane]] | None = None
        """Of the snapshot's own, after so many were stopped."""
        self._ports: list[tuple[float, int, int]] = []
        self._exclusive: list[tuple[Role, PodAssignment]] = []
        """Nominated host ports and device partitions, which terminating pods still hold."""
        self._now, self._uses_predictions = 0.0, False
        self._horizon = AT_ONCE
        """The latest time to which a cluster was moved."""
        self._later: list[Release] = []
        """What starts now and ends after that: decisions seldom look so far ahead."""

    def refresh(self, state: DecisionState) -> None:
        """Takes in what the decision has done since the last time."""
        cluster = state.context.cluster
        if self._own is None:
            self._own = AvailabilityProfile(cluster)
            self._add_predicted(state, self._own)
        elif (self._placed, self._evicted, self._nominated) == (
            len(state.placements),
            len(state.evictions),
            set(state.nominations),
        ):
            return
        self._exclusive, self._now = terminating.of(state).exclusive(), state.now
        self._horizon = max(self._horizon, state.now)
        self._apply_changes(state, self._own)
        self._sort(state.now)

    def uses_predictions(self, state: DecisionState) -> bool:
        """Whether it counts on an end that is only learned from similar workloads."""
        if self._own is None:
            self.refresh(state)
        return self._uses_predictions

    def next_ends(self, state: DecisionState, until: float) -> Iterator[float]:
        """Of the ends that it expects up to a time, when the first of them is estimated anew if the
        workload has not ended."""
        if self._own is None:
            self.refresh(state)
        for members, _ in self._lanes:
            yield members.next_reestimate(until)
            nearest = members.times[np.searchsorted(members.times, state.now, side="right") :][:1]
            yield from nearest[nearest <= until]

    def times(self, after: float, before: float) -> Times:
        """When capacity comes back, strictly between two moments, ascending."""
        times, more = (_between(members.times, after, before) for members, _ in self._lanes)
        later = [end for _, _, end in self._later if after < end < before]
        more = np.sort(np.concatenate([more, later]))
        return _distinct(np.insert(times, np.searchsorted(times, more), more))

    def move(self, cluster: Cluster, since: float, until: float) -> None:
        """Brings a cluster from how it will be at one time to how it will be at another."""
        self._enter_until(cluster, max(since, until))
        if since == AT_ONCE and self._exclusive:
            self._move(cluster, since, self._now)
            for role, pod in self._exclusive:
                availability_profile.force_allocate(cluster, role, pod)
            since = self._now
        self._move(cluster, since, until)

    def _enter_until(self, cluster: Cluster, time: float) -> None:
        """Enters the workloads that end until then."""
        if time > self._horizon and self._own is not None:
            self._horizon = time
            if any(end <= time for _, _, end in self._later):
                self._enter(cluster, self._own, self._later)
                self._sort(self._now)

    def _enter(self, cluster: Cluster, own: AvailabilityProfile, stays: Iterable[Release]) -> None:
        """Enters those that end until the latest time that was asked about; the others wait."""
        due, self._later = list[Release](), []
        for stay in stays:
            (due if stay[2] <= self._horizon else self._later).append(stay)
        own.add_all(cluster, due)

    def _move(self, cluster: Cluster, since: float, until: float) -> None:
        sign = 1 if until > since else -1
        after, upto = min(since, until), max(since, until)
        for members, devices in self._lanes:
            cluster.shift(members.between(after, upto), devices.between(after, upto), sign)
        for end, port, node in self._ports:
            if after < end <= upto:
                cluster.shift_port(port, node, sign)

    def _add_predicted(self, state: DecisionState, own: AvailabilityProfile) -> None:
        """Where running workloads state no end, what is learned from similar ones."""
        for running in self._base.unknown.values():
            end = state.running_end(running)
            self._uses_predictions = self._uses_predictions or end is not None
            if end is not None:
                own.add(state.context.cluster, running.workload, running.pods, end)

    def _apply_changes(self, state: DecisionState, own: AvailabilityProfile) -> None:
        cluster = state.context.cluster
        for eviction in state.evictions[self._evicted :]:
            running = state.snapshot.running.get(eviction.workload)
            if running is not None:
                self._stopped.add(eviction.workload)
                own.remove(eviction.workload)
                self._later = [stay for stay in self._later if stay[0].key != eviction.workload]
                leaving = tuple(
                    (s.role, s.index)
                    for s in terminating.of(state).evicted()[eviction.workload].pods
                )
                own.add_running(cluster, dataclasses.replace(running, leaving=leaving))
        self._evicted = len(state.evictions)
        self._enter(cluster, own, [*self._later, *self._new_entries(state)])
        self._placed, self._nominated = len(state.placements), set(state.nominations)

    def _new_entries(self, state: DecisionState) -> Iterator[Release]:
        """Workloads that were placed or nominated since, and end at a known time."""
        started = state.running.maps[0]
        placed = itertools.islice(state.placements.values(), self._placed, None)
        nominated = (n for n in state.nominations.values() if n.workload not in self._nominated)
        for each in itertools.chain[Placement | Nomination](placed, nominated):
            running = started.get(each.workload) or state.running.get(each.workload)
            workload = (
                running.workload if running is not None else state.snapshot.waiting[each.workload]
            )
            end = running.expected_end if running is not None else state.expected_end(workload)
            if end is not None:
                yield workload, each.pods, end

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
        """What runs, without evicted workloads: long, and it seldom changes."""
        if self._base_lanes is None or self._base_lanes[0] != len(self._stopped):
            skipped = [self._base.rows(key) for key in sorted(self._stopped)]
            members = _Lane(self._base.members, now, [row for rows, _ in skipped for row in rows])
            devices = _Lane(self._base.devices, now, [row for _, rows in skipped for row in rows])
            self._base_lanes = (len(self._stopped), (members, devices))
        return self._base_lanes[1]


def of(state: DecisionState) -> ProfileCursor:
    return state.shrinking_cache(ProfileCursor, lambda: ProfileCursor(state.snapshot.availability))


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
            self._late = (aging.estimated_ends(ends, now), aging.next_reestimates(ends, now))
            times = np.concatenate([_effective(self.times[:late], now), self.times[late:]])
            order = np.argsort(times, kind="stable")
            self._order, self.times = self._order[order], times[order]

    def next_reestimate(self, until: float) -> float:
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
    """Evicted workloads end now; those that overrun are estimated to run on."""
    gone = np.isneginf(ends)
    return np.where(gone, now, aging.estimated_ends(np.where(gone, now, ends), now))


def _between(ascending: Times, after: float, before: float) -> Times:
    first = int(np.searchsorted(ascending, after, side="right"))
    return ascending[first : int(np.searchsorted(ascending, before, side="left"))]


def _distinct(ascending: Times) -> Times:
    return ascending[np.diff(ascending, prepend=-np.inf) > 0]
