"""Mailboxes as files of the server's own disk, for `mailboxes`.

FOLDER/<box>/box.json          whose it is, hash of the token
             <key>.call        what to do
             <key>.taken       which worker has it
             <key>.result      what came of it
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import errno
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from windlass.server import blobs, mailboxes
from windlass.server.mailboxes import Bell, Closed, News, Record


class Box:
    """One mailbox: an index in memory over its files."""

    def __init__(self, folder: Path, record: Record) -> None:
        self.folder = folder
        self.record = record
        self.epoch = secrets.token_hex(4)
        """News is numbered anew by each server; who asks with another epoch hears all again."""
        self.waiting: collections.deque[str] = collections.deque()
        self.taken: dict[str, str] = {}
        self.news: list[dict[str, Any]] = []
        self.heard = 0
        """How much news came before the first of `news`: what was asked past is dropped."""
        self.workers: dict[str, str] = {}
        self._load()

    def _load(self) -> None:
        results = {path.stem for path in self.folder.glob("*.result")}
        for path in sorted(self.folder.glob("*.call"), key=lambda each: each.stat().st_mtime_ns):
            key = path.stem
            taken = self.path(key, "taken")
            if taken.exists():
                self.taken[key] = taken.read_text()
                self.news.append({"type": "taken", "call": key, "worker": self.taken[key]})
            elif key.isdigit() and key not in results:
                self.waiting.append(key)
        self.news += [{"type": "done", "call": key} for key in sorted(results)]

    def path(self, key: str, kind: str) -> Path:
        return self.folder / f"{key}.{kind}"

    def forget(self, key: str) -> None:
        self.taken.pop(key, None)
        with contextlib.suppress(ValueError):
            self.waiting.remove(key)
        for kind in ("call", "taken", "result"):
            self.path(key, kind).unlink(missing_ok=True)

    def take(self, worker: str) -> str | None:
        for key, holder in self.taken.items():
            if holder == worker and not self.path(key, "result").exists():
                return key
        while self.waiting:
            key = self.waiting.popleft()
            if self.path(key, "call").exists():
                self.path(key, "taken").write_text(worker)
                self.taken[key] = worker
                self.news.append({"type": "taken", "call": key, "worker": worker})
                return key
        return None

    def done(self, key: str, size: int) -> None:
        told: dict[str, Any] = {"type": "done", "call": key}
        if size <= mailboxes.INLINE_BYTES:
            told["result"] = base64.b64encode(self.path(key, "result").read_bytes()).decode()
        self.news.append(told)


class BoxFolder:
    """All mailboxes of a server."""

    def __init__(self, folder: Path) -> None:
        self.bell = Bell()
        self._folder = folder
        self._boxes: dict[str, Box] = {}

    async def create(self, name: str, record: Record) -> None:
        folder = self._folder / name
        with _space_left():
            folder.mkdir(parents=True, mode=0o700)
            (folder / "box.json").write_bytes(msgspec.json.encode(record))
        self._boxes[name] = Box(folder, record)

    async def record(self, name: str) -> Record | None:
        try:
            return self._open(name).record
        except Closed:
            return None

    async def delete(self, name: str) -> None:
        box = self._open(name)
        self._boxes.pop(name, None)
        # Its record first: from here on it is closed, and whoever waits learns it.
        (box.folder / "box.json").unlink(missing_ok=True)
        self.bell.ring(name)
        await asyncio.to_thread(shutil.rmtree, box.folder, ignore_errors=True)

    async def put(self, name: str, key: str, kind: str, data: AsyncIterator[bytes]) -> None:
        box = self._open(name)
        fresh = not box.path(key, kind).exists()
        size = await _receive(data, box.path(key, kind))
        if kind == "result":
            box.done(key, size)
        elif fresh and key.isdigit():
            box.waiting.append(key)
        self.bell.ring(name)

    async def read(self, name: str, key: str, kind: str) -> bytes | None:
        try:
            return await asyncio.to_thread(self._open(name).path(key, kind).read_bytes)
        except (Closed, FileNotFoundError):
            return None

    async def forget(self, name: str, key: str) -> None:
        self._open(name).forget(key)

    async def take(self, name: str, worker: str) -> str | None:
        box = self._open(name)
        told = len(box.news)
        key = box.take(worker)
        if len(box.news) != told:
            self.bell.ring(name)
        return key

    async def meet(self, name: str, worker: str, python: str) -> None:
        box = self._open(name)
        if box.workers.get(worker) != python:
            box.workers[worker] = python
            box.news.append({"type": "worker", "worker": worker, "python": python})
            self.bell.ring(name)

    async def news(self, name: str, epoch: str, after: int) -> News:
        box = self._open(name)
        if epoch != box.epoch:
            after = 0
        elif after > box.heard:
            del box.news[: after - box.heard]
            box.heard = after
        after = max(after, box.heard)
        events = box.news[after - box.heard :]
        return News(box.epoch, after + len(events), events)

    async def sweep(self, now: float) -> list[str]:
        return await asyncio.to_thread(self._sweep, now)

    async def stop(self) -> None:
        return

    def _sweep(self, now: float) -> list[str]:
        gone = []
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                used = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - used > mailboxes.UNUSED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._boxes.pop(folder.name, None)
                    gone.append(folder.name)
        return gone

    def _open(self, name: str) -> Box:
        box = self._boxes.get(name)
        if box is None:
            folder = self._folder / name
            try:
                record = msgspec.json.decode((folder / "box.json").read_bytes(), type=Record)
            except (OSError, msgspec.DecodeError):
                raise Closed from None
            box = self._boxes[name] = Box(folder, record)
        return box


async def _receive(data: AsyncIterator[bytes], path: Path) -> int:
    """What comes into a file, whole or not at all; returns its size."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    size = 0
    try:
        with _space_left(), new.open("wb") as file:
            async for piece in data:
                size += len(piece)
                file.write(piece)
        new.replace(path)
    except FileNotFoundError:
        raise Closed from None
    finally:
        new.unlink(missing_ok=True)
    return size


@contextlib.contextmanager
def _space_left() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise blobs.NoSpace(
            "the disk of the server is full; free some space there, then try again"
        ) from problem
