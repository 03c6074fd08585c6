"""The log of one start of a container, as its shim writes it: bounded, rotated, with timestamps.

    log.0  log.1  ...     each line: `TIME stdout|stderr F|P text`; numbers only grow

When a segment is full, the next number is opened; only the last few segments are kept. Lines that
do not fit on the disk are dropped. Some disk space is left free: the engine's store may be on the
same disk and must be able to write, or nothing could be deleted. Readers (`podlogs.reader`) follow
by number, so a rotation does not affect them. Standard library only.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

SEGMENT_BYTES, SEGMENTS = 10 << 20, 5
"""Kubelet's defaults: five files of 10 MiB for each start."""
LONGEST_LINE = 16384
"""Longer lines are split into parts marked P, as in CRI logs."""
PREFIX = "log."
_RESERVED_BYTES, _RESERVED_PART = 64 << 20, 20
"""Disk space that is left free: so many bytes, or this part of the disk if that is less."""
_CHECK_EVERY = 1 << 18
"""Bytes written between two checks of the free disk space."""


def segments(folder: Path) -> list[int]:
    """The numbers of the segments in a folder, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    return sorted(int(number) for number in found if number.isdigit())


def segment(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number}"


class LogWriter:
    """Writes the output of a container, line by line."""

    def __init__(self, folder: Path, size: int = SEGMENT_BYTES, count: int = SEGMENTS) -> None:
        self._folder = folder
        self._limit = size
        self._count = max(2, count)
        self._number = (segments(folder) or [0])[-1]
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size
        self._partial: dict[str, bytes] = {}
        self._unchecked = _CHECK_EVERY
        self._dropped = 0

    def add(self, stream: str, data: bytes) -> None:
        *lines, rest = (self._partial.pop(stream, b"") + data).split(b"\n")
        head = f"{now()} {stream} ".encode()
        out = [piece for line in lines for piece in _pieces(head, line)]
        while len(rest) > LONGEST_LINE:
            out.append(head + b"P " + rest[:LONGEST_LINE] + b"\n")
            rest = rest[LONGEST_LINE:]
        if rest:
            self._partial[stream] = rest
        self._write(b"".join(out))

    def close(self) -> None:
        """Writes an incomplete last line and syncs the log to disk."""
        for stream, rest in self._partial.items():
            self._write(b"".join(_pieces(f"{now()} {stream} ".encode(), rest)))
        with contextlib.suppress(OSError):
            if self._dropped:
                os.write(self._fd, self._dropped_notice())
            os.fsync(self._fd)
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        # A full disk costs log lines, never the job, which must not block on its output.
        with contextlib.suppress(OSError):
            self._unchecked += len(data)
            if self._unchecked >= _CHECK_EVERY or self._dropped:
                if self._is_full():
                    self._dropped += len(data)
                    return
                self._unchecked = 0
            if self._dropped:
                data = self._dropped_notice() + data
                self._dropped = 0
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            self._size += len(data)
            while data:
                data = data[os.write(self._fd, data) :]

    def _dropped_notice(self) -> bytes:
        notice = f"windlass: {self._dropped} bytes left out: the disk was full"
        return f"{now()} stderr F {notice}\n".encode()

    def _is_full(self) -> bool:
        disk = os.fstatvfs(self._fd)
        reserved = min(_RESERVED_BYTES, disk.f_blocks * disk.f_frsize // _RESERVED_PART)
        return disk.f_bavail * disk.f_frsize < reserved

    def _rotate(self) -> None:
        """Called between writes only, so that no line is split across segments."""
        self._number += 1
        fresh = self._open()
        os.close(self._fd)
        self._fd, self._size = fresh, 0
        for number in segments(self._folder)[: -self._count]:
            with contextlib.suppress(OSError):
                segment(self._folder, number).unlink()

    def _open(self) -> int:
        path = segment(self._folder, self._number)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _pieces(head: bytes, line: bytes) -> list[bytes]:
    pieces = []
    while len(line) > LONGEST_LINE:
        pieces.append(head + b"P " + line[:LONGEST_LINE] + b"\n")
        line = line[LONGEST_LINE:]
    return [*pieces, head + b"F " + line + b"\n"]
