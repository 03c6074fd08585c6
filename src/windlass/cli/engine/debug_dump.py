"""What a defect report needs, of either engine, as redacted files of an archive.

`windlass debug-dump` calls `collect` and writes the archive. Each file is collected on its own: one
that cannot be read is named in the manifest with the reason, and the others are still there. Output
of jobs, Secrets and the audit log are never read.
"""

from __future__ import annotations

import dataclasses
import io
import json
import platform
import tarfile
from collections.abc import Awaitable
from typing import Any, TypeVar

from windlass.cli.engine import host_checks, platform_status, redaction, scheduler_view
from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib import state_dir as states
from windlass.kinds.types import core, cronrun, meta, pricelist, queue, reservation, run
from windlass.kinds.values import times
from windlass.store import errors
from windlass.version import VERSION

T = TypeVar("T")

_NAMESPACES = ("windlass-system", "windlass-nodes")
_LOG_BYTES = 4 << 20
"""The end of each log."""
_LOG_LINES = 20_000
_AGENTS = 10
"""Of so many nodes the agent's log is read; first of those that are not ready."""
_KINDS: tuple[type[meta.Object], ...] = (
    run.Run, cronrun.CronRun, queue.Queue, reservation.Reservation, pricelist.PriceList,
    core.Node, core.Event,
)  # fmt: skip
_SETTINGS = ("engine", "installation", "scheduling")
"""ConfigMaps of windlass-system: none contains a secret."""
_WORKLOADS = ("deployments", "statefulsets", "daemonsets", "replicasets", "controllerrevisions")
README = """\
A debug dump of Windlass, for a defect report. Read it before you share it.

It contains: names of users, namespaces, runs, queues, nodes and images; requests, states and times;
logs of Windlass' own processes.
It does not contain: commands, scripts and values of variables of runs; Secrets; output of jobs; the
audit log. Text that looks like a key, a token or a password is replaced by "(redacted)".

manifest.json lists all files, and those that could not be collected with the reason.
"""


@dataclasses.dataclass(slots=True)
class Dump:
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    """File -> why it could not be collected."""

    def put(self, name: str, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
        self.files[name] = redaction.text(text).encode()

    async def collect(self, name: str, reading: Awaitable[Any]) -> None:
        try:
            self.put(name, await reading)
        except (errors.ApiError, OSError, ValueError) as problem:
            self.missing[name] = redaction.text(getattr(problem, "message", "") or str(problem))

    def archive(self, folder: str) -> bytes:
        manifest = {
            "version": VERSION,
            "at": times.seconds(times.now()),
            "files": {name: len(content) for name, content in self.files.items()},
            "missing": self.missing,
        }
        listed = {"README.txt": README.encode(), **self.files}
        listed["manifest.json"] = json.dumps(manifest, indent=1).encode()
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w:gz") as tar:
            for name, content in listed.items():
                member = tarfile.TarInfo(f"{folder}/{name}")
                member.size, member.mode = len(content), 0o600
                member.mtime = int(times.now().timestamp())
                tar.addfile(member, io.BytesIO(content))
        return target.getvalue()


def collect(target: base.Target) -> Dump:
    """All files. Without a server, those of this machine."""
    dump = Dump()
    folder = states.folder(target.state)
    _machine(dump, folder)
    try:
        client_session.call(target, lambda session: _server(dump, session))
    except exit_codes.CliError as problem:
        dump.missing["status.json"] = redaction.text(problem.message)
    if dump.files.get("cluster/version.json") is None:
        _engine(dump, folder)
    return dump


# --- this machine ---------------------------------------------------------------------------------


def _machine(dump: Dump, folder: states.StateFolder) -> None:
    found = host_checks.checks(host_checks.Machine(folder.path))
    dump.put(
        "machine.json",
        {
            "windlass": VERSION,
            "python": platform.python_version(),
            "system": platform.platform(),
            "checks": [dataclasses.asdict(each) for each in found],
        },
    )


def _engine(dump: Dump, folder: states.StateFolder) -> None:
    """The embedded engine: its processes and their logs."""
    processes = folder.children()
    dump.put(
        "engine/processes.json", {n: dataclasses.asdict(each) for n, each in processes.items()}
    )
    for path in sorted(folder.logs.glob("*.log*")) if folder.logs.is_dir() else ():
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _LOG_BYTES))
                dump.put(f"logs/{path.name}", file.read().decode(errors="replace"))
        except OSError as problem:
            dump.missing[f"logs/{path.name}"] = str(problem)


