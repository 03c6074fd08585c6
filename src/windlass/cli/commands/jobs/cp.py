"""`windlass cp`: copies files between this machine and the replicas of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output

_EVERY = 0.2
"""Seconds between two updates of the progress."""


@base.command(
    examples=(
        "windlass cp train:model.pt .",
        "windlass cp train:checkpoints/ ./from-train/",
        "windlass cp 'train:logs/*.json' ./logs/     # quoted, so that the run's files match",
        "windlass cp train/worker-1:out.log .        # of the replica with index 1",
        "windlass cp ./data train:input/             # into a running replica",
        "windlass cp --list train:                   # what is there",
    ),
)
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DEST", required=False, default="")
@click.option("--list", "listing", is_flag=True, help="List the files of SRC, and copy nothing.")
@base.target_options
def cp(out: Output, source: str, destination: str, listing: bool, target: base.Target) -> None:
    """Copy files from a run (RUN:PATH DEST) or to a running one (SRC RUN:PATH).

    PATH is relative to the working folder of the job. Folders are copied whole; *, ?, [..] and **
    match. RUN/ROLE-INDEX:PATH names a replica; the default is the first. A copy that was
    interrupted goes on where it stopped when it is repeated. Write ./ before a local path that
    has a colon.
    """
    from windlass.sdk.files import places

    theirs, ours = places.parse(source), places.parse(destination)
    if listing and theirs is not None and not destination:
        _list(out, theirs, target)
    elif not destination or listing:
        raise exit_codes.CliError(
            "cp needs SRC and DEST, or --list RUN:PATH.", "See `windlass cp --help`.",
            exit_codes.USAGE,
        )  # fmt: skip
    elif (theirs is None) == (ours is None):
        which = "Neither SRC nor DEST names a run." if theirs is None else "Both name a run."
        raise exit_codes.CliError(
            which, "Write a path of a run as RUN:PATH, and a local one with ./ before it.",
            exit_codes.USAGE,
        )  # fmt: skip
    elif theirs is not None:
        show_report(out, _download(out, theirs, destination, target), destination)
    else:
        show_report(out, _upload(out, source, ours, target), destination)


def _download(out: Output, place: Any, destination: str, target: base.Target) -> Any:
    from windlass.sdk.files import copying, sources

    async def work(session: client_session.Session) -> copying.Report:
        async def copy() -> copying.Report:
            async with sources.reading(session.store, session.namespace, place) as files:
                return await copying.download(files, place.path, destination, show)

        return await copying.with_retries(copy)

    with failures(), progress(out) as show:
        return client_session.call(target, work)


def _upload(out: Output, source: str, place: Any, target: base.Target) -> Any:
    from windlass.sdk.files import copying, sources

    async def work(session: client_session.Session) -> copying.Report:
        async def copy() -> copying.Report:
            async with sources.writing(session.store, session.namespace, place) as replica:
                return await copying.upload(replica, source, place.path, show)

        return await copying.with_retries(copy)

    with failures(), progress(out) as show:
        return client_session.call(target, work)


def _list(out: Output, place: Any, target: base.Target) -> None:
    from windlass.kinds.values import times
    from windlass.sdk.files import copying, places, sources

    async def work(session: client_session.Session) -> list[places.Entry]:
        async with sources.reading(session.store, session.namespace, place) as files:
            return await copying.listed(files, place.path)

    with failures():
        found = client_session.call(target, work)
    rows = [
        (
            places.shown(entry.path or ".") + ("/" if entry.kind == "folder" else ""),
            copying.human(entry.size) if entry.kind == "file" else entry.kind,
            times.seconds(times.from_unix(entry.modified)),
        )
        for entry in found
    ]
    out.table(("NAME", "SIZE", "MODIFIED"), rows, numbers=("SIZE",))
    items = [
        {
            "path": places.shown(entry.path),
            "kind": entry.kind,
            "size": entry.size,
            "modified": row[2],
        }
        for entry, row in zip(found, rows, strict=True)
    ]
    out.result({"items": items}, names=[str(item["path"]) for item in items])


def show_report(out: Output, report: Any, destination: str) -> None:
    if report.warning():
        out.warn(report.warning())
    out.say(f"{report.summary()} in {destination}")
    out.result(
        {
            "files": report.files, "bytes": report.bytes, "unchanged": report.unchanged,
            "leftOut": report.left_out, "destination": destination,
        },
        names=[destination],
    )  # fmt: skip


@contextlib.contextmanager
def progress(out: Output) -> Iterator[Callable[[Any, int], None]]:
    """A function that shows how far a copy is, on stderr."""
    from windlass.sdk.files import copying

    with out.progress("Copying") as update:
        last = 0.0

        def show(report: copying.Report, total: int) -> None:
            nonlocal last
            if time.monotonic() - last >= _EVERY:
                last = time.monotonic()
                part = 100 * report.bytes // max(1, total)
                update(f"Copying {copying.human(total)}: {part} %, {report.files} files")

        yield show


@contextlib.contextmanager
def failures() -> Iterator[None]:
    from windlass.sdk.files.places import PathError, shown

    try:
        yield
    except PathError as problem:
        message, _, remedy = str(problem).partition("; ")
        raise exit_codes.CliError(
            exit_codes.sentence(message), exit_codes.sentence(remedy) if remedy else ""
        ) from None
    except OSError as problem:
        name = shown(str(problem.filename or ""))
        raise exit_codes.CliError(
            f"{name}: {problem.strerror}." if name else f"{problem.strerror or problem}.",
            "Repeat the command to go on where it stopped.",
        ) from None
