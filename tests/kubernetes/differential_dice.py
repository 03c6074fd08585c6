"""The randomness of the differential test, and what its clusters have in common."""

from __future__ import annotations

import random
from typing import Any

NAMESPACES: dict[str, dict[str, str]] = {
    "alpha": {"team": "a", "stage": "prod"},
    "beta": {"team": "b"},
    "gamma": {"team": "a"},
}
ZONES = ("z1", "z2", "z3")


class Dice(random.Random):
    def maybe(self, chance: float) -> bool:
        return self.random() < chance

    def some(self, of: Any, most: int) -> list[Any]:
        return self.sample(list(of), self.randint(1, min(most, len(of))))
