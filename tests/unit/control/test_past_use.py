"""Past use in Queue.status: what is written, how often, and that a restart goes on from there."""

from __future__ import annotations

import pytest

from tests.unit.control import build
from windlass.control.convert import past_use, run_workloads
from windlass.control.scheduler.cache import cache
from windlass.control.scheduler.status import queue_status
from windlass.core.model import types
from windlass.core.snapshot import snapshot as snapshot_module
from windlass.kinds import codec
from windlass.kinds.types import queue
from windlass.kinds.values import times

NOW = 1767261600.0
HOUR = 3600.0


def made(name: str, account: queue.QueueAccount | None = None, **spec: object) -> queue.Queue:
    value = {"metadata": {"name": name, "generation": 1}, "spec": spec}
    found = codec.from_dict(queue.Queue, value)
    found.status.account = account
    return found


def moment(seconds: float) -> str:
    return times.seconds(times.from_unix(seconds))


def account(
    at: float, excess: float = 0.0, usage: float = 0.0, **users: float
) -> queue.QueueAccount:
    listed = {name: queue.UserAccount(each, each) for name, each in users.items()}
    return queue.QueueAccount(excess, usage, at=moment(at), users=listed or None)


def snapshot(
    *listed: types.Account, at: float = NOW, **queues: types.Queue
) -> snapshot_module.Snapshot:
    named = tuple(queues.values()) or (types.Queue("a"), types.Queue("b"))
    return snapshot_module.build(types.ClusterFacts(queues=named, accounts=listed, accounted_at=at))


def test_what_is_written_is_read_again() -> None:
    fair = types.Queue("a", user_fair=True)
    listed = (
        types.Account("a", "", 120.5, 300.25), types.Account("a", "ada", -7.5, 2.0),
        types.Account("b", "", -120.5, 0.0),
    )  # fmt: skip
    written = past_use.write(snapshot(*listed, a=fair, b=types.Queue("b")))
    found, at = past_use.read([made(name, each) for name, each in written.items()])
    assert (found, at) == (listed, NOW)


def test_an_account_that_was_written_earlier_decays_until_the_latest() -> None:
    """A day is the half-life of the excess."""
    early, late = made("a", account(NOW - 24 * HOUR, 100.0)), made("b", account(NOW, 8.0))
    found, at = past_use.read([early, late])
    assert at == NOW
    assert {each.queue: each.excess for each in found} == {"a": pytest.approx(50.0), "b": 8.0}


def test_queues_that_never_used_anything_have_none() -> None:
    assert past_use.write(snapshot(types.Account("a"), types.Account("b", "", 1.0))).keys() == {"b"}


def test_only_the_users_with_the_most_are_written() -> None:
    users = [types.Account("a", f"u{i:03}", float(i), float(i)) for i in range(1, 301)]
    written = past_use.write(snapshot(*users, a=types.Queue("a", user_fair=True)))["a"].users or {}
    assert len(written) == past_use.MOST_USERS
    assert set(written) == {f"u{i:03}" for i in range(201, 301)}


@pytest.mark.parametrize(
    ("seconds", "excess", "due"),
    [(29.0, 7200.0, False), (31.0, 7200.0, True), (31.0, 101.0, False), (-5.0, 7200.0, True)],
)
def test_an_account_alone_is_written_when_it_matters_and_not_too_often(
    seconds: float, excess: float, due: bool
) -> None:
    known = made("a", account(NOW, 100.0))
    assert past_use.is_due(known, account(NOW + seconds, excess)) is due


def test_an_account_that_only_decays_is_not_written_again() -> None:
    known = made("a", account(NOW, 1000.0))
    kept = 0.5 ** (HOUR / (24 * HOUR))
    assert not past_use.is_due(known, account(NOW + HOUR, 1000.0 * kept))


def test_past_use_of_a_user_is_reason_enough() -> None:
    known = made("a", account(NOW, ada=10.0), userFair=True)
    assert past_use.is_due(known, account(NOW + 60, ada=100.0))
    assert past_use.is_due(known, account(NOW + 60, ada=10.0, bob=-90.0))


