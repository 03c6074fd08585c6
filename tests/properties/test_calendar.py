"""I15: the guarantees of advance reservations, whatever the cluster, the windows and the events."""

from __future__ import annotations

import dataclasses
import random
import re

from hypothesis import assume, given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants, windows
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.invariants import advance_reservations
from windlass.core.invariants import invariants as watched
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    PodAssignment,
    Policy,
    Verdict,
    Workload,
)
from windlass.core.snapshot.snapshot import Snapshot, apply, build

pytestmark = CAMPAIGN
NOW = windows.NOW
LONG = 1e7
ROUNDS = 8
TIMER = 1e-3
"""Seconds that a timer is exact to: within them what ends now has ended, or has not."""


@cases(250, 4000)
@given(st.data(), windows.worlds(), generators.policies)
def test_every_decision_in_a_history_keeps_out_of_windows(
    data: st.DataObject, facts: ClusterFacts, policy: Policy
) -> None:
    """Decide, carry out, let something happen, let time pass; the snapshot follows by events and
    must answer as a fresh one. No workload is placed, or gets a reservation, where a window
    closes."""
    snapshot, now = build(facts), NOW
    for _ in range(data.draw(st.integers(1, 4))):
        decision = cycle.decide(snapshot, now, policy)
        fresh = build(snapshot.facts(), snapshot.history)
        assert repr(decision) == repr(cycle.decide(fresh, now, policy))
        note(f"{now} {decision}")
        invariants.check(facts, decision, carry.carry_out(facts, decision, now))
        assert watched.broken(snapshot, decision, now) == []
        _starts_keep_out(facts, decision, now)
        happenings = carry.steps(facts, decision, now)
        facts = carry.after(facts, happenings)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        apply(snapshot, [*happenings, *left])
        event = windows.event(facts, data.draw(st.integers(0, 1 << 32)), now)
        note(f"{event}")
        facts = carry.after(facts, [event])
        apply(snapshot, [event])
        pause = data.draw(st.sampled_from((0.0, 10.0, None, None, 1000.0)))
        wake = decision.wake_at if decision.wake_at is not None else now
        now = wake if pause is None else now + pause


def _starts_keep_out(facts: ClusterFacts, decision: Decision, now: float) -> None:
    waiting = {workload.key: workload for workload in facts.waiting}
    for promise in decision.reservations:
        _keeps_out(facts, waiting[promise.workload], promise.pods, max(now, promise.start))
    for nomination in decision.nominations:
        _keeps_out(facts, waiting[nomination.workload], nomination.pods, now)


def _keeps_out(
    facts: ClusterFacts, workload: Workload, pods: tuple[PodAssignment, ...], start: float
) -> None:
    queues, nodes = {q.name: q for q in facts.queues}, {node.name: node for node in facts.nodes}
    for window in facts.advance:
        if window.end <= start or advance_reservations.may_use(window, queues, workload):
            continue
        if advance_reservations.runs_into(window, workload, start, start):
            there = [s.node for s in pods if advance_reservations.covers(window, nodes[s.node])]
            assert not there, f"{workload.key} from {start} on {there} in {window}"


@cases(250, 4000)
@given(windows.worlds(), generators.policies)
def test_in_a_window_only_non_preemptible_workloads_of_others_are_on_its_nodes(
    facts: ClusterFacts, policy: Policy
) -> None:
    """Follows `wake_at` through the windows, as the live scheduler does."""
    snapshot, now = build(facts), NOW
    for _ in range(12):
        decision = cycle.decide(snapshot, now, policy)
        happenings = carry.steps(facts, decision, now)
        facts = carry.after(facts, happenings)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        apply(snapshot, [*happenings, *left])
        _nobody_else_is_there(facts, now)
        if decision.wake_at is None:
            break
        now = decision.wake_at


def _nobody_else_is_there(facts: ClusterFacts, now: float) -> None:
    queues, nodes = {q.name: q for q in facts.queues}, {node.name: node for node in facts.nodes}
    for window in facts.advance:
        for running in facts.running if window.start <= now < window.end else ():
            workload = running.workload
            if not workload.preemptible or advance_reservations.may_use(window, queues, workload):
                continue
            for pod in running.pods:
                there = pod.node in nodes and advance_reservations.covers(window, nodes[pod.node])
                assert not there, f"{workload.key} is on {pod.node} at {now}, in {window}"


@cases(250, 4000)
@given(st.data(), windows.worlds(), generators.policies, st.floats(0.001, 0.999))
def test_until_it_wakes_windows_change_nothing(
    data: st.DataObject, facts: ClusterFacts, policy: Policy, part: float
) -> None:
    """Time alone opens and closes windows only at moments that were named."""
    snapshot, now = build(facts), NOW
    for _ in range(data.draw(st.integers(1, 3))):
        event = windows.event(facts, data.draw(st.integers(0, 1 << 32)), now)
        facts = carry.after(facts, [event])
        apply(snapshot, [event])
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
    """The verdicts that name an advance reservation. That a start was withdrawn is news of one
    decision, so it is left out."""
    return [
        dataclasses.replace(v, message=re.sub("; its start by .* was withdrawn: .*", "", v.message))
        for v in decision.verdicts
        if v.reason == "ReservedUntil" and v.resource
    ]


def _settled(
    facts: ClusterFacts, snapshot: Snapshot, now: float, policy: Policy
) -> tuple[ClusterFacts, Decision]:
    for _ in range(ROUNDS):
        decision = cycle.decide(snapshot, now, policy)
        done = carry.steps(facts, decision, now)
        facts = carry.after(facts, done)
        left = carry.members_left(facts)
        facts = carry.after(facts, left)
        apply(snapshot, [*done, *left])
        if not (decision.placements or decision.evictions):
            break
    return facts, decision


@cases(60, 1500)
@given(windows.worlds(), generators.policies, st.integers(0, 1 << 30))
def test_the_order_in_which_windows_are_listed_does_not_matter(
    facts: ClusterFacts, policy: Policy, seed: int
) -> None:
    shuffled = generators.shuffled(facts, random.Random(seed))
    mixed = random.Random(seed).sample(facts.advance, len(facts.advance))
    shuffled = dataclasses.replace(shuffled, advance=tuple(mixed))
    decided = [cycle.decide(build(each), NOW, policy) for each in (facts, shuffled)]
    assert repr(decided[0]) == repr(decided[1])


@cases(60, 1500)
@given(windows.worlds(), generators.policies)
def test_windows_that_have_ended_are_as_if_they_had_never_been(
    facts: ClusterFacts, policy: Policy
) -> None:
    after = max(window.end for window in facts.advance)
    without = dataclasses.replace(facts, advance=())
    one, other = (cycle.decide(build(each), after, policy) for each in (facts, without))
    assert repr(one) == repr(other)
