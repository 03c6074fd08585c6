"""Placement of a workload: its minimum as a whole or nothing, near each other, tightly packed.

`place` allocates in the cluster it is given and returns the assignment, or leaves the cluster as it
was and returns what was missing. `decide`, explanations, reservations and preemption all call this
one function; they differ only in the cluster they pass.

For pods of one shape the answer is exact: each node takes up to its pod capacity, and sums over
domains show where a gang fits. Several shapes are placed one after another, the scarcest first;
where that fails although each alone fits, the answer is "unresolved", never "impossible".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import assignment_checks
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import Spot
from windlass.core.cluster.devices.partitions import Requested
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import DeviceRequest, Pack, PodAssignment, Topology, Workload
from windlass.core.placement import candidate_domains, pod_affinity, scoring
from windlass.core.placement.candidate_domains import Where
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure, Scorer
from windlass.core.placement.scoring import NodeScores

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def place(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """Pods for all requests of a workload, taken; or why not, and nothing is taken."""
    mark = context.cluster.mark()
    answer = _place(context, workload, requests)
    if isinstance(answer, PlacementFailure):
        context.cluster.rollback(mark)
    return answer


def _place(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    for request in requests:
        if context.pod_index.has_terms_for(workload, request.role):
            return pod_affinity.place(context, workload, requests)
    if len(requests) == 1:
        return _place_identical(context, workload, requests[0])
    return _place_several(context, workload, requests)


# --- pods of one shape -----------------------------------------------------------------------


def _place_identical(
    context: PlacementContext, workload: Workload, request: PodSetRequest
) -> tuple[PodAssignment, ...] | PlacementFailure:
    shape = context.shape(request.role)
    capacities = context.caps(shape)
    total = int(capacities.sum())
    if total < request.count:
        return PlacementFailure(
            request.role, request.count, total, resolved=shape.is_counted_exactly
        )
    best, resolved = 0, shape.is_counted_exactly
    node_scores = scoring.of(context.cluster, request.role)
    for where, sums in _domains(
        context.cluster, workload.topology, capacities, request.count, node_scores
    ):
        if sums is not None:
            best = max(best, sums)
            continue
        spots = _spread_over(
            context, workload.pack, shape, capacities, where, request.count, node_scores
        )
        pods = _allocate(context.cluster, shape, request, spots)
        if pods is not None:
            return pods
        resolved = False  # what was counted could not be taken together: that proves nothing
    return PlacementFailure(request.role, request.count, best, topology=True, resolved=resolved)


def _domains(
    cluster: Cluster,
    topology: Topology | None,
    capacities: Ints,
    count: int,
    node_scores: NodeScores | None,
) -> Iterator[tuple[Where, int | None]]:
    """Sets of nodes to try, best first: (nodes, None), or (None, capacity) for one too small.

    The tightest domain that fits, at the level asked for; when that is only preferred, the next
    wider level, and at last the whole cluster. A single pod is placed in any domain. A workload
    that asked for no level is kept together only where that costs it no points.
    """
    levels = list(cluster.levels)
    if topology is None or topology.level not in levels:
        if topology is not None and topology.required and topology.level not in ("node", *levels):
            yield None, 0
            return
        start = len(levels) - 1 if topology is None and count > 1 else -1
        if topology is not None and topology.level == "node":
            yield from _one_node(capacities, count, node_scores, required=topology.required)
            if topology.required:
                return
            start = len(levels) - 1
    else:
        start = levels.index(topology.level)
    required = topology is not None and topology.required
    for level in range(start, -1, -1):
        sums = cluster.by_domain(level, capacities)
        fitting = (sums >= count).nonzero()[0]
        if len(fitting) and node_scores is not None:
            order, scores = node_scores.domains(cluster.domains[level], capacities, sums, count)
            if topology is not None or scores[0] == node_scores.most(capacities, count):
                yield cluster.nodes_in(level, int(order[0])), None
        elif len(fitting):
            tightest = int(fitting[sums[fitting].argmin()])
            yield cluster.nodes_in(level, tightest), None
        elif required:
            yield None, int(sums.max(initial=0))
        if required:
            return
    if not required:
        yield None, None


def _one_node(
    capacities: Ints, count: int, node_scores: NodeScores | None, *, required: bool
) -> Iterator[tuple[Where, int | None]]:
    fitting = np.flatnonzero(capacities >= count)
    if len(fitting) and node_scores is not None:
        yield node_scores.nodes(fitting, capacities[fitting])[:1], None
    elif len(fitting):
        yield fitting[[int(np.argmin(capacities[fitting]))]], None
    elif required:
        yield None, int(capacities.max(initial=0))


def _spread_over(
    context: PlacementContext,
    pack: Pack,
    shape: Shape,
    capacities: Ints,
    where: Where,
    count: int,
    node_scores: NodeScores | None,
) -> list[Spot]:
    """How many pods go to which nodes; the caller made sure that there is capacity."""
    nodes = (capacities > 0).nonzero()[0] if where is None else where[capacities[where] > 0]
    if node_scores is None:
        return _arrange(context, pack, shape, nodes, capacities[nodes], count)
    spots: list[Spot] = []
    for some in node_scores.groups(nodes):
        part = min(count, int(capacities[some].sum()))
        spots += _arrange(context, pack, shape, some, capacities[some], part)
        count -= part
        if not count:
            break
    return spots


def _arrange(
    context: PlacementContext, pack: Pack, shape: Shape, nodes: Ints, capacity: Ints, count: int
) -> list[Spot]:
    """`count` pods over nodes of equal score; of equal nodes the first are taken."""
    if pack == "spread":
        return _evenly(nodes, capacity, count)
    scorer = context.scorer if pack == "fragmentation" else None
    if scorer is not None and not scorer.is_informed(context.cluster, shape):
        scorer = None
    if not shape.requests:
        return _without_devices(context.cluster, scorer, shape, nodes, capacity, count)
    if count == 1 and shape.is_one_partition:
        requested = scorer.requested_profiles(context.cluster, shape) if scorer else ()
        return [_least_blocking(context.cluster, shape.requests[0], nodes, capacity, requested)]
    if scorer is None:
        return _tightly(nodes, capacity, count)
    return scorer.assign(context.cluster, shape, nodes, capacity, count)


def _without_devices(
    cluster: Cluster, scorer: Scorer | None, shape: Shape, nodes: Ints, capacity: Ints, count: int
) -> list[Spot]:
    """Pods that need no device go to nodes without devices: the others are for pods that need them.
    With a scorer, pods that do not fit there go where devices stay the most useful."""
    beside: list[Spot] = []
    if scorer is not None:
        wanted = scorer.wanted(cluster)[nodes]
        rest = max(0, count - int(capacity[~wanted].sum()))
        if rest:
            beside = scorer.assign(cluster, shape, nodes[wanted], capacity[wanted], rest)
        nodes, capacity, count = nodes[~wanted], capacity[~wanted], count - rest
    if not count:
        return beside
    devices = cluster.device_table.unlocked[nodes]
    return [*_tightly(nodes, capacity, count, devices if devices.any() else None), *beside]


def _tightly(nodes: Ints, capacity: Ints, count: int, avoid: Ints | None = None) -> list[Spot]:
    """Fewest nodes, and for what is left over the one with the least capacity that still fits."""
    key = capacity if avoid is None else avoid * (1 << 20) + np.minimum(capacity, (1 << 20) - 1)
    if count == 1:  # there is capacity for one on each of them
        return [(int(nodes[key.argmin()]), 1, ())]
    spots: list[Spot] = []
    holds = (capacity >= count).nonzero()[0]
    if not len(holds):
        # Whole nodes first, the roomiest of them; of equal ones the first.
        order = np.lexsort((-capacity,) if avoid is None else (-capacity, avoid))
        filled = np.cumsum(capacity[order])
        whole = int(np.searchsorted(filled, count, side="right"))
        spots = [(int(nodes[i]), int(capacity[i]), ()) for i in order[:whole]]
        count -= int(filled[whole - 1]) if whole else 0
        if count == 0:
            return spots
        rest = order[whole:]
        holds = rest[capacity[rest] >= count]
    last = int(holds[key[holds].argmin()])
    return [*spots, (int(nodes[last]), count, ())]


def _least_blocking(
    cluster: Cluster, request: DeviceRequest, nodes: Ints, capacity: Ints, requested: Requested
) -> Spot:
    """The position of one partition that blocks the fewest other placements, over all nodes; of
    equal ones on the node with the least capacity, then on the first."""
    by_class: dict[tuple[int, bytes], int] = {}
    for i, placement_class in enumerate(cluster.device_table.signatures(nodes)):
        known = by_class.setdefault(placement_class, i)
        if capacity[i] < capacity[known]:
            by_class[placement_class] = i
    places = (
        (*found, i)
        for i in by_class.values()
        if (found := cluster.device_table.cheapest_partition(request, int(nodes[i]), requested))
    )
    _, _, position, best = min(places, key=lambda each: (*each[:2], capacity[each[3]], each[3]))
    return int(nodes[best]), 1, (position,)


def _evenly(nodes: Ints, capacity: Ints, count: int) -> list[Spot]:
    """One each to the emptiest nodes; in rounds when there are more pods than nodes."""
    order = np.argsort(-capacity, kind="stable")
    nodes, capacity = nodes[order], capacity[order]
    taken = np.zeros(len(nodes), np.int64)
    while count > 0:
        open_nodes = np.flatnonzero(taken < capacity)
        rounds = max(1, count // len(open_nodes))
        rounds = min(rounds, int((capacity - taken)[open_nodes].min()))
        some = open_nodes if count >= len(open_nodes) * rounds else open_nodes[:count]
        taken[some] += rounds
        count -= rounds * len(some)
    return [(int(node), int(n), ()) for node, n in zip(nodes, taken, strict=True) if n]


def _allocate(
    cluster: Cluster, shape: Shape, request: PodSetRequest, spots: Sequence[Spot]
) -> tuple[PodAssignment, ...] | None:
    mark = cluster.mark()
    pods: list[PodAssignment] = []
    index, name = request.first, request.role.name
    for node, count, preferred in spots:
        grants = cluster.take(shape, node, count, preferred)
        if grants is None:
            cluster.rollback(mark)
            return None
        node_name = cluster.nodes[node].name
        pods += [PodAssignment(name, i, node_name, grant) for i, grant in enumerate(grants, index)]
        index += len(grants)
    return tuple(pods)


# --- several shapes -----------------------------------------------------------------------------


def _place_several(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """Scarcest shape first, in one domain if the workload asks for one."""
    cluster = context.cluster
    by_scarcity = sorted(requests, key=lambda request: _slack(context, request))
    for request in by_scarcity:
        shape = context.shape(request.role)
        capacity = int(context.caps(shape).sum())
        if capacity < request.count:
            return PlacementFailure(
                request.role, request.count, capacity, resolved=shape.is_counted_exactly
            )
    first = by_scarcity[0]
    capacities = context.caps(
        context.shape(first.role)
    ).copy()  # as it is now, not while it is being tried
    failure = PlacementFailure(first.role, first.count, 0, topology=True)
    node_scores = scoring.of(cluster, first.role)
    domains = candidate_domains.of(cluster, workload.topology, capacities, first.count, node_scores)
    for tries, where in enumerate(domains):
        if tries >= candidate_domains.DOMAIN_TRIES or context.work.exhausted:
            return dataclasses.replace(failure, resolved=False)
        answer = _all_in(context, workload, by_scarcity, where)
        if isinstance(answer, PlacementFailure):
            answer = _all_in(context, workload, by_scarcity[::-1], where)
        if not isinstance(answer, PlacementFailure):
            return answer
        failure = answer
    # Each role fits alone; that they do not fit together in this order proves nothing.
    required = workload.topology is not None and workload.topology.required
    return dataclasses.replace(failure, topology=required, resolved=False)


def _slack(context: PlacementContext, request: PodSetRequest) -> tuple[float, str]:
    capacity = int(context.caps(context.shape(request.role)).sum())
    return capacity / max(1, request.count), request.role.name


def _all_in(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest], where: Where
) -> tuple[PodAssignment, ...] | PlacementFailure:
    mark = context.cluster.mark()
    pods: list[PodAssignment] = []
    for request in requests:
        shape = context.shape(request.role)
        capacities = context.caps(shape)
        capacity = int((capacities if where is None else capacities[where]).sum())
        if capacity >= request.count:
            node_scores = scoring.of(context.cluster, request.role)
            spots = _spread_over(
                context, workload.pack, shape, capacities, where, request.count, node_scores
            )
            sat = _allocate(context.cluster, shape, request, spots)
            if sat is not None:
                pods += sat
                continue
        context.cluster.rollback(mark)
        return PlacementFailure(request.role, request.count, capacity)
    order = {request.role.name: i for i, request in enumerate(requests)}
    return tuple(sorted(pods, key=lambda pod: (order[pod.role], pod.index)))


def allocate_exact(cluster: Cluster, workload: Workload, pods: Sequence[PodAssignment]) -> bool:
    """Allocates exactly these pods if all of their resources are free, else nothing; returns
    whether."""
    roles, mark = {role.name: role for role in workload.roles}, cluster.mark()
    for pod in pods:
        if not assignment_checks.admits(cluster, roles[pod.role], pod):
            cluster.rollback(mark)
            return False
        cluster.occupy(roles[pod.role], pod)
    return True
