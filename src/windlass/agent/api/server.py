"""The agent's own HTTP endpoint, for the API server only: logs, sessions, usage.

    GET /logs/POD-UID/CONTAINER                      with the query of pods/log
    WS  /exec|attach|portforward/POD-UID[/CONTAINER]  with the query of pods/exec
    GET /metrics/resource, /stats/summary            as kubelet's

Every request carries the secret that lies in the agent's state folder: who can read that file may
read the logs anyway. `agent.gateway` is the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import hmac
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web

from windlass.agent import changes, containers, logs, procfs, sessions, shimlog, usage
from windlass.agent.containers import Container
from windlass.kinds import times

CHANNELS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
TUNNEL = "SPDY/3.1+portforward.k8s.io"
_HEARTBEAT = 30.0


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
    """What the agent answers."""

    def __init__(self, pods: Path, secret: str, meter: usage.Meter | None = None) -> None:
        self._pods = pods
        self._secret = secret
        self._meter = meter
        self._changes: changes.Changes | None = None

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[int]:
        """Serves inside the block; yields the port."""
        app = web.Application()
        pod = "{uid:[A-Za-z0-9-]+}"
        container = "{container:[a-z0-9-]+}"
        for path, answer in (
            (f"/logs/{pod}/{container}", self._logs),
            (f"/exec/{pod}/{container}", self._exec),
            (f"/attach/{pod}/{container}", self._attach),
            (f"/portforward/{pod}", self._forward),
            ("/metrics/resource", self._metrics),
            ("/stats/summary", self._summary),
        ):
            app.router.add_get(path, self._guarded(answer))
        # A log may be followed for days: connections end with the agent, not after a while.
        runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await runner.setup()
        self._changes = changes.Changes()
        try:
            site = web.TCPSite(runner, host, port)
            await site.start()
            yield runner.addresses[0][1]
        finally:
            await runner.cleanup()
            self._changes.close()

    def _guarded(
        self, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            given = request.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self._secret}".encode()):
                raise web.HTTPUnauthorized(text="the agent's secret is missing or wrong")
            return await answer(request)

        return guarded

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        path = container.log(previous=_flag(request, "previous"))
        if path is None or not shimlog.segments(path):
            raise web.HTTPNotFound(text=f"container {container.name} has no such log yet")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        running = functools.partial(_is_running, container)
        async for piece in logs.read(path, _query(request), running, self._changes):
            await response.write(piece)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        container, wanted = self._container(request), _wanted(request)
        if not wanted.command:
            raise web.HTTPBadRequest(text="you must specify at least 1 command for the container")
        socket = await _accepted(request, CHANNELS)
        await sessions.execute(container, wanted, sessions.Channels(socket))
        await socket.close()
        return socket

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        container, wanted = self._container(request), _wanted(request)
        socket = await _accepted(request, CHANNELS)
        await sessions.attach(container, wanted, sessions.Channels(socket))
        await socket.close()
        return socket

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        folder = self._folder(request)
        socket = await _accepted(request, (TUNNEL,))
        await sessions.Forward(socket, "localhost", lambda: _ports(folder)).run()
        await socket.close()
        return socket

    async def _metrics(self, _: web.Request) -> web.Response:
        text = usage.exposition(await self._measured())
        return web.Response(text=text, content_type="text/plain")

    async def _summary(self, _: web.Request) -> web.Response:
        return web.json_response(usage.summary(await self._measured()))

    async def _measured(self) -> usage.Measured:
        if self._meter is None:
            raise web.HTTPNotFound(text="this agent measures nothing")
        return await asyncio.to_thread(self._meter.measure)

    def _container(self, request: web.Request) -> Container:
        return Container(self._folder(request), request.match_info["container"])

    def _folder(self, request: web.Request) -> Path:
        folder = self._pods / request.match_info["uid"]
        if procfs.read_json(folder / "pod.json") is None:
            raise web.HTTPNotFound(text="the pod has not started on this node")
        return folder


def _is_running(container: Container) -> bool:
    return container.observe().state == "running"


def _ports(folder: Path) -> set[int]:
    """Ports that the pod's own processes listen on."""
    shims = [container.running_pid() for container in containers.all_in(folder)]
    pids = [pid for shim in shims if shim is not None for pid in procfs.descendants(shim)]
    return procfs.listening_ports(pids)


async def _accepted(request: web.Request, protocols: tuple[str, ...]) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(
        protocols=protocols, max_msg_size=4 << 20, heartbeat=_HEARTBEAT, autoping=True
    )
    await socket.prepare(request)
    return socket


def _wanted(request: web.Request) -> sessions.Wanted:
    return sessions.Wanted(
        command=tuple(request.query.getall("command", [])),
        stdin=_flag(request, "stdin"),
        stdout=_flag(request, "stdout"),
        stderr=_flag(request, "stderr"),
        tty=_flag(request, "tty"),
    )


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
