"""The watch index: it keeps step, also through gaps, and stops on command."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass.kinds.types import core
from windlass.server.auth.watch_index import Follower
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import DeleteOptions, RawEvent, WriteOptions

MAPS = core.ConfigMap.resource


class Names:
    """An index of names only."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.changed = asyncio.Event()

    def put(self, namespace: str, name: str, obj: dict[str, Any]) -> None:
        self.names.add(name)
        self.changed.set()

    def remove(self, namespace: str, name: str) -> None:
        self.names.discard(name)
        self.changed.set()

    async def become(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while self.names != set(names):
                self.changed.clear()
                await self.changed.wait()


async def create(api: Api, name: str) -> None:
    await api.create(MAPS, "default", {"metadata": {"name": name}}, WriteOptions())


async def test_it_knows_everything_when_started_and_what_changes_after(api: Api) -> None:
    await create(api, "a")
    names = Names()
    follower = Follower(api, MAPS, "", names)
    await follower.start()
    assert names.names == {"a"}
    await create(api, "b")
    await names.become("a", "b")
    await api.delete(MAPS, "default", "a", DeleteOptions())
    await names.become("b")
    await follower.stop()


async def test_what_was_deleted_during_a_gap_is_removed(api: Api) -> None:
    names = Names()
    follower = Follower(api, MAPS, "", names)
    for name in ("kept", "lost"):
        follower._apply(added(name))
    follower._before = set(follower._known)  # the watch begins anew
    follower._apply(added("kept"))
    assert names.names == {"kept", "lost"}
    follower._apply(RawEvent("BOOKMARK", b"{}", initial_end=True))
    assert names.names == {"kept"}


async def test_it_stops_even_when_a_change_arrives_at_that_moment(api: Api) -> None:
    follower = Follower(api, MAPS, "", Names())
    await follower.start()
    await asyncio.sleep(0)
    api.watch_cache._wake(api.watch_cache._rings[MAPS.key])
    async with asyncio.timeout(10):
        await follower.stop()


def added(name: str) -> RawEvent:
    return RawEvent("ADDED", b'{"metadata":{"namespace":"default","name":"%b"}}' % name.encode())
