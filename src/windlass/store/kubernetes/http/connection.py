"""One connection of HTTP/1.1 to an API server, and the answer that is being read from it.

`light` keeps them. A protocol of asyncio, not a pair of streams: an answer mostly comes in one
piece, and is then read without waiting for each of its lines.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import cast

from windlass.store.kubernetes import exchange

_KEEP_SECONDS = 20.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
_LONGEST_HEAD = 1 << 18
_END, _LINE = b"\r\n\r\n", b"\r\n"


class NotHttpError(Exception):
    """The server speaks something else."""


class Connection(asyncio.Protocol):
    def __init__(self, shown: tuple[bytes, bytes] | None) -> None:
        self.shown = shown
        """The certificate that it was opened with."""
        self.status = 0
        self.headers = Headers({})
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._patient_until = math.inf
        self._alarm: asyncio.TimerHandle | None = None
        """Rings when an answer has paused for too long. One for many answers: most are there soon,
        and to set and take back one for each would cost as much as to read it."""
        self._is_over = False
        """Nothing more will come."""
        self._paused = False
        self._idle_since = 0.0
        self._is_chunked = False
        self._left: int | None = 0
        """Bytes still to come of the body, or of a chunk and the line that ends it; None: all that
        comes until the connection is closed."""
        self._whole = True
        """Whether all of the body was read."""

    # --- what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > exchange.READ_BUFFER and self._transport and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._is_over = True
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        self._wake()
        self._silence_alarm()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- its life

    def is_usable(self, certificate: tuple[bytes, bytes] | None) -> bool:
        """Whether another request may be sent on it, by who presents this certificate."""
        young = time.monotonic() - self._idle_since < _KEEP_SECONDS
        return young and not self._is_over and not self._buffer and self.shown == certificate

    def rest(self) -> bool:
        """Called when an answer was read; False: it cannot be used again."""
        self._idle_since = time.monotonic()
        said = self.headers.get("Connection", "").lower()
        return self._whole and self._left is not None and "close" not in said and not self._is_over

    def close(self) -> None:
        self._silence_alarm()
        if self._transport is not None:
            self._transport.abort()

    # --- requests and answers

    async def ask(self, request: bytes, *, has_body: bool) -> None:
        """Sends it and reads the head of the answer. `has_body`: the answer's."""
        if self._transport is None or self._is_over:
            raise EOFError("the connection broke")
        self._transport.write(request)
        while True:
            await self._read_head()
            if self.status >= 200:
                break
        self._begin_body(has_body=has_body and self.status not in (204, 304))

    async def whole(self) -> bytes:
        """All of the body."""
        parts = [self._take()]
        while not self._whole:
            await self._more(exchange.SILENCE_SECONDS)
            parts.append(self._take())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it comes, however long that takes."""
        while True:
            piece = self._take()
            if piece:
                yield piece
            if self._whole:
                return
            if not piece:
                await self._more(None)

    async def _more(self, patience: float | None) -> None:
        """Returns when something has come. The end is something where an end says that all is
        there; elsewhere the connection broke."""
        if self._is_over:
            if self._left is None and not self._whole:
                self._whole = True
                return
            raise EOFError("the connection broke")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = self._loop.create_future()
        self._patient_until = math.inf
        if patience is not None:
            self._patient_until = self._loop.time() + patience
            if self._alarm is None:
                self._alarm = self._loop.call_at(self._patient_until, self._ring)
        await self._waiter

    def _ring(self) -> None:
        self._alarm = None
        if self._waiter is None or self._waiter.done() or self._patient_until == math.inf:
            return  # nobody waits, or somebody who has time
        if self._loop.time() < self._patient_until:
            self._alarm = self._loop.call_at(self._patient_until, self._ring)
            return
        waiter, self._waiter = self._waiter, None
        waiter.set_exception(TimeoutError())

    def _silence_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    async def _read_head(self) -> None:
        self._left = 0
        while (end := self._buffer.find(_END)) < 0:
            if len(self._buffer) > _LONGEST_HEAD or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise NotHttpError("it does not speak HTTP")
            await self._more(exchange.SILENCE_SECONDS)
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + len(_END)]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise NotHttpError("it does not speak HTTP")
        self.status = int(rest[:3])
        pairs = (line.partition(":") for line in lines)
        self.headers = Headers({name.lower(): value.strip() for name, _, value in pairs})

    def _begin_body(self, *, has_body: bool) -> None:
        headers = self.headers
        self._is_chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        if not has_body:
            self._left, self._is_chunked = 0, False
        elif self._is_chunked:
            self._left = 0
        else:
            length = headers.get("Content-Length")
            self._left = None if length is None else int(length)
        self._whole = self._left == 0 and not self._is_chunked

    def _take(self) -> bytes:
        """What has come of the body since the last time."""
        if self._is_chunked:
            return b"".join(self._chunks())
        if self._left is None:
            taken = bytes(self._buffer)
            self._buffer.clear()
            return taken
        taken = bytes(self._buffer[: self._left])
        del self._buffer[: len(taken)]
        self._left -= len(taken)
        self._whole = self._left == 0
        return taken

    def _chunks(self) -> Iterator[bytes]:
        buffer = self._buffer
        while not self._whole:
            if not self._left:
                end = buffer.find(_LINE)
                if end < 0:
                    return
                size = int(buffer[:end].split(b";", 1)[0], 16)
                if size == 0:
                    # Trailers, if there are any, and the line that ends them.
                    last = end if buffer.startswith(_END, end) else buffer.find(_END, end)
                    if last >= 0:
                        del buffer[: last + len(_END)]
                        self._whole = True
                    return
                del buffer[: end + len(_LINE)]
                self._left = size + len(_LINE)
            taken = buffer[: self._left]
            if not taken:
                return
            content = max(0, self._left - len(_LINE))
            del buffer[: len(taken)]
            self._left -= len(taken)
            yield bytes(taken[:content])


class Headers(Mapping[str, str]):
    """By name, however it is written."""

    def __init__(self, lower: dict[str, str]) -> None:
        self._lower = lower

    def __getitem__(self, name: str) -> str:
        return self._lower[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lower)

    def __len__(self) -> int:
        return len(self._lower)
