"""The object API of the embedded engine, on top of the MVCC store.

Called by `server` (over HTTP) and by `store.embedded.client` (in-process), with the same rules,
errors and durability. Authorization is the server's task.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from windlass.kinds import registry
from windlass.kinds.types import core
from windlass.kinds.types.meta import Object
from windlass.kinds.types.resource import Resource
from windlass.store import errors, limits, patches, selectors
from windlass.store.embedded import garbage_collector, strategy, watching
from windlass.store.embedded.mvcc import Key, MvccStore, Revision, Transaction
from windlass.store.embedded.namespace_usage import NamespaceUsage
from windlass.store.embedded.options import (
    DeleteOptions,
    Json,
    ListQuery,
    PatchType,
    RawEvent,
    RawList,
    WatchQuery,
    WriteOptions,
)
from windlass.store.embedded.watch_cache import WatchCache

SLICE = 500
"""Objects that are read at once when a selector must decode each."""
NAME_TRIES = 8
"""Tries of `generateName` with different suffixes."""

R = TypeVar("R")
Objects = list[bytes]
Events = list[RawEvent]
Edit = Callable[[Json], Json]
"""Turns the stored object into the requested one; may raise."""


class Api:
    """The object API of one store file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.mvcc = MvccStore(path, self._committed)
        self.watch_cache = WatchCache(self.mvcc.last_rv)
        self.usage = NamespaceUsage(self.mvcc.usage())
        self.clock = clock
        self._collector = garbage_collector.GarbageCollector(self)
        self._collecting: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Api:
        """Opens the API on a store file, which is created or migrated if necessary, and starts the
        garbage collector."""
        api = cls(path, clock)
        api._collecting = asyncio.create_task(api._collector.run(), name="garbage-collector")
        return api

    async def close(self) -> None:
        """Ends all watches, stops the collector and waits for accepted writes."""
        self.watch_cache.close()
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        await self.mvcc.close()

    def _committed(self, changes: list[Revision]) -> None:
        self.usage.observe(changes)
        self.watch_cache.publish(changes)
        self._collector.observe(changes)

    # --- reading

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        data = self.mvcc.get(_key(resource, namespace, name)) if _plain(name, namespace) else None
        if data is None:
            raise not_found(resource, name)
        return data

    async def list(self, resource: Resource, namespace: str, query: ListQuery) -> RawList:
        """A page of objects; `continue_token` continues at the revision of the first page."""
        selector = selectors.parse(resource, query.label_selector, query.field_selector)
        at, after = self._starting_point(query)
        if not _plain(namespace):
            return RawList(b"", at or self.mvcc.last_rv)
        if selector.selects_all:
            page = await self.mvcc.page(resource.key, namespace, after, query.limit, at)
            token = _continue_token(page.rv, page.last) if page.last else ""
            return RawList(page.body, page.rv, token, page.remaining if page.last else None)
        return await self._select(resource, namespace, selector, query.limit, at, after)

    async def _select(
        self,
        resource: Resource,
        namespace: str,
        selector: selectors.Selector,
        limit: int,
        at: int,
        after: tuple[str, str],
    ) -> RawList:
        kept: list[bytes] = []
        # With a mark, few objects are read that are not selected: read all at once.
        size = 0 if selector.mark and not limit else SLICE
        while True:
            page = await self.mvcc.page(resource.key, namespace, after, size, at, selector.mark)
            at = page.rv
            for data in filter(selector.matches, RawList(page.body, at).items):
                if limit and len(kept) == limit:
                    return RawList(b",".join(kept), at, _continue_token(at, _place(kept[-1])))
                kept.append(data)
            if page.last is None:
                return RawList(b",".join(kept), at)
            after = page.last

    def _starting_point(self, query: ListQuery) -> tuple[int, tuple[str, str]]:
        """The revision to read at (0: now) and the key to continue after."""
        if query.limit < 0:
            raise errors.BadRequest("limit must not be negative")
        if query.continue_token:
            if query.resource_version not in ("", "0"):
                raise errors.BadRequest(
                    "specifying resource version is not allowed when using continue"
                )
            return _parse_continue(query.continue_token)
        version = watching.parse_version(query.resource_version)
        watching.refuse_future(version, self.mvcc)
        match = query.resource_version_match
        if match not in ("", "Exact", "NotOlderThan"):
            raise errors.BadRequest("resourceVersionMatch is Exact or NotOlderThan")
        if match and not query.resource_version:
            raise errors.BadRequest(
                "resourceVersionMatch is forbidden unless resourceVersion is provided"
            )
        if match == "Exact" and not version:
            raise errors.BadRequest(
                'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
            )
        return (version if match == "Exact" else 0), ("", "")

    def watch(self, resource: Resource, namespace: str, query: WatchQuery) -> AsyncIterator[Events]:
        """Yields changes in batches until the caller stops or the API closes; see `watching`."""
        source = watching.WatchSource(self.mvcc, self.watch_cache, self.list)
        return watching.watch(source, resource, namespace, query)

    # --- writing

    async def create(
        self, resource: Resource, namespace: str, body: Any, options: WriteOptions
    ) -> bytes:
        kind = kind_of(resource)
        checked = strategy.checked_body(kind, body, namespace, options)
        metadata = checked["metadata"]
        generated = bool(metadata.get("generateName")) and not metadata.get("name")
        for attempt in range(NAME_TRIES):
            fresh = strategy.new_object(kind, checked, self.clock())
            insert = functools.partial(_insert, resource=resource, fresh=fresh)
            try:
                return await self._write(insert, options.dry_run)
            except errors.AlreadyExists:
                if not generated or attempt == NAME_TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    async def replace(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Any,
        options: WriteOptions,
        subresource: str = "",
    ) -> bytes:
        kind = kind_of(resource)
        checked = strategy.checked_body(kind, body, namespace, options)
        strategy.require_version(kind, checked)
        return await self._update(
            resource, namespace, name, lambda _: checked, options, subresource
        )

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Any,
        patch_type: PatchType,
        options: WriteOptions,
        subresource: str = "",
    ) -> bytes:
        kind = kind_of(resource)
        if patch_type == "strategic" and resource.group == "windlass.dev":
            raise errors.UnsupportedMediaType(
                "the body of the request was in an unknown format: strategic merge-patch is not "
                f"defined for {resource.key}; use application/merge-patch+json"
            )
        if patch_type in ("merge", "strategic") and not isinstance(patch, dict):
            raise errors.BadRequest("the patch must be a JSON object")

        def edit(old: Json) -> Json:
            if patch_type == "json":
                asked = patches.json_patch(old, patch)
            elif patch_type == "strategic":
                asked = patches.strategic(old, patch, kind=resource.kind)
            else:
                asked = patches.merge(old, patch)
            return strategy.checked_body(kind, asked, namespace, options)

        return await self._update(resource, namespace, name, edit, options, subresource)

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[bytes, bool]:
        """The resulting object, and whether it is removed."""
        if not _plain(name, namespace):
            raise not_found(resource, name)
        key = _key(resource, namespace, name)
        now = self.clock()

        def request(transaction: Transaction) -> tuple[bytes, bool]:
            previous, old = _load(transaction, resource, key)
            strategy.refuse_delete(resource, old, options)
            marked = strategy.marked_for_deletion(resource, old, options, now)
            if marked is None:
                return _remove(transaction, key, old, previous), True
            if marked == old:
                return previous, False
            return _put(transaction, key, marked, previous), False

        return await self._write(request, options.dry_run)

    async def delete_collection(
        self, resource: Resource, namespace: str, query: ListQuery, options: DeleteOptions
    ) -> Objects:
        """Deletes the listed objects one by one; skips those that are deleted meanwhile."""
        found = await self.list(resource, namespace, query)
        deleted = []
        for data in found.items:
            place_namespace, name = _place(data)
            try:
                deleted.append((await self.delete(resource, place_namespace, name, options))[0])
            except errors.NotFound:
                continue
        return deleted

    async def bind(self, namespace: str, name: str, body: Any, options: WriteOptions) -> None:
        """pods/binding: assigns a pod to a node."""
        resource = core.Pod.resource
        target = body.get("target") if isinstance(body, dict) else None
        node = target.get("name") if isinstance(target, dict) else None
        if not isinstance(node, str) or not node:
            cause = errors.Cause(
                "target.name", "is required: the node to bind to", "FieldValueRequired"
            )
            raise errors.Invalid(
                f'Binding "{name}" is invalid: target.name: {cause.message}', causes=(cause,)
            )
        metadata = body.get("metadata")
        given: Json = metadata if isinstance(metadata, dict) else {}
        moment = strategy.timestamp(self.clock())
        await self._update(
            resource,
            namespace,
            name,
            lambda old: _bound(resource, old, node, given, moment),
            options,
            "binding",
        )

    async def evict(self, namespace: str, name: str, body: Any, options: WriteOptions) -> None:
        """pods/eviction: deletes a pod. The embedded engine has no disruption budgets."""
        given = body.get("deleteOptions") if isinstance(body, dict) else None
        asked: Json = given if isinstance(given, dict) else {}
        grace = asked.get("gracePeriodSeconds")
        conditions = asked.get("preconditions")
        uid = conditions.get("uid") if isinstance(conditions, dict) else None
        delete = DeleteOptions(
            grace_seconds=grace if isinstance(grace, int) else None,
            uid=uid if isinstance(uid, str) else None,
            dry_run=options.dry_run,
        )
        await self.delete(core.Pod.resource, namespace, name, delete)

    # --- transactions

    async def _update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        edit: Edit,
        options: WriteOptions,
        subresource: str,
    ) -> bytes:
        if not _plain(name, namespace):
            raise not_found(resource, name)
        kind, key = kind_of(resource), _key(resource, namespace, name)

        def request(transaction: Transaction) -> bytes:
            previous, old = _load(transaction, resource, key)
            final = strategy.updated_object(kind, old, edit(old), subresource)
            if options.review is not None:
                final = options.review(old, final)
            if final == old:
                return previous
            if strategy.may_go(final):
                return _remove(transaction, key, final, previous)
            return _put(transaction, key, final, previous)

        return await self._write(request, options.dry_run)

    async def _write(self, request: Callable[[Transaction], R], dry_run: bool) -> R:
        if not dry_run:
            return await self.mvcc.write(request)

        def dry(transaction: Transaction) -> None:
            raise _DryRunDone(request(transaction))

        try:
            await self.mvcc.write(dry)
        except _DryRunDone as done:
            result: R = done.result
            return result
        raise AssertionError("unreachable")

    async def remove_namespace(self, name: str) -> bool:
        """Removes a terminating namespace if it is empty. Returns whether it is removed."""
        resource = core.Namespace.resource
        key = _key(resource, "", name)

        def request(transaction: Transaction) -> bool:
            previous = transaction.get(key)
            if previous is None:
                return True
            old = msgspec.json.decode(previous)
            empty = not transaction.keys_in_namespace(name, 1)
            if (
                empty
                and "deletionTimestamp" in old["metadata"]
                and not old["metadata"].get("finalizers")
            ):
                _remove(transaction, key, old, previous)
                return True
            return False

        return bool(await self.mvcc.write(request))


