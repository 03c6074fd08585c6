"""Where a server keeps what is no object: uploaded code, kept logs, mailboxes, what nodes use.

On its own disk, or in storage and a database that all servers of a cluster share: then a server
has nothing of its own, any of them gives the same answer, and one that dies takes nothing along.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

from windlass.agent import kept
from windlass.server import blobs, keptlogs, mailboxes, nodereports
from windlass.server.blobfolder import BlobFolder
from windlass.server.boxfolder import BoxFolder
from windlass.server.keptfiles import KeptFiles
from windlass.server.s3address import Address
from windlass.store import client, errors


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    blobs: blobs.Keeping
    logs: keptlogs.Keeping
    mailboxes: mailboxes.Keeping
    reports: nodereports.Keeping
    """What nodes told of their usage."""
    sweep_logs: Callable[[client.Store], Awaitable[None]]
    """Removes logs that nobody needs any more, until cancelled."""
    close: Callable[[], Awaitable[None]]


def on_disk(folder: Path, logs: Path) -> Places:
    async def sweep(store: client.Store) -> None:
        await kept.sweep_regularly(logs, store)

    async def close() -> None:
        return

    return Places(
        BlobFolder(folder / "blobs"), KeptFiles(logs), BoxFolder(folder / "mailboxes"),
        nodereports.InMemory(), sweep, close,
    )  # fmt: skip


async def shared(storage: str, keys: Path, database: str | None) -> Places:
    """Inside the running loop. StorageError if the storage cannot be used."""
    if database is None or not database.startswith("postgres"):
        raise errors.BadRequest(
            "--storage needs the address of a PostgreSQL database in --ledger: mailboxes must be "
            "seen by all servers, too"
        )
    # Loaded here: a server with a disk needs neither this client nor a database's.
    from windlass.server.blobbucket import BlobBucket
    from windlass.server.boxtables import BoxTables
    from windlass.server.keptbucket import KeptBucket
    from windlass.server.reporttables import ReportTables
    from windlass.server.s3 import Bucket

    bucket = Bucket(Address.parse(storage), keys)
    try:
        await bucket.check()
    except BaseException:
        await bucket.close()
        raise
    logs, reports = KeptBucket(bucket), ReportTables(database)

    async def close() -> None:
        await reports.close()
        await bucket.close()

    return Places(
        BlobBucket(bucket), logs, BoxTables(database, bucket), reports, logs.sweep_regularly, close
    )
