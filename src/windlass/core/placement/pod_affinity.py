"""Members that want to be near, away from, or evenly spread over other members, by labels.

The slow path of `place`: one member at a time, each seeing those placed before it, as Kubernetes
defines the terms (symmetric anti-affinity and the first-of-its-kind rule included). Units without
such terms never come here unless somebody who runs keeps them away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core.crowd import Crowd, Question, matches, question, scoped
from windlass.core.facts import Affinity, Constraint, Role, Seat, Spread, Toleration, Unit

if TYPE_CHECKING:
    from windlass.core.cluster import Cluster
    from windlass.core.place import Failure, Scene, Wish

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_ANY_TAINT = (Toleration(operator="Exists"),)


def place(scene: Scene, unit: Unit, wishes: Sequence[Wish]) -> tuple[Seat, ...] | Failure:
    """One member at a time; tries the domains of the unit's topology one after another."""
    from windlass.core import place as placing
    from windlass.core import taste

    first = wishes[0]
    caps = scene.caps(scene.shape(first.role))
    liked = taste.of(scene.cluster, first.role)
    failure = placing.Failure(first.role, first.count, 0, resolved=False)
    tries = 0
    for where in placing.candidate_domains(scene.cluster, unit.topology, caps, 1, liked):
        if (tries := tries + 1) > placing.DOMAIN_TRIES or scene.work.exhausted:
            break
        mark, crowd = scene.cluster.mark(), scene.crowd.fork()
        answer = _place_in(scene, crowd, unit, wishes, where)
        if not isinstance(answer, placing.Failure):
            return answer
        scene.cluster.rollback(mark)
        failure = answer
    return failure


def company(crowd: Crowd, unit: Unit, role: Role) -> tuple[int, ...]:
    """How many there are of those whom a member wants near, or is spread among: the only terms by
    which there may be a place for it that was not there before somebody else started."""
    near = _near(unit, role)
    spread = (crowd.total(_spread_over(unit, each), with_leaving=False) for each in role.spreads)
    return (*((crowd.total(question(*near)),) if near else ()), *spread)


def _near(unit: Unit, role: Role) -> list[Affinity]:
    return [scoped(term, unit) for term in role.affinities if term.required and not term.anti]


def _spread_over(unit: Unit, spread: Spread) -> Question:
    return ((spread.match, frozenset((unit.namespace,))),)


def _place_in(
    scene: Scene, crowd: Crowd, unit: Unit, wishes: Sequence[Wish], where: Ints | None
) -> tuple[Seat, ...] | Failure:
    from windlass.core import place as placing

    cluster = scene.cluster
    seats: list[Seat] = []
    for wish in wishes:
        shape = scene.shape(wish.role)
        for number in range(wish.count):
            caps, allowed, score = fitting(scene, crowd, unit, wish.role)
            if where is not None:
                allowed &= np.isin(np.arange(len(cluster)), where)
            nodes = np.flatnonzero(allowed)
            if not len(nodes):
                return placing.Failure(wish.role, wish.count, number, resolved=False)
            room = -caps[nodes] if unit.pack == "spread" else caps[nodes]
            price = cluster.price[nodes]
            node = int(nodes[np.lexsort((nodes, price, room, -score[nodes]))[0]])
            grants = cluster.take(shape, node, 1)
            if grants is None:
                return placing.Failure(wish.role, wish.count, number, resolved=False)
            name = cluster.nodes[node].name
            seats.append(Seat(wish.role.name, wish.first + number, name, grants[0]))
            crowd.move_one(unit, wish.role, name, 1)
    return tuple(seats)


def fitting(scene: Scene, crowd: Crowd, unit: Unit, role: Role) -> tuple[Ints, Mask, Ints]:
    """For every node how many more members of a role it has room for, whether one may be there by
    all that is asked, and how much it is preferred."""
    caps = scene.caps(scene.shape(role))
    allowed, score = _judge(scene.cluster, crowd, unit, role)
    allowed &= caps > 0
    return caps, allowed, score


def _judge(cluster: Cluster, crowd: Crowd, unit: Unit, role: Role) -> tuple[Mask, Ints]:
    """Nodes where the terms allow one more member, and how much each is preferred."""
    allowed = np.ones(len(cluster), np.bool_)
    score = np.zeros(len(cluster), np.int64)
    if role.prefers:
        score += cluster.points(role.prefers)
    near = _near(unit, role)
    if near:
        allowed &= _near_all(cluster, crowd, near, unit, role)
    for term in (scoped(term, unit) for term in role.affinities):
        if term.required and not term.anti:
            continue
        here = _here(cluster, term.key, crowd.matching(question(term)))
        if term.required:
            allowed &= here == 0
        else:
            score += np.where(here > 0, -term.weight if term.anti else term.weight, 0)
    for key, nodes in crowd.keeping_away(unit, role):
        allowed &= _here(cluster, key, dict.fromkeys(nodes, 1)) == 0
    if role.spreads:
        _judge_spreads(cluster, crowd, unit, role, allowed, score)
    return allowed, score


def _near_all(
    cluster: Cluster, crowd: Crowd, terms: Sequence[Affinity], unit: Unit, role: Role
) -> Mask:
    """Nodes that have, in the domain of every term, a member that all of the terms are about. If
    there is none anywhere, a member that matches its own terms may be the first."""
    there = crowd.matching(question(*terms))
    known = np.ones(len(cluster), np.bool_)
    allowed = np.ones(len(cluster), np.bool_)
    found = False
    for term in terms:
        here = _here(cluster, term.key, there)
        known &= cluster.domain(term.key) >= 0
        allowed &= here > 0
        found |= bool(here.any())
    if found or not all(
        unit.namespace in term.namespaces and matches(term, role.labels) for term in terms
    ):
        return allowed
    return known


def _judge_spreads(
    cluster: Cluster, crowd: Crowd, unit: Unit, role: Role, allowed: Mask, score: Ints
) -> None:
    """Only nodes that have the keys of all constraints of one strength are counted."""
    counted = {True: np.ones(len(cluster), np.bool_), False: np.ones(len(cluster), np.bool_)}
    for spread in role.spreads:
        counted[spread.required] &= cluster.domain(spread.key) >= 0
    for spread in role.spreads:
        ids = cluster.domain(spread.key)
        eligible = counted[spread.required] & _eligible(cluster, role, spread)
        asked = _spread_over(unit, spread)
        # As Kubernetes has it: a selector without any condition counts nobody.
        there = crowd.matching(asked, with_leaving=False) if spread.match else {}
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
    """Nodes that the constraint counts, by what it says about selectors and taints."""
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
