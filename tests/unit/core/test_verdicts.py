"""The sentence that every waiting workload gets: which rule binds, with numbers that are true."""

from __future__ import annotations

import dataclasses

import pytest

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.model.types import (
    PROTECTED,
    Affinity,
    ClusterFacts,
    Constraint,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Requirement,
    Role,
    Running,
    Spread,
    Taint,
    Topology,
    Verdict,
    Workload,
)
from windlass.core.quota.quota_tree import Shortage
from windlass.core.snapshot import snapshot
from windlass.core.verdicts import formatting, messages
from windlass.kinds.reasons import Reason

NOW = 1000.0
GIB = 1 << 30
LEVELS = ("zone", "rack")


def node(name: str, gpus: int = 4, model: str = "a100", path: tuple[str, ...] = ()) -> Node:
    devices = tuple(
        Device(f"g{i}", "gpu", model, memory=80_000, forms=frozenset(("whole", "share")))
        for i in range(gpus)
    )
    return Node(name, {"cpu": 8000, "memory": 32 * GIB}, devices, path=path)


def workload(
    members: int = 1,
    cpu: int = 1000,
    gpu: int = 0,
    memory: int = 0,
    request: DeviceRequest | None = None,
    **more: object,
) -> Workload:
    devices = (request,) if request else ((DeviceRequest("gpu", gpu),) if gpu else ())
    constraint = more.pop("constraint", Constraint())
    role = Role(
        "w", members, members, {"cpu": cpu, "memory": memory}, devices,
        constraint=constraint,
    )  # fmt: skip
    return Workload("me", str(more.pop("queue", "q")), (role,), **more)


def verdict_of(facts: ClusterFacts) -> Verdict:
    decision = cycle.decide(snapshot.build(facts), NOW)
    return next(each for each in decision.verdicts if each.workload == "me")


IMPOSSIBLE = [
    (
        "one-node-cpu",
        workload(cpu=9000),
        "needs 9 cpu on one node; the largest has 8 cpu",
        "cpu",
        1000,
    ),
    (
        "one-node-memory",
        workload(memory=40 * GIB),
        "needs 40Gi memory on one node; the largest has 32Gi memory",
        "memory",
        8 * GIB,
    ),
    (
        "one-node-gpus",
        workload(gpu=8),
        "needs 8 gpu on one node; the node with most of them has 4",
        "gpu",
        4000,
    ),
    (
        "model-that-nobody-has",
        workload(request=DeviceRequest("gpu", 1, models=("h100",))),
        "needs 1 gpu (h100) on one node; the node with most of them has 0",
        "gpu",
        1000,
    ),
    (
        "all-nodes-together",
        workload(9, gpu=2),
        "needs 9 x 2 gpu, 1 cpu; all nodes together hold 8 even if empty",
        "members",
        1,
    ),
    (
        "rack-too-small-even-if-empty",
        workload(5, gpu=2, topology=Topology("rack", required=True)),
        "needs 5 x 2 gpu, 1 cpu in one rack; the largest rack holds 4 even if empty",
        "rack",
        1,
    ),
    (
        "node-too-small",
        workload(3, gpu=2, topology=Topology("node", required=True)),
        "needs 3 x 2 gpu, 1 cpu in one node; the largest node holds 2 even if empty",
        "node",
        1,
    ),
    (
        "level-that-nobody-knows",
        workload(topology=Topology("island", required=True)),
        "must be in one island, but nodes are known by zone, rack, node only",
        "island",
        1,
    ),
    (
        "labels",
        workload(constraint=Constraint(selector=(("disk", "tape"),))),
        "no node has the labels and taints it asks for",
        "nodes",
        1,
    ),
]


@pytest.mark.parametrize(
    ("wanted", "message", "resource", "deficit"),
    [case[1:] for case in IMPOSSIBLE],
    ids=[case[0] for case in IMPOSSIBLE],
)
def test_impossible_carries_its_certificate(
    wanted: Workload, message: str, resource: str, deficit: int
) -> None:
    nodes = tuple(node(f"n{i}", path=("z", f"r{i // 2}")) for i in range(4))
    found = verdict_of(ClusterFacts(nodes, (Queue("q"),), waiting=(wanted,), levels=LEVELS))
    # What is possible at most is below what was asked for by what is missing.
    possible = found.possible
    assert found == Verdict("me", Reason.IMPOSSIBLE, message, resource, deficit, possible=possible)
    if resource in ("cpu", "memory", "members", "gpu"):
        assert possible is not None
        assert possible >= 0


