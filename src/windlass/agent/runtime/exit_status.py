"""The exit status of a container: exit code, reason and message.

The reason is derived from evidence: the cgroup's OOM counter, the kernel log, the fill level of
/dev/shm, the termination message. The shim calls this before it writes `exit.json`. Standard
library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.podlogs import log_format

MESSAGE_BYTES = 4096
_FALLBACK_BYTES, _FALLBACK_LINES = 2048, 80
_KMSG = "/dev/kmsg"
_KMSG_BYTES = 1 << 20
_FULL = 0.98
_BYTES_PER_SECOND = 8 << 30
_ENDING_SECONDS = 1.0
"""Upper bound of the time from a process freeing its memory to its parent seeing the exit."""
PLATFORM_REASONS = frozenset(
    {
        "Completed", "ShimLost", "AgentLost", "NodeLost", "NodeShutdown", "NodeRefused", "Evicted",
        "Preempted", "Suspended", "Resized", "UserStopped", "ContainerStatusUnknown",
        "DeadlineExceeded", "OOMKilled", "OutOfMemory", "OutOfSharedMemory", "ImageNotSupported",
        "PodNotSupported", "MountFailed", "CreateContainerConfigError", "CreateContainerError",
        "StartError",
        "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts",
        "PortTaken", "RightsChanged", "OutOfDisk", "AdmissionRefused", "WaitingForData",
    }
)  # fmt: skip
"""Reasons that only the platform sets: a job that claimed one would be restarted without using up
its retries."""


class SharedMemory:
    """Samples how full the container's /dev/shm is: a job that filled it leaves no other trace."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self.known = given is not None
        self.size = int(given["size"]) if given else 0
        self.private = bool(given and given.get("private"))
        self._path = str(given["path"]) if given else ""
        self.peak = 0.0
        """The highest sampled fill level, from 0 to 1."""
        self._now = 0.0
        self._samples = [(time.monotonic(), 0.0)]
        """Time and fill level. The first one is older than the exit of any process that has just
        ended."""

    def sample(self) -> None:
        if self.known:
            with contextlib.suppress(OSError):
                found = os.statvfs(self._path)
                self._now = 1 - found.f_bfree / max(1, found.f_blocks)
                self.peak = max(self.peak, self._now)
                now = time.monotonic()
                self._samples.append((now, self._now))
                while self._samples[1][0] <= now - _ENDING_SECONDS:
                    del self._samples[0]

    @property
    def was_full(self) -> bool:
        """Whether a sample was so full that the next write may fail."""
        return self.peak >= _FULL

    def may_have_filled(self) -> bool:
        """Whether a process can have filled it since the first sample, at memory speed. A process
        frees its memory before its pipes close and its exit is seen, so the latest samples may
        have come too late."""
        sampled, full = self._samples[0]
        free = self.size * (1 - full)
        return self.private and free <= (time.monotonic() - sampled) * _BYTES_PER_SECOND

    @property
    def interval(self) -> float | None:
        """Seconds until the next sample, fewer when it is fuller: its contents may go with the
        process. None if there is nothing to sample."""
        if not self.known:
            return None
        return 1.0 if self._now < 0.5 else 0.1


def of(status: int, config: Mapping[str, Any], main_pid: int, shm: SharedMemory) -> dict[str, Any]:
    """The record of the main process's wait status: exitCode, reason, message, signal."""
    code = os.waitstatus_to_exitcode(status)
    ending: dict[str, Any] = {"exitCode": code, "reason": "Completed", "message": ""}
    if code != 0:
        ending["reason"] = "Error"
    if code < 0:
        ending |= {"exitCode": 128 - code, "signal": -code}
    ending |= _termination_message(config, failed=code != 0)
    if code != 0:
        ending |= _out_of_memory(ending["exitCode"], config, main_pid)
        ending |= _out_of_shared_memory(ending["exitCode"], shm)
    else:
        ending |= _lost_processes(ending["message"], config)
    return ending


def not_started(program: str, problem: Exception) -> dict[str, Any]:
    code = 127 if isinstance(problem, FileNotFoundError) else 126
    if isinstance(problem, OSError):
        what = problem.filename if isinstance(problem.filename, str) else program
        message = f"cannot start {program!r}: {what}: {problem.strerror}"
    else:
        message = f"cannot start {program!r}: {problem}"
    return {"exitCode": code, "reason": "StartError", "message": message}


