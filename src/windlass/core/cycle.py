"""`decide`: who starts where, who makes room for whom, who gets a promise, and why others wait.

The cycle below is the whole policy, in order. It works on a fork of the snapshot, so a decision
changes nothing but the answer it returns; the same snapshot, time and policy give the same answer,
byte for byte. Work is counted in node-visits and bounded by the policy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
from collections import ChainMap
from collections.abc import Iterator, Sequence

from windlass.core import (
    affinity,
    alike,
    allowance,
    amounts,
    asked,
    calendar,
    clearing,
    defragmentation,
    departures,
    elastic,
    fairshare,
    foresight,
    looks,
    models,
    nominations,
    order,
    passing,
    place,
    preempt,
    quota_forecast,
    releases,
    repair,
    reserve,
    screening,
    shadows,
    sharing,
    together,
    turns,
    userlimits,
    userturns,
    verdicts,
    waking,
    wanted,
    withdrawals,
    yielding,
)
from windlass.core.asked import Asked
from windlass.core.facts import (
    Decision,
    Eviction,
    Nomination,
    Placement,
    Policy,
    Queue,
    Running,
    Seat,
    Unit,
    Verdict,
    Wanted,
    Withdrawal,
)
from windlass.core.place import Failure, Scene, Wish, Work
from windlass.core.queues import Shortage, Sums
from windlass.core.shapes import Shape
from windlass.core.state import Snapshot
from windlass.kinds.reasons import Reason


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """A decision makes no reference cycles, so there is nothing in it for the collector to find,
    and looking through everything else once costs as much as a decision."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_undisturbed()
def decide(snapshot: Snapshot, now: float, policy: Policy = Policy()) -> Decision:  # noqa: B008
    return run(snapshot, now, policy).decision()


@_undisturbed()
def run(snapshot: Snapshot, now: float, policy: Policy) -> Cycle:
    """The whole policy. `core.explain` looks into the cycle afterwards."""
    windows = calendar.open_at(snapshot, now)
    cycle = Cycle(snapshot if windows is None else windows.view(), now, policy)
    cycle.windows = windows
    # 0. Who must leave capacity that an administrator reserved goes, whoever else waits.
    clearing.clear(cycle)
    # 1. What was promised stays promised: nominated room is held, and taken once it is free.
    nominations.keep(cycle)
    # 2. Starts that were promised last time bind everybody, where they still can be kept.
    reserve.recall(cycle)
    # 3. A gang that lost members comes first: until it is whole again it wastes what it holds.
    repair.repair(cycle)
    # 4. Everybody who waits, in the order of the tree and of each queue: start, or make room, or
    #    reserve, or say why not. Whoever comes later cannot delay a reservation made here.
    for unit in cycle.turns():
        cycle.consider(unit)
    # 5. Who has a right to room on which others are about to start takes it before they do.
    preempt.second_look(cycle)
    # 6. Who would fit if others ran elsewhere has them moved, where their owners allow it.
    defragmentation.look(cycle)
    # 7. What nobody needed goes to units that can use more than their least.
    elastic.grow(cycle)
    # 8. Which nodes that do not exist yet would help those who still wait.
    wanted.look(cycle)
    # 9. Which firm starts of earlier decisions are not kept, and why.
    withdrawals.announce(cycle)
    return cycle


@dataclasses.dataclass(slots=True)
class Stuck:
    """Why units of one kind did not fit in this cycle: those like them need not be tried again."""

    count: int
    failure: Failure


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """A waiting unit at its turn."""

    unit: Unit
    wishes: Sequence[Wish]
    need: Sums
    """What its least counts for in quotas."""
    members: int
    end: float | None
    """When it is expected to end if it starts now."""
    beside: tuple[shadows.Held, ...]
    """Promises that it would run into."""


