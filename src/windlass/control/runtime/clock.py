"""How long ago something happened that was written down by the wall clock, though that clock may
have been set since.

A step of the wall clock shows as a difference to the steady one. Whoever decides by durations asks
here; what is written down remains the wall clock's word.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable

from windlass.kinds import times

LEAST = 2.0
"""Seconds by which the clocks must part to count as a step: less is drift, or a slow machine."""
_REMEMBERED = 64


class Elapsed:
    """Knows the steps since it was made."""

    def __init__(self, now: Callable[[], datetime.datetime], clock: Callable[[], float]) -> None:
        self._now, self._clock = now, clock
        self._offset = now().timestamp() - clock()
        self._steps: list[tuple[float, float]] = []
        """What the wall clock showed before it was set, and by how much it was."""

    def since(self, moment: str) -> float:
        """Seconds; below 0 if it is yet to come."""
        wall, at = self._look(), times.parse(moment).timestamp()
        passed = wall - at
        for before, step in self._steps:
            # Set forward: what was written before is too old by so much. Set back: what was
            # written before may seem yet to come; only of that it is certain.
            if (step > 0 and at <= before) or (step < 0 and wall < at <= before):
                passed -= step
        return passed

    def _look(self) -> float:
        wall = self._now().timestamp()
        step = wall - self._clock() - self._offset
        if abs(step) > LEAST:
            self._steps = [*self._steps, (wall - step, step)][-_REMEMBERED:]
            self._offset += step
        return wall
