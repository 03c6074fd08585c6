"""Domains to try for a workload of several shapes, or with terms about other pods."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.model.types import Topology
from windlass.core.placement.scoring import NodeScores

Ints = npt.NDArray[np.int64]
Where = Ints | None
"""Indexes of the nodes to use, ascending; None: all."""

DOMAIN_TRIES = 32
"""Domains tried before the answer is "unresolved"."""


def of(
    cluster: Cluster,
    topology: Topology | None,
    caps: Ints,
    count: int,
    node_scores: NodeScores | None,
) -> Iterator[Where]:
    """Domains that fit the scarcest shape, level by level, by score and then the tightest first."""
    if topology is not None and topology.level == "node":
        fitting = np.flatnonzero(caps >= count)
        capacity = caps[fitting]
        order = np.argsort(capacity, kind="stable")
        for node in fitting[order] if node_scores is None else node_scores.nodes(fitting, capacity):
            yield fitting[fitting == node]
        nearest = cluster.levels[-1] if cluster.levels else "node"
        topology = topology if topology.required else Topology(nearest)
    if topology is not None and topology.level in cluster.levels:
        start = cluster.levels.index(topology.level)
        stop = start - 1 if topology.required else -1
        for level in range(start, stop, -1):
            sums = cluster.by_domain(level, caps)
            fitting = np.flatnonzero(sums >= count)
            fitting = fitting[np.argsort(sums[fitting], kind="stable")]
            if node_scores is not None:
                fitting, _ = node_scores.domains(cluster.domains[level], caps, sums, count)
            for domain in fitting:
                yield cluster.nodes_in(level, int(domain))
    if topology is None or not topology.required:
        yield None