def test_a_workload_that_is_no_gang_is_possible_if_one_member_is() -> None:
    role = Role("w", 9, 9, {"cpu": 8000})
    facts = ClusterFacts(
        (node("n"),), (Queue("q"),), waiting=(Workload("me", "q", (role,), gang=False),)
    )
    assert [len(p.pods) for p in cycle.decide(snapshot.build(facts), NOW).placements] == [1]


def test_what_a_quota_forbids_is_not_impossible() -> None:
    """Only the model that the queue may not use is left: its quota is what binds."""
    queue = Queue("q", limit={"gpu/a100": 1000})
    found = verdict_of(ClusterFacts((node("n"),), (queue,), waiting=(workload(gpu=2),)))
    assert found.reason is Reason.WAITING_FOR_QUOTA
    assert found.message == "needs 2 gpu/a100; the limit of queue q is 1 gpu/a100 in all"


def test_a_workload_that_may_have_any_model_gets_one_that_its_queue_may_use() -> None:
    nodes = (node("a", model="a100"), node("b", model="h100"))
    queue = Queue("q", limit={"gpu/a100": 0})
    decision = cycle.decide(
        snapshot.build(ClusterFacts(nodes, (queue,), waiting=(workload(gpu=4),))), NOW
    )
    assert [pod.node for p in decision.placements for pod in p.pods] == ["b"]


def test_a_shortage_names_the_resource_that_is_short() -> None:
    grants = tuple(Grant(f"g{i}", "whole", 1000, 80_000) for i in range(3))
    busy = Running(
        Workload("busy", "q", (Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 3),)),)),
        (PodAssignment("w", 0, "n", grants),), NOW - 1,
    )  # fmt: skip
    found = verdict_of(ClusterFacts((node("n"),), (Queue("q"),), (busy,), (workload(gpu=2),)))
    assert found.message == "needs 2 gpu, 1 cpu; 0 fit now, short of 2 gpu"
    assert (found.reason, found.resource, found.deficit) == (
        Reason.WAITING_FOR_CAPACITY, "gpu", 2000,
    )  # fmt: skip


def test_nodes_that_could_hold_it_and_are_closed_are_named() -> None:
    closed = dataclasses.replace(node("a"), ready=False)
    other = dataclasses.replace(node("b", gpus=0), ready=False)  # would not help
    later = dataclasses.replace(node("c"), ready_in=60.0)  # comes by itself
    found = verdict_of(
        ClusterFacts((closed, other, later), (Queue("q"),), waiting=(workload(gpu=2),))
    )
    assert found.reason is Reason.WAITING_FOR_CAPACITY
    assert found.message.endswith("; 0 fit now; node a is not ready")
    cordoned = dataclasses.replace(closed, name="d", cordoned=True)
    more = tuple(dataclasses.replace(cordoned, name=f"e{i}") for i in range(4))
    found = verdict_of(
        ClusterFacts((closed, cordoned, *more), (Queue("q"),), waiting=(workload(gpu=2),))
    )
    assert found.message.endswith("; nodes d, e0, e1 and 2 more are cordoned; node a is not ready")


CONDITIONS = [
    ("unschedulable", "NoSchedule", "cordoned"),
    ("not-ready", "NoExecute", "not ready"),
    ("disk-pressure", "NoSchedule", "under disk pressure"),
]


@pytest.mark.parametrize(("name", "effect", "words"), CONDITIONS)
def test_a_node_that_its_condition_closes_for_now_makes_nothing_impossible(
    name: str, effect: str, words: str
) -> None:
    """Kubernetes taints such nodes; the taint goes with the condition."""
    taint = Taint(f"node.kubernetes.io/{name}", "", effect)
    closed = dataclasses.replace(node("a"), taints=(taint,), ready=False)
    found = verdict_of(ClusterFacts((closed,), (Queue("q"),), waiting=(workload(gpu=2),)))
    assert found.reason is Reason.WAITING_FOR_CAPACITY
    assert found.message == f"needs 2 gpu, 1 cpu; 0 fit now; node a is {words}"
    kept = dataclasses.replace(closed, taints=(taint, Taint("dedicated", "x", "NoSchedule")))
    found = verdict_of(ClusterFacts((kept,), (Queue("q"),), waiting=(workload(gpu=2),)))
    assert found.reason is Reason.IMPOSSIBLE
    assert found.message == "no node has the labels and taints it asks for"


