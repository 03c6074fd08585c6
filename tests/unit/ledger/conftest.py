"""Ledgers to write in: every test that asks for one runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import postgres, processes
from windlass.ledger.book import Book

_numbers = itertools.count()
Make = Callable[[], Book]


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
    opened: list[Book] = []

    def open_one() -> Book:
        opened.append(Book.open(url()))
        return opened[-1]

    yield open_one
    for book in opened:
        book.close()


@pytest.fixture
def book(make: Make) -> Book:
    return make()
