"""The asynchronous client: everything that can be asked of a server, one method each.

`client.Client` offers the same to plain programs. Errors are `windlass.errors` (what the server
refuses, each with its remedy) and `failures` (what went wrong with a job).
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack, cast

from windlass.kinds import (
    cronrun,
    kubernetes,
    quantity,
    queue,
    registry,
    reservation,
    run,
    validation,
    wire,
)
from windlass.kinds.meta import Object
from windlass.sdk import (
    applying,
    handles,
    queues,
    reservations,
    rights,
    runs,
    teams,
    tokens,
    watching,
)
from windlass.sdk.handles import AsyncRunHandle
from windlass.sdk.options import Options
from windlass.store import connect, errors
from windlass.store.kubernetes.client import KubernetesStore

T = TypeVar("T", bound=Object)

_PLATFORM = "/apis/platform.windlass.dev/v1alpha1"

Kind = str | type[Object]
Outcomes = list[applying.Outcome]
Work = str | Sequence[str] | Callable[..., Any]
"""A command as words, as a line for the shell, or a function."""


class AsyncClient:
    """One server and one namespace, for `async` programs.

    Which server: what is given here, else $WINDLASS_KUBECONFIG or $KUBECONFIG, the engine that
    `windlass up` started, kubectl's own file, the pod we are in.

        async with windlass.AsyncClient() as client:
            handle = await client.run(["python", "train.py"], gpus=1)
            async for line in handle.logs(follow=True):
                print(line.text)
    """

    def __init__(
        self,
        *,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
        state: str | os.PathLike[str] | None = None,
        namespace: str = "",
    ) -> None:
        if state is not None and kubeconfig is None:
            kubeconfig = pathlib.Path(state).expanduser() / "kubeconfig"
            if not kubeconfig.exists():
                raise errors.Unavailable(
                    f"no engine has ever run on {state}; start one with `windlass up --state "
                    f"{state}`"
                )
        self.store: KubernetesStore = connect.open_store(
            None if kubeconfig is None else os.fspath(kubeconfig), context
        )
        self.namespace = namespace or self.store.access.namespace or "default"
        self.runs = AsyncRuns(self)
        self.queues = AsyncQueues(self)
        self.reservations = AsyncReservations(self)
        self.crons = AsyncCrons(self)
        self.nodes = AsyncNodes(self)
        self.events = AsyncEvents(self)
        self.teams = teams.AsyncTeams(self.store)
        self.tokens = tokens.AsyncTokens(self.store)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.store.close()

    def place(self, kind: type[Object], namespace: str | None = None) -> str:
        """The namespace that is meant: the given one ("" for all), else the client's."""
        if not kind.resource.namespaced:
            return ""
        return self.namespace if namespace is None else namespace

    async def run(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> AsyncRunHandle:  # fmt: skip
        """Hands in a command or a function; see `windlass.run`."""
        return await self.runs.submit(work, *args, workdir=workdir, **options)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Any:
        """One object: `await client.get("queue", "team-a")`."""
        found = kind_of(kind)
        return await self.store.get(found, name, self.place(found, namespace))

    async def list(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> list[Any]:
        """All objects of a kind; `namespace=""` means in all namespaces."""
        found = kind_of(kind)
        return await _all(self.store, found, self.place(found, namespace), labels, fields)

    async def apply(
        self, wanted: Object | Mapping[str, Any] | str, *, dry_run: bool = False
    ) -> Outcomes:
        """Makes the server hold what an object, a mapping or YAML text says."""
        done = []
        for value in _values(wanted):
            kind = _kind_of_value(value)
            metadata = value.get("metadata") or {}
            namespace = metadata.get("namespace") or self.place(kind)
            done.append(await applying.apply(self.store, kind, value, namespace, dry_run=dry_run))
        return done

    async def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        found = kind_of(kind)
        await self.store.delete(found, name, self.place(found, namespace))

    async def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """First what there is as ADDED, then each change, without end."""
        found = kind_of(kind)
        place = self.place(found, namespace)
        async for change, obj in watching.changes(
            self.store, found, place, label_selector=labels, field_selector=fields
        ):
            yield change, obj

    async def whoami(self) -> rights.Caller:
        """Whom the server takes us for: user, groups, teams and the role in each."""
        return await rights.whoami(self.store, self.namespace)

    async def plan(self, work: Work, **options: Unpack[Options]) -> dict[str, Any]:
        """What would happen if this were handed in: the object, the verdict, the expected start."""
        wanted = _checked(runs.build(command_of(work), namespace=self.namespace, **options))
        path = f"{handles.PLATFORM}/namespaces/{self.namespace}/plan"
        return await self.request("POST", path, wire.to_dict(wanted))

    async def upload(self, folder: str | os.PathLike[str]) -> str:
        """Packs a working folder and sends what the server has not got; its digest."""
        from windlass.sdk import workdir

        return await workdir.send(self.store, self.namespace, os.fspath(folder))

    async def request(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Any request with our identity, JSON in and out; raises what the server refuses."""
        data = None if body is None else json.dumps(body).encode()
        status, _, answer = await self.store.raw(method, path, body=data, query=query)
        value = handles.json_of(answer)
        if status >= 300:
            raise errors.from_status(value, status)
        return value


class AsyncCollection(Generic[T]):
    """The objects of one kind."""

    def __init__(self, client: AsyncClient, kind: type[T]) -> None:
        self._client = client
        self._kind = kind

    @property
    def _store(self) -> KubernetesStore:
        return self._client.store

    async def get(self, name: str) -> T:
        return await self._store.get(self._kind, name, self._client.place(self._kind))

    async def list(
        self, *, labels: str = "", fields: str = "", namespace: str | None = None
    ) -> list[T]:
        """`namespace=""` means in all namespaces."""
        place = self._client.place(self._kind, namespace)
        return await _all(self._store, self._kind, place, labels, fields)

    async def apply(self, obj: T | Mapping[str, Any]) -> applying.Outcome:
        (done,) = await self._client.apply(obj)
        return done

    async def delete(self, name: str) -> None:
        await self._store.delete(self._kind, name, self._client.place(self._kind))

    async def patch(self, name: str, spec: Mapping[str, Any]) -> T:
        """Changes fields of the spec: `await client.queues.patch("a", {"weight": 2})`."""
        place = self._client.place(self._kind)
        return await self._store.patch(self._kind, name, place, patch={"spec": dict(spec)})


class AsyncReservations(AsyncCollection[reservation.Reservation]):
    """Capacity that is set aside for a time, and maintenance windows."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, reservation.Reservation)

    async def create(self, name: str, **fields: Any) -> reservation.Reservation:
        """Reserves nodes or amounts; see `windlass.sdk.reservations.build`."""
        return await self._store.create(reservations.build(name, **fields))


class AsyncQueues(AsyncCollection[queue.Queue]):
    """The sharing tree."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, queue.Queue)

    async def tree(self) -> dict[str, Any]:
        """Every queue with what it has, uses, borrows and lends, and what is decided next."""
        return await queues.tree(self._store)

    async def plan(self, wanted: Sequence[dict[str, Any]], *, prune: bool = False) -> queues.Plan:
        """What it takes to have these queues, and whom that helps and hurts."""
        return await queues.plan(self._store, wanted, prune=prune)

    async def carry_out(self, wanted: Sequence[dict[str, Any]], plan: queues.Plan) -> Sequence[str]:
        """Does what was planned; Conflict if somebody changed one of the queues meanwhile."""
        return await queues.apply(self._store, wanted, plan)

    async def pause(self, name: str) -> None:
        """Nothing new starts in it or below it."""
        await queues.stop(self._store, name, "hold")

    async def drain(self, name: str) -> None:
        """What runs in it is stopped by its checkpoint contract, and waits."""
        await queues.stop(self._store, name, "drain")

    async def resume(self, name: str) -> None:
        await queues.stop(self._store, name, None)


class AsyncRuns:
    """Runs: hand in, find, list."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def submit(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        **options: Unpack[Options],
    ) -> AsyncRunHandle:  # fmt: skip
        """Hands in a command or a function and returns at once; see `windlass.run`."""
        client = self._client
        if workdir is not None:
            options["code"] = await client.upload(workdir)
        if callable(work):
            from windlass.sdk import functions

            return await functions.submit(client, work, args, options)
        if args:
            raise TypeError("arguments are for functions; a command carries its own")
        wanted = _checked(runs.build(command_of(work), namespace=client.namespace, **options))
        return AsyncRunHandle(client.store, await client.store.create(wanted))

    async def create(self, wanted: run.Run) -> AsyncRunHandle:
        """Hands in a Run object as it is."""
        wanted.metadata.namespace = wanted.metadata.namespace or self._client.namespace
        return AsyncRunHandle(self._client.store, await self._client.store.create(wanted))

    async def get(self, name: str) -> AsyncRunHandle:
        found = await self._client.store.get(run.Run, name, self._client.namespace)
        return AsyncRunHandle(self._client.store, found)

    async def list(
        self,
        *,
        phase: str = "",
        user: str = "",
        queue: str = "",
        labels: str = "",
        namespace: str | None = None,
    ) -> list[AsyncRunHandle]:
        """Runs, youngest last; `namespace=""` means in all namespaces."""
        client = self._client
        found = await _all(client.store, run.Run, client.place(run.Run, namespace), labels, "")
        return [
            AsyncRunHandle(client.store, each)
            for each in found
            if (not phase or each.status.phase == phase)
            and (not user or each.spec.user == user)
            and (not queue or each.spec.queue == queue)
        ]

    async def ps(self, *, limit: int = 50, finished: int = 10) -> dict[str, Any]:
        """The page that `windlass ps` shows: what runs, then the first that wait, with their
        places and expected starts, then the last that ended."""
        path = f"{handles.PLATFORM}/namespaces/{self._client.namespace}/ps"
        query = [("limit", str(limit)), ("finished", str(finished))]
        return await self._client.request("GET", path, query=query)

    async def usage(self) -> dict[str, dict[str, int]]:
        """What each running run uses now: thousandths of a core, bytes of memory."""
        client = self._client
        pods = await _all(client.store, kubernetes.Pod, client.namespace, run.LABEL_RUN, "")
        owners = {pod.name: (pod.metadata.labels or {})[run.LABEL_RUN] for pod in pods}
        path = f"{_PLATFORM}/namespaces/{client.namespace}/podmetrics"
        found: dict[str, dict[str, int]] = {}
        for item in (await client.request("GET", path))["items"]:
            total = found.setdefault(owners.get(item["metadata"]["name"], ""), {})
            for container in item["containers"]:
                for name, amount in _amounts(container["usage"]).items():
                    total[name] = total.get(name, 0) + amount
        found.pop("", None)
        return found

    async def prune(self, *, older_than: float | str = "0s", namespace: str | None = None) -> int:
        """Deletes the records of runs that ended longer ago than this; returns how many."""
        from windlass.kinds import times

        age = handles.since_seconds(older_than) or 0
        now = times.now()
        deleted = 0
        for each in await self.list(namespace=namespace):
            history = each.run.status.history
            if not each.run.finished or not history:
                continue
            if (now - times.parse(history[-1].at)).total_seconds() >= age:
                with contextlib.suppress(errors.NotFound):  # it went while we looked
                    await each.delete()
                    deleted += 1
        return deleted


class AsyncCrons(AsyncCollection[cronrun.CronRun]):
    """Runs by the clock."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, cronrun.CronRun)

    async def create(
        self, cron: str, schedule: str, work: Work, *, time_zone: str = "UTC",
        concurrency: str = "Allow", deadline: str | None = None, **options: Unpack[Options],
    ) -> cronrun.CronRun:  # fmt: skip
        """`await client.crons.create("nightly", "0 3 * * *", ["python", "train.py"], gpus=1)`."""
        made = runs.build(command_of(work), **options)
        spec = cronrun.CronRunSpec(
            schedule=schedule,
            time_zone=time_zone,
            concurrency_policy=cast(Any, concurrency),
            starting_deadline=deadline,
            template=cronrun.RunTemplate(spec=made.spec),
        )
        metadata = type(made.metadata)(name=cron, namespace=self._client.namespace)
        return await self._store.create(cronrun.CronRun(metadata=metadata, spec=spec))

    async def suspend(self, name: str) -> None:
        await self.patch(name, {"suspend": True})

    async def resume(self, name: str) -> None:
        await self.patch(name, {"suspend": False})

    async def trigger(self, name: str) -> AsyncRunHandle:
        """Starts one of its runs now, whatever the clock says."""
        found = await self.get(name)
        template = found.spec.template
        labels = template.metadata.labels if template.metadata else None
        metadata = type(found.metadata)(
            name=runs.name_for([name]), namespace=found.namespace, labels=labels
        )
        return await self._client.runs.create(run.Run(metadata=metadata, spec=template.spec))


class AsyncNodes(AsyncCollection[kubernetes.Node]):
    """Machines."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, kubernetes.Node)

    async def usage(self) -> dict[str, dict[str, int]]:
        """What is used on each node now: thousandths of a core, bytes of memory."""
        answer = await self._client.request("GET", f"{_PLATFORM}/nodemetrics")
        return {item["metadata"]["name"]: _amounts(item["usage"]) for item in answer["items"]}

    async def cordon(self, name: str) -> None:
        """Nothing new starts there; what runs goes on."""
        await self.patch(name, {"unschedulable": True})

    async def uncordon(self, name: str) -> None:
        await self.patch(name, {"unschedulable": None})


class AsyncEvents:
    """What happened to objects, told to people."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, about: str = "", namespace: str | None = None) -> list[kubernetes.Event]:
        """All, or those about the object of a name; oldest first."""
        place = self._client.place(kubernetes.Event, namespace)
        found = await _all(self._client.store, kubernetes.Event, place, "", "")
        chosen = [each for each in found if not about or each.involved_object.name == about]
        return sorted(chosen, key=lambda each: each.last_timestamp or each.event_time or "")


def _amounts(usage: Mapping[str, str]) -> dict[str, int]:
    return {
        name: quantity.milli(value) if name == "cpu" else quantity.whole(value)
        for name, value in usage.items()
    }


def kind_of(kind: Kind) -> type[Object]:
    """A kind by its class or by any of its names."""
    if isinstance(kind, type):
        return kind
    found = registry.by_word().get(kind.lower())
    if found is None:
        known = ", ".join(sorted(each.resource.singular for each in registry.ALL))
        raise errors.NotFound(f'"{kind}" is no kind of object; choose one of {known}')
    return found


def command_of(work: Work) -> list[str]:
    """The words of a command; a line of text is the shell's."""
    if callable(work):
        raise TypeError("a function can be handed in with run() or an Executor only")
    return ["sh", "-c", work] if isinstance(work, str) else [str(word) for word in work]


def check(command: Sequence[str], options: Options) -> None:
    """Raises if no run could be made of this."""
    _checked(runs.build(command, namespace="default", **options))


def _checked(wanted: run.Run) -> run.Run:
    """The Run, or everything that is wrong with it, before any server is asked."""
    value = validation.defaulted(run.Run, wire.to_dict(wanted))
    faults = validation.validate(run.Run, value)
    if faults:
        listed = "; ".join(str(fault) for fault in faults)
        causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
        raise errors.Invalid(f"the job cannot be handed in like this: {listed}", causes=causes)
    return wanted


async def _all(
    store: KubernetesStore, kind: type[T], namespace: str, labels: str, fields: str
) -> list[T]:
    items: list[T] = []
    token = ""
    while True:
        page = await store.list(
            kind, namespace, label_selector=labels, field_selector=fields, limit=500,
            continue_token=token,
        )  # fmt: skip
        items += page.items
        token = page.continue_token
        if not token:
            return items


def _values(wanted: Object | Mapping[str, Any] | str) -> list[dict[str, Any]]:
    if isinstance(wanted, Object):
        return [wire.to_dict(wanted)]
    if isinstance(wanted, str):
        import yaml

        return [value for value in yaml.safe_load_all(wanted) if value]
    return [dict(wanted)]


def _kind_of_value(value: dict[str, Any]) -> type[Object]:
    key = (value.get("apiVersion", ""), value.get("kind", ""))
    found = registry.by_kind().get(key)
    if found is None:
        raise errors.BadRequest(
            f"apiVersion {key[0]!r} and kind {key[1]!r} name no kind of object; for a run write "
            f"apiVersion: windlass.dev/v1alpha1 and kind: Run"
        )
    return found