class Cycle:
    """One decision in the making: the fork it works on and what it has decided so far."""

    def __init__(self, snapshot: Snapshot, now: float, policy: Policy) -> None:
        self.snapshot, self.now, self.policy = snapshot, now, policy
        self.windows: calendar.Windows | None = None  # of advance reservations, if there are any
        snapshot.roster.begin()
        self.work = Work(policy.operations)
        cluster, crowd = snapshot.cluster.fork(), snapshot.crowd.fork()
        self.scene = Scene(cluster, self.work, crowd, scorer=snapshot.history.demand)
        self.tree = fairshare.tree_with_owed_shares(snapshot)
        self.spaces = snapshot.spaces.fork()
        self.user_quotas = snapshot.user_quotas.fork()
        self.running = ChainMap[str, Running]({}, snapshot.running)
        """Who holds room, with what this decision adds."""
        self.held = ChainMap[str, Sums]({}, snapshot.held)
        shares = snapshot.user_shares.shares(snapshot.tree, snapshot.accounts)
        predictor, used = snapshot.history.at(now), snapshot.user_shares.held
        self.standing = order.Standing(predictor, shares, used)
        self.placements: dict[str, Placement] = {}
        self.evictions: list[Eviction] = []
        self.nominations: dict[str, Nomination] = {}
        self.reservations: list[shadows.Held] = []
        self.withdrawals: tuple[Withdrawal, ...] = ()
        self.withdrawn: dict[str, str] = {}
        """Workloads that lost a reservation, and why; kept by `withdrawals`."""
        self.quota_forecast = quota_forecast.QuotaForecast()
        self.verdicts: dict[str, Verdict] = {}
        self.unresolved = False
        """Whether some search ended at its budget."""
        self.turn: list[str] = []
        """Who was considered, one after another; again where a start was withheld."""
        self.wanted: list[Wanted] = []
        self.wake: list[float] = []
        self.desk = preempt.Desk()
        self.departures = departures.Departures(self)
        self._stuck: dict[object, Stuck] = {}
        self.memory = alike.Memory()
        self.room = screening.Room(self.scene.cluster, self.work)
        self.user_claims: dict[str, userturns.Claims | None] = {}
        self.least_shares: dict[str, int] = {}
        """Queue in which users take turns -> the smallest share of a user who waits there."""
        self._blocked: set[tuple[str, str]] = set()
        """(strict queue, resource class) whose head waits."""
        self.blocked_users: set[tuple[str, str, str]] = set()
        """(strict queue, user, resource class) of a workload that waits for its user's limit."""
        self.ledger = releases.Ledger(snapshot.releases)
        self._asked = snapshot.cluster.asked
        self._needs: dict[str, Sums] = {}
        self._expected: dict[str, tuple[Unit, float | None]] = {}
        self._most: dict[int, int] = {}
        self._in_one: dict[tuple[int, str], int] = {}
        self.scarce: dict[int, tuple[str, int, int]] = {}
        """Shape id -> what it was short of when it first did not fit; kept by `verdicts`."""
        self.apart: dict[int, together.Apart] = {}
        """Shape id -> what its bundle was short of then; kept by `verdicts`."""
        self.words: dict[int, str] = {}
        """Shape id -> what one member asks for, in words; kept by `verdicts`."""
        self.closed: dict[int, str] = {}
        """Shape id -> which nodes that could hold it take nobody, in words; kept by `verdicts`."""
        self.sentences: dict[object, Verdict] = {}
        """What was missing -> how it was told; kept by `verdicts`."""

    # --- what the steps do

    def hold(self, unit: Unit, seats: Sequence[Seat]) -> None:
        """Takes room that is promised, whether or not others still sit on it."""
        self.memory.moves += 1
        roles = {role.name: role for role in unit.roles}
        for seat in seats:
            self.scene.cluster.occupy(roles[seat.role], seat)
        held = amounts.of_seats(self.scene.cluster, unit.roles, seats)
        self.tree.add(unit.queue, held, firm=not unit.preemptible)
        self.spaces.add(unit.namespace, held, len(seats))
        self.user_quotas.add(unit, held, is_member=unit.key in self.snapshot.running)
        self.scene.crowd.seat(unit, seats)
        reserve.lift(self, unit)
        reserve.also_take(self, unit, seats, self.expected_end(unit))

    # --- 4

    def turns(self) -> Iterator[Unit]:
        """Waiting units, always the head of the queue whose turn it is."""
        return turns.in_order(self)

    def consider(self, unit: Unit) -> None:
        """One waiting unit: it starts, or somebody makes room, or it gets a verdict."""
        key = unit.key
        self.turn.append(key)
        if key in self.placements or key in self.nominations:
            return
        barred = self.barred(unit) or userlimits.behind_own(self, unit)
        if barred is not None:
            self.verdicts[key] = barred
            userlimits.hold_back(self, unit, barred)
            return
        known = alike.told(self, unit)
        if known is not None:
            self.verdicts[key] = known
            preempt.treat_alike(self, known.unit, unit)
            return
        promise = reserve.lift(self, unit)
        before = self.memory.moves
        verdict = self._verdict(unit, promise)
        if verdict is None:
            return
        self.verdicts[key] = verdict
        self.unresolved |= not verdict.resolved
        if promise is None and self.memory.moves == before:
            alike.remember(self, unit, verdict)

    def barred(self, unit: Unit) -> Verdict | None:
        """What its queue has against it: said of nobody else, however alike."""
        queue = self.tree.queues.get(unit.queue)
        if queue is None:
            return None
        if queue.namespaces is not None and unit.namespace not in queue.namespaces:
            return verdicts.not_yours(unit, queue)
        held = self.tree.held.get(unit.queue)
        if held is not None:
            return Verdict(unit.key, *held, queue=unit.queue)
        over = userlimits.verdict(self, unit) if self.user_quotas else None
        return over or userturns.overspent(self, unit)

    def _verdict(self, unit: Unit, promise: shadows.Held | None) -> Verdict | None:
        """Why it waits; None: it starts, or room is being freed for it."""
        refusal = self._refusal(unit)
        if refusal is not None:
            return refusal
        if promise is None and (unit.queue, self.asked(unit).resource_class) in self._blocked:
            return verdicts.behind(unit)
        barred = self.over_space(unit)
        if barred is not None:
            reserve.keep(self, promise)
            return self._wait(unit, verdicts.over_space(unit, barred))
        if promise is None and (overspent := sharing.overspent(self, unit)):
            return sharing.refuse(self, unit, overspent)
        narrowed = models.permitted(self.scene.cluster, self.tree, unit)
        if isinstance(narrowed, Shortage):
            shortage = narrowed
        else:
            found = self.tree.shortage(unit.queue, self.need(unit), firm=not unit.preemptible)
            if found is None:
                return self._find_room(self.ask(narrowed), promise)
            ask = self.ask(narrowed)
            kept = quota_forecast.shortage_beside(self, unit, ask.need, ask.beside)
            if kept is None and preempt.within_queue(self, ask, found):
                return None
            return self._wait_for_quota(narrowed, found, promise)
        reserve.keep(self, promise)
        verdict = verdicts.over_quota(unit, shortage)
        if promise is None:
            alike.over_quota(self, unit, verdict)
        return self._wait(unit, verdict)

    def _wait_for_quota(
        self, unit: Unit, shortage: Shortage, promise: shadows.Held | None
    ) -> Verdict:
        """A rule of the sharing tree keeps the unit waiting: it gets a start for when that has
        changed."""
        verdict = verdicts.over_quota(unit, shortage)
        held = reserve.reserve(self, unit, promise)
        if held is not None:
            return self._wait(unit, verdicts.promised(verdict, held))
        if promise is None and not allowance.may_promise(self, unit):
            alike.over_quota(self, unit, verdict)
        return self._wait(unit, verdict)

    def _find_room(self, ask: Ask, promise: shadows.Held | None) -> Verdict | None:
        """For a unit that its quotas let start."""
        unit = ask.unit
        kept = None
        # What is due was promised beside the others: who started since left quota for all of them
        # or ends before they start.
        if ask.beside and not reserve.is_due(self, promise):
            kept = quota_forecast.shortage_beside(self, unit, ask.need, ask.beside)
        if kept is not None:
            reserve.keep(self, promise)
            return self._wait(unit, verdicts.over_quota(unit, kept))
        failure = self.start(ask)
        if failure is None or reserve.claim(self, unit, promise):
            return None
        if preempt.make_room(self, ask, failure):
            return None
        verdict = verdicts.no_room(self, unit, failure, self.desk.why)
        held = reserve.reserve(self, unit, promise)
        return self._wait(unit, verdicts.promised(verdict, held) if held else verdict)

    def _refusal(self, unit: Unit) -> Verdict | None:
        """What forbids the unit to start whatever is free."""
        if unit.held is not None:
            return Verdict(unit.key, unit.held[0], unit.held[1])
        if unit.queue not in self.tree.queues:
            return verdicts.no_such_queue(unit, self.tree.queues)
        broken = self.tree.broken.get(unit.queue)
        if broken:
            return Verdict(unit.key, Reason.NO_SUCH_QUEUE, broken, queue=unit.queue)
        if not self.asked(unit).wishes:
            return verdicts.no_members(unit)
        if unit.not_before > self.now:
            self.wake.append(unit.not_before)
            return verdicts.not_yet(unit)
        return None

    def start(self, ask: Ask) -> Failure | None:
        """Places the least of a unit, with the best acceptable model; or says what is missing."""
        failures: list[Failure] = []
        for model in models.in_turn(ask.unit):
            seats = self.try_place(ask, model)
            if not isinstance(seats, Failure):
                self.commit(ask.unit, seats)
                return None
            failures.append(seats)
        if len(failures) == 1:
            return failures[0]
        best = max(failures, key=lambda failure: failure.room)
        return dataclasses.replace(best, resolved=all(f.resolved for f in failures))

    def try_place(self, ask: Ask, model: str = "") -> tuple[Seat, ...] | Failure:
        """As `place.place`, but what is known to be stuck is not tried again."""
        wishes = ask.wishes
        known = self._stuck.get(self.kind(ask, model)) if self._stuck else None
        if known is not None and ask.members >= known.count:
            return place.as_told_to(known.failure, wishes)
        if self.work.exhausted:
            return Failure(wishes[0].role, wishes[0].count, 0, resolved=False)
        scene = self.scene
        scene.model = model
        answer = reserve.place_beside(self, ask.unit, wishes, ask.end, ask.beside)
        scene.model = ""
        if isinstance(answer, Failure):
            self._stuck[self.kind(ask, model)] = Stuck(ask.members, answer)
        return answer

    def commit(self, unit: Unit, seats: tuple[Seat, ...]) -> None:
        """The unit starts on seats that are already taken from the cluster."""
        self.memory.moves += 1
        self.scene.cluster.settle()
        held = amounts.of_seats(self.scene.cluster, unit.roles, seats)
        self.tree.add(unit.queue, held, firm=not unit.preemptible)
        self.spaces.add(unit.namespace, held, len(seats))
        self.user_quotas.add(unit, held, is_member=unit.key in self.snapshot.running)
        self.placements[unit.key] = Placement(unit.key, seats)
        end = self.expected_end(unit)
        gang = self.snapshot.running.get(unit.key)
        if gang is None:
            self.held[unit.key] = held
            self.running[unit.key] = Running(unit, seats, self.now, end, self.now)
        else:  # one that lost members is completed
            self.running[unit.key] = dataclasses.replace(gang, seats=(*gang.seats, *seats))
        self.scene.crowd.seat(unit, seats)
        reserve.lift(self, unit)
        reserve.also_take(self, unit, seats, end)

    def withdraw(self, key: str) -> None:
        """A unit that was about to start does not: somebody has a better right to its room."""
        del self.placements[key]
        running, held = self.running.pop(key), self.held.pop(key)
        unit, roles = running.unit, {role.name: role for role in running.unit.roles}
        for seat in running.seats:
            self.scene.cluster.release(roles[seat.role], seat)
        self.scene.cluster.settle()
        self.tree.add(unit.queue, held, firm=not unit.preemptible, sign=-1)
        self.spaces.add(unit.namespace, held, len(running.seats), sign=-1)
        self.user_quotas.add(unit, held, sign=-1)
        self.scene.crowd.leave(running)
        reserve.give_back(self, running)
        self.ledger = releases.Ledger(self.snapshot.releases)
        self.quota_forecast = quota_forecast.QuotaForecast()
        withdrawals.note(self, key, "another queue takes back its guarantee")
        self._stuck.clear()
        self._blocked.clear()
        self.blocked_users.clear()
        self.room = screening.Room(self.scene.cluster, self.work)
        alike.forget(self)
        reserve.restore(self, unit)

    def _wait(self, unit: Unit, verdict: Verdict) -> Verdict:
        if self.tree.queues[unit.queue].strict:
            self._blocked.add((unit.queue, self.asked(unit).resource_class))
            alike.block(self, unit)
        return verdict

    # --- what the steps share

    @functools.cached_property
    def foresight(self) -> foresight.Foresight:
        """Of everybody who waits; of nobody where they are few enough to be asked one by one."""
        many = len(self.snapshot.waiting) >= foresight.MANY
        return foresight.Foresight(self, self.snapshot.waiting.values() if many else ())

    @functools.cached_property
    def waiting_queues(self) -> int:
        """How many queues there are in which anything waits."""
        return len(self.snapshot.lines())

    @functools.cached_property
    def fair_shares(self) -> fairshare.FairShares:
        return fairshare.FairShares(self.snapshot, self.tree)

    @functools.cached_property
    def yielding(self) -> yielding.Yielding:
        return yielding.Yielding(self)

    @functools.cached_property
    def beyond_submitted(self) -> dict[str, Shortage]:
        """Waiting workloads that their users submitted beyond their limit."""
        return self.snapshot.user_quotas.beyond(self.snapshot)

    def queue_of(self, unit: Unit) -> Queue:
        return self.tree.queues[unit.queue]

    @functools.cached_property
    def missing(self) -> dict[str, Unit]:
        """By key, the missing members of gangs that run."""
        return repair.incomplete(self)

    @functools.cached_property
    def moving(self) -> dict[str, Unit]:
        """By key, running workloads that leave their place for another one."""
        return nominations.moving(self)

    def workload(self, key: str) -> Unit | None:
        """For whom capacity is nominated: who waits, the missing members of a gang that runs, or a
        workload that is being moved."""
        found = self.snapshot.waiting.get(key) or self.missing.get(key)
        return found or self.moving.get(key)

    def asked(self, unit: Unit) -> Asked:
        """What the unit asks for; kept with the line as long as it waits there."""
        known = self._asked.get(unit.key)
        if known is None or known.unit is not unit:
            known = asked.tell(self.scene.cluster, unit)
            if self.snapshot.waiting.get(unit.key) is unit:
                self._asked[unit.key] = known
        return known

    def need(self, unit: Unit) -> Sums:
        """What the unit's least counts for in quotas."""
        found = self._needs.get(unit.key)
        if found is None:
            found = self._needs[unit.key] = self.asked(unit).need
        return found

    def over_space(self, unit: Unit) -> Shortage | None:
        """The quota of its namespace that its least would exceed."""
        if unit.namespace not in self.spaces.used:
            return None
        return self.spaces.shortage(unit.namespace, self.need(unit), self.asked(unit).members)

    def most_when_empty(self, shape: Shape) -> int:
        """Members of the shape that all nodes would hold together if they were empty."""
        found = self._most.get(shape.id)
        if found is None:
            found = int(self.scene.cluster.capacity_of(shape).sum())
            self._most[shape.id] = found
        return found

    def most_in_one(self, shape: Shape, level: str) -> int:
        """Members of the shape that the largest domain of a level would hold if it were empty."""
        found = self._in_one.get((shape.id, level))
        if found is None:
            cluster = self.scene.cluster
            held = cluster.capacity_of(shape)
            if level in cluster.levels:
                held = cluster.by_domain(cluster.levels.index(level), held)
            found = self._in_one[shape.id, level] = int(held.max(initial=0))
        return found

    def expected_end(self, unit: Unit) -> float | None:
        """If it starts now; missing members of a gang end with the others."""
        gang = self.snapshot.running.get(unit.key)
        if gang is not None:
            return looks.believed(releases.expected_end(self, gang), self.now)
        seconds = self.estimate(unit)
        if seconds is None and self.policy.unknown_runtime == "learned":
            seconds = self.predicted(unit)
        if unit.max_runtime is not None:
            seconds = unit.max_runtime if seconds is None else min(seconds, unit.max_runtime)
        return None if seconds is None else self.now + seconds

    def estimate(self, unit: Unit) -> float | None:
        """Seconds it says it runs, as far as that is believed."""
        return self.snapshot.history.estimate(unit)

    def predicted(self, unit: Unit) -> float | None:
        """Learned of others; found once: it is asked for at every step of a unit's turn."""
        known = self._expected.get(unit.key)
        if known is None or known[0] is not unit:
            known = self._expected[unit.key] = (unit, self.standing.predictor.expected(unit))
        return known[1]

    def ask(self, unit: Unit) -> Ask:
        told, end = self.asked(unit), self.expected_end(unit)
        beside = passing.crossed(self, unit, end)
        return Ask(unit, told.wishes, self.need(unit), told.members, end, beside)

    def kind(self, ask: Ask, model: str = "") -> object:
        """Everything that the answer to "does it fit" depends on, but the number of members."""
        unit, wishes, crowd = ask.unit, ask.wishes, self.scene.crowd
        shapes = tuple([self.scene.cluster.shape_of(wish.role, model).id for wish in wishes])
        terms = tuple([(w.role.affinities, w.role.spreads, w.role.labels) for w in wishes])
        picky = any(a or s for a, s, _ in terms)
        namespace = unit.namespace if picky or crowd.repels else ""
        counts = tuple([wish.count for wish in wishes]) if len(wishes) > 1 else ()
        company = tuple([affinity.company(crowd, unit, w.role) for w in wishes]) if picky else ()
        # Where one sits decides whether the next finds a place.
        taste = (unit.pack, *(w.role.prefers for w in wishes)) if picky or counts else ()
        return shapes, counts, unit.topology, ask.beside, terms, namespace, company, taste

    @property
    def turn_of(self) -> dict[str, int]:
        """Who was considered as which, counted from 1."""
        alike.tell_the_rest(self)
        return {key: number for number, key in enumerate(dict.fromkeys(self.turn), start=1)}

    def waits(self) -> dict[str, Verdict]:
        """Who waits, in the order of their turns, and why; what is told to many names one of them:
        see `verdict_of`."""
        alike.tell_the_rest(self)
        return {key: why for key, why in self.verdicts.items() if key not in self.placements}

    def verdict_of(self, key: str) -> Verdict:
        """What a unit that waits is told."""
        alike.tell_the_rest(self)
        return verdicts.addressed(self.verdicts[key], key)

    def decision(self, *, told: bool = True) -> Decision:
        """The answer; without verdicts if nobody is to be `told`."""
        return Decision(
            placements=tuple(self.placements.values()),
            evictions=tuple(self.evictions),
            nominations=tuple(self.nominations.values()),
            reservations=tuple(held.reservation for held in self.reservations),
            withdrawals=self.withdrawals,
            wanted=tuple(self.wanted),
            verdicts=tuple(self._verdicts()) if told else (),
            wake_at=waking.next_moment(self),
            operations=self.policy.operations - self.work.left,
        )

    def _verdicts(self) -> list[Verdict]:
        alike.tell_the_rest(self)
        known, addressed = self.verdicts, verdicts.addressed
        return [addressed(known[key], key) for key in sorted(known.keys() - self.placements.keys())]
