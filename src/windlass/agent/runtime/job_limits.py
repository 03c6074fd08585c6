"""Limits of a container that its job does not ask for: processes, open files, disk.

The administrator sets them with `windlass up --job-limit NAME=VALUE`. `agent.pods.container_config`
passes them to cgroups and shims, `agent.pods.disk_usage` watches the disk. Pure, but for the
kernel's own limits that `default` reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path

from windlass.kinds.values import quantity

PROCESSES, FILES = 8192, 65_536
_PART_OF_ALL = 4
"""One container has at most this part of the process ids of the machine."""
_DISK_PART = 0.5
"""By default, the part of the file system that the files of one pod may have."""
_PID_MAX = Path("/proc/sys/kernel/pid_max")


class Malformed(ValueError):
    """A limit that cannot be used; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class JobLimits:
    processes: int = PROCESSES
    """Processes and threads of one container."""
    files: int = FILES
    """Open files of one process."""
    disk: int | None = None
    """Bytes of all files of one pod; None: a part of the file system."""

    def disk_bytes(self, file_system: int) -> int:
        """The limit for a pod that states none, on a file system of this size."""
        return int(file_system * _DISK_PART) if self.disk is None else self.disk


def default(pid_max: Path = _PID_MAX) -> JobLimits:
    return JobLimits(processes=min(PROCESSES, _process_ids(pid_max) // _PART_OF_ALL))


def all_containers(pid_max: Path = _PID_MAX) -> int:
    """Processes of all containers together: the rest is for the engine and the machine."""
    return _process_ids(pid_max) * 3 // 4


def parse(words: Iterable[str]) -> JobLimits:
    """Limits as `NAME=VALUE`, over the defaults. Raises Malformed."""
    limits = default()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or name not in ("processes", "files", "disk"):
            raise Malformed(f"{word} is no limit: write processes=N, files=N or disk=SIZE")
        try:
            value = quantity.whole(text)
        except quantity.Malformed as problem:
            raise Malformed(f"{word}: {problem}") from problem
        if value < (16 if name != "disk" else 1 << 20):
            raise Malformed(f"{word} is too little for any job")
        limits = dataclasses.replace(limits, **{name: value})
    return limits


def _process_ids(pid_max: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(pid_max.read_text())
    return 32_768
