"""Plays a scenario through the deciding core: the same `apply` and `decide` that the platform uses.

A snapshot is built once. Then, moment by moment: everything that happens at that moment becomes
events, `decide` answers, and the answer is carried out: placements start, evicted workloads stop
after their grace and wait again without the work since their last checkpoint, nominations go back
in as facts. The clock moves to the next thing that happens or to the decision's `wake_at`. No
randomness and no real clock: the same scenario and variant give the same outcome.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable
from typing import Protocol, TypeGuard

from windlass.core.cycle import cycle
from windlass.core.model.types import (
    Decision,
    Eviction,
    Placement,
    PodAssignment,
    Running,
    Workload,
)
from windlass.core.prefilter import equivalence_cache
from windlass.core.snapshot.snapshot import (
    CheckpointSaved,
    Elapsed,
    Event,
    NodePut,
    Nominated,
    NominationGone,
    ReservationsPut,
    RunningPut,
    Snapshot,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.sim import cost
from windlass.sim.inputs import reservation_windows
from windlass.sim.job_progress import Attempt, How, Live, Record
from windlass.sim.metrics.metrics import Outcome, Timeline
from windlass.sim.metrics.usage import Usage
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import FOREVER, Scenario, merged

_END, _FAIL, _TIMEOUT, _LEFT, _GIVE_UP, _DOWN, _UP, _ARRIVE = range(8)
"""What can happen; at the same moment in this order: capacity is given back before it is asked
for."""
_IDLE_WAKES = 100
"""When nothing is left but to wait, so many decisions by time alone are made before it ends."""
_LATE_LEFT = 60.0
"""The remaining seconds of a workload that is stopped after more work than its estimate."""


class Checker(Protocol):
    """Checks every decision after it was carried out; raises when a rule is broken."""

    def before(self, snapshot: Snapshot, decision: Decision, now: float) -> None: ...

    def after(self, snapshot: Snapshot, decision: Decision, now: float) -> None: ...

    def started(self, record: Record, now: float) -> None: ...

    def idle(self, decision: Decision, now: float) -> None: ...


def run(
    scenario: Scenario,
    variant: Variant,
    *,
    checker: Checker | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Simulates a scenario to its end and returns the outcome; calls `progress` with (jobs ended,
    jobs)."""
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
        self.prices = cost.Prices(scenario.facts.nodes)
        self.now = scenario.start
        self.records = {
            job.workload.key: Record(
                dataclasses.replace(job, workload=self._workload(job.workload))
            )
            for job in scenario.jobs
        }
        self.live: dict[str, Live] = {}
        self.broken: dict[str, float] = {}
        """Gangs that lost pods with a node and were not completed yet, and since when."""
        self.ended = 0
        self.decisions = 0
        self._last: cycle.Cycle | None = None
        self.snapshot = self._built()
        self.timeline = Timeline(self.snapshot, [job.workload for job in scenario.jobs])
        self.usage = Usage(self.snapshot, self.timeline.resource)
        self._heap: list[tuple[float, int, int, str, int]] = []
        self._pushed = 0
        self._wake: float | None = scenario.start
        self._idle = 0
        self._checkpoints: list[tuple[float, str, int]] = []
        self._stops_happen = self._may_preempt()
        self._begin()

    def _workload(self, workload: Workload) -> Workload:
        workload = self.variant.workload(workload)
        return reservation_windows.with_grace(workload, self.scenario.facts, self.costs.grace)

    # --- the loop

    def step(self) -> bool:
        """One moment: what happens, what is decided, what follows. False at the end."""
        at = self._next_moment()
        if at is None:
            return False
        self.now = at
        apply(self.snapshot, [Elapsed(self.now)])
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
            attempt.holds(self.now, attempt.allocated)
        last = cycle.decide(self.snapshot, self.now, self.policy)
        return Outcome(
            self.scenario.name, self.variant.name,
            tuple(
                each
                for each in self.records.values()
                if each.job.workload.history_key is not None
            ),
            self.timeline,
            self.usage,
            self.scenario.start, self.now, self.decisions,
            {verdict.workload: verdict.message for verdict in last.verdicts},
            self.prices.total,
        )  # fmt: skip

    def _next_moment(self) -> float | None:
        self._drop_departed()
        wake = self._wake
        if self._heap:
            self._idle = 0
            happens = self._heap[0][0]
            return happens if wake is None else max(self.now, min(wake, happens))
        self._idle += 1
        return None if wake is None or self._idle > _IDLE_WAKES else max(self.now, wake)

    def _drop_departed(self) -> None:
        """What was due and will not happen is no moment: nothing is decided then."""
        while self._heap:
            at, what, _, key, version = self._heap[0]
            live = self.live.get(key)
            if what in (_ARRIVE, _DOWN, _UP) or self._is_due(live, at, what, version):
                return
            heapq.heappop(self._heap)

    def _changes_nothing(self, events: list[Event]) -> bool:
        """Whether all that happened is that workloads came which will wait, because the last
        decision refused their equivalence class, and time alone changes nothing yet."""
        last = self._last
        if last is None or not events or (self._wake is not None and self._wake <= self.now):
            return False
        return all(
            isinstance(each, WaitingPut)
            and equivalence_cache.joins(last.state, each.workload, self.now)
            for each in events
        )

    def _check_that_nothing_changes(self) -> None:
        if self.checker is not None:
            decision = cycle.decide(self.snapshot, self.now, self.policy)
            self.checker.idle(decision, self.now)

    def _decide(self) -> bool:
        """Decides and carries out. True when it must be asked again at the same moment."""
        made = self._last = cycle.run(self.snapshot, self.now, self.policy)
        decision = made.decision(verdicts=self.checker is not None)
        self.decisions += 1
        if self.checker is not None:
            self.checker.before(self.snapshot, decision, self.now)
        self._apply(self._carry_out(decision))
        if self.checker is not None:
            self.checker.after(self.snapshot, decision, self.now)
        self._wake = decision.wake_at
        if decision.placements or decision.evictions:
            self._idle = 0
        return bool(decision.placements) and made.state.unresolved

    # --- what happens

    def _happenings(self) -> list[Event]:
        events: list[Event] = []
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
        """Whether what was once due for a workload still is, or meanwhile it came otherwise."""
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

    def _happens_to(self, live: Live, what: int) -> list[Event]:
        if what == _END:
            return self._ends(live)
        if what == _FAIL:
            return self._fails(live)
        if what == _TIMEOUT:
            return self._times_out(live)
        if what == _LEFT:
            return self._has_left(live)
        return self._back_to_queue(live, "node lost")

    def _arrives(self, record: Record) -> list[Event]:
        record.waits(self.now)
        return [WaitingPut(record.job.workload)]

    def _ends(self, live: Live) -> list[Event]:
        self._let_go(live, "finished")
        live.record.end = self.now
        self.ended += 1
        return [WorkloadGone(live.key, live.record.ran)]

    def _times_out(self, live: Live) -> list[Event]:
        """The attempt ran as long as it may: as on the platform, there is no other one."""
        self._let_go(live, "timeout")
        live.record.timed_out = self.now
        self.ended += 1
        return [WorkloadGone(live.key)]

    def _fails(self, live: Live) -> list[Event]:
        live.record.failed += 1
        return self._back_to_queue(live, "failed", self.now + self.costs.backoff)

    def _has_left(self, live: Live) -> list[Event]:
        """The grace of pods that were evicted is over."""
        running = live.running
        rest = tuple(s for s in running.pods if (s.role, s.index) not in running.leaving)
        if len(rest) == len(running.pods):
            return []
        if not rest:
            if not live.moves:
                live.record.preempted += 1
            return self._back_to_queue(live, "moved" if live.moves else "preempted")
        live.running = dataclasses.replace(live.running, shrunk_at=self.now)
        live.record.shrunk += 1
        return [self._reseat(live, rest)]

    def _node_turns(self, name: str, *, up: bool) -> list[Event]:
        """A node is lost with everything on it, or comes back empty."""
        place = self.snapshot.cluster.index.get(name)
        if place is None:
            return []
        node = self.snapshot.cluster.nodes[place]
        events: list[Event] = [NodePut(dataclasses.replace(node, ready=up))]
        hit = [] if up else [one for one in self.live.values() if _uses_node(one.running, name)]
        for live in hit:
            rest = tuple(pod for pod in live.running.pods if pod.node != name)
            live.roll_back(self.now, self.costs.checkpoint)
            if not rest:
                events += self._back_to_queue(live, "node lost")
                continue
            events.append(self._reseat(live, rest))
            if live.rate <= 0:
                self.broken[live.key] = self.now
                self._push(self.now + self.costs.repair, _GIVE_UP, live.key, live.attempt)
        return events

    def _back_to_queue(self, live: Live, how: How, not_before: float = 0.0) -> list[Event]:
        """An attempt is over before its work is done: it waits again for the rest."""
        live.roll_back(self.now, self.costs.checkpoint)
        self._let_go(live, how)
        record, workload = live.record, live.record.job.workload
        record.saved = live.done
        record.waits(self.now)
        waits = dataclasses.replace(
            workload,
            attained=record.ran,
            expected=self._estimated_rest(live),
            not_before=not_before,
            moved=tuple(record.moved),
            preemptions=record.preempted,
        )
        return [WaitingPut(waits)]

    def _estimated_rest(self, live: Live) -> float | None:
        """The remaining time that the scheduler can know: the estimate, less the work that is kept.
        The true duration stays unknown to it."""
        estimate = live.record.job.workload.expected
        if estimate is None:
            return None
        left = estimate - live.done
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

    def _carry_out(self, decision: Decision) -> list[Event]:
        events: list[Event] = []
        for placement in decision.placements:
            live = self.live.get(placement.workload)
            if live is not None:
                events.append(self._joins(live, placement))
                continue
            events.append(self._starts(placement))
            if placement.workload in self.snapshot.nominations:
                events.append(NominationGone(placement.workload))
        for eviction in decision.evictions:
            events += self._must_go(eviction)
        events += self._reservation_events(decision)
        self._note_reservations(decision)
        if decision.reservations != self.snapshot.reservations:
            events.append(ReservationsPut(decision.reservations))
        return events

    def _starts(self, placement: Placement) -> Event:
        workload = self.snapshot.waiting[placement.workload]
        record = self.records[workload.key]
        again = record.first_start is not None
        record.starts(self.now)
        if self.checker is not None:
            self.checker.started(record, self.now)
        running = Running(
            workload,
            placement.pods,
            self.now,
            self._expected_end(workload),
            self.now + self._min_runtime(workload),
            self.now,
        )
        live = self._goes_live(record, running, self.now + (self.costs.restart if again else 0.0))
        self._save_later(live)
        return RunningPut(running)

    def _expected_end(self, workload: Workload) -> float | None:
        """The expected end by the estimate, as far as it is trusted."""
        estimate = self.snapshot.history.estimate(workload)
        return None if estimate is None else self.now + estimate

    def _goes_live(self, record: Record, running: Running, loaded: float) -> Live:
        self._pushed += 1
        live = Live(
            record, running, self.now, record.saved, loaded=loaded, saved=record.saved,
            attempt=self._pushed,
        )  # fmt: skip
        self.live[live.key] = live
        live.pays(self.now, self.prices.fee(running.workload, running.pods))
        self._works_on(live)
        if record.job.longest != FOREVER:
            until = running.started + record.job.longest
            self._push(max(self.now, until), _TIMEOUT, live.key, live.attempt)
        return live

    def _joins(self, live: Live, placement: Placement) -> Event:
        """More pods: an elastic workload grows, or a broken gang is whole again."""
        event = self._reseat(live, (*live.running.pods, *placement.pods))
        if live.rate > 0 and self.broken.pop(live.key, None) is not None:
            live.loaded = self.now + self.costs.restart
            self._works_on(live)
        return event

    def _must_go(self, eviction: Eviction) -> list[Event]:
        live = self.live.get(eviction.workload)
        if live is None:
            return []
        if eviction.move:
            live.moves = True
            live.record.moved.append((self.now, eviction.preemptor))
        leaving = tuple(sorted({*live.running.leaving, *eviction.pods}))
        live.running = dataclasses.replace(live.running, leaving=leaving)
        self._push(self.now + self.costs.grace, _LEFT, live.key, live.attempt)
        return [RunningPut(live.running)]

    def _apply(self, events: list[Event]) -> None:
        """Carries events into the snapshot and into what is written down about it."""
        apply(self.snapshot, events)
        self.usage.happened(events, self.snapshot)
        for event in events:
            if isinstance(event, RunningPut):
                self._note_allocated(event.running)

    def _note_allocated(self, running: Running) -> None:
        amount = self.snapshot.usage[running.workload.key].get(self.timeline.resource, 0)
        nodes = (pod.node for pod in running.pods)
        self.records[running.workload.key].attempts[-1].holds(self.now, amount / 1000, nodes)

    def _note_reservations(self, decision: Decision) -> None:
        """First firm reservations, and those that are withdrawn."""
        for each in decision.withdrawals:
            attempt = self.records[each.workload].attempts[-1]
            if attempt.withdrawn is None:
                attempt.withdrawn, attempt.withdrawn_because = self.now, each.reason
        for reservation in decision.reservations:
            attempt = self.records[reservation.workload].attempts[-1]
            if reservation.firm and attempt.reserved is None:
                attempt.reserved = reservation.start

    def _reservation_events(self, decision: Decision) -> list[Event]:
        """Nominations are facts for the next decision: new ones, and those given up."""
        known = self.snapshot.nominations
        made = {nomination.workload: nomination for nomination in decision.nominations}
        placed = {placement.workload for placement in decision.placements}
        fresh = (
            nomination for workload, nomination in made.items() if known.get(workload) != nomination
        )
        gone = (workload for workload in known if workload not in made and workload not in placed)
        return [*map(Nominated, fresh), *map(NominationGone, gone)]

    # --- parts

    def _reseat(self, live: Live, pods: tuple[PodAssignment, ...]) -> Event:
        """The workload continues with other pods than before."""
        live.turn(self.now, self.costs.checkpoint, pods)
        live.pays(self.now, self.prices.fee(live.running.workload, pods))
        self._works_on(live)
        return RunningPut(live.running)

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

    def _saved_states(self) -> list[Event]:
        """Checkpoints since the last decision. They are applied before the next decision and cause
        none."""
        events: list[Event] = []
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
            events.append(CheckpointSaved(key, at))
        return events

    def _min_runtime(self, workload: Workload) -> float:
        queue = self.snapshot.queues.get(workload.queue)
        return queue.min_runtime if queue is not None else 0.0

    def _may_preempt(self) -> bool:
        """Whether any workload can ever be preempted; if not, checkpoints do not matter."""
        if self.scenario.facts.advance:
            return True
        if not (self.policy.preempt or self.policy.reclaim):
            return False
        queues = self.snapshot.queues.values()
        workloads = [record.job.workload for record in self.records.values()]
        return (
            len({workload.priority for workload in workloads}) > 1
            or any(queue.guarantee or queue.order == "attained" for queue in queues)
            or any(
                role.max_count > role.min_count for workload in workloads for role in workload.roles
            )
            or any(workload.movable for workload in workloads)
        )

    # --- the beginning

    def _built(self) -> Snapshot:
        facts = self.scenario.facts
        return build(
            dataclasses.replace(
                facts,
                queues=tuple(map(self.variant.queue, facts.queues)),
                waiting=tuple(map(self.variant.workload, facts.waiting)),
            )
        )

    def _begin(self) -> None:
        for running in self.scenario.facts.running:
            record = self.records[running.workload.key]
            record.first_start = running.started
            attempt = Attempt(running.workload.submitted, running.started, how="running")
            attempt.since = self.now
            record.attempts.append(attempt)
            self._save_later(self._goes_live(record, running, self.now))
            self._note_allocated(running)
        present = self.scenario.present()
        for workload in self.scenario.facts.waiting:
            self.records[workload.key].waits(min(workload.submitted, self.now))
        for job in self.scenario.jobs:
            if job.workload.key not in present:
                self._push(job.workload.submitted, _ARRIVE, job.workload.key)
        for outage in merged(self.scenario.outages):
            self._push(outage.at, _DOWN, outage.node)
            if outage.until != FOREVER:
                self._push(outage.until, _UP, outage.node)


def _uses_node(running: Running, node: str) -> bool:
    return any(pod.node == node for pod in running.pods)
