"""May this object be stored? Pruning, defaults and validation of every kind, on plain JSON values.

Called by the embedded server on every write and by the CLI before it sends anything. On a cluster
the API server does the same for our kinds from the CRDs, which are generated from the same
definitions. Reads nothing but its arguments; changes none of them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgspec

from windlass.kinds import corekinds, metadata, nodes, problems, rules, structure
from windlass.kinds.meta import Object
from windlass.kinds.nodes import Node
from windlass.kinds.problems import Problem as Problem

Json = dict[str, Any]


def prune(kind: type[Object], value: Json) -> tuple[Json, list[str]]:
    """The object without fields that do not exist, and one sentence about each of them.

    Our kinds drop what they do not know, as CRDs do; Kubernetes' own keep it: our structs name
    only a part of their fields.
    """
    if not is_own(kind):
        return value, []
    unknown: list[str] = []
    return structure.prune(nodes.of_kind(kind), value, "", unknown), unknown


def defaulted(kind: type[Object], value: Json) -> Json:
    """The object with everything filled in that its kind says when it is absent."""
    if not is_own(kind):
        return corekinds.defaulted(kind, value)
    if _has_null(value):
        value = structure.drop_nulls(value)
    filled: Json = structure.fill(nodes.of_kind(kind), value)
    return filled


def validate(kind: type[Object], value: Json, old: Json | None = None) -> list[Problem]:
    """Everything that is wrong with a defaulted object; with `old`, also with the change to it."""
    own = is_own(kind)
    found = metadata.check(kind.resource, value)
    broken = _structure_problems(kind, value, own)
    if broken:
        return found + broken
    if not own:
        return found + corekinds.check(kind, value, old)
    found += structure.duplicates(nodes.of_kind(kind), value, "")
    _apply(_plan_of(kind), value, old, "", found)
    return found


def is_own(kind: type[Object]) -> bool:
    return kind.resource.group == nodes.OWN_GROUP


def _structure_problems(kind: type[Object], value: Json, own: bool) -> list[Problem]:
    """Types, bounds and patterns. msgspec says in microseconds whether all is well; only if not
    is the object walked, to name every problem in words for people."""
    if not (own and _has_null(value)):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            first = str(error)
        else:
            return []
    else:
        first = "null is not allowed"
    found = structure.check(nodes.of_kind(kind), value, "", nulls=not own)
    return found or [problems.invalid("", value, first)]


def _has_null(value: Json) -> bool:
    return any(structure.has_null({part: value.get(part, ...)}) for part in ("spec", "status"))


@dataclasses.dataclass(slots=True)
class _Plan:
    """Where in an object of one kind rules apply, so that only those places are visited."""

    always: list[rules.Rule]
    changes: list[rules.Change]
    fields: dict[str, _Plan]
    items: _Plan | None = None
    list_key: str = ""

    @property
    def empty(self) -> bool:
        return not (self.always or self.changes or self.fields or self.items)


@functools.cache
def _plan_of(kind: type[Object]) -> _Plan:
    return _plan(kind, nodes.of_kind(kind))


def _plan(kind: type[Object], node: Node) -> _Plan:
    fields = {name: _plan(kind, field.node) for name, field in node.fields.items()}
    items = _plan(kind, node.items) if node.items else None
    return _Plan(
        always=[rule for rule in rules.RULES if rule.struct is node.struct],
        changes=[c for c in rules.CHANGES if c.struct is node.struct and c.kind is kind],
        fields={name: plan for name, plan in fields.items() if not plan.empty},
        items=items if items and not items.empty else None,
        list_key=node.list_key,
    )


def _apply(plan: _Plan, value: Any, old: Any, path: str, found: list[Problem]) -> None:
    broken: list[rules.Rule | rules.Change] = []
    # What was taken before there was a rule may stay as it is, as in a cluster.
    if plan.always and value != old:
        broken += [rule for rule in plan.always if not rule.holds(value)]
    if old is not None:
        broken += [change for change in plan.changes if not change.holds(value, old)]
    found += [_broken(path, rule.path, value, rule.message) for rule in broken]
    for name, inner in plan.fields.items():
        if name in value:
            before = old.get(name) if old is not None else None
            _apply(inner, value[name], before, f"{path}.{name}" if path else name, found)
    if plan.items is not None:
        by_key = {item.get(plan.list_key): item for item in old or ()} if plan.list_key else {}
        for index, item in enumerate(value):
            before = by_key.get(item.get(plan.list_key))
            _apply(plan.items, item, before, f"{path}[{index}]", found)


def _broken(path: str, field: str, value: Json, message: str) -> Problem:
    found: Any = value
    for part in field.split(".") if field else ():
        found = found.get(part) if isinstance(found, dict) else None
    where = ".".join(part for part in (path, field) if part)
    return problems.invalid(where, found, message)
