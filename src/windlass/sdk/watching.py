"""Changes of objects as an endless stream that survives lost connections.

`get -w`, `logs -f` and waiting for a run use it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TypeVar

from windlass.kinds.types.meta import Object
from windlass.store import errors, informer
from windlass.store.interface import ObjectList, Store

T = TypeVar("T", bound=Object)


async def changes(
    store: Store,
    kind: type[T],
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    start: ObjectList[T] | None = None,
) -> AsyncGenerator[tuple[informer.Change, T], None]:
    """Yields the existing objects as ADDED, then each change. Never ends by itself.

    Raises errors of the first request; later errors are retried. `start`: known objects, which need
    not be listed.
    """
    start = start or await store.list(
        kind, namespace, label_selector=label_selector, field_selector=field_selector
    )
    arrived: asyncio.Queue[tuple[informer.Change, T]] = asyncio.Queue()

    def put(change: informer.Change, before: T | None, after: T | None) -> None:
        obj = after if after is not None else before
        if obj is not None:
            arrived.put_nowait((change, obj))

    async with informer.Informer(
        store, kind, namespace, label_selector, field_selector, on_event=put, start=start
    ):
        while True:
            yield await arrived.get()


async def gone(store: Store, wanted: Object) -> None:
    """Waits until the object does not exist any more; another one of its name may."""
    kind = type(wanted)
    stream = changes(store, kind, wanted.namespace, field_selector=f"metadata.name={wanted.name}")
    try:
        await store.get(kind, wanted.name, wanted.namespace)
    except errors.NotFound:
        return
    async with contextlib.aclosing(stream) as found:
        async for change, current in found:
            if change == "DELETED" or current.uid != wanted.uid:
                return
