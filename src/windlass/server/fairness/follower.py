"""Follows the ConfigMap with the server's limits, on both engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from windlass.kinds.types import core
from windlass.server.fairness import settings
from windlass.store import errors, interface

_log = logging.getLogger(__name__)
_POLL_SECONDS = 5.0


async def follow(store: interface.Store, apply: Callable[[settings.Settings], None]) -> None:
    """Calls `apply` with the present limits and after every change, until cancelled."""
    known: settings.Settings | None = None
    reported: list[str] = []
    while True:
        try:
            found, problems = settings.read(await _data(store))
        except errors.ApiError as problem:
            _log.warning("the limits of the server could not be read: %s", problem.message)
        else:
            if problems != reported:
                for each in problems:
                    _log.warning("ConfigMap %s/%s: %s", settings.NAMESPACE, settings.NAME, each)
                reported = problems
            if found != known:
                known = found
                apply(found)
        await asyncio.sleep(_POLL_SECONDS)


async def _data(store: interface.Store) -> dict[str, str] | None:
    try:
        return (await store.get(core.ConfigMap, settings.NAME, settings.NAMESPACE)).data
    except errors.NotFound:
        return None
