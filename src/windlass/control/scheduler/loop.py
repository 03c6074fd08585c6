"""The scheduler's loop: changes of the cluster, a decision, and its writes into Run statuses.

It sleeps until an object that matters has changed, or until the time that the decision asked for;
it has no timer of its own. It writes assignment, nomination, eviction and queue, and reason and
message while a Run waits; never a phase.

Everything that is decided is written down, except the reservations of blocked queue heads: they
live from one decision of a term to the next, and a new leader reserves anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from windlass.control.convert import node_facts, pod_workloads, run_workloads
from windlass.control.runtime import leader_election, work_report
from windlass.control.runtime.concurrency import all_of
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler import (
    assignment,
    pod_binder,
    rate_limit,
    status_writer,
    withdrawal_events,
)
from windlass.control.scheduler.cache import cache, cluster_state, pod_group_sizes
from windlass.control.scheduler.status import queue_metrics
from windlass.control.scheduler.status_writer import (
    AT_ONCE,
    REASONS_BESIDE_STARTS,
    REASONS_PER_SECOND,
)
from windlass.core.cycle import cycle as core
from windlass.core.invariants import invariants
from windlass.core.model import types
from windlass.core.snapshot.snapshot import ReservationsPut, Snapshot, apply
from windlass.kinds.types.run import Run
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.telemetry import prometheus

T = TypeVar("T")
D = TypeVar("D", types.Placement, types.Eviction)
log = logging.getLogger(__name__)

NAME = "scheduler"
INLINE_NODES, INLINE_WORKLOADS = 500, 2000
"""Above either, a decision is made in a thread, so that other tasks of the event loop (the API,
when embedded) run meanwhile."""
INLINE_SECONDS = 0.002
"""So is the decision after one that took longer."""
REST = 300.0
"""Seconds that a Run which must restart to grow runs at least before it does."""
_PAUSE_AFTER_FAILURE = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    decision: types.Decision
    """Without verdicts: thousands may wait, and few statuses are written at a time."""
    waiting: int
    """How many workloads wait."""
    report: status_writer.WaitReport | None
    """None: so many wait that reasons are not evaluated again within a second."""
    counted: queue_metrics.Decided


class Scheduler:
    """One per leader's term."""

    def __init__(
        self,
        store: interface.Store,
        informers: InformerFactory,
        *,
        epoch: int,
        policy: types.Policy = cluster_state.POLICY,
        levels: node_facts.Levels = node_facts.LEVELS,
        registry: prometheus.Registry | None = None,
        now: Callable[[], datetime.datetime] = times.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._epoch, self._now = store, epoch, now
        self._changed = asyncio.Event()
        self.meter = work_report.WorkMeter(clock=clock, now=now)
        self._state = cluster_state.ClusterState(
            store, informers, self._wake, policy=policy, levels=levels
        )
        self._cache = self._state.cache
        self._binder = pod_binder.Binder(store, self._cache.pod_cache, now, nodes=self._cache.node)
        self._writer = status_writer.StatusWriter(store, self._cache, self._wake)
        self._reasons = status_writer.ReasonPublisher(
            self._writer, self._cache, self._binder, now=now, clock=clock
        )
        self.decided, self.decided_anew = asyncio.Event(), asyncio.Event()
        """Both are set after each decision; each has one waiter, which clears it."""
        self._deciding = asyncio.Lock()
        """Locked while the snapshot may change."""
        self._wake_at: float | None = None
        self._must_decide = True
        """There was no decision yet, or the latest is not completely written."""
        self._has_decided = False
        self._register_metrics(registry or prometheus.Registry())

    def _register_metrics(self, registry: prometheus.Registry) -> None:
        self._took_seconds = 0.0
        """Of the last decision."""
        self._took = registry.histogram(
            "windlass_scheduler_decide_seconds", "How long one decision took."
        )
        self._violations = registry.counter(
            "windlass_invariant_violations_total",
            "Decisions that violate a scheduling invariant, by invariant; any is a defect.",
            ["invariant"],
        )
        self._waiting = registry.gauge("windlass_scheduler_waiting_runs", "Runs that wait.")
        self._latest = registry.gauge(
            "windlass_scheduler_last_decision_timestamp_seconds",
            "When this process decided last: it does so whenever something changes.",
        )
        self._queues = queue_metrics.QueueMetrics(registry)

    async def run(self) -> None:
        """Decides whenever something changed, until cancelled."""
        wake_at: float | None = None
        while True:
            await self._wait(wake_at)
            self._changed.clear()
            self.meter.begin()
            try:
                wake_at = await self.cycle()
            except leader_election.LeadershipLostError:
                return
            except errors.ApiError as error:
                log.warning("scheduler: a write failed; deciding again: %s", error.message)
                self.meter.failed()
                wake_at = self._now().timestamp() + _PAUSE_AFTER_FAILURE
            else:
                self.meter.end()

    async def summarize_bindings(self) -> None:
        """Records events about external pods that were bound, until cancelled."""
        await self._binder.bindings.run()

    async def cycle(self) -> float | None:
        """One decision and its writes. Returns when to decide again even if nothing changes."""
        # 1. Earlier assignments and evictions: are they still valid, are they carried out?
        await self._reconcile()
        # 2. What has changed, as far as decisions depend on it.
        now = self._now().timestamp()
        changes = self._cache.drain_changes(now)
        conflicts = self._writer.conflicts & changes.runs
        self._writer.conflicts -= changes.runs
        due = self._wake_at is not None and self._wake_at <= now
        most = REASONS_PER_SECOND
        # 3. Decide, and write assignments, nominations and evictions.
        if changes.events or conflicts or due or self._must_decide or self._state.policy_changed:
            most = await self._decide_and_write(changes, now)
        learned, unsized = await self._state.learn_gang_sizes()
        # 4. Gangs of pods that run in part must not stay so.
        overdue = await self._binder.end_partial_gangs()
        # 5. Write why the others wait, a few at a time. Not before gang sizes that were just
        # learned are decided with: a reason is written once.
        again = None if learned else await self._reasons.publish_reasons(most)
        retry = self._now().timestamp() + pod_group_sizes.ASK_AGAIN if unsized else None
        moments = (self._wake_at, overdue, again, self._cache.rejected_until(), retry)
        return min((at for at in moments if at is not None), default=None)

    async def read(self, read: Callable[[Snapshot], T]) -> T | None:
        """What a function returns for the snapshot, between two decisions; None before the
        first."""
        async with self._deciding:
            snapshot = self._cache.snapshot
            return None if snapshot is None else read(snapshot)

    def _wake(self, *_: object) -> None:
        self.meter.changed()
        self._changed.set()

    async def _wait(self, wake_at: float | None) -> None:
        timeout = None if wake_at is None else max(0.0, wake_at - self._now().timestamp())
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    # --- 1

    async def _reconcile(self) -> None:
        """Assignments of an earlier leader are confirmed or withdrawn; of evictions that were
        carried out, the capacity is released."""
        owners = {owner.uid: owner for owner in self._cache.evicted()}
        owners |= {owner.uid: owner for owner in self._cache.unstarted()}
        owners |= {owner.uid: owner for owner in self._cache.changed_runs()}
        await self._writer.patch_all((owner, self._correction(owner)) for owner in owners.values())

    def _correction(self, owner: Run) -> dict[str, Any] | None:
        if owner.uid in self._writer.conflicts:
            return None
        given = owner.status.assignment
        needs_pods = owner.status.eviction is not None or (given and given.epoch != self._epoch)
        pods = self._cache.pods_of(owner) if needs_pods else ()
        first = not self._has_decided
        return assignment.reconcile(
            owner, self._epoch, self._now(), self._cache.takes, pods, first=first
        )

    # --- 3

    async def _decide_and_write(self, changes: cache.Changes, now: float) -> int:
        """Returns how many reasons may be written per second afterwards."""
        self._must_decide, self._state.policy_changed = True, False
        outcome = await self._decide(changes, now)
        self._has_decided = True
        resting = await self._write(outcome.decision)
        self._queues.count(outcome.counted)
        lost = outcome.decision.withdrawals
        await withdrawal_events.record(self._store, self._cache.run, lost, NAME)
        self._must_decide = False
        moments = [at for at in (outcome.decision.wake_at, *resting) if at is not None]
        if outcome.report is None:
            moments.append(now + rate_limit.REASONS_EVERY)
        else:
            self._reasons.replace(outcome.report)
        self._wake_at = min(moments, default=None)
        return REASONS_BESIDE_STARTS if outcome.decision.placements else REASONS_PER_SECOND

    async def _decide(self, changes: cache.Changes, now: float) -> Outcome:
        started = time.perf_counter()
        nodes, workloads = self._cache.size
        async with self._deciding:
            large = nodes > INLINE_NODES or workloads > INLINE_WORKLOADS
            if large or self._took_seconds > INLINE_SECONDS:
                # Meanwhile event handlers only record changes; nothing touches the snapshot.
                outcome = await asyncio.to_thread(self._decide_sync, changes, now)
            else:
                outcome = self._decide_sync(changes, now)
        self.decided.set()
        self.decided_anew.set()
        seconds = self._took_seconds = time.perf_counter() - started
        self._took.observe(value=seconds)
        self.meter.finished(seconds)
        self._waiting.set(to=outcome.waiting)
        self._latest.set(to=self._now().timestamp())
        return outcome

    def _decide_sync(self, changes: cache.Changes, now: float) -> Outcome:
        snapshot = self._cache.apply_changes(changes)
        done = core.run(snapshot, now, self._state.policy)
        decision = done.decision(verdicts=False)
        for rule, problem in invariants.broken(snapshot, decision, now):
            log.error("scheduler invariant violated; please report this: %s", problem)
            self._violations.add(rule)
        waiting = len(snapshot.waiting.keys() - done.state.placements.keys())
        counted = queue_metrics.decided(snapshot, decision, now)
        report = None
        if waiting <= INLINE_WORKLOADS or self._reasons.limiter.is_due():
            report = status_writer.report(snapshot, done, decision)
        apply(snapshot, [ReservationsPut(decision.reservations)])
        return Outcome(decision, waiting, report, counted)

    async def _write(self, decision: types.Decision) -> list[float]:
        """In an order that may be interrupted anywhere: starts first, then nominations, then the
        evictions that they need. Returns when to decide again about placements that must rest."""
        runs, pods = _by_kind(decision.placements)
        resting = await all_of((self._place(each) for each in runs), AT_ONCE)
        unbound = await self._binder.place(pods)
        preemptors = await self._nominate(decision)
        preemptors |= self._cache.reservations.existing()
        evictions = [
            each
            for each in decision.evictions
            if each.reservation
            or (each.preemptor in preemptors and (not each.move or each.workload in preemptors))
        ]
        victims, victim_pods = _by_kind(types.by_workload(evictions))
        await all_of((self._evict(each) for each in victims), AT_ONCE)
        for eviction in victim_pods:
            await self._binder.evict(eviction)
        await self._writer.patch_all(
            (owner, assignment.drain(owner, self._now()))
            for owner in self._cache.drained()
            if not self._writer.is_stale(owner.uid)
        )
        await self._writer.patch_all(
            (owner, self._cancellation(owner, preemptors))
            for owner in self._cache.evicted()
            if not self._writer.is_stale(owner.uid)
        )
        return [*unbound, *(moment for moment in resting if moment is not None)]

    def _cancellation(self, owner: Run, preemptors: set[str]) -> dict[str, Any] | None:
        drained = self._cache.is_drained(owner.uid)
        return assignment.cancel_eviction(owner, preemptors, drained=drained)

    async def _place(self, placement: types.Placement) -> float | None:
        """Starts or grows a Run. Returns the time until which it must rest before it grows."""
        owner = self._writer.current(placement.workload)
        if owner is None:
            return None
        nodes = ", ".join(sorted({pod.node for pod in placement.pods}))
        if not run_workloads.holds_assignment(owner):
            patch = assignment.start(owner, placement.pods, self._epoch)
            if await self._writer.patch(owner, patch):
                log.info("run %s/%s: assigned to %s", owner.namespace, owner.name, nodes)
            return None
        until = run_workloads.rests_until(owner, REST)
        if until > self._now().timestamp():
            return until
        if await self._writer.patch(owner, assignment.grow(owner, placement.pods, self._epoch)):
            log.info("run %s/%s: grows onto %s", owner.namespace, owner.name, nodes)
        return None

    async def _nominate(self, decision: types.Decision) -> set[str]:
        """Brings nominations up to date; returns the workloads whose nomination is written."""
        made = {each.workload: each for each in decision.nominations}
        placed = {each.workload for each in decision.placements}
        over = (uid for uid in self._cache.nominated() if uid not in made and uid not in placed)
        await all_of((self._clear_nomination(uid) for uid in over), AT_ONCE)
        written = await all_of((self._nominate_one(each) for each in made.values()), AT_ONCE)
        return set(itertools.compress(made, written))

    async def _clear_nomination(self, uid: str) -> None:
        if pod_workloads.is_pods(uid):
            await self._binder.clear_nomination(uid)
        elif (owner := self._writer.current(uid)) is not None:
            await self._writer.patch(owner, {"nomination": None})

    async def _nominate_one(self, nomination: types.Nomination) -> bool:
        """Returns whether it is written."""
        if pod_workloads.is_pods(nomination.workload):
            return await self._binder.nominate(nomination)
        owner = self._writer.current(nomination.workload)
        if owner is None:
            return False
        patch = assignment.nominate(owner, nomination.pods, self._epoch)
        return patch is None or await self._writer.patch(owner, patch)

    async def _evict(self, eviction: types.Eviction) -> None:
        owner = self._writer.current(eviction.workload)
        if owner is None or not run_workloads.holds_assignment(owner):
            return
        preemptor = self._cache.run(eviction.preemptor) if eviction.preemptor else None
        patch = assignment.evict(owner, eviction, self._now(), preemptor)
        if await self._writer.patch(owner, patch):
            log.info("run %s/%s: evicted: %s", owner.namespace, owner.name, eviction.reason)


def _by_kind(decided: Iterable[D]) -> tuple[list[D], list[D]]:
    """What concerns Runs, and what concerns external pods."""
    listed = list(decided)
    pods = [each for each in listed if pod_workloads.is_pods(each.workload)]
    return [each for each in listed if not pod_workloads.is_pods(each.workload)], pods
