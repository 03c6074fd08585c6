"""NUMA nodes of all nodes: what a bundle may take there beside its devices, and what it holds.

A member with a bundle holds CPU and memory on the NUMA node that its devices are on. Members
without one float: the machine puts them where there is room, so they count for the node alone.
What is free on NUMA nodes stands in columns of its own beside the resources of `Cluster`, so that
taking, giving back, undoing, forks and rows of many members treat it like everything else. Only
members with a bundle ever look at these columns or write to them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.devices import Room
from windlass.core.facts import Node
from windlass.core.shapes import Shape

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Needs = tuple[tuple[int, int], ...]
"""(column, amount)"""

MANY = 1 << 40


def sizes(node: Node) -> Iterator[tuple[str, int]]:
    """What a node's NUMA nodes have, by the names of their columns."""
    for domain in node.numa:
        for name, amount in domain.allocatable.items():
            yield f"numa:{domain.id}:{name}", amount


def names(node: Node) -> tuple[str, ...]:
    return tuple(name for name, _ in sizes(node))


class Locality:
    def __init__(self, nodes: Sequence[Node], resources: Mapping[str, int]) -> None:
        self._columns: dict[int, dict[int, int]] = {}
        """NUMA node -> column of a resource -> column of what there is of it in that place."""
        self.columns: frozenset[int] = frozenset(
            resources[name] for node in nodes for name in names(node)
        )
        for node in nodes:
            for domain in node.numa:
                here = self._columns.setdefault(domain.id, {})
                for name in domain.allocatable:
                    if name in resources:
                        here[resources[name]] = resources[f"numa:{domain.id}:{name}"]
        self._said: Mask = np.zeros((len(resources), len(nodes)), np.bool_)
        """By column and node: whether the node says how much it has there."""
        for i, node in enumerate(nodes):
            self._said[[resources[name] for name in names(node)], i] = True

    def part(self, where: Ints) -> Locality:
        """Of some nodes only."""
        if not self._columns:
            return self
        twin = copy.copy(self)
        twin._said = self._said[:, where]
        return twin

    def rooms(self, shape: Shape, amounts: Ints, where: Ints | slice) -> list[Room] | None:
        """Of each of these nodes, how many members of a bundled shape CPU and memory of its NUMA
        nodes do for, of what `amounts` say is free; None: no node says, or nobody asks."""
        if not self._columns or not shape.bundle:
            return None
        found = []
        for columns in self._columns.values():
            fit = np.full(len(self._said[0, where]), MANY, np.int64)
            for column, need in shape.needs:
                if (inside := columns.get(column)) is not None:
                    part = amounts[inside, where] // need
                    np.minimum(fit, part, out=fit, where=self._said[inside, where])
            found.append(np.maximum(fit, 0).tolist())
        ids = list(self._columns)
        return [dict(zip(ids, each, strict=True)) for each in zip(*found, strict=True)]

    def inside(self, shape: Shape, node: int, numa: int) -> Needs:
        """What a member of a bundled shape holds on a NUMA node, as far as that is counted."""
        columns = self._columns.get(numa, {})
        return tuple(
            (columns[column], need)
            for column, need in shape.needs
            if column in columns and self._said[columns[column], node]
        )

    def missing(self, shape: Shape, amounts: Ints, where: Ints) -> dict[tuple[int, int], Ints]:
        """What one more member of a bundled shape would miss on each of these nodes, by NUMA node
        and column of the resource."""
        return {
            (numa, column): np.where(
                self._said[inside, where], np.maximum(need - amounts[inside, where], 0), 0
            )
            for numa, columns in self._columns.items()
            for column, need in shape.needs
            if (inside := columns.get(column)) is not None
        }

    def only(self, numa: int) -> Room:
        """Room for one member in one place, and nowhere else."""
        return {each: int(each == numa) for each in self._columns}
