"""Prunes, defaults and validates a JSON value by the type tree of its kind
(`kinds.schema.type_tree`).

Called by `kinds.validate` only. The functions do not change their input.
"""

from __future__ import annotations

import copy
import datetime
from typing import Any

from windlass.kinds.schema import field_errors, type_tree
from windlass.kinds.schema.field_errors import Problem
from windlass.kinds.schema.type_tree import NOTHING, Node
from windlass.kinds.values import quantity

_EXTRA_METADATA = ("managedFields", "selfLink")


def prune(node: Node, value: Any, path: str, unknown: list[tuple[Node, str, str]]) -> Any:
    """The value without unknown fields; adds to `unknown` of each the node that lacks it, its path
    and its name."""
    if node.type == "object" and isinstance(value, dict):
        kept = {}
        for name, inner in value.items():
            field = node.fields.get(name)
            where = f"{path}.{name}" if path else name
            if field is not None:
                kept[name] = prune(field.node, inner, where, unknown)
            elif _belongs(path, name):
                kept[name] = inner
            else:
                unknown.append((node, where, name))
        return kept
    if node.items is not None and node.items.type not in ("string", "integer", "int-or-string"):
        if node.type == "map" and isinstance(value, dict):
            items = node.items
            return {k: prune(items, v, f"{path}.{k}", unknown) for k, v in value.items()}
        if node.type == "array" and isinstance(value, list):
            return [prune(node.items, v, f"{path}[{i}]", unknown) for i, v in enumerate(value)]
    return value


def fill(node: Node, value: Any) -> Any:
    """The value with its defaults."""
    if not node.has_defaults:
        return value
    if node.type == "object" and isinstance(value, dict):
        filled = dict(value)
        for name, field in node.fields.items():
            inner = filled.get(name, NOTHING)
            if inner is NOTHING and field.default is not NOTHING:
                inner = copy.copy(field.default)
            if inner is not NOTHING:
                filled[name] = fill(field.node, inner)
        return filled
    if node.items is None:
        return value
    if node.type == "array" and isinstance(value, list):
        return [fill(node.items, inner) for inner in value]
    if node.type == "map" and isinstance(value, dict):
        items = node.items
        return {key: fill(items, inner) for key, inner in value.items()}
    return value


def drop_nulls(value: Any) -> Any:
    """The value without fields that are null: null means absent. Nulls in lists stay."""
    if isinstance(value, dict):
        return {key: drop_nulls(inner) for key, inner in value.items() if inner is not None}
    return [drop_nulls(inner) for inner in value] if isinstance(value, list) else value


def has_null(value: Any) -> bool:
    """Whether the value contains null; structs would take a null in a list for an absent value."""
    if isinstance(value, dict):
        return any(inner is None or has_null(inner) for inner in value.values())
    if isinstance(value, list):
        return any(inner is None or has_null(inner) for inner in value)
    return False


def check(node: Node, value: Any, path: str, *, nulls: bool) -> list[Problem]:
    """All problems of the value: types, bounds, enums, patterns, required fields.

    With `nulls`, null counts as absent, as it does for Kubernetes' own kinds.
    """
    found: list[Problem] = []
    _check(node, value, path, nulls, found)
    return found


def _check(node: Node, value: Any, path: str, nulls: bool, found: list[Problem]) -> None:
    if not _fits(node, value):
        found.append(field_errors.wrong_type(path, value, _wanted(node)))
    elif node.type == "object":
        _check_fields(node, value, path, nulls, found)
    elif node.type in ("array", "map"):
        _check_collection(node, value, path, nulls, found)
    elif isinstance(value, str):
        _check_text(node, value, path, found)
    elif not isinstance(value, bool):
        _check_number(node, value, path, found)


def _check_fields(
    node: Node, value: dict[str, Any], path: str, nulls: bool, found: list[Problem]
) -> None:
    for name, field in node.fields.items():
        where = f"{path}.{name}" if path else name
        if name not in value or (nulls and value[name] is None):
            if field.required:
                found.append(field_errors.required(where, _wanted(field.node)))
        else:
            _check(field.node, value[name], where, nulls or where == "metadata", found)


