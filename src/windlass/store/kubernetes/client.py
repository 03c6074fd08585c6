"""The object API over HTTP: `store.interface.Store` against a cluster or `windlass up`.

Opened by `store.connect`. Turns each call into one REST request and each response into structs or a
typed error. Caches nothing: that is the informer's task.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from windlass.kinds import codec as kinds_codec
from windlass.kinds.types import core
from windlass.kinds.types.meta import Object
from windlass.store import errors, interface
from windlass.store.interface import ObjectList, Preconditions, Propagation, WatchEvent
from windlass.store.kubernetes import codec
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import request_headers
from windlass.store.kubernetes.http.retry import Query, Request, Transport
from windlass.store.kubernetes.http.transport import HttpTransport

T = TypeVar("T", bound=Object)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_UNSAFE = re.compile(r"[/%?#\\ ]")
"""Characters that a name in a path must not contain."""


class KubernetesStore:
    """One server, one identity. Use it from one event loop; `close` it at the end."""

    def __init__(
        self, access: Access, transport: Transport | None = None, *, outage_seconds: float = 0.0
    ) -> None:
        """`outage_seconds`: seconds to wait for a server that is being restarted."""
        self.access = access
        self._outage_timeout = outage_seconds
        self._transport = transport or _transport_for(access, outage_seconds)

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        request = Request("GET", _path(kind, namespace, name), repeatable=True)
        return codec.decode_object(kind, await self._call(request))

    async def list(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_token: str = "",
        resource_version: str = "",
    ) -> ObjectList[T]:
        query = _query(
            labelSelector=label_selector,
            fieldSelector=field_selector,
            limit=limit or "",
            resourceVersion=resource_version,
            **{"continue": continue_token},
        )
        path = _collection(kind, namespace)
        body = await self._call(Request("GET", path, query, repeatable=True))
        return await codec.decode_list(kind, body)

    async def watch(
        self,
        kind: type[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str = "",
        bookmarks: bool = True,
        initial_events: bool = False,
        timeout_seconds: int | None = None,
        opened: Callable[[], None] | None = None,
    ) -> AsyncIterator[WatchEvent[T]]:
        query = _query(
            watch="true",
            labelSelector=label_selector,
            fieldSelector=field_selector,
            resourceVersion=resource_version,
            # The server rejects initial events without bookmarks: a bookmark ends them.
            allowWatchBookmarks="true" if bookmarks or initial_events else "",
            sendInitialEvents="true" if initial_events else "",
            resourceVersionMatch="NotOlderThan" if initial_events else "",
            timeoutSeconds="" if timeout_seconds is None else timeout_seconds,
        )
        request = Request("GET", _collection(kind, namespace), query, repeatable=True)
        async with self._transport.stream(request) as pieces:
            if opened is not None:
                opened()
            async for event in codec.decode_events(kind, pieces):
                yield event

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        kind = type(obj)
        path = _collection(kind, _required_namespace(kind, obj.namespace))
        request = Request("POST", path, _dry_run(dry_run), kinds_codec.encode(obj))
        return codec.decode_object(kind, await self._call(request))

    async def create_raw(self, kind: type[Object], value: dict[str, Any]) -> dict[str, Any]:
        """Creates an object from plain JSON, with fields that the structs do not name."""
        namespace = str((value.get("metadata") or {}).get("namespace") or "")
        path = _collection(kind, _required_namespace(kind, namespace))
        answer = await self._call(Request("POST", path, body=msgspec.json.encode(value)))
        return msgspec.json.decode(answer, type=dict[str, Any])

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        kind = type(obj)
        if obj.uid and not kinds_codec.has_source(obj):
            # It comes from a list or a watch, which keep only the fields of the struct.
            whole = await self._call(
                Request("GET", _path(kind, obj.namespace, obj.name), repeatable=True)
            )
            kinds_codec.adopt_source(obj, whole)
        path = _path(kind, obj.namespace, obj.name, subresource)
        request = Request("PUT", path, _dry_run(dry_run), kinds_codec.encode(obj), repeatable=True)
        return codec.decode_object(kind, await self._call(request))

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: interface.MergePatch | interface.JsonPatch,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        merge = isinstance(patch, dict)
        request = Request(
            "PATCH",
            _path(kind, namespace, name, subresource),
            _dry_run(dry_run),
            msgspec.json.encode(patch),
            content_type=MERGE_PATCH if merge else JSON_PATCH,
            repeatable=merge,
        )
        return codec.decode_object(kind, await self._call(request))

    async def delete(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        propagation: Propagation = "Background",
        preconditions: Preconditions | None = None,
        grace_seconds: int | None = None,
        dry_run: bool = False,
    ) -> T | None:
        options: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
        }
        if preconditions is not None:
            options["preconditions"] = _present(
                uid=preconditions.uid, resourceVersion=preconditions.resource_version
            )
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if dry_run:
            options["dryRun"] = ["All"]
        path = _path(kind, namespace, name)
        request = Request("DELETE", path, body=msgspec.json.encode(options), repeatable=True)
        try:
            body = await self._call(request)
        except errors.AnswerLost:
            if not self._outage_timeout:
                raise
            try:
                body = await self._call(request)
            except errors.NotFound:
                return None  # the first request deleted it
        if codec.is_status(body):
            return None
        obj = codec.decode_object(kind, body)
        return obj if _still_there(obj) else None

    async def create_subresource(
        self, kind: type[Object], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """POSTs to a subresource that is an action: pods/binding, pods/eviction, a token."""
        path = _path(kind, namespace, name, subresource)
        answer = await self._call(Request("POST", path, body=msgspec.json.encode(body)))
        return msgspec.json.decode(answer, type=dict[str, Any])

    async def raw(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        query: Query = (),
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Sends any request with the store's identity; returns status, headers and body."""
        request = Request(
            method, path, query, body, content_type, headers, repeatable=method in ("GET", "HEAD")
        )
        answer = await self._transport.send(request)
        return answer.status, answer.headers, answer.body

    async def logs(
        self,
        pod: str,
        namespace: str,
        *,
        container: str = "",
        follow: bool = False,
        tail_lines: int | None = None,
        since_seconds: int | None = None,
        timestamps: bool = False,
        previous: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yields the log of a container in pieces; with `follow`, until the container ends."""
        query = _query(
            container=container,
            follow="true" if follow else "",
            tailLines="" if tail_lines is None else tail_lines,
            sinceSeconds="" if since_seconds is None else since_seconds,
            timestamps="true" if timestamps else "",
            previous="true" if previous else "",
        )
        stream = self.text(_path(core.Pod, namespace, pod, "log"), query)
        async with contextlib.aclosing(stream) as pieces:
            async for chunk in pieces:
                yield chunk

    async def text(self, path: str, query: Query = ()) -> AsyncGenerator[bytes, None]:
        """Yields a plain text response, such as a log, in pieces; an error response is JSON."""
        request = Request("GET", path, query, headers={"Accept": "*/*"}, repeatable=True)
        async with self._transport.stream(request) as pieces:
            async for chunk in pieces:
                yield chunk

    async def close(self) -> None:
        await self._transport.close()

    async def _call(self, request: Request) -> bytes:
        answer = await self._transport.send(request)
        if answer.status >= 300:
            raise answer.error()
        return answer.body


def _transport_for(access: Access, outage_seconds: float) -> Transport:
    if request_headers.proxy(access) is None:
        return HttpTransport(access, outage_seconds=outage_seconds)
    # Imported here: few clusters are behind a proxy, and aiohttp is large.
    from windlass.store.kubernetes.http.proxy_transport import ProxyTransport

    return ProxyTransport(access, outage_seconds=outage_seconds)


def _still_there(obj: Object) -> bool:
    """Whether the object in the response to a delete still exists.

    For some kinds the API server returns the object although it is already removed.
    """
    metadata = obj.metadata
    if metadata.deletion_timestamp is None:
        return False
    ends_now = obj.resource.graceful and not metadata.deletion_grace_period_seconds
    return bool(metadata.finalizers) or not ends_now


def _collection(kind: type[Object], namespace: str) -> str:
    return kind.resource.path(_segment(namespace, "namespace") if namespace else "")


def _path(kind: type[Object], namespace: str, name: str, subresource: str = "") -> str:
    resource = kind.resource
    if not name:
        raise errors.BadRequest(f"the name of the {resource.kind} is missing")
    return resource.path(
        _required_namespace(kind, namespace), _segment(name, resource.singular), subresource
    )


def _required_namespace(kind: type[Object], namespace: str) -> str:
    if kind.resource.namespaced and not namespace:
        raise errors.BadRequest(
            f"a {kind.resource.kind} needs a namespace; set metadata.namespace or use -n"
        )
    return _segment(namespace, "namespace") if namespace else ""


def _segment(name: str, what: str) -> str:
    """The name if it is valid as one part of a path; else raises BadRequest."""
    if name in (".", "..") or not name.isprintable() or _UNSAFE.search(name):
        raise errors.BadRequest(f'"{name}" is not a valid name of a {what}')
    return name


def _query(**parameters: str | int) -> Query:
    return [(key, str(value)) for key, value in parameters.items() if value != ""]


def _dry_run(wanted: bool) -> Query:
    return [("dryRun", "All")] if wanted else ()


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
