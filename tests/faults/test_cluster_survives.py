"""Scheduler and controllers on a real control plane, while everything around them fails.

After every fault all Runs end as they should, and a checker that shares no code with the platform
reads the cluster. The normal run tries a few faults with one seed; `make soak` tries all of them,
again and again, with one replica and with two.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults import cluster_world, seeds

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(3600)]

SAMPLE = ("scheduler killed", "API server restarted", "node lost", "watches cut")
"""What the normal run tries: one life of each kind of trouble that takes seconds."""
ROUNDS = 3
"""Of all faults, each on a cluster of its own and in an order of its own."""


def campaign(folder: Path, seed: int, replicas: int, faults: list[str], runs: int) -> None:
    world = cluster_world.World(folder, seed, replicas)
    try:
        for fault in faults:
            print(f"seed {seed}, {replicas} replicas: {fault}", flush=True)
            load = cluster_world.Load(world, runs)
            load.start()
            world.wait_a_moment()
            world.FAULTS[fault](world)
            load.join()
            assert load.failure is None, load.failure
            world.settle()
            world.check()
            world.clear()
    finally:
        world.close()


def test_runs_survive_faults_of_the_cluster(kubernetes_binaries: Path, tmp_path: Path) -> None:
    campaign(tmp_path, 6, 1, list(SAMPLE), runs=8)


def test_runs_survive_a_network_that_parts(kubernetes_binaries: Path, tmp_path: Path) -> None:
    """The scheduler alone: the controllers must not start what an epoch decided that is over."""
    campaign(tmp_path, 8, 1, ["scheduler parted from the API server"], runs=8)


@pytest.mark.soak
@pytest.mark.skipif(not seeds.SOAK, reason="make soak")
@pytest.mark.parametrize("turn", range(ROUNDS))
@pytest.mark.parametrize("replicas", [1, 2])
def test_runs_survive_every_fault_again_and_again(
    kubernetes_binaries: Path, tmp_path: Path, replicas: int, turn: int
) -> None:
    seed = seeds.campaign_seed() + turn
    names = list(cluster_world.World.FAULTS)
    random.Random(seed).shuffle(names)
    campaign(tmp_path, seed, replicas, names, runs=14)
