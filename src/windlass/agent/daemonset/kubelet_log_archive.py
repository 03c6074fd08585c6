"""The kubelet log archive: hard links to kubelet's log files that outlive the pods of Runs.

    STATE/<namespace>/<run uid>/<attempt>-<role>-<index>-<pod uid>/
      <container>/log.0 ...   links to kubelet's files in /var/log/pods, oldest first
      held.json               the pod's record

Kubelet removes a pod's logs with the pod; a hard link keeps them at no cost. So STATE must be on
the same file system, and in the same mount, as kubelet's folder. The lines have the format of
`podlogs.log_format`. `agent.daemonset.main` sends an entry to the server after its pod is deleted.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from windlass.agent.runtime import procfs
from windlass.kinds.types import core, run
from windlass.kinds.values import times
from windlass.podlogs import archive, log_format

RECORD = "held.json"
_CURRENT = re.compile(r"(\d+)\.log")
_ROTATED = re.compile(r"(\d+)\.log\.(\d{8}-\d{6})(\.gz)?")


@dataclasses.dataclass(frozen=True, slots=True)
class ArchivedPod:
    """The archived logs of one pod."""

    folder: Path
    record: dict[str, Any]

    @property
    def segments(self) -> Iterator[tuple[str, int, Path]]:
        """Container, number and file of each segment."""
        for container in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            for number in log_format.segments(container):
                yield container.name, number, log_format.segment(container, number)

    @property
    def at(self) -> str:
        """When the pod was last seen; the same for every attempt to send the entry."""
        moment = (self.folder / RECORD).stat().st_mtime
        return times.micros(datetime.datetime.fromtimestamp(moment, datetime.UTC))

    def age(self) -> float:
        """Seconds since the pod was last seen."""
        return time.time() - (self.folder / RECORD).stat().st_mtime

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in (self.folder.parent, self.folder.parent.parent):
            with contextlib.suppress(OSError):
                parent.rmdir()


class KubeletLogArchive:
    def __init__(self, state: Path, logs: Path) -> None:
        self._state = state
        self._logs = logs

    def link(self, pod: core.Pod) -> None:
        """Links the log files of a pod that a Run owns. A repeated call adds new files."""
        member = archive.member_of(pod)
        if member is None:
            return
        name = f"{member['attempt']}-{member['role']}-{member['index']}-{pod.uid}"
        folder = self._state / pod.namespace / member["run"] / name
        source = self._logs / f"{pod.namespace}_{pod.name}_{pod.uid}"
        for container in source.iterdir() if source.is_dir() else ():
            _link_all(container, folder / container.name)
        if folder.is_dir():
            record = {
                **member, "pod": pod.name, "uid": pod.uid, "namespace": pod.namespace,
                "runName": _run_name(pod.metadata.labels or {}), **_times(pod),
            }  # fmt: skip
            fresh = folder / f"{RECORD}.new"
            fresh.write_text(json.dumps(record))
            fresh.replace(folder / RECORD)

    def entries(self) -> list[ArchivedPod]:
        """All entries that have a record; one without has not been completed by `link`."""
        found = []
        for path in self._state.glob(f"*/*/*/{RECORD}"):
            with contextlib.suppress(ValueError):
                record = procfs.read_json(path)
                if record is not None:
                    found.append(ArchivedPod(path.parent, record))
        return found


def _run_name(labels: Mapping[str, str]) -> str:
    """The Run that keeps the logs: that of the pod, or its array."""
    return labels.get(run.LABEL_ARRAY) or labels[run.LABEL_RUN]


def _times(pod: core.Pod) -> dict[str, str | None]:
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated if status.state else None
        if ended is not None:
            return {"startedAt": ended.started_at, "finishedAt": ended.finished_at}
    return {}


def _link_all(source: Path, target: Path) -> None:
    """Links the files of the last start of a container that are not linked yet. Rotation renames a
    file and compresses it later, so linked files are recognised by inode."""
    numbers = log_format.segments(target)
    known = {log_format.segment(target, number).stat().st_ino for number in numbers}
    first_call = not numbers
    following = numbers[-1] + 1 if numbers else 0
    for path in _in_order(source):
        compressed = path.suffix == ".gz"
        # A compressed file was linked before its compression, unless this is the first call.
        if (compressed and not first_call) or path.stat().st_ino in known:
            continue
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        segment = log_format.segment(target, following)
        with contextlib.suppress(FileNotFoundError):
            if compressed:
                with gzip.open(path) as whole, segment.open("wb") as file:
                    shutil.copyfileobj(whole, file)
            else:
                os.link(path, segment, follow_symlinks=False)
            following += 1
    for number in log_format.segments(target)[: -log_format.SEGMENTS]:
        log_format.segment(target, number).unlink()


def _in_order(folder: Path) -> list[Path]:
    """Kubelet's files of the last start, oldest first."""
    found: dict[int, list[tuple[str, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if whole := _CURRENT.fullmatch(path.name):
            found.setdefault(int(whole[1]), []).append(("~", path))
        elif part := _ROTATED.fullmatch(path.name):
            found.setdefault(int(part[1]), []).append((part[2], path))
    return [path for _, path in sorted(found[max(found)])] if found else []
