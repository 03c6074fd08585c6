"""Gangs that lost a node: completed with the rights they had when they waited, or with a
verdict."""

from __future__ import annotations

import dataclasses

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from tests.properties.test_preemption_rights import NOW, crowded
from windlass.core.cycle import cycle
from windlass.core.model.types import ClusterFacts, Policy
from windlass.core.snapshot.snapshot import apply, build

pytestmark = CAMPAIGN
ROUNDS = 8


@cases(150, 3000)
@given(st.one_of(crowded(), generators.facts()), st.integers(0, 1 << 32))
def test_gangs_that_lost_a_node_are_completed_or_get_a_reason(
    facts: ClusterFacts, seed: int
) -> None:
    """Decisions keep every law; the snapshot that follows events decides as a fresh one; once all
    that was decided has happened, no workload is evicted any more."""
    facts = _without_a_node(facts, generators.dice(seed, "lost"))
    snapshot = build(facts)
    for number in range(ROUNDS):
        decision = cycle.decide(snapshot, NOW)
        fresh = cycle.decide(build(snapshot.facts(), snapshot.history), NOW)
        note(f"round {number}: {decision}")
        assert repr(decision) == repr(fresh)
        after = carry.carry_out(facts, decision, NOW)
        invariants.check(facts, decision, after)
        assert number < ROUNDS - 1 or not decision.evictions, "still evicting"
        events = carry.steps(facts, decision, NOW) + carry.members_left(after)
        facts = carry.after(facts, events)
        apply(snapshot, events)


@cases(150, 3000)
@given(crowded(), st.integers(0, 1 << 32))
def test_a_gang_that_preempts_for_missing_pods_gets_them(facts: ClusterFacts, seed: int) -> None:
    """What is freed for a gang is nominated to it, and it is complete when the victims are gone."""
    facts = _without_a_node(facts, generators.dice(seed, "lost"))
    facts = dataclasses.replace(facts, waiting=())
    decision = cycle.decide(build(facts), NOW)
    note(f"{decision}")
    gangs = {each.preemptor for each in decision.evictions}
    after = carry.carry_out(facts, decision, NOW)
    left = carry.after(after, carry.members_left(after, resubmit=False))
    again = cycle.decide(build(left), NOW, Policy(preempt=False, reclaim=False))
    assert gangs <= {each.workload for each in again.placements}
    whole = carry.carry_out(left, again, NOW)
    hurt = {each.workload.key for each in whole.running if carry.is_incomplete(each)}
    assert not gangs & hurt


def _without_a_node(facts: ClusterFacts, throw: generators.Dice) -> ClusterFacts:
    """One node is lost with everything on it; some running workloads outrank others."""
    lost = throw.choice(facts.nodes).name
    running = []
    for each in facts.running:
        pods = tuple(pod for pod in each.pods if pod.node != lost)
        workload = dataclasses.replace(each.workload, priority=throw.choice((10, 50, 90)))
        if pods:
            running.append(dataclasses.replace(each, workload=workload, pods=pods))
    nodes = tuple(
        dataclasses.replace(node, ready=False) if node.name == lost else node
        for node in facts.nodes
    )
    return dataclasses.replace(facts, nodes=nodes, running=tuple(running))
