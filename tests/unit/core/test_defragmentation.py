"""Moving running workloads so that a waiting one fits: which are moved, where to, and which are
not."""

import dataclasses

import pytest

from tests.unit.core.preempting import NOW, World, node, workload
from windlass.core.cycle import cycle, defragmentation
from windlass.core.explain import explain
from windlass.core.model.types import Constraint, Policy, Queue, Topology
from windlass.core.snapshot import snapshot

LATELY = {"started": NOW - 3600, "checkpoint_at": NOW - 60}


def fragmented(**more) -> World:
    """Two nodes of four GPUs, each half full: no pod of four fits, though four are free."""
    world = World([node("n0", 4), node("n1", 4)], [Queue("a"), Queue("b")])
    world.run(workload("x", "a", 1, 2, **{"movable": True, **more}), "n0", **LATELY)
    world.run(workload("y", "b", 1, 2, priority=90), "n1", **LATELY)
    return world


def test_a_movable_workload_goes_elsewhere_and_both_run_at_once() -> None:
    world = fragmented().wait(workload("big", "b", 1, 4))
    (eviction,) = world.decide().evictions
    assert (eviction.workload, eviction.preemptor, eviction.move) == ("x", "big", True)
    assert "moved to n1" in eviction.reason
    nominated = {each.workload: {s.node for s in each.pods} for each in world.decision.nominations}
    assert nominated == {"big": {"n0"}, "x": {"n1"}}
    world.happen()
    assert world.decide().evictions == ()
    assert {each.workload for each in world.decision.nominations} == {"big", "x"}
    world.happen().go()
    assert {each.workload for each in world.decide().placements} == {"big", "x"}
    world.happen()
    assert world.rounds(4) == []
    assert (world.runs("big"), world.runs("x")) == (True, True)


@pytest.mark.parametrize(
    ("more", "facts"),
    [
        ({"movable": False}, {}),
        ({"preemptible": False}, {}),
        ({}, {"checkpoint_at": NOW - 601}),
        ({}, {"checkpoint_at": None}),
        ({}, {"protected_until": NOW + 5}),
        ({"moved": ((NOW - 3599, "other"),)}, {}),
        ({"moved": ((NOW - 90_000, "big"),)}, {}),
    ],
    ids=["no consent", "must not stop", "old checkpoint", "none", "young", "lately", "same gang"],
)
def test_workloads_that_are_not_moved(more, facts) -> None:
    world = World([node("n0", 4), node("n1", 4)], [Queue("a")])
    world.run(workload("x", "a", 1, 2, **{"movable": True, **more}), "n0", **{**LATELY, **facts})
    world.run(workload("y", "a", 1, 2), "n1", **LATELY).wait(workload("big", "a", 1, 4))
    assert world.decide().evictions == ()


def test_a_workload_moved_an_hour_ago_is_moved_again_and_the_decision_wakes_then() -> None:
    world = fragmented(moved=((NOW - 3590, "other"),)).wait(workload("big", "b", 1, 4))
    assert world.decide().evictions == ()
    assert world.decision.wake_at == NOW + 10
    world.now += 10
    assert [each.workload for each in world.decide().evictions] == ["x"]


def test_nothing_moves_where_too_little_is_free_in_sum() -> None:
    world = fragmented().wait(workload("big", "b", 1, 4))
    world.run(workload("z", "a", 1, 1), "n1", **LATELY)
    assert world.decide().evictions == ()


def test_nothing_moves_where_it_would_not_fit_elsewhere() -> None:
    """Three GPUs are free beside it, but one on each node."""
    nodes = [node("n0", 4), node("n1", 3), node("n2", 3), node("n3", 3)]
    world = World(nodes, [Queue("a")]).run(workload("x", "a", 1, 2, movable=True), "n0", **LATELY)
    for number in (1, 2, 3):
        world.run(workload(f"y{number}", "a", 1, 2), f"n{number}", **LATELY)
    assert world.wait(workload("big", "a", 1, 4)).decide().evictions == ()


def test_nothing_moves_over_a_limit() -> None:
    world = World([node("n0", 4), node("n1", 4)], [Queue("a"), Queue("b", limit={"gpu": 3000})])
    world.run(workload("x", "a", 1, 2, movable=True), "n0", **LATELY)
    world.run(workload("y", "a", 1, 2), "n1", **LATELY)
    assert world.wait(workload("big", "b", 1, 4)).decide().evictions == ()


