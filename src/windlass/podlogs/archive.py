"""The log archive: logs of a Run's pods after the pods are deleted, until the Run is deleted.

    ROOT/<namespace>/<key>/<attempt>-<role>-<index>-<pod uid>/
      <container>/log.0 ...     hard links to the log segments of the pod
      kept.json                 the pod's record; written last: an entry without it is not listed

The key is the uid of the Run. Of one index of an array it is `<array uid>.<index>`, because the
logs of an index are kept as long as the array.

`agent.pods.worker` archives the logs before it deletes the pod's object, so that a log is readable
at every moment. Archiving is idempotent. The API server reads entries (`agent.api.client`) and
deletes those of deleted Runs.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from windlass.kinds.types import core, run
from windlass.kinds.values import times
from windlass.podlogs import log_format
from windlass.store import errors, interface

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""Limit for one namespace; the oldest entries are deleted first."""
SWEEP_SECONDS = 600.0
FOLDER, RECORD = "kept", "kept.json"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENTRY_BYTES = 8192
"""Disk space of one entry besides its logs."""
_PAGE = 500
_MAX_SEGMENTS = 100_000


def key_of(run_uid: str, array_index: str | int | None) -> str:
    """The key of the logs of a Run, or of one index of an array."""
    return run_uid if array_index is None else f"{run_uid}.{array_index}"


def uid_of(key: str) -> str:
    """The uid of the Run, or of the array, that a key belongs to."""
    return key.partition(".")[0]


def member_of(pod: core.Pod) -> dict[str, Any] | None:
    """The key, attempt, role and index of a pod; None if no Run owns it."""
    labels = pod.metadata.labels or {}
    owners = pod.metadata.owner_references or ()
    uid = next((each.uid for each in owners if each.kind == run.Run.resource.kind), "")
    array, array_index = labels.get(run.LABEL_ARRAY_UID, ""), labels.get(run.LABEL_ARRAY_INDEX, "")
    if uid and array and array_index.isdecimal():
        uid = key_of(array, array_index)
    role = labels.get(run.LABEL_ROLE, "")
    attempt, index = labels.get(run.LABEL_ATTEMPT, ""), labels.get(run.LABEL_INDEX, "")
    valid = is_name(uid) and is_name(role) and run.LABEL_RUN in labels
    if not (valid and attempt.isdecimal() and index.isdecimal()):
        return None
    member = {"run": uid, "attempt": int(attempt), "role": role, "index": int(index)}
    return {**member, "container": pod.spec.containers[0].name}


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerLog:
    """The log of the latest start of a container that has ended."""

    container: str
    folder: Path
    started_at: str
    finished_at: str


@dataclasses.dataclass(frozen=True, slots=True)
class Segment:
    """Where a log segment that an agent on another machine sends belongs in the archive."""

    namespace: str
    run_uid: str
    name: str
    container: str
    number: int

    def check(self) -> None:
        """Raises ValueError if a name or the number is not valid."""
        for name in (self.namespace, self.run_uid, self.name, self.container):
            safe_name(name)
        if not 0 <= self.number < _MAX_SEGMENTS:
            raise ValueError(f"{self.container}/{self.number}")


def safe_name(text: str) -> str:
    """The text if it is a file name that cannot leave its folder; else raises ValueError."""
    if not is_name(text):
        raise ValueError(text)
    return text


def is_name(text: str) -> bool:
    return _SAFE.fullmatch(text) is not None


def checked_record(run_uid: str, data: bytes) -> bytes:
    """kept.json of a log of this Run, re-encoded. Raises ValueError if `data` is not a record or
    is the record of another Run."""
    record = msgspec.json.decode(data, type=_Record)
    if record.run != run_uid:
        raise ValueError(f"it is of run {record.run}")
    return msgspec.json.encode(record)


class LogArchive:
    """Writes to the archive in one folder. Thread-safe."""

    def __init__(self, root: Path, max_bytes: int = MAX_BYTES) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._sizes: dict[str, int] = {}
        """Upper bound of each namespace's bytes: entries that the sweep deleted still count."""
        self._lock = threading.Lock()

    def add(self, pod: Path, record: dict[str, Any], logs: Sequence[ContainerLog]) -> None:
        """Archives the logs of a pod whose containers have ended, if its record names a Run. A full
        disk is only logged: it does not prevent the pod's deletion."""
        member = record.get("member")
        if not member:
            return
        name = f"{member['attempt']}-{member['role']}-{member['index']}-{pod.name}"
        folder = self._root / record["namespace"] / member["run"] / name
        with self._lock:
            if (folder / RECORD).exists():
                return
            try:
                entry = {**member, "pod": record["name"], "uid": pod.name}
                self._enforce_limit(record["namespace"], _link(logs, folder, entry))
            except OSError as problem:
                log.warning("the logs of pod %s are not archived: %s", record["name"], problem)
                shutil.rmtree(folder, ignore_errors=True)

    def take_segment(self, place: Segment, data: bytes) -> None:
        """Stores a segment that an agent sent; idempotent. Raises ValueError on an invalid name."""
        place.check()
        target = self._entry(place.namespace, place.run_uid, place.name) / place.container
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        _replace(log_format.segment(target, place.number), data)

    def take_record(self, namespace: str, run_uid: str, name: str, data: bytes) -> None:
        """Completes an entry after all of its segments were sent: it is listed from now on."""
        folder = self._entry(namespace, run_uid, name)
        record = checked_record(run_uid, data)
        if not folder.is_dir():
            raise ValueError(f"no segment of {name} was sent")
        with self._lock:
            _replace(folder / RECORD, record)
            size = msgspec.json.decode(record, type=_Record).bytes
            self._enforce_limit(namespace, size + _ENTRY_BYTES)

    def _entry(self, namespace: str, run_uid: str, name: str) -> Path:
        return self._root / safe_name(namespace) / safe_name(run_uid) / safe_name(name)

    def _enforce_limit(self, namespace: str, added: int) -> None:
        """Counts `added` bytes and deletes the oldest entries beyond the limit."""
        if namespace in self._sizes:
            self._sizes[namespace] += added
        if self._sizes.get(namespace, self._max_bytes + 1) <= self._max_bytes:
            return
        found = sorted(_entries(self._root / namespace), key=lambda each: each[1])
        total = sum(size for _, _, size in found)
        for folder, _, size in found:
            if total <= self._max_bytes:
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
    keptAt: str  # noqa: N815 - as in the file
    bytes: int
    startedAt: str | None = None  # noqa: N815
    finishedAt: str | None = None  # noqa: N815


