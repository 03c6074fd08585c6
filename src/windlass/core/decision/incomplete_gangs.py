"""The missing pods of gangs that run, as workloads that wait.

They have the rights that the gang had when it waited. They go near the rest of it: into the domain
that the topology of the gang requires.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from windlass.core.calendar.advance_windows import Windows
from windlass.core.cluster.cluster import Cluster
from windlass.core.model import gangs
from windlass.core.model.types import Running, Workload
from windlass.core.snapshot.snapshot import Snapshot

Mask = npt.NDArray[np.bool_]


def find(snapshot: Snapshot, cluster: Cluster, windows: Windows | None) -> dict[str, Workload]:
    """By key of the gang, its missing pods."""
    found: dict[str, Workload] = {}
    for key in sorted(snapshot.running_index.growing):
        running = snapshot.running[key]
        missing = gangs.missing_pods(running)
        if missing:
            found[key] = _rest(cluster, windows, running, missing)
    return found


def _rest(
    cluster: Cluster, windows: Windows | None, running: Running, missing: dict[str, list[int]]
) -> Workload:
    names, roles = _names_near(cluster, running), []
    for role in running.workload.roles:
        count = len(missing.get(role.name, ()))
        if count:
            rest = role if windows is None else windows.growing(running, role)
            constraint = rest.constraint
            if names is not None:
                known = constraint.names
                both = names if known is None else names & known
                constraint = dataclasses.replace(constraint, names=both)
            roles.append(
                dataclasses.replace(rest, min_count=count, max_count=count, constraint=constraint)
            )
    return dataclasses.replace(running.workload, roles=tuple(roles), topology=None)


def _names_near(cluster: Cluster, running: Running) -> frozenset[str] | None:
    mask = required_domain(cluster, running)
    if mask is None:
        return None
    return frozenset(cluster.nodes[i].name for i in np.flatnonzero(mask).tolist())


def required_domain(cluster: Cluster, running: Running) -> Mask | None:
    """The nodes to which its running pods bind the workload; None: it may be anywhere."""
    topology = running.workload.topology
    required = topology is not None and topology.required
    return domain(cluster, running) if required else None


def domain(cluster: Cluster, running: Running) -> Mask | None:
    """Where its pods are, by the level that it asks for; None: it asks for none."""
    topology = running.workload.topology
    if topology is None:
        return None
    return cluster.domain_of(topology.level, (pod.node for pod in running.pods))