def _pod(key: str, where: str = "", cpu: int = 1000, **role: object) -> Workload | Running:
    """A pod with the label app=web; running if it is said where."""
    made = Role("pod", 1, 1, {"cpu": cpu}, labels=(("app", "web"),), **role)
    found = Workload(key, "q", (made,), namespace="red")
    return Running(found, (PodAssignment("pod", 0, where),), NOW - 1) if where else found


_WEB = (Requirement("app", "In", ("web",)),)
_HOST, _ZONE = "kubernetes.io/hostname", "zone"
TERMS = [
    (
        {"affinities": (Affinity(_HOST, _WEB, anti=True),)},
        "2 nodes have the capacity, but its required pod anti-affinity (kubernetes.io/hostname) "
        "excludes 2 of them",
    ),
    (
        {"affinities": (Affinity(_HOST, (Requirement("app", "In", ("db",)),)),)},
        "2 nodes have the capacity, but its required pod affinity (kubernetes.io/hostname) "
        "excludes 2 of them",
    ),
    (
        {"spreads": (Spread(_ZONE, _WEB),)},
        "2 nodes have the capacity, but its topology spread constraints (zone) excludes 2 of them",
    ),
]


@pytest.mark.parametrize(("terms", "words"), TERMS, ids=["anti-affinity", "affinity", "spread"])
def test_terms_about_other_pods_are_named_as_what_is_in_the_way(
    terms: dict[str, object], words: str
) -> None:
    nodes = tuple(
        dataclasses.replace(node(name, gpus=0), labels={_HOST: name}) for name in ("a", "b")
    )
    running = (_pod("x", "a"), _pod("y", "b"))
    found = verdict_of(ClusterFacts(nodes, (Queue("q"),), running, (_pod("me", **terms),)))
    assert found.reason is Reason.WAITING_FOR_TOPOLOGY
    assert found.message == f"needs 1 cpu; {words}"


def test_terms_about_other_pods_are_not_blamed_for_a_lack_of_capacity() -> None:
    nodes = (dataclasses.replace(node("a", gpus=0), labels={_HOST: "a"}),)
    terms = (Affinity(_HOST, _WEB, anti=True),)
    busy = _pod("x", "a", cpu=6000)
    waits = _pod("me", cpu=3000, affinities=terms)
    found = verdict_of(ClusterFacts(nodes, (Queue("q"),), (busy,), (waits,)))
    assert found.reason is Reason.WAITING_FOR_CAPACITY
    assert found.message.startswith("needs 3 cpu; 0 fit now, short of 3 cpu")


def test_a_host_port_in_use_is_named() -> None:
    busy = _pod("x", "a", ports=(8080,))
    waits = _pod("me", ports=(8080,))
    facts = ClusterFacts((node("a", gpus=0), node("b", gpus=0)), (Queue("q"),), (busy,), (waits,))
    assert verdict_of(dataclasses.replace(facts, nodes=facts.nodes[:1])).message == (
        "needs 1 cpu; 0 fit now, host port 8080 is in use on the node that has the capacity"
    )
    both = dataclasses.replace(facts, running=(busy, _pod("y", "b", ports=(8080,))))
    assert verdict_of(both).message == (
        "needs 1 cpu; 0 fit now, host port 8080 is in use on 2 of 2 nodes that have the capacity"
    )


def test_a_budget_that_refuses_is_not_a_minimum_runtime() -> None:
    protected = dataclasses.replace(_pod("x", "a", cpu=8000), protected_until=PROTECTED)
    waits = dataclasses.replace(_pod("me", cpu=8000), priority=1000)
    found = verdict_of(ClusterFacts((node("a", gpus=0),), (Queue("q"),), (protected,), (waits,)))
    assert found.message == (
        "needs 8 cpu; 0 fit now, short of 8 cpu; PodDisruptionBudgets do not allow the eviction "
        "of enough of the pods that it may preempt"
    )


def test_workloads_of_one_shape_each_get_their_own_numbers() -> None:
    grants = tuple(Grant(f"g{i}", "whole", 1000, 80_000) for i in range(4))
    role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 4),))
    busy = Running(Workload("busy", "q", (role,)), (PodAssignment("w", 0, "n", grants),), NOW - 1)
    waiting = tuple(
        Workload(f"u{n}", "q", (Role("w", n, n, {"cpu": 1000}, (DeviceRequest("gpu", 1),)),),
             submitted=float(n))
        for n in (2, 3, 4)
    )  # fmt: skip
    facts = ClusterFacts((node("n"),), (Queue("q", reserve=0),), (busy,), waiting)
    found = cycle.decide(snapshot.build(facts), NOW).verdicts
    assert [(v.workload, v.message.split(";")[0], v.deficit) for v in found] == [
        (f"u{n}", f"needs {n} x 1 gpu, 1 cpu", 1000 * n) for n in (2, 3, 4)
    ]


