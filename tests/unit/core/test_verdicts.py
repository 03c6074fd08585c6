"""The sentence that every waiting unit gets: which rule binds, with numbers that are true."""

from __future__ import annotations

import dataclasses

import pytest

from windlass.core import cycle, state, verdicts
from windlass.core.facts import (
    Constraint,
    Device,
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Queue,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
    Verdict,
)
from windlass.core.queues import Shortage
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


def unit(
    members: int = 1,
    cpu: int = 1000,
    gpu: int = 0,
    memory: int = 0,
    request: DeviceRequest | None = None,
    **more: object,
) -> Unit:
    devices = (request,) if request else ((DeviceRequest("gpu", gpu),) if gpu else ())
    constraint = more.pop("constraint", Constraint())
    role = Role(
        "w", members, members, {"cpu": cpu, "memory": memory}, devices,
        constraint=constraint,  # type: ignore[arg-type]
    )  # fmt: skip
    return Unit("me", str(more.pop("queue", "q")), (role,), **more)  # type: ignore[arg-type]


def verdict_of(facts: Facts) -> Verdict:
    decision = cycle.decide(state.build(facts), NOW)
    return next(each for each in decision.verdicts if each.unit == "me")


IMPOSSIBLE = [
    ("one-node-cpu", unit(cpu=9000), "needs 9 cpu on one node; the largest has 8 cpu", "cpu", 1000),
    (
        "one-node-memory",
        unit(memory=40 * GIB),
        "needs 40Gi memory on one node; the largest has 32Gi memory",
        "memory",
        8 * GIB,
    ),
    (
        "one-node-gpus",
        unit(gpu=8),
        "needs 8 gpu on one node; the node with most of them has 4",
        "gpu",
        4000,
    ),
    (
        "model-that-nobody-has",
        unit(request=DeviceRequest("gpu", 1, models=("h100",))),
        "needs 1 gpu (h100) on one node; the node with most of them has 0",
        "gpu",
        1000,
    ),
    (
        "all-nodes-together",
        unit(9, gpu=2),
        "needs 9 x 2 gpu, 1 cpu; all nodes together hold 8 even if empty",
        "members",
        1,
    ),
    (
        "rack-too-small-even-if-empty",
        unit(5, gpu=2, topology=Topology("rack", required=True)),
        "needs 5 x 2 gpu, 1 cpu in one rack; the largest rack holds 4 even if empty",
        "rack",
        1,
    ),
    (
        "node-too-small",
        unit(3, gpu=2, topology=Topology("node", required=True)),
        "needs 3 x 2 gpu, 1 cpu in one node; the largest node holds 2 even if empty",
        "node",
        1,
    ),
    (
        "level-that-nobody-knows",
        unit(topology=Topology("island", required=True)),
        "must be in one island, but nodes are known by zone, rack, node only",
        "island",
        1,
    ),
    (
        "labels",
        unit(constraint=Constraint(selector=(("disk", "tape"),))),
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
    wanted: Unit, message: str, resource: str, deficit: int
) -> None:
    nodes = tuple(node(f"n{i}", path=("z", f"r{i // 2}")) for i in range(4))
    found = verdict_of(Facts(nodes, (Queue("q"),), waiting=(wanted,), levels=LEVELS))
    assert found == Verdict("me", Reason.IMPOSSIBLE, message, resource, deficit)


def test_a_unit_that_is_no_gang_is_possible_if_one_member_is() -> None:
    role = Role("w", 9, 9, {"cpu": 8000})
    facts = Facts((node("n"),), (Queue("q"),), waiting=(Unit("me", "q", (role,), gang=False),))
    assert [len(p.seats) for p in cycle.decide(state.build(facts), NOW).placements] == [1]


def test_what_a_quota_forbids_is_not_impossible() -> None:
    """Only the model that the queue may not use is left: its quota is what binds."""
    queue = Queue("q", limit={"gpu/a100": 1000})
    found = verdict_of(Facts((node("n"),), (queue,), waiting=(unit(gpu=2),)))
    assert found.reason is Reason.WAITING_FOR_QUOTA
    assert found.message == "needs 2 gpu/a100; the limit of queue q is 1 gpu/a100 in all"


def test_a_unit_that_may_have_any_model_gets_one_that_its_queue_may_use() -> None:
    nodes = (node("a", model="a100"), node("b", model="h100"))
    queue = Queue("q", limit={"gpu/a100": 0})
    decision = cycle.decide(state.build(Facts(nodes, (queue,), waiting=(unit(gpu=4),))), NOW)
    assert [seat.node for p in decision.placements for seat in p.seats] == ["b"]


def test_missing_room_is_told_in_the_resource_that_is_short() -> None:
    grants = tuple(Grant(f"g{i}", "whole", 1000, 80_000) for i in range(3))
    busy = Running(
        Unit("busy", "q", (Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 3),)),)),
        (Seat("w", 0, "n", grants),), NOW - 1,
    )  # fmt: skip
    found = verdict_of(Facts((node("n"),), (Queue("q"),), (busy,), (unit(gpu=2),)))
    assert found.message == "needs 2 gpu, 1 cpu; room for 0 now, short of 2 gpu"
    assert (found.reason, found.resource, found.deficit) == (
        Reason.WAITING_FOR_CAPACITY, "gpu", 2000,
    )  # fmt: skip


