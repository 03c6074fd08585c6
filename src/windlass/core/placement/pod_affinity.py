"""Pods with affinity, anti-affinity or spread terms about other pods.

The slow path of `place`: one pod at a time, each seeing those placed before it, as Kubernetes
defines the terms (symmetric anti-affinity and the first-of-its-kind rule included). Workloads
without such terms come here only if a running pod has an anti-affinity term about them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.pod_label_index import PodLabelIndex, Selector, matches, scoped, selector
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import (
    Affinity,
    Constraint,
    PodAssignment,
    Role,
    Spread,
    Toleration,
    Workload,
)
from windlass.core.placement import candidate_domains, scoring
from windlass.core.placement.placement_context import PlacementContext, PlacementFailure

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_ANY_TAINT = (Toleration(operator="Exists"),)


def place(
    context: PlacementContext, workload: Workload, requests: Sequence[PodSetRequest]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """Places one pod at a time; tries the domains of the workload's topology one after another."""
    first = requests[0]
    capacities = context.caps(context.shape(first.role))
    node_scores = scoring.of(context.cluster, first.role)
    failure = PlacementFailure(first.role, first.count, 0, resolved=False)
    tries = 0
    for where in candidate_domains.of(
        context.cluster, workload.topology, capacities, 1, node_scores
    ):
        if (tries := tries + 1) > candidate_domains.DOMAIN_TRIES or context.work.exhausted:
            return dataclasses.replace(failure, resolved=False, rule="")
        mark, pod_index = context.cluster.mark(), context.pod_index.fork()
        answer = _place_in(context, pod_index, workload, requests, where)
        if not isinstance(answer, PlacementFailure):
            return answer
        context.cluster.rollback(mark)
        failure = answer
    return failure


def matching_pods(pod_index: PodLabelIndex, workload: Workload, role: Role) -> tuple[int, ...]:
    """How many placed pods match the terms by which a pod wants others near, or is spread among
    them: the only terms by which another start can make a place feasible."""
    near = _near(workload, role)
    spread = (
        pod_index.total(_spread_over(workload, each), with_leaving=False) for each in role.spreads
    )
    return (*((pod_index.total(selector(*near)),) if near else ()), *spread)


def _near(workload: Workload, role: Role) -> list[Affinity]:
    return [scoped(term, workload) for term in role.affinities if term.required and not term.anti]


def _spread_over(workload: Workload, spread: Spread) -> Selector:
    return ((spread.match, frozenset((workload.namespace,))),)


def _place_in(
    context: PlacementContext,
    pod_index: PodLabelIndex,
    workload: Workload,
    requests: Sequence[PodSetRequest],
    where: Ints | None,
) -> tuple[PodAssignment, ...] | PlacementFailure:
    cluster = context.cluster
    pods: list[PodAssignment] = []
    for request in requests:
        shape = context.shape(request.role)
        for number in range(request.count):
            capacities, allowed, score = fitting(context, pod_index, workload, request.role)
            if where is not None:
                allowed &= np.isin(np.arange(len(cluster)), where)
            nodes = np.flatnonzero(allowed)
            if not len(nodes):
                return _no_node(context, pod_index, workload, request, number, where)
            capacity = -capacities[nodes] if workload.pack == "spread" else capacities[nodes]
            price = cluster.price[nodes]
            node = int(nodes[np.lexsort((nodes, price, capacity, -score[nodes]))[0]])
            grants = cluster.take(shape, node, 1)
            if grants is None:
                return PlacementFailure(request.role, request.count, number, resolved=False)
            name = cluster.nodes[node].name
            pods.append(PodAssignment(request.role.name, request.first + number, name, grants[0]))
            pod_index.move_one(workload, request.role, name, 1)
    return tuple(pods)


def _no_node(
    context: PlacementContext,
    pod_index: PodLabelIndex,
    workload: Workload,
    request: PodSetRequest,
    number: int,
    where: Ints | None,
) -> PlacementFailure:
    """No node takes the next pod, after so many: for want of capacity, or because of the terms."""
    shape = context.shape(request.role)
    free = context.caps(shape) > 0
    if where is not None:
        free &= np.isin(np.arange(len(free)), where)
    failure = PlacementFailure(request.role, request.count, number, resolved=False)
    if not free.any():
        # As for pods without terms: before the first pod, no capacity is the whole answer.
        certain = not number and where is None and shape.is_counted_exactly
        rule = f"its rules about other pods leave capacity for {number} of them" if number else ""
        return dataclasses.replace(failure, resolved=certain, rule=rule)
    terms = _excluding(context.cluster, pod_index, workload, request.role, free)
    placed = f"with {number} of its pods placed, " if number else ""
    return dataclasses.replace(failure, rule=f"{placed}{terms}")


def _excluding(
    cluster: Cluster, pod_index: PodLabelIndex, workload: Workload, role: Role, free: Mask
) -> str:
    """Which terms exclude how many of the nodes that have the capacity, and that those named before
    do not exclude."""
    found: list[tuple[str, Mask]] = []
    near = _near(workload, role)
    if near:
        name = f"its required pod affinity ({_keys(near)})"
        found.append((name, _near_all(cluster, pod_index, near, workload, role)))
    for term in (scoped(each, workload) for each in role.affinities):
        if term.required and term.anti:
            allowed = _here(cluster, term.key, pod_index.matching(selector(term))) == 0
            found.append((f"its required pod anti-affinity ({term.key})", allowed))
    for key, where in pod_index.repelling_terms(workload, role):
        allowed = _here(cluster, key, dict.fromkeys(where, 1)) == 0
        found.append((f"the required anti-affinity of running pods ({key})", allowed))
    spreads = [each for each in role.spreads if each.required]
    if spreads:
        allowed = np.ones(len(cluster), np.bool_)
        _judge_spreads(cluster, pod_index, workload, role, allowed, np.zeros(len(free), np.int64))
        found.append((f"its topology spread constraints ({_keys(spreads)})", allowed))
    total, parts = int(free.sum()), []
    for name, allowed in found:
        count = int((free & ~allowed).sum())
        if count:
            parts.append(f"{name} excludes {'it' if total == 1 else f'{count} of them'}")
        free = free & allowed  # terms of two pods about each other are named once
    have = "1 node has" if total == 1 else f"{total} nodes have"
    return f"{have} the capacity, but {' and '.join(parts)}"


