"""What ends by itself: dependents, terminating namespaces, old events; also after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.store.builders import CONFIG_MAP, NAMESPACE, config_map, pod, with_namespace
from windlass.kinds.types import core
from windlass.kinds.types.resource import Resource
from windlass.store import errors
from windlass.store.embedded.api import Api
from windlass.store.embedded.options import DeleteOptions, ListQuery, WriteOptions
from windlass.store.interface import Propagation


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    opened = await with_namespace(await Api.open(tmp_path / "store.db"))
    yield opened
    await opened.close()


async def make(
    api: Api, name: str, owner: dict[str, Any] | None = None, blocks: bool = False
) -> dict[str, Any]:
    body = config_map(name)
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "blockOwnerDeletion": blocks}
        reference |= {key: owner["metadata"][key] for key in ("name", "uid")}
        body["metadata"]["ownerReferences"] = [reference]
    stored = await api.create(CONFIG_MAP, "team", body, WriteOptions())
    value: dict[str, Any] = msgspec.json.decode(stored)
    return value


async def names(api: Api, resource: Resource = CONFIG_MAP, namespace: str = "team") -> list[str]:
    found = await api.list(resource, namespace, ListQuery())
    return [msgspec.json.decode(item)["metadata"]["name"] for item in found.items]


async def eventually(api: Api, wanted: list[str]) -> None:
    """Waits on the store's own changes, not on the clock, until only `wanted` are left."""
    async with asyncio.timeout(20):
        while sorted(await names(api)) != sorted(wanted):
            await api.watch_cache.wait(CONFIG_MAP.key, api.watch_cache.latest, 0.1)


async def delete(api: Api, name: str, propagation: Propagation) -> bool:
    return (await api.delete(CONFIG_MAP, "team", name, DeleteOptions(propagation)))[1]


async def test_dependents_follow_their_owner(api: Api) -> None:
    owner = await make(api, "owner")
    child = await make(api, "child", owner)
    await make(api, "grandchild", child)
    await make(api, "other")
    assert await delete(api, "owner", "Background")
    await eventually(api, ["other"])


async def test_an_object_with_another_living_owner_stays(api: Api) -> None:
    one, two = await make(api, "one"), await make(api, "two")
    child = await make(api, "child", one)
    references = [*child["metadata"]["ownerReferences"]]
    references.append({**references[0], "name": "two", "uid": two["metadata"]["uid"]})
    patch = {"metadata": {"ownerReferences": references}}
    await api.patch(CONFIG_MAP, "team", "child", patch, "merge", WriteOptions())
    await delete(api, "one", "Background")
    await make(api, "stranger", one)
    await eventually(api, ["two", "child"])


async def test_foreground_waits_for_the_dependents_that_block(api: Api) -> None:
    owner = await make(api, "owner")
    await make(api, "child", owner, blocks=True)
    hold = {"metadata": {"finalizers": ["example.com/hold"]}}
    await api.patch(CONFIG_MAP, "team", "child", hold, "merge", WriteOptions())
    assert not await delete(api, "owner", "Foreground")
    child = CONFIG_MAP, "team", "child"
    async with asyncio.timeout(20):
        while b"deletionTimestamp" not in await api.get(*child):
            await api.watch_cache.wait(CONFIG_MAP.key, api.watch_cache.latest, 0.1)
    assert sorted(await names(api)) == ["child", "owner"]
    await api.patch(*child, {"metadata": {"finalizers": None}}, "merge", WriteOptions())
    await eventually(api, [])


async def test_orphaned_dependents_live_on_without_owner(api: Api) -> None:
    owner = await make(api, "owner")
    await make(api, "child", owner)
    await delete(api, "owner", "Orphan")
    await eventually(api, ["child"])
    assert b"ownerReferences" not in await api.get(CONFIG_MAP, "team", "child")


async def test_a_deleted_namespace_takes_everything_with_it(api: Api) -> None:
    await make(api, "a")
    await api.create(core.Pod.resource, "team", pod("p"), WriteOptions())
    _, gone = await api.delete(NAMESPACE, "", "team", DeleteOptions())
    assert not gone
    async with asyncio.timeout(20):
        while "team" in await names(api, NAMESPACE, ""):
            await api.watch_cache.wait(NAMESPACE.key, api.watch_cache.latest, 0.1)
    assert await names(api) == []


async def test_nothing_new_enters_a_terminating_namespace(api: Api) -> None:
    held = config_map("held")
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await api.create(CONFIG_MAP, "team", held, WriteOptions())
    await api.delete(NAMESPACE, "", "team", DeleteOptions())
    with pytest.raises(errors.Forbidden, match="being terminated"):
        await make(api, "late")


async def test_a_crash_between_owner_and_dependents_is_repaired_at_the_next_start(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.db"
    crashing = await with_namespace(Api(path))  # no collector: as if it died before it could run
    owner = await make(crashing, "owner")
    await make(crashing, "child", owner)
    await delete(crashing, "owner", "Background")
    await crashing.delete(NAMESPACE, "", "team", DeleteOptions())
    await crashing.close()
    api = await Api.open(path)
    async with asyncio.timeout(20):
        while "team" in await names(api, NAMESPACE, ""):
            await api.watch_cache.wait(NAMESPACE.key, api.watch_cache.latest, 0.1)
    assert await names(api) == []
    await api.close()


async def test_old_events_expire(tmp_path: Path) -> None:
    clock = {"now": 1_000_000.0}
    api = await with_namespace(Api(tmp_path / "store.db", lambda: clock["now"]))
    body = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "team"},
        "reason": "R",
    }
    await api.create(core.Event.resource, "team", body, WriteOptions())
    await api._collector._expire_events()
    assert await names(api, core.Event.resource) == ["e"]
    clock["now"] += 3601
    await api._collector._expire_events()
    assert await names(api, core.Event.resource) == []
    await api.close()


async def test_history_is_compacted_by_age(tmp_path: Path) -> None:
    clock = {"now": 1_000_000.0}
    api = await with_namespace(Api(tmp_path / "store.db", lambda: clock["now"]))
    await make(api, "a")
    await api._collector._compact()
    assert api.mvcc.compacted == 0
    clock["now"] += 601
    kept_from = api.mvcc.last_rv
    await make(api, "b")
    await api._collector._compact()
    assert api.mvcc.compacted == kept_from
    await api.close()
