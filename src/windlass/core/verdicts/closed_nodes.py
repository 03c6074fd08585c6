"""Which nodes could hold a pod and take none now: cordoned, not ready, under pressure.

Called by `core.verdicts.messages`: opening one of these nodes may help.
"""

from __future__ import annotations

import numpy as np

from windlass.core.cluster import constraints
from windlass.core.cluster.cluster import Cluster
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import Constraint, Node

MOST_NAMED = 3
_CORDON = "node.kubernetes.io/unschedulable"
_CORDONED, _NOT_READY = "cordoned", "not ready"
_BY_TAINT = {
    _CORDON: _CORDONED,
    "node.kubernetes.io/not-ready": _NOT_READY,
    "node.kubernetes.io/unreachable": "unreachable",
    "node.kubernetes.io/memory-pressure": "under memory pressure",
    "node.kubernetes.io/disk-pressure": "under disk pressure",
    "node.kubernetes.io/pid-pressure": "short of process ids",
    "node.kubernetes.io/network-unavailable": "without network",
    "node.kubernetes.io/out-of-service": "out of service",
    "node.cloudprovider.kubernetes.io/uninitialized": "not initialised",
    "node.cloudprovider.kubernetes.io/shutdown": "shut down",
}


def remark(cluster: Cluster, shape: Shape) -> str:
    """The nodes by what closes them, as the end of a sentence; "" if there are none."""
    constraint = shape.constraint
    could = cluster.empty_pod_capacity(shape) > 0
    closed = could & ~(cluster.open & cluster.mask(constraint))
    named: dict[str, list[str]] = {}
    for i in np.flatnonzero(closed).tolist():
        why = _why(cluster.nodes[i], constraint)
        if why:
            named.setdefault(why, []).append(cluster.nodes[i].name)
    return "".join(f"; {_nodes(names)} {why}" for why, names in sorted(named.items()))


def _why(node: Node, constraint: Constraint) -> str:
    """What closes it; "" for a node that does not exist yet."""
    if node.cordoned:
        return _CORDONED
    keys = [
        taint.key
        for taint in node.taints
        if taint.key in constraints.CONDITION_TAINTS
        and taint.effect != "PreferNoSchedule"
        and not any(each.accepts(taint) for each in constraint.tolerations)
    ]
    for key, why in _BY_TAINT.items():
        if key in keys:
            return why
    return "" if node.ready else _NOT_READY


def _nodes(names: list[str]) -> str:
    """`node a is`, `nodes a, b and c are`, `nodes a, b, c and 4 more are`."""
    if len(names) == 1:
        return f"node {names[0]} is"
    if len(names) > MOST_NAMED:
        listed = f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    else:
        listed = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"nodes {listed} are"
