"""The default transport: HTTP/1.1 to one API server, with asyncio alone.

Loading an HTTP library costs a command more time than its request takes, and a scheduler that
writes a thousand bindings a second would spend as much CPU time in it as on its decisions. This
transport implements what API servers use: Content-Length, chunks, persistent connections; no
proxies, redirects or compression. `client` uses it unless a proxy is configured.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from windlass.store.kubernetes.config import exec_plugin, tls
from windlass.store.kubernetes.config.credentials import Credential, Credentials
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import outage, request_headers, retry
from windlass.store.kubernetes.http.connection import Connection, NotHttpError
from windlass.store.kubernetes.http.retry import ConnectionBroken, Request, Response

R = TypeVar("R")


class _NotConnectedError(Exception):
    """There is no connection, so the request was not sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class HttpTransport:
    """Pools connections to one server. Use it from one event loop; `close` it at the end."""

    def __init__(
        self,
        access: Access,
        credentials: Credentials | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        outage_seconds: float = 0.0,
    ) -> None:
        """`outage_seconds`: seconds to wait for a server that is being restarted."""
        self.access = access
        self._outage_timeout = outage.OutageTimeout(access, outage_seconds)
        self._credentials = credentials or exec_plugin.credentials_of(access)
        self._sleep = sleep
        self._idle: list[Connection] = []
        self._at_once = asyncio.Semaphore(retry.POOL_SIZE)
        """Limits concurrent requests; streams are not limited."""
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None
        self._headers: tuple[str, request_headers.RequestHeaders] | None = None

    async def send(self, request: Request) -> Response:
        async with self._at_once:
            return await self._with_retries(request, lambda: self._request(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        opened = await self._with_retries(request, lambda: self._begin_stream(request))
        if isinstance(opened, Response):
            raise opened.error()
        connection = opened
        try:
            yield connection.pieces()
        except (OSError, EOFError, ValueError, NotHttpError) as error:
            raise request_headers.unreachable(self.access, _plain(error)) from error
        finally:
            # Not reused: the rest of the stream is not read.
            connection.close()

    async def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _with_retries(self, request: Request, attempt: Callable[[], Awaitable[R]]) -> R:
        async def once() -> R:
            try:
                return await attempt()
            except _NotConnectedError as problem:
                reported = request_headers.unreachable(self.access, _plain(problem.error))
                raise ConnectionBroken(reported, final=True, sent=False) from problem.error
            except (OSError, EOFError, ValueError, NotHttpError) as error:
                reported = request_headers.unreachable(self.access, _plain(error))
                final = not isinstance(error, EOFError | ConnectionResetError | BrokenPipeError)
                raise ConnectionBroken(reported, final=final) from error

        return await retry.repeating(request, once, self._sleep, self._outage_timeout)

    async def _request(self, request: Request) -> Response:
        return await self._read(await self._authenticated(request))

    async def _begin_stream(self, request: Request) -> Connection | Response:
        connection = await self._authenticated(request)
        return connection if connection.status < 300 else await self._read(connection)

    async def _read(self, connection: Connection) -> Response:
        try:
            body = await connection.read()
        except BaseException:
            connection.close()
            raise
        if connection.release():
            self._idle.append(connection)
        else:
            connection.close()
        return Response(connection.status, connection.headers, body)

    async def _authenticated(self, request: Request) -> Connection:
        """A connection on which the head of the response was read; on 401, the request is sent
        again with renewed credentials."""
        credential = await self._credentials.current()
        connection = await self._send(credential, request)
        if connection.status != 401 or not await self._credentials.renew(credential):
            return connection
        connection.close()
        return await self._send(await self._credentials.current(), request)

    async def _send(self, credential: Credential, request: Request) -> Connection:
        connection = self._pooled(credential) or await self._connected(credential)
        try:
            encoded = self._headers_for(credential).encode(
                request.method,
                request.path,
                request.query,
                request.body,
                request.content_type,
                request.headers,
            )
            await connection.send(encoded, has_body=request.method != "HEAD")
        except BaseException:
            connection.close()
            raise
        return connection

    def _pooled(self, credential: Credential) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable(credential.certificate):
                return connection
            connection.close()
        return None

    async def _connected(self, credential: Credential) -> Connection:
        try:
            return await self._connect(credential)
        except (OSError, EOFError) as error:
            # A certificate error does not go away.
            untrusted = isinstance(error, ssl.SSLCertVerificationError | ssl.CertificateError)
            raise error if untrusted else _NotConnectedError(error) from error

    async def _connect(self, credential: Credential) -> Connection:
        url = urllib.parse.urlsplit(self.access.address)
        secure = url.scheme == "https"
        host, port = url.hostname or "", url.port or (443 if secure else 80)
        async with asyncio.timeout(retry.CONNECT_SECONDS):
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(credential.certificate),
                host,
                port,
                ssl=self._tls_for(credential) if secure else None,
                server_hostname=(self.access.cluster.tls_server_name or host) if secure else None,
            )
        _enable_keepalive(transport.get_extra_info("socket"))
        return connection

    def _headers_for(self, credential: Credential) -> request_headers.RequestHeaders:
        value = credential.authorization
        if self._headers is None or self._headers[0] != value:
            self._headers = (value, request_headers.RequestHeaders(self.access, value))
        return self._headers[1]

    def _tls_for(self, credential: Credential) -> ssl.SSLContext:
        if self._tls is None or self._tls[0] != credential.certificate:
            self._tls = (credential.certificate, tls.context(self.access, credential.certificate))
        return self._tls[1]


def _plain(error: Exception) -> Exception:
    """The error as an OSError; a certificate error is one already."""
    return error if isinstance(error, OSError) else ConnectionError(str(error))


def _enable_keepalive(made: socket.socket | None) -> None:
    """With TCP keepalive, an idle connection detects a dead peer within 90 seconds."""
    if made is None:
        return
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
