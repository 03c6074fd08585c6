"""The packing that is measured is the packing that runs: `decide` and the benchmark's packer place
the same pods on the same nodes."""

from __future__ import annotations

import random

import pytest

from bench import packing
from windlass.core.packing.potential import DemandShape, Fleet
from windlass.sim.inputs import openb

NODES = (
    (32_000, 131_072, 2, "T4"),
    (64_000, 262_144, 4, "T4"),
    (96_000, 393_216, 8, "G2"),
    (96_000, 786_432, 8, "V100"),
)
"""cpu, memory, devices, model."""
SHARES = (110, 230, 320, 460, 550, 650)


class Recording:
    """A policy, and the nodes that it chose."""

    def __init__(self, chooser: openb.Chooser) -> None:
        self._chooser = chooser
        self.nodes: list[int | None] = []

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        choice = self._chooser.choose(shape)
        self.nodes.append(None if choice is None else choice[0])
        return choice

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        self._chooser.place(shape, node, devices)


def shapes(throw: random.Random) -> list[DemandShape]:
    """Without devices, shares, one device, several; some of one are bound to a model."""
    found = []
    for count in 12 * [0] + 16 * [1] + 10 * [1] + [2, 4, 8]:
        shared = count == 1 and len(found) < 28
        found.append(
            DemandShape(
                cpu=1000 * max(1, count) * throw.choice((2, 4, 6, 8, 12)),
                memory=1024 * max(1, count) * throw.choice((4, 8, 16, 32)),
                count=count,
                milli=throw.choice(SHARES) if shared else 1000 if count else 0,
                models=("T4",) if count == 1 and throw.random() < 0.2 else (),
            )
        )
    return found


def arrivals(throw: random.Random, fleet: Fleet) -> openb.Pods:
    """Pods until 140 % of the devices were asked for. The first asks for a device: before that the
    core does not know of which kinds it should keep any."""
    kinds, pods, most = shapes(throw), [DemandShape(4000, 8192, 1, 1000)], 1.4 * fleet.devices.sum()
    while sum(pod.total for pod in pods) < most:
        pods.append(throw.choice(kinds))
    return openb.Pods(tuple(f"p{i:04}" for i in range(len(pods))), tuple(pods))


@pytest.mark.parametrize("seed", range(3))
def test_decide_places_every_pod_where_the_benchmark_does(seed: int) -> None:
    throw = random.Random(seed)
    fleet = Fleet.of(throw.choice(NODES) for _ in range(30))
    pods = arrivals(throw, fleet)
    arrival = openb.Arrival(seed, tuple(range(len(pods.names))), tuple(range(30)))
    learned, decided = (
        Recording(packing.policy_named(name, fleet, pods))
        for name in ("windlass-learned", packing.LIVE)
    )
    curves = [openb.replay(pods, arrival, fleet, each) for each in (learned, decided)]
    assert None in learned.nodes, "some pods find no room, else nothing is shown"
    assert decided.nodes == learned.nodes
    assert curves[0] == curves[1]
