"""Pruning, defaulting and validation of every kind, on plain JSON values.

Called by the embedded server on every write and by the CLI before it sends anything. On a cluster
the API server does the same for Windlass' kinds from the CRDs, which are generated from the same
definitions. The functions do not change their arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgspec

from windlass.kinds.defaults import core, object_meta
from windlass.kinds.schema import cel_rules, field_errors, structural, type_tree, unknown_fields
from windlass.kinds.schema.field_errors import Problem as Problem
from windlass.kinds.schema.type_tree import Node
from windlass.kinds.types.meta import Object
from windlass.kinds.values import quantity

Json = dict[str, Any]


def prune(kind: type[Object], value: Json) -> tuple[Json, list[str]]:
    """The object without unknown fields, and one message about each of them.

    Windlass' own kinds drop unknown fields, as CRDs do. Kubernetes' own kinds keep them, because
    the structs have only a part of their fields.
    """
    if not is_own(kind):
        return value, []
    unknown: list[tuple[Node, str, str]] = []
    root = type_tree.of_kind(kind)
    pruned = structural.prune(root, value, "", unknown)
    return pruned, [unknown_fields.message(root, *each) for each in unknown]


def defaulted(kind: type[Object], value: Json) -> Json:
    """The object with the defaults of its kind."""
    if not is_own(kind):
        return core.defaulted(kind, value)
    if _has_null(value):
        value = structural.drop_nulls(value)
    filled: Json = structural.fill(type_tree.of_kind(kind), value)
    return filled


def validate(kind: type[Object], value: Json, old: Json | None = None) -> list[Problem]:
    """All problems of a defaulted object; with `old`, also those of the change."""
    own = is_own(kind)
    found = object_meta.check(kind.resource, value)
    broken = _structure_problems(kind, value, own)
    if broken:
        return found + [_with_meaning(each) if own else each for each in broken]
    if not own:
        return found + core.check(kind, value, old)
    found += structural.duplicates(type_tree.of_kind(kind), value, "")
    _apply(_plan_of(kind), value, old, "", found)
    return [_with_meaning(each) for each in found]


def _with_meaning(problem: Problem) -> Problem:
    """The problem with what an amount of memory without a usual unit probably means."""
    if not problem.path.endswith(("resources.memory", "resources.shm", "resources.disk")):
        return problem
    if isinstance(problem.value, bool) or not isinstance(problem.value, str | int | float):
        return problem
    question = quantity.memory_problem(problem.value).partition("; ")[2]
    if not question.startswith("did you mean"):
        return problem
    # The example of the rule knows no value.
    message = problem.message.removesuffix(": write 4Gi")
    return dataclasses.replace(problem, message=f"{message}; {question}")


def is_own(kind: type[Object]) -> bool:
    return kind.resource.group == type_tree.OWN_GROUP


def _structure_problems(kind: type[Object], value: Json, own: bool) -> list[Problem]:
    """Problems with types, bounds and patterns. msgspec accepts a valid object in microseconds;
    only an invalid one is walked to describe every problem."""
    if not (own and _has_null(value)):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            first = str(error)
        else:
            return []
    else:
        first = "null is not allowed"
    found = structural.check(type_tree.of_kind(kind), value, "", nulls=not own)
    return found or [field_errors.invalid("", value, first)]


def _has_null(value: Json) -> bool:
    return any(structural.has_null({part: value.get(part, ...)}) for part in ("spec", "status"))


@dataclasses.dataclass(slots=True)
class _Plan:
    """The fields of a kind that have rules, so that only those are visited."""

    always: list[cel_rules.Rule]
    changes: list[cel_rules.Change]
    fields: dict[str, _Plan]
    items: _Plan | None = None
    list_key: str = ""

    @property
    def empty(self) -> bool:
        return not (self.always or self.changes or self.fields or self.items)


@functools.cache
def _plan_of(kind: type[Object]) -> _Plan:
    return _plan(kind, type_tree.of_kind(kind))


def _plan(kind: type[Object], node: Node) -> _Plan:
    fields = {name: _plan(kind, field.node) for name, field in node.fields.items()}
    items = _plan(kind, node.items) if node.items else None
    return _Plan(
        always=[rule for rule in cel_rules.RULES if rule.struct is node.struct],
        changes=[c for c in cel_rules.CHANGES if c.struct is node.struct and c.kind is kind],
        fields={name: plan for name, plan in fields.items() if not plan.empty},
        items=items if items and not items.empty else None,
        list_key=node.list_key,
    )


def _apply(plan: _Plan, value: Any, old: Any, path: str, found: list[Problem]) -> None:
    broken: list[cel_rules.Rule | cel_rules.Change] = []
    # A value that was accepted before the rule existed may stay, as on a cluster.
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
    return field_errors.invalid(where, found, message)
