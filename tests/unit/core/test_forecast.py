"""What deciding leads to: the forecast is what rounds of deciding do, and it changes nothing."""

from __future__ import annotations

from tests.unit.core.preempting import World, node, two_queues, unit
from windlass.core import forecast
from windlass.core.facts import Policy, Queue


def test_another_tree_tells_who_would_be_stopped_and_leaves_the_snapshot_alone() -> None:
    world = World([node("n1")], two_queues(4, 4))
    world.start(*(unit(f"a{i}", "a", gpus=2) for i in range(2)))
    world.start(*(unit(f"b{i}", "b", gpus=2) for i in range(2)))
    world.wait(unit("b2", "b", gpus=2))
    before = world.snapshot.facts()
    assert forecast.settle(world.snapshot, world.now, Policy()).stopped == ()
    more = [Queue("a", guarantee={"gpu": 2000}), Queue("b", guarantee={"gpu": 6000})]
    found = forecast.settle(world.snapshot, world.now, Policy(), more)
    assert (len(found.stopped), found.started, found.settled) == (1, ("b2",), True)
    assert found.gainers[found.stopped[0]] == "b2"
    assert found.used["b"]["gpu"] == 6000
    assert world.snapshot.facts() == before


def test_shrinking_is_told_apart_from_stopping() -> None:
    world = World([node("n1")], two_queues(4, 4))
    world.wait(unit("wide", "b", members=2, most=8))
    world.decide()
    world.happen()
    world.wait(unit("mine", "a", gpus=4))
    found = forecast.settle(world.snapshot, world.now, Policy())
    assert (found.stopped, found.shrunk, found.started) == ((), {"wide": 4}, ("mine",))
