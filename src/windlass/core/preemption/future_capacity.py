"""The cluster while evicted workloads terminate.

There are three clusters: as it is *now* without what is nominated, as it will be *later* when all
of them are gone, and at *worst*, the less of both, which is all that can be counted on. They follow
the decision step by step: their cost grows with what was decided since they were last asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import PARTITIONED
from windlass.core.decision import terminating
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.decision.terminating import Nominee, TerminatingWorkloads
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import PodAssignment, Workload
from windlass.core.preemption import capacity_bounds
from windlass.core.preemption.capacity_bounds import CapacityBound
from windlass.core.snapshot import availability_profile, running_index
from windlass.core.snapshot.running_index import EvictionUnit

Ints = npt.NDArray[np.int64]


class FutureCapacity:
    def __init__(self, state: DecisionState) -> None:
        cluster = state.context.cluster
        self._cluster, self._resources = cluster, len(cluster.resources)
        self._seen = (len(state.placements), 0, 0)
        """Starts, evictions and nominations that are counted already."""
        self._now, self.later, self.worst = (cluster.fork(()) for _ in range(3))
        """`worst` is what can be counted on beside new victims. What others will have left counts
        only once they are gone: else a decision about the same facts could go further than the
        one before it."""
        self._left: Ints = np.zeros(0, np.int64)
        self._touched: Ints = np.zeros(0, np.int64)
        self._bounds: dict[str, CapacityBound] = {}
        self._most: dict[object, int] = {}
        """What was found out about `later` since it last changed."""
        taken = [availability_profile.allocation_rows(cluster, *each) for each in _nominated(state)]
        for rows in taken:  # the fork has it already
            availability_profile.shift(self._now, rows, +1)
            availability_profile.shift(self.later, rows, +1)

    @property
    def worst_bound(self) -> CapacityBound:
        if "worst" not in self._bounds:
            self._bounds["worst"] = CapacityBound(self.worst, self._touched)
        return self._bounds["worst"]

    @property
    def later_bound(self) -> CapacityBound:
        if "later" not in self._bounds:
            self._bounds["later"] = CapacityBound(self.later, self._left)
        return self._bounds["later"]

    def most_later(
        self, cluster: Cluster, shape: Shape, level: str, reservations: tuple[Reservation, ...]
    ) -> int:
        """As `capacity_bounds.most_with`, once all of them are gone."""
        key = (shape.id, level, reservations, cluster.version_of(shape))
        found = self._most.get(key)
        if found is None:
            bounds = [self.later_bound]
            found = capacity_bounds.most_with(cluster, bounds, shape, level, reservations)
            self._most[key] = found
        return found

    def follow(self, state: DecisionState, going: TerminatingWorkloads) -> None:
        """Takes in what was decided since."""
        evicted = going.parts
        if self._seen == (len(state.placements), len(evicted), len(state.nominations)):
            return
        nominees = list(going.nominees())
        self._most = {}
        starts, gone, nominated = self._seen
        placements = itertools.islice(state.placements.values(), starts, None)
        changed = [
            np.zeros(0, np.int64),
            *(self._start(state.running[each.workload].workload, each.pods) for each in placements),
        ]
        if len(evicted) > gone:
            changed.append(self._give_back(evicted[gone:]))
        changed += [self._nominate(nominee) for nominee in nominees[nominated:]]
        self._seen = (len(state.placements), len(evicted), len(nominees))
        nodes = arrays.distinct(np.concatenate(changed), len(self._cluster))
        if len(nodes):
            _less_of(self.worst, self._cluster, self._now, self.later, nodes)

    def _start(self, workload: Workload, pods: Iterable[PodAssignment]) -> Ints:
        rows = availability_profile.allocation_rows(self._cluster, workload, pods)
        for each in (self._now, self.later):
            availability_profile.shift(each, rows, -1)
        for port, node in rows.ports:
            self.worst.shift_port(port, node, -1)
        nodes: Ints = rows.members[0]
        return nodes

    def _give_back(self, pieces: list[EvictionUnit]) -> Ints:
        flat = running_index.flatten(pieces, self._resources)
        self.later.shift(flat.members, flat.devices, +1)
        terminating.free_ports(self.later, pieces)
        nodes: Ints = flat.members[0]
        self._touch(nodes, gone=True)
        return nodes

    def _nominate(self, nominee: Nominee) -> Ints:
        availability_profile.shift(self.later, nominee.rows, -1)
        for role, pod in nominee.exclusive:
            for each in (self.later, self.worst):
                availability_profile.force_allocate(each, role, pod)
        nodes: Ints = nominee.rows.members[0]
        self._touch(nodes)
        return nodes

    def _touch(self, nodes: Ints, *, gone: bool = False) -> None:
        if len(nodes):
            self._bounds = {}
            self._touched = np.union1d(self._touched, nodes)
            if gone:
                self._left = np.union1d(self._left, nodes)


def of(state: DecisionState) -> FutureCapacity | None:
    """None: no workload terminates."""
    going = terminating.of(state)
    if not going.evicted():
        return None
    found = state.shrinking_cache(FutureCapacity, lambda: FutureCapacity(state))
    found.follow(state, going)
    return found


def _nominated(state: DecisionState) -> Iterable[tuple[Workload, tuple[PodAssignment, ...]]]:
    """The workloads and pods that are nominated by now."""
    for key, nomination in state.nominations.items():
        yield terminating.nominated_workload(state, key), nomination.pods


def _less_of(worst: Cluster, held: Cluster, now: Cluster, later: Cluster, nodes: Ints) -> None:
    """On some nodes, what is free now and stays free when evicted workloads leave and nominated
    ones start."""
    worst.free[:, nodes] = np.minimum(now.free[:, nodes], later.free[:, nodes])
    bank, first, second = worst.device_table, now.device_table, later.device_table
    bank.mode[nodes], bank.unlocked[nodes] = (
        held.device_table.mode[nodes],
        held.device_table.unlocked[nodes],
    )
    bank.compute[nodes] = np.minimum(first.compute[nodes], second.compute[nodes])
    bank.memory[nodes] = np.minimum(first.memory[nodes], second.memory[nodes])
    one, other = first.used[nodes], second.used[nodes]
    slices = bank.mode[nodes] == PARTITIONED
    bank.used[nodes] = np.where(slices, one | other, np.maximum(one, other))
    worst.touch(nodes)
