"""What a request to the object API means, on top of the engine's revisions.

Called by `server` (over HTTP) and by `store.embedded.client` (in-process): both get the same
rules, the same errors, the same durability. Who may call what is the server's business.
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

from windlass.kinds import kubernetes, registry
from windlass.kinds.meta import Object
from windlass.kinds.resources import Resource
from windlass.store import bounds, errors, patches, selectors
from windlass.store.embedded import garbage, rules, watching
from windlass.store.embedded.engine import Change, Engine, Key, Transaction
from windlass.store.embedded.hub import Hub
from windlass.store.embedded.requests import (
    DeleteOptions,
    Json,
    ListQuery,
    PatchType,
    RawEvent,
    RawList,
    WatchQuery,
    WriteOptions,
)

SLICE = 500
"""Objects read at once when a selector has to look at each."""
NAME_TRIES = 8
"""How often `generateName` tries another suffix."""

R = TypeVar("R")
Objects = list[bytes]
Events = list[RawEvent]
Edit = Callable[[Json], Json]
"""From the stored object to the one asked for; may raise."""


class Api:
    """The object API of one store file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.engine = Engine(path, self._committed)
        self.hub = Hub(self.engine.last_rv)
        self.clock = clock
        self._collector = garbage.Collector(self)
        self._collecting: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Api:
        """The API on a store file (made, or brought up to date, if need be), with its collector."""
        api = cls(path, clock)
        api._collecting = asyncio.create_task(api._collector.run(), name="garbage-collector")
        return api

    async def close(self) -> None:
        """Ends all watches, stops collecting, waits for what was accepted."""
        self.hub.close()
        if self._collecting is not None:
            self._collecting.cancel()
            await asyncio.gather(self._collecting, return_exceptions=True)
        await self.engine.close()

    def _committed(self, changes: list[Change]) -> None:
        self.hub.publish(changes)
        self._collector.observe(changes)

    # --- reading

    async def get(self, resource: Resource, namespace: str, name: str) -> bytes:
        data = self.engine.get(_key(resource, namespace, name)) if _plain(name, namespace) else None
        if data is None:
            raise not_found(resource, name)
        return data

    async def list(self, resource: Resource, namespace: str, query: ListQuery) -> RawList:
        """A page of objects; `continue_token` reads on as of the first page's revision."""
        selector = selectors.parse(resource, query.label_selector, query.field_selector)
        at, after = self._starting_point(query)
        if not _plain(namespace):
            return RawList(b"", at or self.engine.last_rv)
        if selector.selects_all:
            page = await self.engine.page(resource.key, namespace, after, query.limit, at)
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
        # With a mark little more comes back than is wanted: then all of it at once.
        size = 0 if selector.mark and not limit else SLICE
        while True:
            page = await self.engine.page(resource.key, namespace, after, size, at, selector.mark)
            at = page.rv
            for data in filter(selector.matches, RawList(page.body, at).items):
                if limit and len(kept) == limit:
                    return RawList(b",".join(kept), at, _continue_token(at, _place(kept[-1])))
                kept.append(data)
            if page.last is None:
                return RawList(b",".join(kept), at)
            after = page.last

    def _starting_point(self, query: ListQuery) -> tuple[int, tuple[str, str]]:
        """The revision to read at (0: now) and the place to read on from."""
        if query.limit < 0:
            raise errors.BadRequest("limit must not be negative")
        if query.continue_token:
            if query.resource_version not in ("", "0"):
                raise errors.BadRequest(
                    "specifying resource version is not allowed when using continue"
                )
            return _parse_continue(query.continue_token)
        version = watching.parse_version(query.resource_version)
        watching.refuse_future(version, self.engine)
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
        """Changes in batches until the caller stops reading or the API closes; see `watching`."""
        return watching.watch(self, resource, namespace, query)

    # --- writing

    async def create(
        self, resource: Resource, namespace: str, body: Any, options: WriteOptions
    ) -> bytes:
        kind = kind_of(resource)
        checked = rules.checked_body(kind, body, namespace, options)
        metadata = checked["metadata"]
        generated = bool(metadata.get("generateName")) and not metadata.get("name")
        for attempt in range(NAME_TRIES):
            fresh = rules.new_object(kind, checked, self.clock())
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
        checked = rules.checked_body(kind, body, namespace, options)
        rules.require_version(kind, checked)
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
            return rules.checked_body(kind, asked, namespace, options)

        return await self._update(resource, namespace, name, edit, options, subresource)

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[bytes, bool]:
        """The object as it now is, and whether it is gone."""
        if not _plain(name, namespace):
            raise not_found(resource, name)
        key = _key(resource, namespace, name)
        now = self.clock()

        def request(transaction: Transaction) -> tuple[bytes, bool]:
            previous, old = _load(transaction, resource, key)
            rules.refuse_delete(resource, old, options)
            marked = rules.marked_for_deletion(resource, old, options, now)
            if marked is None:
                return _remove(transaction, key, old, previous), True
            if marked == old:
                return previous, False
            return _put(transaction, key, marked, previous), False

        return await self._write(request, options.dry_run)

    async def delete_collection(
        self, resource: Resource, namespace: str, query: ListQuery, options: DeleteOptions
    ) -> Objects:
        """Deletes what the query lists, one by one; what vanishes meanwhile is not an error."""
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
        """pods/binding: says on which node a pod runs."""
        resource = kubernetes.Pod.resource
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
        moment = rules.timestamp(self.clock())
        await self._update(
            resource,
            namespace,
            name,
            lambda old: _bound(resource, old, node, given, moment),
            options,
            "binding",
        )

    async def evict(self, namespace: str, name: str, body: Any, options: WriteOptions) -> None:
        """pods/eviction: a delete that asks first. No disruption budgets are kept when embedded."""
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
        await self.delete(kubernetes.Pod.resource, namespace, name, delete)

    # --- how every write goes

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
            final = rules.updated_object(kind, old, edit(old), subresource)
            if final == old:
                return previous
            if rules.may_go(final):
                return _remove(transaction, key, final, previous)
            return _put(transaction, key, final, previous)

        return await self._write(request, options.dry_run)

    async def _write(self, request: Callable[[Transaction], R], dry_run: bool) -> R:
        if not dry_run:
            return await self.engine.write(request)

        def rehearsal(transaction: Transaction) -> None:
            raise _Rehearsed(request(transaction))

        try:
            await self.engine.write(rehearsal)
        except _Rehearsed as done:
            result: R = done.result
            return result
        raise AssertionError("unreachable")

    async def remove_namespace(self, name: str) -> bool:
        """Takes a terminating namespace away once nothing is left in it."""
        resource = kubernetes.Namespace.resource
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

        return bool(await self.engine.write(request))


class _Rehearsed(Exception):
    """Carries the result of a dry run out of its transaction, which is undone."""

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


def _plain(*words: str) -> bool:
    """No stored name has other than ASCII; asking for one is simply not finding it."""
    return all(word.isascii() for word in words)


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
        raise not_found(kubernetes.Namespace.resource, namespace)
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
    bounds.refuse_large(data)
    if data.count(b"{") + data.count(b"[") > bounds.MAX_DEPTH:  # otherwise it cannot be deep
        bounds.refuse_deep(value)
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
        raise rules.conflict(resource, name, "Precondition failed: the UID is another pod's")
    if given.get("resourceVersion") and given["resourceVersion"] != metadata["resourceVersion"]:
        raise rules.conflict(resource, name, "Precondition failed: the pod has changed")
    if "deletionTimestamp" in metadata:
        raise rules.conflict(
            resource, name, f"pod {name} is being deleted, cannot be assigned to a host"
        )
    if spec.get("nodeName"):
        why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        raise rules.conflict(resource, name, why)
    if spec.get("schedulingGates"):
        raise rules.conflict(resource, name, f"pod {name} has non-empty .spec.schedulingGates")
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
