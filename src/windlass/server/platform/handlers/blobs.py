"""Uploaded code: `blobs/sha256:HEX` of a namespace.

A blob is named by the hash of its content. Uploads come in pieces and continue where they stopped,
at any server. A blob belongs to the namespace to which it was uploaded.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import time
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aiohttp import web

from windlass.kinds.types import core, cronrun, run
from windlass.kinds.types.meta import Object
from windlass.server.fairness.settings import DEFAULTS, NAME, NAMESPACE, NamespaceLimits
from windlass.server.http import bodies
from windlass.server.platform.call import PlatformCall
from windlass.server.platform.paths import GROUP, VERSION
from windlass.server.storage.interfaces import BlobRef, BlobStore
from windlass.store import errors, interface

_log = logging.getLogger(__name__)

OFFSET, LENGTH = "Upload-Offset", "Upload-Length"
"""Headers of the tus protocol for resumable uploads: where the piece begins; size of the blob."""
MOST_BYTES = 64 << 30
"""Of one blob. Larger data belongs into mounted volumes."""
SWEEP_EVERY = 6 * 3600.0
_PIECE = 1 << 20
_PAGE = 500
T = TypeVar("T", bound=Object)
InUse = Callable[[interface.Store], Awaitable[tuple[set[str], set[tuple[str, str]]]]]
"""All namespaces, and (namespace, digest) of the blobs that are needed."""
RefuseMuch = Callable[[BlobRef, int], Awaitable[None]]
"""Forbidden if the namespace of the blob may not get so many further bytes."""


def path_of(namespace: str, digest: str) -> str:
    """The path of a blob, for clients."""
    quoted = urllib.parse.quote(namespace, safe="")
    return f"/apis/{GROUP}/{VERSION}/namespaces/{quoted}/blobs/{digest}"


class BlobService:
    """Uploads and downloads of blobs, in any store."""

    def __init__(
        self, objects: interface.Store, blobs: BlobStore, *, most_bytes: int = MOST_BYTES,
        in_use: InUse | None = None, refuse_much: RefuseMuch | None = None,
        again: str = "upload it again by submitting with --workdir",
    ) -> None:  # fmt: skip
        """`again`: what a user does about a blob that is missing."""
        self._objects = objects
        self._in_use = in_use or code_in_use
        self._refuse_much = refuse_much or self._refuse_uploads
        self._again = again
        self._blobs = blobs
        self._most = most_bytes
        self.limits: NamespaceLimits = DEFAULTS.namespace
        self._expected: collections.Counter[str] = collections.Counter()
        """Bytes that uploads of a namespace that are under way still bring."""

    async def head(self, call: PlatformCall) -> web.Response:
        """200 with the size of a complete blob; otherwise 404 with the bytes uploaded so far."""
        blob = await self._blob(call)
        size = await self._blobs.size(blob)
        if size is not None:
            return web.Response(headers={OFFSET: str(size), LENGTH: str(size)})
        received = await self._blobs.received(blob)
        return web.Response(status=404, headers={OFFSET: str(received)})

    async def get(self, call: PlatformCall) -> web.StreamResponse:
        blob = await self._blob(call)
        response = await self._blobs.serve(call.request, blob)
        if response is None:
            raise errors.NotFound(
                f"there is no blob {blob.digest} in namespace {blob.namespace}; {self._again}"
            )
        return response

    async def upload(self, call: PlatformCall) -> web.Response:
        """Appends the body of the request to a blob."""
        blob, request = await self._blob(call), call.request
        offset, length = _number(request, OFFSET), _number(request, LENGTH)
        if length > self._most:
            raise errors.TooLarge(
                f"a blob has at most {self._most} bytes and this one has {length}; leave files out "
                "with .windlassignore, or mount them"
            )
        size = await self._blobs.size(blob)
        if size is not None:
            return web.Response(status=204, headers={OFFSET: str(size), LENGTH: str(size)})
        missing = max(length - offset, 0)
        await self._refuse_much(blob, self._expected[blob.namespace] + missing)
        pieces = bodies.pieces(request, _PIECE)
        self._expected[blob.namespace] += missing
        try:
            received = await self._blobs.append(blob, offset, length, pieces)
        finally:
            self._expected[blob.namespace] -= missing
        return web.Response(status=204, headers={OFFSET: str(received), LENGTH: str(length)})

    async def _refuse_uploads(self, blob: BlobRef, more: int) -> None:
        """Forbidden if the namespace has more uploads with this one than it may."""
        count, size = await self._blobs.usage(blob.namespace)
        size += more
        limits, limit = self.limits, ""
        if count >= limits.uploads and not await self._blobs.received(blob):
            limit, has = "uploads", f"{count} uploads, of at most {limits.uploads}"
        elif size > limits.upload_bytes:
            has = f"{size} bytes of uploads with this one, of at most {limits.upload_bytes}"
            limit = "uploadBytes"
        if limit:
            raise errors.Forbidden(
                f"namespace {blob.namespace} has {has}; leave files out with .windlassignore, "
                "delete old runs (uploads are removed 30 days after the last run that names them), "
                f"or ask an administrator to raise namespace.{limit} in ConfigMap "
                f"{NAMESPACE}/{NAME}"
            )

    async def sweep(self) -> int:
        """Removes the blobs that no Run needs; returns how many."""
        return await self._blobs.sweep(*await self._in_use(self._objects), time.time())

    async def sweep_regularly(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY)
            try:
                removed = await self.sweep()
            except (errors.ApiError, OSError) as problem:
                _log.warning("blobs were not swept: %s", problem)
                continue
            if removed:
                _log.info("removed %d blobs that no run has named for long", removed)

    async def _blob(self, call: PlatformCall) -> BlobRef:
        await self._objects.get(core.Namespace, call.namespace)
        return BlobRef(call.namespace, call.parameters["digest"].removeprefix("sha256:"))


async def code_in_use(store: interface.Store) -> tuple[set[str], set[tuple[str, str]]]:
    """All namespaces, and (namespace, digest) of everything that Runs and CronRuns name."""
    namespaces = {each.name async for each in every(store, core.Namespace)}
    named = {
        (each.namespace, each.spec.code.digest)
        async for each in every(store, run.Run)
        if each.spec.code
    }
    async for cron in every(store, cronrun.CronRun):
        if cron.spec.template.spec.code:
            named.add((cron.namespace, cron.spec.template.spec.code.digest))
    return namespaces, named


async def every(store: interface.Store, kind: type[T], namespace: str = "") -> AsyncIterator[T]:
    """All objects of a kind, read in pages."""
    token = ""
    while True:
        page = await store.list(kind, namespace, limit=_PAGE, continue_token=token)
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
