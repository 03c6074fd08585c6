"""Request bodies: bounded, and JSON, YAML or protobuf turned into plain values.

Called by `server.objects`. Whatever is sent here, the answer is a value or a clear refusal.
"""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
from aiohttp import web

from windlass.server import protobuf
from windlass.store import bounds, errors
from windlass.store.embedded.requests import PatchType

MAX_BYTES = 3 << 20
"""Kubernetes' own limit."""
MAX_YAML_BYTES = 1 << 20
"""YAML is slow to read, and reading it holds the event loop."""

_PATCHES: dict[str, PatchType] = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
}


async def read_object(request: web.BaseRequest, *, strict: bool = False) -> dict[str, Any]:
    """The object in the body. `strict` refuses a field given twice, which JSON itself lets pass."""
    data = await read(request)
    media_type = _media_type(request)
    if media_type in ("application/json", ""):
        value = decode_json(data)
        if strict:
            refuse_duplicates(data)
    elif media_type in ("application/yaml", "application/x-yaml", "text/yaml"):
        value = decode_yaml(data)
    elif media_type == protobuf.MEDIA_TYPE:
        value = protobuf.decode(data)
    else:
        raise _unknown_type("application/json, application/yaml, " + protobuf.MEDIA_TYPE)
    if not isinstance(value, dict):
        raise errors.BadRequest("the body must be a JSON object")
    return value


async def read_patch(request: web.BaseRequest) -> tuple[Any, PatchType]:
    media_type = _media_type(request)
    if media_type.startswith("application/apply-patch"):
        raise errors.UnsupportedMediaType(
            "server-side apply is not served by the embedded engine; use `kubectl apply` without "
            "--server-side, or send application/merge-patch+json"
        )
    patch_type = _PATCHES.get(media_type)
    if patch_type is None:
        raise _unknown_type(", ".join(_PATCHES))
    patch = decode_json(await read(request))
    if not isinstance(patch, list if patch_type == "json" else dict):
        wanted = "array" if patch_type == "json" else "object"
        raise errors.BadRequest(f"the body of a {media_type} patch must be a JSON {wanted}")
    return patch, patch_type


async def read(request: web.BaseRequest) -> bytes:
    if (request.content_length or 0) > MAX_BYTES:
        raise _too_large(MAX_BYTES)
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as problem:
        raise _too_large(MAX_BYTES) from problem
    except (ValueError, OSError, web.RequestPayloadError) as problem:
        # A body whose encoding (gzip, chunks) breaks off is the sender's mistake.
        raise errors.BadRequest("the body could not be read to its end") from problem


def decode_json(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
        if data.count(b"{") + data.count(b"[") > bounds.MAX_DEPTH:  # otherwise it cannot be deep
            bounds.refuse_deep(value)
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except ValueError as problem:
        raise errors.BadRequest(f"the body is not valid JSON: {problem}") from problem
    return value


def refuse_duplicates(data: bytes) -> None:
    """BadRequest when an object names a field twice."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise errors.BadRequest(f'strict decoding error: duplicate field "{twice[:80]}"')
        return found

    json.loads(data, object_pairs_hook=checked)


def decode_yaml(data: bytes) -> Any:
    import yaml  # late: most servers never see YAML

    if len(data) > MAX_YAML_BYTES:
        raise _too_large(MAX_YAML_BYTES)
    try:
        _refuse_deep_yaml(data)
        return _plain(yaml.load(data, Loader=_yaml_loader()), set())  # noqa: S506 (a safe loader)
    except yaml.YAMLError as problem:
        reason = " ".join(str(problem).split())
        raise errors.BadRequest(f"the body is not valid YAML: {reason}") from problem
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except (ValueError, OverflowError, TypeError) as problem:
        raise errors.BadRequest(f"the body is not valid YAML: {problem}") from problem


def _refuse_deep_yaml(data: bytes) -> None:
    """libyaml builds nested values by recursion in C: too deep, and the whole process dies."""
    import yaml

    depth = 0
    for event in yaml.parse(data, Loader=_yaml_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > bounds.MAX_DEPTH:
            raise errors.BadRequest("the body is nested too deeply")


def _yaml_loader() -> Any:
    """The safe loader that leaves dates as they are written."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def _plain(value: Any, seen: set[int]) -> Any:
    """YAML's value as JSON can say it. An alias could stand for a huge tree: none are taken."""
    if isinstance(value, dict | list):
        if id(value) in seen:
            raise errors.BadRequest("YAML anchors and aliases are not accepted; write it out")
        seen.add(id(value))
        if isinstance(value, list):
            return [_plain(item, seen) for item in value]
        return {_key(key): _plain(item, seen) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a number that JSON knows")
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} has no place in JSON")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, str | int | float):
        return str(key)
    raise ValueError("a key must be a string")


def _media_type(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _too_large(limit: int) -> errors.TooLarge:
    return errors.TooLarge(f"the request body is larger than the limit of {limit} bytes")


def _unknown_type(accepted: str) -> errors.UnsupportedMediaType:
    return errors.UnsupportedMediaType(
        "the body of the request was in an unknown format - accepted media types include: "
        + accepted
    )
