"""The agent's own small HTTP endpoint: container logs, for the API server only.

Every request carries the secret that lies in the agent's state folder: who can read that file may
read the logs anyway. `agent.gateway` is the other end.
"""

from __future__ import annotations

import contextlib
import datetime
import hmac
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from windlass.agent import logs, procfs
from windlass.agent.containers import Container
from windlass.kinds import times


def secret_file(state: Path) -> Path:
    return state / "secret"


def ensure_secret(state: Path) -> str:
    """The secret of this agent, made at the first start."""
    path = secret_file(state)
    if not path.exists():
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    return path.read_text()


class Endpoint:
    """`GET /logs/POD-UID/CONTAINER`, with the query of pods/log."""

    def __init__(self, pods: Path, secret: str) -> None:
        self._pods = pods
        self._secret = secret

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serves inside the block; yields the port."""
        app = web.Application()
        app.router.add_get("/logs/{uid:[A-Za-z0-9-]+}/{container:[a-z0-9-]+}", self._logs)
        # A log may be followed for days: connections end with the agent, not after a while.
        runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given, f"Bearer {self._secret}"):
            raise web.HTTPUnauthorized(text="the agent's secret is missing or wrong")
        folder = self._pods / request.match_info["uid"]
        if procfs.read_json(folder / "pod.json") is None:
            raise web.HTTPNotFound(text="the pod has not started on this node")
        container = Container(folder, request.match_info["container"])
        path = container.log(previous=_flag(request, "previous"))
        if path is None or not path.exists():
            raise web.HTTPNotFound(text=f"container {container.name} has no such log yet")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        query = _query(request)
        async for piece in logs.read(path, query, lambda: container.observe().state == "running"):
            await response.write(piece)
        await response.write_eof()
        return response


def _query(request: web.Request) -> logs.Query:
    since_seconds, since_time = request.query.get("sinceSeconds"), request.query.get("sinceTime")
    since = times.parse(since_time) if since_time else None
    if since_seconds:
        since = times.now() - datetime.timedelta(seconds=int(since_seconds))
    return logs.Query(
        follow=_flag(request, "follow"),
        timestamps=_flag(request, "timestamps"),
        tail_lines=_number(request, "tailLines"),
        since=since,
        limit_bytes=_number(request, "limitBytes"),
    )


def _flag(request: web.Request, name: str) -> bool:
    return request.query.get(name) == "true"


def _number(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    return int(text) if text else None
