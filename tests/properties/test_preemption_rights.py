"""Which workload may evict which, and that a reservation is kept: I6, I8 and I9."""

from __future__ import annotations

import dataclasses
import heapq
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    DeviceRequest,
    Eviction,
    Node,
    Nomination,
    Placement,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.quota import device_models
from windlass.core.snapshot.snapshot import WaitingPut, WorkloadGone, apply, build

pytestmark = CAMPAIGN
NOW = 1000.0
CROWDED = generators.NodeScores(terms=False, odd=False, forms=("none", "whole", "whole", "share"))


def crowded(taste: generators.NodeScores = CROWDED) -> st.SearchStrategy[ClusterFacts]:
    """A cluster that lower priorities and borrowers have filled, and newcomers with rights."""
    return st.builds(_pod_index, st.integers(0, 1 << 32), st.just(taste))


def _pod_index(seed: int, taste: generators.NodeScores) -> ClusterFacts:
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
        dataclasses.replace(_workload(seed, i, taste), queue="b", priority=10, preemptible=True)
        for i in range(8)
    )
    facts = ClusterFacts(nodes, queues, waiting=early, levels=generators.LEVELS)
    after = carry.carry_out(facts, cycle.decide(build(facts), 0.0), 0.0)
    late = tuple(
        dataclasses.replace(_workload(seed, i, taste), priority=throw.choice((10, 50, 90)))
        for i in range(8, 8 + throw.randint(1, 4))
    )
    return dataclasses.replace(after, waiting=late, reservations=())


def rushed() -> st.SearchStrategy[ClusterFacts]:
    """Queue b starts more in the very decision in which queue a has a right to capacity."""
    return st.builds(_rush, st.integers(0, 1 << 32))


def _rush(seed: int) -> ClusterFacts:
    """The first of queue a is too large for its guarantee, so b has a turn before the others of a,
    which are within their guarantee; half of what b starts cannot be stopped once it runs."""
    pod_index, throw = _pod_index(seed, CROWDED), generators.dice(seed, "rush")

    def plain(key: str, queue: str, most: int, **more: Any) -> Workload:
        members, devices = throw.randint(1, most), DeviceRequest("gpu", throw.choice((1, 1, 2)))
        role = Role("worker", members, members, {"cpu": 500}, (devices,))
        return Workload(key, queue, (role,), **more)

    wide = Role("worker", 9, 9, {"cpu": 500}, (DeviceRequest("gpu"),))
    late = [plain(f"mine{i}", "a", 2) for i in range(throw.randint(1, 3))]
    late += [
        plain(f"more{i}", "b", 4, priority=10, preemptible=throw.one_in(2))
        for i in range(throw.randint(1, 3))
    ]
    return dataclasses.replace(
        pod_index,
        running=tuple(each for each in pod_index.running if throw.one_in(2)),
        waiting=(Workload("wide", "a", (wide,), priority=90), *late),
    )


def _workload(seed: int, number: int, taste: generators.NodeScores) -> Workload:
    return generators.workload(
        f"u{number:02}", ("a", "b"), generators.dice(seed, "unit", number), taste
    )


@cases(180, 3000)
@given(st.one_of(crowded(), crowded(generators.BUNDLED)))
def test_no_victim_could_have_been_reprieved(facts: ClusterFacts) -> None:
    """With any one unit back that was stopped whole, the gainer does not fit (I6). Units that
    accept several models are left out: a better model may cost more victims."""
    for workload in facts.waiting:
        if len(device_models.in_turn(workload)) > 1:
            continue
        alone = dataclasses.replace(facts, waiting=(workload,))
        decision = cycle.decide(build(alone), NOW)
        note(f"{decision}")
        if not decision.evictions:
            continue
        members = {running.workload.key: len(running.pods) for running in facts.running}
        for spared in decision.evictions:
            others = [e for e in decision.evictions if e is not spared]
            if len(spared.pods) == members[spared.workload]:
                assert not _starts(_left(alone, others), workload), f"{spared} was not needed"
        assert _starts(_left(alone, decision.evictions), workload), "what was stopped does not do"


@cases(60, 1500)
@given(crowded(), st.integers(0, 1 << 30))
def test_where_capacity_is_being_made_the_order_of_facts_does_not_matter(
    facts: ClusterFacts, seed: int
) -> None:
    """Several may hold capacity that comes free at different times, some of it not at all (I10)."""
    after = carry.carry_out(facts, cycle.decide(build(facts), NOW), NOW)
    left = carry.after(after, carry.members_left(after)[::2])
    for each in (facts, after, left):
        mixed = generators.shuffled(each, random.Random(seed))
        found = repr(cycle.decide(build(each), NOW))
        assert found == repr(cycle.decide(build(mixed), NOW))


