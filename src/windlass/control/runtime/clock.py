"""Durations since stored wall clock times, although the wall clock may have been set since.

A step of the wall clock shows as a difference to the monotonic clock. Decisions by durations use
this module; stored times remain those of the wall clock.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from windlass.kinds.values import times

LEAST = 2.0
"""Seconds by which the clocks must differ to count as a step: less is drift, or a slow machine."""
_REMEMBERED = 64


class Elapsed:
    """Records the steps since its creation."""

    def __init__(self, now: Callable[[], datetime.datetime], clock: Callable[[], float]) -> None:
        self._now, self._clock = now, clock
        self._offset = now().timestamp() - clock()
        self._steps: list[tuple[float, float]] = []
        """The wall clock before it was set, and the size of the step."""

    def since(self, moment: str) -> float:
        """Seconds; below 0 if the moment is in the future."""
        wall, at = self._detect_step(), times.parse(moment).timestamp()
        passed = wall - at
        for before, step in self._steps:
            # Set forward: earlier times seem older by the step. Set back: earlier times may seem to
            # be in
            # the future; only those are certain.
            if (step > 0 and at <= before) or (step < 0 and wall < at <= before):
                passed -= step
        return passed

    def _detect_step(self) -> float:
        wall = self._now().timestamp()
        step = wall - self._clock() - self._offset
        if abs(step) > LEAST:
            self._steps = [*self._steps, (wall - step, step)][-_REMEMBERED:]
            self._offset += step
        return wall
