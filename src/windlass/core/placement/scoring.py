"""Which of several places that fit is liked better: points of soft preferences, then price.

`place` asks only where a role has preferences or nodes have prices; else there is no `Taste`, and
the tightest place with the lowest index is taken. Points come before anything about packing,
prices after it: the cheaper of two places that are equally good.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import Cluster
from windlass.core.facts import Role

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Taste:
    points: Ints
    """Of each node, for one member."""
    price: Ints

    def nodes(self, among: Ints, room: Ints) -> Ints:
        """The nodes, best first: most points, least room, cheapest."""
        return among[np.lexsort((self.price[among], room, -self.points[among]))]

    def groups(self, among: Ints) -> Iterator[Ints]:
        """The nodes in groups of equal points, the best first; within one, the cheapest first."""
        points = self.points[among]
        cheap = np.argsort(self.price[among], kind="stable")
        for value in np.unique(points)[::-1]:
            yield among[cheap[points[cheap] == value]]

    def domains(self, ids: Ints, caps: Ints, sums: Ints, count: int) -> tuple[Ints, Ints]:
        """Domains with room for so many members, best first (most points, tightest, cheapest), and
        the points that each of these can give."""
        fitting: Ints = np.flatnonzero(sums >= count)
        points = _most(ids, caps, self.points, count)[fitting]
        price = -_most(ids, caps, -self.price, count)[fitting]
        order = np.lexsort((price, sums[fitting], -points))
        return fitting[order], points[order]

    def most(self, caps: Ints, count: int) -> int:
        """The most points that so many members can have anywhere."""
        return int(_most(np.zeros(len(caps), np.int64), caps, self.points, count)[0])


def of(cluster: Cluster, role: Role) -> Taste | None:
    """None: all nodes are liked alike."""
    if not role.prefers and not cluster.priced:
        return None
    return Taste(cluster.points(role.prefers), cluster.price)


def _most(ids: Ints, caps: Ints, worth: Ints, count: int) -> Ints:
    """Per domain, the largest sum of worth that so many members can have on its nodes."""
    order = np.lexsort((-worth, ids))
    ids, worth, room = ids[order], worth[order], np.minimum(caps[order], count)
    filled = np.cumsum(room)
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    before = filled - room
    before -= np.repeat(before[first], np.diff(np.append(first, len(ids))))
    taken = np.clip(count - before, 0, room)
    sums = np.zeros(int(ids[-1]) + 1 if len(ids) else 1, np.int64)
    np.add.at(sums, ids, taken * worth)
    return sums
