"""Builds the configuration of a container for its shim: command, environment, mounts, limits.

`agent.pods.worker` calls this before each start. Creates the pod's folders and the container's
cgroup.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass import injob
from windlass.agent.node import privileges, single_tenant
from windlass.agent.pods import env as pods_env
from windlass.agent.pods import volumes
from windlass.agent.runtime import cgroups, containers, job_limits, procfs
from windlass.agent.runtime.zygote import Zygote
from windlass.kinds.annotations import (
    PORTS,
    PROGRESS_VARIABLE,
    ROOT_VARIABLE,
    SCRATCH,
    TERMINATION_VARIABLE,
)
from windlass.kinds.types import core, run
from windlass.kinds.values import quantity
from windlass.podlogs import log_format
from windlass.podlogs.archive import LogArchive, member_of
from windlass.store import interface

RECORD = "pod.json"
_FALLBACK = "FallbackToLogsOnError"
_DEFAULT_MESSAGE = "/dev/termination-log"


class RightsChanged(volumes.VolumeRejected):
    """The pod was prepared with the rights of the engine's owner, which its namespace no longer
    has: nothing more of it is started."""


@dataclasses.dataclass(frozen=True, slots=True)
class AgentContext:
    """The node that the agent runs on and what the agent uses to run pods."""

    node: str
    address: str
    folder: Path
    """Contains one folder per pod, named by its uid."""
    zygote: Zygote = dataclasses.field(default_factory=Zygote)
    abilities: privileges.Abilities = dataclasses.field(default_factory=privileges.Abilities)
    user_of: Callable[[str], int | None] = lambda _: None
    """The user id that the pods of a namespace run as; None: that of the agent."""
    tokens: volumes.TokenSource | None = None
    log: tuple[int, int] = (log_format.SEGMENT_BYTES, log_format.SEGMENTS)
    host_mounts: tuple[str, ...] = ()
    """The folders of the machine that pods with a user of their own may mount."""
    limits: job_limits.JobLimits = dataclasses.field(default_factory=job_limits.default)
    log_archive: LogArchive | None = None
    """Takes the logs of Runs' pods before the pods are deleted."""

    @property
    def teams(self) -> Path:
        return self.folder.parent / "teams"

    @property
    def facts(self) -> dict[str, str]:
        """Values of the downward API that the node provides."""
        return {"status.podIP": self.address, "status.hostIP": self.address}


def folder_of(context: AgentContext, uid: str) -> volumes.PodFolder | None:
    """The folder of a pod that `begin` prepared, with the user it was prepared for; None if there
    is none."""
    path = context.folder / uid
    record = procfs.read_json(path / RECORD)
    if record is None:
        return None
    return _pod_folder(context, path, record)


def _pod_folder(context: AgentContext, path: Path, record: dict[str, Any]) -> volumes.PodFolder:
    return volumes.PodFolder(
        path, record.get("user"), context.abilities.mounts, context.teams, context.host_mounts,
        shares_tmp=bool(record.get("scratch")),
    )  # fmt: skip


async def begin(store: interface.Store, context: AgentContext, pod: core.Pod) -> volumes.PodFolder:
    """Prepares and returns the pod's folder. The record is written first, so that an agent that
    restarts in between knows the folder's pod."""
    folder = folder_of(context, pod.uid)
    if folder is None:
        user = context.user_of(pod.namespace)
        path = context.folder / pod.uid
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        record: dict[str, Any] = {"namespace": pod.namespace, "name": pod.name, "user": user}
        record["ports"] = _block(pod)
        record["member"] = member_of(pod)
        record["disk"] = _disk(pod)
        record["scratch"] = (pod.metadata.annotations or {}).get(SCRATCH, "")
        await asyncio.to_thread(procfs.write_durably, path / RECORD, record)
        folder = _pod_folder(context, path, record)
    sources = pods_env.Sources(store, pod.namespace)
    await volumes.prepare(pod, folder, sources, context.tokens, context.facts)
    return folder


async def make(
    store: interface.Store, context: AgentContext, pod: core.Pod, spec: core.Container
) -> containers.ContainerConfig:
    """The configuration of one container of a pod that `begin` prepared."""
    folder = folder_of(context, pod.uid)
    if folder is None:
        raise OSError(f"the record of pod {pod.name} is missing in {context.folder}")
    if folder.user is None and context.user_of(pod.namespace) is not None:
        raise RightsChanged(
            f"pod {pod.name} was prepared with the rights of the engine's owner; since then other "
            f"users may start pods in namespace {pod.namespace}"
        )
    sources = pods_env.Sources(store, pod.namespace)
    env = await pods_env.build(
        sources, pod, spec, context.facts, usual=_usual(folder, pod), fixed=_fixed(folder, spec)
    )
    if (pod.metadata.labels or {}).get(run.LABEL_RUN):
        library = str(injob.LIBRARY)
        env["PYTHONPATH"] = injob.python_path(env.get("PYTHONPATH", ""), library)
    cwd = folder.mapped(spec.working_dir) if spec.working_dir else str(folder.seen / "work")
    return containers.ContainerConfig(
        pods_env.command(spec, env), env, cwd, _setting(context, pod, spec, folder)
    )


