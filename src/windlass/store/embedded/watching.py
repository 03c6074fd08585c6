"""One watch: from a revision onward, through a selector, in batches.

Called by `api.watch`. A watch is a cursor over the rings of the watch cache and the history of the
MVCC store. It has no queue, so a slow reader costs no memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from windlass.kinds.types.resource import Resource
from windlass.store import errors, selectors
from windlass.store.embedded.mvcc import ADDED, DELETED, MODIFIED, MvccStore, Revision
from windlass.store.embedded.options import ListQuery, RawEvent, RawList, WatchQuery
from windlass.store.embedded.watch_cache import WatchCache

BOOKMARK_SECONDS = 30.0
HISTORY_SLICE = 500
FIRST_SLICE = 100
SLICE_BYTES = 1 << 20
PART_BYTES = 256 << 10
_NAMES = {ADDED: "ADDED", MODIFIED: "MODIFIED", DELETED: "DELETED"}


@dataclasses.dataclass(frozen=True, slots=True)
class WatchSource:
    """The sources of a watch."""

    mvcc: MvccStore
    watch_cache: WatchCache
    list_objects: Callable[[Resource, str, ListQuery], Awaitable[RawList]]


async def watch(
    source: WatchSource, resource: Resource, namespace: str, query: WatchQuery
) -> AsyncIterator[list[RawEvent]]:
    """Yields batches of events until the API closes. Raises Gone when compaction has overtaken the
    reader."""
    selector = selectors.parse(resource, query.label_selector, query.field_selector)
    start = parse_version(query.resource_version)
    refuse_future(start, source.mvcc)
    cursor = start
    if start == 0 or query.initial_events:
        async for found in _slices(source, resource, namespace, query):
            cursor = found.resource_version
            yield [RawEvent("ADDED", data) for data in found.items]
        if query.initial_events and query.bookmarks:
            yield [bookmark(resource, cursor, initial_end=True)]
    elif start < source.mvcc.compacted:
        raise errors.Gone(f"too old resource version: {start} ({source.mvcc.compacted})")
    cache = source.watch_cache
    bookmark_after = _bookmark_after(query.timeout_seconds)
    quiet = False
    while not cache.closed:
        latest = cache.latest  # read before the history: published changes are on disk
        changes = cache.after(resource.key, cursor)
        if changes is None:
            changes = await source.mvcc.history(resource.key, cursor, HISTORY_SLICE)
        if changes:
            changes = _first_part(changes)
            cursor = changes[-1].rv
            if events := _selected(changes, namespace, selector):
                yield events
            continue
        cursor = max(cursor, latest)
        if quiet and query.bookmarks:
            yield [bookmark(resource, cursor)]
        quiet = not await cache.wait(resource.key, cursor, bookmark_after)


def _bookmark_after(timeout_seconds: int | None) -> float:
    """Seconds without a change until a bookmark: short enough that one is sent before the watch
    times out, so that the client resumes from there."""
    if not timeout_seconds:
        return BOOKMARK_SECONDS
    return min(BOOKMARK_SECONDS, max(timeout_seconds - 2.0, timeout_seconds / 2))


async def _slices(
    source: WatchSource, resource: Resource, namespace: str, query: WatchQuery
) -> AsyncIterator[RawList]:
    """Yields all objects as of one revision, about SLICE_BYTES at a time, so that objects which a
    slow reader has not taken are not in memory."""
    limit, token = FIRST_SLICE, ""
    while True:
        page = ListQuery(query.label_selector, query.field_selector, limit, token)
        found = await source.list_objects(resource, namespace, page)
        yield found
        token = found.continue_token
        if not token:
            return
        limit = max(1, min(2 * limit, SLICE_BYTES * limit // (len(found.body) + 1)))


def _first_part(changes: list[Revision]) -> list[Revision]:
    """The changes to send at once: a reader that has stopped reading keeps one part in memory."""
    size = 0
    for count, change in enumerate(changes):
        size += len(change.data)
        if size > PART_BYTES and count:
            return changes[:count]
    return changes


def parse_version(text: str) -> int:
    """A resourceVersion as a number; 0 if it is empty."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise errors.BadRequest(f"invalid resource version {text[:60]!r}: it must be a number")
    return int(text)


def refuse_future(version: int, mvcc: MvccStore) -> None:
    """Raises ServerTimeout for a revision that does not exist yet. Also asks the disk, because a
    reader may see a commit before `last_rv` is updated."""
    if version > mvcc.last_rv and version > (latest := mvcc.durable_rv()):
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
    changes: list[Revision], namespace: str, selector: selectors.Selector
) -> list[RawEvent]:
    here = [c for c in changes if not namespace or c.key.namespace == namespace]
    if selector.selects_all:
        return [RawEvent(_NAMES[change.event], change.data) for change in here]
    return [event for change in here if (event := _seen_through(change, selector))]


def _seen_through(change: Revision, selector: selectors.Selector) -> RawEvent | None:
    """The event for a reader of the selected objects; None if it concerns none of them."""
    before = change.previous is not None and selector.matches(change.previous)
    after = change.event != DELETED and selector.matches(change.data)
    if before and after:
        return RawEvent("MODIFIED", change.data)
    if after:
        return RawEvent("ADDED", change.data)
    if before:
        # The last selected state, with the revision at which it stopped being selected.
        return RawEvent("DELETED", _restamped(change.previous or change.data, change.rv))
    return None


def _restamped(data: bytes, rv: int) -> bytes:
    value = msgspec.json.decode(data)
    value["metadata"]["resourceVersion"] = str(rv)
    return msgspec.json.encode(value)
