"""`windlass backup` and `windlass restore`: the embedded store as one file.

The copying itself is `windlass.store.embedded.backup`; it works on the live file.
"""

from __future__ import annotations

import datetime
import importlib
from pathlib import Path
from typing import Any

import click

from windlass.cli import base, exits
from windlass.cli import state as states
from windlass.cli.output import Output


@base.command(
    examples=(
        "windlass backup windlass.backup",
        "windlass backup --json nightly.backup | jq .objects",
    )
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@base.state_option
def backup(out: Output, file: Path, overwrite: bool, state: str) -> None:
    """Copy the store to FILE, while the engine runs or not.

    The copy is of one moment and holds everything that had been acknowledged by then.
    """
    folder = states.folder(state)
    _need_store(folder)
    if file.exists() and not overwrite:
        raise exits.CliError(
            f"{file} exists already.", "Choose another name, or pass --overwrite.", exits.CONFLICT
        )
    if not file.absolute().parent.is_dir():
        raise exits.CliError(
            f"There is no folder {file.absolute().parent}.", "Make it first.", exits.NOT_FOUND
        )
    with out.progress(f"Copying {folder.database}"):
        info = _storage().backup(folder.database, file)
    out.say(f"{file}: {info.objects} objects, {info.bytes / 1e6:.1f} MB")
    out.hint(f"Put it back with: windlass restore {file}")
    data = {
        "file": str(file.absolute()),
        "bytes": info.bytes,
        "objects": info.objects,
        "resourceVersion": str(info.resource_version),
    }
    out.result(data, names=[str(file)])


@base.command(examples=("windlass down && windlass restore windlass.backup && windlass up -d",))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@base.state_option
def restore(out: Output, file: Path, state: str) -> None:
    """Put a backup in the store's place. Refused while the engine runs.

    The store that was there is kept in the state folder's backups/.
    """
    folder = states.folder(state)
    if not file.exists():
        raise exits.CliError(f"There is no file {file}.", "Check the path.", exits.NOT_FOUND)
    lock = folder.lock()
    server = folder.server()
    if lock is None or server is not None:
        raise exits.CliError(
            f"The engine runs on {folder.path}; its store cannot be replaced now.",
            "Stop it first: windlass down",
            exits.ALREADY_RUNNING,
        )
    try:
        kept = _set_aside(folder)
        try:
            info = _storage().restore(file, folder.database)
        except Exception as problem:
            _bring_back(folder, kept)
            raise exits.CliError(
                f"{file} could not be restored: {problem}",
                "The store is as it was.",
                exits.INVALID,
            ) from problem
    finally:
        lock.close()
    out.say(f"Restored {file}.")
    if kept:
        out.say(f"The store that was there is kept as {kept}.")
    out.hint("Start the engine: windlass up")
    del info
    out.result(
        {"restored": str(file.absolute()), "kept": str(kept) if kept else None},
        names=[str(folder.database)],
    )


def _storage() -> Any:
    return importlib.import_module("windlass.store.embedded.backup")


def _need_store(folder: states.StateFolder) -> None:
    if not folder.database.exists():
        raise exits.CliError(
            f"There is no store in {folder.path}.",
            "Start an engine there with `windlass up`, or name another folder with --state.",
            exits.NOT_FOUND,
        )


def _set_aside(folder: states.StateFolder) -> Path | None:
    """Moves the store with its write-ahead log, which belongs to it, into backups/."""
    if not folder.database.exists():
        return None
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    target = folder.backups / f"before-restore-{stamp}" / folder.database.name
    target.parent.mkdir(parents=True)
    for source in _files(folder.database):
        source.rename(target.parent / source.name)
    return target


def _bring_back(folder: states.StateFolder, kept: Path | None) -> None:
    if kept is None:
        return
    for leftover in _files(folder.database):
        leftover.unlink()
    for source in _files(kept):
        source.rename(folder.database.parent / source.name)
    kept.parent.rmdir()


def _files(database: Path) -> list[Path]:
    paths = [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm")]
    return [path for path in paths if path.exists()]
