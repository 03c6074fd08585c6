"""NUMA accounting: what a bundle may take on a NUMA node beside its devices, and what it holds.

A pod with a bundle holds CPU and memory on the NUMA node that its devices are on. Pods without one
float: the machine puts them where there is capacity, so they count for the node alone. What is free
on NUMA nodes stands in columns of its own beside the resources of `Cluster`, so that allocation,
release, undo, forks and rows of many pods treat it like every other resource. Only pods with a
bundle read or write these columns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.devices.device_table import DomainCapacity
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import Node

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


class NumaTopology:
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
        self._declared: Mask = np.zeros((len(resources), len(nodes)), np.bool_)
        """By column and node: whether the node reports how much it has there."""
        for i, node in enumerate(nodes):
            self._declared[[resources[name] for name in names(node)], i] = True

    def part(self, where: Ints) -> NumaTopology:
        """Of some nodes only."""
        if not self._columns:
            return self
        fork = copy.copy(self)
        fork._declared = self._declared[:, where]
        return fork

    def domain_capacities(
        self, shape: Shape, amounts: Ints, where: Ints | slice
    ) -> list[DomainCapacity] | None:
        """Per node, by NUMA node, how many pods of a bundled shape its free CPU and memory
        (`amounts`) suffice for; None: no node reports NUMA resources, or the shape needs none."""
        if not self._columns or not shape.bundle:
            return None
        found = []
        for columns in self._columns.values():
            fit = np.full(len(self._declared[0, where]), MANY, np.int64)
            for column, need in shape.needs:
                if (inside := columns.get(column)) is not None:
                    part = amounts[inside, where] // need
                    np.minimum(fit, part, out=fit, where=self._declared[inside, where])
            found.append(np.maximum(fit, 0).tolist())
        ids = list(self._columns)
        return [dict(zip(ids, each, strict=True)) for each in zip(*found, strict=True)]

    def inside(self, shape: Shape, node: int, numa: int) -> Needs:
        """What a pod of a bundled shape holds on a NUMA node, as far as that is counted."""
        columns = self._columns.get(numa, {})
        return tuple(
            (columns[column], need)
            for column, need in shape.needs
            if column in columns and self._declared[columns[column], node]
        )

    def missing(self, shape: Shape, amounts: Ints, where: Ints) -> dict[tuple[int, int], Ints]:
        """What one more pod of a bundled shape would miss on each of these nodes, by NUMA node
        and column of the resource."""
        return {
            (numa, column): np.where(
                self._declared[inside, where], np.maximum(need - amounts[inside, where], 0), 0
            )
            for numa, columns in self._columns.items()
            for column, need in shape.needs
            if (inside := columns.get(column)) is not None
        }

    def only(self, numa: int) -> DomainCapacity:
        """Capacity for one pod in one place, and nowhere else."""
        return {each: int(each == numa) for each in self._columns}
