"""The audit log: one JSON line per write and per refusal, kept in files that rotate by size.

`server.app` passes a record after each response. Lines are buffered briefly, then written and
synced by a worker thread, so that the event loop never waits for the disk; when the disk falls
behind, the loop waits rather than lose a line. A kill or a power failure can lose the last fifth of
a second. A line has the user, the verb and the object, never its content.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

_log = logging.getLogger(__name__)
_GATHER_SECONDS = 0.2
_MAX_WAITING = 10_000


class AuditEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """One line."""

    time: str
    user: str
    verb: str
    code: int
    source: str
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    dry_run: bool = False
    reason: str = ""
    by: str = ""
    """The user that impersonates (`kubectl --as`)."""


class AuditLog:
    def __init__(self, path: Path, *, max_bytes: int = 64 << 20, keep: int = 5) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._encoder = msgspec.json.Encoder()
        self._waiting: collections.deque[bytes] = collections.deque()
        """Filled by the event loop, emptied under the lock."""
        self._scheduled: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open(path)

    def write(self, record: AuditEntry) -> None:
        """Takes a record. Called on the event loop."""
        self._waiting.append(self._encoder.encode(record))
        if len(self._waiting) >= _MAX_WAITING:
            self.flush()
        elif self._scheduled is None:
            loop = asyncio.get_running_loop()
            self._scheduled = loop.call_later(_GATHER_SECONDS, self._hand_over, loop)

    def flush(self) -> None:
        """Writes the buffered lines now."""
        if self._scheduled is not None:
            self._scheduled.cancel()
            self._scheduled = None
        self._drain(sync=False)

    def close(self) -> None:
        if self._scheduled is not None:
            self._scheduled.cancel()
        self._drain(sync=True)
        with self._lock:
            self._file.close()

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = None
        loop.run_in_executor(None, self._drain, True)

    def _drain(self, sync: bool) -> None:
        """Writes the buffered lines; `sync`: and syncs them to the disk."""
        with self._lock:
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if not lines:
                return
            try:
                self._file.write(b"\n".join(lines) + b"\n")
                self._file.flush()
                if sync:
                    os.fdatasync(self._file.fileno())
                if self._file.tell() >= self._max_bytes:
                    self._rotate()
            except OSError as problem:
                _log.error(
                    "%d lines could not be written to the audit log %s: %s; free disk space",
                    len(lines), self._path, problem.strerror,
                )  # fmt: skip

    def _rotate(self) -> None:
        """audit.log -> audit.log.1 -> ...; the oldest is deleted."""
        self._file.close()
        for number in range(self._keep - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        self._file = _open(self._path)


def timestamp() -> str:
    now = time.time()
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1e6):06d}Z"


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")