class _DryRunDone(Exception):
    """Has the result of a dry run; rolls its transaction back."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def kind_of(resource: Resource) -> type[Object]:
    return registry.by_key()[resource.key]


def not_found(resource: Resource, name: str) -> errors.NotFound:
    return errors.NotFound(
        f'{resource.key} "{name}" not found',
        details={"name": name, "group": resource.group, "kind": resource.plural},
    )


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return Key(resource.key, namespace if resource.namespaced else "", name)


def _plain(*names: str) -> bool:
    """Whether the names are ASCII: no other name exists."""
    return all(word.isascii() for word in names)


def _insert(transaction: Transaction, resource: Resource, fresh: Json) -> bytes:
    metadata = fresh["metadata"]
    namespace, name = metadata.get("namespace", ""), metadata["name"]
    if resource.namespaced:
        _require_namespace(transaction, resource, namespace, name)
    key = _key(resource, namespace, name)
    if transaction.exists(key):
        raise errors.AlreadyExists(
            f'{resource.key} "{name}" already exists',
            details={"name": name, "group": resource.group, "kind": resource.plural},
        )
    return _put(transaction, key, fresh, None)


def _require_namespace(
    transaction: Transaction, resource: Resource, namespace: str, name: str
) -> None:
    data = transaction.get(Key("namespaces", "", namespace))
    if data is None:
        raise not_found(core.Namespace.resource, namespace)
    if (
        b'"deletionTimestamp"' in data
        and "deletionTimestamp" in msgspec.json.decode(data)["metadata"]
    ):
        raise errors.Forbidden(
            f'{resource.key} "{name}" is forbidden: unable to create new content in namespace '
            f"{namespace} because it is being terminated",
            causes=(
                errors.Cause(
                    "metadata.namespace",
                    f"namespace {namespace} is being terminated",
                    "NamespaceTerminating",
                ),
            ),
        )


def _load(transaction: Transaction, resource: Resource, key: Key) -> tuple[bytes, Json]:
    previous = transaction.get(key)
    if previous is None:
        raise not_found(resource, key.name)
    return previous, msgspec.json.decode(previous)


def _put(transaction: Transaction, key: Key, value: Json, previous: bytes | None) -> bytes:
    data = _stamped(transaction, value)
    limits.refuse_large(data)
    if data.count(b"{") + data.count(b"[") > limits.MAX_DEPTH:  # otherwise it cannot be deep
        limits.refuse_deep(value)
    transaction.put(key, value["metadata"]["uid"], data, previous)
    return data


def _remove(transaction: Transaction, key: Key, value: Json, previous: bytes) -> bytes:
    data = _stamped(transaction, value)
    transaction.remove(key, data, previous)
    return data


def _stamped(transaction: Transaction, value: Json) -> bytes:
    value["metadata"] = {**value["metadata"], "resourceVersion": str(transaction.next_rv())}
    return msgspec.json.encode(value)


def _bound(resource: Resource, old: Json, node: str, given: Json, moment: str) -> Json:
    metadata, spec, status = old["metadata"], old.get("spec") or {}, old.get("status") or {}
    name = metadata["name"]
    if given.get("uid") and given["uid"] != metadata["uid"]:
        raise strategy.conflict(resource, name, "Precondition failed: the UID is another pod's")
    if given.get("resourceVersion") and given["resourceVersion"] != metadata["resourceVersion"]:
        raise strategy.conflict(resource, name, "Precondition failed: the pod has changed")
    if "deletionTimestamp" in metadata:
        raise strategy.conflict(
            resource, name, f"pod {name} is being deleted, cannot be assigned to a host"
        )
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise strategy.conflict(resource, name, why)
    if spec.get("schedulingGates"):
        raise strategy.conflict(resource, name, f"pod {name} has non-empty .spec.schedulingGates")
    merged = {
        field: {**(metadata.get(field) or {}), **given[field]}
        for field in ("annotations", "labels")
        if isinstance(given.get(field), dict)
    }
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment}
    others = [c for c in status.get("conditions") or [] if c.get("type") != "PodScheduled"]
    return {
        **old,
        "metadata": {**metadata, **merged},
        "spec": {**spec, "nodeName": node},
        "status": {**status, "conditions": [*others, scheduled]},
    }


class _PlaceMeta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Placed(msgspec.Struct):
    metadata: _PlaceMeta


_PLACES = msgspec.json.Decoder(_Placed)


def _place(data: bytes) -> tuple[str, str]:
    metadata = _PLACES.decode(data).metadata
    return metadata.namespace, metadata.name


def _continue_token(rv: int, last: tuple[str, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([1, rv, *last])).decode().rstrip("=")


def _parse_continue(token: str) -> tuple[int, tuple[str, str]]:
    padded = token + "=" * (-len(token) % 4)
    try:
        parts = msgspec.json.decode(
            base64.urlsafe_b64decode(padded), type=tuple[Literal[1], int, str, str]
        )
    except (ValueError, msgspec.MsgspecError) as problem:
        raise errors.BadRequest(_BAD_TOKEN) from problem
    _, rv, namespace, name = parts
    if not 0 < rv < 1 << 62 or not _plain(namespace, name):
        raise errors.BadRequest(_BAD_TOKEN)
    return rv, (namespace, name)


_BAD_TOKEN = "continue key is not valid: take it from the page before"  # noqa: S105 - no secret
