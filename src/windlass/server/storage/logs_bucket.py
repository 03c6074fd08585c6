"""Kept logs in S3-compatible storage, which all servers see, for `keptlogs`.

    logs/<namespace>/<run uid>/<log>/<container>/<number>     a segment, as an agent held it
    logs/<namespace>/<run uid>/<log>/kept.json                the log is whole; written last

To be read, a log's segments are fetched into a folder for the time of the reading: what is read
there, and how, is the same as on one machine (`agent.logs`).
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

from windlass.agent import kept as keeping
from windlass.agent import logs, shimlog
from windlass.server import keptfiles, nodes
from windlass.server.s3 import Bucket, Entry
from windlass.store import client, errors

_log = logging.getLogger(__name__)


class KeptBucket:
    def __init__(self, bucket: Bucket, most: int = keeping.MOST_BYTES) -> None:
        self._bucket = bucket
        self._most = most

    async def kept(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """What is kept of a Run's logs, oldest first."""
        prefix = _prefix(namespace, run_uid)
        records = [
            entry.key
            async for entry in self._bucket.list(prefix)
            if entry.key.endswith(f"/{keeping.RECORD}")
        ]
        found = []
        for key, stored in zip(
            records, await asyncio.gather(*map(self._bucket.get, records)), strict=True
        ):
            if stored is not None:
                name = key[len(prefix) :].partition("/")[0]
                found.append({"name": name, **msgspec.json.decode(stored.data)})
        return sorted(found, key=lambda told: str(told["keptAt"]))

    async def kept_log(
        self, namespace: str, run_uid: str, name: str, options: nodes.LogOptions
    ) -> AsyncIterator[bytes]:
        """One of them, in pieces."""
        missing = errors.NotFound(f"no log {name} is kept")
        if not (keeping.is_name(name) and keeping.is_name(options.container or name)):
            raise missing
        place = f"{_prefix(namespace, run_uid)}{name}"
        stored = await self._bucket.get(f"{place}/{keeping.RECORD}")
        if stored is None:
            raise missing
        container = options.container or msgspec.json.decode(stored.data)["container"]
        with tempfile.TemporaryDirectory(prefix="windlass-log-") as folder:
            if not await self._fetch(f"{place}/{container}/", Path(folder)):
                raise missing
            async for piece in logs.read(Path(folder), keptfiles.query(options)):
                yield piece

    async def _fetch(self, prefix: str, folder: Path) -> int:
        """The segments of one container's log; how many there are."""
        count = 0
        async for entry in self._bucket.list(prefix):
            stored = await self._bucket.get(entry.key)
            if stored is not None:
                target = shimlog.segment(folder, int(entry.key[len(prefix) :]))
                await asyncio.to_thread(target.write_bytes, stored.data)
                count += 1
        return count

    async def take_segment(self, place: keeping.Segment, data: bytes) -> None:
        """A piece that was sent; again changes nothing. ValueError if its names are none."""
        place.check()
        entry = f"{_prefix(place.namespace, place.run_uid)}{place.name}"
        await self._bucket.put(f"{entry}/{place.container}/{place.number}", data)

    async def take_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """All pieces were sent: the entry counts from now on."""
        told = keeping.checked_record(run_uid, data)
        entry = f"{_prefix(namespace, run_uid)}{keeping.named(name)}"
        async for _ in self._bucket.list(f"{entry}/"):
            await self._bucket.put(f"{entry}/{keeping.RECORD}", told)
            return
        raise ValueError(f"nothing of {name} was sent")

    # --- what nobody needs any more

    async def sweep_regularly(self, store: client.Store) -> None:
        """Now and every ten minutes, until cancelled. Each server does: twice is once."""
        while True:
            try:
                await self.sweep(store)
            except errors.ApiError as problem:
                _log.warning("kept logs: %s", problem)
            await asyncio.sleep(keeping.EVERY)

    async def sweep(self, store: client.Store) -> None:
        """Removes what is kept of Runs that are gone and, of a namespace that keeps too much, the
        oldest."""
        # Looked at before the Runs: a Run is there before anything of it is kept.
        held: dict[str, dict[str, list[Entry]]] = collections.defaultdict(dict)
        async for entry in self._bucket.list("logs/"):
            _, namespace, uid, name, *_ = entry.key.split("/")
            held[namespace].setdefault(f"{uid}/{name}", []).append(entry)
        for namespace, entries in held.items():
            there = await keeping.uids(store, namespace)
            gone = [name for name in entries if name.partition("/")[0] not in there]
            left = sorted(entries.keys() - set(gone), key=lambda name: _kept_at(entries[name]))
            total = sum(_size(entries[name]) for name in left)
            for name in left:
                if total <= self._most:
                    break
                gone.append(name)
                total -= _size(entries[name])
            for name in gone:
                # The record first: nothing is listed that is not whole.
                keys = sorted((each.key for each in entries[name]), key=_record_first)
                await self._bucket.delete(keys[0])
                await self._bucket.delete(*keys[1:])


def _prefix(namespace: str, run_uid: str) -> str:
    return f"logs/{keeping.named(namespace)}/{keeping.named(run_uid)}/"


def _record_first(key: str) -> bool:
    return not key.endswith(f"/{keeping.RECORD}")


def _kept_at(entries: list[Entry]) -> float:
    return max(each.modified for each in entries)


def _size(entries: list[Entry]) -> int:
    return sum(each.size for each in entries)
