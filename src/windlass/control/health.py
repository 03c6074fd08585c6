"""What a cluster asks of a process of ours: /healthz, /readyz and /metrics over plain HTTP.

Probes and Prometheus read it. It says nothing of anybody's objects, and takes no input.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from windlass.control import metrics


@contextlib.asynccontextmanager
async def answering(
    host: str, port: int, registry: metrics.Registry, trouble: Callable[[], str]
) -> AsyncIterator[int]:
    """Answers inside the block; yields the port. `trouble` says why it is not ready, or ""."""

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path in ("/healthz", "/livez"):
            return web.Response(text="ok")
        if request.path == "/readyz":
            why = trouble()
            return web.Response(text=why or "ok", status=503 if why else 200)
        if request.path == "/metrics":
            return web.Response(text=registry.render(), headers={"Content-Type": _EXPOSITION})
        return web.Response(status=404, text="served here: /healthz /readyz /metrics")

    runner = web.ServerRunner(web.Server(answer, access_log=None), shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, reuse_address=True).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
