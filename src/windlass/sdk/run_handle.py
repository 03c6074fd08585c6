"""One run in the user's hand, for asynchronous programs; `client.RunHandle` is the plain form."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

from windlass.kinds import duration, run
from windlass.sdk import failures, logs, runs, watching
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

PLATFORM = logs.PLATFORM
CALLS = "windlass.dev/calls"
"""Annotation of a Run that runs a function: the mailbox that its result lies in."""


class AsyncRunHandle:
    """A run that was handed in: wait for it, read it, change it."""

    def __init__(self, store: KubernetesStore, current: run.Run) -> None:
        self._store = store
        self.run = current
        """The Run as it was last seen."""

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def namespace(self) -> str:
        return self.run.namespace

    def __repr__(self) -> str:
        return f"<run {self.namespace}/{self.name}: {self.run.status.phase}>"

    async def refresh(self) -> run.Run:
        """The Run as it is now."""
        self.run = await self._store.get(run.Run, self.name, self.namespace)
        return self.run

    async def status(self) -> run.RunStatus:
        """What it is doing now, and why."""
        return (await self.refresh()).status

    async def wait(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (as in concurrent.futures)
        on_change: Callable[[run.Run], None] = lambda _run: None,
    ) -> run.Run:
        """The Run as it ended, well or not; TimeoutError if it has not by then."""
        try:
            async with asyncio.timeout(timeout):
                self.run = await runs.wait(self._store, self.name, self.namespace, on_change)
        except TimeoutError:
            phase = self.run.status.phase
            raise TimeoutError(
                f"run {self.name} has not ended within {timeout:g} s (it was {phase} when last "
                f"looked at); it goes on: wait again, see .why(), or end it with .stop()"
            ) from None
        return self.run

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """What the function returned (a list by rank, if it ran in several workers).

        Of a command: None. Raises what the function raised, or `RunFailed`.
        """
        ended = await self.wait(timeout)
        mailbox = (ended.metadata.annotations or {}).get(CALLS)
        if mailbox:
            from windlass.sdk import functions

            return await functions.results(self._store, ended, mailbox)
        if ended.status.phase != "Succeeded":
            raise failures.RunFailed(ended)
        return None

    def logs(
        self,
        *,
        follow: bool = False,
        role: str = "",
        rank: int | None = None,
        attempt: int | Literal["all"] | None = None,
        since: float | str | None = None,
        tail: int | None = None,
    ) -> AsyncGenerator[logs.Line, None]:
        """The lines that members printed, of the last attempt if none is named; with `follow` until
        the run ends."""
        choice = logs.Choice(
            self.name, self.namespace, role, rank, attempt, tail, since_seconds(since)
        )
        return logs.stream(self._store, choice, following=follow)

    async def why(self) -> str:
        """Why it is as it is: what it waits for, who holds that, when it starts, what to do."""
        told = await self.explain()
        state = ": ".join(filter(None, (told["phase"], told.get("reason"))))
        return " ".join(filter(None, (f"{state}.", *told["sentences"], told.get("remedy"))))

    async def explain(self) -> dict[str, Any]:
        """The whole story behind `why`, as data: phase, reason, sentences, start, remedy ..."""
        path = f"{PLATFORM}/namespaces/{self.namespace}/runs/{self.name}/why"
        status, _, body = await self._store.raw("GET", path)
        if status >= 300:
            raise errors.from_status(json_of(body), status)
        return json_of(body)

    async def stop(self) -> None:
        """Ends it by the checkpoint contract; its record stays."""
        await self._change({"stop": True})

    async def suspend(self) -> None:
        """Stops it by the checkpoint contract and holds it."""
        await self._change({"suspend": True})

    async def resume(self) -> None:
        """Lets a held run go on."""
        await self._change({"suspend": False})

    async def scale(self, workers: int, *, role: str = "worker") -> None:
        """Changes how many members a role has."""
        current = await self.refresh()
        names = [each.name for each in current.spec.roles]
        if role not in names:
            raise errors.NotFound(f"run {self.name} has no role {role}; choose {', '.join(names)}")
        place = f"/spec/roles/{names.index(role)}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": f"{place}/name", "value": role},
            {"op": "add", "path": f"{place}/replicas", "value": workers},
        ]
        self.run = await self._store.patch(run.Run, self.name, self.namespace, patch=patch)

    async def move(self, queue: str) -> None:
        """Into another queue; what runs goes on, and counts there."""
        await self._change({"queue": queue})

    async def set_priority(self, priority: int) -> None:
        await self._change({"priority": priority})

    async def delete(self, *, wait: bool = False) -> None:
        """Ends it if it runs, and removes its record; with `wait` returns when it is gone."""
        left = await self._store.delete(run.Run, self.name, self.namespace)
        if wait and left is not None:
            await _gone(self._store, self.run)

    async def rerun(self, name: str = "") -> AsyncRunHandle:
        """The same again, as a new run."""
        old = await self.refresh()
        again = run.Run(
            metadata=type(old.metadata)(
                name=name or runs.name_for([_stem(old.name)]),
                namespace=old.namespace,
                labels=old.metadata.labels,
            ),
            spec=old.spec,
        )
        again.spec.stop = again.spec.suspend = False
        return AsyncRunHandle(self._store, await self._store.create(again))

    async def exec(
        self,
        command: Sequence[str],
        *,
        role: str = "",
        rank: int = 0,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Runs a command beside the job, in one of its members."""
        pod = await self._pod(role, rank)
        return await execute(self._store, pod, self.namespace, command, stdin)

    async def _pod(self, role: str, index: int) -> str:
        from windlass.kinds import kubernetes

        choice = logs.Choice(self.name, self.namespace, role, index)
        found = await self._store.list(kubernetes.Pod, self.namespace, label_selector=choice.labels)
        alive = [pod for pod in found.items if pod.status.phase == "Running"]
        if not alive:
            raise errors.NotFound(
                f"no member {role} {index} of run {self.name} is running; see .status".replace(
                    "  ", " "
                )
            )
        return alive[0].name

    async def _change(self, spec: dict[str, Any]) -> None:
        self.run = await self._store.patch(run.Run, self.name, self.namespace, patch={"spec": spec})


