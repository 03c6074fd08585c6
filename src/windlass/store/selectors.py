"""Label and field selectors: parsing as Kubernetes does, and matching.

Used by the embedded API for list, watch and delete-collection. Never touches storage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from windlass.kinds.types.resource import Resource
from windlass.store import errors

LabelMatch = Callable[[Mapping[str, str]], bool]

_KEY = re.compile(
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
)
_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_SET = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_EQUALITY = re.compile(r"^([^=!<>\s]+)\s*(==|=|!=)\s*(\S*)$")
_COMPARE = re.compile(r"^([^=!<>\s]+)\s*(<|>)\s*(-?[0-9]{1,18})$")

_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
        "spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name",
        "involvedObject.uid", "involvedObject.apiVersion", "involvedObject.resourceVersion",
        "involvedObject.fieldPath", "reason", "reportingComponent", "source", "type",
    ),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}  # fmt: skip
"""Fields besides metadata.name and metadata.namespace that may be selected on, as in Kubernetes."""


class Selector:
    """The selector of a list or watch: conditions on labels and fields."""

    __slots__ = ("_fields", "_labels", "mark")

    def __init__(
        self,
        labels: list[LabelMatch],
        fields: list[tuple[tuple[str, ...], bool, str]],
        mark: bytes = b"",
    ) -> None:
        self._labels = labels
        self._fields = fields
        self.mark = mark
        """Bytes that the JSON of every selected object contains, for a search that is faster than
        decoding; empty if there are none."""

    @property
    def selects_all(self) -> bool:
        return not self._labels and not self._fields

    def matches(self, data: bytes) -> bool:
        """Whether an encoded object is selected; decodes only what the selector reads."""
        if self.selects_all:
            return True
        if not self._fields:
            labels = _LABELS.decode(data).metadata.labels or {}
            return all(match(labels) for match in self._labels)
        value = msgspec.json.decode(data)
        labels = value.get("metadata", {}).get("labels") or {}
        return all(match(labels) for match in self._labels) and all(
            (_field_text(value, path) == wanted) is equal for path, equal, wanted in self._fields
        )


class _Meta(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _Labelled(msgspec.Struct, gc=False):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


_LABELS = msgspec.json.Decoder(_Labelled)
EVERYTHING = Selector([], [])


def parse(resource: Resource, label_selector: str, field_selector: str) -> Selector:
    """The selector of a request. Raises BadRequest with the part that is not valid."""
    if not label_selector and not field_selector:
        return EVERYTHING
    parts = _split(label_selector)
    labels = [_parse_label(part) for part in parts]
    fields = [_parse_field(resource, part) for part in _split_fields(field_selector)]
    return Selector(labels, fields, _mark(parts, fields))


def _mark(labels: list[str], fields: list[tuple[tuple[str, ...], bool, str]]) -> bytes:
    """The longest required pair of key and value, as the encoder writes it."""
    pairs = [
        (match[1], match[3])
        for match in map(_EQUALITY.match, labels)
        if match is not None and match[2] != "!="
    ]
    pairs += [
        (path[-1], value)
        for path, equal, value in fields
        # An absent field is selected by "" and by false; true is no text in JSON.
        if equal
        and value not in ("", "false", "true")
        and _VALUE.match(value)
        and path != ("source",)
    ]
    return max((f'"{key}":"{value}"'.encode() for key, value in pairs), key=len, default=b"")


def _split(text: str) -> list[str]:
    """Parts between commas that are not inside parentheses."""
    if not text.strip():
        return []
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return parts


def _parse_label(part: str) -> LabelMatch:
    if match := _SET.match(part):
        key, operator, inside = match.groups()
        values = frozenset(_label_value(v.strip(), part) for v in inside.split(","))
        _label_key(key, part)
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUALITY.match(part):
        key, operator, value = match.groups()
        _label_key(key, part)
        _label_value(value, part)
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _COMPARE.match(part):
        key, operator, bound = match.groups()
        _label_key(key, part)
        return _comparison(key, operator, int(bound))
    if part.startswith("!"):
        absent = _label_key(part[1:].strip(), part)
        return lambda labels: absent not in labels
    present = _label_key(part, part)
    return lambda labels: present in labels


def _comparison(key: str, operator: str, bound: int) -> LabelMatch:
    def compare(labels: Mapping[str, str]) -> bool:
        try:
            value = int(labels.get(key, ""))
        except ValueError:
            return False
        return value > bound if operator == ">" else value < bound

    return compare


def _label_key(key: str, part: str) -> str:
    if not _KEY.match(key):
        raise errors.BadRequest(
            f"unable to parse requirement: {key[:80]!r} in {part[:120]!r} is not a label key; "
            "write key=value, key!=value, key in (a,b), key notin (a,b), key or !key"
        )
    return key


def _label_value(value: str, part: str) -> str:
    if not _VALUE.match(value):
        raise errors.BadRequest(
            f"unable to parse requirement: {value[:80]!r} in {part[:120]!r} is not a label value"
        )
    return value


def _split_fields(text: str) -> list[str]:
    """Parts between commas; a backslash keeps the next character, as in Kubernetes."""
    parts, current, escaped = [], "", False
    for char in text:
        if escaped or char == "\\":
            current += char
            escaped = not escaped and char == "\\"
        elif char == ",":
            parts.append(current)
            current = ""
        else:
            current += char
    parts.append(current)
    return [part for part in parts if part]


def _parse_field(resource: Resource, part: str) -> tuple[tuple[str, ...], bool, str]:
    operator = next((op for op in ("!=", "==", "=") if op in part), "")
    if not operator:
        raise errors.BadRequest(
            f"invalid field selector {part[:120]!r}: write field=value or field!=value"
        )
    field, _, value = part.partition(operator)
    known = ("metadata.name", *(("metadata.namespace",) if resource.namespaced else ()))
    known += _FIELDS.get(resource.key, ())
    if field not in known:
        raise errors.BadRequest(
            f'field label not supported: "{field[:80]}"; {resource.plural} can be selected by '
            + ", ".join(known)
        )
    return tuple(field.split(".")), operator != "!=", re.sub(r"\\(.)", r"\1", value)


def _field_text(value: Any, path: tuple[str, ...]) -> str:
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        # Kubernetes selects on typed objects, where an absent bool reads as false.
        return "false" if path[-1] in ("unschedulable", "hostNetwork") else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if path == ("source",) and isinstance(value, dict):
        return str(value.get("component", ""))
    return str(value)
