"""Fragmentation-aware placement: which node and which devices leave the most useful rest.

Each placement is scored by how much it lowers the potential of the node it would go to
(`core.packing.potential`): little left that demand cannot use, holes that still pair with requested
sizes, CPU and devices that run out together, scarce models kept for workloads that need them.

`score` is pure and scores any node states: the live core calls it with its own arrays. `Packer`
holds the states of a fleet and caches scores per (shape, node), scoring again only nodes that
changed: the simulator and the benchmark use it. Same input, same choice, on ties the node that
comes first.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windlass.core.packing.potential import (
    DEVICE_STEP,
    UNIT,
    WHOLE,
    DemandShape,
    Fleet,
    Floats,
    Ints,
    Stranded,
    Tables,
)

Bools = npt.NDArray[np.bool_]

INFEASIBLE = np.iinfo(np.int64).min
"""The score of a node that cannot take the shape."""
NO_DEVICE = -1


@dataclasses.dataclass(frozen=True, slots=True)
class FreeCapacity:
    """What is free on some nodes, one entry or row per node."""

    cpu: Ints
    memory: Ints
    left: Ints
    """[node, device]: thousandths that are left of each device."""
    model: Ints
    """Index of the devices' model in `Tables.models`."""

    def at(self, where: Ints | slice) -> FreeCapacity:
        """The free capacity of these nodes."""
        return FreeCapacity(
            self.cpu[where], self.memory[where], self.left[where], self.model[where]
        )

    @staticmethod
    def of(fleet: Fleet) -> FreeCapacity:
        """The fleet while nothing runs, in arrays of its own."""
        return FreeCapacity(
            fleet.cpu.copy(), fleet.memory.copy(), fleet.devices.copy(), fleet.model
        )


def score(tables: Tables, shape: DemandShape, capacity: FreeCapacity) -> tuple[Ints, Ints]:
    """How good it is to place the shape on each node, and the device for a share.

    Higher is better; INFEASIBLE where cpu, memory, devices or model do not do: everything else is
    the caller's to check. The device is NO_DEVICE unless the shape is a share: whole devices are
    taken lowest first (`take`).
    """
    scores = np.full(len(capacity.cpu), INFEASIBLE)
    device = np.full(len(capacity.cpu), NO_DEVICE)
    fits = np.flatnonzero(fitting(tables, shape, capacity))
    if len(fits):
        some = capacity.at(fits)
        scores[fits], device[fits] = _judge(tables, shape, some, potential(tables, some))
    return scores, device


def fitting(tables: Tables, shape: DemandShape, capacity: FreeCapacity) -> Bools:
    """Which nodes have the cpu, the memory, the devices and the model for the shape."""
    fits = (capacity.cpu >= shape.cpu) & (capacity.memory >= shape.memory)
    if shape.count:
        fits &= (capacity.left >= shape.milli).sum(axis=1) >= shape.count
        if shape.models:
            accepted = np.array([name in shape.models for name in tables.models], dtype=bool)
            fits &= accepted[capacity.model]
    return fits


def potential(tables: Tables, capacity: FreeCapacity) -> Ints:
    """How bad the state of each node is, but for the scarcity of its model."""
    row = _row(tables, capacity.cpu, capacity.model)
    entries: Ints = tables.device.reshape(-1)[(row * (WHOLE + 1))[:, None] + capacity.left]
    free = (capacity.left == WHOLE).sum(axis=1)
    idle = capacity.left.sum(axis=1)
    stranded = _stranded(tables, capacity.cpu, capacity.memory, idle, capacity.model)
    by_device: Ints = entries.sum(axis=1)
    return by_device + _whole(tables, row, free) + stranded


def take(shape: DemandShape, left: Ints, device: int) -> list[int]:
    """The specific devices of one node that the shape gets there."""
    if not shape.count:
        return []
    if shape.shared:
        return [device]
    return [int(which) for which in np.flatnonzero(left >= shape.milli)[: shape.count]]


