"""Watches the files of running pods, and ends pods that take more disk than they may.

Counted are all files of the pod's folder (work folder, home, tmp, volumes, logs), its scratch
folder, and files that its processes keep open after their deletion. A pod over its limit ends with
the reason OutOfDisk. So does the pod with the most files when the disk of the engine is nearly
full, if its end frees enough space. `agent.pods.worker` runs this.

Jobs own these folders, so symbolic links are not followed, and folders are opened relative to the
one above. A pod can exceed its limit for some seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.agent.pods import container_config, garbage_collection
from windlass.agent.runtime import containers, procfs
from windlass.kinds.values import quantity

log = logging.getLogger(__name__)

REASON = "OutOfDisk"
EVERY = 5.0
"""Seconds between two looks; more if a look takes long."""
_IDLE_PARTS = 10
"""Of this many parts of the time at most one is spent on looking."""
_LEAST_FREE, _LEAST_FREE_PART = 2 << 30, 0.02
"""The disk is nearly full below so many bytes, or this part of it."""
_SMALLEST = 4096
"""What a file or folder costs at least: many empty files fill a disk, too."""
_DEEPEST = 256
"""Levels of folders that can be measured."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooDeep(Exception):
    """Folders are nested so deeply that they cannot be measured."""


class DiskWatch:
    """Looks at the disk usage of the running pods of one node."""

    def __init__(self, context: container_config.AgentContext) -> None:
        self._context = context

    async def run(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await asyncio.to_thread(self.look)
            except OSError as problem:
                log.warning("disk usage of pods is not known: %s", problem)
            except Exception:  # the watch ends with the agent, and with it all pod workers
                log.exception("disk usage of pods is not known")
            await asyncio.sleep(max(EVERY, (time.monotonic() - began) * _IDLE_PARTS))

    def look(self) -> None:
        """Ends the pods that have too many files."""
        size, free = space(self._context.folder)
        usual = self._context.limits.disk_bytes(size)
        found = []
        for folder, record in self._running():
            limit = min(usual, record.get("disk") or usual)
            try:
                used = used_by(folder, record, limit)
            except TooDeep:
                _end(folder, f"its folders are nested deeper than {_DEEPEST} levels")
                continue
            except OSError as problem:  # it is being removed; the others are looked at all the same
                log.warning("disk usage of the pod in %s is not known: %s", folder.name, problem)
                continue
            found.append((used, folder))
            if used > limit:
                _end(folder, f"its files took more than its limit of {quantity.of_bytes(limit)}",
                     stated=limit < usual)  # fmt: skip
        least = min(_LEAST_FREE, int(size * _LEAST_FREE_PART))
        used, folder = max(found, default=(0, self._context.folder))
        if free < least <= used + free:
            _end(
                folder, f"the disk of the node is nearly full, and its {used >> 20}Mi are the most"
            )

    def _running(self) -> Iterator[tuple[Path, dict[str, Any]]]:
        for folder in self._context.folder.iterdir():
            with contextlib.suppress(OSError):
                record = procfs.read_json(folder / container_config.RECORD)
                alive = any(each.running_pid() for each in containers.all_in(folder))
                if record is not None and alive:
                    yield folder, record


def space(folder: Path) -> tuple[int, int]:
    """Bytes of the file system of a folder: all, and those that are free."""
    disk = os.statvfs(folder)
    return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize


def used_by(folder: Path, record: dict[str, Any], enough: int) -> int:
    """Bytes on disk of a pod; counting ends above `enough`."""
    total = _tree(folder, enough)
    scratch = garbage_collection.scratch_of(record)
    if scratch is not None:
        with contextlib.suppress(OSError):
            total += _tree(scratch, enough)
    return total + _deleted(folder)


def _tree(folder: Path, enough: int) -> int:
    """Bytes of all files below a folder, on its file system. Raises TooDeep."""
    open_folders = [os.open(folder, _FOLDER)]
    device = os.fstat(open_folders[0]).st_dev
    names = [os.listdir(open_folders[0])]
    linked: set[int] = set()
    total = 0
    try:
        while open_folders and total <= enough:
            if not names[-1]:
                names.pop()
                os.close(open_folders.pop())
                continue
            name = names[-1].pop()
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=open_folders[-1], follow_symlinks=False)
                if found.st_dev != device or found.st_ino in linked:
                    continue
                total += max(found.st_blocks * 512, _SMALLEST)
                if stat.S_ISDIR(found.st_mode):
                    _descend(name, open_folders, names)
                elif found.st_nlink > 1:
                    linked.add(found.st_ino)
    finally:
        for handle in open_folders:
            os.close(handle)
    return total


def _descend(name: str, open_folders: list[int], names: list[list[str]]) -> None:
    if len(open_folders) >= _DEEPEST:
        raise TooDeep
    handle = os.open(name, _FOLDER, dir_fd=open_folders[-1])
    open_folders.append(handle)
    names.append(os.listdir(handle))


def _deleted(folder: Path) -> int:
    """Bytes of files that the pod's processes have open and that have no name any more."""
    device = folder.stat().st_dev
    found: dict[int, int] = {}
    shims = [container.running_pid() for container in containers.all_in(folder)]
    for pid in [pid for shim in shims if shim for pid in procfs.descendants(shim)]:
        with contextlib.suppress(OSError):
            for entry in os.scandir(procfs.PROC / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    file = os.stat(entry.path)
                    if stat.S_ISREG(file.st_mode) and not file.st_nlink and file.st_dev == device:
                        found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


def _end(folder: Path, why: str, *, stated: bool = False) -> None:
    """`stated`: the job asked for the limit, and may ask for more."""
    more = ", or ask for more with --disk" if stated else ", or write to a mount (-v)"
    message = f"{why}; remove files that are not needed{more}"
    for container in containers.all_in(folder):
        container.stop(0.0, "SIGKILL", {"reason": REASON, "message": message})
