"""The Unix sockets of agents' endpoints: `STATE/endpoints/NODE/socket`.

Only the user of the engine can open the folder, and the kernel names the user of each connection.
So no job can take an agent's place, and no secret crosses the network. A path of a socket has at
most 107 bytes; the folder is opened first, and the path goes through its descriptor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = "endpoints"
_NAME = "socket"


@contextlib.contextmanager
def listening(state: Path, nodes: Sequence[str]) -> Iterator[socket.socket]:
    """A socket that answers for these nodes inside the block. It is removed at the end."""
    folder = state / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    first, *others = [folder / node for node in nodes]
    for path in (first, *others):
        _remove(path)
    first.mkdir(mode=0o700)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _opened(first) as name:
            server.bind(name)
            os.chmod(name, 0o600)
        server.listen(128)
        for other in others:
            other.symlink_to(first.name)
        yield server
    finally:
        server.close()
        for path in (first, *others):
            _remove(path)


@contextlib.contextmanager
def address(state: Path, node: str) -> Iterator[str]:
    """A path to connect to, valid inside the block. FileNotFoundError: the node has no agent."""
    with _opened(state / FOLDER / node) as path:
        yield path


def peer_uid(connection: socket.socket) -> int:
    """The user id of the process at the other end."""
    size = struct.calcsize("3i")
    given = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", given)[1])


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[str]:
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{_NAME}"
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
