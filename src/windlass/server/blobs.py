"""Uploaded code: `blobs/sha256:HEX` of a namespace.

A blob's name is its content, so what is there is right, and half of one is worth keeping: uploads
come in pieces and go on where they stopped. It belongs to the namespace it was uploaded to. They
lie on the server's disk (`blobfolder`) or in storage that all servers see (`blobbucket`).

Called by `server.platformapi`, which has asked who the caller is and what he may do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
import urllib.parse
from collections.abc import AsyncIterator
from typing import Protocol, TypeVar

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
MEDIA_TYPE = "application/octet-stream"
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


class Keeping(Protocol):
    """Where blobs lie: `blobfolder`, or `blobbucket` where several servers must see them."""

    async def size(self, target: Target) -> int | None:
        """Of a blob that is there, which counts as used now; None if it is not."""

    async def come(self, target: Target) -> int:
        """How much has come of one that is not there yet."""

    async def serve(self, request: web.BaseRequest, target: Target) -> web.StreamResponse | None:
        """The whole of it; None if it is not there."""

    async def append(
        self, target: Target, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        """Adds what comes; returns how much has come. With the last of it the blob is there."""

    async def sweep(self, namespaces: set[str], named: set[tuple[str, str]], now: float) -> int:
        """Removes blobs that no Run has named for long, and those of namespaces that are gone.
        `named`: (namespace, digest) of all Runs."""


class Blobs:
    """What can be asked about blobs, wherever they lie."""

    def __init__(self, keeping: Keeping, *, most_bytes: int = MOST_BYTES) -> None:
        self._keeping = keeping
        self._most = most_bytes

    async def answer(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        if request.method == "HEAD":
            return await self._head(target)
        if request.method == "GET":
            return await self._get(request, target)
        if request.method == "PATCH":
            return await self._patch(request, target)
        raise errors.MethodNotAllowed("blobs know HEAD, GET and PATCH")

    async def sweep(self, store: client.Store) -> int:
        return await self._keeping.sweep(*await in_use(store), time.time())

    async def _head(self, target: Target) -> web.Response:
        """200 with the size when it is there; else 404 with how much of it has come."""
        size = await self._keeping.size(target)
        if size is not None:
            return web.Response(headers={OFFSET: str(size), LENGTH: str(size)})
        come = await self._keeping.come(target)
        return web.Response(status=404, headers={OFFSET: str(come)})

    async def _get(self, request: web.BaseRequest, target: Target) -> web.StreamResponse:
        served = await self._keeping.serve(request, target)
        if served is None:
            raise errors.NotFound(
                f"there is no blob {target.digest} in namespace {target.namespace}; upload it "
                "again by submitting with --workdir"
            )
        return served

    async def _patch(self, request: web.BaseRequest, target: Target) -> web.Response:
        offset, length = _number(request, OFFSET), _number(request, LENGTH)
        if length > self._most:
            raise errors.TooLarge(
                f"a blob has at most {self._most} bytes and this one has {length}; leave files out "
                "with .windlassignore, or mount them"
            )
        whole = await self._keeping.size(target)
        if whole is not None:
            return web.Response(status=204, headers={OFFSET: str(whole), LENGTH: str(whole)})
        pieces = request.content.iter_chunked(_PIECE)
        come = await self._keeping.append(target, offset, length, aiter(pieces))
        return web.Response(status=204, headers={OFFSET: str(come), LENGTH: str(length)})


def misplaced(target: Target, come: int) -> errors.Conflict:
    return errors.Conflict(f"the next piece of {target.digest} begins at {come}")


def too_many(target: Target, length: int) -> errors.BadRequest:
    return errors.BadRequest(f"more than {length} bytes came for {target.digest}")


def another(target: Target) -> errors.BadRequest:
    return errors.BadRequest(
        f"what was uploaded is not {target.digest}; upload it again from the start"
    )


async def sweep_regularly(blobs: Blobs, store: client.Store) -> None:
    """Keeps them from growing for ever; until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_EVERY)
        try:
            gone = await blobs.sweep(store)
        except (errors.ApiError, OSError) as problem:
            _log.warning("blobs were not swept: %s", problem)
            continue
        if gone:
            _log.info("removed %d blobs that no run has named for 30 days", gone)


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
