"""Discrete ages of running workloads, and estimated ends of late ones.

Ranks under the order `attained` follow the service that workloads have attained, which grows all
the time. If ranks did too, any moment might change a decision and none could be named in advance.
So a running workload counts with the last of a few discrete ages that it reached, and the next one
is a known time: in between, time alone changes no rank. Workloads past their expected end are
treated the same way: the estimate of their end stays until the next re-evaluation.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FIRST = 600.0
"""The first age in seconds at which a running workload is re-evaluated."""
FACTOR = 2.0
"""Each next age is this many times the last. Ranks follow the order of magnitude of an age, so a
workload of a week is re-evaluated ten times, not every minute."""
EARLY = 1e-6
"""Seconds by which a timer may fire early, by rounding, and must not fire again."""

LATE = 60.0
"""A workload past its expected end is re-evaluated when it is this many seconds late, then twice as
many, and so on. Until then its end is estimated as 1.5 times the lateness at the next
re-evaluation: that is twice to three times its present lateness. One wrong estimate keeps nothing
idle for long, and is not made again at every moment."""

_AGES = FIRST * FACTOR ** np.arange(40)
_AGE_LIST = _AGES.tolist()
_AGAIN = 1.5
_DELAYS = np.concatenate([[2 * EARLY], LATE * 2.0 ** np.arange(40)])
"""The first is for workloads that end at this moment, up to rounding."""


def next_age(seconds: float) -> float:
    """The next age at which a running workload is re-evaluated."""
    return float(_AGE_LIST[_passed(seconds)])


def age(before: float, ran: float) -> float:
    """What a workload counts with that runs since `ran` seconds and had had `before` until then."""
    passed = _passed(before + ran)
    return max(before, _AGE_LIST[passed - 1]) if passed else before


def ages(before: Floats, ran: Floats) -> Floats:
    """The same of many."""
    passed = np.searchsorted(_AGES, before + ran + EARLY, side="right")
    return np.maximum(before, np.where(passed > 0, _AGES[passed - 1], 0.0))


def next_rank_changes(now: float, started: Floats, before: Floats, alone: Floats) -> Floats:
    """When the ranks of such workloads may change that are left `alone` for so long after their
    start."""
    ran = np.maximum(0.0, now - started)
    had = before + ran
    ahead = now + _AGES[np.searchsorted(_AGES, had + EARLY, side="right")] - had
    return np.where(ran < alone - EARLY, np.minimum(ahead, started + alone), ahead)


def estimated_end(end: float | None, now: float) -> float | None:
    """When a workload ends that still runs and should end then."""
    return end if end is None or now < end else float(estimated_ends(np.array([end]), now)[0])


def estimated_ends(ends: Floats, now: float) -> Floats:
    """The same of many."""
    return ends + _AGAIN * (next_reestimates(ends, now) - ends)


def next_reestimates(ends: Floats, now: float) -> Floats:
    """When these estimates change: at the expected end, or at the next re-evaluation of a late
    workload."""
    delays = _DELAYS[np.searchsorted(_DELAYS, now - ends + EARLY, side="right")]
    return np.where(now < ends, ends, ends + delays)


def _passed(seconds: float) -> int:
    """How many of the discrete ages a workload of this age has reached."""
    return bisect.bisect_right(_AGE_LIST, seconds + EARLY)
