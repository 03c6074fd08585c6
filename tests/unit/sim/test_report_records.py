"""The file with one row for each attempt."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.unit.sim.building import job, outcome, scenario
from windlass.core.model.types import Queue
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.report import records
from windlass.sim.scenario import Outage


def read(path: Path, *outcomes: Outcome) -> list[dict[str, str]]:
    records.write(path, outcomes)
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def eventful() -> Outcome:
    """A job is preempted, one fails, one loses its node, one grows, one never starts."""
    return outcome(
        scenario(
            job("low", 0, 400, gpus=8, priority=10, user="ada"),
            job("high", 100, 50, gpus=8, priority=90),
            job("fails", 0, 300, gpus=8, fails=(150.0,)),
            job("grows", 2000, 500, gpus=2, most=4),
            job("never", 0, 10, gpus=9),
            nodes=2,
            outages=(Outage("node-0001", 2100, 2200), Outage("node-0000", 2100, 2200)),
            queues=(Queue("default", order="priority"),),
        )
    )


def test_every_attempt_is_a_row_that_says_how_it_ended(tmp_path: Path) -> None:
    found = read(tmp_path / "attempts.csv", eventful())
    ends: dict[str, list[str]] = {}
    for row in found:
        ends.setdefault(row["job"], []).append(row["outcome"])
        assert row["attempt"] == str(len(ends[row["job"]]))
        assert (row["policy"], row["queue"]) == ("as-is", "default")
        assert row["user"] == ("ada" if row["job"] == "low" else "")
    assert ends["never"] == ["waiting"]
    assert ends["high"] == ["finished"]
    assert ends["fails"][0] in ("failed", "preempted")
    assert "failed" in ends["fails"]
    assert ends["grows"] == ["node lost", "finished"]
    assert sum(each.count("preempted") for each in ends.values()) == 1
    [never] = [row for row in found if row["job"] == "never"]
    assert (never["started"], never["ended"], never["nodes"], never["device_seconds"]) == (
        "", "", "", "0",
    )  # fmt: skip


def test_device_seconds_add_up_to_what_was_held(tmp_path: Path) -> None:
    played = eventful()
    found = read(tmp_path / "attempts.csv", played)
    total = sum(float(row["device_seconds"]) for row in found)
    assert total == pytest.approx(played.timeline.integral(played.timeline.used) / 1000)
    assert total == pytest.approx(played.shares.by_queue()["default"].device_seconds)
    grown = [row for row in found if row["job"] == "grows"]
    assert all(float(row["devices"]) == 8 for row in grown), "four members of two GPUs each"


def test_rows_say_what_became_of_a_reserved_start(tmp_path: Path) -> None:
    played = outcome(
        scenario(job("first", 0, 100, gpus=5), job("head", 1, 100), job("small", 2, 50, gpus=2))
    )
    rows = {row["job"]: row for row in read(tmp_path / "attempts.csv", played)}
    assert (rows["head"]["reserved_start"], rows["head"]["started"]) == ("100", "100")
    assert rows["head"]["reservation"] == "kept"
    assert (rows["small"]["reserved_start"], rows["small"]["reservation"]) == ("", "")
    assert rows["head"]["nodes"] == "node-0000"


def test_a_withdrawn_reservation_says_why(tmp_path: Path) -> None:
    played = outcome(
        scenario(
            job("first", 0, 100, gpus=5), job("head", 1, 100), job("high", 50, 100, priority=90)
        )
    )
    rows = {row["job"]: row for row in read(tmp_path / "attempts.csv", played)}
    assert rows["head"]["reservation"] == "withdrawn"
    assert "priority 90" in rows["head"]["withdrawn_because"]
    assert rows["high"]["withdrawn_because"] == ""


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    (target / "full").touch()
    with pytest.raises(OSError, match="folder"):
        records.write(target, [eventful()])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder"]
