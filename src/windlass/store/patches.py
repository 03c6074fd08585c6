"""Patches on plain JSON values: merge-patch, JSON-patch, strategic merge-patch, and diffs.

Pure functions; they never change their arguments. The embedded API applies patches with them,
controllers make theirs with `merge_diff`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Hashable
from typing import Any

import msgspec

from windlass.kinds import merge_keys
from windlass.store import errors, limits

MAX_OPERATIONS = 10_000
"""Kubernetes' limit on the operations of one JSON-patch."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def merge_diff(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The merge-patch that turns `before` into `after`; empty when they are equal."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if old == value and type(old) is type(value):
            continue
        if isinstance(old, dict) and isinstance(value, dict):
            if inner := merge_diff(old, value):
                patch[key] = inner
        else:
            patch[key] = value
    return patch


# --- JSON-patch (RFC 6902) ----------------------------------------------------------------------


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. A failed `test`, a missing path or a malformed operation raises Invalid."""
    if not isinstance(operations, list):
        raise errors.BadRequest("a JSON-patch is a list of operations")
    if len(operations) > MAX_OPERATIONS:
        raise errors.TooLarge(
            f"the JSON-patch has {len(operations)} operations; the limit is {MAX_OPERATIONS}"
        )
    copied = 0
    try:
        document = copy.deepcopy(target)
        for operation in operations:
            copied += _copied_bytes(document, _checked(operation), copied)
            document = _apply(document, operation)
    except RecursionError as problem:
        raise errors.BadRequest("the JSON-patch makes the object too deeply nested") from problem
    limits.refuse_deep(document)
    return document


def _copied_bytes(document: Any, operation: dict[str, Any], so_far: int) -> int:
    """The bytes that a `copy` adds. Each can double the object, so their sum has a limit."""
    if operation.get("op") != "copy":
        return 0
    size = len(msgspec.json.encode(_read(document, operation["from"], operation)))
    if so_far + size > limits.MAX_COPIED_BYTES:
        raise errors.TooLarge(
            f"the copy operations of the JSON-patch copy more than {limits.MAX_COPIED_BYTES} bytes"
        )
    return size


def _checked(operation: Any) -> dict[str, Any]:
    if not isinstance(operation, dict):
        raise errors.BadRequest("each operation of a JSON-patch is an object with op and path")
    op, path = operation.get("op"), operation.get("path")
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise _refused(operation, "path must be a JSON pointer such as /spec/suspend")
    if op in ("add", "replace", "test") and "value" not in operation:
        raise _refused(operation, "value is missing")
    if op in ("move", "copy"):
        source = operation.get("from")
        if not isinstance(source, str) or (source and not source.startswith("/")):
            raise _refused(operation, "from must be a JSON pointer such as /spec/suspend")
    return operation


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    op, path = operation.get("op"), operation["path"]
    if op == "test":
        if not _same(_read(document, path, operation), operation["value"]):
            raise _refused(operation, f"testing value {path} failed")
        return document
    if op == "add":
        return _write(document, path, operation["value"], operation, replace=False)
    if op == "replace":
        _read(document, path, operation)
        return _write(document, path, operation["value"], operation, replace=True)
    if op == "remove":
        return _remove(document, path, operation)
    if op in ("move", "copy"):
        value = _read(document, operation["from"], operation)
        if op == "move":
            document = _remove(document, operation["from"], operation)
        else:
            value = copy.deepcopy(value)
        return _write(document, path, value, operation, replace=False)
    raise _refused(operation, "op is one of add, remove, replace, move, copy, test")


def _steps(path: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")[1:]]


def _same(left: Any, right: Any) -> bool:
    """Equality of JSON values: true is not 1."""
    return type(left) is type(right) and bool(left == right)


def _index(step: str, length: int, operation: dict[str, Any]) -> int:
    if not (step.isascii() and step.isdigit()) or len(step) > 9 or int(step) >= length:
        raise _refused(operation, f"there is no element {step[:40]!r}")
    return int(step)


def _read(document: Any, path: str, operation: dict[str, Any]) -> Any:
    for step in _steps(path):
        if isinstance(document, list):
            document = document[_index(step, len(document), operation)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise _refused(operation, f"there is no value at {path[:200]}")
    return document


def _write(document: Any, path: str, value: Any, operation: dict[str, Any], replace: bool) -> Any:
    if path == "":
        return value
    parent_path, _, last = path.rpartition("/")
    step = _steps("/" + last)[0]
    parent = _read(document, parent_path, operation)
    if isinstance(parent, list):
        if replace:
            parent[_index(step, len(parent), operation)] = value
        elif step == "-":
            parent.append(value)
        else:
            parent.insert(_index(step, len(parent) + 1, operation), value)
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise _refused(operation, f"{parent_path[:200]} is not an object or a list")
    return document


def _remove(document: Any, path: str, operation: dict[str, Any]) -> Any:
    if path == "":
        raise _refused(operation, "the whole object cannot be removed; delete it instead")
    _read(document, path, operation)
    parent_path, _, last = path.rpartition("/")
    step = _steps("/" + last)[0]
    parent = _read(document, parent_path, operation)
    if isinstance(parent, list):
        del parent[_index(step, len(parent), operation)]
    else:
        del parent[step]
    return document


def _refused(operation: dict[str, Any], why: str) -> errors.Invalid:
    shown = {key: operation.get(key) for key in ("op", "path", "from") if key in operation}
    return errors.Invalid(
        f"the server rejected our request due to an error in our request: "
        f"JSON-patch operation {str(shown)[:300]} cannot be applied: {why}"
    )


# --- strategic merge-patch ----------------------------------------------------------------------


def strategic(target: Any, patch: Any, field: str = "", kind: str = "") -> Any:
    """Kubernetes' strategic merge-patch for the served core kinds, with its $-directives."""
    if isinstance(patch, dict):
        return _strategic_map(target if isinstance(target, dict) else {}, patch, kind)
    if isinstance(patch, list):
        return _strategic_list(target if isinstance(target, list) else [], patch, field, kind)
    return patch


