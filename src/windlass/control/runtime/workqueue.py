"""A queue of keys, each at most once, never two workers on the same key.

`control.runtime.controller` takes keys from here for a reconciler. A key that is added while it
waits is one key; added while a worker has it, it is queued again afterwards. Failed keys return
with
a growing delay and jitter. Memory is bounded by the number of distinct keys.

It never starts a task: time comes from `Timers`.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """A monotonic clock that can call back. Tests pass one with a manual time."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancellable: ...


class LoopTimers:
    """The running event loop's own clock."""

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def call_at(self, when: float, callback: Callable[[], None]) -> Cancellable:
        return asyncio.get_running_loop().call_at(when, callback)


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """The delay of a failing key: doubling from `first` to `limit`, shortened by up to `jitter`.

    Jitter keeps keys that failed together (an unavailable API server) from returning together.
    """

    first: float = 0.05
    limit: float = 60.0
    jitter: float = 0.25

    def delay(self, failures: int, rng: random.Random) -> float:
        # The exponent is capped: a key may fail for months, and 2**10000 is not a float.
        full = min(self.limit, self.first * 2.0 ** min(failures - 1, 60))
        return float(full * (1.0 - self.jitter * rng.random()))


class WorkQueue(Generic[K]):
    """The queue. All methods are called from the event loop's thread."""

    def __init__(
        self,
        *,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        timers: Timers | None = None,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret
        self._timers = timers or LoopTimers()
        self._on_wait = on_wait
        """Called for each key that a worker gets, with the seconds that it was ready."""
        self._ready: collections.OrderedDict[K, float] = collections.OrderedDict()
        """Key -> when it became ready; in order of arrival, for fairness."""
        self._working: set[K] = set()
        self._again: dict[K, float] = {}
        """Keys that were added while a worker has them -> since when."""
        self._due: dict[K, float] = {}
        """Key -> the earliest time at which it becomes ready."""
        self._heap: list[tuple[float, int, K]] = []
        self._counter = itertools.count()
        self._timer: Cancellable | None = None
        self._failures: dict[K, int] = {}
        self._getters: collections.deque[asyncio.Future[None]] = collections.deque()
        self._closed = False

    def __len__(self) -> int:
        """Keys that are ready now."""
        return len(self._ready) + len(self._again)

    def oldest(self) -> float:
        """Seconds that the oldest ready key has waited; 0.0 if none is ready."""
        since = [*itertools.islice(self._ready.values(), 1), *self._again.values()]
        return self._timers.time() - min(since) if since else 0.0

    def waiting(self) -> int:
        """Keys that become ready later."""
        return len(self._due)

    def add(self, key: K) -> None:
        """Makes the key ready now, once, however often it is added."""
        if self._closed:
            return
        self._due.pop(key, None)
        now = self._timers.time()
        if key in self._working:
            self._again.setdefault(key, now)
        elif key not in self._ready:
            self._ready[key] = now
            self._wake_one()

    def add_after(self, key: K, delay: float) -> None:
        """Makes the key ready in `delay` seconds; the earliest of several times counts."""
        if delay <= 0:
            self.add(key)
            return
        if self._closed or key in self._ready or key in self._again:
            return
        when = self._timers.time() + delay
        if when >= self._due.get(key, float("inf")):
            return
        self._due[key] = when
        heapq.heappush(self._heap, (when, next(self._counter), key))
        self._drop_stale_heap_entries()
        self._set_timer()

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Queues a failed key after its back-off; returns the delay."""
        self._failures[key] = self._failures.get(key, 0) + 1
        delay = max(at_least, self._backoff.delay(self._failures[key], self._rng))
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """The key succeeded: its next failure starts at the first back-off again."""
        self._failures.pop(key, None)

    async def get(self) -> K | None:
        """The next key, of this worker until `done`; None when the queue is closed and empty."""
        while not self._ready:
            if self._closed:
                return None
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # The wake-up may have been for this worker: pass it on.
                if getter.done() and not getter.cancelled() and self._ready:
                    self._wake_one()
                raise
            finally:
                if getter in self._getters:
                    self._getters.remove(getter)
        key, since = self._ready.popitem(last=False)
        self._working.add(key)
        self._on_wait(max(0.0, self._timers.time() - since))
        return key

    def done(self, key: K) -> None:
        """Releases the key; if it was added meanwhile it is ready again."""
        self._working.discard(key)
        since = self._again.pop(key, None)
        if since is not None:
            self._ready[key] = since
            self._wake_one()

    def close(self) -> None:
        """Takes no more keys and drops those without a worker; workers then get None."""
        self._closed = True
        self._ready.clear()
        self._again.clear()
        self._due.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._getters:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return

    def _promote(self) -> None:
        """Moves due keys to the ready keys."""
        self._timer = None
        now = self._timers.time()
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            if self._due.get(key) == when:
                self.add(key)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer = self._timers.call_at(self._heap[0][0], self._promote)

    def _drop_stale_heap_entries(self) -> None:
        # A key that moves forward leaves its old entry behind; without this they would accumulate.
        if len(self._heap) > 2 * len(self._due) + 16:
            self._heap = [e for e in self._heap if self._due.get(e[2]) == e[0]]
            heapq.heapify(self._heap)
