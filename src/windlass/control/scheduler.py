"""The scheduler's loop: what changed, decision, what follows from it into the Runs' statuses.

It sleeps until an object that counts has changed or until the time the decision asked for; there
is no timer of its own. Every write names the resourceVersion it was decided on, so a Run that
changed meanwhile is decided again. Writes assignment, nomination, eviction and queue, and reason
and message while a Run waits; never a phase.

Nothing of a decision lives only in memory, but for the starts that blocked heads were promised:
they live from one decision of a term to the next; a new leader promises anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from windlass.control import (
    attaching,
    binding,
    gangsizes,
    leader,
    metrics,
    nodefacts,
    pace,
    picture,
    podunits,
    records,
    snapshots,
    withdrawn,
)
from windlass.control import policy as policies
from windlass.control.runs import all_of
from windlass.control.volumes import Claims, Room
from windlass.core import cycle as core
from windlass.core import facts, invariants, state
from windlass.kinds import clusterkinds, kubernetes, queue, reservation, times
from windlass.kinds.run import QueuePlace, Run
from windlass.store import client, errors
from windlass.store.reflector import Reflector

T = TypeVar("T")
Beside = tuple[Reflector[kubernetes.Namespace], Reflector[clusterkinds.PodDisruptionBudget]]
"""What only pods of other people look at."""
D = TypeVar("D", facts.Placement, facts.Eviction)
log = logging.getLogger(__name__)

NAME = "scheduler"
POLICY = facts.Policy()
HEADS = 3
"""So many of each queue are told their place in it and when they should start."""
WORDS_PER_SECOND, WORDS_BESIDE = 20, 4
"""Writes that only tell why a Run waits, and where: at most so many in any second; and while
others are being given room, whose writes they would delay."""
INLINE_NODES, INLINE_UNITS = 500, 2000
"""Above either, a decision is made in a thread, so that whoever shares the loop (the API, when
embedded) goes on meanwhile."""
MOST_WORDS = 100
"""So many at most are kept to be told after a decision."""
AT_ONCE = 64
"""Writes under way at the same time."""
REST = 300.0
"""Seconds that a Run which must start again to grow runs at least before it does."""
_PAUSE_AFTER_FAILURE = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """What is told to a Run that waits."""

    reason: str
    message: str
    place: QueuePlace | None


Unsaid = tuple[bool, str, str]
"""Whether the reason is new; whom it is told, and the unit that it is about."""


@dataclasses.dataclass(frozen=True, slots=True)
class Waits:
    """What a decision says about those who wait."""

    whys: dict[str, facts.Verdict]
    """In the order of their turns; shared by those that are told the same."""
    places: dict[str, QueuePlace]
    """By unit, of the heads of each queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    decision: facts.Decision
    """Without verdicts: thousands may wait, and few of them are told anything at a time."""
    waiting: int
    """How many wait."""
    waits: Waits | None
    """None: so many wait that nobody was asked; some were a moment ago."""


