"""The processes of an embedded engine as its state folder records them.

`up` writes `up.json` and the server writes `server.json`. A process is named by its pid and its
start time, so a reused pid is never mistaken for it. `cli.lib.state_dir` uses this to manage the
engine, and the clients use it to report what a server that does not answer is doing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process that was alive when its record was written."""

    pid: int
    start_time: int
    url: str = ""
    version: str = ""

    def alive(self) -> bool:
        return self.start_time > 0 and start_time(self.pid) == self.start_time

    def terminate(self) -> None:
        """Sends SIGTERM through a pidfd, which cannot refer to a process that reused the pid."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive():
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)


@dataclasses.dataclass(frozen=True, slots=True)
class Child:
    """A supervised process (pid 0 between restarts), and how often it was restarted."""

    process: Process
    restarts: int
    last_exit: int | None
    exited_at: float | None = None
    """When it last exited (seconds since the epoch)."""


def server(folder: Path) -> Process | None:
    """The running server of a state folder, if there is one."""
    return _running(folder / "server.json")


def supervisor(folder: Path) -> Process | None:
    """The running supervisor of a state folder, if there is one."""
    return _running(folder / "up.json")


def children(folder: Path) -> dict[str, Child]:
    """The children that the supervisor last recorded."""
    found = read(folder / "up.json").get("children")
    return {name: _child(facts) for name, facts in found.items()} if found else {}


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command name is in parentheses and may contain anything, so count from its end.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def read(path: Path) -> dict[str, Any]:
    """A record of the folder; empty if there is none or it is not readable."""
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _running(path: Path) -> Process | None:
    facts = read(path)
    try:
        process = Process(
            int(facts["pid"]),
            int(facts["startTime"]),
            str(facts.get("url", "")),
            str(facts.get("version", "")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    return process if process.alive() else None


def _child(facts: dict[str, Any]) -> Child:
    process = Process(int(facts.get("pid", 0)), int(facts.get("startTime", 0)))
    return Child(
        process, int(facts.get("restarts", 0)), facts.get("lastExit"), facts.get("exitedAt")
    )
