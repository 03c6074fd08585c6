"""Objects to and from JSON, without losing fields that the structs do not have.

`decode` keeps the bytes an object came from; `to_dict` lays the struct's fields over them: a field
of the struct takes the struct's value (or is removed, if that is empty), every other field stays.
List elements are matched by their merge key (`name`, `type`, `uid`), else by position.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

import msgspec

from windlass.kinds.schema import type_tree
from windlass.kinds.types.meta import Object, ObjectMeta

T = TypeVar("T", bound=Object)

_SOURCE = "_source"
_LIST_KEYS = ("name", "type", "uid", "key", "mountPath", "containerPort")


@functools.cache
def decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a kind, built once."""
    return msgspec.json.Decoder(kind)


def decode(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """The object in `data`; remembers `data` so that `to_dict` can restore unknown fields."""
    obj: T = decoder(kind).decode(data)
    obj.__dict__[_SOURCE] = bytes(data)
    return obj


def from_dict(kind: type[T], value: dict[str, Any]) -> T:
    return decode(kind, msgspec.json.encode(value))


def bookmark(kind: type[T], metadata: ObjectMeta) -> T:
    """The object of a watch bookmark: it has only metadata, not even the required fields."""
    missing = {field.name: None for field in msgspec.structs.fields(kind) if field.required}
    return kind(metadata=metadata, **missing)


def has_source(obj: Object) -> bool:
    """Whether the object has its original JSON (objects of a list do not)."""
    return _SOURCE in obj.__dict__


def adopt_source(obj: Object, data: bytes) -> None:
    """Gives an object of a list its original JSON, so that `to_dict` can restore unknown fields."""
    obj.__dict__[_SOURCE] = data


def to_dict(obj: Object) -> dict[str, Any]:
    """The whole object as JSON values, with unknown fields."""
    resource = obj.resource
    known: dict[str, Any] = msgspec.to_builtins(obj)
    source = obj.__dict__.get(_SOURCE)
    original = None if source is None else msgspec.json.decode(source)
    known = _overlay(known, original, type_tree.of_kind(type(obj)))
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return head | {key: value for key, value in known.items() if key not in head}


def encode(obj: Object) -> bytes:
    return msgspec.json.encode(to_dict(obj))


def _overlay(known: Any, original: Any, node: type_tree.Node) -> Any:
    """`known` with the fields that only `original` has, at every level of the struct type."""
    if node.type == "object" and isinstance(known, dict):
        return _overlay_fields(known, original if isinstance(original, dict) else {}, node)
    items = node.items
    if items is None or items.type not in ("object", "map", "array"):
        return known
    if node.type == "map" and isinstance(known, dict):
        before = original if isinstance(original, dict) else {}
        return {key: _overlay(value, before.get(key), items) for key, value in known.items()}
    if node.type == "array" and isinstance(known, list):
        matches = _matches(known, original if isinstance(original, list) else [])
        return [_overlay(value, match, items) for value, match in zip(known, matches, strict=True)]
    return known


def _overlay_fields(
    known: dict[str, Any], original: dict[str, Any], node: type_tree.Node
) -> dict[str, Any]:
    merged = {key: value for key, value in original.items() if key not in node.fields}
    for key, value in known.items():
        field = node.fields[key]
        laid = _overlay(value, original.get(key), field.node)
        if laid or not field.implied or key in original:
            merged[key] = laid
    return merged


def _matches(known: list[Any], original: list[Any]) -> list[Any]:
    """For each known element its original, or None."""
    for key in _LIST_KEYS:
        if all(isinstance(item, dict) and key in item for item in known + original):
            by_key = {item[key]: item for item in original}
            return [by_key.get(item[key]) for item in known]
    return [original[i] if i < len(original) else None for i in range(len(known))]
