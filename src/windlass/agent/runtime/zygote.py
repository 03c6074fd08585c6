"""Starts shims fast: one small process that has everything loaded and forks them.

The agent's `Nursery` keeps it; it ends when the agent does. Shims are forked twice, so they are
nobody's children and outlive both. If it is killed the next start makes another.
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

from windlass.agent import shim

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from windlass.agent import nursery; nursery.main(int(sys.argv[2]))"
)
_SOURCE = str(Path(__file__).parent.parent.parent)
_HEAD = 8
_PATIENCE = 30.0


class Nursery:
    """The agent's hand on it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self, folder: Path, order: dict[str, Any]) -> None:
        """Returns when the shim of this folder has recorded itself, or could not."""
        body = json.dumps({"folder": str(folder), "order": order}).encode()
        await asyncio.to_thread(self._start, body)

    def warm(self) -> None:
        """Makes it ready before the first pod comes."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        with self._lock:
            self._forget()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def _start(self, body: bytes) -> None:
        done, told = os.pipe()
        try:
            with self._lock:
                try:
                    self._send(body, told)
                except OSError:  # it was killed
                    self._forget()
                    self._send(body, told)
        finally:
            os.close(told)
        with open(done, "rb") as waiting:
            waiting.read()

    def _send(self, body: bytes, told: int) -> None:
        connection = self._ready()
        socket.send_fds(connection, [len(body).to_bytes(_HEAD)], [told])
        connection.sendall(body)

    def _ready(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        if self._socket is None:
            ours, theirs = socket.socketpair()
            ours.settimeout(_PATIENCE)
            with theirs:
                self._process = subprocess.Popen(
                    # Isolated, without site: nothing is loaded that shims do not need.
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
    """The small process: forks one shim for each message until the agent's end is closed."""
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


def _become_shim(body: bytes, told: int) -> None:
    code = 1
    try:
        os.set_inheritable(told, False)
        given = json.loads(body)
        shim.launch(Path(given["folder"]), given["order"], told)
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
