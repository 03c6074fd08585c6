"""The HTTP interface of the embedded API: one handler for all requests.

`make_app` is called by `server.main` and by tests. The handler authenticates, authorises and calls
the platform API, the object handlers, reviews, discovery or OpenAPI.
"""

from __future__ import annotations

import asyncio
import functools
import platform as machine
from pathlib import Path

from aiohttp import web

from windlass.control.model import capabilities
from windlass.kinds.types import run
from windlass.ledger.service import Ledger
from windlass.podlogs import archive
from windlass.server.apiserver import (
    access_reviews,
    admission,
    discovery,
    openapi,
    paths,
    submission_limits,
)
from windlass.server.apiserver.handlers import Call, Objects
from windlass.server.apiserver.node_proxy import NodeGateway
from windlass.server.auth import bearer_tokens
from windlass.server.auth.authenticator import Access, acting_as
from windlass.server.auth.identity import Attributes, Identity
from windlass.server.auth.pod_tokens import PodTokens, ensure_key
from windlass.server.fairness import follower, levels
from windlass.server.fairness.settings import Settings
from windlass.server.http import bodies, queries
from windlass.server.http.audit import AuditLog
from windlass.server.http.request_handler import (
    HEALTH,
    RequestHandler,
    RequestRecord,
    method_not_allowed,
    only_get,
)
from windlass.server.http.responses import bytes_response, json_response
from windlass.server.http.streams import Streams
from windlass.server.platform import openapi as platform_openapi
from windlass.server.platform.api import PlatformApi
from windlass.server.platform.handlers.metrics import MetricsService
from windlass.server.platform.handlers.metrics_pull import PullSource
from windlass.server.platform.handlers.pod_files import PodFileService
from windlass.server.platform.handlers.tokens import TokenService
from windlass.server.platform.services import EmbeddedServices
from windlass.server.storage import backends
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore
from windlass.version import VERSION

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class App(RequestHandler):
    """The state of one server."""

    def __init__(
        self,
        api: Api,
        access: Access,
        audit: AuditLog | None,
        gateway: NodeGateway | None,
        folder: Path,
    ) -> None:
        super().__init__(audit)
        self._access = access
        store = EmbeddedStore(api)
        self._streams = Streams()
        self._objects = Objects(api, self.metrics, self._streams, gateway, access)
        agents = PullSource(store, gateway)
        self._node_metrics = MetricsService(store, agents)
        self._platform = PlatformApi(
            store, access, self._authorize_path,
            backends.on_disk(folder, folder / "agent" / archive.FOLDER),
            self._streams, self._node_metrics,
            EmbeddedServices(
                TokenService(api, access), agents, PodFileService(store, self._streams, gateway)
            ),
        )  # fmt: skip
        self._submissions = submission_limits.Submissions(
            store, self._platform.services.runs.explainer
        )
        self.engine: capabilities.Engine | None = None
        """The capabilities of this engine: Runs that need more are refused at creation."""
        self.background: list[asyncio.Task[None]] = self._platform.background()
        """Background tasks; ended by `stop_app`."""

    def apply_limits(self, settings: Settings) -> None:
        super().apply_limits(settings)
        self._objects.quota.limits = settings.namespace
        self._platform.apply_limits(settings)

    def use_ledger(self, ledger: Ledger | None) -> None:
        """The ledger that answers requests about usage, and gets the metrics of nodes."""
        self._platform.use_ledger(ledger)
        if ledger is not None:
            ledger.meter = self._node_metrics.measured

    async def _authorize_path(self, identity: Identity, path: str) -> None:
        self._access.authorize_path(identity, path)

    async def stop(self) -> None:
        """Ends watches cleanly; `readyz` fails from now on."""
        self._stopping = True
        await self._submissions.stop()
        await self._platform.stop()
        await self._streams.stop()

    # --- the way of a request

    async def _answer(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in HEALTH:
            return self._health(request, path)
        if path == "/version":
            only_get(request)
            return json_response(_version())
        match = self._platform.match(path)
        if match is not None and not match.needs_identity:
            caller = levels.of_mailbox(match.parameters["namespace"])
            return await self._platform.serve_worker(
                record, match, functools.partial(self.admit, record, *caller)
            )
        headers = request.headers
        identity = await self._access.authenticate(headers.get("Authorization"))
        if "Impersonate-User" in headers:
            _refuse_unreadable(*headers.getall("Impersonate-User"))
            _refuse_unreadable(*headers.getall("Impersonate-Group", ()))
            record.impersonator = identity.user
            identity = acting_as(
                identity, headers["Impersonate-User"], headers.getall("Impersonate-Group", [])
            )
        record.identity = identity
        if not self.admitted(record, identity):
            await self.admit(record, *levels.of(identity))
        if match is not None:
            return await self._platform.router.serve(record, identity, match)
        target = paths.parse(path)
        if target is None:
            return self._outside_objects(request, identity, path)
        if isinstance(target, discovery.Review):
            return await self._review(request, identity, target)
        call = _call(record, target, identity)
        call.describe()
        resource = target.resource
        wanted = Attributes(
            call.verb, resource.group, resource.plural, target.subresource, target.namespace,
            target.name, call.query.get("fieldSelector", "") if call.query else "",
        )  # fmt: skip
        await self._access.authorize(identity, wanted)
        call.still = functools.partial(
            self._access.still_allowed, headers.get("Authorization"), identity, wanted
        )
        if self.engine is not None and resource == run.Run.resource:
            await self._prepare_run(self.engine, call)
            return await self._answer_run(call)
        if target.subresource == "token":
            body = await bodies.read_object(request)
            issued = self._access.pods.issue(identity, target.namespace, target.name, body)
            return json_response(await issued, 201)
        return await self._objects.answer(call)

    async def _answer_run(self, call: Call) -> web.StreamResponse:
        """Refuses a run beyond the number that queues let a user submit."""
        if call.verb != "create" or not await self._submissions.binding():
            return await self._objects.answer(call)
        body = await bodies.read_object(call.request, yaml=True)

        def created() -> str:
            return "" if "dryRun" in call.query else call.created

        place = call.target.namespace
        async with self._submissions.admitted(call.identity, place, body, created):
            return await self._objects.answer(call)

    async def _prepare_run(self, facts: capabilities.Engine, call: Call) -> None:
        """Checks before a Run is created or deleted."""
        if call.verb == "create":
            admission.admit_run(facts, await bodies.read_object(call.request, yaml=True))
            call.ledger = facts.ledger
        elif call.verb == "delete" and "dryRun" not in call.query:
            await self._platform.services.usage.release(call.target.namespace, call.target.name)

    def _outside_objects(
        self, request: web.BaseRequest, identity: Identity, path: str
    ) -> web.Response:
        """Discovery, OpenAPI and metrics; NotFound for everything else."""
        self._access.authorize_path(identity, path)
        if path == "/metrics":
            return self._metrics_page(request)
        accept = request.headers.get("Accept")
        if path.startswith("/openapi/"):
            only_get(request)
            if path == openapi.V2:
                return bytes_response(*openapi.version_2(accept))
            return bytes_response(
                openapi.document(path, platform_openapi.embedded), "application/json"
            )
        found = discovery.document(path, accept, request.host)
        if found is None:
            raise errors.NotFound("the server could not find the requested resource")
        only_get(request)
        return bytes_response(*found)

    async def _review(
        self, request: web.BaseRequest, identity: Identity, review: discovery.Review
    ) -> web.Response:
        self._access.authorize_path(identity, "/apis")
        if request.method != "POST":
            raise method_not_allowed()
        body = await bodies.read_object(request, limit=bodies.MAX_REVIEW_BYTES)
        answer = await access_reviews.answer(review.kind, body, identity, self._access)
        return json_response(answer, 201)


async def make_app(
    api: Api,
    state: Path,
    *,
    audit: AuditLog | None = None,
    gateway: NodeGateway | None = None,
) -> App:
    """An App with its tokens and bindings loaded. `stop_app` undoes it. `state` has the blobs and
    the key of pod tokens."""
    access = Access(api, PodTokens(EmbeddedStore(api), ensure_key(state / "pod-tokens.key")))
    await access.start()
    app = App(api, access, audit, gateway, state)
    app.background.append(asyncio.create_task(bearer_tokens.sweep_regularly(api)))
    limits = follower.follow(EmbeddedStore(api), app.apply_limits)
    app.background.append(asyncio.create_task(limits))
    return app


async def stop_app(app: App) -> None:
    await app.stop()
    await bodies.SLOW.stop()
    for task in app.background:
        task.cancel()
    await asyncio.gather(*app.background, return_exceptions=True)
    await app._access.stop()


def _call(record: RequestRecord, target: paths.Target, identity: Identity) -> Call:
    """The verb of a method on this target."""
    request = record.request
    url = request.rel_url
    query: queries.Query = url.query if url.raw_query_string else {}
    method = request.method
    if target.subresource:
        allowed = discovery.SUBRESOURCES[target.subresource].verbs
        verb = "create" if method == "POST" else _OBJECT_VERBS.get(method, "")
        if verb not in allowed:
            raise method_not_allowed()
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
        raise method_not_allowed()
    return Call(request, target, verb, query, identity, record)


def _refuse_unreadable(*texts: str) -> None:
    """Bytes that are not UTF-8 come as surrogates, which no response or log line can repeat."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as problem:
        raise errors.BadRequest("a header of the request is not UTF-8") from problem


def _version() -> dict[str, str]:
    """Version of the API served, which clients compare with their own."""
    return {
        "major": "1",
        "minor": "36",
        "gitVersion": f"v1.36.0-windlass.{VERSION}",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": machine.python_implementation(),
        "platform": f"{machine.system().lower()}/{machine.machine()}",
    }
