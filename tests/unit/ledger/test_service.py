"""The ledger as request handlers use it."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import exc

from windlass.ledger.service import Ledger
from windlass.store import errors


async def test_a_database_that_does_not_answer_is_a_passing_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")

    def locked(_: object) -> None:
        cause = sqlite3.OperationalError("database is locked")
        raise exc.OperationalError("INSERT", {"body": "confidential"}, cause)

    with caplog.at_level(logging.WARNING), pytest.raises(errors.Unavailable, match="try again"):
        await ledger.ask(locked)
    assert "database is locked" in caplog.text
    assert "confidential" not in caplog.text
    assert await ledger.ask(lambda _: 1) == 1
    await ledger.stop()


async def test_a_defect_in_a_query_is_not_hidden(tmp_path: Path) -> None:
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")

    def wrong(_: object) -> None:
        raise exc.ProgrammingError("SELECT", {}, sqlite3.OperationalError("no such table"))

    with pytest.raises(exc.ProgrammingError):
        await ledger.ask(wrong)
    await ledger.stop()
