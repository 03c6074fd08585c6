"""A node whose agent runs in the test's own process: real store, real shims, real commands."""

import asyncio
import os
from typing import Any

import pytest

from windlass.agent.pods import worker
from windlass.agent.runtime import sandbox
from windlass.agent.runtime.containers import Container
from windlass.agent.runtime.zygote import Zygote
from windlass.kinds.annotations import HOST_IMAGE
from windlass.kinds.types import core, meta
from windlass.podlogs import log_format
from windlass.store.embedded.client import EmbeddedStore

ZYGOTE = Zygote()
HOST = HOST_IMAGE
as_root = pytest.mark.skipif(
    os.geteuid() != 0 or not sandbox.may_mount(), reason="needs root and the right to mount"
)
CONTAINER = (
    "env", "env_from", "volume_mounts", "resources", "working_dir", "stdin", "tty",
    "termination_message_policy", "termination_message_path", "args",
)  # fmt: skip
"""Arguments of `create` that belong to the container, not to the pod."""


class Node:
    """One node's pods, and a hand on the API."""

    def __init__(self, store: EmbeddedStore, folder) -> None:
        self.store = store
        self.folder = folder
        self.means: dict[str, Any] = {"zygote": ZYGOTE}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        context = worker.AgentContext("n1", "127.0.0.1", self.folder / "pods", **self.means)
        self._task = asyncio.create_task(worker.PodWorkers(self.store, context).run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def create(self, script: str, name: str = "p", **spec: Any) -> core.Pod:
        container = core.Container(
            name="c",
            image=spec.pop("image", HOST_IMAGE),
            command=["sh", "-c", script.replace("{here}", str(self.folder))],
            **{name: spec.pop(name) for name in CONTAINER if name in spec},
        )
        annotations = spec.pop("annotations", None)
        spec = {"restart_policy": "Never", "termination_grace_period_seconds": 30, **spec}
        return await self.store.create(
            core.Pod(
                metadata=meta.ObjectMeta(name=name, namespace="team", annotations=annotations),
                spec=core.PodSpec(node_name="n1", containers=[container], **spec),
            )
        )

    async def until(self, check, name: str = "p") -> core.Pod:
        """The pod as soon as `check` holds of it."""
        async with asyncio.timeout(30):
            listed = await self.store.list(core.Pod, "team")
            for pod in listed.items:
                if pod.name == name and check(pod):
                    return pod
            events = self.store.watch(core.Pod, "team", resource_version=listed.resource_version)
            async for event in events:
                if event.type != "BOOKMARK" and event.object.name == name and check(event.object):
                    return event.object
        raise AssertionError("the watch ended")

    async def restart(self, **means: Any) -> None:
        """Another agent, with other means; pods live on."""
        await self.stop()
        self.means |= means
        self.start()

    def text(self, pod: core.Pod, container: str = "c") -> str:
        """What a container of the pod said."""
        place = Container(self.folder / "pods" / pod.uid, container).log()
        numbers = log_format.segments(place) if place else []
        lines = "".join(log_format.segment(place, n).read_text() for n in numbers).splitlines()
        return "".join(line.split(" ", 3)[3] + "\n" for line in lines)

    async def phase(self, phase: str, name: str = "p") -> core.Pod:
        return await self.until(lambda pod: pod.status.phase == phase, name)

    async def there(self, path) -> None:
        async with asyncio.timeout(30):
            while not path.exists():
                await asyncio.sleep(0.01)

    async def said(self, name: str) -> str:
        """What a job wrote into a file beside the node's folders."""
        await self.there(self.folder / name)
        return (self.folder / name).read_text().strip()

    async def gone(self, path) -> None:
        async with asyncio.timeout(30):
            while path.exists():
                await asyncio.sleep(0.01)


def ended(pod: core.Pod) -> core.ContainerStateTerminated:
    (status,) = pod.status.container_statuses
    assert status.state.terminated is not None
    return status.state.terminated
