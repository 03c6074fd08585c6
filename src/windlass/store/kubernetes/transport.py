"""HTTP to one API server: connections, identity, and when a request may be sent again.

Called by `client.KubernetesStore` only. Knows nothing of kinds. Answers of the server come back
as they are; a server that cannot be reached is `errors.Unavailable`.

When a request is sent again:
- 429: the server did not carry it out; always, after the time it asks for.
- 503 with Retry-After: only what may be carried out twice (not POST, not JSON-patch).
- a connection that broke: only GET, because the server may have carried out anything else.
- 401: once, if the credentials could be renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec
import yarl

import windlass
from windlass.store import errors
from windlass.store.kubernetes import network, plugin, tls
from windlass.store.kubernetes.access import Access
from windlass.store.kubernetes.credentials import ConfiguredCredentials, Credential, Credentials

log = logging.getLogger(__name__)

Query = Sequence[tuple[str, str]]

POOL_SIZE = 64
READ_BUFFER = 4 << 20
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 75.0
"""An answer may pause this long. The API server itself gives up on a request after 60 s."""
REPEATS = 5
LONGEST_WAIT = 60.0
"""A server that asks for more than this gets its answer passed on to the caller instead."""


@dataclasses.dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Query = ()
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] | None = None
    repeatable: bool = False
    """May be carried out twice without harm."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def error(self) -> errors.ApiError:
        """The typed error that this answer stands for."""
        try:
            status = msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.DecodeError:
            text = " ".join(self.body[:500].decode(errors="replace").split())
            status = {"message": f"the server answered {self.status}: {text}"} if text else {}
        return errors.from_status(status, self.status, retry_after(self.headers))


_Responding = TypeVar("_Responding", Answer, aiohttp.ClientResponse | Answer)


class Transport:
    """Keeps connections to one server. Use it from one event loop; `close` it at the end."""

    def __init__(
        self,
        access: Access,
        credentials: Credentials | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.access = access
        self._credentials = credentials or _credentials_of(access)
        self._sleep = sleep
        self._proxy = network.proxy(access)
        self._headers = network.impersonation(access.user)
        self._requests: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._tls: tuple[tuple[bytes, bytes] | None, ssl.SSLContext] | None = None

    async def send(self, request: Request) -> Answer:
        """The server's final answer, whatever its status."""
        return await self._repeating(request, lambda: self._answer(request))

    @contextlib.asynccontextmanager
    async def stream(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer to be read as it comes; raises the typed error if it is a refusal."""
        response = await self._repeating(request, lambda: self._begin_stream(request))
        if isinstance(response, Answer):
            raise response.error()
        try:
            yield response
        except (aiohttp.ClientError, OSError) as error:
            raise network.unreachable(self.access, error) from error
        finally:
            # Not released into the pool: what is left of the stream will never be read.
            response.close()

    async def close(self) -> None:
        for session in (self._requests, self._streams):
            if session is not None:
                await session.close()
        self._requests = self._streams = None

    async def _repeating(
        self, request: Request, attempt: Callable[[], Awaitable[_Responding]]
    ) -> _Responding:
        for repeats_left in range(REPEATS, -1, -1):
            pause = 0.1 * 2 ** (REPEATS - repeats_left) * random.uniform(0.5, 1.5)  # noqa: S311
            try:
                response = await attempt()
            except (aiohttp.ClientError, OSError) as error:
                broken = not isinstance(error, aiohttp.ClientConnectorError | TimeoutError)
                if not (broken and request.method == "GET" and repeats_left):
                    raise network.unreachable(self.access, error) from error
                log.debug("%s %s broke off, sending it again", request.method, request.path)
            else:
                asked = _wait_asked_for(request, response)
                if asked is None or not repeats_left:
                    return response
                pause = asked + pause
            await self._sleep(pause)
        raise AssertionError("unreachable")  # pragma: no cover

    async def _answer(self, request: Request) -> Answer:
        if self._requests is None:
            self._requests = _session(POOL_SIZE, longest_silence=SILENCE_SECONDS)
        async with await self._respond(self._requests, request) as response:
            return Answer(response.status, response.headers, await response.read())

    async def _begin_stream(self, request: Request) -> aiohttp.ClientResponse | Answer:
        if self._streams is None:
            # A pool of its own without bound: watches never take connections from requests.
            self._streams = _session(0, longest_silence=None)
        async with asyncio.timeout(SILENCE_SECONDS):
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


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait; dates are not used by Kubernetes and count as nothing."""
    try:
        return max(0.0, float(headers.get("Retry-After", "")))
    except ValueError:
        return None


def _credentials_of(access: Access) -> Credentials:
    """A plug-in's, if the user has one and no token or password of its own."""
    user = access.user
    if user.exec is not None and not (user.token or user.token_file or user.username):
        return plugin.PluginCredentials(access, user.exec)
    return ConfiguredCredentials(access)


def _wait_asked_for(request: Request, response: Answer | aiohttp.ClientResponse) -> float | None:
    """Seconds after which to send the request again; None: this answer is final."""
    if not isinstance(response, Answer) or response.status not in (429, 503):
        return None
    asked = retry_after(response.headers)
    if response.status == 429:
        # With a cause it is not load but a refusal, such as a disruption budget's.
        wait = None if response.error().causes else asked or 1.0
    else:
        wait = asked if request.repeatable else None
    return wait if wait is not None and wait <= LONGEST_WAIT else None


def _session(limit: int, longest_silence: float | None) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, keepalive_timeout=30, socket_factory=_socket),
        headers={
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "User-Agent": f"windlass/{windlass.__version__}",
        },
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=longest_silence
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER,
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
