"""Fragmentation-aware placement: which node and which devices leave the most useful rest.

Each placement is judged by how much it lowers the potential of the node it would go to
(`packing_tables`): little left that demand cannot use, holes that still pair with what is asked
for, cpu and devices that run out together, scarce models kept for those who need them.

`score` is pure and judges any node states: the live core calls it with its own arrays. `Packer`
holds the states of a fleet and keeps scores per (shape, node), judging again only nodes that
changed: the simulator and the benchmark use it. Same input, same choice, on ties the node that
comes first.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windlass.core import packing_tables
from windlass.core.packing_tables import UNIT, WHOLE, Fleet, Floats, Ints, Shape, Tables

Bools = npt.NDArray[np.bool_]

INFEASIBLE = np.iinfo(np.int64).min
"""The score of a node that cannot take the shape."""
NO_DEVICE = -1


def score(tables: Tables, shape: Shape, cpu: Ints, left: Ints, model: Ints) -> tuple[Ints, Ints]:
    """How good it is to place the shape on each of these nodes, and the device for a share.

    `cpu` is free cpu, `left` [node, device] what is left of each device, `model` the index of the
    devices' model. Higher is better; INFEASIBLE where cpu, devices or model do not do. Memory and
    everything else is the caller's to check. The device is NO_DEVICE unless the shape is a share:
    whole devices are taken lowest first (`take`).
    """
    scores = np.full(len(cpu), INFEASIBLE)
    device = np.full(len(cpu), NO_DEVICE)
    fits = np.flatnonzero(fitting(tables, shape, cpu, left, model))
    if len(fits):
        cpu, left, model = cpu[fits], left[fits], model[fits]
        before = potential(tables, cpu, left, model)
        scores[fits], device[fits] = _judge(tables, shape, cpu, left, model, before)
    return scores, device


def fitting(tables: Tables, shape: Shape, cpu: Ints, left: Ints, model: Ints) -> Bools:
    """Which nodes have the cpu, the devices and the model for the shape."""
    fits = cpu >= shape.cpu
    if shape.count:
        fits &= (left >= shape.milli).sum(axis=1) >= shape.count
        if shape.models:
            accepted = np.array([name in shape.models for name in tables.models], dtype=bool)
            fits &= accepted[model]
    return fits


def potential(tables: Tables, cpu: Ints, left: Ints, model: Ints) -> Ints:
    """How bad each node state is, without the scarcity of its model."""
    row = _row(tables, cpu, model)
    devices: Ints = tables.device.reshape(-1)[(row * (WHOLE + 1))[:, None] + left].sum(axis=1)
    free = (left == WHOLE).sum(axis=1)
    return devices + _whole(tables, row, free) + _stranded(tables, cpu, left.sum(axis=1), model)


def take(shape: Shape, left: Ints, device: int) -> list[int]:
    """The very devices of one node that the shape gets there."""
    if not shape.count:
        return []
    if shape.shared:
        return [device]
    return [int(which) for which in np.flatnonzero(left >= shape.milli)[: shape.count]]


class Packer:
    """A fleet, what is free of it, and the best place for each shape.

    Nodes are known by their index; of equally good ones the smallest wins, so a caller that wants
    another order gives the fleet in that order.
    """

    def __init__(self, fleet: Fleet, tables: Tables) -> None:
        self.cpu = fleet.cpu.copy()
        self.memory = fleet.memory.copy()
        self.left = fleet.devices.copy()
        self._model = fleet.model
        self._changed = np.zeros(len(self.cpu), dtype=np.int64)
        self._clock = 0
        self.learn(tables)

    def learn(self, tables: Tables) -> None:
        """Judges by other tables from now on."""
        self.tables = tables
        self._before = potential(tables, self.cpu, self.left, self._model)
        self._rows: dict[Shape, _Row] = {}

    def choose(self, shape: Shape) -> tuple[int, list[int]] | None:
        """The best node and its devices, or None where nothing fits."""
        row = self._fresh(shape)
        node = int(row.scores.argmax())
        if row.scores[node] == INFEASIBLE:
            return None
        return node, take(shape, self.left[node], int(row.device[node]))

    def scores(self, shape: Shape) -> tuple[Ints, Ints]:
        """`score` of every node, memory included. The arrays are the cache: do not change them."""
        row = self._fresh(shape)
        return row.scores, row.device

    def place(self, shape: Shape, node: int, devices: list[int]) -> None:
        """The shape takes its room. Nothing is checked again: `choose` or the caller did."""
        self._add(shape, node, devices, -1)

    def release(self, shape: Shape, node: int, devices: list[int]) -> None:
        """The shape gives its room back."""
        self._add(shape, node, devices, 1)

    def _add(self, shape: Shape, node: int, devices: list[int], sign: int) -> None:
        self.cpu[node] += sign * shape.cpu
        self.memory[node] += sign * shape.memory
        for device in devices:
            self.left[node, device] += sign * shape.milli
        one = slice(node, node + 1)
        self._before[one] = potential(self.tables, self.cpu[one], self.left[one], self._model[one])
        self._clock += 1
        self._changed[node] = self._clock

    def _fresh(self, shape: Shape) -> _Row:
        """The shape's scores, with nodes judged again that changed since it was last asked."""
        row = self._rows.get(shape)
        if row is None:
            row = self._rows[shape] = _Row(len(self.cpu))
            dirty = np.arange(len(self.cpu))
        else:
            dirty = np.flatnonzero(self._changed > row.seen)
        row.seen = self._clock
        if len(dirty):
            cpu, left, model = self.cpu[dirty], self.left[dirty], self._model[dirty]
            row.scores[dirty] = INFEASIBLE
            fits = fitting(self.tables, shape, cpu, left, model)
            fits &= self.memory[dirty] >= shape.memory
            here = np.flatnonzero(fits)
            if len(here):
                nodes = dirty[here]
                row.scores[nodes], row.device[nodes] = _judge(
                    self.tables, shape, cpu[here], left[here], model[here], self._before[nodes]
                )
        return row


