"""Who makes room for whom, and how much: rights, costs, protection."""

import dataclasses

import pytest

from tests.unit.core.preempting import NOW, World, node, role, settles, two_queues, unit
from windlass.core import alike, state, verdicts
from windlass.core.facts import (
    Device,
    DeviceRequest,
    Node,
    Policy,
    Queue,
    Role,
    Topology,
    Unit,
)
from windlass.kinds.reasons import Reason

# --- reclaim --------------------------------------------------------------------------------------


def test_a_queue_takes_back_its_guarantee_from_who_borrows():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(*(unit(f"b{i}", "b", gpus=4) for i in range(4)))
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert len(world.evicted) == 2
    assert world.decision.verdicts[0].message == "its room is being freed: 2 cpu, 8 gpu in queue b"
    settles(world, "a1")


def test_nothing_inside_a_guarantee_is_taken_whatever_the_priority():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(unit("b1", "b", gpus=8, priority=0), unit("a0", "a", gpus=8, priority=0))
    world.wait(unit("a1", "a", gpus=8, priority=0)).decide()
    world.wait(unit("a2", "a", gpus=1, priority=0)).decide()
    assert world.evicted == {}


def test_only_what_is_above_the_guarantee_goes_the_rest_by_priority_and_age_stays():
    world = World([node("n1", 4), node("n2", 4)], two_queues(4, 4))
    for i, priority in enumerate((90, 10, 50, 50, 50, 50, 50, 50)):
        world.start(unit(f"b{i}", "b", priority=priority), started=NOW - 1000 + i)
    world.wait(unit("a1", "a", 4, 1)).decide()
    assert set(world.evicted) == {"b1", "b5", "b6", "b7"}
    settles(world, "a1")


def test_a_gang_that_is_larger_than_its_queues_guarantee_goes_as_a_whole():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(unit("big", "b", 2, 8))
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {"big": 2}
    settles(world, "a1")


def test_what_an_elastic_gang_holds_above_the_guarantee_is_taken_back():
    world = World([node("n1"), node("n2")], two_queues())
    world.run(unit("big", "b", 1, 8, most=2), "n1", "n2")
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {"big": 1}
    settles(world, "a1")


def test_who_holds_only_borrowed_room_goes_before_who_is_partly_inside():
    world = World([node("n1"), node("n2")], two_queues(4, 6))
    world.run(unit("old", "b", gpus=4), "n1", started=1)
    world.run(unit("partly", "b", gpus=4), "n1", started=2)
    world.run(unit("young", "b", gpus=4), "n2", started=3, checkpoint_at=None)
    world.run(unit("mine", "a", gpus=4, preemptible=False), "n2", started=3)
    world.snapshot = state.build(
        dataclasses.replace(world.snapshot.facts(), queues=tuple(two_queues(8, 6)))
    )
    world.wait(unit("a1", "a", gpus=4)).decide()
    assert set(world.evicted) == {"young"}
    settles(world, "a1")


def test_a_unit_that_must_not_be_preempted_is_no_victim():
    world = World([node("n1")], two_queues(8, 8))
    world.run(unit("firm", "b", gpus=8, preemptible=False), "n1")
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {}


