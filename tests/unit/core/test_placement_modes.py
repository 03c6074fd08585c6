"""What each mode and policy gives a user, through whole decisions on small clusters."""

from __future__ import annotations

import dataclasses
import math

import pytest

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.fairness import past_use
from windlass.core.model.types import (
    Account,
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Policy,
    Profile,
    Queue,
    Role,
    Running,
    Verdict,
    Workload,
)
from windlass.core.prediction.predictor import History
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason

NOW = 1000.0
Q = (Queue("q"),)
CUT = (
    Profile("1g", 1, (0, 1, 2, 3, 4, 5, 6), 142),
    Profile("3g", 4, (0, 4), 428),
    Profile("7g", 8, (0,), 1000),
)


def gpu(number: int = 0, model: str = "a100", **more: object) -> Device:
    forms = frozenset(("whole", "share", "ratio", "partition"))
    return Device(
        f"g{number}", "gpu", model, memory=80_000, forms=forms, slices=8, profiles=CUT,
        **more,
    )  # fmt: skip


def gpus(count: int, model: str = "a100") -> tuple[Device, ...]:
    return tuple(gpu(number, model) for number in range(count))


def node(name: str, *devices: Device, cpu: int = 64, **more: object) -> Node:
    return Node(name, {"cpu": 1000 * cpu}, devices, **more)


def workload(
    key: str, *requests: DeviceRequest, members: int = 1, bundle: str = "", **more: object
) -> Workload:
    role = Role(
        "w", members, members, {"cpu": 1000}, requests,
        bundle=bundle,
    )  # fmt: skip
    return Workload(key, str(more.pop("queue", "q")), (role,), **more)


def runs(who: Workload, *pods: tuple[str, *tuple[str, ...]], end: float | None = None) -> Running:
    """Each pod holds whole devices of a node."""
    found = (
        PodAssignment("w", index, where, tuple(Grant(each, memory=80_000) for each in held))
        for index, (where, *held) in enumerate(pods)
    )
    return Running(who, tuple(found), NOW - 100, end)


def decided(facts: ClusterFacts, policy: Policy = Policy()) -> cycle.Decision:  # noqa: B008
    return cycle.decide(snapshot.build(facts), NOW, policy)


def started(decision: cycle.Decision) -> list[str]:
    return [placement.workload for placement in decision.placements]


def where(decision: cycle.Decision, key: str = "me") -> list[tuple[str, ...]]:
    """The node and the specific devices of each pod; nothing, if it waits."""
    pods = next((each.pods for each in decision.placements if each.workload == key), ())
    return [(pod.node, *(grant.device for grant in pod.grants)) for pod in pods]


def verdict(decision: cycle.Decision, key: str = "me") -> Verdict:
    return next(each for each in decision.verdicts if each.workload == key)


# --- nodes that do not exist yet ----------------------------------------------------------------


def test_a_node_that_could_be_provisioned_takes_no_pod_is_wanted_and_makes_nothing_impossible() -> (
    None
):
    pool = node("pool", *gpus(4), ready_in=90.0)
    me = workload("me", DeviceRequest("gpu", 4))
    found = decided(ClusterFacts((node("here", *gpus(1)), pool), Q, waiting=(me,)))
    assert started(found) == []
    assert verdict(found).reason is Reason.WAITING_FOR_CAPACITY
    assert [(each.node, each.workloads) for each in found.wanted] == [("pool", ("me",))]
    there = dataclasses.replace(pool, ready_in=0.0)
    assert where(decided(ClusterFacts((there,), Q, waiting=(me,)))) == [
        ("pool", "g0", "g1", "g2", "g3")
    ]
    too_large = workload("me", DeviceRequest("gpu", 5))
    never = decided(ClusterFacts((pool,), Q, waiting=(too_large,)))
    assert verdict(never).reason is Reason.IMPOSSIBLE
    assert never.wanted == ()


# --- devices ------------------------------------------------------------------------------------


def nic(number: int, **more: object) -> Device:
    return Device(f"nic{number}", "rdma", **more)


