"""Uploaded code: `blobs/sha256:HEX` of a namespace, kept as files beside the store.

A blob's name is its content, so what is there is right, and half of one is worth keeping: uploads
come in pieces and go on where they stopped. It belongs to the namespace it was uploaded to.

    BLOBS/<namespace>/<hex>          whole: written, checked, synced, then renamed
    BLOBS/<namespace>/<hex>.part     what has come so far

Called by `server.app`, which has asked who the caller is and what he may do.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import logging
import os
import re
import shutil
import time
import urllib.parse
from collections.abc import AsyncIterator, Iterable
from io import FileIO
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from windlass.kinds import cronrun, kubernetes, run
from windlass.kinds.meta import Object
from windlass.server.platformpaths import GROUP, VERSION
from windlass.store import client, errors

_log = logging.getLogger(__name__)

OFFSET, LENGTH = "Upload-Offset", "Upload-Length"
"""Headers as in resumable uploads elsewhere (tus): where the piece begins; size of the whole."""
MOST_BYTES = 64 << 30
"""Of one blob. Data belongs into mounts."""
SPARE_BYTES = 256 << 20
"""What an upload leaves free on the disk: the store needs it to go on."""
UNUSED_SECONDS = 30 * 86400.0
PARTIAL_SECONDS = 7 * 86400.0
SWEEP_EVERY = 6 * 3600.0
_PIECE = 1 << 20
_PAGE = 500
T = TypeVar("T", bound=Object)
_PATH = re.compile(
    rf"/apis/{re.escape(GROUP)}/{VERSION}/namespaces/([a-z0-9][-a-z0-9.]*)/blobs/"
    r"sha256(?::|%3[aA])([0-9a-f]{64})\Z"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """Which blob of whom."""

    namespace: str
    hex: str

    @property
    def digest(self) -> str:
        return f"sha256:{self.hex}"


class NoSpace(errors.ApiError):
    code = 507
    reason = "InsufficientStorage"


def match(raw_path: str) -> Target | None:
    """The blob that a path names, if it names one."""
    found = _PATH.match(raw_path)
    return Target(found[1], found[2]) if found else None


def path_of(namespace: str, digest: str) -> str:
    """The path of a blob, for clients."""
    quoted = urllib.parse.quote(namespace, safe="")
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quoted}/blobs/{digest}"


class Blobs:
    """The files, and the four things that can be done with them."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most = most_bytes
        self._busy: set[Target] = set()
        """Blobs that an upload writes to at this moment: one writer each."""

    async def answer(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        if request.method == "HEAD":
            return self._head(target)
        if request.method == "GET":
            return self._get(target)
        if request.method == "PATCH":
            return await self._patch(request, target)
        raise errors.MethodNotAllowed("blobs know HEAD, GET and PATCH")

    def _head(self, target: Target) -> web.Response:
        """200 with the size when it is there; else 404 with how much of it has come."""
        size = _size(self._whole(target))
        if size is not None:
            return web.Response(headers={OFFSET: str(size), LENGTH: str(size)})
        come = _size(self._part(target)) or 0
        return web.Response(status=404, headers={OFFSET: str(come)})

    def _get(self, target: Target) -> web.StreamResponse:
        path = self._whole(target)
        if not path.is_file():
            raise errors.NotFound(
                f"there is no blob {target.digest} in namespace {target.namespace}; upload it "
                "again by submitting with --workdir"
            )
        with contextlib.suppress(OSError):
            os.utime(path)  # it was needed: the sweep counts from here
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})

    async def _patch(self, request: web.BaseRequest, target: Target) -> web.Response:
        offset, length = _number(request, OFFSET), _number(request, LENGTH)
        if length > self._most:
            raise errors.TooLarge(
                f"a blob has at most {self._most} bytes and this one has {length}; leave files out "
                "with .windlassignore, or mount them"
            )
        whole = _size(self._whole(target))
        if whole is not None:
            return web.Response(status=204, headers={OFFSET: str(whole), LENGTH: str(whole)})
        if target in self._busy:
            raise errors.Conflict(
                f"another upload of {target.digest} is under way; ask how far it is and go on",
                retry_after=1.0,
            )
        self._busy.add(target)
        try:
            return await self._receive(request, target, offset, length)
        except OSError as problem:
            if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _no_space() from problem
        finally:
            self._busy.discard(target)

    async def _receive(
        self, request: web.BaseRequest, target: Target, offset: int, length: int
    ) -> web.Response:
        part = self._part(target)
        part.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        come = _size(part) or 0
        if offset != come:
            raise errors.Conflict(f"the next piece of {target.digest} begins at {come}")
        if shutil.disk_usage(part.parent).free - (length - come) < SPARE_BYTES:
            raise _no_space()
        with part.open("ab", buffering=0) as file:
            async for piece in request.content.iter_chunked(_PIECE):
                come += len(piece)
                if come > length:
                    file.close()
                    part.unlink(missing_ok=True)
                    raise errors.BadRequest(f"more than {length} bytes came for {target.digest}")
                await asyncio.to_thread(_write_all, file, piece)
        if come == length:
            await asyncio.to_thread(self._complete, target)
        return web.Response(status=204, headers={OFFSET: str(come), LENGTH: str(length)})

    def _complete(self, target: Target) -> None:
        """Checked against its name, on the disk, then visible."""
        part = self._part(target)
        with part.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != target.hex:
                part.unlink()
                raise errors.BadRequest(
                    f"what was uploaded is not {target.digest}; upload it again from the start"
                )
            os.fsync(file.fileno())
        part.replace(self._whole(target))
        _sync_folder(part.parent)
        _sync_folder(self._folder)

    def _whole(self, target: Target) -> Path:
        return self._folder / target.namespace / target.hex

    def _part(self, target: Target) -> Path:
        return self._folder / target.namespace / f"{target.hex}.part"

    # --- what nobody needs any more

    def sweep(self, namespaces: set[str], named: set[tuple[str, str]], now: float) -> list[Path]:
        """Removes blobs that no Run has named for long, and those of namespaces that are gone.
        `named`: (namespace, digest) of all Runs."""
        gone: list[Path] = []
        for folder in self._folder.iterdir() if self._folder.exists() else ():
            if folder.name not in namespaces:
                shutil.rmtree(folder, ignore_errors=True)
                gone.append(folder)
        self._touch(named)
        for path in self._folder.glob("*/*"):
            unfinished = path.name.endswith(".part")
            target = Target(path.parent.name, path.name.removesuffix(".part"))
            if target in self._busy or (target.namespace, target.digest) in named:
                continue
            limit = PARTIAL_SECONDS if unfinished else UNUSED_SECONDS
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > limit:
                    path.unlink()
                    gone.append(path)
        return gone

    def _touch(self, named: Iterable[tuple[str, str]]) -> None:
        """Blobs that Runs name count as used now: 30 days begin when the last Run is gone."""
        for namespace, digest in named:
            with contextlib.suppress(OSError):
                os.utime(self._whole(Target(namespace, digest.removeprefix("sha256:"))))


