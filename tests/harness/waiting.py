"""Waiting for what another process or task does in its own time, without a fixed sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE = 60.0
"""Seconds. Long enough for a loaded machine; a test that waits this long has failed."""


def until(check: Callable[[], Any], what: str = "", seconds: float = PATIENCE) -> Any:
    """The first true answer of `check`. Fails with `what` was waited for after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := check()):
        if time.monotonic() > deadline:
            raise AssertionError(_late(check, what, seconds))
        time.sleep(0.02)
    return found


async def until_async(
    check: Callable[[], Any | Awaitable[Any]], what: str = "", seconds: float = PATIENCE
) -> Any:
    """As `until`, for a check that may be a coroutine function; other tasks go on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        found = check()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(_late(check, what, seconds))
        await asyncio.sleep(0.005)


def _late(check: Callable[[], Any], what: str, seconds: float) -> str:
    return f"not within {seconds:.0f} s: {what or getattr(check, '__qualname__', check)}"
