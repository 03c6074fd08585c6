"""How often the scheduler writes why workloads wait: a rate limit over the latest writes."""

from __future__ import annotations

import collections
from collections.abc import Callable

REASONS_EVERY = 1.0
"""Seconds between two evaluations of whose status is out of date, where very many wait: one costs
as much as a decision."""


class RateLimiter:
    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        """`most`: the highest rate per second that is ever asked for."""
        self._clock = clock
        self._times: collections.deque[float] = collections.deque(maxlen=most)
        self._due = 0.0

    def pause(self, most: int) -> float:
        """Seconds until the next write, at a rate of `most` per second."""
        if len(self._times) < most:
            return 0.0
        return max(0.0, self._times[-most] + 1.0 - self._clock())

    def allowed(self, most: int) -> int:
        """How many writes may happen now, at a rate of `most` per second."""
        now = self._clock()
        return most - sum(now < each + 1.0 for each in self._times)

    def count(self) -> None:
        """Records a write."""
        self._times.append(self._clock())

    def is_due(self) -> bool:
        """Whether to evaluate again whose status is out of date."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + REASONS_EVERY
        return True