def test_borrowing_is_judged_where_the_branches_part():
    queues = [
        Queue("org1", guarantee={"gpu": 8000}),
        Queue("org2", guarantee={"gpu": 8000}),
        Queue("a1", parent="org1", guarantee={"gpu": 4000}),
        Queue("a2", parent="org1", guarantee={"gpu": 4000}),
        Queue("b1", parent="org2"),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.start(*(unit(f"x{i}", "a2", gpus=2) for i in range(4)))
    world.start(*(unit(f"y{i}", "b1", gpus=2) for i in range(4)))
    # b1 has no guarantee of its own, but all it holds is inside that of org2; a2 took from a1.
    world.wait(unit("mine", "a1", gpus=4)).decide()
    assert {key[0] for key in world.evicted} == {"x"}
    assert len(world.evicted) == 2
    settles(world, "mine")


def test_a_parents_limit_is_in_the_way_and_a_sibling_gives_back():
    queues = [
        Queue("org", limit={"gpu": 8000}),
        Queue("a", parent="org", guarantee={"gpu": 4000}),
        Queue("b", parent="org", guarantee={"gpu": 4000}),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.start(*(unit(f"b{i}", "b", gpus=2) for i in range(4)))
    world.wait(unit("mine", "a", gpus=4)).decide()
    assert len(world.evicted) == 2
    settles(world, "mine")


def test_reclaim_can_be_switched_off():
    world = World([node("n1")], two_queues(8, 0), Policy(reclaim=False))
    world.start(unit("b1", "b", gpus=8)).wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {}


# --- within one queue -----------------------------------------------------------------------------

ONE = [Queue("q")]


def test_a_higher_priority_stops_the_lowest_first():
    world = World([node("n1", 4)], ONE)
    world.start(*(unit(f"p{p}", "q", priority=p) for p in (10, 20, 30, 60)))
    world.wait(unit("hi", "q", gpus=2, priority=50)).decide()
    assert set(world.evicted) == {"p10", "p20"}
    settles(world, "hi")


@pytest.mark.parametrize("priority", [40, 50])
def test_who_does_not_outrank_others_waits(priority):
    world = World([node("n1", 4)], ONE).start(unit("x", "q", gpus=4, priority=50))
    world.wait(unit("y", "q", gpus=4, priority=priority)).decide()
    assert world.evicted == {}
    assert world.decision.verdicts[0].reason == Reason.WAITING_FOR_CAPACITY


def test_the_queues_highest_priority_caps_it():
    world = World([node("n1", 4)], [Queue("q", max_priority=50)])
    world.start(unit("x", "q", gpus=4, priority=50))
    world.wait(unit("y", "q", gpus=4, priority=900)).decide()
    assert world.evicted == {}


def test_preemption_can_be_switched_off():
    world = World([node("n1", 4)], ONE, Policy(preempt=False))
    world.start(unit("x", "q", gpus=4, priority=1))
    world.wait(unit("y", "q", gpus=4, priority=90)).decide()
    assert world.evicted == {}


def test_a_limit_is_in_the_way_and_lower_ones_of_the_queue_go_even_if_room_is_free():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(unit(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(unit("hi", "q", gpus=2, priority=90)).decide()
    assert len(world.evicted) == 2
    settles(world, "hi")


def test_priority_does_not_reach_into_another_queue():
    world = World([node("n1")], [Queue("a"), Queue("b")])
    world.start(unit("x", "b", gpus=8, priority=0))
    world.wait(unit("y", "a", gpus=8, priority=1000)).decide()
    assert world.evicted == {}


def test_in_the_attained_order_who_had_clearly_more_goes():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(unit("long", "q", gpus=4), started=NOW - 50_000)
    world.wait(unit("new", "q", gpus=4, attained=100)).decide()
    assert set(world.evicted) == {"long"}
    settles(world, "new")


def test_in_the_attained_order_a_small_difference_changes_nothing():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(unit("long", "q", gpus=4), started=NOW - 1000)
    world.wait(unit("new", "q", gpus=4, attained=900)).decide()
    assert world.evicted == {}


def test_own_lower_units_go_first_where_the_queue_is_inside_only_without_them():
    world = World([node("n1"), node("n2")], two_queues(8, 8))
    world.run(unit("low", "a", gpus=6, priority=1), "n1")
    for i in range(10):
        world.run(unit(f"b{i}", "b"), "n2" if i < 8 else "n1", started=NOW - 100 + i)
    world.wait(unit("hi", "a", gpus=8, priority=90)).decide()
    assert set(world.evicted) == {"low", "b8", "b9"}
    settles(world, "hi")


# --- how much goes --------------------------------------------------------------------------------


def test_surplus_goes_before_whole_units_and_the_highest_numbers_first():
    world = World([node("n1")], two_queues(4, 4))
    world.start(unit("elastic", "b", 2, 1, most=6), started=NOW - 9000)
    world.start(unit("young", "b", 2, 1), started=NOW - 1)
    found = world.decide()
    assert found.evictions == ()
    world.happen()
    world.wait(unit("a1", "a", 2, 1)).decide()
    assert world.decision.evictions[0].seats == (("w", 5), ("w", 4))
    assert world.evicted == {"elastic": 2}
    settles(world, "a1")
    assert len(world.snapshot.running["elastic"].seats) >= 2


def test_the_least_work_lost_goes_first_and_checkpoints_count():
    world = World([node("n1", 3)], two_queues(1, 0))
    world.start(unit("x", "b"), started=NOW - 500)
    world.start(unit("saved", "b"), started=NOW - 5000, checkpoint_at=NOW - 10)
    world.start(unit("y", "b"), started=NOW - 400)
    world.wait(unit("a1", "a")).decide()
    assert world.evicted == {"saved": 1}
    settles(world, "a1")


def test_one_elastic_unit_gives_to_many_in_one_decision():
    """Its surplus first, then whoever is left; and nobody waits for another's grace."""
    world = World([node("n1", 16)], two_queues(10, 4))
    world.start(unit("wide", "b", members=2, most=8))
    for number in range(8):
        world.start(unit(f"single-{number}", "b"), started=NOW + number)
    for number in range(10):
        world.wait(unit(f"mine-{number}", "a", submitted=number))
    world.decide()
    assert {each.unit for each in world.decision.nominations} == set(world.snapshot.waiting)
    assert sum(world.evicted.values()) == 10
    assert world.evicted["wide"] == 6
    world.happen().go().decide()
    assert len(world.decision.placements) == 10


def test_who_comes_while_a_unit_shrinks_makes_it_shrink_further_at_once():
    world = World([node("n1", 8)], two_queues(8, 0))
    world.start(unit("wide", "b", members=2, most=8))
    for number in range(8):
        world.wait(unit(f"mine-{number}", "a", submitted=number)).decide()
        assert f"mine-{number}" in {each.unit for each in world.decision.nominations}
        world.happen()
        gone = len(world.snapshot.running["wide"].leaving)
        assert gone == (number + 1 if number < 6 else 8), "what is left of it goes whole"
    world.go().decide()
    assert len(world.decision.placements) == 8
    assert world.decision.evictions == ()


def test_minimum_runtime_protects_and_wakes_when_it_is_over():
    world = World([node("n1")], two_queues(8, 0))
    world.start(unit("x", "b", gpus=4), protected_until=NOW + 100)
    world.start(unit("y", "b", gpus=4), protected_until=NOW + 60)
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert (world.evicted, world.decision.wake_at) == ({}, NOW + 100)
    message = world.decision.verdicts[0].message
    assert "must first run for their queue's minimum runtime" in message
    assert message.endswith(f"not over for enough of them before {verdicts.moment(NOW + 100)}")
    world.now = NOW + 100
    assert world.decide().evictions
    settles(world, "a1")


def test_who_is_not_protected_goes_instead():
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(unit("x", "b"), protected_until=NOW + 100, started=NOW - 1)
    world.start(unit("y", "b"), started=NOW - 90)
    world.wait(unit("a1", "a")).decide()
    assert world.evicted == {"y": 1}


def test_the_gainer_takes_free_room_too_and_holds_all_of_it():
    world = World([node("n1", 4)], [Queue("q")])
    world.start(unit("x", "q", gpus=2, priority=1))
    world.wait(unit("hi", "q", gpus=4, priority=90), unit("low", "q", gpus=1, priority=1)).decide()
    assert world.evicted == {"x": 1}
    assert world.decision.placements == ()
    assert len(world.decision.nominations[0].seats[0].grants) == 4
    settles(world, "hi")


def test_a_second_gainer_counts_on_what_the_first_ones_victim_leaves():
    world = World([node("n1"), node("n2")], ONE)
    world.start(unit("x", "q", gpus=8, priority=1), unit("y", "q", gpus=8, priority=2))
    world.wait(unit("h1", "q", gpus=2, priority=90), unit("h2", "q", gpus=2, priority=90)).decide()
    assert world.evicted == {"x": 1}
    assert {each.unit for each in world.decision.nominations} == {"h1", "h2"}
    settles(world, "h1")
    assert world.runs("h2")


def test_a_second_gainer_under_a_limit_stops_no_more_than_it_needs():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(unit(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(unit("h1", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    world.happen().wait(unit("h2", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    settles(world, "h2")


def test_a_required_rack_is_freed_as_one():
    nodes = [node(f"n{i}", 2, rack=f"r{i // 2}") for i in range(4)]
    world = World(nodes, two_queues(4, 0))
    world.run(unit("x0", "b", gpus=2), "n0", started=NOW - 10)
    world.run(unit("x1", "b", gpus=2), "n1", started=NOW - 5000)
    world.run(unit("x2", "b", gpus=2), "n2", started=NOW - 100)
    world.run(unit("x3", "b", gpus=2), "n3", started=NOW - 100)
    world.wait(unit("a1", "a", 2, 2, topology=Topology("rack", required=True))).decide()
    assert set(world.evicted) == {"x2", "x3"}
    settles(world, "a1")


def test_a_unit_of_two_shapes_gets_all_of_its_room():
    both = Unit("a1", "a", (role(2, 2), Role("head", 1, 1, {"cpu": 60_000})))
    world = World([node("n1", 4), node("n2", 4)], two_queues(8, 0))
    world.start(*(unit(f"x{i}", "b", gpus=2, cpu=20) for i in range(4)))
    world.wait(both).decide()
    settles(world, "a1")


def test_shares_of_a_device_are_given_back_together():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(*(Unit(f"s{i}", "b", (share,)) for i in range(8)))
    world.wait(unit("a1", "a")).decide()
    assert len(world.evicted) == 4
    settles(world, "a1")


def test_a_share_takes_the_place_of_one_share():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 1)], [Queue("q")])
    world.start(*(Unit(f"s{i}", "q", (share,), priority=i) for i in range(4)))
    world.wait(Unit("hi", "q", (share,), priority=90)).decide()
    assert world.evicted == {"s0": 1}
    settles(world, "hi")


def test_a_models_limit_is_respected_and_another_model_freed():
    def of(model: str) -> Node:
        devices = tuple(Device(f"g{i}", "gpu", model, memory=80) for i in range(2))
        return Node(f"n-{model}", {"cpu": 64_000}, devices, path=("r",))

    queue = Queue("q", limit={"gpu/h100": 1000})
    world = World([of("h100"), of("a100")], [queue])
    either = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 2, models=("h100", "a100")),))
    world.run(unit("x", "q", priority=1), "n-h100").run(unit("y", "q", priority=2), "n-a100")
    world.wait(Unit("hi", "q", (either,), priority=9)).decide()
    assert world.evicted == {"y": 1}
    settles(world, "hi")


def test_a_host_port_is_freed_by_who_holds_it():
    world = World([node("n1")], [Queue("q")])
    world.start(unit("x", "q", ports=(80,), priority=1), unit("y", "q", priority=0))
    world.wait(unit("hi", "q", ports=(80,), priority=9)).decide()
    assert world.evicted == {"x": 1}
    settles(world, "hi")


def test_a_negative_answer_stops_nobody_and_costs_the_next_ones_nothing():
    def operations(units: int, **policy) -> int:
        world = World([node("n1", 4), node("n2", 4)], ONE, Policy(**policy))
        world.start(unit("x", "q", gpus=4, priority=1), unit("keep", "q", gpus=4, priority=99))
        world.wait(*(unit(f"w{i}", "q", 2, 4, priority=50) for i in range(units))).decide()
        assert world.evicted == {}
        return world.decision.operations

    def for_asking(units: int) -> int:
        return operations(units) - operations(units, preempt=False, reclaim=False)

    assert for_asking(10) > 0
    assert for_asking(50) == for_asking(10)


def test_a_promise_whose_victims_did_not_go_is_made_anew():
    world = World([node("n1")], two_queues(8, 0))
    world.start(unit("b1", "b", gpus=8)).wait(unit("a1", "a", gpus=8)).decide()
    state.apply(world.snapshot, [state.Nominated(world.decision.nominations[0])])
    assert set({e.unit for e in world.decide().evictions}) == {"b1"}  # it never heard of it
    settles(world, "a1")


def test_who_gets_a_victims_quota_does_not_start_before_the_victim_is_gone():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(unit("low", "q", gpus=4, priority=1)).wait(unit("hi", "q", gpus=4, priority=9))
    world.decide()
    assert world.evicted == {"low": 1}
    world.happen().decide()
    assert world.decision.placements == ()
    assert [each.unit for each in world.decision.nominations] == ["hi"]
    world.go()
    assert [each.unit for each in world.decide().placements] == ["hi"]


def test_units_of_a_kind_that_a_quota_keeps_waiting_are_told_so_together(monkeypatch) -> None:
    """And the same is decided as if each of them had been asked alone."""

    def decided() -> tuple[list[str], dict[str, Reason]]:
        world = World([node("n0", 16)], [Queue("q", limit={"gpu": 4000}, order="fifo", reserve=0)])
        for number in range(12):
            gpus = (3, 2, 1)[number % 3]
            world.wait(unit(f"u{number:02}", "q", 1, gpus, submitted=float(number)))
        decision = world.decide()
        return (
            [each.unit for each in decision.placements],
            {each.unit: each.reason for each in decision.verdicts},
        )

    together = decided()
    asked: list[str] = []
    tell = alike.over_quota

    def count(cycle, unit, verdict) -> None:
        asked.append(unit.key)
        tell(cycle, unit, verdict)

    monkeypatch.setattr(alike, "over_quota", count)
    assert decided() == together
    assert sorted(asked) == ["u01", "u01", "u03", "u03", "u05", "u05"], "one of each kind, twice"
    monkeypatch.setattr(alike, "over_quota", lambda *_: None)
    assert decided() == together
    assert together[0] == ["u00", "u02"]
    assert set(together[1].values()) == {Reason.WAITING_FOR_QUOTA}


def test_a_start_for_which_somebody_was_stopped_is_not_withdrawn():
    """Between the two decisions a queue with a right to the room asks for it: it takes it back from
    the gainer afterwards, as from anybody who runs; the victim did not go for nothing."""
    world = World([node("n", 1)], two_queues(0, 1))
    world.start(unit("low", "a", priority=10)).wait(unit("high", "a", priority=90)).decide()
    assert set(world.evicted) == {"low"}
    world.happen().go().wait(unit("mine", "b"))
    assert [each.unit for each in world.decide().placements] == ["high"]
    world.happen()
    assert [(each.unit, each.gainer) for each in world.decide().evictions] == [("high", "mine")]


def test_of_a_unit_that_has_nothing_to_lose_no_more_members_go_than_needed():
    """Its least is as cheap as what is above it, so that at first all of it seems to go."""
    world = World([node("n", 3)], [Queue("a")])
    world.start(unit("elastic", "a", most=3, priority=10), started=NOW)
    world.decide()
    world.happen().wait(unit("high", "a", priority=90)).decide()
    assert world.evicted == {"elastic": 1}


def test_a_gang_that_is_being_repaired_is_nobodys_victim_in_the_same_decision():
    """It would be given a member and told to go at once; the next decision may stop it."""
    world = World([node("n0", 1), node("n1", 1)], two_queues(1, 0), policy=Policy(grow=False))
    world.run(unit("hurt", "b", 2), "n0").wait(unit("mine", "a"))
    found = world.decide()
    assert [(each.unit, len(each.seats)) for each in found.placements] == [("hurt", 1)]
    assert found.evictions == ()
    world.happen()
    assert [(each.unit, each.gainer) for each in world.decide().evictions] == [("hurt", "mine")]


def test_held_room_is_not_used_for_repairs():
    world = World([node("n0", 1), node("n1", 1)], [Queue("a")])
    world.run(unit("hurt", "a", priority=50), "n0").run(unit("low", "a", priority=10), "n1")
    world.wait(unit("high", "a", priority=90)).decide()
    assert set(world.evicted) == {"low"}
    world.happen()
    hurt = dataclasses.replace(world.snapshot.running["hurt"], unit=unit("hurt", "a", 2))
    state.apply(world.snapshot, [state.Gone("low"), state.Holds(hurt)])
    assert [each.unit for each in world.decide().placements] == ["high"]
