"""Studies in the ledger's database: one writer, trials that do not change after their end."""

from __future__ import annotations

import pytest

from windlass.ledger.db import study_records
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.db.study_records import OtherOwner, Trial

NOW = 1_800_000_000


def trial(number: int, state: str = "running", **body: object) -> Trial:
    return Trial(number, state, NOW, 0, "", body)


@pytest.fixture
def ledger(make) -> LedgerRepository:
    made = make()
    study_records.create(made, "red", "sweep", "ann", {"seed": 1}, NOW)
    return made


def states(ledger: LedgerRepository) -> list[str]:
    return [each["state"] for each in study_records.trials(ledger, "red", "sweep", -1, 100)]


def test_a_study_is_created_once(ledger) -> None:
    again = study_records.create(ledger, "red", "sweep", "bob", {"seed": 2}, NOW + 1)
    assert (again["user"], again["body"]) == ("ann", {"seed": 1})
    assert study_records.get(ledger, "blue", "sweep") is None


def test_one_program_at_a_time_has_the_claim(ledger) -> None:
    assert study_records.claim(ledger, "red", "sweep", "first", NOW + 15, NOW)
    assert not study_records.claim(ledger, "red", "sweep", "second", NOW + 20, NOW + 14)
    assert study_records.claim(ledger, "red", "sweep", "first", NOW + 30, NOW + 14)
    assert study_records.claim(ledger, "red", "sweep", "second", NOW + 60, NOW + 30)
    assert not study_records.claim(ledger, "red", "sweep", "first", NOW + 60, NOW + 31)


def test_only_the_writer_stores_trials(ledger) -> None:
    study_records.claim(ledger, "red", "sweep", "first", NOW + 15, NOW)
    study_records.write(ledger, "red", "sweep", "first", [trial(0), trial(1)])
    study_records.claim(ledger, "red", "sweep", "second", NOW + 60, NOW + 15)
    with pytest.raises(OtherOwner):
        study_records.write(ledger, "red", "sweep", "first", [trial(2)])
    with pytest.raises(OtherOwner):
        study_records.write(ledger, "blue", "sweep", "second", [trial(2)])
    assert states(ledger) == ["running", "running"]


def test_a_trial_that_ended_does_not_change(ledger) -> None:
    study_records.claim(ledger, "red", "sweep", "first", NOW + 15, NOW)
    study_records.write(ledger, "red", "sweep", "first", [trial(0)])
    study_records.write(ledger, "red", "sweep", "first", [trial(0, "complete", values=[1.0])])
    study_records.write(ledger, "red", "sweep", "first", [trial(0, "failed"), trial(1)])
    assert states(ledger) == ["complete", "running"]
    (first, _) = study_records.trials(ledger, "red", "sweep", -1, 100)
    assert first["body"] == {"values": [1.0]}
    found = study_records.get(ledger, "red", "sweep")
    assert found is not None
    assert found["trials"] == {"complete": 1, "running": 1}
    assert study_records.listed(ledger, "red", 10) == [found]
    assert study_records.listed(ledger, "blue", 10) == []


def test_a_study_is_deleted_with_its_trials_when_no_program_works_on_it(ledger) -> None:
    study_records.claim(ledger, "red", "sweep", "first", NOW + 15, NOW)
    study_records.write(ledger, "red", "sweep", "first", [trial(0)])
    assert not study_records.delete(ledger, "red", "sweep", NOW)
    study_records.release(ledger, "red", "sweep", "first")
    assert study_records.delete(ledger, "red", "sweep", NOW)
    assert study_records.get(ledger, "red", "sweep") is None
    assert states(ledger) == []


def test_trials_are_read_in_pages(ledger) -> None:
    study_records.claim(ledger, "red", "sweep", "first", NOW + 15, NOW)
    study_records.write(ledger, "red", "sweep", "first", [trial(number) for number in range(5)])
    page = study_records.trials(ledger, "red", "sweep", 1, 2)
    assert [each["number"] for each in page] == [2, 3]
