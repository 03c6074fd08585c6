"""The informer against a real kube-apiserver that is cut off, restarted and compacted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from tests.harness.control_plane import ControlPlane
from windlass.kinds.types.core import ConfigMap
from windlass.kinds.types.meta import ObjectMeta
from windlass.store import connect, errors
from windlass.store.informer import Backoff, Informer
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.http import retry

pytestmark = pytest.mark.kubernetes

NAMESPACE = "default"


@pytest.fixture(scope="module")
def plane(kubernetes_binaries: pathlib.Path) -> Iterator[ControlPlane]:
    """A control plane of its own: these tests kill parts of it."""
    with ControlPlane.start(controllers=False) as started:
        yield started


class Road:
    """A real TCP way to the API server that can be cut and closed."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Resets every connection; new ones are possible."""
        for writer in list(self._connections):
            writer.transport.abort()

    def close(self) -> None:
        """Cut, and refuse new ones until it is opened again."""
        if self._server is not None:
            self._server.close()
        self.cut()

    async def _carry(self, here: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, forth = await asyncio.open_connection("127.0.0.1", self._server_port)
            self._connections |= {back, forth}
            await asyncio.gather(self._pump(here, forth), self._pump(there, back))
        back.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        sink.transport.abort()
        self._connections.discard(sink)


class Scene:
    """A writer with a road of its own, a follower on a connection that breaks, and the events it
    got."""

    def __init__(self, writer: KubernetesStore, follower: KubernetesStore, road: Road) -> None:
        self.writer = writer
        self.follower = follower
        self.road = road
        self.told: list[tuple[str, str]] = []
        self.present: dict[str, str] = {}

    def informer(self, **options: Any) -> Informer[ConfigMap]:
        return Informer(
            self.follower,
            ConfigMap,
            NAMESPACE,
            label_selector="scene",
            on_event=self.record,
            backoff=Backoff(first=0.05, longest=0.5),
            **options,
        )

    def record(self, change: str, old: ConfigMap | None, new: ConfigMap | None) -> None:
        obj = new or old
        assert obj is not None
        self.told.append((change, obj.name))
        if new is None:
            del self.present[obj.name]
        else:
            assert (change == "ADDED") == (obj.name not in self.present)
            assert self.present.get(obj.name) != obj.metadata.resource_version, "told twice"
            self.present[obj.name] = obj.metadata.resource_version

    async def is_watched(self, informer: Informer[ConfigMap]) -> None:
        """Waits until a change came through the watch, not through a list."""
        await informer.synced()
        await self.write("marker")
        await self.caught_up(informer)
        self.told.clear()

    async def write(self, *names: str) -> None:
        for name in names:
            metadata = ObjectMeta(name=name, namespace=NAMESPACE, labels={"scene": "1"})
            await self.writer.create(ConfigMap(metadata=metadata))

    async def change(self, name: str, value: str) -> None:
        await self.writer.patch(ConfigMap, name, NAMESPACE, patch={"data": {"value": value}})

    async def delete(self, *names: str) -> None:
        for name in names:
            await self.writer.delete(ConfigMap, name, NAMESPACE)

    async def caught_up(self, informer: Informer[ConfigMap]) -> None:
        """Waits until the informer holds exactly what the server holds."""
        async with asyncio.timeout(60):
            while True:
                listed = await self.writer.list(ConfigMap, NAMESPACE, label_selector="scene")
                held = {obj.name: obj.metadata.resource_version for obj in informer}
                if held == {obj.name: obj.metadata.resource_version for obj in listed.items}:
                    assert self.present == held
                    return
                await asyncio.sleep(0.01)


@pytest.fixture
async def scene(plane: ControlPlane, tmp_path: pathlib.Path) -> AsyncIterator[Scene]:
    road = Road(int(plane.url.rsplit(":", 1)[1]))
    await road.open()
    content = yaml.safe_load(plane.kubeconfig.read_text())
    content["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{road.port}"
    by_road = tmp_path / "kubeconfig"
    by_road.write_text(yaml.safe_dump(content))
    stores = [connect.open_store(str(path)) for path in (plane.kubeconfig, by_road)]
    scene = Scene(stores[0], stores[1], road)
    yield scene
    for obj in (await scene.writer.list(ConfigMap, NAMESPACE, label_selector="scene")).items:
        await scene.delete(obj.name)
    for store in stores:
        await store.close()
    road.close()


async def compact(plane: ControlPlane, version: str) -> None:
    """etcd forgets everything before `version`; the server forgets what it has in memory."""
    url = f"http://127.0.0.1:{plane._etcd_port}/v3/kv/compaction"
    body = json.dumps({"revision": version, "physical": True}).encode()
    request = urllib.request.Request(url, body)
    await asyncio.to_thread(lambda: urllib.request.urlopen(request).read())
    await asyncio.to_thread(plane.restart_apiserver)


async def test_it_follows_a_real_server(scene: Scene) -> None:
    await scene.write("a", "b")
    async with scene.informer() as informer:
        await informer.synced()
        assert sorted(scene.told) == [("ADDED", "a"), ("ADDED", "b")]
        await scene.change("a", "1")
        await scene.delete("b")
        await scene.write("c")
        await scene.caught_up(informer)
        assert scene.told[2:] == [("MODIFIED", "a"), ("DELETED", "b"), ("ADDED", "c")]


async def test_a_cut_connection_loses_nothing_and_repeats_nothing(scene: Scene) -> None:
    await scene.write("a")
    async with scene.informer() as informer:
        await informer.synced()
        await scene.write("seen")
        await scene.caught_up(informer)  # so the watch is open: a cut before would go unnoticed
        for i in range(20):
            await scene.write(f"o{i}")
            scene.road.cut()
            await scene.change("a", str(i))
        await scene.caught_up(informer)
        assert informer.metrics.relists == 0
        assert informer.metrics.restarts > 0
        assert scene.told.count(("MODIFIED", "a")) == 20


async def test_a_way_that_is_closed_for_a_while_is_resumed(scene: Scene) -> None:
    await scene.write("a", "b")
    async with scene.informer() as informer:
        await scene.is_watched(informer)
        scene.road.close()
        await scene.delete("a")
        await scene.write("c")
        async with asyncio.timeout(30):
            while informer.metrics.failures < 3:
                await asyncio.sleep(0.01)
        assert isinstance(informer.last_error, errors.Unavailable)
        assert [obj.name for obj in informer] == ["a", "b", "marker"]
        await scene.road.open()
        await scene.caught_up(informer)
        assert informer.metrics.relists == 0
        assert scene.told == [("DELETED", "a"), ("ADDED", "c")]


async def test_a_killed_and_restarted_server_is_followed_again(
    scene: Scene, plane: ControlPlane
) -> None:
    await scene.write("a")
    async with scene.informer() as informer:
        await scene.is_watched(informer)
        await asyncio.to_thread(plane.restart_apiserver)
        await scene.write("b")
        await scene.change("a", "1")
        await scene.caught_up(informer)
        assert [told for told in scene.told if told[1] == "b"] == [("ADDED", "b")]


async def test_a_server_that_hangs_is_given_up_and_followed_again(
    scene: Scene, plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(retry, "CONNECT_SECONDS", 0.5)
    await scene.write("a")
    async with scene.informer() as informer:
        await scene.is_watched(informer)
        plane.pause()
        scene.road.cut()
        async with asyncio.timeout(30):
            while informer.metrics.failures < 3:
                await asyncio.sleep(0.01)
        assert "does not answer in time" in str(informer.last_error)
        plane.resume()
        await scene.writer.close()  # its connections are of the time before
        await scene.change("a", "1")
        await scene.caught_up(informer)


async def test_a_slow_handler_costs_time_but_no_change(scene: Scene) -> None:
    def dawdle(*_: Any) -> None:
        time.sleep(0.002)

    async with scene.informer() as informer:
        informer.add_handler(dawdle)
        await scene.is_watched(informer)
        for start in range(0, 800, 40):
            await asyncio.gather(*(scene.write(f"o{start + i}") for i in range(40)))
        await scene.caught_up(informer)
        assert sorted(scene.told) == sorted(("ADDED", f"o{i}") for i in range(800))


async def test_after_compaction_the_difference_is_delivered(
    scene: Scene, plane: ControlPlane
) -> None:
    await scene.write("stays", "changes", "goes", "again")
    async with scene.informer() as informer:
        await scene.is_watched(informer)
        scene.road.close()
        await scene.delete("goes", "again")
        await scene.write("again", "comes")
        await scene.change("changes", "1")
        listed = await scene.writer.list(ConfigMap, NAMESPACE)
        await compact(plane, listed.resource_version)
        await scene.road.open()
        await scene.caught_up(informer)
        assert sorted(scene.told) == [
            ("ADDED", "again"),
            ("ADDED", "comes"),
            ("DELETED", "again"),
            ("DELETED", "goes"),
            ("MODIFIED", "changes"),
        ]
        assert informer.metrics.relists == 1


async def test_a_version_that_is_no_longer_kept_is_gone(scene: Scene, plane: ControlPlane) -> None:
    before = await scene.writer.list(ConfigMap, NAMESPACE)
    await scene.write("a")
    after = await scene.writer.list(ConfigMap, NAMESPACE)
    await compact(plane, after.resource_version)
    with pytest.raises(errors.Gone):
        async for _ in scene.writer.watch(ConfigMap, resource_version=before.resource_version):
            pass


async def test_a_page_that_is_no_longer_kept_is_gone(scene: Scene, plane: ControlPlane) -> None:
    await scene.write("a", "b", "c")
    page = await scene.writer.list(ConfigMap, NAMESPACE, limit=1)
    assert page.continue_token
    await scene.change("c", "1")
    after = await scene.writer.list(ConfigMap, NAMESPACE)
    await compact(plane, after.resource_version)
    with pytest.raises(errors.Gone):
        await scene.writer.list(ConfigMap, NAMESPACE, limit=1, continue_token=page.continue_token)


async def test_pages_of_a_real_server(scene: Scene) -> None:
    names = [f"o{i:02}" for i in range(25)]
    await scene.write(*names)
    async with scene.informer(page_size=10) as informer:
        await informer.synced()
        assert sorted(obj.name for obj in informer) == names
