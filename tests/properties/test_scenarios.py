"""Known troubles of other schedulers, each as a small world that must come out well and stay so.

Every scenario goes on for five more rounds after its goal: nothing may be started, stopped or
reserved differently any more.
"""

from __future__ import annotations

import dataclasses

from tests.properties import carry, invariants
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Nomination,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason

NOW = 1000.0


def gpus(count: int, model: str = "a100", memory: int = 81_920) -> tuple[Device, ...]:
    forms = frozenset(("whole", "share"))
    return tuple(Device(f"g{i}", "gpu", model, memory=memory, forms=forms) for i in range(count))


def machine(name: str, count: int = 0, cpu: int = 8, path: tuple[str, ...] = ()) -> Node:
    return Node(name, {"cpu": 1000 * cpu}, gpus(count), path=path)


def gang(
    key: str, members: int, *, gpu: int = 0, cpu: int = 1, at: float = 0.0, **more: object
) -> Workload:
    devices = (DeviceRequest("gpu", gpu),) if gpu else ()
    role = Role("worker", members, members, {"cpu": 1000 * cpu}, devices)
    queue = str(more.pop("queue", "q"))
    return Workload(key, queue, (role,), submitted=at, **more)


def rounds(
    facts: ClusterFacts,
    count: int,
    policy: Policy = Policy(),  # noqa: B008
) -> tuple[ClusterFacts, list[Decision]]:
    """Decides and carries out so many times; the laws are checked each time."""
    made = []
    for number in range(count):
        now = NOW + number
        decision = cycle.decide(snapshot.build(facts), now, policy)
        after = carry.carry_out(facts, decision, now)
        invariants.check(facts, decision, after)
        facts = carry.after(after, carry.members_left(after))
        made.append(decision)
    return facts, made


def runs(facts: ClusterFacts) -> set[str]:
    return {running.workload.key for running in facts.running}


def stays_calm(facts: ClusterFacts) -> None:
    """Five more rounds in which no workload starts and none is evicted."""
    _, made = rounds(facts, 5)
    assert not any(d.placements or d.evictions or d.nominations for d in made)


def test_volcano_3373_two_gangs_that_fill_the_cluster_do_not_share_it_out() -> None:
    """Two gangs of 100 on 100 nodes: one runs whole, the other has nothing."""
    facts = ClusterFacts(
        tuple(machine(f"n{i:03}", cpu=1) for i in range(100)),
        (Queue("q"),),
        waiting=(gang("one", 100, at=1.0), gang("two", 100, at=2.0)),
    )
    facts, made = rounds(facts, 1)
    assert [len(placement.pods) for placement in made[0].placements] == [100]
    assert runs(facts) == {"one"}
    stays_calm(facts)
    ended = carry.after(facts, [snapshot.WorkloadGone("one")])
    assert runs(rounds(ended, 1)[0]) == {"two"}


def test_volcano_5805_a_gang_that_lost_a_node_is_completed_before_a_fresh_workload() -> None:
    """The newcomer has no share and the higher priority; the damaged gang still comes first."""
    hurt = gang("hurt", 3, cpu=8)
    pods = tuple(PodAssignment("worker", i, f"n{i}") for i in range(2))
    facts = ClusterFacts(
        tuple(machine(f"n{i}") for i in range(3)),
        (Queue("q"), Queue("fresh")),
        running=(Running(hurt, pods, NOW - 50),),
        waiting=(gang("newcomer", 1, cpu=8, queue="fresh", priority=90),),
    )
    facts, made = rounds(facts, 1)
    assert [placement.workload for placement in made[0].placements] == ["hurt"]
    (repaired,) = facts.running
    assert len(repaired.pods) == 3
    stays_calm(facts)


