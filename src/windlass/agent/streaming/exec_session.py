"""exec, attach and port-forward in kubectl's WebSocket protocols.

exec and attach: the first byte of each message is the channel (0 stdin, 1 stdout, 2 stderr, 3 exit
status, 4 window size; in v5, 255 closes a channel). The shim starts the command: it has the
container's environment, namespaces and user. Port-forward is SPDY inside the WebSocket
(`store.kubernetes.spdy`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import json
import os
import pty
import socket
import struct
import termios
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import WSMsgType, web

from windlass.agent.runtime.containers import Container
from windlass.store.kubernetes import spdy

_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_PIECE = 32 << 10
_PACKET = 1 << 17
SUCCESS: dict[str, Any] = {"metadata": {}, "status": "Success"}


@dataclasses.dataclass(frozen=True, slots=True)
class StreamRequest:
    """The options of an exec or attach request."""

    command: tuple[str, ...] = ()
    stdin: bool = False
    stdout: bool = False
    stderr: bool = False
    tty: bool = False


class Channels:
    """The client's side of an exec or attach session."""

    def __init__(self, websocket: web.WebSocketResponse) -> None:
        self._websocket = websocket

    async def send(self, channel: int, data: bytes) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            await self._websocket.send_bytes(bytes([channel]) + data)

    async def begin(self, wanted: StreamRequest) -> None:
        """Sends an empty message, which tells the client that it is connected, as in Kubernetes."""
        lowest = _STDOUT if wanted.stdout else _STDERR if wanted.stderr else _ERROR
        await self.send(lowest, b"")

    async def end(self, status: dict[str, Any]) -> None:
        await self.send(_ERROR, json.dumps(status).encode())

    async def listen(self, on_message: Callable[[int, bytes], Awaitable[None]]) -> None:
        """Passes each message to `on_message` until the client disconnects."""
        async for message in self._websocket:
            if message.type == WSMsgType.BINARY and message.data:
                await on_message(message.data[0], message.data[1:])


