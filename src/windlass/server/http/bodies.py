"""Request bodies: bounded, and JSON, YAML or protobuf turned into plain values.

Called by `server.apiserver.handlers`. For any input the result is a value or a clear error.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from windlass.server.http import parser_process, protobuf
from windlass.server.http.connections import connection_of, too_slow
from windlass.server.http.decoding import (
    MAX_YAML_BYTES,
    decode_json,
    decode_yaml,
    refuse_duplicates,
    too_large,
)
from windlass.store import errors
from windlass.store.embedded.options import PatchType

MAX_BYTES = 3 << 20
"""The limit of Kubernetes."""
MAX_REVIEW_BYTES = 64 << 10
"""Limit of requests that need no role, such as SelfSubjectAccessReview."""
_INLINE_BYTES = 64 << 10
"""Larger bodies of JSON are parsed one at a time of each caller, callers in turn."""
_INLINE_STRICT_BYTES = 16 << 10
"""Larger bodies are searched for duplicate fields by the parser process."""
_INLINE_YAML_BYTES = 1 << 10
"""Larger bodies of YAML are parsed by the parser process."""
BODY_SECONDS = 10.0
"""A body has this time, and the time of its largest size at the least rate."""
_LEAST_RATE = 256 << 10
PIECE_SECONDS = 30.0
"""The longest pause inside of an upload."""
_LEAST_UPLOAD_RATE = 1 << 10
"""Bytes per second of an upload, on average."""
SLOW = parser_process.ParserProcess()
"""Ended by the server when it stops."""
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
    value = await _decoded(request, media_type, data, strict)
    if not isinstance(value, dict):
        raise errors.BadRequest("the body must be a JSON object")
    return value


async def _decoded(request: web.BaseRequest, media_type: str, data: bytes, strict: bool) -> Any:
    if media_type in ("application/json", ""):
        if strict and len(data) > _INLINE_STRICT_BYTES:
            return decode_json(await _slowly(request, "strict JSON", data))
        value = await _decoded_json(request, data)
        if strict:
            refuse_duplicates(data)
        return value
    if media_type in _YAML:
        if len(data) <= _INLINE_YAML_BYTES:
            return decode_yaml(data, strict=strict)
        return decode_json(await _slowly(request, "strict YAML" if strict else "YAML", data))
    if media_type == protobuf.MEDIA_TYPE:
        return protobuf.decode(data)
    raise _unknown_type("application/json, application/yaml, " + protobuf.MEDIA_TYPE)


async def _decoded_json(request: web.BaseRequest, data: bytes) -> Any:
    if len(data) <= _INLINE_BYTES:
        return decode_json(data)
    async with _turn(request):
        return decode_json(data)


async def _slowly(request: web.BaseRequest, form: parser_process.Form, data: bytes) -> bytes:
    """The body as JSON without duplicate fields; read by another process, so that other requests
    are answered meanwhile."""
    if form.endswith("YAML") and len(data) > MAX_YAML_BYTES:
        raise too_large(MAX_YAML_BYTES)
    async with _turn(request):
        return await SLOW.parse(form, data)


def _turn(request: web.BaseRequest) -> contextlib.AbstractAsyncContextManager[None]:
    connection = connection_of(request)
    if connection is None or connection.caller is None:
        return contextlib.nullcontext()
    return connection.caller.level.queues.parsing(connection.caller)


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
    patch = await _decoded_json(request, data)
    if not isinstance(patch, list if patch_type == "json" else dict):
        wanted = "array" if patch_type == "json" else "object"
        raise errors.BadRequest(f"the body of a {media_type} patch must be a JSON {wanted}")
    return patch, patch_type


async def read(request: web.BaseRequest, limit: int = MAX_BYTES) -> bytes:
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    try:
        connection = None if request.content.is_eof() else connection_of(request)
        if connection is None:
            data = await request.read()
        else:
            length = request.content_length or limit
            connection.expect_body(request.content, BODY_SECONDS + length / _LEAST_RATE)
            data = await request.read()
            connection.body_came()
    except web.HTTPRequestEntityTooLarge as problem:
        raise too_large(MAX_BYTES) from problem
    except (ValueError, OSError, web.RequestPayloadError) as problem:
        # A body whose encoding (gzip, chunks) breaks off is an error of the client.
        raise errors.BadRequest("the body could not be read to its end") from problem
    if len(data) > limit:  # sent in chunks, so that its length was not known before
        raise too_large(limit)
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


def _media_type(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _unknown_type(accepted: str) -> errors.UnsupportedMediaType:
    return errors.UnsupportedMediaType(
        "the body of the request was in an unknown format - accepted media types include: "
        + accepted
    )
