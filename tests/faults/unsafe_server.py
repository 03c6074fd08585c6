"""The server with its store's syncs weakened, to prove that the power-loss tests can fail.

Run as `python -m tests.faults.unsafe_server`; UNSAFE_SYNCHRONOUS is the value that replaces
SQLite's `synchronous = FULL`. The product has no such switch.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path

from windlass.server import main
from windlass.store.embedded import migrations

_connect = migrations.connect


def _weakened(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    connection = _connect(path, read_only=read_only)
    connection.execute(f"PRAGMA synchronous = {os.environ['UNSAFE_SYNCHRONOUS']}")
    return connection


if __name__ == "__main__":
    migrations.connect = _weakened
    sys.exit(main.main())
