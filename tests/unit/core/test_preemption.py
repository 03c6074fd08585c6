"""Preemption: which victims, and how many: rights, costs, protection."""

import dataclasses

import pytest

from tests.unit.core.preempting import NOW, World, node, role, settles, two_queues, workload
from windlass.core.model.types import (
    Device,
    DeviceRequest,
    Node,
    Policy,
    Queue,
    Role,
    Topology,
    Workload,
)
from windlass.core.prefilter import equivalence_cache
from windlass.core.snapshot import snapshot
from windlass.core.verdicts import formatting
from windlass.kinds.reasons import Reason

# --- reclaim --------------------------------------------------------------------------------------


def test_a_queue_reclaims_its_guarantee_from_borrowers():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(*(workload(f"b{i}", "b", gpus=4) for i in range(4)))
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert len(world.evicted) == 2
    assert (
        world.decision.verdicts[0].message
        == "waiting for preempted workloads to exit: 2 cpu, 8 gpu in queue b"
    )
    settles(world, "a1")


def test_nothing_inside_a_guarantee_is_taken_whatever_the_priority():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(workload("b1", "b", gpus=8, priority=0), workload("a0", "a", gpus=8, priority=0))
    world.wait(workload("a1", "a", gpus=8, priority=0)).decide()
    world.wait(workload("a2", "a", gpus=1, priority=0)).decide()
    assert world.evicted == {}


def test_only_what_is_above_the_guarantee_goes_the_rest_by_priority_and_age_stays():
    world = World([node("n1", 4), node("n2", 4)], two_queues(4, 4))
    for i, priority in enumerate((90, 10, 50, 50, 50, 50, 50, 50)):
        world.start(workload(f"b{i}", "b", priority=priority), started=NOW - 1000 + i)
    world.wait(workload("a1", "a", 4, 1)).decide()
    assert set(world.evicted) == {"b1", "b5", "b6", "b7"}
    settles(world, "a1")


def test_a_gang_that_is_larger_than_its_queues_guarantee_goes_as_a_whole():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(workload("big", "b", 2, 8))
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert world.evicted == {"big": 2}
    settles(world, "a1")


def test_what_an_elastic_gang_holds_above_the_guarantee_is_taken_back():
    world = World([node("n1"), node("n2")], two_queues())
    world.run(workload("big", "b", 1, 8, most=2), "n1", "n2")
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert world.evicted == {"big": 1}
    settles(world, "a1")


def test_a_workload_on_borrowed_capacity_is_evicted_before_one_partly_within_the_guarantee():
    world = World([node("n1"), node("n2")], two_queues(4, 6))
    world.run(workload("old", "b", gpus=4), "n1", started=1)
    world.run(workload("partly", "b", gpus=4), "n1", started=2)
    world.run(workload("young", "b", gpus=4), "n2", started=3, checkpoint_at=None)
    world.run(workload("mine", "a", gpus=4, preemptible=False), "n2", started=3)
    world.snapshot = snapshot.build(
        dataclasses.replace(world.snapshot.facts(), queues=tuple(two_queues(8, 6)))
    )
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert set(world.evicted) == {"young"}
    settles(world, "a1")


def test_a_workload_that_must_not_be_preempted_is_no_victim():
    world = World([node("n1")], two_queues(8, 8))
    world.run(workload("firm", "b", gpus=8, preemptible=False), "n1")
    world.wait(workload("a1", "a", gpus=8)).decide()
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
    world.start(*(workload(f"x{i}", "a2", gpus=2) for i in range(4)))
    world.start(*(workload(f"y{i}", "b1", gpus=2) for i in range(4)))
    # b1 has no guarantee of its own, but all it holds is inside that of org2; a2 took from a1.
    world.wait(workload("mine", "a1", gpus=4)).decide()
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
    world.start(*(workload(f"b{i}", "b", gpus=2) for i in range(4)))
    world.wait(workload("mine", "a", gpus=4)).decide()
    assert len(world.evicted) == 2
    settles(world, "mine")


