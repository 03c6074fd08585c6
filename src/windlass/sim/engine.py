"""Plays a scenario through the deciding core: the same `apply` and `decide` that the platform uses.

A snapshot is built once. Then, moment by moment: everything that happens at that moment becomes
events, `decide` answers, and the answer is carried out: placements start, evicted units stop after
their grace and wait again without the work since their last checkpoint, nominations go back in as
facts. The clock moves to the next thing that happens or to the decision's `wake_at`. No randomness
and no real clock: the same scenario and variant give the same outcome.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Protocol, TypeGuard

from windlass.core import alike, cycle, state
from windlass.core.facts import Decision, Eviction, Placement, Running, Seat, Unit
from windlass.sim import pricing, windows
from windlass.sim.live import Attempt, How, Live, Record
from windlass.sim.measures import Outcome, Timeline
from windlass.sim.scenario import FOREVER, Scenario, merged
from windlass.sim.usage import Usage
from windlass.sim.variants import Variant

_END, _FAIL, _TIMEOUT, _LEFT, _GIVE_UP, _DOWN, _UP, _ARRIVE = range(8)
"""What can happen; at the same moment in this order: room is given back before it is asked for."""
_IDLE_WAKES = 100
"""When nothing is left but to wait, so many decisions by time alone are made before it ends."""
_LATE_LEFT = 60.0
"""Seconds that a unit is said to need when it is stopped after more work than it spoke of."""


class Checker(Protocol):
    """Looks at every decision after it was carried out; raises when a rule is broken."""

    def before(self, snapshot: state.Snapshot, decision: Decision, now: float) -> None: ...

    def after(self, snapshot: state.Snapshot, decision: Decision, now: float) -> None: ...

    def started(self, record: Record, now: float) -> None: ...

    def idle(self, decision: Decision, now: float) -> None: ...


def run(
    scenario: Scenario,
    variant: Variant,
    *,
    checker: Checker | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Plays it to its end; `progress` is told (jobs ended, jobs)."""
    simulation = Simulation(scenario, variant, checker)
    while simulation.step():
        if progress is not None:
            progress(simulation.ended, len(simulation.records))
    return simulation.outcome()


