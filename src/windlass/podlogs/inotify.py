"""Waits for changes in folders: one inotify instance for all watches of a process.

Polling would cost each follower of a log a delay and the machine CPU time. Where inotify is not
available (too many instances), a watch wakes its owner periodically instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

POLL_SECONDS = 0.1
"""Longest wait without inotify."""
WATCH_SECONDS = 1.0
"""Longest wait with inotify: the end of a container may not change its folder."""
_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x400
_EVENTS = _MODIFY | _MOVED_TO | _CREATE | _DELETE_SELF
_HEAD = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """The watch of one reader."""

    def __init__(self, longest_wait: float = POLL_SECONDS) -> None:
        self._longest_wait = longest_wait
        self._event = asyncio.Event()

    def clear(self) -> None:
        """Call this before reading: changes from now on end the next `wait`."""
        self._event.clear()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Returns after a change since `clear`, or after the longest wait."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._longest_wait):
                await self._event.wait()


class Inotify:
    """Belongs to one event loop, which must be running at `close`."""

    def __init__(self) -> None:
        self._handle = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watches: dict[int, list[Watch]] = {}
        if self._handle >= 0:
            asyncio.get_running_loop().add_reader(self._handle, self._read)

    def close(self) -> None:
        if self._handle >= 0:
            asyncio.get_running_loop().remove_reader(self._handle)
            os.close(self._handle)
            self._handle = -1

    @contextlib.contextmanager
    def watching(self, folder: Path) -> Iterator[Watch]:
        number = self._add(folder)
        watch = Watch(POLL_SECONDS if number < 0 else WATCH_SECONDS)
        if number >= 0:
            self._watches.setdefault(number, []).append(watch)
        try:
            yield watch
        finally:
            self._remove(number, watch)

    def _add(self, folder: Path) -> int:
        """The watch descriptor of the folder, shared by its readers; -1 if inotify fails."""
        if self._handle < 0:
            return -1
        return int(_libc.inotify_add_watch(self._handle, os.fsencode(folder), _EVENTS))

    def _remove(self, number: int, watch: Watch) -> None:
        left = self._watches.get(number)
        if left is None or watch not in left:
            return
        left.remove(watch)
        if not left:
            del self._watches[number]
            if self._handle >= 0:
                _libc.inotify_rm_watch(self._handle, number)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._handle, 1 << 16)
            while data:
                number, _, _, length = _HEAD.unpack_from(data)
                data = data[_HEAD.size + length :]
                # -1: the kernel's event queue overflowed, so all watches are woken.
                woken = self._watches.values() if number < 0 else [self._watches.get(number, [])]
                for watch in (each for some in woken for each in some):
                    watch.wake()
