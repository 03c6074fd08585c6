"""Chooses the storage of a server for what is not an object: uploaded code, log archives,
mailboxes, node metrics.

Either its own disk, or object storage and a database that all servers of a cluster share. Servers
with shared storage have no state of their own: each gives the same answer, and none loses data when
it dies.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path

from windlass.podlogs import archive
from windlass.server.storage import interfaces
from windlass.server.storage.blobs_disk import DiskBlobStore
from windlass.server.storage.bucket.bucket_url import BucketUrl
from windlass.server.storage.interfaces import BlobStore, LogStore, MailboxStore, NodeMetricsStore
from windlass.server.storage.logs_disk import DiskLogStore
from windlass.server.storage.mailboxes_disk import DiskMailboxStore
from windlass.server.storage.metrics_memory import InMemoryNodeMetrics
from windlass.store import errors, interface


@dataclasses.dataclass(frozen=True, slots=True)
class StorageBackends:
    blobs: BlobStore
    outputs: BlobStore
    """Files that runs wrote."""
    logs: LogStore
    mailboxes: MailboxStore
    node_metrics: NodeMetricsStore
    sweep_logs: Callable[[interface.Store], Awaitable[None]]
    """Removes the logs of deleted Runs regularly, until cancelled."""
    close: Callable[[], Awaitable[None]]


def on_disk(folder: Path, logs: Path) -> StorageBackends:
    async def sweep(store: interface.Store) -> None:
        await archive.sweep_regularly(logs, store)

    async def close() -> None:
        return

    return StorageBackends(
        DiskBlobStore(folder / "blobs"),
        DiskBlobStore(folder / "outputs", interfaces.UNUSED_OUTPUT_SECONDS),
        DiskLogStore(logs), DiskMailboxStore(folder / "mailboxes"),
        InMemoryNodeMetrics(), sweep, close,
    )  # fmt: skip


async def shared(storage: str, keys: Path, database: str | None) -> StorageBackends:
    """Backends that all servers share; called inside the running loop. StorageError: the storage
    cannot be used."""
    if database is None or not database.startswith("postgres"):
        raise errors.BadRequest(
            "--storage needs the address of a PostgreSQL database in --ledger: all servers must "
            "see the mailboxes, too"
        )
    _require_extras()
    # Imported here: a server that uses its disk loads neither the storage client nor psycopg.
    from windlass.server.storage.bucket.blobs_bucket import BucketBlobStore
    from windlass.server.storage.bucket.bucket import Bucket
    from windlass.server.storage.bucket.logs_bucket import BucketLogStore
    from windlass.server.storage.mailboxes_postgres import PostgresMailboxStore
    from windlass.server.storage.metrics_postgres import PostgresNodeMetrics

    bucket = Bucket(BucketUrl.parse(storage), keys)
    await bucket.check()
    logs, node_metrics = BucketLogStore(bucket), PostgresNodeMetrics(database)

    return StorageBackends(
        BucketBlobStore(bucket),
        BucketBlobStore(bucket, "outputs/", interfaces.UNUSED_OUTPUT_SECONDS),
        logs, PostgresMailboxStore(database, bucket), node_metrics,
        logs.sweep_regularly, node_metrics.close,
    )  # fmt: skip


def _require_extras() -> None:
    missing = [
        extra
        for extra, module in (("objectstore", "obstore"), ("postgresql", "psycopg_pool"))
        if importlib.util.find_spec(module) is None
    ]
    if missing:
        raise errors.BadRequest(
            "--storage needs packages that are missing: "
            f"install windlass-platform[{','.join(missing)}]"
        )
