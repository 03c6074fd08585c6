"""Blobs in S3-compatible storage, which all servers see, for `blobs`.

    pieces/<namespace>/<hex>/<offset>-<sha256>     what came at that offset
    blobs/<namespace>/<hex>                        which pieces are the whole of it; written last

A piece is named by what is in it, so two who upload the same, to two servers, cannot spoil each
other's work, and any server goes on where another one died. What a blob is made of was read once
and checked before its list of pieces is written. Nothing here is in memory.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from windlass.server import blobs
from windlass.server.blobs import Target
from windlass.server.s3 import Bucket

PIECE_BYTES = 8 << 20
"""Of one object. What has come of a piece is in memory until the storage has it."""
TOUCH_SECONDS = 86400.0
"""A list that is needed is written again when it is older: storage has no other way to say so."""


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


class BlobBucket:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def size(self, target: Target) -> int | None:
        found = await self._whole(target)
        return None if found is None else found.size

    async def come(self, target: Target) -> int:
        return sum(piece.size for piece in await self._chain(target))

    async def serve(self, request: web.BaseRequest, target: Target) -> web.StreamResponse | None:
        found = await self._whole(target)
        if found is None:
            return None
        there = {piece.key for piece in await self._pieces(target)}
        if not there.issuperset(found.pieces):
            # Somebody's bad upload took pieces along that were good: it is uploaded again.
            await self._bucket.delete(_list_key(target))
            return None
        response = web.StreamResponse(
            headers={"Content-Type": blobs.MEDIA_TYPE, "Content-Length": str(found.size)}
        )
        await response.prepare(request)
        async for data in self._read(found.pieces):
            await response.write(data)
        await response.write_eof()
        return response

    async def append(
        self, target: Target, offset: int, length: int, pieces: AsyncIterator[bytes]
    ) -> int:
        chain = await self._chain(target)
        come = sum(piece.size for piece in chain)
        if offset != come:
            raise blobs.misplaced(target, come)
        keys = [piece.key for piece in chain]
        async for data in gathered(pieces):
            if come + len(data) > length:
                await self._bucket.delete(*keys)
                raise blobs.too_many(target, length)
            keys.append(_piece_key(target, come, data))
            await self._bucket.put(keys[-1], data)
            come += len(data)
        if come == length:
            await self._complete(target, keys, length)
        return come

    async def _complete(self, target: Target, keys: list[str], length: int) -> None:
        """Checked against its name as it lies there, then visible."""
        seen = hashlib.sha256()
        async for data in self._read(keys):
            seen.update(data)
        if seen.hexdigest() != target.hex:
            await self._bucket.delete(*keys)
            raise blobs.another(target)
        await self._bucket.put(_list_key(target), msgspec.json.encode(Whole(length, keys)))

    async def _read(self, keys: list[str]) -> AsyncIterator[bytes]:
        for key in keys:
            stored = await self._bucket.get(key)
            if stored is None:
                raise ConnectionAbortedError(f"{key} went while it was read")
            yield stored.data

    async def _whole(self, target: Target) -> Whole | None:
        """The list of a blob that is there; needed, so it is kept for longer."""
        stored = await self._bucket.get(_list_key(target))
        if stored is None:
            return None
        if time.time() - stored.modified > TOUCH_SECONDS:
            await self._bucket.put(_list_key(target), stored.data)
        return msgspec.json.decode(stored.data, type=Whole)

    async def _pieces(self, target: Target) -> list[_Piece]:
        prefix = f"pieces/{target.namespace}/{target.hex}/"
        return [
            _Piece(entry.key, int(entry.key[len(prefix) :].partition("-")[0]), entry.size,
                   entry.modified)
            async for entry in self._bucket.list(prefix)
        ]  # fmt: skip

    async def _chain(self, target: Target) -> list[_Piece]:
        """What has come without a gap, from the beginning."""
        chain: list[_Piece] = []
        end = 0
        for piece in await self._pieces(target):
            if piece.offset == end and piece.size:
                chain.append(piece)
                end += piece.size
        return chain

    # --- what nobody needs any more

    async def sweep(self, namespaces: set[str], named: set[tuple[str, str]], now: float) -> int:
        gone: list[str] = []
        kept: set[tuple[str, str]] = set()
        async for entry in self._bucket.list("blobs/"):
            _, namespace, digits = entry.key.split("/")
            target = Target(namespace, digits)
            if (namespace, target.digest) in named and namespace in namespaces:
                await self._whole(target)
            elif namespace not in namespaces or now - entry.modified > blobs.UNUSED_SECONDS:
                gone.append(entry.key)
                continue
            kept.add((namespace, digits))
        await self._bucket.delete(*gone)  # before its pieces: nothing is listed that is not there
        pieces = []
        async for entry in self._bucket.list("pieces/"):
            _, namespace, digits, _ = entry.key.split("/")
            listed = f"blobs/{namespace}/{digits}" in gone
            old = now - entry.modified > blobs.PARTIAL_SECONDS or namespace not in namespaces
            if listed or (old and (namespace, digits) not in kept):
                pieces.append(entry.key)
        await self._bucket.delete(*pieces)
        return len(gone)


async def gathered(pieces: AsyncIterator[bytes], size: int = PIECE_BYTES) -> AsyncIterator[bytes]:
    """What comes, in pieces of `size` and a rest."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= size:
            yield bytes(waiting[:size])
            del waiting[:size]
    if waiting:
        yield bytes(waiting)


def _list_key(target: Target) -> str:
    return f"blobs/{target.namespace}/{target.hex}"


def _piece_key(target: Target, offset: int, data: bytes) -> str:
    found = hashlib.sha256(data).hexdigest()
    return f"pieces/{target.namespace}/{target.hex}/{offset:015d}-{found}"
