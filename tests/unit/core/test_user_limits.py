"""Limits per user of a queue: they bind that user with exact numbers, and delay no other user."""

from __future__ import annotations

import dataclasses

import pytest

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.invariants import invariants
from windlass.core.model import validation
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Node,
    Nomination,
    PodAssignment,
    Queue,
    ReservationRecord,
    Role,
    Running,
    UserLimit,
    UserLimits,
    Workload,
)
from windlass.core.snapshot.snapshot import (
    QueuePut,
    RunningPut,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.kinds.reasons import Reason

NOW = 1000.0
NODE = Node("n", {"cpu": 64_000})


def limited(**limits: object) -> Queue:
    return Queue("q", user_limits=UserLimits(**limits))


def workload(key: str, cpus: int = 1, user: str = "ada", **more: object) -> Workload:
    role = Role("w", 1, 1, {"cpu": 1000 * cpus})
    return Workload(key, **{"queue": "q", "roles": (role,), "user": user, **more})


def running(key: str, cpus: int = 1, user: str = "ada", **more: object) -> Running:
    return Running(workload(key, cpus, user, **more), (PodAssignment("w", 0, "n"),), NOW - 1)


def decided(*waiting: Workload, queues: tuple[Queue, ...], **more: object) -> Decision:
    facts = ClusterFacts(**{"nodes": (NODE,), "queues": queues, "waiting": waiting, **more})
    snapshot = build(facts)
    decision = cycle.decide(snapshot, NOW)
    assert list(invariants.broken(snapshot, decision, NOW)) == []
    return decision


def started(decision: Decision) -> list[str]:
    return [each.workload for each in decision.placements]


def why(decision: Decision) -> dict[str, str]:
    return {each.workload: each.message for each in decision.verdicts}


def test_amounts_bind_one_user_and_the_verdict_has_exact_numbers() -> None:
    decision = decided(
        workload("a", 3), workload("b", 3, "bob"), workload("c", 2),
        queues=(limited(resources={"cpu": 6000}),), running=(running("r", 4),),
    )  # fmt: skip
    assert started(decision) == ["b", "c"]
    (verdict,) = decision.verdicts
    assert verdict.reason is Reason.WAITING_FOR_QUOTA
    assert (
        verdict.message == "needs 3 cpu; user ada may hold 2 cpu more of at most 6 cpu in queue q"
    )
    assert (verdict.user, verdict.queue, verdict.resource) == ("ada", "q", "cpu")
    assert verdict.deficit == 1000


def test_running_counts_workloads_however_large() -> None:
    decision = decided(
        workload("a"), workload("b"), workload("c", user="bob"), queues=(limited(running=2),),
        running=(running("r", 9),),
    )  # fmt: skip
    assert started(decision) == ["a", "c"]
    assert why(decision) == {"b": "user ada may run 2 workloads at a time in queue q"}


def test_submitted_admits_the_oldest_and_counts_running_workloads() -> None:
    waiting = [workload(key, submitted=float(at)) for at, key in enumerate("abc")]
    decision = decided(*reversed(waiting), queues=(limited(submitted=2),), running=(running("r"),))
    assert started(decision) == ["a"]
    assert set(why(decision)) == {"b", "c"}
    assert why(decision)["b"] == (
        "user ada may have 2 workloads submitted in queue q, and has as many that were submitted "
        "before this one and have not ended"
    )


def test_an_entry_for_a_user_changes_only_what_it_names() -> None:
    limits = limited(resources={"cpu": 2000}, running=1, users={"ada": UserLimit({"cpu": 5000})})
    decision = decided(
        workload("a", 5),
        workload("b", 3, "bob"),
        workload("c", 1),
        workload("d", 2, "bob"),
        queues=(limits,),
    )
    assert started(decision) == ["a", "d"]
    assert "5 cpu" in why(decision)["c"] or "run 1 workload at a time" in why(decision)["c"]
    assert "at most 2 cpu" in why(decision)["b"]


def test_a_limit_of_a_parent_counts_the_queues_below_it() -> None:
    queues = (
        Queue("top", user_limits=UserLimits({"cpu": 4000})), Queue("q", "top"), Queue("r", "top"),
    )  # fmt: skip
    decision = decided(
        workload("a", 3), workload("b", 3, user="bob"), queues=queues,
        running=(running("r1", 2, queue="r"),),
    )  # fmt: skip
    assert started(decision) == ["b"]
    assert why(decision)["a"].endswith("in queue top")


def test_a_user_limit_blocks_only_the_user_in_a_strict_queue() -> None:
    strict = dataclasses.replace(limited(resources={"cpu": 4000}), strict=True)
    decision = decided(
        workload("a", 5, submitted=1.0), workload("b", submitted=2.0),
        workload("c", 1, "bob", submitted=3.0), queues=(strict,),
    )  # fmt: skip
    assert started(decision) == ["c"]
    assert "strict" in why(decision)["b"]
    assert "same user" in why(decision)["b"]


def test_without_strict_a_smaller_workload_of_the_user_passes() -> None:
    decision = decided(
        workload("a", 5, submitted=1.0), workload("b", 1, submitted=2.0),
        queues=(limited(resources={"cpu": 4000}),),
    )  # fmt: skip
    assert started(decision) == ["b"]


def test_a_verdict_on_one_user_does_not_apply_to_another_of_the_same_class() -> None:
    """All of one shape: equivalence caches know the shape and not the user."""
    waiting = [
        workload(f"u{i:02}", 1, "ada" if i % 2 else "bob", submitted=float(i)) for i in range(20)
    ]
    decision = decided(*waiting, queues=(limited(running=3),))
    users = [each.user for each in waiting if each.key in started(decision)]
    assert sorted(users) == ["ada"] * 3 + ["bob"] * 3


def test_nothing_is_preempted_for_a_workload_that_waits_for_its_users_limit() -> None:
    full = dataclasses.replace(NODE, allocatable={"cpu": 4000})
    decision = decided(
        workload("a", 2, priority=90), queues=(limited(resources={"cpu": 2000}),), nodes=(full,),
        running=(running("mine", 2), running("other", 2, "bob", priority=10)),
    )  # fmt: skip
    assert decision.evictions == ()
    assert decision.nominations == ()


def test_a_nomination_is_taken_up_only_within_the_limit() -> None:
    decision = decided(
        workload("a", 2), queues=(limited(resources={"cpu": 2000}),), running=(running("r", 1),),
        nominations=(Nomination("a", (PodAssignment("w", 0, "n"),)),),
    )  # fmt: skip
    assert started(decision) == []
    assert decision.nominations == ()


def test_an_elastic_workload_grows_up_to_its_users_limit() -> None:
    role = Role("w", 1, 8, {"cpu": 1000})
    grows = Workload("a", "q", (role,), user="ada")
    decision = decided(grows, queues=(limited(resources={"cpu": 3000}),))
    (placement,) = decision.placements
    assert len(placement.pods) == 3


def test_a_gang_that_lost_pods_is_repaired_only_within_the_limit() -> None:
    role = Role("w", 3, 3, {"cpu": 1000})
    broken = Running(
        Workload("gang", "q", (role,), user="ada"), (PodAssignment("w", 0, "n"),), NOW - 9
    )
    for most, pods in ((4000, 2), (3000, 0)):
        decision = decided(
            queues=(limited(resources={"cpu": most}),), running=(broken, running("r", 1)),
        )  # fmt: skip
        assert sum(len(each.pods) for each in decision.placements) == pods


def test_a_limit_on_a_model_counts_all_workloads_that_may_get_it() -> None:
    gpus = tuple(Device(f"g{i}", "gpu", "h100" if i < 2 else "a100") for i in range(4))
    node = Node("n", {"cpu": 9000}, gpus)

    def asks(key: str, *models: str) -> Workload:
        role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", models=models),))
        return Workload(key, "q", (role,), user="ada")

    decision = decided(
        asks("any"), asks("old", "a100"), asks("new", "h100"), nodes=(node,),
        queues=(limited(resources={"gpu/h100": 0}),),
    )  # fmt: skip
    assert started(decision) == ["old"]


def test_a_user_does_not_delay_a_reservation_of_the_same_user() -> None:
    """`small` would end after `big` is due, and both do not fit in the limit."""
    limits = dataclasses.replace(limited(resources={"cpu": 8000}), reserve=1)
    node = dataclasses.replace(NODE, allocatable={"cpu": 12_000})
    big = workload("big", 8, submitted=1.0, expected=100.0)
    busy = dataclasses.replace(running("busy", 8, "bob"), expected_end=NOW + 50)
    reserved = (ReservationRecord("big", NOW + 50, (PodAssignment("w", 0, "n"),)),)
    for expected, starts in ((500.0, False), (20.0, True)):
        small = workload("small", 1, submitted=2.0, expected=expected)
        decision = decided(
            big, small, queues=(limits,), nodes=(node,), running=(busy,), reservations=reserved
        )
        assert (started(decision) == ["small"]) is starts
        assert [each.workload for each in decision.reservations] == ["big"]


def test_a_reservation_that_is_due_goes_if_the_users_limit_forbids_the_start() -> None:
    limits = dataclasses.replace(limited(running=1), reserve=1)
    node = dataclasses.replace(NODE, allocatable={"cpu": 4000})
    reserved = (ReservationRecord("a", NOW - 1, (PodAssignment("w", 0, "n"),)),)
    decision = decided(
        workload("a", 3), workload("b", 3, "bob", submitted=1.0), queues=(limits,), nodes=(node,),
        running=(running("r", 1),), reservations=reserved,
    )  # fmt: skip
    assert started(decision) == ["b"]
    assert decision.reservations == ()


def test_why_names_the_users_own_workloads_and_what_would_help() -> None:
    facts = ClusterFacts(
        (NODE,), (limited(resources={"cpu": 4000}),), waiting=(workload("a", 3),),
        running=(running("mine", 3), running("other", 9, "bob")),
    )  # fmt: skip
    found = explain.explain(build(facts), "a", NOW)
    assert [holder.workload for holder in found.holders] == ["mine"]
    messages = [change.message for change in found.fits_if]
    assert "it would start with 2 cpu more user limit in queue q" in messages
    assert "it would start when mine ends" in messages


def test_pods_that_no_workload_covers_count_with_what_they_hold_only() -> None:
    left_over = running("pod/x", 2, history_key=None)
    decision = decided(
        workload("a", 2),
        queues=(limited(resources={"cpu": 4000}, running=1),),
        running=(left_over,),
    )
    assert started(decision) == ["a"]


def test_demand_beyond_the_limits_of_users_entitles_to_nothing() -> None:
    """ada asks for all 64 and may have 16: the other queue is entitled to the rest."""
    queues = (limited(resources={"cpu": 16_000}), Queue("other"))
    waiting = (workload("a", 64), workload("b", 64, queue="other", user="bob"))
    snapshot = build(ClusterFacts((NODE,), queues, waiting=waiting))
    found = snapshot.entitlements()
    assert found["q"] == pytest.approx(0.25)
    assert found["other"] == pytest.approx(0.75)


def test_the_sums_are_the_same_event_by_event() -> None:
    queues = (limited(resources={"cpu": 4000}, running=3, submitted=4),)
    facts = ClusterFacts((NODE,), (Queue("q"),), waiting=(workload("a"), workload("b")))
    snapshot = build(facts)
    apply(snapshot, [QueuePut(queues[0]), WaitingPut(workload("c"))])
    apply(snapshot, [RunningPut(running("a", 3)), WorkloadGone("b")])
    fresh = build(snapshot.facts())
    assert snapshot.user_quotas.used == fresh.user_quotas.used
    assert snapshot.user_quotas._waiting == fresh.user_quotas._waiting == {("q", "ada"): 1}
    apply(snapshot, [WorkloadGone("a"), WorkloadGone("c")])
    assert snapshot.user_quotas.used == {}
    assert snapshot.user_quotas._waiting == {}


@pytest.mark.parametrize(
    "limits", [{"running": -1}, {"resources": {"cpu": 1.5}}, {"users": {"ada": UserLimit({}, -2)}}]
)
def test_bad_limits_are_refused_with_the_queue_named(limits: dict[str, object]) -> None:
    with pytest.raises(validation.BadFacts, match="queue q: limits of"):
        build(ClusterFacts(queues=(limited(**limits),)))
