"""The needs of many shapes in arrays, so that one operation answers for all of them.

After every change the cluster recounts how many pods of tens of shapes fit, and preemption asks for
upper bounds of many shapes. Asked one by one, the calls cost more than the counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import Constraint, DeviceRequest

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Key = TypeVar("Key")

MANY = 1 << 40


class Sums(NamedTuple):
    """What some nodes have."""

    free: Ints
    """By column of the cluster's resources, in all of them."""
    unlocked: Ints
    """By node, devices without any allocated part."""
    compute: Ints
    """Of each device that shares can be had of."""
    memory: Ints


class Left(NamedTuple):
    """The same, node by node."""

    free: Ints
    """By column of the cluster's resources and node."""
    unlocked: Ints
    compute: Ints
    """By node and device."""
    memory: Ints
    shared: Mask
    """Devices that shares can be had of."""

    def sums(self) -> Sums:
        shared = self.shared
        return Sums(self.free.sum(axis=1), self.unlocked, self.compute[shared], self.memory[shared])


class RequestMatrix:
    def __init__(self, shapes: Iterable[Shape], resources: int) -> None:
        self.shapes: Sequence[Shape] = list(shapes)
        self.number = {shape.id: i for i, shape in enumerate(self.shapes)}
        """Of a shape: which row of the answers is about it."""
        self._needs: Ints = np.zeros((len(self.shapes), resources), np.int64)
        for i, shape in enumerate(self.shapes):
            for column, need in shape.needs:
                self._needs[i, column] = need
        self._asks = self._needs > 0
        self._asked = np.flatnonzero(self._asks.any(axis=0)).tolist()
        """Columns that any of them needs something of."""
        self._needs[~self._asks] = 1
        self._whole: Ints = np.array([_whole(shape) for shape in self.shapes], np.int64)
        rows, requests = range(len(self.shapes)), [shape.requests for shape in self.shapes]
        self.by_request: dict[DeviceRequest, Ints] = _grouped(
            (request, i) for i in rows for request in requests[i]
        )
        self.by_constraint: dict[Constraint, Ints] = _grouped(
            (shape.constraint, i) for i, shape in enumerate(self.shapes)
        )
        plain = [(i, s.requests[0]) for i, s in enumerate(self.shapes) if s.is_plain and s.requests]
        self.requests = list(dict.fromkeys(request for _, request in plain))
        """For devices, of all that ask for nothing intricate."""
        self.requesting = np.array([i for i, _ in plain], np.int64)
        """Which of the shapes those are, and which of the requests is theirs."""
        self.requested = np.array([self.requests.index(each) for _, each in plain], np.int64)
        self.intricate = [(i, shape) for i, shape in enumerate(self.shapes) if not shape.is_plain]
        """Shapes for which sums over single resources do not determine how many fit."""

    def by_amounts(self, free: Ints) -> Ints:
        """By shape and column of `free` (resources by anything), how many pods it does for."""
        fit = np.full((len(self.shapes), free.shape[1]), MANY, np.int64)
        for column in self._asked:
            need = self._needs[:, column, None]
            np.minimum(fit, free[column] // need, out=fit, where=self._asks[:, column, None])
        return fit

    def fit_on(self, rows: Ints, left: Left) -> Ints:
        """By each of some shapes: no more than so many on nodes that have so much left each."""
        fit = np.full((len(rows), left.free.shape[1]), MANY, np.int64)
        whole = self._whole[rows, None]
        np.minimum(fit, left.unlocked // np.maximum(whole, 1), out=fit, where=whole > 0)
        for column in self._asked:
            need, amounts = self._needs[rows, column, None], left.free[column]
            np.minimum(fit, amounts // need, out=fit, where=self._asks[rows, column, None])
        shared = dict[DeviceRequest, Ints]()
        for i, row in enumerate(rows.tolist()):
            for request in self.shapes[row].requests:
                if request.form == "share":
                    if request not in shared:
                        each = shares(left.compute, left.memory, request) * left.shared
                        shared[request] = arrays.row_sums(each)
                    np.minimum(fit[i], shared[request], out=fit[i])
        return np.asarray(fit.sum(axis=1))

    def most(self, everywhere: Sequence[Sums]) -> Ints:
        """By each of the sums and by shape: no more than so many."""
        fit = self.by_amounts(np.array([sums.free for sums in everywhere], np.int64).T)
        unlocked = _Joined([sums.unlocked for sums in everywhere])
        compute = _Joined([sums.compute for sums in everywhere])
        memory = _Joined([sums.memory for sums in everywhere])
        for request, rows in self.by_request.items():
            if request.form == "whole":
                found = unlocked.sums(unlocked.values // request.count)
            elif request.form == "share":
                found = compute.sums(shares(compute.values, memory.values, request))
            else:
                continue
            fit[rows] = np.minimum(fit[rows], found)
        return fit.T


class _Joined:
    """Arrays one after another, to be summed up one by one."""

    def __init__(self, arrays: Sequence[Ints]) -> None:
        self.values = np.concatenate(arrays)
        self._ends = np.cumsum([0, *(len(each) for each in arrays)])

    def sums(self, values: Ints) -> Ints:
        total = np.concatenate([[0], np.cumsum(values)])
        return np.asarray(np.diff(total[self._ends]))


def _whole(shape: Shape) -> int:
    """Devices that each pod needs to itself."""
    return max((each.count for each in shape.requests if each.form == "whole"), default=0)


def shares(compute: Ints, memory: Ints, request: DeviceRequest) -> Ints:
    """How many of such shares each of some devices does for."""
    if not request.memory:
        each = request.compute
        return compute // each if each else np.full(compute.shape, MANY, np.int64)
    fit = memory // request.memory
    return np.minimum(fit, compute // request.compute) if request.compute else fit


def _grouped(pairs: Iterable[tuple[Key, int]]) -> dict[Key, Ints]:
    found: dict[Key, list[int]] = {}
    for key, row in pairs:
        found.setdefault(key, []).append(row)
    return {key: np.array(rows, np.int64) for key, rows in found.items()}