class LearningPacker:
    """A `Packer` that knows nothing of demand but what it was asked for so far."""

    def __init__(self, fleet: Fleet) -> None:
        self._learner = packing_tables.Learner(fleet)
        self.packer = Packer(fleet, self._learner.tables)

    def choose(self, shape: Shape) -> tuple[int, list[int]] | None:
        if self._learner.observe(shape):
            self.packer.learn(self._learner.tables)
        return self.packer.choose(shape)

    def place(self, shape: Shape, node: int, devices: list[int]) -> None:
        self.packer.place(shape, node, devices)


class _Row:
    """Scores of one shape on every node as of moment `seen`."""

    __slots__ = ("device", "scores", "seen")

    def __init__(self, nodes: int) -> None:
        self.scores = np.full(nodes, INFEASIBLE)
        self.device = np.full(nodes, NO_DEVICE)
        self.seen = 0


def _judge(
    tables: Tables, shape: Shape, cpu: Ints, left: Ints, model: Ints, before: Ints
) -> tuple[Ints, Ints]:
    """Scores and devices on nodes that fit; `before` is their potential now."""
    rest = cpu - shape.cpu
    idle = left.sum(axis=1)
    after, device = _after(tables, shape, rest, left, model)
    after += _stranded(tables, rest, idle - shape.total, model)
    gain = before - after - tables.scarcity[model] * shape.total
    gain -= _imbalance(tables, shape, cpu, idle)
    return gain // round(tables.weights.band * UNIT), device


def _after(tables: Tables, shape: Shape, rest: Ints, left: Ints, model: Ints) -> tuple[Ints, Ints]:
    """Fragments less holes' worth after the placement, on the best device of each node."""
    row = _row(tables, rest, model)
    device = np.full(len(rest), NO_DEVICE)
    flat = tables.device.reshape(-1)
    start = (row * (WHOLE + 1))[:, None]
    now = flat[start + left]
    free = (left == WHOLE).sum(axis=1)
    total = now.sum(axis=1)
    if not shape.shared:
        total += shape.count * (flat[start[:, 0]] - flat[start[:, 0] + WHOLE])
        return total + _whole(tables, row, free - shape.count), device
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
    start: Ints = tables.kin[model] * (len(levels) + 1)
    return start + level


def _whole(tables: Tables, row: Ints, free: Ints) -> Ints:
    found: Ints = tables.whole.reshape(-1)[row * tables.whole.shape[2] + free]
    return found


def _stranded(tables: Tables, cpu: Ints, idle: Ints, model: Ints) -> Ints:
    """Expected leftover, between the four nearest entries of its table."""
    _, steps, width = tables.stranded.shape
    flat = tables.stranded.reshape(-1)
    cpu_step, cpu_part = np.divmod(cpu, packing_tables.CPU_STEP)
    idle_step, idle_part = np.divmod(idle, packing_tables.DEVICE_STEP)
    low = (tables.kin[model] * steps + cpu_step) * width + idle_step
    high = low + width
    near = flat[low] * (packing_tables.DEVICE_STEP - idle_part) + flat[low + 1] * idle_part
    far = flat[high] * (packing_tables.DEVICE_STEP - idle_part) + flat[high + 1] * idle_part
    mixed: Ints = near * (packing_tables.CPU_STEP - cpu_part) + far * cpu_part
    return mixed // (packing_tables.CPU_STEP * packing_tables.DEVICE_STEP)


def _imbalance(tables: Tables, shape: Shape, cpu: Ints, idle: Ints) -> Ints:
    """How far the node's cpu per device is from the shape's, on a logarithmic scale."""
    asked = shape.cpu / shape.total if shape.total else float(WHOLE)
    distance: Floats = np.abs(np.log1p(cpu / (idle + 1)) - np.log1p(asked))
    return np.rint(tables.weights.balance * UNIT * distance).astype(np.int64)
