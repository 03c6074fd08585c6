"""Wakes whoever waits for something to change in a folder: one inotify for all of them.

Looking again and again costs every follower of a log a pause and the machine its processor. Where
there is no inotify (too many users of it) a watch wakes its owner every so often instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

PAUSE = 0.1
"""Seconds between two looks without inotify."""
PATIENCE = 1.0
"""With it: not everything that ends leaves a trace in the folder."""
_MODIFY, _MOVED_TO, _CREATE, _DELETE_SELF = 0x2, 0x80, 0x100, 0x400
_WHAT = _MODIFY | _MOVED_TO | _CREATE | _DELETE_SELF
_HEAD = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """One reader's."""

    def __init__(self, patience: float = PAUSE) -> None:
        self._patience = patience
        self._event = asyncio.Event()

    def clear(self) -> None:
        """What changes from now on wakes; to be called before looking."""
        self._event.clear()

    def wake(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        """Until something changed since `clear`, or it is time to look anyway."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._event.wait()


class Changes:
    """Belongs to one event loop, which must run when it is closed."""

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
        watch = Watch(PAUSE if number < 0 else PATIENCE)
        if number >= 0:
            self._watches.setdefault(number, []).append(watch)
        try:
            yield watch
        finally:
            self._leave(number, watch)

    def _add(self, folder: Path) -> int:
        """The number of the folder's watch, the same for all of its readers; -1 if none is had."""
        if self._handle < 0:
            return -1
        return int(_libc.inotify_add_watch(self._handle, os.fsencode(folder), _WHAT))

    def _leave(self, number: int, watch: Watch) -> None:
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
                # -1: more happened than could be told.
                told = self._watches.values() if number < 0 else [self._watches.get(number, [])]
                for watch in (each for some in told for each in some):
                    watch.wake()
