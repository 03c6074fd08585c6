"""How many pods fit at most once running workloads are evicted: bounds that only shrink.

They are asked before an eviction is simulated in detail.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.request_matrix import RequestMatrix
from windlass.core.decision.shadows import Reservation
from windlass.core.model.equivalence import Shape
from windlass.core.snapshot.running_index import ResourceRows

Ints = npt.NDArray[np.int64]

NOT_ENOUGH = "preempting every workload that it may preempt would not free enough capacity"


class CapacityBound:
    """How many pods would fit at most on some nodes without these eviction units. It holds for the
    whole decision, because free capacity only shrinks."""

    def __init__(self, cluster: Cluster, where: Ints, flats: Sequence[ResourceRows] = ()) -> None:
        self._part, width = cluster.part(where), cluster.device_table.compute.shape[1]
        for flat in flats:
            self._part.shift(*arrays.rows_in(where, width, flat.members, flat.devices), +1)
        self.where = where
        self._caps: tuple[RequestMatrix, Ints] | None = None
        """Of all waiting workloads."""

    def gains(self, cluster: Cluster, shapes: RequestMatrix, out: Ints) -> Ints:
        """By shape, how many more pods would fit there than fit now, without the nodes in `out`."""
        if self._caps is None or self._caps[0] is not shapes:
            self._caps = (shapes, self._part.pod_capacities(shapes, slice(None)))
        more = np.maximum(self._caps[1] - cluster.cached_pod_capacity(shapes, self.where), 0)
        if len(out):
            reserved = np.zeros(len(cluster), np.bool_)
            reserved[out] = True
            more[:, reserved[self.where]] = 0
        return np.asarray(more.sum(axis=1))

    def caps(self, shape: Shape) -> Ints:
        """By node of `where`."""
        return self._part.pod_capacity(shape)


def most_with(
    cluster: Cluster,
    bounds: Sequence[CapacityBound],
    shape: Shape,
    level: str,
    reservations: Sequence[Reservation],
) -> int:
    """How many pods fit at most with all these bounds, outside reserved nodes: in one domain of the
    level, or in the cluster if there is no level."""
    caps = cluster.known_pod_capacity(shape).copy()
    for bound in bounds:
        caps[bound.where] = np.maximum(caps[bound.where], bound.caps(shape))
    for reservation in reservations:
        caps[reservation.nodes] = 0
    if level in cluster.levels:
        caps = cluster.by_domain(cluster.levels.index(level), caps)
    return int(caps.max(initial=0) if level else caps.sum())
