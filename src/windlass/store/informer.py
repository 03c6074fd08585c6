"""A live copy of all objects of one kind: list, then watch, into an index, with handlers.

Controllers and the scheduler hold informers and read them instead of asking the server. Works on
any `Store`. It never writes, and it never gives up: it survives cut watches, servers that restart,
history that was compacted, and a missing permission that an administrator has yet to grant.

Handlers are plain functions called in the order of the changes, after the index was brought up to
date. By contract they are quick (put a key into a queue); while one runs, the watch is not read. A
slow one therefore costs time but no change: the server cuts a watch that lags, and the informer
resumes it where it stopped or lists again. What a handler raises is logged and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar

from windlass.kinds.types.meta import Object
from windlass.store import errors
from windlass.store.interface import ObjectList, Store, WatchEvent

T = TypeVar("T", bound=Object)
Key = tuple[str, str]
"""(namespace, name)"""

Change = Literal["ADDED", "MODIFIED", "DELETED"]
Handler = Callable[[Change, T | None, T | None], None]
"""Called with the change, the object before and the object after. Of a deleted object, `before`
is its last known state and `after` is None."""
IndexFunction = Callable[[T], Iterable[str]]

log = logging.getLogger(__name__)

_TURN = 256
"""Changes applied before other tasks get a turn."""
_BRIEF = 1.0
"""A watch that ends sooner than this many seconds is followed by a pause, not at once."""
_WATCH_SECONDS = (300, 600)
"""Watches are renewed after a random time in this range, so that the load spreads over servers."""


@dataclasses.dataclass(slots=True)
class Metrics:
    """Counters for the metrics page."""

    relists: int = 0
    """Full lists after the first."""
    restarts: int = 0
    """Watches opened after the first."""
    failures: int = 0
    changes: int = 0
    handler_errors: int = 0
    last_event_at: float | None = None
    """Unix time of the last thing heard from the server, bookmarks included."""


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between failures: doubling, with jitter so that clients do not come back as one."""

    first: float = 0.2
    longest: float = 30.0

    def pause(self, failures: int, rng: random.Random) -> float:
        ceiling = min(self.longest, self.first * 2.0 ** min(failures - 1, 30))
        return ceiling * rng.uniform(0.5, 1.0)


