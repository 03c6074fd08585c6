"""Which nodes that do not exist yet would let waiting workloads start: the cheapest that suffice.

Workloads are tried in the order of their verdicts. Each uses what exists and what those before it
need; only what is still missing is added. Where nodes have prices, the fewest nodes that suffice
are taken from a list that is sorted by price per pod that they would hold.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import PodAssignment, Wanted, Workload
from windlass.core.placement import gang_placement
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure
from windlass.core.prefilter import equivalence_cache
from windlass.kinds.reasons import Reason

Ints = npt.NDArray[np.int64]
_HELPED_BY_NODES = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.RESERVED_UNTIL)
_FINE = 1 << 20
"""Prices per member are compared in such parts of a billionth."""


def run(state: DecisionState) -> None:
    """Finds the nodes that waiting workloads would use, in the order of their verdicts."""
    nodes = state.context.cluster.nodes
    missing = [i for i, node in enumerate(nodes) if node.ready and node.ready_in > 0]
    if not missing:
        return
    equivalence_cache.finish(state)
    cluster = state.context.cluster.fork()
    cluster.open_also(missing)
    context = PlacementContext(cluster, state.work, state.context.pod_index.fork())
    new = np.zeros(len(nodes), np.bool_)
    new[missing] = True
    there = ~new
    wanted: dict[str, list[str]] = {}
    for key, verdict in state.verdicts.items():
        if state.work.exhausted:
            break
        workload = state.snapshot.waiting.get(key)
        if workload is None or key in state.nominations or verdict.reason not in _HELPED_BY_NODES:
            continue
        pods = _pods(context, workload, there, np.flatnonzero(new & ~there))
        used = {pod.node for pod in pods}
        there[[cluster.index[name] for name in used]] = True
        for name in sorted(name for name in used if new[cluster.index[name]]):
            wanted.setdefault(name, []).append(key)
    state.wanted_nodes = [
        Wanted(name, tuple(workloads)) for name, workloads in sorted(wanted.items())
    ]


def _pods(
    context: PlacementContext, workload: Workload, there: npt.NDArray[np.bool_], more: Ints
) -> tuple[PodAssignment, ...]:
    """An assignment with few and cheap further nodes; none when all of them do not suffice."""
    requests = pod_sets.minimum(workload)
    if not context.cluster.priced:
        answer = gang_placement.place(context, workload, requests)
        return () if isinstance(answer, PlacementFailure) else answer
    more = _cheapest_first(context, requests, more)

    def try_with(count: int) -> tuple[PodAssignment, ...]:
        within = there.copy()
        within[more[:count]] = True
        answer = gang_placement.place(context.limited(within=within), workload, requests)
        return () if isinstance(answer, PlacementFailure) else answer

    mark = context.cluster.mark()
    low, high = 0, len(more)
    found = try_with(high)
    while found and low < high:
        middle = (low + high) // 2
        context.cluster.rollback(mark)
        if try_with(middle):
            high = middle
        else:
            low = middle + 1
        context.cluster.rollback(mark)
        if low == high:
            found = try_with(low)
    return found


def _cheapest_first(context: PlacementContext, requests: list[PodSetRequest], more: Ints) -> Ints:
    """By price per member that a node would hold, then the sooner; those that hold none are out."""
    holds = np.zeros(len(more), np.int64)
    for request in requests:
        holds += np.minimum(context.caps(context.shape(request.role))[more], request.count)
    useful = np.flatnonzero(holds)
    each = context.cluster.price[more[useful]] * _FINE // holds[useful]
    ready = np.array([context.cluster.nodes[i].ready_in for i in more[useful]])
    return more[useful[np.lexsort((ready, each))]]
