"""Handles every request: responds, or refuses with a Kubernetes Status; counts it; and records
changes, sessions in pods, reads of Secrets and refusals in the audit log.

Subclasses produce the response. There is no router and no middleware: each request passes here
once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from windlass.server.auth.identity import Identity
from windlass.server.fairness import levels
from windlass.server.fairness.queues import Flow, RequestQueues
from windlass.server.fairness.settings import Settings
from windlass.server.http import bodies, connections
from windlass.server.http.audit import AuditEntry, AuditLog, timestamp
from windlass.server.http.metrics import Metrics
from windlass.server.http.responses import json_response
from windlass.store import errors
from windlass.telemetry import prometheus

_log = logging.getLogger(__name__)

HEALTH = ("/healthz", "/readyz", "/livez")
_PACE_SECONDS = (0.05, 0.15)
"""Pieces of a stream wait this long if its caller has many; events gather meanwhile."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READS = frozenset({"get", "list", "watch"})
_SESSIONS = frozenset({"exec", "attach", "portforward"})
_REFUSED = frozenset({401, 403})


class RequestRecord:
    """The attributes of a request after its response, for metrics and the audit log."""

    __slots__ = (
        "audit", "connection", "dry_run", "flow", "identity", "impersonator", "name", "namespace",
        "object", "reason", "request", "resource", "streaming", "subresource", "verb",
    )  # fmt: skip

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.connection = connections.connection_of(request)
        self.flow: Flow | None = None
        """The caller whose seat the request has."""
        self.streaming = False
        self.identity: Identity | None = None
        self.verb = request.method.lower() if request.method in _METHODS else "other"
        self.resource = ""
        self.subresource = ""
        self.namespace = ""
        self.name = ""
        self.object = False
        """The path names objects: the fields above identify them, and the path is not recorded."""
        self.dry_run = False
        self.reason = ""
        self.impersonator = ""
        self.audit: Callable[[RequestRecord, int], None] = lambda *_: None

    def begin(self, code: int) -> None:
        """Called when a session or a watch begins: its end may be days away."""
        self.audit(self, code)
        self.audit = lambda *_: None

    def describe(self, verb: str, resource: str) -> None:
        """Sets the verb and the resource of a request that is not for an object."""
        self.verb, self.resource = verb, resource

    def open_stream(self) -> None:
        """The request stays open or waits for something: it gives back its seat, and counts as a
        stream of its caller. TooManyRequests if the caller has too many."""
        flow = self.flow
        if flow is None or self.streaming:
            return
        flow.level.queues.open_stream(flow)
        self.streaming = True
        flow.level.queues.leave(flow)
        if self.connection is not None:
            self.connection.streaming = True

    async def take_turn(self) -> None:
        """Before a piece of a stream is written: callers with many streams take turns."""
        if self.flow is not None and self.flow.paced:
            await asyncio.sleep(random.uniform(*_PACE_SECONDS))  # noqa: S311 (spreads load)
            await self.flow.level.queues.turn(self.flow)

    def leave(self, flow: Flow) -> None:
        """The response is ready."""
        self.flow = None
        if not self.streaming:
            flow.level.queues.leave(flow)
            return
        flow.level.queues.close_stream(flow)
        if self.connection is not None:
            self.connection.streaming = False

    def audit_entry(self, code: int) -> AuditEntry:
        return AuditEntry(
            time=timestamp(),
            user=self.identity.user if self.identity else "",
            verb=self.verb,
            code=code,
            source=self.request.remote or "",
            resource=self.resource,
            subresource=self.subresource,
            namespace=self.namespace,
            name=self.name,
            path="" if self.object else self.request.path[:200],
            dry_run=self.dry_run,
            reason=self.reason,
            by=self.impersonator,
        )


