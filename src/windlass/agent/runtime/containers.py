"""A container as a folder: started by a shim, found again after the agent was away.

    PODS/<pod uid>/pod.json                        whose it is
    PODS/<pod uid>/containers/<name>/<n>/          the n-th start; files: see `agent.shim`

The agent keeps nothing in memory that is not here. Only `agent.pods` calls it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from windlass.agent import cgroups, procfs, shim
from windlass.agent.nursery import Nursery
from windlass.kinds import times

FOLDER_VARIABLE = "WINDLASS_CONTAINER"
"""In the environment of every process of a container: its folder."""
_TRIES = 2
LOST = 137
"""Exit code of a container whose shim was killed: how it ended is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """What to start, and in which setting (see `agent.shim` and `agent.sandbox`)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """user, mounts, cgroups, oomFile, memoryLimit, shm, stdin, tty, termination, log."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """How one container fares."""

    name: str
    state: Literal["waiting", "running", "ended"] = "waiting"
    restarts: int = 0
    started_at: str = ""
    finished_at: str = ""
    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""


def all_in(pod_folder: Path) -> list[Container]:
    """Every container that was ever started for a pod."""
    folder = pod_folder / "containers"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    return [Container(pod_folder, name) for name in names]


class Container:
    """One container of one pod, on disk."""

    def __init__(self, pod_folder: Path, name: str, groups: cgroups.Cgroups | None = None) -> None:
        self.name = name
        self._folder = pod_folder / "containers" / name
        self._group = groups.group(group_name(pod_folder, name)) if groups else None

    @property
    def starts(self) -> int:
        """How often it was started or about to be."""
        if not self._folder.exists():
            return 0
        return len([entry for entry in self._folder.iterdir() if entry.name.isdigit()])

    def log(self, previous: bool = False) -> Path | None:
        """The folder that holds the log of the latest start, or of the one before it."""
        number = self.starts - (2 if previous else 1)
        return self._start(number) if number >= 0 else None

    async def start(self, order: Order, nursery: Nursery) -> None:
        """Starts it once more. Returns when its shim has recorded itself."""
        latest = self.starts - 1
        # A folder without shim.json is a start that never happened: the agent died before it.
        fresh = latest if latest >= 0 and self._shim(latest) is None else latest + 1
        folder = self._start(fresh)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {**order.env, FOLDER_VARIABLE: str(folder)}
        body = {**order.setting, "argv": list(order.argv), "env": environment, "cwd": order.cwd}
        for _ in range(_TRIES):
            # When it returns without a record no shim is on its way: the nursery was killed.
            await nursery.start(folder, body)
            if self._shim(fresh) is not None:
                return
        raise OSError(f"the shim of {self.name} did not start; see {folder}/shim.err")

    def observe(self) -> Observed:
        number = self.starts - 1
        if number < 0:
            return Observed(self.name)
        ended = procfs.read_json(self._start(number) / shim.EXIT)
        if ended is not None:
            return Observed(
                self.name, "ended", number, ended["startedAt"], ended["finishedAt"],
                ended["exitCode"], ended.get("signal"), ended["reason"], ended["message"],
            )  # fmt: skip
        process = self._shim(number)
        if process is None:
            return Observed(self.name, restarts=number)
        if procfs.is_alive(process):
            return Observed(self.name, "running", number, self._started_at(number))
        return self._bury(number)

    def stop(self, grace: float, signal_name: str) -> None:
        """Asks the shim to end it: the signal, then SIGKILL to the whole tree after `grace`."""
        number = self.starts - 1
        process = self._shim(number) if number >= 0 else None
        if process is not None and procfs.is_alive(process):
            procfs.write_durably(
                self._start(number) / shim.STOP, {"grace": grace, "signal": signal_name}
            )
            procfs.send([process.pid], signal.SIGTERM)

    def connect(self) -> socket.socket:
        """The control socket of the shim that runs now; ConnectionError if none does."""
        folder = self.log()
        if folder is None:
            raise ConnectionRefusedError("it has not started")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                made.connect(f"/proc/self/fd/{place}/{shim.CONTROL}")
            finally:
                os.close(place)
        except OSError as problem:
            made.close()
            raise ConnectionRefusedError("it does not run") from problem
        return made

    def running_pid(self) -> int | None:
        """The shim that runs now."""
        number = self.starts - 1
        process = self._shim(number) if number >= 0 else None
        return process.pid if process is not None and procfs.is_alive(process) else None

    async def ended(self) -> None:
        """Returns when the shim that runs now is gone; at once if none runs."""
        number = self.starts - 1
        process = self._shim(number) if number >= 0 else None
        if process is None or not procfs.is_alive(process):
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, gone.set)
        try:
            if procfs.is_alive(process):
                await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def _bury(self, number: int) -> Observed:
        """The shim was killed: its container must not run on unwatched; the end is recorded."""
        folder = self._start(number)
        ended = procfs.read_json(folder / shim.EXIT)
        if ended is None:
            # The main process died with the shim; what it left behind is in its cgroup, or names
            # the folder.
            if self._group is not None:
                self._group.remove()
            procfs.kill(_processes_of(folder))
            now = times.micros(times.now())
            procfs.write_durably(
                folder / shim.EXIT,
                {
                    "exitCode": LOST,
                    "reason": "ShimLost",
                    "message": "its shim was killed, so how it ended is not known",
                    "startedAt": self._started_at(number),
                    "finishedAt": now,
                },
            )
        return self.observe()

    def _start(self, number: int) -> Path:
        return self._folder / str(number)

    def _shim(self, number: int) -> procfs.Process | None:
        value = procfs.read_json(self._start(number) / shim.SHIM)
        return procfs.Process(**value) if value else None

    def _started_at(self, number: int) -> str:
        moment = (self._start(number) / shim.SHIM).stat().st_mtime
        return times.micros(times.from_unix(moment))


def group_name(pod_folder: Path, container: str) -> str:
    return f"{pod_folder.name}.{container}"


def _processes_of(folder: Path) -> list[int]:
    """Processes whose environment names this folder as theirs."""
    mark = f"{FOLDER_VARIABLE}={folder}".encode()
    found = []
    for entry in procfs.PROC.iterdir():
        if entry.name.isdigit():
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found
