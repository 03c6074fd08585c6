"""How many members fit at most once running workloads are evicted: bounds that only shrink.

`preempt`, `foresight` and `departures` ask these before they try out an eviction in detail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windlass.core import arrays
from windlass.core.cluster import Cluster
from windlass.core.gauge import Gauge
from windlass.core.roster import Flat
from windlass.core.shadows import Held
from windlass.core.shapes import Shape

Ints = npt.NDArray[np.int64]


class Hope:
    """Some nodes of a cluster without what these hold there: how many members would fit at most.
    A bound for the whole decision, since room only shrinks."""

    def __init__(self, cluster: Cluster, where: Ints, flats: Sequence[Flat] = ()) -> None:
        self._part, width = cluster.part(where), cluster.bank.compute.shape[1]
        for flat in flats:
            self._part.shift(*arrays.rows_in(where, width, flat.members, flat.devices), +1)
        self.where = where
        self._caps: tuple[Gauge, Ints] | None = None
        """Of all who wait."""

    def gains(self, cluster: Cluster, shapes: Gauge, out: Ints) -> Ints:
        """By shape, how many more would fit there than fit now, but for nodes that are out."""
        if self._caps is None or self._caps[0] is not shapes:
            self._caps = (shapes, self._part.caps_of(shapes, slice(None)))
        more = np.maximum(self._caps[1] - cluster.kept_caps(shapes, self.where), 0)
        if len(out):
            promised = np.zeros(len(cluster), np.bool_)
            promised[out] = True
            more[:, promised[self.where]] = 0
        return np.asarray(more.sum(axis=1))

    def caps(self, shape: Shape) -> Ints:
        """By node of `where`."""
        return self._part.caps(shape)


def most_with(
    cluster: Cluster, hopes: Sequence[Hope], shape: Shape, level: str, beside: Sequence[Held]
) -> int:
    """Members that fit if all this came true: in one domain of the level, in all without one, away
    from nodes that were promised."""
    caps = cluster.caps_so_far(shape).copy()
    for hope in hopes:
        caps[hope.where] = np.maximum(caps[hope.where], hope.caps(shape))
    for held in beside:
        caps[held.nodes] = 0
    if level in cluster.levels:
        caps = cluster.by_domain(cluster.levels.index(level), caps)
    return int(caps.max(initial=0) if level else caps.sum())
