"""The state folder of the embedded engine: who runs on it, and where things lie.

`up` holds a lock on the folder and writes `up.json`; the server writes `server.json` when it is
ready. A process is named by its pid and its start time, so a reused pid is never mistaken for it.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any, TextIO


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process that was alive when it was written down."""

    pid: int
    start_time: int
    url: str = ""
    version: str = ""

    def alive(self) -> bool:
        return self.start_time > 0 and start_time(self.pid) == self.start_time

    def terminate(self) -> None:
        """Asks it to stop, through a handle that cannot mean another process by now."""
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
    """A supervised process: the running one (pid 0 between two), and how often it came again."""

    process: Process
    restarts: int
    last_exit: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths and facts of one state folder."""

    path: Path

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def database(self) -> Path:
        return self.path / "store.db"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def is_default(self) -> bool:
        return self.path == default_path()

    def server(self) -> Process | None:
        """The running server, if there is one."""
        return _running(self.path / "server.json")

    def supervisor(self) -> Process | None:
        """The running `windlass up`, if there is one."""
        return _running(self.path / "up.json")

    def children(self) -> dict[str, Child]:
        """What the supervisor last wrote about its children."""
        found = _read(self.path / "up.json").get("children")
        return {name: _child(facts) for name, facts in found.items()} if found else {}

    def lock(self) -> TextIO | None:
        """Takes the folder for this process (until the file is closed), or None if it is taken."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(self.path / "up.lock", "a")  # noqa: SIM115 - held as long as the process lives
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def write_supervisor(self, children: dict[str, dict[str, Any]]) -> None:
        facts = {
            "pid": os.getpid(),
            "startTime": start_time(os.getpid()),
            "children": children,
        }
        temporary = self.path / "up.json.new"
        temporary.write_text(json.dumps(facts))
        temporary.replace(self.path / "up.json")

    def forget_supervisor(self) -> None:
        (self.path / "up.json").unlink(missing_ok=True)


def folder(chosen: str = "") -> StateFolder:
    """The state folder that a flag or WINDLASS_STATE names, else the default one."""
    chosen = chosen or os.environ.get("WINDLASS_STATE", "")
    return StateFolder(Path(chosen).expanduser().absolute() if chosen else default_path())


def default_path() -> Path:
    return Path.home() / ".windlass"


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none such (or a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command's name is in parentheses and may hold anything, so count from its end.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def _running(path: Path) -> Process | None:
    facts = _read(path)
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
    return Child(process, int(facts.get("restarts", 0)), facts.get("lastExit"))


def _read(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