def test_koordinator_872_groups_of_gangs_that_come_interleaved_do_not_lock() -> None:
    """A belongs with B and C with D; each pair is one unit of two roles, and one of them runs."""

    def pair(key: str, names: str, at: float) -> Workload:
        roles = tuple(Role(name, 2, 2, {"cpu": 1000}) for name in names)
        return Workload(key, "q", roles, submitted=at)

    facts = ClusterFacts(
        (machine("n0", cpu=3), machine("n1", cpu=3)),
        (Queue("q"),),
        waiting=(pair("ab", "ab", 0.0), pair("cd", "cd", 1.0)),
    )
    facts, _ = rounds(facts, 1)
    assert runs(facts) == {"ab"}
    stays_calm(facts)
    facts, _ = rounds(carry.after(facts, [snapshot.WorkloadGone("ab")]), 1)
    assert runs(facts) == {"cd"}
    stays_calm(facts)


def test_scheduler_plugins_930_part_of_a_gang_is_never_let_in() -> None:
    """Seven places, a gang of eight and small ones: the gang has none or all in every round."""
    small = tuple(gang(f"small{i}", 1, at=float(i)) for i in range(3))
    facts = ClusterFacts(
        tuple(machine(f"n{i}", cpu=1) for i in range(7)),
        (Queue("q", reserve=0),),
        waiting=(gang("big", 8, at=0.0), *small),
    )
    facts, made = rounds(facts, 3)
    assert runs(facts) == {"small0", "small1", "small2"}
    verdict = next(v for v in made[-1].verdicts if v.workload == "big")
    assert verdict.reason is Reason.IMPOSSIBLE
    assert "all nodes together hold 7" in verdict.message
    stays_calm(facts)


def test_scheduler_plugins_713_members_that_wait_for_the_rest_hold_nothing() -> None:
    """Nine of ten members would fit; they do not keep the nine places from others meanwhile."""
    holder = gang("holder", 1)
    facts = ClusterFacts(
        tuple(machine(f"n{i}", cpu=1) for i in range(10)),
        (Queue("q", reserve=0),),
        running=(Running(holder, (PodAssignment("worker", 0, "n0"),), NOW - 9),),
        waiting=(gang("ten", 10, at=0.0), gang("nine", 9, at=1.0)),
    )
    facts, _ = rounds(facts, 1)
    assert runs(facts) == {"holder", "nine"}
    stays_calm(facts)


def test_kueue_4809_a_strict_head_without_quota_does_not_block_borrowers_of_other_resources() -> (
    None
):
    """The head waits for GPUs above its limit; CPU units behind it go on."""
    facts = ClusterFacts(
        (machine("n0", 8, cpu=64),),
        (Queue("q", limit={"gpu": 4000}, strict=True), Queue("lender", guarantee={"cpu": 32_000})),
        waiting=(
            gang("gpus", 1, gpu=8, at=0.0),
            gang("cpus", 40, cpu=1, at=1.0),
            gang("more-gpus", 1, gpu=1, at=2.0),
        ),
    )
    facts, made = rounds(facts, 1)
    assert runs(facts) == {"cpus"}
    told = {verdict.workload: verdict.reason for verdict in made[0].verdicts}
    assert told == {"gpus": Reason.WAITING_FOR_QUOTA, "more-gpus": Reason.BEHIND_IN_QUEUE}
    stays_calm(facts)


def test_kueue_8309_a_strict_head_blocks_its_own_model_only_and_does_not_starve() -> None:
    """H100s are taken: a request for A100s passes, small H100 requests do not; the head's turn
    comes."""

    def wants(key: str, model: str, count: int, at: float) -> Workload:
        role = Role("worker", 1, 1, {}, (DeviceRequest("gpu", count, models=(model,)),))
        return Workload(key, "q", (role,), submitted=at)

    nodes = (
        Node("h", {}, gpus(8, "h100")),
        Node("a", {}, gpus(8, "a100")),
    )
    busy = wants("busy", "h100", 4, 0.0)
    grants = tuple(_whole(f"g{i}") for i in range(4))
    facts = ClusterFacts(
        nodes,
        (Queue("q", strict=True),),
        running=(Running(busy, (PodAssignment("worker", 0, "h", grants),), NOW - 5),),
        waiting=(
            wants("head", "h100", 8, 1.0),
            wants("small", "h100", 1, 2.0),
            wants("other", "a100", 8, 3.0),
        ),
    )
    facts, _ = rounds(facts, 1)
    assert runs(facts) == {"busy", "other"}
    stays_calm(facts)
    facts, _ = rounds(carry.after(facts, [snapshot.WorkloadGone("busy")]), 1)
    assert "head" in runs(facts)


