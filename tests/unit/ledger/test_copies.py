"""Copies of a ledger: while it is written, before an upgrade, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from windlass.ledger.db import copies, repository, schema

MARK = "INSERT INTO mark (name, value) VALUES ('seen', 7)"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """A ledger with something in it that only its write-ahead log has."""
    made = tmp_path / "ledger.sqlite"
    opened = repository.LedgerRepository.open(f"sqlite:///{made}")
    with opened.engine.begin() as connection:
        connection.execute(sa.text(MARK))
    yield made
    opened.close()


def seen(file: Path) -> list[tuple[int]]:
    connection = sqlite3.connect(file)
    try:
        return connection.execute("SELECT value FROM mark WHERE name = 'seen'").fetchall()
    finally:
        connection.close()


def test_a_copy_has_all_that_was_written_and_only_its_owner_reads_it(
    file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copies.copy(file, copy)
    assert seen(copy) == [(7,)]
    assert copies.version(copy) == schema.VERSION
    assert copy.stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in tmp_path.iterdir() if "partial" in path.name) == []


def test_an_earlier_ledger_is_copied_before_it_is_upgraded(tmp_path: Path) -> None:
    import alembic.command
    import alembic.config

    file = tmp_path / "ledger.sqlite"
    engine = sa.create_engine(f"sqlite:///{file}")
    folder = Path(repository.__file__).parent / "migrations"
    with engine.connect() as connection:
        config = alembic.config.Config()
        config.set_main_option("script_location", str(folder))
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0001")
        connection.execute(sa.text(MARK))
        connection.commit()
    engine.dispose()
    repository.LedgerRepository.open(f"sqlite:///{file}").close()
    assert copies.version(file) == schema.VERSION
    kept = tmp_path / "backups" / "ledger-before-upgrade-from-0001.sqlite"
    assert (copies.version(kept), seen(kept)) == ("0001", [(7,)])
    repository.LedgerRepository.open(f"sqlite:///{file}").close()
    assert len(list(kept.parent.iterdir())) == 1, "one that is up to date is not copied"


def test_a_restored_ledger_is_the_copy_and_the_earlier_one_is_kept(tmp_path: Path) -> None:
    file, copy = tmp_path / "ledger.sqlite", tmp_path / "copy"
    opened = repository.LedgerRepository.open(f"sqlite:///{file}")
    copies.copy(file, copy)
    with opened.engine.begin() as connection:
        connection.execute(sa.text(MARK))
    opened.close()
    kept = copies.restore(copy, file)
    assert kept is not None
    assert (seen(file), seen(kept)) == ([], [(7,)])


@pytest.mark.parametrize("content", [None, b"", b"this is not a ledger" * 100])
def test_what_is_no_ledger_replaces_none(file: Path, tmp_path: Path, content: bytes | None) -> None:
    noise = tmp_path / "noise"
    if content is not None:
        noise.write_bytes(content)
    with pytest.raises(copies.NotALedger, match="noise"):
        copies.restore(noise, file)
    assert seen(file) == [(7,)]
