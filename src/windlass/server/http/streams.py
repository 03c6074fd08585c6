"""Responses that stay open: watches and followed logs.

Each is written by the task of its request. A slow reader makes only that task wait (`write`
drains);
unread data stays in the store, not in memory. All streams end cleanly when their time is up, when
the client is gone and when the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from aiohttp import web

from windlass.store import errors
from windlass.store.embedded.options import RawEvent

_log = logging.getLogger(__name__)

LONGEST_SECONDS = (1800, 3600)
"""Without timeoutSeconds a watch ends within this range, so that not all end at once."""
_POLL_SECONDS = 2.0
_CLOSING_SECONDS = 2.0

RIGHTS_SECONDS = 10.0
"""How often the permissions of open streams are checked."""
Still = Callable[[], Awaitable[bool]]
"""Whether a caller still has the permission that it had at the start."""

Pace = Callable[[], Awaitable[None]]
"""Returns when the next piece may be written."""

Encode = Callable[[list[RawEvent]], bytes]
"""A batch of events as lines."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Open:
    request: web.BaseRequest
    still: Still | None = None
    pace: Pace | None = None


class Streams:
    """All open streams of a server."""

    def __init__(self) -> None:
        self._open: dict[asyncio.Timeout, _Open] = {}
        self._watching: asyncio.Task[None] | None = None
        self._stopping = False

    async def serve(
        self,
        request: web.BaseRequest,
        pieces: AsyncIterator[bytes],
        content_type: str,
        *,
        seconds: float | None = None,
        first_timeout: float = 0.0,
        still: Still | None = None,
        pace: Pace | None = None,
    ) -> web.StreamResponse:
        """Writes the pieces until they end, the time is up, or `still` returns False. An error
        before the first piece, within `first_timeout`, is raised, so that it becomes a proper
        response."""
        first = asyncio.ensure_future(_next(pieces))
        await asyncio.sleep(0)  # lets the source validate the request
        if first_timeout:
            await asyncio.wait((first,), timeout=first_timeout)
        if first.done() and (problem := first.exception()) is not None:
            raise problem
        response = web.StreamResponse(headers={"Content-Type": content_type})
        try:
            await response.prepare(request)
            await self._pump(_Open(request, still, pace), response, first, pieces, seconds)
        except ConnectionError:
            pass  # the client is gone; it can reconnect and resume
        except errors.ApiError as problem:
            _log.info("%s ended early: %s", request.path[:200], problem.message)
            _abort(request)  # too late for a Status: a broken stream is the only signal
        finally:
            first.cancel()
            if (close := getattr(pieces, "aclose", None)) is not None:
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await close()
        return response

    async def stop(self) -> None:
        """Ends every stream as if its time were up."""
        self._stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in list(self._open):
            timeout.reschedule(now)
        if self._watching is not None:
            self._watching.cancel()

    async def _pump(
        self,
        opened: _Open,
        response: web.StreamResponse,
        first: asyncio.Future[bytes | None],
        pieces: AsyncIterator[bytes],
        seconds: float | None,
    ) -> None:
        if seconds is None:
            seconds = random.uniform(*LONGEST_SECONDS)  # noqa: S311 (spreads load, no secret)
        timeout = asyncio.timeout(0 if self._stopping else seconds)
        try:
            async with timeout:
                self._register(timeout, opened)
                piece = await first
                while piece is not None:
                    if opened.pace is not None:
                        await opened.pace()
                    await response.write(piece)
                    piece = await _next(pieces)
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            self._open.pop(timeout, None)
        await _finish(opened.request, response)

    def _register(self, timeout: asyncio.Timeout, opened: _Open) -> None:
        self._open[timeout] = opened
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._end_stale_streams())

    async def _end_stale_streams(self) -> None:
        """An idle watch does not notice that its client is gone or that its token is revoked, so
        this task checks."""
        loop = asyncio.get_running_loop()
        last_check = loop.time()
        while self._open:
            await asyncio.sleep(_POLL_SECONDS)
            ask = loop.time() - last_check >= RIGHTS_SECONDS
            last_check = loop.time() if ask else last_check
            for timeout, opened in list(self._open.items()):
                transport = opened.request.transport
                gone = transport is None or transport.is_closing()
                if not gone and ask and opened.still is not None:
                    gone = not await opened.still()
                if gone and timeout in self._open:
                    timeout.reschedule(loop.time())


async def watch_lines(
    batches: AsyncIterator[list[RawEvent]], encode: Encode
) -> AsyncIterator[bytes]:
    """Events as the lines of a watch. Expired history is an event inside, as in Kubernetes."""
    try:
        async for batch in batches:
            if batch:
                yield encode(batch)
    except errors.Gone as problem:
        status = msgspec.json.encode(problem.to_status())
        yield b'{"type":"ERROR","object":' + status + b"}\n"
    finally:
        if (close := getattr(batches, "aclose", None)) is not None:
            await close()


def plain_lines(batch: list[RawEvent]) -> bytes:
    return b"".join([_HEADS[event.type] + event.data + b"}\n" for event in batch])


def converted_lines(batch: list[RawEvent], convert: Callable[[RawEvent], bytes]) -> bytes:
    return b"".join([_HEADS[event.type] + convert(event) + b"}\n" for event in batch])


_HEADS = {
    name: b'{"type":"%b","object":' % name.encode()
    for name in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
}


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def _finish(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Writes the last chunk; does not wait long for a client that does not read."""
    try:
        async with asyncio.timeout(_CLOSING_SECONDS):
            await response.write_eof()
    except TimeoutError:
        _abort(request)


async def while_allowed(work: Awaitable[None], still: Still | None) -> None:
    """Runs the work, and cancels it when the caller loses its permission: for a session that is not
    one of these streams."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait((task,), timeout=RIGHTS_SECONDS)
            if not task.done() and still is not None and not await still():
                break
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if not task.cancelled():
        task.result()


def _abort(request: web.BaseRequest) -> None:
    if request.transport is not None:
        request.transport.abort()
