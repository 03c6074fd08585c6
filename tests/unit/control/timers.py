"""A clock that tests move by hand."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class _Handle:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class HandTimers:
    """Stands in for the event loop's clock: time passes only in `advance`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._heap: list[tuple[float, int, _Handle]] = []
        self._counter = itertools.count()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> _Handle:
        handle = _Handle(callback)
        heapq.heappush(self._heap, (when, next(self._counter), handle))
        return handle

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end:
            self.now, _, handle = heapq.heappop(self._heap)
            if handle.callback is not None:
                handle.callback()
        self.now = end
