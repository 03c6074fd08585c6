"""How often, and how soon, what may be asked again is asked again of a storage or a database that
does not answer: for about three seconds in all, whoever waits for us is told then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

_TRIES = 6
FIRST_PAUSE = 0.1


async def tries() -> AsyncIterator[int]:
    """The number of each, after a pause that grows; servers that failed together come apart."""
    for number in range(_TRIES):
        if number:
            pause = FIRST_PAUSE * 2 ** (number - 1)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
        yield number
