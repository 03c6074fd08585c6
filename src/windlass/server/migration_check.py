"""What this version would change in the store and the ledger of an engine, tried on copies.

`windlass up --dry-run` calls it in its own process. An engine of an earlier version may run
meanwhile: nothing of it is changed.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

from windlass.ledger import service
from windlass.ledger.db import copies, repository
from windlass.store.embedded import backup, migrations

STORE = "store.db"


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Of the store or the ledger."""

    name: str
    before: str
    after: str
    problem: str = ""
    """Why it cannot be migrated; empty: the copy was."""


def check(state: Path) -> list[Outcome]:
    """Copies and migrates what there is in a state folder."""
    found = []
    with tempfile.TemporaryDirectory(prefix=".migration-", dir=state) as folder:
        for name, file, work in (
            ("store", state / STORE, _store),
            ("ledger", state / service.FILE, _ledger),
        ):
            if file.exists():
                found.append(_outcome(name, file, Path(folder) / file.name, work))
    return found


Work = Callable[[Path, Path], tuple[str, str]]
"""Migrates a copy; returns the version before and the one after."""


def _outcome(name: str, file: Path, copy: Path, work: Work) -> Outcome:
    try:
        before, after = work(file, copy)
    except (
        backup.NotAStore, migrations.StoreTooNew, migrations.StoreUnusable, copies.NotALedger,
        repository.LedgerError, OSError,
    ) as problem:  # fmt: skip
        return Outcome(name, "", "", " ".join(str(problem).split()))
    return Outcome(name, before, after)


def _store(file: Path, copy: Path) -> tuple[str, str]:
    backup.backup(file, copy)
    connection = migrations.connect(copy)
    try:
        before = connection.execute("PRAGMA user_version").fetchone()[0]
        migrations.upgrade(connection, copy)
        return str(before), str(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def _ledger(file: Path, copy: Path) -> tuple[str, str]:
    before = copies.version(file)
    copies.copy(file, copy)
    repository.LedgerRepository.open(f"sqlite:///{copy}").close()
    return before, copies.version(copy)