@pytest.mark.parametrize(("bundle", "place"), [("pcie", "switch"), ("numa", "numa")])
def test_gpus_and_nic_come_from_one_place_of_a_node_or_not_at_all(bundle: str, place: str) -> None:
    """Nodes where the free ones lie apart are passed over, however much is free."""

    def at(number: int) -> dict[str, object]:
        return {place: f"s{number}" if place == "switch" else number}

    apart = node("apart", gpu(0, **at(0)), gpu(1, **at(0)), nic(0, **at(1)))
    good = node("good", gpu(0, **at(0)), gpu(1, **at(1)), gpu(2, **at(1)), nic(1, **at(1)))
    request = (DeviceRequest("gpu", 2), DeviceRequest("rdma"))
    me = workload("me", *request, bundle=bundle)
    assert where(decided(ClusterFacts((apart, good), Q, waiting=(me,)))) == [
        ("good", "g1", "g2", "nic1")
    ]
    taken = runs(workload("x", DeviceRequest("gpu")), ("good", "g2"))
    waits = decided(ClusterFacts((apart, good), Q, (taken,), (me,)))
    place_of = {"pcie": "under one PCIe switch", "numa": "on one NUMA node"}[bundle]
    assert verdict(waits).reason is Reason.WAITING_FOR_TOPOLOGY
    assert verdict(waits).message == (
        f"needs 2 gpu, 1 rdma, 1 cpu {place_of}; 0 fit now, enough is free on nodes but none "
        f"has its devices {place_of}"
    )
    never = verdict(decided(ClusterFacts((apart,), Q, waiting=(me,))))
    assert never.reason is Reason.IMPOSSIBLE
    assert never.message.endswith(f"; even of empty nodes none has its devices {place_of}")
    loose = dataclasses.replace(me, roles=(dataclasses.replace(me.roles[0], bundle=""),))
    assert where(decided(ClusterFacts((apart,), Q, waiting=(loose,)))) == [
        ("apart", "g0", "g1", "nic0")
    ]


def test_the_best_acceptable_model_is_taken_and_the_next_where_it_is_not_to_be_had() -> None:
    new, old = node("new", *gpus(2, "h100")), node("old", *gpus(2, "a100"))
    me = workload("me", DeviceRequest("gpu", 2, models=("h100", "a100")))
    assert where(decided(ClusterFacts((new, old), Q, waiting=(me,)))) == [("new", "g0", "g1")]
    busy = runs(workload("x", DeviceRequest("gpu")), ("new", "g1"))
    assert where(decided(ClusterFacts((new, old), Q, (busy,), (me,)))) == [("old", "g0", "g1")]
    picky = workload("me", DeviceRequest("gpu", 2, models=("h100",)))
    assert verdict(decided(ClusterFacts((new, old), Q, (busy,), (picky,)))).resource == "gpu/h100"


def test_members_of_a_gang_get_one_model_where_one_has_capacity_for_all_else_a_mix() -> None:
    new, old = node("new", *gpus(1, "h100")), node("old", *gpus(3, "a100"))
    pair = workload("me", DeviceRequest("gpu", models=("h100", "a100")), members=2)
    found = where(decided(ClusterFacts((new, old), Q, waiting=(pair,))))
    assert [place for place, _ in found] == ["old", "old"]
    four = workload("me", DeviceRequest("gpu", models=("h100", "a100")), members=4)
    found = where(decided(ClusterFacts((new, old), Q, waiting=(four,))))
    assert sorted(place for place, _ in found) == ["new", "old", "old", "old"]


def test_a_models_quota_sends_flexible_workloads_to_others_and_the_rest_wait_for_it() -> None:
    nodes = (node("new", *gpus(4, "h100")), node("old", *gpus(4, "a100")))
    queue = Queue("q", limit={"gpu/h100": 1000})
    flexible = workload("flexible", DeviceRequest("gpu", 2, models=("h100", "a100")))
    anything = workload("anything", DeviceRequest("gpu", 2))
    picky = workload("picky", DeviceRequest("gpu", 2, models=("h100",)))
    small = workload("small", DeviceRequest("gpu", models=("h100",)), submitted=1.0)
    found = decided(ClusterFacts(nodes, (queue,), waiting=(flexible, anything, picky, small)))
    assert [where(found, key)[0][0] for key in ("flexible", "anything")] == ["old", "old"]
    assert where(found, "small") == [("new", "g0")]
    told = verdict(found, "picky")
    assert (told.reason, told.resource, told.queue) == (
        Reason.WAITING_FOR_QUOTA, "gpu/h100", "q",
    )  # fmt: skip


