"""Bodies that kubectl's typed commands send as protobuf, turned into the JSON form.

Called by `server.http.bodies`. Decodes the `k8s\\0` envelope and the messages of `protobuf_tables`;
any other body is refused with the advice to send JSON, and never decoded in part.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import functools
from collections.abc import Iterator
from typing import Any

from windlass.server.http import protobuf_tables
from windlass.store import errors

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"

_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 16
_MAX_SECONDS = 60_000_000_000  # either side of 1970: a bit less than the range of dates
_SCALARS = frozenset({"string", "int", "bool", "bytes", "raw"})


def decode(body: bytes) -> dict[str, Any]:
    """The object in a protobuf body, in its JSON form."""
    if not body.startswith(_MAGIC):
        raise errors.BadRequest(
            "the protobuf body does not begin with the Kubernetes envelope; send application/json"
        )
    try:
        return _decode_envelope(body[len(_MAGIC) :])
    except (ValueError, OverflowError) as problem:
        raise errors.BadRequest(f"the protobuf body could not be read: {problem}") from problem


def _decode_envelope(data: bytes) -> dict[str, Any]:
    envelope = _message(data, "Unknown", 0)
    meta = envelope.get("typeMeta", {})
    api_version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
    name = protobuf_tables.KINDS.get((api_version, kind))
    if name is None:
        raise errors.UnsupportedMediaType(
            f'{api_version} "{kind}" is not accepted as protobuf here; send application/json'
        )
    return {"apiVersion": api_version, "kind": kind, **_message(envelope.get("raw", b""), name, 0)}


# --- messages by their tables -------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    type: str
    repeated: bool
    keep_zero: bool


@functools.cache
def _fields(message: str) -> dict[int, _Field]:
    """The table line of a message, parsed once."""
    table: dict[int, _Field] = {}
    for entry in protobuf_tables.MESSAGES[message].split():
        number, _, rest = entry.partition(":")
        name, _, kind = rest.partition("=")
        kind = kind or "string"
        table[int(number)] = _Field(
            name, kind.removesuffix("[]").removesuffix("?"), kind.endswith("[]"), kind.endswith("?")
        )
    return table


def _message(data: bytes, message: str, depth: int) -> dict[str, Any]:
    if depth > _MAX_DEPTH:
        raise ValueError("messages are nested too deeply")
    table = _fields(message)
    result: dict[str, Any] = {}
    for number, value in _wire(data):
        field = table.get(number)
        if field is None:
            raise errors.UnsupportedMediaType(
                f"field {number} of {message} is not known here as protobuf; send application/json"
            )
        if field.type != "ignored":
            _store(result, field, value, depth)
    return result


def _store(result: dict[str, Any], field: _Field, value: int | bytes, depth: int) -> None:
    """Adds one decoded field in its JSON form; an empty optional value is left out."""
    if field.type in ("map", "bytesmap"):
        key, item = _map_entry(_as_bytes(value), field.type == "bytesmap")
        result.setdefault(field.name, {})[key] = item
        return
    decoded = _value(field.type, value, depth)
    if field.repeated:
        result.setdefault(field.name, []).append(decoded)
    elif field.keep_zero or decoded or field.type == "IntOrString":
        result[field.name] = decoded


def _value(kind: str, value: int | bytes, depth: int) -> Any:
    if kind in _SCALARS:
        return _scalar(kind, value)
    data = _as_bytes(value)
    if kind in ("Time", "MicroTime"):
        return _time(data, micro=kind == "MicroTime")
    if kind == "IntOrString":
        return _int_or_string(data)
    return _message(data, kind, depth + 1)


def _scalar(kind: str, value: int | bytes) -> Any:
    if kind == "int":
        return _as_int(value)
    if kind == "bool":
        return bool(_as_int(value))
    data = _as_bytes(value)
    if kind == "raw":
        return data
    return base64.b64encode(data).decode() if kind == "bytes" else data.decode()


def _map_entry(data: bytes, values_are_bytes: bool) -> tuple[str, str]:
    key, item = "", b""
    for number, value in _wire(data):
        if number == 1:
            key = _as_bytes(value).decode()
        elif number == 2:
            item = _as_bytes(value)
    return key, base64.b64encode(item).decode() if values_are_bytes else item.decode()


def _time(data: bytes, micro: bool) -> str:
    """RFC 3339; "" for the zero time, which travels as an empty message."""
    parts = {number: _as_int(value) for number, value in _wire(data)}
    if not parts:
        return ""
    seconds = parts.get(1, 0)
    if abs(seconds) > _MAX_SECONDS:
        raise ValueError("a time is out of range")
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{parts.get(2, 0) // 1000:06d}Z" if micro else f"{text}Z"


def _int_or_string(data: bytes) -> int | str:
    parts = dict(_wire(data))
    if parts.get(1, 0) == 1:
        return _as_bytes(parts.get(3, b"")).decode()
    return _as_int(parts.get(2, 0))


# --- the wire format ----------------------------------------------------------------------------


def _wire(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, integer or bytes) in order."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(data, position)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {wire_type} is not used by Kubernetes")
        if position + size > end:
            raise ValueError("it ends in the middle of a field")
        yield number, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    result = shift = 0
    while shift < 70:
        if position >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
    raise ValueError("a number is longer than 64 bits")


def _as_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("bytes where a number belongs")  # noqa: TRY004 (bad input, not a bug)
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where bytes belong")  # noqa: TRY004 (bad input, not a bug)
    return value
