"""`explain`: the sentences on one workload, and that every change it names really starts the
workload."""

from __future__ import annotations

import dataclasses

import pytest

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.snapshot.snapshot import build
from windlass.kinds.reasons import Reason

NOW = 1000.0


def gpu_node(name: str, count: int = 4, model: str = "a100", **more: object) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", model, memory=80_000) for i in range(count))
    return Node(name, {"cpu": 16_000}, devices, **more)


def job(
    key: str, members: int = 1, gpu: int = 1, models: tuple[str, ...] = (), **more: object
) -> Workload:
    role = Role(
        "worker", members, members, {"cpu": 1000}, (DeviceRequest("gpu", gpu, models=models),)
    )
    return Workload(key, str(more.pop("queue", "q")), (role,), **more)


def running(workload: Workload, node: str, devices: range, end: float | None = None) -> Running:
    grants = tuple(Grant(f"g{i}", "whole", 1000, 80_000) for i in devices)
    return Running(workload, (PodAssignment("worker", 0, node, grants),), NOW - 100, end)


def told(facts: ClusterFacts, key: str = "me") -> explain.Explanation:
    return explain.explain(build(facts), key, NOW)


def kinds(explanation: explain.Explanation) -> dict[str, str]:
    return {change.action: change.message for change in explanation.fits_if}


def test_it_says_the_same_verdict_as_decide() -> None:
    facts = ClusterFacts((gpu_node("n"),), (Queue("q"),), waiting=(job("me", gpu=8), job("other")))
    decided = {v.workload: v for v in cycle.decide(build(facts), NOW).verdicts}
    assert told(facts).verdict == decided["me"]


def test_what_no_node_can_hold_is_impossible_although_its_queue_is_at_its_limit() -> None:
    facts = ClusterFacts(
        (gpu_node("n"),),
        (Queue("q", limit={"gpu": 2000}),),
        running=(running(job("b", gpu=2), "n", range(2)),),
        waiting=(job("me", gpu=8), job("fits", gpu=4)),
    )
    found = told(facts).verdict
    assert found is not None
    assert (found.reason, found.possible) == (Reason.IMPOSSIBLE, 4000)
    fits = told(facts, "fits").verdict
    assert fits is not None
    assert fits.reason is not Reason.IMPOSSIBLE


def test_a_workload_that_starts_now_has_no_verdict() -> None:
    found = told(ClusterFacts((gpu_node("n"),), (Queue("q"),), waiting=(job("me"),)))
    assert found.verdict is None
    assert found.start == explain.Start(NOW, "now", "it fits now")
    assert found.sentences() == ["it starts now"]


def test_holders_are_named_with_amount_queue_and_end_largest_first() -> None:
    facts = ClusterFacts(
        (gpu_node("n"),),
        (Queue("q"), Queue("p")),
        running=(
            running(job("small", gpu=1, queue="p"), "n", range(1), NOW + 50),
            running(job("large", gpu=3), "n", range(1, 4)),
        ),
        waiting=(job("me", gpu=2),),
    )
    found = told(facts).holders
    assert [(h.workload, h.queue, h.amount, h.expected_end) for h in found] == [
        ("large", "q", 3000, None),
        ("small", "p", 1000, NOW + 50),
    ]


def test_the_first_set_of_ends_is_named_and_gives_the_expected_start() -> None:
    busy = [running(job(f"b{i}"), "n", range(i, i + 1), NOW + 100 * (i + 1)) for i in range(4)]
    facts = ClusterFacts(
        (gpu_node("n"),), (Queue("q", reserve=0),), running=tuple(busy), waiting=(job("me", gpu=2),)
    )
    found = told(facts)
    assert kinds(found)["ends"] == "it would start when b0, b1 end"
    assert found.start.sure == "predicted"
    assert found.start.at == NOW + 200


def test_a_reservation_is_kept() -> None:
    busy = running(job("b", gpu=4), "n", range(4), NOW + 100)
    found = told(
        ClusterFacts((gpu_node("n"),), (Queue("q"),), running=(busy,), waiting=(job("me"),))
    )
    assert (found.start.sure, found.start.at) == ("reserved", NOW + 100)


