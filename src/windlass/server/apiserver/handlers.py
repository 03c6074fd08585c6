"""The verbs on objects: from a parsed request to a call of the Api, and back to bytes.

Called by `server.app` with an authenticated and authorised call. The store has encoded the bodies
of lists and events; only tables and partial metadata decode them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from windlass.kinds.types import core
from windlass.kinds.values import times
from windlass.server.apiserver import (
    admission,
    namespace_limits,
    node_proxy,
    run_privileges,
    tables,
)
from windlass.server.apiserver.paths import Target
from windlass.server.auth.authorization import Rights
from windlass.server.auth.identity import Identity
from windlass.server.http import bodies, negotiation, queries, streams
from windlass.server.http.metrics import Metrics
from windlass.server.http.negotiation import Form
from windlass.server.http.request_handler import RequestRecord
from windlass.server.http.responses import JSON_HEADERS, json_response
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import RawEvent, RawList, Review, WriteOptions

_LOG_TIMEOUT = 2.0
"""How long a log may be silent before its client gets the response headers."""
_WARNING_LENGTH, _WARNING_TOTAL, _WARNING_COUNT = 256, 4096, 32
"""Characters of one warning and of all warnings of a response, as in Kubernetes; and how many,
because Python's own client takes no more than 100 headers."""
_BINDINGS = (core.RoleBinding.resource.key, core.ClusterRoleBinding.resource.key)
_SUCCESS: dict[str, Any] = {
    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
}  # fmt: skip


@dataclasses.dataclass(slots=True)
class Call:
    """One request on objects."""

    request: web.BaseRequest
    target: Target
    verb: str
    query: queries.Query
    identity: Identity
    record: RequestRecord
    form: Form = negotiation.PLAIN
    created: str = ""
    """The name of the created object."""
    still: streams.Still | None = None
    """Whether the caller may still use an open stream: a watch, a log, a session."""
    ledger: bool = False
    """The created object is a Run whose usage a ledger records."""

    def describe(self) -> None:
        """Sets the verb and the objects in the record of the request."""
        record, target = self.record, self.target
        record.describe(self.verb, target.resource.key)
        record.object = True
        record.subresource, record.namespace = target.subresource, target.namespace
        record.name = target.name
        record.dry_run = bool(self.query) and self.query.get("dryRun") == "All"


