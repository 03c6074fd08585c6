"""What a hole in a device is worth: prices of a cutting-stock linear programme.

Shares of devices pair up well or badly: 650 with 320 fills a device, 650 with 460 does not fit.
The programme asks how few devices could hold the demand for shares if they were cut perfectly; its
prices say what a share of each size then stands for, as a part of a device, and so what a hole
that can still take such shares is worth.

`packing_tables` calls it. Column generation with a fixed pivot rule: same demand, same prices.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE = 1000
GRID = 10
"""Sizes count in hundredths of a device; in between they are rounded up, holes down."""

_STEPS = WHOLE // GRID
_ROUNDS = 2000
"""Far above what the at most 99 sizes need; the prices are sound after any number of rounds."""
_TINY = 1e-9


def hole_values(sizes: Ints, demand: Floats) -> Floats:
    """V[0..1000]: what a hole of so many thousandths is worth; a whole device is 1.

    `sizes` are thousandths, below 1000; `demand` is how many of each are requested.
    """
    steps, wanted = _on_grid(sizes, demand)
    worth = np.zeros(_STEPS + 1)
    if len(steps):
        worth, _ = _best_cut(steps, _prices(steps, wanted))
        worth = np.minimum(worth / max(worth[-1], _TINY), 1.0)
    worth[-1] = 1.0
    return worth[np.arange(WHOLE + 1) // GRID]


def _on_grid(sizes: Ints, demand: Floats) -> tuple[Ints, Floats]:
    """Different sizes in steps of the grid, largest first, and their demand."""
    steps = -(-np.asarray(sizes, dtype=np.int64) // GRID)
    total: Floats = np.zeros(_STEPS + 1)
    np.add.at(total, steps, demand)
    total[[0, _STEPS]] = 0.0  # nothing, or rounded up to a whole device: not a share
    found: Ints = np.flatnonzero(total > 0)[::-1]
    return found, total[found]


def _prices(steps: Ints, wanted: Floats) -> Floats:
    """Dual values of the cutting-stock programme, by the revised simplex method.

    The basis begins with devices cut into one size only. Each round the cut that is worth most at
    the current prices enters if it is worth more than its device.
    """
    per_device = _STEPS // steps
    inverse: Floats = np.diag(1.0 / per_device)
    used = wanted / per_device
    for _ in range(_ROUNDS):
        prices: Floats = inverse.sum(axis=0)
        worth, cuts = _best_cut(steps, np.maximum(prices, 0.0))
        if worth[-1] <= 1.0 + _TINY:
            break
        entering = inverse @ _pieces(steps, cuts)
        leaving = _leaving(used, entering)
        step = used[leaving] / entering[leaving]
        used = np.maximum(used - step * entering, 0.0)
        used[leaving] = step
        row = inverse[leaving] / entering[leaving]
        inverse -= np.outer(entering, row)
        inverse[leaving] = row
    prices = inverse.sum(axis=0)
    return np.maximum(prices, 0.0)


def _leaving(used: Floats, entering: Floats) -> int:
    """The basic cut that runs out first; the earliest on ties, so that pivots are repeatable."""
    ratios = np.full(len(used), np.inf)
    positive = entering > _TINY
    ratios[positive] = used[positive] / entering[positive]
    return int(np.flatnonzero(ratios <= ratios.min() + _TINY)[0])


def _best_cut(steps: Ints, prices: Floats) -> tuple[Floats, list[int]]:
    """For each length the largest worth of pieces that fit in it, and the piece cut last (-1:
    none, the length below does as well)."""
    worth = [0.0] * (_STEPS + 1)
    cuts = [-1] * (_STEPS + 1)
    pieces = list(zip(steps.tolist(), prices.tolist(), range(len(steps)), strict=True))
    for length in range(1, _STEPS + 1):
        best, cut = worth[length - 1], -1
        for size, price, which in pieces:
            if size <= length and worth[length - size] + price > best + _TINY:
                best, cut = worth[length - size] + price, which
        worth[length], cuts[length] = best, cut
    return np.array(worth), cuts


def _pieces(steps: Ints, cuts: list[int]) -> Floats:
    """How many of each size the best cut of a whole device has."""
    counts = np.zeros(len(steps))
    left = _STEPS
    while left > 0:
        cut = cuts[left]
        if cut < 0:
            left -= 1
        else:
            counts[cut] += 1
            left -= int(steps[cut])
    return counts
