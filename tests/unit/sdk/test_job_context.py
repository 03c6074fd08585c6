"""What a program says from inside a job."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from windlass.injob.library.windlass import job_context


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "progress"
    monkeypatch.setenv("WINDLASS_PROGRESS", str(path))
    monkeypatch.setattr(job_context, "_reported", job_context._Reported())
    return path


def test_a_report_replaces_what_it_names_and_keeps_the_rest(told: Path) -> None:
    job_context.report(0.25, {"loss": 2}, accuracy=0.5)
    job_context.report(loss=1.5)
    assert json.loads(told.read_text()) == {
        "fraction": 0.25, "metrics": {"loss": 1.5, "accuracy": 0.5},
    }  # fmt: skip
    assert [path.name for path in told.parent.iterdir()] == ["progress"]


def test_a_checkpoint_is_reported_with_its_time_and_stays_in_later_reports(told: Path) -> None:
    job_context.report(checkpointed=True)
    job_context.report(0.5)
    found = json.loads(told.read_text())
    assert found["fraction"] == 0.5
    at = datetime.datetime.fromisoformat(found["checkpoint"])
    assert abs((datetime.datetime.now(datetime.UTC) - at).total_seconds()) < 3600


def test_progress_ends_at_one(told: Path) -> None:
    seen = [
        (item, json.loads(told.read_text())["fraction"]) for item in job_context.progress("abcd")
    ]
    assert seen[0] == ("a", 0.0)
    assert json.loads(told.read_text()) == {"fraction": 1.0}
    assert list(job_context.progress(iter([1, 2]))) == [1, 2]


def test_numbers_that_json_does_not_know_are_left_out(told: Path) -> None:
    job_context.report(0.5, loss=float("nan"))
    assert json.loads(told.read_text()) == {"fraction": 0.5}


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_a_fraction_goes_from_0_to_1(told: Path, fraction: float) -> None:
    with pytest.raises(ValueError, match="it must be from 0 to 1"):
        job_context.report(fraction)


def test_a_full_disk_does_not_fail_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WINDLASS_PROGRESS", str(tmp_path / "no" / "such" / "folder"))
    job_context.report(0.5)


def test_outside_a_job_a_program_is_its_only_member() -> None:
    me = job_context.context({})
    assert (me.inside, me.rank, me.size, me.hosts, me.checkpoint) == (False, 0, 1, (), None)


def test_a_member_knows_itself() -> None:
    me = job_context.context({
        "WINDLASS_RUN": "train", "WINDLASS_ATTEMPT": "2", "WINDLASS_ROLE": "worker",
        "WINDLASS_INDEX": "1", "WINDLASS_HOSTS": "a,b", "WINDLASS_CHECKPOINT": "/ck",
        "WORLD_SIZE": "2", "RANK": "1",
    })  # fmt: skip
    assert me == job_context.Context("train", 2, "worker", 1, 1, 2, ("a", "b"), Path("/ck"))