def test_a_start_that_nothing_is_known_about_is_unknown() -> None:
    busy = running(job("b", gpu=4), "n", range(4))
    found = told(
        ClusterFacts((gpu_node("n"),), (Queue("q"),), running=(busy,), waiting=(job("me"),))
    )
    assert (found.start.sure, found.start.at) == ("unknown", None)


def test_a_start_says_whether_it_rests_on_a_stated_end_or_on_similar_runs() -> None:
    busy = running(job("b", gpu=4), "n", range(4), NOW + 50)
    facts = ClusterFacts((gpu_node("n"),), (Queue("q"),), running=(busy,), waiting=(job("me"),))
    stated = told(facts).start
    assert (stated.runs, stated.basis) == (("b",), "stated")
    assert stated.rests_on == "b ends by its stated time"
    without_end = dataclasses.replace(busy, expected_end=None)
    snapshot = build(dataclasses.replace(facts, running=(without_end,)))
    assert explain.end_of(snapshot, without_end, NOW) == (None, "")
    assert (
        explain.rests_on(("run a", "run b"), "similar") == "run a and run b end as similar runs did"
    )
    assert explain.rests_on(("run a",), "both").endswith(
        "by its stated time or as similar runs did"
    )
    assert explain.rests_on((), "similar") == "running runs end as similar runs did"
    assert explain.rests_on((), "") == "running runs end when expected"


def test_a_looser_topology_fewer_members_and_a_rack_that_is_too_small() -> None:
    nodes = tuple(gpu_node(f"n{i}", path=("z", f"r{i // 2}")) for i in range(4))
    me = job("me", 4, 4, topology=Topology("rack", required=True))
    found = told(ClusterFacts(nodes, (Queue("q"),), waiting=(me,), levels=("zone", "rack")))
    assert found.verdict is not None
    assert found.verdict.reason is Reason.IMPOSSIBLE
    assert "the largest rack holds 2 even if empty" in found.certificate
    assert kinds(found)["topology"] == "it would start within one zone instead of one rack"
    assert kinds(found)["members"] == "it would start with 2 workers instead of 4"
    assert kinds(found)["devices"] == "it would start with 2 gpu per worker instead of 4"


def test_preferred_is_the_last_way_to_loosen_a_topology() -> None:
    nodes = tuple(gpu_node(f"n{i}", path=(f"r{i}",)) for i in range(2))
    me = job("me", 2, 4, topology=Topology("rack", required=True))
    found = told(ClusterFacts(nodes, (Queue("q"),), waiting=(me,), levels=("rack",)))
    assert kinds(found)["topology"] == "it would start with rack preferred instead of required"


def test_another_model_would_do() -> None:
    nodes = (gpu_node("old"), gpu_node("new", 1, "h100"))
    found = told(ClusterFacts(nodes, (Queue("q"),), waiting=(job("me", 1, 2, ("h100",)),)))
    assert kinds(found)["model"] == "it would start if it accepted a100 besides h100"
    assert kinds(found)["devices"] == "it would start with 1 gpu per worker instead of 2"


@pytest.mark.parametrize(
    ("queues", "message"),
    [
        (
            (Queue("q", limit={"gpu": 1000}),),
            "it would start with 3 gpu more limit in queue q",
        ),
        (
            (Queue("top", limit={"gpu": 2000}), Queue("q", "top", limit={"gpu": 1000})),
            "it would start with 3 gpu more limit in queue q and 2 gpu more limit in queue top",
        ),
    ],
    ids=["limit", "limits-of-two"],
)
def test_the_smallest_quota_that_suffices(queues: tuple[Queue, ...], message: str) -> None:
    me = job("me", gpu=4)
    found = told(ClusterFacts((gpu_node("n"),), queues, waiting=(me,)))
    assert kinds(found)["quota"] == message
    if len(queues) > 1:
        return
    quota = next(change for change in found.fits_if if change.action == "quota")
    for amount, starts in ((quota.amount, True), (quota.amount - 1, False)):
        raised = dataclasses.replace(queues[0], limit={"gpu": 1000 + amount})
        decision = cycle.decide(
            build(ClusterFacts((gpu_node("n"),), (raised,), waiting=(me,))), NOW
        )
        assert bool(decision.placements) is starts


