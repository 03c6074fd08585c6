"""I15: what advance reservations promise, whatever the cluster, the windows and the events."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import assume, given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants, windows
from tests.properties.settings import CAMPAIGN, cases
from windlass.core import advance_invariants, cycle, state
from windlass.core import invariants as watched
from windlass.core.facts import Decision, Facts, Policy, Seat, Unit, Verdict

pytestmark = CAMPAIGN
NOW = windows.NOW
LONG = 1e7
ROUNDS = 8
TIMER = 1e-3
"""Seconds that a timer is exact to: within them what ends now has ended, or has not."""


@cases(250, 4000)
@given(st.data(), windows.worlds(), generators.policies)
def test_every_decision_in_a_history_keeps_out_of_windows(
    data: st.DataObject, facts: Facts, policy: Policy
) -> None:
    """Decide, carry out, let something happen, let time pass; the snapshot follows by events and
    must answer as a fresh one. Nobody is placed, or promised a start, where a window closes."""
    snapshot, now = state.build(facts), NOW
    for _ in range(data.draw(st.integers(1, 4))):
        decision = cycle.decide(snapshot, now, policy)
        fresh = state.build(snapshot.facts(), snapshot.history)
        assert repr(decision) == repr(cycle.decide(fresh, now, policy))
        note(f"{now} {decision}")
        invariants.check(facts, decision, carry.carry_out(facts, decision, now))
        assert watched.broken(snapshot, decision, now) == []
        _starts_keep_out(facts, decision, now)
        happenings = carry.steps(facts, decision, now)
        facts = carry.after(facts, happenings)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        state.apply(snapshot, [*happenings, *left])
        event = windows.event(facts, data.draw(st.integers(0, 1 << 32)), now)
        note(f"{event}")
        facts = carry.after(facts, [event])
        state.apply(snapshot, [event])
        pause = data.draw(st.sampled_from((0.0, 10.0, None, None, 1000.0)))
        wake = decision.wake_at if decision.wake_at is not None else now
        now = wake if pause is None else now + pause


def _starts_keep_out(facts: Facts, decision: Decision, now: float) -> None:
    waiting = {unit.key: unit for unit in facts.waiting}
    for promise in decision.reservations:
        _keeps_out(facts, waiting[promise.unit], promise.seats, max(now, promise.start))
    for nomination in decision.nominations:
        _keeps_out(facts, waiting[nomination.unit], nomination.seats, now)


def _keeps_out(facts: Facts, unit: Unit, seats: tuple[Seat, ...], start: float) -> None:
    queues, nodes = {q.name: q for q in facts.queues}, {node.name: node for node in facts.nodes}
    for window in facts.advance:
        if window.end <= start or advance_invariants.may_use(window, queues, unit):
            continue
        if advance_invariants.runs_into(window, unit, start, start):
            there = [s.node for s in seats if advance_invariants.covers(window, nodes[s.node])]
            assert not there, f"{unit.key} from {start} on {there} in {window}"


@cases(250, 4000)
@given(windows.worlds(), generators.policies)
def test_in_a_window_nobody_else_is_on_its_nodes_but_who_cannot_be_stopped(
    facts: Facts, policy: Policy
) -> None:
    """Follows `wake_at` through the windows, as the live scheduler does."""
    snapshot, now = state.build(facts), NOW
    for _ in range(12):
        decision = cycle.decide(snapshot, now, policy)
        happenings = carry.steps(facts, decision, now)
        facts = carry.after(facts, happenings)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        state.apply(snapshot, [*happenings, *left])
        _nobody_else_is_there(facts, now)
        if decision.wake_at is None:
            break
        now = decision.wake_at


def _nobody_else_is_there(facts: Facts, now: float) -> None:
    queues, nodes = {q.name: q for q in facts.queues}, {node.name: node for node in facts.nodes}
    for window in facts.advance:
        for running in facts.running if window.start <= now < window.end else ():
            unit = running.unit
            if not unit.preemptible or advance_invariants.may_use(window, queues, unit):
                continue
            for seat in running.seats:
                there = seat.node in nodes and advance_invariants.covers(window, nodes[seat.node])
                assert not there, f"{unit.key} is on {seat.node} at {now}, in {window}"


@cases(250, 4000)
@given(st.data(), windows.worlds(), generators.policies, st.floats(0.001, 0.999))
def test_until_it_wakes_windows_change_nothing(
    data: st.DataObject, facts: Facts, policy: Policy, part: float
) -> None:
    """Time alone opens and closes windows only at moments that were named."""
    snapshot, now = state.build(facts), NOW
    for _ in range(data.draw(st.integers(1, 3))):
        event = windows.event(facts, data.draw(st.integers(0, 1 << 32)), now)
        facts = carry.after(facts, [event])
        state.apply(snapshot, [event])
        facts, decision = _settled(facts, snapshot, now, policy)
        assume(not decision.placements and not decision.evictions)
        later = now + part * (LONG if decision.wake_at is None else decision.wake_at - now)
        note(f"{now} {later} {decision}")
        assume(later - now > TIMER)
        again = cycle.decide(snapshot, later, policy)
        assert (again.placements, again.evictions) == ((), ())
        assert again.nominations == decision.nominations
        assert again.reservations == decision.reservations
        assert _reserved(again) == _reserved(decision)
        now = decision.wake_at if decision.wake_at is not None else now + 10.0


def _reserved(decision: Decision) -> list[Verdict]:
    """Who is told that a reservation is in the way."""
    return [v for v in decision.verdicts if v.reason == "ReservedUntil" and v.resource]


def _settled(
    facts: Facts, snapshot: state.Snapshot, now: float, policy: Policy
) -> tuple[Facts, Decision]:
    for _ in range(ROUNDS):
        decision = cycle.decide(snapshot, now, policy)
        done = carry.steps(facts, decision, now)
        facts = carry.after(facts, done)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        state.apply(snapshot, [*done, *left])
        if not (decision.placements or decision.evictions):
            break
    return facts, decision


@cases(60, 1500)
@given(windows.worlds(), generators.policies, st.integers(0, 1 << 30))
def test_the_order_in_which_windows_are_listed_does_not_matter(
    facts: Facts, policy: Policy, seed: int
) -> None:
    shuffled = generators.shuffled(facts, random.Random(seed))
    mixed = random.Random(seed).sample(facts.advance, len(facts.advance))
    shuffled = dataclasses.replace(shuffled, advance=tuple(mixed))
    decided = [cycle.decide(state.build(each), NOW, policy) for each in (facts, shuffled)]
    assert repr(decided[0]) == repr(decided[1])


@cases(60, 1500)
@given(windows.worlds(), generators.policies)
def test_windows_that_have_ended_are_as_if_they_had_never_been(
    facts: Facts, policy: Policy
) -> None:
    after = max(window.end for window in facts.advance)
    without = dataclasses.replace(facts, advance=())
    one, other = (cycle.decide(state.build(each), after, policy) for each in (facts, without))
    assert repr(one) == repr(other)