class Simulation:
    def __init__(
        self, scenario: Scenario, variant: Variant, checker: Checker | None = None
    ) -> None:
        self.scenario, self.variant, self.checker = scenario, variant, checker
        self.costs = scenario.costs
        self.policy = variant.policy()
        self.prices = pricing.Prices(scenario.facts.nodes)
        self.now = scenario.start
        self.records = {
            job.unit.key: Record(dataclasses.replace(job, unit=self._unit(job.unit)))
            for job in scenario.jobs
        }
        self.live: dict[str, Live] = {}
        self.broken: dict[str, float] = {}
        """Gangs that lost members with a node and were not completed yet, and since when."""
        self.ended = 0
        self.decisions = 0
        self._last: cycle.Cycle | None = None
        self.snapshot = self._built()
        self.timeline = Timeline(self.snapshot, [job.unit for job in scenario.jobs])
        self.usage = Usage(self.snapshot, self.timeline.resource)
        self._heap: list[tuple[float, int, int, str, int]] = []
        self._pushed = 0
        self._wake: float | None = scenario.start
        self._idle = 0
        self._checkpoints: list[tuple[float, str, int]] = []
        self._stops_happen = self._may_preempt()
        self._begin()

    def _unit(self, unit: Unit) -> Unit:
        unit = self.variant.unit(unit)
        return windows.with_grace(unit, self.scenario.facts, self.costs.grace)

    # --- the loop

    def step(self) -> bool:
        """One moment: what happens, what is decided, what follows. False at the end."""
        at = self._next_moment()
        if at is None:
            return False
        self.now = at
        state.apply(self.snapshot, [state.Elapsed(self.now)])
        events = [*self._happenings(), *self._saved_states()]
        self._apply(events)
        if self._changes_nothing(events):
            self._check_that_nothing_changes()
        else:
            while self._decide():
                pass
        self.timeline.note(self.now, self.snapshot)
        self.usage.note(self.now, self.snapshot)
        return True

    def outcome(self) -> Outcome:
        for live in self.live.values():
            live.pays(self.now, live.fee)
            attempt = live.record.attempts[-1]
            attempt.holds(self.now, attempt.held)
        last = cycle.decide(self.snapshot, self.now, self.policy)
        return Outcome(
            self.scenario.name, self.variant.name,
            tuple(each for each in self.records.values() if each.job.unit.kin is not None),
            self.timeline,
            self.usage,
            self.scenario.start, self.now, self.decisions,
            {verdict.unit: verdict.message for verdict in last.verdicts},
            self.prices.total,
        )  # fmt: skip

    def _next_moment(self) -> float | None:
        self._forget_what_came_otherwise()
        wake = self._wake
        if self._heap:
            self._idle = 0
            happens = self._heap[0][0]
            return happens if wake is None else max(self.now, min(wake, happens))
        self._idle += 1
        return None if wake is None or self._idle > _IDLE_WAKES else max(self.now, wake)

    def _forget_what_came_otherwise(self) -> None:
        """What was due and will not happen is no moment: nothing is decided then."""
        while self._heap:
            at, what, _, key, version = self._heap[0]
            live = self.live.get(key)
            if what in (_ARRIVE, _DOWN, _UP) or self._is_due(live, at, what, version):
                return
            heapq.heappop(self._heap)

    def _changes_nothing(self, events: list[state.Event]) -> bool:
        """Whether all that happened is that units came which will wait, as the last decision says
        of others like them, and time alone changes nothing yet."""
        last = self._last
        if last is None or not events or (self._wake is not None and self._wake <= self.now):
            return False
        return all(isinstance(each, state.Waits) and alike.joins(last, each.unit, self.now)
                   for each in events)  # fmt: skip

    def _check_that_nothing_changes(self) -> None:
        if self.checker is not None:
            decision = cycle.decide(self.snapshot, self.now, self.policy)
            self.checker.idle(decision, self.now)

    def _decide(self) -> bool:
        """Decides and carries out. True when it must be asked again at the same moment."""
        made = self._last = cycle.run(self.snapshot, self.now, self.policy)
        decision = made.decision(told=self.checker is not None)
        self.decisions += 1
        if self.checker is not None:
            self.checker.before(self.snapshot, decision, self.now)
        self._apply(self._carry_out(decision))
        if self.checker is not None:
            self.checker.after(self.snapshot, decision, self.now)
        self._wake = decision.wake_at
        if decision.placements or decision.evictions:
            self._idle = 0
        return bool(decision.placements) and made.unresolved

    # --- what happens

    def _happenings(self) -> list[state.Event]:
        events: list[state.Event] = []
        while self._heap and self._heap[0][0] <= self.now:
            at, what, _, key, version = heapq.heappop(self._heap)
            if what == _ARRIVE:
                events += self._arrives(self.records[key])
            elif what in (_DOWN, _UP):
                events += self._node_turns(key, up=what == _UP)
            elif self._is_due(live := self.live.get(key), at, what, version):
                events += self._happens_to(live, what)
        return events

    def _is_due(self, live: Live | None, at: float, what: int, version: int) -> TypeGuard[Live]:
        """Whether what was once due for a unit still is, or meanwhile it came otherwise."""
        if live is None:
            return False
        if what in (_END, _FAIL):
            return version == live.version
        if version != live.attempt:
            return False
        if what == _TIMEOUT:
            return True
        if what == _LEFT:
            return bool(live.running.leaving)
        # A gang that was whole again, and lost others since, has until later.
        return live.key in self.broken and at >= self.broken[live.key] + self.costs.repair

    def _happens_to(self, live: Live, what: int) -> list[state.Event]:
        if what == _END:
            return self._ends(live)
        if what == _FAIL:
            return self._fails(live)
        if what == _TIMEOUT:
            return self._times_out(live)
        if what == _LEFT:
            return self._has_left(live)
        return self._back_to_queue(live, "node lost")

    def _arrives(self, record: Record) -> list[state.Event]:
        record.waits(self.now)
        return [state.Waits(record.job.unit)]

    def _ends(self, live: Live) -> list[state.Event]:
        self._let_go(live, "finished")
        live.record.end = self.now
        self.ended += 1
        return [state.Gone(live.key, live.record.ran)]

    def _times_out(self, live: Live) -> list[state.Event]:
        """The attempt ran as long as it may: as on the platform, there is no other one."""
        self._let_go(live, "timeout")
        live.record.timed_out = self.now
        self.ended += 1
        return [state.Gone(live.key)]

    def _fails(self, live: Live) -> list[state.Event]:
        live.record.failed += 1
        return self._back_to_queue(live, "failed", self.now + self.costs.backoff)

    def _has_left(self, live: Live) -> list[state.Event]:
        """The grace of members that were told to go is over."""
        running = live.running
        rest = tuple(s for s in running.seats if (s.role, s.index) not in running.leaving)
        if len(rest) == len(running.seats):
            return []
        if not rest:
            if not live.moves:
                live.record.preempted += 1
            return self._back_to_queue(live, "moved" if live.moves else "preempted")
        live.running = dataclasses.replace(live.running, shrunk_at=self.now)
        live.record.shrunk += 1
        return [self._reseat(live, rest)]

    def _node_turns(self, name: str, *, up: bool) -> list[state.Event]:
        """A node is lost with everything on it, or comes back empty."""
        place = self.snapshot.cluster.index.get(name)
        if place is None:
            return []
        node = self.snapshot.cluster.nodes[place]
        events: list[state.Event] = [state.NodePut(dataclasses.replace(node, ready=up))]
        hit = [] if up else [one for one in self.live.values() if _sits_on(one.running, name)]
        for live in hit:
            rest = tuple(seat for seat in live.running.seats if seat.node != name)
            live.roll_back(self.now, self.costs.checkpoint)
            if not rest:
                events += self._back_to_queue(live, "node lost")
                continue
            events.append(self._reseat(live, rest))
            if live.rate <= 0:
                self.broken[live.key] = self.now
                self._push(self.now + self.costs.repair, _GIVE_UP, live.key, live.attempt)
        return events

    def _back_to_queue(self, live: Live, how: How, not_before: float = 0.0) -> list[state.Event]:
        """An attempt is over before its work is done: it waits again for the rest."""
        live.roll_back(self.now, self.costs.checkpoint)
        self._let_go(live, how)
        record, unit = live.record, live.record.job.unit
        record.saved = live.done
        record.waits(self.now)
        waits = dataclasses.replace(
            unit, attained=record.ran, expected=self._said_to_be_left(live), not_before=not_before,
            moved=tuple(record.moved), preemptions=record.preempted,
        )  # fmt: skip
        return [state.Waits(waits)]

    def _said_to_be_left(self, live: Live) -> float | None:
        """What the scheduler can know: what the unit said, less the work that is kept. The truth
        about its duration is not told."""
        said = live.record.job.unit.expected
        if said is None:
            return None
        left = said - live.done
        return (left if left > 0 else _LATE_LEFT) + self.costs.restart

    def _let_go(self, live: Live, how: How) -> None:
        del self.live[live.key]
        attempt = live.record.attempts[-1]
        attempt.holds(self.now, 0.0)
        attempt.ended, attempt.how = self.now, how
        live.pays(self.now, 0.0)
        self.broken.pop(live.key, None)
        live.record.ran += self.now - live.running.started

    # --- what was decided

    def _carry_out(self, decision: Decision) -> list[state.Event]:
        events: list[state.Event] = []
        for placement in decision.placements:
            live = self.live.get(placement.unit)
            if live is not None:
                events.append(self._joins(live, placement))
                continue
            events.append(self._starts(placement))
            if placement.unit in self.snapshot.nominations:
                events.append(state.NominationGone(placement.unit))
        for eviction in decision.evictions:
            events += self._must_go(eviction)
        events += self._promises(decision)
        self._note_reservations(decision)
        if decision.reservations != self.snapshot.reservations:
            events.append(state.Promised(decision.reservations))
        return events

    def _starts(self, placement: Placement) -> state.Event:
        unit = self.snapshot.waiting[placement.unit]
        record = self.records[unit.key]
        again = record.first_start is not None
        record.starts(self.now)
        if self.checker is not None:
            self.checker.started(record, self.now)
        running = Running(
            unit,
            placement.seats,
            self.now,
            self._expected_end(unit),
            self.now + self._min_runtime(unit),
            self.now,
        )
        live = self._goes_live(record, running, self.now + (self.costs.restart if again else 0.0))
        self._save_later(live)
        return state.Holds(running)

    def _expected_end(self, unit: Unit) -> float | None:
        """As far as its own word is believed."""
        estimate = self.snapshot.history.estimate(unit)
        return None if estimate is None else self.now + estimate

    def _goes_live(self, record: Record, running: Running, loaded: float) -> Live:
        self._pushed += 1
        live = Live(
            record, running, self.now, record.saved, loaded=loaded, saved=record.saved,
            attempt=self._pushed,
        )  # fmt: skip
        self.live[live.key] = live
        live.pays(self.now, self.prices.fee(running.unit, running.seats))
        self._works_on(live)
        if record.job.longest != FOREVER:
            until = running.started + record.job.longest
            self._push(max(self.now, until), _TIMEOUT, live.key, live.attempt)
        return live

    def _joins(self, live: Live, placement: Placement) -> state.Event:
        """More members: an elastic unit grows, or a broken gang is whole again."""
        event = self._reseat(live, (*live.running.seats, *placement.seats))
        if live.rate > 0 and self.broken.pop(live.key, None) is not None:
            live.loaded = self.now + self.costs.restart
            self._works_on(live)
        return event

    def _must_go(self, eviction: Eviction) -> list[state.Event]:
        live = self.live.get(eviction.unit)
        if live is None:
            return []
        if eviction.move:
            live.moves = True
            live.record.moved.append((self.now, eviction.gainer))
        leaving = tuple(sorted({*live.running.leaving, *eviction.seats}))
        live.running = dataclasses.replace(live.running, leaving=leaving)
        self._push(self.now + self.costs.grace, _LEFT, live.key, live.attempt)
        return [state.Holds(live.running)]

    def _apply(self, events: list[state.Event]) -> None:
        """Carries events into the snapshot and into what is written down about it."""
        state.apply(self.snapshot, events)
        self.usage.happened(events, self.snapshot)
        for event in events:
            if isinstance(event, state.Holds):
                self._note_held(event.running)

    def _note_held(self, running: Running) -> None:
        amount = self.snapshot.held[running.unit.key].get(self.timeline.resource, 0)
        nodes = (seat.node for seat in running.seats)
        self.records[running.unit.key].attempts[-1].holds(self.now, amount / 1000, nodes)

    def _note_reservations(self, decision: Decision) -> None:
        """First firm reservations, and those that are withdrawn."""
        for each in decision.withdrawals:
            attempt = self.records[each.unit].attempts[-1]
            if attempt.withdrawn is None:
                attempt.withdrawn, attempt.withdrawn_because = self.now, each.reason
        for reservation in decision.reservations:
            attempt = self.records[reservation.unit].attempts[-1]
            if reservation.firm and attempt.reserved is None:
                attempt.reserved = reservation.start

    def _promises(self, decision: Decision) -> list[state.Event]:
        """Nominations are facts for the next decision: new ones, and those given up."""
        known = self.snapshot.nominations
        made = {nomination.unit: nomination for nomination in decision.nominations}
        placed = {placement.unit for placement in decision.placements}
        fresh = (nomination for unit, nomination in made.items() if known.get(unit) != nomination)
        gone = (unit for unit in known if unit not in made and unit not in placed)
        return [*map(state.Nominated, fresh), *map(state.NominationGone, gone)]

    # --- parts

    def _reseat(self, live: Live, seats: tuple[Seat, ...]) -> state.Event:
        """The unit goes on with other members than before."""
        live.turn(self.now, self.costs.checkpoint, seats)
        live.pays(self.now, self.prices.fee(live.running.unit, seats))
        self._works_on(live)
        return state.Holds(live.running)

    def _works_on(self, live: Live) -> None:
        """Schedules what will happen to it by itself, in place of what was scheduled before."""
        self._pushed += 1
        live.version = self._pushed
        found = live.next(self.now)
        if found is not None:
            at, fails = found
            self._push(at, _FAIL if fails else _END, live.key, live.version)

    def _push(self, at: float, what: int, key: str, version: int = 0) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (at, what, self._pushed, key, version))

    def _save_later(self, live: Live) -> None:
        interval = self.costs.checkpoint
        if interval and self._stops_happen:
            entry = (live.running.started + interval, live.key, live.attempt)
            heapq.heappush(self._checkpoints, entry)

    def _saved_states(self) -> list[state.Event]:
        """Checkpoints since the last decision: told before the next, they cause none."""
        events: list[state.Event] = []
        interval = self.costs.checkpoint or 0.0
        while self._checkpoints and self._checkpoints[0][0] <= self.now:
            _, key, attempt = heapq.heappop(self._checkpoints)
            live = self.live.get(key)
            if live is None or live.attempt != attempt:
                continue
            at = live.checkpoint(self.now, interval)
            live.running = dataclasses.replace(live.running, checkpoint_at=at)
            due = live.next_checkpoint(self.now, interval)
            heapq.heappush(self._checkpoints, (due, key, attempt))
            events.append(state.Saved(key, at))
        return events

    def _min_runtime(self, unit: Unit) -> float:
        queue = self.snapshot.queues.get(unit.queue)
        return queue.min_runtime if queue is not None else 0.0

    def _may_preempt(self) -> bool:
        """Whether anybody can ever be stopped for another; if not, checkpoints interest nobody."""
        if self.scenario.facts.advance:
            return True
        if not (self.policy.preempt or self.policy.reclaim):
            return False
        queues = self.snapshot.queues.values()
        units = [record.job.unit for record in self.records.values()]
        return (
            len({unit.priority for unit in units}) > 1
            or any(queue.guarantee or queue.order == "attained" for queue in queues)
            or any(role.most > role.least for unit in units for role in unit.roles)
            or any(unit.movable for unit in units)
        )

    # --- the beginning

    def _built(self) -> state.Snapshot:
        facts = self.scenario.facts
        return state.build(
            dataclasses.replace(
                facts,
                queues=tuple(map(self.variant.queue, facts.queues)),
                waiting=tuple(map(self.variant.unit, facts.waiting)),
            )
        )

    def _begin(self) -> None:
        for running in self.scenario.facts.running:
            record = self.records[running.unit.key]
            record.first_start = running.started
            attempt = Attempt(running.unit.submitted, running.started, how="running")
            attempt.since = self.now
            record.attempts.append(attempt)
            self._save_later(self._goes_live(record, running, self.now))
            self._note_held(running)
        present = self.scenario.present()
        for unit in self.scenario.facts.waiting:
            self.records[unit.key].waits(min(unit.submitted, self.now))
        for job in self.scenario.jobs:
            if job.unit.key not in present:
                self._push(job.unit.submitted, _ARRIVE, job.unit.key)
        for outage in merged(self.scenario.outages):
            self._push(outage.at, _DOWN, outage.node)
            if outage.until != FOREVER:
                self._push(outage.until, _UP, outage.node)


def _sits_on(running: Running, node: str) -> bool:
    return any(seat.node == node for seat in running.seats)
