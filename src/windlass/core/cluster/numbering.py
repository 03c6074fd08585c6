"""Numbers of nodes and domains. Nodes come and go: what is known of all others holds, under new
numbers.

Nodes are numbered by place and name, so that one more shifts many of them. Counting everything
again would cost as much as all that runs; `Numbers` tell where everything stands by now, and the
indexes of a snapshot (`carry_over`) are brought there in arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windlass.core.facts import Node

if TYPE_CHECKING:
    from windlass.core.cluster import Cluster

Ints = npt.NDArray[np.int64]

NOWHERE = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """Of what stood in one cluster: where it stands in the next."""

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


def between(old: Cluster, new: Cluster, changed: Container[str]) -> Numbers:
    """`changed`: names of nodes of which nothing is carried over."""
    node = np.full(len(old), NOWHERE, np.int64)
    for i, each in enumerate(old.nodes):
        if each.name not in changed:
            node[i] = new.index[each.name]
    width, by = old.bank.compute.shape[1], new.bank.compute.shape[1]
    return Numbers(node, (node[:, None] * by + np.arange(width)).reshape(-1))


def of_domains(nodes: Iterable[Node], depth: int) -> Ints:
    """Numbers domains of a level in the order of the nodes; a node outside has its own."""
    numbers: dict[tuple[str, ...], int] = {}
    ids = []
    for node in nodes:
        path = node.path[: depth + 1] if len(node.path) > depth else ("", node.name)
        ids.append(numbers.setdefault(path, len(numbers)))
    return np.array(ids, np.int64)
