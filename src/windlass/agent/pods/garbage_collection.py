"""Removes what pods leave outside of their own folders: unused Python environments and scratch
folders of frameworks that were killed.

These files belong to the pods' users, so symbolic links are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.agent.pods import container_config
from windlass.agent.runtime import procfs

log = logging.getLogger(__name__)

UNUSED_SECONDS = 30 * 86400.0
"""An environment is removed this long after its last use."""
INTERVAL = 86400.0
_KEY = re.compile(r"[0-9a-f]{24}(\.\d+\.new)?")
"""See `agent.init.python_environments`."""
_SCRATCH = re.compile(r"/tmp/wl-[0-9a-z-]+")  # noqa: S108 - as frameworks.ray names it
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def environments_forever(teams: Path, pods: Path) -> None:
    """Sweeps now and once a day, until cancelled."""
    while True:
        try:
            await asyncio.to_thread(environments, teams, pods)
        except OSError as problem:
            log.warning("unused environments are not removed, next try in a day: %s", problem)
        await asyncio.sleep(INTERVAL)


def environments(teams: Path, pods: Path) -> None:
    """Removes environments that no pod has used for long. A pod that started before its last use
    keeps an environment."""
    if not teams.is_dir():
        return
    for team in teams.iterdir():
        started = min((at for space, at in _pods(pods) if space == team.name), default=time.time())
        before = min(time.time() - UNUSED_SECONDS, started)
        with contextlib.suppress(OSError), _environments_of(team) as folder:
            for name in filter(_KEY.fullmatch, os.listdir(folder)):
                _remove_unused(folder, name, before)


@contextlib.contextmanager
def _environments_of(team: Path) -> Iterator[int]:
    outer = os.open(team, _FOLDER)
    try:
        folder = os.open("environments", _FOLDER, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        yield folder
    finally:
        os.close(folder)


def _pods(folder: Path) -> Iterator[tuple[str, float]]:
    """Namespace and start time of each pod here. A pod marks its environment as used after it
    starts."""
    for pod in folder.iterdir() if folder.is_dir() else ():
        record = pod / container_config.RECORD
        with contextlib.suppress(FileNotFoundError):
            yield (procfs.read_json(record) or {}).get("namespace", ""), record.stat().st_mtime


def _remove_unused(folder: int, name: str, before: float) -> None:
    if not _is_unused(folder, name, before):
        return
    gone = name if name.endswith(".new") else f"{name}.0.new"
    with contextlib.suppress(OSError):
        os.rename(name, gone, src_dir_fd=folder, dst_dir_fd=folder)
        if not _is_unused(folder, gone, before):
            # A pod started to use it in this moment.
            os.rename(gone, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        shutil.rmtree(gone, ignore_errors=True, dir_fd=folder)
        log.info("environment %s is removed: not used since %d days", name, UNUSED_SECONDS // 86400)


def _is_unused(folder: int, name: str, before: float) -> bool:
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return stat.S_ISDIR(found.st_mode) and found.st_mtime < before


def scratch_of(record: dict[str, Any]) -> Path | None:
    """The scratch folder in the record of a pod; None if it has none."""
    path = record.get("scratch") or ""
    return Path(path) if _SCRATCH.fullmatch(path) else None


def scratch(pod: Path) -> None:
    """Removes the scratch folder that a pod shares with other pods of its run, if it is the last of
    them on this node."""
    record = procfs.read_json(pod / container_config.RECORD) or {}
    path = scratch_of(record)
    if path is None:
        return
    for other in pod.parent.iterdir():
        if (
            other != pod
            and scratch_of(procfs.read_json(other / container_config.RECORD) or {}) == path
        ):
            return
    user = record.get("user")
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_uid == (os.geteuid() if user is None else user):
            shutil.rmtree(path, ignore_errors=True)
