"""Awaits many calls, a limited number of them at the same time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

AT_ONCE = 16
"""Calls in flight at the same time unless the caller says otherwise."""


async def all_of(calls: Iterable[Any], at_once: int = AT_ONCE) -> list[Any]:
    """Returns the results in the order of the calls. At most `at_once` run at the same time, and a
    call is taken from the iterable only when it can begin. The first error is raised after all
    calls have ended."""
    iterator = iter(calls)
    first = list(itertools.islice(iterator, 2))
    if len(first) < 2:
        return [await call for call in first]  # the usual case needs no task
    remaining, results = enumerate(itertools.chain(first, iterator)), {}

    async def worker() -> None:
        for number, call in remaining:
            try:
                results[number] = await call
            except Exception as error:
                results[number] = error
            # A call may return without suspending, and other tasks need a turn.
            await asyncio.sleep(0)

    await asyncio.gather(*(worker() for _ in range(at_once)))
    found = [results[number] for number in sorted(results)]
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found
