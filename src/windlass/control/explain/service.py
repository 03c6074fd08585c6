"""Answers questions about runs: why one waits, which are there, what would become of a new one.

`server.platform` asks. It keeps its own picture of the cluster, like the scheduler's, and answers
from it with the very functions that decide. It never writes.

What an answer costs must not grow with the line. So it is worked out in a small world: all nodes,
all that runs, but of those who wait only the heads of the queues and the ones just before the run
in question. Those who are left out did not start and stand in nobody's way but their own; only
what would change for all of them ("if more were free") is not told unless everybody is in it.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from windlass.control import engine, nodefacts, picture, scheduler, shares, snapshots
from windlass.core import changes as core_changes
from windlass.core import cycle, explain, facts, state
from windlass.kinds import clusterkinds, kubernetes, queue, reservation, times
from windlass.kinds.run import Run
from windlass.store import client
from windlass.store.reflector import Change, Reflector

T = TypeVar("T")

HEADS = 4
"""Of each queue that are in every small world: promises to them bind the others."""
AHEAD = 12
"""Just before the run in question."""
MOST_QUEUES = 32
"""Other queues whose heads are looked at."""
INLINE_NODES, INLINE_RUNNING = 100, 500
"""Above either, an answer is worked out in a thread."""
_CATCH_UP = 256
"""Changes after which the picture is brought up to date even if nobody asks: so nobody who asks
has to wait for thousands."""
_FOR_ALL = ("quota", "ends", "nodes", "moves")
"""Changes that would help those who stand before it just as well."""
_PLANNED = "planned"
_STATES = ("active", "waiting", "finished")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a run waits."""

    queue: str
    position: int
    of: int


