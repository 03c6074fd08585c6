"""What the platform API needs of its storage: uploaded code, log archives, mailboxes, node metrics.

Each protocol has an implementation for the disk of one server and one for storage that all servers
of a cluster share. `storage.backends` chooses.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import msgspec
from aiohttp import web

from windlass.podlogs import archive
from windlass.podlogs.options import LogOptions
from windlass.store import errors

BLOB_MEDIA_TYPE = "application/octet-stream"
UNUSED_BLOB_SECONDS = 30 * 86400.0
UNUSED_OUTPUT_SECONDS = 2 * 86400.0
"""Of files that a run wrote, from the deletion of the last run that has them. Longer than object
storage may take to notice a use (`TOUCH_SECONDS`)."""
PARTIAL_BLOB_SECONDS = 7 * 86400.0
UNUSED_MAILBOX_SECONDS = 7 * 86400.0
INLINE_BYTES = 64 << 10
"""Results up to this size are part of the event that announces them."""
FRESH_SECONDS = 180.0
"""Age after which a node's metrics do not count."""


class NoSpace(errors.ApiError):
    code = 507
    reason = "InsufficientStorage"


# --- blobs --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class BlobRef:
    """A blob of a namespace."""

    namespace: str
    hex: str

    @property
    def digest(self) -> str:
        return f"sha256:{self.hex}"


class BlobStore(Protocol):
    async def size(self, blob: BlobRef) -> int | None:
        """Bytes of a complete blob, which counts as used now; None if it is not there."""

    async def received(self, blob: BlobRef) -> int:
        """Bytes that were uploaded of a blob that is not complete."""

    async def read(self, blob: BlobRef, most: int) -> bytes | None:
        """The content of a complete blob of at most `most` bytes; None if it is not there."""
        ...

    async def serve(self, request: web.BaseRequest, blob: BlobRef) -> web.StreamResponse | None:
        """A response with the whole blob; None if it is not there."""

    async def append(
        self, blob: BlobRef, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        """Adds the pieces at `offset` and returns the bytes uploaded so far. The blob is complete
        when these are `length` bytes whose SHA-256 is the blob's name."""

    async def usage(self, namespace: str) -> tuple[int, int]:
        """Number and bytes of the namespace's blobs, also of those that are not complete."""

    async def sweep(self, namespaces: set[str], in_use: set[tuple[str, str]], now: float) -> int:
        """Removes blobs of deleted namespaces and blobs that no Run has named for
        the time of this store. `in_use`: (namespace, digest) of all Runs."""


def wrong_offset(blob: BlobRef, received: int) -> errors.Conflict:
    return errors.Conflict(f"the next piece of {blob.digest} begins at {received}")


def too_long(blob: BlobRef, length: int) -> errors.BadRequest:
    return errors.BadRequest(f"more than {length} bytes were sent for {blob.digest}")


def wrong_digest(blob: BlobRef) -> errors.BadRequest:
    return errors.BadRequest(
        f"the uploaded content is not {blob.digest}; upload it again from the start"
    )


# --- log archives -------------------------------------------------------------------------------


class LogStore(Protocol):
    """Logs of pods that are gone. ValueError: a name that cannot be one."""

    async def list_logs(self, namespace: str, run_uid: str) -> list[dict[str, Any]]:
        """The records of a Run's archived logs, oldest first."""
        ...

    def read_log(
        self, namespace: str, run_uid: str, name: str, options: LogOptions
    ) -> AsyncIterator[bytes]: ...

    async def put_segment(self, segment: archive.Segment, data: bytes) -> None: ...

    async def put_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """All segments are there: from now on the log is listed."""
        ...


# --- mailboxes ----------------------------------------------------------------------------------


class MailboxRecord(msgspec.Struct):
    """The owner of a mailbox, and the hash of its token."""

    namespace: str
    user: str
    hash: str


class MailboxClosed(Exception):
    """The mailbox was deleted."""


@dataclasses.dataclass(frozen=True, slots=True)
class MailboxEvents:
    """Events of a mailbox since a position; `after` counts within `epoch`."""

    epoch: str
    after: int
    events: list[dict[str, Any]]


class Notifier:
    """Wakes the requests that wait for a change of a mailbox. Each request has an event of its own,
    so a change that comes while a request reads is not missed."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextlib.contextmanager
    def subscribed(self, name: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            left = self._waiting[name]
            left.discard(event)
            if not left:
                del self._waiting[name]

    def notify(self, name: str) -> None:
        for event in self._waiting.get(name, ()):
            event.set()

    def notify_all(self) -> None:
        for name in self._waiting:
            self.notify(name)


class MailboxStore(Protocol):
    """Each method is atomic, may be repeated, and notifies. MailboxClosed: no such mailbox."""

    notifier: Notifier

    async def create(self, name: str, record: MailboxRecord) -> None: ...

    async def record(self, name: str) -> MailboxRecord | None: ...

    async def delete(self, name: str) -> None: ...

    async def put(self, name: str, key: str, kind: str, data: AsyncIterator[bytes]) -> None:
        """Writes a call or a result. A call whose key is a number waits for a worker; a result
        becomes an event."""

    async def read(self, name: str, key: str, kind: str) -> bytes | None: ...

    async def discard(self, name: str, key: str) -> None: ...

    async def take(self, name: str, worker: str) -> str | None:
        """The key of the next call for a worker; the same one until the worker puts a result."""

    async def register_worker(self, name: str, worker: str, python: str) -> None:
        """A worker asks for calls; its first request becomes an event."""

    async def events(self, name: str, epoch: str, after: int) -> MailboxEvents:
        """The events past `after`; earlier ones may be dropped."""

    async def sweep(self, now: float) -> list[str]:
        """Removes mailboxes that are unused for UNUSED_MAILBOX_SECONDS; returns their names."""

    async def stop(self) -> None: ...


# --- node metrics -------------------------------------------------------------------------------


class NodeMetricsStore(Protocol):
    async def put(self, node: str, report: bytes) -> int:
        """Keeps a node's latest report; returns how many nodes have reported lately."""
        ...

    async def fresh(self) -> dict[str, bytes]:
        """By node, the reports that are younger than FRESH_SECONDS."""
        ...