def oom_kills(file: str) -> int:
    """The number of processes that the kernel killed for the cgroup's memory limit (from
    memory.events or memory.oom_control)."""
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)", Path(file).read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def _out_of_memory(code: int, config: Mapping[str, Any], main_pid: int) -> dict[str, Any]:
    limit = config.get("memoryLimit")
    counted = config.get("oomFile")
    if counted and oom_kills(counted):
        message = f"used more than its memory limit of {limit}" if limit else "ran out of memory"
        return {"reason": "OOMKilled", "message": f"{message}; ask for more memory"}
    if code == 128 + signal.SIGKILL and _kernel_killed(main_pid):
        message = "the kernel killed it because the machine ran out of memory; ask for more memory"
        return {"reason": "OOMKilled", "message": message}
    return {}


def _lost_processes(said: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """For a container that succeeded although the kernel killed processes of it for memory: as
    containerd, the reason OOMKilled with exit code 0."""
    killed = oom_kills(config.get("oomFile") or "")
    if not killed:
        return {}
    limit = f" of {config['memoryLimit']}" if config.get("memoryLimit") else ""
    message = f"{killed} of its processes exceeded the memory limit{limit} and were killed"
    return {"reason": "OOMKilled", "message": f"{said}\n{message}".strip()}


def _kernel_killed(pid: int) -> bool:
    """Whether the kernel log says that it killed the process; False if the log is not readable."""
    try:
        handle = os.open(_KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    mark = re.compile(rb"[Kk]illed process %d\b" % pid)
    read = 0
    try:
        while read < _KMSG_BYTES:
            record = os.read(handle, 8192)
            read += len(record)
            if mark.search(record):
                return True
    except OSError:
        return False  # the end of the log
    finally:
        os.close(handle)
    return False


def _out_of_shared_memory(code: int, shm: SharedMemory) -> dict[str, Any]:
    """The reason OutOfSharedMemory, or nothing: for a SIGBUS of the main process, or for a failure
    of a container whose private shared memory was full in a sample.

    The memory is often freed with its process (PyTorch unlinks before it writes), so for a bus
    error it is enough that /dev/shm can have run full since it was sampled.
    """
    bus = code == 128 + signal.SIGBUS
    unseen = bus and shm.may_have_filled()
    shm.sample()
    more = f"ask for at least {_mebi(2 * shm.size)}"
    if shm.was_full and (bus or shm.private):
        message = f"its shared memory of {_mebi(shm.size)} (/dev/shm) was full; {more}"
    elif unseen:
        message = (
            f"it ended with a bus error, as when shared memory runs full: it has {_mebi(shm.size)} "
            f"(/dev/shm); {more}"
        )
    else:
        return {}
    return {"reason": "OutOfSharedMemory", "message": message}


def _termination_message(config: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    """The container's termination message. If it is JSON with a reason, that reason counts."""
    given = config.get("termination") or {}
    text = read_owned(given.get("path", ""), config.get("user"), MESSAGE_BYTES)
    if not text.strip() and failed and given.get("fallback"):
        return {"message": _tail(Path(given["folder"]))}
    try:
        parsed = json.loads(text)
        reason, message = parsed["reason"], parsed.get("message", "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return {"message": text.strip()} if text.strip() else {}
    typed = isinstance(reason, str) and re.fullmatch(r"[A-Z][A-Za-z]{1,62}", reason)
    if failed and typed and reason not in PLATFORM_REASONS:
        return {"reason": reason, "message": str(message)}
    return {"message": str(message)}


def read_owned(path: str, user: int | None, size: int) -> str:
    """The text of a file that a job wrote for the platform; empty unless it is a regular file that
    belongs to `user`. Symbolic links are not followed."""
    if not path:
        return ""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or (user is not None and found.st_uid != user):
            return ""
        return file.read(size).decode(errors="replace")


def _tail(folder: Path) -> str:
    """The end of the log, as kubelet uses it in place of a missing message."""
    numbers = log_format.segments(folder)
    if not numbers:
        return ""
    with contextlib.suppress(OSError):
        with log_format.segment(folder, numbers[-1]).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - 4 * _FALLBACK_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_FALLBACK_LINES:]
        texts = [line.split(" ", 3)[-1] for line in lines]
        return "\n".join(texts)[-_FALLBACK_BYTES:]
    return ""


def _mebi(size: int) -> str:
    return f"{-(-size // (1 << 20))}Mi"