def _replace(path: Path, data: bytes) -> None:
    fresh = path.with_name(f"new.{path.name}")
    fresh.write_bytes(data)
    fresh.replace(path)


def _link(logs: Sequence[ContainerLog], folder: Path, entry: dict[str, Any]) -> int:
    """Links the segments of each log and writes the record. Returns the bytes of the entry."""
    total = 0
    for each in logs:
        for number in log_format.segments(each.folder):
            source, target = log_format.segment(each.folder, number), folder / each.container
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                os.link(source, log_format.segment(target, number), follow_symlinks=False)
            total += source.stat().st_size
        if each.container == entry["container"]:
            entry |= {"startedAt": each.started_at, "finishedAt": each.finished_at}
    if not total:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    entry |= {"keptAt": times.micros(times.now()), "bytes": total}
    new = folder / f"{RECORD}.new"
    new.write_text(json.dumps(entry))
    new.replace(folder / RECORD)
    return total + _ENTRY_BYTES


def _entries(namespace: Path) -> Iterator[tuple[Path, float, int]]:
    """Folder, time of archiving and size of each entry."""
    for path in namespace.glob(f"*/*/{RECORD}"):
        with contextlib.suppress(FileNotFoundError):
            size = int((_read(path) or {}).get("bytes", 0))
            yield path.parent, path.stat().st_mtime, size + _ENTRY_BYTES


def _read(path: Path) -> dict[str, Any] | None:
    """A record; None if it is missing, or truncated by a power failure (it is not synced)."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def listing(root: Path, namespace: str, run_uid: str) -> list[dict[str, Any]]:
    """The records of the archived logs of one Run, oldest first, each with its entry's name."""
    found = []
    for path in (root / namespace / run_uid).glob(f"*/{RECORD}"):
        record = _read(path)
        if record is not None:
            found.append({"name": path.parent.name, **record})
    return sorted(found, key=lambda record: str(record["keptAt"]))


def log_folder(root: Path, namespace: str, run_uid: str, name: str, container: str = "") -> Path:
    """The folder with the segments of an archived log, for `podlogs.reader`; without a container,
    that of the main container. Raises FileNotFoundError if there is no such log."""
    for record in listing(root, namespace, run_uid):
        wanted = container or record["container"]
        folder = root / namespace / run_uid / name / wanted
        if record["name"] == name and is_name(wanted) and folder.is_dir():
            return folder
    raise FileNotFoundError(name)


async def sweep_regularly(root: Path, store: interface.Store) -> None:
    """Sweeps now and every ten minutes, until cancelled."""
    while True:
        try:
            await sweep(root, store)
        except (errors.ApiError, OSError) as problem:
            log.warning("the log archive is not swept now, next try in ten minutes: %s", problem)
        await asyncio.sleep(SWEEP_SECONDS)


async def sweep(root: Path, store: interface.Store) -> None:
    """Deletes the archived logs of deleted Runs."""
    # The archive is read before the Runs: a Run exists before any of its logs is archived.
    for namespace, archived in (await asyncio.to_thread(_archived_runs, root)).items():
        there = await run_uids(store, namespace)
        for key in (each for each in archived if uid_of(each) not in there):
            await asyncio.to_thread(shutil.rmtree, root / namespace / key, ignore_errors=True)
        with contextlib.suppress(OSError):
            (root / namespace).rmdir()


def _archived_runs(root: Path) -> dict[str, set[str]]:
    """Namespace -> keys with archived logs."""
    if not root.is_dir():
        return {}
    return {each.name: {entry.name for entry in each.iterdir()} for each in root.iterdir()}


async def run_uids(store: interface.Store, namespace: str) -> set[str]:
    """The uids of the Runs of a namespace."""
    found: set[str] = set()
    token = ""
    while True:
        page = await store.list(run.Run, namespace, limit=_PAGE, continue_token=token)
        found.update(each.uid for each in page.items)
        token = page.continue_token
        if not token:
            return found
