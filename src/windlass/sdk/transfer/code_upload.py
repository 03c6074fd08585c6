"""Packs a working folder into an archive that is named by its digest, and uploads it once.

`plan` lists what is packed and what is left out; `pack` writes the archive; `upload` sends what the
server does not have, and continues an interrupted upload; `send` does
all of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import hashlib
import io
import itertools
import os
import stat
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol, cast

from windlass.store import errors

MOST_BYTES = 512 << 20
MOST_FILES = 100_000
LISTED = 10
IGNORE_FILES = (".gitignore", ".windlassignore")
ALWAYS_LEFT_OUT = (".git/", ".hg/", ".svn/", "__pycache__/", "*.pyc", ".venv/", ".DS_Store")
PIECE = 8 << 20
_TRIES = 6

Progress = Callable[[int, int], None]
"""Called with the bytes sent and the total bytes."""
Stopped = Callable[[], bool]
"""Whether the caller has cancelled; checked because a thread cannot be interrupted."""


class WorkdirError(Exception):
    """The folder cannot be packed; the message has the remedy."""


class Server(Protocol):
    """The part of `store.kubernetes.client.KubernetesStore` that an upload uses."""

    async def raw(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, str], bytes]: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or link, by its path in the folder."""

    path: str
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The files of a folder that are packed, and those that are left out."""

    folder: Path
    files: tuple[Entry, ...]
    """In the order of the archive."""
    left_out: tuple[Entry, ...]
    """Ignored files and folders, largest first; the size of a folder is counted up to a limit."""

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def largest(self) -> list[Entry]:
        return sorted(self.files, key=lambda entry: (-entry.size, entry.path))[:LISTED]

    def summary(self) -> str:
        """`12 files, 34 KiB; left out: data/ (1.2 GiB), ...`"""
        count = len(self.files)
        text = f"{count} {'file' if count == 1 else 'files'}, {human(self.bytes)}"
        if not self.left_out:
            return text
        named = ", ".join(f"{each.path} ({human(each.size)})" for each in self.left_out[:3])
        more = len(self.left_out) - 3
        return f"{text}; left out: {named}" + (f" and {more} more" if more > 0 else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """An archive on the local disk. Close it, or use it in a `with`."""

    digest: str
    size: int
    file: IO[bytes]

    def __enter__(self) -> Packed:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def plan(
    folder: Path | str,
    *,
    most_bytes: int = MOST_BYTES,
    most_files: int = MOST_FILES,
    stopped: Stopped = lambda: False,
) -> Plan:
    """The files to pack, by .gitignore and .windlassignore. Raises if they exceed the limits, and
    stops reading there: the folder may be the root of a disk."""
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise WorkdirError(f"{folder} is not a folder; choose one with --workdir")
    walk = _Walk(root.resolve(), most_files, stopped)
    enough = 2 * most_files + LISTED
    try:
        files = tuple(itertools.islice(walk.run(), enough))
    except OSError as problem:
        raise WorkdirError(
            f"{problem.filename} cannot be read: {problem.strerror}; leave it out in "
            ".windlassignore, or choose a folder of your own"
        ) from problem
    ignored = sorted(walk.left_out, key=lambda each: (-each.size, each.path))
    made = Plan(walk.root, files, tuple(ignored))
    if made.bytes > most_bytes or len(files) > most_files:
        raise _too_much(made, most_bytes, most_files)
    return made


def pack(planned: Plan, stopped: Stopped = lambda: False) -> Packed:
    """Writes the archive; the digest depends only on the content."""
    file = tempfile.TemporaryFile(prefix="windlass-workdir-")  # noqa: SIM115 - handed on
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=3, mtime=0) as zipped,
            tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for entry in planned.files:
                _add(tar, planned.folder, entry, stopped)
        size = file.tell()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return Packed(f"sha256:{digest}", size, file)


async def upload(
    server: Server, namespace: str, packed: Packed, progress: Progress = lambda _done, _all: None
) -> bool:
    """Uploads the archive; returns False if the server had it already."""
    path = f"/apis/platform.windlass.dev/v1alpha1/namespaces/{namespace}/blobs/{packed.digest}"
    offset: int | None = None
    sent, failures = False, 0
    while True:
        try:
            if offset is None:
                there, offset = await _ask(server, path)
                if there:
                    break
            progress(offset, packed.size)
            packed.file.seek(offset)
            sent = True
            offset = await _send(server, path, packed.file.read(PIECE), offset, packed.size)
            failures = 0
            if offset >= packed.size:
                break
        except (errors.Unavailable, errors.Conflict, errors.ServerTimeout) as problem:
            failures += 1
            if failures == _TRIES:
                raise
            # Another client uploads the same, or the server was unreachable: ask for the offset.
            await asyncio.sleep(problem.retry_after or min(5.0, 0.2 * 2**failures))
            offset = None
    progress(packed.size, packed.size)
    return sent


async def send(
    server: Server,
    namespace: str,
    folder: Path | str,
    *,
    most_bytes: int = MOST_BYTES,
    on_plan: Callable[[Plan], None] = lambda _plan: None,
    progress: Progress = lambda _done, _all: None,
) -> str:
    """Packs and uploads a folder, and returns its digest. Cancelling it cancels the packing."""
    gone = threading.Event()
    try:
        planned = await asyncio.to_thread(plan, folder, most_bytes=most_bytes, stopped=gone.is_set)
        on_plan(planned)
        with await asyncio.to_thread(pack, planned, gone.is_set) as packed:
            await upload(server, namespace, packed, progress)
            return packed.digest
    finally:
        gone.set()


def human(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


# --- looking


class _Walk:
    """Walks the folder, with the ignore files of every folder on the way."""

    def __init__(self, root: Path, most_files: int, stopped: Stopped) -> None:
        import pathspec  # late: only packing a folder pays for it

        self.root = root
        self._stopped = stopped
        self.left_out: list[Entry] = []
        self._spec = pathspec.GitIgnoreSpec
        self._most = most_files

    def run(self) -> Iterator[Entry]:
        own = self._spec.from_lines(ALWAYS_LEFT_OUT)
        yield from self._folder("", [("", own)])

    def _folder(self, below: str, specs: list[tuple[str, Any]]) -> Iterator[Entry]:
        """In the order of names, so that the archive does not depend on the disk."""
        _unless(self._stopped)
        here = self.root / below
        specs = [*specs, *self._read_specs(here, below)]
        listed = sorted(os.scandir(here), key=lambda entry: entry.name)
        for entry in listed:
            path = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if self._ignored(f"{path}/", specs):
                    self.left_out.append(Entry(f"{path}/", _weight(Path(entry.path), self._most)))
                    continue
                yield Entry(f"{path}/", 0)
                yield from self._folder(f"{path}/", specs)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                size = entry.stat(follow_symlinks=False).st_size
                if self._ignored(path, specs):
                    self.left_out.append(Entry(path, size))
                elif entry.is_symlink() and not _stays_inside(self.root, Path(entry.path)):
                    self.left_out.append(Entry(f"{path} -> {os.readlink(entry.path)}", 0))
                else:
                    yield Entry(path, 0 if entry.is_symlink() else size)

    def _read_specs(self, here: Path, below: str) -> Iterator[tuple[str, Any]]:
        for name in IGNORE_FILES:
            try:
                text = (here / name).read_text(errors="replace")
            except OSError:
                continue
            yield below, self._spec.from_lines(text.splitlines())

    def _ignored(self, path: str, specs: list[tuple[str, Any]]) -> bool:
        """Whether the path is ignored; the last matching pattern of the deepest folder decides."""
        for below, spec in reversed(specs):
            answer = spec.check_file(path[len(below) :]).include
            if answer is not None:
                return bool(answer)
        return False


def _weight(folder: Path, most: int) -> int:
    """Size of a folder that is left out, counted up to a limit: a dataset may have millions."""
    total, seen = 0, 0
    for here, _, names in os.walk(folder):
        for name in names:
            seen += 1
            if seen > min(most, 20_000):
                return total
            try:
                total += os.lstat(os.path.join(here, name)).st_size
            except OSError:
                continue
    return total


def _unless(stopped: Stopped) -> None:
    if stopped():
        raise WorkdirError("cancelled by the caller")


def _too_much(made: Plan, most_bytes: int, most_files: int) -> WorkdirError:
    listed = "\n".join(f"  {human(each.size):>9}  {each.path}" for each in made.largest())
    more = " and more" if len(made.files) > 2 * most_files else ""
    seen = "1 file" if len(made.files) == 1 else f"{len(made.files)} files{more}"
    return WorkdirError(
        f"{made.folder} has {seen} with {human(made.bytes)}, more than "
        f"{most_files} files or {human(most_bytes)}; these are the largest:\n{listed}\n"
        "Leave out what the job does not need with a line in .windlassignore, mount large data "
        "with --mount, or raise the limit with --workdir-limit"
    )


# --- packing


class _Reading:
    """A file whose reads fail after the caller has cancelled."""

    def __init__(self, file: IO[bytes], stopped: Stopped) -> None:
        self._file = file
        self._stopped = stopped

    def read(self, size: int = -1) -> bytes:
        _unless(self._stopped)
        return self._file.read(size)


def _add(tar: tarfile.TarFile, root: Path, entry: Entry, stopped: Stopped) -> None:
    _unless(stopped)
    path = root / entry.path.rstrip("/")
    try:
        found = path.lstat()
        info = tarfile.TarInfo(entry.path.rstrip("/"))
        info.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
        if stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        elif stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
            info.mode = 0o777
            tar.addfile(info)
        else:
            content = path.read_bytes() if found.st_size < PIECE else None
            info.size = len(content) if content is not None else found.st_size
            with io.BytesIO(content) if content is not None else path.open("rb") as file:
                tar.addfile(info, cast("IO[bytes]", _Reading(file, stopped)))
    except OSError as problem:
        raise WorkdirError(
            f"{path} cannot be read: {problem.strerror or problem}; leave it out in .windlassignore"
        ) from problem


def _stays_inside(root: Path, link: Path) -> bool:
    """Raises for links out of the folder: the job would find another target, or none."""
    target = os.readlink(link)
    leads_to = Path(os.path.normpath(link.parent / target))
    return not os.path.isabs(target) and leads_to.is_relative_to(root)


# --- sending


async def _ask(server: Server, path: str) -> tuple[bool, int]:
    """Whether the server has the archive, and how many bytes of it."""
    status, headers, body = await server.raw("HEAD", path)
    if status not in (200, 404):
        raise _problem(status, body)
    known = {name.lower(): value for name, value in headers.items()}
    if status == 404 and "upload-offset" not in known:
        raise errors.NotFound(
            "the namespace does not exist, or this server accepts no code; see `windlass get ns`"
        )
    return status == 200, int(known.get("upload-offset", "0"))


async def _send(server: Server, path: str, piece: bytes, offset: int, size: int) -> int:
    progress = {"Upload-Offset": str(offset), "Upload-Length": str(size)}
    status, headers, body = await server.raw(
        "PATCH", path, body=piece, content_type="application/octet-stream", headers=progress
    )
    if status != 204:
        raise _problem(status, body)
    known = {name.lower(): value for name, value in headers.items()}
    return int(known["upload-offset"])


def _problem(status: int, body: bytes) -> errors.ApiError:
    import json

    try:
        found = json.loads(body)
    except ValueError:
        found = {}
    return errors.from_status(found if isinstance(found, dict) else {}, status)
