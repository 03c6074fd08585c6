"""Logs that outlive their pods: by namespace and Run, until the Run itself is gone.

    ROOT/<namespace>/<run uid>/<attempt>-<role>-<index>-<pod uid>/
      <container>/log.0 ...     the very files of the pod, as links
      kept.json                 whose they are; written last, and nothing is listed without it

`agent.pods` keeps them before a pod's object goes, so there is no moment in which they are neither
here nor there; doing it again changes nothing. The API server reads them (`agent.gateway`) and
sweeps those of Runs that are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from windlass.agent import containers, procfs, shimlog
from windlass.kinds import kubernetes, run, times
from windlass.store import client, errors

log = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of one namespace; the oldest go first."""
EVERY = 600.0
FOLDER, RECORD = "kept", "kept.json"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OWN_BYTES = 8192
"""What one entry takes besides its logs."""
_PAGE = 500
_MOST_SEGMENTS = 100_000


def member_of(pod: kubernetes.Pod) -> dict[str, Any] | None:
    """Which member of which Run a pod is; None for other people's pods."""
    labels = pod.metadata.labels or {}
    owners = pod.metadata.owner_references or ()
    uid = next((each.uid for each in owners if each.kind == run.Run.resource.kind), "")
    role = labels.get(run.LABEL_ROLE, "")
    attempt, index = labels.get(run.LABEL_ATTEMPT, ""), labels.get(run.LABEL_INDEX, "")
    named = _SAFE.fullmatch(uid) and _SAFE.fullmatch(role) and run.LABEL_RUN in labels
    if not (named and attempt.isdecimal() and index.isdecimal()):
        return None
    member = {"run": uid, "attempt": int(attempt), "role": role, "index": int(index)}
    return {**member, "container": pod.spec.containers[0].name}


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a log that another machine's agent held."""

    namespace: str
    run_uid: str
    name: str
    container: str
    number: int

    def check(self) -> None:
        """ValueError if its names are none."""
        for name in (self.namespace, self.run_uid, self.name, self.container):
            named(name)
        if not 0 <= self.number < _MOST_SEGMENTS:
            raise ValueError(f"{self.container}/{self.number}")


def named(text: str) -> str:
    """A name that leads nowhere else; ValueError for all others."""
    if not is_name(text):
        raise ValueError(text)
    return text


def is_name(text: str) -> bool:
    return _SAFE.fullmatch(text) is not None


def checked_record(run_uid: str, data: bytes) -> bytes:
    """kept.json of a log of this Run, as an agent sent it; ValueError if it is none."""
    told = msgspec.json.decode(data, type=_Record)
    if told.run != run_uid:
        raise ValueError(f"it is of run {told.run}")
    return msgspec.json.encode(told)


class Kept:
    """Where logs are kept; used from several threads."""

    def __init__(self, root: Path, most: int = MOST_BYTES) -> None:
        self._root = root
        self._most = most
        self._sizes: dict[str, int] = {}
        """At most so many bytes are there: what somebody else swept is not taken off."""
        self._lock = threading.Lock()

    def keep(self, pod: Path, record: dict[str, Any]) -> None:
        """Keeps what a pod's containers printed, if its record has a member. They have ended. A
        disk that cannot take more does not keep the pod from going."""
        member = record.get("member")
        if not member:
            return
        name = f"{member['attempt']}-{member['role']}-{member['index']}-{pod.name}"
        folder = self._root / record["namespace"] / member["run"] / name
        with self._lock:
            if (folder / RECORD).exists():
                return
            try:
                told = {**member, "pod": record["name"], "uid": pod.name}
                self._bound(record["namespace"], _link(pod, folder, told))
            except OSError as problem:
                log.warning("the logs of pod %s are not kept: %s", record["name"], problem)
                shutil.rmtree(folder, ignore_errors=True)

    def take_segment(self, place: Segment, data: bytes) -> None:
        """A piece that was sent; again changes nothing. ValueError if its names are none."""
        place.check()
        target = self._entry(place.namespace, place.run_uid, place.name) / place.container
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(shimlog.segment(target, place.number), data)

    def take_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """All pieces were sent: the entry counts from now on."""
        folder = self._entry(namespace, run_uid, name)
        told = checked_record(run_uid, data)
        if not folder.is_dir():
            raise ValueError(f"nothing of {name} was sent")
        with self._lock:
            _replace(folder / RECORD, told)
            self._bound(namespace, msgspec.json.decode(told, type=_Record).bytes + _OWN_BYTES)

    def _entry(self, namespace: str, run_uid: str, name: str) -> Path:
        return self._root / named(namespace) / named(run_uid) / named(name)

    def _bound(self, namespace: str, added: int) -> None:
        if namespace in self._sizes:
            self._sizes[namespace] += added
        if self._sizes.get(namespace, self._most + 1) <= self._most:
            return
        found = sorted(_entries(self._root / namespace), key=lambda each: each[1])
        total = sum(size for _, _, size in found)
        for folder, _, size in found:
            if total <= self._most:
                break
            shutil.rmtree(folder, ignore_errors=True)
            total -= size
        self._sizes[namespace] = total


