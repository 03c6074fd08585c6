"""Changes of objects as an endless stream that survives cuts.

What `get -w`, `logs -f` and waiting for a run stand on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

from windlass.kinds.meta import Object
from windlass.store import reflector
from windlass.store.client import Store

T = TypeVar("T", bound=Object)


async def changes(
    store: Store,
    kind: type[T],
    namespace: str = "",
    *,
    label_selector: str = "",
    field_selector: str = "",
) -> AsyncGenerator[tuple[reflector.Change, T], None]:
    """First everything there is as ADDED, then each change. Never ends by itself.

    Raises what the server refuses at the start; later troubles are waited out.
    """
    await store.list(
        kind, namespace, label_selector=label_selector, field_selector=field_selector, limit=1
    )
    arrived: asyncio.Queue[tuple[reflector.Change, T]] = asyncio.Queue()

    def put(change: reflector.Change, before: T | None, after: T | None) -> None:
        obj = after if after is not None else before
        if obj is not None:
            arrived.put_nowait((change, obj))

    async with reflector.Reflector(
        store, kind, namespace, label_selector, field_selector, on_event=put
    ):
        while True:
            yield await arrived.get()
