"""The data of one decision, and the questions that every step asks about it.

A decision works on forks of the snapshot's cluster, quotas and pod index, so it changes nothing but
this state. The snapshot keeps caches for later decisions (pod capacities, and which columns of
running workloads were read); no answer depends on them. Steps are functions that take a
`DecisionState`; `core.cycle.cycle` calls them in order.

What a step finds out and may need again is in a cache object of its own module, which the state
holds by type (`cache`). Such an object compares counters of the state with those at which it was
filled: `generation`, `releases`, and the lengths of `evictions` and `nominations`, which only grow.
"""

from __future__ import annotations

import functools
from collections import ChainMap
from collections.abc import Callable
from typing import Any, TypeVar

from windlass.core.calendar.advance_windows import Windows
from windlass.core.decision import fair_share, incomplete_gangs
from windlass.core.decision.fair_share import FairShares
from windlass.core.decision.shadows import Reservation
from windlass.core.model import gangs
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import (
    Eviction,
    Nomination,
    Placement,
    Policy,
    Queue,
    Running,
    Verdict,
    Wanted,
    Withdrawal,
    Workload,
)
from windlass.core.placement.placement_context import PlacementContext, Work
from windlass.core.prediction import aging
from windlass.core.queueing import queue_order, workload_info
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota.quota_tree import Shortage, Sums
from windlass.core.snapshot.snapshot import Snapshot

Cache = TypeVar("Cache")


def ordering_of(snapshot: Snapshot, now: float) -> queue_order.OrderingContext:
    """What the order of waiting workloads depends on at a time."""
    shares = snapshot.user_shares.shares(snapshot.tree, snapshot.accounts, snapshot.horizon)
    return queue_order.OrderingContext(snapshot.history.at(now), shares, snapshot.user_shares.held)