QUOTAS = [
    (Shortage("limit", "q", "gpu", 2000, 1000, 8000),
     "needs 2 gpu; queue q may use 1 gpu more before its limit of 8 gpu"),
    (Shortage("limit", "q", "gpu", 2000, 0, 8000),
     "needs 2 gpu; queue q has reached its limit of 8 gpu"),
    (Shortage("limit", "q", "cpu", 16_000, 500, 8000),
     "needs 16 cpu; the limit of queue q is 8 cpu in all"),
    (Shortage("guarantee", "q", "gpu", 1000, 0, 4000),
     "needs 1 gpu and must not be preempted; non-preemptible workloads of queue q may use 0 gpu "
     "more of what is not guaranteed to other queues"),
    (Shortage("lend", "q", "memory", 2 * GIB, GIB),
     "needs 2Gi memory; queue q may borrow 1Gi memory now, others keep the rest"),
]  # fmt: skip


@pytest.mark.parametrize(("shortage", "message"), QUOTAS)
def test_quota_sentences(shortage: Shortage, message: str) -> None:
    found = messages.over_quota(workload(), shortage)
    assert (found.reason, found.message) == (Reason.WAITING_FOR_QUOTA, message)
    assert (found.resource, found.deficit) == (shortage.resource, shortage.need - shortage.left)


@pytest.mark.parametrize(
    ("wanted", "reason", "message"),
    [
        (workload(queue="qq"), Reason.NO_SUCH_QUEUE, "queue qq does not exist; did you mean q?"),
        (workload(queue="other"), Reason.NO_SUCH_QUEUE,
         "queue other does not exist; have it created or name another one"),
        (workload(not_before=NOW + 5), Reason.WAITING_TO_RETRY,
         "waits a while before it is tried again"),
        (workload(not_before=NOW + 5, lately=(Reason.ADMISSION_REFUSED, "x is forbidden")),
         Reason.ADMISSION_REFUSED,
         f"x is forbidden; it is tried again at {formatting.moment(NOW + 5)}"),
        (workload(hold_reason=(Reason.SUSPENDED, "it is suspended")), Reason.SUSPENDED,
         "it is suspended"),
        (Workload("me", "q", ()), Reason.IMPOSSIBLE,
         "asks for no replicas: every role has a minimum of 0"),
    ],
)  # fmt: skip
def test_what_forbids_a_start_whatever_is_free(
    wanted: Workload, reason: Reason, message: str
) -> None:
    found = verdict_of(ClusterFacts((node("n"),), (Queue("q"),), waiting=(wanted,)))
    assert (found.reason, found.message) == (reason, message)


def test_an_empty_cluster_waits_for_its_first_node() -> None:
    found = verdict_of(ClusterFacts(queues=(Queue("q"),), waiting=(workload(),)))
    assert (found.reason, found.message) == (Reason.WAITING_FOR_CAPACITY, "no node has joined yet")


@pytest.mark.parametrize(
    ("resource", "amount", "words"),
    [
        ("cpu", 1500, "1.5 cpu"),
        ("cpu", 20, "20m cpu"),
        ("memory", 32 * GIB - 1, "31.9Gi memory"),
        ("gpu", 2999, "2.999 gpu"),
        ("gpu", 250, "0.25 gpu"),
        ("gpu", 1005, "1.005 gpu"),
        ("gpu", 100, "0.1 gpu"),
        ("gpu", 99, "99m gpu"),
        ("memory", 1536 << 20, "1.5Gi memory"),
        ("gpu", 0, "0 gpu"),
        ("pods", 3, "3 pods"),
    ],
)
def test_amounts_are_never_rounded_up(resource: str, amount: int, words: str) -> None:
    assert formatting.amount(resource, amount) == words


def test_a_run_that_the_cluster_refuses_has_no_expected_start() -> None:
    refused = workload(not_before=NOW + 5, lately=(Reason.ADMISSION_REFUSED, "x is forbidden"))
    facts = ClusterFacts((node("n"),), (Queue("q"),), waiting=(refused,))
    start = explain.explain(snapshot.build(facts), "me", NOW).start
    assert (start.at, start.sure) == (None, "unknown")