def test_nodes_that_could_hold_it_and_are_closed_are_told() -> None:
    closed = dataclasses.replace(node("a"), ready=False)
    other = dataclasses.replace(node("b", gpus=0), ready=False)  # would not help
    later = dataclasses.replace(node("c"), ready_in=60.0)  # comes by itself
    found = verdict_of(Facts((closed, other, later), (Queue("q"),), waiting=(unit(gpu=2),)))
    assert found.reason is Reason.WAITING_FOR_CAPACITY
    assert found.message.endswith("; 1 node that could hold it is cordoned or not ready")
    both = (closed, dataclasses.replace(closed, name="d"))
    found = verdict_of(Facts(both, (Queue("q"),), waiting=(unit(gpu=2),)))
    assert found.message.endswith("; 2 nodes that could hold it are cordoned or not ready")


def test_units_of_one_shape_are_each_told_their_own_numbers() -> None:
    grants = tuple(Grant(f"g{i}", "whole", 1000, 80_000) for i in range(4))
    role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 4),))
    busy = Running(Unit("busy", "q", (role,)), (Seat("w", 0, "n", grants),), NOW - 1)
    waiting = tuple(
        Unit(f"u{n}", "q", (Role("w", n, n, {"cpu": 1000}, (DeviceRequest("gpu", 1),)),),
             submitted=float(n))
        for n in (2, 3, 4)
    )  # fmt: skip
    facts = Facts((node("n"),), (Queue("q", reserve=0),), (busy,), waiting)
    found = cycle.decide(state.build(facts), NOW).verdicts
    assert [(v.unit, v.message.split(";")[0], v.deficit) for v in found] == [
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
    found = verdicts.over_quota(unit(), shortage)
    assert (found.reason, found.message) == (Reason.WAITING_FOR_QUOTA, message)
    assert (found.resource, found.deficit) == (shortage.resource, shortage.need - shortage.left)


@pytest.mark.parametrize(
    ("wanted", "reason", "message"),
    [
        (unit(queue="qq"), Reason.NO_SUCH_QUEUE, "queue qq does not exist; did you mean q?"),
        (unit(queue="other"), Reason.NO_SUCH_QUEUE,
         "queue other does not exist; have it created or name another one"),
        (unit(not_before=NOW + 5), Reason.WAITING_TO_RETRY,
         "waits a while before it is tried again"),
        (unit(not_before=NOW + 5, lately=(Reason.ADMISSION_REFUSED, "x is forbidden")),
         Reason.ADMISSION_REFUSED,
         f"x is forbidden; it is tried again at {verdicts.moment(NOW + 5)}"),
        (unit(held=(Reason.SUSPENDED, "it is suspended")), Reason.SUSPENDED, "it is suspended"),
        (Unit("me", "q", ()), Reason.IMPOSSIBLE,
         "asks for no members: none of its roles must have any"),
    ],
)  # fmt: skip
def test_what_forbids_a_start_whatever_is_free(wanted: Unit, reason: Reason, message: str) -> None:
    found = verdict_of(Facts((node("n"),), (Queue("q"),), waiting=(wanted,)))
    assert (found.reason, found.message) == (reason, message)


def test_an_empty_cluster_waits_for_its_first_node() -> None:
    found = verdict_of(Facts(queues=(Queue("q"),), waiting=(unit(),)))
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
def test_amounts_never_promise_more_than_there_is(resource: str, amount: int, words: str) -> None:
    assert verdicts.told(resource, amount) == words
