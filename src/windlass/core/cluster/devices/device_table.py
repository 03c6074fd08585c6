"""Devices of all nodes: which forms are free, how many pods fit, and the specific ones to grant.

`DeviceTable` keeps one row of numbers per device, padded to the same width for all nodes, so that
"how many fit" is one operation over all nodes. Device allocation reads one node's row in plain
Python.

A device is unlocked until a part of it is allocated; from then on its mode (whole, shares by size,
one ratio, partitions) is fixed until all parts are given back.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays, request_matrix
from windlass.core.cluster.devices import device_allocation, partitions
from windlass.core.cluster.devices.device_allocation import (
    ANYWHERE,
    HELD,
    PARTITIONED,
    RATIO,
    SHARED,
    UNLOCKED,
)
from windlass.core.cluster.devices.partitions import Cost, Position, Requested
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import WHOLE, Device, DeviceRequest, Grant, Node

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(slots=True)
class Row:
    """The changing numbers of one node's devices."""

    numbers: Ints
    """As in `DeviceTable`."""
    unlocked: int


DomainCapacity = dict[int, int]
"""Of one node: NUMA node -> pods of a shape that its CPU and memory still do for; one that is
not named does for any number."""

_GONE = np.array([[0], [0], [HELD]])
"""Compute, memory and mode of devices that are taken whole."""
_MANY_DEVICES, _FEW_OF = 1024, 4
"""Below this fraction of all nodes, nodes are computed one by one."""
_MOST_PARTS = 128
"""Pods that one device is counted for at most, where counting means trying."""


