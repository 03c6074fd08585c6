"""When capacity becomes free: what running workloads give back at their expected ends, as arrays.

The snapshot keeps one `AvailabilityProfile`, changed by every event; a decision adds what it placed
itself in a `ProfileCursor` and moves a fork of the cluster back and forth in time with it. Nothing
here iterates over running workloads: the cost of a decision grows with what changed, and with how
far into the future it plans.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import PARTITIONED
from windlass.core.cluster.numbering import Numbers
from windlass.core.model.types import PodAssignment, Role, Running, Workload

Ints = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]

Footprint = tuple[int, int, int, int, int]
"""Of a grant, as `DeviceTable.footprint` has it."""

Release = tuple[Workload, Iterable[PodAssignment], float]
"""A workload, what it gives back, and when."""

AT_ONCE = float("-inf")
"""The end of evicted pods: any moment now."""


@dataclasses.dataclass(frozen=True, slots=True)
class AllocationRows:
    """What pods hold, in the form that `Cluster.shift` takes."""

    members: Ints
    """Per role and node (of a bundle, per NUMA node): the node, then amounts by column of the
    cluster's resources."""
    devices: Ints
    """Per grant: the device's flat number, compute, memory, used, mode."""
    ports: tuple[tuple[int, int], ...]
    """(host port, node)"""


def allocation_rows(
    cluster: Cluster, workload: Workload, pods: Iterable[PodAssignment]
) -> AllocationRows:
    members, devices, ports = _listed(cluster, workload, pods)
    return AllocationRows(_members(cluster, members), _devices(devices), tuple(ports))


def _listed(
    cluster: Cluster, workload: Workload, pods: Iterable[PodAssignment]
) -> tuple[list[list[int]], list[Footprint], list[tuple[int, int]]]:
    """What `AllocationRows` has, one after another."""
    roles = {role.name: role for role in workload.roles}
    counts: dict[tuple[str, int, int], int] = {}
    devices: list[Footprint] = []
    ports: list[tuple[int, int]] = []
    for pod in pods:
        node, role = cluster.index.get(pod.node), roles.get(pod.role)
        if node is None or role is None:
            continue
        numa = cluster.device_table.numa_of(node, pod.grants) if role.bundle else -1
        there = pod.role, node, numa
        counts[there] = counts.get(there, 0) + 1
        if pod.grants:
            devices += cluster.device_table.footprint(node, pod.grants)
        if role.ports:
            ports += [(port, node) for port in role.ports]
    members: list[list[int]] = []
    for (name, node, numa), count in counts.items():
        shape = cluster.shape_of(roles[name])
        member = [node] + [0] * len(cluster.resources)
        for column, need in cluster.needs_on(shape, node, numa) if shape.bundle else shape.needs:
            member[1 + column] = need * count
        members.append(member)
    return members, devices, ports


def _members(cluster: Cluster, members: list[list[int]]) -> Ints:
    return np.array(members, np.int64).reshape(-1, 1 + len(cluster.resources)).T


def _devices(devices: list[Footprint]) -> Ints:
    return np.array(devices, np.int64).reshape(-1, 5).T


def shift(cluster: Cluster, rows: AllocationRows, sign: int) -> None:
    """Gives back (+1) or takes (-1) what pods hold."""
    cluster.shift(rows.members, rows.devices, sign)
    for port, node in rows.ports:
        cluster.shift_port(port, node, sign)


def shift_all(cluster: Cluster, several: Sequence[AllocationRows], sign: int) -> None:
    """The same of many, at once."""
    if several:
        members = np.concatenate([rows.members for rows in several], axis=1)
        devices = np.concatenate([rows.devices for rows in several], axis=1)
        ports = tuple([port for rows in several for port in rows.ports])
        shift(cluster, AllocationRows(members, devices, ports), sign)


def force_allocate(cluster: Cluster, role: Role, pod: PodAssignment) -> None:
    """Allocates ports and slices of a pod even if another pod still has them. Two pods cannot share
    them, so they are counted once and are free again with the first release."""
    node = cluster.index.get(pod.node)
    if node is None:
        return
    for port in role.ports:
        cluster.ports.setdefault(port, set()).add(node)
    for device, _, _, slices, mode in cluster.device_table.footprint(node, pod.grants):
        if mode == PARTITIONED:
            cluster.device_table.used.reshape(-1)[device] |= slices
    cluster.touch(np.array([node]))


