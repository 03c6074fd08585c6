"""Log archives in S3-compatible storage, which all servers share, for `interfaces`.

    logs/<namespace>/<run uid>/<log>/<container>/<number>     a segment, as the agent sent it
    logs/<namespace>/<run uid>/<log>/kept.json                the log is complete; written last

To read a log, its segments are fetched into a temporary folder and read by the same code as on one
machine (`podlogs.reader`).
"""

from __future__ import annotations

import asyncio
import collections
import logging
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from windlass.podlogs import archive, log_format, reader
from windlass.podlogs.options import LogOptions
from windlass.server.storage import logs_disk
from windlass.server.storage.bucket.bucket import Bucket, Entry
from windlass.store import errors, interface

_log = logging.getLogger(__name__)


class BucketLogStore:
    def __init__(self, bucket: Bucket, most: int = archive.MAX_BYTES) -> None:
        self._bucket = bucket
        self._most = most

    async def list_logs(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """The archived logs of a Run, oldest first."""
        prefix = _prefix(namespace, run_uid)
        records = [
            entry.key
            async for entry in self._bucket.list(prefix)
            if entry.key.endswith(f"/{archive.RECORD}")
        ]
        found = []
        for key, stored in zip(
            records, await asyncio.gather(*map(self._bucket.get, records)), strict=True
        ):
            if stored is not None:
                name = key[len(prefix) :].partition("/")[0]
                found.append({"name": name, **msgspec.json.decode(stored.data)})
        return sorted(found, key=lambda record: str(record["keptAt"]))

    async def read_log(
        self, namespace: str, run_uid: str, name: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """One of them, in pieces."""
        missing = errors.NotFound(f"no log {name} is kept")
        if not (archive.is_name(name) and archive.is_name(options.container or name)):
            raise missing
        place = f"{_prefix(namespace, run_uid)}{name}"
        stored = await self._bucket.get(f"{place}/{archive.RECORD}")
        if stored is None:
            raise missing
        container = options.container or msgspec.json.decode(stored.data)["container"]
        with tempfile.TemporaryDirectory(prefix="windlass-log-") as folder:
            if not await self._fetch(f"{place}/{container}/", Path(folder)):
                raise missing
            async for piece in reader.read(Path(folder), logs_disk.query(options)):
                yield piece

    async def _fetch(self, prefix: str, folder: Path) -> int:
        """Fetches the segments of one container's log; returns how many there are."""
        count = 0
        async for entry in self._bucket.list(prefix):
            stored = await self._bucket.get(entry.key)
            if stored is not None:
                target = log_format.segment(folder, int(entry.key[len(prefix) :]))
                await asyncio.to_thread(target.write_bytes, stored.data)
                count += 1
        return count

    async def put_segment(self, place: archive.Segment, data: bytes) -> None:
        """Stores a segment; idempotent. ValueError if a name is invalid."""
        place.check()
        entry = f"{_prefix(place.namespace, place.run_uid)}{place.name}"
        await self._bucket.put(f"{entry}/{place.container}/{place.number}", data)

    async def put_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """All segments are stored: from now on the log is listed."""
        record = archive.checked_record(run_uid, data)
        entry = f"{_prefix(namespace, run_uid)}{archive.safe_name(name)}"
        async for _ in self._bucket.list(f"{entry}/"):
            await self._bucket.put(f"{entry}/{archive.RECORD}", record)
            return
        raise ValueError(f"nothing of {name} was sent")

    # --- garbage collection

    async def sweep_regularly(self, store: interface.Store) -> None:
        """Now and every ten minutes, until cancelled. Each server does it: the sweep is
        idempotent."""
        while True:
            try:
                await self.sweep(store)
            except errors.ApiError as problem:
                _log.warning("kept logs: %s", problem)
            await asyncio.sleep(archive.SWEEP_SECONDS)

    async def sweep(self, store: interface.Store) -> None:
        """Removes the logs of deleted Runs and, in a namespace above its limit, the oldest logs."""
        # Listed before the Runs: a Run exists before any log of it is archived.
        by_namespace: dict[str, dict[str, list[Entry]]] = collections.defaultdict(dict)
        async for entry in self._bucket.list("logs/"):
            _, namespace, uid, name, *_ = entry.key.split("/")
            by_namespace[namespace].setdefault(f"{uid}/{name}", []).append(entry)
        for namespace, entries in by_namespace.items():
            there = await archive.run_uids(store, namespace)
            gone = [name for name in entries if archive.uid_of(name.partition("/")[0]) not in there]
            left = sorted(entries.keys() - set(gone), key=lambda name: _kept_at(entries[name]))
            total = sum(_size(entries[name]) for name in left)
            for name in left:
                if total <= self._most:
                    break
                gone.append(name)
                total -= _size(entries[name])
            for name in gone:
                # The record first: a listed log is always complete.
                keys = sorted((each.key for each in entries[name]), key=_record_first)
                await self._bucket.delete(keys[0])
                await self._bucket.delete(*keys[1:])


def _prefix(namespace: str, run_uid: str) -> str:
    return f"logs/{archive.safe_name(namespace)}/{archive.safe_name(run_uid)}/"


def _record_first(key: str) -> bool:
    return not key.endswith(f"/{archive.RECORD}")


def _kept_at(entries: list[Entry]) -> float:
    return max(each.modified for each in entries)


def _size(entries: list[Entry]) -> int:
    return sum(each.size for each in entries)