@pytest.mark.parametrize("ratio", [2, 4, 8])
def test_parts_of_a_ratio_lock_the_device_for_everything_else(ratio: int) -> None:
    device = node("n", gpu())
    parts = [workload(f"p{i}", DeviceRequest("gpu", ratio=ratio)) for i in range(ratio + 1)]
    found = decided(ClusterFacts((device,), Q, waiting=tuple(parts)))
    assert len(started(found)) == ratio, "as many as the ratio says, and no more"
    held = Running(parts[0], found.placements[0].pods, NOW)
    others = (
        workload("ratio", DeviceRequest("gpu", ratio=4 if ratio == 2 else 2)),
        workload("share", DeviceRequest("gpu", memory=1)),
        workload("whole", DeviceRequest("gpu")),
        workload("slice", DeviceRequest("gpu", profile="1g")),
    )
    assert started(decided(ClusterFacts((device,), Q, (held,), others))) == []
    assert started(decided(ClusterFacts((device,), Q, (held,), parts[1:2]))) == [parts[1].key]
    for other in others:
        assert started(decided(ClusterFacts((device,), Q, waiting=(other,)))) == [other.key]


def test_a_3g_partition_takes_four_of_eight_memory_slices() -> None:
    requests = [workload(f"u{i}", DeviceRequest("gpu", profile="3g")) for i in range(3)]
    small = workload("small", DeviceRequest("gpu", profile="1g"), submitted=1.0)
    found = decided(ClusterFacts((node("n", gpu()),), Q, waiting=(*requests, small)))
    assert started(found) == ["u0", "u1"], "slices 0-3 and 4-7; nothing is left for 1g either"
    grants = [placement.pods[0].grants[0] for placement in found.placements]
    assert sorted((grant.start, grant.memory) for grant in grants) == [(0, 40_000), (4, 40_000)]
    held = Running(requests[0], found.placements[0].pods, NOW)
    beside = tuple(workload(f"s{i}", DeviceRequest("gpu", profile="1g")) for i in range(5))
    room = 4 if grants[0].start else 3  # a 1g may begin at any slice but the last
    assert len(started(decided(ClusterFacts((node("n", gpu()),), Q, (held,), beside)))) == room
    for form in ({"profile": "7g"}, {"memory": 1}, {"ratio": 2}, {}):
        other = workload("w", DeviceRequest("gpu", **form))
        assert started(decided(ClusterFacts((node("n", gpu()),), Q, (held,), (other,)))) == []


# --- whose turn it is ---------------------------------------------------------------------------


def one_place(*waiting: Workload, queue: Queue = Q[0]) -> list[str]:
    """The workload that gets the only device."""
    return started(decided(ClusterFacts((node("n", gpu()),), (queue,), waiting=waiting)))


def test_lifo_starts_the_newest_and_fifo_the_oldest_but_priority_comes_first() -> None:
    line = [workload(f"at{i}", DeviceRequest("gpu"), submitted=float(i)) for i in (5, 3, 9)]
    assert one_place(*line) == ["at3"]
    assert one_place(*line, queue=Queue("q", order="lifo")) == ["at9"]
    urgent = workload("urgent", DeviceRequest("gpu"), submitted=4.0, priority=90)
    for order in ("fifo", "lifo", "priority", "fair", "shortest", "attained"):
        assert one_place(*line, urgent, queue=Queue("q", order=order)) == ["urgent"]


def shared(
    *queues: Queue, running: tuple[Running, ...] = (), accounts: tuple[Account, ...] = ()
) -> list[str]:
    """Of one workload in each leaf queue, the one that gets the last device."""
    parents = {queue.parent for queue in queues}
    leaves = [queue.name for queue in queues if queue.name not in parents]
    waiting = tuple(workload(f"of-{name}", DeviceRequest("gpu"), queue=name) for name in leaves)
    facts = ClusterFacts((node("n", *gpus(4)),), queues, running, waiting, accounts=accounts)
    return started(decided(facts))


def holds(queue: str, *devices: str) -> Running:
    return runs(
        workload(f"in-{queue}", DeviceRequest("gpu", len(devices)), queue=queue), ("n", *devices)
    )


def test_the_branch_with_the_smaller_share_is_first_whatever_its_queues_hold() -> None:
    """Alone, b1 holds less than a1; but its branch holds more, and that is looked at first."""
    tree = (Queue("a"), Queue("a1", "a"), Queue("b"), Queue("b1", "b"), Queue("b2", "b"))
    running = (holds("a1", "g0"), holds("b2", "g1", "g2"))
    assert shared(*tree, running=running) == ["of-a1"]
    heavy = (Queue("a"), Queue("a1", "a"), Queue("b", weight=4), *tree[3:])
    assert shared(*heavy, running=running) == ["of-b1"], "of b1 and b2 the one that holds less"