def _guarantee(facts: ClusterFacts, name: str) -> dict[str, int]:
    """What is granted to a queue: if there is less than all guarantees together, they are granted
    one after another, the heavier queue first, and the last in whole devices."""
    has = Counter[str]()
    for node in facts.nodes:
        has["cpu"] += node.allocatable["cpu"]
        has["gpu"] += 1000 * sum(device.kind == "gpu" for device in node.devices)
    found = dict[str, int]()
    for queue in sorted(facts.queues, key=lambda each: (-each.weight, each.name)):
        found = {r: n if n <= has[r] else has[r] // 1000 * 1000 for r, n in queue.guarantee.items()}
        if queue.name == name:
            break
        has.subtract(found)
    return found


def _left(facts: ClusterFacts, evictions: object) -> ClusterFacts:
    """The facts when these members, and only they, have gone."""
    gone: dict[str, set[tuple[str, int]]] = {}
    for each in evictions:  # type: ignore[attr-defined]
        gone.setdefault(each.workload, set()).update(each.pods)
    running = []
    for each in facts.running:
        pods = tuple(
            s for s in each.pods if (s.role, s.index) not in gone.get(each.workload.key, ())
        )
        if pods:
            running.append(dataclasses.replace(each, pods=pods))
    return dataclasses.replace(facts, running=tuple(running))


def _starts(facts: ClusterFacts, workload: Workload) -> bool:
    policy = Policy(reclaim=False, preempt=False, grow=False)
    decision = cycle.decide(build(facts), NOW, policy)
    return workload.key in {placement.workload for placement in decision.placements}


@cases(120, 3000)
@given(st.one_of(crowded(), rushed()))
def test_other_queues_take_back_only_what_was_borrowed(facts: ClusterFacts) -> None:
    """What others take leaves a queue its guarantee, or what it held before if that was less, in a
    resource that the preemptor is guaranteed (I8, docs/reference/sharing.md G3). What starts in the
    same decision or is reserved counts. One gang may go beyond that, since it goes whole,
    if it ran long enough (G4)."""
    decision = cycle.decide(build(facts), NOW)
    note(f"{decision}")
    invariants.check(facts, decision, carry.carry_out(facts, decision, NOW))
    running = {each.workload.key: each for each in facts.running}
    taken: dict[str, list[tuple[Running, Counter[str]]]] = {}
    for eviction in _taken_back(facts, decision):
        victim = running[eviction.workload]
        gone = tuple(s for s in victim.pods if (s.role, s.index) in eviction.pods)
        taken.setdefault(victim.workload.queue, []).append(
            (victim, _amounts(facts, victim.workload, gone))
        )
    for queue, pieces in taken.items():
        before = invariants.held_by(facts, queue)
        left = before + _coming(facts, decision, queue)
        left.subtract(sum((amounts for _, amounts in pieces), Counter[str]()))
        guarantee = _guarantee(facts, queue)
        whole = [amounts for victim, amounts in pieces if victim.started + 600 <= NOW]
        assert any(
            left[r] >= min(guarantee[r], before[r])
            or left[r] + max((each[r] for each in whole), default=0) > min(guarantee[r], before[r])
            for r in guarantee
        ), f"{queue} held {before}, is left {left} of {guarantee}"


def _taken_back(facts: ClusterFacts, decision: Decision) -> Iterator[Eviction]:
    """Evictions for units of other queues."""
    queue_of = {u.key: u.queue for u in (*facts.waiting, *(r.workload for r in facts.running))}
    for each in decision.evictions:
        if queue_of[each.workload] != queue_of[each.preemptor]:
            yield each


def _coming(facts: ClusterFacts, decision: Decision, queue: str) -> Counter[str]:
    """What starts in a queue, grows there or is reserved, beyond what goes for it there."""
    workloads = {u.key: u for u in (*facts.waiting, *(r.workload for r in facts.running))}
    running = {each.workload.key: each for each in facts.running}
    total = Counter[str]()
    coming: list[Placement | Nomination] = [*decision.placements, *decision.nominations]
    for each in coming:
        if workloads[each.workload].queue == queue:
            more = _amounts(facts, workloads[each.workload], each.pods)
            for own in decision.evictions:
                if own.preemptor == each.workload and workloads[own.workload].queue == queue:
                    gone = running[own.workload]
                    pods = tuple(s for s in gone.pods if (s.role, s.index) in own.pods)
                    more.subtract(_amounts(facts, gone.workload, pods))
            total.update(+more)
    return total


def _amounts(
    facts: ClusterFacts, workload: Workload, pods: tuple[PodAssignment, ...]
) -> Counter[str]:
    alone = dataclasses.replace(facts, running=(Running(workload, pods, NOW),))
    return Counter(invariants.held_by(alone, workload.queue))


@cases(180, 3000)
@given(rushed())
def test_no_workload_within_its_guarantee_is_evicted_where_a_retraction_suffices(
    facts: ClusterFacts,
) -> None:
    """Of a queue that held no more than its guarantee, the least of a unit goes only because of one
    that starts in the same decision. If without that start, and with all others, the gainer fits,
    the start is what should not be. Surplus is on call, also for starts of its own queue."""
    decision = cycle.decide(build(facts), NOW)
    note(f"{decision}")
    after = carry.carry_out(facts, decision, NOW)
    stays = [dataclasses.replace(each, leaving=()) for each in after.running]
    workloads = {workload.key: workload for workload in facts.waiting}
    for eviction in _taken_back(facts, decision):
        victim = next(each for each in facts.running if each.workload.key == eviction.workload)
        held, guarantee = (
            f(facts, victim.workload.queue) for f in (invariants.held_by, _guarantee)
        )
        above = any(held[r] > guarantee[r] for r in guarantee)
        if above or len(eviction.pods) < len(victim.pods):
            continue
        if _others_are_promised(decision, eviction.preemptor):
            continue
        for started in {each.workload for each in decision.placements} & workloads.keys():
            start, preemptor = workloads[started], workloads[eviction.preemptor]
            if start.queue == victim.workload.queue and start.priority <= victim.workload.priority:
                running = tuple(each for each in stays if each.workload.key != started)
                alone = dataclasses.replace(facts, running=running, waiting=(preemptor,))
                assert not _starts(alone, preemptor), f"{eviction}: {started} need not start"


def _others_are_promised(decision: Decision, preemptor: str) -> bool:
    """Then capacity may be kept from it that it finds when it is alone."""
    return any(each.workload != preemptor for each in decision.reservations)


@cases(100, 2500)
@given(rushed())
def test_what_starts_is_not_taken_back_by_the_next_decision(facts: ClusterFacts) -> None:
    """Nothing happened between the two, so no queue has a right that it did not have (I7), and
    no workload finds capacity that did not before. But a reservation binds all that follow in that
    decision, and only some in the next."""
    calm = Policy(grow=False)
    decision = cycle.decide(build(facts), NOW, calm)
    note(f"{decision}")
    after = carry.carry_out(facts, decision, NOW)
    again = cycle.decide(build(after), NOW, calm)
    for eviction in _taken_back(after, again):
        assert _others_are_promised(decision, eviction.preemptor), f"{eviction} comes late"
    waited = {workload.key for workload in facts.waiting} - {
        each.workload for each in decision.nominations
    }
    for placement in again.placements:
        if placement.workload in waited:
            assert _others_are_promised(decision, placement.workload), f"{placement} comes late"


@cases(100, 2500)
@given(st.integers(0, 1 << 32), st.integers(2, 14), st.sampled_from(("fifo", "lifo", "shortest")))
def test_a_reserved_start_is_kept_when_all_workloads_end_on_time(
    seed: int, count: int, order: str
) -> None:
    """One queue, honest runtimes, units that come over time (I9)."""
    throw = generators.dice(seed, "promises")
    nodes = tuple(Node(f"n{i}", {"cpu": 1000 * throw.randint(1, 4)}) for i in range(4))
    queue = Queue("q", order=order, reserve=throw.randint(1, 3))
    coming = []
    for i in range(count):
        members, cpu = throw.choice((1, 1, 2, 3, 4)), throw.choice((500, 1000, 2000))
        workload = Workload(
            f"u{i:02}", "q", (Role("w", members, members, {"cpu": cpu}),),
            submitted=float(throw.randint(0, 60)), expected=float(throw.choice((10, 30, 100))),
        )  # fmt: skip
        coming.append(workload)
    _live(ClusterFacts(nodes, (queue,)), coming)


def _live(facts: ClusterFacts, coming: list[Workload]) -> None:
    """Lets time pass from event to event; reservations are compared with what happens."""
    snapshot = build(facts)
    promised: dict[str, float] = {}
    moments = sorted({workload.submitted for workload in coming})
    ends: list[tuple[float, str]] = []
    while moments:
        now = heapq.heappop(moments)
        gone = [WorkloadGone(key) for end, key in ends if end <= now]
        ends = [(end, key) for end, key in ends if end > now]
        fresh = [WaitingPut(workload) for workload in coming if workload.submitted == now]
        apply(snapshot, [*gone, *fresh])
        coming = [workload for workload in coming if workload.submitted != now]
        decision = cycle.decide(snapshot, now)
        _hold_to_promises(decision, promised, now)
        for placement in decision.placements:
            end = now + (snapshot.waiting[placement.workload].expected or 0.0)
            ends.append((end, placement.workload))
        apply(snapshot, carry.steps(snapshot.facts(), decision, now))
        later = {end for end, _ in ends} | {workload.submitted for workload in coming}
        moments = sorted(each for each in {*moments, *later} if each > now)
        if decision.wake_at is not None and snapshot.waiting:
            heapq.heappush(moments, decision.wake_at)


def _hold_to_promises(decision: Decision, promised: dict[str, float], now: float) -> None:
    for placement in decision.placements:
        due = promised.pop(placement.workload, None)
        assert due is None or now <= due, f"{placement.workload} was promised {due}, starts {now}"
    for reservation in decision.reservations:
        known = promised.get(reservation.workload, reservation.start)
        promised[reservation.workload] = min(known, reservation.start)
    for key, due in promised.items():
        assert due >= now, f"{key} was promised {due} and still waits at {now}"
