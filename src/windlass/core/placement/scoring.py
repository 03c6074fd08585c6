"""Scores of feasible nodes: soft preferences, then price.

`place` uses them only where a role has preferences or nodes have prices; else there is no
`NodeScores`, and the tightest place with the lowest index is taken. Preferences come before
anything about packing, prices after it: the cheaper of two places that are equally good.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.model.types import Role

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class NodeScores:
    scores: Ints
    """Of each node, for one pod."""
    price: Ints

    def nodes(self, among: Ints, capacity: Ints) -> Ints:
        """The nodes, best first: most points, least capacity, cheapest."""
        return among[np.lexsort((self.price[among], capacity, -self.scores[among]))]

    def groups(self, among: Ints) -> Iterator[Ints]:
        """The nodes in groups of equal points, the best first; within one, the cheapest first."""
        scores = self.scores[among]
        cheap = np.argsort(self.price[among], kind="stable")
        for value in np.unique(scores)[::-1]:
            yield among[cheap[scores[cheap] == value]]

    def domains(self, ids: Ints, capacities: Ints, sums: Ints, count: int) -> tuple[Ints, Ints]:
        """Domains with capacity for so many pods, best first (most points, tightest, cheapest), and
        the points that each of these can give."""
        fitting: Ints = np.flatnonzero(sums >= count)
        scores = _most(ids, capacities, self.scores, count)[fitting]
        price = -_most(ids, capacities, -self.price, count)[fitting]
        order = np.lexsort((price, sums[fitting], -scores))
        return fitting[order], scores[order]

    def most(self, capacities: Ints, count: int) -> int:
        """The most points that so many pods can have anywhere."""
        return int(_most(np.zeros(len(capacities), np.int64), capacities, self.scores, count)[0])


def of(cluster: Cluster, role: Role) -> NodeScores | None:
    """The scores of all nodes for a role; None: all nodes score the same."""
    if not role.prefers and not cluster.priced:
        return None
    return NodeScores(cluster.preference_scores(role.prefers), cluster.price)


def _most(ids: Ints, capacities: Ints, worth: Ints, count: int) -> Ints:
    """Per domain, the largest sum of worth that so many pods can have on its nodes."""
    order = np.lexsort((-worth, ids))
    ids, worth, capacity = ids[order], worth[order], np.minimum(capacities[order], count)
    filled = np.cumsum(capacity)
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    before = filled - capacity
    before -= np.repeat(before[first], np.diff(np.append(first, len(ids))))
    taken = np.clip(count - before, 0, capacity)
    sums = np.zeros(int(ids[-1]) + 1 if len(ids) else 1, np.int64)
    np.add.at(sums, ids, taken * worth)
    return sums
