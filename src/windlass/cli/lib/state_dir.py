"""The state folder of the embedded engine: its files, and the processes that run on it.

`up` holds a lock on the folder and writes `up.json`; the server writes `server.json` when it is
ready. `store.engine_process` reads these records.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from pathlib import Path
from typing import Any, TextIO

from windlass.store import engine_process
from windlass.store.engine_process import Child, Process, start_time

__all__ = ["Child", "Process", "StateFolder", "default_path", "folder", "start_time"]


@dataclasses.dataclass(frozen=True, slots=True)
class StateFolder:
    """Paths and processes of one state folder."""

    path: Path

    @property
    def kubeconfig(self) -> Path:
        return self.path / "kubeconfig"

    @property
    def database(self) -> Path:
        return self.path / "store.db"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.sqlite"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def is_default(self) -> bool:
        return self.path == default_path()

    def server(self) -> Process | None:
        """The running server, if there is one."""
        return engine_process.server(self.path)

    def supervisor(self) -> Process | None:
        """The running `windlass up`, if there is one."""
        return engine_process.supervisor(self.path)

    def children(self) -> dict[str, Child]:
        """The children that the supervisor last recorded."""
        return engine_process.children(self.path)

    def lock(self) -> TextIO | None:
        """Locks the folder until the returned file is closed; None if another process has it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = open(self.path / "up.lock", "a")  # noqa: SIM115 - open as long as the process runs
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
