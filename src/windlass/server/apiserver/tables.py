"""`kubectl get`: objects as rows of a meta.k8s.io Table, and as metadata only.

Columns come from the kind's `Resource.columns`. Dates become ages here, as Kubernetes does for
custom resources: kubectl prints cells as they are.
"""

from __future__ import annotations

import datetime
import functools
from typing import Any

import msgspec

from windlass.kinds.types.resource import Column, Resource
from windlass.kinds.values import ages, jsonpath
from windlass.server.http.queries import IncludeObject

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
    """A Table of the objects. Watches get the columns with the first event only."""
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
    """The fields of an encoded object that responses need."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""


def head(data: bytes) -> Head:
    return _head_decoder.decode(data).metadata


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
        return ages.age(found[0], now)
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


class _RawMetadata(msgspec.Struct):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class _Headed(msgspec.Struct):
    metadata: Head = msgspec.field(default_factory=Head)


_metadata_decoder = msgspec.json.Decoder(_RawMetadata)
_head_decoder = msgspec.json.Decoder(_Headed)
