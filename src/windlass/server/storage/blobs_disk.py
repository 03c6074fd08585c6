"""Blobs as files of the server's own disk, for `interfaces`.

FOLDER/<namespace>/<hex>          complete: written, verified, synced, then renamed
FOLDER/<namespace>/<hex>.part     uploaded so far
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterable
from io import FileIO
from pathlib import Path

from aiohttp import web

from windlass.server.storage import interfaces
from windlass.server.storage.interfaces import BlobRef
from windlass.store import errors

SPARE_BYTES = 256 << 20
"""What an upload leaves free on the disk: the store needs it."""
USAGE_SECONDS = 30.0
"""The files of a namespace are counted this often; uploads in between are added."""


class DiskBlobStore:
    def __init__(
        self, folder: Path, unused_seconds: float = interfaces.UNUSED_BLOB_SECONDS
    ) -> None:
        self._folder = folder
        self._unused_seconds = unused_seconds
        self._busy: set[BlobRef] = set()
        """Blobs with an upload in progress: one writer each."""
        self._known: dict[str, tuple[float, int, int]] = {}
        """Namespace -> until when it counts, number and bytes of its files."""

    async def size(self, blob: BlobRef) -> int | None:
        """The size of an existing blob; the call counts as a use."""
        path = self._whole(blob)
        with contextlib.suppress(OSError):
            os.utime(path)  # a run is about to name it: the sweep counts from here
        return _size(path)

    async def received(self, blob: BlobRef) -> int:
        return _size(self._part(blob)) or 0

    async def read(self, blob: BlobRef, most: int) -> bytes | None:
        size = await self.size(blob)
        if size is None or size > most:
            return None
        return await asyncio.to_thread(self._whole(blob).read_bytes)

    async def serve(self, request: web.BaseRequest, blob: BlobRef) -> web.StreamResponse | None:
        del request
        if await self.size(blob) is None:
            return None
        return web.FileResponse(
            self._whole(blob), headers={"Content-Type": interfaces.BLOB_MEDIA_TYPE}
        )

    async def append(
        self, blob: BlobRef, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        if blob in self._busy:
            raise errors.Conflict(
                f"another upload of {blob.digest} is under way; ask how far it is and go on",
                retry_after=1.0,
            )
        self._busy.add(blob)
        try:
            return await self._receive(blob, offset, length, pieces)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _no_space() from problem
        finally:
            self._busy.discard(blob)

    async def _receive(
        self, blob: BlobRef, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        part = self._part(blob)
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        received = _size(part) or 0
        if offset != received:
            raise interfaces.wrong_offset(blob, received)
        if shutil.disk_usage(part.parent).free - (length - received) < SPARE_BYTES:
            raise _no_space()
        with part.open("ab", buffering=0) as file:
            self._grow(blob.namespace, 0 if received else 1, 0)
            async for piece in pieces:
                received += len(piece)
                self._grow(blob.namespace, 0, len(piece))
                if received > length:
                    file.close()
                    part.unlink(missing_ok=True)
                    raise interfaces.too_long(blob, length)
                await asyncio.to_thread(_write_all, file, piece)
        if received == length:
            await asyncio.to_thread(self._complete, blob)
        return received

    def _complete(self, blob: BlobRef) -> None:
        """Verifies the file against its name, syncs it, then makes it visible."""
        part = self._part(blob)
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != blob.hex:
                part.unlink()
                raise interfaces.wrong_digest(blob)
            os.fsync(file.fileno())
        part.replace(self._whole(blob))
        _sync_folder(part.parent)
        _sync_folder(self._folder)

    def _whole(self, blob: BlobRef) -> Path:
        return self._folder / blob.namespace / blob.hex

    def _part(self, blob: BlobRef) -> Path:
        return self._folder / blob.namespace / f"{blob.hex}.part"

    async def usage(self, namespace: str) -> tuple[int, int]:
        known = self._known.get(namespace)
        if known is None or time.monotonic() >= known[0]:
            found = await asyncio.to_thread(self._usage, namespace)
            known = self._known[namespace] = (time.monotonic() + USAGE_SECONDS, *found)
        return known[1], known[2]

    def _grow(self, namespace: str, count: int, size: int) -> None:
        if (known := self._known.get(namespace)) is not None:
            self._known[namespace] = (known[0], known[1] + count, known[2] + size)

    def _usage(self, namespace: str) -> tuple[int, int]:
        count = total = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder / namespace) as files:
            for each in files:
                with contextlib.suppress(FileNotFoundError):
                    total += each.stat(follow_symlinks=False).st_size
                    count += 1
        return count, total

    # --- garbage collection

    async def sweep(self, namespaces: set[str], in_use: set[tuple[str, str]], now: float) -> int:
        try:
            return await asyncio.to_thread(self._sweep, namespaces, in_use, now)
        finally:
            self._known.clear()

    def _sweep(self, namespaces: set[str], in_use: set[tuple[str, str]], now: float) -> int:
        gone = 0
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            if folder.name not in namespaces:
                shutil.rmtree(folder, ignore_errors=True)
                gone += 1
        self._touch(in_use)
        for path in self._folder.glob("*/*"):
            unfinished = path.name.endswith(".part")
            blob = BlobRef(path.parent.name, path.name.removesuffix(".part"))
            if blob in self._busy or (blob.namespace, blob.digest) in in_use:
                continue
            limit = interfaces.PARTIAL_BLOB_SECONDS if unfinished else self._unused_seconds
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > limit:
                    path.unlink()
                    gone += 1
        return gone

    def _touch(self, in_use: Iterable[tuple[str, str]]) -> None:
        """Blobs of Runs count as used now: 30 days begin when the last Run is deleted."""
        for namespace, digest in in_use:
            with contextlib.suppress(OSError):
                os.utime(self._whole(BlobRef(namespace, digest.removeprefix("sha256:"))))


def _write_all(file: FileIO, piece: bytes) -> None:
    """Unbuffered, so that received bytes survive a crash of the process."""
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _no_space() -> interfaces.NoSpace:
    return interfaces.NoSpace(
        f"the disk of the server is full, or would be: {SPARE_BYTES >> 20} MiB stay free there; "
        "free some space, then submit again"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
