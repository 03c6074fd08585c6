"""From a container of a pod to what its shim is told: command, environment, mounts, limits.

Called by `agent.pods` just before a start. Makes the pod's folders and the container's cgroup.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windlass.agent import cgroups, containers, environment, privileges, procfs, shimlog, volumes
from windlass.agent.kept import Kept, member_of
from windlass.agent.nursery import Nursery
from windlass.kinds import hostpods, kubernetes, quantity
from windlass.store import client

RECORD = "pod.json"
_FALLBACK = "FallbackToLogsOnError"
_DEFAULT_MESSAGE = "/dev/termination-log"


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where pods run, and with which means."""

    node: str
    address: str
    folder: Path
    """Holds one folder per pod, by uid."""
    nursery: Nursery = dataclasses.field(default_factory=Nursery)
    abilities: privileges.Abilities = dataclasses.field(default_factory=privileges.Abilities)
    user_of: Callable[[str], int | None] = lambda _: None
    """The user id that a namespace's pods run as; None: the agent's own."""
    tokens: volumes.TokenSource | None = None
    log: tuple[int, int] = (shimlog.SEGMENT_BYTES, shimlog.SEGMENTS)
    kept: Kept | None = None
    """Where the logs of Runs' pods stay when these go."""

    @property
    def teams(self) -> Path:
        return self.folder.parent / "teams"

    @property
    def facts(self) -> dict[str, str]:
        """Fields of a pod that only the node knows."""
        return {"status.podIP": self.address, "status.hostIP": self.address}


def folder_of(place: Place, uid: str) -> volumes.PodFolder | None:
    """The folder of a pod that was begun here, with the user it was begun as."""
    path = place.folder / uid
    record = procfs.read_json(path / RECORD)
    if record is None:
        return None
    return volumes.PodFolder(path, record.get("user"), place.abilities.mounts, place.teams)


async def begin(store: client.Store, place: Place, pod: kubernetes.Pod) -> volumes.PodFolder:
    """The pod's folder, filled; recorded first, so that whoever comes next finds whose it is."""
    folder = folder_of(place, pod.uid)
    if folder is None:
        user = place.user_of(pod.namespace)
        path = place.folder / pod.uid
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        record: dict[str, Any] = {"namespace": pod.namespace, "name": pod.name, "user": user}
        record["ports"] = _block(pod)
        record["member"] = member_of(pod)
        record["scratch"] = (pod.metadata.annotations or {}).get(hostpods.SCRATCH, "")
        await asyncio.to_thread(procfs.write_durably, path / RECORD, record)
        folder = volumes.PodFolder(path, user, place.abilities.mounts, place.teams)
    sources = environment.Sources(store, pod.namespace)
    await volumes.prepare(pod, folder, sources, place.tokens, place.facts)
    return folder


async def make(
    store: client.Store, place: Place, pod: kubernetes.Pod, spec: kubernetes.Container
) -> containers.Order:
    """What to start for one container, after `begin`."""
    folder = folder_of(place, pod.uid)
    if folder is None:
        raise OSError(f"the record of pod {pod.name} is gone")
    sources = environment.Sources(store, pod.namespace)
    env = await environment.build(
        sources, pod, spec, place.facts, usual=_usual(folder, pod), fixed=_fixed(folder, spec)
    )
    cwd = folder.mapped(spec.working_dir) if spec.working_dir else str(folder.seen / "work")
    return containers.Order(
        environment.command(spec, env), env, cwd, _setting(place, pod, spec, folder)
    )


def taken_port(place: Place, pod: kubernetes.Pod) -> int | None:
    """A port of the pod's block that somebody outside of its attempt listens on."""
    low, _, high = _block(pod).partition("-")
    if not (low.isdecimal() and high.isdecimal()):
        return None
    busy = {port for port in procfs.listening_ports() if int(low) <= port <= int(high)}
    if busy:
        busy -= procfs.listening_ports(_processes(place, pod))
    return min(busy, default=None)


def _processes(place: Place, pod: kubernetes.Pod) -> list[int]:
    """Of all pods here that have the same block in the same namespace: those of its attempt."""
    found = []
    for folder in place.folder.iterdir():
        record = procfs.read_json(folder / RECORD) or {}
        if (record.get("namespace"), record.get("ports")) == (pod.namespace, _block(pod)):
            shims = [container.running_pid() for container in containers.all_in(folder)]
            found += [pid for shim in shims if shim for pid in procfs.descendants(shim)]
    return found