def _whole(device: str) -> Grant:
    return Grant(device, "whole", 1000, 81_920)


def test_kai_416_shares_by_memory_are_never_rounded_into_too_much() -> None:
    """Of 46,068 MiB, 23 units get 2,000 each; the 24th does not fit."""
    device = Device("g0", "gpu", memory=46_068, forms=frozenset(("share",)))
    role = Role("w", 1, 1, {}, (DeviceRequest("gpu", memory=2000),))
    workloads = tuple(Workload(f"u{i:02}", "q", (role,), submitted=float(i)) for i in range(24))
    facts = ClusterFacts((Node("n", {}, (device,)),), (Queue("q"),), waiting=workloads)
    facts, made = rounds(facts, 1)
    assert len(made[0].placements) == 23
    assert [verdict.workload for verdict in made[0].verdicts] == ["u23"]
    stays_calm(facts)


def test_tas_failed_after_nomination_a_place_that_broke_is_looked_for_again() -> None:
    """The reserved rack loses a node before its pods are gone: the workload is not stuck
    with the reservation but starts in the other rack."""
    workload = gang("train", 2, gpu=8, topology=Topology("rack", required=True))
    nodes = tuple(machine(f"{r}{i}", 8, path=(r,)) for r in ("a", "b") for i in range(2))
    grants = tuple(_whole(f"g{i}") for i in range(8))
    promise = tuple(PodAssignment("worker", i, f"a{i}", grants) for i in range(2))
    facts = ClusterFacts(
        nodes, (Queue("q"),), waiting=(workload,), levels=("rack",),
        nominations=(Nomination("train", promise),),
    )  # fmt: skip
    broken = carry.after(facts, [snapshot.NodePut(dataclasses.replace(nodes[1], ready=False))])
    after, made = rounds(broken, 1)
    assert {pod.node for pod in made[0].placements[0].pods} == {"b0", "b1"}
    stays_calm(after)


def test_knavigator_network_topology_finds_the_known_optimum() -> None:
    """Three blocks of two racks; a gang of three fits one rack of the fullest block only."""
    names = {"b1": ("x", "xxx"), "b2": ("xx", "x"), "b3": ("xx", "xx")}
    nodes = tuple(
        machine(f"{block}-r{rack}-n{i}", cpu=1, path=(block, f"{block}-r{rack}"))
        for block, racks in names.items()
        for rack, row in enumerate(racks)
        for i in range(len(row))
    )
    three = gang("three", 3, topology=Topology("rack"))
    four = gang("four", 4, at=1.0, topology=Topology("block", required=True))
    facts = ClusterFacts(nodes, (Queue("q"),), waiting=(three, four), levels=("block", "rack"))
    facts, made = rounds(facts, 1)
    where = {p.workload: {pod.node[:5] for pod in p.pods} for p in made[0].placements}
    assert where == {"three": {"b1-r1"}, "four": {"b3-r0", "b3-r1"}}
    stays_calm(facts)


def test_two_gangs_and_a_single_in_either_order_neither_lock_nor_starve() -> None:
    for keys in (("g1", "s", "g2"), ("g2", "s", "g1"), ("s", "g1", "g2")):
        workloads = tuple(
            gang(key, 1 if key == "s" else 3, at=float(i)) for i, key in enumerate(keys)
        )
        facts = ClusterFacts(
            tuple(machine(f"n{i}", cpu=1) for i in range(4)), (Queue("q"),), waiting=workloads
        )
        seen: set[str] = set()
        for _ in range(3):
            facts, _made = rounds(facts, 1)
            seen |= runs(facts)
            facts = carry.after(facts, [snapshot.WorkloadGone(key) for key in sorted(runs(facts))])
        assert seen == {"g1", "g2", "s"}
