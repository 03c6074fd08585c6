"""`windlass backup` and `windlass restore`: the store and the ledger of an embedded engine.

The copying itself is `windlass.store.embedded.backup` and `windlass.ledger.db.copies`; they work on
the live files.
"""

from __future__ import annotations

import importlib
import os
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
    """Copy the store to FILE and the ledger to FILE.ledger, while the engine is running or stopped.

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
    storage, ledgers = _storage(), _ledgers()
    usage = info = None
    existed = file.exists()
    try:
        with out.progress(f"Copying {folder.database}"):
            secret = _secret(storage, key)
            info = storage.backup(folder.database, file, secret)
            if folder.ledger.exists() and ledgers.version(folder.ledger):
                # After the store: usage that the store has is recorded once all the same.
                usage = folder.ledger
                _copy_ledger(storage, usage, _ledger_of(file), secret)
            elif existed:
                # That of the earlier backup: a restore would put it beside this store.
                _ledger_of(file).unlink(missing_ok=True)
    except storage.backup_encryption.KeyRefused as problem:
        raise _key_refused(problem) from None
    except (storage.NotAStore, ledgers.NotALedger, OSError) as problem:
        raise _failed(problem, file, existed=existed, stored=info is not None) from None
    out.say(f"{file}: {info.objects} objects, {info.bytes / 1e6:.1f} MB")
    if usage:
        out.say(f"{_ledger_of(file)}: usage, {_ledger_of(file).stat().st_size / 1e6:.1f} MB")
    with_key = f" --key {key}" if key else ""
    out.hint(f"Restore it: windlass restore {file}{with_key}")
    data = {
        "file": str(file.absolute()),
        "bytes": info.bytes,
        "encrypted": key is not None,
        "ledger": str(_ledger_of(file).absolute()) if usage else None,
        "objects": info.objects,
        "resourceVersion": str(info.resource_version),
    }
    out.result(data, names=[str(file)])


@base.command(examples=("windlass down && windlass restore windlass.backup && windlass up -d",))
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--key", type=_KEY, metavar="KEYFILE", help="The key file of an encrypted backup.")
@base.state_option
def restore(out: Output, file: Path, key: Path | None, state: str) -> None:
    """Replace the store by a backup, and the ledger by FILE.ledger if there is one. Refused while
    the engine is running.

    The previous store and ledger are kept in backups/ of the state folder.
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
    storage, ledgers = _storage(), _ledgers()
    usage = _ledger_of(file) if _ledger_of(file).exists() else None
    kept_usage = None
    try:
        secret = _secret(storage, key)
        if usage:
            with storage.opened(usage, folder.ledger, secret) as plain:
                ledgers.version(plain)  # before the store is replaced
        info, kept = storage.restore(file, folder.database, secret)
        if usage:
            with storage.opened(usage, folder.ledger, secret) as plain:
                kept_usage = ledgers.restore(plain, folder.ledger)
    except storage.backup_encryption.KeyRefused as problem:
        raise _key_refused(problem) from None
    except (storage.NotAStore, ledgers.NotALedger) as problem:
        raise exit_codes.CliError(
            f"{file} cannot be restored: {problem}.",
            "The store is unchanged. Choose a file that `windlass backup` wrote.",
            exit_codes.INVALID,
        ) from None
    finally:
        lock.close()
    out.say(f"Restored {info.objects} objects from {file}.")
    if usage:
        out.say(f"Restored the usage from {usage}.")
    if kept:
        out.say(f"The previous store is kept as {kept}.")
    if kept_usage:
        out.say(f"The previous ledger is kept as {kept_usage}.")
    out.hint("Start the engine: windlass up")
    data = {
        "restored": str(file.absolute()),
        "objects": info.objects,
        "kept": str(kept) if kept else None,
        "ledger": str(usage.absolute()) if usage else None,
        "keptLedger": str(kept_usage) if kept_usage else None,
    }
    out.result(data, names=[str(folder.database)])


def _failed(problem: Exception, file: Path, *, existed: bool, stored: bool) -> exit_codes.CliError:
    """Without the copy of the store if that of the ledger failed. An earlier backup stays until it
    is replaced, which happens at once: a full disk must not cost it."""
    remedy = "Nothing was written."
    if stored and existed:
        remedy = f"{file} is new, and {_ledger_of(file)} is not: repeat the backup."
    elif stored:
        file.unlink(missing_ok=True)
    return exit_codes.CliError(f"The backup failed: {problem}.", remedy)


def _copy_ledger(storage: Any, ledger: Path, target: Path, secret: bytes | None) -> None:
    if secret is None:
        _ledgers().copy(ledger, target)
        return
    plain = ledger.with_name(f".ledger-backup-{os.getpid()}")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        _ledgers().copy(ledger, plain)
        partial.touch(mode=0o600)
        with partial.open("wb") as opened:
            storage.backup_encryption.encrypt(plain, opened, secret)
            opened.flush()
            os.fsync(opened.fileno())
        partial.replace(target)
    finally:
        plain.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)


def _secret(storage: Any, key: Path | None) -> bytes | None:
    return storage.backup_encryption.read_key(key) if key else None


def _key_refused(problem: Exception) -> exit_codes.CliError:
    message, _, remedy = str(problem).partition("; ")
    return exit_codes.CliError(
        exit_codes.sentence(message), exit_codes.sentence(remedy), exit_codes.INVALID
    )


def _ledger_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.ledger")


def _ledgers() -> Any:
    return importlib.import_module("windlass.ledger.db.copies")


def _storage() -> Any:
    return importlib.import_module("windlass.store.embedded.backup")


def _need_store(folder: states.StateFolder) -> None:
    if not folder.database.exists():
        raise exit_codes.CliError(
            f"There is no store in {folder.path}.",
            "Start an engine there with `windlass up`, or choose another folder with --state.",
            exit_codes.NOT_FOUND,
        )
