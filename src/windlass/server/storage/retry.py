"""Repeats requests to a database that does not answer: for about three seconds in all."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

_TRIES = 6
FIRST_PAUSE = 0.1


async def tries() -> AsyncIterator[int]:
    """The number of each attempt, after a pause that grows; jitter spreads servers that failed
    together."""
    for number in range(_TRIES):
        if number:
            pause = FIRST_PAUSE * 2 ** (number - 1)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        yield number
