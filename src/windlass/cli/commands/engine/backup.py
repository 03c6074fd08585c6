"""`windlass backup` and `windlass restore`: the embedded store as one file.

The copying itself is `windlass.store.embedded.backup`; it works on the live file.
"""

from __future__ import annotations

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
    storage = _storage()
    try:
        with out.progress(f"Copying {folder.database}"):
            info = storage.backup(folder.database, file)
    except (storage.NotAStore, OSError) as problem:
        raise exits.CliError(f"The backup failed: {problem}.", "Nothing was written.") from None
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

    The store that was there is kept in backups/ of the state folder.
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
    storage = _storage()
    try:
        info, kept = storage.restore(file, folder.database)
    except storage.NotAStore as problem:
        raise exits.CliError(
            f"{file} cannot be restored: {problem}.",
            "The store is as it was. Choose a file that `windlass backup` wrote.",
            exits.INVALID,
        ) from None
    finally:
        lock.close()
    out.say(f"Restored {info.objects} objects from {file}.")
    if kept:
        out.say(f"The store that was there is kept as {kept}.")
    out.hint("Start the engine: windlass up")
    data = {
        "restored": str(file.absolute()),
        "objects": info.objects,
        "kept": str(kept) if kept else None,
    }
    out.result(data, names=[str(folder.database)])


def _storage() -> Any:
    return importlib.import_module("windlass.store.embedded.backup")


def _need_store(folder: states.StateFolder) -> None:
    if not folder.database.exists():
        raise exits.CliError(
            f"There is no store in {folder.path}.",
            "Start an engine there with `windlass up`, or name another folder with --state.",
            exits.NOT_FOUND,
        )
