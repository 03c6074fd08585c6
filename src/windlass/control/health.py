"""What a cluster asks of a process of ours: /healthz, /readyz and /metrics over plain HTTP.

Probes and Prometheus read it. It says nothing of anybody's objects, and takes no input. With
nothing but asyncio: to load an HTTP library would take a fifth of the time in which a scheduler
that was just started begins to work. One answer per connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from windlass.control import metrics

_PATIENCE = 10.0
"""Seconds for one request and its answer: whoever says nothing keeps no connection."""
_PLAIN, _EXPOSITION = "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8"
_WORDS = {200: "OK", 400: "Bad Request", 404: "Not Found", 503: "Service Unavailable"}

Said = tuple[int, str, str]
"""Status, type of the content, and the content."""


@contextlib.asynccontextmanager
async def answering(
    host: str, port: int, registry: metrics.Registry, trouble: Callable[[], str]
) -> AsyncIterator[int]:
    """Answers inside the block; yields the port. `trouble` says why it is not ready, or ""."""

    def answer(path: str) -> Said:
        if path in ("/healthz", "/livez"):
            return 200, _PLAIN, "ok"
        if path == "/readyz":
            why = trouble()
            return (503 if why else 200), _PLAIN, why or "ok"
        if path == "/metrics":
            return 200, _EXPOSITION, registry.render()
        return 404, _PLAIN, "served here: /healthz /readyz /metrics"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_PATIENCE):
                writer.write(await _answered(reader, answer))
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, port, reuse_address=True)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def _answered(reader: asyncio.StreamReader, answer: Callable[[str], Said]) -> bytes:
    """The answer to a request, as it goes over the wire."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.decode("latin-1").split("\r\n", 1)[0].split(" ")
    except (ValueError, asyncio.LimitOverrunError):
        method, (status, kind, text) = "", (400, _PLAIN, "this is no request of HTTP/1.1")
    else:
        status, kind, text = answer(target.partition("?")[0])
    body = text.encode()
    told = [
        f"HTTP/1.1 {status} {_WORDS[status]}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    return "\r\n".join(told).encode() + b"\r\n\r\n" + (b"" if method == "HEAD" else body)
