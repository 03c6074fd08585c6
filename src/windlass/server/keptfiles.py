"""Kept logs as files of this machine, for `keptlogs`: read from the disk, no agent is asked."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass.agent import kept, logs
from windlass.kinds import times
from windlass.server import nodes
from windlass.store import errors


class KeptFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def kept(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """What is kept of a Run's logs."""
        return await asyncio.to_thread(kept.listing, self._root, namespace, run_uid)

    async def kept_log(
        self, namespace: str, run_uid: str, name: str, options: nodes.LogOptions
    ) -> AsyncIterator[bytes]:
        """One of them, in pieces."""
        try:
            folder = kept.place(self._root, namespace, run_uid, name, options.container)
        except FileNotFoundError:
            raise errors.NotFound(f"no log {name} is kept") from None
        since = times.parse(options.since_time) if options.since_time else None
        if options.since_seconds:
            since = times.now() - datetime.timedelta(seconds=options.since_seconds)
        query = logs.Query(
            False, options.timestamps, options.tail_lines, since, options.limit_bytes
        )
        async for piece in logs.read(folder, query):
            yield piece
