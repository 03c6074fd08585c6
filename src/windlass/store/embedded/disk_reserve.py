"""A little of the disk that is set aside for the store.

A job that fills the disk it shares with the store ends with an error; that end must be written, and
the deletion that frees the room again. So when the store cannot be written, what was set aside is
given to it, once; it is set aside again when there is plenty.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MOST_BYTES, PART = 16 << 20, 20
"""This much, or one part in so many of a small disk."""
_PLENTY = 4
"""Set aside only if so many times as much is free."""


class Spare:
    """The file `store.spare` beside the store."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_suffix(".spare")
        self.keep()

    def keep(self) -> None:
        """Sets it aside if it is not there and the disk is not nearly full."""
        if self._path.exists():
            return
        disk = os.statvfs(self._path.parent)
        size = min(MOST_BYTES, disk.f_blocks * disk.f_frsize // PART)
        if size <= 0 or disk.f_bavail * disk.f_frsize < _PLENTY * size:
            return
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(handle, 0, size)
            finally:
                os.close(handle)

    def give(self) -> bool:
        """Frees it; False if there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