class Scheduler:
    """One per leader's term."""

    def __init__(
        self,
        store: client.Store,
        *,
        nodes: Reflector[kubernetes.Node],
        pods: Reflector[kubernetes.Pod],
        runs: Reflector[Run],
        queues: Reflector[queue.Queue],
        engine: Reflector[kubernetes.ConfigMap] | None = None,
        scheduling: Reflector[kubernetes.ConfigMap] | None = None,
        claims: Claims | None = None,
        room: Room | None = None,
        attachments: attaching.Seen | None = None,
        quotas: Reflector[clusterkinds.ResourceQuota] | None = None,
        reservations: Reflector[reservation.Reservation] | None = None,
        runtimes: Reflector[clusterkinds.RuntimeClass] | None = None,
        beside: Beside | None = None,
        epoch: int,
        policy: facts.Policy = POLICY,
        levels: nodefacts.Levels = nodefacts.LEVELS,
        registry: metrics.Registry | None = None,
        now: Callable[[], datetime.datetime] = times.now,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._epoch = store, epoch
        self._policy, self._now = policy, now
        self._picture = picture.Picture(levels)
        self._sizes = gangsizes.Sizes(store)
        self._binder = binding.Binder(store, self._picture.book, now, nodes=self._picture.node)
        self._changed = asyncio.Event()
        self.decided, self.decided_anew = asyncio.Event(), asyncio.Event()
        """Both are set after each decision; whoever waits for one clears it."""
        self._deciding = asyncio.Lock()
        """Held while the snapshot may change."""
        self._wake_at: float | None = None
        self._must_decide = True
        """Nothing was decided yet, or what was decided is not all written down."""
        self._has_decided = False
        self._missed: set[str] = set()
        """Uids of Runs that changed under our hands: left alone until the change is seen."""
        self._unsaid: list[tuple[str, Words]] = []
        """By uid, the most urgent last."""
        self._untold: Waits | None = None
        """Of a decision, as long as not everybody has been told what it means for them."""
        self._pace = pace.Pace(WORDS_PER_SECOND, clock)
        self._count_in(registry or metrics.Registry())
        self._watch(nodes, self._picture.see_node)
        self._watch(pods, self._picture.see_pod)
        self._watch(runs, self._picture.see_run)
        self._watch(queues, self._picture.see_queue)
        if scheduling is not None:
            self._watch(scheduling, self._see_policy)
        self._watch_limits(engine, quotas, runtimes, beside, reservations)
        self._watch_volumes(claims, room, attachments)

    def _count_in(self, registry: metrics.Registry) -> None:
        self._took = registry.histogram(
            "windlass_scheduler_decide_seconds", "How long one decision took."
        )
        self._violations = registry.counter(
            "windlass_invariant_violations_total",
            "Decisions that broke a rule of scheduling, by rule; any is a defect.",
            ["invariant"],
        )
        self._waiting = registry.gauge("windlass_scheduler_waiting_runs", "Runs that wait.")

    async def run(self) -> None:
        """Decides whenever something changed, until cancelled."""
        wake_at: float | None = None
        while True:
            await self._wait(wake_at)
            self._changed.clear()
            try:
                wake_at = await self.cycle()
            except leader.LeadershipLostError:
                return
            except errors.ApiError as error:
                log.warning("scheduler: a write failed and is decided again: %s", error.message)
                wake_at = self._now().timestamp() + _PAUSE_AFTER_FAILURE

    async def tell_placed(self) -> None:
        """Tells people which of their pods were placed, until cancelled."""
        await self._binder.placed.run()

    async def cycle(self) -> float | None:
        """One decision, written down; when to come again even if nothing changes."""
        # 1. What was assigned, or asked back: is it still to be, and is it done?
        await self._settle()
        # 2. What has changed, as far as decisions depend on it.
        now = self._now().timestamp()
        changes = self._picture.collect(now)
        missed = self._missed & changes.runs
        self._missed -= changes.runs
        due = self._wake_at is not None and self._wake_at <= now
        most = WORDS_PER_SECOND
        # 3. Decide, and write who got room, who will get some, and who gives it.
        if changes.events or missed or due or self._must_decide:
            self._must_decide = True
            outcome = await self._decide(changes, now)
            self._has_decided = True
            rested = await self._carry_out(outcome.decision)
            lost = outcome.decision.withdrawals
            await withdrawn.tell(self._store, self._picture.run, lost, NAME)
            self._must_decide = False
            moments = [at for at in (outcome.decision.wake_at, *rested) if at is not None]
            if outcome.waits is None:
                moments.append(now + pace.WORDS_EVERY)
            else:
                self._unsaid, self._untold = [], outcome.waits
            self._wake_at = min(moments, default=None)
            most = WORDS_BESIDE if outcome.decision.placements else WORDS_PER_SECOND
        until = self._picture.held_back_until()
        learned, unsized = await self._size_gangs()
        # 4. Gangs of pods that are there in part must not stay so.
        overdue = await self._binder.end_partial_gangs()
        # 5. Tell the others why they wait, a few at a time.
        # Not before what was just learned is decided with: reasons are told once.
        again = None if learned else await self._tell(most)
        times_to_come = (self._wake_at, overdue, again, until, unsized)
        return min((at for at in times_to_come if at is not None), default=None)

    async def look(self, read: Callable[[state.Snapshot], T]) -> T | None:
        """What a reader makes of the snapshot, between two decisions; None before the first."""
        async with self._deciding:
            snapshot = self._picture.snapshot
            return None if snapshot is None else read(snapshot)

    async def _size_gangs(self) -> tuple[bool, float | None]:
        """Gangs whose pods do not say how many they are. Whether something became known, and when
        to ask those again who did not answer."""
        unsized = self._picture.book.unsized()
        sizes = await self._sizes.ask(unsized)
        if sizes:
            self._picture.book.learn(sizes)
            self._changed.set()
        silent = len(sizes) < len(unsized)
        again = self._now().timestamp() + gangsizes.ASK_AGAIN if silent else None
        return bool(sizes), again

    def _watch_limits(
        self,
        engine: Reflector[kubernetes.ConfigMap] | None,
        quotas: Reflector[clusterkinds.ResourceQuota] | None,
        runtimes: Reflector[clusterkinds.RuntimeClass] | None,
        beside: Beside | None,
        reservations: Reflector[reservation.Reservation] | None,
    ) -> None:
        """What only some engines have, and what only pods of other people look at."""
        if engine is not None:
            self._watch(engine, self._picture.see_engine)
        if beside is not None:
            namespaces, budgets = beside
            self._watch(namespaces, self._picture.book.see_namespace)
            self._watch(budgets, self._picture.book.see_budget)
        if quotas is not None:
            self._watch(quotas, self._picture.quotas.see)
        if reservations is not None:
            self._watch(reservations, self._picture.reservations.see)
        if runtimes is not None:
            self._picture.runtimes.watched = True
            self._watch(runtimes, self._picture.see_runtime)

    def _watch_volumes(
        self, claims: Claims | None, room: Room | None, attachments: attaching.Seen | None
    ) -> None:
        for reflector in (*(claims or ()), *(room or ())):
            self._watch(reflector, self._picture.see_volumes)
        for each in attachments or ():
            self._watch(each, self._picture.see_attachments)

    def _watch(self, reflector: Reflector[Any], see: Callable[[Any, Any, Any], None]) -> None:
        reflector.add_handler(see)
        reflector.add_handler(self._wake)

    def _see_policy(self, *seen: Any) -> None:
        """What changed, and the ConfigMap before and after; None: there is none any more."""
        self._policy = policies.read_or_keep(seen[-1], self._policy)
        self._must_decide = True

    def _wake(self, *_: object) -> None:
        self._changed.set()

    async def _wait(self, wake_at: float | None) -> None:
        timeout = None if wake_at is None else max(0.0, wake_at - self._now().timestamp())
        try:
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        except TimeoutError:
            return

    # --- 1

    async def _settle(self) -> None:
        """Looks after assignments and evictions that stand: those of an earlier leader are
        confirmed or taken back, room that was given back is noted as free."""
        owners = {owner.uid: owner for owner in self._picture.evicted()}
        owners |= {owner.uid: owner for owner in self._picture.unstarted()}
        owners |= {owner.uid: owner for owner in self._picture.changed_runs()}
        await self._patch_all((owner, self._settlement(owner)) for owner in owners.values())

    def _settlement(self, owner: Run) -> dict[str, Any] | None:
        if owner.uid in self._missed:
            return None
        held = owner.status.assignment
        told = owner.status.eviction is not None or (held and held.epoch != self._epoch)
        pods = self._picture.pods_of(owner) if told else ()
        first = not self._has_decided
        return records.settle(
            owner, self._epoch, self._now(), self._picture.takes, pods, first=first
        )

    # --- 3

    async def _decide(self, changes: picture.Changes, now: float) -> Outcome:
        started = time.perf_counter()
        nodes, units = self._picture.size
        async with self._deciding:
            if nodes > INLINE_NODES or units > INLINE_UNITS:
                # Meanwhile handlers only note what changed; nothing touches the snapshot.
                outcome = await asyncio.to_thread(self._think, changes, now)
            else:
                outcome = self._think(changes, now)
        self.decided.set()
        self.decided_anew.set()
        self._took.observe(value=time.perf_counter() - started)
        self._waiting.set(to=outcome.waiting)
        return outcome

    def _think(self, changes: picture.Changes, now: float) -> Outcome:
        snapshot = self._picture.bring_up(changes)
        done = core.run(snapshot, now, self._policy)
        decision = done.decision(told=False)
        for rule, problem in invariants.broken(snapshot, decision, now):
            log.error("scheduler: a decision breaks a rule, please report it: %s", problem)
            self._violations.add(rule)
        waiting = len(snapshot.waiting.keys() - done.placements.keys())
        waits = None
        if waiting <= INLINE_UNITS or self._pace.is_due():
            waits = Waits(done.waits(), dict(_places(snapshot, done, decision)))
        state.apply(snapshot, [state.Promised(decision.reservations)])
        return Outcome(decision, waiting, waits)

    async def _carry_out(self, decision: facts.Decision) -> list[float]:
        """Writes it down, in an order in which it may break off anywhere: who gets what is free,
        then for whom room is freed, then who gives it. When to come again for what has to wait."""
        runs, pods = _by_kind(decision.placements)
        rested = await all_of((self._place(each) for each in runs), AT_ONCE)
        unbound = await self._binder.place(pods)
        gainers = await self._nominate(decision)
        gainers |= self._picture.reservations.standing()
        evictions = [
            each
            for each in decision.evictions
            if each.reservation
            or (each.gainer in gainers and (not each.move or each.unit in gainers))
        ]
        runs_to_go, pods_to_go = _by_kind(facts.by_unit(evictions))
        await all_of((self._evict(each) for each in runs_to_go), AT_ONCE)
        for eviction in pods_to_go:
            await self._binder.evict(eviction)
        await self._patch_all(
            (owner, records.drain(owner, self._now()))
            for owner in self._picture.drained()
            if not self._is_stale(owner.uid)
        )
        await self._patch_all(
            (owner, records.withdraw(owner, gainers, drained=self._picture.is_drained(owner.uid)))
            for owner in self._picture.evicted()
            if not self._is_stale(owner.uid)
        )
        return [*unbound, *(moment for moment in rested if moment is not None)]

    async def _place(self, placement: facts.Placement) -> float | None:
        """A Run starts, or grows; or the time until which it must rest before it grows."""
        owner = self._known(placement.unit)
        if owner is None:
            return None
        nodes = ", ".join(sorted({seat.node for seat in placement.seats}))
        if not snapshots.holds_assignment(owner):
            patch = records.start(owner, placement.seats, self._epoch)
            if await self._patch(owner, patch):
                log.info("run %s/%s: assigned to %s", owner.namespace, owner.name, nodes)
            return None
        until = snapshots.rests_until(owner, REST)
        if until > self._now().timestamp():
            return until
        if await self._patch(owner, records.grow(owner, placement.seats, self._epoch)):
            log.info("run %s/%s: grows onto %s", owner.namespace, owner.name, nodes)
        return None

    async def _nominate(self, decision: facts.Decision) -> set[str]:
        """Keeps what is written down of nominations true; uids of those whose nomination is."""
        made = {each.unit: each for each in decision.nominations}
        placed = {each.unit for each in decision.placements}
        over = (uid for uid in self._picture.nominated() if uid not in made and uid not in placed)
        await all_of((self._withdraw(uid) for uid in over), AT_ONCE)
        stand = await all_of((self._nominate_one(each) for each in made.values()), AT_ONCE)
        return set(itertools.compress(made, stand))

    async def _withdraw(self, uid: str) -> None:
        if podunits.is_pods(uid):
            await self._binder.withdraw(uid)
        elif (owner := self._known(uid)) is not None:
            await self._patch(owner, {"nomination": None})

    async def _nominate_one(self, nomination: facts.Nomination) -> bool:
        """Whether it is written down."""
        if podunits.is_pods(nomination.unit):
            return await self._binder.nominate(nomination)
        owner = self._known(nomination.unit)
        if owner is None:
            return False
        patch = records.nominate(owner, nomination.seats, self._epoch)
        return patch is None or await self._patch(owner, patch)

    async def _evict(self, eviction: facts.Eviction) -> None:
        owner = self._known(eviction.unit)
        if owner is None or not snapshots.holds_assignment(owner):
            return
        if await self._patch(owner, records.evict(owner, eviction, self._now())):
            log.info("run %s/%s: must give room: %s", owner.namespace, owner.name, eviction.reason)

    def _known(self, uid: str) -> Run | None:
        """The Run that was decided on, if it still is as it was then."""
        owner = self._picture.run(uid)
        if owner is None or self._is_stale(uid):
            self._missed.add(uid)
            return None
        return owner

    def _is_stale(self, uid: str) -> bool:
        return uid in self._missed or self._picture.is_changed(uid)

    # --- 4

    def _words(self, waits: Waits) -> list[tuple[str, Words]]:
        """What is not yet told, the most urgent last: a new reason before other numbers, heads of
        queues before others. No more than can be told before long: a later decision may say it
        better, and if there is none we come again."""
        whys, places = waits.whys, waits.places
        found = list(self._unsaid_of({key: whys[key] for key in places if key in whys}, places))
        numbers: list[Unsaid] = []
        for each in self._unsaid_of(whys, {}):
            if len(found) >= MOST_WORDS:
                break
            if each[2] in places:
                continue
            if each[0]:
                found.append(each)
            elif len(numbers) < MOST_WORDS:
                numbers.append(each)
        unsaid = sorted([*found, *numbers], key=lambda each: (each[0], each[2] in places))
        return [
            (uid, Words(whys[unit].reason, whys[unit].message, places.get(unit)))
            for _, uid, unit in unsaid
        ]

    def _unsaid_of(
        self, waits: Mapping[str, facts.Verdict], places: Mapping[str, QueuePlace]
    ) -> Iterator[Unsaid]:
        for key, verdict in waits.items():
            owner, place = self._picture.run(key), places.get(key)
            if owner is not None:
                if key in self._missed:
                    continue
                if not snapshots.waits(owner):
                    if records.incomplete(owner, verdict.reason, verdict.message):
                        yield True, key, key
                    continue
                status, reason = owner.status, verdict.reason
                new = status.reason != reason
                if new or status.message != verdict.message or status.queue != place:
                    yield new, key, key
            elif podunits.is_pods(key):
                for new, pod in self._binder.unsaid(key, verdict, is_head=place is not None):
                    yield new, pod, key

    async def _tell(self, most: int) -> float | None:
        """As much as may be told now, at most so many in a second; when to come for the rest."""
        while self._unsaid or self._has_more_to_tell():
            pause = self._pace.pause(most)
            if pause > 0:
                return self._now().timestamp() + pause
            # All at once: the next decision waits for them.
            count = self._pace.allowed(most)
            now, self._unsaid = self._unsaid[-count:], self._unsaid[:-count]
            await all_of((self._tell_one(uid, words) for uid, words in reversed(now)), AT_ONCE)
        return None

    async def _tell_one(self, uid: str, words: Words) -> None:
        if podunits.is_pods(uid):
            self._pace.count()
            await self._binder.tell(uid, words.reason, words.message)
            return
        owner = self._picture.run(uid)
        if owner is None or uid in self._missed:
            return
        if snapshots.waits(owner):
            patch = _differences(owner, words)
        else:
            patch = records.incomplete(owner, words.reason, words.message)
        if patch:
            self._pace.count()
            await self._patch(owner, patch)

    def _has_more_to_tell(self) -> bool:
        if self._untold is not None:
            self._unsaid = self._words(self._untold)
            if not self._unsaid:
                self._untold = None
        return bool(self._unsaid)

    async def _patch_all(self, told: Iterable[tuple[Run, dict[str, Any] | None]]) -> None:
        """Those of whom there is something to say."""
        due = ((owner, status) for owner, status in told if status is not None)
        await all_of((self._patch(owner, status) for owner, status in due), AT_ONCE)

    async def _patch(self, owner: Run, status: dict[str, Any]) -> bool:
        version = {"resourceVersion": owner.metadata.resource_version}
        try:
            written = await self._store.patch(
                Run, owner.name, owner.namespace, subresource="status",
                patch={"metadata": version, "status": status},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            # It changed since: the change is on its way to us and will wake us.
            self._missed.add(owner.uid)
            return False
        self._picture.wrote(written)
        self._changed.set()
        return True


def _by_kind(decided: Iterable[D]) -> tuple[list[D], list[D]]:
    """What is about Runs, and what is about other people's pods."""
    listed = list(decided)
    pods = [each for each in listed if podunits.is_pods(each.unit)]
    return [each for each in listed if not podunits.is_pods(each.unit)], pods


def _places(
    snapshot: state.Snapshot, done: core.Cycle, decision: facts.Decision
) -> Iterator[tuple[str, QueuePlace]]:
    """Where the heads of each queue stand among those that wait for room, and until when."""
    placed = {placement.unit for placement in decision.placements}
    starts = {each.unit: each.start for each in decision.reservations if each.firm}
    for name in {unit.queue for unit in snapshot.waiting.values()} & snapshot.queues.keys():
        line = [
            unit.key
            for unit in snapshot.line(name, done.standing)
            if unit.key not in placed and unit.held is None
        ]
        for position, key in enumerate(line[:HEADS], 1):
            start = starts.get(key)
            moment = None if start is None else times.seconds(times.from_unix(math.ceil(start)))
            yield key, QueuePlace(position=position, of=len(line), expected_start=moment)


def _differences(owner: Run, words: Words) -> dict[str, Any]:
    """The patch of the status that tells these words; empty when they are told already."""
    status = owner.status
    patch: dict[str, Any] = {}
    if status.reason != words.reason:
        patch["reason"] = words.reason
    if status.message != words.message:
        patch["message"] = words.message
    if status.queue != words.place:
        place = words.place
        patch["queue"] = place and {
            "position": place.position,
            "of": place.of,
            "expectedStart": place.expected_start,
        }
    return patch
