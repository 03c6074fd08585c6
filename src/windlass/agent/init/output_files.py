"""Finds the files that a run declares as outputs. Standard library only; runs inside pods.

Links are recorded and not followed. What cannot be read is counted and named.
"""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from windlass.kinds.values import globs

MOST_FILES = 50_000
_DEEPEST = 100
_CREDENTIALS = "token"
"""The folder of the pod's token, which is never an output."""


_UNFINISHED = ".windlass-new"
"""Ends the name of a file that `windlass.save` is writing (`injob.library.windlass.saving`)."""


class TooManyError(Exception):
    """More files than a manifest may have; the message is for the user."""


@dataclasses.dataclass(frozen=True)
class Found:
    """A file or a link, by the path that the user would write."""

    path: str
    real: str
    """Its path in this container."""
    size: int
    modified: int
    mode: int
    target: str | None = None
    """Where a link leads; None for a file."""
    stamp: tuple[int, ...] = ()
    """Changes when the content may have changed."""

    def described(self, digest: str) -> dict[str, Any]:
        """The entry of the manifest."""
        if self.target is not None:
            return {"path": self.path, "target": self.target, "modified": self.modified}
        return {
            "path": self.path, "digest": digest, "size": self.size, "modified": self.modified,
            "mode": self.mode,
        }  # fmt: skip


def find(root: Path, work: str, paths: Sequence[str]) -> list[Found]:
    """Everything at the paths, each once. `root`: the pod's folder here; `work`: the working folder
    in it."""
    found: dict[str, Found] = {}
    for path in paths:
        for each in _at(root, work, path):
            found.setdefault(each.path, each)
            if len(found) > MOST_FILES:
                raise TooManyError(
                    f"there are more than {MOST_FILES} files; pack them into archives, or name "
                    "fewer paths"
                )
    return [found[path] for path in sorted(found)]


def _at(root: Path, work: str, path: str) -> Iterator[Found]:
    shown = os.path.normpath(path)
    if shown == ".." or shown.startswith("../"):
        # Readers take no path that leads out of a folder.
        inside = os.path.normpath(os.path.join(work, shown))
        if inside == ".." or inside.startswith("../"):
            return
        shown = os.path.normpath(f"/windlass/{inside}")
    closed = os.path.normpath(os.path.join(root, _CREDENTIALS))
    if not globs.is_pattern(shown) or os.path.lexists(_real(root, work, shown)):
        yield from _tree(_real(root, work, shown), shown, closed)
        return
    base, rest = globs.split_pattern(shown)
    expression = globs.matcher(rest)
    prefix = "" if base == "." else base.rstrip("/") + "/"
    for each in _tree(_real(root, work, base), base, closed):
        names = each.path[len(prefix) :].split("/")
        # What is below a folder that matches is meant, too.
        if any(expression.fullmatch("/".join(names[:n])) for n in range(1, len(names) + 1)):
            yield each


def _real(root: Path, work: str, path: str) -> str:
    if path == "/windlass" or path.startswith("/windlass/"):
        return os.path.join(root, path[len("/windlass/") :])
    return path if path.startswith("/") else os.path.join(root, work, path)


def _tree(real: str, shown: str, closed: str) -> Iterator[Found]:
    """The files at a path, and below it; nothing of the folder `closed`."""
    if f"{os.path.normpath(real)}/".startswith(f"{closed}/"):
        return
    try:
        about = os.lstat(real)
    except OSError:
        return
    if stat.S_ISDIR(about.st_mode):
        yield from _walk(real, "" if shown == "." else shown, closed, 0)
    elif (one := _entry(real, shown, about)) is not None:
        yield one


def _walk(folder: str, shown: str, closed: str, depth: int) -> Iterator[Found]:
    if depth > _DEEPEST:
        raise TooManyError(f"folders are nested more than {_DEEPEST} deep")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    for name in names:
        if name.endswith(_UNFINISHED) or any(
            ord(char) < 32 or "\ud800" <= char <= "\udfff" for char in name
        ):
            continue
        real, path = os.path.join(folder, name), f"{shown}/{name}" if shown else name
        try:
            about = os.lstat(real)
        except OSError:
            continue
        if os.path.normpath(real) == closed:
            continue
        if stat.S_ISDIR(about.st_mode):
            yield from _walk(real, path, closed, depth + 1)
        elif (one := _entry(real, path, about)) is not None:
            yield one


def _entry(real: str, path: str, about: os.stat_result) -> Found | None:
    modified = max(0, int(about.st_mtime))
    if stat.S_ISLNK(about.st_mode):
        target = os.readlink(real).encode(errors="replace").decode()
        return Found(path, real, 0, modified, 0o777, target)
    if not stat.S_ISREG(about.st_mode):
        return None
    stamp = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return Found(path, real, about.st_size, modified, about.st_mode & 0o777, None, stamp)
