"""Request bodies: bounded, and JSON, YAML or protobuf turned into plain values.

Called by `server.apiserver.handlers`. For any input the result is a value or a clear error.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from typing import Any

import msgspec
from aiohttp import web

from windlass.kinds.values import duplicate_keys
from windlass.server.http import protobuf
from windlass.server.http.connections import connection_of, too_slow
from windlass.store import errors, limits
from windlass.store.embedded.options import PatchType

MAX_BYTES = 3 << 20
"""The limit of Kubernetes."""
MAX_YAML_BYTES = 256 << 10
"""YAML is slow to parse."""
MAX_REVIEW_BYTES = 64 << 10
"""Limit of requests that need no role, such as SelfSubjectAccessReview."""
_OFF_LOOP_BYTES = 32 << 10
"""Larger bodies are parsed in a worker thread, so that other requests are answered meanwhile."""
_OFF_LOOP_YAML_BYTES = 2 << 10
"""For YAML, which takes a hundred times longer."""
BODY_SECONDS = 10.0
"""A body has this time, and the time of its largest size at the least rate."""
_LEAST_RATE = 64 << 10
PIECE_SECONDS = 30.0
"""The longest pause inside of an upload."""
_LEAST_UPLOAD_RATE = 1 << 10
"""Bytes per second of an upload, on average."""
_PARSERS = futures.ThreadPoolExecutor(2, "request-body")
_YAML = ("application/yaml", "application/x-yaml", "text/yaml")

_PATCHES: dict[str, PatchType] = {
    "application/merge-patch+json": "merge",
    "application/json-patch+json": "json",
    "application/strategic-merge-patch+json": "strategic",
}


async def read_object(
    request: web.BaseRequest, *, strict: bool = False, limit: int = MAX_BYTES, yaml: bool = False
) -> dict[str, Any]:
    """The object in the body. `strict` refuses duplicate fields, which JSON itself allows; `yaml`
    also accepts YAML."""
    media_type = _media_type(request)
    if media_type in _YAML and not yaml:
        raise _unknown_type("application/json, " + protobuf.MEDIA_TYPE)
    data = await read(request, limit)
    most = _OFF_LOOP_YAML_BYTES if media_type in _YAML else _OFF_LOOP_BYTES
    if len(data) <= most:
        value = _decode(media_type, data, strict)
    else:
        value = await _off_loop(request, functools.partial(_decode, media_type, data, strict))
    if not isinstance(value, dict):
        raise errors.BadRequest("the body must be a JSON object")
    return value


def _decode(media_type: str, data: bytes, strict: bool) -> Any:
    if media_type in ("application/json", ""):
        value = decode_json(data)
        if strict:
            refuse_duplicates(data)
        return value
    if media_type in _YAML:
        return decode_yaml(data, strict=strict)
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(data)
    raise _unknown_type("application/json, application/yaml, " + protobuf.MEDIA_TYPE)


async def _off_loop(request: web.BaseRequest, parse: Callable[[], Any]) -> Any:
    """The result of `parse` in a worker thread, in which callers take turns."""
    connection, loop = connection_of(request), asyncio.get_running_loop()
    if connection is None or connection.caller is None:
        return await loop.run_in_executor(_PARSERS, parse)
    async with connection.caller.level.queues.parsing(connection.caller):
        return await loop.run_in_executor(_PARSERS, parse)


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
    data = await read(request)
    if len(data) <= _OFF_LOOP_BYTES:
        patch = decode_json(data)
    else:
        patch = await _off_loop(request, functools.partial(decode_json, data))
    if not isinstance(patch, list if patch_type == "json" else dict):
        wanted = "array" if patch_type == "json" else "object"
        raise errors.BadRequest(f"the body of a {media_type} patch must be a JSON {wanted}")
    return patch, patch_type


async def read(request: web.BaseRequest, limit: int = MAX_BYTES) -> bytes:
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    try:
        connection = None if request.content.is_eof() else connection_of(request)
        if connection is None:
            data = await request.read()
        else:
            connection.expect_body(request.content, BODY_SECONDS + limit / _LEAST_RATE)
            data = await request.read()
            connection.body_came()
    except web.HTTPRequestEntityTooLarge as problem:
        raise _too_large(MAX_BYTES) from problem
    except (ValueError, OSError, web.RequestPayloadError) as problem:
        # A body whose encoding (gzip, chunks) breaks off is an error of the client.
        raise errors.BadRequest("the body could not be read to its end") from problem
    if len(data) > limit:  # sent in chunks, so that its length was not known before
        raise _too_large(limit)
    return data


async def pieces(request: web.BaseRequest, size: int) -> AsyncIterator[bytes]:
    """The body of an upload as it arrives. RequestTimeout when it stops coming, or comes so slowly
    that only an attacker sends it."""
    loop = asyncio.get_running_loop()
    began, received = loop.time(), 0
    source = aiter(request.content.iter_chunked(size))
    while True:
        try:
            async with asyncio.timeout(PIECE_SECONDS):
                piece = await anext(source, None)
        except TimeoutError:
            raise too_slow() from None
        if piece is None:
            return
        received += len(piece)
        spent = loop.time() - began
        if spent > PIECE_SECONDS and received < spent * _LEAST_UPLOAD_RATE:
            raise too_slow()
        yield piece


def decode_json(data: bytes) -> Any:
    try:
        value = msgspec.json.decode(data)
        if data.count(b"{") + data.count(b"[") > limits.MAX_DEPTH:  # else it cannot be too deep
            limits.refuse_deep(value)
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except ValueError as problem:
        raise errors.BadRequest(f"the body is not valid JSON: {problem}") from problem
    return value


def refuse_duplicates(data: bytes) -> None:
    """BadRequest if an object has a field twice."""

    def checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise errors.BadRequest(f'strict decoding error: duplicate field "{name[:80]}"')
            found[name] = value
        return found

    json.loads(data, object_pairs_hook=checked)


def decode_yaml(data: bytes, *, strict: bool = False) -> Any:
    import yaml  # late: most servers never get YAML

    if len(data) > MAX_YAML_BYTES:
        raise _too_large(MAX_YAML_BYTES)
    try:
        _refuse_deep_yaml(data)
        if strict:
            _refuse_duplicate_keys(data)
        return _plain(yaml.load(data, Loader=_yaml_loader()), set())  # noqa: S506 (a safe loader)
    except yaml.YAMLError as problem:
        reason = " ".join(str(problem).split())
        raise errors.BadRequest(f"the body is not valid YAML: {reason}") from problem
    except RecursionError as problem:
        raise errors.BadRequest("the body is nested too deeply") from problem
    except (ValueError, OverflowError, TypeError) as problem:
        raise errors.BadRequest(f"the body is not valid YAML: {problem}") from problem


def _refuse_deep_yaml(data: bytes) -> None:
    """libyaml builds nested values by recursion in C: too much depth crashes the process."""
    import yaml

    depth = 0
    for event in yaml.parse(data, Loader=_yaml_loader()):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > limits.MAX_DEPTH:
            raise errors.BadRequest("the body is nested too deeply")


def _refuse_duplicate_keys(data: bytes) -> None:
    import yaml

    for each in duplicate_keys.find(yaml.compose(data, Loader=_yaml_loader())):
        key = each.path.rpartition(".")[2]
        raise errors.BadRequest(
            f'strict decoding error: yaml: line {each.line}: key "{key[:80]}" already set in map '
            f"(on line {each.first})"
        )


def _yaml_loader() -> Any:
    """The safe loader that keeps dates as text."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in base.yaml_implicit_resolvers.items()
    }
    return type("Loader", (base,), {"yaml_implicit_resolvers": resolvers})


def _plain(value: Any, seen: set[int]) -> Any:
    """The YAML value as JSON. An alias could expand to a huge tree: aliases are refused."""
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