def test_the_status_is_not_written_for_past_use_before_it_is_due() -> None:
    known = made("a", account(NOW, 100.0))
    known.status.observed_generation = 1
    known.status.conditions = []
    now = times.from_unix(NOW)

    def status(at: float) -> queue.QueueStatus:
        return queue.QueueStatus(
            used={}, borrowed={}, lent={}, share=0.0, entitlement=0.5,
            account=account(at, 5000.0), conditions=[],
        )  # fmt: skip

    known.status = queue.QueueStatus(
        observed_generation=1, used={}, borrowed={}, lent={}, share=0.0, entitlement=0.25,
        account=known.status.account, conditions=[],
    )  # fmt: skip
    assert queue_status.changes(known, status(NOW + 5), now) == {}
    later = queue_status.changes(known, status(NOW + 40), now)
    assert later.keys() == {"entitlement", "account"}
    assert later["account"]["excess"] == 5000.0


def test_the_patch_removes_users_that_are_no_longer_listed() -> None:
    patch = past_use.patch(account(NOW, ada=1.0, bob=2.0), account(NOW, ada=3.0))
    assert patch is not None
    assert patch["users"] == {"ada": {"excess": 3.0, "usage": 3.0}, "bob": None}


# --- the picture ----------------------------------------------------------------------------------


def seen(*listed: queue.Queue, follow: bool = False) -> cache.SchedulerCache:
    found = cache.SchedulerCache(follow_accounts=follow)
    found.on_node("ADDED", None, build.node("n", cpu="8"))
    for each in listed:
        found.on_queue("ADDED", None, each)
    return found


def test_a_new_leader_goes_on_from_what_is_written() -> None:
    found = seen(made("a", account(NOW - 10, 720.0)), made("b", account(NOW - 10, -720.0)))
    known = found.apply_changes(found.drain_changes(NOW))
    assert known.accounted_at == NOW
    assert known.accounts["a", ""].excess == pytest.approx(720.0, rel=1e-3)
    assert known.tree.share("a") > 0 > known.tree.share("b")


def test_time_is_counted_before_what_happened_at_its_end() -> None:
    """A Run holds all of the node for an hour while the other queue wants all of it."""
    found = seen(made("a"), made("b"))
    held, waits = (
        build.in_phase(build.a_run(name, build.role(cpu="8"), queue=name), phase)
        for name, phase in (("a", "Running"), ("b", "Queued"))
    )
    build.assigned(held, node="n")
    found.on_run("ADDED", None, held)
    found.on_run("ADDED", None, waits)
    found.apply_changes(found.drain_changes(NOW))
    found.on_run("DELETED", held, None)
    known = found.apply_changes(found.drain_changes(NOW + HOUR))
    assert known.accounts["a", ""].excess == pytest.approx(HOUR / 2, rel=0.05)
    assert known.accounts["b", ""].excess == pytest.approx(-HOUR / 2, rel=0.05)


def test_a_read_only_cache_follows_what_the_scheduler_writes() -> None:
    for follow, expected in ((True, 500.0), (False, 100.0)):
        before = made("a", account(NOW, 100.0))
        found = seen(before, made("b"), follow=follow)
        found.apply_changes(found.drain_changes(NOW))
        found.on_queue("MODIFIED", before, made("a", account(NOW + 1, 500.0)))
        known = found.apply_changes(found.drain_changes(NOW + 1))
        assert known.accounts["a", ""].excess == pytest.approx(expected, rel=1e-3)


# --- the fields of a queue ------------------------------------------------------------------------


def test_the_fields_of_a_queue_are_what_the_core_decides_by() -> None:
    limits = {
        "resources": {"gpu": 4, "memory": "2Gi"}, "running": 2,
        "users": {"ada": {"resources": {"gpu": "500m"}, "submitted": 9}},
    }  # fmt: skip
    found = run_workloads.read_queue(made("a", halfLife="7d", userFair=True, userLimits=limits))
    assert found.half_life == 7 * 24 * HOUR
    assert found.user_fair
    assert found.user_limits == types.UserLimits(
        {"gpu": 4000, "memory": 2 << 30}, 2, None,
        users={"ada": types.UserLimit({"gpu": 500}, None, 9)},
    )  # fmt: skip
    assert run_workloads.read_queue(made("a", halfLife="0s")).half_life == 0
    assert run_workloads.read_queue(made("a")).half_life is None