def test_policy_may_forbid_moves_and_say_how_much_work_is_little() -> None:
    world = fragmented().wait(workload("big", "b", 1, 4))
    world.policy = Policy(defragment=False)
    assert world.decide().evictions == ()
    world.policy = Policy(move_loses=30)
    assert world.decide().evictions == ()
    world.policy = Policy(move_loses=60)
    assert len(world.decide().evictions) == 1


def test_of_two_that_would_do_the_one_that_loses_less_work_moves() -> None:
    world = World([node("n0", 4), node("n1", 4), node("n2", 4)], [Queue("a")])
    world.run(
        workload("x", "a", 1, 2, movable=True), "n0", started=NOW - 900, checkpoint_at=NOW - 90
    )
    world.run(
        workload("y", "a", 1, 2, movable=True), "n1", started=NOW - 900, checkpoint_at=NOW - 30
    )
    world.run(workload("z", "a", 1, 2), "n2", **LATELY)
    assert world.wait(workload("big", "a", 1, 4)).decide().evictions[0].workload == "y"


def test_a_rack_is_cleared_for_a_gang_that_must_be_in_one() -> None:
    nodes = [node("n0", 4), node("n1", 4), node("n2", 4, "r1"), node("n3", 4, "r1")]
    world = World(nodes, [Queue("a")])
    world.run(workload("x", "a", 1, 4, movable=True), "n0", **LATELY)
    world.run(workload("y", "a", 1, 4), "n2", **LATELY)
    world.wait(workload("gang", "a", 2, 4, topology=Topology("rack", required=True)))
    (eviction,) = world.decide().evictions
    assert eviction.workload == "x"
    nominated = {each.workload: {s.node for s in each.pods} for each in world.decision.nominations}
    assert nominated == {"gang": {"n0", "n1"}, "x": {"n3"}}


def test_two_and_three_workloads_are_moved_where_fewer_do_not_suffice() -> None:
    for count in (2, 3):
        world = World([node("n0", 4), node("n1", 4)], [Queue("a")])
        for number in range(count):
            world.run(workload(f"x{number}", "a", 1, 1, movable=True), "n0", **LATELY)
        world.run(workload("y", "a", 1, 4 - count), "n1", **LATELY)
        world.wait(workload("big", "a", 1, 4)).decide()
        assert world.evicted == {f"x{number}": 1 for number in range(count)}
        world.happen().go()
        assert len(world.decide().placements) == count + 1


@pytest.mark.parametrize("reserved", [True, False])
def test_a_workload_is_not_moved_into_reserved_capacity(reserved) -> None:
    """x still runs when the head is to start on the only place that x could go to."""
    world = World([node("n0", 4), node("n1", 2), node("n2", 2)], [Queue("a"), Queue("b")])
    world.run(workload("x", "a", 1, 2, movable=True), "n0", expected_end=NOW + 5400, **LATELY)
    world.run(workload("soon", "b", 1, 2), "n2", expected_end=NOW + 600, **LATELY)
    if reserved:
        there = Constraint(names=frozenset(("n1", "n2")))
        world.wait(workload("head", "b", 2, 2, expected=9000.0, constraint=there))
    world.wait(workload("big", "a", 1, 4, expected=60.0)).decide()
    promised = {each.workload: each.start for each in world.decision.reservations}
    assert promised.get("head") == (NOW + 600 if reserved else None)
    assert world.evicted == ({} if reserved else {"x": 1})


def test_a_moved_workload_whose_new_place_is_lost_waits_like_others() -> None:
    world = fragmented().wait(workload("big", "b", 1, 4))
    world.decide()
    world.happen()
    gone = dataclasses.replace(node("n1", 4), ready=False)
    snapshot.apply(world.snapshot, [snapshot.NodePut(gone)])
    assert "x" not in {each.workload for each in world.decide().nominations}
    world.happen().go()
    assert {each.workload for each in world.decide().placements} == {"big"}
    assert "x" in {each.workload for each in world.decision.verdicts}


def test_what_would_help_is_proposed_without_consent() -> None:
    world = fragmented(movable=False).wait(workload("big", "b", 1, 4))
    done = cycle.run(world.snapshot, NOW, Policy())
    found = defragmentation.propose(done.state, world.snapshot.waiting["big"])
    assert found is not None
    assert [each.running.workload.key for each in found.moves] in (["x"], ["y"])
    (change,) = [
        each
        for each in explain.explain(world.snapshot, "big", NOW).fits_if
        if each.action == "moves"
    ]
    (name,) = change.names
    assert f"it would start if {name} moved from" in change.message
    assert "not allowed" in change.message
