"""The packing rule on the live cluster: what it learns, where pods go, what it follows."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import Spot
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Pack,
    PodAssignment,
    Profile,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.packing import fragmentation_packer, potential, scorer
from windlass.core.packing.scorer import Fragmentation
from windlass.core.snapshot.snapshot import Snapshot, WaitingPut, WorkloadGone, apply, build

GIB = 2**30


def node(name: str, devices: int = 4, model: str = "A", cpu: int = 64) -> Node:
    owned = tuple(
        Device(f"{name}-{i}", "gpu", model, memory=81_920, forms=frozenset(("whole", "share")))
        for i in range(devices)
    )
    return Node(name, {"cpu": cpu * 1000, "memory": 512 * GIB}, owned)


def role(cpu: int = 4, **request: object) -> Role:
    wanted = (DeviceRequest("gpu", **request),) if request else ()
    return Role("main", 1, 1, {"cpu": cpu * 1000, "memory": GIB}, wanted)


def assign(
    rule: Fragmentation, cluster: Cluster, request: Role, count: int
) -> list[tuple[int, int]]:
    shape = cluster.shape_of(request)
    caps = cluster.pod_capacity(shape)
    nodes = np.flatnonzero(caps)
    return counts(rule.assign(cluster, shape, nodes, caps[nodes], count))


def counts(spots: list[Spot]) -> list[tuple[int, int]]:
    return [(node, members) for node, members, _ in spots]


def learned(cluster: Cluster, requests: list[Role], times: int = 40) -> Fragmentation:
    rule = Fragmentation()
    for _ in range(times):
        for request in requests:
            rule.observe(cluster, cluster.shape_of(request))
    return rule


def test_share_joins_the_one_it_fills_a_device_with() -> None:
    cluster = Cluster([node("a"), node("b"), node("c")])
    large, small, half = role(compute=650), role(compute=320), role(compute=500)
    rule = learned(cluster, [large, small, half])
    assert cluster.take(cluster.shape_of(half), 0, 1)
    assert cluster.take(cluster.shape_of(large), 1, 1)
    assert assign(rule, cluster, small, 1) == [(1, 1)]
    assert assign(rule, cluster, half, 1) == [(0, 1)]


@pytest.mark.parametrize(("pack", "device"), [("binpack", "a-0"), ("fragmentation", "a-1")])
def test_share_is_of_the_device_whose_rest_stays_useful(pack: Pack, device: str) -> None:
    """The tightest has 350 left, and 350 is asked for; 100 of the other's 400 leave a 300."""
    requests = [role(compute=size) for size in (650, 600, 350, 300, 100)]
    running = tuple(
        Running(
            Workload(f"r{i}", "q", (request,), 0.0), (PodAssignment("main", 0, "a", (grant,)),), 0.0
        )
        for i, (request, grant) in enumerate(
            [
                (requests[0], Grant("a-0", "share", 650)),
                (requests[1], Grant("a-1", "share", 600)),
            ]
        )
    )
    past = [Workload(f"u{i:03}", "q", (requests[i % 5],), float(i)) for i in range(100)]
    snapshot = build(ClusterFacts((node("a", devices=2),), (Queue("q"),), running))
    apply(snapshot, [WaitingPut(workload) for workload in past])
    apply(snapshot, [WorkloadGone(workload.key) for workload in past])
    apply(snapshot, [WaitingPut(Workload("x", "q", (requests[4],), 100.0, pack=pack))])
    (placement,) = cycle.decide(snapshot, 100.0).placements
    assert placement.pods[0].grants[0].device == device


def test_share_by_memory_counts_as_its_part_of_a_device() -> None:
    cluster = Cluster([node("a"), node("b"), node("c")])
    large, small = role(memory=53_248), role(memory=26_214)
    rule = learned(cluster, [large, small, role(memory=40_960)])
    assert cluster.take(cluster.shape_of(role(memory=40_960)), 0, 1)
    assert cluster.take(cluster.shape_of(large), 1, 1)
    assert assign(rule, cluster, small, 1) == [(1, 1)]


def test_scarce_model_is_left_to_workloads_that_need_it() -> None:
    cluster = Cluster([node("a", model="A"), node("b", model="B")])
    bound, free = role(count=1, models=("A",)), role(count=1)
    rule = learned(cluster, [bound, free])
    assert assign(rule, cluster, free, 2) == [(1, 2)]
    assert assign(rule, cluster, bound, 1) == [(0, 1)]


def test_members_of_a_gang_see_each_other() -> None:
    cluster = Cluster([node("a", devices=2), node("b", devices=2), node("c", devices=1)])
    rule = learned(cluster, [role(count=1), role(count=2)])
    placed = dict(assign(rule, cluster, role(count=1), 3))
    assert placed.pop(2) == 1  # the single device, and one node whole for a pod of two
    assert list(placed.values()) == [2]
    assert sum(cluster.pod_capacity(cluster.shape_of(role(count=2)))) == 2, (
        "nothing was really taken"
    )


