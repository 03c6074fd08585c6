"""A bundle: devices, CPU and memory of one pod on one NUMA node of a node, or not at all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.cluster.cluster import Cluster
from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.invariants import invariants
from windlass.core.model import validation
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Domain,
    Grant,
    Node,
    Nomination,
    PodAssignment,
    Queue,
    Role,
    Running,
    Verdict,
    Workload,
)
from windlass.core.snapshot.snapshot import NodePut, RunningPut, WorkloadGone, apply, build
from windlass.kinds.reasons import Reason

NOW, GIB = 1000.0, 1 << 30
Q = (Queue("q"),)
BOTH = (DeviceRequest("gpu"), DeviceRequest("rdma"))


def gpu(number: int, numa: int, switch: str = "") -> Device:
    return Device(f"g{number}", "gpu", "a100", memory=80_000, numa=numa, switch=switch)


def nic(number: int, numa: int, switch: str = "") -> Device:
    return Device(f"nic{number}", "rdma", numa=numa, switch=switch)


def domain(number: int, cpu: int, memory: int = 64) -> Domain:
    return Domain(number, {"cpu": 1000 * cpu, "memory": GIB * memory})


PAIRS = (gpu(0, 0), gpu(1, 0), nic(0, 0), gpu(2, 1), gpu(3, 1), nic(1, 1))
"""On each of two NUMA nodes two GPUs and a NIC."""
GPUS = (gpu(0, 0), gpu(1, 0), gpu(2, 1), gpu(3, 1))


def node(
    *domains: Domain, name: str = "n", devices: tuple[Device, ...] = PAIRS, cpu: int = 16
) -> Node:
    return Node(name, {"cpu": 1000 * cpu, "memory": 128 * GIB}, devices, numa=domains)


def role(
    *requests: DeviceRequest, cpu: int = 1, memory: int = 1, members: int = 1, bundle: str = "numa"
) -> Role:
    needs = {"cpu": 1000 * cpu, "memory": GIB * memory}
    return Role("w", members, members, needs, requests, bundle)


def workload(key: str, *requests: DeviceRequest, priority: int = 50, **more: object) -> Workload:
    return Workload(key, "q", (role(*requests, **more),), priority=priority)


def loose(key: str, *requests: DeviceRequest, **more: object) -> Workload:
    return workload(key, *requests, bundle="", **more)


def runs(who: Workload, *devices: str, end: float | None = None) -> Running:
    grants = tuple(Grant(d, memory=80_000 if d.startswith("g") else 0) for d in devices)
    return Running(who, (PodAssignment("w", 0, "n", grants),), NOW - 100, end)


def decided(
    *nodes: Node, waiting: tuple[Workload, ...], running: tuple[Running, ...] = ()
) -> Decision:
    facts = ClusterFacts(nodes, Q, running, waiting)
    snapshot = build(facts)
    decision = cycle.decide(snapshot, NOW)
    assert invariants.broken(snapshot, decision, NOW) == []
    return decision


def where(decision: Decision, key: str = "me") -> list[tuple[str, ...]]:
    """The node and the specific devices of each pod; nothing, if it waits."""
    pods = next((each.pods for each in decision.placements if each.workload == key), ())
    return [(pod.node, *(grant.device for grant in pod.grants)) for pod in pods]


def verdict(decision: Decision, key: str = "me") -> Verdict:
    return next(each for each in decision.verdicts if each.workload == key)


# --- one place or none --------------------------------------------------------------------------


@pytest.mark.parametrize("bundle", ["numa", "pcie"])
def test_gpu_nic_cpu_and_memory_are_on_one_numa_node(bundle: str) -> None:
    devices = (gpu(0, 0, "s0"), nic(0, 0, "s0"), gpu(1, 1, "s1"), nic(1, 1, "s1"))
    me = workload("me", *BOTH, cpu=8, memory=60, bundle=bundle)
    small_cpu = node(domain(0, 4), domain(1, 12), devices=devices)
    assert where(decided(small_cpu, waiting=(me,))) == [("n", "g1", "nic1")]
    small_memory = node(domain(0, 8, memory=68), domain(1, 8, memory=59), devices=devices)
    assert where(decided(small_memory, waiting=(me,))) == [("n", "g0", "nic0")]


def test_cpu_of_two_numa_nodes_does_not_make_one_bundle() -> None:
    me = workload("me", *BOTH, cpu=9)
    halves = node(domain(0, 8), domain(1, 8))
    assert where(decided(halves, waiting=(me,))) == []
    assert where(decided(halves, waiting=(loose("me", *BOTH, cpu=9),))) != []
    assert where(decided(halves, node(domain(0, 7), domain(1, 9), name="o"), waiting=(me,))) == [
        ("o", "g2", "nic1")
    ]


def test_memory_of_two_numa_nodes_does_not_make_one_bundle() -> None:
    me = workload("me", *BOTH, memory=65)
    assert where(decided(node(domain(0, 8), domain(1, 8)), waiting=(me,))) == []


def test_devices_that_are_left_without_cpu_beside_them_are_passed_over() -> None:
    """The tighter place would be taken first, by its devices; its CPU is gone."""
    busy = runs(workload("busy", DeviceRequest("gpu"), cpu=6), "g0")
    me = workload("me", DeviceRequest("gpu"), cpu=4)
    halves = node(domain(0, 8), domain(1, 8))
    assert where(decided(halves, waiting=(me,), running=(busy,))) == [("n", "g2")]
    small = workload("me", DeviceRequest("gpu"), cpu=2)
    assert where(decided(halves, waiting=(small,), running=(busy,))) == [("n", "g1")]


def test_each_of_two_members_has_a_numa_node_and_a_third_has_none() -> None:
    halves = node(domain(0, 8), domain(1, 8), devices=GPUS)
    two = workload("me", DeviceRequest("gpu"), cpu=5, members=2)
    assert where(decided(halves, waiting=(two,))) == [("n", "g0"), ("n", "g2")]
    three = workload("me", DeviceRequest("gpu"), cpu=5, members=3)
    assert where(decided(node(domain(0, 8), domain(1, 8), cpu=99), waiting=(three,))) == []
    four = workload("me", DeviceRequest("gpu"), cpu=4, members=4)
    assert [d for _, d in where(decided(halves, waiting=(four,)))] == ["g0", "g1", "g2", "g3"]


def test_a_pod_without_a_bundle_counts_for_the_node_alone() -> None:
    halves = node(domain(0, 8), domain(1, 8), devices=GPUS)
    me = workload("me", DeviceRequest("gpu"), cpu=8)
    floating = runs(loose("floats", DeviceRequest("gpu"), cpu=8), "g0")
    assert where(decided(halves, waiting=(me,), running=(floating,))) == [("n", "g1")]
    larger = runs(loose("floats", DeviceRequest("gpu"), cpu=9), "g0")
    waits = decided(halves, waiting=(me,), running=(larger,))
    assert where(waits) == []
    assert verdict(waits).reason is Reason.WAITING_FOR_CAPACITY, "the node itself is full"


def test_two_switches_on_one_numa_node_share_its_cpu() -> None:
    devices = (gpu(0, 0, "s0"), gpu(1, 0, "s1"), gpu(2, 1, "s2"))
    machine = node(domain(0, 8), domain(1, 4), devices=devices)
    pair = workload("me", DeviceRequest("gpu"), cpu=5, members=2, bundle="pcie")
    assert where(decided(machine, waiting=(pair,))) == []
    pair = workload("me", DeviceRequest("gpu"), cpu=4, members=3, bundle="pcie")
    assert len(where(decided(machine, waiting=(pair,)))) == 3


def test_where_no_switch_is_known_pcie_still_means_one_numa_node() -> None:
    apart = node(devices=(gpu(0, 0), nic(0, 1)))
    assert where(decided(apart, waiting=(workload("me", *BOTH, bundle="pcie"),))) == []


def test_a_node_that_does_not_say_what_its_numa_nodes_have_is_counted_as_a_whole() -> None:
    me = workload("me", *BOTH, cpu=16)
    assert where(decided(node(), waiting=(me,))) == [("n", "g0", "nic0")]
    nothing_said = (Device("g0", "gpu"), Device("nic0", "rdma"))
    machine = node(domain(0, 8), devices=nothing_said)
    assert where(decided(machine, waiting=(me,))) == [("n", "g0", "nic0")]


def test_what_a_numa_node_does_not_name_is_counted_for_the_node_only() -> None:
    me = workload("me", *BOTH, cpu=4, memory=128)
    cpu_only = node(Domain(0, {"cpu": 4000}), domain(1, 8))
    other = node(domain(0, 3, memory=200), domain(1, 3), name="o")
    assert where(decided(cpu_only, other, waiting=(me,))) == [("n", "g0", "nic0")]
    cluster = Cluster([cpu_only, other])
    assert cluster.take(cluster.shape_of(me.roles[0]), 0, 1) is not None
    assert cluster.free.min() >= 0


def test_a_part_of_the_nodes_counts_as_all_of_them_do() -> None:
    said, silent = node(domain(0, 2), domain(1, 2)), node(name="o")
    cluster = Cluster([said, silent])
    shape = cluster.shape_of(role(DeviceRequest("gpu"), cpu=2))
    assert cluster.pod_capacity(shape).tolist() == [2, 4]
    for at in (0, 1):
        part = cluster.part(np.array([at]))
        assert part.pod_capacity(shape).tolist() == [cluster.pod_capacity(shape)[at]]


def test_quotas_are_about_nodes_and_know_nothing_of_numa_nodes() -> None:
    snapshot = build(ClusterFacts((node(domain(0, 8), domain(1, 8)),), Q))
    assert snapshot.tree.capacity.keys() == {"cpu", "memory", "gpu", "gpu/a100", "rdma"}


def test_devices_of_several_places_that_others_handed_out_hold_nothing_of_either() -> None:
    spread = runs(workload("spread", DeviceRequest("gpu", 2), cpu=8), "g0", "g2")
    me = workload("me", DeviceRequest("gpu"), cpu=8)
    halves = node(domain(0, 8), domain(1, 8))
    assert where(decided(halves, waiting=(me,), running=(spread,))) == [("n", "g1")]


# --- taking, giving back, changing --------------------------------------------------------------


def test_what_a_bundle_gives_back_is_there_for_the_next() -> None:
    machine = node(domain(0, 8), domain(1, 2))
    busy = runs(workload("busy", DeviceRequest("gpu"), cpu=5), "g0")
    me = workload("me", DeviceRequest("gpu"), cpu=6)
    snapshot = build(ClusterFacts((machine,), Q, (busy,), (me,)))
    assert where(cycle.decide(snapshot, NOW)) == []
    apply(snapshot, [WorkloadGone("busy")])
    assert where(cycle.decide(snapshot, NOW)) == [("n", "g0")]
    apply(snapshot, [RunningPut(busy)])
    assert where(cycle.decide(snapshot, NOW)) == []


def test_a_numa_node_that_changes_its_size_is_counted_again_with_its_pods() -> None:
    busy = runs(workload("busy", DeviceRequest("gpu"), cpu=5), "g0")
    me = workload("me", DeviceRequest("gpu"), cpu=4)
    snapshot = build(ClusterFacts((node(domain(0, 8), domain(1, 2)),), Q, (busy,), (me,)))
    for sizes, expected in (((9, 2), [("n", "g1")]), ((8, 3), []), ((6, 4), [("n", "g2")])):
        larger = node(*(domain(i, cpu) for i, cpu in enumerate(sizes)))
        apply(snapshot, [NodePut(larger)])
        assert where(cycle.decide(snapshot, NOW)) == expected
    apply(snapshot, [NodePut(node())])
    assert where(cycle.decide(snapshot, NOW)) == [("n", "g1")], "it says nothing any more"


def test_undoing_and_releasing_leave_nothing_behind_on_numa_nodes() -> None:
    cluster = Cluster([node(domain(0, 8), domain(1, 8))])
    bundled = role(DeviceRequest("gpu"), cpu=3)
    shape, empty = cluster.shape_of(bundled), cluster.free.tolist()
    assert cluster.pod_capacity(shape).tolist() == [4]
    mark = cluster.mark()
    grants = cluster.take(shape, 0, 3)
    assert grants is not None
    twin = cluster.fork()
    assert cluster.pod_capacity(shape).tolist() == twin.pod_capacity(shape).tolist() == [1]
    cluster.rollback(mark)
    assert cluster.free.tolist() == empty
    for each in grants:
        twin.release(bundled, PodAssignment("w", 0, "n", each))
    assert twin.free.tolist() == empty
    assert cluster.take(shape, 0, 5) is None
    assert cluster.free.tolist() == empty


counts = st.integers(0, 3)


@settings(deadline=None, max_examples=300)
@given(
    places=st.lists(st.tuples(st.integers(0, 1), counts, st.integers(0, 2)), max_size=4),
    cpu=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    total=st.integers(0, 24),
    need=st.integers(1, 5),
    kinds=st.integers(1, 2),
    pcie=st.booleans(),
)
def test_what_fits_is_the_sum_of_what_each_place_has_of_everything(
    places, cpu, total, need, kinds, pcie
) -> None:
    """Places are switches, each on a NUMA node, with so many GPUs and NICs."""
    devices = [
        make(100 * at + number, numa, f"s{at}")
        for at, (numa, gpus, nics) in enumerate(places)
        for make, count in ((gpu, gpus), (nic, nics))
        for number in range(count)
    ]
    machine = node(domain(0, cpu[0]), domain(1, cpu[1]), devices=tuple(devices), cpu=total)
    wanted = role(*BOTH[:kinds], cpu=need, memory=0, bundle="pcie" if pcie else "numa")
    groups: dict[object, tuple[int, int, int]] = {}
    for at, (numa, gpus, nics) in enumerate(places):
        _, g, n = groups.get(at if pcie else numa, (numa, 0, 0))
        groups[at if pcie else numa] = (numa, g + gpus, n + nics)
    most = [0, 0]
    for numa, gpus, nics in groups.values():
        most[numa] += min(gpus, nics) if kinds == 2 else gpus
    expected = min(total // need, sum(min(most[i], cpu[i] // need) for i in (0, 1)))
    cluster = Cluster([machine])
    shape = cluster.shape_of(wanted)
    assert (
        cluster.pod_capacity(shape).tolist()
        == cluster.empty_pod_capacity(shape).tolist()
        == [expected]
    )
    taken = [cluster.take(shape, 0, 1) for _ in range(expected)]
    assert None not in taken
    assert cluster.pod_capacity(shape).tolist() == [0]
    assert cluster.free.min() >= 0


# --- preemption and reservations ------------------------------------------------------------------


def test_only_the_holder_of_the_cpu_of_a_numa_node_is_evicted() -> None:
    """Only on the first NUMA node is there enough for it; a pod without a bundle is not in its
    way."""
    machine = node(domain(0, 8), domain(1, 4))
    bundled = runs(workload("bundled", DeviceRequest("gpu"), cpu=4, priority=10), "g0")
    floats = runs(loose("floats", DeviceRequest("gpu"), cpu=4, priority=10), "g2")
    me = workload("me", DeviceRequest("gpu"), cpu=6, priority=90)
    found = decided(machine, waiting=(me,), running=(floats, bundled))
    assert [each.workload for each in found.evictions] == ["bundled"]
    (promise,) = found.nominations
    assert promise.pods[0].grants[0].device in ("g0", "g1")
    gone = ClusterFacts((machine,), Q, (floats,), (me,), nominations=(promise,))
    assert where(cycle.decide(build(gone), NOW)) != []


def test_capacity_that_was_being_freed_is_looked_for_anew_when_its_numa_node_is_full() -> None:
    """Of the node enough is free, and the very GPU, too."""
    machine = node(domain(0, 8), domain(1, 8))
    me = workload("me", DeviceRequest("gpu"), cpu=6)
    promise = Nomination("me", (PodAssignment("w", 0, "n", (Grant("g0", memory=80_000),)),))
    came = runs(workload("came", DeviceRequest("gpu"), cpu=4), "g1")
    facts = ClusterFacts((machine,), Q, (came,), (me,), nominations=(promise,))
    assert where(cycle.decide(build(facts), NOW)) == [("n", "g2")]
    floats = runs(loose("came", DeviceRequest("gpu"), cpu=4), "g1")
    facts = dataclasses.replace(facts, running=(floats,))
    assert where(cycle.decide(build(facts), NOW)) == [("n", "g0")]


def test_a_reserved_start_waits_until_its_numa_node_is_free() -> None:
    machine = node(domain(0, 8), domain(1, 4))
    bundled = runs(workload("bundled", DeviceRequest("gpu"), cpu=4), "g0", end=NOW + 500)
    soon = runs(loose("soon", DeviceRequest("gpu"), cpu=4), "g2", end=NOW + 50)
    me = workload("me", DeviceRequest("gpu"), cpu=6)
    (promise,) = decided(machine, waiting=(me,), running=(soon, bundled)).reservations
    assert (promise.workload, promise.start) == ("me", NOW + 500)


# --- verdicts -----------------------------------------------------------------------------------


def test_a_wait_for_cpu_near_devices_names_how_much_is_missing() -> None:
    busy = runs(workload("busy", DeviceRequest("gpu"), cpu=5), "g0")
    me = workload("me", *BOTH, cpu=4, memory=2)
    found = verdict(decided(node(domain(0, 8), domain(1, 2)), waiting=(me,), running=(busy,)))
    assert found.reason is Reason.WAITING_FOR_TOPOLOGY
    assert found.message == (
        "needs 1 gpu, 1 rdma, 4 cpu, 2Gi memory on one NUMA node; 0 fit now, enough is free "
        "on nodes but the nearest NUMA node with its devices is short of 1 cpu"
    )
    assert (found.resource, found.deficit) == ("cpu", 1000)


def test_the_shortage_of_the_first_pod_that_does_not_fit_is_named() -> None:
    machine = node(domain(0, 7), domain(1, 2), devices=GPUS)
    busy = runs(workload("busy", DeviceRequest("gpu"), cpu=1), "g2")
    me = workload("me", DeviceRequest("gpu"), cpu=4, members=2)
    large = node(domain(0, 0), domain(1, 8), name="closed", devices=GPUS)
    closed = dataclasses.replace(large, ready=False)
    found = verdict(decided(machine, closed, waiting=(me,), running=(busy,)))
    assert found.message == (
        "needs 2 x 1 gpu, 4 cpu, 1Gi memory on one NUMA node; 1 fit now, enough is free on "
        "nodes but the nearest NUMA node with its devices is short of 1 cpu; node closed is "
        "not ready"
    )


def test_too_little_on_nodes_has_the_usual_message() -> None:
    busy = runs(loose("busy", DeviceRequest("gpu"), cpu=14), "g0")
    me = workload("me", DeviceRequest("gpu"), cpu=4)
    found = verdict(decided(node(domain(0, 8), domain(1, 8)), waiting=(me,), running=(busy,)))
    assert found.reason is Reason.WAITING_FOR_CAPACITY
    assert found.message.endswith("on one NUMA node; 0 fit now, short of 4 cpu")


def test_more_than_any_numa_node_has_is_impossible_and_the_change_that_helps_is_named() -> None:
    me = workload("me", *BOTH, cpu=10)
    facts = ClusterFacts((node(domain(0, 8), domain(1, 6)),), Q, waiting=(me,))
    found = explain.explain(build(facts), "me", NOW)
    assert found.verdict is not None
    assert found.verdict.reason is Reason.IMPOSSIBLE
    assert (found.verdict.resource, found.verdict.deficit) == ("cpu", 2000)
    assert found.certificate == (
        "it needs 1 gpu, 1 rdma, 10 cpu, 1Gi memory on one NUMA node; even of empty nodes the "
        "nearest NUMA node with its devices is short of 2 cpu"
    )
    assert [(change.action, change.message) for change in found.fits_if] == [
        ("bundle", "it would start with its devices, CPU and memory anywhere on a node")
    ]


def test_one_numa_node_instead_of_one_switch_is_the_nearest_change() -> None:
    machine = node(domain(0, 8), devices=(gpu(0, 0, "s0"), nic(0, 0, "s1")))
    facts = ClusterFacts((machine,), Q, waiting=(workload("me", *BOTH, bundle="pcie"),))
    found = explain.explain(build(facts), "me", NOW)
    assert [(change.message, change.names) for change in found.fits_if] == [
        ("it would start with its devices, CPU and memory on one NUMA node", ("numa",))
    ]


# --- facts that cannot be, and the rule ---------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (node(domain(0, 8), domain(0, 8)), "node n: NUMA node '0' is there twice"),
        (node(domain(-1, 8)), "node n: a NUMA node has the number -1"),
        (node(domain(True, 8)), "node n: a NUMA node has the number True"),
        (node(Domain(0, {"cpu": -1}), domain(1, 8)), "node n: NUMA node 0: cpu is -1"),
        (node(Domain(0, {"cpu": float("nan")}), domain(1, 8)), "node n: NUMA node 0: cpu is nan"),
        (node(domain(0, 8)), "node n: device g2 is on NUMA node 1; the node has 0"),
        (
            node(domain(0, 8), domain(1, 8), devices=(gpu(0, 0, "s"), gpu(1, 1, "s"))),
            "node n: devices of the switch s are on the NUMA nodes 0 and 1; a switch is on one",
        ),
    ],
)  # fmt: skip
def test_numa_nodes_that_cannot_be_are_refused(bad: Node, says: str) -> None:
    with pytest.raises(validation.BadFacts) as told:
        build(ClusterFacts((bad,), Q))
    assert str(told.value).startswith(says)
    snapshot = build(ClusterFacts((node(),), Q))
    with pytest.raises(validation.BadFacts):
        apply(snapshot, [NodePut(bad)])


@pytest.mark.parametrize(
    "what", [workload("me"), workload("me", DeviceRequest("gpu"), bundle="socket")]
)
def test_a_bundle_of_nothing_or_of_an_unknown_kind_is_refused(what: Workload) -> None:
    with pytest.raises(validation.BadFacts, match="workload me: role w has the bundle"):
        build(ClusterFacts((node(),), Q, waiting=(what,)))


def test_bundles_that_hold_more_than_a_numa_node_has_break_the_rule_of_capacity() -> None:
    machine = node(domain(0, 8), domain(1, 8))
    first, second = (workload(f"u{i}", DeviceRequest("gpu"), cpu=5) for i in range(2))
    held = [
        (first, PodAssignment("w", 0, "n", (Grant("g0"),))),
        (second, PodAssignment("w", 0, "n", (Grant("g1"),))),
    ]
    with pytest.raises(invariants.Broken, match=r"NUMA node 0 of n has 8000 cpu, bundles hold 10"):
        invariants.within_capacity({"n": machine}, held, NOW)
    with pytest.raises(invariants.Broken):
        invariants.within_capacity({"n": machine}, held[:1], NOW, given=held[1:])
    apart = [held[0], (second, PodAssignment("w", 0, "n", (Grant("g2"),)))]
    invariants.within_capacity({"n": machine}, apart, NOW)
    grown = node(domain(0, 4), domain(1, 8))
    invariants.within_capacity({"n": grown}, held[:1], NOW, given=apart[1:])
