"""The way of every request, whatever is served: answered or refused as a Kubernetes Status,
counted, and, where it changes or was refused, written down.

Subclasses say what is answered. It runs without a router and without middleware: each request
passes here once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from windlass.server import bodies
from windlass.server.audit import AuditLog, Record, timestamp
from windlass.server.identity import Identity
from windlass.server.metrics import Metrics
from windlass.server.objects import Call, json_response
from windlass.store import errors

_log = logging.getLogger(__name__)

HEALTH = ("/healthz", "/readyz", "/livez")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READS = frozenset({"get", "list", "watch"})
_REFUSED = frozenset({401, 403})


class Seen:
    """What is known of a request by the time it is answered, for metrics and audit."""

    __slots__ = ("by", "call", "identity", "reason", "request", "resource", "verb")

    def __init__(self, request: web.BaseRequest) -> None:
        self.request = request
        self.identity: Identity | None = None
        self.call: Call | None = None
        self.verb = request.method.lower() if request.method in _METHODS else "other"
        self.resource = ""
        self.reason = ""
        self.by = ""

    def note(self, call: Call) -> None:
        self.call = call
        self.verb = call.verb
        self.resource = call.target.resource.key

    def asks(self, verb: str, resource: str) -> None:
        """Something that is no object."""
        self.verb, self.resource = verb, resource

    def record(self, code: int) -> Record:
        target = self.call.target if self.call else None
        query = self.call.query if self.call else {}
        return Record(
            time=timestamp(),
            user=self.identity.user if self.identity else "",
            verb=self.verb,
            code=code,
            source=self.request.remote or "",
            resource=self.resource,
            subresource=target.subresource if target else "",
            namespace=target.namespace if target else "",
            name=target.name or self.call.created if target and self.call else "",
            path="" if target else self.request.path[:200],
            dry_run=bool(query) and query.get("dryRun") == "All",
            reason=self.reason,
            by=self.by,
        )


class Handling:
    def __init__(self, audit: AuditLog | None) -> None:
        self.metrics = Metrics()
        self._audit = audit
        self._stopping = False

    def server(self) -> web.Server:
        """The aiohttp server to bind; call it inside the running loop."""
        loop = asyncio.get_running_loop()

        def request_of(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Any:
            return web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=bodies.MAX_BYTES
            )

        return web.Server(
            self.handle, request_factory=request_of, access_log=None, keepalive_timeout=75.0
        )

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = Seen(request)
        started = time.perf_counter()
        try:
            response = await self._answer(request, seen)
        except errors.ApiError as problem:
            seen.reason = problem.reason
            response = _status_response(problem)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            response = _internal_error(request)
        code = response.status
        self.metrics.observe(seen.verb, seen.resource, code, time.perf_counter() - started)
        refused = code in _REFUSED
        if self._audit is not None and (refused or (seen.resource and seen.verb not in _READS)):
            self._audit.write(seen.record(code))
        return response

    async def _answer(self, request: web.BaseRequest, seen: Seen) -> web.StreamResponse:
        raise NotImplementedError

    def _health(self, request: web.BaseRequest, path: str) -> web.Response:
        only_get(request)
        if self._stopping and path != "/livez":
            return web.Response(text="shutting down\n", status=503)
        return web.Response(text="ok")

    def _metrics_page(self, request: web.BaseRequest) -> web.Response:
        only_get(request)
        return web.Response(text=self.metrics.registry.render(), content_type="text/plain")


def quiet_about_strangers() -> None:
    """aiohttp logs a traceback for every malformed request line that a stranger sends, and would
    let anyone fill the log; what fails inside our own handler is logged there."""
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


def bytes_response(body: bytes, content_type: str) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type})


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
    """Logged with an id that the answer names; the answer tells nothing else."""
    failure = secrets.token_hex(6)
    _log.exception("request %s %s failed (id %s)", request.method, request.path[:200], failure)
    return _status_response(
        errors.ApiError(f"an error on the server; look for id {failure} in the server's log")
    )
