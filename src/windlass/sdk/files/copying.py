"""`cp` between this machine and a replica: what is copied where, going on after an interruption,
and progress.

A repeated copy skips files that are there with the same size and time, and goes on with a file that
was copied in part.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from windlass.kinds.values import globs
from windlass.sdk.files import local_folder, places, replica_shell
from windlass.sdk.files.local_folder import LocalFolder
from windlass.sdk.files.places import Entry, PathError
from windlass.store import errors

_TRIES = 5
_LISTED = 3


class Source(Protocol):
    """Files that a copy reads."""

    async def list(self, path: str) -> list[Entry]:
        """What is at a path and below it, folders before their content; empty if nothing is."""
        ...

    async def target(self, path: str) -> str: ...

    def read(self, path: str, offset: int, size: int) -> AsyncIterator[bytes]: ...


@dataclasses.dataclass(slots=True)
class Report:
    """What a copy did."""

    files: int = 0
    bytes: int = 0
    """Of all files that are there now."""
    unchanged: int = 0
    """Files that were there already."""
    left_out: list[str] = dataclasses.field(default_factory=list)
    """Paths that cannot be copied: sockets, devices, links that lead out of the tree."""

    def add(self, other: Report) -> None:
        self.files += other.files
        self.bytes += other.bytes
        self.unchanged += other.unchanged
        self.left_out += other.left_out

    def summary(self) -> str:
        """`3 files, 12 MiB (1 was there already)`."""
        text = f"{_files(self.files)}, {human(self.bytes)}"
        if self.unchanged:
            text += f" ({self.unchanged} {'was' if self.unchanged == 1 else 'were'} there already)"
        return text

    def warning(self) -> str:
        """The paths that were left out, for a person; "" if none was."""
        if not self.left_out:
            return ""
        named = ", ".join(places.shown(path) for path in self.left_out[:_LISTED])
        more = len(self.left_out) - _LISTED
        return (
            f"left out, because only files, folders and links inside of the copied folder are "
            f"copied: {named}" + (f" and {more} more" if more > 0 else "")
        )


Progress = Callable[[Report, int], None]
"""Called with what is copied so far, and the bytes in all."""


def _quiet(_report: Report, _total: int) -> None:
    return


# --- from a run


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """Where each entry goes."""

    root: Path
    items: list[tuple[Entry, str, str]]
    """Entry, its path in the source, its path below `root`."""


async def download(
    source: Source, path: str, destination: str, progress: Progress = _quiet
) -> Report:
    """Copies a file, a folder, or what matches a pattern, to this machine."""
    plan = await _planned(source, path, destination)
    total = sum(entry.size for entry, _, _ in plan.items if entry.kind == "file")
    report, folder = Report(), LocalFolder(plan.root)
    links = []
    for entry, there, here in plan.items:
        if entry.kind == "folder":
            folder.make_folder(here)
        elif entry.kind == "link":
            links.append((there, here))
        elif entry.kind == "file":
            await _fetch(source, folder, entry, there, here, report, progress, total)
        else:
            report.left_out.append(there)
    # Last, so that no path of a file leads through one of them.
    for there, here in links:
        if not folder.link(here, await source.target(there)):
            report.left_out.append(there)
    return report


async def listed(source: Source, path: str) -> list[Entry]:
    """What is at a path and directly below it, or what matches a pattern."""
    found = await source.list(path)
    if not found and globs.is_pattern(path):
        base, pattern = globs.split_pattern(path)
        found = places.matching(await source.list(base), pattern)
    elif len(found) > 1:
        found = [entry for entry in found if entry.path and "/" not in entry.path]
    if not found:
        raise _missing(path)
    return found


async def _planned(source: Source, path: str, destination: str) -> _Plan:
    if globs.is_pattern(path):
        found = await source.list(path)
        if not found:  # otherwise the characters are those of a name
            base, pattern = globs.split_pattern(path)
            chosen = places.matching(await source.list(base), pattern)
            if not chosen:
                raise PathError(f"nothing matches {places.shown(path)} in the run")
            return _Plan(
                _folder(destination), [(each, _join(base, each.path), each.path) for each in chosen]
            )
    else:
        found = await source.list(path)
    if not found:
        raise _missing(path)
    top = found[0]
    parent, name = _named(path, destination, folder=top.kind == "folder")
    return _Plan(parent, [(each, _join(path, each.path), _join(name, each.path)) for each in found])


def _missing(path: str) -> PathError:
    return PathError(
        f"there is no {places.shown(path or '.')} in the run; `windlass cp --list RUN:` "
        "lists what is there"
    )


def _folder(destination: str) -> Path:
    root = Path(destination)
    if root.exists() and not root.is_dir():
        raise PathError(f"{destination} is a file; several files need a folder")
    return root


def _named(path: str, destination: str, *, folder: bool) -> tuple[Path, str]:
    """The folder to write into, and the name in it; "" if a folder's content goes there itself."""
    own = path.rstrip("/").rpartition("/")[2]
    target = Path(destination)
    if target.is_dir() or destination.endswith("/"):
        return target, "" if own in ("", ".", "..") else own
    if folder:
        if target.exists():
            raise PathError(f"{destination} is a file, and {places.shown(path)} is a folder")
        return target, ""
    return target.parent, target.name


