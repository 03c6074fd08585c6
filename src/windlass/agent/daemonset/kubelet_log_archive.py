"""Logs of a Run's pods on a node of Kubernetes, held beyond the pods: links to kubelet's own files.

    STATE/<namespace>/<run uid>/<attempt>-<role>-<index>-<pod uid>/
      <container>/log.0 ...   links to what kubelet writes in /var/log/pods, oldest first
      held.json               whose they are

Kubelet removes a pod's logs with the pod; a link that was made while it ran keeps them, and costs
nothing. So STATE must be on the same file system, and in the same mount, as kubelet's folder. The
lines are written as ours are (`TIME stdout|stderr F|P text`). `agent.cluster` sends what is held to
the server when the pod is gone.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.agent import kept, procfs, shimlog
from windlass.kinds import kubernetes, run, times

RECORD = "held.json"
_CURRENT = re.compile(r"(\d+)\.log")
_ROTATED = re.compile(r"(\d+)\.log\.(\d{8}-\d{6})(\.gz)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What is held of one pod."""

    folder: Path
    record: dict[str, Any]

    @property
    def segments(self) -> Iterator[tuple[str, int, Path]]:
        """Container, number, file."""
        for container in sorted(path for path in self.folder.iterdir() if path.is_dir()):
            for number in shimlog.segments(container):
                yield container.name, number, shimlog.segment(container, number)

    @property
    def at(self) -> str:
        """When the pod was last there: the same however often what is held is sent."""
        moment = (self.folder / RECORD).stat().st_mtime
        return times.micros(datetime.datetime.fromtimestamp(moment, datetime.UTC))

    def drop(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for parent in (self.folder.parent, self.folder.parent.parent):
            with contextlib.suppress(OSError):
                parent.rmdir()


class Held:
    def __init__(self, state: Path, logs: Path) -> None:
        self._state = state
        self._logs = logs

    def hold(self, pod: kubernetes.Pod) -> None:
        """Links what the pod's containers have written so far, if it is a Run's; doing it again
        adds what has come since."""
        member = kept.member_of(pod)
        if member is None:
            return
        name = f"{member['attempt']}-{member['role']}-{member['index']}-{pod.uid}"
        folder = self._state / pod.namespace / member["run"] / name
        source = self._logs / f"{pod.namespace}_{pod.name}_{pod.uid}"
        for container in source.iterdir() if source.is_dir() else ():
            _link_all(container, folder / container.name)
        if folder.is_dir():
            told = {
                **member, "pod": pod.name, "uid": pod.uid, "namespace": pod.namespace,
                "runName": (pod.metadata.labels or {})[run.LABEL_RUN], **_times(pod),
            }  # fmt: skip
            fresh = folder / f"{RECORD}.new"
            fresh.write_text(json.dumps(told))
            fresh.replace(folder / RECORD)

    def entries(self) -> list[Entry]:
        """All that is held; what has no record yet holds nothing that anybody missed."""
        found = []
        for path in self._state.glob(f"*/*/*/{RECORD}"):
            with contextlib.suppress(ValueError):
                told = procfs.read_json(path)
                if told is not None:
                    found.append(Entry(path.parent, told))
        return found


def _times(pod: kubernetes.Pod) -> dict[str, str | None]:
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated if status.state else None
        if ended is not None:
            return {"startedAt": ended.started_at, "finishedAt": ended.finished_at}
    return {}


def _link_all(source: Path, target: Path) -> None:
    """Files of the last start of a container that are not linked yet. Rotation renames a file and
    packs it later; what is linked is known by its inode, whatever it is called by then."""
    numbers = shimlog.segments(target)
    known = {shimlog.segment(target, number).stat().st_ino for number in numbers}
    late = not numbers
    following = numbers[-1] + 1 if numbers else 0
    for path in _in_order(source):
        packed = path.suffix == ".gz"
        # What is packed was linked before it was, unless we came too late for that.
        if (packed and not late) or path.stat().st_ino in known:
            continue
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        segment = shimlog.segment(target, following)
        with contextlib.suppress(FileNotFoundError):
            if packed:
                with gzip.open(path) as whole, segment.open("wb") as file:
                    shutil.copyfileobj(whole, file)
            else:
                os.link(path, segment, follow_symlinks=False)
            following += 1
    for number in shimlog.segments(target)[: -shimlog.SEGMENTS]:
        shimlog.segment(target, number).unlink()


def _in_order(folder: Path) -> list[Path]:
    """The files of the last start, oldest first."""
    found: dict[int, list[tuple[str, Path]]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if whole := _CURRENT.fullmatch(path.name):
            found.setdefault(int(whole[1]), []).append(("~", path))
        elif part := _ROTATED.fullmatch(path.name):
            found.setdefault(int(part[1]), []).append((part[2], path))
    return [path for _, path in sorted(found[max(found)])] if found else []