def exit_status(code: int) -> dict[str, Any]:
    if code == 0:
        return SUCCESS
    return {
        "metadata": {},
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with exit code {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def failure(message: str) -> dict[str, Any]:
    status = {"metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500}
    return {**status, "message": message}


# --- exec


async def execute(container: Container, wanted: StreamRequest, channels: Channels) -> None:
    """Runs a command in the container until it ends or the client disconnects."""
    try:
        control = container.connect()
    except ConnectionError as problem:
        await channels.end(failure(f"container {container.name}: {problem}"))
        return
    ours, theirs = _terminal() if wanted.tty else _pipes(wanted)
    try:
        request = {"exec": list(wanted.command), "tty": wanted.tty}
        if wanted.tty:
            request["env"] = {"TERM": "xterm"}
        socket.send_fds(control, [json.dumps(request).encode()], list(theirs))
    except OSError as problem:
        control.close()
        for handle in {*theirs, *ours.handles()}:
            os.close(handle)
        await channels.end(failure(f"container {container.name}: {problem.strerror}"))
        return
    for handle in set(theirs):
        os.close(handle)
    await channels.begin(wanted)
    await _relay(control, ours, channels)


@dataclasses.dataclass(slots=True)
class _Ends:
    """The agent's ends of the command's pipes or terminal; -1: closed."""

    stdin: int
    outputs: dict[int, int]
    """Channel -> file descriptor."""
    terminal: int = -1

    def handles(self) -> set[int]:
        return {each for each in (self.stdin, *self.outputs.values()) if each >= 0}


def _terminal() -> tuple[_Ends, tuple[int, int, int]]:
    master, slave = pty.openpty()
    return _Ends(master, {_STDOUT: master}, master), (slave, slave, slave)


def _pipes(wanted: StreamRequest) -> tuple[_Ends, tuple[int, int, int]]:
    if wanted.stdin:
        stdin, our_stdin = os.pipe()
    else:
        stdin, our_stdin = os.open(os.devnull, os.O_RDONLY), -1
    (out, theirs_out), (err, theirs_err) = os.pipe(), os.pipe()
    return _Ends(our_stdin, {_STDOUT: out, _STDERR: err}), (stdin, theirs_out, theirs_err)


async def _relay(control: socket.socket, ours: _Ends, channels: Channels) -> None:
    """Relays between client and command until the command has ended and its output is read."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)
    for handle in ours.handles():
        os.set_blocking(handle, False)

    async def on_message(channel: int, data: bytes) -> None:
        if channel == _STDIN and ours.stdin >= 0:
            await _write(ours.stdin, data)
        elif channel == _RESIZE and ours.terminal >= 0:
            _resize(ours.terminal, data)
        elif channel == _CLOSE and data[:1] == b"\0" and ours.stdin not in (-1, ours.terminal):
            os.close(ours.stdin)
            ours.stdin = -1

    listening = asyncio.create_task(channels.listen(on_message))
    reading = [
        asyncio.create_task(_read(handle, channel, channels))
        for channel, handle in ours.outputs.items()
    ]
    answer = asyncio.create_task(loop.sock_recv(control, _PACKET))
    try:
        await asyncio.wait({answer, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return  # the client has disconnected; closing `control` kills the command
        # The command's own output is complete; a child may keep the pipe open, so wait briefly.
        await asyncio.wait(reading, timeout=2.0)
        result = json.loads(answer.result() or b"{}")
        if "error" in result:
            await channels.end(failure(result["error"]))
        else:
            await channels.end(exit_status(int(result.get("exitCode", 137))))
    finally:
        for task in (listening, answer, *reading):
            task.cancel()
        await asyncio.gather(listening, answer, *reading, return_exceptions=True)
        control.close()
        for handle in ours.handles():
            os.close(handle)


async def _read(handle: int, channel: int, channels: Channels) -> None:
    """Copies from a pipe or terminal to the client until its end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(handle, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            try:
                data = os.read(handle, _PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return  # the last process has closed the terminal
            if not data:
                return
            await channels.send(channel, data)
    finally:
        loop.remove_reader(handle)


async def _write(handle: int, data: bytes) -> None:
    """Writes to a pipe or terminal; waits while it is full."""
    loop = asyncio.get_running_loop()
    while data:
        try:
            data = data[os.write(handle, data) :]
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(handle, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(handle)
        except OSError:
            return  # the reader has closed it


def _resize(terminal: int, data: bytes) -> None:
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError, struct.error):
        size = json.loads(data)
        packed = struct.pack("HHHH", int(size["Height"]), int(size["Width"]), 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)


# --- attach


async def attach(container: Container, wanted: StreamRequest, channels: Channels) -> None:
    """Relays the container's output from now on, and the client's input, until the container ends
    or the client disconnects."""
    try:
        control = container.connect()
        control.send(b'{"attach": true}')
    except OSError as problem:
        await channels.end(failure(f"container {container.name}: {problem}"))
        return
    control.setblocking(False)
    loop = asyncio.get_running_loop()
    await channels.begin(wanted)

    async def on_message(channel: int, data: bytes) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            if channel == _STDIN and wanted.stdin:
                for start in range(0, len(data), _PIECE):
                    await loop.sock_sendall(control, b"\0" + data[start : start + _PIECE])
            elif channel == _RESIZE:
                size = json.loads(data)
                packed = struct.pack("!HH", int(size["Height"]), int(size["Width"]))
                await loop.sock_sendall(control, b"\x04" + packed)
            elif channel == _CLOSE and data[:1] == b"\0":
                await loop.sock_sendall(control, b"\xff")

    async def relay_output() -> None:
        with contextlib.suppress(OSError):
            while packet := await loop.sock_recv(control, _PACKET):
                asked = wanted.stdout if packet[0] == _STDOUT else wanted.stderr
                if asked or wanted.tty:
                    await channels.send(packet[0], packet[1:])

    tasks = {asyncio.create_task(relay_output()), asyncio.create_task(channels.listen(on_message))}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await channels.end(SUCCESS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        control.close()


# --- port-forward


class PortForward:
    """kubectl port-forward: each connection has a data and an error stream with the same id."""

    def __init__(
        self, websocket: web.WebSocketResponse, address: str, ports: Callable[[], set[int]]
    ) -> None:
        """`ports`: those on which processes of the pod listen. Pods share the node's address, and
        access to one pod must not give access to other pods or to the API server."""
        self._websocket = websocket
        self._address = address
        self._ports = ports
        self._spdy = spdy.SpdyConnection()
        self._lock = asyncio.Lock()
        self._errors: dict[str, int] = {}
        """Request id -> error stream."""
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            async for message in self._websocket:
                if message.type == WSMsgType.BINARY:
                    for event in self._spdy.receive(message.data):
                        await self._on(event)
        except spdy.ProtocolError:
            return
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _on(self, event: spdy.Event) -> None:
        if isinstance(event, spdy.Opened):
            await self._opened(event)
        elif isinstance(event, spdy.Data):
            await self._data(event)
        elif isinstance(event, spdy.Ping):
            await self._send(self._spdy.pong(event.number))
        elif (task := self._tasks.get(event.stream)) is not None:
            task.cancel()

    async def _opened(self, event: spdy.Opened) -> None:
        request = event.headers.get("requestid", "")
        port = event.headers.get("port", "")
        await self._send(self._spdy.reply(event.stream))
        if event.headers.get("streamtype") == "error":
            self._errors[request] = event.stream
            return
        error = self._errors.pop(request, 0)
        number = int(port) if port.isdigit() and len(port) < 6 else 0
        try:
            if number not in await asyncio.to_thread(self._ports):
                raise ConnectionRefusedError("no process of the pod listens on this port")
            reader, writer = await asyncio.open_connection(self._address, number)
        except OSError as problem:
            text = f"port {port[:6]}: {problem}"
            await self._send(self._spdy.data(error, text.encode(), end=True))
            await self._send(self._spdy.data(event.stream, b"", end=True))
            return
        self._writers[event.stream] = writer
        pumping = asyncio.create_task(self._pump(event.stream, error, reader, writer))
        self._tasks[event.stream] = pumping

    async def _data(self, event: spdy.Data) -> None:
        writer = self._writers.get(event.stream)
        if writer is None:
            return
        with contextlib.suppress(OSError, RuntimeError):
            if event.data:
                writer.write(event.data)
                await writer.drain()
            if event.ended and writer.can_write_eof():
                writer.write_eof()

    async def _pump(
        self, stream: int, error: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_PIECE):
                    await self._send(self._spdy.data(stream, data))
            await self._send(self._spdy.data(stream, b"", end=True))
            await self._send(self._spdy.data(error, b"", end=True))
        finally:
            self._writers.pop(stream, None)
            self._tasks.pop(stream, None)
            writer.close()

    async def _send(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            async with self._lock:
                await self._websocket.send_bytes(data)
