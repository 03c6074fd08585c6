"""Changes of objects as an endless stream that survives cuts.

What `get -w`, `logs -f` and waiting for a run stand on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from windlass.kinds.meta import Object
from windlass.store import reflector
from windlass.store.client import ObjectList, Store

T = TypeVar("T", bound=Object)


async def changes(
    store: Store,
    kind: type[T],
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
    start: ObjectList[T] | None = None,
) -> AsyncGenerator[tuple[reflector.Change, T], None]:
    """First everything there is as ADDED, then each change. Never ends by itself.

    Raises what the server refuses at the start; later troubles are waited out. `start`: what is
    known to be there, so that it need not be asked for.
    """
    start = start or await store.list(
        kind, namespace, label_selector=label_selector, field_selector=field_selector
    )
    arrived: asyncio.Queue[tuple[reflector.Change, T]] = asyncio.Queue()

    def put(change: reflector.Change, before: T | None, after: T | None) -> None:
        obj = after if after is not None else before
        if obj is not None:
            arrived.put_nowait((change, obj))

    async with reflector.Reflector(
        store, kind, namespace, label_selector, field_selector, on_event=put, start=start
    ):
        while True:
            yield await arrived.get()