class _Record(msgspec.Struct):
    """kept.json"""

    run: str
    attempt: int
    role: str
    index: int
    container: str
    pod: str
    uid: str
    keptAt: str  # noqa: N815 - as it is written
    bytes: int
    startedAt: str | None = None  # noqa: N815
    finishedAt: str | None = None  # noqa: N815


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"new.{path.name}")
    fresh.write_bytes(data)
    fresh.replace(path)


def _link(pod: Path, folder: Path, told: dict[str, Any]) -> int:
    """Links the latest start's log of each container; returns how many bytes that keeps."""
    total = 0
    for container in containers.all_in(pod):
        said = container.log()
        if said is None:
            continue
        for number in shimlog.segments(said):
            source, target = shimlog.segment(said, number), folder / container.name
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.link(source, shimlog.segment(target, number), follow_symlinks=False)
            total += source.stat().st_size
        if container.name == told["container"]:
            seen = container.observe()
            told |= {"startedAt": seen.started_at, "finishedAt": seen.finished_at}
    if not total:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    told |= {"keptAt": times.micros(times.now()), "bytes": total}
    new = folder / f"{RECORD}.new"
    new.write_text(json.dumps(told))
    new.replace(folder / RECORD)
    return total + _OWN_BYTES


def _entries(namespace: Path) -> Iterator[tuple[Path, float, int]]:
    """Each entry, when it was kept, and its size."""
    for path in namespace.glob(f"*/*/{RECORD}"):
        with contextlib.suppress(FileNotFoundError):
            size = int((_read(path) or {}).get("bytes", 0))
            yield path.parent, path.stat().st_mtime, size + _OWN_BYTES


def _read(path: Path) -> dict[str, Any] | None:
    """It is not synced: after a power failure it may be empty."""
    try:
        return procfs.read_json(path)
    except ValueError:
        return None


def listing(root: Path, namespace: str, run_uid: str) -> list[dict[str, Any]]:
    """What is kept of one Run, oldest first."""
    found = []
    for path in (root / namespace / run_uid).glob(f"*/{RECORD}"):
        told = _read(path)
        if told is not None:
            found.append({"name": path.parent.name, **told})
    return sorted(found, key=lambda told: str(told["keptAt"]))


def place(root: Path, namespace: str, run_uid: str, name: str, container: str = "") -> Path:
    """The folder that holds a kept log, for `agent.logs`; of the main container if none is named.
    FileNotFoundError if there is no such log."""
    for told in listing(root, namespace, run_uid):
        wanted = container or told["container"]
        folder = root / namespace / run_uid / name / wanted
        if told["name"] == name and _SAFE.fullmatch(wanted) and folder.is_dir():
            return folder
    raise FileNotFoundError(name)


async def sweep_regularly(root: Path, store: client.Store) -> None:
    """Now and every ten minutes, until cancelled."""
    while True:
        try:
            await sweep(root, store)
        except (errors.ApiError, OSError) as problem:
            log.warning("kept logs: %s", problem)
        await asyncio.sleep(EVERY)


async def sweep(root: Path, store: client.Store) -> None:
    """Removes what is kept of Runs that are gone."""
    # Looked at before the Runs: a Run is there before anything of it is kept.
    for namespace, held in (await asyncio.to_thread(_held, root)).items():
        for uid in held - await uids(store, namespace):
            await asyncio.to_thread(shutil.rmtree, root / namespace / uid, ignore_errors=True)
        with contextlib.suppress(OSError):
            (root / namespace).rmdir()


def _held(root: Path) -> dict[str, set[str]]:
    if not root.is_dir():
        return {}
    return {each.name: {entry.name for entry in each.iterdir()} for each in root.iterdir()}


async def uids(store: client.Store, namespace: str) -> set[str]:
    """Of the Runs that are there."""
    found: set[str] = set()
    token = ""
    while True:
        page = await store.list(run.Run, namespace, limit=_PAGE, continue_token=token)
        found.update(each.uid for each in page.items)
        token = page.continue_token
        if not token:
            return found
