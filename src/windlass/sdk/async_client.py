"""The asynchronous client of a server.

`sync_client.Client` is its synchronous form. Errors of the server are `windlass.errors`; errors of
jobs are in `sdk.errors`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, Unpack, cast

from windlass.kinds import codec, registry, validate
from windlass.kinds.types import core, cronrun, queue, reservation, run
from windlass.kinds.types.meta import Object
from windlass.kinds.values import duplicate_keys, quantity
from windlass.sdk import apply as sdk_apply
from windlass.sdk import event_order, platform_api, run_builder, run_handle, submission, watching
from windlass.sdk.admin import queues, reservations, teams, tokens
from windlass.sdk.admin import whoami as admin_whoami
from windlass.sdk.run_handle import AsyncRunHandle
from windlass.sdk.run_options import Options
from windlass.store import connect, errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.http import outage

T = TypeVar("T", bound=Object)


Kind = str | type[Object]
Outcomes = list[sdk_apply.Outcome]
Work = str | Sequence[str] | Callable[..., Any]
"""A command as a sequence, a line for the shell, or a function."""


class AsyncClient:
    """One server and one namespace, for `async` programs.

    The server is the given one, else $WINDLASS_KUBECONFIG or $KUBECONFIG, the engine that
    `windlass up` started, kubectl's config, the pod's service account.

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
                    f"there is no engine state in {state}; start an engine with "
                    f"`windlass up --state {state}`"
                )
        self.store: KubernetesStore = connect.open_store(
            None if kubeconfig is None else os.fspath(kubeconfig),
            context,
            outage_seconds=outage.SECONDS,
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
        """The given namespace ("" for all), else the client's."""
        if not kind.resource.namespaced:
            return ""
        return self.namespace if namespace is None else namespace

    async def run(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        force: bool = False, **options: Unpack[Options],
    ) -> AsyncRunHandle:  # fmt: skip
        """Submits a command or a function; see `windlass.run`."""
        return await self.runs.submit(work, *args, workdir=workdir, force=force, **options)

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
        """Creates or changes the objects of an object, a mapping or YAML text."""
        done = []
        placed = []
        for value in _values(wanted):
            kind = _kind_of_value(value)
            metadata = value.get("metadata") or {}
            placed.append((kind, value, metadata.get("namespace") or self.place(kind)))
        _refuse_repeated(placed)
        for kind, value, namespace in placed:
            done.append(await sdk_apply.apply(self.store, kind, value, namespace, dry_run=dry_run))
        return done

    async def delete(self, kind: Kind, name: str, namespace: str | None = None) -> None:
        found = kind_of(kind)
        await self.store.delete(found, name, self.place(found, namespace))

    async def watch(
        self, kind: Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> AsyncGenerator[tuple[str, Any], None]:
        """Yields the existing objects as ADDED, then each change, without end."""
        found = kind_of(kind)
        place = self.place(found, namespace)
        async for change, obj in watching.changes(
            self.store, found, place, label_selector=labels, field_selector=fields
        ):
            yield change, obj

    async def whoami(self) -> admin_whoami.Caller:
        """The caller's identity on the server: user, groups, teams and the role in each."""
        return await admin_whoami.whoami(self.store, self.namespace)

    async def plan(self, work: Work, **options: Unpack[Options]) -> dict[str, Any]:
        """The result of a dry run: the object, the reason it would wait, the expected start."""
        wanted = _checked(run_builder.build(command_of(work), namespace=self.namespace, **options))
        path = f"{platform_api.PATH}/namespaces/{self.namespace}/plan"
        return await self.request("POST", path, codec.to_dict(wanted))

    async def upload(self, folder: str | os.PathLike[str]) -> str:
        """Packs a working folder, uploads it unless the server has it, and returns its digest."""
        from windlass.sdk.transfer import code_upload

        return await code_upload.send(self.store, self.namespace, os.fspath(folder))

    async def request(
        self, method: str, path: str, body: Any = None, query: Sequence[tuple[str, str]] = ()
    ) -> dict[str, Any]:
        """Sends any request with the client's credentials, JSON in and out; raises API errors."""
        data = None if body is None else json.dumps(body).encode()
        status, _, answer = await self.store.raw(method, path, body=data, query=query)
        value = platform_api.json_object(answer)
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

    async def apply(self, obj: T | Mapping[str, Any]) -> sdk_apply.Outcome:
        (done,) = await self._client.apply(obj)
        return done

    async def delete(self, name: str) -> None:
        await self._store.delete(self._kind, name, self._client.place(self._kind))

    async def patch(self, name: str, spec: Mapping[str, Any]) -> T:
        """Changes fields of the spec: `await client.queues.patch("a", {"weight": 2})`."""
        place = self._client.place(self._kind)
        return await self._store.patch(self._kind, name, place, patch={"spec": dict(spec)})


class AsyncReservations(AsyncCollection[reservation.Reservation]):
    """Reserved capacity and maintenance windows."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, reservation.Reservation)

    async def create(self, name: str, **fields: Any) -> reservation.Reservation:
        """Reserves nodes or amounts; see `windlass.sdk.admin.reservations.build`."""
        return await self._store.create(reservations.build(name, **fields))


class AsyncQueues(AsyncCollection[queue.Queue]):
    """The queue tree."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, queue.Queue)

    async def tree(self) -> dict[str, Any]:
        """Every queue with its quota, usage, borrowing and lending, and the next decision."""
        return await queues.tree(self._store)

    async def plan(self, wanted: Sequence[dict[str, Any]], *, prune: bool = False) -> queues.Plan:
        """The changes to get these queues, and their effect on queues and runs."""
        return await queues.plan(self._store, wanted, prune=prune)

    async def carry_out(self, wanted: Sequence[dict[str, Any]], plan: queues.Plan) -> Sequence[str]:
        """Applies a plan; Conflict if another client changed one of the queues meanwhile."""
        return await queues.apply(self._store, wanted, plan)

    async def pause(self, name: str) -> None:
        """Pauses the queue: no run starts in it or below it."""
        await queues.stop(self._store, name, "hold")

    async def drain(self, name: str) -> None:
        """Drains the queue: its running runs are stopped by their checkpoint contract, and wait."""
        await queues.stop(self._store, name, "drain")

    async def resume(self, name: str) -> None:
        await queues.stop(self._store, name, None)


class AsyncRuns:
    """Runs: submit, find, list."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def submit(
        self, work: Work, *args: Any, workdir: str | os.PathLike[str] | None = None,
        force: bool = False, **options: Unpack[Options],
    ) -> AsyncRunHandle:  # fmt: skip
        """Submits a command or a function without waiting; see `windlass.run`.

        Raises `CannotRun` if this cluster can never run it; with `force` it is submitted anyway.
        """
        client = self._client
        run_builder.check_names(options, work)
        if workdir is not None:
            options["code"] = await client.upload(workdir)
        if callable(work):
            from windlass.sdk import remote_functions

            return await remote_functions.submit(
                client.store,
                client.namespace,
                functools.partial(self.submit, force=force),
                work,
                args,
                options,
            )
        if args:
            raise TypeError(
                "only functions take arguments; put those of a command into the command"
            )
        wanted = _checked(
            run_builder.build(command_of(work), namespace=client.namespace, **options)
        )
        if not force:
            value = codec.to_dict(wanted)
            if missing := await submission.missing(client.store, value, client.namespace):
                raise errors.NotFound(
                    f"{', '.join(missing)} not found in namespace {client.namespace}, so the run "
                    "would not start; create it first, or submit with force=True"
                )
            if unknown := await submission.unknown_runs(client.store, [value], client.namespace):
                raise errors.NotFound(
                    f"after: run {', '.join(unknown)} not found in namespace {client.namespace}; "
                    "submit it first, or submit with force=True to wait until it exists"
                )
            await submission.refuse_unresolvable(client.store, value)
        made = await submission.create_run(client.store, wanted)
        return AsyncRunHandle(client.store, made, forced=force)

    async def create(self, wanted: run.Run) -> AsyncRunHandle:
        """Submits a Run object unchanged."""
        wanted.metadata.namespace = wanted.metadata.namespace or self._client.namespace
        store = self._client.store
        return AsyncRunHandle(store, await submission.create_run(store, wanted))

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
        """Runs, newest last; `namespace=""` means in all namespaces."""
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
        """The page of `windlass ps`: running runs, then the first waiting ones with their
        positions and expected starts, then the last ended ones."""
        path = f"{platform_api.PATH}/namespaces/{self._client.namespace}/ps"
        query = [("limit", str(limit)), ("finished", str(finished))]
        return await self._client.request("GET", path, query=query)

    async def usage(self) -> dict[str, dict[str, int]]:
        """Measured usage of each running run: thousandths of a core, bytes of memory."""
        client = self._client
        pods = await _all(client.store, core.Pod, client.namespace, run.LABEL_RUN, "")
        owners = {pod.name: (pod.metadata.labels or {})[run.LABEL_RUN] for pod in pods}
        path = f"{platform_api.PATH}/namespaces/{client.namespace}/podmetrics"
        found: dict[str, dict[str, int]] = {}
        for item in (await client.request("GET", path))["items"]:
            total = found.setdefault(owners.get(item["metadata"]["name"], ""), {})
            for container in item["containers"]:
                for name, amount in _amounts(container["usage"]).items():
                    total[name] = total.get(name, 0) + amount
        found.pop("", None)
        return found

    async def prune(self, *, older_than: float | str = "0s", namespace: str | None = None) -> int:
        """Deletes the records of runs that ended longer ago than this; returns their number."""
        from windlass.kinds.values import times

        age = run_handle.since_seconds(older_than) or 0
        now = times.now()
        deleted = 0
        for each in await self.list(namespace=namespace):
            history = each.run.status.history
            if not each.run.finished or not history:
                continue
            if (now - times.parse(history[-1].at)).total_seconds() >= age:
                with contextlib.suppress(errors.NotFound):  # it was deleted meanwhile
                    await each.delete()
                    deleted += 1
        return deleted


class AsyncCrons(AsyncCollection[cronrun.CronRun]):
    """Scheduled runs (CronRuns)."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, cronrun.CronRun)

    async def create(
        self, cron: str, schedule: str, work: Work, *, time_zone: str = "UTC",
        concurrency: str = "Allow", deadline: str | None = None, **options: Unpack[Options],
    ) -> cronrun.CronRun:  # fmt: skip
        """`await client.crons.create("nightly", "0 3 * * *", ["python", "train.py"], gpus=1)`."""
        made = run_builder.build(command_of(work), **options)
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
        """Starts a run of the CronRun now."""
        found = await self.get(name)
        template = found.spec.template
        labels = template.metadata.labels if template.metadata else None
        metadata = type(found.metadata)(
            name=run_builder.name_for([name]), namespace=found.namespace, labels=labels
        )
        return await self._client.runs.create(run.Run(metadata=metadata, spec=template.spec))


class AsyncNodes(AsyncCollection[core.Node]):
    """Machines."""

    def __init__(self, client: AsyncClient) -> None:
        super().__init__(client, core.Node)

    async def usage(self) -> dict[str, dict[str, int]]:
        """Measured usage of each node: thousandths of a core, bytes of memory."""
        answer = await self._client.request("GET", f"{platform_api.PATH}/nodemetrics")
        return {item["metadata"]["name"]: _amounts(item["usage"]) for item in answer["items"]}

    async def cordon(self, name: str) -> None:
        """Cordons the node: no pod starts there; running pods keep running."""
        await self.patch(name, {"unschedulable": True})

    async def uncordon(self, name: str) -> None:
        await self.patch(name, {"unschedulable": None})


class AsyncEvents:
    """Events of objects."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self, about: str = "", namespace: str | None = None) -> list[core.Event]:
        """All events, or those of the object with this name; oldest first."""
        place = self._client.place(core.Event, namespace)
        found = await _all(self._client.store, core.Event, place, "", "")
        chosen = [each for each in found if not about or each.involved_object.name == about]
        return sorted(chosen, key=event_order.rank)


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
        raise errors.NotFound(f'"{kind}" is not a kind; choose one of {known}')
    return found


def command_of(work: Work) -> list[str]:
    """The command as a list; a string is a line for the shell."""
    if callable(work):
        raise TypeError("a function can be submitted only with run() or an Executor")
    return ["sh", "-c", work] if isinstance(work, str) else [str(word) for word in work]


def check(command: Sequence[str], options: Options) -> None:
    """Raises if the options are not a valid run."""
    _checked(run_builder.build(command, namespace="default", **options))


def _checked(wanted: run.Run) -> run.Run:
    """The Run; raises with all its problems before a request is sent."""
    value = validate.defaulted(run.Run, codec.to_dict(wanted))
    faults = validate.validate(run.Run, value)
    if faults:
        listed = "; ".join(str(fault) for fault in faults)
        causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
        raise errors.Invalid(f"the run is not valid: {listed}", causes=causes)
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
        return [codec.to_dict(wanted)]
    if isinstance(wanted, str):
        import yaml

        found = [each for node in yaml.compose_all(wanted) for each in duplicate_keys.find(node)]
        if found:
            raise errors.BadRequest(f"{'; '.join(map(str, found[:5]))}; remove one of them")
        return [value for value in yaml.safe_load_all(wanted) if value]
    return [dict(wanted)]


def _refuse_repeated(placed: Sequence[tuple[type[Object], dict[str, Any], str]]) -> None:
    seen = set()
    for kind, value, namespace in placed:
        name = (value.get("metadata") or {}).get("name")
        key = (kind, namespace, name)
        if name and key in seen:
            raise errors.BadRequest(
                f"{kind.resource.singular}/{name} is described twice; nothing was sent: remove "
                "one of them, or give it another name"
            )
        seen.add(key)


def _kind_of_value(value: dict[str, Any]) -> type[Object]:
    key = (value.get("apiVersion", ""), value.get("kind", ""))
    found = registry.by_kind().get(key)
    if found is None:
        raise errors.BadRequest(
            f"apiVersion {key[0]!r} and kind {key[1]!r} are not a known kind; for a run write "
            f"apiVersion: windlass.dev/v1alpha1 and kind: Run"
        )
    return found
