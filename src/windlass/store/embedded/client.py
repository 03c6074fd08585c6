"""The `Store` protocol inside the server's own process: no HTTP, same semantics, same errors."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from windlass.kinds import codec
from windlass.kinds.types import core
from windlass.kinds.types.meta import Object, ObjectMeta
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import (
    DeleteOptions,
    ListQuery,
    PatchType,
    RawEvent,
    WatchQuery,
    WriteOptions,
)
from windlass.store.interface import (
    EventType,
    JsonPatch,
    MergePatch,
    ObjectList,
    Preconditions,
    Propagation,
    WatchEvent,
)

T = TypeVar("T", bound=Object)


class EmbeddedStore:
    """A `store.interface.Store` over an `Api` in this process, acting as one user."""

    def __init__(self, api: Api, user: str = "system:windlass") -> None:
        self._api = api
        self._user = user

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        return codec.decode(kind, await self._api.get(kind.resource, namespace, name))

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
        query = ListQuery(label_selector, field_selector, limit, continue_token, resource_version)
        found = await self._api.list(kind.resource, namespace, query)
        items = list_decoder(kind).decode(b"[" + found.body + b"]")
        return ObjectList(items, str(found.resource_version), found.continue_token)

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
        query = WatchQuery(
            label_selector, field_selector, resource_version, bookmarks, initial_events,
            timeout_seconds,
        )  # fmt: skip
        batches = aiter(self._api.watch(kind.resource, namespace, query))
        if opened is not None:
            opened()
        clock = asyncio.get_running_loop().time
        end = None if timeout_seconds is None else clock() + timeout_seconds
        while True:
            left = None if end is None else end - clock()
            try:
                async with asyncio.timeout(left):
                    batch = await anext(batches)
            except (TimeoutError, StopAsyncIteration):
                return  # as on a server: the watch ends and the reader resumes
            for event in batch:
                yield _decoded(kind, event)

    async def create(self, obj: T, *, dry_run: bool = False) -> T:
        options = WriteOptions(self._user, dry_run)
        data = await self._api.create(obj.resource, obj.namespace, codec.to_dict(obj), options)
        return codec.decode(type(obj), data)

    async def replace(self, obj: T, *, subresource: str = "", dry_run: bool = False) -> T:
        if obj.uid and not codec.has_source(obj):
            codec.adopt_source(obj, await self._api.get(obj.resource, obj.namespace, obj.name))
        options = WriteOptions(self._user, dry_run)
        data = await self._api.replace(
            obj.resource, obj.namespace, obj.name, codec.to_dict(obj), options, subresource
        )
        return codec.decode(type(obj), data)

    async def patch(
        self,
        kind: type[T],
        name: str,
        namespace: str = "",
        *,
        patch: MergePatch | JsonPatch,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        patch_type: PatchType = "merge" if isinstance(patch, dict) else "json"
        options = WriteOptions(self._user, dry_run)
        data = await self._api.patch(
            kind.resource, namespace, name, patch, patch_type, options, subresource
        )
        return codec.decode(kind, data)

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
        required = preconditions or Preconditions()
        options = DeleteOptions(
            propagation, required.uid, required.resource_version, grace_seconds, dry_run
        )
        data, gone = await self._api.delete(kind.resource, namespace, name, options)
        return None if gone else codec.decode(kind, data)

    async def create_subresource(
        self, kind: type[T], name: str, namespace: str, subresource: str, body: dict[str, Any]
    ) -> None:
        """pods/binding and pods/eviction."""
        options = WriteOptions(self._user)
        if kind is core.Pod and subresource == "binding":
            await self._api.bind(namespace, name, body, options)
        elif kind is core.Pod and subresource == "eviction":
            await self._api.evict(namespace, name, body, options)
        else:
            raise errors.NotFound(f"{kind.resource.key} has no subresource {subresource}")

    async def close(self) -> None:
        """The API belongs to the server, which closes it."""


@functools.cache
def list_decoder(kind: type[T]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(list[kind])  # type: ignore[valid-type]


def _decoded(kind: type[T], event: RawEvent) -> WatchEvent[T]:
    name: EventType = event.type  # type: ignore[assignment]
    if name == "BOOKMARK":
        metadata = _bookmark_decoder.decode(event.data).metadata
        return WatchEvent(name, codec.bookmark(kind, metadata), event.initial_end)
    return WatchEvent(name, codec.decode(kind, event.data))


class _Bookmark(msgspec.Struct):
    metadata: ObjectMeta


_bookmark_decoder = msgspec.json.Decoder(_Bookmark)
