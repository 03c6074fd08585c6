"""The client for synchronous programs and notebooks, on top of `async_client.AsyncClient`.

Each method calls the asynchronous method of the same name on the SDK's event loop.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack

from windlass.kinds.types import core, cronrun, queue, reservation
from windlass.kinds.types import run as run_kind
from windlass.kinds.types.meta import Object
from windlass.sdk import async_client, event_loop_thread
from windlass.sdk.admin import queues, teams, tokens
from windlass.sdk.admin.whoami import Caller
from windlass.sdk.apply import Outcome
from windlass.sdk.async_client import (
    AsyncClient,
    AsyncCollection,
    AsyncCrons,
    AsyncNodes,
    Kind,
    Work,
)
from windlass.sdk.run_handle import AsyncRunHandle, ExecResult
from windlass.sdk.run_options import Options
from windlass.sdk.transfer import logs

if TYPE_CHECKING:
    from windlass.kinds.array_results import IndexResult
    from windlass.sdk.files import collected, copying
    from windlass.sdk.index_handle import IndexHandle

T = TypeVar("T", bound=Object)


class RunHandle:
    """A submitted run: wait for it, read it, change it.

    handle = windlass.run(["python", "train.py"], gpus=1)
    for line in handle.logs(follow=True):
        print(line.text)
    handle.result()
    """

    def __init__(self, handle: AsyncRunHandle) -> None:
        self.aio = handle
        """The same for asynchronous programs; use it on the SDK's loop only."""

    def __repr__(self) -> str:
        return repr(self.aio)

    @property
    def name(self) -> str:
        return self.aio.name

    @property
    def namespace(self) -> str:
        return self.aio.namespace

    @property
    def run(self) -> run_kind.Run:
        """The Run as last read."""
        return self.aio.run

    @property
    def status(self) -> run_kind.RunStatus:
        """The status as it is now: `handle.status.phase`."""
        return event_loop_thread.call(self.aio.status())

    def refresh(self) -> run_kind.Run:
        return event_loop_thread.call(self.aio.refresh())

    def wait(
        self,
        timeout: float | None = None,
        on_change: Callable[[run_kind.Run], None] = lambda _run: None,
    ) -> run_kind.Run:
        """Waits until the run has ended, and returns it; TimeoutError if it has not ended in
        time."""
        return event_loop_thread.call(self.aio.wait(timeout, on_change))

    def result(self, timeout: float | None = None) -> Any:
        """The return value of the function (a list by rank, if it ran in several workers).

        None for a command. Raises the exception of the function, `RunFailed`, or `CannotRun` if
        this cluster cannot run it.
        """
        return event_loop_thread.call(self.aio.result(timeout))

    def logs(
        self,
        *,
        follow: bool = False,
        role: str = "",
        rank: int | None = None,
        attempt: int | Literal["all"] | None = None,
        since: float | str | None = None,
        tail: int | None = None,
    ) -> Iterator[logs.Line]:
        """The log lines of the replicas, of the last attempt by default; with `follow` until
        the run ends."""
        return event_loop_thread.iterate(
            self.aio.logs(
                follow=follow, role=role, rank=rank, attempt=attempt, since=since, tail=tail
            )
        )

    def index(self, number: int) -> IndexHandle:
        """One index of an array: `handle.index(7).logs()`."""
        from windlass.sdk import index_handle

        return index_handle.IndexHandle(self.aio.index(number))

    def results(self) -> list[IndexResult]:
        """How each index of an array ended, ascending; the phase is "" of one that has not."""
        return event_loop_thread.call(self.aio.results())

    def why(self) -> str:
        """Why the run waits or failed, and when it starts."""
        return event_loop_thread.call(self.aio.why())

    def explain(self) -> dict[str, Any]:
        """The explanation behind `why` as data."""
        return event_loop_thread.call(self.aio.explain())

    def stop(self) -> None:
        """Stops the run by its checkpoint contract; its record stays."""
        event_loop_thread.call(self.aio.stop())

    def suspend(self) -> None:
        """Suspends the run; a running one is stopped by its checkpoint contract."""
        event_loop_thread.call(self.aio.suspend())

    def resume(self) -> None:
        """Resumes a suspended run."""
        event_loop_thread.call(self.aio.resume())

    def scale(self, workers: int, *, role: str = "worker", force: bool = False) -> None:
        """Changes the number of replicas of a role; `CannotRun` if this cluster can never run so
        many, unless `force`."""
        event_loop_thread.call(self.aio.scale(workers, role=role, force=force))

    def move(self, queue: str) -> None:
        """Moves the run to another queue; a running one keeps running and counts there."""
        event_loop_thread.call(self.aio.move(queue))

    def set_priority(self, priority: int) -> None:
        event_loop_thread.call(self.aio.set_priority(priority))

    def delete(self, *, wait: bool = False) -> None:
        """Stops the run and removes its record; with `wait` returns when it is gone."""
        event_loop_thread.call(self.aio.delete(wait=wait))

    def rerun(self, name: str = "") -> RunHandle:
        """Submits the same job again, as a new run."""
        return RunHandle(event_loop_thread.call(self.aio.rerun(name)))

    def exec(
        self, command: Sequence[str], *, role: str = "", rank: int = 0, stdin: bytes = b""
    ) -> ExecResult:
        """Runs a command in a replica of the run."""
        return event_loop_thread.call(self.aio.exec(command, role=role, rank=rank, stdin=stdin))

    def download(
        self, path: str = "", destination: str | os.PathLike[str] = ".", *, replica: str = ""
    ) -> copying.Report:
        """Copies files of a replica (`ROLE-INDEX`; the first by default) to this machine."""
        return event_loop_thread.call(self.aio.download(path, destination, replica=replica))

    @contextlib.contextmanager
    def port_forward(self, port: int | str, local: int = 0, *, replica: str = "") -> Iterator[int]:
        """Forwards a local port to a port of a running replica inside the block, and yields it.

        with handle.port_forward(8888) as port:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
        """
        forwarding = self.aio.port_forward(port, local, replica=replica)
        found = event_loop_thread.call(forwarding.__aenter__())
        try:
            yield found
        finally:
            event_loop_thread.call(forwarding.__aexit__(None, None, None))

    def outputs(self) -> list[collected.OutputFile]:
        """The files that were collected from the replicas, as the run declares them."""
        return event_loop_thread.call(self.aio.outputs())

    def download_outputs(self, destination: str | os.PathLike[str] = ".") -> copying.Report:
        """Copies all outputs to this machine; those of several replicas into a folder each."""
        return event_loop_thread.call(self.aio.download_outputs(destination))

    def load(self, name: str, *, replica: str = "") -> Any:
        """What the job saved with `windlass.save(obj, name)`; unpickles it."""
        return event_loop_thread.call(self.aio.load(name, replica=replica))

    def upload(
        self, source: str | os.PathLike[str], path: str = "", *, replica: str = ""
    ) -> copying.Report:
        """Copies a local file or folder into a running replica."""
        return event_loop_thread.call(self.aio.upload(source, path, replica=replica))


