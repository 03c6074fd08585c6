"""What deciding leads to: the forecast is what rounds of deciding do, and it changes nothing."""

from __future__ import annotations

from tests.unit.core.preempting import World, node, two_queues, workload
from windlass.core.explain import forecast
from windlass.core.model.types import Policy, Queue


def test_another_tree_names_victims_and_leaves_the_snapshot_unchanged() -> None:
    world = World([node("n1")], two_queues(4, 4))
    world.start(*(workload(f"a{i}", "a", gpus=2) for i in range(2)))
    world.start(*(workload(f"b{i}", "b", gpus=2) for i in range(2)))
    world.wait(workload("b2", "b", gpus=2))
    before = world.snapshot.facts()
    assert forecast.settle(world.snapshot, world.now, Policy()).stopped == ()
    more = [Queue("a", guarantee={"gpu": 2000}), Queue("b", guarantee={"gpu": 6000})]
    found = forecast.settle(world.snapshot, world.now, Policy(), more)
    assert (len(found.stopped), found.started, found.settled) == (1, ("b2",), True)
    assert found.preemptors[found.stopped[0]] == "b2"
    assert found.used["b"]["gpu"] == 6000
    assert world.snapshot.facts() == before


def test_shrinking_differs_from_stopping() -> None:
    world = World([node("n1")], two_queues(4, 4))
    world.wait(workload("wide", "b", members=2, most=8))
    world.decide()
    world.happen()
    world.wait(workload("mine", "a", gpus=4))
    found = forecast.settle(world.snapshot, world.now, Policy())
    assert (found.stopped, found.shrunk, found.started) == ((), {"wide": 4}, ("mine",))
