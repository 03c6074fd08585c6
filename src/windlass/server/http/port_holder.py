"""The process that listens on a port, for a message to the administrator."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_LISTEN = "0A"
_PROC = Path("/proc")


def describe(port: int, proc: Path = _PROC) -> str:
    """`process 4711 (python) of user 1000`; without the process where it cannot be seen."""
    sockets = _listening(port, proc)
    if not sockets:
        return "a process that cannot be seen from here"
    for folder in sorted(proc.glob("[0-9]*"), key=lambda each: int(each.name)):
        if sockets.keys() & _open_sockets(folder):
            name = ""
            with contextlib.suppress(OSError):
                name = (folder / "comm").read_text(errors="replace").strip()
            shown = "".join(c for c in name if c.isprintable())
            return f"process {folder.name} ({shown}) of user {folder.stat().st_uid}"
    owner = next(iter(sockets.values()))
    return f"a process of user {owner}"


def _listening(port: int, proc: Path) -> dict[str, int]:
    """The inodes of the sockets that listen on the port, with the users that own them."""
    found: dict[str, int] = {}
    for name in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                    found[fields[9]] = int(fields[7])
    return found


def _open_sockets(folder: Path) -> set[str]:
    """Inodes of the sockets that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for handle in os.scandir(folder / "fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(handle.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