@dataclasses.dataclass(frozen=True, slots=True)
class Waiting:
    """Everything about a run that waits."""

    place: Place
    explanation: explain.Explanation
    promised: float | None
    """What the scheduler has promised it, if it has."""
    nodes: tuple[str, ...] = ()
    """Where it would start now."""
    of_queue: shares.Standing | None = None
    """What its queue holds against what it is entitled to, where queues are compared."""
    of_user: shares.Standing | None = None
    """The same of its user, where users take turns."""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One run of a page, with what is known of it beyond the object."""

    run: Run
    queue: str
    place: Place | None = None
    verdict: facts.Verdict | None = None
    start: float | None = None
    end: float | None = None
    """When it should end, if that is known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Those that hold room, the first that wait, the last that ended."""

    rows: list[Row]
    active: int
    waiting: int
    finished: int


class Explainer:
    """One per server. `start` it before the first question."""

    def __init__(
        self,
        store: client.Store,
        *,
        policy: facts.Policy = scheduler.POLICY,
        levels: nodefacts.Levels = nodefacts.LEVELS,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._policy, self._levels, self._now = policy, levels, now
        self._picture = picture.Picture(levels, follow_accounts=True)
        self._nodes = Reflector(store, kubernetes.Node)
        self._pods = Reflector(store, kubernetes.Pod)
        self._runs = Reflector(store, Run)
        self._queues = Reflector(store, queue.Queue)
        self._reservations = Reflector(store, reservation.Reservation)
        self._facts = Reflector(
            store,
            kubernetes.ConfigMap,
            engine.NAMESPACE,
            field_selector=f"metadata.name={engine.NAME}",
        )
        self._runtimes = Reflector(store, clusterkinds.RuntimeClass)
        """Begun only where the engine has such a kind."""
        self._groups: dict[str, dict[str, dict[str, Run]]] = {}
        """Namespace -> active, waiting or finished -> uid -> Run."""
        self._unfinished: dict[str, dict[str, Run]] = {}
        """User -> uid -> Run that has not ended."""
        self._pending = 0
        self._snapshot: state.Snapshot | None = None
        self._homes: dict[str, str] = {}
        self._turn = asyncio.Lock()
        self._starting: asyncio.Task[None] | None = None
        self._late: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._nodes.add_handler(self._picture.see_node)
        self._pods.add_handler(self._picture.see_pod)
        self._runs.add_handler(self._picture.see_run)
        self._runs.add_handler(self._group)
        self._queues.add_handler(self._picture.see_queue)
        self._reservations.add_handler(self._picture.reservations.see)
        self._facts.add_handler(self._picture.see_engine)
        self._runtimes.add_handler(self._picture.see_runtime)
        for reflector in (*self._reflectors, self._runtimes):
            reflector.add_handler(self._count)

    async def ready(self) -> None:
        """Begins to look at the store the first time; returns when everything was seen once."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        for task in (self._starting, self._late):
            if task is not None:
                task.cancel()
        for reflector in (*self._reflectors, self._runtimes):
            await reflector.stop()

    # --- questions

    def run(self, uid: str) -> Run | None:
        return self._picture.run(uid)

    def namespaces(self) -> list[str]:
        """Those that have runs."""
        return list(self._groups)

    async def seen(self, owner: Run, seconds: float = 1.0) -> bool:
        """Returns when the picture shows the run as it is here, or later; False: not in time."""
        wanted = int(owner.metadata.resource_version or 0)

        def shown() -> bool:
            known = self._picture.run(owner.uid)
            return known is not None and int(known.metadata.resource_version) >= wanted

        return await self.shows(shown, seconds)

    async def shows(self, wanted: Callable[[], bool], seconds: float) -> bool:
        """Returns when something is so, by what was seen; False: not in time."""
        try:
            async with asyncio.timeout(seconds):
                while not wanted():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def unfinished_of(self, user: str) -> list[tuple[str, Run]]:
        """Runs of a user that have not ended, as far as they were seen, each with its queue."""
        homes = snapshots.homes(self._queues)
        mine = self._unfinished.get(user, {}).values()
        return [(snapshots.queue_of(run, homes), run) for run in mine]

    async def waiting(self, owner: Run) -> Waiting | None:
        """Why it waits; None if it does not."""

        def work(snapshot: state.Snapshot, now: float) -> Waiting | None:
            if owner.uid not in snapshot.waiting:
                return None
            return self._explain(snapshot, snapshot.waiting[owner.uid], now, _promised(owner))

        return await self._ask(work)

    async def plan(self, owner: Run) -> Waiting:
        """What would become of a run that does not exist yet."""
        await self.ready()
        queue_name = snapshots.queue_of(owner, snapshots.homes(self._queues))
        unit = snapshots.read_unit(
            owner, queue_name, self._levels, self._picture.engine,
            runtime=self._picture.runtimes.of(owner),
        )  # fmt: skip

        def work(snapshot: state.Snapshot, now: float) -> Waiting:
            asked = dataclasses.replace(unit, key=_PLANNED, submitted=now)
            world = core_changes.with_own_line(snapshot)
            world.try_waiting(asked)
            return self._explain(world, asked, now, None)

        return await self._ask(work)

    async def ends(self, owner: Run) -> float | None:
        """When a run that holds room should end, if that is known."""

        def work(snapshot: state.Snapshot, now: float) -> float | None:
            running = snapshot.running.get(owner.uid)
            return _end_of(snapshot, running, now) if running else None

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

        def work(snapshot: state.Snapshot, now: float) -> Page:
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

    async def look(self, read: Callable[[state.Snapshot, float, facts.Policy], T]) -> T:
        """What a reader makes of the snapshot; it must leave it as it is."""
        return await self._ask(lambda snapshot, now: read(snapshot, now, self._policy))

    # --- how they are answered

    def _explain(
        self, snapshot: state.Snapshot, unit: facts.Unit, now: float, promised: float | None
    ) -> Waiting:
        line = self._line(snapshot, unit.queue, now)
        at = next(number for number, each in enumerate(line) if each.key == unit.key)
        chosen = {unit.key, *(each.key for each in line[max(0, at - AHEAD) : at])}
        everybody = self._add_heads(snapshot, chosen, unit.queue, now) and at <= AHEAD + HEADS
        world = _only(snapshot, chosen)
        found = explain.explain(world, unit.key, now, self._policy)
        if not everybody:
            helpful = tuple(each for each in found.fits_if if each.kind not in _FOR_ALL)
            start = found.start
            if start.sure == "predicted":
                start = explain.Start(None, "unknown", f"{at} runs stand before it")
            found = dataclasses.replace(found, fits_if=helpful, start=start)
        nodes: tuple[str, ...] = ()
        if found.verdict is None:
            placed = cycle.run(world, now, self._policy).placements[unit.key]
            nodes = tuple(sorted({seat.node for seat in placed.seats}))
        return Waiting(
            Place(unit.queue, at + 1, len(line)), found, promised, nodes,
            shares.of_queue(snapshot, unit.queue), shares.of_user(snapshot, unit.queue, unit.user),
        )  # fmt: skip

    def _first_waiting(
        self, snapshot: state.Snapshot, waiting: list[Run], most: int, now: float
    ) -> Iterator[Row]:
        """In the order of their queues, each with its verdict."""
        by_uid = {run.uid: run for run in waiting}
        queues = {snapshot.waiting[uid].queue for uid in by_uid if uid in snapshot.waiting}
        chosen: list[tuple[int, int, facts.Unit]] = []
        for name in sorted(queues):
            line = self._line(snapshot, name, now)
            mine = [(at, len(line), each) for at, each in enumerate(line, 1) if each.key in by_uid]
            chosen += mine[:most]
        chosen = sorted(chosen, key=lambda each: (each[0], each[2].queue))[:most]
        keys = {unit.key for _, _, unit in chosen}
        shown = set(keys)
        for name in sorted(queues):
            self._add_heads(snapshot, keys, name, now)
        world = _only(snapshot, keys)
        done = cycle.run(world, now, self._policy)
        decision = done.decision()
        verdicts = {verdict.unit: verdict for verdict in decision.verdicts}
        starts = {each.unit: each.start for each in decision.reservations}
        for position, of, unit in chosen:
            run = by_uid[unit.key]
            start = _promised(run) or starts.get(unit.key)
            place = Place(unit.queue, position, of)
            yield Row(run, unit.queue, place, verdicts.get(unit.key), start)
        # Those that the picture does not count as waiting yet: just created, or just put back.
        fresh = [uid for uid in by_uid if uid not in shown and uid not in snapshot.waiting]
        for uid in fresh[: max(0, most - len(chosen))]:
            yield Row(by_uid[uid], self._queue(snapshot, by_uid[uid]))

    def _line(self, snapshot: state.Snapshot, name: str, now: float) -> list[facts.Unit]:
        return list(snapshot.line(name, cycle.Cycle(snapshot, now, self._policy).standing))

    def _add_heads(self, snapshot: state.Snapshot, to: set[str], own: str, now: float) -> bool:
        """Adds the heads of the queues; whether that is everybody who waits in the others."""
        others = sorted(name for name in snapshot._lines if name != own)
        everybody = len(others) <= MOST_QUEUES
        standing = cycle.Cycle(snapshot, now, self._policy).standing
        for name in (own, *others[:MOST_QUEUES]):
            first = list(itertools.islice(snapshot.line(name, standing), HEADS + 1))
            to.update(unit.key for unit in first[:HEADS])
            everybody = everybody and (name == own or len(first) <= HEADS)
        return everybody

    def _end(self, snapshot: state.Snapshot, run: Run, now: float) -> float | None:
        running = snapshot.running.get(run.uid)
        return _end_of(snapshot, running, now) if running else None

    def _queue(self, snapshot: state.Snapshot, run: Run) -> str:
        running = snapshot.running.get(run.uid)
        unit = running.unit if running else snapshot.waiting.get(run.uid)
        return unit.queue if unit else snapshots.queue_of(run, self._homes)

    # --- the picture

    @property
    def _reflectors(self) -> tuple[Reflector[Any], ...]:
        kept = self._nodes, self._pods, self._runs, self._queues, self._facts
        return *kept, self._reservations

    async def _start(self) -> None:
        for reflector in self._reflectors:
            reflector.start()
        for reflector in self._reflectors:
            await reflector.synced()
        if self._picture.engine is not None and self._picture.engine.images:
            self._picture.runtimes.watched = True
            self._runtimes.start()
            await self._runtimes.synced()

    def _count(self, *_: object) -> None:
        self._news.set()
        self._pending += 1
        if self._pending > _CATCH_UP and (self._late is None or self._late.done()):
            self._late = asyncio.create_task(self._catch_up())

    async def _catch_up(self) -> None:
        async with self._turn:
            await self._bring_up()

    async def _bring_up(self) -> state.Snapshot:
        self._pending = 0
        self._homes = snapshots.homes(self._queues)
        changes = self._picture.collect(self._now().timestamp())
        if self._snapshot is None or len(changes.events) > _CATCH_UP:
            self._snapshot = await asyncio.to_thread(self._picture.bring_up, changes)
        else:
            self._snapshot = self._picture.bring_up(changes)
        return self._snapshot

    async def _ask(self, work: Callable[[state.Snapshot, float], T]) -> T:
        """One question at a time. Meanwhile handlers only note what changed."""
        await self.ready()
        async with self._turn:
            snapshot = await self._bring_up()
            now = self._now().timestamp()
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
        spaces = [self._groups.get(namespace, {})] if namespace else list(self._groups.values())
        return {
            name: [
                run
                for group in spaces
                for run in group.get(name, {}).values()
                if wanted is None or wanted(run)
            ]
            for name in _STATES
        }


