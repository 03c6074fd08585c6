"""Responses with a body that is complete: JSON values and bytes."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

JSON_HEADERS = {"Content-Type": "application/json"}


def json_response(
    value: Any, code: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=code, headers={**JSON_HEADERS, **(headers or {})})


def bytes_response(body: bytes, content_type: str) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type})
