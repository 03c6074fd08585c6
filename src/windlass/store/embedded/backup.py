"""Backup of a running store, and restore.

Called by `windlass backup` and `windlass restore` in their own process: SQLite's online backup
reads the live file without stopping its writer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from windlass.store.embedded import backup_encryption, migrations

VERSION_GAP = 1_000_000_000
"""Added to the last revision on restore, so that no revision that a client has seen is reused."""


class NotAStore(Exception):
    """The file is not a Windlass store, or is damaged."""


@dataclasses.dataclass(frozen=True, slots=True)
class BackupInfo:
    bytes: int
    resource_version: int
    objects: int


def backup(db_path: Path, target: Path, secret: bytes | None = None) -> BackupInfo:
    """Writes a consistent copy to `target`, atomically; encrypted if there is a secret. Then the
    plain copy is beside the store and never beside `target`, which may be on another machine."""
    if not db_path.exists():
        raise NotAStore(f"there is no store at {db_path}; start one with `windlass up`")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    plain = partial if secret is None else db_path.with_name(f".backup-{os.getpid()}.db")
    try:
        plain.unlink(missing_ok=True)
        plain.touch(mode=0o600)
        try:
            _copy(db_path, plain)
        except sqlite3.DatabaseError as problem:  # damaged, or no space for the copy
            raise NotAStore(f"{db_path} cannot be copied ({problem})") from problem
        info = inspect(plain)
        if secret is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
            with open(os.open(partial, flags, 0o600), "wb") as file:
                backup_encryption.encrypt(plain, file, secret)
            info = dataclasses.replace(info, bytes=partial.stat().st_size)
        _sync(partial)
        partial.replace(target)
        _sync(target.parent)
    finally:
        partial.unlink(missing_ok=True)
        plain.unlink(missing_ok=True)
    return info


def _copy(db_path: Path, target: Path) -> None:
    source = migrations.connect(db_path, read_only=True)
    copy = sqlite3.connect(target)
    try:
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    finally:
        copy.close()
        source.close()


@contextlib.contextmanager
def opened(source: Path, db_path: Path, secret: bytes | None) -> Iterator[Path]:
    """The plain file of a backup: `source` itself, or a copy beside the store that is removed at
    the end. Raises KeyRefused."""
    if not backup_encryption.is_encrypted(source):
        if secret is not None:
            raise backup_encryption.KeyRefused(f"{source} is not encrypted; leave --key out")
        yield source
        return
    if secret is None:
        raise backup_encryption.KeyRefused(f"{source} is encrypted; give its key with --key FILE")
    db_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    plain = db_path.with_name(f".restore-{os.getpid()}.db")
    try:
        plain.unlink(missing_ok=True)
        with open(os.open(plain, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            backup_encryption.decrypt(source, file, secret)
        yield plain
    finally:
        plain.unlink(missing_ok=True)


def inspect(path: Path) -> BackupInfo:
    """Size, last revision and object count of a store file. Raises NotAStore if it is damaged or no
    store."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if verdict != "ok" or not 0 < version <= migrations.VERSION:
                raise NotAStore(f"{path} is damaged or from a newer Windlass ({verdict})")
            last, objects = connection.execute(
                "SELECT max((SELECT ifnull(max(rv), 0) FROM revision), "
                "(SELECT value FROM meta WHERE key = 'last_rv')), (SELECT count(*) FROM current)"
            ).fetchone()
        finally:
            connection.close()
    except sqlite3.Error as problem:
        raise NotAStore(f"{path} is not a Windlass store: {problem}") from problem
    return BackupInfo(path.stat().st_size, last, objects)


def restore(
    source: Path, db_path: Path, secret: bytes | None = None
) -> tuple[BackupInfo, Path | None]:
    """Replaces the store by a backup; returns the backup's info and the path of the old store.
    `secret`: of an encrypted backup.

    Call this only while no server uses the store. The revision jumps ahead and the history is
    compacted, so that every watching client lists again.
    """
    with opened(source, db_path, secret) as plain:
        return _replace(plain, db_path)


def _replace(source: Path, db_path: Path) -> tuple[BackupInfo, Path | None]:
    info = inspect(source)
    fresh = db_path.with_name(f".{db_path.name}.restore-{os.getpid()}")
    db_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fresh.touch(mode=0o600)
        original, copy = (
            sqlite3.connect(f"file:{source}?mode=ro", uri=True),
            migrations.connect(fresh),
        )
        try:
            original.backup(copy)
            copy.execute("PRAGMA journal_mode = WAL")
            migrations.upgrade(copy, fresh)
            ahead = info.resource_version + VERSION_GAP
            copy.execute(
                "UPDATE meta SET value = ? WHERE key IN ('last_rv', 'compacted')", (ahead,)
            )
            copy.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            copy.close()
            original.close()
        _sync(fresh)
        replaced = _set_aside(db_path)
        fresh.replace(db_path)
        _sync(db_path.parent)
    finally:
        for leftover in db_path.parent.glob(f"{fresh.name}*"):
            leftover.unlink(missing_ok=True)
    return info, replaced


def _set_aside(db_path: Path) -> Path | None:
    """Moves the store to the backups folder, after merging its WAL if it is readable. Returns the
    new path; None if there is no store."""
    if not db_path.exists():
        return None
    with contextlib.suppress(sqlite3.Error):
        migrations.connect(db_path).close()
    folder = db_path.parent / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    target = folder / f"{db_path.stem}-before-restore-{stamp}-{os.getpid()}.db"
    for suffix in ("-wal", "-shm", ""):
        part = db_path.with_name(db_path.name + suffix)
        if part.exists():
            part.replace(target.with_name(target.name + suffix))
    return target


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
