"""Workloads of queues that got far more than their share wait, while others wait below theirs.

Backfill gives capacity to any workload that delays no reservation. Small workloads can always use
what comes free in small pieces, so a queue of small workloads would keep nodes in pieces for ever,
beside queues that wait for whole ones. A queue whose claim is used up (`core.fairness.fair_share`)
therefore starts nothing on nodes that a queue below its claim could use. Other nodes stay open to
it, so that no capacity lies idle that others cannot use.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import UNIQUE
from windlass.core.model.types import Verdict, Workload
from windlass.core.verdicts import messages

Mask = npt.NDArray[np.bool_]

CHECK_AGAIN = 600.0
"""Seconds after which it is worth asking whether the claim has recovered."""


class _WantedNodes(dict[str, Mask]):
    """Parent queue -> nodes that its children below their claim could use."""


def overspent(state: DecisionState, workload: Workload) -> str:
    """The queue that has used up its claim, so that the workload must wait; empty: it need not."""
    if len(state.tree.queues) < 2:
        return ""
    queue = state.fair_shares.overspent(workload.queue, state.need(workload))
    if not queue:
        return ""
    wanted = _wanted_by_others(state, state.tree.queues[queue].parent)
    cluster = state.context.cluster
    for shape in state.info(workload).shapes:
        usable = cluster.empty_pod_capacity(shape) > 0
        if not (usable & ~wanted).any():
            return queue
    return ""


def refuse(state: DecisionState, workload: Workload, queue: str) -> Verdict:
    """The verdict. It holds for all workloads of the equivalence class until the decision ends."""
    state.wakeups.append(state.now + CHECK_AGAIN)
    return messages.lasting(state, workload, messages.over_share(workload, queue))


def _wanted_by_others(state: DecisionState, parent: str) -> Mask:
    """Nodes that waiting workloads of children below their claim could use if those were empty."""
    cache = state.cache(_WantedNodes)
    known = cache.get(parent)
    if known is None:
        cluster = state.context.cluster
        known = np.zeros(len(cluster), np.bool_)
        below = state.fair_shares.owed_below(parent)
        for name in below:
            below += state.tree.children.get(name, ())
            for kind in state.snapshot.equivalence_classes(name):
                if kind != UNIQUE:
                    for role in cluster.shapes.examples[kind].roles:
                        known |= cluster.empty_pod_capacity(cluster.shape_of(role)) > 0
        cache[parent] = known
    return known
