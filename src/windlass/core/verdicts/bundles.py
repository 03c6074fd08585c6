"""What keeps a bundle waiting where everything it needs is free, but not in one place of a node.

`verdicts` asks, for the sentence; nothing is decided by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.model.equivalence import Shape

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MOST_TRIES = 64
"""Places of which it is looked up whether the devices are free there, the nearest first."""


class Apart(NamedTuple):
    members: int
    """How many pods would fit without the bundle."""
    resource: str = ""
    """What the place that comes nearest has too little of; "": none has the devices."""
    missing: int = 0


def now(cluster: Cluster, shape: Shape) -> Apart:
    """With what is free: what the first pod that does not fit is short of."""
    loose = cluster.shapes.unbundled(shape)
    caps, without = (
        cluster.pod_capacity(shape),
        cluster.pod_capacity_at(loose, np.arange(len(cluster))),
    )
    if caps.sum() == without.sum():
        return Apart(int(caps.sum()))
    scratch = cluster.fork(())
    for node in np.flatnonzero(caps).tolist():
        scratch.take(shape, node, int(caps[node]))
    return Apart(int(without.sum()), *_nearest(scratch, shape, np.flatnonzero(without > caps)))


def when_empty(cluster: Cluster, shape: Shape) -> Apart:
    """For a shape of which not one member fits even on empty nodes."""
    without = cluster.empty_pod_capacity(cluster.shapes.unbundled(shape))
    return Apart(
        int(without.sum()), *_nearest(cluster.emptied(), shape, np.flatnonzero(without))
    )  # fmt: skip


def _nearest(scratch: Cluster, shape: Shape, where: Ints) -> tuple[str, int]:
    """Of all NUMA nodes that have its devices, the one that lacks the least: of what, and how
    much. Takes devices of the cluster it is given."""
    needs = dict(shape.needs)
    missing = scratch.numa.missing(shape, scratch.free, where)
    parts: dict[int, Floats] = {}
    for (numa, column), amounts in missing.items():
        parts[numa] = parts.get(numa, np.zeros(len(where))) + amounts / needs[column]
    places = sorted(
        (float(lacks[at]), int(at), numa)
        for numa, lacks in parts.items()
        for at in np.argsort(lacks, kind="stable")[_first_short(lacks)]
    )
    names = {column: name for name, column in scratch.resources.items()}
    for _, at, numa in places[:MOST_TRIES]:
        if scratch.device_table.take(shape, int(where[at]), scratch.numa.only(numa)) is not None:
            here = {c: int(short[at]) for (n, c), short in missing.items() if n == numa}
            column = max(here, key=lambda c: (here[c] / needs[c], names[c]))
            return names[column], here[column]
    return "", 0


def _first_short(lacks: Floats) -> slice:
    """In their order, the first of those that lack anything."""
    enough = int((lacks == 0).sum())
    return slice(enough, enough + MOST_TRIES)
