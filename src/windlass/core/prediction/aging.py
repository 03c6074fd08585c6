"""When running units are looked at again. Between looks they do not age.

Ranks under the order `attained` follow what units have had so far, which grows all the time. If
ranks did too, any moment might change a decision and none could be named in advance. So a running
unit counts with the age at which it was last looked at, and the next look is a moment that can be
waited for: in between, time alone changes no rank. With units that should have ended and did not it
is the same: what is believed of their end stays until the next look at them.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FIRST = 600.0
"""The age in seconds at which a running unit is looked at for the first time."""
FACTOR = 2.0
"""Each next look comes at so many times the age. Ranks follow the order of magnitude of an age, so
a unit of a week is looked at ten times, not every minute."""
EARLY = 1e-6
"""Seconds by which a timer may fire early, by rounding, and must not fire again."""

LATE = 60.0
"""A unit that should have ended is looked at again when it is so many seconds late, then twice as
many, and so on. Until the next look it is believed to be half as late again as it will be then,
which is as late again as it is, or up to twice that: one wrong guess keeps nothing idle for long,
and is not made again at every moment."""

_AGES = FIRST * FACTOR ** np.arange(40)
_AGE_LIST = _AGES.tolist()
_AGAIN = 1.5
_DELAYS = np.concatenate([[2 * EARLY], LATE * 2.0 ** np.arange(40)])
"""The first is for who ends in this very moment, but for rounding."""


def next_age(seconds: float) -> float:
    """The next age at which a running unit is looked at."""
    return float(_AGE_LIST[_passed(seconds)])


def age(before: float, ran: float) -> float:
    """What a unit counts with that runs since `ran` seconds and had had `before` until then."""
    passed = _passed(before + ran)
    return max(before, _AGE_LIST[passed - 1]) if passed else before


def ages(before: Floats, ran: Floats) -> Floats:
    """The same of many."""
    passed = np.searchsorted(_AGES, before + ran + EARLY, side="right")
    return np.maximum(before, np.where(passed > 0, _AGES[passed - 1], 0.0))


def next_looks(now: float, started: Floats, before: Floats, alone: Floats) -> Floats:
    """When the ranks of such units may change that are left `alone` for so long after their
    start."""
    ran = np.maximum(0.0, now - started)
    had = before + ran
    ahead = now + _AGES[np.searchsorted(_AGES, had + EARLY, side="right")] - had
    return np.where(ran < alone - EARLY, np.minimum(ahead, started + alone), ahead)


def believed(end: float | None, now: float) -> float | None:
    """When a unit ends that still runs and should end then."""
    return end if end is None or now < end else float(ends_believed(np.array([end]), now)[0])


def ends_believed(ends: Floats, now: float) -> Floats:
    """The same of many."""
    return ends + _AGAIN * (beliefs_end(ends, now) - ends)


def beliefs_end(ends: Floats, now: float) -> Floats:
    """Until when that is believed of them: their end, or the next look at who is late."""
    delays = _DELAYS[np.searchsorted(_DELAYS, now - ends + EARLY, side="right")]
    return np.where(now < ends, ends, ends + delays)


def _passed(seconds: float) -> int:
    """Looks at units of this age so far."""
    return bisect.bisect_right(_AGE_LIST, seconds + EARLY)
