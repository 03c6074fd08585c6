"""The object API over HTTP: `store.client.Store` against a cluster or `windlass up`.

Opened by `store.connect`. Turns each call into one REST request and each answer into structs or a
typed error. Keeps no objects: that is the reflector's part.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import msgspec

from windlass.kinds import kubernetes, wire
from windlass.kinds.meta import Object
from windlass.store import client, errors
from windlass.store.client import ObjectList, Preconditions, Propagation, WatchEvent
from windlass.store.kubernetes import codec, light, network
from windlass.store.kubernetes.access import Access
from windlass.store.kubernetes.exchange import Carrier, Query, Request

T = TypeVar("T", bound=Object)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_UNSAFE = re.compile(r"[/%?#\\ ]")
"""What a name in a path must not have in it."""


class KubernetesStore:
    """One server, one identity. Use it from one event loop; `close` it at the end."""

    def __init__(self, access: Access, transport: Carrier | None = None) -> None:
        self.access = access
        self._transport = transport or _carrier(access)

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
            # The server refuses initial events without bookmarks: one of them closes the list.
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
        request = Request("POST", path, _dry_run(dry_run), wire.encode(obj))
        return codec.decode_object(kind, await self._call(request))

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        kind = type(obj)
        if obj.uid and not wire.has_source(obj):
            # It came out of a list or a watch, which keep only what the struct names.
            whole = await self._call(
                Request("GET", _path(kind, obj.namespace, obj.name), repeatable=True)
            )
            wire.adopt_source(obj, whole)
        path = _path(kind, obj.namespace, obj.name, subresource)
        request = Request("PUT", path, _dry_run(dry_run), wire.encode(obj), repeatable=True)
        return codec.decode_object(kind, await self._call(request))

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: client.MergePatch | client.JsonPatch,
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
        body = await self._call(
            Request("DELETE", path, body=msgspec.json.encode(options), repeatable=True)
        )
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
        """Any request as it is, with our identity: (status, headers, body) of the answer."""
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
        """What a container wrote, in pieces as they arrive; ends with the container if followed."""
        query = _query(
            container=container,
            follow="true" if follow else "",
            tailLines="" if tail_lines is None else tail_lines,
            sinceSeconds="" if since_seconds is None else since_seconds,
            timestamps="true" if timestamps else "",
            previous="true" if previous else "",
        )
        stream = self.text(_path(kubernetes.Pod, namespace, pod, "log"), query)
        async with contextlib.aclosing(stream) as pieces:
            async for chunk in pieces:
                yield chunk

    async def text(self, path: str, query: Query = ()) -> AsyncGenerator[bytes, None]:
        """An answer that is plain text, such as a log, in pieces; a refusal is JSON."""
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


def _carrier(access: Access) -> Carrier:
    if network.proxy(access) is None:
        return light.LightTransport(access)
    # Imported late: few have a proxy in the way, and the library is large.
    from windlass.store.kubernetes.transport import Transport

    return Transport(access)


def _still_there(obj: Object) -> bool:
    """Whether something still holds an object that a delete answered with.

    For some kinds the API server answers with the object although it is gone already.
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
        raise errors.BadRequest(f"a {resource.kind} must be named; give its name")
    return resource.path(
        _required_namespace(kind, namespace), _segment(name, resource.singular), subresource
    )


def _required_namespace(kind: type[Object], namespace: str) -> str:
    if kind.resource.namespaced and not namespace:
        raise errors.BadRequest(
            f"a {kind.resource.kind} lives in a namespace; give it with metadata.namespace or -n"
        )
    return _segment(namespace, "namespace") if namespace else ""


def _segment(name: str, what: str) -> str:
    """A name as one part of a path. Nothing may climb out of its place in the path."""
    if name in (".", "..") or not name.isprintable() or _UNSAFE.search(name):
        raise errors.BadRequest(f'"{name}" cannot be the name of a {what}; see its documentation')
    return name


def _query(**parameters: str | int) -> Query:
    return [(key, str(value)) for key, value in parameters.items() if value != ""]


def _dry_run(wanted: bool) -> Query:
    return [("dryRun", "All")] if wanted else ()


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
