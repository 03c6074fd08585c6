"""Answers questions about Runs: why one waits, which there are, what would become of a new one.

`server.platform.handlers.runs` asks. The answers come from the scheduler's own `ClusterState` and
from the functions that decide. Nothing is written.

The cost of an answer must not grow with the length of the queue. So it is computed on a reduced
snapshot: all nodes, all that runs, but of the waiting workloads only the heads of the queues and
those just before the Run in question. Those left out did not start, and delay only those behind
them. Counterfactuals that would help all of them ("if more were free") are reported only when no
workload was left out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import heapq
import itertools
from collections.abc import Callable, Iterator
from typing import TypeVar

from windlass.control.convert import external_pods, node_facts, pod_workloads, run_workloads
from windlass.control.explain import arrays, shares
from windlass.control.runtime.informers import InformerFactory
from windlass.control.scheduler.cache import cluster_state, pod_cache
from windlass.core.cycle import cycle
from windlass.core.explain import counterfactuals, explain
from windlass.core.model import types
from windlass.core.queueing import queue_order
from windlass.core.snapshot.snapshot import Snapshot
from windlass.kinds import reasons
from windlass.kinds.types import core
from windlass.kinds.types.run import Run
from windlass.kinds.values import times
from windlass.store import interface
from windlass.store.informer import Change

T = TypeVar("T")

HEADS = 4
"""Of each queue, in every reduced snapshot: their reservations bind the others."""
AHEAD = 12
"""Just before the Run in question."""
MOST_QUEUES = 32
"""Other queues whose heads are included."""
INLINE_NODES, INLINE_RUNNING = 100, 500
"""Above either, an answer is computed in a thread."""
_CATCH_UP = 256
"""Changes after which the snapshot is brought up to date without a question, so that no question
has to wait for thousands of them."""
_FOR_ALL = ("quota", "ends", "nodes", "moves")
"""Kinds of counterfactuals that would help the workloads before it just as well."""
_PLANNED = "planned"
_STATES = ("active", "waiting", "finished")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a Run waits."""

    queue: str
    position: int
    of: int


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """The explanation of a Run that waits."""

    place: Place
    explanation: explain.Explanation
    expected_start: float | None
    """As the scheduler has written it, if it has."""
    nodes: tuple[str, ...] = ()
    """Where it would start now."""
    of_queue: shares.ShareOfQueue | None = None
    """The usage of its queue against its share, where queues are compared."""
    of_user: shares.ShareOfQueue | None = None
    """The same of its user, where users take turns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One Run of a page, with what is known beyond the object."""

    run: Run
    queue: str
    place: Place | None = None
    verdict: types.Verdict | None = None
    start: float | None = None
    end: float | None = None
    """When it should end, if that is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Runs that hold an assignment, the first that wait, the latest that ended."""

    rows: list[Row]
    active: int
    waiting: int
    finished: int


