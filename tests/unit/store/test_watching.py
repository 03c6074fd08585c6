"""Watches on the embedded API: nothing missed, nothing twice, however slow the reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.unit.store.builders import CONFIG_MAP, config_map, with_namespace
from windlass.store import errors
from windlass.store.embedded import watch_cache, watching
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import DeleteOptions, RawEvent, WatchQuery, WriteOptions


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    opened = await with_namespace(await Api.open(tmp_path / "store.db"))
    yield opened
    await opened.close()


def told(events: list[RawEvent]) -> list[tuple[str, str]]:
    return [(e.type, msgspec.json.decode(e.data)["metadata"]["name"]) for e in events]


async def read(watch: AsyncIterator[list[RawEvent]], count: int) -> list[RawEvent]:
    events: list[RawEvent] = []
    async with asyncio.timeout(20):
        while len(events) < count:
            events += await anext(watch)
    return events


async def put(api: Api, name: str, labels: dict[str, str] | None = None, **data: str) -> int:
    stored = await api.create(CONFIG_MAP, "team", config_map(name, labels, **data), WriteOptions())
    return int(msgspec.json.decode(stored)["metadata"]["resourceVersion"])


async def label(api: Api, name: str, **labels: str) -> None:
    patch = {"metadata": {"labels": labels}}
    await api.patch(CONFIG_MAP, "team", name, patch, "merge", WriteOptions())


async def test_a_watch_tells_every_change_after_its_version_in_order(api: Api) -> None:
    start = await put(api, "before")
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(resource_version=str(start)))
    await put(api, "a")
    await label(api, "a", x="1")
    await api.delete(CONFIG_MAP, "team", "a", DeleteOptions())
    assert told(await read(watch, 3)) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_without_version_begins_with_what_is_there(api: Api) -> None:
    await put(api, "a")
    watch = api.watch(CONFIG_MAP, "team", WatchQuery())
    assert told(await read(watch, 1)) == [("ADDED", "a")]
    await put(api, "b")
    assert told(await read(watch, 1)) == [("ADDED", "b")]


async def test_through_a_selector_objects_come_and_go_with_their_labels(api: Api) -> None:
    start = await put(api, "a")
    query = WatchQuery(label_selector="in=yes", resource_version=str(start))
    watch = api.watch(CONFIG_MAP, "team", query)
    await label(api, "a", **{"in": "yes"})
    await label(api, "a", other="1")
    await label(api, "a", **{"in": "no"})
    await label(api, "a", other="2")
    await put(api, "b", {"in": "yes"})
    assert told(await read(watch, 4)) == [
        ("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b"),
    ]  # fmt: skip


async def test_a_reader_slower_than_the_ring_still_gets_everything(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_cache, "RING_CHANGES", 4)
    monkeypatch.setattr(watching, "HISTORY_SLICE", 7)
    start = await put(api, "first")
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(resource_version=str(start)))
    names = [f"n{i:02}" for i in range(40)]
    for name in names:
        await put(api, name)
    assert told(await read(watch, 40)) == [("ADDED", name) for name in names]
    await put(api, "last")
    assert told(await read(watch, 1)) == [("ADDED", "last")]


async def test_a_version_that_is_no_longer_kept_is_gone(api: Api) -> None:
    start = await put(api, "a")
    for i in range(5):
        await label(api, "a", n=str(i))
    await api.mvcc.compact(api.mvcc.last_rv)
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(resource_version=str(start)))
    with pytest.raises(errors.Gone):
        await anext(watch)


async def test_a_version_of_the_future_is_refused(api: Api) -> None:
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(resource_version="999999"))
    with pytest.raises(errors.ServerTimeout, match="Too large resource version"):
        await anext(watch)


async def test_bookmarks_move_an_idle_watch_forward(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "BOOKMARK_SECONDS", 0.01)
    start = await put(api, "a")
    query = WatchQuery(
        field_selector="metadata.name=none", resource_version=str(start), bookmarks=True
    )
    watch = api.watch(CONFIG_MAP, "team", query)
    rv = await put(api, "b")
    event = (await read(watch, 1))[0]
    assert event.type == "BOOKMARK"
    assert int(msgspec.json.decode(event.data)["metadata"]["resourceVersion"]) == rv


async def test_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    await put(api, "a")
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(bookmarks=True, initial_events=True))
    events = await read(watch, 2)
    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert events[1].initial_end


async def test_closing_the_api_ends_every_watch(tmp_path: Path) -> None:
    api = await with_namespace(await Api.open(tmp_path / "store.db"))
    watch = api.watch(CONFIG_MAP, "", WatchQuery(resource_version=str(api.mvcc.last_rv)))
    reader = asyncio.create_task(anext(watch, None))
    await asyncio.sleep(0)
    await api.close()
    assert await asyncio.wait_for(reader, 5) is None


async def test_a_watch_resumes_across_a_restart(tmp_path: Path) -> None:
    api = await with_namespace(await Api.open(tmp_path / "store.db"))
    start = await put(api, "a")
    await put(api, "b")
    await api.close()
    api = await Api.open(tmp_path / "store.db")
    watch = api.watch(CONFIG_MAP, "team", WatchQuery(resource_version=str(start)))
    await put(api, "c")
    assert told(await read(watch, 2)) == [("ADDED", "b"), ("ADDED", "c")]
    await api.close()