class Table:
    """Rows of numbers, each with a time. Sorting again costs little where little changed."""

    def __init__(self, width: int) -> None:
        self.values: Ints = np.zeros((width, 64), np.int64)
        self._time: Times = np.zeros(64)
        self._live = np.zeros(64, np.bool_)
        self._stale = np.zeros(64, np.bool_)
        """Rows whose position in the order is out of date."""
        self._free = list(range(63, -1, -1))
        self._added: list[int] = []
        self._changed = False
        self._order: Ints = np.zeros(0, np.int64)
        self._times: Times = np.zeros(0)

    def put(self, times: Sequence[float], values: Ints) -> list[int]:
        """Each at its time."""
        count = values.shape[1]
        if not count:
            return []
        while len(self._free) < count:
            self._grow()
        rows = self._free[-count:]
        del self._free[-count:]
        self.values[:, rows] = values
        self._time[rows] = times
        self._live[rows] = True
        self._added += rows
        self._changed = True
        return rows

    def drop(self, rows: list[int]) -> None:
        if rows:
            self._live[rows] = False
            self._stale[rows] = True
            self._free += rows
            self._changed = True

    def in_order(self) -> tuple[Ints, Times]:
        """Rows by time, and their times."""
        if self._changed:
            kept = self._order[~self._stale[self._order]]
            new = arrays.distinct(self._added, len(self._live))
            new = new[self._live[new]]
            new = new[np.argsort(self._time[new], kind="stable")]
            at = np.searchsorted(self._time[kept], self._time[new], side="right")
            self._order = np.insert(kept, at, new)
            self._times = self._time[self._order]
            self._stale[:] = False
            self._added, self._changed = [], False
        return self._order, self._times

    def carry_over(self, numbers: Ints) -> None:
        """What rows are about, their first value, has other numbers by now."""
        live = np.flatnonzero(self._live)
        self.values[0, live] = numbers[self.values[0, live]]

    def _grow(self) -> None:
        size = len(self._time)
        self.values = np.concatenate([self.values, np.zeros_like(self.values)], axis=1)
        self._time = np.concatenate([self._time, np.zeros(size)])
        self._live = np.concatenate([self._live, np.zeros(size, np.bool_)])
        self._stale = np.concatenate([self._stale, np.zeros(size, np.bool_)])
        self._free[:0] = range(2 * size - 1, size - 1, -1)


class AvailabilityProfile:
    """What running workloads give back, and when."""

    def __init__(self, cluster: Cluster) -> None:
        self.members = Table(1 + len(cluster.resources))
        self.devices = Table(5)
        self.ports: dict[str, list[tuple[float, int, int]]] = {}
        """Workload -> (end, host port, node)"""
        self.unknown: dict[str, Running] = {}
        """Workloads that run and say nothing about their end."""
        self._rows: dict[str, tuple[list[int], list[int]]] = {}

    def add_running(self, cluster: Cluster, running: Running) -> None:
        """A workload holds capacity; it gives it back at its expected end, if one is known."""
        workload, staying = running.workload, running.pods
        if running.leaving:
            going = set(running.leaving)
            leaving = [pod for pod in staying if (pod.role, pod.index) in going]
            staying = tuple(pod for pod in staying if (pod.role, pod.index) not in going)
            self.add(cluster, workload, leaving, AT_ONCE)
        if running.expected_end is None:
            self.unknown[workload.key] = running
        else:
            self.add(cluster, workload, staying, running.expected_end)

    def add(
        self, cluster: Cluster, workload: Workload, pods: Iterable[PodAssignment], end: float
    ) -> None:
        self.add_all(cluster, [(workload, pods, end)])

    def add_all(self, cluster: Cluster, entries: Iterable[Release]) -> None:
        """Hundreds start in a decision: arrays are made once for all of them."""
        members, devices = list[list[int]](), list[Footprint]()
        ends, owners = (list[float](), list[float]()), list[tuple[str, int, int]]()
        for workload, pods, end in entries:
            mine, granted, ports = _listed(cluster, workload, pods)
            members += mine
            devices += granted
            ends[0].extend([end] * len(mine))
            ends[1].extend([end] * len(granted))
            owners.append((workload.key, len(mine), len(granted)))
            if ports:
                self.ports.setdefault(workload.key, []).extend((end, *each) for each in ports)
        pod_rows = iter(self.members.put(ends[0], _members(cluster, members)))
        device_rows = iter(self.devices.put(ends[1], _devices(devices)))
        for key, pods_of_it, grants_of_it in owners:
            rows = self._rows.setdefault(key, ([], []))
            rows[0].extend(itertools.islice(pod_rows, pods_of_it))
            rows[1].extend(itertools.islice(device_rows, grants_of_it))

    def remove(self, key: str) -> None:
        members, devices = self._rows.pop(key, ([], []))
        self.members.drop(members)
        self.devices.drop(devices)
        self.ports.pop(key, None)
        self.unknown.pop(key, None)

    def carry_over(self, numbers: Numbers) -> None:
        """Nodes have other numbers; no row refers to a node that has none."""
        self.members.carry_over(numbers.node)
        self.devices.carry_over(numbers.device)
        for entries in self.ports.values():
            entries[:] = [(end, port, int(numbers.node[node])) for end, port, node in entries]

    def rows(self, key: str) -> tuple[list[int], list[int]]:
        return self._rows.get(key, ([], []))
