"""How long the campaigns are and where their randomness comes from."""

from __future__ import annotations

import os
import random

SOAK = os.environ.get("WINDLASS_SOAK") == "1"


def campaign_seed() -> int:
    """From WINDLASS_SEED, to repeat a campaign; printed, so that a failure names it."""
    given = os.environ.get("WINDLASS_SEED")
    seed = int(given) if given else random.SystemRandom().randrange(1 << 32)
    print(f"WINDLASS_SEED={seed}")
    return seed
