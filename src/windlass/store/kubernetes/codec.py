"""Lists and watch streams from bytes straight into structs, a slice at a time.

Called by `client`. A list of 50,000 pods takes most of a second to decode: it is done in slices,
between which other tasks run, and with the cyclic collector paused (it would look at every new
object again and again and find nothing: the structs are trees).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar, cast

import msgspec

from windlass.kinds import wire
from windlass.kinds.meta import Object, ObjectMeta
from windlass.store import errors
from windlass.store.client import EventType, ObjectList, WatchEvent

T = TypeVar("T", bound=Object)
Item = TypeVar("Item")

SLICE = 256
"""Objects decoded before other tasks get a turn."""

_INITIAL_END = "k8s.io/initial-events-end"
_paused = 0


class ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ListEnvelope(msgspec.Struct, Generic[Item]):
    """Any list of the API. A list without objects may say `items: null`."""

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
    """One object, remembering the fields its struct does not name."""
    with _readable(kind):
        return wire.decode(kind, body)


def is_status(body: bytes) -> bool:
    """Whether an answer is a `Status` (it is done) instead of the object."""
    return _head_decoder.decode(body).kind == "Status"


async def decode_list(kind: type[T], body: bytes) -> ObjectList[T]:
    """A page of a list."""
    decode = wire.decoder(kind).decode
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
    """The events of a watch; an ERROR event is raised as its typed error."""
    decode = wire.decoder(kind).decode
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
            # What is already buffered would otherwise be decoded without a pause, and the server
            # cuts off watchers that leave other tasks, such as reading the socket, no time.
            await asyncio.sleep(0)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Splits a stream at newlines. A line may be of any length; a last one needs no newline."""
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
        obj = wire.decoder(kind).decode(raw)
    except msgspec.ValidationError:
        # The API server fills the rest of a bookmark with nulls where a real object has values.
        obj = wire.bookmark(kind, metadata)
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
            f"the server's answer about {resource.key} cannot be read as {resource.api_version} "
            f"{resource.kind}: {error}; check that server and windlass are of matching versions"
        ) from error


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Counts, because several lists may be under way at once."""
    global _paused
    if not _paused and not gc.isenabled():
        yield  # somebody else turned it off and will turn it on again
        return
    _paused += 1
    gc.disable()
    try:
        yield
    finally:
        _paused -= 1
        if not _paused:
            gc.enable()
