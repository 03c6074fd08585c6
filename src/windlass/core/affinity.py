"""Members that want to be near, away from, or evenly spread over other members, by labels.

The slow path of `place`: one member at a time, each seeing those placed before it, as Kubernetes
defines the terms (symmetric anti-affinity and the first-of-its-kind rule included). Units without
such terms never come here unless somebody who runs keeps others away.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from windlass.core import constraints
from windlass.core.facts import Affinity, Role, Running, Seat, Spread, Toleration, Unit

if TYPE_CHECKING:
    from windlass.core.cluster import Cluster
    from windlass.core.place import Failure, Scene, Wish

Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
K = TypeVar("K")
_ANY_TAINT = (Toleration(operator="Exists"),)
Kind = tuple[str, tuple[tuple[str, str], ...]]
"""Namespace and labels: members of one kind look alike to every term."""


class Crowd:
    """How many members of which labels are on which node, and whom they keep away."""

    def __init__(self) -> None:
        self._at: dict[str, Counter[Kind]] = {}
        self._repelling: dict[str, Counter[tuple[Affinity, str]]] = {}

    def fork(self) -> Crowd:
        twin = Crowd()
        twin._at = {node: table.copy() for node, table in self._at.items()}
        twin._repelling = {node: table.copy() for node, table in self._repelling.items()}
        return twin

    @property
    def repels(self) -> bool:
        """Whether anybody who is placed keeps others away."""
        return bool(self._repelling)

    def enter(self, running: Running) -> None:
        self._move(running.unit, running.seats, 1)

    def seat(self, unit: Unit, seats: Sequence[Seat]) -> None:
        """Members that a decision has placed."""
        self._move(unit, seats, 1)

    def leave(self, running: Running) -> None:
        self._move(running.unit, running.seats, -1)

    def _move(self, unit: Unit, seats: Sequence[Seat], sign: int) -> None:
        roles = {role.name: role for role in unit.roles}
        for seat in seats:
            role = roles.get(seat.role)
            if role is not None and (role.labels or role.affinities):
                self.move_one(unit, role, seat.node, sign)

    def move_one(self, unit: Unit, role: Role, node: str, sign: int) -> None:
        _count(self._at, node, (unit.namespace, role.labels), sign)
        for term in role.affinities:
            if term.anti and term.required:
                _count(self._repelling, node, (_scoped(term, unit), unit.namespace), sign)

    def matching(self, term: Affinity | Spread, namespaces: frozenset[str]) -> Counter[str]:
        """Node -> members there that the term is about."""
        found: Counter[str] = Counter()
        for node, kinds in self._at.items():
            for (namespace, labels), count in kinds.items():
                if namespace in namespaces and _matches(term, dict(labels)):
                    found[node] += count
        return found

    def keeping_away(self, unit: Unit, role: Role) -> list[tuple[str, str]]:
        """(label key, node) for every placed member that does not want this one in its domain."""
        labels = dict(role.labels)
        return [
            (term.key, node)
            for node, terms in self._repelling.items()
            for term, _ in terms
            if unit.namespace in term.namespaces and _matches(term, labels)
        ]


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


def _place_in(
    scene: Scene, crowd: Crowd, unit: Unit, wishes: Sequence[Wish], where: Ints | None
) -> tuple[Seat, ...] | Failure:
    from windlass.core import place as placing

    cluster = scene.cluster
    seats: list[Seat] = []
    for wish in wishes:
        shape = scene.shape(wish.role)
        for number in range(wish.count):
            caps = scene.caps(shape)
            allowed, score = _judge(cluster, crowd, unit, wish.role)
            allowed &= caps > 0
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


def _judge(cluster: Cluster, crowd: Crowd, unit: Unit, role: Role) -> tuple[Mask, Ints]:
    """Nodes where the terms allow one more member, and how much each is preferred."""
    allowed = np.ones(len(cluster), np.bool_)
    score = np.zeros(len(cluster), np.int64)
    if role.prefers:
        score += cluster.points(role.prefers)
    for term in role.affinities:
        domains = _domains(cluster, term.key)
        scoped = _scoped(term, unit)
        counts = _by_domain(cluster, domains, crowd.matching(scoped, scoped.namespaces))
        here = _counts_at(domains, counts)
        if not term.required:
            score += np.where(here > 0, -term.weight if term.anti else term.weight, 0)
        elif term.anti:
            allowed &= here == 0
        elif counts or not _first_of_its_kind(scoped, unit, role):
            allowed &= here > 0
        else:
            allowed &= np.array([domain is not None for domain in domains], np.bool_)
    for key, node in crowd.keeping_away(unit, role):
        domains = _domains(cluster, key)
        at = cluster.index.get(node)
        taken = domains[at] if at is not None else None
        if taken is not None:
            allowed &= np.array([domain != taken for domain in domains], np.bool_)
    for spread in role.spreads:
        _judge_spread(cluster, crowd, unit, role, spread, allowed, score)
    return allowed, score


def _judge_spread(
    cluster: Cluster,
    crowd: Crowd,
    unit: Unit,
    role: Role,
    spread: Spread,
    allowed: Mask,
    score: Ints,
) -> None:
    domains = _domains(cluster, spread.key)
    # As Kubernetes by default: selector and affinity rule nodes out of the count, taints do not.
    eligible = cluster.mask(dataclasses.replace(role.constraint, tolerations=_ANY_TAINT))
    there = crowd.matching(spread, frozenset((unit.namespace,)))
    counts = _by_domain(
        cluster, domains, {n: c for n, c in there.items() if _holds(eligible, cluster, n)}
    )
    present = {d for d, ok in zip(domains, eligible, strict=True) if ok and d is not None}
    fewest = min((counts.get(domain, 0) for domain in present), default=0)
    if len(present) < spread.min_domains:
        fewest = 0
    itself = 1 if _matches(spread, dict(role.labels)) else 0
    here = _counts_at(domains, counts)
    known = np.array([domain is not None for domain in domains], np.bool_)
    if spread.required:
        allowed &= known & (here + itself - fewest <= spread.skew)
    else:
        score -= here


def _holds(mask: Mask, cluster: Cluster, name: str) -> bool:
    at = cluster.index.get(name)
    return at is not None and bool(mask[at])


def _domains(cluster: Cluster, key: str) -> list[str | None]:
    """The value of a label on every node."""
    return [node.labels.get(key) for node in cluster.nodes]


def _counts_at(domains: Sequence[str | None], counts: Mapping[str, int]) -> Ints:
    return np.array([0 if d is None else counts.get(d, 0) for d in domains], np.int64)


def _by_domain(
    cluster: Cluster, domains: Sequence[str | None], by_node: Mapping[str, int]
) -> Counter[str]:
    sums: Counter[str] = Counter()
    for node, count in by_node.items():
        at = cluster.index.get(node)
        domain = domains[at] if at is not None else None
        if domain is not None and count:
            sums[domain] += count
    return sums


def _first_of_its_kind(term: Affinity, unit: Unit, role: Role) -> bool:
    """A member that matches its own term may be the first; else nobody ever could be."""
    return unit.namespace in term.namespaces and _matches(term, dict(role.labels))


def _scoped(term: Affinity, unit: Unit) -> Affinity:
    """A term that names no namespace means its own."""
    if term.namespaces:
        return term
    return Affinity(
        term.key, term.match, term.anti, frozenset((unit.namespace,)), term.required, term.weight
    )


def _matches(term: Affinity | Spread, labels: Mapping[str, str]) -> bool:
    return all(constraints.holds(requirement, labels) for requirement in term.match)


def _count(tables: dict[str, Counter[K]], node: str, key: K, sign: int) -> None:
    table = tables.setdefault(node, Counter())
    table[key] += sign
    if not table[key]:
        del table[key]
    if not table:
        del tables[node]
