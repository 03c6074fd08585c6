"""Mailboxes: calls of functions and their results, between a program and its workers.

`windlass.Executor` and `windlass.run(function)` create a mailbox, pass its token to their pods in a
Secret, and put calls into it; workers take calls and put results. The server never unpickles them:
only the owner and the holders of the token write and read.

The route table gives the owner's requests to users who may create Runs in the namespace, and the
workers' requests to holders of the mailbox's token.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from windlass.server.http import bodies
from windlass.server.http.responses import json_response
from windlass.server.platform.call import PlatformCall
from windlass.server.storage.interfaces import (
    MailboxClosed,
    MailboxEvents,
    MailboxRecord,
    MailboxStore,
)
from windlass.store import errors

_log = logging.getLogger(__name__)

MOST_BYTES = 256 << 20
"""Of one call or result. Larger data belongs into files that both ends see."""
WAIT_SECONDS = 25.0
"""How long a request for events or calls waits for one."""
SWEEP_EVERY = 3600.0
HEARTBEAT = "heartbeat"
"""The key under which a program puts its heartbeats."""
_MOST_HEARTBEATS = 10_000
_PIECE = 1 << 20

WorkerSettings = Callable[[], Awaitable[dict[str, str]]]
"""How workers reach this server, which may differ from how its users do."""


async def _no_settings() -> dict[str, str]:
    return {}


class MailboxService:
    """Requests of a mailbox's owner and of its workers, in any store."""

    def __init__(
        self, mailboxes: MailboxStore, worker_settings: WorkerSettings = _no_settings
    ) -> None:
        self._mailboxes = mailboxes
        self._worker_settings = worker_settings
        self._stopping = False
        self._beats = _Heartbeats()

    async def check_token(self, call: PlatformCall) -> None:
        """Unauthorized unless the request has the mailbox's token. The answer is the same when
        there is no such mailbox."""
        try:
            record = await self._record(call)
        except errors.NotFound:
            raise errors.Unauthorized("Unauthorized") from None
        scheme, _, token = call.request.headers.get("Authorization", "").partition(" ")
        if scheme != "Bearer" or not hmac.compare_digest(record.hash, _hash(token)):
            raise errors.Unauthorized("Unauthorized")

    async def stop(self) -> None:
        """Ends the requests that wait."""
        self._stopping = True
        self._mailboxes.notifier.notify_all()
        await self._mailboxes.stop()

    async def sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            try:
                await self._mailboxes.sweep(time.time())
            except errors.ApiError as problem:
                _log.warning("mailboxes were not swept: %s", problem)

    # --- the owner

    async def create(self, call: PlatformCall) -> web.Response:
        name, token = secrets.token_hex(12), secrets.token_urlsafe(32)
        record = MailboxRecord(call.namespace, call.identity.user, _hash(token))
        await self._mailboxes.create(name, record)
        return json_response({"name": name, "token": token, **await self._worker_settings()}, 201)

    async def delete(self, call: PlatformCall) -> web.Response:
        name = await self._owned(call)
        with contextlib.suppress(MailboxClosed):  # by another request of the owner
            await self._mailboxes.delete(name)
        self._beats.forget(name)
        return web.Response(status=204)

    async def put_call(self, call: PlatformCall) -> web.Response:
        name = await self._owned(call)
        if call.parameters["key"] == HEARTBEAT:
            self._beats.forget(name)
        return await self._put(call, "call")

    async def discard_call(self, call: PlatformCall) -> web.Response:
        name = await self._owned(call)
        with contextlib.suppress(MailboxClosed):
            await self._mailboxes.discard(name, call.parameters["key"])
        return web.Response(status=204)

    async def result(self, call: PlatformCall) -> web.Response:
        await self._owned(call)
        return await self._get(call, "result")

    async def events(self, call: PlatformCall) -> web.Response:
        name, query = await self._owned(call), call.query
        epoch = query.get("epoch", "")
        text = query.get("after", "")
        after = int(text) if text.isdecimal() else 0
        found = MailboxEvents(epoch, after, [])

        async def poll() -> bool:
            nonlocal found
            found = await self._mailboxes.events(name, epoch, after)
            return bool(found.events)

        with contextlib.suppress(MailboxClosed):
            await self._until(name, poll, WAIT_SECONDS if query.get("wait") else 0.0)
        return json_response({"epoch": found.epoch, "after": found.after, "events": found.events})

    # --- workers

    async def take(self, call: PlatformCall) -> web.StreamResponse:
        """The next call for this worker: 204 if none comes in time, 410 if the mailbox is
        deleted."""
        name, query = call.parameters["box"], call.query
        worker, python = query.get("worker", "")[:100], query.get("python", "")[:20]
        key = ""

        async def poll() -> bool:
            nonlocal key
            key = await self._mailboxes.take(name, worker) or ""
            return bool(key)

        try:
            await self._mailboxes.register_worker(name, worker, python)
            if not await self._until(name, poll, WAIT_SECONDS):
                return web.Response(status=204)
        except MailboxClosed:
            return web.Response(status=410)
        body = await self._mailboxes.read(name, key, "call")
        if body is None:  # the owner discarded it in this moment
            return web.Response(status=204)
        return web.Response(body=body, headers={"X-Windlass-Call": key})

    async def read_call(self, call: PlatformCall) -> web.Response:
        found = await self._get(call, "call")
        if call.parameters["key"] == HEARTBEAT and isinstance(found.body, bytes):
            age = self._beats.age(call.parameters["box"], found.body)
            found.headers["X-Windlass-Age"] = f"{age:.1f}"
        return found

    async def put_result(self, call: PlatformCall) -> web.Response:
        return await self._put(call, "result")

    # --- both

    async def _until(self, name: str, poll: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Polls now and after each notification, for at most this time."""
        deadline = time.monotonic() + seconds
        with self._mailboxes.notifier.subscribed(name) as changed:
            while True:
                changed.clear()
                if await poll():
                    return True
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await changed.wait()

    async def _owned(self, call: PlatformCall) -> str:
        """The name of the path's mailbox, if it is the caller's."""
        record = await self._record(call)
        if record.user != call.identity.user:
            raise _missing(call)
        return call.parameters["box"]

    async def _record(self, call: PlatformCall) -> MailboxRecord:
        record = await self._mailboxes.record(call.parameters["box"])
        if record is None or record.namespace != call.namespace:
            raise _missing(call)
        return record

    async def _put(self, call: PlatformCall, kind: str) -> web.Response:
        name, key = call.parameters["box"], call.parameters["key"]
        try:
            await self._mailboxes.put(name, key, kind, _bounded(call.request))
        except MailboxClosed:
            raise errors.NotFound("the mailbox is closed") from None
        return web.Response(status=204)

    async def _get(self, call: PlatformCall, kind: str) -> web.Response:
        body = await self._mailboxes.read(call.parameters["box"], call.parameters["key"], kind)
        if body is None:
            raise errors.NotFound(f"there is no {kind} yet")
        return web.Response(body=body, content_type="application/octet-stream")


class _Heartbeats:
    """Since when the heartbeats of mailboxes are the same, as far as this server has seen: another
    one may have received a later one, until a worker reads it here. Bounded; what is not known
    counts as new."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[str, tuple[bytes, float]] = collections.OrderedDict()

    def age(self, box: str, content: bytes) -> float:
        known, now = self._seen.get(box), time.monotonic()
        if known is None or known[0] != content:
            known = self._seen[box] = (content, now)
        self._seen.move_to_end(box)
        if len(self._seen) > _MOST_HEARTBEATS:
            self._seen.popitem(last=False)
        return now - known[1]

    def forget(self, box: str) -> None:
        self._seen.pop(box, None)


async def _bounded(request: web.BaseRequest) -> AsyncIterator[bytes]:
    size = 0
    async for piece in bodies.pieces(request, _PIECE):
        size += len(piece)
        if size > MOST_BYTES:
            raise errors.TooLarge(
                f"a call or result has at most {MOST_BYTES >> 20} MiB; put large data into "
                "a file that both ends see and send its name"
            )
        yield piece


def _missing(call: PlatformCall) -> errors.NotFound:
    return errors.NotFound(f'mailboxes "{call.parameters["box"]}" not found')


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
