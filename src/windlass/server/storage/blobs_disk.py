"""Blobs as files of the server's own disk, for `blobs`.

FOLDER/<namespace>/<hex>          whole: written, checked, synced, then renamed
FOLDER/<namespace>/<hex>.part     what has come so far
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from io import FileIO
from pathlib import Path

from aiohttp import web

from windlass.server import blobs
from windlass.server.blobs import Target
from windlass.store import errors

SPARE_BYTES = 256 << 20
"""What an upload leaves free on the disk: the store needs it to go on."""


class BlobFolder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._busy: set[Target] = set()
        """Blobs that an upload writes to at this moment: one writer each."""

    async def size(self, target: Target) -> int | None:
        """Of a blob that is there; it counts as used now."""
        path = self._whole(target)
        with contextlib.suppress(OSError):
            os.utime(path)  # somebody is about to name it: the sweep counts from here
        return _size(path)

    async def come(self, target: Target) -> int:
        return _size(self._part(target)) or 0

    async def serve(self, request: web.BaseRequest, target: Target) -> web.StreamResponse | None:
        del request
        if await self.size(target) is None:
            return None
        return web.FileResponse(self._whole(target), headers={"Content-Type": blobs.MEDIA_TYPE})

    async def append(
        self, target: Target, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        if target in self._busy:
            raise errors.Conflict(
                f"another upload of {target.digest} is under way; ask how far it is and go on",
                retry_after=1.0,
            )
        self._busy.add(target)
        try:
            return await self._receive(target, offset, length, pieces)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _no_space() from problem
        finally:
            self._busy.discard(target)

    async def _receive(
        self, target: Target, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        part = self._part(target)
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        come = _size(part) or 0
        if offset != come:
            raise blobs.misplaced(target, come)
        if shutil.disk_usage(part.parent).free - (length - come) < SPARE_BYTES:
            raise _no_space()
        with part.open("ab", buffering=0) as file:
            async for piece in pieces:
                come += len(piece)
                if come > length:
                    file.close()
                    part.unlink(missing_ok=True)
                    raise blobs.too_many(target, length)
                await asyncio.to_thread(_write_all, file, piece)
        if come == length:
            await asyncio.to_thread(self._complete, target)
        return come

    def _complete(self, target: Target) -> None:
        """Checked against its name, on the disk, then visible."""
        part = self._part(target)
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != target.hex:
                part.unlink()
                raise blobs.another(target)
            os.fsync(file.fileno())
        part.replace(self._whole(target))
        _sync_folder(part.parent)
        _sync_folder(self._folder)

    def _whole(self, target: Target) -> Path:
        return self._folder / target.namespace / target.hex

    def _part(self, target: Target) -> Path:
        return self._folder / target.namespace / f"{target.hex}.part"

    # --- what nobody needs any more

    async def sweep(self, namespaces: set[str], named: set[tuple[str, str]], now: float) -> int:
        return await asyncio.to_thread(self._sweep, namespaces, named, now)

    def _sweep(self, namespaces: set[str], named: set[tuple[str, str]], now: float) -> int:
        gone = 0
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            if folder.name not in namespaces:
                shutil.rmtree(folder, ignore_errors=True)
                gone += 1
        self._touch(named)
        for path in self._folder.glob("*/*"):
            unfinished = path.name.endswith(".part")
            target = Target(path.parent.name, path.name.removesuffix(".part"))
            if target in self._busy or (target.namespace, target.digest) in named:
                continue
            limit = blobs.PARTIAL_SECONDS if unfinished else blobs.UNUSED_SECONDS
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > limit:
                    path.unlink()
                    gone += 1
        return gone

    def _touch(self, named: Iterable[tuple[str, str]]) -> None:
        """Blobs that Runs name count as used now: 30 days begin when the last Run is gone."""
        for namespace, digest in named:
            with contextlib.suppress(OSError):
                os.utime(self._whole(Target(namespace, digest.removeprefix("sha256:"))))


def _write_all(file: FileIO, piece: bytes) -> None:
    """Unbuffered, so that what has come is there whatever happens next."""
    view = memoryview(piece)
    while view:
        view = view[file.write(view) :]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _no_space() -> blobs.NoSpace:
    return blobs.NoSpace(
        f"the disk of the server is full, or would be: {SPARE_BYTES >> 20} MiB stay free there; "
        "free some space, then submit again"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
