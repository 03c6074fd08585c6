"""Quotas of namespaces: nobody starts beyond one, whatever its queue; and which nodes are held
back for a while."""

from __future__ import annotations

import pytest

from windlass.core import cycle, explain, invariants, state
from windlass.core.facts import (
    Constraint,
    Facts,
    Node,
    Nomination,
    Placement,
    Queue,
    Quota,
    Role,
    Running,
    Seat,
    Unit,
)
from windlass.kinds.reasons import Reason

NOW = 1000.0
NODE = Node("n", {"cpu": 64_000})
QUEUES = (Queue("q"), Queue("r"))


def unit(
    key: str, members: int = 1, most: int = 0, namespace: str = "team", queue: str = "q"
) -> Unit:
    role = Role("w", members, most or members, {"cpu": 1000})
    return Unit(key, queue, (role,), namespace=namespace)


def running(key: str, members: int, **more: str) -> Running:
    seats = tuple(Seat("w", index, "n") for index in range(members))
    return Running(unit(key, members, **more), seats, NOW - 1)  # type: ignore[arg-type]


def quota(**hard: int) -> Quota:
    return Quota("team", "compute", hard)


def decided(*waiting: Unit, quotas: tuple[Quota, ...], **more: object) -> cycle.Decision:
    facts = Facts((NODE,), QUEUES, waiting=waiting, quotas=quotas, **more)  # type: ignore[arg-type]
    snapshot = state.build(facts)
    decision = cycle.decide(snapshot, NOW)
    assert list(invariants.broken(snapshot, decision, NOW)) == []
    return decision


def started(decision: cycle.Decision) -> list[str]:
    return [each.unit for each in decision.placements]


@pytest.mark.parametrize("hard", [{"cpu": 4000}, {"pods": 4}])
def test_units_of_all_queues_count_together_and_the_quota_is_named(hard: dict[str, int]) -> None:
    waiting = unit("b", 2, queue="r"), unit("c", 9, namespace="else")
    decision = decided(*waiting, quotas=(quota(**hard),), running=(running("a", 3),))
    assert started(decision) == ["c"]
    (verdict,) = decision.verdicts
    assert (verdict.unit, verdict.reason) == ("b", Reason.WAITING_FOR_QUOTA)
    assert "ResourceQuota team/compute leaves 1" in verdict.message


def test_a_gang_that_could_never_start_frees_nobody_else() -> None:
    low = running("low", 64, namespace="else")
    decision = decided(unit("big", 8), quotas=(quota(cpu=4000),), running=(low,))
    assert not decision.evictions
    assert decision.verdicts[0].reason == Reason.WAITING_FOR_QUOTA


def test_elastic_units_grow_up_to_the_quota() -> None:
    decision = decided(unit("a", 1, most=9), quotas=(quota(pods=3),))
    assert [len(each.seats) for each in decision.placements] == [3]


def test_nominated_room_is_taken_only_within_the_quota() -> None:
    promise = (Nomination("me", (Seat("w", 0, "n"),)),)
    held = running("there", 4)
    waits = decided(unit("me"), quotas=(quota(pods=4),), running=(held,), nominations=promise)
    assert started(waits) == []
    assert started(decided(unit("me"), quotas=(quota(pods=5),), running=(held,))) == ["me"]


def test_what_changed_meanwhile_counts_as_if_it_had_always_been_so() -> None:
    snapshot = state.build(Facts((NODE,), QUEUES, waiting=(unit("late", 2),)))
    state.apply(snapshot, [state.Holds(running("a", 3)), state.QuotasPut((quota(pods=4),))])
    assert started(cycle.decide(snapshot, NOW)) == []
    assert state.build(snapshot.facts()).spaces.used == snapshot.spaces.used
    state.apply(snapshot, [state.NodePut(Node("m", {"cpu": 1000})), state.Gone("a")])
    assert started(cycle.decide(snapshot, NOW)) == ["late"]
    assert snapshot.spaces.used == {"team": {"cpu": 0, "pods": 0}}


def test_a_node_that_is_held_back_takes_nobody_yet_nothing_is_impossible() -> None:
    shape = Role("w", 1, 1, {"cpu": 1000}, constraint=Constraint(not_now=frozenset(("n",))))
    decision = decided(Unit("a", "q", (shape,)), unit("b"), quotas=())
    assert started(decision) == ["b"]
    assert decision.verdicts[0].reason == Reason.WAITING_FOR_CAPACITY


def test_a_decision_that_broke_a_quota_would_be_noticed() -> None:
    snapshot = state.build(Facts((NODE,), QUEUES, waiting=(unit("a", 3),), quotas=(quota(pods=2),)))
    seats = tuple(Seat("w", index, "n") for index in range(3))
    wrong = cycle.Decision(placements=(Placement("a", seats),))
    (found,) = invariants.broken(snapshot, wrong, NOW)
    assert "its quota compute is 2" in found[1]


@pytest.mark.parametrize("hard", [{"cpu": 4000}, {"pods": 4}])
def test_who_waits_for_its_namespaces_quota_is_explained(hard: dict[str, int]) -> None:
    """Those of its own namespace hold what is missing and must end; no queue could help."""
    busy = running("a", 3), running("stranger", 9, namespace="else")
    facts = Facts((NODE,), QUEUES, busy, (unit("me", 2, queue="r"),), quotas=(quota(**hard),))
    found = explain.explain(state.build(facts), "me", NOW)
    assert found.verdict is not None
    assert found.verdict.reason is Reason.WAITING_FOR_QUOTA
    assert [holder.unit for holder in found.holders] == ["a"]
    assert [(change.kind, change.names) for change in found.fits_if] == [
        ("members", ("w",)),
        ("ends", ("a",)),
    ]
