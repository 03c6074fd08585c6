"""Quotas of namespaces: no workload starts beyond one, whatever its queue; and which nodes are held
back for a while."""

from __future__ import annotations

import pytest

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.invariants import invariants
from windlass.core.model.types import (
    ClusterFacts,
    Constraint,
    Node,
    Nomination,
    Placement,
    PodAssignment,
    Queue,
    Quota,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import (
    NodePut,
    QuotasPut,
    RunningPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.kinds.reasons import Reason

NOW = 1000.0
NODE = Node("n", {"cpu": 64_000})
QUEUES = (Queue("q"), Queue("r"))


def workload(
    key: str, members: int = 1, most: int = 0, namespace: str = "team", queue: str = "q"
) -> Workload:
    role = Role("w", members, most or members, {"cpu": 1000})
    return Workload(key, queue, (role,), namespace=namespace)


def running(key: str, members: int, **more: str) -> Running:
    pods = tuple(PodAssignment("w", index, "n") for index in range(members))
    return Running(workload(key, members, **more), pods, NOW - 1)


def quota(**hard: int) -> Quota:
    return Quota("team", "compute", hard)


def decided(*waiting: Workload, quotas: tuple[Quota, ...], **more: object) -> cycle.Decision:
    facts = ClusterFacts((NODE,), QUEUES, waiting=waiting, quotas=quotas, **more)
    snapshot = build(facts)
    decision = cycle.decide(snapshot, NOW)
    assert list(invariants.broken(snapshot, decision, NOW)) == []
    return decision


def started(decision: cycle.Decision) -> list[str]:
    return [each.workload for each in decision.placements]


@pytest.mark.parametrize("hard", [{"cpu": 4000}, {"pods": 4}])
def test_workloads_of_all_queues_count_together_and_the_quota_is_named(
    hard: dict[str, int],
) -> None:
    waiting = workload("b", 2, queue="r"), workload("c", 9, namespace="else")
    decision = decided(*waiting, quotas=(quota(**hard),), running=(running("a", 3),))
    assert started(decision) == ["c"]
    (verdict,) = decision.verdicts
    assert (verdict.workload, verdict.reason) == ("b", Reason.WAITING_FOR_QUOTA)
    assert "ResourceQuota team/compute leaves 1" in verdict.message


def test_a_gang_that_could_never_start_frees_no_capacity_for_others() -> None:
    low = running("low", 64, namespace="else")
    decision = decided(workload("big", 8), quotas=(quota(cpu=4000),), running=(low,))
    assert not decision.evictions
    assert decision.verdicts[0].reason == Reason.WAITING_FOR_QUOTA


def test_elastic_workloads_grow_up_to_the_quota() -> None:
    decision = decided(workload("a", 1, most=9), quotas=(quota(pods=3),))
    assert [len(each.pods) for each in decision.placements] == [3]


def test_nominated_capacity_is_taken_only_within_the_quota() -> None:
    nominated = (Nomination("me", (PodAssignment("w", 0, "n"),)),)
    there, both = running("there", 4), (workload("a"), workload("me"))
    waits = decided(*both, quotas=(quota(pods=4),), running=(there,), nominations=nominated)
    assert started(waits) == []
    assert [each.workload for each in waits.nominations] == ["me"], "it keeps what is nominated"
    starts = decided(*both, quotas=(quota(pods=5),), running=(there,), nominations=nominated)
    assert started(starts) == ["me"], "the quota has one pod left, and `a` comes first otherwise"
    without = decided(*both, quotas=(quota(pods=5),), running=(there,))
    assert started(without) == ["a"]


def test_what_changed_meanwhile_counts_as_if_it_had_always_been_so() -> None:
    snapshot = build(ClusterFacts((NODE,), QUEUES, waiting=(workload("late", 2),)))
    apply(snapshot, [RunningPut(running("a", 3)), QuotasPut((quota(pods=4),))])
    assert started(cycle.decide(snapshot, NOW)) == []
    assert build(snapshot.facts()).namespace_quotas.used == snapshot.namespace_quotas.used
    apply(snapshot, [NodePut(Node("m", {"cpu": 1000})), WorkloadGone("a")])
    assert started(cycle.decide(snapshot, NOW)) == ["late"]
    assert snapshot.namespace_quotas.used == {"team": {"cpu": 0, "pods": 0}}


def test_a_node_that_is_held_back_takes_no_pod_but_nothing_is_impossible() -> None:
    shape = Role("w", 1, 1, {"cpu": 1000}, constraint=Constraint(not_now=frozenset(("n",))))
    decision = decided(Workload("a", "q", (shape,)), workload("b"), quotas=())
    assert started(decision) == ["b"]
    assert decision.verdicts[0].reason == Reason.WAITING_FOR_CAPACITY


def test_a_decision_that_broke_a_quota_would_be_noticed() -> None:
    snapshot = build(
        ClusterFacts((NODE,), QUEUES, waiting=(workload("a", 3),), quotas=(quota(pods=2),))
    )
    pods = tuple(PodAssignment("w", index, "n") for index in range(3))
    wrong = cycle.Decision(placements=(Placement("a", pods),))
    (found,) = invariants.broken(snapshot, wrong, NOW)
    assert "its quota compute is 2" in found[1]


@pytest.mark.parametrize("hard", [{"cpu": 4000}, {"pods": 4}])
def test_a_workload_that_waits_for_its_namespaces_quota_is_explained(hard: dict[str, int]) -> None:
    """Those of its own namespace hold what is missing and must end; no queue could help."""
    busy = running("a", 3), running("stranger", 9, namespace="else")
    facts = ClusterFacts(
        (NODE,), QUEUES, busy, (workload("me", 2, queue="r"),), quotas=(quota(**hard),)
    )
    found = explain.explain(build(facts), "me", NOW)
    assert found.verdict is not None
    assert found.verdict.reason is Reason.WAITING_FOR_QUOTA
    assert [holder.workload for holder in found.holders] == ["a"]
    assert [(change.action, change.names) for change in found.fits_if] == [
        ("members", ("w",)),
        ("ends", ("a",)),
    ]
