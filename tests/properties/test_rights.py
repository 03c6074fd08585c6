"""Who may stop whom, and that a promised start is kept: I6, I8 and I9."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import Counter

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from windlass.core import cycle, models, state
from windlass.core.facts import Decision, Facts, Node, Policy, Queue, Role, Unit

pytestmark = CAMPAIGN
NOW = 1000.0
CROWDED = generators.Taste(terms=False, odd=False, forms=("none", "whole", "whole", "share"))


def crowded(taste: generators.Taste = CROWDED) -> st.SearchStrategy[Facts]:
    """A cluster that lower priorities and borrowers have filled, and newcomers with rights."""
    return st.builds(_crowd, st.integers(0, 1 << 32), st.just(taste))


def _crowd(seed: int, taste: generators.Taste) -> Facts:
    throw = generators.dice(seed, "crowd")
    queues = (
        Queue("a", guarantee={"gpu": 4000, "cpu": 8000}),
        Queue("b", guarantee={"gpu": 4000, "cpu": 8000}, weight=2),
    )
    nodes = tuple(
        dataclasses.replace(
            generators.node(f"node-{i}", generators.dice(seed, i), taste), taints=()
        )
        for i in range(throw.randint(2, 4))
    )
    early = tuple(
        dataclasses.replace(_unit(seed, i, taste), queue="b", priority=10, preemptible=True)
        for i in range(8)
    )
    facts = Facts(nodes, queues, waiting=early, levels=generators.LEVELS)
    after = carry.carry_out(facts, cycle.decide(state.build(facts), 0.0), 0.0)
    late = tuple(
        dataclasses.replace(_unit(seed, i, taste), priority=throw.choice((10, 50, 90)))
        for i in range(8, 8 + throw.randint(1, 4))
    )
    return dataclasses.replace(after, waiting=late, reservations=())


def _unit(seed: int, number: int, taste: generators.Taste) -> Unit:
    return generators.unit(
        f"u{number:02}", ("a", "b"), generators.dice(seed, "unit", number), taste
    )


@cases(180, 3000)
@given(st.one_of(crowded(), crowded(generators.BUNDLED)))
def test_nobody_is_stopped_who_could_have_been_spared(facts: Facts) -> None:
    """With any one unit back that was stopped whole, the gainer does not fit (I6). Units that
    accept several models are left out: a better model may cost more victims."""
    for unit in facts.waiting:
        if len(models.in_turn(unit)) > 1:
            continue
        alone = dataclasses.replace(facts, waiting=(unit,))
        decision = cycle.decide(state.build(alone), NOW)
        note(f"{decision}")
        if not decision.evictions:
            continue
        members = {running.unit.key: len(running.seats) for running in facts.running}
        for spared in decision.evictions:
            others = [e for e in decision.evictions if e is not spared]
            if len(spared.seats) == members[spared.unit]:
                assert not _starts(_left(alone, others), unit), f"{spared} was not needed"
        assert _starts(_left(alone, decision.evictions), unit), "what was stopped does not do"


@cases(60, 1500)
@given(crowded(), st.integers(0, 1 << 30))
def test_where_room_is_being_made_the_order_of_facts_does_not_matter(
    facts: Facts, seed: int
) -> None:
    """Several may hold room that comes free at different times, some of it not at all (I10)."""
    after = carry.carry_out(facts, cycle.decide(state.build(facts), NOW), NOW)
    left = carry.after(after, carry.members_left(after)[::2])
    for each in (facts, after, left):
        mixed = generators.shuffled(each, random.Random(seed))
        found = repr(cycle.decide(state.build(each), NOW))
        assert found == repr(cycle.decide(state.build(mixed), NOW))


def _guarantee(facts: Facts, name: str) -> dict[str, int]:
    """What is guaranteed to a queue, shrunk where there is less than all guarantees together."""
    has = Counter[str]()
    for node in facts.nodes:
        has["cpu"] += node.allocatable["cpu"]
        has["gpu"] += 1000 * sum(device.kind == "gpu" for device in node.devices)
    promised = sum((Counter(queue.guarantee) for queue in facts.queues), Counter[str]())
    own = next(queue.guarantee for queue in facts.queues if queue.name == name)
    return {r: min(n, n * has[r] // promised[r]) for r, n in own.items()}


def _left(facts: Facts, evictions: object) -> Facts:
    """The facts when these members, and only they, have gone."""
    gone: dict[str, set[tuple[str, int]]] = {}
    for each in evictions:  # type: ignore[attr-defined]
        gone.setdefault(each.unit, set()).update(each.seats)
    running = []
    for each in facts.running:
        seats = tuple(s for s in each.seats if (s.role, s.index) not in gone.get(each.unit.key, ()))
        if seats:
            running.append(dataclasses.replace(each, seats=seats))
    return dataclasses.replace(facts, running=tuple(running))


def _starts(facts: Facts, unit: Unit) -> bool:
    policy = Policy(reclaim=False, preempt=False, grow=False)
    decision = cycle.decide(state.build(facts), NOW, policy)
    return unit.key in {placement.unit for placement in decision.placements}


@cases(120, 3000)
@given(crowded())
def test_other_queues_take_back_only_what_was_borrowed(facts: Facts) -> None:
    """A gang goes whole, so the last to go may have been partly inside its queue's guarantee; with
    it back the queue is above (I8)."""
    decision = cycle.decide(state.build(facts), NOW)
    invariants.check(facts, decision, carry.carry_out(facts, decision, NOW))
    queue_of = {u.key: u.queue for u in (*facts.waiting, *(r.unit for r in facts.running))}
    for name in ("a", "b"):
        taken = [e for e in decision.evictions if queue_of[e.unit] == name != queue_of[e.gainer]]
        guarantee = _guarantee(facts, name)
        but_one = [
            invariants.held_by(_left(facts, [e for e in taken if e is not last]), name)
            for last in taken
        ]
        assert not taken or any(
            held[resource] > guarantee[resource] for held in but_one for resource in guarantee
        ), f"{taken} leave {name} with less than {guarantee}"


@cases(100, 2500)
@given(st.integers(0, 1 << 32), st.integers(2, 14), st.sampled_from(("fifo", "lifo", "shortest")))
def test_a_promised_start_is_kept_when_everybody_ends_on_time(
    seed: int, count: int, order: str
) -> None:
    """One queue, honest runtimes, units that come over time (I9)."""
    throw = generators.dice(seed, "promises")
    nodes = tuple(Node(f"n{i}", {"cpu": 1000 * throw.randint(1, 4)}) for i in range(4))
    queue = Queue("q", order=order, reserve=throw.randint(1, 3))  # type: ignore[arg-type]
    coming = []
    for i in range(count):
        members, cpu = throw.choice((1, 1, 2, 3, 4)), throw.choice((500, 1000, 2000))
        unit = Unit(
            f"u{i:02}", "q", (Role("w", members, members, {"cpu": cpu}),),
            submitted=float(throw.randint(0, 60)), expected=float(throw.choice((10, 30, 100))),
        )  # fmt: skip
        coming.append(unit)
    _live(Facts(nodes, (queue,)), coming)


def _live(facts: Facts, coming: list[Unit]) -> None:
    """Lets time pass from event to event; promises are held against what happens."""
    snapshot = state.build(facts)
    promised: dict[str, float] = {}
    moments = sorted({unit.submitted for unit in coming})
    ends: list[tuple[float, str]] = []
    while moments:
        now = heapq.heappop(moments)
        gone = [state.Gone(key) for end, key in ends if end <= now]
        ends = [(end, key) for end, key in ends if end > now]
        fresh = [state.Waits(unit) for unit in coming if unit.submitted == now]
        state.apply(snapshot, [*gone, *fresh])
        coming = [unit for unit in coming if unit.submitted != now]
        decision = cycle.decide(snapshot, now)
        _hold_to_promises(decision, promised, now)
        for placement in decision.placements:
            end = now + (snapshot.waiting[placement.unit].expected or 0.0)
            ends.append((end, placement.unit))
        state.apply(snapshot, carry.steps(snapshot.facts(), decision, now))
        later = {end for end, _ in ends} | {unit.submitted for unit in coming}
        moments = sorted(each for each in {*moments, *later} if each > now)
        if decision.wake_at is not None and snapshot.waiting:
            heapq.heappush(moments, decision.wake_at)


def _hold_to_promises(decision: Decision, promised: dict[str, float], now: float) -> None:
    for placement in decision.placements:
        due = promised.pop(placement.unit, None)
        assert due is None or now <= due, f"{placement.unit} was promised {due}, starts {now}"
    for reservation in decision.reservations:
        known = promised.get(reservation.unit, reservation.start)
        promised[reservation.unit] = min(known, reservation.start)
    for key, due in promised.items():
        assert due >= now, f"{key} was promised {due} and still waits at {now}"
