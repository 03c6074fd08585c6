"""How many cases: a seeded sample in the normal run, thousands with WINDLASS_SOAK=1."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, seed, settings

SOAK = os.environ.get("WINDLASS_SOAK") == "1"

CAMPAIGN = [pytest.mark.soak, pytest.mark.timeout(4 * 3600 if SOAK else 900)]
"""Marks of a file of laws. Only what hangs meets the timeout: one that a busy machine met would
look like a law that fails now and then, without an example."""


def cases(normal: int, soak: int) -> Callable[[Any], Any]:
    """The same cases every time in the normal run; new ones in a soak, from the seed that the run
    names first. A failed test prints the falsifying example, and the blob that repeats it."""
    chosen = settings(
        max_examples=soak if SOAK else normal,
        derandomize=not SOAK,
        deadline=None,
        print_blob=True,
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if SOAK else [])],
    )
    if not SOAK:
        return chosen
    return lambda test: seed(int(os.environ["WINDLASS_SEED"]))(chosen(test))
