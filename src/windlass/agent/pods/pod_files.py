"""Reads the files of a pod's own folder for `windlass cp`, also after the pod has ended.

The folder belongs to the pod's user, who may put a symbolic or a hard link anywhere at any moment,
while the agent may be root. So every part of a path is opened by the handle of its folder without
following links, only regular files are read, and only those that the pod's user owns. The folder
is kept until the pod is deleted, with its run.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.agent.pods import container_config
from windlass.agent.runtime import procfs
from windlass.kinds.annotations import ROOT

MOST_ENTRIES = 200_000
_DEEPEST = 100
"""Folders in folders: each costs a handle while it is read."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CLOSED = frozenset({"token"})
"""Volumes that are never read: the pod's credentials."""


class NotReadable(Exception):
    """The path cannot be read here; the message is for the user."""


class PodFiles:
    """The files of one pod. `folder`: that of the pod, below which only `root` and the content of
    `volumes` belong to its user."""

    def __init__(self, folder: Path) -> None:
        record = procfs.read_json(folder / container_config.RECORD)
        if record is None:
            raise NotReadable("the pod's folder is gone")
        self._folder = folder
        self._user: int | None = record.get("user")

    def entries(self, path: str) -> list[dict[str, Any]]:
        """What is at a path and below it, as JSON objects; empty if nothing is."""
        base, parts = self._resolved(path)
        try:
            with _opened_folder(base, parts[:-1]) as above:
                if not parts:
                    return self._tree(above)
                found = os.stat(parts[-1], dir_fd=above, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    inner = os.open(parts[-1], _FOLDER, dir_fd=above)
                    try:
                        return self._tree(inner)
                    finally:
                        os.close(inner)
                return [_described("", parts[-1], above, found)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            raise NotReadable(f"{path}: {problem.strerror}") from problem

    def open(self, path: str) -> int:
        """A handle of a regular file."""
        base, parts = self._resolved(path)
        if not parts:
            raise NotReadable(f"{path or '.'} is a folder")
        try:
            with _opened_folder(base, parts[:-1]) as above:
                handle = os.open(parts[-1], _FILE, dir_fd=above)
        except OSError as problem:
            raise NotReadable(f"{path}: {problem.strerror}") from problem
        found = os.fstat(handle)
        # A hard link to a file of another user is not the pod's to show.
        if not stat.S_ISREG(found.st_mode) or self._user not in (None, found.st_uid):
            os.close(handle)
            raise NotReadable(f"{path} is no file of the pod's user")
        return handle

    def _resolved(self, path: str) -> tuple[Path, list[str]]:
        """A folder that the agent made, and the parts of the path below it."""
        volumes = self._folder / "volumes"
        inside = path
        for root in (ROOT, str(self._folder / "root")):
            if path == root or path.startswith(f"{root}/"):
                inside = path[len(root) :]
                break
        else:
            if path.startswith("/"):
                raise NotReadable(
                    f"{path}: the replica has ended, and only its own folder is kept: paths that "
                    f"are relative, or below {ROOT}"
                )
            work = "code" if (volumes / "code").is_dir() else "work"
            inside = f"{work}/{path}"
        parts = [part for part in inside.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise NotReadable(f"{path}: leave out `..`")
        if "\0" in path:
            raise NotReadable("a path has no NUL character")
        if parts and parts[0] in _CLOSED:
            raise NotReadable(f"{path} cannot be read")
        if parts and (volumes / parts[0]).is_dir() and not (volumes / parts[0]).is_symlink():
            return volumes / parts[0], parts[1:]
        return self._folder / "root", parts

    def _tree(self, top: int) -> list[dict[str, Any]]:
        found = [_described("", "", top, os.fstat(top))]
        for path, name, folder, about in _walk(top, ""):
            with contextlib.suppress(OSError):  # a link that disappears meanwhile
                found.append(_described(path, name, folder, about))
            if len(found) > MOST_ENTRIES:
                raise _too_many()
        return found


@contextlib.contextmanager
def _opened_folder(base: Path, parts: list[str]) -> Iterator[int]:
    handle = os.open(base, _FOLDER)
    try:
        for part in parts:
            inner = os.open(part, _FOLDER, dir_fd=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def _walk(folder: int, above: str) -> Iterator[tuple[str, str, int, os.stat_result]]:
    """Path, name, handle of the folder, and status of everything below a folder. Names with a line
    break or of no encoding are left out, and so is what disappears meanwhile."""
    for name in _names(folder):
        if "\n" in name or any("\ud800" <= char <= "\udfff" for char in name):
            continue
        path = f"{above}/{name}" if above else name
        with contextlib.suppress(OSError):
            about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            yield path, name, folder, about
            if stat.S_ISDIR(about.st_mode):
                if path.count("/") >= _DEEPEST:
                    raise NotReadable(f"folders are nested more than {_DEEPEST} deep")
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(inner, path)
                finally:
                    os.close(inner)


def _names(folder: int) -> list[str]:
    """The sorted names in a folder. A job can make more files than fit into the agent's memory."""
    with os.scandir(folder) as entries:
        found = [each.name for each in itertools.islice(entries, MOST_ENTRIES + 1)]
    if len(found) > MOST_ENTRIES:
        raise _too_many()
    return sorted(found)


def _too_many() -> NotReadable:
    return NotReadable(f"more than {MOST_ENTRIES} files: name a folder in it")


def _described(path: str, name: str, folder: int, about: os.stat_result) -> dict[str, Any]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(about.st_mode), "other")
    found = {
        "path": path, "kind": kind, "size": about.st_size, "modified": int(about.st_mtime),
        "mode": about.st_mode & 0o777,
    }  # fmt: skip
    if kind == "link":
        target = os.readlink(name, dir_fd=folder).encode(errors="replace").decode()
        found["target"] = target
    return found