class ExecResult:
    """How a command that ran beside a job ended."""

    def __init__(self, exit_code: int, stdout: bytes, stderr: bytes) -> None:
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr

    def __repr__(self) -> str:
        return f"ExecResult(exit_code={self.exit_code}, stdout={self.stdout!r})"


async def execute(
    store: KubernetesStore, pod: str, namespace: str, command: Sequence[str], stdin: bytes
) -> ExecResult:
    """Runs a command in a pod to its end."""
    from windlass.store.kubernetes import sockets

    said: dict[int, list[bytes]] = {sockets.STDOUT: [], sockets.STDERR: []}
    async with sockets.open_session(
        store.access, pod, namespace, command, stdin=bool(stdin)
    ) as session:
        if stdin:
            await session.send(stdin)
            await session.end_input()
        async for channel, data in session.output():
            said[channel].append(data)
    if session.exit_code is None and session.message:
        raise errors.BadRequest(session.message)
    if session.exit_code is None:
        raise errors.Unavailable(
            f"the connection to pod {pod} ended before the command did; try again"
        )
    return ExecResult(session.exit_code, *(b"".join(pieces) for pieces in said.values()))


def since_seconds(since: float | str | None) -> int | None:
    """`"5m"`, or seconds, as whole seconds."""
    if since is None:
        return None
    return duration.seconds(since) if isinstance(since, str) else max(1, round(since))


async def _gone(store: KubernetesStore, wanted: run.Run) -> None:
    stream = watching.changes(
        store, run.Run, wanted.namespace, field_selector=f"metadata.name={wanted.name}"
    )
    try:
        await store.get(run.Run, wanted.name, wanted.namespace)
    except errors.NotFound:
        return
    async with contextlib.aclosing(stream) as changes:
        async for change, current in changes:
            if change == "DELETED" or current.uid != wanted.uid:
                return


def _stem(name: str) -> str:
    """`train-x7k2p` -> `train`: a rerun of a rerun keeps a short name."""
    stem, dash, tail = name.rpartition("-")
    made = dash and len(tail) == 5 and not set(tail) - set(runs.LETTERS)
    return stem if made else name


def json_of(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
