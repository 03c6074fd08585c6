"""The probes of a controller process (/healthz, /readyz) over plain HTTP, and its metrics.

The kubelet asks the probes, without authentication. /metrics is on a port of its own, over TLS, for
callers with the right to get that path. Nothing exposes objects or takes input. Only asyncio:
importing an HTTP library would take a fifth of the start-up time of a scheduler. One response per
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

from windlass.store import errors
from windlass.telemetry import prometheus

_TIMEOUT = 10.0
"""Seconds for one request and its response: a silent client keeps no connection."""
_PLAIN = "text/plain; charset=utf-8"
_PHRASES = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    503: "Service Unavailable",
}  # fmt: skip

HttpAnswer = tuple[int, str, str]
"""Status, content type, and content."""
Answer = Callable[[str, Mapping[str, str]], Awaitable[HttpAnswer]]
"""From the path and the headers (names in lower case)."""
Admit = Callable[[str | None, str], Awaitable[None]]
"""With an Authorization header and a path; raises if the caller may not get it."""


@contextlib.asynccontextmanager
async def answering(host: str, port: int, trouble: Callable[[], str]) -> AsyncIterator[int]:
    """Serves the probes inside the block; yields the port. `trouble` returns why it is not ready,
    or ""."""

    async def answer(path: str, _: Mapping[str, str]) -> HttpAnswer:
        if path in ("/healthz", "/livez"):
            return 200, _PLAIN, "ok"
        if path == "/readyz":
            why = trouble()
            return (503 if why else 200), _PLAIN, why or "ok"
        return 404, _PLAIN, "served here: /healthz /readyz"

    async with _serving(host, port, answer, None) as actual:
        yield actual


@contextlib.asynccontextmanager
async def exposing(
    host: str,
    port: int,
    registry: prometheus.Registry,
    admit: Admit,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[int]:
    """Serves /metrics inside the block to callers that `admit` admits; yields the port."""

    async def answer(path: str, headers: Mapping[str, str]) -> HttpAnswer:
        if path != "/metrics":
            return 404, _PLAIN, "served here: /metrics"
        try:
            await admit(headers.get("authorization"), path)
        except (errors.Unauthorized, errors.Forbidden) as refused:
            return refused.status_code, _PLAIN, refused.message
        except (errors.ApiError, OSError) as problem:
            return 503, _PLAIN, str(problem)
        return 200, prometheus.EXPOSITION, registry.render()

    async with _serving(host, port, answer, tls) as actual:
        yield actual


@contextlib.asynccontextmanager
async def _serving(
    host: str, port: int, answer: Answer, tls: ssl.SSLContext | None
) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_TIMEOUT):
                writer.write(await _answered(reader, answer))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, port, reuse_address=True, ssl=tls)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def _answered(reader: asyncio.StreamReader, answer: Answer) -> bytes:
    """The response to a request, as bytes on the wire."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
    except (ValueError, asyncio.LimitOverrunError):
        method, (status, kind, text) = "", (400, _PLAIN, "this is no request of HTTP/1.1")
    else:
        pairs = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        status, kind, text = await answer(target.partition("?")[0], headers)
    body = text.encode()
    sent = [
        f"HTTP/1.1 {status} {_PHRASES[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if status == 401:
        sent.append("WWW-Authenticate: Bearer")
    return "\r\n".join(sent).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else body)
