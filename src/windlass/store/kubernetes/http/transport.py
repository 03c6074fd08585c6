"""HTTP to one API server with nothing but asyncio.

A whole HTTP library costs a command more to load than its request takes, and a scheduler that
writes a thousand bindings a second as much as its decisions do. This one speaks as much of HTTP/1.1
as API servers do: Content-Length, chunks, connections that are kept; no proxies, no redirects, no
compression. `store.connect` takes it when no proxy is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from windlass.store.kubernetes import exchange, network, plugin, tls
from windlass.store.kubernetes.access import Access
from windlass.store.kubernetes.connection import Connection, NotHttpError
from windlass.store.kubernetes.credentials import Credential, Credentials
from windlass.store.kubernetes.exchange import Answer, Broken, Request

R = TypeVar("R")


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
        self._idle: list[Connection] = []
        self._at_once = asyncio.Semaphore(exchange.POOL_SIZE)
        """Requests; streams have connections of their own."""
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None
        self._head: tuple[str, network.Letterhead] | None = None

    async def send(self, request: Request) -> Answer:
        async with self._at_once:
            return await self._trying(request, lambda: self._answer(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        begun = await self._trying(request, lambda: self._begin(request))
        if isinstance(begun, Answer):
            raise begun.error()
        connection = begun
        try:
            yield connection.pieces()
        except (OSError, EOFError, ValueError, NotHttpError) as error:
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
            except (OSError, EOFError, ValueError, NotHttpError) as error:
                told = network.unreachable(self.access, _plain(error))
                final = not isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
                raise Broken(told, final=final) from error

        return await exchange.repeating(request, once, self._sleep)

    async def _answer(self, request: Request) -> Answer:
        return await self._read_whole(await self._respond(request))

    async def _begin(self, request: Request) -> Connection | Answer:
        connection = await self._respond(request)
        return connection if connection.status < 300 else await self._read_whole(connection)

    async def _read_whole(self, connection: Connection) -> Answer:
        try:
            body = await connection.whole()
        except BaseException:
            connection.close()
            raise
        if connection.rest():
            self._idle.append(connection)
        else:
            connection.close()
        return Answer(connection.status, connection.headers, body)

    async def _respond(self, request: Request) -> Connection:
        credential = await self._credentials.current()
        connection = await self._ask(credential, request)
        if connection.status != 401 or not await self._credentials.renew(credential):
            return connection
        connection.close()
        return await self._ask(await self._credentials.current(), request)

    async def _ask(self, credential: Credential, request: Request) -> Connection:
        connection = self._kept(credential) or await self._connect(credential)
        try:
            encoded = self._head_for(credential).encode(
                request.method,
                request.path,
                request.query,
                request.body,
                request.content_type,
                request.headers,
            )
            await connection.ask(encoded, has_body=request.method != "HEAD")
        except BaseException:
            connection.close()
            raise
        return connection

    def _kept(self, credential: Credential) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(credential.certificate):
                return connection
            connection.close()
        return None

    async def _connect(self, credential: Credential) -> Connection:
        url = urllib.parse.urlsplit(self.access.address)
        secure = url.scheme == "https"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        async with asyncio.timeout(exchange.CONNECT_SECONDS):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(credential.certificate),
                host,
                port,
                ssl=self._tls_for(credential) if secure else None,
                server_hostname=(self.access.cluster.tls_server_name or host) if secure else None,
            )
        _notice_silence(transport.get_extra_info("socket"))
        return connection

    def _head_for(self, credential: Credential) -> network.Letterhead:
        told = credential.authorization
        if self._head is None or self._head[0] != told:
            self._head = (told, network.Letterhead(self.access, told))
        return self._head[1]

    def _tls_for(self, credential: Credential) -> ssl.SSLContext:
        if self._tls is None or self._tls[0] != credential.certificate:
            self._tls = (credential.certificate, tls.context(self.access, credential.certificate))
        return self._tls[1]


def _plain(error: Exception) -> Exception:
    """An error of the operating system's kind; a certificate that is not trusted is one already."""
    return error if isinstance(error, OSError) else ConnectionError(str(error))


def _notice_silence(made: socket.socket | None) -> None:
    """A connection notices within a minute and a half that its peer is gone, even when idle."""
    if made is None:
        return
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
