"""The client of port-forward, in kubectl's protocol: SPDY inside of a WebSocket.

`Forwarder` carries any number of TCP connections of this machine to one port of a pod. Each has a
data stream and an error stream. Imported only when it is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable

import aiohttp

from windlass.store import errors
from windlass.store.kubernetes import exec_stream, spdy
from windlass.store.kubernetes.config.model import Access

PROTOCOL = "SPDY/3.1+portforward.k8s.io"
_PIECE = 32 << 10
_MOST_ERROR = 1000
_MOST_WAITING = 256
"""Pieces that wait for a slow program on this side; then the pod waits."""


class Forwarder:
    """Connections to one port of a pod, over one WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, port: int) -> None:
        self._socket = socket
        self._port = port
        self._spdy = spdy.SpdyConnection()
        self._numbers = itertools.count(1, 2)
        self._requests = itertools.count()
        self._lock = asyncio.Lock()
        self._arrived: dict[int, asyncio.Queue[bytes | None]] = {}
        """By data stream, what the pod sent; None at the end."""
        self._problems: dict[int, bytearray] = {}
        """By error stream, the message."""
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Reads until the connection ends."""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    for event in self._spdy.receive(message.data):
                        await self._on(event)
        except spdy.ProtocolError:
            pass
        finally:
            self.closed.set()
            for queue in self._arrived.values():
                with contextlib.suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
        """Carries one connection to its end; returns why the pod refused it, or ""."""
        error, data, queue = await self._open()
        sending = asyncio.create_task(self._send_from(data, reader))
        try:
            while not (self.closed.is_set() and queue.empty()):
                piece = await queue.get()
                if piece is None:
                    break
                writer.write(piece)
                await writer.drain()
        except OSError:
            await self._write(self._spdy.data(data, b"", end=True))
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            self._arrived.pop(data, None)
            # The reader of all connections may wait until this queue has space again.
            while not queue.empty():
                queue.get_nowait()
            writer.close()
        return bytes(self._problems.pop(error, b"")).decode(errors="replace")

    async def _open(self) -> tuple[int, int, asyncio.Queue[bytes | None]]:
        request = str(next(self._requests))
        async with self._lock:
            error, data = next(self._numbers), next(self._numbers)
            queue = self._arrived[data] = asyncio.Queue(_MOST_WAITING)
            self._problems[error] = bytearray()
            for stream, kind in ((error, "error"), (data, "data")):
                headers = {"streamtype": kind, "port": str(self._port), "requestid": request}
                await self._socket.send_bytes(self._spdy.open(stream, headers))
        # Nothing is sent on the error stream.
        await self._write(self._spdy.data(error, b"", end=True))
        return error, data, queue

    async def _send_from(self, stream: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(_PIECE):
                await self._write(self._spdy.data(stream, piece))
        await self._write(self._spdy.data(stream, b"", end=True))

    async def _on(self, event: spdy.Event) -> None:
        if isinstance(event, spdy.Data):
            queue = self._arrived.get(event.stream)
            if queue is not None and event.data:
                await queue.put(event.data)
            if queue is not None and event.ended:
                await queue.put(None)
            problem = self._problems.get(event.stream)
            if problem is not None and len(problem) < _MOST_ERROR:
                problem += event.data
        elif isinstance(event, spdy.Reset):
            if (queue := self._arrived.get(event.stream)) is not None:
                await queue.put(None)
        elif isinstance(event, spdy.Ping):
            await self._write(self._spdy.pong(event.number))

    async def _write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            async with self._lock:
                await self._socket.send_bytes(data)


@contextlib.asynccontextmanager
async def forwarding(
    access: Access, pod: str, namespace: str, port: int
) -> AsyncIterator[Forwarder]:
    """Connects to a pod; carries connections inside the block."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    async with exec_stream.connected(access, path, [("ports", str(port))], (PROTOCOL,)) as socket:
        forwarder = Forwarder(socket, port)
        reading = asyncio.create_task(forwarder.run())
        try:
            yield forwarder
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


@contextlib.asynccontextmanager
async def listening(
    access: Access,
    pod: str,
    namespace: str,
    port: int,
    *,
    host: str = "127.0.0.1",
    local: int = 0,
    on_problem: Callable[[str], None] = lambda _text: None,
) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Listens on a local port inside the block; yields its number, and an event that is set when
    the connection to the pod has ended."""
    tasks: set[asyncio.Task[None]] = set()
    async with forwarding(access, pod, namespace, port) as forwarder:

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            problem = await forwarder.carry(reader, writer)
            if problem:
                on_problem(problem)

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(carry(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        try:
            server = await asyncio.start_server(accepted, host, local)
        except OSError as problem:
            raise errors.BadRequest(
                f"port {local} of this machine cannot be used: {problem.strerror}; choose another "
                "one, or leave it out"
            ) from problem
        async with server:
            try:
                yield server.sockets[0].getsockname()[1], forwarder.closed
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
