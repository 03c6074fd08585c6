"""Blobs in S3-compatible storage, which all servers share, for `interfaces`.

    pieces/<namespace>/<hex>/<offset>-<sha256>     the bytes that were uploaded at that offset
    blobs/<namespace>/<hex>                        the list of pieces; written last

A piece is named by its content, so two uploads of the same blob to two servers cannot damage each
other, and any server continues where another one died. The pieces are read and verified before the
list is written. Nothing is cached in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from windlass.server.storage import interfaces
from windlass.server.storage.bucket.bucket import Bucket
from windlass.server.storage.interfaces import BlobRef

PIECE_BYTES = 8 << 20
"""The size of one object. A piece is in memory until it is stored."""
TOUCH_SECONDS = 86400.0
"""A list that is used is written again when it is older: object storage has no other way to mark
it."""


class Whole(msgspec.Struct):
    """blobs/<namespace>/<hex>"""

    size: int
    pieces: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class _Piece:
    key: str
    offset: int
    size: int
    modified: float


USAGE_SECONDS = 30.0


class BucketBlobStore:
    def __init__(
        self, bucket: Bucket, prefix: str = "",
        unused_seconds: float = interfaces.UNUSED_BLOB_SECONDS,
    ) -> None:  # fmt: skip
        """`prefix`: before all keys, such as `outputs/`."""
        self._usage: dict[str, tuple[float, tuple[int, int]]] = {}
        """Namespace -> until when it counts, and the usage."""
        self._bucket = bucket
        self._prefix = prefix
        self._unused_seconds = unused_seconds

    async def size(self, blob: BlobRef) -> int | None:
        found = await self._whole(blob)
        return None if found is None else found.size

    async def received(self, blob: BlobRef) -> int:
        return sum(piece.size for piece in await self._chain(blob))

    async def read(self, blob: BlobRef, most: int) -> bytes | None:
        found = await self._whole(blob)
        if found is None or found.size > most:
            return None
        return b"".join([data async for data in self._read(found.pieces)])

    async def serve(self, request: web.BaseRequest, blob: BlobRef) -> web.StreamResponse | None:
        found = await self._whole(blob)
        if found is None:
            return None
        there = {piece.key for piece in await self._pieces(blob)}
        if not there.issuperset(found.pieces):
            # A bad upload removed pieces that were good: the blob is uploaded again.
            await self._bucket.delete(self._list_key(blob))
            return None
        response = web.StreamResponse(
            headers={"Content-Type": interfaces.BLOB_MEDIA_TYPE, "Content-Length": str(found.size)}
        )
        await response.prepare(request)
        async for data in self._read(found.pieces):
            await response.write(data)
        await response.write_eof()
        return response

    async def append(
        self, blob: BlobRef, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        chain = await self._chain(blob)
        received = sum(piece.size for piece in chain)
        if offset != received:
            raise interfaces.wrong_offset(blob, received)
        keys = [piece.key for piece in chain]
        async for data in gathered(pieces):
            if received + len(data) > length:
                await self._bucket.delete(*keys)
                raise interfaces.too_long(blob, length)
            keys.append(self._piece_key(blob, received, data))
            await self._bucket.put(keys[-1], data)
            received += len(data)
        if received == length:
            await self._complete(blob, keys, length)
        return received

    async def _complete(self, blob: BlobRef, keys: list[str], length: int) -> None:
        """Verifies the stored pieces against the name, then makes the blob visible."""
        seen = hashlib.sha256()
        async for data in self._read(keys):
            seen.update(data)
        if seen.hexdigest() != blob.hex:
            await self._bucket.delete(*keys)
            raise interfaces.wrong_digest(blob)
        await self._bucket.put(self._list_key(blob), msgspec.json.encode(Whole(length, keys)))

    async def _read(self, keys: list[str]) -> AsyncIterator[bytes]:
        for key in keys:
            stored = await self._bucket.get(key)
            if stored is None:
                raise ConnectionAbortedError(f"{key} went while it was read")
            yield stored.data

    async def _whole(self, blob: BlobRef) -> Whole | None:
        """The list of an existing blob; the read counts as a use, so it is kept for longer."""
        stored = await self._bucket.get(self._list_key(blob))
        if stored is None:
            return None
        if time.time() - stored.modified > TOUCH_SECONDS:
            await self._bucket.put(self._list_key(blob), stored.data)
        return msgspec.json.decode(stored.data, type=Whole)

    async def _pieces(self, blob: BlobRef) -> list[_Piece]:
        prefix = f"{self._prefix}pieces/{blob.namespace}/{blob.hex}/"
        return [
            _Piece(entry.key, int(entry.key[len(prefix) :].partition("-")[0]), entry.size,
                   entry.modified)
            async for entry in self._bucket.list(prefix)
        ]  # fmt: skip

    async def _chain(self, blob: BlobRef) -> list[_Piece]:
        """The uploaded pieces without a gap, from the beginning."""
        chain: list[_Piece] = []
        end = 0
        for piece in await self._pieces(blob):
            if piece.offset == end and piece.size:
                chain.append(piece)
                end += piece.size
        return chain

    async def usage(self, namespace: str) -> tuple[int, int]:
        """As of at most USAGE_SECONDS ago: it lists all pieces."""
        known = self._usage.get(namespace)
        now = time.monotonic()
        if known is not None and now < known[0]:
            return known[1]
        prefix, blobs, total = f"{self._prefix}pieces/{namespace}/", set(), 0
        async for entry in self._bucket.list(prefix):
            blobs.add(entry.key[len(prefix) :].partition("/")[0])
            total += entry.size
        self._usage[namespace] = now + USAGE_SECONDS, (len(blobs), total)
        return len(blobs), total

    def _list_key(self, blob: BlobRef) -> str:
        return f"{self._prefix}blobs/{blob.namespace}/{blob.hex}"

    def _piece_key(self, blob: BlobRef, offset: int, data: bytes) -> str:
        found = hashlib.sha256(data).hexdigest()
        return f"{self._prefix}pieces/{blob.namespace}/{blob.hex}/{offset:015d}-{found}"

    # --- garbage collection

    async def sweep(self, namespaces: set[str], in_use: set[tuple[str, str]], now: float) -> int:
        gone: list[str] = []
        kept: set[tuple[str, str]] = set()
        async for entry in self._bucket.list(f"{self._prefix}blobs/"):
            _, namespace, digits = entry.key[len(self._prefix) :].split("/")
            blob = BlobRef(namespace, digits)
            if (namespace, blob.digest) in in_use and namespace in namespaces:
                await self._whole(blob)
            elif namespace not in namespaces or now - entry.modified > self._unused_seconds:
                gone.append(entry.key)
                continue
            kept.add((namespace, digits))
        await self._bucket.delete(*gone)  # before its pieces: a listed blob is always complete
        pieces = []
        async for entry in self._bucket.list(f"{self._prefix}pieces/"):
            _, namespace, digits, _ = entry.key[len(self._prefix) :].split("/")
            listed = f"{self._prefix}blobs/{namespace}/{digits}" in gone
            old = (
                now - entry.modified > interfaces.PARTIAL_BLOB_SECONDS
                or namespace not in namespaces
            )
            if listed or (old and (namespace, digits) not in kept):
                pieces.append(entry.key)
        await self._bucket.delete(*pieces)
        return len(gone)


async def gathered(pieces: AsyncIterator[bytes], size: int = PIECE_BYTES) -> AsyncIterator[bytes]:
    """The data in pieces of `size` and a rest."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)