def _state_of(run: Run) -> str:
    if run.finished:
        return "finished"
    return "waiting" if run.status.phase == "Queued" else "active"


def _promised(run: Run) -> float | None:
    place = run.status.queue
    if place is None or place.expected_start is None:
        return None
    return times.parse(place.expected_start).timestamp()


def _end_of(snapshot: state.Snapshot, running: facts.Running, now: float) -> float | None:
    if running.expected_end is not None:
        return running.expected_end
    expected = snapshot.history.at(now).expected(running.unit)
    return None if expected is None else max(now, running.started + expected)


def _only(snapshot: state.Snapshot, keys: Iterable[str]) -> state.Snapshot:
    """The same world, in which nobody else waits."""
    chosen = set(keys)
    twin = copy.copy(snapshot)
    twin.waiting = {key: unit for key in chosen if (unit := snapshot.waiting.get(key))}
    names = {unit.queue for unit in twin.waiting.values()}
    twin._lines = {
        name: [entry for entry in snapshot._lines[name] if entry[1].key in chosen] for name in names
    }
    twin.user_quotas = snapshot.user_quotas.settled(snapshot)
    return twin


def _since(run: Run) -> str:
    history = run.status.history or ()
    return history[-1].at if history else run.metadata.creation_timestamp or ""
