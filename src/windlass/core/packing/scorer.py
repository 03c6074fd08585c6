"""`pack: fragmentation` in the live core: the packing rule on the cluster's own arrays.

`place` asks `Fragmentation.assign` which nodes pods of a workload should go to, and of which device
a share should be; the cycle reports every requested shape (`observe`), and that is all it knows
about demand. Whole devices, slots of a ratio and partitions are chosen by `devices`, which knows
links and modes; here they only count by how much of each is left.

With little demand history the rule places whole devices worse than `binpack`: a size that was not
requested yet has no weight, and no node is kept free for it. So `is_informed` returns whether the
history suffices (`core.packing.potential.Evidence`), and `place` uses `binpack` until then.

It covers one kind of device, the one that a shape asks for first; pods that ask for none use up
what goes with devices and are scored by every kind. A share by memory counts as the part of the
largest device of its kind that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windlass.core.cluster.cluster import Cluster, Ints, Mask
from windlass.core.cluster.devices.device_allocation import Spot
from windlass.core.cluster.devices.partitions import Requested
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import WHOLE, DeviceRequest
from windlass.core.packing import fragmentation_packer, potential


class Fragmentation:
    """What was learned of demand, per kind of device, and scores kept per shape and node."""

    def __init__(self, half_life: float | None = potential.HALF_LIFE) -> None:
        self._half_life = half_life
        self._kinds: dict[str, _Kind] = {}
        self._asked_for: list[str] = []
        """Kinds that were observed; only these learn, whichever a decision reads."""

    def observe(self, cluster: Cluster, shape: Shape, members: int = 1) -> None:
        """So many pods of the shape were asked for, for the first time.

        What asks for no device uses up what goes with devices: it counts for every kind.
        """
        name = shape.requests[0].kind if shape.requests else ""
        if name and name not in self._asked_for:
            self._asked_for.append(name)
        for kind in self._judging(cluster, shape):
            kind.observe(cluster, shape, members)

    def is_informed(self, cluster: Cluster, shape: Shape) -> bool:
        """Whether the rule places the shape better than `binpack` does, by what was seen."""
        return not shape.requests or self._kind(cluster, shape.requests[0].kind).is_informed(shape)

    def requested_profiles(self, cluster: Cluster, shape: Shape) -> Requested:
        """How often each profile of the shape's kind of device was requested; empty while fewer
        workloads than `ENOUGH_PROFILES` requested one."""
        return self._kind(cluster, shape.requests[0].kind).profiles.requested

    def wanted(self, cluster: Cluster) -> Mask:
        """Nodes with devices of a kind that was asked for: there, what is used up beside them can
        make them useless."""
        found = np.zeros(len(cluster), dtype=np.bool_)
        for name in self._asked_for:
            found |= self._kind(cluster, name).owners(cluster)
        return found

    def assign(
        self, cluster: Cluster, shape: Shape, nodes: Ints, pods_per_node: Ints, count: int
    ) -> list[Spot]:
        """Spots for `count` pods, one after the other to the best of these nodes.

        `pods_per_node` is how many pods fit on each of the nodes; together they fit enough. Pods
        without devices are scored by every kind of device that was requested, and scores add up:
        what becomes useless of one kind is lost whatever is left of another.
        """
        trials = [kind.begin(cluster, shape) for kind in self._judging(cluster, shape)]
        pods_per_node = pods_per_node.copy()
        scores = np.where(pods_per_node > 0, _scores(trials, nodes), _FULL)
        chosen: dict[int, list[int]] = {}
        for to_come in reversed(range(count)):
            best = int(scores.argmax())
            node = int(nodes[best])
            chosen.setdefault(node, []).append(int(trials[0].device[node]))
            if not to_come:
                break
            for trial in trials:
                trial.put(node)
            pods_per_node[best] -= 1
            here = nodes[best : best + 1]
            scores[best] = _scores(trials, here)[0] if pods_per_node[best] > 0 else _FULL
        by_size = bool(shape.requests) and shape.requests[0].form == "share"
        return [
            (node, len(devices), tuple((each, 0) for each in devices) if by_size else ())
            for node, devices in sorted(chosen.items())
        ]

    def _judging(self, cluster: Cluster, shape: Shape) -> list[_Kind]:
        names = [shape.requests[0].kind] if shape.requests else self._asked_for
        return [self._kind(cluster, name) for name in names]

    def _kind(self, cluster: Cluster, name: str) -> _Kind:
        if name not in self._kinds:
            self._kinds[name] = _Kind(cluster, name, self._half_life)
        return self._kinds[name]


class _Kind:
    """The packing of one kind of device."""

    def __init__(self, cluster: Cluster, name: str, half_life: float | None) -> None:
        self._name = name
        self._layout = _Layout(cluster, name)
        self._learner = potential.Learner(self._layout.fleet, half_life)
        self._packer = fragmentation_packer.Packer(self._layout.fleet, self._learner.tables)
        self._tried: set[int] = set()
        self.profiles = _Profiles()

    def is_informed(self, shape: Shape) -> bool:
        return self._learner.is_informed(self._layout.translate(shape))

    def observe(self, cluster: Cluster, shape: Shape, members: int) -> None:
        self._renew(cluster)
        asked = self._layout.translate(shape)
        if shape.requests:
            self._count(shape.requests[0], asked)
        # A gang of hundreds is one request: beyond this its weight would drown all others.
        for _ in range(min(members, _MOST_OF_ONE)):
            if self._learner.observe(asked):
                self._packer.learn(self._learner.tables)

    def _count(self, request: DeviceRequest, asked: potential.DemandShape) -> None:
        self._learner.add_workload(asked)
        if request.form == "partition":
            self.profiles.observe(request.profile)

    def owners(self, cluster: Cluster) -> Mask:
        """Nodes that have such devices."""
        self._renew(cluster)
        return self._layout.owners

    def begin(self, cluster: Cluster, shape: Shape) -> _Trial:
        """A trial of pods of the shape, as things are now."""
        self._renew(cluster)
        self._follow(cluster)
        return _Trial(self._packer, self._layout.translate(shape), self._tried)

    def _follow(self, cluster: Cluster) -> None:
        """Brings the packer to what is free now: nodes that changed, and those tried out here."""
        tried = np.array(sorted(self._tried), dtype=np.int64)
        where = np.union1d(self._layout.changed(cluster), tried)
        if len(where):
            self._packer.update(where, self._layout.capacity(cluster, where))
        self._tried.clear()

    def _renew(self, cluster: Cluster) -> None:
        """Other nodes than before: other arrays, and tables if nodes are of another make."""
        if self._layout.describes(cluster):
            return
        self._layout = _Layout(cluster, self._name)
        self._learner.adopt(self._layout.fleet)
        self._packer = fragmentation_packer.Packer(self._layout.fleet, self._learner.tables)
        self._tried.clear()


class _Profiles:
    """How often partition profiles were requested; the past fades."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._observed = 0
        self._next = ENOUGH_PROFILES
        self.requested: Requested = ()
        """As of the last time that a quarter more was known."""

    def observe(self, profile: str) -> None:
        self._counts[profile] = self._counts.get(profile, 0) + 1
        self._observed += 1
        if self._observed >= potential.HALF_LIFE:
            self._counts = {name: count // 2 for name, count in self._counts.items() if count > 1}
            self._observed = self._next = sum(self._counts.values())
        if self._observed >= self._next:
            # Costs of positions are cached by these counts, so they change seldom.
            self.requested = tuple(sorted(self._counts.items()))
            self._next = self._observed * 5 // 4


class _Trial:
    """Pods of one shape, put on nodes one after the other to see what the next should do."""

    def __init__(
        self, packer: fragmentation_packer.Packer, asked: potential.DemandShape, tried: set[int]
    ) -> None:
        self._packer, self._asked, self._tried = packer, asked, tried
        self.scores, self.device = packer.scores(asked)
        """How good each node is for the next pod, and the device for a share of it there."""

    def put(self, node: int) -> None:
        # Packing sees less than the caller does (a share of device memory is rounded up): a node
        # may take a pod that does not fit by what is known here.
        if self.scores[node] == fragmentation_packer.INFEASIBLE:
            return
        left = self._packer.capacity.left[node]
        devices = fragmentation_packer.take(self._asked, left, int(self.device[node]))
        self._packer.place(self._asked, node, devices)
        self._tried.add(node)
        self.scores, self.device = self._packer.scores(self._asked)


ENOUGH_PROFILES = 128
"""Workloads with a partition before profiles count by how often they were requested."""
_MIB = 1 << 20
_MOST_OF_ONE = 16
"""Pods of one workload that count as demand."""
_FULL = fragmentation_packer.INFEASIBLE
_WORST = -(1 << 40)
"""Of a node that does not take a pod by what is known here: below every other, and sums of it
are above `_FULL`."""


def _scores(trials: Sequence[_Trial], nodes: Ints) -> Ints:
    """What all kinds together make of each node."""
    total = np.zeros(len(nodes), dtype=np.int64)
    for trial in trials:
        total += np.maximum(trial.scores[nodes], _WORST)
    return total


class _Layout:
    """Where in the cluster's arrays the devices of one kind are."""

    def __init__(self, cluster: Cluster, kind: str) -> None:
        self._nodes = cluster.nodes
        self._mask: Mask = np.zeros(cluster.device_table.compute.shape, dtype=np.bool_)
        self._parts: dict[str, int] = {}
        """Thousandths of a device that a profile takes."""
        for i, node in enumerate(cluster.nodes):
            self._mask[i, : len(node.devices)] = [d.kind == kind for d in node.devices]
            for device in node.devices:
                for profile in device.profiles if device.kind == kind else ():
                    part = profile.slices * WHOLE // max(1, device.slices)
                    self._parts[profile.name] = max(part, self._parts.get(profile.name, 0))
        self.owners: Mask = np.asarray(self._mask.any(axis=1))
        self._memory: Ints = np.maximum(1, cluster.device_table.full[1])
        self._most_memory = int(self._memory[self._mask].max(initial=1))
        models = [
            next((d.model for d in node.devices if d.kind == kind), "") for node in cluster.nodes
        ]
        known = tuple(sorted(set(models)))
        self.fleet = potential.Fleet(
            # Copies: the cluster writes a node's new size into its own array.
            cpu=_amounts(cluster.allocatable, cluster, "cpu").copy(),
            memory=_memory(cluster.allocatable, cluster),
            devices=np.where(self._mask, WHOLE, 0).astype(np.int64),
            model=np.array([known.index(model) for model in models], dtype=np.int64),
            models=known,
        )
        self._seen = (
            self.fleet.cpu.copy(),
            self.fleet.memory.copy(),
            np.full_like(cluster.device_table.compute, -1),
            np.full_like(cluster.device_table.memory, -1),
        )

    def describes(self, cluster: Cluster) -> bool:
        """Whether it was made for these nodes. A fork of a cluster shares their list."""
        return (
            cluster.nodes is self._nodes
            and np.array_equal(self.fleet.cpu, _amounts(cluster.allocatable, cluster, "cpu"))
            and np.array_equal(self.fleet.memory, _memory(cluster.allocatable, cluster))
        )

    def changed(self, cluster: Cluster) -> Ints:
        """Nodes on which something else is free than when this was last asked."""
        now = (
            _amounts(cluster.free, cluster, "cpu"),
            _memory(cluster.free, cluster),
            cluster.device_table.compute,
            cluster.device_table.memory,
        )
        cpu, memory, compute, device_memory = (
            was != is_now for was, is_now in zip(self._seen, now, strict=True)
        )
        differs = cpu | memory | (compute | device_memory).any(axis=1)
        where: Ints = np.flatnonzero(differs)
        for was, is_now in zip(self._seen, now, strict=True):
            was[where] = is_now[where]
        return where

    def capacity(self, cluster: Cluster, where: Ints) -> fragmentation_packer.FreeCapacity:
        """What is free there. A device is as full as the fuller of its compute and its memory."""
        whole = self._memory[where]
        left = np.clip(cluster.device_table.compute[where], 0, WHOLE)
        by_memory = np.clip(cluster.device_table.memory[where], 0, whole) * WHOLE // whole
        left = np.where(whole > 1, np.minimum(left, by_memory), left)
        cpu, memory = self.fleet.cpu[where], self.fleet.memory[where]
        return fragmentation_packer.FreeCapacity(
            np.clip(_amounts(cluster.free, cluster, "cpu")[where], 0, cpu),
            np.clip(_memory(cluster.free, cluster)[where], 0, memory),
            np.where(self._mask[where], left, 0),
            self.fleet.model[where],
        )

    def translate(self, shape: Shape) -> potential.DemandShape:
        """The shape as packing sees it."""
        amounts = dict(shape.amounts)
        cpu, memory = amounts.get("cpu", 0), -(-amounts.get("memory", 0) // _MIB)
        if not shape.requests:
            return potential.DemandShape(cpu, memory)
        request = shape.requests[0]
        models = tuple(sorted(request.models))
        milli = self._milli(request)
        count = request.count if milli == WHOLE else 1
        return potential.DemandShape(cpu, memory, count, milli, models)

    def _milli(self, request: DeviceRequest) -> int:
        if request.form == "whole":
            return WHOLE
        if request.form == "ratio":
            return max(1, WHOLE // request.ratio)
        if request.form == "share":
            by_memory = -(-request.memory * WHOLE // self._most_memory)
            return min(WHOLE, max(1, request.compute, by_memory))
        return min(WHOLE, max(1, self._parts.get(request.profile, WHOLE)))


def _amounts(table: Ints, cluster: Cluster, resource: str) -> Ints:
    """A resource of every node; 0 where no node names it."""
    column = cluster.resources.get(resource)
    return np.zeros(len(cluster), dtype=np.int64) if column is None else table[column]


def _memory(table: Ints, cluster: Cluster) -> Ints:
    """Memory of every node, in a workload in which products of it stay far from 64 bits."""
    return _amounts(table, cluster, "memory") // _MIB
