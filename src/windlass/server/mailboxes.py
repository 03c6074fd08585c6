"""Mailboxes: how functions and what they return travel between a program and its workers.

`windlass.Executor` and `windlass.run(function)` make one, hand its token to their pods in a Secret
and put calls in; workers take calls and put results in. The server never looks inside: what is
unpickled is unpickled by the two ends, and only the holder of the token or the box's owner could
have written it.

    MAILBOXES/<id>/box.json                    whose it is, hash of the token
                   <key>.call                  what to do
                   <key>.taken                 which worker has it
                   <key>.result                what came of it

Files, so that a call of many hours survives the server. Called by `server.app`.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import dataclasses
import errno
import hashlib
import hmac
import re
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from windlass.server import blobs
from windlass.server.objects import json_response
from windlass.server.platformpaths import GROUP, VERSION
from windlass.store import errors

MOST_BYTES = 256 << 20
"""Of one call or result. Data belongs into files that both ends see."""
INLINE_BYTES = 64 << 10
"""Results up to this size come along with the news that they are there."""
PATIENCE = 25.0
"""Seconds that a request for news or work waits for some."""
UNUSED_SECONDS = 7 * 86400.0
SWEEP_EVERY = 3600.0
_PIECE = 1 << 20
_PATH = re.compile(
    rf"/apis/{re.escape(GROUP)}/{VERSION}/namespaces/([a-z0-9][-a-z0-9.]*)/mailboxes"
    r"(?:/([0-9a-f]{24})(?:/(worker))?(?:/(events|take|calls|results)(?:/([a-z0-9-]{1,40}))?)?)?\Z"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """What of which mailbox."""

    namespace: str
    box: str = ""
    worker: bool = False
    """The worker's side: its token opens it, and no user's."""
    part: str = ""
    key: str = ""


def match(raw_path: str) -> Target | None:
    found = _PATH.match(raw_path)
    if found is None:
        return None
    return Target(found[1], found[2] or "", bool(found[3]), found[4] or "", found[5] or "")


Place = Callable[[], Awaitable[dict[str, str]]]
"""How workers reach this server, which may not be how its callers do."""


async def _nowhere() -> dict[str, str]:
    return {}


class Record(msgspec.Struct):
    """box.json"""

    namespace: str
    user: str
    hash: str


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
        self.changed = asyncio.Condition()
        self.closed = False
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

    async def tell(self, item: dict[str, Any] | None = None) -> None:
        async with self.changed:
            if item is not None:
                self.news.append(item)
            self.changed.notify_all()

    def forget(self, key: str) -> None:
        self.taken.pop(key, None)
        with contextlib.suppress(ValueError):
            self.waiting.remove(key)
        for kind in ("call", "taken", "result"):
            self.path(key, kind).unlink(missing_ok=True)

    def take(self, worker: str) -> str | None:
        """The next call for a worker; the same again if it asks again without a result."""
        for key, holder in self.taken.items():
            if holder == worker and not self.path(key, "result").exists():
                return key
        while self.waiting:
            key = self.waiting.popleft()
            if self.path(key, "call").exists():
                self.path(key, "taken").write_text(worker)
                self.taken[key] = worker
                return key
        return None


class Mailboxes:
    """All mailboxes of a server."""

    def __init__(self, folder: Path, place: Place = _nowhere) -> None:
        self._place = place
        self._folder = folder
        self._boxes: dict[str, Box] = {}
        self._stopping = False

    async def answer_owner(
        self, request: web.BaseRequest, target: Target, user: str
    ) -> web.StreamResponse:
        """The owner's side; `server.app` has asked whether he may create runs there."""
        if not target.box:
            _allow(request, "POST")
            return await self._create(target.namespace, user)
        box = self._open(target)
        if box.record.user != user:
            raise _missing(target)
        if not target.part:
            _allow(request, "DELETE")
            await self._delete(target.box, box)
            return web.Response(status=204)
        if target.part == "calls" and target.key:
            return await self._call(request, box, target.key)
        if target.part == "events":
            _allow(request, "GET")
            return await self._events(request, box)
        if target.part == "results" and target.key:
            _allow(request, "GET")
            return _file(box.path(target.key, "result"))
        raise _missing(target)

    async def answer_worker(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """The worker's side: the box's token is all it has and needs."""
        try:
            box = self._open(target)
        except errors.NotFound:
            # As for a wrong token: whether there is such a box is for those who hold its token.
            raise errors.Unauthorized("Unauthorized") from None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(box.record.hash, _hash(token)):
            raise errors.Unauthorized("Unauthorized")
        if target.part == "take":
            _allow(request, "POST")
            return await self._take(request, box)
        if target.part == "calls" and target.key:
            _allow(request, "GET")
            return _file(box.path(target.key, "call"))
        if target.part == "results" and target.key:
            _allow(request, "PUT")
            size = await _receive(request, box.path(target.key, "result"))
            await box.tell(_done(box, target.key, size))
            return web.Response(status=204)
        raise _missing(target)

    async def stop(self) -> None:
        """Lets everybody who waits go."""
        self._stopping = True
        for box in self._boxes.values():
            await box.tell()

    def sweep(self, now: float) -> list[str]:
        """Removes boxes that nobody has used for long; returns their ids."""
        gone = []
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            with contextlib.suppress(FileNotFoundError):
                used = max(path.stat().st_mtime for path in (folder, *folder.iterdir()))
                if now - used > UNUSED_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                    self._boxes.pop(folder.name, None)
                    gone.append(folder.name)
        return gone

    async def sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            await asyncio.to_thread(self.sweep, time.time())

    # --- the owner's side

    async def _create(self, namespace: str, user: str) -> web.Response:
        name, token = secrets.token_hex(12), secrets.token_urlsafe(32)
        folder = self._folder / name
        with _space_left():
            folder.mkdir(parents=True, mode=0o700)
            record = Record(namespace, user, _hash(token))
            (folder / "box.json").write_bytes(msgspec.json.encode(record))
        self._boxes[name] = Box(folder, record)
        return json_response({"name": name, "token": token, **await self._place()}, 201)

    async def _delete(self, name: str, box: Box) -> None:
        self._boxes.pop(name, None)
        box.closed = True
        await box.tell()
        await asyncio.to_thread(shutil.rmtree, box.folder, ignore_errors=True)

    async def _call(self, request: web.BaseRequest, box: Box, key: str) -> web.Response:
        if request.method == "DELETE":
            box.forget(key)
            return web.Response(status=204)
        _allow(request, "PUT")
        fresh = not box.path(key, "call").exists()
        await _receive(request, box.path(key, "call"))
        if fresh and key.isdigit():
            box.waiting.append(key)
            await box.tell()
        return web.Response(status=204)

    async def _events(self, request: web.BaseRequest, box: Box) -> web.Response:
        """What happened since; `after` counts within `epoch`."""
        query = request.rel_url.query
        after = int(query["after"]) if query.get("after", "").isdecimal() else 0
        if query.get("epoch") != box.epoch:
            after = 0
        elif after > box.heard:
            del box.news[: after - box.heard]
            box.heard = after
        after = max(after, box.heard)
        deadline = time.monotonic() + (PATIENCE if query.get("wait") else 0.0)
        async with box.changed:
            while box.heard + len(box.news) <= after and not box.closed and not self._stopping:
                left = deadline - time.monotonic()
                if left <= 0 or not await _notified(box.changed, left):
                    break
        news = box.news[after - box.heard :]
        return json_response({"epoch": box.epoch, "after": after + len(news), "events": news})

    # --- the worker's side

    async def _take(self, request: web.BaseRequest, box: Box) -> web.StreamResponse:
        query = request.rel_url.query
        worker, python = query.get("worker", "")[:100], query.get("python", "")[:20]
        if box.workers.get(worker) != python:
            box.workers[worker] = python
            await box.tell({"type": "worker", "worker": worker, "python": python})
        deadline = time.monotonic() + PATIENCE
        async with box.changed:
            while not box.closed:
                key = box.take(worker)
                if key is not None:
                    break
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping or not await _notified(box.changed, left):
                    return web.Response(status=204)
            else:
                return web.Response(status=410)
        await box.tell({"type": "taken", "call": key, "worker": worker})
        body = await asyncio.to_thread(box.path(key, "call").read_bytes)
        return web.Response(body=body, headers={"X-Windlass-Call": key})

    def _open(self, target: Target) -> Box:
        box = self._boxes.get(target.box)
        if box is None:
            folder = self._folder / target.box
            try:
                record = msgspec.json.decode((folder / "box.json").read_bytes(), type=Record)
            except (OSError, msgspec.DecodeError):
                raise _missing(target) from None
            box = self._boxes[target.box] = Box(folder, record)
        if box.record.namespace != target.namespace:
            raise _missing(target)
        return box


def _done(box: Box, key: str, size: int) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "done", "call": key}
    if size <= INLINE_BYTES:
        told["result"] = base64.b64encode(box.path(key, "result").read_bytes()).decode()
    return told


async def _receive(request: web.BaseRequest, path: Path) -> int:
    """The body into a file, whole or not at all; returns its size."""
    new = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    size = 0
    try:
        with _space_left(), new.open("wb") as file:
            async for piece in request.content.iter_chunked(_PIECE):
                size += len(piece)
                if size > MOST_BYTES:
                    raise errors.TooLarge(
                        f"a call or result has at most {MOST_BYTES >> 20} MiB; put large data into "
                        "a file that both ends see and send its name"
                    )
                file.write(piece)
        new.replace(path)
    except FileNotFoundError:
        raise errors.NotFound("the mailbox is closed") from None
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


async def _notified(condition: asyncio.Condition, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await condition.wait()
    except TimeoutError:
        return False
    return True


def _file(path: Path) -> web.Response:
    try:
        return web.Response(body=path.read_bytes(), content_type="application/octet-stream")
    except FileNotFoundError:
        raise errors.NotFound("nothing is there yet") from None


def _allow(request: web.BaseRequest, method: str) -> None:
    if request.method != method:
        raise errors.MethodNotAllowed(f"only {method} is served here")


def _missing(target: Target) -> errors.NotFound:
    return errors.NotFound(f'mailboxes "{target.box}" not found')


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