class DeviceTable:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.devices = _column(node.devices for node in nodes)
        """Per node; an array of tuples, so that parts of it cost little."""
        self.place = _column(_of_each(nodes, lambda own: {d.id: i for i, d in enumerate(own)}))
        self._whole: tuple[DeviceTable, Ints] | None = None
        """Of a part: what it is a part of, and which nodes."""
        width = max((len(node.devices) for node in nodes), default=0)
        shape = (len(nodes), width)
        self._keep(np.zeros((4, *shape), np.int64))
        for i, (compute, memory) in enumerate(_of_each(nodes, _sizes)):
            self.compute[i, : len(compute)], self.memory[i, : len(memory)] = compute, memory
        self._full = (self.compute.copy(), self.memory.copy())
        self.unlocked: Ints = (self.compute > 0).sum(axis=1)
        """Devices per node without any allocated part."""
        layouts: dict[object, int] = {}
        numbers = _of_each(
            nodes, lambda own: layouts.setdefault(_anonymous(own), len(layouts))
        )  # fmt: skip
        self._layout: Ints = np.array(list(numbers), np.int64)
        self._eligible: dict[DeviceRequest, Mask] = {}
        self._any: dict[DeviceRequest, bool] = {}
        self._exact: dict[object, int] = {}
        self._served: dict[tuple[int, int], list[list[int]]] = {}

    def _keep(self, numbers: Ints) -> None:
        """What changes, by node and device. In one array: most is done to all four at once."""
        self._numbers = numbers
        self.compute, self.memory, self.mode, self.used = numbers
        """Of the last: slots of a ratio, or the bits of occupied slices."""

    def fork(self) -> DeviceTable:
        fork = copy.copy(self)
        fork._keep(self._numbers.copy())
        fork.unlocked = self.unlocked.copy()
        return fork

    def part(self, where: Ints) -> DeviceTable:
        """The devices of some nodes only."""
        fork = copy.copy(self)
        fork.devices, fork.place = self.devices[where], self.place[where]
        fork._layout = self._layout[where]
        fork._full = (self._full[0][where], self._full[1][where])
        fork._whole, fork._eligible = (self, where), {}
        fork._keep(self._numbers.take(where, axis=1))
        fork.unlocked = self.unlocked[where]
        return fork

    # --- how many fit

    def fit(
        self,
        shape: Shape,
        where: Ints | slice,
        *,
        empty: bool = False,
        domain_capacities: Sequence[DomainCapacity] | None = None,
    ) -> Ints:
        """Pods of the shape that each of these nodes takes, as far as devices go, and for a
        bundle what there is beside them."""
        bank = self.emptied() if empty else self
        if len(shape.requests) == 1 and not shape.bundle:
            return bank.fit_request(shape.requests[0], where)
        nodes = np.arange(len(bank.unlocked))[where].tolist()
        counts = (
            bank._fit_exactly(shape, node, domain_capacities[at] if domain_capacities else {})
            for at, node in enumerate(nodes)
        )
        return np.fromiter(counts, np.int64, len(nodes))

    def emptied(self) -> DeviceTable:
        """A copy without any allocation."""
        fork = copy.copy(self)
        fork._keep(np.zeros_like(self._numbers))
        fork.compute[:], fork.memory[:] = self._full
        fork.unlocked = (self._full[0] > 0).sum(axis=1)
        return fork

    def fit_request(self, request: DeviceRequest, where: Ints | slice) -> Ints:
        """Pods that each node takes of one request alone."""
        form = request.form
        if form == "whole" and self._serves_all(request):
            return self.unlocked[where] // request.count
        mode = self.mode[where]
        if form == "share" and self._serves_all(request):
            return _fit_shares(request, mode <= SHARED, self.compute[where], self.memory[where])
        eligible = self.eligible(request)[where]
        if form == "whole":
            return self._fit_whole(request, where, eligible & (mode == UNLOCKED))
        if form == "ratio":
            slots = np.where(mode == UNLOCKED, request.ratio, 0)
            locked = mode == RATIO + request.ratio
            slots = np.where(locked, request.ratio - self.used[where], slots)
            return arrays.row_sums(np.where(eligible, slots, 0))
        if form == "share":
            usable = eligible & (mode <= SHARED)
            return _fit_shares(request, usable, self.compute[where], self.memory[where])
        nodes = np.arange(len(self.mode))[where].tolist()
        return np.array([self._fit_partitions(request, node, eligible[i])
                         for i, node in enumerate(nodes)], np.int64)  # fmt: skip

    def whole_devices(self, shape: Shape) -> int | None:
        """How many devices each pod of a plain shape takes, if it may be any free ones."""
        if not shape.requests:
            return 0
        (request,) = shape.requests
        return request.count if request.form == "whole" and self._serves_all(request) else None

    def fit_requests(self, requests: Iterable[DeviceRequest], where: Ints | slice) -> list[Ints]:
        """`fit_request` of each request; the free shares are computed once."""
        found, left = list[Ints](), None
        for request in requests:
            if request.form == "share" and self._serves_all(request):
                if left is None:
                    left = (self.mode[where] <= SHARED, self.compute[where], self.memory[where])
                found.append(_fit_shares(request, *left))
            else:
                found.append(self.fit_request(request, where))
        return found

    def _serves_all(self, request: DeviceRequest) -> bool:
        """Whether every device could serve the request, and all of them are of one model."""
        found = self._any.get(request)
        if found is None:
            if len(request.models) > 1 and request.count > 1:
                found = False
            elif self._whole is not None:
                found = self._whole[0]._serves_all(request)
            else:
                absent = self._full[0] == 0
                if request.form == "share":
                    absent = absent & (self._full[1] == 0)
                found = bool((self.eligible(request) | absent).all())
            self._any[request] = found
        return found

    def _fit_whole(self, request: DeviceRequest, where: Ints | slice, free: Mask) -> Ints:
        if len(request.models) < 2 or request.count == 1:
            return arrays.row_sums(free) // request.count
        # Several models: the devices of one pod are all of the same one.
        total = np.zeros(len(free), np.int64)
        for model in request.models:
            one = dataclasses.replace(request, models=(model,))
            total += arrays.row_sums(free & self.eligible(one)[where]) // request.count
        return total

    def _fit_partitions(self, request: DeviceRequest, node: int, eligible: Mask) -> int:
        count = 0
        for j in np.flatnonzero(eligible):
            if self.mode[node, j] in (UNLOCKED, PARTITIONED):
                device = self.devices[node][j]
                count += device_allocation.most_partitions(
                    device, request.profile, int(self.used[node, j])
                )
        return count

    def _fit_exactly(self, shape: Shape, node: int, numa_capacity: DomainCapacity) -> int:
        """For several kinds at once or a bundle: how often choosing succeeds on this row."""
        if not self.devices[node]:
            return 0
        row = self.row(node)
        most = len(self.devices[node]) * _MOST_PARTS
        numa_capacity = {numa: min(count, most) for numa, count in numa_capacity.items()}
        key = (
            shape.id,
            int(self._layout[node]),
            row.numbers.tobytes(),
            tuple(numa_capacity.items()),
        )
        found = self._exact.get(key)
        if found is None:
            found = 0
            while found < most and self.take(shape, node, numa_capacity) is not None:
                found += 1
            self.restore(node, row)
            self._exact[key] = found
        return found

    def eligible(self, request: DeviceRequest) -> Mask:
        """Devices that could ever serve the request, allocated or not."""
        found = self._eligible.get(request)
        if found is None and self._whole is not None:
            whole, where = self._whole
            found = self._eligible[request] = whole.eligible(request)[where]
        elif found is None:
            by_layout: dict[int, list[bool]] = {}
            rows = np.zeros(self.compute.shape, np.bool_)
            for i, owned in enumerate(self.devices):
                layout = int(self._layout[i])
                if layout not in by_layout:
                    by_layout[layout] = [
                        device_allocation.serves(device, request) for device in owned
                    ]
                rows[i, : len(owned)] = by_layout[layout]
            found = self._eligible[request] = rows
        return found

    # --- specific devices

    @property
    def full(self) -> tuple[Ints, Ints]:
        """By node and device, its compute and memory when nothing is allocated."""
        return self._full

    def take(
        self,
        shape: Shape,
        node: int,
        numa_capacity: DomainCapacity | None = None,
        preferred: Position = ANYWHERE,
        following: int | None = None,
    ) -> tuple[Grant, ...] | None:
        """Grants for one pod, taken, also out of the capacity beside them; None (and nothing taken)
        when they do not fit. A share or a partition has the preferred position where that is
        possible. `following` pods of the shape still fit."""
        compute, memory, mode, used = self._numbers[:, node].tolist()
        serving = self._serving(node, shape)
        if len(shape.requests) > 1 or shape.bundle:
            following = None  # how many more fit is found by trying: each must leave the most
        view = device_allocation.View(
            self.devices[node], compute, memory, mode, used, serving, preferred, following
        )
        found = device_allocation.choose(view, shape.requests, shape.bundle, numa_capacity)
        if not found:
            return None
        if len(found) > 1 and len(shape.requests) == 1:  # so these are whole and free
            self._numbers[:3, node, [j for j, _ in found]] = _GONE
            self.unlocked[node] -= len(found)
        else:
            for j, grant in found:
                self._move_one(node, j, grant, -1)
        grants = tuple([grant for _, grant in found])
        if numa_capacity:
            numa = self.numa_of(node, grants)
            if numa in numa_capacity:
                numa_capacity[numa] -= 1
        return grants

    def cheapest_partition(
        self, request: DeviceRequest, node: int, requested: Requested
    ) -> tuple[int, Cost, Position] | None:
        """Where on a node a partition blocks the fewest other placements: the rank of the device's
        model, the cost, and the position. None where it does not fit."""
        mode, used = self._numbers[2:, node].tolist()
        eligible = self.eligible(request)[node].tolist()
        found = []
        for j, device in enumerate(self.devices[node]):
            if eligible[j] and mode[j] in (UNLOCKED, PARTITIONED):
                best = partitions.cheapest(device, request.profile, used[j], requested)
                if best is not None:
                    rank = request.models.index(device.model) if request.models else 0
                    found.append((rank, best[0], (j, best[1])))
        return min(found, default=None)

    def signatures(self, nodes: Ints) -> list[tuple[int, bytes]]:
        """Equal for nodes with the same devices in the same state."""
        rows = np.ascontiguousarray(self._numbers[2:, nodes].swapaxes(0, 1))
        states = rows.reshape(len(nodes), -1)
        each: npt.NDArray[Any] = states.view(np.dtype((np.void, states.shape[1] * states.itemsize)))
        return list(zip(self._layout[nodes].tolist(), each.reshape(-1).tolist(), strict=True))

    def numa_of(self, node: int, grants: Iterable[Grant]) -> int:
        """The NUMA node that granted devices are on; -1: not known, or on several."""
        places = (self.place[node].get(grant.device) for grant in grants)
        found = {self.devices[node][j].numa for j in places if j is not None}
        return found.pop() if len(found) == 1 else -1

    def _serving(self, node: int, shape: Shape) -> list[list[int]]:
        """Per request of a pod, which of a node's devices could serve it; shared by nodes with
        equal devices."""
        key = (self._layout.item(node), shape.id)
        found = self._served.get(key)
        if found is None:
            owned = self.devices[node]
            found = self._served[key] = [
                [j for j, device in enumerate(owned) if device_allocation.serves(device, request)]
                for request in shape.requests
            ]
        return found

    def move(self, node: int, grants: Sequence[Grant], sign: int) -> None:
        """Takes (-1) or gives back (+1) what grants say."""
        place = self.place[node]
        for grant in grants:
            j = place.get(grant.device)
            if j is not None:
                self._move_one(node, j, grant, sign)

    def _move_one(self, node: int, j: int, grant: Grant, sign: int) -> None:
        at = node, j
        # Plain numbers: each read of an array element costs as much as the rest of a line.
        compute = self.compute.item(at) + sign * grant.compute
        memory = self.memory.item(at) + sign * grant.memory
        before, used = self.mode.item(at), self.used.item(at)
        mode, part = self._mark(node, j, grant)
        if mode != PARTITIONED:
            used -= sign * part
        else:
            used = used | part if sign < 0 else used & ~part
        full = compute == self._full[0].item(at) and memory == self._full[1].item(at)
        now = UNLOCKED if full and not used else mode
        self.compute[at], self.memory[at], self.used[at], self.mode[at] = compute, memory, used, now
        self.unlocked[node] += (now == UNLOCKED) - (before == UNLOCKED)

    def footprint(self, node: int, grants: Sequence[Grant]) -> list[tuple[int, int, int, int, int]]:
        """Grants as rows for `shift`: the device's flat number, compute, memory, used, mode."""
        place, width, rows = self.place[node], self.compute.shape[1], []
        for grant in grants:
            j = place.get(grant.device)
            if j is not None:
                mode, used = self._mark(node, j, grant)
                rows.append((node * width + j, grant.compute, grant.memory, used, mode))
        return rows

    def _mark(self, node: int, j: int, grant: Grant) -> tuple[int, int]:
        """The mode that a grant puts its device in, and what it adds to `used`."""
        if grant.form == "ratio":
            return RATIO + grant.ratio, 1
        if grant.form == "partition":
            bits = device_allocation.occupied(self.devices[node][j], grant.profile, grant.start)
            return PARTITIONED, bits
        return (HELD if grant.form == "whole" else SHARED), 0

    def shift(self, rows: Ints, sign: int) -> Ints:
        """Gives back (+1) or takes (-1) many footprints at once; returns the nodes that changed."""
        if not rows.shape[1]:
            return np.zeros(0, np.int64)
        flat, amounts, mode = rows[0], rows[1:4] * sign, rows[4]
        left = [array.reshape(-1) for array in (self.compute, self.memory, self.used)]
        modes = self.mode.reshape(-1)
        np.add.at(left[0], flat, amounts[0])
        np.add.at(left[1], flat, amounts[1])
        np.subtract.at(left[2], flat, amounts[2])
        if sign > 0:
            compute, memory = self._full
            free = (left[0][flat] == compute.reshape(-1)[flat]) & (left[2][flat] == 0)
            free &= left[1][flat] == memory.reshape(-1)[flat]
            modes[flat[free]] = UNLOCKED
        else:
            modes[flat] = mode
        nodes = arrays.distinct(flat // self.compute.shape[1], len(self.unlocked))
        there = self._full[0][nodes] > 0
        self.unlocked[nodes] = arrays.row_sums((self.mode[nodes] == UNLOCKED) & there)
        return nodes

    def has_capacity(self, rows: Ints) -> bool:
        """Whether all these footprints fit at once."""
        flat, compute, memory, used, mode = rows
        devices, which = np.unique(flat, return_inverse=True)
        wanted = np.zeros((3, len(devices)), np.int64)
        for sums, amounts in zip(wanted, (compute, memory, used), strict=True):
            np.add.at(sums, which, amounts)
        now, taken = self.mode.reshape(-1)[flat], self.used.reshape(-1)[flat]
        fits = (now == UNLOCKED) | ((now == mode) & (mode != HELD))
        fits &= (mode != PARTITIONED) | ((taken & used) == 0)
        fits &= (mode < RATIO) | (taken + wanted[2, which] <= mode - RATIO)
        enough = self.compute.reshape(-1)[devices] >= wanted[0]
        enough &= self.memory.reshape(-1)[devices] >= wanted[1]
        return bool(fits.all() and enough.all())

    def has(self, node: int, grants: Sequence[Grant]) -> bool:
        """Whether the devices exist and are healthy, allocated or not."""
        places = [self.place[node].get(grant.device) for grant in grants]
        return all(j is not None and self.devices[node][j].healthy for j in places)

    def admits(self, node: int, grants: Sequence[Grant]) -> bool:
        """Whether all that the grants say is free: the amounts, the mode, the slots or slices."""
        return all(self._admits_one(node, self.place[node][g.device], g) for g in grants)

    def _admits_one(self, node: int, j: int, grant: Grant) -> bool:
        mode, used = int(self.mode[node, j]), int(self.used[node, j])
        wanted, part = self._mark(node, j, grant)
        if self.compute[node, j] < grant.compute or self.memory[node, j] < grant.memory:
            return False
        if mode == UNLOCKED or wanted == HELD:
            return mode == UNLOCKED
        if wanted == PARTITIONED and mode == PARTITIONED:
            return not used & part
        return mode == wanted and (wanted == SHARED or used < grant.ratio)

    def row(self, node: int) -> Row:
        return Row(self._numbers[:, node].copy(), self.unlocked.item(node))

    def restore(self, node: int, row: Row) -> None:
        self._numbers[:, node] = row.numbers
        self.unlocked[node] = row.unlocked

    def shareable(self) -> Mask:
        """Devices that shares can be had of."""
        shared = self.mode <= SHARED
        return np.asarray(shared & ((self.compute > 0) | (self.memory > 0)))

    def totals(self, usable: Mask) -> dict[str, int]:
        """Thousandths of devices by kind and by kind/model, healthy ones on usable nodes."""
        sums: dict[str, int] = {}
        where = np.flatnonzero(usable)
        _, first, counts = np.unique(self._layout[where], return_index=True, return_counts=True)
        for i, count in zip(where[first].tolist(), counts.tolist(), strict=True):  # all alike
            for device in self.devices[i]:
                if not device.healthy:
                    continue
                sums[device.kind] = sums.get(device.kind, 0) + WHOLE * count
                if device.model:
                    name = f"{device.kind}/{device.model}"
                    sums[name] = sums.get(name, 0) + WHOLE * count
        return sums

    def carry_over(self, old: DeviceTable, was: Ints, now: Ints) -> None:
        """These nodes of another bank stand here under other numbers, as full as there."""
        width = min(old.compute.shape[1], self.compute.shape[1])
        self._numbers[:, now, :width] = old._numbers[:, was, :width]
        self.unlocked[now] = old.unlocked[was]


def _fit_shares(request: DeviceRequest, usable: Mask, compute: Ints, memory: Ints) -> Ints:
    """By node. Of a full cluster few devices are usable, and dividing takes longest."""
    if usable.size > _MANY_DEVICES and _FEW_OF * np.count_nonzero(usable) < usable.size:
        at = usable.reshape(-1).nonzero()[0]
        each = request_matrix.shares(compute.reshape(-1)[at], memory.reshape(-1)[at], request)
        found = np.zeros(len(usable), np.int64)
        np.add.at(found, at // usable.shape[1], each)
        return found
    return arrays.row_sums(request_matrix.shares(compute, memory, request) * usable)


def _column(values: Iterable[Any]) -> npt.NDArray[Any]:
    """Any objects as an array of them."""
    found = list(values)
    column = np.empty(len(found), object)
    for i, value in enumerate(found):
        column[i] = value
    return column


def _of_each(nodes: Iterable[Node], read: Callable[[tuple[Device, ...]], T]) -> Iterator[T]:
    """What is read of the devices of each node; nodes that share them share it."""
    found: dict[int, T] = {}
    for node in nodes:
        key = id(node.devices)
        if key not in found:
            found[key] = read(node.devices)
        yield found[key]


def _sizes(owned: Sequence[Device]) -> tuple[list[int], list[int]]:
    return [device.compute for device in owned], [device.memory for device in owned]


def _anonymous(owned: Sequence[Device]) -> tuple[Device, ...]:
    """Devices without their names: nodes with equal devices share cached results."""
    return tuple(dataclasses.replace(device, id="") for device in owned)
