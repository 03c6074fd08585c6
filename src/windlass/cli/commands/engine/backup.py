"""`windlass backup` and `windlass restore`: the embedded store as one file.

The copying itself is `windlass.store.embedded.backup`; it works on the live file.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from windlass.cli.lib import base, exit_codes
from windlass.cli.lib import state_dir as states
from windlass.cli.lib.output import Output

_KEY = click.Path(dir_okay=False, path_type=Path)


@base.command(
    examples=(
        "windlass backup windlass.backup",
        "windlass backup --json nightly.backup | jq .objects",
        "windlass backup --key backup.key nightly.backup     # encrypted",
    )
)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option("--key", type=_KEY, metavar="KEYFILE", help="Encrypt FILE with this key file.")
@base.state_option
def backup(out: Output, file: Path, overwrite: bool, key: Path | None, state: str) -> None:
    """Copy the store to FILE, while the engine is running or stopped.

    The copy is consistent and contains every write that was acknowledged before it. It has the
    Secrets of all teams, so only you may read it. Make a key with: (umask 077; head -c 32
    /dev/urandom > backup.key), and keep it elsewhere: without it the backup is lost.
    """
    folder = states.folder(state)
    _need_store(folder)
    if file.exists() and not overwrite:
        raise exit_codes.CliError(
            f"{file} exists already.",
            "Choose another name, or use --overwrite.",
            exit_codes.CONFLICT,
        )
    if not file.absolute().parent.is_dir():
        raise exit_codes.CliError(
            f"There is no folder {file.absolute().parent}.",
            "Create it first.",
            exit_codes.NOT_FOUND,
        )
    storage = _storage()
    try:
        with out.progress(f"Copying {folder.database}"):
            info = storage.backup(folder.database, file, _secret(storage, key))
    except storage.backup_encryption.KeyRefused as problem:
        raise _key_refused(problem) from None
    except (storage.NotAStore, OSError) as problem:
        raise exit_codes.CliError(
            f"The backup failed: {problem}.", "Nothing was written."
        ) from None
    out.say(f"{file}: {info.objects} objects, {info.bytes / 1e6:.1f} MB")
    with_key = f" --key {key}" if key else ""
    out.hint(f"Restore it: windlass restore {file}{with_key}")
    data = {
        "file": str(file.absolute()),
        "bytes": info.bytes,
        "encrypted": key is not None,
        "objects": info.objects,
        "resourceVersion": str(info.resource_version),
    }
    out.result(data, names=[str(file)])


@base.command(examples=("windlass down && windlass restore windlass.backup && windlass up -d",))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--key", type=_KEY, metavar="KEYFILE", help="The key file of an encrypted backup.")
@base.state_option
def restore(out: Output, file: Path, key: Path | None, state: str) -> None:
    """Replace the store by a backup. Refused while the engine is running.

    The previous store is kept in backups/ of the state folder.
    """
    folder = states.folder(state)
    if not file.exists():
        raise exit_codes.CliError(
            f"There is no file {file}.", "Check the path.", exit_codes.NOT_FOUND
        )
    lock = folder.lock()
    server = folder.server()
    if lock is None or server is not None:
        raise exit_codes.CliError(
            f"The engine is running on {folder.path}; its store cannot be replaced.",
            "Stop it first: windlass down",
            exit_codes.ALREADY_RUNNING,
        )
    storage = _storage()
    try:
        info, kept = storage.restore(file, folder.database, _secret(storage, key))
    except storage.backup_encryption.KeyRefused as problem:
        raise _key_refused(problem) from None
    except storage.NotAStore as problem:
        raise exit_codes.CliError(
            f"{file} cannot be restored: {problem}.",
            "The store is unchanged. Choose a file that `windlass backup` wrote.",
            exit_codes.INVALID,
        ) from None
    finally:
        lock.close()
    out.say(f"Restored {info.objects} objects from {file}.")
    if kept:
        out.say(f"The previous store is kept as {kept}.")
    out.hint("Start the engine: windlass up")
    data = {
        "restored": str(file.absolute()),
        "objects": info.objects,
        "kept": str(kept) if kept else None,
    }
    out.result(data, names=[str(folder.database)])


def _secret(storage: Any, key: Path | None) -> bytes | None:
    return storage.backup_encryption.read_key(key) if key else None


def _key_refused(problem: Exception) -> exit_codes.CliError:
    message, _, remedy = str(problem).partition("; ")
    return exit_codes.CliError(
        exit_codes.sentence(message), exit_codes.sentence(remedy), exit_codes.INVALID
    )


def _storage() -> Any:
    return importlib.import_module("windlass.store.embedded.backup")


def _need_store(folder: states.StateFolder) -> None:
    if not folder.database.exists():
        raise exit_codes.CliError(
            f"There is no store in {folder.path}.",
            "Start an engine there with `windlass up`, or choose another folder with --state.",
            exit_codes.NOT_FOUND,
        )
