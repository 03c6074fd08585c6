"""Turns of users: by the dominant share of what they hold together, and by what they have had."""

from __future__ import annotations

import pytest

from windlass.control.explain import shares
from windlass.core.cycle import cycle
from windlass.core.fairness import accounts, past_use
from windlass.core.model.types import (
    Account,
    ClusterFacts,
    Decision,
    Node,
    PodAssignment,
    Queue,
    ReservationRecord,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import Elapsed, Snapshot, apply, build
from windlass.kinds.reasons import Reason

NOW = 1000.0
HOUR = 3600.0
GIB = 1 << 30
FAIR = Queue("q", user_fair=True)


def workload(key: str, user: str, cpus: int = 1, memory: int = 0, **more: object) -> Workload:
    role = Role("w", 1, 1, {"cpu": 1000 * cpus, "memory": GIB * memory})
    return Workload(key, "q", (role,), user=user, **more)


def running(key: str, user: str, cpus: int = 1, memory: int = 0, node: str = "n") -> Running:
    return Running(workload(key, user, cpus, memory), (PodAssignment("w", 0, node),), NOW - 1)


def world(cpus: int = 8, memory: int = 8, **facts: object) -> Snapshot:
    node = Node("n", {"cpu": 1000 * cpus, "memory": GIB * memory})
    return build(ClusterFacts(**{"nodes": (node,), "queues": (FAIR,), **facts}))


def starts(decision: Decision) -> list[str]:
    return [placement.workload for placement in decision.placements]


def test_the_dominant_part_of_the_sums_counts_not_the_sum_of_dominant_parts() -> None:
    """ada holds 3 of 8 cpu and 3 of 8 GiB in two workloads: a share of 3/8, not of 6/8."""
    held = (running("a1", "ada", 3, 0), running("a2", "ada", 0, 3), running("b1", "bob", 4, 4))
    snapshot = world(running=held, waiting=(workload("a", "ada"), workload("b", "bob")))
    found = snapshot.user_shares.shares(snapshot.tree, snapshot.accounts, past_use.HORIZON)
    assert found == {("q", "ada"): 375_000, ("q", "bob"): 500_000}
    assert starts(cycle.decide(snapshot, NOW)) == ["a"]


def test_a_user_who_has_used_more_comes_later() -> None:
    waiting = (workload("a", "ada", 8, submitted=1.0), workload("b", "bob", 8, submitted=2.0))
    past = (Account("q", "ada", 900.0, 900.0), Account("q", "bob", -900.0, 0.0))
    assert starts(cycle.decide(world(waiting=waiting), NOW)) == ["a"]
    assert starts(cycle.decide(world(waiting=waiting, accounts=past), NOW)) == ["b"]
    forgetful = (Queue("q", user_fair=True, half_life=0.0),)
    kept = world(waiting=waiting, accounts=past, queues=forgetful)
    assert starts(cycle.decide(kept, NOW)) == ["a"], "past use does not count"


def test_users_are_entitled_to_equal_parts_of_what_the_queue_holds() -> None:
    """ada holds 6 of 8 for an hour, bob 2 and wants more, cleo wants 1: 1 for her, 3.5 each."""
    held = (running("a1", "ada", 6), running("b1", "bob", 2))
    waiting = (workload("b2", "bob", 8), workload("c1", "cleo", 1))
    snapshot = world(running=held, waiting=waiting, accounted_at=NOW)
    apply(snapshot, [Elapsed(NOW + HOUR)])
    found = {user: account.excess / HOUR for (_, user), account in snapshot.accounts.items()}
    assert found == {
        "ada": pytest.approx(2.5 / 8, rel=0.02), "bob": pytest.approx(-1.5 / 8, rel=0.02),
        "cleo": pytest.approx(-1 / 8, rel=0.02),
    }  # fmt: skip


def test_a_user_alone_owes_nothing_for_capacity_without_other_demand() -> None:
    snapshot = world(running=(running("a1", "ada", 8),), accounted_at=NOW)
    apply(snapshot, [Elapsed(NOW + HOUR)])
    assert snapshot.accounts["q", "ada"].excess == pytest.approx(0.0)


def test_accounts_of_idle_users_go_once_they_count_for_nothing() -> None:
    users = [Account("q", f"u{i:04}", 0.001 if i % 2 else 50.0 + i) for i in range(1400)]
    snapshot = world(accounts=tuple(users), accounted_at=NOW)
    apply(snapshot, [Elapsed(NOW + 1)])
    assert len(snapshot.accounts) == accounts.MOST_IDLE
    assert all(account.excess > 50 for account in snapshot.accounts.values())


def test_a_user_with_less_usage_reserves_beside_one_with_more() -> None:
    """ada's reservation is kept and does not take bob's."""
    held = tuple(running(f"a{i}", "ada", 2) for i in range(3))
    waiting = (workload("next", "ada", 3, expected=60.0), workload("b", "bob", 8, expected=60.0))
    ends = tuple(Running(r.workload, r.pods, r.started, NOW + 100) for r in held)
    given = (ReservationRecord("next", NOW + 100, (PodAssignment("w", 0, "n"),)),)
    snapshot = world(running=ends, waiting=waiting, reservations=given)
    found = {each.workload for each in cycle.decide(snapshot, NOW).reservations}
    assert found == {"next", "b"}


def test_a_user_whose_claim_is_used_up_waits_while_another_waits_below() -> None:
    """2 of 8 are free; bob wants all 8 at once, and ada would keep the node in pieces."""
    held = tuple(running(f"a{i}", "ada", 2) for i in range(3))
    waiting = (workload("more", "ada", 2), workload("b", "bob", 8))
    far = 2 * past_use.HORIZON
    past = (Account("q", "ada", far, far), Account("q", "bob", -far, 0.0))
    told = {
        each.workload: each
        for each in cycle.decide(world(running=held, waiting=waiting), NOW).verdicts
    }
    assert set(told) == {"b"}, "without past use ada may"
    snapshot = world(running=held, waiting=waiting, accounts=past)
    decision = cycle.decide(snapshot, NOW)
    told = {each.workload: each for each in decision.verdicts}
    assert told["more"].reason is Reason.WAITING_FOR_SHARE
    assert told["more"].message.startswith("user ada used more than an equal share of queue q")
    assert decision.wake_at is not None
    huge = world(running=held, waiting=(*waiting, workload("huge", "ada", 64)), accounts=past)
    found = {each.workload: each.reason for each in cycle.decide(huge, NOW).verdicts}
    assert found["huge"] is Reason.IMPOSSIBLE, "no share that evens out helps it"
    elsewhere = Node("m", {"cpu": 2000})  # bob cannot use it
    both = (Node("n", {"cpu": 8000, "memory": GIB}), elsewhere)
    snapshot = build(ClusterFacts(both, (FAIR,), held, waiting, accounts=past))
    assert starts(cycle.decide(snapshot, NOW)) == ["more"]


def test_users_see_hours_of_the_queues_dominant_resource() -> None:
    accounts = (
        Account("q", "", 1800.0, 3600.0), Account("q", "ada", -900.0, 10.0),
        Account("r", "", -1800.0, 0.0),
    )  # fmt: skip
    queues = (FAIR, Queue("r", half_life=HOUR), Queue("s", half_life=0.0))
    snapshot = world(queues=queues, accounts=accounts, running=(running("a1", "ada", 4),))
    found = shares.of_queues(snapshot)
    assert found["q"].sentence == "ahead of its share by 4.0 cpu-hours"
    assert (found["r"].sentence, found["s"].sentence) == ("", "")
    assert shares.of_users(snapshot, "q")["ada"].sentence == "behind its share by 2.0 cpu-hours"
    assert shares.of_user(snapshot, "r", "ada") is None
    words = [shares.half_life_text(each) for each in queues]
    assert words[1:] == ["all use counts, halved in 1 h", "past use does not count"]
