"""The transport through a proxy: HTTP to one API server with aiohttp.

`client.KubernetesStore` uses it if a proxy is configured. Responses are returned as they are; a
server that cannot be reached raises `errors.Unavailable`. After a 401 the request is sent once more
if the credentials can be renewed; `retry` has the other cases.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import aiohttp
import yarl

from windlass.store import errors
from windlass.store.kubernetes.config import exec_plugin, tls
from windlass.store.kubernetes.config.credentials import Credential, Credentials
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import outage, request_headers, retry
from windlass.store.kubernetes.http.retry import ConnectionBroken, Request, Response
from windlass.version import VERSION

R = TypeVar("R")


class ProxyTransport:
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
        self._proxy = request_headers.proxy(access)
        self._headers = request_headers.impersonation(access.user)
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    async def send(self, request: Request) -> Response:
        return await self._with_retries(request, lambda: self._request(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        response = await self._with_retries(request, lambda: self._begin_stream(request))
        if isinstance(response, Response):
            raise response.error()
        try:
            yield response.content.iter_any()
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(self.access, error) from error
        finally:
            # Not released into the pool: the rest of the stream is not read.
            response.close()

    async def close(self) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()
        self._requests = self._streams = None

    async def _with_retries(self, request: Request, attempt: Callable[[], Awaitable[R]]) -> R:
        async def once() -> R:
            try:
                return await attempt()
            except (aiohttp.ClientError, OSError) as error:
                final = isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
                unsent = isinstance(error, aiohttp.ClientConnectorError)
                untrusted = isinstance(error, aiohttp.ClientConnectorCertificateError)
                raise ConnectionBroken(
                    _unreachable(self.access, error), final=final, sent=not unsent or untrusted
                ) from error

        return await retry.repeating(request, once, self._sleep, self._outage_timeout)

    async def _request(self, request: Request) -> Response:
        if self._requests is None:
            self._requests = _session(retry.POOL_SIZE, longest_silence=retry.SILENCE_SECONDS)
        async with await self._authenticated(self._requests, request) as response:
            return Response(response.status, response.headers, await response.read())

    async def _begin_stream(self, request: Request) -> aiohttp.ClientResponse | Response:
        if self._streams is None:
            # A pool of its own without a limit: watches take no connections from requests.
            self._streams = _session(0, longest_silence=None)
        async with asyncio.timeout(retry.SILENCE_SECONDS):
            response = await self._authenticated(self._streams, request)
            if response.status < 300:
                return response
            async with response:
                return Response(response.status, response.headers, await response.read())

    async def _authenticated(
        self, session: aiohttp.ClientSession, request: Request
    ) -> aiohttp.ClientResponse:
        credential = await self._credentials.current()
        response = await self._send_as(credential, session, request)
        if response.status != 401 or not await self._credentials.renew(credential):
            return response
        response.close()
        return await self._send_as(await self._credentials.current(), session, request)

    async def _send_as(
        self,
        credential: Credential,
        session: aiohttp.ClientSession,
        request: Request,
    ) -> aiohttp.ClientResponse:
        headers: list[tuple[str, str]] = [*self._headers, *(request.headers or {}).items()]
        if credential.authorization:
            headers.append(("Authorization", credential.authorization))
        if request.body is not None:
            headers.append(("Content-Type", request.content_type))
        url = yarl.URL(self.access.address + request.path, encoded=True)
        return await session.request(
            request.method,
            url.extend_query(request.query) if request.query else url,
            data=request.body,
            headers=headers,
            ssl=self._tls_for(credential),
            server_hostname=self.access.cluster.tls_server_name or None,
            proxy=self._proxy,
            allow_redirects=False,
        )

    def _tls_for(self, credential: Credential) -> ssl.SSLContext:
        if self._tls is None or self._tls[0] != credential.certificate:
            context = tls.context(self.access, credential.certificate)
            self._tls = (credential.certificate, context)
        return self._tls[1]


def _session(limit: int, longest_silence: float | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=30, socket_factory=_socket),
        headers={
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"windlass/{VERSION}",
        },
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=retry.CONNECT_SECONDS, sock_read=longest_silence
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=retry.READ_BUFFER,
        auto_decompress=False,
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket with TCP keepalive, which detects a dead peer within 90 seconds."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _unreachable(access: Access, error: Exception) -> errors.Unavailable:
    """The typed error of an aiohttp error."""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return request_headers.proxy_unreachable(
            access, f"{error.host}:{error.port}", error.os_error
        )
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return request_headers.unreachable(access, error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return request_headers.unreachable(access, error.os_error)
    return request_headers.unreachable(access, error)
