"""`windlass up --dry-run`: what this version would change, tried on copies."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from tests.unit.cli.invoking import invoke
from windlass.ledger import service
from windlass.ledger.db import copies, repository, schema
from windlass.server import migration_check
from windlass.store.embedded import migrations


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of an engine whose store has an earlier version."""
    connection = sqlite3.connect(tmp_path / migration_check.STORE)
    connection.executescript(f"{migrations.MIGRATIONS[0]}\nPRAGMA user_version = 1;")
    connection.close()
    repository.LedgerRepository.open(f"sqlite:///{tmp_path / service.FILE}").close()
    return tmp_path


def content(state: Path) -> dict[str, str]:
    return {
        str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in state.rglob("*")
        if path.is_file() and not path.name.endswith(("-shm", "-wal"))
    }


def test_copies_are_migrated_and_nothing_is_changed(state: Path) -> None:
    before = content(state)
    store, ledger = migration_check.check(state)
    assert (store.before, store.after, store.problem) == ("1", str(migrations.VERSION), "")
    assert (ledger.before, ledger.after) == (schema.VERSION, schema.VERSION)
    assert content(state) == before


def test_the_command_says_what_would_be_migrated(state: Path) -> None:
    told = invoke("up", "--dry-run", "--state", state)
    assert told.code == 0, told.err
    assert f"store   version 1 -> {migrations.VERSION}, the copy was migrated" in told.out
    assert f"ledger  version {schema.VERSION}, nothing to migrate" in told.out


@pytest.mark.parametrize("name", [migration_check.STORE, service.FILE])
def test_data_of_a_newer_version_or_damaged_is_a_problem(state: Path, name: str) -> None:
    (state / name).write_bytes(b"this is not a database" * 1000)
    told = invoke("up", "--dry-run", "--state", state, "--json")
    assert told.code == 1
    assert sum(bool(each["problem"]) for each in told.json) == 1


def test_without_an_engine_there_is_nothing_to_migrate(tmp_path: Path) -> None:
    told = invoke("up", "--dry-run", "--state", tmp_path / "none")
    assert (told.code, "nothing to migrate" in told.out) == (0, True)
    assert not (tmp_path / "none").exists()


def test_a_backup_with_a_key_encrypts_the_ledger_too(state: Path, tmp_path: Path) -> None:
    key, file = tmp_path / "key", tmp_path / "copy"
    key.touch(mode=0o600)
    key.write_bytes(b"k" * 32)
    made = invoke("backup", file, "--key", key, "--state", state)
    assert made.code == 0, made.err
    assert b"alembic" not in (tmp_path / "copy.ledger").read_bytes()
    (state / service.FILE).unlink()
    assert invoke("restore", file, "--state", state).code == 4, "it needs the key"
    restored = invoke("restore", file, "--key", key, "--state", state)
    assert restored.code == 0, restored.err
    assert copies.version(state / service.FILE) == schema.VERSION


@pytest.mark.parametrize("broken", [migration_check.STORE, service.FILE])
def test_a_backup_that_fails_leaves_the_earlier_one(
    state: Path, tmp_path: Path, broken: str
) -> None:
    file = tmp_path / "copy"
    assert invoke("backup", file, "--state", state).code == 0
    (state / broken).write_bytes(b"this is not a database" * 1000)
    failed = invoke("backup", file, "--overwrite", "--state", state)
    assert failed.code == 1
    assert "The backup failed" in failed.err
    assert file.exists()
    assert copies.version(tmp_path / "copy.ledger") == schema.VERSION
    assert ("copy.ledger is not" in failed.err) == (broken == service.FILE)


def test_a_backup_without_usage_keeps_no_ledger_of_an_earlier_one(
    state: Path, tmp_path: Path
) -> None:
    file = tmp_path / "copy"
    assert invoke("backup", file, "--state", state).code == 0
    (state / service.FILE).unlink()
    assert invoke("backup", file, "--overwrite", "--state", state).code == 0
    assert not (tmp_path / "copy.ledger").exists()