def test_past_use_counts_as_if_it_were_held() -> None:
    running = (holds("a", "g0"), holds("b", "g1", "g2"))
    hour = 3600 / math.log(2)
    used = (Account("a", usage=0.6 * hour), Account("b", usage=0.2 * hour))
    assert shared(Queue("a"), Queue("b"), running=running) == ["of-a"]
    queues = (Queue("a", half_life=3600), Queue("b", half_life=3600))
    assert shared(*queues, running=running, accounts=used) == ["of-b"]
    heavy = (Queue("a", half_life=3600, weight=4), Queue("b", half_life=3600))
    assert shared(*heavy, running=running, accounts=used) == ["of-a"]


def test_use_above_the_entitlement_counts_by_default() -> None:
    running = (holds("a", "g0"), holds("b", "g1", "g2"))
    ahead = Account("a", excess=0.6 * past_use.HORIZON)
    assert shared(Queue("a"), Queue("b"), running=running, accounts=(ahead,)) == ["of-b"]


# --- what was learned ---------------------------------------------------------------------------


def test_a_workload_without_a_duration_passes_if_its_history_group_ended_soon_enough() -> None:
    """A real history of 60 seconds each: the head gets a reservation of the device in 200
    seconds."""
    history = History()
    for number in range(40):
        for history_key, seconds in (("quick", 60.0), ("slow", 900.0)):
            done = workload(f"{history_key}{number}", DeviceRequest("gpu"), history_key=history_key)
            history.register(done, 0.0)
            history.observe(done, seconds)
    busy = runs(workload("x", DeviceRequest("gpu")), ("n", "g0"), end=NOW + 200)
    head = workload("head", DeviceRequest("gpu", 2))
    facts = ClusterFacts((node("n", *gpus(2)),), Q, (busy,), (head,))
    for history_key, policy, passes in (
        ("quick", Policy(), True),
        ("slow", Policy(), False),
        ("stranger", Policy(), False),
        ("quick", Policy(unknown_runtime="never"), False),
    ):
        passer = workload("me", DeviceRequest("gpu"), history_key=history_key, submitted=5.0)
        world = dataclasses.replace(facts, waiting=(head, passer))
        found = cycle.decide(snapshot.build(world, history), NOW, policy)
        assert [(each.workload, each.start) for each in found.reservations] == [("head", NOW + 200)]
        assert (started(found) == ["me"]) is passes, history_key
        if not passes:
            assert verdict(found).reason is Reason.RESERVED_UNTIL


@pytest.mark.parametrize(
    ("order", "said", "promised"),
    [
        ("fifo", None, True),
        ("fair", None, True),
        ("fifo", 0, False),
        ("shortest", None, False),
        ("attained", None, False),
        ("shortest", 1, True),
        ("attained", 1, True),
    ],
)
def test_a_queue_ordered_by_length_reserves_for_no_new_workload_unless_configured(
    order: str, said: int | None, promised: bool
) -> None:
    pods = tuple(PodAssignment("w", number, "n") for number in range(64))
    full = Running(workload("r", members=64), pods, NOW - 60, NOW + 60)
    queue = Queue("q", order=order, reserve=said)
    head = workload("head", expected=50.0, submitted=NOW)
    found = decided(ClusterFacts((node("n"),), (queue,), (full,), (head,)))
    assert bool(found.reservations) == promised


# --- when time alone changes the answer ---------------------------------------------------------


def test_the_scheduler_wakes_when_a_workload_may_be_retried() -> None:
    later = workload("me", not_before=NOW + 40, lately=(Reason.WAITING_TO_RETRY, "it failed"))
    found = decided(ClusterFacts((node("n"),), Q, waiting=(later,)))
    assert (started(found), found.wake_at) == ([], NOW + 40)
    assert started(
        cycle.decide(snapshot.build(ClusterFacts((node("n"),), Q, waiting=(later,))), NOW + 40)
    ) == ["me"]


# --- the nearest changes ------------------------------------------------------------------------


def test_an_impossible_request_says_what_would_do_instead() -> None:
    """A certificate, and each kind of change that starts it."""
    nodes = tuple(node(f"n{i}", *gpus(4), path=(f"r{i}",)) for i in range(2))
    me = workload("me", DeviceRequest("gpu", 6, models=("a100",)))
    found = explain.explain(snapshot.build(ClusterFacts(nodes, Q, waiting=(me,))), "me", NOW)
    assert found.certificate == (
        "it needs 6 gpu (a100) on one node; the node with most of them has 4"
    )
    assert {change.action: change.amount for change in found.fits_if} == {"devices": 4}
