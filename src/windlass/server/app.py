"""The HTTP face of the embedded API: one handler from a request to an answer.

`make_app` is called by `server.main` and by tests. The handler authenticates, authorises, hands
over to `objects`, `reviews`, `discovery` or `openapi`, and turns every failure into a Kubernetes
Status. It runs without a router and without middleware: each request passes here once.
"""

from __future__ import annotations

import asyncio
import logging
import platform as machine
import secrets
import time
from pathlib import Path
from typing import Any

from aiohttp import web

import windlass
from windlass.control import engine
from windlass.kinds import kubernetes, run
from windlass.server import (
    admission,
    blobs,
    bodies,
    discovery,
    keptlogs,
    mailboxes,
    openapi,
    paths,
    platform,
    queries,
    reviews,
    tokenapi,
    usage,
)
from windlass.server.access import Access, acting_as
from windlass.server.audit import AuditLog, Record, timestamp
from windlass.server.identity import Attributes, Identity
from windlass.server.metrics import Metrics
from windlass.server.nodes import NodeGateway
from windlass.server.objects import Call, Objects, json_response
from windlass.server.podtokens import PodTokens, ensure_key
from windlass.server.streams import Streams
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

_log = logging.getLogger(__name__)

_HEALTH = ("/healthz", "/readyz", "/livez")
_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_READS = frozenset({"get", "list", "watch"})
_REFUSED = frozenset({401, 403})


class App:
    """Everything one server holds."""

    def __init__(
        self,
        api: Api,
        access: Access,
        audit: AuditLog | None,
        gateway: NodeGateway | None,
        uploads: blobs.Blobs,
        letters: mailboxes.Mailboxes,
    ) -> None:
        self._api = api
        self._access = access
        self._blobs = uploads
        self._mailboxes = letters
        self._platform = platform.Platform(api, access)
        self._usage = usage.Usage(api, access, gateway)
        self._tokens = tokenapi.TokenApi(api, access)
        self._audit = audit
        self.metrics = Metrics()
        self._streams = Streams()
        self._objects = Objects(api, self.metrics, self._streams, gateway)
        self._kept = keptlogs.KeptLogs(api, access, self._streams, gateway)
        self._stopping = False
        self.engine: engine.Engine | None = None
        """What this engine can do: Runs that ask for more are refused when they are created."""
        self.background: list[asyncio.Task[None]] = []
        """What runs beside the requests; ended by `stop_app`."""

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

    async def stop(self) -> None:
        """Ends watches cleanly; `readyz` says so from now on."""
        self._stopping = True
        await self._mailboxes.stop()
        await self._platform.stop()
        await self._streams.stop()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        seen = _Seen(request)
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

    # --- the way of a request

    async def _answer(self, request: web.BaseRequest, seen: _Seen) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in _HEALTH or path == "/version":
            return self._open_to_all(request, path)
        mailbox = mailboxes.match(path)
        if mailbox is not None and mailbox.worker:
            return await self._mailboxes.answer_worker(request, mailbox)
        headers = request.headers
        identity = await self._access.authenticate(headers.get("Authorization"))
        if "Impersonate-User" in headers:
            _refuse_unreadable(*headers.getall("Impersonate-User"))
            _refuse_unreadable(*headers.getall("Impersonate-Group", ()))
            seen.by = identity.user
            identity = acting_as(
                identity, headers["Impersonate-User"], headers.getall("Impersonate-Group", [])
            )
        seen.identity = identity
        blob = blobs.match(path)
        if blob is not None:
            return await self._blob(request, seen, identity, blob)
        if mailbox is not None:
            await self._access.authorize(identity, _creating_runs(mailbox.namespace))
            return await self._mailboxes.answer_owner(request, mailbox, identity.user)
        answered = await self._question(request, seen, identity, path)
        if answered is not None:
            return answered
        target = paths.parse(path)
        if target is None:
            return self._outside_objects(request, identity, path)
        if isinstance(target, discovery.Review):
            return await self._review(request, identity, target)
        call = _call(request, target, identity)
        seen.note(call)
        resource = target.resource
        await self._access.authorize(
            identity,
            Attributes(
                call.verb, resource.group, resource.plural, target.subresource, target.namespace,
                target.name, call.query.get("fieldSelector", "") if call.query else "",
            ),
        )  # fmt: skip
        if self.engine is not None and call.verb == "create" and resource == run.Run.resource:
            admission.admit_run(self.engine, await bodies.read_object(request))
        if target.subresource == "token":
            body = await bodies.read_object(request)
            issued = self._access.pods.issue(identity, target.namespace, target.name, body)
            return json_response(await issued, 201)
        return await self._objects.answer(call)

    async def _question(
        self, request: web.BaseRequest, seen: _Seen, identity: Identity, path: str
    ) -> web.StreamResponse | None:
        """The answer to what no object answers; None if the path asks nothing of the kind."""
        question = platform.match(path)
        if question is not None:
            seen.verb, seen.resource = "get", f"{question.what}.{platform.GROUP}"
            return await self._platform.answer(request, identity, question)
        log = keptlogs.match(path)
        if log is not None:
            seen.verb, seen.resource = "get", f"logs.{platform.GROUP}"
            return await self._kept.answer(request, identity, log)
        token = tokenapi.match(path)
        if token is not None:
            seen.verb, seen.resource = token.right(request.method).verb, f"tokens.{platform.GROUP}"
            return await self._tokens.answer(request, identity, token)
        used = usage.match(path)
        return None if used is None else await self._usage.answer(request, identity, used)

    async def _blob(
        self, request: web.BaseRequest, seen: _Seen, identity: Identity, blob: blobs.Target
    ) -> web.StreamResponse:
        seen.verb, seen.resource = request.method.lower(), f"blobs.{blobs.GROUP}"
        read = request.method == "GET"
        await self._access.authorize_blob(identity, blob.namespace, blob.digest, read=read)
        await self._api.get(kubernetes.Namespace.resource, "", blob.namespace)
        return await self._blobs.answer(request, blob)

    def _open_to_all(self, request: web.BaseRequest, path: str) -> web.Response:
        _only_get(request)
        if path == "/version":
            return json_response(_version())
        if self._stopping and path != "/livez":
            return web.Response(text="shutting down\n", status=503)
        return web.Response(text="ok")

    def _outside_objects(
        self, request: web.BaseRequest, identity: Identity, path: str
    ) -> web.Response:
        """Discovery, OpenAPI and metrics; NotFound for everything else."""
        self._access.authorize_path(identity, path)
        if path == "/metrics":
            _only_get(request)
            return web.Response(text=self.metrics.registry.render(), content_type="text/plain")
        if path.startswith("/openapi/"):
            _only_get(request)
            return _bytes_response(openapi.document(path), "application/json")
        accept = request.headers.get("Accept")
        found = discovery.document(path, accept, request.host)
        if found is None:
            raise errors.NotFound("the server could not find the requested resource")
        _only_get(request)
        return _bytes_response(*found)

    async def _review(
        self, request: web.BaseRequest, identity: Identity, review: discovery.Review
    ) -> web.Response:
        self._access.authorize_path(identity, "/apis")
        if request.method != "POST":
            raise _method_not_allowed()
        body = await bodies.read_object(request)
        answer = await reviews.answer(review.kind, body, identity, self._access)
        return json_response(answer, 201)


