"""Nodes and workloads in the forms that inputs describe: so many GPUs, cores and bytes each.

All readers of inputs build through here, so that members that are alike share one `Role` value
and a job of so many GPUs means the same in every trace.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Domain,
    Node,
    Queue,
    Role,
    Taint,
    Workload,
)
from windlass.sim.scenario import FOREVER, BadInput, Job, Scenario, begin, devices_of

GIB = 1 << 30
TARGET_LOAD = 0.8
"""Where a trace does not say how large its cluster was: mean demand is this part of it."""
LEVELS = ("rack",)
MOST_NODES = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class NodeForm:
    """Nodes that are alike."""

    gpus: int = 8
    model: str = ""
    gpu_memory: int = 81920
    """MiB of each GPU."""
    cpu: int = 128_000
    memory: int = 2048 * GIB
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    price: int = 0
    """Billionths a second."""
    numa: int = 0
    """NUMA nodes that CPU, memory and GPUs are divided over; 0: GPUs are on two, and the rest is
    not reported per NUMA node."""
    taints: tuple[Taint, ...] = ()
    capabilities: frozenset[str] = frozenset()

    def node(self, name: str, path: tuple[str, ...] = ()) -> Node:
        devices = tuple(self._device(number) for number in range(self.gpus))
        amounts = {"cpu": self.cpu, "memory": self.memory}
        parts = tuple(
            Domain(i, {resource: _part(all_, i, self.numa) for resource, all_ in amounts.items()})
            for i in range(self.numa)
        )
        return Node(
            name, amounts, devices, dict(self.labels), self.taints, path=path, price=self.price,
            capabilities=self.capabilities, numa=parts,
        )  # fmt: skip

    def _device(self, number: int) -> Device:
        numa, switch = number * (self.numa or 2) // self.gpus, f"s{number // 2}"
        if self.numa:  # a switch is on one NUMA node, also where GPUs do not come in pairs
            first = -(-numa * self.gpus // self.numa)
            switch = f"s{numa}-{(number - first) // 2}"
        return Device(
            f"gpu{number}", "gpu", self.model, memory=self.gpu_memory, numa=numa, switch=switch,
            links=f"l{number // 4}", forms=frozenset(("whole", "share", "ratio")), isolation="soft",
        )  # fmt: skip


def _part(amount: int, number: int, of: int) -> int:
    """What each gets, so that all together have it all."""
    return amount * (number + 1) // of - amount * number // of


class Roles:
    """Roles by what members need; the same need gives the same value."""

    def __init__(self, gpus_per_node: int = 8) -> None:
        self.gpus_per_node = max(1, gpus_per_node)
        self._known: dict[object, Role] = {}

    def of_gpus(self, gpus: int, needs: Mapping[str, int] | None = None) -> Role:
        """One member where a node has so many GPUs, else equal members on several nodes."""
        members = 1
        if gpus > self.gpus_per_node:
            each = max(n for n in range(1, self.gpus_per_node + 1) if gpus % n == 0)
            members, gpus = gpus // each, each
        requests = (DeviceRequest("gpu", gpus),) if gpus else ()
        return self.of(members, needs or {}, requests)

    def of(
        self, members: int, needs: Mapping[str, int], requests: tuple[DeviceRequest, ...]
    ) -> Role:
        key = (members, tuple(sorted(needs.items())), requests)
        role = self._known.get(key)
        if role is None:
            role = self._known[key] = Role("worker", members, members, dict(needs), requests)
        return role


def cluster(count: int, form: NodeForm, rack: int = 0) -> tuple[Node, ...]:
    """So many nodes, `rack` of them to a rack; 0: no racks."""
    return tuple(
        form.node(f"node-{number:04}", (f"rack-{number // rack:03}",) if rack else ())
        for number in range(count)
    )


def nodes_needed(jobs: Sequence[Job], gpus: int) -> int:
    """Nodes of so many GPUs on which mean demand is `TARGET_LOAD`, and the largest job fits.

    The mean is over the time from the first submission to the last end, if everything started at
    once: over submissions alone, a few jobs that come together would ask for a cluster of which
    they use a corner.
    """
    ending = [job for job in jobs if job.duration != FOREVER]
    first = min((job.workload.submitted for job in ending), default=0.0)
    span = max((job.workload.submitted + job.duration for job in ending), default=0.0) - first
    worked = math.fsum(devices_of(job.workload) * job.duration for job in ending)
    mean = worked / span if span > 0 else 0.0
    largest = max((_nodes_of(job.workload, gpus) for job in jobs), default=1)
    found = max(1, largest, math.ceil(mean / TARGET_LOAD / gpus))
    if found > MOST_NODES:
        raise BadInput(
            f"The jobs ask for {found} nodes of {gpus} GPUs, more than {MOST_NODES}: say how many "
            "there are with --nodes and --gpus, or correct the largest durations and sizes."
        )
    return found


def on_cluster(
    name: str, jobs: Iterable[Job], nodes: tuple[Node, ...], queues: Iterable[Queue] = ()
) -> Scenario:
    """A scenario that starts empty; queues that are not described are flat and equal."""
    work = tuple(sorted(jobs, key=lambda job: (job.workload.submitted, job.workload.key)))
    if not work:
        raise BadInput(f"{name} has no jobs: give a trace with at least one row.")
    known = {queue.name: queue for queue in queues}
    for job in work:
        known.setdefault(job.workload.queue, Queue(job.workload.queue))
    levels = LEVELS if any(node.path for node in nodes) else ()
    facts = ClusterFacts(nodes, tuple(known.values()), levels=levels)
    return begin(Scenario(name, facts, work))


def _nodes_of(workload: Workload, gpus: int) -> int:
    return math.ceil(devices_of(workload) / gpus)
