"""Preemption that went wrong in other schedulers, by their issue numbers."""

from tests.unit.core.preempting import NOW, World, node, settles, two_queues, workload
from windlass.core.model.types import Queue
from windlass.core.snapshot import snapshot


def test_kueue_3779_two_borrowers_above_their_share_do_not_evict_each_other_for_ever():
    queues = [Queue(n, guarantee={"gpu": 2000}) for n in ("a", "b", "c")]
    world = World([node("n1", 6)], queues)
    world.start(workload("a1", "a", 3, 1), workload("b1", "b", 3, 1))
    world.wait(
        workload("a2", "a", 3, 1), workload("b2", "b", 3, 1), workload("c1", "c", 2, 1)
    ).decide()
    assert len(world.evicted) == 1
    settles(world, "c1")


def test_kueue_2821_without_priority_order_equal_workloads_do_not_swap_places():
    queues = [
        Queue("a", guarantee={"gpu": 2000}, order="lifo"),
        Queue("b", guarantee={"gpu": 2000}, order="lifo"),
    ]
    world = World([node("n1", 4)], queues)
    world.start(workload("a1", "a", gpus=3, submitted=1), workload("b1", "b", gpus=1, submitted=2))
    world.wait(
        workload("b2", "b", gpus=1, submitted=3), workload("a2", "a", gpus=3, submitted=4)
    ).decide()
    assert set(world.evicted) == {"a1"}
    settles(world, "b2")


def test_a_queue_that_gives_back_what_it_borrowed_may_hand_on_the_rest_inside():
    """Two stops in one queue: one for the guarantee of another, one for its own better workload."""
    world = World([node("n0", 1), node("n1", 1)], two_queues(1, 1))
    world.start(workload("r0", "a", priority=10), workload("r1", "a", priority=10))
    world.wait(workload("w2", "a", priority=50), workload("w3", "b", priority=10)).decide()
    assert {e.preemptor for e in world.decision.evictions} == {"w2", "w3"}
    settles(world, "w2")
    assert world.runs("w3")


def test_kueue_13662_victims_that_leave_at_different_times_are_not_replaced_by_new_ones():
    world = World([node("n1", 4)], two_queues(4, 0))
    world.start(*(workload(f"b{i}", "b") for i in range(4)))
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert len(world.evicted) == 4
    world.happen()
    for key in sorted(world.evicted):
        world.now += 60
        snapshot.apply(world.snapshot, [snapshot.WaitingPut(world.snapshot.running[key].workload)])
        assert world.decide().evictions == ()
        assert [p.workload for p in world.decision.placements] in ([], ["a1"])
        world.happen()
    assert world.runs("a1")
    assert world.rounds(5) == []


def test_kueue_10131_as_few_as_needed_and_the_same_ones_whatever_the_order_of_facts():
    found = []
    for flip in (False, True):
        world = World([node(f"n{i}", 4) for i in range(3)], two_queues(4, 0))
        names = [f"b{i}" for i in range(6)]
        for i, name in enumerate(reversed(names) if flip else names):
            world.run(workload(name, "b", gpus=2), f"n{(5 - i if flip else i) // 2}")
        world.wait(workload("a1", "a", gpus=4)).decide()
        found.append(world.decision.evictions)
    assert found[0] == found[1]
    assert len(found[0]) == 2
    settles(world, "a1")


def test_kai_1565_a_small_claim_takes_no_more_than_it_needs_from_a_large_borrower():
    world = World([node(f"n{i}") for i in range(12)], two_queues(48, 8))
    world.start(*(workload(f"b{i}", "b", 2, 4) for i in range(12)))
    world.wait(workload("a1", "a", 6, 8)).decide()
    assert sum(world.evicted.values()) * 4 == 48
    settles(world, "a1")


def test_kai_1750_an_unrelated_protected_queue_does_not_stop_a_reclaim():
    queues = [*two_queues(4, 0), Queue("c")]
    world = World([node("n1", 4), node("n2", 4)], queues)
    world.run(workload("c1", "c", gpus=4), "n1", protected_until=NOW + 9000)
    world.run(workload("b1", "b", gpus=4), "n2")
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert world.evicted == {"b1": 1}
    settles(world, "a1")


def test_volcano_5994_needs_one_victim_and_stops_one():
    world = World([node(f"n{i}", 2) for i in range(10)], [Queue("q")])
    world.start(*(workload(f"x{i}", "q", gpus=2, priority=1) for i in range(10)))
    world.wait(workload("hi", "q", gpus=2, priority=9)).decide()
    assert len(world.evicted) == 1
    settles(world, "hi")


def test_volcano_4926_the_sum_would_be_enough_but_no_node_is_so_no_workload_is_stopped():
    world = World([node(f"n{i}", 2) for i in range(4)], [Queue("q")])
    for i in range(4):
        world.run(workload(f"low{i}", "q", gpus=1, priority=1), f"n{i}")
        world.run(workload(f"keep{i}", "q", gpus=1, priority=99), f"n{i}")
    world.wait(workload("hi", "q", gpus=2, priority=50)).decide()
    assert world.evicted == {}
    assert "would not free enough capacity" in world.decision.verdicts[0].message
    assert world.rounds(5) == []
