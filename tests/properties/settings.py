"""How many cases: a seeded sample in the normal run, thousands with WINDLASS_SOAK=1."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, settings

SOAK = os.environ.get("WINDLASS_SOAK") == "1"
_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def cases(normal: int, soak: int) -> Callable[[Any], Any]:
    """The same cases every time in the normal run; new ones, with the blob to repeat a failure
    printed, in a soak."""
    return settings(
        max_examples=soak if SOAK else normal,
        derandomize=not SOAK,
        deadline=None,
        print_blob=True,
        suppress_health_check=_SLOW,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if SOAK else [])],
    )
