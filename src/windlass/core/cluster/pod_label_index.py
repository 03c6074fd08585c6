"""Placed pods by node and labels: the input of affinity and spread terms.

Pods of one namespace with the same labels form one class; every term treats them alike. The counts
of a selector are kept from its first use on, so that one more pod costs only what changed. A fork
shares tables with its origin until either writes to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from windlass.core.cluster import constraints
from windlass.core.model.types import (
    Affinity,
    PodAssignment,
    Requirement,
    Role,
    Running,
    Spread,
    Workload,
)

PodClass = tuple[str, tuple[tuple[str, str], ...], bool]
"""Namespace, labels, and whether they were evicted."""
Selector = tuple[tuple[tuple[Requirement, ...], frozenset[str]], ...]
"""Conditions and namespaces, all of which must hold."""
K = TypeVar("K")
_SPARE = 10_000
"""Kinds without pods that are remembered at least, before those are forgotten."""


class PodLabelIndex:
    """How many pods of which class are on which node, and their anti-affinity terms."""

    def __init__(self) -> None:
        self._at = _Tables[PodClass]()
        self._anti_affinity = _Tables[Affinity]()
        self._answers = _Tables[tuple[Selector, bool]]()
        self._asked: dict[tuple[Selector, bool], None] = {}
        self._lore = _MatchCache()

    def fork(self) -> PodLabelIndex:
        fork = PodLabelIndex()
        fork._at, fork._anti_affinity = self._at.fork(), self._anti_affinity.fork()
        fork._answers, fork._asked = self._answers.fork(), dict(self._asked)
        fork._lore = self._lore
        return fork

    @property
    def has_anti_affinity(self) -> bool:
        """Whether any placed pod has an anti-affinity term."""
        return bool(self._anti_affinity.tables)

    def has_terms_for(self, workload: Workload, role: Role) -> bool:
        """Whether pods of a role must be placed one by one because of terms about other pods."""
        return bool(
            role.affinities
            or role.spreads
            or (self.has_anti_affinity and any(True for _ in self._repelling_terms(workload, role)))
        )

    def add(self, running: Running) -> None:
        self._move(running.workload, running.pods, 1, frozenset(running.leaving))

    def add_placed(self, workload: Workload, pods: Sequence[PodAssignment]) -> None:
        """Pods that a decision has placed."""
        self._move(workload, pods, 1, frozenset())

    def remove(self, running: Running) -> None:
        self._move(running.workload, running.pods, -1, frozenset(running.leaving))

    def _move(
        self,
        workload: Workload,
        pods: Sequence[PodAssignment],
        sign: int,
        leaving: frozenset[tuple[str, int]],
    ) -> None:
        roles = {role.name: role for role in workload.roles if role.labels or role.affinities}
        for pod in pods if roles else ():
            role = roles.get(pod.role)
            if role is not None:
                goes = (pod.role, pod.index) in leaving
                self.move_one(workload, role, pod.node, sign, leaving=goes)

    def move_one(
        self, workload: Workload, role: Role, node: str, sign: int, *, leaving: bool = False
    ) -> None:
        kind = (workload.namespace, role.labels, leaving)
        self._at.count(kind, node, sign)
        for asked in self._asked:
            if self._lore.answers(asked, kind):
                self._answers.count(asked, node, sign)
        for term in role.affinities:
            if term.anti and term.required:
                self._anti_affinity.count(scoped(term, workload), node, sign)
        if self._lore.size > 2 * len(self._at.tables) + _SPARE:
            self._lore = _MatchCache()

    def matching(self, question: Selector, *, with_leaving: bool = True) -> dict[str, int]:
        """Node -> pods there of which all of it holds. Read only."""
        asked = (question, with_leaving)
        if asked not in self._asked:
            self._asked[asked] = None
            for kind, table in self._at.tables.items():
                if self._lore.answers(asked, kind):
                    for node, count in table.items():
                        self._answers.count(asked, node, count)
        return self._answers.tables.get(asked, {})

    def total(self, question: Selector, *, with_leaving: bool = True) -> int:
        """How many pods all of it holds of, anywhere."""
        self.matching(question, with_leaving=with_leaving)
        return self._answers.totals.get((question, with_leaving), 0)

    def repelling_terms(self, workload: Workload, role: Role) -> list[tuple[str, Iterable[str]]]:
        """(label key, nodes) for placed pods that do not want this one in their domains."""
        return [
            (term.key, self._anti_affinity.tables[term])
            for term in self._repelling_terms(workload, role)
        ]

    def _repelling_terms(self, workload: Workload, role: Role) -> Iterable[Affinity]:
        kind = (workload.namespace, role.labels, False)
        return (
            term
            for term in self._anti_affinity.tables
            if self._lore.answers((selector(term), True), kind)
        )


def selector(*terms: Affinity) -> Selector:
    """What must hold of a pod that all of these terms (with their namespaces) are about."""
    return tuple((term.match, term.namespaces) for term in terms)


def scoped(term: Affinity, workload: Workload) -> Affinity:
    """A term that names no namespace means its own."""
    if term.namespaces:
        return term
    return Affinity(
        term.key,
        term.match,
        term.anti,
        frozenset((workload.namespace,)),
        term.required,
        term.weight,
    )


def matches(term: Affinity | Spread, labels: tuple[tuple[str, str], ...]) -> bool:
    known = dict(labels)
    return all(constraints.holds(requirement, known) for requirement in term.match)


class _MatchCache:
    """Which selectors match which classes, cached."""

    def __init__(self) -> None:
        self._known: dict[tuple[Selector, bool], dict[PodClass, bool]] = {}
        self.size = 0

    def answers(self, asked: tuple[Selector, bool], kind: PodClass) -> bool:
        known = self._known.setdefault(asked, {})
        found = known.get(kind)
        if found is None:
            found = known[kind] = _holds(asked, kind)
            self.size += 1
        return found


def _holds(asked: tuple[Selector, bool], kind: PodClass) -> bool:
    question, with_leaving = asked
    namespace, labels, leaving = kind
    if leaving and not with_leaving:
        return False
    known = dict(labels)
    return all(
        namespace in namespaces and all(constraints.holds(each, known) for each in match)
        for match, namespaces in question
    )


class _Tables(Generic[K]):
    """Counters by key, shared between forks until one of them writes."""

    def __init__(self) -> None:
        self.tables: dict[K, Counter[str]] = {}
        self.totals: dict[K, int] = {}
        self._own: set[K] = set()

    def fork(self) -> _Tables[K]:
        fork = _Tables[K]()
        fork.tables, fork.totals = dict(self.tables), dict(self.totals)
        self._own = set()
        return fork

    def count(self, key: K, node: str, sign: int) -> None:
        table = self.tables.get(key)
        if table is None:
            table = self.tables[key] = Counter()
            self._own.add(key)
        elif key not in self._own:
            table = self.tables[key] = table.copy()
            self._own.add(key)
        table[node] += sign
        self.totals[key] = self.totals.get(key, 0) + sign
        if not table[node]:
            del table[node]
            if not table:
                del self.tables[key], self.totals[key]
                self._own.discard(key)