def places(snapshot: Snapshot, request: Role, members: int = 1) -> list[str]:
    """Nodes that pods of a workload of such a role are given; nothing changes."""
    asked = dataclasses.replace(request, min_count=members, max_count=members)
    snapshot.try_waiting(Workload("x", "q", (asked,), 1000.0, pack="fragmentation"))
    (placement,) = cycle.decide(snapshot, 1000.0).placements
    return sorted(pod.node for pod in placement.pods)


def after_demand(nodes: list[Node], requests: list[Role]) -> Snapshot:
    """Nothing runs or waits, but so much is known of demand."""
    past = [Workload(f"u{i:03}", "q", (requests[i % len(requests)],), float(i)) for i in range(80)]
    snapshot = build(ClusterFacts(tuple(nodes), (Queue("q"),)))
    apply(snapshot, [WaitingPut(workload) for workload in past])
    return apply(snapshot, [WorkloadGone(workload.key) for workload in past])


def test_member_without_devices_takes_cpu_that_devices_can_spare() -> None:
    """Both nodes have four free devices. On one each of them has just the cpu that is asked for
    with a device, on the other there is more than devices will ever need."""
    scant, ample = node("a", cpu=16), node("b", cpu=64)
    snapshot = after_demand([scant, ample], [role(cpu=4, count=1), role(cpu=4)])
    assert places(snapshot, role(cpu=4)) == ["b"]
    assert places(snapshot, role(cpu=4), members=12) == ["b"] * 12


def test_member_without_devices_goes_where_none_are_asked_for() -> None:
    """Nodes without devices first, and a kind without demand is none; then scores decide."""
    card = Device("nic", "nic", forms=frozenset(("whole",)))
    bare = Node("y", {"cpu": 256_000, "memory": 512 * GIB})
    unwanted = Node("z", {"cpu": 256_000, "memory": 512 * GIB}, (card,))
    snapshot = after_demand([node("a", cpu=16), bare, unwanted], [role(cpu=4, count=1)])
    assert set(places(snapshot, role(cpu=8), members=64)) == {"y", "z"}
    assert places(snapshot, role(cpu=8), members=33) == ["y"] * 32 + ["z"]
    assert places(snapshot, role(cpu=8), members=66) == ["a"] * 2 + ["y"] * 32 + ["z"] * 32


def test_member_without_devices_is_judged_by_every_kind_that_is_asked_for() -> None:
    """Either kind alone would see nothing to lose on the other's nodes."""
    npus = tuple(Device(f"d{i}", "npu", forms=frozenset(("whole",))) for i in range(4))
    for spare in ("a", "b"):
        sizes = {name: (64_000 if name == spare else 16_000) for name in ("a", "b")}
        gpu = dataclasses.replace(node("a"), allocatable={"cpu": sizes["a"], "memory": 512 * GIB})
        npu = Node("b", {"cpu": sizes["b"], "memory": 512 * GIB}, npus)
        requests = [
            role(cpu=4, count=1),
            Role("main", 1, 1, {"cpu": 4000}, (DeviceRequest("npu"),)),
        ]
        assert places(after_demand([gpu, npu], requests), role(cpu=4)) == [spare]


def test_a_decision_about_devices_teaches_nothing_to_those_without() -> None:
    """Only demand counts: a query about a kind without demand changes no later answer."""
    nodes = [node("a", cpu=64), node("b", cpu=16)]
    fresh, asked = (after_demand(nodes, [role(cpu=4)]) for _ in range(2))
    places(asked, role(count=1))
    assert places(asked, role(cpu=4)) == places(fresh, role(cpu=4))


def test_capacity_of_the_caller_is_never_exceeded() -> None:
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(count=1)])
    shape = cluster.shape_of(role(count=1))
    spots = rule.assign(cluster, shape, np.array([0, 1]), np.array([1, 2]), 3)
    assert counts(spots) == [(0, 1), (1, 2)]


def test_caller_knows_better_what_fits() -> None:
    third = role(memory=27_306)  # three fit a device of 81,920 exactly; in thousandths they do not
    cluster = Cluster([node("a", devices=1), node("b", devices=1)])
    rule = learned(cluster, [third])
    shape = cluster.shape_of(third)
    assert cluster.take(shape, 1, 2)
    assert counts(rule.assign(cluster, shape, np.array([0, 1]), np.array([0, 1]), 1)) == [(1, 1)]


