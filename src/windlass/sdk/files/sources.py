"""Which files of a run can be reached, and how: those of a running replica through a shell in it,
those of one that has ended from its folder on the node, where the engine keeps it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

from windlass.kinds.annotations import ROOT
from windlass.kinds.types import core, run
from windlass.kinds.values import times
from windlass.sdk import platform_api
from windlass.sdk.files import places, replica_shell
from windlass.sdk.files.collected import CollectedFiles
from windlass.sdk.files.copying import Source
from windlass.sdk.files.places import Entry, PathError, Place
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

_LONGEST = 2.0
"""Seconds that the end of a followed run may be delayed by a look at its files."""
_OWN_SHELL = f"{ROOT}/run/bin/sh"
"""The shell that the platform brings into images; the command of a prepared pod begins with it."""


@contextlib.asynccontextmanager
async def reading(store: KubernetesStore, namespace: str, place: Place) -> AsyncIterator[Source]:
    """The files of a replica, running or ended."""
    owner = await store.get(run.Run, place.run, namespace)
    pod = await _pod(store, owner, place)
    if pod is not None and pod.status.phase == "Running":
        async with _opened(store, pod) as files:
            yield files
        return
    role, index = place.member([each.name for each in owner.spec.roles])
    kept = (owner.status.outputs or {}).get(f"{role}-{index}")
    collected = None
    if kept is not None and kept.manifest:
        collected = CollectedFiles(store, owner, f"{role}-{index}")
    if pod is not None and pod.status.phase in ("Succeeded", "Failed"):
        ended = EndedFiles(store, owner, pod)
        yield _Either(ended, collected) if collected is not None else ended
    elif collected is not None:
        yield collected
    else:
        raise _nothing_there(owner, place)


@contextlib.asynccontextmanager
async def writing(
    store: KubernetesStore, namespace: str, place: Place
) -> AsyncIterator[replica_shell.ReplicaFiles]:
    """The files of a running replica."""
    pod = await running_pod(store, namespace, place)
    async with _opened(store, pod) as files:
        yield files


async def running_pod(store: KubernetesStore, namespace: str, place: Place) -> core.Pod:
    """The pod of a replica that runs."""
    owner = await store.get(run.Run, place.run, namespace)
    pod = await _pod(store, owner, place)
    if pod is None or pod.status.phase != "Running":
        state = "has ended" if owner.finished else f"is {owner.status.phase}"
        raise errors.Conflict(f"run {owner.name} {state}, and this needs a running replica")
    return pod


async def written(store: KubernetesStore, ended: run.Run) -> list[Entry]:
    """The files that the first replica of an ended run wrote into its working folder; empty if they
    are not kept. Takes two seconds at most."""
    place = Place(ended.name, "", "")
    try:
        async with asyncio.timeout(_LONGEST), reading(store, ended.namespace, place) as files:
            found = await files.list("")
    except (errors.ApiError, PathError, TimeoutError):
        return []
    # Files that came with the code are older than the run.
    since = times.parse(ended.metadata.creation_timestamp or "").timestamp()
    return [entry for entry in found if entry.kind == "file" and entry.modified >= since]


async def _pod(store: KubernetesStore, owner: run.Run, place: Place) -> core.Pod | None:
    """The pod of the replica in the current attempt; None if it is gone."""
    role, index = place.member([each.name for each in owner.spec.roles])
    labels = {
        run.LABEL_RUN: owner.name, run.LABEL_ROLE: role, run.LABEL_INDEX: str(index),
        run.LABEL_ATTEMPT: str(owner.status.attempt),
    }  # fmt: skip
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    listed = await store.list(core.Pod, owner.namespace, label_selector=selector)
    return listed.items[0] if listed.items else None


def _opened(
    store: KubernetesStore, pod: core.Pod
) -> contextlib.AbstractAsyncContextManager[replica_shell.ReplicaFiles]:
    main = pod.spec.containers[0]
    first = (main.command or [""])[0]
    shell = _OWN_SHELL if first.endswith("/run/bin/sh") else "sh"
    return replica_shell.opened(store, pod.name, pod.namespace, main.name, shell)


def _nothing_there(owner: run.Run, place: Place) -> PathError:
    if owner.finished:
        return PathError(
            f"the files of run {owner.name} are gone with its pods: a stopped replica keeps none"
        )
    return PathError(
        f"no replica {place.replica or 'of run ' + owner.name} has started yet; explain its state: "
        f"windlass why {owner.name}"
    )


class _Either:
    """The folder of an ended replica where it is kept, else its outputs."""

    def __init__(self, first: Source, second: Source) -> None:
        self._first = first
        self._second = second
        self._chosen = first

    async def list(self, path: str) -> list[Entry]:
        try:
            self._chosen, found = self._first, await self._first.list(path)
        except (PathError, errors.BadRequest, errors.NotFound):  # the pod may go meanwhile
            found = []
        if not found:
            self._chosen, found = self._second, await self._second.list(path)
        return found

    async def target(self, path: str) -> str:
        return await self._chosen.target(path)

    def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        return self._chosen.read(path, offset, size)


class EndedFiles:
    """The files of a pod that has ended, on an engine that keeps them with the pod."""

    def __init__(self, store: KubernetesStore, owner: run.Run, pod: core.Pod) -> None:
        self._store = store
        self._owner = owner
        self._pod = pod.name
        quoted = urllib.parse.quote(owner.name, safe="")
        self._path = f"{platform_api.PATH}/namespaces/{owner.namespace}/runs/{quoted}/files"
        self._targets: dict[str, str] = {}

    async def list(self, path: str) -> list[Entry]:
        status, _, body = await self._store.raw(
            "GET", self._path, query=[("pod", self._pod), ("path", path)]
        )
        if status >= 300:
            raise self._refusal(platform_api.json_object(body), status)
        listed = json.loads(body)
        found = []
        for item in listed["items"]:
            entry = _entry(item)
            if entry.kind == "link":
                joined = f"{path.rstrip('/')}/{entry.path}" if entry.path and path else ""
                self._targets[joined or path or entry.path] = str(item.get("target", ""))
            found.append(entry)
        return found

    async def target(self, path: str) -> str:
        return self._targets.get(path, "")

    async def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]:
        query = [("pod", self._pod), ("path", path), ("offset", str(offset)), ("size", str(size))]
        left = size
        async with contextlib.aclosing(self._store.text(f"{self._path}/content", query)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                yield piece
        if left:
            raise errors.Unavailable(f"{places.shown(path)} was not sent whole; copy again")

    def _refusal(self, body: dict[str, Any], status: int) -> Exception:
        if status == 404 and not (body.get("details") or {}).get("name"):
            return PathError(
                f"run {self._owner.name} has ended, and its node keeps no files of ended replicas"
            )
        return errors.from_status(body, status)


def _entry(item: dict[str, Any]) -> Entry:
    kinds: dict[str, places.Kind] = {"file": "file", "folder": "folder", "link": "link"}
    kind = kinds.get(str(item["kind"]), "other")
    return Entry(
        places.checked(str(item["path"])), kind, int(item["size"]), max(0, int(item["modified"])),
        int(item["mode"]) & 0o777,
    )  # fmt: skip
