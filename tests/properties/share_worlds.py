"""Random worlds in which every leaf queue stays backlogged: trees, weights, guarantees, workloads.

A world is drawn from one number. What its queues are entitled to is computed here as well, without
the core, so that a campaign compares two counts.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Mapping

from tests.properties.settings import SOAK
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    Queue,
    Role,
    Workload,
)
from windlass.sim.scenario import Job, Scenario

HOUR, DAY = 3600.0, 24 * 3600.0
GPUS = 8
"""Of every node."""
SIZES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 8))
"""Pods, and GPUs of each."""
LENGTHS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 48.0)
"""Hours."""
TURNS = 80 if SOAK else 40
"""A world is played for so many times its slowest repayment."""


@dataclasses.dataclass(frozen=True)
class Mix:
    """The workloads of one leaf queue."""

    sizes: tuple[tuple[int, int], ...]
    hours: float
    spread: float
    """Lengths differ by up to this factor, up and down."""
    padding: float
    """Estimates are up to so many times the truth."""
    arrivals: str
    """`all`: submitted at once; `steady`; `bursts`: once a day."""
    word: float = 1.0
    """All estimates are multiplied by it: below 1 the queue under-reports."""

    @property
    def devices(self) -> int:
        """Of its largest workload."""
        return max(pods * gpus for pods, gpus in self.sizes)

    @property
    def longest(self) -> float:
        return self.hours * self.spread


@dataclasses.dataclass(frozen=True)
class World:
    seed: int
    nodes: int
    queues: tuple[Queue, ...]
    mixes: Mapping[str, Mix]
    """By leaf queue."""

    @property
    def devices(self) -> int:
        return self.nodes * GPUS

    @property
    def slowest(self) -> float:
        """Hours in which every queue is entitled to as much as its largest workload uses, and in
        which every workload ends: before that no scheduler without preemption can repay."""
        entitled = self.entitled()
        return max(
            mix.longest * max(1.0, mix.devices / entitled[name]) for name, mix in self.mixes.items()
        )

    @property
    def until(self) -> float:
        """Seconds."""
        return max(3 * DAY, TURNS * self.slowest * HOUR)

    @property
    def workloads(self) -> float:
        """About so many are done until then."""
        entitled = self.entitled()
        return sum(
            entitled[name] * self.until / HOUR / mix.hours
            * len(mix.sizes) / sum(pods * gpus for pods, gpus in mix.sizes)
            for name, mix in self.mixes.items()
        )  # fmt: skip

    def is_feasible(self) -> bool:
        """Whether every leaf queue can hold its entitlement at once: not if it has gangs of three
        nodes only and is entitled to five."""
        entitled = self.entitled()
        for name, mix in self.mixes.items():
            others = sum(
                queue.guarantee.get("gpu", 0) / 1000 for queue in self.queues if queue.name != name
            )
            left = self.devices - -(-others // GPUS) * GPUS
            least = min(pods * gpus for pods, gpus in mix.sizes)
            if max(left // mix.devices * mix.devices, left // least * least) < entitled[name]:
                return False
        return True

    def children(self, parent: str) -> list[Queue]:
        return [queue for queue in self.queues if queue.parent == parent]

    def entitled(self, devices: float | None = None) -> dict[str, float]:
        """Of the GPUs of the cluster, or of so many, what each queue is entitled to while all are
        backlogged: in proportion to weights level by level, no queue below its guarantee."""
        found: dict[str, float] = {}
        self._divide("", self.devices if devices is None else devices, found)
        return found

    def _divide(self, parent: str, whole: float, found: dict[str, float]) -> None:
        left, parts = self.children(parent), dict[str, float]()
        while left:
            rest, weight = whole - sum(parts.values()), sum(queue.weight for queue in left)
            even = {queue.name: rest * queue.weight / weight for queue in left}
            raised = {
                queue.name: own
                for queue in left
                if (own := queue.guarantee.get("gpu", 0) / 1000) > even[queue.name]
            }
            parts |= raised or even
            left = [queue for queue in left if queue.name not in parts]
        found |= parts
        for name, part in parts.items():
            self._divide(name, part, found)

    def scenario(self) -> Scenario:
        gpus = tuple(Device(f"g{i}", "gpu") for i in range(GPUS))
        nodes = tuple(
            Node(f"n{i:02}", {"cpu": 64_000, "pods": 110}, gpus) for i in range(self.nodes)
        )
        jobs = [job for name in self.mixes for job in self._jobs(name)]
        return Scenario(f"world {self.seed}", ClusterFacts(nodes, self.queues), tuple(jobs))

    def _jobs(self, name: str) -> Iterator[Job]:
        """A third more than the queue is entitled to, and so much at the beginning that it stays
        backlogged when it is ahead."""
        throw, mix = random.Random(f"{self.seed} {name}"), self.mixes[name]
        rate = 1.3 * self.entitled()[name]
        ahead = rate * DAY + 4 * self.devices * mix.longest * HOUR
        submitted, number = 0.0, 0
        while submitted < ahead + rate * self.until:
            at = max(0.0, submitted - ahead) / rate
            at = {"all": 0.0, "steady": at, "bursts": at // DAY * DAY}[mix.arrivals]
            pods, gpus = throw.choice(mix.sizes)
            seconds = float(round(mix.hours * HOUR * mix.spread ** throw.uniform(-1, 1)))
            role = Role("worker", pods, pods, {"cpu": 1000}, (DeviceRequest("gpu", gpus),))
            workload = Workload(
                f"{name}-{number:05}", name, (role,), at, user=name, history_key=name,
                expected=seconds * throw.uniform(1, mix.padding) * mix.word,
            )  # fmt: skip
            yield Job(workload, seconds)
            submitted, number = submitted + seconds * pods * gpus, number + 1


def draw(seed: int, most: float) -> World:
    """The first feasible world from this number on with no more workloads than that."""
    throw = random.Random(seed)
    while True:
        world = _drawn(throw, seed)
        if world.is_feasible() and world.workloads <= most:
            return world


def _drawn(throw: random.Random, seed: int) -> World:
    nodes, depth, longest = throw.randint(2, 6), throw.randint(1, 3), throw.randint(2, len(LENGTHS))
    queues: list[Queue] = []
    leaves: list[str] = []
    _grow(throw, "", depth, queues, leaves)
    sizes = [size for size in SIZES if size[0] <= nodes]
    mixes = {
        name: Mix(
            sizes=tuple(throw.sample(sizes, throw.randint(1, 3))),
            hours=throw.choice(LENGTHS[max(0, longest - 4) : longest]),
            spread=throw.choice((1.0, 1.2, 2.0)),
            padding=throw.choice((1.0, 1.0, 1.5, 3.0)),
            arrivals=throw.choice(("all", "steady", "bursts")),
        )
        for name in leaves
    }
    world = World(seed, nodes, tuple(queues), mixes)
    return dataclasses.replace(world, queues=tuple(_guaranteed(throw, world)))


def _grow(
    throw: random.Random, parent: str, depth: int, queues: list[Queue], leaves: list[str]
) -> None:
    for number in range(throw.randint(2, 3)):
        name = f"{parent}{'abc'[number]}"
        queues.append(Queue(name, parent=parent, weight=throw.choice((1, 1, 2, 3, 5))))
        if depth > 1 and len(queues) < 8 and throw.random() < 0.6:
            _grow(throw, name, depth - 1, queues, leaves)
        else:
            leaves.append(name)


def _guaranteed(throw: random.Random, world: World) -> Iterator[Queue]:
    """Some leaves are guaranteed a part or all of what they are entitled to. The nodes that these
    guarantees may occupy leave enough for the largest gang: a gang that needs what is guaranteed
    to others never gets its share."""
    entitled = world.entitled()
    spare = world.nodes - max(-(-mix.devices // GPUS) for mix in world.mixes.values())
    for queue in world.queues:
        part = int(entitled[queue.name] * throw.choice((0.5, 1.0)))
        if (
            queue.name in world.mixes
            and part
            and -(-part // GPUS) <= spare
            and throw.random() < 0.3
        ):
            spare -= -(-part // GPUS)
            yield dataclasses.replace(queue, guarantee={"gpu": part * 1000})
        else:
            yield queue
