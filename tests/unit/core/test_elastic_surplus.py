"""Surplus of elastic workloads yields to waiting minimums, and does not come back at once."""

import dataclasses

from hypothesis import given

from tests.properties.settings import cases
from tests.unit.core.preempting import (
    NOW,
    World,
    node,
    settles,
    takes_surplus,
    two_queues,
    workload,
)
from tests.unit.core.test_preemption_properties import _gpus as gpus_of
from tests.unit.core.test_preemption_properties import crowds
from windlass.core.model.types import Policy, Queue
from windlass.core.snapshot.snapshot import RunningPut, WorkloadGone, apply


def elastic(key: str = "wide", queue: str = "a", most: int = 8, **more):
    return workload(key, queue, 1, 1, most=most, **more)


def on_one_node(queues, *, priority: int = 50, **more) -> World:
    """One elastic workload of queue a has all eight GPUs; one is its minimum."""
    world = World([node("n0")], queues)
    return world.run(elastic(priority=priority), *["n0"] * 8, **more)


def test_surplus_yields_to_workloads_of_its_queue_whatever_the_priority() -> None:
    """Issue 17 row 10: four 1-GPU runs waited 9.8 h behind seven surplus pods."""
    world = on_one_node([Queue("a")], priority=90).wait(*(workload(f"s{i}", "a") for i in range(4)))
    world.decide()
    assert [each.pods for each in world.decision.evictions] == [((("w", i),)) for i in (7, 6, 5, 4)]
    assert all("surplus" in each.reason for each in world.decision.evictions)
    settles(world, "s0")
    assert all(world.runs(f"s{i}") for i in range(4))
    assert len(world.snapshot.running["wide"].pods) == 4


def test_the_minimum_never_yields() -> None:
    world = on_one_node([Queue("a")]).wait(*(workload(f"s{i}", "a") for i in range(9)))
    world.rounds(3)
    assert len(world.snapshot.running["wide"].pods) == 1
    assert sum(world.runs(f"s{i}") for i in range(9)) == 7


def test_a_gang_takes_the_surplus_of_several_workloads() -> None:
    world = World([node("n0"), node("n1")], [Queue("a")])
    for number in range(2):
        world.run(elastic(f"wide{number}", priority=90), *[f"n{number}"] * 8)
    world.wait(workload("gang", "a", 2, 4))
    world.decide()
    assert world.evicted == {"wide0": 4, "wide1": 4}
    settles(world, "gang")


def test_surplus_that_must_not_be_preempted_or_runs_since_shortly_stays() -> None:
    for more, facts in (({"preemptible": False}, {}), ({}, {"protected_until": NOW + 60})):
        world = World([node("n0")], [Queue("a")]).run(elastic(**more), *["n0"] * 8, **facts)
        world.wait(workload("small", "a", priority=90)).decide()
        assert world.decision.evictions == ()
    assert world.decision.wake_at == NOW + 60


def test_without_preemption_surplus_stays() -> None:
    world = on_one_node([Queue("a")]).wait(workload("small", "a"))
    world.policy = Policy(preempt=False, reclaim=False)
    assert world.decide().evictions == ()


def test_a_limit_of_the_queue_is_no_reason_to_keep_surplus() -> None:
    world = World([node("n0", 16)], [Queue("a", limit={"gpu": 8000})])
    world.run(elastic(), *["n0"] * 8).wait(workload("small", "a"))
    world.decide()
    assert world.evicted == {"wide": 1}
    settles(world, "small")


def test_another_queue_takes_surplus_until_the_shares_are_equal() -> None:
    world = on_one_node([Queue("a"), Queue("b")]).wait(*(workload(f"s{i}", "b") for i in range(6)))
    world.rounds(5)
    assert len(world.snapshot.running["wide"].pods) == 4
    assert sum(world.runs(f"s{i}") for i in range(6)) == 4


def test_weights_say_how_much_another_queue_may_take() -> None:
    queues = [Queue("a", weight=3), Queue("b", weight=1)]
    world = on_one_node(queues).wait(*(workload(f"s{i}", "b") for i in range(6)))
    world.rounds(5)
    assert len(world.snapshot.running["wide"].pods) == 6


