"""The log of one start of a container, as its shim writes it: bounded, rotated, with times.

    log.0  log.1  ...     each line: `TIME stdout|stderr F|P text`; numbers only grow

A segment that is full is left as it is and the next number is opened; only the last few are kept.
What does not fit on the disk is left out, and the last of the disk is not taken: whoever lies on it
too (the store of the engine) must be able to write, or nothing could be deleted.
Readers (`agent.logs`) follow by number, so a rotation never moves what they are reading. Standard
library only.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

SEGMENT_BYTES, SEGMENTS = 10 << 20, 5
"""As kubelet: 10 MiB five times over for each start."""
LONGEST_LINE = 16384
"""Longer lines are written in parts, marked P, as container runtimes do."""
PREFIX = "log."
_SPARED_BYTES, _SPARED_PART = 64 << 20, 20
"""This much of the disk, or one part in so many if that is less, is left to others."""
_LOOK_EVERY = 1 << 18


def segments(folder: Path) -> list[int]:
    """Numbers of the segments there are, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))
    return sorted(int(number) for number in found if number.isdigit())


def segment(folder: Path, number: int) -> Path:
    return folder / f"{PREFIX}{number}"


class Log:
    """What a container says, line by line."""

    def __init__(self, folder: Path, size: int = SEGMENT_BYTES, count: int = SEGMENTS) -> None:
        self._folder = folder
        self._limit = size
        self._count = max(2, count)
        self._number = (segments(folder) or [0])[-1]
        self._fd = self._open()
        self._size = os.fstat(self._fd).st_size
        self._partial: dict[str, bytes] = {}
        self._unseen = _LOOK_EVERY
        self._left_out = 0

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
        """Last words without a newline are written too; then all is on the disk."""
        for stream, rest in self._partial.items():
            self._write(b"".join(_pieces(f"{now()} {stream} ".encode(), rest)))
        with contextlib.suppress(OSError):
            if self._left_out:
                os.write(self._fd, self._told_left_out())
            os.fsync(self._fd)
        os.close(self._fd)

    def _write(self, data: bytes) -> None:
        # A full disk costs log lines, never the job: it must not block on its own output.
        with contextlib.suppress(OSError):
            self._unseen += len(data)
            if self._unseen >= _LOOK_EVERY or self._left_out:
                if self._is_full():
                    self._left_out += len(data)
                    return
                self._unseen = 0
            if self._left_out:
                data = self._told_left_out() + data
                self._left_out = 0
            if self._size and self._size + len(data) > self._limit:
                self._rotate()
            self._size += len(data)
            while data:
                data = data[os.write(self._fd, data) :]

    def _told_left_out(self) -> bytes:
        told = f"windlass: {self._left_out} bytes left out: the disk was full"
        return f"{now()} stderr F {told}\n".encode()

    def _is_full(self) -> bool:
        disk = os.fstatvfs(self._fd)
        spared = min(_SPARED_BYTES, disk.f_blocks * disk.f_frsize // _SPARED_PART)
        return disk.f_bavail * disk.f_frsize < spared

    def _rotate(self) -> None:
        """Only between writes, so that no line is torn across segments."""
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