def taken_port(context: AgentContext, pod: core.Pod) -> int | None:
    """The lowest port of the pod's block on which a process outside of its attempt listens; None
    if there is none."""
    low, _, high = _block(pod).partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        return None
    busy = {port for port in procfs.listening_ports() if int(low) <= port <= int(high)}
    if busy:
        busy -= procfs.listening_ports(_processes(context, pod))
    return min(busy, default=None)


def _processes(context: AgentContext, pod: core.Pod) -> list[int]:
    """Processes of the pods of the same attempt: those with the same port block and namespace."""
    found = []
    for folder in context.folder.iterdir():
        record = procfs.read_json(folder / RECORD) or {}
        if (record.get("namespace"), record.get("ports")) == (pod.namespace, _block(pod)):
            shims = [container.running_pid() for container in containers.all_in(folder)]
            found += [pid for shim in shims if shim for pid in procfs.descendants(shim)]
    return found


def _block(pod: core.Pod) -> str:
    return (pod.metadata.annotations or {}).get(PORTS, "")


def progress_file(folder: volumes.PodFolder, pod: core.Pod) -> str:
    """The file to which the pod's main container writes its progress."""
    for container in pod.spec.containers:
        for variable in container.env or ():
            if variable.name == PROGRESS_VARIABLE and variable.value:
                known = {ROOT_VARIABLE: str(folder.root)}
                path = pods_env.expand(variable.value, known)
                return str(folder.inside(path) or path)
    return str(folder.root / "run" / "progress.json")


def _setting(
    context: AgentContext, pod: core.Pod, spec: core.Container, folder: volumes.PodFolder
) -> dict[str, Any]:
    seen = volumes.container_mounts(pod, spec, folder)
    setting: dict[str, Any] = {
        "user": folder.user,
        "mounts": seen.mounts,
        "shm": seen.shm,
        "stdin": bool(spec.stdin),
        "stdinOnce": bool(spec.stdin_once),
        "tty": bool(spec.tty),
        "log": list(context.log),
        "termination": _termination(folder, spec),
        "files": context.limits.files,
    }
    limits = _limits(spec, context.limits)
    if context.abilities.cgroups is not None:
        name = containers.group_name(folder.path, spec.name)
        group = context.abilities.cgroups.make(name, limits)
        setting |= {"cgroups": group.procs_files, "oomFile": group.oom_file}
        setting["memoryLimit"] = quantity.of_bytes(limits.memory) if limits.memory else ""
    return setting


def _limits(spec: core.Container, of_jobs: job_limits.JobLimits) -> cgroups.Limits:
    resources = spec.resources or core.ResourceRequirements()
    limits, requests = resources.limits or {}, resources.requests or {}
    return cgroups.Limits(
        cpu_milli=quantity.milli(limits["cpu"]) if "cpu" in limits else None,
        memory=quantity.whole(limits["memory"]) if "memory" in limits else None,
        cpu_request_milli=quantity.milli(requests["cpu"]) if "cpu" in requests else None,
        processes=of_jobs.processes,
    )


def _disk(pod: core.Pod) -> int | None:
    """Bytes of files that the pod states as its limit: as kubelet, the sum of its containers."""
    limits = [
        quantity.whole(limit)
        for container in pod.spec.containers
        if (limit := _resources(container).get("ephemeral-storage"))
    ]
    return sum(limits) or None


def _resources(container: core.Container) -> core.Quantities:
    return (container.resources and container.resources.limits) or {}


def _termination(folder: volumes.PodFolder, spec: core.Container) -> dict[str, Any]:
    latest = containers.Container(folder.path, spec.name).starts
    return {
        "path": str(_message_file(folder, spec)),
        "fallback": spec.termination_message_policy == _FALLBACK,
        "folder": str(folder.path / "containers" / spec.name / str(latest)),
    }


def _message_file(folder: volumes.PodFolder, spec: core.Container) -> Path:
    chosen = spec.termination_message_path
    inside = folder.inside(chosen) if chosen and chosen != _DEFAULT_MESSAGE else None
    return inside or folder.message(spec.name)


def _fixed(folder: volumes.PodFolder, spec: core.Container) -> dict[str, str]:
    return {
        ROOT_VARIABLE: str(folder.seen),
        TERMINATION_VARIABLE: str(_message_file(folder, spec)),
    }


def _usual(folder: volumes.PodFolder, pod: core.Pod) -> dict[str, str]:
    """The default environment: the agent's own, without its user's settings if the pod runs as
    another user."""
    usual = pods_env.inherited()
    if folder.user is not None or pod.namespace != single_tenant.OWN:
        usual = pods_env.without_credentials(usual)
    usual["TMPDIR"] = str(folder.seen / "tmp")
    usual[PROGRESS_VARIABLE] = str(folder.seen / "run" / "progress.json")
    if folder.user is None:
        return usual
    return usual | {
        "HOME": str(folder.seen / "home"),
        "USER": pod.namespace,
        "LOGNAME": pod.namespace,
        "PATH": _open_path(usual.get("PATH", os.defpath), folder.user),
    }


def _open_path(path: str, user: int) -> str:
    """PATH for the user: folders that the user cannot read are replaced by the folder of the
    agent's Python."""
    software = privileges.own_software()
    kept: list[str] = []
    for entry in path.split(os.pathsep):
        own = any(Path(entry).is_relative_to(each) for each in software)
        closed = not own and not privileges.reachable(Path(entry) / "x", user)
        kept.append(str(Path(sys.prefix) / "bin") if closed else entry)
    return os.pathsep.join(dict.fromkeys(kept))