class Objects:
    def __init__(
        self,
        api: Api,
        metrics: Metrics,
        open_streams: streams.Streams,
        gateway: node_proxy.NodeGateway | None,
        rights: Rights,
    ) -> None:
        self._api = api
        self.quota = namespace_limits.NamespaceQuota(api.usage)
        self._rights = rights
        self._metrics = metrics
        self._streams = open_streams
        self._gateway = gateway
        self._verbs: dict[str, Callable[[Call], Awaitable[web.StreamResponse]]] = {
            "get": self._get,
            "list": self._list,
            "watch": self._watch,
            "create": self._create,
            "update": self._update,
            "patch": self._patch,
            "delete": self._delete,
            "deletecollection": self._delete_collection,
        }

    async def answer(self, call: Call) -> web.StreamResponse:
        call.form = negotiation.negotiate(call.request.headers.get("Accept"))
        subresource = call.target.subresource
        if subresource == "log":
            return await self._log(call)
        if subresource in ("exec", "attach", "portforward"):
            return await self._session(call)
        if subresource in ("binding", "eviction"):
            return await self._act_on_pod(call)
        return await self._verbs[call.verb](call)

    # --- reading

    async def _get(self, call: Call) -> web.Response:
        target = call.target
        data = await self._api.get(target.resource, target.namespace, target.name)
        return _one(call, data)

    async def _list(self, call: Call) -> web.Response:
        target, query = call.target, queries.listing(call.query)
        page = await self._api.list(target.resource, target.namespace, query)
        return _many(call, page)

    async def _watch(self, call: Call) -> web.StreamResponse:
        target = call.target
        query = queries.watching(call.query, target.name)
        batches = self._api.watch(target.resource, target.namespace, query)
        if call.form.encoding != "json":
            raise errors.NotAcceptable("a watch is served as application/json only")
        lines = streams.watch_lines(batches, _event_encoder(call))
        call.record.open_stream()
        call.record.begin(200)
        self._metrics.watching(target.resource.key, 1)
        try:
            return await self._streams.serve(
                call.request, lines, "application/json", seconds=query.timeout_seconds,
                still=call.still, pace=call.record.take_turn,
            )  # fmt: skip
        finally:
            self._metrics.watching(target.resource.key, -1)

    # --- writing

    async def _create(self, call: Call) -> web.Response:
        target, options = call.target, queries.writing(call.query, call.identity.user)
        self.quota.admit_create(call.identity, target.resource, target.namespace)
        strict = options.field_validation == "Strict"
        body = await bodies.read_object(call.request, strict=strict, yaml=True)
        admission.admit_create(call.identity, target.resource, body)
        place = (target.namespace, "")
        await admission.admit_queue(self._api, target.resource, place, body)
        await self._admit_privileges(call, place, body)
        await admission.sign_override(self._api, call.identity, target.resource, place, body)
        if call.ledger:
            admission.keep_for_ledger(body)
        data = await self._api.create(target.resource, target.namespace, body, options)
        call.created = call.record.name = tables.head(data).name
        return _one(call, data, 201, options)

    async def _update(self, call: Call) -> web.Response:
        target, options = call.target, queries.writing(call.query, call.identity.user)
        self._admit_change(call)
        strict = options.field_validation == "Strict"
        body = await bodies.read_object(call.request, strict=strict, yaml=True)
        _refuse_other_name(target, body)
        if not target.subresource:
            place = (target.namespace, target.name)
            await admission.admit_replace(self._api, call.identity, target.resource, place, body)
            await admission.admit_queue(self._api, target.resource, place, body)
            await self._admit_privileges(call, place, body)
            await admission.sign_override(self._api, call.identity, target.resource, place, body)
            options.review = await self._reviewer(call, place)
        data = await self._api.replace(
            target.resource, target.namespace, target.name, body, options, target.subresource
        )
        return _one(call, data, 200, options)

    async def _patch(self, call: Call) -> web.Response:
        target, options = call.target, queries.writing(call.query, call.identity.user)
        self._admit_change(call)
        patch, patch_type = await bodies.read_patch(call.request)
        if not target.subresource:
            place = (target.namespace, target.name)
            await admission.admit_patch(self._api, call.identity, target.resource, place, patch)
            await admission.admit_queue(self._api, target.resource, place, patch)
            await self._admit_privileges(call, place, patch)
            await admission.sign_override(self._api, call.identity, target.resource, place, patch)
            options.review = await self._reviewer(call, place)
        data = await self._api.patch(
            target.resource, target.namespace, target.name, patch, patch_type, options,
            target.subresource,
        )  # fmt: skip
        return _one(call, data, 200, options)

    def _admit_change(self, call: Call) -> None:
        target, size = call.target, call.request.content_length
        self.quota.admit_change(call.identity, target.resource, target.namespace, size)

    async def _reviewer(self, call: Call, place: tuple[str, str]) -> Review | None:
        return await admission.reviewer(self._rights, call.identity, call.target.resource, place)

    async def _admit_privileges(self, call: Call, place: tuple[str, str], change: Any) -> None:
        resource = call.target.resource
        await run_privileges.admit(self._api, self._rights, call.identity, resource, place, change)
        if self._gateway is not None and resource.key in _BINDINGS:
            await self._gateway.check_binding(resource, *place, change)

    async def _delete(self, call: Call) -> web.Response:
        target = call.target
        options = queries.deletion(call.query, await _delete_body(call.request))
        data, gone = await self._api.delete(target.resource, target.namespace, target.name, options)
        if not gone or target.resource.graceful:
            return _one(call, data)
        details = {"name": target.name, "kind": target.resource.plural}
        details["uid"] = tables.head(data).uid
        if target.resource.group:
            details["group"] = target.resource.group
        return json_response({**_SUCCESS, "details": details})

    async def _delete_collection(self, call: Call) -> web.Response:
        target, query = call.target, queries.listing(call.query)
        options = queries.deletion(call.query, await _delete_body(call.request))
        deleted = await self._api.delete_collection(
            target.resource, target.namespace, query, options
        )
        return _many(call, RawList(b",".join(deleted), self._api.mvcc.last_rv))

    # --- pods and their nodes

    async def _act_on_pod(self, call: Call) -> web.Response:
        target, options = call.target, queries.writing(call.query, call.identity.user)
        body = await bodies.read_object(call.request)
        wanted = "Binding" if target.subresource == "binding" else "Eviction"
        if body.get("kind", wanted) != wanted:
            raise errors.BadRequest(f"the body must be a {wanted}")
        _refuse_other_name(target, body)
        act = self._api.bind if wanted == "Binding" else self._api.evict
        await act(target.namespace, target.name, body, options)
        return json_response({**_SUCCESS, "code": 201}, 201)

    async def _log(self, call: Call) -> web.StreamResponse:
        options = queries.pod_log(call.query)
        pod = await self._pod(call)
        if self._gateway is None:
            raise node_proxy.unreachable("the log", pod)
        call.record.open_stream()
        pieces = self._gateway.log(pod, options)
        return await self._streams.serve(
            call.request, pieces, "text/plain", first_timeout=_LOG_TIMEOUT, still=call.still,
            pace=call.record.take_turn,
        )  # fmt: skip

    async def _session(self, call: Call) -> web.StreamResponse:
        kind: Any = call.target.subresource
        options = node_proxy.stream_options(call.request, owner=call.identity.is_master)
        pod = await self._pod(call)
        if self._gateway is None:
            raise node_proxy.unreachable(kind, pod)
        call.record.open_stream()
        session = node_proxy.Session(call.request, kind)

        async def accept() -> web.WebSocketResponse:
            socket = await session.accept()
            call.record.begin(101)
            return socket

        talking = self._gateway.stream(kind, pod, options, accept)
        await streams.while_allowed(talking, call.still)
        return await session.close()

    async def _pod(self, call: Call) -> dict[str, Any]:
        target = call.target
        data = await self._api.get(target.resource, target.namespace, target.name)
        pod: dict[str, Any] = msgspec.json.decode(data)
        return pod


