"""The SQLite schema, its versions and migrations.

Called by `mvcc` when it opens a store. Each migration runs in one transaction; before the first
migration of an existing store, the file is copied to a backup.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

_BASE = """
CREATE TABLE revision (
  rv        INTEGER PRIMARY KEY,
  resource  TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  event     INTEGER NOT NULL,
  prev_rv   INTEGER,
  data      BLOB NOT NULL
);
CREATE TABLE current (
  resource  TEXT NOT NULL,
  namespace TEXT NOT NULL,
  name      TEXT NOT NULL,
  uid       TEXT NOT NULL,
  rv        INTEGER NOT NULL,
  PRIMARY KEY (resource, namespace, name)
) WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('compacted', 0), ('last_rv', 0);
"""

_FIND_BY_UID = "CREATE UNIQUE INDEX current_by_uid ON current (uid);"

MIGRATIONS: tuple[str, ...] = (_BASE, _FIND_BY_UID)
"""Migration i upgrades a store from version i to i + 1. Released ones are never changed."""

VERSION = len(MIGRATIONS)


StoreUnusable = sqlite3.DatabaseError
"""The file or its disk is damaged; a name for packages that do not use SQLite."""


class StoreTooNew(Exception):
    """The file was written by a newer version of Windlass."""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection with the settings for durability and speed."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.execute("PRAGMA busy_timeout = 10000")
    if read_only:
        connection.execute("PRAGMA query_only = ON")
    else:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only effective on a new file
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives power loss
        connection.execute("PRAGMA wal_autocheckpoint = 2000")
    connection.execute("PRAGMA cache_size = -8000")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def upgrade(connection: sqlite3.Connection, path: Path) -> None:
    """Migrates the file to VERSION; copies an older store to a backup first."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise StoreTooNew(
            f"{path} was written by a newer Windlass (store version {found}, this one supports "
            f"{VERSION}); upgrade Windlass, or restore a backup of this version"
        )
    if 0 < found < VERSION:
        _back_up(connection, path, found)
    for version in range(found, VERSION):
        done = f"PRAGMA user_version = {version + 1}"
        try:
            connection.executescript(f"BEGIN IMMEDIATE;\n{MIGRATIONS[version]}\n{done};\nCOMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _back_up(connection: sqlite3.Connection, path: Path, version: int) -> None:
    folder = path.parent / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    target = folder / f"{path.stem}-before-upgrade-from-v{version}.db"
    with sqlite3.connect(target) as copy:
        connection.backup(copy)
    copy.close()
