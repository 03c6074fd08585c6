"""Users of a queue in which they take turns get equal device-seconds over time.

Whatever the sizes and lengths of their workloads, as long as all of them are backlogged. Each case
is a simulation of days, in which every user always has more waiting than there is capacity.
"""

from __future__ import annotations

import random

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties.settings import CAMPAIGN, SOAK, cases
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

pytestmark = CAMPAIGN
HOUR = 3600.0
SETTLED, END = 24 * HOUR, (6 if SOAK else 4) * 24 * HOUR
"""The first day is not counted: no user has any past use then."""
NODES, GPUS, USERS = (4, 8, 4) if SOAK else (2, 8, 3)
LENGTHS = (0.5, 1.0, 2.0, 4.0) if SOAK else (1.0,)
"""Hours."""
SIZES = (1, 2, 4, 8) if SOAK else (2, 4, 8)
"""GPUs."""


def backlog(seed: int, users: int, **queue: object) -> Scenario:
    """Every user submits half as much again as the equal part, all at once. The workloads
    of a user have one size, and lengths that vary by a factor of four."""
    throw = random.Random(seed)
    jobs: list[Job] = []
    for number in range(users):
        user, size = f"user{number}", throw.choice(SIZES)
        length = HOUR * throw.choice(LENGTHS)
        left = 1.5 * NODES * GPUS * END / users
        while left > 0:
            duration = length * throw.uniform(0.5, 2.0)
            role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", size),))
            workload = Workload(
                f"{user}-{len(jobs)}", "team", (role,), user=user, history_key=user,
                expected=duration, submitted=0.0,
            )  # fmt: skip
            jobs.append(Job(workload, duration))
            left -= duration * size
    gpus = tuple(Device(f"g{i}", "gpu") for i in range(GPUS))
    nodes = tuple(Node(f"n{i}", {"cpu": 64_000, "pods": 110}, gpus) for i in range(NODES))
    rules = {"user_fair": True, **queue}
    return Scenario("backlog", ClusterFacts(nodes, (Queue("team", **rules),)), tuple(jobs))


def device_seconds(scenario: Scenario, since: float, until: float) -> dict[str, float]:
    """By user, what each held in a part of the simulation."""
    simulation = engine.Simulation(scenario, Variant())
    found: dict[str, float] = {}
    before = simulation.now
    held: dict[str, float] = {}
    while before < until and simulation.step():
        seconds = min(simulation.now, until) - max(before, since)
        for user, devices in held.items() if seconds > 0 else ():
            found[user] = found.get(user, 0.0) + devices * seconds
        held = {}
        for running in simulation.snapshot.running.values():
            devices = sum(len(pod.grants) for pod in running.pods)
            held[running.workload.user] = held.get(running.workload.user, 0.0) + devices
        before = simulation.now
    return found


@cases(3, 200)
@given(
    st.integers(0, 1 << 32),
    st.integers(2, USERS),
    st.sampled_from(({}, {"order": "fair", "user_fair": False}, {"half_life": 7 * 24 * HOUR})),
)
def test_backlogged_users_get_equal_device_seconds(
    seed: int, users: int, queue: dict[str, object]
) -> None:
    found = device_seconds(backlog(seed, users, **queue), SETTLED, END)
    note(f"{found}")
    assert len(found) == users
    mean = sum(found.values()) / users
    for user, seconds in found.items():
        assert abs(seconds - mean) <= 0.05 * mean, (user, seconds / mean)
