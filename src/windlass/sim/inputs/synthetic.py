"""Clusters and demand made from a seed: for benchmarks, tests and `windlass simulate --synthetic`.

The mix follows what shared GPU clusters see: many small workloads, few very large ones, tens of
shapes, some that must be near each other. The same seed gives the same facts.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    Queue,
    Role,
    Topology,
    Workload,
)

GIB = 1 << 30
LEVELS = ("block", "rack")
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SIZE_WEIGHTS = (60, 14, 9, 7, 4, 2.5, 1.5, 1, 0.6, 0.4)


@dataclasses.dataclass(frozen=True, slots=True)
class Mix:
    """How demand is made up; parts are fractions of all workloads."""

    cpu_only: float = 0.25
    shares: float = 0.20
    required_rack: float = 0.15
    preferred_block: float = 0.10
    several_roles: float = 0.05
    shapes: int = 60
    priorities: int = 5


def cluster(nodes: int, gpus: int = 8, rack: int = 16, block: int = 8) -> tuple[Node, ...]:
    """Nodes of 8 GPUs: `rack` nodes to a rack, `block` racks to a block."""
    devices = tuple(
        Device(
            f"gpu{j}", "gpu", "a100", memory=81920, numa=j * 2 // max(gpus, 1),
            switch=f"s{j // 2}", links=f"l{j // 4}", forms=frozenset(("whole", "share")),
            isolation="soft",
        )
        for j in range(gpus)
    )  # fmt: skip
    return tuple(
        Node(
            f"n{i:05}",
            {"cpu": 128_000, "memory": 2048 * GIB, "pods": 110},
            devices,
            path=(f"b{i // (rack * block):04}", f"r{i // rack:05}"),
        )
        for i in range(nodes)
    )


def queues(count: int, gpus: int) -> tuple[Queue, ...]:
    """Flat queues that share the cluster's GPUs, half of them guaranteed."""
    part = gpus * 1000 // count // 2
    return tuple(
        Queue(f"q{i:03}", guarantee={"gpu": part}, weight=1 + i % 3, order="fifo")
        for i in range(count)
    )


class Demand:
    """Workloads without end, from a seed."""

    def __init__(self, seed: int, queue_names: tuple[str, ...], mix: Mix = Mix()) -> None:  # noqa: B008
        self._random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self._queues = queue_names
        self._mix = mix
        self._roles = self._make_roles()
        self._made = 0

    def workloads(self, count: int, now: float = 0.0) -> Iterator[Workload]:
        for _ in range(count):
            yield self.workload(now)

    def workload(self, now: float) -> Workload:
        choose, mix = self._random, self._mix
        self._made += 1
        kind = choose.random()
        family = "cpu" if kind < mix.cpu_only else "gpu"
        if mix.cpu_only <= kind < mix.cpu_only + mix.shares:
            family = "share"
        size = 1 if family == "share" else choose.choices(_SIZES, _SIZE_WEIGHTS)[0]
        roles = [self._role(family, size)]
        if choose.random() < mix.several_roles:
            roles.append(self._role("cpu", 1, "driver"))
        near = choose.random()
        topology = None
        if near < mix.required_rack:
            topology = Topology("rack", required=True)
        elif near < mix.required_rack + mix.preferred_block:
            topology = Topology("block")
        return Workload(
            f"u{self._made:07}",
            choose.choice(self._queues),
            tuple(roles),
            submitted=now + self._made * 1e-3,
            user=f"user{choose.randrange(200)}",
            priority=10 * choose.randrange(mix.priorities),
            topology=topology,
            expected=float(choose.choice((600, 3600, 4 * 3600, 24 * 3600))),
        )

    def _role(self, family: str, size: int, name: str = "worker") -> Role:
        key = (family, self._random.randrange(len(self._roles[family])), size, name)
        return self._known(key)

    def _known(self, key: tuple[str, int, int, str]) -> Role:
        """The same shape in the same size is the same Role value, as objects of one team are."""
        role = self._cache.get(key)
        if role is None:
            family, number, size, name = key
            base = self._roles[family][number]
            role = dataclasses.replace(base, name=name, min_count=size, max_count=size)
            self._cache[key] = role
        return role

    def _make_roles(self) -> dict[str, list[Role]]:
        self._cache: dict[tuple[str, int, int, str], Role] = {}
        choose, third = self._random, self._mix.shapes // 3
        made: dict[str, list[Role]] = {"cpu": [], "gpu": [], "share": []}
        for i in range(self._mix.shapes):
            family = ("cpu", "gpu", "share")[i // third if i < 3 * third else 1]
            needs = {"cpu": 500 * choose.randrange(2, 17), "memory": GIB * choose.randrange(2, 33)}
            requests: tuple[DeviceRequest, ...] = ()
            if family == "gpu":
                requests = (DeviceRequest("gpu", choose.choice((1, 1, 1, 2, 4, 8))),)
            elif family == "share":
                part = choose.choice((100, 200, 250, 300, 500))
                requests = (DeviceRequest("gpu", compute=part, memory=part * 80),)
            made[family].append(Role("worker", 1, 1, needs, requests))
        return made


def busy_facts(nodes: int, waiting: int, seed: int = 0, queue_count: int = 50) -> ClusterFacts:
    """An empty cluster and a long queue."""
    machines = cluster(nodes)
    lines = queues(queue_count, nodes * 8)
    demand = Demand(seed, tuple(queue.name for queue in lines))
    return ClusterFacts(machines, lines, (), tuple(demand.workloads(waiting)), levels=LEVELS)
