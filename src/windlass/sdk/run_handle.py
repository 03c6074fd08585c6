"""The asynchronous handle of a run; `sync_client.RunHandle` is its synchronous form."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from windlass.kinds import codec
from windlass.kinds.types import run
from windlass.kinds.values import duration
from windlass.sdk import platform_api, run_builder, submission, watching
from windlass.sdk.errors import CannotRun, RunFailed
from windlass.sdk.transfer import logs, mailbox
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

if TYPE_CHECKING:
    from windlass.kinds.array_results import IndexResult
    from windlass.sdk.files import collected, copying
    from windlass.sdk.index_handle import AsyncIndexHandle


class AsyncRunHandle:
    """A submitted run: wait for it, read it, change it."""

    def __init__(self, store: KubernetesStore, current: run.Run, *, forced: bool = False) -> None:
        self._store = store
        self._forced = forced
        self.run = current
        """The Run as last read."""

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
        """The status as it is now."""
        return (await self.refresh()).status

    async def wait(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 (as in concurrent.futures)
        on_change: Callable[[run.Run], None] = lambda _run: None,
    ) -> run.Run:
        """Waits until the run has ended, and returns it; TimeoutError if it has not ended in
        time."""
        try:
            async with asyncio.timeout(timeout):
                self.run = await run_builder.wait(self._store, self.name, self.namespace, on_change)
        except TimeoutError:
            phase = self.run.status.phase
            raise TimeoutError(
                f"run {self.name} has not ended within {timeout:g} s (last seen "
                f"{phase}); it was not stopped: wait again, see .why(), or stop it with .stop()"
            ) from None
        return self.run

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109
        """The return value of the function (a list by rank, if it ran in several workers; of an
        array, a list by index).

        None for a command. Raises the exception of the function, `RunFailed`, or, unless it was
        submitted with `force`, `CannotRun` if this cluster cannot run it any more; it stays queued.
        """
        ended = await self.wait(timeout, self._refuse_unresolvable)
        if ended.spec.array is not None and mailbox.name_for(ended):
            return await mailbox.results_of_array(self._store, ended)
        if mailbox.name_for(ended):
            return await mailbox.results(self._store, ended)
        if ended.status.phase != "Succeeded":
            raise RunFailed(ended)
        return None

    def _refuse_unresolvable(self, current: run.Run) -> None:
        status = current.status
        is_waiting = status.phase in ("", "Queued")
        if is_waiting and status.reason in platform_api.UNRESOLVABLE and not self._forced:
            raise CannotRun(
                status.reason,
                f"run {current.name} stays queued: {status.message}",
                "Stop it with .stop(), or wait until the cluster changes with .wait().",
            )

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
        """The log lines of the replicas, of the last attempt by default; with `follow` until
        the run ends."""
        choice = logs.Choice(
            self.name, self.namespace, role, rank, attempt, tail, since_seconds(since),
            array=self.run.spec.array is not None,
        )  # fmt: skip
        return logs.stream(self._store, choice, following=follow)

    def index(self, number: int) -> AsyncIndexHandle:
        """One index of an array. ValueError if it does not have it."""
        from windlass.kinds import array_results
        from windlass.sdk import index_handle

        array_results.result_of(self.run, number)
        return index_handle.AsyncIndexHandle(self._store, self.run, number)

    async def results(self) -> list[IndexResult]:
        """How each index of an array ended, ascending; the phase is "" of one that has not."""
        from windlass.kinds import array_results

        return array_results.results(await self.refresh())

    async def why(self) -> str:
        """Why the run waits or failed, when it starts, and what to do."""
        found = await self.explain()
        state = ": ".join(filter(None, (found["phase"], found.get("reason"))))
        return " ".join(filter(None, (f"{state}.", *found["sentences"], found.get("remedy"))))

    async def explain(self) -> dict[str, Any]:
        """The explanation behind `why` as data: phase, reason, sentences, start, remedy ..."""
        path = f"{platform_api.PATH}/namespaces/{self.namespace}/runs/{self.name}/why"
        status, _, body = await self._store.raw("GET", path)
        if status >= 300:
            raise errors.from_status(platform_api.json_object(body), status)
        return platform_api.json_object(body)

    async def stop(self) -> None:
        """Stops the run by its checkpoint contract; its record stays."""
        await self._change({"stop": True})

    async def suspend(self) -> None:
        """Suspends the run; a running one is stopped by its checkpoint contract."""
        await self._change({"suspend": True})

    async def resume(self) -> None:
        """Resumes a suspended run."""
        await self._change({"suspend": False})

    async def scale(self, workers: int, *, role: str = "worker", force: bool = False) -> None:
        """Changes the number of replicas of a role. Raises `CannotRun`, and changes nothing, if
        this cluster can never run so many; with `force` it is changed anyway."""
        current = await self.refresh()
        names = [each.name for each in current.spec.roles]
        if role not in names:
            raise errors.NotFound(f"run {self.name} has no role {role}; choose {', '.join(names)}")
        if not force:
            wanted = submission.resized(codec.to_dict(current), role, workers)
            await submission.refuse_unresolvable(self._store, wanted)
        place = f"/spec/roles/{names.index(role)}"
        patch: list[dict[str, Any]] = [
            {"op": "test", "path": f"{place}/name", "value": role},
            {"op": "add", "path": f"{place}/replicas", "value": workers},
        ]
        self.run = await self._store.patch(run.Run, self.name, self.namespace, patch=patch)

    async def move(self, queue: str) -> None:
        """Moves the run to another queue; a running one keeps running and counts there."""
        await self._change({"queue": queue})

    async def set_priority(self, priority: int) -> None:
        await self._change({"priority": priority})

    async def delete(self, *, wait: bool = False) -> None:
        """Stops the run and removes its record; with `wait` returns when it is gone."""
        left = await self._store.delete(run.Run, self.name, self.namespace)
        if wait and left is not None:
            await watching.gone(self._store, self.run)

    async def rerun(self, name: str = "") -> AsyncRunHandle:
        """Submits the same job again, as a new run."""
        old = await self.refresh()
        again = run.Run(
            metadata=type(old.metadata)(
                name=name or run_builder.name_for([_stem(old.name)]),
                namespace=old.namespace,
                labels=old.metadata.labels,
            ),
            spec=old.spec,
        )
        again.spec.stop = again.spec.suspend = False
        again.spec.after = None  # the old run has waited for them
        if again.spec.array is not None:
            again.spec.array.stop = ""
        return AsyncRunHandle(self._store, await submission.create_run(self._store, again))

    async def exec(
        self,
        command: Sequence[str],
        *,
        role: str = "",
        rank: int = 0,
        stdin: bytes = b"",
    ) -> ExecResult:
        """Runs a command in a replica of the run."""
        pod = await self._pod(role, rank)
        return await execute(self._store, pod, self.namespace, command, stdin)

    async def download(
        self, path: str = "", destination: str | os.PathLike[str] = ".", *, replica: str = ""
    ) -> copying.Report:
        """Copies files of a replica (`ROLE-INDEX`; the first by default) to this machine: a file,
        a folder, or what matches a pattern. Relative paths begin in the working folder. A repeated
        call goes on where an earlier one stopped."""
        from windlass.sdk.files import copying, places, sources

        place = places.Place(self.name, replica, path)

        async def copy() -> copying.Report:
            async with sources.reading(self._store, self.namespace, place) as files:
                return await copying.download(files, path, os.fspath(destination))

        return await copying.with_retries(copy)

    async def outputs(self) -> list[collected.OutputFile]:
        """The files that were collected from the replicas, as the run declares them."""
        from windlass.sdk.files import collected

        return await collected.files_of(self._store, await self.refresh())

    async def download_outputs(self, destination: str | os.PathLike[str] = ".") -> copying.Report:
        """Copies all outputs to this machine; those of several replicas into a folder each."""
        from windlass.sdk.files import copying, saved

        owner = await self.refresh()
        return await copying.with_retries(
            lambda: saved.download(self._store, owner, os.fspath(destination), lambda *_: None)
        )

    async def load(self, name: str, *, replica: str = "") -> Any:
        """What the job saved with `windlass.save(obj, name)`; unpickles it."""
        from windlass.sdk.files import saved

        return await saved.load(self._store, await self.refresh(), name, replica)

    async def upload(
        self, source: str | os.PathLike[str], path: str = "", *, replica: str = ""
    ) -> copying.Report:
        """Copies a local file or folder into a running replica."""
        from windlass.sdk.files import copying, places, sources

        place = places.Place(self.name, replica, path)

        async def copy() -> copying.Report:
            async with sources.writing(self._store, self.namespace, place) as files:
                return await copying.upload(files, os.fspath(source), path)

        return await copying.with_retries(copy)

    @contextlib.asynccontextmanager
    async def port_forward(
        self, port: int | str, local: int = 0, *, replica: str = ""
    ) -> AsyncIterator[int]:
        """Forwards a local port to a port of a running replica inside the block: a number, or a
        name that the run declares. Yields the local port."""
        from windlass.sdk.files import places, sources
        from windlass.store.kubernetes import port_forward

        place = places.Place(self.name, replica, "")
        pod = await sources.running_pod(self._store, self.namespace, place)
        named = {each.name: each.container_port for each in pod.spec.containers[0].ports or ()}
        if isinstance(port, str) and port not in named:
            raise errors.NotFound(f"run {self.name} declares no port {port}")
        number = port if isinstance(port, int) else named[port]
        async with port_forward.listening(
            self._store.access, pod.name, pod.namespace, number, local=local
        ) as (listening, _):
            yield listening

    async def _pod(self, role: str, index: int) -> str:
        from windlass.kinds.types import core

        choice = logs.Choice(self.name, self.namespace, role, index)
        found = await self._store.list(core.Pod, self.namespace, label_selector=choice.labels)
        alive = [pod for pod in found.items if pod.status.phase == "Running"]
        if not alive:
            raise errors.NotFound(
                f"no replica {role} {index} of run {self.name} is running; see .status".replace(
                    "  ", " "
                )
            )
        return alive[0].name

    async def _change(self, spec: dict[str, Any]) -> None:
        self.run = await self._store.patch(run.Run, self.name, self.namespace, patch={"spec": spec})


class ExecResult:
    """Exit code and output of a command that ran in a replica."""

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
    from windlass.store.kubernetes import exec_stream

    output: dict[int, list[bytes]] = {exec_stream.STDOUT: [], exec_stream.STDERR: []}
    async with exec_stream.open_session(
        store.access, pod, namespace, command, stdin=bool(stdin)
    ) as session:
        if stdin:
            await session.send(stdin)
            await session.end_input()
        async for channel, data in session.output():
            output[channel].append(data)
    if session.exit_code is None and session.message:
        raise errors.BadRequest(session.message)
    if session.exit_code is None:
        raise errors.Unavailable(
            f"the connection to pod {pod} closed before the command ended; try again"
        )
    return ExecResult(session.exit_code, *(b"".join(pieces) for pieces in output.values()))


def since_seconds(since: float | str | None) -> int | None:
    """`"5m"`, or seconds, as whole seconds."""
    if since is None:
        return None
    return duration.seconds(since) if isinstance(since, str) else max(1, round(since))


def _stem(name: str) -> str:
    """`train-x7k2p` -> `train`: a rerun of a rerun keeps a short name."""
    stem, dash, tail = name.rpartition("-")
    made = dash and len(tail) == 5 and not set(tail) - set(run_builder.LETTERS)
    return stem if made else name
