"""Who is where by labels: what affinity and spread terms are about.

Members of one namespace with the same labels are one kind; they look alike to every term. What a
term counts is kept from its first question on, so that placing one more member costs what changed.
A fork shares tables with its origin until either writes to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

from windlass.core import constraints
from windlass.core.facts import Affinity, Requirement, Role, Running, Seat, Spread, Unit

Kind = tuple[str, tuple[tuple[str, str], ...], bool]
"""Namespace, labels, and whether they were told to go."""
Question = tuple[tuple[tuple[Requirement, ...], frozenset[str]], ...]
"""Conditions and namespaces, all of which must hold."""
K = TypeVar("K")
_SPARE = 10_000
"""Kinds without members that are remembered at least, before those are forgotten."""


class Crowd:
    """How many members of which kind are on which node, and whom they keep away."""

    def __init__(self) -> None:
        self._at = _Tables[Kind]()
        self._repelling = _Tables[Affinity]()
        self._answers = _Tables[tuple[Question, bool]]()
        self._asked: dict[tuple[Question, bool], None] = {}
        self._lore = _Lore()

    def fork(self) -> Crowd:
        twin = Crowd()
        twin._at, twin._repelling = self._at.fork(), self._repelling.fork()
        twin._answers, twin._asked = self._answers.fork(), dict(self._asked)
        twin._lore = self._lore
        return twin

    @property
    def repels(self) -> bool:
        """Whether anybody who is placed keeps others away."""
        return bool(self._repelling.tables)

    def concerns(self, unit: Unit, role: Role) -> bool:
        """Whether members of a role must be placed one by one, looking at who is where."""
        return bool(
            role.affinities
            or role.spreads
            or (self.repels and any(True for _ in self._keeping_away(unit, role)))
        )

    def enter(self, running: Running) -> None:
        self._move(running.unit, running.seats, 1, frozenset(running.leaving))

    def seat(self, unit: Unit, seats: Sequence[Seat]) -> None:
        """Members that a decision has placed."""
        self._move(unit, seats, 1, frozenset())

    def leave(self, running: Running) -> None:
        self._move(running.unit, running.seats, -1, frozenset(running.leaving))

    def _move(
        self, unit: Unit, seats: Sequence[Seat], sign: int, leaving: frozenset[tuple[str, int]]
    ) -> None:
        roles = {role.name: role for role in unit.roles if role.labels or role.affinities}
        for seat in seats if roles else ():
            role = roles.get(seat.role)
            if role is not None:
                goes = (seat.role, seat.index) in leaving
                self.move_one(unit, role, seat.node, sign, leaving=goes)

    def move_one(
        self, unit: Unit, role: Role, node: str, sign: int, *, leaving: bool = False
    ) -> None:
        kind = (unit.namespace, role.labels, leaving)
        self._at.count(kind, node, sign)
        for asked in self._asked:
            if self._lore.answers(asked, kind):
                self._answers.count(asked, node, sign)
        for term in role.affinities:
            if term.anti and term.required:
                self._repelling.count(scoped(term, unit), node, sign)
        if self._lore.size > 2 * len(self._at.tables) + _SPARE:
            self._lore = _Lore()

    def matching(self, question: Question, *, with_leaving: bool = True) -> dict[str, int]:
        """Node -> members there of which all of it holds. Read only."""
        asked = (question, with_leaving)
        if asked not in self._asked:
            self._asked[asked] = None
            for kind, table in self._at.tables.items():
                if self._lore.answers(asked, kind):
                    for node, count in table.items():
                        self._answers.count(asked, node, count)
        return self._answers.tables.get(asked, {})

    def total(self, question: Question, *, with_leaving: bool = True) -> int:
        """How many members all of it holds of, anywhere."""
        self.matching(question, with_leaving=with_leaving)
        return self._answers.totals.get((question, with_leaving), 0)

    def keeping_away(self, unit: Unit, role: Role) -> list[tuple[str, Iterable[str]]]:
        """(label key, nodes) for placed members that do not want this one in their domains."""
        return [(term.key, self._repelling.tables[term]) for term in self._keeping_away(unit, role)]

    def _keeping_away(self, unit: Unit, role: Role) -> Iterable[Affinity]:
        kind = (unit.namespace, role.labels, False)
        return (
            term
            for term in self._repelling.tables
            if self._lore.answers((question(term), True), kind)
        )


def question(*terms: Affinity) -> Question:
    """What must hold of a member that all of these terms (with their namespaces) are about."""
    return tuple((term.match, term.namespaces) for term in terms)


def scoped(term: Affinity, unit: Unit) -> Affinity:
    """A term that names no namespace means its own."""
    if term.namespaces:
        return term
    return Affinity(
        term.key, term.match, term.anti, frozenset((unit.namespace,)), term.required, term.weight
    )


def matches(term: Affinity | Spread, labels: tuple[tuple[str, str], ...]) -> bool:
    known = dict(labels)
    return all(constraints.holds(requirement, known) for requirement in term.match)


class _Lore:
    """Which questions hold of which kinds: told once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Question, bool], dict[Kind, bool]] = {}
        self.size = 0

    def answers(self, asked: tuple[Question, bool], kind: Kind) -> bool:
        known = self._known.setdefault(asked, {})
        found = known.get(kind)
        if found is None:
            found = known[kind] = _holds(asked, kind)
            self.size += 1
        return found


def _holds(asked: tuple[Question, bool], kind: Kind) -> bool:
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
        twin = _Tables[K]()
        twin.tables, twin.totals = dict(self.tables), dict(self.totals)
        self._own = set()
        return twin

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
