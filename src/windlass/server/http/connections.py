"""Connections to the server: how many there may be, and how long each may take.

A connection starts as `anonymous`: it has sent no request with a valid identity. Anonymous
connections are few, and when one too many comes, the oldest one of the address with the most of
them is closed: a client that sends its request at once is served even while another one opens
connections and says nothing. A connection that signed in counts for its user.

`Listener` accepts one connection in each pass of the event loop and never more than the process has
file handles for. `Connections.sweep` closes those that exceed a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.web_protocol import RequestHandler as HttpProtocol

from windlass.server.auth.identity import Identity
from windlass.server.fairness.queues import Flow
from windlass.store import errors
from windlass.telemetry.prometheus import Registry

_log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 10.0
HEAD_SECONDS = 15.0
"""From the first byte of a request, or from the start of the connection, to the end of its head."""
UNREAD_SECONDS = 60.0
"""How long a client may leave a complete response unread."""
IDLE_SECONDS = 75.0
"""Between two requests."""
_TLS_CLOSE_SECONDS = 2.0
_SWEEP_SECONDS = 1.0
_KEPT_HANDLES = 256
"""File handles for everything that is not a connection: the store, logs, uploads, agents."""
_MOST_HANDLES = 65_536
_BACKLOG = 1024
_MOST_ANONYMOUS = 512
_OF_ONE_ADDRESS = 128
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclasses.dataclass(frozen=True, slots=True)
class ConnectionLimits:
    total: int
    anonymous: int
    """Connections without a valid request yet; the others are kept for callers that signed in."""
    of_one_address: int
    """Of `anonymous`, how many may come from one address."""
    head_seconds: float = HEAD_SECONDS
    unread_seconds: float = UNREAD_SECONDS

    @classmethod
    def of_process(cls) -> ConnectionLimits:
        """As many as the limit on open files allows, which is raised as far as possible."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _MOST_HANDLES if hard == resource.RLIM_INFINITY else min(hard, _MOST_HANDLES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                soft = wanted
        handles = _MOST_HANDLES if soft == resource.RLIM_INFINITY else min(soft, _MOST_HANDLES)
        total = max(handles - _KEPT_HANDLES, handles // 2)
        anonymous = min(_MOST_ANONYMOUS, total // 4)
        return cls(total, anonymous, min(_OF_ONE_ADDRESS, anonymous))


class Connection:
    """One accepted connection."""

    __slots__ = (
        "body", "body_until", "caller", "closing", "flow", "head_since", "identity", "protocol",
        "signed_in", "socket", "source", "streaming", "unread", "unread_since",
    )  # fmt: skip

    def __init__(self, source: str, now: float) -> None:
        self.source = source
        self.head_since = now
        """When the head of a request that is not complete began; 0: none is under way."""
        self.protocol: _Protocol | None = None
        self.socket: socket.socket | None = None
        """Before the TLS handshake ends."""
        self.identity: Identity | None = None
        """The caller of the last request."""
        self.signed_in = False
        self.flow: Flow | None = None
        """The caller for whom it counts."""
        self.caller: Flow | None = None
        """The caller of the last request; over the connection of a proxy many come."""
        self.body: StreamReader | None = None
        self.body_until = 0.0
        """When the body of the present request must have come; 0: no matter."""
        self.closing = False
        """It was asked to end; at the next sweep it is aborted."""
        self.streaming = False
        """A slow reader of a watch or a log is no error."""
        self.unread = 0
        self.unread_since = 0.0

    def expect_body(self, body: StreamReader, seconds: float) -> None:
        """The reader of the body gets RequestTimeout when the body is not complete in time."""
        self.body, self.body_until = body, asyncio.get_running_loop().time() + seconds

    def body_came(self) -> None:
        self.body, self.body_until = None, 0.0

    def abort(self) -> None:
        """Closes it now, without the rest of what was written."""
        transport = self.protocol.transport if self.protocol is not None else None
        if transport is not None:
            transport.abort()
        elif self.socket is not None:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Connections:
    """All connections of a server."""

    def __init__(self, registry: Registry, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits.of_process()
        self._all: dict[Connection, None] = {}
        self._anonymous: dict[str, dict[Connection, None]] = {}
        """By address, the oldest first."""
        self.anonymous_count = 0
        self._open = registry.gauge(
            "windlass_api_connections_open", "Open connections.", ("signed_in",)
        )
        self._closed = registry.counter(
            "windlass_api_connections_closed_total", "Connections that the server closed.",
            ("reason",),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        """Nothing can be accepted: all handles are used by callers that signed in."""
        return len(self._all) >= self.limits.total and not self.anonymous_count

    def add(self, address: str) -> Connection:
        """A new connection; closes an older anonymous one if there are too many."""
        source = _network(address)
        connection = Connection(source, asyncio.get_running_loop().time())
        self._all[connection] = None
        self._anonymous.setdefault(source, {})[connection] = None
        self.anonymous_count += 1
        limits = self.limits
        if len(self._anonymous[source]) > limits.of_one_address:
            self._close_oldest(source, "address")
        elif self.anonymous_count > limits.anonymous or len(self._all) > limits.total:
            busiest = max(self._anonymous, key=lambda each: len(self._anonymous[each]))
            self._close_oldest(busiest, "anonymous")
        return connection

    def remove(self, connection: Connection) -> Flow | None:
        """Forgets a closed connection; returns the caller for whom it counted."""
        self._all.pop(connection, None)
        self._forget_anonymous(connection)
        flow, connection.flow = connection.flow, None
        if flow is not None:
            flow.connections -= 1
        return flow

    def sign_in(self, connection: Connection, flow: Flow | None) -> None:
        """The connection sent a valid request. `flow`: the caller for whom it counts."""
        connection.signed_in = True
        self._forget_anonymous(connection)
        if flow is not None:
            connection.flow = flow
            flow.connections += 1

    def publish(self) -> None:
        """Sets the gauges; called before the metrics are rendered."""
        self._open.set("no", to=self.anonymous_count)
        self._open.set("yes", to=len(self._all) - self.anonymous_count)

    async def sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.sweep(asyncio.get_running_loop().time())

    def sweep(self, now: float) -> None:
        """Closes connections that exceed a time limit."""
        for connection in list(self._all):
            if connection.head_since and now - connection.head_since > self.limits.head_seconds:
                self._closed.add("slow head")
                _time_out(connection)
            elif connection.body_until and now > connection.body_until:
                self._expire(connection)
            elif self._is_stalled(connection, now):
                self._closed.add("unread response")
                connection.abort()

    def _expire(self, connection: Connection) -> None:
        body, connection.body, connection.body_until = connection.body, None, 0.0
        if body is not None and not body.is_eof():
            self._closed.add("slow body")
            body.set_exception(too_slow())

    def _is_stalled(self, connection: Connection, now: float) -> bool:
        transport = connection.protocol.transport if connection.protocol is not None else None
        size = transport.get_write_buffer_size() if transport is not None else 0
        if not size or connection.streaming or size != connection.unread:
            connection.unread, connection.unread_since = size, now
            return False
        return now - connection.unread_since > self.limits.unread_seconds

    def _close_oldest(self, source: str, reason: str) -> None:
        oldest = next(iter(self._anonymous[source]))
        self._closed.add(reason)
        self._forget_anonymous(oldest)
        oldest.abort()

    def _forget_anonymous(self, connection: Connection) -> None:
        of_source = self._anonymous.get(connection.source)
        if of_source is not None and connection in of_source:
            del of_source[connection]
            self.anonymous_count -= 1
            if not of_source:
                del self._anonymous[connection.source]


class _Protocol(HttpProtocol):
    """aiohttp's protocol of one connection, with its entry in the table."""

    __slots__ = ("_server", "connection")

    def __init__(self, server: Server, connection: Connection | None, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self.connection = connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.connection is None:  # of a site of aiohttp's own
            self.connection = self._server.table.add(_address(transport.get_extra_info("peername")))
        self.connection.protocol = self
        self.connection.socket = None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        assert connection is not None  # noqa: S101 (connection_made comes first)
        if not connection.head_since and self._current_request is None and not self._messages:
            connection.head_since = self._loop.time()
        super().data_received(data)
        if connection.head_since and (self._messages or self._current_request is not None):
            connection.head_since = 0.0

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Without the bytes that are not HTTP, which aiohttp repeats: a token may be in them."""
        if status != HTTPStatus.BAD_REQUEST:
            return super().handle_error(request, status, exc, message)
        response = web.Response(status=status, text="the request is not valid HTTP/1.1\n")
        response.force_close()
        return response

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.connection is not None:
            self._server.lost(self.connection)


class Server(web.Server):
    """Makes a protocol for each connection; binds them to the table."""

    def __init__(self, handler: Any, table: Connections, lost: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self.table = table
        self.lost = lost
        """Called with each closed connection."""

    def __call__(self) -> HttpProtocol:
        return self.protocol(None)

    def protocol(self, connection: Connection | None) -> HttpProtocol:
        return _Protocol(self, connection, loop=self._loop, **self._kwargs)


def connection_of(request: web.BaseRequest) -> Connection | None:
    """None: the request came through another server, as in tests of single handlers."""
    return getattr(request.protocol, "connection", None)


class Listener:
    """Listening sockets whose connections are in the table."""

    def __init__(self, server: Server, bound: list[socket.socket], context: ssl.SSLContext) -> None:
        self._server = server
        self._sockets = bound
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    @contextlib.asynccontextmanager
    async def accepting(self) -> AsyncIterator[None]:
        """Accepts connections inside the block."""
        for bound in self._sockets:
            bound.setblocking(False)
            self._resume(bound)
        sweeping = asyncio.create_task(self._server.table.sweep_regularly())
        try:
            yield
        finally:
            for bound in self._sockets:
                self._loop.remove_reader(bound.fileno())
                bound.close()
            sweeping.cancel()
            for task in self._starting:
                task.cancel()
            await asyncio.gather(sweeping, *self._starting, return_exceptions=True)

    def _accept(self, bound: socket.socket) -> None:
        """One connection: the next one is accepted in the next pass of the loop."""
        if self._server.table.full:
            self._pause(bound)
            return
        try:
            accepted, address = bound.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as problem:  # no handle, no memory
            _log.warning("a connection was not accepted: %s", problem.strerror)
            self._pause(bound)
            return
        accepted.setblocking(False)
        with contextlib.suppress(OSError):
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = self._server.table.add(_address(address))
        connection.socket = accepted
        task = self._loop.create_task(self._start(connection, accepted))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _pause(self, bound: socket.socket) -> None:
        self._loop.remove_reader(bound.fileno())
        self._loop.call_later(_SWEEP_SECONDS, self._resume, bound)

    def _resume(self, bound: socket.socket) -> None:
        if bound.fileno() >= 0:
            self._loop.add_reader(bound.fileno(), self._accept, bound)

    async def _start(self, connection: Connection, accepted: socket.socket) -> None:
        """The TLS handshake, then the protocol."""
        started = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._server.protocol(connection), accepted, ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_TLS_CLOSE_SECONDS,
            )  # fmt: skip
            started = True
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            pass  # a stranger's port scan is no news
        finally:
            if not started:
                self._server.table.remove(connection)
                accepted.close()


def too_slow() -> errors.RequestTimeout:
    return errors.RequestTimeout("the body of the request did not arrive in time; send it again")


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on all addresses of the host. OSError if one cannot be bound."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    bound: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            made = socket.socket(family, socket.SOCK_STREAM)
            bound.append(made)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = port or (bound[0].getsockname()[1] if len(bound) > 1 else 0)
            made.bind((address[0], chosen, *address[2:]))
            made.listen(_BACKLOG)
    except OSError:
        for each in bound:
            each.close()
        raise
    return bound


def _time_out(connection: Connection) -> None:
    """408 if nothing was answered yet, then the end; what the client does not read is dropped."""
    transport = connection.protocol.transport if connection.protocol is not None else None
    if transport is None or connection.closing:
        connection.abort()
        return
    connection.closing = True
    transport.write(_TIMED_OUT)
    transport.close()


def _network(address: str) -> str:
    """The address; of IPv6 the network of 64 bits, which one client has for itself."""
    if ":" not in address:
        return address
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(whole.ipv4_mapped or ipaddress.IPv6Network((whole, 64), strict=False))


def _address(peer: Any) -> str:
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""