async def sweep_regularly(blobs: Blobs, store: client.Store) -> None:
    """Keeps the folder from growing for ever; until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_EVERY)
        try:
            namespaces, named = await in_use(store)
            gone = await asyncio.to_thread(blobs.sweep, namespaces, named, time.time())
        except (errors.ApiError, OSError) as problem:
            _log.warning("blobs were not swept: %s", problem)
            continue
        if gone:
            _log.info("removed %d blobs that no run has named for 30 days", len(gone))


async def in_use(store: client.Store) -> tuple[set[str], set[tuple[str, str]]]:
    """All namespaces, and (namespace, digest) of everything that Runs and CronRuns name."""
    namespaces = {each.name async for each in _all(store, kubernetes.Namespace)}
    named = {
        (each.namespace, each.spec.code.digest)
        async for each in _all(store, run.Run)
        if each.spec.code
    }
    async for cron in _all(store, cronrun.CronRun):
        if cron.spec.template.spec.code:
            named.add((cron.namespace, cron.spec.template.spec.code.digest))
    return namespaces, named


async def _all(store: client.Store, kind: type[T]) -> AsyncIterator[T]:
    token = ""
    while True:
        page = await store.list(kind, limit=_PAGE, continue_token=token)
        for each in page.items:
            yield each
        token = page.continue_token
        if not token:
            return


def _number(request: web.BaseRequest, header: str) -> int:
    text = request.headers.get(header, "")
    if not text.isdecimal() or len(text) > 15:
        raise errors.BadRequest(f"the header {header} must be a number of bytes")
    return int(text)


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


def _no_space() -> NoSpace:
    return NoSpace(
        f"the disk of the server is full, or would be: {SPARE_BYTES >> 20} MiB stay free there; "
        "free some space, then submit again"
    )


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
