"""Writes a copied tree into a folder of this machine, and reads one to be copied.

What is written comes from a job, so nothing is written through a symbolic link: each part of a path
is opened by the handle of its folder and without following links. A file is written beside its name
and gets the name when it is complete; the name of the unfinished file holds what it is a copy of,
so that an interrupted copy goes on only with the same content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from windlass.sdk.files import places
from windlass.sdk.files.places import Entry, PathError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LocalFolder:
    """A folder that a copy is written to."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def is_complete(self, entry: Entry, path: str) -> bool:
        """Whether the file is there already with this size and time."""
        try:
            with self._parent(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        same = (found.st_size, int(found.st_mtime)) == (entry.size, entry.modified)
        return stat.S_ISREG(found.st_mode) and same

    def make_folder(self, path: str) -> None:
        if path:
            with self._parent(path, make=True) as (folder, name):
                os.close(self._enter(folder, name, path, make=True))

    def begin(self, entry: Entry, path: str) -> tuple[int, int]:
        """A handle at the end of the unfinished file, and how many bytes it has."""
        with self._parent(path, make=True) as (folder, name):
            handle = os.open(part_name(name, entry), _WRITE, 0o600, dir_fd=folder)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            os.close(handle)
            raise PathError(f"{self._root / places.shown(path)}: the unfinished copy is no file")
        if found.st_size > entry.size:
            os.ftruncate(handle, 0)
        size = os.lseek(handle, 0, os.SEEK_END)
        return handle, size

    def finish(self, handle: int, entry: Entry, path: str) -> None:
        """Gives the complete file its time, its mode and its name."""
        os.utime(handle, (entry.modified, entry.modified))
        os.fchmod(handle, (entry.mode & 0o755) | 0o600)
        with self._parent(path) as (folder, name):
            try:
                os.replace(part_name(name, entry), name, src_dir_fd=folder, dst_dir_fd=folder)
            except IsADirectoryError:
                raise PathError(
                    f"{self._root / places.shown(path)} is a folder, and the run has a file of "
                    "this name; choose another destination"
                ) from None

    def link(self, path: str, target: str) -> bool:
        """Makes a symbolic link if it stays in the copied tree; returns whether it did."""
        if not stays_inside(path, target):
            return False
        with self._parent(path, make=True) as (folder, name):
            try:
                if os.readlink(name, dir_fd=folder) == target:
                    return True
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                pass
            except OSError:
                return False  # there is a file or a folder of this name
            os.symlink(target, name, dir_fd=folder)
        return True

    @contextlib.contextmanager
    def _parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """A handle of the folder that a path is in, and the last part of the path."""
        *above, name = places.checked(path).split("/")
        # The destination itself may be a link: the user named it.
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in above:
                inner = self._enter(folder, part, path, make=make)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)

    def _enter(self, folder: int, name: str, path: str, *, make: bool) -> int:
        if make:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o777, dir_fd=folder)
        try:
            return os.open(name, _FOLDER, dir_fd=folder)
        except OSError as problem:
            if problem.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            raise PathError(
                f"{self._root / places.shown(path)}: {places.shown(name)} is a link or a file here "
                "and a folder in the run; nothing is written through links. Choose another "
                "destination"
            ) from None


def part_name(name: str, entry: Entry) -> str:
    """The name of an unfinished copy: another one for other content."""
    about = f"{name}\0{entry.size}\0{entry.modified}".encode(errors="surrogateescape")
    return f".windlass-{hashlib.sha256(about).hexdigest()[:16]}.part"


def stays_inside(path: str, target: str) -> bool:
    """Whether a relative link at `path` stays in the same tree. `..` may stand only at the start:
    the folders above a link are real ones, but a later part may be another link.

    >>> stays_inside("a/latest", "epoch-3"), stays_inside("a/x", "../b"), stays_inside("a", "/")
    (True, True, False)
    >>> stays_inside("a/x", "../../etc"), stays_inside("a/x", "b/../../c")
    (False, False)
    """
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = next((place for place, part in enumerate(parts) if part != ".."), len(parts))
    absolute = target.startswith("/") or not target or "\0" in target
    return not absolute and ".." not in parts[up:] and up <= path.count("/")


def walk(root: Path) -> Iterator[Entry]:
    """The entries of a local file or folder; links inside are reported and not followed."""
    found = root.stat()
    if not stat.S_ISDIR(found.st_mode):
        yield _local("", found)
        return
    yield _local("", found)
    for above, folders, files in os.walk(root, onerror=_raise):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(above, name)
            yield _local(os.path.relpath(path, root), os.lstat(path))


def _raise(problem: OSError) -> None:
    raise problem


def _local(path: str, found: os.stat_result) -> Entry:
    kind: places.Kind = "other"
    for test, word in ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link")):
        if test(found.st_mode):
            kind = word  # type: ignore[assignment]
    return Entry(path, kind, found.st_size, max(0, int(found.st_mtime)), found.st_mode & 0o777)
