"""Keeps the ledger: watches Runs, pods, nodes and price lists, and writes down what they held.

Runs inside a leader's term, beside the other controllers. Handlers only note what changed; a batch
of changes is one transaction, in a thread. A Run is let go (its finalizer) when the transaction
with its last intervals has been committed, and forgets earlier attempts the same way, so whatever
dies in between is simply done again: what is written twice is written once.

What nobody keeps for us (nodes, other people's pods) is bounded by what was last seen before the
ledger was away and what is there when it comes back; the time between is noted as a gap.

A database that cannot be reached stops nobody: Runs go on, and are kept until it is back.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import msgspec
import sqlalchemy as sa

from windlass.control import holding, leader, members, metrics, snapshots
from windlass.control.views import Views
from windlass.kinds import kubernetes, meta, times
from windlass.kinds.run import Run
from windlass.ledger import accounting, reading
from windlass.ledger.book import BEGUN, OBSERVED, Book
from windlass.ledger.facts import Gap, Hold, Member
from windlass.store import client, errors

log = logging.getLogger(__name__)

NAME = "ledger"
SETTLE = 0.1
"""Seconds that changes are collected for one transaction."""
TICK = 20.0
"""Seconds after which it looks around even if nothing changed."""
LATE = 600
"""Seconds after midnight before the day is added up."""
KEEP_INTERVALS = 400 * 86400
KEEP_CHARGES = 800 * 86400
_MOST = 500
"""Runs in one transaction."""
_PAUSE = 5.0
T = TypeVar("T")
Key = tuple[str, str]


class Keeper:
    """One per leader's term."""

    name = NAME

    def __init__(
        self,
        store: client.Store,
        views: Views,
        book: Book,
        registry: metrics.Registry,
        *,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._views = views
        self._book = book
        self._now = now
        self._prices = views.prices
        self._runs: dict[Key, None] = {}
        """Runs to look at, in order."""
        self._pods: dict[Key, None] = {}
        self._nodes_changed = True
        self._prices_changed = True
        self._due = asyncio.Event()
        self._known_nodes: dict[str, reading.Node] = {}
        self._written = registry.counter(
            "windlass_ledger_intervals_total", "Intervals that were written down."
        )
        self._behind = registry.gauge(
            "windlass_ledger_behind", "Objects whose changes are not written down yet."
        )
        self._failing = registry.gauge(
            "windlass_ledger_failing", "1 while the ledger's database cannot be written."
        )

    # --- running

    async def run(self) -> None:
        """Until cancelled, or until another leads."""
        self._connect()
        await self._retried(self._begin)
        while True:
            self._due.clear()
            await self._retried(self.step)
            if not (self._runs or self._pods):
                await self._wait()

    async def step(self) -> None:
        """Writes down all that has changed."""
        if self._prices_changed:
            self._prices_changed = False
            await self._undone(self._list_prices, "_prices_changed")
        if self._nodes_changed:
            self._nodes_changed = False
            await self._undone(self._observe, "_nodes_changed")
        while self._runs:
            await self._write_runs()
        await self._write_pods()
        await self._thread(self._look_around)
        self._show()

    async def _begin(self) -> None:
        """What became of things while nobody looked."""
        now = self._unix()
        observed = await self._thread(lambda: self._book.get_mark(OBSERVED))
        if observed is None:
            await self._thread(lambda: self._book.set_mark(BEGUN, now))
        elif now - observed > 2 * TICK:
            gap = Gap("observation", NAME, "", observed, now, "the ledger was not running")
            await self._thread(lambda: self._book.note_gap(gap))
        await self._list_prices()
        await self._observe(observed)
        self._nodes_changed = self._prices_changed = False
        await self._find_vanished(observed if observed is not None else now)
        self._runs = {_key(each): None for each in self._views.runs}
        self._pods = {_key(each): None for each in self._views.pods if reading.is_foreign(each)}

    async def _retried(self, work: Callable[[], Awaitable[None]]) -> None:
        """Until it has worked. What a batch could not write it looks at again."""
        told = ""
        while True:
            try:
                await work()
            except leader.LeadershipLostError:
                raise
            except (sa.exc.SQLAlchemyError, errors.ApiError) as problem:
                words = " ".join(str(problem).split())[:300]
                if words != told:
                    log.warning("what is held cannot be written down now, tried again: %s", words)
                told = words
                self._failing.set(to=1)
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
        for key in keys:  # whatever changes from here on is looked at again
            del self._runs[key]
        try:
            await self._write_these(keys)
        except BaseException:
            self._runs = dict.fromkeys([*keys, *self._runs])
            raise

    async def _write_these(self, keys: list[Key]) -> None:
        found = [each for key in keys if (each := self._views.runs.get(key[1], key[0]))]
        started = [each for each in found if reading.has_started(each)]
        done = await self._thread(lambda: self._book.closed([each.uid for each in started]))
        told = {each.uid: self._told(each) for each in started if each.uid not in done}
        over = [each.uid for each in started if each.uid in told and reading.is_over(each)]
        now = self._unix()
        new = await self._thread(lambda: self._put(told, over, now))
        self._written.add(by=new)
        for each in found:
            await self._let_go(each)

    def _told(self, owner: Run) -> reading.Told:
        name = snapshots.queue_of(owner, snapshots.homes(self._views.queues))
        pods: dict[Member, str] = {}
        for pod in self._views.pods_of(owner.uid):
            key = members.key_of(pod)
            if key is not None:
                pods[Member(key.attempt, key.role, key.index)] = pod.uid
        return reading.run_told(owner, name, self._known_nodes.get, pods)

    def _put(self, told: dict[str, reading.Told], over: list[str], now: int) -> int:
        known: dict[str, list[Hold]] = {}
        for hold in self._book.open_holds([uid for uid, each in told.items() if each.missing]):
            known.setdefault(hold.party.uid, []).append(hold)
        holds: dict[str, list[Hold]] = {}
        for uid, each in told.items():
            holds[uid], unknown = reading.filled_in(each, known.get(uid, ()))
            self._note_unknown(uid, each, unknown)
        new = self._book.write(holds, now)
        self._book.settle_parties(over)
        return new

    def _note_unknown(self, uid: str, told: reading.Told, unknown: list[Member]) -> None:
        lost = [(m, a, b) for m, a, b in told.missing if m in unknown and b is not None]
        for member, started, ended in lost:
            subject = f"{uid}/{member.attempt}/{member.role}/{member.index}"
            words = "nobody knows any more where this member ran"
            self._book.note_gap(Gap("run", subject, "", started, ended or started, words))

    async def _let_go(self, owner: Run) -> None:
        """What the ledger has, the Run need not keep."""
        try:
            if owner.metadata.deletion_timestamp and reading.is_over(owner):
                await self._release(owner)
            elif not owner.finished:
                await self._forget(owner)
        except (errors.Conflict, errors.NotFound):
            return  # it has changed: it comes again

    async def _release(self, owner: Run) -> None:
        if holding.holds_ledger(owner):
            version = {"resourceVersion": owner.metadata.resource_version}
            left = {"finalizers": holding.without_ledger(owner)}
            await self._store.patch(
                Run, owner.name, owner.namespace, patch={"metadata": {**version, **left}}
            )

    async def _forget(self, owner: Run) -> None:
        left = reading.remaining(owner)
        if len(left) == len(owner.status.held or ()):
            return
        version = {"resourceVersion": owner.metadata.resource_version}
        await self._store.patch(
            Run, owner.name, owner.namespace, subresource="status",
            patch={"metadata": version, "status": {"held": msgspec.to_builtins(left) or None}},
        )  # fmt: skip

    # --- other people's pods

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
        held = {hold.party.uid: hold for hold in await self._thread(self._book.open_holds)}
        now = self._unix()
        ends: dict[str, int] = {}
        fresh: list[kubernetes.Pod] = []
        for key in keys:
            pod = self._views.pods.get(key[1], key[0])
            if pod is None or not reading.is_foreign(pod):
                continue
            if reading.holds_room(pod) and pod.uid not in held:
                fresh.append(pod)
            elif pod.uid in held and not reading.holds_room(pod):
                ends[pod.uid] = reading.pod_ended(pod, now)
        ends |= dict.fromkeys(self._gone_pods(held), now)
        await self._thread(lambda: self._put_pods(fresh, ends, now))

    def _gone_pods(self, held: dict[str, Hold]) -> Iterable[str]:
        """Of what is held by pods that are nobody's, those that are gone."""
        there = {pod.uid for pod in self._views.pods}
        return [uid for uid, hold in held.items() if not hold.party.run and uid not in there]

    def _put_pods(self, fresh: list[kubernetes.Pod], ends: dict[str, int], now: int) -> None:
        if ends:
            self._book.close_open(ends, now)
        taken = {(hold.device.node, hold.device.name) for hold in self._book.open_holds()}
        for pod in fresh:
            at = self._known_nodes.get(pod.spec.node_name)
            if at is None:
                continue
            names = [name for node, name in taken if node == at.name]
            holds = reading.pod_holds(pod, at, names, now)
            taken |= {(at.name, hold.device.name) for hold in holds}
            self._book.write({pod.uid: holds}, now)

    async def _find_vanished(self, observed: int) -> None:
        """Pods that went while nobody looked held their room at least until they were last seen."""
        held = {hold.party.uid: hold for hold in await self._thread(self._book.open_holds)}
        now = self._unix()
        gone = dict.fromkeys(self._gone_pods(held), observed)
        runs = {each.uid for each in self._views.runs}
        lost = [uid for uid, hold in held.items() if hold.party.run and uid not in runs]
        gone |= dict.fromkeys(lost, observed)

        def work() -> None:
            self._book.close_open(gone, now)
            for uid in gone:
                party = held[uid].party
                words = "it was gone when the ledger looked again; it counts until it was last seen"
                what = "run" if party.run else "pod"
                self._book.note_gap(Gap(what, uid, party.team, observed, now, words))

        if gone:
            await self._thread(work)

    # --- nodes and prices

    async def _observe(self, last_seen: int | None = None) -> None:
        self._known_nodes = {each.name: reading.node(each) for each in self._views.nodes}
        devices = [device for at in self._known_nodes.values() for device in at.devices.values()]
        now, came = self._unix(), self._came()

        def work() -> None:
            seen: dict[str, int] = {}
            if last_seen is not None:
                gone = {each.device.node for each in self._book.present()} - set(self._known_nodes)
                for name in gone:
                    seen[name] = last_seen
                    words = "it was gone when the ledger looked again"
                    self._book.note_gap(Gap("node", name, "", last_seen, now, words))
            self._book.observe(devices, now, seen, came(self._book.get_mark(OBSERVED)))

        await self._thread(work)

    def _came(self) -> Callable[[int | None], dict[str, int]]:
        """By node, since when one that is new has been there: since it was made, but not since
        before the last look, or, if there was none, before any Run held anything."""
        starts = [each.since for owner in self._views.runs for each in owner.status.held or ()]
        earliest = min((reading.unix(each) for each in starts), default=self._unix())
        listed = [(each.name, each.metadata.creation_timestamp) for each in self._views.nodes]
        made = {name: reading.unix(at) for name, at in listed if at}

        def came(looked: int | None) -> dict[str, int]:
            first = earliest if looked is None else looked
            return {name: max(first, at) for name, at in made.items()}

        return came

    async def _list_prices(self) -> None:
        listed, now = list(self._prices), self._unix()
        await self._thread(lambda: self._book.list_prices(listed, now))

    def _look_around(self) -> None:
        now = self._unix()
        self._book.set_mark(OBSERVED, now)
        if accounting.settle(self._book, now - LATE):
            accounting.prune(self._book, now - KEEP_INTERVALS, now - KEEP_CHARGES)

    # --- what wakes it

    def _connect(self) -> None:
        self._views.runs.add_handler(lambda _, before, after: self._run_changed(after or before))
        self._views.pods.add_handler(lambda _, before, after: self._pod_changed(after or before))
        self._views.nodes.add_handler(lambda _, before, after: self._node_changed(before, after))
        self._prices.add_handler(lambda *_: self._price_changed())

    def _run_changed(self, changed: Run | None) -> None:
        if changed is not None and (reading.has_started(changed) or _is_ending(changed)):
            self._runs[_key(changed)] = None
            self._wake()

    def _pod_changed(self, changed: kubernetes.Pod | None) -> None:
        if changed is not None and reading.is_foreign(changed):
            self._pods[_key(changed)] = None
            self._wake()

    def _node_changed(self, before: kubernetes.Node | None, after: kubernetes.Node | None) -> None:
        told = [reading.node(each) if each else None for each in (before, after)]
        if told[0] != told[1]:
            self._nodes_changed = True
            self._wake()

    def _price_changed(self) -> None:
        self._prices_changed = True
        self._wake()

    def _wake(self) -> None:
        self._due.set()
        self._show()

    def _show(self) -> None:
        self._behind.set(to=len(self._runs) + len(self._pods))


def _is_ending(changed: Run) -> bool:
    return bool(changed.metadata.deletion_timestamp) and holding.holds_ledger(changed)


def _key(obj: meta.Object) -> Key:
    return obj.namespace, obj.name