class Client:
    """One server and one namespace.

    The server is the given one, else $WINDLASS_KUBECONFIG or $KUBECONFIG, the engine that
    `windlass up` started, kubectl's config, the pod's service account.

        client = windlass.Client(namespace="vision")
        for handle in client.runs.list(phase="Running"):
            print(handle.name, handle.why())
    """

    def __init__(
        self,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        state: str | os.PathLike[str] | None = None,
        namespace: str = "",
    ) -> None:
        self.aio = AsyncClient(
            kubeconfig=kubeconfig, context=context, state=state, namespace=namespace
        )
        """The same for asynchronous programs; use it on the SDK's loop only."""
        self.runs = Runs(self.aio.runs)
        self.queues = Queues(self.aio.queues)
        self.reservations = Reservations(self.aio.reservations)
        self.crons = Crons(self.aio.crons)
        self.nodes = Nodes(self.aio.nodes)
        self.events = Events(self.aio.events)
        self.teams = Teams(self.aio.teams)
        self.tokens = Tokens(self.aio.tokens)
        event_loop_thread.at_exit.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        event_loop_thread.at_exit.discard(self)
        event_loop_thread.call(self.aio.close())

    @property
    def namespace(self) -> str:
        return self.aio.namespace

    def run(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        force: bool = False, **options: Unpack[Options],
    ) -> RunHandle:  # fmt: skip
        """Submits a command or a function; see `windlass.run`."""
        return self.runs.submit(work, *args, workdir=workdir, force=force, **options)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        """One object: `client.get("queue", "team-a")`."""
        return event_loop_thread.call(self.aio.get(kind, name, namespace))

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Any]:
        """All objects of a kind; `namespace=""` means in all namespaces."""
        return event_loop_thread.call(self.aio.list(kind, namespace, labels=labels, fields=fields))

    def apply(
        self, wanted: Object | Mapping[str, Any] | str, *, dry_run: bool = False
    ) -> async_client.Outcomes:
        """Creates or changes the objects of an object, a mapping or YAML text."""
        return event_loop_thread.call(self.aio.apply(wanted, dry_run=dry_run))

    def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        event_loop_thread.call(self.aio.delete(kind, name, namespace))

    def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Iterator[tuple[str, Any]]:
        """Yields the existing objects as ADDED, then each change, without end."""
        return event_loop_thread.iterate(
            self.aio.watch(kind, namespace, labels=labels, fields=fields)
        )

    def whoami(self) -> Caller:
        """The caller's identity on the server: user, groups, teams and the role in each."""
        return event_loop_thread.call(self.aio.whoami())

    def plan(self, work: Work, **options: Unpack[Options]) -> dict[str, Any]:
        """The result of a dry run: the object, the reason it would wait, the expected start."""
        return event_loop_thread.call(self.aio.plan(work, **options))

    def upload(self, folder: str | os.PathLike[str]) -> str:
        """Packs a working folder, uploads it unless the server has it, and returns its digest."""
        return event_loop_thread.call(self.aio.upload(folder))

    def request(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Sends any request with the client's credentials, JSON in and out."""
        return event_loop_thread.call(self.aio.request(method, path, body, query))


class Collection(Generic[T]):
    """The objects of one kind."""

    def __init__(self, collection: AsyncCollection[T]) -> None:
        self._aio = collection

    def get(self, name: str) -> T:
        return event_loop_thread.call(self._aio.get(name))

    def list(self, *, labels: str = "", fields: str = "", namespace: str | None = None) -> list[T]:
        """`namespace=""` means in all namespaces."""
        return event_loop_thread.call(
            self._aio.list(labels=labels, fields=fields, namespace=namespace)
        )

    def apply(self, obj: T | Mapping[str, Any]) -> Outcome:
        return event_loop_thread.call(self._aio.apply(obj))

    def delete(self, name: str) -> None:
        event_loop_thread.call(self._aio.delete(name))

    def patch(self, name: str, spec: Mapping[str, Any]) -> T:
        """Changes fields of the spec: `client.queues.patch("a", {"weight": 2})`."""
        return event_loop_thread.call(self._aio.patch(name, spec))


class Reservations(Collection[reservation.Reservation]):
    """Reserved capacity and maintenance windows."""

    def __init__(self, found: async_client.AsyncReservations) -> None:
        super().__init__(found)
        self._reservations = found

    def create(self, name: str, **fields: Any) -> reservation.Reservation:
        """Reserves nodes or amounts: `client.reservations.create("cooling", start="+2h",
        lasts="8h", nodes=["n7"])`; see `windlass.sdk.admin.reservations.build`."""
        return event_loop_thread.call(self._reservations.create(name, **fields))


class Queues(Collection[queue.Queue]):
    """The queue tree."""

    def __init__(self, found: async_client.AsyncQueues) -> None:
        super().__init__(found)
        self._queues = found

    def tree(self) -> dict[str, Any]:
        """Every queue with its quota, usage, borrowing and lending, and the next decision."""
        return event_loop_thread.call(self._queues.tree())

    def plan(self, wanted: Sequence[dict[str, Any]], *, prune: bool = False) -> queues.Plan:
        """The changes to get these queues, and their effect on queues and runs."""
        return event_loop_thread.call(self._queues.plan(wanted, prune=prune))

    def carry_out(self, wanted: Sequence[dict[str, Any]], plan: queues.Plan) -> Sequence[str]:
        """Applies a plan; Conflict if another client changed one of the queues meanwhile."""
        return event_loop_thread.call(self._queues.carry_out(wanted, plan))

    def pause(self, name: str) -> None:
        """Pauses the queue: no run starts in it or below it."""
        event_loop_thread.call(self._queues.pause(name))

    def drain(self, name: str) -> None:
        """Drains the queue: its running runs are stopped by their checkpoint contract, and wait."""
        event_loop_thread.call(self._queues.drain(name))

    def resume(self, name: str) -> None:
        event_loop_thread.call(self._queues.resume(name))


class Runs:
    """Runs: submit, find, list."""

    def __init__(self, runs: async_client.AsyncRuns) -> None:
        self._aio = runs

    def submit(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        force: bool = False, **options: Unpack[Options],
    ) -> RunHandle:  # fmt: skip
        """Submits a command or a function without waiting; see `windlass.run`."""
        return RunHandle(
            event_loop_thread.call(
                self._aio.submit(work, *args, workdir=workdir, force=force, **options)
            )
        )

    def create(self, wanted: run_kind.Run) -> RunHandle:
        """Submits a Run object unchanged."""
        return RunHandle(event_loop_thread.call(self._aio.create(wanted)))

    def get(self, name: str) -> RunHandle:
        return RunHandle(event_loop_thread.call(self._aio.get(name)))

    def list(
        self,
        *,
        phase: str = "",
        user: str = "",
        queue: str = "",
        labels: str = "",
        namespace: str | None = None,
    ) -> list[RunHandle]:
        """Runs; `namespace=""` means in all namespaces."""
        found = self._aio.list(
            phase=phase, user=user, queue=queue, labels=labels, namespace=namespace
        )
        return [RunHandle(each) for each in event_loop_thread.call(found)]

    def ps(self, *, limit: int = 50, finished: int = 10) -> dict[str, Any]:
        """The page of `windlass ps`: running runs, then the first waiting ones with their
        positions and expected starts, then the last ended ones."""
        return event_loop_thread.call(self._aio.ps(limit=limit, finished=finished))

    def usage(self) -> dict[str, dict[str, int]]:
        """Measured usage of each running run: thousandths of a core, bytes of memory."""
        return event_loop_thread.call(self._aio.usage())

    def prune(self, *, older_than: float | str = "0s", namespace: str | None = None) -> int:
        """Deletes the records of runs that ended longer ago than this; returns their number."""
        return event_loop_thread.call(self._aio.prune(older_than=older_than, namespace=namespace))


class Crons(Collection[cronrun.CronRun]):
    """Scheduled runs (CronRuns)."""

    def __init__(self, crons: AsyncCrons) -> None:
        super().__init__(crons)
        self._crons = crons

    def create(
        self, cron: str, schedule: str, work: Work, *, time_zone: str = "UTC",
        concurrency: str = "Allow", deadline: str | None = None, **options: Unpack[Options],
    ) -> cronrun.CronRun:  # fmt: skip
        """`client.crons.create("nightly", "0 3 * * *", ["python", "train.py"], gpus=1)`."""
        return event_loop_thread.call(
            self._crons.create(
                cron, schedule, work, time_zone=time_zone, concurrency=concurrency,
                deadline=deadline, **options,
            )
        )  # fmt: skip

    def suspend(self, name: str) -> None:
        event_loop_thread.call(self._crons.suspend(name))

    def resume(self, name: str) -> None:
        event_loop_thread.call(self._crons.resume(name))

    def trigger(self, name: str) -> RunHandle:
        """Starts a run of the CronRun now."""
        return RunHandle(event_loop_thread.call(self._crons.trigger(name)))


class Nodes(Collection[core.Node]):
    """Machines."""

    def __init__(self, nodes: AsyncNodes) -> None:
        super().__init__(nodes)
        self._nodes = nodes

    def usage(self) -> dict[str, dict[str, int]]:
        """Measured usage of each node: thousandths of a core, bytes of memory."""
        return event_loop_thread.call(self._nodes.usage())

    def cordon(self, name: str) -> None:
        """Cordons the node: no pod starts there; running pods keep running."""
        event_loop_thread.call(self._nodes.cordon(name))

    def uncordon(self, name: str) -> None:
        event_loop_thread.call(self._nodes.uncordon(name))


class Events:
    """Events of objects."""

    def __init__(self, events: async_client.AsyncEvents) -> None:
        self._aio = events

    def list(self, about: str = "", namespace: str | None = None) -> list[core.Event]:
        """All events, or those of the object with this name; oldest first."""
        return event_loop_thread.call(self._aio.list(about, namespace))


def start(
    work: Work, *args: Any, client: Client | None = None,
    workdir: str | os.PathLike[str] | None = None, force: bool = False, **options: Unpack[Options],
) -> RunHandle:  # fmt: skip
    """Submits a command or a function as a run without waiting; exported as `windlass.run`.

    A sequence is a command; a string is a line for the shell; a function is called in
    each worker with `args`, and `handle.result()` is its return value.

        windlass.run(["python", "train.py"], workers=2, gpus=1).wait()
        windlass.run("nvidia-smi; df -h").result()
        windlass.run(train, "resnet50", gpus=1, requirements=["torch"]).result()

    The options are those of `windlass.sdk.run_options.Options`. Raises `CannotRun` if this cluster
    can never run it; `force=True` submits it anyway.
    """
    chosen = client or default()
    return chosen.run(work, *args, workdir=workdir, force=force, **options)


def load(run: str | RunHandle, name: str, *, client: Client | None = None) -> Any:
    """What a run saved with `windlass.save(obj, name)`; exported as `windlass.load`. The content
    is unpickled: load only what your team's runs saved."""
    in_job: Any = importlib.import_module("windlass.injob.library.windlass.loading")
    if client is None and isinstance(run, str) and in_job.is_possible():
        return in_job.load(run, name)
    chosen = client or default()
    return (chosen.runs.get(run) if isinstance(run, str) else run).load(name)


_default: tuple[int, Client] | None = None


def default() -> Client:
    """The client of `windlass.run` if none is given; created once per process."""
    global _default
    if _default is None or _default[0] != os.getpid():
        _default = (os.getpid(), Client())
    return _default[1]


class Teams:
    """Teams: a namespace, a queue, and roles."""

    def __init__(self, found: teams.AsyncTeams) -> None:
        self._aio = found

    def list(self) -> teams.Teams:
        return event_loop_thread.call(self._aio.list())

    def get(self, name: str) -> teams.Team:
        return event_loop_thread.call(self._aio.get(name))

    def create(
        self, name: str, *, members: Sequence[str] = (), viewers: Sequence[str] = (),
        admins: Sequence[str] = (), **queue: Any,
    ) -> teams.Steps:  # fmt: skip
        """Creates or changes the team, and returns the steps; repeating it changes nothing.

        client.teams.create("support", guarantee={"gpu": 16}, weight=2, members=["alice"])
        """
        return event_loop_thread.call(
            self._aio.create(name, members=members, viewers=viewers, admins=admins, **queue)
        )

    def ending(self, name: str) -> teams.Ending:
        """What a deletion of the team deletes."""
        return event_loop_thread.call(self._aio.ending(name))

    def delete(self, name: str, *, stop_runs: bool = False) -> teams.Ending:
        """Deletes a team and everything in it; Conflict if it has unfinished runs, unless
        `stop_runs`."""
        return event_loop_thread.call(self._aio.delete(name, stop_runs=stop_runs))


class Tokens:
    """Tokens of users and programs."""

    def __init__(self, found: tokens.AsyncTokens) -> None:
        self._aio = found

    def create(
        self, user: str, *, ttl: str = tokens.USUAL_TTL, groups: tuple[str, ...] = (),
        note: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """Creates a token; `["token"]` is returned only once. `ttl="never"` does not expire."""
        return event_loop_thread.call(self._aio.create(user, ttl=ttl, groups=groups, note=note))

    def create_for_account(
        self, account: str, namespace: str, *, ttl: str = tokens.USUAL_TTL
    ) -> dict[str, Any]:
        """Creates a token of a service account, for programs on Kubernetes."""
        return event_loop_thread.call(self._aio.create_for_account(account, namespace, ttl=ttl))

    def list(self) -> tokens.Tokens:
        """All tokens, or the caller's own without permission for those of others."""
        return event_loop_thread.call(self._aio.list())

    def rotate(self, token_id: str) -> dict[str, Any]:
        """Replaces a token by a new one of the same user; `["token"]` is returned only once."""
        return event_loop_thread.call(self._aio.rotate(token_id))

    def revoke(self, token_id: str) -> dict[str, Any]:
        """Revokes a token."""
        return event_loop_thread.call(self._aio.revoke(token_id))
