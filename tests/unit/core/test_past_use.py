"""Past use of queues: what counts as excess, and how long (S6 of docs/sharing.md)."""

from __future__ import annotations

import pytest

from windlass.core.fairness import past_use
from windlass.core.model.types import (
    Account,
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import Elapsed, WorkloadGone, apply, build

NOW, HOUR = 1_000_000.0, 3600.0
NODE = Node("n", {"cpu": 64_000}, tuple(Device(f"g{i}", "gpu") for i in range(8)))


def workload(key: str, queue: str, gpus: int) -> Workload:
    return Workload(key, queue, (Role("w", 1, 1, {"cpu": 1}, (DeviceRequest("gpu", gpus),)),))


def runs(key: str, queue: str, first: int, gpus: int, hours: float = 1.0) -> Running:
    grants = tuple(Grant(f"g{i}") for i in range(first, first + gpus))
    pod = PodAssignment("w", 0, "n", grants)
    return Running(workload(key, queue, gpus), (pod,), NOW, expected_end=NOW + hours * HOUR)


def excess(
    queues: list[Queue], running: list[Running], waiting: list[Workload], *, hours: float = 1.0,
    **before: float,
) -> dict[str, float]:  # fmt: skip
    """By queue after so many hours, in hours of the whole cluster."""
    accounts = tuple(Account(name, excess=each * HOUR) for name, each in before.items())
    snapshot = build(
        ClusterFacts((NODE,), tuple(queues), tuple(running), tuple(waiting), accounts=accounts,
              accounted_at=NOW)
    )  # fmt: skip
    apply(snapshot, [Elapsed(NOW + hours * HOUR)])
    return {name: round(each.excess / HOUR, 4) for (name, _), each in snapshot.accounts.items()}


def backlog(*queues: str) -> list[Workload]:
    return [workload(f"{name}-{number}", name, 8) for name in queues for number in range(2)]


def test_the_excess_of_a_queue_that_waits_for_its_share_is_kept_in_full() -> None:
    """Half of it would be forgiven in a day, and be taken again."""
    queues = [Queue("a"), Queue("b")]
    running = [runs("a1", "a", 0, 4), runs("b1", "b", 4, 4)]
    found = excess(queues, running, backlog("a", "b"), hours=24, a=2.0, b=-2.0)
    assert found == {"a": 2.0, "b": -2.0}


def test_the_excess_of_a_queue_without_backlog_halves_in_a_day() -> None:
    queues = [Queue("a"), Queue("b")]
    found = excess(queues, [runs("b1", "b", 4, 4)], [], hours=24, a=2.0, b=-2.0)
    assert found == {"a": 1.0, "b": -1.0}


def test_idle_capacity_is_owed_to_no_queue() -> None:
    """Two of eight GPUs lie idle: the queues are as far ahead and behind as they are of 6."""
    queues = [Queue("a"), Queue("b")]
    running = [runs("a1", "a", 0, 4), runs("b1", "b", 4, 2)]
    assert excess(queues, running, backlog("a", "b")) == {"a": 1 / 8, "b": -1 / 8}


def test_what_a_branch_holds_beyond_its_entitlement_is_no_excess_of_the_queues_below_it() -> None:
    """Branch p holds all eight GPUs and is entitled to four; below it c holds 6 and d 2."""
    queues = [Queue("p"), Queue("s"), Queue("c", parent="p"), Queue("d", parent="p")]
    running = [runs("c1", "c", 0, 6), runs("d1", "d", 6, 2)]
    found = excess(queues, running, backlog("c", "d", "s"))
    assert found == {"p": 0.5, "s": -0.5, "c": 2 / 8, "d": -2 / 8}


def test_a_queue_at_its_limit_owes_nothing_while_a_sibling_cannot_use_its_share() -> None:
    queues = [Queue("a", limit={"gpu": 2000}), Queue("b")]
    running = [runs("a1", "a", 0, 2)]
    assert excess(queues, running, backlog("a", "b"))["a"] == 0.0


def test_a_queue_that_holds_its_guarantee_owes_nothing_for_idle_capacity() -> None:
    queues = [Queue("a", guarantee={"gpu": 4000}), Queue("b")]
    running = [runs("a1", "a", 0, 4), runs("b1", "b", 4, 2)]
    assert excess(queues, running, backlog("a", "b")) == {"a": 0.0, "b": 0.0}


def test_a_small_guarantee_is_no_claim_to_idle_capacity() -> None:
    """A queue would be owed its guarantee at every moment, and at most its part of what is in use:
    over time more than it is entitled to of the mean use."""
    queues = [Queue("a", guarantee={"gpu": 1000}), Queue("b")]
    assert excess(queues, [], backlog("a", "b")) == {"a": 0.0, "b": 0.0}
    found = excess(queues, [runs("b1", "b", 0, 6)], backlog("a", "b"))
    assert found == {"a": -0.375, "b": 0.375}


def test_the_excess_is_bounded() -> None:
    """The workloads of b need what it does not get: it does not save up for ever."""
    queues = [Queue("a"), Queue("b")]
    found = excess(queues, [runs("a1", "a", 0, 8)], backlog("a", "b"), hours=1000)
    most = past_use.MOST_EXCESS / HOUR
    assert found == {"a": most, "b": -most}


@pytest.mark.parametrize(
    ("lengths", "hours"), [((), 1.0), ((0.5,), 1.0), ((2, 10), 4.0), ((4, 900), 15.0)]
)
def test_the_horizon_is_the_mean_length_of_what_runs_over_its_devices(
    lengths: tuple[float, ...], hours: float
) -> None:
    """The first holds six GPUs, the second two; none counts as longer than two days."""
    places = [(0, 6), (6, 2)]
    running = [
        runs(f"r{number}", "a", *places[number], hours=each) for number, each in enumerate(lengths)
    ]
    snapshot = build(ClusterFacts((NODE,), (Queue("a"),), tuple(running)))
    assert snapshot.horizon == hours * HOUR
    for each in running:
        apply(snapshot, [WorkloadGone(each.workload.key)])
    assert snapshot.horizon == HOUR
