"""Records usage: watches Runs, pods, nodes and price lists, and writes intervals to the ledger.

Runs inside a leader's term, beside the other controllers. Handlers only note what changed; a batch
of changes is one transaction, in a thread. The finalizer of a Run is removed when the transaction
with its last intervals is committed, and its status drops earlier attempts the same way. So a crash
in between only repeats work: writes are idempotent.

The past of nodes and external pods is not stored in the cluster. It is bounded by the last
observation before a downtime of the ledger and the first one after it; the time between is recorded
as a gap.

Without the database Runs continue, and their finalizers keep them until it is back.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from windlass.control.convert import run_workloads
from windlass.control.model import members
from windlass.control.runs import usage_intervals
from windlass.control.runtime import leader_election, work_report
from windlass.control.runtime.informers import InformerFactory
from windlass.kinds.types import core, meta
from windlass.kinds.types.run import Run
from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db.repository import BEGUN, OBSERVED, LedgerRepository
from windlass.ledger.ingest import extract
from windlass.ledger.model import MACHINE, Gap, Hold, Member
from windlass.store import errors, interface
from windlass.telemetry import prometheus

log = logging.getLogger(__name__)

NAME = "ledger"
SETTLE = 0.1
"""Seconds that changes are collected for one transaction."""
TICK = 20.0
"""Seconds after which it resynchronizes even if nothing changed."""
LATE = 600
"""Seconds after midnight before the day is summed up."""
KEEP_INTERVALS = 400 * 86400
KEEP_CHARGES = 800 * 86400
_MOST = 500
"""Runs in one transaction."""
_PAUSE = 5.0
T = TypeVar("T")
Key = tuple[str, str]


class UsageRecorder:
    """One per leader's term."""

    name = NAME

    def __init__(
        self,
        store: interface.Store,
        views: InformerFactory,
        repository: LedgerRepository,
        registry: prometheus.Registry,
        *,
        meter: work_report.WorkMeter | None = None,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._meter = meter or work_report.WorkMeter()
        self._views = views
        self._repository = repository
        self._now = now
        self._prices = views.prices
        self._runs: dict[Key, None] = {}
        """Runs to process, in order."""
        self._pods: dict[Key, None] = {}
        self._nodes_changed = True
        self._prices_changed = True
        self._due = asyncio.Event()
        self._known_nodes: dict[str, extract.Node] = {}
        self._written = registry.counter(
            "windlass_ledger_intervals_total", "Intervals that were written down."
        )
        self._behind = registry.gauge(
            "windlass_ledger_behind", "Objects whose changes are not written yet."
        )
        self._failing = registry.gauge(
            "windlass_ledger_failing", "1 while the ledger's database cannot be written."
        )

    # --- running

    async def run(self) -> None:
        """Runs until cancelled, or until another process leads."""
        self._connect()
        await self._retried(self._begin)
        while True:
            self._due.clear()
            self._meter.begin()
            started = time.perf_counter()
            await self._retried(self.step)
            self._meter.finished(time.perf_counter() - started)
            self._meter.end()
            if not (self._runs or self._pods):
                await self._wait()

    async def step(self) -> None:
        """Writes all that has changed."""
        if self._prices_changed:
            self._prices_changed = False
            await self._undone(self._list_prices, "_prices_changed")
        if self._nodes_changed:
            self._nodes_changed = False
            await self._undone(self._observe, "_nodes_changed")
        while self._runs:
            await self._write_runs()
        await self._write_pods()
        await self._thread(self._resync)
        self._show()

    async def _begin(self) -> None:
        """Accounts for the time in which the ledger was not running."""
        now = self._unix()
        observed = await self._thread(lambda: self._repository.get_mark(OBSERVED))
        if observed is None:
            await self._thread(lambda: self._repository.set_mark(BEGUN, now))
        elif now - observed > 2 * TICK:
            gap = Gap("observation", NAME, "", observed, now, "the ledger was not running")
            await self._thread(lambda: self._repository.note_gap(gap))
        await self._list_prices()
        await self._observe(observed)
        self._nodes_changed = self._prices_changed = False
        await self._find_vanished(observed if observed is not None else now)
        self._runs = {_key(each): None for each in self._views.runs}
        self._pods = {_key(each): None for each in self._views.pods if extract.is_external(each)}

    async def _retried(self, work: Callable[[], Awaitable[None]]) -> None:
        """Retries until it succeeds. What a batch could not write is processed again."""
        last_reason = ""
        while True:
            try:
                await work()
            except leader_election.LeadershipLostError:
                raise
            except (sa.exc.SQLAlchemyError, errors.ApiError) as problem:
                reason = " ".join(str(problem).split())[:300]
                if reason != last_reason:
                    log.warning("usage cannot be written, trying again: %s", reason)
                last_reason = reason
                self._failing.set(to=1)
                self._meter.failed()
                await asyncio.sleep(_PAUSE)
            else:
                self._failing.set(to=0)
                return

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(TICK):
                await self._due.wait()
        except TimeoutError:
            return
        await asyncio.sleep(SETTLE)

    async def _undone(self, work: Callable[[], Awaitable[None]], flag: str) -> None:
        try:
            await work()
        except BaseException:
            setattr(self, flag, True)
            raise

    async def _thread(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)

    def _unix(self) -> int:
        return int(self._now().timestamp())

    # --- Runs

    async def _write_runs(self) -> None:
        keys = list(self._runs)[:_MOST]
        for key in keys:  # a change from here on is processed again
            del self._runs[key]
        try:
            await self._write_these(keys)
        except BaseException:
            self._runs = dict.fromkeys([*keys, *self._runs])
            raise

    async def _write_these(self, keys: list[Key]) -> None:
        found = [each for key in keys if (each := self._views.runs.get(key[1], key[0]))]
        started = [each for each in found if extract.has_started(each)]
        done = await self._thread(lambda: self._repository.closed([each.uid for each in started]))
        usages = {each.uid: self._usage_of(each) for each in started if each.uid not in done}
        over = [each.uid for each in started if each.uid in usages and extract.is_over(each)]
        now = self._unix()
        new = await self._thread(lambda: self._put(usages, over, now))
        self._written.add(by=new)
        for each in found:
            await self._release_finalizer(each)

    def _usage_of(self, owner: Run) -> extract.RunUsage:
        name = run_workloads.queue_of(owner, run_workloads.homes(self._views.queues))
        pods: dict[Member, str] = {}
        for pod in self._views.pods_of(owner.uid):
            key = members.key_of(pod)
            if key is not None:
                pods[Member(key.attempt, key.role, key.index)] = pod.uid
        return extract.run_usage(owner, name, self._known_nodes.get, pods)

    def _put(self, usages: dict[str, extract.RunUsage], over: list[str], now: int) -> int:
        known: dict[str, list[Hold]] = {}
        for hold in self._repository.open_holds(
            [uid for uid, each in usages.items() if each.missing]
        ):
            known.setdefault(hold.party.uid, []).append(hold)
        holds: dict[str, list[Hold]] = {}
        for uid, each in usages.items():
            holds[uid], unknown = extract.filled_in(each, known.get(uid, ()))
            self._note_unknown(uid, each, unknown)
        new = self._repository.write(holds, now)
        self._repository.settle_parties(over)
        return new

    def _note_unknown(self, uid: str, usage: extract.RunUsage, unknown: list[Member]) -> None:
        lost = [(m, a, b) for m, a, b in usage.missing if m in unknown and b is not None]
        for member, started, ended in lost:
            subject = f"{uid}/{member.attempt}/{member.role}/{member.index}"
            reason = "the node of this replica is unknown"
            self._repository.note_gap(Gap("run", subject, "", started, ended or started, reason))

    async def _release_finalizer(self, owner: Run) -> None:
        """Removes what the Run need not keep once the ledger has it."""
        try:
            if owner.metadata.deletion_timestamp and extract.is_over(owner):
                await self._release(owner)
            elif not owner.finished:
                await self._forget(owner)
        except (errors.Conflict, errors.NotFound):
            return  # it has changed: another event follows

    async def _release(self, owner: Run) -> None:
        if usage_intervals.holds_ledger(owner):
            version = {"resourceVersion": owner.metadata.resource_version}
            left = {"finalizers": usage_intervals.without_ledger(owner)}
            await self._store.patch(
                Run, owner.name, owner.namespace, patch={"metadata": {**version, **left}}
            )

    async def _forget(self, owner: Run) -> None:
        left = extract.remaining(owner)
        if len(left) == len(owner.status.held or ()):
            return
        version = {"resourceVersion": owner.metadata.resource_version}
        await self._store.patch(
            Run, owner.name, owner.namespace, subresource="status",
            patch={"metadata": version, "status": {"held": msgspec.to_builtins(left) or None}},
        )  # fmt: skip

    # --- external pods

    async def _write_pods(self) -> None:
        keys, self._pods = list(self._pods), {}
        if not keys:
            return
        try:
            await self._write_these_pods(keys)
        except BaseException:
            self._pods = dict.fromkeys([*keys, *self._pods])
            raise

    async def _write_these_pods(self, keys: list[Key]) -> None:
        by_uid = {hold.party.uid: hold for hold in await self._thread(self._repository.open_holds)}
        now = self._unix()
        ends: dict[str, int] = {}
        fresh: list[core.Pod] = []
        for key in keys:
            pod = self._views.pods.get(key[1], key[0])
            if pod is None or not extract.is_external(pod):
                continue
            if extract.occupies_capacity(pod) and pod.uid not in by_uid:
                fresh.append(pod)
            elif pod.uid in by_uid and not extract.occupies_capacity(pod):
                ends[pod.uid] = extract.pod_ended(pod, now)
        ends |= dict.fromkeys(self._gone_pods(by_uid), now)
        await self._thread(lambda: self._put_pods(fresh, ends, now))

    def _gone_pods(self, by_uid: dict[str, Hold]) -> Iterable[str]:
        """External pods with open intervals that are gone."""
        there = {pod.uid for pod in self._views.pods}
        return [uid for uid, hold in by_uid.items() if not hold.party.run and uid not in there]

    def _put_pods(self, fresh: list[core.Pod], ends: dict[str, int], now: int) -> None:
        if ends:
            self._repository.close_open(ends, now)
        if not fresh:
            return
        taken = {(hold.device.node, hold.device.name) for hold in self._repository.open_holds()}
        began = self._repository.get_mark(BEGUN) or 0
        present = {
            each.device.node: each.started
            for each in self._repository.present()
            if each.device.name == MACHINE
        }
        for pod in fresh:
            at = self._known_nodes.get(pod.spec.node_name)
            if at is None:
                continue
            names = [name for node, name in taken if node == at.name]
            # The ledger has no hardware of the time before: usage would exceed it.
            earliest = max(began, present.get(at.name, now))
            holds = extract.pod_holds(pod, at, names, earliest, now)
            taken |= {(at.name, hold.device.name) for hold in holds}
            self._repository.write({pod.uid: holds}, now)

    async def _find_vanished(self, observed: int) -> None:
        """Pods that ended during a downtime count at least until they were last seen."""
        by_uid = {hold.party.uid: hold for hold in await self._thread(self._repository.open_holds)}
        now = self._unix()
        gone = dict.fromkeys(self._gone_pods(by_uid), observed)
        runs = {each.uid for each in self._views.runs}
        lost = [uid for uid, hold in by_uid.items() if hold.party.run and uid not in runs]
        gone |= dict.fromkeys(lost, observed)

        def work() -> None:
            self._repository.close_open(gone, now)
            for uid in gone:
                party = by_uid[uid].party
                reason = "deleted while the ledger was not running; counted until last seen"
                what = "run" if party.run else "pod"
                self._repository.note_gap(Gap(what, uid, party.team, observed, now, reason))

        if gone:
            await self._thread(work)

    # --- nodes and prices

    async def _observe(self, last_seen: int | None = None) -> None:
        self._known_nodes = {each.name: extract.node(each) for each in self._views.nodes}
        devices = [device for at in self._known_nodes.values() for device in at.devices.values()]
        now, joined_at = self._unix(), self._joined_at()

        def work() -> None:
            seen: dict[str, int] = {}
            if last_seen is not None:
                gone = {each.device.node for each in self._repository.present()} - set(
                    self._known_nodes
                )
                for name in gone:
                    seen[name] = last_seen
                    reason = "deleted while the ledger was not running"
                    self._repository.note_gap(Gap("node", name, "", last_seen, now, reason))
            self._repository.observe(
                devices, now, seen, joined_at(self._repository.get_mark(OBSERVED))
            )

        await self._thread(work)

    def _joined_at(self) -> Callable[[int | None], dict[str, int]]:
        """By node, the start of a new node: its creation, but not before the last observation, or,
        if there was none, before the first usage of any Run."""
        starts = [each.since for owner in self._views.runs for each in owner.status.held or ()]
        earliest = min((extract.unix(each) for each in starts), default=self._unix())
        listed = [(each.name, each.metadata.creation_timestamp) for each in self._views.nodes]
        made = {name: extract.unix(at) for name, at in listed if at}

        def joined_at(observed: int | None) -> dict[str, int]:
            first = earliest if observed is None else observed
            return {name: max(first, at) for name, at in made.items()}

        return joined_at

    async def _list_prices(self) -> None:
        listed, now = list(self._prices), self._unix()
        await self._thread(lambda: self._repository.list_prices(listed, now))

    def _resync(self) -> None:
        now = self._unix()
        self._repository.set_mark(OBSERVED, now)
        if rollups.settle(self._repository, now - LATE):
            rollups.prune(self._repository, now - KEEP_INTERVALS, now - KEEP_CHARGES)

    # --- handlers

    def _connect(self) -> None:
        self._views.runs.add_handler(lambda _, before, after: self._run_changed(after or before))
        self._views.pods.add_handler(lambda _, before, after: self._pod_changed(after or before))
        self._views.nodes.add_handler(lambda _, before, after: self._node_changed(before, after))
        self._prices.add_handler(lambda *_: self._price_changed())

    def _run_changed(self, changed: Run | None) -> None:
        if changed is not None and (extract.has_started(changed) or _is_ending(changed)):
            self._runs[_key(changed)] = None
            self._wake()

    def _pod_changed(self, changed: core.Pod | None) -> None:
        if changed is not None and extract.is_external(changed):
            self._pods[_key(changed)] = None
            self._wake()

    def _node_changed(self, before: core.Node | None, after: core.Node | None) -> None:
        converted = [extract.node(each) if each else None for each in (before, after)]
        if converted[0] != converted[1]:
            self._nodes_changed = True
            self._wake()

    def _price_changed(self) -> None:
        self._prices_changed = True
        self._wake()

    def _wake(self) -> None:
        self._meter.changed()
        self._due.set()
        self._show()

    def _show(self) -> None:
        self._behind.set(to=len(self._runs) + len(self._pods))


def _is_ending(changed: Run) -> bool:
    return bool(changed.metadata.deletion_timestamp) and usage_intervals.holds_ledger(changed)


def _key(obj: meta.Object) -> Key:
    return obj.namespace, obj.name
