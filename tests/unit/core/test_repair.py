"""Completing gangs that lost pods: the same rights as when they waited, and a reason."""

import dataclasses

from tests.unit.core.preempting import NOW, World, node, two_queues, workload
from windlass.core.model.types import PodAssignment, Queue, ReservationRecord, Topology
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason


def completes(world: World, key: str, members: int) -> None:
    """Capacity is nominated to the gang, others leave it, and the gang gets its pods back."""
    assert key in {each.workload for each in world.decision.nominations}
    world.happen()
    again = world.decide()
    assert again.evictions == (), "nothing new happened"
    assert key in {each.workload for each in again.nominations}
    world.happen().go()
    assert key in {each.workload for each in world.decide().placements}
    world.happen()
    pods = world.snapshot.running[key].pods
    assert sorted(pod.index for pod in pods) == list(range(members))
    assert key not in world.snapshot.nominations
    assert world.rounds(3) == []


def test_a_gang_preempts_lower_priorities_of_its_queue_for_its_missing_members() -> None:
    world = World([node("n0", 1), node("n1", 1)], [Queue("a")])
    world.run(workload("gang", "a", 2, priority=50), "n0").run(
        workload("low", "a", priority=10), "n1"
    )
    world.decide()
    assert world.evicted == {"low": 1}
    (verdict,) = world.decision.verdicts
    assert (verdict.workload, verdict.reason) == ("gang", Reason.WAITING_FOR_CAPACITY)
    completes(world, "gang", 2)


def test_a_gang_reclaims_the_guarantee_of_its_queue_for_its_missing_members() -> None:
    world = World([node("n0", 8), node("n1", 8)], two_queues(16, 0))
    world.run(workload("gang", "a", 2, 8), "n0").run(workload("lent", "b", 1, 8, priority=90), "n1")
    world.decide()
    assert world.evicted == {"lent": 1}
    completes(world, "gang", 2)


def test_surplus_yields_to_the_missing_members_of_a_gang_but_never_its_own() -> None:
    world = World([node("n0", 4)], [Queue("a")])
    world.run(workload("gang", "a", 2), "n0").run(workload("wide", "a", 1, most=3), *["n0"] * 3)
    world.decide()
    assert world.evicted == {"wide": 1}
    completes(world, "gang", 2)


def test_equal_priorities_keep_what_they_have_and_the_gang_gets_a_reason() -> None:
    world = World([node("n0", 1), node("n1", 1)], [Queue("a")])
    world.run(workload("gang", "a", 2), "n0").run(workload("other", "a"), "n1").decide()
    assert world.decision.evictions == ()
    (verdict,) = world.decision.verdicts
    assert verdict.reason == Reason.WAITING_FOR_CAPACITY
    assert verdict.message.startswith("1 of 2 pods is missing: needs 1 gpu, 1 cpu; 0 fit now")


def test_a_quota_is_named_where_it_keeps_a_gang_from_its_members() -> None:
    world = World([node("n0")], [Queue("a", limit={"gpu": 2000})])
    world.run(workload("gang", "a", 2), "n0").run(workload("other", "a"), "n0").decide()
    (verdict,) = world.decision.verdicts
    assert verdict.reason == Reason.WAITING_FOR_QUOTA
    assert verdict.message.endswith("queue a has reached its limit of 2 gpu")


def test_members_with_a_quota_in_the_way_may_preempt_within_the_queue() -> None:
    world = World([node("n0")], [Queue("a", limit={"gpu": 2000})])
    world.run(workload("gang", "a", 2), "n0").run(workload("low", "a", priority=10), "n0").decide()
    assert world.evicted == {"low": 1}
    completes(world, "gang", 2)


def test_only_workloads_in_the_domain_that_the_gang_requires_go() -> None:
    rack = Topology("rack", required=True)
    nodes = [node("n0", 1), node("n1", 1), node("n2", 1, "r1")]
    world = World(nodes, [Queue("a")])
    world.run(workload("gang", "a", 2, topology=rack), "n0")
    world.run(workload("near", "a", priority=20), "n1").run(workload("far", "a", priority=10), "n2")
    world.decide()
    assert world.evicted == {"near": 1}
    completes(world, "gang", 2)


def test_a_gang_does_not_preempt_in_a_paused_queue() -> None:
    paused = Queue("a", paused=(Reason.QUEUE_PAUSED, "paused"))
    world = World([node("n0", 1), node("n1", 1)], [paused])
    world.run(workload("gang", "a", 2), "n0").run(workload("low", "a", priority=10), "n1").decide()
    assert world.decision.evictions == ()
    assert [each.workload for each in world.decision.verdicts] == ["gang"]


def test_members_stay_out_of_capacity_that_is_reserved_for_others() -> None:
    """The head has a reservation on n1 at a time when the gang still runs."""
    world = World([node("n0", 1), node("n1", 1)], [Queue("a")])
    world.run(workload("gang", "a", 2, expected=7200.0), "n0", expected_end=NOW + 7200)
    head = workload("head", "a", 2, expected=60.0)
    world.run(workload("x", "a", priority=90), "n1", expected_end=NOW + 600)
    world.wait(head)
    pods = (PodAssignment("w", 0, "n1", world.snapshot.running["x"].pods[0].grants),)
    single = workload("single", "a", expected=7200.0, priority=90)
    world.wait(single)
    snapshot.apply(
        world.snapshot, [snapshot.ReservationsPut((ReservationRecord("single", NOW + 600, pods),))]
    )
    snapshot.apply(world.snapshot, [snapshot.WorkloadGone("head"), snapshot.WorkloadGone("x")])
    blocked = dataclasses.replace(single, not_before=NOW + 600)
    snapshot.apply(world.snapshot, [snapshot.WaitingPut(blocked)])
    world.decide()
    assert "gang" not in {each.workload for each in world.decision.placements}
    assert world.decision.verdicts[0].workload == "gang"
    assert world.decision.verdicts[0].reason == Reason.RESERVED_UNTIL


def test_a_nomination_is_void_when_the_gang_lost_another_member() -> None:
    world = World([node("n0", 1), node("n1", 1), node("n2", 1)], [Queue("a")])
    world.run(workload("gang", "a", 3), "n0", "n1").run(workload("low", "a", priority=10), "n2")
    world.decide()
    world.happen()
    gang = world.snapshot.running["gang"]
    assert [pod.index for pod in world.snapshot.nominations["gang"].pods] == [2]
    snapshot.apply(
        world.snapshot, [snapshot.RunningPut(dataclasses.replace(gang, pods=gang.pods[1:]))]
    )
    assert world.decide().nominations == ()
    world.go()
    (placement,) = world.decide().placements
    assert sorted((pod.index, pod.node) for pod in placement.pods) == [(0, "n0"), (2, "n2")]
