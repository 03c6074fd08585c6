"""The client for plain programs and notebooks: `aio.AsyncClient`, one call at a time.

Each method does what the one of the same name in `aio` and `handles` does, on the SDK's own loop.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar, Unpack

from windlass.kinds import cronrun, kubernetes, queue, reservation
from windlass.kinds import run as run_kind
from windlass.kinds.meta import Object
from windlass.sdk import aio, applying, logs, portal, queues, rights, teams, tokens
from windlass.sdk.aio import AsyncClient, AsyncCollection, AsyncCrons, AsyncNodes, Kind, Work
from windlass.sdk.handles import AsyncRunHandle, ExecResult
from windlass.sdk.options import Options

T = TypeVar("T", bound=Object)


class RunHandle:
    """A run that was handed in: wait for it, read it, change it.

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
        """The Run as it was last seen."""
        return self.aio.run

    @property
    def status(self) -> run_kind.RunStatus:
        """What it is doing now, and why: `handle.status.phase`."""
        return portal.call(self.aio.status())

    def refresh(self) -> run_kind.Run:
        return portal.call(self.aio.refresh())

    def wait(
        self,
        timeout: float | None = None,
        on_change: Callable[[run_kind.Run], None] = lambda _run: None,
    ) -> run_kind.Run:
        """The Run as it ended, well or not; TimeoutError if it has not by then."""
        return portal.call(self.aio.wait(timeout, on_change))

    def result(self, timeout: float | None = None) -> Any:
        """What the function returned (a list by rank, if it ran in several workers).

        Of a command: None. Raises what the function raised, or `RunFailed`.
        """
        return portal.call(self.aio.result(timeout))

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
        """The lines that members printed, of the last attempt if none is named; with `follow` until
        the run ends."""
        return portal.iterate(
            self.aio.logs(
                follow=follow, role=role, rank=rank, attempt=attempt, since=since, tail=tail
            )
        )

    def why(self) -> str:
        """Why it is as it is: what it waits for, who holds that, when it starts."""
        return portal.call(self.aio.why())

    def explain(self) -> dict[str, Any]:
        """The whole story behind `why`, as data."""
        return portal.call(self.aio.explain())

    def stop(self) -> None:
        """Ends it by the checkpoint contract; its record stays."""
        portal.call(self.aio.stop())

    def suspend(self) -> None:
        """Stops it by the checkpoint contract and holds it."""
        portal.call(self.aio.suspend())

    def resume(self) -> None:
        """Lets a held run go on."""
        portal.call(self.aio.resume())

    def scale(self, workers: int, *, role: str = "worker") -> None:
        """Changes how many members a role has."""
        portal.call(self.aio.scale(workers, role=role))

    def move(self, queue: str) -> None:
        """Into another queue; what runs goes on, and counts there."""
        portal.call(self.aio.move(queue))

    def set_priority(self, priority: int) -> None:
        portal.call(self.aio.set_priority(priority))

    def delete(self, *, wait: bool = False) -> None:
        """Ends it if it runs, and removes its record; with `wait` returns when it is gone."""
        portal.call(self.aio.delete(wait=wait))

    def rerun(self, name: str = "") -> RunHandle:
        """The same again, as a new run."""
        return RunHandle(portal.call(self.aio.rerun(name)))

    def exec(
        self, command: Sequence[str], *, role: str = "", rank: int = 0, stdin: bytes = b""
    ) -> ExecResult:
        """Runs a command beside the job, in one of its members."""
        return portal.call(self.aio.exec(command, role=role, rank=rank, stdin=stdin))


class Client:
    """One server and one namespace.

    Which server: what is given here, else $WINDLASS_KUBECONFIG or $KUBECONFIG, the engine that
    `windlass up` started, kubectl's own file, the pod we are in.

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
        portal.at_exit.add(self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        portal.at_exit.discard(self)
        portal.call(self.aio.close())

    @property
    def namespace(self) -> str:
        return self.aio.namespace

    def run(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> RunHandle:  # fmt: skip
        """Hands in a command or a function; see `windlass.run`."""
        return self.runs.submit(work, *args, workdir=workdir, **options)

    def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        """One object: `client.get("queue", "team-a")`."""
        return portal.call(self.aio.get(kind, name, namespace))

    def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Any]:
        """All objects of a kind; `namespace=""` means in all namespaces."""
        return portal.call(self.aio.list(kind, namespace, labels=labels, fields=fields))

    def apply(
        self, wanted: Object | Mapping[str, Any] | str, *, dry_run: bool = False
    ) -> aio.Outcomes:
        """Makes the server hold what an object, a mapping or YAML text says."""
        return portal.call(self.aio.apply(wanted, dry_run=dry_run))

    def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        portal.call(self.aio.delete(kind, name, namespace))

    def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> Iterator[tuple[str, Any]]:
        """First what there is as ADDED, then each change, without end."""
        return portal.iterate(self.aio.watch(kind, namespace, labels=labels, fields=fields))

    def whoami(self) -> rights.Caller:
        """Whom the server takes us for: user, groups, teams and the role in each."""
        return portal.call(self.aio.whoami())

    def plan(self, work: Work, **options: Unpack[Options]) -> dict[str, Any]:
        """What would happen if this were handed in: the object, the verdict, the expected start."""
        return portal.call(self.aio.plan(work, **options))

    def upload(self, folder: str | os.PathLike[str]) -> str:
        """Packs a working folder and sends what the server has not got; its digest."""
        return portal.call(self.aio.upload(folder))

    def request(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Any request with our identity, JSON in and out."""
        return portal.call(self.aio.request(method, path, body, query))


