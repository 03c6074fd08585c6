"""The response form that a client accepts: plain objects, a Table, or only metadata.

Called once per read by `server.apiserver.handlers`; the parsed `Accept` header is cached because
clients repeat the same few. The server writes JSON, and YAML on request; a client that prefers
protobuf gets JSON, which all of them read.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

from windlass.store import errors

Shape = Literal["object", "table", "partial"]
Encoding = Literal["json", "yaml"]

_ENCODINGS: dict[str, Encoding] = {
    "application/json": "json",
    "application/yaml": "yaml",
    "application/vnd.kubernetes.protobuf": "json",
    "*/*": "json",
    "application/*": "json",
}
_SHAPES: dict[str, Shape] = {
    "Table": "table",
    "PartialObjectMetadata": "partial",
    "PartialObjectMetadataList": "partial",
}
CONTENT_TYPES: dict[Encoding, str] = {"json": "application/json", "yaml": "application/yaml"}


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """The form of a response."""

    shape: Shape = "object"
    version: str = "v1"
    """The version of meta.k8s.io, for tables and partial metadata."""
    encoding: Encoding = "json"


PLAIN = Form()


@dataclasses.dataclass(frozen=True, slots=True)
class Clause:
    """One alternative of an Accept header."""

    media_type: str
    parameters: dict[str, str]
    quality: float


def negotiate(accept: str | None) -> Form:
    """The first form in the client's order that this server supports; 406 if there is none."""
    if accept is None or accept in ("application/json", "*/*"):
        return PLAIN
    form = _negotiated(accept)
    if form is None:
        raise errors.NotAcceptable(
            "only the following media types are accepted: application/json, application/yaml, "
            "application/json;as=Table;v=v1;g=meta.k8s.io, "
            "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
        )
    return form


@functools.lru_cache(maxsize=256)
def clauses(accept: str) -> tuple[Clause, ...]:
    """The alternatives of an Accept header, the most preferred first."""
    parsed = [_clause(text) for text in accept.split(",") if text.strip()]
    return tuple(sorted((c for c in parsed if c.quality > 0), key=lambda c: -c.quality))


@functools.lru_cache(maxsize=256)
def _negotiated(accept: str) -> Form | None:
    for clause in clauses(accept):
        encoding = _ENCODINGS.get(clause.media_type)
        if encoding is None:
            continue
        wanted = clause.parameters.get("as")
        if wanted is None:
            return Form(encoding=encoding)
        version = clause.parameters.get("v", "")
        known = clause.parameters.get("g") == "meta.k8s.io" and version in ("v1", "v1beta1")
        if known and wanted in _SHAPES:
            return Form(_SHAPES[wanted], version, encoding)
    return None


def _clause(text: str) -> Clause:
    media_type, *rest = (part.strip() for part in text.split(";"))
    parameters = {}
    for part in rest:
        key, _, value = part.partition("=")
        parameters[key.strip()] = value.strip().strip('"')
    try:
        quality = float(parameters.pop("q", "1"))
    except ValueError:
        quality = 0.0
    return Clause(media_type.lower(), parameters, quality)