def _keys(terms: Sequence[Affinity] | Sequence[Spread]) -> str:
    return ", ".join(dict.fromkeys(term.key for term in terms))


def fitting(
    context: PlacementContext, pod_index: PodLabelIndex, workload: Workload, role: Role
) -> tuple[Ints, Mask, Ints]:
    """For every node how many more pods of a role it has capacity for, whether one may be there by
    all that is asked, and how much it is preferred."""
    capacities = context.caps(context.shape(role))
    allowed, score = _judge(context.cluster, pod_index, workload, role)
    allowed &= capacities > 0
    return capacities, allowed, score


def _judge(
    cluster: Cluster, pod_index: PodLabelIndex, workload: Workload, role: Role
) -> tuple[Mask, Ints]:
    """Nodes where the terms allow one more pod, and how much each is preferred."""
    allowed = np.ones(len(cluster), np.bool_)
    score = np.zeros(len(cluster), np.int64)
    if role.prefers:
        score += cluster.preference_scores(role.prefers)
    near = _near(workload, role)
    if near:
        allowed &= _near_all(cluster, pod_index, near, workload, role)
    for term in (scoped(term, workload) for term in role.affinities):
        if term.required and not term.anti:
            continue
        here = _here(cluster, term.key, pod_index.matching(selector(term)))
        if term.required:
            allowed &= here == 0
        else:
            score += np.where(here > 0, -term.weight if term.anti else term.weight, 0)
    for key, nodes in pod_index.repelling_terms(workload, role):
        allowed &= _here(cluster, key, dict.fromkeys(nodes, 1)) == 0
    if role.spreads:
        _judge_spreads(cluster, pod_index, workload, role, allowed, score)
    return allowed, score


def _near_all(
    cluster: Cluster,
    pod_index: PodLabelIndex,
    terms: Sequence[Affinity],
    workload: Workload,
    role: Role,
) -> Mask:
    """Nodes that have, in the domain of every term, a pod that all of the terms are about. If
    there is none anywhere, a pod that matches its own terms may be the first."""
    there = pod_index.matching(selector(*terms))
    known = np.ones(len(cluster), np.bool_)
    allowed = np.ones(len(cluster), np.bool_)
    found = False
    for term in terms:
        here = _here(cluster, term.key, there)
        known &= cluster.domain(term.key) >= 0
        allowed &= here > 0
        found |= bool(here.any())
    if found or not all(
        workload.namespace in term.namespaces and matches(term, role.labels) for term in terms
    ):
        return allowed
    return known


def _judge_spreads(
    cluster: Cluster,
    pod_index: PodLabelIndex,
    workload: Workload,
    role: Role,
    allowed: Mask,
    score: Ints,
) -> None:
    """Only nodes that have the keys of all constraints of one strength are counted."""
    counted = {True: np.ones(len(cluster), np.bool_), False: np.ones(len(cluster), np.bool_)}
    for spread in role.spreads:
        counted[spread.required] &= cluster.domain(spread.key) >= 0
    for spread in role.spreads:
        ids = cluster.domain(spread.key)
        eligible = counted[spread.required] & _eligible(cluster, role, spread)
        asked = _spread_over(workload, spread)
        # As in Kubernetes, a selector without any condition matches no pod.
        there = pod_index.matching(asked, with_leaving=False) if spread.match else {}
        sums = _by_domain(cluster, ids, there, eligible)
        present = np.unique(ids[eligible])
        fewest = int(sums[present].min()) if len(present) else 0
        if len(present) < spread.min_domains:
            fewest = 0
        here = np.where(ids >= 0, sums[ids], 0)
        itself = 1 if matches(spread, role.labels) else 0
        if spread.required:
            allowed &= (ids >= 0) & (here + itself - fewest <= spread.skew)
        else:
            score -= here


def _eligible(cluster: Cluster, role: Role, spread: Spread) -> Mask:
    """Nodes that the constraint counts, by its policies for selectors and taints."""
    own = role.constraint
    tolerations = own.tolerations if spread.by_taints else _ANY_TAINT
    if spread.by_affinity:
        return cluster.mask(Constraint(own.selector, own.affinity, tolerations))
    return cluster.mask(Constraint(tolerations=tolerations))


def _here(cluster: Cluster, key: str, there: Mapping[str, int]) -> Ints:
    """For every node, how many are in its domain of a label; 0 where it has no such label."""
    if not there:
        return np.zeros(len(cluster), np.int64)
    ids = cluster.domain(key)
    return np.where(ids >= 0, _by_domain(cluster, ids, there)[ids], 0)


def _by_domain(
    cluster: Cluster, ids: Ints, there: Mapping[str, int], counted: Mask | None = None
) -> Ints:
    """Sums by number of the domain; the last is of no domain and stays 0."""
    sums = np.zeros(int(ids.max(initial=-1)) + 2, np.int64)
    at = [(cluster.index[node], count) for node, count in there.items() if node in cluster.index]
    if at:
        nodes, counts = np.array(at, np.int64).T
        keep = ids[nodes] >= 0
        if counted is not None:
            keep &= counted[nodes]
        np.add.at(sums, ids[nodes[keep]], counts[keep])
    return sums