def _block(pod: kubernetes.Pod) -> str:
    return (pod.metadata.annotations or {}).get(hostpods.PORTS, "")


def progress_file(folder: volumes.PodFolder, pod: kubernetes.Pod) -> str:
    """Where the pod's main container was told to write its progress."""
    for container in pod.spec.containers:
        for variable in container.env or ():
            if variable.name == hostpods.PROGRESS_VARIABLE and variable.value:
                known = {hostpods.ROOT_VARIABLE: str(folder.root)}
                told = environment.expand(variable.value, known)
                return str(folder.inside(told) or told)
    return str(folder.root / "run" / "progress.json")


def _setting(
    place: Place, pod: kubernetes.Pod, spec: kubernetes.Container, folder: volumes.PodFolder
) -> dict[str, Any]:
    seen = volumes.view(pod, spec, folder)
    setting: dict[str, Any] = {
        "user": folder.user,
        "mounts": seen.mounts,
        "shm": seen.shm,
        "stdin": bool(spec.stdin),
        "stdinOnce": bool(spec.stdin_once),
        "tty": bool(spec.tty),
        "log": list(place.log),
        "termination": _termination(folder, spec),
    }
    limits = _limits(spec)
    if place.abilities.cgroups is not None:
        name = containers.group_name(folder.path, spec.name)
        group = place.abilities.cgroups.make(name, limits)
        setting |= {"cgroups": group.procs_files, "oomFile": group.oom_file}
        setting["memoryLimit"] = quantity.of_bytes(limits.memory) if limits.memory else ""
    return setting


def _limits(spec: kubernetes.Container) -> cgroups.Limits:
    resources = spec.resources or kubernetes.ResourceRequirements()
    limits, requests = resources.limits or {}, resources.requests or {}
    return cgroups.Limits(
        cpu_milli=quantity.milli(limits["cpu"]) if "cpu" in limits else None,
        memory=quantity.whole(limits["memory"]) if "memory" in limits else None,
        cpu_request_milli=quantity.milli(requests["cpu"]) if "cpu" in requests else None,
    )


def _termination(folder: volumes.PodFolder, spec: kubernetes.Container) -> dict[str, Any]:
    latest = containers.Container(folder.path, spec.name).starts
    return {
        "path": str(_message_file(folder, spec)),
        "fallback": spec.termination_message_policy == _FALLBACK,
        "folder": str(folder.path / "containers" / spec.name / str(latest)),
    }


def _message_file(folder: volumes.PodFolder, spec: kubernetes.Container) -> Path:
    chosen = spec.termination_message_path
    inside = folder.inside(chosen) if chosen and chosen != _DEFAULT_MESSAGE else None
    return inside or folder.message(spec.name)


def _fixed(folder: volumes.PodFolder, spec: kubernetes.Container) -> dict[str, str]:
    return {
        hostpods.ROOT_VARIABLE: str(folder.seen),
        hostpods.TERMINATION_VARIABLE: str(_message_file(folder, spec)),
    }


def _usual(folder: volumes.PodFolder, pod: kubernetes.Pod) -> dict[str, str]:
    """The machine's environment, without what is only its owner's when the pod is another's."""
    usual = environment.inherited()
    usual["TMPDIR"] = str(folder.seen / "tmp")
    usual[hostpods.PROGRESS_VARIABLE] = str(folder.seen / "run" / "progress.json")
    if folder.user is None:
        return usual
    return usual | {
        "HOME": str(folder.seen / "home"),
        "USER": pod.namespace,
        "LOGNAME": pod.namespace,
        "PATH": _open_path(usual.get("PATH", os.defpath), folder.user),
    }


def _open_path(path: str, user: int) -> str:
    """PATH without folders that are closed to the user; our own Python's takes their place."""
    software = privileges.own_software()
    kept: list[str] = []
    for entry in path.split(os.pathsep):
        own = any(Path(entry).is_relative_to(each) for each in software)
        closed = not own and not privileges.reachable(Path(entry) / "x", user)
        kept.append(str(Path(sys.prefix) / "bin") if closed else entry)
    return os.pathsep.join(dict.fromkeys(kept))