async def _fetch(
    source: Source, folder: LocalFolder, entry: Entry, there: str, here: str, report: Report,
    progress: Progress, total: int,
) -> None:  # fmt: skip
    if folder.is_complete(entry, here):
        report.unchanged += 1
        report.bytes += entry.size
    else:
        handle, size = folder.begin(entry, here)
        try:
            report.bytes += size
            if size < entry.size:
                async for piece in source.read(there, size, entry.size - size):
                    await asyncio.to_thread(_write_all, handle, piece)
                    report.bytes += len(piece)
                    progress(report, total)
            folder.finish(handle, entry, here)
        finally:
            os.close(handle)
    report.files += 1
    progress(report, total)


def _write_all(handle: int, piece: bytes) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(handle, view) :]


# --- to a run


async def upload(
    replica: replica_shell.ReplicaFiles, source: str, path: str, progress: Progress = _quiet
) -> Report:
    """Copies a local file or folder into a running replica."""
    root = Path(source)
    entries = await asyncio.to_thread(lambda: list(local_folder.walk(root)))
    total = sum(entry.size for entry in entries if entry.kind == "file")
    base = path.rstrip("/") or ("/" if path.startswith("/") else ".")
    top = await replica.list(base) if not path.endswith("/") else []
    into = path.endswith("/") or path in ("", ".") or bool(top and top[0].kind == "folder")
    if into and root.name and source not in (".", "./"):
        base = _join(base, root.name)
    report = Report()
    for entry in entries:
        there = _join(base, entry.path)
        if entry.kind == "folder":
            await replica.make_folder(there)
        elif entry.kind == "file":
            if not entry.path and "/" in there:
                await replica.make_folder(there.rpartition("/")[0] or "/")
            await _send(replica, root / entry.path, entry, there, report, progress, total)
        else:
            report.left_out.append(str(root / entry.path))
    return report


async def _send(
    replica: replica_shell.ReplicaFiles, local: Path, entry: Entry, there: str, report: Report,
    progress: Progress, total: int,
) -> None:  # fmt: skip
    report.files += 1
    if await replica.size_of(there) == (entry.size, entry.modified):
        report.unchanged += 1
        report.bytes += entry.size
        progress(report, total)
        return
    above, _, name = there.rpartition("/")
    part = _join(above or ("/" if there.startswith("/") else "."),
                 local_folder.part_name(name, entry))  # fmt: skip
    known = await replica.size_of(part)
    done = known[0] if known is not None and known[0] <= entry.size else 0
    report.bytes += done
    with local.open("rb") as file:
        file.seek(done)
        if done == 0 and entry.size == 0:
            await replica.append(part, 0, b"")
        while done < entry.size:
            piece = await asyncio.to_thread(
                file.read, min(replica_shell.PIECE, entry.size - done)
            )  # fmt: skip
            if not piece:
                raise PathError(f"{local} became shorter while it was copied; copy again")
            await replica.append(part, done, piece)
            done += len(piece)
            report.bytes += len(piece)
            progress(report, total)
    await replica.finish(part, there, entry.modified, _mode(local))
    progress(report, total)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o755 | 0o600


# --- shared


async def with_retries(copy: Callable[[], Awaitable[Report]]) -> Report:
    """Repeats a copy whose connection ended; it goes on where it stopped."""
    for attempt in range(_TRIES):
        try:
            return await copy()
        except errors.PASSING:
            if attempt == _TRIES - 1:
                raise
            await asyncio.sleep(random.uniform(0.2, 0.5) * 2**attempt)  # noqa: S311 - no secret
    raise AssertionError("unreachable")


def human(size: float) -> str:
    """`1.2 GiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 10 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def by_size(entries: Iterable[Entry]) -> Sequence[Entry]:
    """Files, the largest first."""
    files = [entry for entry in entries if entry.kind == "file"]
    return sorted(files, key=lambda entry: (-entry.size, entry.path))


def _files(count: int) -> str:
    return f"{count} {'file' if count == 1 else 'files'}"


def _join(folder: str, path: str) -> str:
    if not path or not folder:
        return folder or path
    return f"{folder.rstrip('/')}/{path}"