class Collection(Generic[T]):
    """The objects of one kind."""

    def __init__(self, collection: AsyncCollection[T]) -> None:
        self._aio = collection

    def get(self, name: str) -> T:
        return portal.call(self._aio.get(name))

    def list(self, *, labels: str = "", fields: str = "", namespace: str | None = None) -> list[T]:
        """`namespace=""` means in all namespaces."""
        return portal.call(self._aio.list(labels=labels, fields=fields, namespace=namespace))

    def apply(self, obj: T | Mapping[str, Any]) -> applying.Outcome:
        return portal.call(self._aio.apply(obj))

    def delete(self, name: str) -> None:
        portal.call(self._aio.delete(name))

    def patch(self, name: str, spec: Mapping[str, Any]) -> T:
        """Changes fields of the spec: `client.queues.patch("a", {"weight": 2})`."""
        return portal.call(self._aio.patch(name, spec))


class Reservations(Collection[reservation.Reservation]):
    """Capacity that is set aside for a time, and maintenance windows."""

    def __init__(self, found: aio.AsyncReservations) -> None:
        super().__init__(found)
        self._reservations = found

    def create(self, name: str, **fields: Any) -> reservation.Reservation:
        """Reserves nodes or amounts: `client.reservations.create("cooling", start="+2h",
        lasts="8h", nodes=["n7"])`; see `windlass.sdk.reservations.build`."""
        return portal.call(self._reservations.create(name, **fields))


class Queues(Collection[queue.Queue]):
    """The sharing tree."""

    def __init__(self, found: aio.AsyncQueues) -> None:
        super().__init__(found)
        self._queues = found

    def tree(self) -> dict[str, Any]:
        """Every queue with what it has, uses, borrows and lends, and what is decided next."""
        return portal.call(self._queues.tree())

    def plan(self, wanted: Sequence[dict[str, Any]], *, prune: bool = False) -> queues.Plan:
        """What it takes to have these queues, and whom that helps and hurts."""
        return portal.call(self._queues.plan(wanted, prune=prune))

    def carry_out(self, wanted: Sequence[dict[str, Any]], plan: queues.Plan) -> Sequence[str]:
        """Does what was planned; Conflict if somebody changed one of the queues meanwhile."""
        return portal.call(self._queues.carry_out(wanted, plan))

    def pause(self, name: str) -> None:
        """Nothing new starts in it or below it."""
        portal.call(self._queues.pause(name))

    def drain(self, name: str) -> None:
        """What runs in it is stopped by its checkpoint contract, and waits."""
        portal.call(self._queues.drain(name))

    def resume(self, name: str) -> None:
        portal.call(self._queues.resume(name))