def test_reclaim_can_be_switched_off():
    world = World([node("n1")], two_queues(8, 0), Policy(reclaim=False))
    world.start(workload("b1", "b", gpus=8)).wait(workload("a1", "a", gpus=8)).decide()
    assert world.evicted == {}


# --- within one queue -----------------------------------------------------------------------------

ONE = [Queue("q")]


def test_a_higher_priority_stops_the_lowest_first():
    world = World([node("n1", 4)], ONE)
    world.start(*(workload(f"p{p}", "q", priority=p) for p in (10, 20, 30, 60)))
    world.wait(workload("hi", "q", gpus=2, priority=50)).decide()
    assert set(world.evicted) == {"p10", "p20"}
    settles(world, "hi")


@pytest.mark.parametrize("priority", [40, 50])
def test_a_workload_that_outranks_no_other_waits(priority):
    world = World([node("n1", 4)], ONE).start(workload("x", "q", gpus=4, priority=50))
    world.wait(workload("y", "q", gpus=4, priority=priority)).decide()
    assert world.evicted == {}
    assert world.decision.verdicts[0].reason == Reason.WAITING_FOR_CAPACITY


def test_the_queues_highest_priority_caps_it():
    world = World([node("n1", 4)], [Queue("q", max_priority=50)])
    world.start(workload("x", "q", gpus=4, priority=50))
    world.wait(workload("y", "q", gpus=4, priority=900)).decide()
    assert world.evicted == {}


def test_preemption_can_be_switched_off():
    world = World([node("n1", 4)], ONE, Policy(preempt=False))
    world.start(workload("x", "q", gpus=4, priority=1))
    world.wait(workload("y", "q", gpus=4, priority=90)).decide()
    assert world.evicted == {}


