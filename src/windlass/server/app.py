"""The HTTP face of the embedded API: one handler from a request to an answer.

`make_app` is called by `server.main` and by tests. The handler authenticates, authorises and hands
over to `platformapi`, `objects`, `reviews`, `discovery` or `openapi`.
"""

from __future__ import annotations

import asyncio
import functools
import platform as machine
from pathlib import Path

from aiohttp import web

import windlass
from windlass.agent import kept as kept_logs
from windlass.control import engine
from windlass.kinds import run
from windlass.ledger.service import Ledger
from windlass.server import (
    admission,
    bodies,
    discovery,
    looking,
    openapi,
    paths,
    places,
    platformpaths,
    queries,
    reviews,
    routes,
    submissions,
    tokenapi,
    tokens,
    usage,
)
from windlass.server.access import Access, acting_as
from windlass.server.audit import AuditLog
from windlass.server.handling import (
    HEALTH,
    Handling,
    Seen,
    bytes_response,
    method_not_allowed,
    only_get,
)
from windlass.server.identity import Attributes, Identity
from windlass.server.nodes import NodeGateway
from windlass.server.objects import Call, Objects, json_response
from windlass.server.platformapi import PlatformApi
from windlass.server.podtokens import PodTokens, ensure_key
from windlass.server.streams import Streams
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

_COLLECTION_VERBS = {"GET": "list", "POST": "create", "DELETE": "deletecollection"}
_OBJECT_VERBS = {"GET": "get", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class App(Handling):
    """Everything one server holds."""

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
        self._looking = looking.Looking(store, gateway)
        self._usage = usage.Usage(store, access, self._looking)
        self._tokens = tokenapi.TokenApi(api, access)
        self._streams = Streams()
        self._objects = Objects(api, self.metrics, self._streams, gateway)
        kept = places.on_disk(folder, folder / "agent" / kept_logs.FOLDER)
        self._platform = PlatformApi(store, access, kept, self._streams)
        self._submissions = submissions.Submissions(store, self._platform.explainer)
        self.engine: engine.Engine | None = None
        """What this engine can do: Runs that ask for more are refused when they are created."""
        self.background: list[asyncio.Task[None]] = self._platform.background()
        """What runs beside the requests; ended by `stop_app`."""

    def keep_ledger(self, ledger: Ledger | None) -> None:
        """Whom questions about usage are for, and whom nodes tell what they use."""
        self._platform.accounts.ledger = ledger
        if ledger is not None:
            ledger.meter = self._usage.measured

    async def stop(self) -> None:
        """Ends watches cleanly; `readyz` says so from now on."""
        self._stopping = True
        await self._submissions.stop()
        await self._platform.stop()
        await self._streams.stop()

    # --- the way of a request

    async def _answer(self, request: web.BaseRequest, seen: Seen) -> web.StreamResponse:
        path = request.rel_url.raw_path.rstrip("/") or "/"
        if path in HEALTH:
            return self._health(request, path)
        if path == "/version":
            only_get(request)
            return json_response(_version())
        worked = await self._platform.answer_worker(request, path)
        if worked is not None:
            return worked
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
        answered = await self._platform.answer(request, seen, identity, path)
        if answered is not None:
            return answered
        listed = routes.is_listed(path)
        token = tokenapi.match(path) if listed else None
        if token is not None:
            seen.asks(token.right(request.method).verb, f"tokens.{platformpaths.GROUP}")
            return await self._tokens.answer(request, identity, token)
        used = usage.match(path) if listed else None
        if used is not None:
            return await self._used(request, identity, used)
        target = paths.parse(path)
        if target is None:
            return self._outside_objects(request, identity, path)
        if isinstance(target, discovery.Review):
            return await self._review(request, identity, target)
        call = _call(request, target, identity)
        seen.note(call)
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
        """Where queues limit how many runs a user may submit, no run beyond that is created."""
        if call.verb != "create" or not await self._submissions.binding():
            return await self._objects.answer(call)
        body = await bodies.read_object(call.request)

        def created() -> str:
            return "" if "dryRun" in call.query else call.created

        place = call.target.namespace
        async with self._submissions.admitted(call.identity, place, body, created):
            return await self._objects.answer(call)

    async def _prepare_run(self, facts: engine.Engine, call: Call) -> None:
        """What is looked at before a Run is created or deleted."""
        if call.verb == "create":
            admission.admit_run(facts, await bodies.read_object(call.request))
            call.ledger = facts.ledger
        elif call.verb == "delete" and "dryRun" not in call.query:
            await self._platform.accounts.let_go(call.target.namespace, call.target.name)

    async def _used(
        self, request: web.BaseRequest, identity: Identity, asked: usage.Question
    ) -> web.Response:
        if asked.what != "proxy":
            return await self._usage.answer(request, identity, asked)
        # It tells about everybody's pods, as the server's own metrics do.
        self._access.authorize_path(identity, "/metrics")
        only_get(request)
        return await self._looking.answer(asked.name, asked.page)

    def _outside_objects(
        self, request: web.BaseRequest, identity: Identity, path: str
    ) -> web.Response:
        """Discovery, OpenAPI and metrics; NotFound for everything else."""
        self._access.authorize_path(identity, path)
        if path == "/metrics":
            return self._metrics_page(request)
        if path.startswith("/openapi/"):
            only_get(request)
            return bytes_response(openapi.document(path), "application/json")
        accept = request.headers.get("Accept")
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
    access = Access(api, PodTokens(EmbeddedStore(api), ensure_key(state / "pod-tokens.key")))
    await access.start()
    app = App(api, access, audit, gateway, state)
    app.background.append(asyncio.create_task(tokens.sweep_regularly(api)))
    return app


async def stop_app(app: App) -> None:
    await app.stop()
    for task in app.background:
        task.cancel()
    await asyncio.gather(*app.background, return_exceptions=True)
    await app._access.stop()


def _call(request: web.BaseRequest, target: paths.Target, identity: Identity) -> Call:
    """The verb that a method on this target means."""
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
    return Call(request, target, verb, query, identity)


def _refuse_unreadable(*texts: str) -> None:
    """Bytes that are not UTF-8 come as surrogates, which no answer or log line could repeat."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as problem:
        raise errors.BadRequest("a header of the request is not UTF-8") from problem


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
