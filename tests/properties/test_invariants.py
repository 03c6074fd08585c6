"""I1-I14: laws that hold after every decision, whatever the cluster, the queues and the events."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.invariants import invariants as watched
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Policy,
    Queue,
    Quota,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import Elapsed, RunningPut, Snapshot, apply, build

pytestmark = CAMPAIGN
NOW = 100.0
WORLDS = st.one_of(generators.facts(), generators.facts(taste=generators.BUNDLED))


def decided(facts: ClusterFacts, now: float = NOW, policy: Policy = Policy()) -> Decision:  # noqa: B008
    return cycle.decide(build(facts), now, policy)


@cases(250, 3000)
@given(st.data(), WORLDS, generators.policies)
def test_every_decision_in_a_history_keeps_the_laws(
    data: st.DataObject, facts: ClusterFacts, policy: Policy
) -> None:
    """Decide, carry out, let something happen, decide again; the snapshot follows by events and
    must answer as one built fresh from the facts."""
    snapshot = build(facts)
    now = NOW
    for _ in range(data.draw(st.integers(1, 4))):
        decision = cycle.decide(snapshot, now, policy)
        assert repr(decision) == repr(_fresh(snapshot, now, policy))
        after = carry.carry_out(facts, decision, now)
        note(f"{decision}")
        invariants.check(facts, decision, after)
        assert watched.broken(snapshot, decision, now) == [], "what the live scheduler would count"
        happenings = carry.steps(facts, decision, now) + carry.members_left(after)
        facts = carry.after(facts, happenings)
        apply(snapshot, happenings)
        event = generators.event(facts, data.draw(st.integers(0, 1 << 32)))
        note(f"{event}")
        facts = carry.after(facts, [event])
        apply(snapshot, [event])
        assert _same(facts, snapshot.facts())
        now += data.draw(st.sampled_from((0.0, 10.0, 1000.0)))
        fresh = build(snapshot.facts(), snapshot.history)
        for each in (snapshot, fresh):
            apply(each, [Elapsed(now)])
        assert snapshot.facts().accounts == fresh.facts().accounts
        facts = dataclasses.replace(facts, accounts=fresh.facts().accounts, accounted_at=now)
    decision = cycle.decide(snapshot, now, policy)
    assert repr(decision) == repr(_fresh(snapshot, now, policy))


@cases(120, 3000)
@given(generators.facts(), st.lists(st.integers(0, 1 << 32), min_size=1, max_size=5))
def test_nodes_that_come_and_go_together_leave_what_counting_everything_again_finds(
    facts: ClusterFacts, seeds: list[int]
) -> None:
    """Twice: the second time numbers shift that have shifted before, while victims are leaving."""
    snapshot = build(facts)
    for seed in seeds[:1], seeds[1:]:
        decision = cycle.decide(snapshot, NOW)
        apply(snapshot, carry.steps(snapshot.facts(), decision, NOW))
        events = [generators.node_event(snapshot.facts(), generators.dice(each)) for each in seed]
        note(f"{events}")
        apply(snapshot, events)
        again = build(snapshot.facts(), snapshot.history).cluster
        for name in ("allocatable", "free", "open", "price"):
            assert np.array_equal(getattr(snapshot.cluster, name), getattr(again, name)), name
        for name in ("compute", "memory", "mode", "used", "unlocked"):
            assert np.array_equal(
                getattr(snapshot.cluster.device_table, name), getattr(again.device_table, name)
            )
        assert repr(cycle.decide(snapshot, NOW)) == repr(_fresh(snapshot, NOW, Policy()))


def _fresh(snapshot: Snapshot, now: float, policy: Policy) -> Decision:
    """What a snapshot decides that was built from the same facts just now."""
    return cycle.decide(build(snapshot.facts(), snapshot.history), now, policy)


def _same(one: ClusterFacts, other: ClusterFacts) -> bool:
    """Equal but for the order in which things are listed."""
    return one.accounted_at == other.accounted_at and all(
        sorted(map(repr, getattr(one, field.name))) == sorted(map(repr, getattr(other, field.name)))
        for field in dataclasses.fields(ClusterFacts)
        if field.name not in ("levels", "accounted_at")
    )


@cases(60, 2000)
@given(WORLDS, generators.policies, st.integers(0, 1 << 30))
def test_the_order_in_which_facts_are_listed_does_not_matter(
    facts: ClusterFacts, policy: Policy, seed: int
) -> None:
    first = decided(facts, policy=policy)
    running = carry.carry_out(facts, first, NOW)
    for each in (facts, running, _hurt(running)):
        shuffled = generators.shuffled(each, random.Random(seed))
        assert repr(decided(each, policy=policy)) == repr(decided(shuffled, policy=policy))


@cases(60, 1500)
@given(generators.facts(taste=generators.NodeScores(terms=False)), st.integers(0, 1 << 32))
def test_workloads_that_grow_or_are_repaired_keep_every_rule(
    facts: ClusterFacts, seed: int
) -> None:
    """All can use more than their least, and quotas are near: those of models, of queues above and
    of namespaces (I1 to I4). What runs grows beside newcomers; then it loses members while quotas
    change, and grows and is completed by itself."""
    for waiting in (facts.waiting, ()):
        facts = dataclasses.replace(facts, waiting=waiting)
        facts = _tight(facts, generators.dice(seed, "tight", len(waiting)))
        decision = decided(facts)
        note(f"{decision}")
        after = carry.carry_out(facts, decision, NOW)
        invariants.check(facts, decision, after)
        facts = carry.after(after, carry.members_left(after))
        facts = _hurt(facts)


def _hurt(facts: ClusterFacts) -> ClusterFacts:
    """Everybody lost a member."""
    running = tuple(dataclasses.replace(r, pods=r.pods[1:]) for r in facts.running)
    return dataclasses.replace(facts, running=running)


def _tight(facts: ClusterFacts, throw: generators.Dice) -> ClusterFacts:
    def elastic(workload: Workload) -> Workload:
        roles = (dataclasses.replace(role, max_count=role.min_count + 3) for role in workload.roles)
        return dataclasses.replace(workload, roles=tuple(roles))

    def limited(queue: Queue) -> Queue:
        amounts = {"gpu/new": 1000 * throw.randint(0, 3), "gpu": 1000 * throw.randint(1, 8)}
        names = throw.sample(sorted(amounts), throw.randint(0, 2))
        return dataclasses.replace(queue, limit={name: amounts[name] for name in names})

    return dataclasses.replace(
        facts,
        queues=tuple(map(limited, facts.queues)),
        waiting=tuple(map(elastic, facts.waiting)),
        running=tuple(dataclasses.replace(r, workload=elastic(r.workload)) for r in facts.running),
        quotas=(Quota("team", "tight", {"pods": throw.randint(2, 12)}),),
    )


@cases(120, 2000)
@given(WORLDS)
def test_a_decision_that_was_carried_out_is_a_fixpoint(facts: ClusterFacts) -> None:
    """No workload is evicted again and again for the same reason (five more rounds)."""
    for round_number in range(12):
        decision = decided(facts)
        note(f"round {round_number}: {decision}")
        if round_number >= 7:
            assert not decision.evictions, "still evicting after seven rounds"
        after = carry.carry_out(facts, decision, NOW)
        facts = carry.after(after, carry.members_left(after))


@cases(120, 2000)
@given(
    st.one_of(
        generators.facts(taste=generators.NodeScores(terms=False)),
        generators.facts(taste=generators.BUNDLED),
    )
)
def test_a_workload_that_is_refused_for_capacity_would_not_fit_alone_either(
    facts: ClusterFacts,
) -> None:
    """What was remembered about others of the same kind must be true of this one (I11, I12)."""
    policy = Policy(reclaim=False, preempt=False, grow=False)
    quiet = dataclasses.replace(
        facts, queues=tuple(dataclasses.replace(q, reserve=0) for q in facts.queues)
    )
    decision = decided(quiet, policy=policy)
    after = carry.carry_out(quiet, decision, NOW)
    for verdict in decision.verdicts:
        if verdict.reason not in ("WaitingForCapacity", "WaitingForTopology", "Impossible"):
            continue
        if not verdict.resolved:
            continue
        only = tuple(workload for workload in after.waiting if workload.key == verdict.workload)
        alone = decided(dataclasses.replace(after, waiting=only), policy=policy)
        assert not alone.placements, f"{verdict}\n{alone.placements}"
        said, tells_amounts = alone.verdicts[0], verdict.reason == "WaitingForCapacity"
        if verdict.reason == "WaitingForTopology":
            tells_amounts = any(role.bundle for workload in only for role in workload.roles)
        # What is missing in amounts was so much when it was said: others started since.
        if said.reason == verdict.reason and not tells_amounts:
            assert said.message == verdict.message


@cases(60, 1500)
@given(st.data(), generators.facts())
def test_events_that_come_twice_change_nothing(data: st.DataObject, facts: ClusterFacts) -> None:
    """After a crash the decision is the same (I13)."""
    decision = decided(facts)
    happenings = carry.steps(facts, decision, NOW)
    once = apply(build(facts), happenings)
    event = generators.event(once.facts(), data.draw(st.integers(0, 1 << 32)))
    twice = apply(build(facts), [*happenings, *happenings])
    apply(once, [event])
    apply(twice, [event, event])
    assert repr(cycle.decide(once, NOW)) == repr(cycle.decide(twice, NOW))
    found: dict[str, set[str]] = {}
    for key, running in twice.running.items():
        for pod in running.pods:
            found.setdefault(pod.node, set()).add(key)
    assert {
        node: set(workloads) for node, workloads in twice.workloads_on.items() if workloads
    } == found


@cases(60, 1500)
@given(st.data(), generators.facts(taste=generators.NodeScores(terms=False)))
def test_a_gang_that_lost_a_pod_is_completed_before_any_workload_starts(
    data: st.DataObject, facts: ClusterFacts
) -> None:
    """Where no quota forbids it, the gang gets its capacity back, however many wait (I14)."""
    policy = Policy(grow=False, preempt=False, reclaim=False)
    free = tuple(dataclasses.replace(q, guarantee={}, limit={}, lend={}) for q in facts.queues)
    facts = dataclasses.replace(facts, queues=free, quotas=())
    after = carry.carry_out(facts, decided(facts, policy=policy), NOW)
    gangs = [r for r in after.running if r.workload.gang and not r.leaving and _has_its_least(r)]
    if not gangs:
        return
    broken = data.draw(st.sampled_from(gangs))
    lost = dataclasses.replace(broken, pods=broken.pods[1:])
    damaged = carry.after(after, [RunningPut(lost)])
    alone = decided(dataclasses.replace(damaged, waiting=(), nominations=()), policy=policy)
    everybody = decided(dataclasses.replace(damaged, nominations=()), policy=policy)
    repaired = [len(p.pods) for p in everybody.placements if p.workload == broken.workload.key]
    assert repaired == [len(p.pods) for p in alone.placements if p.workload == broken.workload.key]
    assert repaired == [1], "its room was just freed"


def _has_its_least(running: Running) -> bool:
    return len(running.pods) == sum(role.min_count for role in running.workload.roles)
