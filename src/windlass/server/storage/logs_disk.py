"""Log archives as files of this machine, for `interfaces`: read from the disk without an agent."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from windlass.kinds.values import times
from windlass.podlogs import archive, reader
from windlass.podlogs.options import LogOptions
from windlass.store import errors


class DiskLogStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._archive = archive.LogArchive(root)

    async def list_logs(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """The archived logs of a Run."""
        return await asyncio.to_thread(archive.listing, self._root, namespace, run_uid)

    async def read_log(
        self, namespace: str, run_uid: str, name: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """One of them, in pieces."""
        try:
            folder = archive.log_folder(self._root, namespace, run_uid, name, options.container)
        except FileNotFoundError:
            raise errors.NotFound(f"no log {name} is kept") from None
        async for piece in reader.read(folder, query(options)):
            yield piece

    async def put_segment(self, place: archive.Segment, data: bytes) -> None:
        """A segment of a log from an agent; ValueError if a name is invalid."""
        await asyncio.to_thread(self._archive.take_segment, place, data)

    async def put_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """The log is complete: from now on it is listed."""
        await asyncio.to_thread(self._archive.take_record, namespace, run_uid, name, data)


def query(options: LogOptions) -> reader.LogQuery:
    """The options for a complete log."""
    since = times.parse(options.since_time) if options.since_time else None
    if options.since_seconds:
        since = times.now() - datetime.timedelta(seconds=options.since_seconds)
    return reader.LogQuery(
        False, options.timestamps, options.tail_lines, since, options.limit_bytes
    )
