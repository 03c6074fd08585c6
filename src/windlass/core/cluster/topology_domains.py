"""The topology domain of each node at each level, and sums over domains.

Nodes of a domain stand together, because nodes are in the order of their topology path.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.model.types import Node

Ints = npt.NDArray[np.int64]


class TopologyDomains:
    def __init__(self, ids: Sequence[Ints]) -> None:
        self._ids = ids
        """By level, the number of each node's domain."""
        self._bounds: dict[int, tuple[Ints, Ints]] = {}

    @classmethod
    def of(cls, nodes: Sequence[Node], levels: int) -> TopologyDomains:
        return cls([_numbered(nodes, depth) for depth in range(levels)])

    def __getitem__(self, level: int) -> Ints:
        return self._ids[level]

    def part(self, where: Ints) -> TopologyDomains:
        """Of some of the nodes, ascending."""
        return TopologyDomains([ids[where] for ids in self._ids])

    def sums(self, level: int, counts: Ints) -> Ints:
        """Sums of a per-node count (the last axis) over the domains of a level."""
        ids, starts = self._of_level(level)
        if not len(ids):
            return counts[..., :0]
        sums = np.add.reduceat(counts, starts[:-1], axis=-1)
        if len(ids) == ids[-1] + 1:
            return sums
        found = np.zeros((*counts.shape[:-1], int(ids[-1]) + 1), np.int64)  # of a part
        found[..., ids] = sums
        return found

    def nodes(self, level: int, domain: int) -> Ints:
        """The nodes of one domain of a level, ascending."""
        ids, starts = self._of_level(level)
        at = int(ids.searchsorted(domain))
        return np.arange(starts[at], starts[at + 1])

    def _of_level(self, level: int) -> tuple[Ints, Ints]:
        """The domains of a level, ascending, and the first node of each; the last number is the
        number of nodes."""
        found = self._bounds.get(level)
        if found is None:
            ids = self._ids[level]
            starts = np.flatnonzero(np.diff(ids, prepend=-1))
            found = self._bounds[level] = (ids[starts], np.append(starts, len(ids)))
        return found


def _numbered(nodes: Iterable[Node], depth: int) -> Ints:
    """Numbers domains of a level in the order of the nodes; a node outside has its own."""
    numbers: dict[tuple[str, ...], int] = {}
    ids = []
    for node in nodes:
        path = node.path[: depth + 1] if len(node.path) > depth else ("", node.name)
        ids.append(numbers.setdefault(path, len(numbers)))
    return np.array(ids, np.int64)