def _strategic_map(target: dict[str, Any], patch: dict[str, Any], kind: str) -> dict[str, Any]:
    directive = patch.get("$patch")
    if directive == "delete":
        return {}
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if directive not in (None, "merge"):
        raise errors.BadRequest(f"unknown $patch directive {str(directive)[:40]!r}")
    result = dict(target)
    retained = patch.get("$retainKeys")
    if isinstance(retained, list):
        kept = {_identity(key) for key in retained}
        result = {key: value for key, value in result.items() if key in kept}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            gone = {_identity(item) for item in value} if isinstance(value, list) else set()
            result[name] = [i for i in result.get(name) or [] if _identity(i) not in gone]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        else:
            result[key] = strategic(result.get(key), value, key, kind)
    return _in_order(result, patch)


def _strategic_list(target: list[Any], patch: list[Any], field: str, kind: str) -> list[Any]:
    if field in merge_keys.UNION_LISTS:
        present = {_identity(item) for item in target}
        return target + [item for item in patch if _identity(item) not in present]
    key = merge_keys.list_key(kind, field)
    if not key or not all(isinstance(item, dict) for item in patch):
        return patch
    if any(item.get("$patch") == "replace" and len(item) == 1 for item in patch):
        return [item for item in patch if "$patch" not in item]
    return _merged_by_key(target, patch, key, field, kind)


def _merged_by_key(
    target: list[Any], patch: list[Any], key: str, field: str, kind: str
) -> list[Any]:
    merged: dict[int, Any] = dict(enumerate(target))
    appended = itertools.count(len(target))
    places: dict[Hashable, int] = {}
    for place, old in merged.items():
        if isinstance(old, dict) and key in old:
            places.setdefault(_identity(old[key]), place)
    for item in patch:
        if key not in item:
            raise errors.BadRequest(
                f"an element of {field} in the strategic merge-patch has no {key}, "
                "which identifies the element"
            )
        identity = _identity(item[key])
        found = places.get(identity)
        if item.get("$patch") == "delete":
            if found is not None:
                del merged[found], places[identity]
        elif found is None:
            places[identity] = found = next(appended)
            merged[found] = {k: v for k, v in item.items() if k != "$patch"}
        else:
            merged[found] = _strategic_map(merged[found], item, kind)
    return list(merged.values())


def _identity(value: Any) -> Hashable:
    """A hashable key of a JSON value, for lookups: lists that merge by key may be long."""
    return value if isinstance(value, str) else msgspec.json.encode(value)


def _in_order(result: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Honours `$setElementOrder/FIELD`, which clients send beside a changed list."""
    for directive, order in patch.items():
        name = directive.partition("/")[2]
        if not directive.startswith("$setElementOrder/") or not isinstance(order, list):
            continue
        items = result.get(name)
        if not isinstance(items, list):
            continue
        key = merge_keys.LIST_KEYS.get(name, "")

        def identity(item: Any, key: str = key) -> Any:
            return item.get(key) if isinstance(item, dict) else item

        wanted = {str(identity(entry)): position for position, entry in enumerate(order)}
        items.sort(key=lambda item: wanted.get(str(identity(item)), len(wanted)))
    return result
