"""Processes in /proc: identity, liveness, descendants, ports; and durable JSON files.

Standard library only: the shim of every container imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

PROC = Path("/proc")
_LISTENING = "0A"


class ProcessIdentity(NamedTuple):
    """Identifies a process, also after its pid is reused."""

    pid: int
    started: int
    """Clock ticks since boot, from /proc/PID/stat."""
    boot: str
    """The boot id of the machine."""


class _Stat(NamedTuple):
    state: str
    parent: int
    started: int


def this_process() -> ProcessIdentity:
    return identify(os.getpid())


def identify(pid: int) -> ProcessIdentity:
    stat = _stat(pid)
    return ProcessIdentity(pid, stat.started if stat else 0, boot_id())


def is_alive(process: ProcessIdentity) -> bool:
    """Whether exactly this process still runs; a zombie does not count."""
    stat = _stat(process.pid)
    return (
        stat is not None
        and stat.state not in ("Z", "X")
        and stat.started == process.started
        and boot_id() == process.boot
    )


def descendants(root: int) -> list[int]:
    """The pids of all live descendants of the process `root`."""
    children: dict[int, list[int]] = {}
    for pid, stat in _all():
        if stat.state not in ("Z", "X"):
            children.setdefault(stat.parent, []).append(pid)
    found: list[int] = []
    frontier = [root]
    while frontier:
        below = children.get(frontier.pop(), [])
        found += below
        frontier += below
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each process; those that have exited are skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill(pids: Iterable[int]) -> None:
    send(pids, signal.SIGKILL)


def listening_ports(pids: Iterable[int] | None = None) -> set[int]:
    """TCP ports on which these processes listen; None: those of all processes."""
    sockets = set()
    for pid in pids or ():
        with contextlib.suppress(OSError):
            for entry in os.scandir(PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(entry.path))
    found = set()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (PROC / table).read_text().splitlines()[1:]:
                fields = line.split()
                ours = pids is None or f"socket:[{fields[9]}]" in sockets
                if fields[3] == _LISTENING and ours:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def boot_id() -> str:
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def write_durably(path: Path, value: dict[str, Any]) -> None:
    """Replaces a file atomically and syncs it to disk."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """The content, or None if there is no such file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value if isinstance(value, dict) else None


def _all() -> Iterable[tuple[int, _Stat]]:
    for name in os.listdir(PROC):
        if name.isdigit():
            stat = _stat(int(name))
            if stat is not None:
                yield int(name), stat


def _stat(pid: int) -> _Stat | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may contain spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    return _Stat(fields[0], int(fields[1]), int(fields[19]))
