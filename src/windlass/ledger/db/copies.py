"""Copies of a ledger on SQLite: of one that works, before an upgrade, and back.

`repository` copies a ledger of an earlier version before it upgrades it. `windlass backup` and
`windlass restore` call this in their own process. A ledger on PostgreSQL is backed up by its own
tools.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import sqlalchemy as sa

_FOLDER = "backups"
_VERSION = "SELECT version_num FROM alembic_version"


class NotALedger(Exception):
    """The file is not a ledger, or is damaged."""


def version(file: Path) -> str:
    """The last migration of a ledger; "" if it has none yet."""
    try:
        with _connected(file) as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return ""
            return str(connection.execute(sa.text(_VERSION)).scalar() or "")
    except sa.exc.DatabaseError as problem:
        raise NotALedger(f"{file} is not a ledger ({problem.orig})") from problem


def copy(source: Path, target: Path) -> None:
    """Writes a consistent copy of a ledger, atomically, also while a server writes to it."""
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    try:
        with _connected(source) as connection:
            connection.exec_driver_sql("VACUUM INTO ?", (str(partial),))
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    except sa.exc.DatabaseError as problem:
        raise NotALedger(f"{source} cannot be copied ({problem.orig})") from problem
    finally:
        partial.unlink(missing_ok=True)


def before_upgrade(file: Path, found: str) -> Path:
    """Keeps a copy of a ledger that is about to be upgraded from this version."""
    target = _backups(file) / f"{file.stem}-before-upgrade-from-{found}{file.suffix}"
    copy(file, target)
    return target


def restore(source: Path, file: Path) -> Path | None:
    """Replaces a ledger by a copy; returns where the earlier one is kept. Call it only while no
    server uses the ledger."""
    if not version(source):
        raise NotALedger(f"{source} is not a ledger")
    kept = None
    if file.exists():
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        kept = _backups(file) / f"{file.stem}-before-restore-{stamp}-{os.getpid()}{file.suffix}"
        copy(file, kept)
        with _connected(file) as connection:  # no write-ahead log of the earlier one stays beside
            connection.exec_driver_sql("PRAGMA journal_mode = DELETE")
    copy(source, file)
    return kept


def _connected(file: Path) -> sa.Connection:
    if not file.exists():
        raise NotALedger(f"there is no ledger at {file}")
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(file)), poolclass=sa.NullPool)
    return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _backups(file: Path) -> Path:
    folder = file.parent / _FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
