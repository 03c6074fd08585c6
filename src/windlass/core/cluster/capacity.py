"""Per shape and node, how many more pods fit, in one table that is copied and updated as a whole.

`Cluster` keeps one for itself and one for each of its forks, and marks the rows that are out of
date.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.request_matrix import RequestMatrix
from windlass.core.model.equivalence import Shape

Ints = npt.NDArray[np.int64]

Mask = npt.NDArray[np.bool_]

UNKNOWN = -1
FEW = 10
"""On up to this many nodes counting one by one is cheaper: every placed pod causes the next
question, and arrays of one or two elements cost ten times as much."""
FEW_NODES = 128
"""For up to this many nodes all needs of a shape are divided in one call. With more nodes, one
division per resource is cheaper than fewer calls."""
_MANY = 1 << 40


class CapacityCache:
    """What fits where, per shape, in one table, so that all of it is copied and brought up to date
    at once."""

    def __init__(self, nodes: int) -> None:
        self.table: Ints = np.zeros((0, nodes), np.int64)
        self.row: dict[int, int] = {}
        """Shape id -> row."""
        self.seen: list[int] = []
        """By row, how many changes it knows of."""
        self.totals: list[int] = []
        """By row, the sum over all nodes; `UNKNOWN`: not computed yet."""
        self._shapes: list[Shape] = []
        self._requests: RequestMatrix | None = None

    def add(self, shape: Shape, capacities: Ints, seen: int) -> Ints:
        row = len(self.row)
        if row == len(self.table):
            more = np.zeros((max(4, row), self.table.shape[1]), np.int64)
            self.table = np.concatenate([self.table, more])
        self.row[shape.id], self._requests = row, None
        self._shapes.append(shape)
        self.seen.append(seen)
        self.totals.append(UNKNOWN)
        kept: Ints = self.table[row]
        kept[:] = capacities
        return kept

    def requests(self, resources: int) -> RequestMatrix:
        if self._requests is None:
            self._requests = RequestMatrix(self._shapes, resources)
        return self._requests

    def total(self, shape: Shape) -> int:
        row = self.row[shape.id]
        if self.totals[row] == UNKNOWN:
            self.totals[row] = int(self.table[row].sum())
        return self.totals[row]

    def put(self, nodes: Ints, capacities: Ints) -> None:
        """What fits on some nodes, by row."""
        rows = slice(len(self.row))
        more = (capacities.sum(axis=1) - self.table[rows, nodes].sum(axis=1)).tolist()
        self.table[rows, nodes] = capacities
        known = zip(self.totals, more, strict=True)
        self.totals = [UNKNOWN if total == UNKNOWN else total + n for total, n in known]

    def all_at(self, version: int) -> None:
        self.seen = [version] * len(self.row)

    def only(self, shapes: Iterable[Shape]) -> CapacityCache:
        """Without all others."""
        found = CapacityCache(self.table.shape[1])
        for shape in shapes:
            if shape.id in self.row:
                row = self.row[shape.id]
                found.add(shape, self.table[row], self.seen[row])
        return found

    def unreserved(self) -> CapacityCache:
        """Without shapes that advance reservations hold something back from: what is held back
        belongs to one layout of nodes and is counted again in another."""
        if not any(shape.constraint.reserved for shape in self._shapes):
            return self
        return self.only([each for each in self._shapes if not each.constraint.reserved])

    def carried_over(self, nodes: int, was: Ints, now: Ints) -> CapacityCache:
        """Of these nodes under other numbers; of others nothing is known."""
        fork = self.copy()
        fork.table = np.zeros((len(self.table), nodes), np.int64)
        fork.table[:, now] = self.table[:, was]
        fork.totals = [UNKNOWN] * len(self.row)
        fork.all_at(0)
        return fork

    def copy(self) -> CapacityCache:
        fork = copy.copy(self)
        fork.table, fork.row = self.table.copy(), dict(self.row)
        fork.seen, fork.totals = list(self.seen), list(self.totals)
        fork._shapes = list(self._shapes)
        return fork


def count_on(
    nodes: Iterable[int],
    capacities: Ints,
    shape: Shape,
    free: Ints,
    unlocked: Ints,
    whole: int,
    usable: Mask | None,
) -> None:
    """Writes how many pods fit on a few nodes, for a plain shape whose pods take `whole` devices
    each, any that are free."""
    for node in nodes:
        fit = unlocked.item(node) // whole if whole else _MANY
        for column, need in shape.needs:
            fit = min(fit, free.item(column, node) // need)
        capacities[node] = max(0, fit) if usable is None or usable[node] else 0


def fit_amounts(shape: Shape, amounts: Ints, where: Ints | slice) -> Ints:
    """Pods that each of these nodes has enough of everything for, which they may have too little
    of: then it is below 0."""
    if not shape.needs:
        return np.full(amounts[:0, where].shape[1:], _MANY, np.int64)
    if not isinstance(where, slice) and len(where) <= FEW_NODES:
        columns, each = shape.in_arrays
        return np.asarray(np.minimum.reduce(amounts[columns, where] // each, axis=0))
    parts = (amounts[column][where] // need for column, need in shape.needs)
    return functools.reduce(lambda fit, part: np.minimum(fit, part, out=fit), parts)