class Runs:
    """Runs: hand in, find, list."""

    def __init__(self, runs: aio.AsyncRuns) -> None:
        self._aio = runs

    def submit(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> RunHandle:  # fmt: skip
        """Hands in a command or a function and returns at once; see `windlass.run`."""
        return RunHandle(portal.call(self._aio.submit(work, *args, workdir=workdir, **options)))

    def create(self, wanted: run_kind.Run) -> RunHandle:
        """Hands in a Run object as it is."""
        return RunHandle(portal.call(self._aio.create(wanted)))

    def get(self, name: str) -> RunHandle:
        return RunHandle(portal.call(self._aio.get(name)))

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
        return [RunHandle(each) for each in portal.call(found)]

    def ps(self, *, limit: int = 50, finished: int = 10) -> dict[str, Any]:
        """The page that `windlass ps` shows: what runs, then the first that wait, with their
        places and expected starts, then the last that ended."""
        return portal.call(self._aio.ps(limit=limit, finished=finished))

    def usage(self) -> dict[str, dict[str, int]]:
        """What each running run uses now: thousandths of a core, bytes of memory."""
        return portal.call(self._aio.usage())

    def prune(self, *, older_than: float | str = "0s", namespace: str | None = None) -> int:
        """Deletes the records of runs that ended longer ago than this; returns how many."""
        return portal.call(self._aio.prune(older_than=older_than, namespace=namespace))


class Crons(Collection[cronrun.CronRun]):
    """Runs by the clock."""

    def __init__(self, crons: AsyncCrons) -> None:
        super().__init__(crons)
        self._crons = crons

    def create(
        self, cron: str, schedule: str, work: Work, *, time_zone: str = "UTC",
        concurrency: str = "Allow", deadline: str | None = None, **options: Unpack[Options],
    ) -> cronrun.CronRun:  # fmt: skip
        """`client.crons.create("nightly", "0 3 * * *", ["python", "train.py"], gpus=1)`."""
        return portal.call(
            self._crons.create(
                cron, schedule, work, time_zone=time_zone, concurrency=concurrency,
                deadline=deadline, **options,
            )
        )  # fmt: skip

    def suspend(self, name: str) -> None:
        portal.call(self._crons.suspend(name))

    def resume(self, name: str) -> None:
        portal.call(self._crons.resume(name))

    def trigger(self, name: str) -> RunHandle:
        """Starts one of its runs now, whatever the clock says."""
        return RunHandle(portal.call(self._crons.trigger(name)))


class Nodes(Collection[kubernetes.Node]):
    """Machines."""

    def __init__(self, nodes: AsyncNodes) -> None:
        super().__init__(nodes)
        self._nodes = nodes

    def usage(self) -> dict[str, dict[str, int]]:
        """What is used on each node now: thousandths of a core, bytes of memory."""
        return portal.call(self._nodes.usage())

    def cordon(self, name: str) -> None:
        """Nothing new starts there; what runs goes on."""
        portal.call(self._nodes.cordon(name))

    def uncordon(self, name: str) -> None:
        portal.call(self._nodes.uncordon(name))


class Events:
    """What happened to objects, told to people."""

    def __init__(self, events: aio.AsyncEvents) -> None:
        self._aio = events

    def list(self, about: str = "", namespace: str | None = None) -> list[kubernetes.Event]:
        """All, or those about the object of a name; oldest first."""
        return portal.call(self._aio.list(about, namespace))


def start(
    work: Work, *args: Any, client: Client | None = None,
    workdir: str | os.PathLike[str] | None = None, **options: Unpack[Options],
) -> RunHandle:  # fmt: skip
    """Hands in a command or a function as a run and returns at once; offered as `windlass.run`.

    A sequence of words is a command; a string is a line for the shell; a function is called in
    each worker with `args`, and `handle.result()` is what it returned.

        windlass.run(["python", "train.py"], workers=2, gpus=1).wait()
        windlass.run("nvidia-smi; df -h").result()
        windlass.run(train, "resnet50", gpus=1, requirements=["torch"]).result()

    The options are those of `windlass.sdk.options.Options`.
    """
    chosen = client or default()
    return chosen.run(work, *args, workdir=workdir, **options)


_default: tuple[int, Client] | None = None


def default() -> Client:
    """The client that `windlass.run` uses when none is given; made once per process."""
    global _default
    if _default is None or _default[0] != os.getpid():
        _default = (os.getpid(), Client())
    return _default[1]


class Teams:
    """Teams: a namespace, a queue, and who may do what there."""

    def __init__(self, found: teams.AsyncTeams) -> None:
        self._aio = found

    def list(self) -> teams.Teams:
        return portal.call(self._aio.list())

    def get(self, name: str) -> teams.Team:
        return portal.call(self._aio.get(name))

    def create(
        self, name: str, *, members: Sequence[str] = (), viewers: Sequence[str] = (),
        admins: Sequence[str] = (), **queue: Any,
    ) -> teams.Steps:  # fmt: skip
        """Makes the team, or makes it so, and says what that took; again it changes nothing.

        client.teams.create("support", guarantee={"gpu": 16}, weight=2, members=["alice"])
        """
        return portal.call(
            self._aio.create(name, members=members, viewers=viewers, admins=admins, **queue)
        )

    def ending(self, name: str) -> teams.Ending:
        """What would go with the team."""
        return portal.call(self._aio.ending(name))

    def delete(self, name: str, *, stop_runs: bool = False) -> teams.Ending:
        """Removes a team and everything in it; Conflict while runs live, unless told."""
        return portal.call(self._aio.delete(name, stop_runs=stop_runs))


class Tokens:
    """Tokens of people and programs."""

    def __init__(self, found: tokens.AsyncTokens) -> None:
        self._aio = found

    def create(
        self, user: str, *, ttl: str = tokens.USUAL_TTL, groups: tuple[str, ...] = (),
        note: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        """A new token; `["token"]` is shown this once. `ttl="never"` has no end."""
        return portal.call(self._aio.create(user, ttl=ttl, groups=groups, note=note))

    def create_for_account(
        self, account: str, namespace: str, *, ttl: str = tokens.USUAL_TTL
    ) -> dict[str, Any]:
        """A token of a service account: for programs on Kubernetes."""
        return portal.call(self._aio.create_for_account(account, namespace, ttl=ttl))

    def list(self) -> tokens.Tokens:
        """All, or the caller's own if he may not see others'."""
        return portal.call(self._aio.list())

    def revoke(self, token_id: str) -> dict[str, Any]:
        """Ends it at once."""
        return portal.call(self._aio.revoke(token_id))
