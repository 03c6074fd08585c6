"""How often the scheduler writes reasons: a rate limit over the last writes."""

from __future__ import annotations

import collections
from collections.abc import Callable

WORDS_EVERY = 1.0
"""Seconds between two times of finding out whom to tell something, where very many wait: it costs
as much as a decision."""


class Pace:
    """When the last words were told."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: collections.deque[float] = collections.deque(maxlen=most)
        self._due = 0.0

    def pause(self, most: int) -> float:
        """Seconds until one more may be counted, if at most so many may in a second."""
        if len(self._times) < most:
            return 0.0
        return max(0.0, self._times[-most] + 1.0 - self._clock())

    def allowed(self, most: int) -> int:
        """How many may be counted now."""
        now = self._clock()
        return most - sum(now < each + 1.0 for each in self._times)

    def count(self) -> None:
        self._times.append(self._clock())

    def is_due(self) -> bool:
        """Whether to find out again whom to tell something."""
        now = self._clock()
        if now < self._due:
            return False
        self._due = now + WORDS_EVERY
        return True
