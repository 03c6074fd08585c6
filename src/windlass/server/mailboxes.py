"""Mailboxes: how functions and what they return travel between a program and its workers.

`windlass.Executor` and `windlass.run(function)` make one, hand its token to their pods in a Secret
and put calls in; workers take calls and put results in. The server never looks inside: what is
unpickled is unpickled by the two ends, and only the holder of the token or the box's owner could
have written it.

Here are the requests; where boxes are kept, so that a call of many hours survives the server, is
`boxfolder` or `boxtables`. Called by `server.platformapi`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.server.objects import json_response
from windlass.server.platformpaths import GROUP, VERSION
from windlass.store import errors

_log = logging.getLogger(__name__)

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
    """Whose a mailbox is, and the hash of its token."""

    namespace: str
    user: str
    hash: str


class Closed(Exception):
    """The mailbox is no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """What happened in a box since; `after` counts within `epoch`."""

    epoch: str
    after: int
    events: list[dict[str, Any]]


class Bell:
    """Wakes whoever waits for something to happen in a box. One event for each who waits: what
    happens while he looks is not missed."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def listening(self, name: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            left = self._waiting[name]
            left.discard(event)
            if not left:
                del self._waiting[name]

    def ring(self, name: str) -> None:
        for event in self._waiting.get(name, ()):
            event.set()

    def ring_all(self) -> None:
        for name in self._waiting:
            self.ring(name)


class Keeping(Protocol):
    """Where mailboxes are: `boxfolder`, or `boxtables` where several servers must see them. Each
    step is done whole or not at all, may be repeated, and rings the bell. Closed if there is no
    such box."""

    bell: Bell

    async def create(self, name: str, record: Record) -> None: ...

    async def record(self, name: str) -> Record | None: ...

    async def delete(self, name: str) -> None: ...

    async def put(self, name: str, key: str, kind: str, data: AsyncIterator[bytes]) -> None:
        """A call, which then waits for a worker if its key is a number; or a result, which is told
        as news."""

    async def read(self, name: str, key: str, kind: str) -> bytes | None: ...

    async def forget(self, name: str, key: str) -> None: ...

    async def take(self, name: str, worker: str) -> str | None:
        """The next call for a worker; the same again if it asks again without a result."""

    async def meet(self, name: str, worker: str, python: str) -> None:
        """A worker asks for work; told as news when it is the first time."""

    async def news(self, name: str, epoch: str, after: int) -> News:
        """What was asked past need not be kept."""

    async def sweep(self, now: float) -> list[str]:
        """Removes boxes that nobody has used for long; returns their names."""

    async def stop(self) -> None: ...


class Mailboxes:
    """What can be asked about mailboxes, wherever they are."""

    def __init__(self, keeping: Keeping, place: Place = _nowhere) -> None:
        self._place = place
        self._keeping = keeping
        self._stopping = False

    async def answer_owner(
        self, request: web.BaseRequest, target: Target, user: str
    ) -> web.StreamResponse:
        """The owner's side; `server.app` has asked whether he may create runs there."""
        if not target.box:
            _allow(request, "POST")
            return await self._create(target.namespace, user)
        record = await self._record(target)
        if record.user != user:
            raise _missing(target)
        if not target.part:
            _allow(request, "DELETE")
            with contextlib.suppress(Closed):  # by somebody else, in this moment
                await self._keeping.delete(target.box)
            return web.Response(status=204)
        if target.part == "calls" and target.key:
            return await self._call(request, target)
        if target.part == "events":
            _allow(request, "GET")
            return await self._events(request, target)
        if target.part == "results" and target.key:
            _allow(request, "GET")
            return await self._mail(target, "result")
        raise _missing(target)

    async def answer_worker(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        """The worker's side: the box's token is all it has and needs."""
        try:
            record = await self._record(target)
        except errors.NotFound:
            # As for a wrong token: whether there is such a box is for those who hold its token.
            raise errors.Unauthorized("Unauthorized") from None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(record.hash, _hash(token)):
            raise errors.Unauthorized("Unauthorized")
        if target.part == "take":
            _allow(request, "POST")
            return await self._take(request, target.box)
        if target.part == "calls" and target.key:
            _allow(request, "GET")
            return await self._mail(target, "call")
        if target.part == "results" and target.key:
            _allow(request, "PUT")
            await self._receive(request, target, "result")
            return web.Response(status=204)
        raise _missing(target)

    async def stop(self) -> None:
        """Lets everybody who waits go."""
        self._stopping = True
        self._keeping.bell.ring_all()
        await self._keeping.stop()

    async def sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            try:
                await self._keeping.sweep(time.time())
            except errors.ApiError as problem:
                _log.warning("mailboxes were not swept: %s", problem)

    # --- the owner's side

    async def _create(self, namespace: str, user: str) -> web.Response:
        name, token = secrets.token_hex(12), secrets.token_urlsafe(32)
        await self._keeping.create(name, Record(namespace, user, _hash(token)))
        return json_response({"name": name, "token": token, **await self._place()}, 201)

    async def _call(self, request: web.BaseRequest, target: Target) -> web.Response:
        if request.method == "DELETE":
            with contextlib.suppress(Closed):
                await self._keeping.forget(target.box, target.key)
            return web.Response(status=204)
        _allow(request, "PUT")
        await self._receive(request, target, "call")
        return web.Response(status=204)

    async def _events(self, request: web.BaseRequest, target: Target) -> web.Response:
        query = request.rel_url.query
        epoch = query.get("epoch", "")
        after = int(query["after"]) if query.get("after", "").isdecimal() else 0
        found = News(epoch, after, [])

        async def look() -> bool:
            nonlocal found
            found = await self._keeping.news(target.box, epoch, after)
            return bool(found.events)

        with contextlib.suppress(Closed):
            await self._until(target.box, look, PATIENCE if query.get("wait") else 0.0)
        return json_response({"epoch": found.epoch, "after": found.after, "events": found.events})

    # --- the worker's side

    async def _take(self, request: web.BaseRequest, box: str) -> web.StreamResponse:
        query = request.rel_url.query
        worker, python = query.get("worker", "")[:100], query.get("python", "")[:20]
        key = ""

        async def look() -> bool:
            nonlocal key
            key = await self._keeping.take(box, worker) or ""
            return bool(key)

        try:
            await self._keeping.meet(box, worker, python)
            if not await self._until(box, look, PATIENCE):
                return web.Response(status=204)
        except Closed:
            return web.Response(status=410)
        body = await self._keeping.read(box, key, "call")
        if body is None:  # forgotten in this moment: nobody wants it any more
            return web.Response(status=204)
        return web.Response(body=body, headers={"X-Windlass-Call": key})

    # --- both

    async def _until(self, box: str, look: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Looks, and looks again whenever the bell rings, for so long."""
        deadline = time.monotonic() + seconds
        with self._keeping.bell.listening(box) as rung:
            while True:
                rung.clear()
                if await look():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await rung.wait()

    async def _record(self, target: Target) -> Record:
        record = await self._keeping.record(target.box)
        if record is None or record.namespace != target.namespace:
            raise _missing(target)
        return record

    async def _receive(self, request: web.BaseRequest, target: Target, kind: str) -> None:
        try:
            await self._keeping.put(target.box, target.key, kind, _bounded(request))
        except Closed:
            raise errors.NotFound("the mailbox is closed") from None

    async def _mail(self, target: Target, kind: str) -> web.Response:
        body = await self._keeping.read(target.box, target.key, kind)
        if body is None:
            raise errors.NotFound("nothing is there yet")
        return web.Response(body=body, content_type="application/octet-stream")


async def _bounded(request: web.BaseRequest) -> AsyncIterator[bytes]:
    size = 0
    async for piece in request.content.iter_chunked(_PIECE):
        size += len(piece)
        if size > MOST_BYTES:
            raise errors.TooLarge(
                f"a call or result has at most {MOST_BYTES >> 20} MiB; put large data into "
                "a file that both ends see and send its name"
            )
        yield piece


def _allow(request: web.BaseRequest, method: str) -> None:
    if request.method != method:
        raise errors.MethodNotAllowed(f"only {method} is served here")


def _missing(target: Target) -> errors.NotFound:
    return errors.NotFound(f'mailboxes "{target.box}" not found')


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
