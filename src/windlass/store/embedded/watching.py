"""One watch: from a revision onward, through a selector, in batches.

Called by `api.watch`. A watch is a cursor over the hub's ring and the engine's history; it holds
no queue, so its reader may be as slow as it likes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from windlass.kinds.resources import Resource
from windlass.store import errors, selectors
from windlass.store.embedded.engine import ADDED, DELETED, MODIFIED, Change, Engine
from windlass.store.embedded.requests import ListQuery, RawEvent, RawList, WatchQuery

if TYPE_CHECKING:
    from windlass.store.embedded.api import Api

BOOKMARK_SECONDS = 30.0
HISTORY_SLICE = 500
FIRST_SLICE = 100
SLICE_BYTES = 1 << 20
PART_BYTES = 256 << 10
_NAMES = {ADDED: "ADDED", MODIFIED: "MODIFIED", DELETED: "DELETED"}


async def watch(
    api: Api, resource: Resource, namespace: str, query: WatchQuery
) -> AsyncIterator[list[RawEvent]]:
    """Batches of events; ends when the API closes; Gone when compaction overtook the reader."""
    selector = selectors.parse(resource, query.label_selector, query.field_selector)
    start = parse_version(query.resource_version)
    refuse_future(start, api.engine)
    cursor = start
    if start == 0 or query.initial_events:
        async for found in _slices(api, resource, namespace, query):
            cursor = found.resource_version
            yield [RawEvent("ADDED", data) for data in found.items]
        if query.initial_events and query.bookmarks:
            yield [bookmark(resource, cursor, initial_end=True)]
    elif start < api.engine.compacted:
        raise errors.Gone(f"too old resource version: {start} ({api.engine.compacted})")
    patience = _bookmark_after(query.timeout_seconds)
    quiet = False
    while not api.hub.closed:
        latest = api.hub.latest  # read before history: what was published by now is on disk
        changes = api.hub.after(resource.key, cursor)
        if changes is None:
            changes = await api.engine.history(resource.key, cursor, HISTORY_SLICE)
        if changes:
            changes = _first_part(changes)
            cursor = changes[-1].rv
            if events := _selected(changes, namespace, selector):
                yield events
            continue
        cursor = max(cursor, latest)
        if quiet and query.bookmarks:
            yield [bookmark(resource, cursor)]
        quiet = not await api.hub.wait(resource.key, cursor, patience)


def _bookmark_after(timeout_seconds: int | None) -> float:
    """Often enough, and once more shortly before the watch ends, so that it resumes from there."""
    if not timeout_seconds:
        return BOOKMARK_SECONDS
    return min(BOOKMARK_SECONDS, max(timeout_seconds - 2.0, timeout_seconds / 2))


async def _slices(
    api: Api, resource: Resource, namespace: str, query: WatchQuery
) -> AsyncIterator[RawList]:
    """All objects as of one revision, about SLICE_BYTES at a time: what a slow reader has not
    taken yet is not in memory."""
    limit, token = FIRST_SLICE, ""
    while True:
        page = ListQuery(query.label_selector, query.field_selector, limit, token)
        found = await api.list(resource, namespace, page)
        yield found
        token = found.continue_token
        if not token:
            return
        limit = max(1, min(2 * limit, SLICE_BYTES * limit // (len(found.body) + 1)))


def _first_part(changes: list[Change]) -> list[Change]:
    """As much as is sent at once: many readers that stopped reading each hold one part."""
    size = 0
    for count, change in enumerate(changes):
        size += len(change.data)
        if size > PART_BYTES and count:
            return changes[:count]
    return changes


def parse_version(text: str) -> int:
    """A resourceVersion as a number; 0 when there is none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise errors.BadRequest(f"invalid resource version {text[:60]!r}: it must be a number")
    return int(text)


def refuse_future(version: int, engine: Engine) -> None:
    """A version read a moment ago may be known to readers before `last_rv` says so."""
    if version > engine.last_rv and version > (latest := engine.durable_rv()):
        raise errors.ServerTimeout(
            f"Too large resource version: {version}, current: {latest}",
            causes=(errors.Cause("", "Too large resource version", "ResourceVersionTooLarge"),),
            retry_after=1,
        )


def bookmark(resource: Resource, rv: int, *, initial_end: bool = False) -> RawEvent:
    metadata: dict[str, object] = {"resourceVersion": str(rv), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    body = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return RawEvent("BOOKMARK", msgspec.json.encode(body), initial_end)


def _selected(
    changes: list[Change], namespace: str, selector: selectors.Selector
) -> list[RawEvent]:
    here = [c for c in changes if not namespace or c.key.namespace == namespace]
    if selector.selects_all:
        return [RawEvent(_NAMES[change.event], change.data) for change in here]
    return [event for change in here if (event := _seen_through(change, selector))]


def _seen_through(change: Change, selector: selectors.Selector) -> RawEvent | None:
    """The change as one who sees only selected objects must be told it."""
    before = change.previous is not None and selector.matches(change.previous)
    after = change.event != DELETED and selector.matches(change.data)
    if before and after:
        return RawEvent("MODIFIED", change.data)
    if after:
        return RawEvent("ADDED", change.data)
    if before:
        # Its last state that this reader may see, with the version at which it went.
        return RawEvent("DELETED", _restamped(change.previous or change.data, change.rv))
    return None


def _restamped(data: bytes, rv: int) -> bytes:
    value = msgspec.json.decode(data)
    value["metadata"]["resourceVersion"] = str(rv)
    return msgspec.json.encode(value)
