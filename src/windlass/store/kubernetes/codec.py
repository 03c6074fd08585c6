"""Decodes lists and watch streams into structs, one slice at a time.

Called by `client`. Decoding a list of 50,000 pods takes most of a second, so it is done in slices
between which other tasks run. Python's cyclic garbage collector is paused meanwhile: it would
traverse every new object repeatedly, and the structs have no cycles.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec

from windlass.kinds import codec
from windlass.kinds.types.meta import Object, ObjectMeta
from windlass.store import errors
from windlass.store.interface import EventType, ObjectList, WatchEvent

T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

SLICE = 256
"""Objects that are decoded before other tasks run."""

_INITIAL_END = "k8s.io/initial-events-end"
_paused = 0


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListEnvelope(msgspec.Struct, Generic[Item]):
    """Any list of the API. A list without objects may have `items: null`."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Item] | None = None


class _EventEnvelope(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Head(msgspec.Struct):
    kind: str = ""
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)


_list_decoder = msgspec.json.Decoder(ListEnvelope[msgspec.Raw])
_event_decoder = msgspec.json.Decoder(_EventEnvelope)
_head_decoder = msgspec.json.Decoder(_Head)
_any_decoder = msgspec.json.Decoder(dict[str, Any])


def decode_object(kind: type[T], body: bytes) -> T:
    """Decodes one object; keeps the fields that its struct does not define."""
    with _readable(kind):
        return codec.decode(kind, body)


def is_status(body: bytes) -> bool:
    """Whether a response is a `Status` instead of the object."""
    return _head_decoder.decode(body).kind == "Status"


async def decode_list(kind: type[T], body: bytes) -> ObjectList[T]:
    """A page of a list."""
    decode = codec.decoder(kind).decode
    objects: list[T] = []
    with _readable(kind), _collector_paused():
        envelope = _list_decoder.decode(body)
        items = envelope.items or []
        for start in range(0, len(items), SLICE):
            if start:
                await asyncio.sleep(0)
            objects += [decode(item) for item in items[start : start + SLICE]]
    return ObjectList(objects, envelope.metadata.resource_version, envelope.metadata.continue_)


async def decode_events(
    kind: type[T], chunks: AsyncIterator[bytes]
) -> AsyncIterator[WatchEvent[T]]:
    """Yields the events of a watch; raises an ERROR event as its typed error."""
    decode = codec.decoder(kind).decode
    unbroken = 0
    async for line in lines(chunks):
        with _readable(kind):
            envelope = _event_decoder.decode(line)
            match envelope.type:
                case "ADDED" | "MODIFIED" | "DELETED":
                    event = WatchEvent(cast(EventType, envelope.type), decode(envelope.object))
                case "BOOKMARK":
                    event = _bookmark(kind, envelope.object)
                case _:
                    raise _error(envelope.object)
        yield event
        unbroken += 1
        if unbroken % SLICE == 0:
            # Buffered events would otherwise be decoded without a pause. The socket would not be
            # read meanwhile, and the server closes watches of clients that do not read.
            await asyncio.sleep(0)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits a stream at newlines. Lines may have any length; the last may lack its newline."""
    pending: list[bytes] = []
    async for chunk in chunks:
        first, *others = chunk.split(b"\n")
        pending.append(first)
        if not others:
            continue
        yield b"".join(pending)
        for line in others[:-1]:
            yield line
        pending = [others[-1]]
    if any(pending):
        yield b"".join(pending)


def _bookmark(kind: type[T], raw: msgspec.Raw) -> WatchEvent[T]:
    metadata = _head_decoder.decode(raw).metadata
    ended = (metadata.annotations or {}).get(_INITIAL_END) == "true"
    try:
        obj = codec.decoder(kind).decode(raw)
    except msgspec.ValidationError:
        # The other fields of a bookmark are null, where a real object has values.
        obj = codec.bookmark(kind, metadata)
    return WatchEvent("BOOKMARK", obj, initial_end=ended)


def _error(raw: msgspec.Raw) -> errors.ApiError:
    status = _any_decoder.decode(raw)
    return errors.from_status(status, int(status.get("code") or 500))


@contextlib.contextmanager
def _readable(kind: type[Object]) -> Iterator[None]:
    try:
        yield
    except msgspec.MsgspecError as error:
        resource = kind.resource
        raise errors.ApiError(
            f"the server's response for {resource.key} is not a valid {resource.api_version} "
            f"{resource.kind}: {error}; check that the versions of server and windlass match"
        ) from error


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Pauses the garbage collector. Counted, because several lists may be decoded concurrently."""
    global _paused
    if not _paused and not gc.isenabled():
        yield  # disabled elsewhere: leave it as it is
        return
    _paused += 1
    gc.disable()
    try:
        yield
    finally:
        _paused -= 1
        if not _paused:
            gc.enable()
