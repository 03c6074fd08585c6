"""Reserved disk space for the store.

A job may fill the disk that it shares with the store. The job then fails, and its status must be
written, as must the deletion that frees space. So when a write fails on a full disk, the reserve is
released, once; it is refilled when enough space is free.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

MAX_BYTES, PART = 16 << 20, 20
"""Size of the reserve: so many bytes, or this part of a small disk."""
_FREE_FACTOR = 4
"""The reserve is made only if so many times its size is free."""


class DiskReserve:
    """The file `store.spare` beside the store."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_suffix(".spare")
        self.refill()

    def refill(self) -> None:
        """Creates the file if it is missing and the disk is not nearly full."""
        if self._path.exists():
            return
        disk = os.statvfs(self._path.parent)
        size = min(MAX_BYTES, disk.f_blocks * disk.f_frsize // PART)
        if size <= 0 or disk.f_bavail * disk.f_frsize < _FREE_FACTOR * size:
            return
        with contextlib.suppress(OSError):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(handle, 0, size)
            finally:
                os.close(handle)

    def release(self) -> bool:
        """Removes the file; returns False if there was none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