def tightest(
    tables: Tables, shape: DemandShape, capacity: FreeCapacity
) -> tuple[int, list[int]] | None:
    """The node that takes the fewest of a shape of whole devices, as `pack: binpack` chooses, and
    its devices; None where nothing fits."""
    fits = np.flatnonzero(fitting(tables, shape, capacity))
    if not len(fits):
        return None
    some = capacity.at(fits)
    takes: Ints = (some.left == WHOLE).sum(axis=1) // shape.count
    for free, need in ((some.cpu, shape.cpu), (some.memory, shape.memory)):
        if need:
            takes = np.minimum(takes, free // need)
    node = int(fits[takes.argmin()])
    return node, take(shape, capacity.left[node], NO_DEVICE)


class Packer:
    """A fleet, what is free of it, and the best place for each shape.

    Nodes are known by their index; of equally good ones the smallest wins, so a caller that wants
    another order gives the fleet in that order.
    """

    def __init__(self, fleet: Fleet, tables: Tables) -> None:
        self.capacity = FreeCapacity.of(fleet)
        self._changed = np.zeros(len(fleet.cpu), dtype=np.int64)
        self._clock = 0
        self.learn(tables)

    def learn(self, tables: Tables) -> None:
        """Judges by other tables from now on."""
        self.tables = tables
        self._before = potential(tables, self.capacity)
        self._rows: dict[DemandShape, _Row] = {}

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        """The best node and its devices, or None where nothing fits."""
        row = self._fresh(shape)
        node = int(row.scores.argmax())
        if row.scores[node] == INFEASIBLE:
            return None
        return node, take(shape, self.capacity.left[node], int(row.device[node]))

    def scores(self, shape: DemandShape) -> tuple[Ints, Ints]:
        """`score` of every node. The arrays are the cache: do not change them."""
        row = self._fresh(shape)
        return row.scores, row.device

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        """The shape takes its capacity. Nothing is checked again: `choose` or the caller did."""
        self._add(shape, node, devices, -1)

    def release(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        """The shape gives its capacity back."""
        self._add(shape, node, devices, 1)

    def update(self, where: Ints, capacity: FreeCapacity) -> None:
        """Takes over what is free on these nodes, whatever was placed there before."""
        self.capacity.cpu[where] = capacity.cpu
        self.capacity.memory[where] = capacity.memory
        self.capacity.left[where] = capacity.left
        self._touch(where)

    def _add(self, shape: DemandShape, node: int, devices: list[int], sign: int) -> None:
        self.capacity.cpu[node] += sign * shape.cpu
        self.capacity.memory[node] += sign * shape.memory
        for device in devices:
            self.capacity.left[node, device] += sign * shape.milli
        self._touch(slice(node, node + 1))

    def _touch(self, where: Ints | slice) -> None:
        self._before[where] = potential(self.tables, self.capacity.at(where))
        self._clock += 1
        self._changed[where] = self._clock

    def _fresh(self, shape: DemandShape) -> _Row:
        """The shape's scores, with nodes judged again that changed since it was last asked."""
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(len(self._changed))
        dirty = np.flatnonzero(self._changed > row.seen)
        row.seen = self._clock
        if len(dirty):
            row.scores[dirty] = INFEASIBLE
            some = self.capacity.at(dirty)
            here = np.flatnonzero(fitting(self.tables, shape, some))
            if len(here):
                nodes = dirty[here]
                row.scores[nodes], row.device[nodes] = _judge(
                    self.tables, shape, some.at(here), self._before[nodes]
                )
        return row


class _Row:
    """Scores of one shape on every node as of moment `seen`."""

    __slots__ = ("device", "scores", "seen")

    def __init__(self, nodes: int) -> None:
        self.scores = np.full(nodes, INFEASIBLE)
        self.device = np.full(nodes, NO_DEVICE)
        self.seen = -1


def _judge(
    tables: Tables, shape: DemandShape, capacity: FreeCapacity, before: Ints
) -> tuple[Ints, Ints]:
    """Scores and devices on nodes that fit; `before` is their potential now."""
    idle = capacity.left.sum(axis=1)
    cpu, memory = capacity.cpu - shape.cpu, capacity.memory - shape.memory
    after, device = _after(tables, shape, cpu, capacity.left, capacity.model)
    after += _stranded(tables, cpu, memory, idle - shape.total, capacity.model)
    gain = before - after - tables.scarcity[capacity.model] * shape.total
    gain -= _imbalance(tables, shape, capacity.cpu, idle)
    return gain // round(tables.weights.band * UNIT), device


def _after(
    tables: Tables, shape: DemandShape, cpu: Ints, left: Ints, model: Ints
) -> tuple[Ints, Ints]:
    """Fragments less holes' worth after the placement, on the best device of each node."""
    row = _row(tables, cpu, model)
    flat = tables.device.reshape(-1)
    start = (row * (WHOLE + 1))[:, None]
    now = flat[start + left]
    free = (left == WHOLE).sum(axis=1)
    total: Ints = now.sum(axis=1)
    if not shape.shared:
        total += shape.count * (flat[start[:, 0]] - flat[start[:, 0] + WHOLE])
        return total + _whole(tables, row, free - shape.count), np.full(len(cpu), NO_DEVICE)
    fits = left >= shape.milli
    change = flat[start + np.where(fits, left - shape.milli, 0)] - now
    broken = _whole(tables, row, np.maximum(free - 1, 0)) - _whole(tables, row, free)
    change += np.where(left == WHOLE, broken[:, None], 0)
    change[~fits] = np.iinfo(np.int64).max
    device = change.argmin(axis=1)
    best = np.take_along_axis(change, device[:, None], axis=1)[:, 0]
    return total + best + _whole(tables, row, free), device


def _row(tables: Tables, cpu: Ints, model: Ints) -> Ints:
    """Which (class, cpu level) row of the tables each node is in."""
    levels = tables.cpu_levels
    level = np.searchsorted(levels, cpu, side="right").astype(np.int64, copy=False)
    start: Ints = tables.model_class[model] * (len(levels) + 1)
    return start + level


def _whole(tables: Tables, row: Ints, free: Ints) -> Ints:
    found: Ints = tables.whole.reshape(-1)[row * tables.whole.shape[2] + free]
    return found


def _stranded(tables: Tables, cpu: Ints, memory: Ints, idle: Ints, model: Ints) -> Ints:
    """What will be left of the devices when cpu or memory is used up, whichever leaves more."""
    model_class = tables.model_class[model]
    columns = np.divmod(idle, DEVICE_STEP)
    by_cpu, by_memory = tables.stranded
    return np.maximum(
        _interpolated(by_cpu, cpu, columns, model_class),
        _interpolated(by_memory, memory, columns, model_class),
    )


def _interpolated(
    stranded: Stranded, amounts: Ints, columns: tuple[Ints, Ints], model_class: Ints
) -> Ints:
    """Between the four nearest entries of the table."""
    _, rows, width = stranded.table.shape
    flat = stranded.table.reshape(-1)
    row, row_part = np.divmod(amounts, stranded.step)
    column, part = columns
    rest = DEVICE_STEP - part
    low = (model_class * rows + row) * width + column
    near = flat[low] * rest + flat[low + 1] * part
    low += width
    far = flat[low] * rest + flat[low + 1] * part
    mixed: Ints = near * (stranded.step - row_part) + far * row_part
    return mixed // (stranded.step * DEVICE_STEP)


def _imbalance(tables: Tables, shape: DemandShape, cpu: Ints, idle: Ints) -> Ints:
    """How far the node's cpu per device is from the shape's, on a logarithmic scale."""
    if not tables.balance:
        return np.zeros(len(cpu), np.int64)
    asked = shape.cpu / shape.total if shape.total else float(WHOLE)
    distance: Floats = np.abs(np.log1p(cpu / (idle + 1)) - np.log1p(asked))
    return np.rint(tables.balance * UNIT * distance).astype(np.int64)