def test_more_guarantee_is_not_advised_where_others_are_guaranteed_the_rest() -> None:
    """What a non-preemptible run lacks is guaranteed to another queue: no guarantee of its own
    takes it from there."""
    me = dataclasses.replace(job("me", gpu=4), preemptible=False)
    for other in ("other", "r"):
        queues = (Queue("q", guarantee={"gpu": 1000}), Queue(other, guarantee={"gpu": 3000}))
        found = told(ClusterFacts((gpu_node("n"),), queues, waiting=(me,)))
        assert "quota" not in kinds(found)


def test_a_node_that_could_be_had() -> None:
    nodes = (gpu_node("here", 1), gpu_node("cloud", ready_in=120.0))
    found = told(ClusterFacts(nodes, (Queue("q"),), waiting=(job("me", gpu=4),)))
    assert kinds(found)["nodes"] == "it would start if cloud were there"


def test_position_counts_the_queue_and_the_whole_cluster() -> None:
    waiting = (
        job("first", gpu=4, submitted=1.0),
        job("me", gpu=4, submitted=2.0),
        job("elsewhere", gpu=4, queue="p"),
    )
    busy = running(job("b", gpu=4, queue="z"), "n", range(4))
    found = told(
        ClusterFacts((gpu_node("n"),), (Queue("q"), Queue("p"), Queue("z")), (busy,), waiting)
    )
    assert (found.position, found.waiting_in_queue, found.turn) == (2, 2, 3)


def test_explaining_changes_nothing() -> None:
    busy = running(job("b", gpu=4), "n", range(4), NOW + 100)
    facts = ClusterFacts(
        (gpu_node("n"),),
        (Queue("q", limit={"gpu": 5000}),),
        (busy,),
        (job("me", gpu=2), job("x", 9)),
    )
    snapshot = build(facts)
    before = repr(cycle.decide(snapshot, NOW))
    for key in ("me", "x"):
        explain.explain(snapshot, key, NOW)
    assert repr(cycle.decide(snapshot, NOW)) == before
    assert snapshot.facts() == facts


def test_a_workload_that_does_not_wait_is_not_explained() -> None:
    with pytest.raises(KeyError):
        told(ClusterFacts((gpu_node("n"),), (Queue("q"),)), "nobody")


def test_workloads_that_must_end_for_a_quota_are_named_too() -> None:
    """The first to end whose share suffices; others in the queue and other queues are not."""
    facts = ClusterFacts(
        (gpu_node("n", 8),),
        (Queue("q", limit={"gpu": 4000}), Queue("p")),
        running=(
            running(job("late", gpu=1), "n", range(1), NOW + 900),
            running(job("soon", gpu=2), "n", range(1, 3), NOW + 60),
            running(job("other", gpu=2, queue="p"), "n", range(3, 5), NOW + 1),
        ),
        waiting=(job("me", gpu=3),),
    )
    found = told(facts)
    assert kinds(found)["ends"] == "it would start when soon ends"
    assert kinds(found)["quota"] == "it would start with 2 gpu more limit in queue q"
    assert (found.start.at, found.start.sure) == (NOW + 60, "reserved")


def test_workloads_without_a_known_end_are_named_without_a_time() -> None:
    facts = ClusterFacts(
        (gpu_node("n"),), (Queue("q"),),
        running=(running(job("forever", gpu=4), "n", range(4)),), waiting=(job("me"),),
    )  # fmt: skip
    found = told(facts)
    assert kinds(found)["ends"] == "it would start when forever ends"
    assert (found.start.at, found.start.sure) == (None, "unknown")


def test_pods_that_others_placed_are_not_waited_for() -> None:
    service = dataclasses.replace(job("pod/x", gpu=4, queue=""), history_key=None)
    facts = ClusterFacts(
        (gpu_node("n"),), (Queue("q"),),
        running=(running(service, "n", range(4)),), waiting=(job("me"),),
    )  # fmt: skip
    assert "ends" not in kinds(told(facts))
