"""One index of an array: `handle.index(7)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from windlass.kinds import array_results
from windlass.kinds.types import run
from windlass.kinds.values import index_set
from windlass.sdk import event_loop_thread, platform_api, run_builder
from windlass.sdk.errors import RunFailed
from windlass.sdk.transfer import logs, mailbox
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore


class AsyncIndexHandle:
    """Wait for one index, read it, stop it."""

    def __init__(self, store: KubernetesStore, array: run.Run, number: int) -> None:
        self._store = store
        self._array = array
        self.number = number

    def __repr__(self) -> str:
        return f"<index {self.number} of run {self._array.namespace}/{self._array.name}>"

    async def status(self) -> array_results.IndexResult:
        """How it ended; its phase is "" while it has not."""
        self._array = await self._store.get(run.Run, self._array.name, self._array.namespace)
        return array_results.result_of(self._array, self.number)

    async def wait(self, timeout: float | None = None) -> array_results.IndexResult:  # noqa: ASYNC109
        """Waits until it has ended; TimeoutError if it has not in time."""
        async with asyncio.timeout(timeout):
            self._array = await run_builder.wait(
                self._store, self._array.name, self._array.namespace, array_index=self.number
            )
        return array_results.result_of(self._array, self.number)

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The return value of the function for this index; None for a command. Raises the exception
        of the function, or `RunFailed`."""
        ended = await self.wait(timeout)
        if mailbox.name_for(self._array):
            return await mailbox.results_of_index(self._store, self._array, ended)
        if ended.phase != "Succeeded":
            raise RunFailed(self._array, ended)
        return None

    def logs(
        self, *, follow: bool = False, role: str = "", rank: int | None = None,
        tail: int | None = None,
    ) -> AsyncGenerator[logs.Line, None]:  # fmt: skip
        """Its log lines, of the last attempt; with `follow` until it ends."""
        choice = logs.Choice(
            self._array.name, self._array.namespace, role, rank, tail=tail, array=True,
            array_index=self.number,
        )  # fmt: skip
        return logs.stream(self._store, choice, following=follow)

    async def why(self) -> str:
        """Why it waits or failed, and when it starts."""
        found = await explain(self._store, self._array, self.number)
        state = ": ".join(filter(None, (found["phase"], found.get("reason"))))
        return " ".join(filter(None, (f"{state}.", *found["sentences"], found.get("remedy"))))

    async def stop(self) -> None:
        """Stops it by its checkpoint contract; the other indices continue."""
        self._array = await stop(self._store, self._array, str(self.number))


class IndexHandle:
    """The same for synchronous programs."""

    def __init__(self, aio: AsyncIndexHandle) -> None:
        self.aio = aio

    def __repr__(self) -> str:
        return repr(self.aio)

    @property
    def number(self) -> int:
        return self.aio.number

    @property
    def status(self) -> array_results.IndexResult:
        """How it ended; its phase is "" while it has not."""
        return event_loop_thread.call(self.aio.status())

    def wait(self, timeout: float | None = None) -> array_results.IndexResult:
        """Waits until it has ended; TimeoutError if it has not in time."""
        return event_loop_thread.call(self.aio.wait(timeout))

    def result(self, timeout: float | None = None) -> Any:
        """The return value of the function for this index; None for a command."""
        return event_loop_thread.call(self.aio.result(timeout))

    def logs(
        self, *, follow: bool = False, role: str = "", rank: int | None = None,
        tail: int | None = None,
    ) -> Iterator[logs.Line]:  # fmt: skip
        """Its log lines; with `follow` until it ends."""
        return event_loop_thread.iterate(
            self.aio.logs(follow=follow, role=role, rank=rank, tail=tail)
        )

    def why(self) -> str:
        """Why it waits or failed, and when it starts."""
        return event_loop_thread.call(self.aio.why())

    def stop(self) -> None:
        """Stops it by its checkpoint contract; the other indices continue."""
        event_loop_thread.call(self.aio.stop())


async def explain(store: KubernetesStore, array: run.Run, index: int) -> dict[str, Any]:
    """The explanation of one index as data."""
    path = f"{platform_api.PATH}/namespaces/{array.namespace}/runs/{array.name}/why"
    status, _, body = await store.raw("GET", path, query=[("arrayIndex", str(index))])
    if status >= 300:
        raise errors.from_status(platform_api.json_object(body), status)
    return platform_api.json_object(body)


async def stop(store: KubernetesStore, array: run.Run, indices: str) -> run.Run:
    """Adds indices to those that the array stops. ValueError if it does not have them."""
    wanted = index_set.parse(indices)
    while True:
        spec = array.spec.array
        if spec is None:
            raise ValueError(f"run {array.name} is not an array")
        if unknown := wanted & ~index_set.parse(spec.indices):
            raise ValueError(
                f"run {array.name} has no index {index_set.text(unknown)}: its indices are "
                f"{spec.indices}"
            )
        stopped = index_set.text(index_set.parse(spec.stop) | wanted)
        patch = {
            "metadata": {"resourceVersion": array.metadata.resource_version},
            "spec": {"array": {"stop": stopped}},
        }
        try:
            return await store.patch(run.Run, array.name, array.namespace, patch=patch)
        except errors.Conflict:
            array = await store.get(run.Run, array.name, array.namespace)
