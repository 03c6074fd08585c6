"""HTTP to one API server through a proxy, with a library that knows how.

Called by `client.KubernetesStore` only. Knows nothing of kinds. Answers of the server come back
as they are; a server that cannot be reached is `errors.Unavailable`. A 401 is tried once more if
the credentials could be renewed; see `exchange` for what else is sent again.
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

import windlass
from windlass.store import errors
from windlass.store.kubernetes import exchange, network, plugin, tls
from windlass.store.kubernetes.access import Access
from windlass.store.kubernetes.credentials import Credential, Credentials
from windlass.store.kubernetes.exchange import Answer, Broken, Request

R = TypeVar("R")


class Transport:
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
        self._proxy = network.proxy(access)
        self._headers = network.impersonation(access.user)
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    async def send(self, request: Request) -> Answer:
        """The server's final answer, whatever its status."""
        return await self._trying(request, lambda: self._answer(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer to be read as it comes; raises the typed error if it is a refusal."""
        response = await self._trying(request, lambda: self._begin_stream(request))
        if isinstance(response, Answer):
            raise response.error()
        try:
            yield response.content.iter_any()
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(self.access, error) from error
        finally:
            # Not released into the pool: what is left of the stream will never be read.
            response.close()

    async def close(self) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()
        self._requests = self._streams = None

    async def _trying(self, request: Request, attempt: Callable[[], Awaitable[R]]) -> R:
        async def once() -> R:
            try:
                return await attempt()
            except (aiohttp.ClientError, OSError) as error:
                final = isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
                raise Broken(_unreachable(self.access, error), final=final) from error

        return await exchange.repeating(request, once, self._sleep)

    async def _answer(self, request: Request) -> Answer:
        if self._requests is None:
            self._requests = _session(exchange.POOL_SIZE, longest_silence=exchange.SILENCE_SECONDS)
        async with await self._respond(self._requests, request) as response:
            return Answer(response.status, response.headers, await response.read())

    async def _begin_stream(self, request: Request) -> aiohttp.ClientResponse | Answer:
        if self._streams is None:
            # A pool of its own without bound: watches never take connections from requests.
            self._streams = _session(0, longest_silence=None)
        async with asyncio.timeout(exchange.SILENCE_SECONDS):
            response = await self._respond(self._streams, request)
            if response.status < 300:
                return response
            async with response:
                return Answer(response.status, response.headers, await response.read())

    async def _respond(
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
            "User-Agent": f"windlass/{windlass.__version__}",
        },
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=exchange.CONNECT_SECONDS, sock_read=longest_silence
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=exchange.READ_BUFFER,
        auto_decompress=False,
    )


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices within a minute and a half that its peer is gone, even when idle."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _unreachable(access: Access, error: Exception) -> errors.Unavailable:
    """What the error of this library stands for."""
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return network.proxy_unreachable(access, f"{error.host}:{error.port}", error.os_error)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return network.unreachable(access, error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return network.unreachable(access, error.os_error)
    return network.unreachable(access, error)