async def make_app(
    api: Api,
    state: Path,
    *,
    audit: AuditLog | None = None,
    gateway: NodeGateway | None = None,
) -> App:
    """An App whose tokens and bindings are loaded. `stop_app` undoes it. In `state` lie blobs and
    the key of pods' tokens."""
    access = Access(api, PodTokens(api, ensure_key(state / "pod-tokens.key")))
    await access.start()
    uploads = blobs.Blobs(state / "blobs")
    letters = mailboxes.Mailboxes(state / "mailboxes")
    app = App(api, access, audit, gateway, uploads, letters)
    app.background.append(asyncio.create_task(letters.sweep_regularly()))
    app.background.append(asyncio.create_task(blobs.sweep_regularly(uploads, EmbeddedStore(api))))
    return app


async def stop_app(app: App) -> None:
    await app.stop()
    for task in app.background:
        task.cancel()
    await asyncio.gather(*app.background, return_exceptions=True)
    await app._access.stop()


class _Seen:
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


def _call(request: web.BaseRequest, target: paths.Target, identity: Identity) -> Call:
    """The verb that a method on this target means."""
    url = request.rel_url
    query: queries.Query = url.query if url.raw_query_string else {}
    method = request.method
    if target.subresource:
        allowed = discovery.SUBRESOURCES[target.subresource].verbs
        verb = "create" if method == "POST" else _OBJECT_VERBS.get(method, "")
        if verb not in allowed:
            raise _method_not_allowed()
    elif target.name:
        verb = _OBJECT_VERBS.get(method, "")
        if verb == "get" and query and queries.flag(query, "watch"):
            verb = "watch"
    else:
        verb = _COLLECTION_VERBS.get(method, "")
        if verb == "list" and query and queries.flag(query, "watch"):
            verb = "watch"
        if target.resource.namespaced and not target.namespace and method != "GET":
            verb = ""
    if not verb:
        raise _method_not_allowed()
    return Call(request, target, verb, query, identity)


def _creating_runs(namespace: str) -> Attributes:
    return Attributes("create", run.Run.resource.group, run.Run.resource.plural, "", namespace)


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


def _method_not_allowed() -> errors.MethodNotAllowed:
    return errors.MethodNotAllowed(
        "the server does not allow this method on the requested resource"
    )


def _refuse_unreadable(*texts: str) -> None:
    """Bytes that are not UTF-8 come as surrogates, which no answer or log line could repeat."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as problem:
        raise errors.BadRequest("a header of the request is not UTF-8") from problem


def _only_get(request: web.BaseRequest) -> None:
    if request.method not in ("GET", "HEAD"):
        raise _method_not_allowed()


def _bytes_response(body: bytes, content_type: str) -> web.Response:
    return web.Response(body=body, headers={"Content-Type": content_type})


def _version() -> dict[str, str]:
    """Version of the API served, which clients compare with their own."""
    return {
        "major": "1",
        "minor": "36",
        "gitVersion": f"v1.36.0-windlass.{windlass.__version__}",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": machine.python_implementation(),
        "platform": f"{machine.system().lower()}/{machine.machine()}",
    }
