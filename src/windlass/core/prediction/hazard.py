"""Chances of ending, by age: the arithmetic under `core.prediction.predictor`.

Ages are cut into bins that grow by a constant factor. A hazard is the chance that a workload which
reached a bin ends inside it. Everything works on many workloads at once: the last axis is the bin,
the axes before it are the workloads. Nothing here knows which workloads they are.
"""

from __future__ import annotations

import bisect

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Counts = Floats | Ints

FIRST = 30.0
"""Seconds of the first bin: ages below it are all alike."""
GROWTH = 1.12
"""How much longer each bin's end is than the one before it."""
LONGEST = 4e7
"""Seconds beyond which ages are not distinguished: 15 months."""
PRIOR_SCALE = 60.0
"""Seconds around which the prior has its median."""

_ENDS = FIRST * GROWTH ** np.arange(int(np.log(LONGEST / FIRST) / np.log(GROWTH)) + 2)
_STARTS = np.concatenate([[0.0], _ENDS[:-1]])
_WIDTHS = _ENDS - _STARTS
BINS = len(_ENDS)
_END_LIST = _ENDS.tolist()

PRIOR: Floats = 1.0 - (_STARTS + PRIOR_SCALE) / (_ENDS + PRIOR_SCALE)
"""The prior of a platform without history: a Pareto tail of exponent 1, so that a workload which
has run for a day is expected to run for about another day."""


def bins_of(seconds: Floats) -> Ints:
    """The bin of each age."""
    return np.minimum(np.searchsorted(_ENDS, seconds, side="right"), BINS - 1)


def bin_of(seconds: float) -> int:
    return min(bisect.bisect_right(_END_LIST, seconds), BINS - 1)


def blend(parent: Floats, deaths: Counts, at_risk: Counts, weight: float) -> Floats:
    """The observed hazards, pulled to the parent's as if `weight` more workloads had followed the
    parent."""
    return (weight * parent + deaths) / (weight + at_risk)


def outlived(entered: Ints) -> Ints:
    """How many came further than each bin, if so many came as far as each."""
    return np.concatenate([np.cumsum(entered[:0:-1])[::-1], [0]])


def seconds_per_end(hazards: Floats, ages: Ints) -> Floats:
    """For each row, the least seconds to invest per workload that ends, if it is `ages` bins old.

    This is the inverse of the Gittins index: over all lengths of the next stint, the least of
    expected seconds spent in it / chance that the workload ends in it.
    """
    behind = np.arange(BINS) < ages[:, None]
    alive = 1.0 - np.clip(hazards, 1e-9, 1.0 - 1e-9)
    alive[behind] = 1.0
    np.cumprod(alive, axis=1, out=alive)
    spent = alive.copy()
    spent[:, 0] += 1.0
    spent[:, 1:] += alive[:, :-1]
    spent *= _WIDTHS / 2.0
    np.cumsum(spent, axis=1, out=spent)
    spent -= _STARTS[ages][:, None]
    ended = np.subtract(1.0, alive, out=alive)
    ended[behind] = 1e-300  # lies behind: never the best stint
    spent[behind] = 1.0
    return np.asarray(np.divide(spent, ended, out=spent).min(axis=1))


def quantile(hazards: Floats, age: float, share: float) -> float:
    """Seconds from the start after which such a share of workloads of this age has ended; infinite
    when too many outlive the last bin."""
    first = bin_of(age)
    alive = np.cumprod(1.0 - hazards[first:])
    found = int(np.argmax(alive <= 1.0 - share))
    if alive[found] > 1.0 - share:
        return float("inf")
    return float(max(_ENDS[first + found], age))