def _check_collection(node: Node, value: Any, path: str, nulls: bool, found: list[Problem]) -> None:
    if node.max_size is not None and len(value) > node.max_size:
        found.append(field_errors.too_many(path, len(value), node.max_size))
        return
    if len(value) < (node.min_size or 0):
        wanted = f"must have at least {node.min_size} item" + ("s" if node.min_size != 1 else "")
        found.append(field_errors.invalid(path, value, wanted))
    if node.items is None:
        return
    pairs = value.items() if node.type == "map" else enumerate(value)
    for key, inner in pairs:
        where = f"{path}[{key}]" if node.type == "array" else f"{path}.{key}"
        if node.keys is not None:
            _check(node.keys, key, where, nulls, found)
        _check(node.items, inner, where, nulls, found)


def duplicates(node: Node, value: Any, path: str) -> list[Problem]:
    """Elements of a keyed array that have the same key."""
    found: list[Problem] = []
    if node.type == "object" and isinstance(value, dict):
        for name, field in node.fields.items():
            if field.node.type in ("object", "array") and name in value:
                found += duplicates(field.node, value[name], f"{path}.{name}" if path else name)
    elif node.type == "array" and node.items is not None and node.items.type == "object":
        seen = set()
        for index, inner in enumerate(value):
            where = f"{path}[{index}]"
            key = inner.get(node.list_key) if node.list_key else None
            if key is not None and key in seen:
                found.append(field_errors.duplicate(where, {node.list_key: key}))
            seen.add(key)
            found += duplicates(node.items, inner, where)
    return found


def _check_text(node: Node, value: str, path: str, found: list[Problem]) -> None:
    if node.enum and value not in node.enum:
        found.append(field_errors.unsupported(path, value, node.enum))
    elif node.max_size is not None and len(value) > node.max_size:
        found.append(field_errors.too_long(path, value, node.max_size))
    elif (
        len(value) < (node.min_size or 0)
        or (node.regex and not node.regex.search(value))
        or not _has_format(node, value)
    ):
        found.append(field_errors.invalid(path, value, _wanted(node)))


def _check_number(node: Node, value: float, path: str, found: list[Problem]) -> None:
    if node.minimum is not None and value < node.minimum:
        found.append(field_errors.invalid(path, value, f"must be at least {node.minimum}"))
    elif node.maximum is not None and value > node.maximum:
        found.append(field_errors.invalid(path, value, f"must be at most {node.maximum}"))


def is_time(text: str) -> bool:
    """Whether the text is RFC 3339 with a time zone, as Kubernetes requires."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return moment.tzinfo is not None and len(text) >= len("2026-01-01T10:20:00Z")


def _belongs(path: str, name: str) -> bool:
    return (path == "" and name in ("apiVersion", "kind")) or (
        path == "metadata" and name in _EXTRA_METADATA
    )


def _wanted(node: Node) -> str:
    if node.must:
        return f"must {node.must}"
    if node.format:
        return {"date-time": "must be a time such as 2026-01-01T10:20:00Z"}.get(
            node.format, "must be a quantity such as 8, 500m or 32Gi"
        )
    if node.type == "string" and node.min_size:
        return "must not be empty"
    return f"must be {_NAMES[node.type]}"


def _fits(node: Node, value: Any) -> bool:
    if isinstance(value, bool):
        return node.type in ("boolean", "any")
    if isinstance(value, float) and node.format == "quantity":
        return True
    return isinstance(value, _CLASSES[node.type])


def _has_format(node: Node, value: str) -> bool:
    if node.format == "date-time":
        return is_time(value)
    return node.format != "quantity" or quantity.is_valid(value, signed=True)


_CLASSES: dict[type_tree.Type, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "map": (dict,),
    "array": (list,),
    "int-or-string": (int, str),
    "any": (object,),
}
_NAMES: dict[type_tree.Type, str] = {
    "string": "a string (put quotes around a number or true/false)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object with named fields",
    "map": "an object of names and values",
    "array": "a list",
    "int-or-string": "a whole number or a string",
    "any": "any value",
}
