"""Numbers of nodes, and how they change when nodes come and go.

Nodes are numbered by topology path and name, so that one more shifts many of them. Rebuilding
everything would cost as much as all running workloads; `Numbers` maps old numbers to new ones, and
the indexes of a snapshot (`carry_over`) are renumbered in arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core.model.types import Node

Ints = npt.NDArray[np.int64]

NOWHERE = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """From the row of a node in one cluster to its row in the next."""

    node: Ints
    """Old number -> new one; `NOWHERE`: it is gone, or not what it was."""
    device: Ints
    """The same of devices, by their flat numbers."""

    @property
    def carried(self) -> tuple[Ints, Ints]:
        """Nodes that are in both: their old numbers and their new ones."""
        was = np.flatnonzero(self.node != NOWHERE)
        return was, self.node[was]

    def by_node(self, known: npt.NDArray[Any], fresh: list[int], values: Sequence[int]) -> Any:
        """What is known by old numbers, by new ones; with what it is for nodes that are new."""
        was, now = self.carried
        found = np.zeros(len(now) + len(fresh), known.dtype)
        found[now], found[fresh] = known[was], values
        return found


def between(
    old: Sequence[Node], new: Mapping[str, int], widths: tuple[int, int], changed: Container[str]
) -> Numbers:
    """From the nodes of one cluster to the numbers of another. `widths`: devices per node in the
    tables of both. `changed`: names of nodes of which nothing is carried over."""
    node = np.full(len(old), NOWHERE, np.int64)
    for i, each in enumerate(old):
        if each.name not in changed:
            node[i] = new[each.name]
    width, by = widths
    return Numbers(node, (node[:, None] * by + np.arange(width)).reshape(-1))
