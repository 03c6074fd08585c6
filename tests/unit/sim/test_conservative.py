"""The reference that worst head waits are compared with: textbook conservative backfill."""

from __future__ import annotations

import random

import pytest

from bench import conservative
from bench.conservative import Rigid
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    Queue,
    Role,
    Workload,
)
from windlass.sim import engine
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import Job, Scenario

HOUR = 3600.0


def test_a_later_workload_passes_only_where_it_delays_no_earlier_one() -> None:
    jobs = [
        Rigid(0, 1, 6, 10), Rigid(1, 1, 8, 5), Rigid(2, 1, 2, 8), Rigid(3, 1, 2, 9),
        Rigid(4, 1, 4, 5),
    ]  # fmt: skip
    assert conservative.starts(jobs, nodes=1, gpus=8) == [0, 10, 2, 15, 15]


def test_members_of_a_gang_stand_on_nodes_with_enough_left() -> None:
    jobs = [Rigid(0, 1, 5, 10), Rigid(0, 2, 3, 4), Rigid(0, 2, 5, 4)]
    assert conservative.starts(jobs, nodes=2, gpus=8) == [0, 0, 10]


def test_a_workload_is_a_head_once_all_before_it_have_started() -> None:
    assert conservative.head_waits([0, 1, 2], [5, 20, 10]) == [5, 15, 0]


@pytest.mark.parametrize("seed", range(6))
def test_the_worst_head_wait_is_near_that_of_conservative_backfill(seed: int) -> None:
    """Overload in waves: gangs of up to three of four nodes among workloads of a few GPUs."""
    throw = random.Random(seed)
    jobs, at = [], 0.0
    for number in range(250):
        at += throw.expovariate(1 / (0.2 * HOUR)) * (1 if number // 60 % 2 else 2)
        pods, gpus = throw.choice(((1, 1), (1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)))
        role = Role("worker", pods, pods, {"cpu": 1}, (DeviceRequest("gpu", gpus),))
        seconds = throw.choice((0.25, 0.5, 1.0, 2.0)) * HOUR
        jobs.append(Job(Workload(f"j{number:03}", "q", (role,), at, expected=seconds), seconds))
    devices = tuple(Device(f"g{i}", "gpu") for i in range(8))
    nodes = tuple(Node(f"n{i}", {"cpu": 1000}, devices) for i in range(4))
    played = Scenario("waves", ClusterFacts(nodes, (Queue("q"),)), tuple(jobs))
    records = engine.run(played, Variant()).records
    started = {record.job.workload.key: record.first_start or 0.0 for record in records}
    submitted = [job.workload.submitted for job in jobs]
    ours = conservative.head_waits(submitted, [started[job.workload.key] for job in jobs])
    theirs = conservative.starts(conservative.rigid(played), 4, 8)
    assert max(ours) <= conservative.BAR * max(conservative.head_waits(submitted, theirs))