# --- responses in the requested form ------------------------------------------------------------


def _one(
    call: Call, data: bytes, code: int = 200, options: WriteOptions | None = None
) -> web.Response:
    form = call.form
    if form.shape == "table":
        metadata = {"resourceVersion": tables.head(data).resource_version}
        data = _table(call, [data], metadata)
    elif form.shape == "partial":
        data = tables.partial(data, form.version)
    response = _respond(data, form, code)
    if options is not None:
        _warn(response, options.warnings)
    return response


def _warn(response: web.Response, warnings: list[str]) -> None:
    """As many as every client accepts: one header too long and the whole response is lost."""
    budget = _WARNING_TOTAL
    for warning in warnings[:_WARNING_COUNT]:
        text = _header_text(warning[:_WARNING_LENGTH])
        budget -= len(text)
        if budget < 0:
            return
        response.headers.add("Warning", f'299 - "{text}"')


def _many(call: Call, page: RawList) -> web.Response:
    resource, form = call.target.resource, call.form
    metadata: dict[str, Any] = {"resourceVersion": str(page.resource_version)}
    if page.continue_token:
        metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    if form.shape == "table":
        return _respond(_table(call, page.items, metadata), form)
    kind, api_version, body = f"{resource.kind}List", resource.api_version, page.body
    if form.shape == "partial":
        kind, api_version = "PartialObjectMetadataList", f"meta.k8s.io/{form.version}"
        body = b",".join([tables.partial(data, form.version) for data in page.items])
    head = msgspec.json.encode({"kind": kind, "apiVersion": api_version, "metadata": metadata})
    return _respond(b'%b,"items":[%b]}' % (head[:-1], body), form)


def _table(call: Call, objects: list[bytes], metadata: dict[str, Any]) -> bytes:
    return tables.table(
        call.target.resource, objects, version=call.form.version,
        include=queries.include_object(call.query), metadata=metadata, now=times.now(),
    )  # fmt: skip


def _respond(data: bytes, form: Form, code: int = 200) -> web.Response:
    if form.encoding == "yaml":
        import yaml  # late: kubectl converts JSON to YAML itself

        data = yaml.safe_dump(msgspec.json.decode(data), sort_keys=False).encode()
        return web.Response(body=data, status=code, headers={"Content-Type": "application/yaml"})
    return web.Response(body=data, status=code, headers=JSON_HEADERS)


def _event_encoder(call: Call) -> streams.Encode:
    form = call.form
    if form.shape == "object":
        return streams.plain_lines
    if form.shape == "partial":
        return functools.partial(
            streams.converted_lines, convert=lambda event: tables.partial(event.data, form.version)
        )
    return functools.partial(streams.converted_lines, convert=_TableEvents(call).convert)


class _TableEvents:
    """Events as one-row tables; the first one names the columns."""

    def __init__(self, call: Call) -> None:
        self._resource = call.target.resource
        self._version = call.form.version
        self._include = queries.include_object(call.query)
        self._with_columns = True

    def convert(self, event: RawEvent) -> bytes:
        with_columns, self._with_columns = self._with_columns, False
        return tables.table(
            self._resource,
            [] if event.type == "BOOKMARK" else [event.data],
            version=self._version,
            include=self._include,
            metadata={"resourceVersion": tables.head(event.data).resource_version},
            now=times.now(),
            with_columns=with_columns,
        )


# --- small checks -------------------------------------------------------------------------------


def _refuse_other_name(target: Target, body: dict[str, Any]) -> None:
    metadata = body.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if name and name != target.name:
        raise errors.BadRequest(
            f"the name of the object ({str(name)[:80]}) does not match the name on the URL "
            f"({target.name[:80]})"
        )


async def _delete_body(request: web.BaseRequest) -> dict[str, Any] | None:
    if not request.can_read_body or request.content_length == 0:
        return None
    return await bodies.read_object(request, yaml=True)


def _header_text(text: str) -> str:
    """Printable ASCII without quotes to escape: valid in a header."""
    plain = text.encode("ascii", "replace").decode()
    return (
        "".join(c if c.isprintable() else " " for c in plain)
        .replace("\\", "\\\\")
        .replace('"', '\\"')
    )
