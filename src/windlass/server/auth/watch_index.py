"""Keeps a small index in step with a kind, through the Api's own watch.

Used by `server.auth.authenticator` for tokens and role bindings. After a gap (410) it starts over
and also removes what was deleted meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

import msgspec

from windlass.kinds.types.resource import Resource
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import RawEvent, WatchQuery

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 1.0


class Index(Protocol):
    def put(self, namespace: str, name: str, obj: dict[str, Any]) -> None: ...
    def remove(self, namespace: str, name: str) -> None: ...


class Follower:
    """One watch that fills one index."""

    def __init__(self, api: Api, resource: Resource, namespace: str, index: Index) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._index = index
        self._known: set[tuple[str, str]] = set()
        self._before: set[tuple[str, str]] | None = None
        """The keys before the watch restarted; None once it has caught up."""
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once the index is complete."""
        self._task = asyncio.create_task(self._run(), name=f"follow {self._resource.key}")
        waiter = asyncio.create_task(self._synced.wait())
        await asyncio.wait((self._task, waiter), return_when=asyncio.FIRST_COMPLETED)
        if not waiter.done():
            waiter.cancel()
            self._task.result()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self._before = set(self._known)
            query = WatchQuery(bookmarks=True, initial_events=True)
            try:
                async for batch in self._api.watch(self._resource, self._namespace, query):
                    for event in batch:
                        self._apply(event)
            except errors.ApiError as problem:
                _log.info("watch of %s begins anew: %s", self._resource.key, problem.message)
            await asyncio.sleep(_RETRY_SECONDS)

    def _apply(self, event: RawEvent) -> None:
        if event.type == "BOOKMARK":
            if event.initial_end:
                self._caught_up()
            return
        obj = msgspec.json.decode(event.data)
        metadata = obj["metadata"]
        key = (metadata.get("namespace", ""), metadata.get("name", ""))
        if event.type == "DELETED":
            self._known.discard(key)
            self._index.remove(*key)
            return
        self._known.add(key)
        if self._before is not None:
            self._before.discard(key)
        self._index.put(*key, obj)

    def _caught_up(self) -> None:
        for key in self._before or ():
            self._known.discard(key)
            self._index.remove(*key)
        self._before = None
        self._synced.set()