class DecisionState:
    """One decision in the making: what it works on, and what it has decided so far."""

    def __init__(
        self, snapshot: Snapshot, now: float, policy: Policy, windows: Windows | None = None
    ) -> None:
        self.snapshot, self.now, self.policy = snapshot, now, policy
        self.windows = windows
        """Of advance reservations; None: there are none."""
        snapshot.running_index.begin()
        self.work = Work(policy.operations)
        self.context = PlacementContext(
            snapshot.cluster.fork(), self.work, snapshot.pod_index.fork(), snapshot.history.demand
        )
        self.tree = fair_share.tree_with_owed_shares(snapshot)
        self.namespace_quotas = snapshot.namespace_quotas.fork()
        self.user_quotas = snapshot.user_quotas.fork()
        self.running = ChainMap[str, Running]({}, snapshot.running)
        """Workloads that hold capacity, with those that this decision starts."""
        self.usage = ChainMap[str, Sums]({}, snapshot.usage)
        """What each of them counts for in quotas."""
        self.ordering = ordering_of(snapshot, now)
        self._decided()
        self._count()

    def _decided(self) -> None:
        self.placements: dict[str, Placement] = {}
        self.evictions: list[Eviction] = []
        self.nominations: dict[str, Nomination] = {}
        self.reservations: list[Reservation] = []
        self.withdrawals: tuple[Withdrawal, ...] = ()
        self.lost_reservations: dict[str, str] = {}
        """Workloads that lost a reservation of an earlier decision, and why."""
        self.wanted_nodes: list[Wanted] = []
        self.verdicts: dict[str, Verdict] = {}
        self.unresolved = False
        """Whether a search ended at its budget."""
        self.considered: list[str] = []
        """Workloads in the order of their turns; more than once where a start was retracted."""
        self.wakeups: list[float] = []
        """Moments at which time alone changes the decision."""

    def _count(self) -> None:
        self.generation = 0
        """Counts what changes answers: starts, nominations, reservations that come and go."""
        self.releases = 0
        """Counts what gives capacity or quota back to waiting workloads: reservations that are
        withdrawn, starts that are retracted. As long as it stays the same, free capacity shrinks
        only, and what did not fit does not fit again."""
        self.retractions = 0
        """Counts starts that were retracted."""
        self.reserved_for: dict[str, Reservation] = {}
        """Workload -> its reservation."""
        self.reserved_in: dict[str, int] = {}
        """Queue -> how many reservations it has; without queues that have none."""
        self._caches: dict[object, Any] = {}
        self._shrinking: dict[object, Any] = {}
        self._infos = self.snapshot.infos
        self._needs: dict[str, Sums] = {}
        self._predicted: dict[str, tuple[Workload, float | None]] = {}
        self._most: dict[int, int] = {}
        self._most_in_domain: dict[tuple[int, str], int] = {}

    # --- caches of the steps

    def cache(self, kind: type[Cache], make: Callable[[], Cache] | None = None) -> Cache:
        """The cache object of this type. It is made when it is first asked for."""
        found: Cache | None = self._caches.get(kind)
        if found is None:
            found = self._caches[kind] = (make or kind)()
        return found

    def put_cache(self, cache: object) -> None:
        """Replaces the cache object of this type."""
        self._caches[type(cache)] = cache

    def shrinking_cache(self, kind: type[Cache], make: Callable[[], Cache] | None = None) -> Cache:
        """As `cache`, of what holds until a start is retracted: it follows starts one by one, or
        counts on free capacity to shrink."""
        found: Cache | None = self._shrinking.get(kind)
        if found is None:
            found = self._shrinking[kind] = (make or kind)()
        return found

    # --- changes

    def add_reservation(self, reservation: Reservation) -> None:
        workload = reservation.workload
        self.reservations.append(reservation)
        self.reserved_for[workload.key] = reservation
        self.reserved_in[workload.queue] = self.reserved_in.get(workload.queue, 0) + 1
        self.generation += 1

    def remove_reservation(self, workload: Workload) -> Reservation | None:
        """Takes out the reservation of a workload; returns it if there was one."""
        found = self.reserved_for.pop(workload.key, None)
        if found is not None:
            self.reservations.remove(found)
            self.reserved_in[workload.queue] -= 1
            if not self.reserved_in[workload.queue]:
                del self.reserved_in[workload.queue]
            self.generation += 1
        return found

    def release(self) -> None:
        """Capacity or quota came back: workloads that did not fit may fit now."""
        self.generation += 1
        self.releases += 1

    def retracted(self) -> None:
        """A start was taken back."""
        self.retractions += 1
        self._shrinking = {}
        self.release()

    # --- workloads

    def queue_of(self, workload: Workload) -> Queue:
        return self.tree.queues[workload.queue]

    @functools.cached_property
    def missing(self) -> dict[str, Workload]:
        """By key, the missing pods of gangs that run."""
        return incomplete_gangs.find(self.snapshot, self.context.cluster, self.windows)

    @functools.cached_property
    def moving(self) -> dict[str, Workload]:
        """By key, running workloads that leave their place for another one."""
        running = self.snapshot.running
        return {
            key: running[key].workload
            for key in self.snapshot.nominations
            if key in running and gangs.leaves_whole(running[key])
        }

    def workload(self, key: str) -> Workload | None:
        """What capacity can be nominated to: a waiting workload, the missing pods of a gang that
        runs, or a workload that is being moved."""
        found = self.snapshot.waiting.get(key) or self.missing.get(key)
        return found or self.moving.get(key)

    def info(self, workload: Workload) -> WorkloadInfo:
        """What follows from the workload; kept by the snapshot as long as it waits."""
        known = self._infos.get(workload.key)
        if known is None or known.workload is not workload:
            known = workload_info.describe(self.context.cluster, workload)
            if self.snapshot.waiting.get(workload.key) is workload:
                self._infos[workload.key] = known
        return known

    def need(self, workload: Workload) -> Sums:
        """What the minimum of the workload counts for in quotas."""
        found = self._needs.get(workload.key)
        if found is None:
            found = self._needs[workload.key] = self.info(workload).need
        return found

    def namespace_shortage(self, workload: Workload) -> Shortage | None:
        """The quota of its namespace that the minimum of the workload would exceed."""
        if workload.namespace not in self.namespace_quotas.used:
            return None
        return self.namespace_quotas.shortage(
            workload.namespace, self.need(workload), self.info(workload).members
        )

    @functools.cached_property
    def waiting_queues(self) -> int:
        """How many queues there are in which workloads wait."""
        return len(self.snapshot.nonempty_queues())

    @functools.cached_property
    def fair_shares(self) -> FairShares:
        return FairShares(self.snapshot, self.tree)

    # --- time

    def expected_end(self, workload: Workload) -> float | None:
        """When the workload ends if it starts now; missing pods of a gang end with the others."""
        gang = self.snapshot.running.get(workload.key)
        if gang is not None:
            return aging.estimated_end(self.running_end(gang), self.now)
        seconds = self.estimate(workload)
        if seconds is None and self.policy.unknown_runtime == "learned":
            seconds = self.predicted(workload)
        if workload.max_runtime is not None:
            seconds = (
                workload.max_runtime if seconds is None else min(seconds, workload.max_runtime)
            )
        return None if seconds is None else self.now + seconds

    def running_end(self, running: Running) -> float | None:
        """When a running workload should end, by its own estimate or by those of similar ones."""
        if running.expected_end is not None or self.policy.unknown_runtime != "learned":
            return running.expected_end
        before = running.workload.attained
        age = aging.age(before, max(0.0, self.now - running.started))
        left = self.ordering.predictor.left(running.workload, age)
        return None if left is None else running.started + (age - before) + left

    def estimate(self, workload: Workload) -> float | None:
        """Seconds of runtime that the workload states, as far as that is trusted."""
        return self.snapshot.history.estimate(workload)

    def predicted(self, workload: Workload) -> float | None:
        """Seconds of runtime learned from similar workloads; kept, since every step asks."""
        known = self._predicted.get(workload.key)
        if known is None or known[0] is not workload:
            expected = self.ordering.predictor.expected(workload)
            known = self._predicted[workload.key] = (workload, expected)
        return known[1]

    # --- the empty cluster

    def most_when_empty(self, shape: Shape) -> int:
        """Pods of the shape that all nodes together would hold if they were empty."""
        found = self._most.get(shape.id)
        if found is None:
            found = int(self.context.cluster.empty_pod_capacity(shape).sum())
            self._most[shape.id] = found
        return found

    def most_in_domain(self, shape: Shape, level: str) -> int:
        """Pods of the shape that the largest domain of a level would hold if it were empty."""
        found = self._most_in_domain.get((shape.id, level))
        if found is None:
            cluster = self.context.cluster
            fit = cluster.empty_pod_capacity(shape)
            if level in cluster.levels:
                fit = cluster.by_domain(cluster.levels.index(level), fit)
            found = self._most_in_domain[shape.id, level] = int(fit.max(initial=0))
        return found
