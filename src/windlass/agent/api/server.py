"""The agent's HTTP endpoint for the API server: logs, exec sessions, usage.

    GET /logs/POD-UID/CONTAINER                      with the query of pods/log
    WS  /exec|attach|portforward/POD-UID[/CONTAINER]  with the query of pods/exec
    GET /files/POD-UID?path=PATH                      what is at a path of the pod, and below it
    GET /filecontent/POD-UID?path=&offset=&size=      bytes of a file of the pod
    GET /metrics/resource, /stats/summary            as kubelet's

It listens on a Unix socket (`agent.api.unix_socket`) and serves only the user that it runs as, and
root. `agent.api.client` is the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import functools
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from windlass.agent.api import unix_socket
from windlass.agent.metrics import usage
from windlass.agent.pods import pod_files
from windlass.agent.runtime import containers, procfs
from windlass.agent.runtime.containers import Container
from windlass.agent.streaming import exec_session
from windlass.kinds.values import times
from windlass.podlogs import inotify, log_format, reader

CHANNELS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
TUNNEL = "SPDY/3.1+portforward.k8s.io"
_HEARTBEAT = 30.0
_PIECE = 256 << 10


def own_user_only(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Refuses processes of other users, which a folder with wrong permissions would let in."""

    async def guarded(request: web.Request) -> web.StreamResponse:
        connection = request.get_extra_info("socket")
        if connection is None or unix_socket.peer_uid(connection) not in (0, os.geteuid()):
            raise web.HTTPForbidden(text="only the user of the engine may connect to its agent")
        return await answer(request)

    return guarded


class AgentServer:
    """Serves the agent's HTTP endpoint."""

    def __init__(self, pods: Path, meter: usage.UsageMeter | None = None) -> None:
        self._pods = pods
        self._meter = meter
        self._inotify: inotify.Inotify | None = None

    @contextlib.asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serves on this socket inside the block."""
        app = web.Application()
        pod = "{uid:[A-Za-z0-9-]+}"
        container = "{container:[a-z0-9-]+}"
        for path, answer in (
            (f"/logs/{pod}/{container}", self._logs),
            (f"/exec/{pod}/{container}", self._exec),
            (f"/attach/{pod}/{container}", self._attach),
            (f"/portforward/{pod}", self._forward),
            (f"/files/{pod}", self._files),
            (f"/filecontent/{pod}", self._file_content),
            ("/metrics/resource", self._metrics),
            ("/stats/summary", self._summary),
        ):
            app.router.add_get(path, own_user_only(answer))
        # A client may follow a log for days, so shutdown closes connections after one second.
        runner = web.AppRunner(app, shutdown_timeout=1.0, access_log=None)
        await runner.setup()
        self._inotify = inotify.Inotify()
        try:
            await web.SockSite(runner, listener).start()
            yield
        finally:
            await runner.cleanup()
            self._inotify.close()

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._container(request)
        path = container.log(previous=_flag(request, "previous"))
        if path is None or not log_format.segments(path):
            raise web.HTTPNotFound(text=f"container {container.name} has no such log yet")
        response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})
        await response.prepare(request)
        running = functools.partial(_is_running, container)
        async for piece in reader.read(path, _query(request), running, self._inotify):
            await response.write(piece)
        await response.write_eof()
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        container, wanted = self._container(request), _stream_request(request)
        if not wanted.command:
            raise web.HTTPBadRequest(text="you must specify at least 1 command for the container")
        socket = await _accepted(request, CHANNELS)
        await exec_session.execute(container, wanted, exec_session.Channels(socket))
        await socket.close()
        return socket

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        container, wanted = self._container(request), _stream_request(request)
        socket = await _accepted(request, CHANNELS)
        await exec_session.attach(container, wanted, exec_session.Channels(socket))
        await socket.close()
        return socket

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        folder = self._folder(request)
        socket = await _accepted(request, (TUNNEL,))
        await exec_session.PortForward(socket, "localhost", lambda: _ports(folder)).run()
        await socket.close()
        return socket

    async def _files(self, request: web.Request) -> web.Response:
        folder, path = self._folder(request), request.query.get("path", "")
        try:
            found = await asyncio.to_thread(_entries, folder, path)
        except pod_files.NotReadable as problem:
            raise web.HTTPBadRequest(text=str(problem)) from problem
        return web.Response(body=found, content_type="application/json")

    async def _file_content(self, request: web.Request) -> web.StreamResponse:
        folder, path = self._folder(request), request.query.get("path", "")
        try:
            handle = await asyncio.to_thread(lambda: pod_files.PodFiles(folder).open(path))
        except pod_files.NotReadable as problem:
            raise web.HTTPBadRequest(text=str(problem)) from problem
        offset, left = _number(request, "offset") or 0, _number(request, "size") or 0
        try:
            response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
            await response.prepare(request)
            while left > 0:
                piece = await asyncio.to_thread(os.pread, handle, min(left, _PIECE), offset)
                if not piece:
                    break
                await response.write(piece)
                offset, left = offset + len(piece), left - len(piece)
        finally:
            os.close(handle)
        await response.write_eof()
        return response

    async def _metrics(self, _: web.Request) -> web.Response:
        text = usage.exposition(await self._measured())
        return web.Response(text=text, content_type="text/plain")

    async def _summary(self, _: web.Request) -> web.Response:
        return web.json_response(usage.summary(await self._measured()))

    async def _measured(self) -> usage.NodeMeasurement:
        if self._meter is None:
            raise web.HTTPNotFound(text="this agent does not measure usage")
        return await asyncio.to_thread(self._meter.measure)

    def _container(self, request: web.Request) -> Container:
        return Container(self._folder(request), request.match_info["container"])

    def _folder(self, request: web.Request) -> Path:
        folder = self._pods / request.match_info["uid"]
        if procfs.read_json(folder / "pod.json") is None:
            raise web.HTTPNotFound(text="the pod has not started on this node")
        return folder


def _entries(folder: Path, path: str) -> bytes:
    """Many entries take long: not on the event loop."""
    return msgspec.json.encode({"items": pod_files.PodFiles(folder).entries(path)})


def _is_running(container: Container) -> bool:
    return container.observe().state == "running"


def _ports(folder: Path) -> set[int]:
    """Ports on which the pod's processes listen."""
    shims = [container.running_pid() for container in containers.all_in(folder)]
    pids = [pid for shim in shims if shim is not None for pid in procfs.descendants(shim)]
    return procfs.listening_ports(pids)


async def _accepted(request: web.Request, protocols: tuple[str, ...]) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(
        protocols=protocols, max_msg_size=4 << 20, heartbeat=_HEARTBEAT, autoping=True
    )
    await socket.prepare(request)
    return socket


def _stream_request(request: web.Request) -> exec_session.StreamRequest:
    return exec_session.StreamRequest(
        command=tuple(request.query.getall("command", [])),
        stdin=_flag(request, "stdin"),
        stdout=_flag(request, "stdout"),
        stderr=_flag(request, "stderr"),
        tty=_flag(request, "tty"),
    )


def _query(request: web.Request) -> reader.LogQuery:
    since_seconds, since_time = request.query.get("sinceSeconds"), request.query.get("sinceTime")
    since = times.parse(since_time) if since_time else None
    if since_seconds:
        since = times.now() - datetime.timedelta(seconds=int(since_seconds))
    return reader.LogQuery(
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