def test_rollback_of_the_cluster_is_followed() -> None:
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(compute=650), role(compute=320)])
    before = assign(rule, cluster, role(compute=320), 1)
    mark = cluster.mark()
    assert cluster.take(cluster.shape_of(role(compute=650)), 1, 1)
    assert assign(rule, cluster, role(compute=320), 1) == [(1, 1)]
    cluster.rollback(mark)
    assert assign(rule, cluster, role(compute=320), 1) == before


def test_nodes_that_go_after_one_of_them_was_chosen_are_forgotten() -> None:
    request = role(count=4)
    rule = learned(Cluster([node("a"), node("b")]), [request])
    taken = Cluster([node("a", 2), node("b")])
    assert assign(rule, taken, request, 1) == [(1, 1)]
    assert assign(rule, Cluster([node("a")]), request, 1) == [(0, 1)]


def test_nodes_that_come_are_used() -> None:
    rule = learned(Cluster([node("a")]), [role(count=8), role(count=1)])
    larger = Cluster([node("a"), node("b", devices=8, model="B", cpu=256)])
    assert assign(rule, larger, role(count=8), 1) == [(1, 1)]


@pytest.mark.parametrize("cpu", [1, 4096], ids=["smaller", "larger"])
def test_a_node_that_changes_its_size_is_followed(cpu: int) -> None:
    """Its place stays, and what was learned is judged by its new size."""
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(count=1), role(cpu=16, count=1)])
    assign(rule, cluster, role(count=1), 1)
    cluster.update(node("b", cpu=cpu))
    fresh = learned(cluster, [role(count=1), role(cpu=16, count=1)])
    assert assign(rule, cluster, role(count=1), 2) == assign(fresh, cluster, role(count=1), 2)


@pytest.mark.parametrize(
    "nodes", [[], [Node("cpu-only", {"cpu": 8000})]], ids=["no nodes", "no devices"]
)
def test_demand_is_learned_before_there_are_devices(nodes: list[Node]) -> None:
    cluster = Cluster(nodes)
    rule = learned(cluster, [role(count=1), role(compute=500), role()])
    grown = Cluster([*nodes, node("gpu")])
    (assigned,) = assign(rule, grown, role(compute=500), 1)
    assert grown.nodes[assigned[0]].name == "gpu"


@pytest.mark.parametrize("seed", range(4))
def test_demand_is_learned_in_the_order_of_submission_however_workloads_are_listed(
    seed: int,
) -> None:
    """It is taken into account now and then, so the order decides what is known by then."""
    throw = random.Random(seed)
    requests = [role(compute=650), role(compute=500), role(compute=320), role(8), role(2, count=2)]
    workloads = [
        Workload(f"u{i:02}", "q", (throw.choice(requests),), float(i), pack="fragmentation")
        for i in range(40)
    ]
    nodes = tuple(node(f"n{i}", throw.choice((1, 2, 3)), cpu=32) for i in range(5))
    facts = [
        ClusterFacts(nodes, (Queue("q"),), waiting=tuple(each))
        for each in (workloads, workloads[::-1])
    ]
    first, second = (repr(cycle.decide(build(each), 100.0)) for each in facts)
    assert first == second


def test_no_node_strands_more_than_its_devices_however_much_memory_there_is() -> None:
    """Amounts of memory are multiplied with potentials: in bytes that went beyond 64 bits."""
    large = Node("z", {"cpu": 64_000, "memory": 64 * 1024 * GIB})
    cluster = Cluster([node("a", devices=8), node("b", devices=4), large])
    layout = scorer._Layout(cluster, "gpu")
    learner = potential.Learner(layout.fleet)
    for _ in range(40):
        learner.observe(layout.translate(cluster.shape_of(role(count=1))))
    tables, capacity = learner.tables, layout.capacity(cluster, np.arange(3))
    idle, nothing = capacity.left.sum(axis=1), np.zeros(3, dtype=np.int64)
    for memory in (capacity.memory, nothing):
        stranded = fragmentation_packer._stranded(
            tables, capacity.cpu, memory, idle, capacity.model
        )
        most = tables.weights.stranded * idle * potential.UNIT
        assert ((stranded >= 0) & (stranded <= most)).all()
    assert (stranded == most).all(), "without memory nothing of the devices can be used"


def test_profiles_count_by_their_slices() -> None:
    profiles = (Profile("3g", 4, (0, 4)), Profile("1g", 1, tuple(range(8))))
    forms = frozenset(("whole", "partition"))
    owned = (Device("d", "gpu", "A", slices=8, profiles=profiles, forms=forms),)
    cluster = Cluster([Node("a", {"cpu": 8000}, owned)])
    layout = scorer._Layout(cluster, "gpu")
    sizes = [layout.translate(cluster.shape_of(role(profile=each))).milli for each in ("3g", "1g")]
    assert sizes == [500, 125]
