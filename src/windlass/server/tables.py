"""`kubectl get`: objects as rows of a meta.k8s.io Table, and as metadata only.

Columns come from the kind's `Resource.columns`. Dates become ages here, as Kubernetes does for
custom resources: kubectl prints cells as they are.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any, Literal

import msgspec

from windlass.kinds import times
from windlass.kinds.resources import Column, Resource
from windlass.server import jsonpath

IncludeObject = Literal["None", "Metadata", "Object"]

_NAME_COLUMN: dict[str, Any] = {
    "name": "Name",
    "type": "string",
    "format": "name",
    "description": "Name of the object, unique in its namespace.",
    "priority": 0,
}


def table(
    resource: Resource,
    objects: list[bytes],
    *,
    version: str,
    include: IncludeObject,
    metadata: dict[str, Any],
    now: datetime.datetime,
    with_columns: bool = True,
) -> bytes:
    """A Table of the objects. Watches ask for the columns with their first event only."""
    rows = [_row(resource, data, version, include, now) for data in objects]
    return msgspec.json.encode(
        {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{version}",
            "metadata": metadata,
            "columnDefinitions": _definitions(resource) if with_columns else [],
            "rows": rows,
        }
    )


def partial(data: bytes, version: str) -> bytes:
    """The PartialObjectMetadata of an object."""
    metadata = bytes(_metadata_decoder.decode(data).metadata)
    return (
        b'{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/%b","metadata":%b}'
        % (version.encode(), metadata)
    )  # fmt: skip


class Head(msgspec.Struct, rename="camel"):
    """What answers need to know of an encoded object."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""


def head(data: bytes) -> Head:
    return _head_decoder.decode(data).metadata


def human_age(timestamp: str, now: datetime.datetime) -> str:
    """A time as its age: `45s`, `3m2s`, `5h10m`, `12d`, `2y30d`."""
    try:
        seconds = int((now - times.parse(timestamp)).total_seconds())
    except (ValueError, OverflowError):
        return "<invalid>"
    if seconds < -1:
        return "<invalid>"
    return human_duration(max(0, seconds))


def human_duration(seconds: int) -> str:
    """The two largest units while they tell something, as kubectl's users know it."""
    minutes, hours = seconds // 60, seconds // 3600
    days = hours // 24
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _two(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return _two(days, "d", hours % 24, "h")
    if days < 730:
        return f"{days}d"
    if days < 8 * 365:
        return _two(days // 365, "y", days % 365, "d")
    return f"{days // 365}y"


class _RawMetadata(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class _Headed(msgspec.Struct):
    metadata: Head = msgspec.field(default_factory=Head)


_metadata_decoder = msgspec.json.Decoder(_RawMetadata)
_head_decoder = msgspec.json.Decoder(_Headed)


def _row(
    resource: Resource, data: bytes, version: str, include: IncludeObject, now: datetime.datetime
) -> dict[str, Any]:
    obj = msgspec.json.decode(data)
    cells = [obj.get("metadata", {}).get("name", "")]
    cells += [_cell(column, steps, obj, now) for column, steps in _compiled(resource)]
    row: dict[str, Any] = {"cells": cells}
    if include == "Object":
        row["object"] = msgspec.Raw(data)
    elif include == "Metadata":
        row["object"] = msgspec.Raw(partial(data, version))
    return row


@functools.cache
def _definitions(resource: Resource) -> list[dict[str, Any]]:
    return [
        _NAME_COLUMN,
        *(
            {
                "name": column.name,
                "type": column.type,
                "format": "",
                "description": column.description,
                "priority": column.priority,
            }
            for column in resource.columns
        ),
    ]


@functools.cache
def _compiled(resource: Resource) -> list[tuple[Column, tuple[jsonpath.Step, ...]]]:
    return [(column, jsonpath.parse(column.json_path)) for column in resource.columns]


def _cell(
    column: Column, steps: tuple[jsonpath.Step, ...], obj: Any, now: datetime.datetime
) -> Any:
    """The value of one cell, or None, which kubectl prints as `<none>`."""
    found = jsonpath.find(steps, obj)
    if column.type == "date":
        if not found or not isinstance(found[0], str):
            return "<unknown>" if column.json_path == ".metadata.creationTimestamp" else None
        return human_age(found[0], now)
    if not found or (len(found) == 1 and found[0] is None):
        return None
    if column.type == "string":
        return " ".join(_text(value) for value in found)
    return _typed(column.type, found[0])


def _typed(kind: str, value: Any) -> Any:
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if kind == "integer" else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small}{small_unit}" if small else f"{large}{large_unit}"
