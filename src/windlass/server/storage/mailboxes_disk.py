"""Mailboxes as files of the server's own disk, for `interfaces`.

FOLDER/<box>/box.json          the owner, and the hash of the token
             <key>.call        a call
             <key>.taken       its worker
             <key>.result      its result
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

from windlass.server.storage import interfaces
from windlass.server.storage.interfaces import MailboxClosed, MailboxEvents, MailboxRecord, Notifier


class Mailbox:
    """One mailbox: an index in memory over its files."""

    def __init__(self, folder: Path, record: MailboxRecord) -> None:
        self.folder = folder
        self.record = record
        self.epoch = secrets.token_hex(4)
        """Each server process numbers events from zero; a client with another epoch gets all
        again."""
        self.waiting: collections.deque[str] = collections.deque()
        self.taken: dict[str, str] = {}
        self.news: list[dict[str, Any]] = []
        self.heard = 0
        """The events before the first of `news`: those that the client has seen are dropped."""
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

    def discard(self, key: str) -> None:
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
        event: dict[str, Any] = {"type": "done", "call": key}
        if size <= interfaces.INLINE_BYTES:
            event["result"] = base64.b64encode(self.path(key, "result").read_bytes()).decode()
        self.news.append(event)


class DiskMailboxStore:
    """All mailboxes of a server."""

    def __init__(self, folder: Path) -> None:
        self.notifier = Notifier()
        self._folder = folder
        self._boxes: dict[str, Mailbox] = {}

    async def create(self, name: str, record: MailboxRecord) -> None:
        folder = self._folder / name
        with _space_left():
            folder.mkdir(parents=True, mode=0o700)
            (folder / "box.json").write_bytes(msgspec.json.encode(record))
        self._boxes[name] = Mailbox(folder, record)

    async def record(self, name: str) -> MailboxRecord | None:
        try:
            return self._open(name).record
        except MailboxClosed:
            return None

    async def delete(self, name: str) -> None:
        box = self._open(name)
        self._boxes.pop(name, None)
        # Its record first: from here on it is closed, and waiting requests see that.
        (box.folder / "box.json").unlink(missing_ok=True)
        self.notifier.notify(name)
        await asyncio.to_thread(shutil.rmtree, box.folder, ignore_errors=True)

    async def put(self, name: str, key: str, kind: str, data: AsyncIterator[bytes]) -> None:
        box = self._open(name)
        fresh = not box.path(key, kind).exists()
        size = await _receive(data, box.path(key, kind))
        if kind == "result":
            box.done(key, size)
        elif fresh and key.isdigit():
            box.waiting.append(key)
        self.notifier.notify(name)

    async def read(self, name: str, key: str, kind: str) -> bytes | None:
        try:
            return await asyncio.to_thread(self._open(name).path(key, kind).read_bytes)
        except (MailboxClosed, FileNotFoundError):
            return None

    async def discard(self, name: str, key: str) -> None:
        self._open(name).discard(key)

    async def take(self, name: str, worker: str) -> str | None:
        box = self._open(name)
        event = len(box.news)
        key = box.take(worker)
        if len(box.news) != event:
            self.notifier.notify(name)
        return key

    async def register_worker(self, name: str, worker: str, python: str) -> None:
        box = self._open(name)
        if box.workers.get(worker) != python:
            box.workers[worker] = python
            box.news.append({"type": "worker", "worker": worker, "python": python})
            self.notifier.notify(name)

    async def events(self, name: str, epoch: str, after: int) -> MailboxEvents:
        box = self._open(name)
        if epoch != box.epoch:
            after = 0
        elif after > box.heard:
            del box.news[: after - box.heard]
            box.heard = after
        after = max(after, box.heard)
        events = box.news[after - box.heard :]
        return MailboxEvents(box.epoch, after + len(events), events)

    async def sweep(self, now: float) -> list[str]:
        return await asyncio.to_thread(self._sweep, now)

    async def stop(self) -> None:
        return

    def _sweep(self, now: float) -> list[str]:
        gone = []
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                used = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - used > interfaces.UNUSED_MAILBOX_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._boxes.pop(folder.name, None)
                    gone.append(folder.name)
        return gone

    def _open(self, name: str) -> Mailbox:
        box = self._boxes.get(name)
        if box is None:
            folder = self._folder / name
            try:
                record = msgspec.json.decode((folder / "box.json").read_bytes(), type=MailboxRecord)
            except (OSError, msgspec.DecodeError):
                raise MailboxClosed from None
            box = self._boxes[name] = Mailbox(folder, record)
        return box


async def _receive(data: AsyncIterator[bytes], path: Path) -> int:
    """Writes the data to a file, completely or not at all; returns its size."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    size = 0
    try:
        with _space_left(), new.open("wb") as file:
            async for piece in data:
                size += len(piece)
                file.write(piece)
        new.replace(path)
    except FileNotFoundError:
        raise MailboxClosed from None
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
        raise interfaces.NoSpace(
            "the disk of the server is full; free some space there, then try again"
        ) from problem
