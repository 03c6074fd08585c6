"""HTTP to one API server with nothing but asyncio: for commands, which must start at once.

Loading a whole HTTP library costs a command more than its request does. This one speaks as much of
HTTP/1.1 as API servers do: Content-Length, chunks, connections that are kept; no proxies, no
redirects, no compression. `store.connect` takes it for commands when no proxy is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import TypeVar

from windlass.store.kubernetes import exchange, network, plugin, tls
from windlass.store.kubernetes.access import Access
from windlass.store.kubernetes.credentials import Credential, Credentials
from windlass.store.kubernetes.exchange import Answer, Broken, Request

R = TypeVar("R")

_KEEP_SECONDS = 20.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
_MOST_HEADERS = 200


class _NotHttpError(Exception):
    """The server speaks something else."""


class LightTransport:
    """Keeps connections to one server. Use it from one event loop; `close` it at the end."""

    def __init__(
        self,
        access: Access,
        credentials: Credentials | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.access = access
        self._credentials = credentials or plugin.credentials_of(access)
        self._sleep = sleep
        self._idle: list[_Connection] = []
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    async def send(self, request: Request) -> Answer:
        return await self._trying(request, lambda: self._answer(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        begun = await self._trying(request, lambda: self._begin(request))
        if isinstance(begun, Answer):
            raise begun.error()
        connection = begun
        try:
            yield connection.pieces()
        except (OSError, EOFError, ValueError, _NotHttpError) as error:
            raise network.unreachable(self.access, _plain(error)) from error
        finally:
            # Never used again: what is left of the stream will not be read.
            connection.close()

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _trying(self, request: Request, attempt: Callable[[], Awaitable[R]]) -> R:
        async def once() -> R:
            try:
                return await attempt()
            except (OSError, EOFError, ValueError, _NotHttpError) as error:
                told = network.unreachable(self.access, _plain(error))
                final = not isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
                raise Broken(told, final=final) from error

        return await exchange.repeating(request, once, self._sleep)

    async def _answer(self, request: Request) -> Answer:
        async with asyncio.timeout(exchange.SILENCE_SECONDS):
            connection = await self._respond(request)
        return await self._read_whole(request, connection)

    async def _begin(self, request: Request) -> _Connection | Answer:
        async with asyncio.timeout(exchange.SILENCE_SECONDS):
            connection = await self._respond(request)
            if connection.status < 300:
                return connection
            return await self._read_whole(request, connection)

    async def _read_whole(self, request: Request, connection: _Connection) -> Answer:
        try:
            parts: list[bytes] = []
            if request.method != "HEAD":
                pieces = aiter(connection.pieces())
                while True:
                    async with asyncio.timeout(exchange.SILENCE_SECONDS):
                        piece = await anext(pieces, None)
                    if piece is None:
                        break
                    parts.append(piece)
        except BaseException:
            connection.close()
            raise
        if connection.stays_open:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)
        else:
            connection.close()
        return Answer(connection.status, connection.headers, b"".join(parts))

    async def _respond(self, request: Request) -> _Connection:
        credential = await self._credentials.current()
        connection = await self._ask(credential, request)
        if connection.status != 401 or not await self._credentials.renew(credential):
            return connection
        connection.close()
        return await self._ask(await self._credentials.current(), request)

    async def _ask(self, credential: Credential, request: Request) -> _Connection:
        connection = self._kept(credential) or await self._connect(credential)
        try:
            connection.writer.write(
                network.encode(
                    self.access,
                    credential.authorization,
                    request.method,
                    request.path,
                    request.query,
                    request.body,
                    request.content_type,
                    request.headers,
                )
            )
            await connection.writer.drain()
            await connection.read_head()
        except BaseException:
            connection.close()
            raise
        return connection

    def _kept(self, credential: Credential) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            young = time.monotonic() - connection.idle_since < _KEEP_SECONDS
            if young and connection.shown == credential.certificate and connection.is_open():
                return connection
            connection.close()
        return None

    async def _connect(self, credential: Credential) -> _Connection:
        url = urllib.parse.urlsplit(self.access.address)
        secure = url.scheme == "https"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        async with asyncio.timeout(exchange.CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                host,
                port,
                limit=exchange.READ_BUFFER,
                ssl=self._tls_for(credential) if secure else None,
                server_hostname=(self.access.cluster.tls_server_name or host) if secure else None,
            )
        _notice_silence(writer.get_extra_info("socket"))
        return _Connection(reader, writer, credential.certificate)

    def _tls_for(self, credential: Credential) -> ssl.SSLContext:
        if self._tls is None or self._tls[0] != credential.certificate:
            self._tls = (credential.certificate, tls.context(self.access, credential.certificate))
        return self._tls[1]


class _Connection:
    """One connection and the answer that is being read from it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        shown: tuple[bytes, bytes] | None,
    ) -> None:
        self.reader, self.writer, self.shown = reader, writer, shown
        self.idle_since = 0.0
        self.status = 0
        self.headers: Headers = Headers({})

    @property
    def stays_open(self) -> bool:
        said = self.headers.get("Connection", "").lower()
        return "close" not in said and self._is_framed()

    def is_open(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.transport.abort()

    async def read_head(self) -> None:
        while True:
            line = await self.reader.readline()
            if not line:
                raise EOFError("the connection broke")
            version, _, rest = line.decode("latin-1").partition(" ")
            code = rest[:3]
            if not version.startswith("HTTP/1.") or not code.isdigit():
                raise _NotHttpError("it does not speak HTTP")
            self.status = int(code)
            self.headers = Headers(await self._read_headers())
            if self.status >= 200:
                return

    async def _read_headers(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for _ in range(_MOST_HEADERS):
            line = await self.reader.readline()
            if not line:
                raise EOFError("the connection broke")
            text = line.decode("latin-1").rstrip("\r\n")
            if not text:
                return found
            name, _, value = text.partition(":")
            found[name.strip().lower()] = value.strip()
        raise _NotHttpError("its answer has too many headers")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        if self.status in (204, 304):
            return
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            async for piece in self._chunks():
                yield piece
            return
        left = int(self.headers["Content-Length"]) if "Content-Length" in self.headers else None
        while left is None or left > 0:
            piece = await self.reader.read(1 << 16 if left is None else min(left, 1 << 20))
            if not piece:
                if left is None:
                    return
                raise EOFError("the connection broke")
            left = None if left is None else left - len(piece)
            yield piece

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            line = await self.reader.readline()
            if not line:
                raise EOFError("the connection broke")
            left = int(line.split(b";", 1)[0], 16)
            if left == 0:
                await self._read_headers()  # trailers, and the line that ends them
                return
            while left > 0:
                piece = await self.reader.read(min(left, 1 << 20))
                if not piece:
                    raise EOFError("the connection broke")
                left -= len(piece)
                yield piece
            await self.reader.readline()

    def _is_framed(self) -> bool:
        return "Content-Length" in self.headers or "Transfer-Encoding" in self.headers


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


def _plain(error: Exception) -> Exception:
    return ConnectionError(str(error)) if isinstance(error, EOFError | ValueError) else error


def _notice_silence(made: socket.socket | None) -> None:
    """A connection notices within a minute and a half that its peer is gone, even when idle."""
    if made is None:
        return
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
