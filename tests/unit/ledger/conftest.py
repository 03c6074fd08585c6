"""Ledgers to write in: every test that asks for one runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import postgres, processes
from windlass.ledger.db.repository import LedgerRepository

_numbers = itertools.count()
Make = Callable[[], LedgerRepository]


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="windlass-pg-", dir="/tmp"))
    processes.remove_at_exit(folder)
    try:
        postgres.install()
        made = postgres.Postgres(folder)
        made.start()
    except postgres.NoPostgresError as problem:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no PostgreSQL here: {problem}")
    yield made
    made.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], str]:
    """Addresses of new ledgers."""

    def fresh() -> str:
        name = f"ledger_{next(_numbers)}"
        if request.param == "sqlite":
            return f"sqlite:///{tmp_path / name}"
        found: postgres.Postgres = request.getfixturevalue("server")
        return found.url(name)

    return fresh


@pytest.fixture
def make(url: Callable[[], str]) -> Iterator[Make]:
    """Opens new ledgers."""
    opened: list[LedgerRepository] = []

    def open_one() -> LedgerRepository:
        opened.append(LedgerRepository.open(url()))
        return opened[-1]

    yield open_one
    for repository in opened:
        repository.close()


@pytest.fixture
def repository(make: Make) -> LedgerRepository:
    return make()