class Explainer:
    """One per server. The informers start with the first question."""

    def __init__(
        self,
        store: interface.Store,
        *,
        policy: types.Policy = cluster_state.POLICY,
        levels: node_facts.Levels = node_facts.LEVELS,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._now = now
        self._groups: dict[str, dict[str, dict[str, Run]]] = {}
        """Namespace -> active, waiting or finished -> uid -> Run."""
        self._unfinished: dict[str, dict[str, Run]] = {}
        """User -> uid -> Run that has not ended."""
        self._pending = 0
        """Changes since the snapshot was brought up to date."""
        self._snapshot: Snapshot | None = None
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[InformerFactory] | None = None
        self._catching_up: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._informers = InformerFactory(store)
        self._state = cluster_state.ClusterState(
            store, self._informers, self._count,
            policy=policy, levels=levels, follow_accounts=True,
        )  # fmt: skip
        self._cache = self._state.cache
        self._informers.runs.add_handler(self._group)

    async def ready(self) -> None:
        """Starts the informers the first time; returns when all are in sync."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._informers.__aenter__())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        for task in (self._starting, self._catching_up):
            if task is not None:
                task.cancel()
        await self._informers.stop()

    # --- questions

    def run(self, uid: str) -> Run | None:
        return self._cache.run(uid)

    def named(self, namespace: str, name: str) -> Run | None:
        """A Run by its name."""
        return self._informers.runs.get(name, namespace)

    def namespaces(self) -> list[str]:
        """Namespaces that have Runs."""
        return list(self._groups)

    async def seen(self, owner: Run, seconds: float = 1.0) -> bool:
        """Waits until the informer has shown this version of the Run, or a later one; False: not in
        time."""
        wanted = int(owner.metadata.resource_version or 0)

        def shown() -> bool:
            known = self._cache.run(owner.uid)
            return known is not None and int(known.metadata.resource_version) >= wanted

        return await self.shows(shown, seconds)

    async def shows(self, wanted: Callable[[], bool], seconds: float) -> bool:
        """Waits until a condition on what the informers show holds; False: not in time."""
        try:
            async with asyncio.timeout(seconds):
                while not wanted():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def unfinished_of(self, user: str) -> list[tuple[str, Run]]:
        """Runs of a user that have not ended, as the informer shows them, each with its queue."""
        homes = run_workloads.homes(self._informers.queues)
        mine = self._unfinished.get(user, {}).values()
        return [(run_workloads.queue_of(run, homes), run) for run in mine]

    async def waiting(self, owner: Run) -> Waiting | None:
        """Why it waits; None if it does not."""

        def work(snapshot: Snapshot, now: float) -> Waiting | None:
            if owner.uid not in snapshot.waiting:
                return None
            return self._explain(snapshot, snapshot.waiting[owner.uid], now, _expected_start(owner))

        return await self._ask(work)

    async def pod_waiting(self, pod: core.Pod, seconds: float = 1.0) -> Waiting | None:
        """Why an external pod waits, or its gang; None if it does not."""
        known, wanted = self._cache.pod_cache, pod_cache.version(pod)

        def shown() -> bool:
            return pod.uid in known.pods and pod_cache.version(known.pods[pod.uid]) >= wanted

        def work(snapshot: Snapshot, now: float) -> Waiting | None:
            waits = snapshot.waiting.get(known.workload_key(pod.uid))
            return None if waits is None else self._explain(snapshot, waits, now, None)

        await self.ready()
        await self.shows(shown, seconds)
        return await self._ask(work)

    async def external_pods(self, namespace: str) -> list[tuple[core.Pod, str]]:
        """Those of one namespace, or of all (""), each with its queue."""
        await self.ready()
        homes = run_workloads.homes(self._informers.queues)
        return [
            (pod, pod_workloads.queue_of(pod, homes))
            for pod in self._cache.pod_cache.pods.values()
            if external_pods.is_ours(pod) and (not namespace or pod.namespace == namespace)
        ]

    async def plan(self, owner: Run) -> Waiting:
        """What would become of a Run that does not exist yet."""
        await self.ready()
        async with self._turn:
            snapshot = await self._update()
            now = self._now().timestamp()
            workload = self._cache.workload_of(owner, now)
            planned = dataclasses.replace(workload, key=_PLANNED, submitted=now)

            def work(snapshot: Snapshot, now: float) -> Waiting:
                world = counterfactuals.with_own_line(snapshot)
                world.try_waiting(planned)
                return self._explain(world, planned, now, None)

            return await self._compute(work, snapshot, now)

    async def ends(self, owner: Run) -> tuple[float | None, explain.Basis]:
        """When a Run that holds an assignment should end, if that is known, and how."""

        def work(snapshot: Snapshot, now: float) -> tuple[float | None, explain.Basis]:
            running = snapshot.running.get(owner.uid)
            return explain.end_of(snapshot, running, now) if running else (None, "")

        return await self._ask(work)

    async def page(
        self,
        namespace: str,
        *,
        waiting: int,
        finished: int,
        wanted: Callable[[Run], bool] | None = None,
    ) -> Page:
        """Of one namespace, or of all ("")."""
        groups = self._of(namespace, wanted)

        def work(snapshot: Snapshot, now: float) -> Page:
            rows = [
                Row(run, self._queue(snapshot, run), end=self._end(snapshot, run, now))
                for run in sorted(groups["active"], key=_since)
            ]
            rows += self._first_waiting(snapshot, groups["waiting"], waiting, now)
            latest = heapq.nlargest(finished, groups["finished"], key=_since)
            rows += [Row(run, self._queue(snapshot, run)) for run in latest]
            return Page(
                rows, len(groups["active"]), len(groups["waiting"]), len(groups["finished"])
            )

        return await self._ask(work)

    async def read(self, function: Callable[[Snapshot, float, types.Policy], T]) -> T:
        """What a function returns for the snapshot, which it must not change."""
        return await self._ask(lambda snapshot, now: function(snapshot, now, self._state.policy))

    # --- how they are answered

    def _explain(
        self, snapshot: Snapshot, workload: types.Workload, now: float, expected: float | None
    ) -> Waiting:
        ordering = snapshot.ordering(now)
        line = [
            each
            for each in snapshot.pending_in_order(workload.queue, ordering)
            if each.key == workload.key or not _is_outside(each)
        ]
        at = next(number for number, each in enumerate(line) if each.key == workload.key)
        chosen = {workload.key, *(each.key for each in line[max(0, at - AHEAD) : at])}
        complete = _add_heads(snapshot, chosen, workload.queue, ordering) and at <= AHEAD + HEADS
        world = snapshot.only_waiting(chosen)
        found = explain.explain(world, workload.key, now, self._state.policy)
        if not complete:
            helpful = tuple(each for each in found.fits_if if each.action not in _FOR_ALL)
            start = found.start
            if start.sure == "predicted":
                start = explain.Start(None, "unknown", f"{at} workloads are before it in the queue")
            found = dataclasses.replace(found, fits_if=helpful, start=start)
        nodes: tuple[str, ...] = ()
        if found.verdict is None:
            placed = cycle.run(world, now, self._state.policy).state.placements[workload.key]
            nodes = tuple(sorted({pod.node for pod in placed.pods}))
        return Waiting(
            Place(workload.queue, at + 1, len(line)),
            found,
            expected,
            nodes,
            shares.of_queue(snapshot, workload.queue),
            shares.of_user(snapshot, workload.queue, workload.user),
        )

    def _first_waiting(
        self, snapshot: Snapshot, waiting: list[Run], most: int, now: float
    ) -> Iterator[Row]:
        """In the order of their queues, each with its verdict."""
        by_uid, ordering = {run.uid: run for run in waiting}, snapshot.ordering(now)
        queues = {snapshot.waiting[uid].queue for uid in by_uid if uid in snapshot.waiting}
        chosen: list[tuple[int, int, types.Workload]] = []
        for name in sorted(queues):
            line = [
                each for each in snapshot.pending_in_order(name, ordering) if not _is_outside(each)
            ]
            mine = [(at, len(line), each) for at, each in enumerate(line, 1) if each.key in by_uid]
            chosen += mine[:most]
        chosen = sorted(chosen, key=lambda each: (each[0], each[2].queue))[:most]
        keys = {workload.key for _, _, workload in chosen}
        shown = set(keys)
        for name in sorted(queues):
            _add_heads(snapshot, keys, name, ordering)
        world = snapshot.only_waiting(keys)
        done = cycle.run(world, now, self._state.policy)
        decision = done.decision()
        verdicts = {verdict.workload: verdict for verdict in decision.verdicts}
        starts = {each.workload: each.start for each in decision.reservations}
        for position, of, workload in chosen:
            run = by_uid[workload.key]
            start = _expected_start(run) or starts.get(workload.key)
            place = Place(workload.queue, position, of)
            yield Row(run, workload.queue, place, verdicts.get(workload.key), start)
        # Runs that do not wait in the snapshot yet: just created, or just requeued. And those that
        # take no place in a queue: arrays, whose indices do, and runs that wait for others.
        waiting_now = snapshot.waiting
        fresh = [
            uid
            for uid in by_uid
            if uid not in shown and (uid not in waiting_now or _is_outside(waiting_now[uid]))
        ]
        for uid in fresh[: max(0, most - len(chosen))]:
            yield Row(by_uid[uid], self._queue(snapshot, by_uid[uid]))

    def _end(self, snapshot: Snapshot, run: Run, now: float) -> float | None:
        running = snapshot.running.get(run.uid)
        return explain.end_of(snapshot, running, now)[0] if running else None

    def _queue(self, snapshot: Snapshot, run: Run) -> str:
        running = snapshot.running.get(run.uid)
        workload = running.workload if running else snapshot.waiting.get(run.uid)
        return workload.queue if workload else self._cache.queue_of(run)

    # --- the snapshot

    def _count(self, *_: object) -> None:
        self._news.set()
        self._pending += 1
        is_idle = self._catching_up is None or self._catching_up.done()
        if self._pending > _CATCH_UP and is_idle:
            self._catching_up = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        async with self._turn:
            await self._update()

    async def _update(self) -> Snapshot:
        """Brings the snapshot up to date."""
        snapshot = await self._apply_changes()
        learned, _ = await self._state.learn_gang_sizes()
        return await self._apply_changes() if learned else snapshot

    async def _apply_changes(self) -> Snapshot:
        self._pending = 0
        changes = self._cache.drain_changes(self._now().timestamp())
        if self._snapshot is None or len(changes.events) > _CATCH_UP:
            self._snapshot = await asyncio.to_thread(self._cache.apply_changes, changes)
        else:
            self._snapshot = self._cache.apply_changes(changes)
        return self._snapshot

    async def _ask(self, work: Callable[[Snapshot, float], T]) -> T:
        """One question at a time. Meanwhile event handlers only record changes."""
        await self.ready()
        async with self._turn:
            snapshot = await self._update()
            return await self._compute(work, snapshot, self._now().timestamp())

    async def _compute(
        self, work: Callable[[Snapshot, float], T], snapshot: Snapshot, now: float
    ) -> T:
        nodes, running = len(snapshot.cluster.nodes), len(snapshot.running)
        if nodes > INLINE_NODES or running > INLINE_RUNNING:
            return await asyncio.to_thread(work, snapshot, now)
        return work(snapshot, now)

    def _group(self, _: Change, before: Run | None, after: Run | None) -> None:
        for run, add in ((before, False), (after, True)):
            if run is None:
                continue
            group = self._groups.setdefault(run.namespace, {name: {} for name in _STATES})
            for members in group.values():
                members.pop(run.uid, None)
            mine = self._unfinished.setdefault(run.spec.user or "", {})
            mine.pop(run.uid, None)
            if add:
                group[_state_of(run)][run.uid] = run
            if add and not run.finished:
                mine[run.uid] = run
            if not mine:
                del self._unfinished[run.spec.user or ""]

    def _of(self, namespace: str, wanted: Callable[[Run], bool] | None) -> dict[str, list[Run]]:
        all_groups = list(self._groups.values())
        groups = [self._groups.get(namespace, {})] if namespace else all_groups
        return {
            name: [
                run
                for group in groups
                for run in group.get(name, {}).values()
                if (wanted is None or wanted(run)) and not arrays.is_part(run, self.run)
            ]
            for name in _STATES
        }


def _is_outside(workload: types.Workload) -> bool:
    """Whether it takes no place in the queue: a run that it waits for has not ended."""
    held = workload.hold_reason
    return held is not None and held[0] is reasons.Reason.WAITING_FOR_DEPENDENCY


def _state_of(run: Run) -> str:
    if run.finished:
        return "finished"
    return "waiting" if run.status.phase == "Queued" else "active"


def _expected_start(run: Run) -> float | None:
    place = run.status.queue
    if place is None or place.expected_start is None:
        return None
    return times.parse(place.expected_start).timestamp()


def _add_heads(
    snapshot: Snapshot, to: set[str], own: str, ordering: queue_order.OrderingContext
) -> bool:
    """Adds the heads of all queues. Returns whether nothing else waits in the other queues."""
    others = [name for name in snapshot.nonempty_queues() if name != own]
    complete = len(others) <= MOST_QUEUES
    for name in (own, *others[:MOST_QUEUES]):
        first = list(itertools.islice(snapshot.pending_in_order(name, ordering), HEADS + 1))
        to.update(workload.key for workload in first[:HEADS])
        complete = complete and (name == own or len(first) <= HEADS)
    return complete


def _since(run: Run) -> str:
    history = run.status.history or ()
    return history[-1].at if history else run.metadata.creation_timestamp or ""
