"""One HTTP/1.1 connection to an API server and the response that is being read from it.

`transport` pools connections. This is an asyncio protocol, not a pair of streams: a response mostly
arrives in one piece and is then parsed without awaiting each line.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import cast

from windlass.store.kubernetes.http import retry

_KEEP_SECONDS = 20.0
"""A connection that was idle for longer is not reused: the server may be about to close it."""
_LONGEST_HEAD = 1 << 18
_END, _LINE = b"\r\n\r\n", b"\r\n"


class NotHttpError(Exception):
    """The peer does not speak HTTP/1.1."""


class Connection(asyncio.Protocol):
    def __init__(self, certificate: tuple[bytes, bytes] | None) -> None:
        self.certificate = certificate
        """The client certificate of the connection."""
        self.status = 0
        self.headers = Headers({})
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiter: asyncio.Future[None] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None
        """Fires when a response has paused for too long. One timer serves many responses: setting
        and cancelling one for each would cost as much as reading a response."""
        self._at_eof = False
        """No more bytes will arrive."""
        self._paused = False
        self._idle_since = 0.0
        self._is_chunked = False
        self._left: int | None = 0
        """Bytes left of the body, or of a chunk and its line end; None: the body ends with the
        connection."""
        self._complete = True
        """Whether the whole body was read."""

    # --- callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > retry.READ_BUFFER and self._transport and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._at_eof = True
        self._wake()

    def connection_lost(self, _: Exception | None) -> None:
        self._at_eof = True
        self._wake()
        self._cancel_timer()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- reuse

    def is_usable(self, certificate: tuple[bytes, bytes] | None) -> bool:
        """Whether a request with this client certificate may be sent on the connection."""
        young = time.monotonic() - self._idle_since < _KEEP_SECONDS
        return young and not self._at_eof and not self._buffer and self.certificate == certificate

    def release(self) -> bool:
        """Called when a response was read; returns whether the connection can be reused."""
        self._idle_since = time.monotonic()
        close = "close" in self.headers.get("Connection", "").lower()
        return self._complete and self._left is not None and not close and not self._at_eof

    def close(self) -> None:
        self._cancel_timer()
        if self._transport is not None:
            self._transport.abort()

    # --- requests and responses

    async def send(self, request: bytes, *, has_body: bool) -> None:
        """Sends a request and reads the head of the response. `has_body`: whether the response may
        have a body."""
        if self._transport is None or self._at_eof:
            raise EOFError("the connection broke")
        self._transport.write(request)
        while True:
            await self._read_head()
            if self.status >= 200:
                break
        self._begin_body(has_body=has_body and self.status not in (204, 304))

    async def read(self) -> bytes:
        """The whole body."""
        parts = [self._take()]
        while not self._complete:
            await self._more(retry.SILENCE_SECONDS)
            parts.append(self._take())
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the body as it arrives, without a timeout."""
        while True:
            piece = self._take()
            if piece:
                yield piece
            if self._complete:
                return
            if not piece:
                await self._more(None)

    async def _more(self, timeout_seconds: float | None) -> None:
        """Returns when data has arrived. The end of the connection completes a body without a
        length; otherwise it raises EOFError."""
        if self._at_eof:
            if self._left is None and not self._complete:
                self._complete = True
                return
            raise EOFError("the connection broke")
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = self._loop.create_future()
        self._deadline = math.inf
        if timeout_seconds is not None:
            self._deadline = self._loop.time() + timeout_seconds
            if self._timer is None:
                self._timer = self._loop.call_at(self._deadline, self._on_timer)
        await self._waiter

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done() or self._deadline == math.inf:
            return  # no reader is waiting, or it waits without a deadline
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._on_timer)
            return
        waiter, self._waiter = self._waiter, None
        waiter.set_exception(TimeoutError())

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _read_head(self) -> None:
        self._left = 0
        while (end := self._buffer.find(_END)) < 0:
            if len(self._buffer) > _LONGEST_HEAD or not b"HTTP/1.".startswith(self._buffer[:7]):
                raise NotHttpError("the server does not speak HTTP")
            await self._more(retry.SILENCE_SECONDS)
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + len(_END)]
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise NotHttpError("the server does not speak HTTP")
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
        self._complete = self._left == 0 and not self._is_chunked

    def _take(self) -> bytes:
        """The part of the body that has arrived since the last call."""
        if self._is_chunked:
            chunks = self._chunks()
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        if self._left is None:
            taken = bytes(self._buffer)
            self._buffer.clear()
            return taken
        with memoryview(self._buffer) as view:  # one copy of the body instead of two
            taken = bytes(view[: self._left])
        del self._buffer[: len(taken)]
        self._left -= len(taken)
        self._complete = self._left == 0
        return taken

    def _chunks(self) -> list[bytes]:
        """The contents of the chunks that have arrived. The buffer is cut once, after the last:
        cutting it after each chunk would move the rest of it each time."""
        buffer, at, found = self._buffer, 0, list[bytes]()
        with memoryview(buffer) as view:
            while not self._complete:
                if not self._left:
                    end = buffer.find(_LINE, at)
                    if end < 0:
                        break
                    size = int(bytes(view[at:end]).partition(b";")[0], 16)
                    if size == 0:
                        # Skip trailers and the empty line after them.
                        last = end if buffer.startswith(_END, end) else buffer.find(_END, end)
                        if last >= 0:
                            at, self._complete = last + len(_END), True
                        break
                    at, self._left = end + len(_LINE), size + len(_LINE)
                taken = min(self._left, len(buffer) - at)
                if not taken:
                    break
                content = min(taken, max(0, self._left - len(_LINE)))
                found.append(bytes(view[at : at + content]))
                at, self._left = at + taken, self._left - taken
        del buffer[:at]
        return found


class Headers(Mapping[str, str]):
    """Header values by case-insensitive name."""

    def __init__(self, lower: dict[str, str]) -> None:
        self._lower = lower

    def __getitem__(self, name: str) -> str:
        return self._lower[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lower)

    def __len__(self) -> int:
        return len(self._lower)