class RequestHandler:
    def __init__(self, audit: AuditLog | None) -> None:
        self.metrics = Metrics()
        self.queues = RequestQueues(self.metrics.registry)
        self.connections = connections.Connections(self.metrics.registry)
        self._audit = audit
        self._stopping = False

    def apply_limits(self, settings: Settings) -> None:
        """Limits that an administrator changed."""
        self.queues.apply(settings.levels)

    def server(self) -> connections.Server:
        """The aiohttp server to bind; call it inside the running loop."""
        loop = asyncio.get_running_loop()

        def request_of(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=bodies.MAX_BYTES
            )

        return connections.Server(
            self.handle, self.connections, self._lost, request_factory=request_of, access_log=None,
            keepalive_timeout=connections.IDLE_SECONDS,
        )  # fmt: skip

    def _lost(self, connection: connections.Connection) -> None:
        flow = self.connections.remove(connection)
        if flow is not None:
            self.queues.forget(flow)

    def admitted(self, record: RequestRecord, identity: Identity) -> bool:
        """Whether the request may execute at once, as most do: it came over the connection of its
        caller's last request, and nothing waits. Else `admit` must follow."""
        connection = record.connection
        if connection is None or connection.identity is not identity or connection.flow is None:
            return False
        if not connection.flow.enter_now():
            return False
        record.flow = connection.flow
        return True

    async def admit(
        self, record: RequestRecord, level: str, name: str, *, proxied: bool = False
    ) -> None:
        """Returns when the request of this caller may execute. `proxied`: the connection is that
        of a proxy, for many callers."""
        flow = self.queues.flow(level, name)
        connection = record.connection
        if connection is not None:
            if not connection.signed_in:
                self._sign_in(connection, None if proxied else flow)
            if connection.flow is flow:
                connection.identity = record.identity
            connection.caller = flow
        await self.queues.enter(flow)
        record.flow = flow

    def _sign_in(self, connection: connections.Connection, flow: Flow | None) -> None:
        if flow is not None and flow.connections >= flow.level.limits.connections:
            raise self.queues.refusal(
                flow, "connections", f"has {flow.connections} connections open; close some"
            )
        self.connections.sign_in(connection, flow)

    async def _refuse_unknown(self, request: web.BaseRequest) -> None:
        """Refusals of one address take turns: they must not keep others waiting."""
        flow = self.queues.flow(*levels.of_source(request.remote or ""))
        await self.queues.enter(flow)
        self.queues.leave(flow)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        record = RequestRecord(request)
        record.audit = self._write_audit
        started = time.perf_counter()
        try:
            response = await self._answer(request, record)
        except errors.ApiError as problem:
            response = await self._refused(record, problem)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            response = _internal_error(request)
        finally:
            if record.flow is not None:
                record.leave(record.flow)
        code = response.status
        self.metrics.observe(record.verb, record.resource, code, time.perf_counter() - started)
        record.audit(record, code)
        return response

    async def _refused(self, record: RequestRecord, problem: errors.ApiError) -> web.Response:
        if isinstance(problem, errors.Unauthorized):
            try:
                await self._refuse_unknown(record.request)
            except errors.TooManyRequests as too_many:
                problem = too_many
        record.reason = problem.reason
        response = _status_response(problem)
        if record.flow is None:
            # Unknown callers, and callers with too many requests or connections, start anew.
            response.force_close()
        return response

    def _write_audit(self, record: RequestRecord, code: int) -> None:
        if self._audit is not None and (code in _REFUSED or _is_audited(record)):
            self._audit.write(record.audit_entry(code))

    async def _answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        raise NotImplementedError

    def _health(self, request: web.BaseRequest, path: str) -> web.Response:
        only_get(request)
        if self._stopping and path != "/livez":
            return web.Response(text="shutting down\n", status=503)
        return web.Response(text="ok")

    def _metrics_page(self, request: web.BaseRequest) -> web.Response:
        only_get(request)
        self.queues.publish()
        self.connections.publish()
        page = self.metrics.registry.render().encode()
        return web.Response(body=page, headers={"Content-Type": prometheus.EXPOSITION})


def _is_audited(record: RequestRecord) -> bool:
    """Whether the audit log has the request though it was allowed."""
    if not record.resource:
        return False
    sensitive = record.subresource in _SESSIONS or record.resource == "secrets"
    return sensitive or record.verb not in _READS


def quiet_about_strangers() -> None:
    """aiohttp logs a traceback for every malformed request line, so that any client could fill the
    log; failures of the handler itself are logged there."""
    logger = logging.getLogger("aiohttp.server")
    logger.setLevel(logging.CRITICAL)
    logger.addFilter(_not_the_senders_fault)


def only_get(request: web.BaseRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise method_not_allowed()


def method_not_allowed() -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed(
        "the server does not allow this method on the requested resource"
    )


def _not_the_senders_fault(record: logging.LogRecord) -> bool:
    problem = record.exc_info[1] if record.exc_info else None
    return not isinstance(problem, HttpProcessingError)


def _status_response(problem: errors.ApiError) -> web.Response:
    headers = {}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(problem.retry_after)))
    if isinstance(problem, errors.Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return json_response(problem.to_status(), problem.status_code, headers)


def _internal_error(request: web.BaseRequest) -> web.Response:
    """Logged with an id that the response has; the response has nothing else."""
    failure = secrets.token_hex(6)
    _log.exception("request %s %s failed (id %s)", request.method, request.path[:200], failure)
    return _status_response(
        errors.ApiError(f"an error on the server; search for id {failure} in the server's log")
    )