class Informer(Generic[T]):
    """`start` it (or use `async with`), wait until it is `synced`, then read it like a mapping."""

    def __init__(
        self,
        store: Store,
        kind: type[T],
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        on_event: Handler[T] | None = None,
        *,
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        page_size: int = 0,
        start: ObjectList[T] | None = None,
        backoff: Backoff = Backoff(),  # noqa: B008 (immutable)
        rng: random.Random | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.metrics = Metrics()
        self.last_error: errors.ApiError | None = None
        """Why the last list or watch failed; None once things work again."""
        self._store = store
        self._kind = kind
        self._where: dict[str, Any] = {
            "namespace": namespace,
            "label_selector": label_selector,
            "field_selector": field_selector,
        }
        self._handlers: list[Handler[T]] = [on_event] if on_event else []
        self._objects: dict[Key, T] = {}
        self._indexes = {name: _Index(function) for name, function in (indexes or {}).items()}
        self._page_size = page_size
        self._start = start
        """What was read already: the first list is this one."""
        self._backoff = backoff
        self._rng = rng or random.Random()  # noqa: S311 (spreads load, keeps no secret)
        self._sleep = sleep
        self._clock = clock
        self._position = ""
        self._must_list = True
        self._was_watching = False
        self._failures = 0
        """In a row. A list alone does not end the row: the watch after it may fail each time."""
        self._synced = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # --- reading ------------------------------------------------------------------------------

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._objects.get((namespace, name))

    def by(self, index: str, value: str) -> list[T]:
        """The objects for which the index function of that name gave `value`."""
        return [self._objects[key] for key in self._indexes[index].keys(value)]

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def position(self) -> str:
        """The resourceVersion up to which everything is in the index."""
        return self._position

    # --- life ---------------------------------------------------------------------------------

    def add_handler(self, handler: Handler[T]) -> None:
        """Calls the handler from now on, and with ADDED for objects that exist already."""
        for obj in self:
            self._call(handler, "ADDED", None, obj)
        self._handlers.append(handler)

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("this informer was started already")
        name = f"informer {self._kind.resource.key}"
        self._task = asyncio.create_task(self._run(), name=name)

    async def synced(self) -> None:
        """Returns when the first list is in the index and was passed to the handlers."""
        if self._task is None or self._synced.is_set():
            await self._synced.wait()
            return
        waiting = asyncio.create_task(self._synced.wait())
        try:
            await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if not self._synced.is_set():
            what = self._kind.resource.key
            raise errors.Unavailable(f"the informer of {what} was stopped before it was in sync")

    async def stop(self) -> None:
        """Ends the watch. The index stays as it is; no handler is called any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def __aenter__(self) -> Informer[T]:
        self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # --- list and watch -----------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                if self._must_list:
                    await self._list()
                await self._watch()
            except errors.ApiError as error:
                await self._recover(error)
            except Exception as error:
                # A defect of ours or of an index function; a dead informer would hide it.
                log.exception("following %s failed", self._kind.resource.key)
                await self._recover(errors.ApiError(f"{type(error).__name__}: {error}"))

    async def _recover(self, error: errors.ApiError) -> None:
        """After a failure: whether the position still holds, and how long to wait."""
        self._failures += 1
        self.metrics.failures += 1
        self.last_error = error
        if not isinstance(error, errors.Unavailable | errors.TooManyRequests):
            # Gone: history was compacted. Anything else: do not trust the position either.
            self._must_list = True
        if isinstance(error, errors.Gone) and self._failures == 1:
            return
        pause = max(self._backoff.pause(self._failures, self._rng), error.retry_after or 0.0)
        level = logging.DEBUG if self._failures == 1 else logging.WARNING
        what = self._kind.resource.key
        log.log(level, "following %s again in %.1f s: %s", what, pause, error.message)
        await self._sleep(pause)

    async def _list(self) -> None:
        listed = await self._read_all()
        if self._synced.is_set():
            self.metrics.relists += 1
        self._heard()
        # A store restored from a backup has an older version; then the list is right.
        went_back = _older(listed.resource_version, self._position)
        present = {_key(obj): obj for obj in listed.items}
        changes = 0
        for key in [key for key in self._objects if key not in present]:
            self._remove(key)
            changes += 1
            if changes % _TURN == 0:
                await asyncio.sleep(0)
        for key, obj in present.items():
            self._put(key, obj, accept_older=went_back)
            changes += 1
            if changes % _TURN == 0:
                await asyncio.sleep(0)
        self._position = listed.resource_version
        self._must_list = False
        self._synced.set()

    async def _read_all(self) -> ObjectList[T]:
        if self._start is not None:
            known, self._start = self._start, None
            return known
        page = await self._store.list(self._kind, **self._where, limit=self._page_size)
        items = list(page.items)
        try:
            while page.continue_token:
                page = await self._store.list(
                    self._kind,
                    **self._where,
                    limit=self._page_size,
                    continue_token=page.continue_token,
                )
                items += page.items
        except errors.Gone:
            # The pages took longer than history is kept; all at once cannot expire.
            return await self._store.list(self._kind, **self._where)
        return ObjectList(items, page.resource_version)

    async def _watch(self) -> None:
        self.metrics.restarts += self._was_watching
        self._was_watching = True
        began, applied = self._clock(), 0
        stream = self._store.watch(
            self._kind,
            **self._where,
            resource_version=self._position,
            timeout_seconds=self._rng.randint(*_WATCH_SECONDS),
            opened=self._heard,
        )
        try:
            async with _closing(stream):
                async for event in stream:
                    self._heard()
                    self._apply(event)
                    applied += 1
                    if applied % _TURN == 0:
                        await asyncio.sleep(0)
        finally:
            useful = bool(applied) or self._clock() - began >= _BRIEF
            if useful:
                self._failures = 0
        if not useful:
            raise errors.Unavailable("the server ended the watch at once")

    def _heard(self) -> None:
        self.metrics.last_event_at = time.time()
        self.last_error = None

    def _apply(self, event: WatchEvent[T]) -> None:
        version = event.object.metadata.resource_version
        if not _older(self._position, version):
            return  # the handlers know it
        self._position = version
        key = _key(event.object)
        if event.type == "DELETED":
            if key in self._objects:
                self._remove(key, event.object)
        elif event.type != "BOOKMARK":
            self._put(key, event.object)

    # --- the index ----------------------------------------------------------------------------

    def _put(self, key: Key, obj: T, *, accept_older: bool = False) -> None:
        known = self._objects.get(key)
        if known is not None and known.uid != obj.uid:
            # Deleted and made again while we were not looking: two changes, not one.
            self._remove(key)
            known = None
        if known is not None:
            before, now = known.metadata.resource_version, obj.metadata.resource_version
            if before == now or not (accept_older or _older(before, now)):
                return
        for index in self._indexes.values():
            index.put(key, obj)
        self._objects[key] = obj
        self._notify("ADDED" if known is None else "MODIFIED", known, obj)

    def _remove(self, key: Key, last: T | None = None) -> None:
        known = self._objects.pop(key)
        for index in self._indexes.values():
            index.remove(key)
        self._notify("DELETED", last or known, None)

    def _notify(self, change: Change, before: T | None, after: T | None) -> None:
        self.metrics.changes += 1
        for handler in self._handlers:
            self._call(handler, change, before, after)

    def _call(self, handler: Handler[T], change: Change, before: T | None, after: T | None) -> None:
        try:
            handler(change, before, after)
        except Exception:
            self.metrics.handler_errors += 1
            obj = after or before
            what = f"{self._kind.resource.kind} {obj.namespace}/{obj.name}" if obj else ""
            log.exception("a handler failed on %s of %s", change, what)


class _Index(Generic[T]):
    """Keys by the index values of the objects, as computed when they were put in."""

    def __init__(self, function: IndexFunction[T]) -> None:
        self._function = function
        self._keys: dict[str, dict[Key, None]] = {}
        self._values: dict[Key, tuple[str, ...]] = {}

    def keys(self, value: str) -> list[Key]:
        return list(self._keys.get(value, ()))

    def put(self, key: Key, obj: T) -> None:
        values = tuple(self._function(obj))
        self.remove(key)
        self._values[key] = values
        for value in values:
            self._keys.setdefault(value, {})[key] = None

    def remove(self, key: Key) -> None:
        for value in self._values.pop(key, ()):
            keys = self._keys.get(value, {})
            keys.pop(key, None)
            if not keys:
                self._keys.pop(value, None)


def _key(obj: Object) -> Key:
    return (obj.namespace, obj.name)


def _older(first: str, second: str) -> bool:
    """Whether `first` comes before `second`. Versions that are not numbers count as new."""
    if first.isdigit() and second.isdigit():
        return int(first) < int(second)
    return first != second


@contextlib.asynccontextmanager
async def _closing(stream: AsyncIterator[Any]) -> AsyncIterator[None]:
    """Ends a watch at once when we leave it, and not when the collector gets to it."""
    try:
        yield
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
