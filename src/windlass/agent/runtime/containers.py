"""A container as a folder: started through the zygote, found again after an agent restart.

    PODS/<pod uid>/pod.json                        the pod's record
    PODS/<pod uid>/containers/<name>/<n>/          the n-th start; files: see `agent.runtime.shim`

All state is on disk, so that the agent may be killed at any moment. `agent.pods.worker` calls it.
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

from windlass.agent.runtime import cgroups, procfs, shim
from windlass.agent.runtime.zygote import Zygote
from windlass.kinds.values import times
from windlass.podlogs import archive

FOLDER_VARIABLE = "WINDLASS_CONTAINER"
"""In the environment of every process of a container: its folder."""
_TRIES = 2
LOST = 137
"""Exit code recorded for a container whose shim was killed: the real one is not known."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerConfig:
    """The command of a container and how it is isolated (see `agent.runtime.shim` and
    `agent.runtime.sandbox`)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    setting: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """user, mounts, cgroups, oomFile, memoryLimit, shm, stdin, tty, termination, log."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """The state of one container, read from its folder."""

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
    """Every container of the pod that was started at least once."""
    folder = pod_folder / "containers"
    names = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    return [Container(pod_folder, name) for name in names]


def logs_in(pod_folder: Path) -> list[archive.ContainerLog]:
    """The log of the latest start of each container of a pod."""
    found = []
    for container in all_in(pod_folder):
        folder = container.log()
        if folder is not None:
            seen = container.observe()
            found.append(
                archive.ContainerLog(container.name, folder, seen.started_at, seen.finished_at)
            )
    return found


class Container:
    """One container of one pod, on disk."""

    def __init__(self, pod_folder: Path, name: str, groups: cgroups.Cgroups | None = None) -> None:
        self.name = name
        self._folder = pod_folder / "containers" / name
        self._group = groups.group(group_name(pod_folder, name)) if groups else None

    @property
    def starts(self) -> int:
        """The number of starts, including one that was only prepared."""
        if not self._folder.exists():
            return 0
        return len([entry for entry in self._folder.iterdir() if entry.name.isdigit()])

    def log(self, previous: bool = False) -> Path | None:
        """The folder with the log of the latest start, or of the previous one; None if there is
        none."""
        number = self.starts - (2 if previous else 1)
        return self._start(number) if number >= 0 else None

    async def start(self, config: ContainerConfig, zygote: Zygote) -> None:
        """Starts the container once. Returns when its shim has written `shim.json`."""
        latest = self.starts - 1
        # A folder without shim.json was prepared by an agent that died before the start: reuse it.
        fresh = latest if latest >= 0 and self._shim(latest) is None else latest + 1
        folder = self._start(fresh)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        environment = {**config.env, FOLDER_VARIABLE: str(folder)}
        body = {**config.setting, "argv": list(config.argv), "env": environment, "cwd": config.cwd}
        for _ in range(_TRIES):
            # Without a record no shim is starting any more: the zygote was killed. Try again.
            await zygote.start(folder, body)
            if self._shim(fresh) is not None:
                return
        raise OSError(f"the shim of container {self.name} did not start; see {folder}/shim.err")

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
        return self._record_lost(number)

    def stop(self, grace: float, signal_name: str, ending: Mapping[str, str] | None = None) -> None:
        """Asks the shim to stop the container: the signal to the main process, then SIGKILL to the
        whole process tree after `grace` seconds. `ending`: the reason and message to record."""
        number = self.starts - 1
        process = self._shim(number) if number >= 0 else None
        if process is not None and procfs.is_alive(process):
            how = {"grace": grace, "signal": signal_name, "ending": dict(ending or {})}
            procfs.write_durably(self._start(number) / shim.STOP, how)
            procfs.send([process.pid], signal.SIGTERM)

    def connect(self) -> socket.socket:
        """A connection to the control socket of the running shim. Raises ConnectionRefusedError if
        the container is not running."""
        folder = self.log()
        if folder is None:
            raise ConnectionRefusedError("the container has not started")
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                made.connect(f"/proc/self/fd/{handle}/{shim.CONTROL}")
            finally:
                os.close(handle)
        except OSError as problem:
            made.close()
            raise ConnectionRefusedError("the container is not running") from problem
        return made

    def running_pid(self) -> int | None:
        """The pid of the shim; None if the container is not running."""
        number = self.starts - 1
        process = self._shim(number) if number >= 0 else None
        return process.pid if process is not None and procfs.is_alive(process) else None

    async def ended(self) -> None:
        """Returns when the shim has exited; at once if none is running."""
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

    def _record_lost(self, number: int) -> Observed:
        """Called when the shim was killed: kills what is left of the container, which nothing
        supervises any more, and records its end."""
        folder = self._start(number)
        ended = procfs.read_json(folder / shim.EXIT)
        if ended is None:
            # The main process died with the shim. Other processes are found by the cgroup, or by
            # the folder's name in their environment.
            if self._group is not None:
                self._group.remove()
            procfs.kill(_processes_of(folder))
            now = times.micros(times.now())
            procfs.write_durably(
                folder / shim.EXIT,
                {
                    "exitCode": LOST,
                    "reason": "ShimLost",
                    "message": "the shim of the container was killed; the exit code is not known",
                    "startedAt": self._started_at(number),
                    "finishedAt": now,
                },
            )
        return self.observe()

    def _start(self, number: int) -> Path:
        return self._folder / str(number)

    def _shim(self, number: int) -> procfs.ProcessIdentity | None:
        value = procfs.read_json(self._start(number) / shim.SHIM)
        return procfs.ProcessIdentity(**value) if value else None

    def _started_at(self, number: int) -> str:
        moment = (self._start(number) / shim.SHIM).stat().st_mtime
        return times.micros(times.from_unix(moment))


def group_name(pod_folder: Path, container: str) -> str:
    return f"{pod_folder.name}.{container}"


def _processes_of(folder: Path) -> list[int]:
    """Processes with this folder in their environment (FOLDER_VARIABLE)."""
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
