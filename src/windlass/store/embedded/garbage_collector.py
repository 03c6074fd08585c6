"""The garbage collector: removes orphaned objects, terminating namespaces, old events and old
revisions.

The embedded counterpart of Kubernetes' garbage collector and namespace controller. It writes only
through the API. All of its work follows from stored state, so the next start repairs an
interruption at any point.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

import msgspec

from windlass.kinds import registry
from windlass.kinds.types import core
from windlass.kinds.types.resource import Resource
from windlass.store import errors
from windlass.store.embedded import strategy
from windlass.store.embedded.mvcc import DELETED, Key, MvccStore, Revision
from windlass.store.embedded.options import (
    DeleteOptions,
    Json,
    ListQuery,
    PatchType,
    RawList,
    WriteOptions,
)

log = logging.getLogger(__name__)

SWEEP_SECONDS = 60.0
EVENT_SECONDS = 3600
"""Lifetime of an Event, as in Kubernetes."""
HISTORY_SECONDS = 600
HISTORY_REVISIONS = 100_000
"""History is kept for this long and, within it, for this many revisions at most."""


class _Owner(msgspec.Struct):
    uid: str = ""
    blockOwnerDeletion: bool | None = None  # noqa: N815 - as on the wire


class _Meta(msgspec.Struct):
    uid: str = ""
    deletionTimestamp: str | None = None  # noqa: N815
    ownerReferences: list[_Owner] | None = None  # noqa: N815
    finalizers: list[str] | None = None


class _Head(msgspec.Struct):
    metadata: _Meta


_HEADS = msgspec.json.Decoder(_Head)


class ObjectApi(Protocol):
    """The methods of `api.Api` that the collector calls. `api` imports this module."""

    @property
    def mvcc(self) -> MvccStore: ...

    @property
    def clock(self) -> Callable[[], float]: ...

    async def list(self, resource: Resource, namespace: str, query: ListQuery) -> RawList: ...

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Json,
        patch_type: PatchType,
        options: WriteOptions,
    ) -> bytes: ...

    async def delete(
        self, resource: Resource, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[bytes, bool]: ...

    async def remove_namespace(self, name: str) -> bool: ...


class GarbageCollector:
    """Follows every commit, keeps the owners of each object, and finishes deletions."""

    def __init__(self, api: ObjectApi) -> None:
        self._api = api
        self._owned: dict[str, dict[Key, bool]] = defaultdict(dict)
        """Owner's uid -> dependents, and whether each blocks the owner's foreground deletion."""
        self._owners_of: dict[Key, list[str]] = {}
        self._deleting: dict[str, Key] = {}
        """Terminating objects by uid: their deletion continues when their dependents are gone."""
        self._work: asyncio.Queue[Key | str] = asyncio.Queue()
        """Keys to process; a string is the uid of an owner whose dependents are processed."""
        self._queued: set[Key | str] = set()
        self._samples: list[tuple[float, int]] = []

    def observe(self, changes: list[Revision]) -> None:
        """Called with every commit, in order; only queues work."""
        for change in changes:
            self._note(change.key, change.data, gone=change.event == DELETED)

    async def run(self) -> None:
        """Runs until cancelled."""
        # A crash may have interrupted any step: process all owned and terminating objects again.
        for field in ("ownerReferences", "deletionTimestamp"):
            for key, data in self._api.mvcc.mentioning(field):
                self._note(key, data, gone=False)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._collect())
            tasks.create_task(self._sweep())

    # --- observing

    def _note(self, key: Key, data: bytes, *, gone: bool) -> None:
        head = _HEADS.decode(data).metadata
        for uid in self._owners_of.pop(key, ()):
            self._owned[uid].pop(key, None)
            self._enqueue(uid)
        if gone:
            self._deleting.pop(head.uid, None)
            if self._owned.get(head.uid):
                self._enqueue(head.uid)
            if key.namespace:
                self._enqueue(Key("namespaces", "", key.namespace))
            return
        owners = head.ownerReferences or []
        if owners:
            self._owners_of[key] = [owner.uid for owner in owners]
            for owner in owners:
                self._owned[owner.uid][key] = bool(owner.blockOwnerDeletion)
            self._enqueue(key)
        if head.deletionTimestamp is not None:
            self._deleting[head.uid] = key
            self._enqueue(key)

    def _enqueue(self, item: Key | str) -> None:
        if item not in self._queued:
            self._queued.add(item)
            self._work.put_nowait(item)

    # --- collecting

    async def _collect(self) -> None:
        while True:
            item = await self._work.get()
            self._queued.discard(item)
            try:
                await self._process(item)
            except errors.ApiError as problem:
                log.warning("garbage collection of %s is retried in 1 s: %s", item, problem)
                asyncio.get_running_loop().call_later(1.0, self._enqueue, item)

    async def _process(self, item: Key | str) -> None:
        if isinstance(item, str):
            self._follow_owner(item)
            return
        data = self._api.mvcc.get(item)
        if data is None:
            return
        value: Json = msgspec.json.decode(data)
        metadata = value["metadata"]
        if item.resource == "namespaces" and "deletionTimestamp" in metadata:
            await self._empty_namespace(item.name)
            return
        if "deletionTimestamp" in metadata:
            await self._finish_deletion(item, metadata)
        elif metadata.get("ownerReferences"):
            await self._delete_if_orphaned(item, metadata)

    def _follow_owner(self, uid: str) -> None:
        dependents = self._owned.get(uid)
        if not dependents:
            self._owned.pop(uid, None)
        for key in list(dependents or ()):
            self._enqueue(key)
        if uid in self._deleting:
            self._enqueue(self._deleting[uid])

    async def _delete_if_orphaned(self, key: Key, metadata: Json) -> None:
        owners = [reference["uid"] for reference in metadata["ownerReferences"]]
        alive = await self._api.mvcc.write(lambda t: [uid for uid in owners if t.uid_exists(uid)])
        if not alive:
            await self._delete(key, DeleteOptions("Background", uid=metadata["uid"]))

    async def _finish_deletion(self, key: Key, metadata: Json) -> None:
        finalizers, uid = metadata.get("finalizers") or [], metadata["uid"]
        dependents = dict(self._owned.get(uid, {}))
        if strategy.ORPHAN in finalizers:
            for dependent in dependents:
                await self._disown(dependent, uid)
            await self._drop_finalizer(key, strategy.ORPHAN)
        elif strategy.FOREGROUND in finalizers:
            for dependent, blocks in dependents.items():
                options = DeleteOptions("Foreground" if blocks else "Background")
                await self._delete(dependent, options)
            # Dependents of other namespaces do not block: a user of one namespace must not be able
            # to block deletions in another one, or of cluster-scoped objects.
            left = self._owned.get(uid, {})
            if not any(blocks and each.namespace == key.namespace for each, blocks in left.items()):
                await self._drop_finalizer(key, strategy.FOREGROUND)

    async def _empty_namespace(self, name: str) -> None:
        keys = await self._api.mvcc.write(lambda t: t.keys_in_namespace(name, 1000))
        for key in keys:
            await self._delete(key, DeleteOptions("Background"))
        await self._api.remove_namespace(name)

    async def _delete(self, key: Key, options: DeleteOptions) -> None:
        data = self._api.mvcc.get(key)
        if data is None:
            return
        deleting = _HEADS.decode(data).metadata
        if deleting.deletionTimestamp is not None and options.propagation == "Background":
            return  # already terminating; a finalizer blocks it
        resource = registry.by_key()[key.resource].resource
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._api.delete(resource, key.namespace, key.name, options)

    async def _disown(self, key: Key, uid: str) -> None:
        data = self._api.mvcc.get(key)
        if data is None:
            return
        references = msgspec.json.decode(data)["metadata"].get("ownerReferences") or []
        kept = [reference for reference in references if reference["uid"] != uid]
        await self._patch(key, {"metadata": {"ownerReferences": kept or None}})

    async def _drop_finalizer(self, key: Key, finalizer: str) -> None:
        data = self._api.mvcc.get(key)
        if data is None:
            return
        metadata = msgspec.json.decode(data)["metadata"]
        kept = [name for name in metadata.get("finalizers") or [] if name != finalizer]
        version = metadata["resourceVersion"]
        patch = {"metadata": {"finalizers": kept or None, "resourceVersion": version}}
        await self._patch(key, patch)

    async def _patch(self, key: Key, patch: Json) -> None:
        resource = registry.by_key()[key.resource].resource
        options = WriteOptions(user="system:garbage-collector")
        try:
            await self._api.patch(resource, key.namespace, key.name, patch, "merge", options)
        except errors.NotFound:
            return
        except errors.Conflict:
            self._enqueue(key)  # it changed meanwhile: process it again

    # --- periodic work

    async def _sweep(self) -> None:
        while True:
            try:
                await self._expire_events()
                await self._compact()
                self._api.mvcc.disk_reserve.refill()
            except errors.ApiError as problem:
                log.warning("compaction of the store is retried in %g s: %s",
                            SWEEP_SECONDS, problem)  # fmt: skip
            await asyncio.sleep(SWEEP_SECONDS)

    async def _expire_events(self) -> None:
        resource = core.Event.resource
        oldest = strategy.timestamp(self._api.clock() - EVENT_SECONDS)
        for data in (await self._api.list(resource, "", ListQuery())).items:
            event = msgspec.json.decode(data, type=core.Event)
            seen = event.last_timestamp or event.metadata.creation_timestamp or ""
            if seen < oldest:
                await self._delete(
                    Key(resource.key, event.namespace, event.name), DeleteOptions(uid=event.uid)
                )

    async def _compact(self) -> None:
        """Removes revisions older than HISTORY_SECONDS or beyond HISTORY_REVISIONS."""
        now, latest = self._api.clock(), self._api.mvcc.last_rv
        self._samples.append((now, latest))
        old = [rv for at, rv in self._samples if at <= now - HISTORY_SECONDS]
        self._samples = [s for s in self._samples if s[0] > now - HISTORY_SECONDS]
        target = max(max(old, default=0), latest - HISTORY_REVISIONS)
        if target > self._api.mvcc.compacted:
            await self._api.mvcc.compact(target)