# --- the server -----------------------------------------------------------------------------------


async def _server(dump: Dump, session: client_session.Session) -> None:
    version = await session.read("/version")
    embedded = "windlass" in str(version.get("gitVersion", ""))
    if not embedded:
        dump.put("cluster/version.json", version)
    await dump.collect("status.json", platform_status.read(session))
    await dump.collect("state.json", _scheduler_view(session))
    for kind in _KINDS:
        await dump.collect(f"objects/{kind.resource.plural}.json", _objects(session, kind))
    for name in _SETTINGS:
        path = f"/api/v1/namespaces/{_NAMESPACES[0]}/configmaps/{name}"
        await dump.collect(f"settings/{name}.json", _data(session, path))
    await dump.collect("metrics/server.txt", _text(session, "/metrics"))
    if not embedded:
        await _cluster(dump, session)


async def _scheduler_view(session: client_session.Session) -> Any:
    """The input of `windlass simulate --state`, so that a decision can be repeated elsewhere."""
    from windlass.sim.inputs import state_export

    return json.loads(state_export.dumps(await scheduler_view.read(session)))


async def _objects(session: client_session.Session, kind: type[meta.Object]) -> Any:
    """Of all namespaces; with less than that right, of the caller's."""
    try:
        found = await session.read(kind.resource.path(""))
    except errors.Forbidden:
        if not kind.resource.namespaced:
            raise
        found = await session.read(kind.resource.path(session.namespace))
    return redaction.obj(found.get("items", []))


async def _data(session: client_session.Session, path: str) -> Any:
    try:
        return (await session.read(path)).get("data")
    except errors.NotFound:
        return None  # not on this engine, or never set


async def _text(
    session: client_session.Session, path: str, query: tuple[tuple[str, str], ...] = ()
) -> str:
    status, _, body = await session.store.raw("GET", path, query=query)
    if status >= 300:
        raise errors.from_status(json.loads(body) if body[:1] == b"{" else {}, status)
    return body.decode(errors="replace")


async def _cluster(dump: Dump, session: client_session.Session) -> None:
    """The installation on a cluster: its objects, its pods, their logs."""
    services = "/apis/apiregistration.k8s.io/v1/apiservices"
    await dump.collect(
        "cluster/apiservice.json", _whole(session, f"{services}/v1alpha1.platform.windlass.dev")
    )
    for namespace in _NAMESPACES:
        for plural in _WORKLOADS:
            path = f"/apis/apps/v1/namespaces/{namespace}/{plural}"
            await dump.collect(f"cluster/{namespace}/{plural}.json", _whole(session, path))
        for plural in ("pods", "services", "persistentvolumeclaims"):
            path = f"/api/v1/namespaces/{namespace}/{plural}"
            await dump.collect(f"cluster/{namespace}/{plural}.json", _whole(session, path))
        await _logs(dump, session, namespace)


async def _whole(session: client_session.Session, path: str) -> Any:
    return redaction.obj(await session.read(path))


async def _logs(dump: Dump, session: client_session.Session, namespace: str) -> None:
    """Of each container the present log, and the one before its last restart."""
    try:
        pods = (await session.store.list(core.Pod, namespace)).items
    except errors.ApiError:
        return  # collecting the pods reported it
    if namespace == _NAMESPACES[1]:
        pods = sorted(pods, key=_is_ready)[:_AGENTS]
    for pod in pods:
        for container in pod.status.container_statuses or ():
            path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}/log"
            asked = (("container", container.name), ("tailLines", str(_LOG_LINES)),
                     ("limitBytes", str(_LOG_BYTES)))  # fmt: skip
            await dump.collect(f"logs/{pod.name}.log", _text(session, path, asked))
            if container.restart_count:
                before = (*asked, ("previous", "true"))
                await dump.collect(f"logs/{pod.name}.previous.log", _text(session, path, before))


def _is_ready(pod: core.Pod) -> bool:
    return all(each.ready for each in pod.status.container_statuses or ()) and bool(
        pod.status.container_statuses
    )