def test_a_limit_is_in_the_way_and_lower_ones_of_the_queue_go_even_if_capacity_is_free():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(workload(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(workload("hi", "q", gpus=2, priority=90)).decide()
    assert len(world.evicted) == 2
    settles(world, "hi")


def test_priority_does_not_reach_into_another_queue():
    world = World([node("n1")], [Queue("a"), Queue("b")])
    world.start(workload("x", "b", gpus=8, priority=0))
    world.wait(workload("y", "a", gpus=8, priority=1000)).decide()
    assert world.evicted == {}


def test_in_the_attained_order_a_workload_with_clearly_more_service_is_evicted():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(workload("long", "q", gpus=4), started=NOW - 50_000)
    world.wait(workload("new", "q", gpus=4, attained=100)).decide()
    assert set(world.evicted) == {"long"}
    settles(world, "new")


def test_in_the_attained_order_a_small_difference_changes_nothing():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(workload("long", "q", gpus=4), started=NOW - 1000)
    world.wait(workload("new", "q", gpus=4, attained=900)).decide()
    assert world.evicted == {}


def test_own_lower_workloads_go_first_where_the_queue_is_inside_only_without_them():
    world = World([node("n1"), node("n2")], two_queues(8, 8))
    world.run(workload("low", "a", gpus=6, priority=1), "n1")
    for i in range(10):
        world.run(workload(f"b{i}", "b"), "n2" if i < 8 else "n1", started=NOW - 100 + i)
    world.wait(workload("hi", "a", gpus=8, priority=90)).decide()
    assert set(world.evicted) == {"low", "b8", "b9"}
    settles(world, "hi")


# --- how much goes --------------------------------------------------------------------------------


def test_surplus_goes_before_whole_workloads_and_the_highest_numbers_first():
    world = World([node("n1")], two_queues(4, 4))
    world.start(workload("elastic", "b", 2, 1, most=6), started=NOW - 9000)
    world.start(workload("young", "b", 2, 1), started=NOW - 1)
    found = world.decide()
    assert found.evictions == ()
    world.happen()
    world.wait(workload("a1", "a", 2, 1)).decide()
    assert world.decision.evictions[0].pods == (("w", 5), ("w", 4))
    assert world.evicted == {"elastic": 2}
    settles(world, "a1")
    assert len(world.snapshot.running["elastic"].pods) >= 2


def test_the_least_work_lost_goes_first_and_checkpoints_count():
    world = World([node("n1", 3)], two_queues(1, 0))
    world.start(workload("x", "b"), started=NOW - 500)
    world.start(workload("saved", "b"), started=NOW - 5000, checkpoint_at=NOW - 10)
    world.start(workload("y", "b"), started=NOW - 400)
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {"saved": 1}
    settles(world, "a1")


def test_one_elastic_workload_gives_to_many_in_one_decision():
    """Its surplus first, then the other victims; no preemptor waits for another's grace period."""
    world = World([node("n1", 16)], two_queues(10, 4))
    world.start(workload("wide", "b", members=2, most=8))
    for number in range(8):
        world.start(workload(f"single-{number}", "b"), started=NOW + number)
    for number in range(10):
        world.wait(workload(f"mine-{number}", "a", submitted=number))
    world.decide()
    assert {each.workload for each in world.decision.nominations} == set(world.snapshot.waiting)
    assert sum(world.evicted.values()) == 10
    assert world.evicted["wide"] == 6
    world.happen().go().decide()
    assert len(world.decision.placements) == 10


def test_a_workload_submitted_while_another_shrinks_makes_it_shrink_further_at_once():
    world = World([node("n1", 8)], two_queues(8, 0))
    world.start(workload("wide", "b", members=2, most=8))
    for number in range(8):
        world.wait(workload(f"mine-{number}", "a", submitted=number)).decide()
        assert f"mine-{number}" in {each.workload for each in world.decision.nominations}
        world.happen()
        gone = len(world.snapshot.running["wide"].leaving)
        assert gone == (number + 1 if number < 6 else 8), "what is left of it goes whole"
    world.go().decide()
    assert len(world.decision.placements) == 8
    assert world.decision.evictions == ()


def test_minimum_runtime_protects_and_wakes_when_it_is_over():
    world = World([node("n1")], two_queues(8, 0))
    world.start(workload("x", "b", gpus=4), protected_until=NOW + 100)
    world.start(workload("y", "b", gpus=4), protected_until=NOW + 60)
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert (world.evicted, world.decision.wake_at) == ({}, NOW + 100)
    message = world.decision.verdicts[0].message
    assert "must first run for their queue's minimum runtime" in message
    assert message.endswith(f"not over for enough of them before {formatting.moment(NOW + 100)}")
    world.now = NOW + 100
    assert world.decide().evictions
    settles(world, "a1")


def test_an_unprotected_workload_is_evicted_instead():
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(workload("x", "b"), protected_until=NOW + 100, started=NOW - 1)
    world.start(workload("y", "b"), started=NOW - 90)
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {"y": 1}


def test_the_preemptor_takes_free_capacity_too_and_holds_all_of_it():
    world = World([node("n1", 4)], [Queue("q")])
    world.start(workload("x", "q", gpus=2, priority=1))
    world.wait(
        workload("hi", "q", gpus=4, priority=90), workload("low", "q", gpus=1, priority=1)
    ).decide()
    assert world.evicted == {"x": 1}
    assert world.decision.placements == ()
    assert len(world.decision.nominations[0].pods[0].grants) == 4
    settles(world, "hi")


def test_a_second_preemptor_counts_on_what_the_first_ones_victim_leaves():
    world = World([node("n1"), node("n2")], ONE)
    world.start(workload("x", "q", gpus=8, priority=1), workload("y", "q", gpus=8, priority=2))
    world.wait(
        workload("h1", "q", gpus=2, priority=90), workload("h2", "q", gpus=2, priority=90)
    ).decide()
    assert world.evicted == {"x": 1}
    assert {each.workload for each in world.decision.nominations} == {"h1", "h2"}
    settles(world, "h1")
    assert world.runs("h2")


def test_a_second_preemptor_under_a_limit_stops_no_more_than_it_needs():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(workload(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(workload("h1", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    world.happen().wait(workload("h2", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    settles(world, "h2")


def test_a_required_rack_is_freed_as_one():
    nodes = [node(f"n{i}", 2, rack=f"r{i // 2}") for i in range(4)]
    world = World(nodes, two_queues(4, 0))
    world.run(workload("x0", "b", gpus=2), "n0", started=NOW - 10)
    world.run(workload("x1", "b", gpus=2), "n1", started=NOW - 5000)
    world.run(workload("x2", "b", gpus=2), "n2", started=NOW - 100)
    world.run(workload("x3", "b", gpus=2), "n3", started=NOW - 100)
    world.wait(workload("a1", "a", 2, 2, topology=Topology("rack", required=True))).decide()
    assert set(world.evicted) == {"x2", "x3"}
    settles(world, "a1")


def test_a_workload_of_two_shapes_gets_all_of_its_capacity():
    both = Workload("a1", "a", (role(2, 2), Role("head", 1, 1, {"cpu": 60_000})))
    world = World([node("n1", 4), node("n2", 4)], two_queues(8, 0))
    world.start(*(workload(f"x{i}", "b", gpus=2, cpu=20) for i in range(4)))
    world.wait(both).decide()
    settles(world, "a1")


def test_shares_of_a_device_are_given_back_together():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(*(Workload(f"s{i}", "b", (share,)) for i in range(8)))
    world.wait(workload("a1", "a")).decide()
    assert len(world.evicted) == 4
    settles(world, "a1")


def test_a_share_takes_the_place_of_one_share():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 1)], [Queue("q")])
    world.start(*(Workload(f"s{i}", "q", (share,), priority=i) for i in range(4)))
    world.wait(Workload("hi", "q", (share,), priority=90)).decide()
    assert world.evicted == {"s0": 1}
    settles(world, "hi")


def test_a_models_limit_is_respected_and_another_model_freed():
    def of(model: str) -> Node:
        devices = tuple(Device(f"g{i}", "gpu", model, memory=80) for i in range(2))
        return Node(f"n-{model}", {"cpu": 64_000}, devices, path=("r",))

    queue = Queue("q", limit={"gpu/h100": 1000})
    world = World([of("h100"), of("a100")], [queue])
    either = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 2, models=("h100", "a100")),))
    world.run(workload("x", "q", priority=1), "n-h100").run(
        workload("y", "q", priority=2), "n-a100"
    )
    world.wait(Workload("hi", "q", (either,), priority=9)).decide()
    assert world.evicted == {"y": 1}
    settles(world, "hi")


def test_a_host_port_is_freed_by_evicting_its_holder():
    world = World([node("n1")], [Queue("q")])
    world.start(workload("x", "q", ports=(80,), priority=1), workload("y", "q", priority=0))
    world.wait(workload("hi", "q", ports=(80,), priority=9)).decide()
    assert world.evicted == {"x": 1}
    settles(world, "hi")


def test_a_negative_answer_evicts_no_workload_and_costs_the_next_ones_nothing():
    def operations(workloads: int, **policy) -> int:
        world = World([node("n1", 4), node("n2", 4)], ONE, Policy(**policy))
        world.start(
            workload("x", "q", gpus=4, priority=1), workload("keep", "q", gpus=4, priority=99)
        )
        world.wait(*(workload(f"w{i}", "q", 2, 4, priority=50) for i in range(workloads))).decide()
        assert world.evicted == {}
        return world.decision.operations

    def for_asking(workloads: int) -> int:
        return operations(workloads) - operations(workloads, preempt=False, reclaim=False)

    assert for_asking(10) > 0
    assert for_asking(50) == for_asking(10)


def test_a_reservation_whose_victims_stay_is_made_again():
    world = World([node("n1")], two_queues(8, 0))
    world.start(workload("b1", "b", gpus=8)).wait(workload("a1", "a", gpus=8)).decide()
    snapshot.apply(world.snapshot, [snapshot.Nominated(world.decision.nominations[0])])
    assert set({e.workload for e in world.decide().evictions}) == {"b1"}  # it never heard of it
    settles(world, "a1")


def test_a_workload_that_gets_a_victims_quota_does_not_start_before_the_victim_ends():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(workload("low", "q", gpus=4, priority=1)).wait(
        workload("hi", "q", gpus=4, priority=9)
    )
    world.decide()
    assert world.evicted == {"low": 1}
    world.happen().decide()
    assert world.decision.placements == ()
    assert [each.workload for each in world.decision.nominations] == ["hi"]
    world.go()
    assert [each.workload for each in world.decide().placements] == ["hi"]


def test_workloads_of_one_class_under_quota_get_one_verdict(monkeypatch) -> None:
    """And the same is decided as if each of them had been asked alone."""

    def decided() -> tuple[list[str], dict[str, Reason]]:
        world = World([node("n0", 16)], [Queue("q", limit={"gpu": 4000}, order="fifo", reserve=0)])
        for number in range(12):
            gpus = (3, 2, 1)[number % 3]
            world.wait(workload(f"u{number:02}", "q", 1, gpus, submitted=float(number)))
        decision = world.decide()
        return (
            [each.workload for each in decision.placements],
            {each.workload: each.reason for each in decision.verdicts},
        )

    together = decided()
    asked: list[str] = []
    tell = equivalence_cache.over_quota

    def count(cycle, workload, verdict) -> None:
        asked.append(workload.key)
        tell(cycle, workload, verdict)

    monkeypatch.setattr(equivalence_cache, "over_quota", count)
    assert decided() == together
    assert sorted(asked) == ["u01", "u01", "u03", "u03", "u05", "u05"], "one of each kind, twice"
    monkeypatch.setattr(equivalence_cache, "over_quota", lambda *_: None)
    assert decided() == together
    assert together[0] == ["u00", "u02"]
    assert set(together[1].values()) == {Reason.WAITING_FOR_QUOTA}


def test_a_start_with_victims_is_not_withdrawn():
    """Between the two decisions a queue with a right to the capacity asks for it: it takes it back
    from the preemptor afterwards, as from any running workload; the eviction was not in vain."""
    world = World([node("n", 1)], two_queues(0, 1))
    world.start(workload("low", "a", priority=10)).wait(workload("high", "a", priority=90)).decide()
    assert set(world.evicted) == {"low"}
    world.happen().go().wait(workload("mine", "b"))
    assert [each.workload for each in world.decide().placements] == ["high"]
    world.happen()
    assert [(each.workload, each.preemptor) for each in world.decide().evictions] == [
        ("high", "mine")
    ]


def test_of_a_workload_that_has_nothing_to_lose_no_more_members_go_than_needed():
    """Its least is as cheap as what is above it, so that at first all of it seems to go."""
    world = World([node("n", 3)], [Queue("a")])
    world.start(workload("elastic", "a", most=3, priority=10), started=NOW)
    world.decide()
    world.happen().wait(workload("high", "a", priority=90)).decide()
    assert world.evicted == {"elastic": 1}


def test_a_gang_that_is_being_repaired_is_nobodys_victim_in_the_same_decision():
    """It would be given a pod and evicted at once; the next decision may stop it."""
    world = World([node("n0", 1), node("n1", 1)], two_queues(1, 0), policy=Policy(grow=False))
    world.run(workload("hurt", "b", 2), "n0").wait(workload("mine", "a"))
    found = world.decide()
    assert [(each.workload, len(each.pods)) for each in found.placements] == [("hurt", 1)]
    assert found.evictions == ()
    world.happen()
    assert [(each.workload, each.preemptor) for each in world.decide().evictions] == [
        ("hurt", "mine")
    ]


def test_held_capacity_is_not_used_for_repairs():
    world = World([node("n0", 1), node("n1", 1)], [Queue("a")])
    world.run(workload("hurt", "a", priority=50), "n0").run(workload("low", "a", priority=10), "n1")
    world.wait(workload("high", "a", priority=90)).decide()
    assert set(world.evicted) == {"low"}
    world.happen()
    hurt = dataclasses.replace(world.snapshot.running["hurt"], workload=workload("hurt", "a", 2))
    snapshot.apply(world.snapshot, [snapshot.WorkloadGone("low"), snapshot.RunningPut(hurt)])
    assert [each.workload for each in world.decide().placements] == ["high"]
