"""Kept logs as files of this machine, for `keptlogs`: read from the disk, no agent is asked."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass.agent import kept as keeping
from windlass.agent import logs
from windlass.kinds import times
from windlass.server import nodes
from windlass.store import errors


class KeptFiles:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._taken = keeping.Kept(root)

    async def kept(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """What is kept of a Run's logs."""
        return await asyncio.to_thread(keeping.listing, self._root, namespace, run_uid)

    async def kept_log(
        self, namespace: str, run_uid: str, name: str, options: nodes.LogOptions
    ) -> AsyncIterator[bytes]:
        """One of them, in pieces."""
        try:
            folder = keeping.place(self._root, namespace, run_uid, name, options.container)
        except FileNotFoundError:
            raise errors.NotFound(f"no log {name} is kept") from None
        async for piece in logs.read(folder, query(options)):
            yield piece

    async def take_segment(self, place: keeping.Segment, data: bytes) -> None:
        """A piece of a log that an agent held; ValueError if its names are none."""
        await asyncio.to_thread(self._taken.take_segment, place, data)

    async def take_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """The log is whole: from now on it is listed."""
        await asyncio.to_thread(self._taken.take_record, namespace, run_uid, name, data)


def query(options: nodes.LogOptions) -> logs.Query:
    """What is asked for of a log that is whole."""
    since = times.parse(options.since_time) if options.since_time else None
    if options.since_seconds:
        since = times.now() - datetime.timedelta(seconds=options.since_seconds)
    return logs.Query(False, options.timestamps, options.tail_lines, since, options.limit_bytes)
