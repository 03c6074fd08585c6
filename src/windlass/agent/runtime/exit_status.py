"""How a container ended, with its cause where there is evidence: memory, shared memory, its own
last message. Called by the shim before it writes `exit.json`. Standard library only.
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

from windlass.agent import shimlog

MESSAGE_BYTES = 4096
_FALLBACK_BYTES, _FALLBACK_LINES = 2048, 80
_KMSG = "/dev/kmsg"
_KMSG_BYTES = 1 << 20
_FULL = 0.98
_BYTES_PER_SECOND = 8 << 30
_ENDING_SECONDS = 1.0
"""From a process's giving back its memory to its end being told, on a busy machine."""
_OURS = frozenset(
    {
        "Completed", "ShimLost", "AgentLost", "NodeLost", "NodeShutdown", "NodeRefused", "Evicted",
        "Preempted", "Suspended", "Resized", "UserStopped", "ContainerStatusUnknown",
        "DeadlineExceeded", "OOMKilled", "OutOfMemory", "OutOfSharedMemory", "ImageNotSupported",
        "PodNotSupported", "CreateContainerConfigError", "CreateContainerError", "StartError",
        "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity", "NodePorts",
        "PortTaken", "AdmissionRefused", "WaitingForData",
    }
)  # fmt: skip
"""Reasons that only the platform gives: a job cannot claim them and be started again for free."""


class SharedMemory:
    """What is known of the container's /dev/shm: a job that filled it leaves no other trace."""

    def __init__(self, given: Mapping[str, Any] | None) -> None:
        self.known = given is not None
        self.size = int(given["size"]) if given else 0
        self.private = bool(given and given.get("private"))
        self._path = str(given["path"]) if given else ""
        self.peak = 0.0
        """How full it was when it was fullest, as far as was seen."""
        self._now = 0.0
        self._looks = [(time.monotonic(), 0.0)]
        """When, and how full. The first was surely before the end of whoever filled it."""

    def look(self) -> None:
        if self.known:
            with contextlib.suppress(OSError):
                found = os.statvfs(self._path)
                self._now = 1 - found.f_bfree / max(1, found.f_blocks)
                self.peak = max(self.peak, self._now)
                now = time.monotonic()
                self._looks.append((now, self._now))
                while self._looks[1][0] <= now - _ENDING_SECONDS:
                    del self._looks[0]

    @property
    def was_full(self) -> bool:
        """At some look, so full that the next write may fail."""
        return self.peak >= _FULL

    def may_have_filled(self) -> bool:
        """Whether it can have run full since somebody was surely there to fill it, as fast as
        memory is written. A process gives its memory back before its pipes close and its end is
        told, so the latest looks may have come too late."""
        looked, full = self._looks[0]
        room = self.size * (1 - full)
        return self.private and room <= (time.monotonic() - looked) * _BYTES_PER_SECOND

    @property
    def interval(self) -> float | None:
        """Seconds to the next look: what fills it is gone when its process is, so the fuller it
        is, the sooner."""
        if not self.known:
            return None
        return 1.0 if self._now < 0.5 else 0.1


def of(status: int, order: Mapping[str, Any], main_pid: int, shm: SharedMemory) -> dict[str, Any]:
    """The exit of the main process (a wait status) as it is recorded."""
    code = os.waitstatus_to_exitcode(status)
    ending: dict[str, Any] = {"exitCode": code, "reason": "Completed", "message": ""}
    if code != 0:
        ending["reason"] = "Error"
    if code < 0:
        ending |= {"exitCode": 128 - code, "signal": -code}
    ending |= _last_words(order, failed=code != 0)
    if code != 0:
        ending |= _out_of_memory(ending["exitCode"], order, main_pid)
        ending |= _out_of_shared_memory(ending["exitCode"], shm)
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
    """How many processes the kernel killed for a cgroup's limit (memory.events, oom_control)."""
    with contextlib.suppress(OSError):
        match = re.search(r"^oom_kill (\d+)", Path(file).read_text(), re.MULTILINE)
        return int(match[1]) if match else 0
    return 0


def _out_of_memory(code: int, order: Mapping[str, Any], main_pid: int) -> dict[str, Any]:
    limit = order.get("memoryLimit")
    counted = order.get("oomFile")
    if counted and oom_kills(counted):
        told = f"used more than its memory limit of {limit}" if limit else "ran out of memory"
        return {"reason": "OOMKilled", "message": f"{told}; ask for more memory"}
    if code == 128 + signal.SIGKILL and _kernel_killed(main_pid):
        told = "the kernel killed it because the machine ran out of memory; ask for more memory"
        return {"reason": "OOMKilled", "message": told}
    return {}


def _kernel_killed(pid: int) -> bool:
    """Whether the kernel's own log says so; where it cannot be read, nothing is claimed."""
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
        return False  # the end of it
    finally:
        os.close(handle)
    return False


def _out_of_shared_memory(code: int, shm: SharedMemory) -> dict[str, Any]:
    """SIGBUS of the main process, or a failure of one whose own shared memory was seen full.

    What filled it is often gone with its process (PyTorch unlinks before it writes), so for a bus
    error it is enough that it can have run full since it was last looked at.
    """
    bus = code == 128 + signal.SIGBUS
    unseen = bus and shm.may_have_filled()
    shm.look()
    more = f"ask for at least {_mebi(2 * shm.size)}"
    if shm.was_full and (bus or shm.private):
        told = f"its shared memory of {_mebi(shm.size)} (/dev/shm) was full; {more}"
    elif unseen:
        told = (
            f"it ended with a bus error, as when shared memory runs full: it has {_mebi(shm.size)} "
            f"(/dev/shm); {more}"
        )
    else:
        return {}
    return {"reason": "OutOfSharedMemory", "message": told}


def _last_words(order: Mapping[str, Any], *, failed: bool) -> dict[str, Any]:
    """The termination message: JSON with a reason of its own is taken apart."""
    given = order.get("termination") or {}
    text = read_owned(given.get("path", ""), order.get("user"), MESSAGE_BYTES)
    if not text.strip() and failed and given.get("fallback"):
        return {"message": _tail(Path(given["folder"]))}
    try:
        told = json.loads(text)
        reason, message = told["reason"], told.get("message", "")
    except (ValueError, TypeError, KeyError, AttributeError):
        return {"message": text.strip()} if text.strip() else {}
    typed = isinstance(reason, str) and re.fullmatch(r"[A-Z][A-Za-z]{1,62}", reason)
    if failed and typed and reason not in _OURS:
        return {"reason": reason, "message": str(message)}
    return {"message": str(message)}


def read_owned(path: str, user: int | None, size: int) -> str:
    """A file that a job wrote for us: an ordinary one, its own, no link that leads elsewhere."""
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
    """The end of the log, as kubelet takes it when there is no message."""
    numbers = shimlog.segments(folder)
    if not numbers:
        return ""
    with contextlib.suppress(OSError):
        with shimlog.segment(folder, numbers[-1]).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - 4 * _FALLBACK_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-_FALLBACK_LINES:]
        texts = [line.split(" ", 3)[-1] for line in lines]
        return "\n".join(texts)[-_FALLBACK_BYTES:]
    return ""


def _mebi(size: int) -> str:
    return f"{-(-size // (1 << 20))}Mi"