def test_shares_are_compared_where_the_queues_part() -> None:
    """Queue a1 holds much, but its branch does not: b holds more than a, and gives."""
    queues = [Queue("a"), Queue("b"), Queue("a1", "a"), Queue("b1", "b")]
    world = World([node("n0"), node("n1", 4)], queues)
    world.run(elastic("wide-b", "b1"), *["n0"] * 8)
    world.run(elastic("wide-a", "a1", 4), *["n1"] * 4)
    world.wait(workload("small", "a")).decide()
    assert world.evicted == {"wide-b": 1}


def test_the_queue_with_the_largest_share_gives_first() -> None:
    world = World([node("n0", 12)], [Queue("a"), Queue("b"), Queue("c")])
    world.run(elastic("some", "a", 5), *["n0"] * 5).run(elastic("most", "b", 7), *["n0"] * 7)
    world.wait(workload("small", "c")).decide()
    assert world.evicted == {"most": 1}


def test_what_a_queue_is_guaranteed_it_keeps() -> None:
    world = on_one_node([Queue("a", guarantee={"gpu": 7000}), Queue("b")])
    world.wait(*(workload(f"s{i}", "b") for i in range(4))).rounds(4)
    assert len(world.snapshot.running["wide"].pods) == 7


def test_a_queue_that_is_not_above_its_share_keeps_its_surplus() -> None:
    world = World([node("n0")], [Queue("a"), Queue("b")])
    world.run(elastic(most=4), *["n0"] * 4).run(workload("big", "b", 1, 4), "n0")
    world.wait(workload("small", "b")).decide()
    assert world.decision.evictions == ()


def test_place_decides_which_surplus_of_another_queue_goes() -> None:
    """Two GPUs on one node are needed; by index alone the surplus of both nodes would go."""
    world = World([node("n0", 4), node("n1", 4)], [Queue("a"), Queue("b")])
    world.run(elastic(), "n0", "n1", "n0", "n1", "n0", "n1", "n0", "n1")
    world.wait(workload("pair", "b", 1, 2)).decide()
    assert world.evicted == {"wide": 2}
    settles(world, "pair")


def test_many_workloads_at_once_decide_as_one_by_one() -> None:
    """With more than 64 waiting workloads, bounds in arrays say which surely wait; surplus is in
    them."""
    world = on_one_node([Queue("a"), Queue("b")], priority=90)
    world.wait(*(workload(f"s{i:02}", "ab"[i % 2]) for i in range(80))).decide()
    assert sum(world.evicted.values()) == 7


def test_a_workload_that_gave_surplus_does_not_grow_before_its_pause_is_over() -> None:
    world = on_one_node([Queue("a")]).wait(workload("small", "a"))
    world.decide()
    world.happen().go()
    given = dataclasses.replace(world.snapshot.running["wide"], shrunk_at=world.now)
    apply(world.snapshot, [RunningPut(given)])
    world.decide()
    world.happen()
    apply(world.snapshot, [WorkloadGone("small", 30.0)])
    assert world.decide().placements == ()
    assert world.decision.wake_at == world.now + Policy().growth_pause
    world.now += Policy().growth_pause
    assert [each.workload for each in world.decide().placements] == ["wide"]


def test_reclaim_within_a_guarantee_still_takes_more_than_surplus() -> None:
    world = World([node("n0")], two_queues(4, 4)).run(workload("gang", "b", 1, 8), "n0")
    world.wait(workload("mine", "a", 1, 2)).decide()
    assert world.evicted == {"gang": 1}


@cases(100, 2500)
@given(crowds)
def test_surplus_that_yields_leaves_its_queue_its_guarantee(pod_index) -> None:
    world = pod_index.world
    found, tree, snapshot = world.decide(), world.snapshot.tree, world.snapshot
    taken: dict[str, int] = {}
    for eviction in found.evictions:
        victim, preemptor = (
            snapshot.running[eviction.workload].workload,
            snapshot.waiting[eviction.preemptor],
        )
        yields = takes_surplus(snapshot, eviction) and "surplus is needed" in eviction.reason
        if yields and victim.queue != preemptor.queue:
            given = gpus_of(victim) * len(eviction.pods)
            taken[victim.queue] = taken.get(victim.queue, 0) + given
    for queue, given in taken.items():
        left = tree.used[queue].get("gpu", 0) - given
        assert left >= tree.guarantee[queue].get("gpu", 0)
