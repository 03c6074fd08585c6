"""How far runtime estimates of a user are trusted: actual runtimes against estimates.

Estimates that are too short let a workload start before others and break the reserved starts of
these. So the ratio of actual to estimated runtime is learned per user and size of workload, from
workloads that ended. The user's next estimate is multiplied by a high quantile of the latest
ratios. A few observations are needed, older ones are forgotten, the factor is bounded, and
estimates that are right or too long are taken as they are.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

ENOUGH = 3
"""Workloads that must have ended before an estimate is doubted."""
RECENT = 12
"""Ended workloads that are remembered per user and size: a user is trusted again after as many good
estimates."""
QUANTILE = 0.75
"""This part of the latest workloads took no longer than estimated, once the factor is applied."""
TOLERANCE = 1.1
"""Ratios up to this count as right."""
MOST = 100.0
"""No estimate is multiplied by more."""
USERS = 10_000
"""Users that are remembered; those without an ended workload for longest are forgotten first."""

_ANY = 0
"""Stands for all sizes of a user: what counts where too few of one size ended."""


class Trust:
    """Changed by `observe` only. The same observations in the same order give the same factors."""

    def __init__(self) -> None:
        self._ratios: dict[str, dict[int, deque[float]]] = {}
        """User -> size -> latest ratios."""
        self._factors: dict[str, dict[int, float]] = {}
        """Only for users whose estimates are doubted."""

    def observe(self, user: str, size: int, estimate: float, ran: float) -> None:
        """A workload ended by itself."""
        if estimate <= 0:
            return
        ratios = self._ratios.pop(user, None) or {}
        self._ratios[user] = ratios  # to the end: forgotten last
        for key in (size, _ANY):
            ratios.setdefault(key, deque(maxlen=RECENT)).append(ran / estimate)
        self._learn(user)
        if len(self._ratios) > USERS:
            oldest = next(iter(self._ratios))
            del self._ratios[oldest]
            self._factors.pop(oldest, None)

    def factor(self, user: str, size: int) -> float:
        """What an estimate is multiplied by: 1 where it is trusted."""
        known = self._factors.get(user)
        return 1.0 if known is None else known.get(size, known[_ANY])

    def doubts(self, user: str) -> bool:
        return user in self._factors

    def to_state(self) -> dict[str, Any]:
        return {
            user: {str(size): list(ratios) for size, ratios in sizes.items()}
            for user, sizes in self._ratios.items()
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Trust:
        made = cls()
        for user, sizes in state.items():
            made._ratios[user] = {
                int(size): deque(ratios, maxlen=RECENT) for size, ratios in sizes.items()
            }
            made._learn(user)
        return made

    def _learn(self, user: str) -> None:
        found = {
            size: _factor(ratios)
            for size, ratios in self._ratios[user].items()
            if len(ratios) >= ENOUGH or size == _ANY
        }
        if any(factor > 1.0 for factor in found.values()):
            self._factors[user] = found
        else:
            self._factors.pop(user, None)


def _factor(ratios: deque[float]) -> float:
    if len(ratios) < ENOUGH:
        return 1.0
    high = sorted(ratios)[math.ceil(QUANTILE * len(ratios)) - 1]
    return 1.0 if high <= TOLERANCE else min(high, MOST)
