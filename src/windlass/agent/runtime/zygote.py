"""The zygote: a small process with the shim's code loaded that forks one shim per container start.

The agent's `Zygote` starts it and talks to it; it exits with the agent. Shims are forked twice, so
they are reparented to init and outlive both. If the zygote is killed, the next container start
starts another.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from windlass.agent.runtime import shim

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from windlass.agent.runtime import zygote; zygote.main(int(sys.argv[2]))"
)
_SOURCE = str(Path(__file__).parents[3])
_HEAD = 8
_TIMEOUT = 30.0


class Zygote:
    """The agent's client of the zygote process; starts the process when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, folder: Path, config: dict[str, Any]) -> None:
        """Forks a shim. Returns when it has written `shim.json` or has failed to."""
        body = json.dumps({"folder": str(folder), "config": config}).encode()
        await asyncio.to_thread(self._start, body)

    def warm(self) -> None:
        """Starts the process before the first container needs it."""
        with self._lock:
            self._connection()

    def close(self) -> None:
        with self._lock:
            self._forget()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def _start(self, body: bytes) -> None:
        done, ready = os.pipe()
        try:
            with self._lock:
                try:
                    self._send(body, ready)
                except OSError:  # the process was killed
                    self._forget()
                    self._send(body, ready)
        finally:
            os.close(ready)
        with open(done, "rb") as waiting:
            waiting.read()

    def _send(self, body: bytes, ready: int) -> None:
        connection = self._connection()
        socket.send_fds(connection, [len(body).to_bytes(_HEAD)], [ready])
        connection.sendall(body)

    def _connection(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._socket is None:
            ours, theirs = socket.socketpair()
            ours.settimeout(_TIMEOUT)
            with theirs:
                self._process = subprocess.Popen(
                    # Isolated and without site: the shims' memory holds only what they need.
                    [sys.executable, "-I", "-S", "-c", _START, _SOURCE, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd="/",
                    start_new_session=True,
                )  # fmt: skip
            self._socket = ours
        return self._socket

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def main(handle: int) -> None:
    """The zygote process: forks one shim for each message until the agent closes the socket."""
    connection = socket.socket(fileno=handle)
    connection.set_inheritable(False)
    gc.collect()
    gc.freeze()
    while True:
        head, handles, _, _ = socket.recv_fds(connection, _HEAD, 1)
        if len(head) < _HEAD or not handles:
            return
        body = _exactly(connection, int.from_bytes(head))
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                connection.close()
                _become_shim(body, handles[0])
            os._exit(0)
        os.close(handles[0])
        del body
        os.waitpid(child, 0)


def _become_shim(body: bytes, ready: int) -> None:
    code = 1
    try:
        os.set_inheritable(ready, False)
        given = json.loads(body)
        shim.launch(Path(given["folder"]), given["config"], ready)
        code = 0
    finally:
        os._exit(code)


def _exactly(connection: socket.socket, size: int) -> bytes:
    pieces = []
    while size:
        piece = connection.recv(min(size, 1 << 20))
        if not piece:
            raise SystemExit(0)
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
