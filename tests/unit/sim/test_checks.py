"""The checker finds what it is there to find: each rule, broken on purpose."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from tests.unit.sim.building import job, scenario
from windlass.core.cycle import cycle
from windlass.core.invariants import invariants
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    Eviction,
    Grant,
    Nomination,
    Placement,
    PodAssignment,
    Policy,
    Profile,
    Queue,
    ReservationRecord,
    Running,
    Topology,
)
from windlass.core.snapshot import snapshot as snapshot_module
from windlass.sim.checks import invariants as checks_invariants
from windlass.sim.job_progress import Record
from windlass.sim.scenario import Job

NOTHING = Decision()


def pod(number: int, node: str = "node-0000", *devices: int) -> PodAssignment:
    return PodAssignment("worker", number, node, tuple(Grant(f"gpu{n}") for n in devices))


def snapshot(
    *holders: tuple[Job, tuple[PodAssignment, ...]], limit: int = 10**9
) -> snapshot_module.Snapshot:
    played = scenario(nodes=2, rack=1, queues=(Queue("default", limit={"gpu": limit}),))
    running = tuple(Running(each.workload, pods, 0.0) for each, pods in holders)
    return snapshot_module.build(dataclasses.replace(played.facts, running=running))


def after(found: snapshot_module.Snapshot, *placed: str) -> None:
    decision = Decision(placements=tuple(Placement(workload, ()) for workload in placed))
    checks_invariants.Checker(Policy(), again=0).after(found, decision, 7.0)


def test_two_workloads_on_one_device() -> None:
    a, b = job("a", gpus=1), job("b", gpus=1)
    with pytest.raises(
        invariants.Broken, match=r"I1 at 7.0: device gpu0 of node-0000.*whole 2 times"
    ):
        after(snapshot((a, (pod(0, "node-0000", 0),)), (b, (pod(0, "node-0000", 0),))))
    after(snapshot((a, (pod(0, "node-0000", 0),)), (b, (pod(0, "node-0000", 1),))))


def test_more_cpu_than_there_is() -> None:
    many = job("many", gpus=0, members=129)
    with pytest.raises(invariants.Broken, match=r"I1 .* node-0000 has 128000 cpu, 129000 are held"):
        after(snapshot((many, tuple(pod(n) for n in range(129)))))


def test_a_gang_with_too_few_members() -> None:
    gang = job("gang", gpus=1, members=2)
    with pytest.raises(invariants.Broken, match=r"I2 .* gang has 1 of worker"):
        after(snapshot((gang, (pod(0, "node-0000", 0),))), "gang")


def test_a_workload_in_two_racks() -> None:
    near = job("near", gpus=1, members=2, topology=Topology("rack", required=True))
    with pytest.raises(invariants.Broken, match=r"I3 .* near must be in one rack"):
        after(snapshot((near, (pod(0, "node-0000", 0), pod(1, "node-0001", 0)))), "near")


def test_a_queue_beyond_its_limit() -> None:
    held = job("a", gpus=2)
    with pytest.raises(invariants.Broken, match=r"I4 .* queue default holds 2000 gpu"):
        after(snapshot((held, (pod(0, "node-0000", 0, 1),)), limit=1000))


def test_workloads_that_cannot_be_preempted_where_others_are_guaranteed_the_rest() -> None:
    firm = job("firm", gpus=2, preemptible=False)
    queues = (Queue("default", guarantee={"gpu": 1000}), Queue("other", guarantee={"gpu": 15_000}))
    facts = dataclasses.replace(
        scenario(nodes=2, queues=queues).facts,
        running=(Running(firm.workload, (pod(0, "node-0000", 0, 1),), 0.0),),
    )
    with pytest.raises(invariants.Broken, match=r"I4 .* come to 17000 gpu, there is 16000"):
        after(snapshot_module.build(facts), "firm")


@pytest.mark.parametrize(
    ("victims", "words"),
    [
        (["b0"], ""),
        (["b0", "b1"], "queue b is left below its guarantee by b0, b1"),
        (["wide"], ""),
        (["b0", "wide"], "queue b is left below its guarantee by b0, wide"),
        (["young"], "queue b is left below its guarantee by young"),
    ],
)
def test_what_is_taken_from_a_queue_below_its_guarantee(victims: list[str], words: str) -> None:
    """Queue b holds one more than the seven it is guaranteed: a run of three may go as a whole, if
    it ran long enough and nothing goes besides."""
    queues = (Queue("a", guarantee={"gpu": 1000}), Queue("b", guarantee={"gpu": 7000}))
    held = [(f"b{n}", 1, 0.0) for n in range(2)] + [("wide", 3, 0.0), ("young", 3, 900.0)]
    devices, running = iter(range(8)), []
    for key, count, started in held:
        own = job(key, gpus=count, queue="b").workload
        mine = tuple(next(devices) for _ in range(count))
        running.append(Running(own, (pod(0, "node-0000", *mine),), started))
    facts = dataclasses.replace(
        scenario(nodes=1, queues=queues).facts,
        running=tuple(running),
        waiting=(job("mine", gpus=1, queue="a").workload,),
    )
    decision = Decision(
        evictions=tuple(Eviction(key, (("worker", 0),), "mine", "") for key in victims),
        nominations=(Nomination("mine", (pod(0, "node-0000", 0),)),),
    )
    found = dict(invariants.broken(snapshot_module.build(facts), decision, 1000.0))
    assert found.get("I8", "").endswith(words)
    assert ("I8" in found) is bool(words)


def test_a_workload_that_reclaims_beyond_its_own_guarantee() -> None:
    queues = (Queue("a", guarantee={"gpu": 1000}), Queue("b"))
    busy = Running(job("b", gpus=8, queue="b").workload, (pod(0, "node-0000", *range(8)),), 0.0)
    mine = job("mine", gpus=2, queue="a").workload
    facts = dataclasses.replace(
        scenario(nodes=1, queues=queues).facts, running=(busy,), waiting=(mine,)
    )
    decision = Decision(
        evictions=(Eviction("b", (("worker", 0),), "mine", ""),),
        nominations=(Nomination("mine", (pod(0, "node-0000", 0, 1),)),),
    )
    found = dict(invariants.broken(snapshot_module.build(facts), decision, 1000.0))
    assert found["I8"].endswith(
        "mine takes from other queues, and queue a would use 2000 of 1000 gpu"
    )


def test_nominated_capacity_that_another_took() -> None:
    a, b = job("a", gpus=1), job("b", gpus=1)
    found = snapshot((a, (pod(0, "node-0000", 0),)))
    nomination = Nomination("b", (pod(0, "node-0000", 0),))
    snapshot_module.apply(
        found, [snapshot_module.WaitingPut(b.workload), snapshot_module.Nominated(nomination)]
    )
    with pytest.raises(invariants.Broken, match=r"I5 .nominated capacity. at 7.0: device gpu0"):
        after(found)


@pytest.mark.parametrize(
    ("eviction", "words"),
    [
        (Eviction("a", (("worker", 0),), "b", ""), "which gets nothing"),
        (Eviction("ghost", (("worker", 0),), "c", ""), "does not run"),
    ],
)
def test_evictions_for_nothing(eviction: Eviction, words: str) -> None:
    found = snapshot((job("a", gpus=1), (pod(0, "node-0000", 0),)))
    decision = Decision(evictions=(eviction,), nominations=(Nomination("c", ()),))
    with pytest.raises(invariants.Broken, match=f"I5 .*{words}"):
        invariants.no_orphan_evictions(found, decision, 7.0)


def test_a_start_after_its_reservation() -> None:
    checker = checks_invariants.Checker(Policy(), again=0, check_reservations=True)
    promised = Decision(reservations=(ReservationRecord("a", 10.0, ()),))
    checker.before(snapshot_module.build(ClusterFacts()), promised, 0.0)
    late = Record(job("a"))
    checker.started(late, 10.0)
    checker.before(snapshot_module.build(ClusterFacts()), promised, 0.0)
    with pytest.raises(invariants.Broken, match=r"reservation at 10.0 and starts 0.500 s later"):
        checker.started(late, 10.5)


def test_an_answer_that_differs_from_that_of_a_fresh_snapshot() -> None:
    found = snapshot()
    snapshot_module.apply(found, [snapshot_module.WaitingPut(job("a").workload)])
    decision = cycle.decide(found, 0.0)
    checks_invariants.same_answer(found, decision, 0.0, Policy())
    with pytest.raises(invariants.Broken, match=r"I10 at 0.0: placements"):
        checks_invariants.same_answer(
            found, dataclasses.replace(decision, placements=()), 0.0, Policy()
        )


PARTS = Device(
    "g", "gpu", memory=8000, slices=8, profiles=(Profile("1g", 1, (0, 1)), Profile("3g", 4, (0, 4)))
)


@pytest.mark.parametrize(
    ("grants", "sound"),
    [
        ([Grant("g", "share", 600, 4000), Grant("g", "share", 400, 4000)], True),
        ([Grant("g", "share", 600, 10), Grant("g", "share", 401, 10)], False),
        ([Grant("g", "share", 1, 8000), Grant("g", "share", 1, 1)], False),
        ([Grant("g", "ratio", 500, 0, 2)] * 2, True),
        ([Grant("g", "ratio", 500, 0, 2)] * 3, False),
        ([Grant("g", "ratio", 500, 0, 2), Grant("g", "ratio", 250, 0, 4)], False),
        ([Grant("g"), Grant("g", "share", 1, 1)], False),
        ([Grant("g", "partition", profile="3g"), Grant("g", "partition", profile="3g", start=4)],
         True),
        ([Grant("g", "partition", profile="3g"), Grant("g", "partition", profile="1g", start=1)],
         False),
        ([Grant("g", "partition", profile="3g", start=6)], False),
    ],
)  # fmt: skip
def test_parts_of_a_device(grants: list[Grant], sound: bool) -> None:
    assert (invariants.overdrawn(PARTS, grants) is None) == sound


def test_a_sound_state_passes() -> None:
    build: Callable[[], snapshot_module.Snapshot] = lambda: snapshot(  # noqa: E731
        (job("a", gpus=2, members=2), (pod(0, "node-0000", 0, 1), pod(1, "node-0001", 0, 1)))
    )
    after(build(), "a")
    checks_invariants.Checker(Policy()).before(build(), cycle.decide(build(), 0.0), 0.0)


# --- the rules that the live scheduler watches ----------------------------------------------------


def waits(played: Job, *holders: tuple[Job, tuple[PodAssignment, ...]], limit: int = 10**9):
    found = snapshot(*holders, limit=limit)
    snapshot_module.apply(found, [snapshot_module.WaitingPut(played.workload)])
    return found


def gives(workload: str, *pods: PodAssignment, **more: object) -> Decision:
    return Decision(placements=(Placement(workload, pods),), **more)


def rules(found: snapshot_module.Snapshot, decision: Decision) -> list[str]:
    return [rule for rule, _ in invariants.broken(found, decision, 7.0)]


@pytest.mark.parametrize(
    ("played", "pods", "limit", "rule"),
    [
        (job("a", gpus=1), (pod(0, "node-0000", 0),), 8000, []),
        (job("a", gpus=1), (pod(0, "node-0000", 7),), 8000, ["I1"]),
        (job("a", gpus=1, members=2), (pod(0, "node-0000", 0),), 8000, ["I2"]),
        (
            job("a", gpus=1, members=2, topology=Topology("rack", required=True)),
            (pod(0, "node-0000", 0), pod(1, "node-0001", 0)), 8000, ["I3"],
        ),
        (job("a", gpus=1), (pod(0, "node-0000", 0),), 1500, ["I4"]),
    ],
)  # fmt: skip
def test_a_decision_that_breaks_a_rule_is_seen_before_it_is_carried_out(
    played: Job, pods: tuple[PodAssignment, ...], limit: int, rule: list[str]
) -> None:
    found = waits(played, (job("other", gpus=1), (pod(0, "node-0000", 7),)), limit=limit)
    assert rules(found, gives("a", *pods)) == rule


def test_evictions_without_a_preemptor_and_half_a_gang_are_seen() -> None:
    other = job("other", gpus=1, members=2), (pod(0, "node-0000", 7), pod(1, "node-0000", 6))
    found = waits(job("a"), other)
    whole = Eviction("other", (("worker", 0), ("worker", 1)), "a", "why")
    half = Eviction("other", (("worker", 0),), "a", "why")
    assert rules(found, Decision(evictions=(whole,))) == ["I5"]
    held = Decision(evictions=(half,), nominations=(Nomination("a", ()),))
    assert rules(found, held) == ["I2"]


def test_a_node_that_shrank_below_its_usage_violates_no_invariant() -> None:
    big = job("other", gpus=0), tuple(pod(n) for n in range(200))
    found = waits(job("a", gpus=1), big)
    role = job("a").workload.roles[0]
    thrifty = dataclasses.replace(job("a").workload, roles=(dataclasses.replace(role, needs={}),))
    snapshot_module.apply(found, [snapshot_module.WaitingPut(thrifty)])
    assert rules(found, gives("a", pod(0, "node-0000", 0))) == []
