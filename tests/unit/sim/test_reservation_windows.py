"""Advance reservations in simulations: what a file means, and what a cluster does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.sim import building
from windlass.sim.inputs import loader
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.scenario import BadInput, Scenario, with_runtimes

CLUSTER = """
name: a window
nodes: [{count: 2, gpus: 8, name: n, labels: {row: b}}]
queues: [{name: a}, {name: b}]
costs: {grace: 1m, checkpoint: 0s, restart: 0s}
"""


def read(folder: Path, text: str) -> Scenario:
    path = folder / "described.yaml"
    path.write_text(CLUSTER + text)
    return loader.open_source(str(path))


def play(scenario: Scenario, runtimes: str = "as-given") -> Outcome:
    """With every decision held against the rules."""
    return building.outcome(with_runtimes(scenario, runtimes))


def times(outcome: Outcome) -> dict[str, tuple[float | None, float | None]]:
    return {each.job.workload.key: (each.first_start, each.end) for each in outcome.records}


MAINTENANCE = """
jobs:
- {name: long, queue: a, gpus: 8, members: 2, duration: 3h}
- {name: short, queue: b, gpus: 8, members: 1, duration: 1h, at: 1s}
reservations:
- {name: cooling, from: 2h, duration: 4h, nodes: [n-0000, n-0001]}
"""


def test_what_would_run_into_a_maintenance_window_waits_until_it_is_over(tmp_path: Path) -> None:
    found = times(play(read(tmp_path, MAINTENANCE)))
    assert found == {"long": (6 * 3600, 9 * 3600), "short": (1.0, 3601.0)}


def test_of_unknown_length_it_runs_before_is_stopped_in_time_and_goes_on_after(
    tmp_path: Path,
) -> None:
    outcome = play(read(tmp_path, MAINTENANCE), "unknown")
    [long] = [each for each in outcome.records if each.job.workload.key == "long"]
    assert (long.first_start, long.preempted) == (0.0, 1)
    assert long.saved == 2 * 3600, "it worked until its grace was over, at the minute"
    assert long.end is not None
    assert long.end >= 7 * 3600


def test_a_reservation_of_amounts_is_there_for_its_queue_at_the_minute(tmp_path: Path) -> None:
    text = """
load: {jobs: 300, over: 12h, seed: 3, mix: {shares: 0.0, cpu_only: 0.0}}
jobs: [{name: class, queue: a, gpus: 8, duration: 1h, at: 6h, user: ann}]
reservations:
- {name: course, from: 6h, duration: 2h, amounts: {gpu: 8}, for: {users: [ann]}}
"""
    scenario = read(tmp_path, text)
    assert times(play(scenario))["class"][0] == 6 * 3600
    without = read(tmp_path, text.partition("reservations:")[0])
    later = times(play(without))["class"][0]
    assert later is None or later > 6 * 3600, "else the reservation was not needed"


def test_it_recurs(tmp_path: Path) -> None:
    text = """
jobs: [{name: long, queue: a, gpus: 8, members: 2, duration: 90m}]
reservations:
- {name: nightly, from: 1h, every: 2h, times: 3, duration: 1h, selector: {row: b}}
"""
    scenario = read(tmp_path, text)
    starts = [window.start for window in scenario.facts.advance]
    assert starts == [3600, 3 * 3600, 5 * 3600]
    assert times(play(scenario))["long"][0] == 6 * 3600


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{name: x, from: 1h, duration: 1h, nodes: [n-0007]}", "there is no node 'n-0007'"),
        ("{name: x, from: 1h, duration: 1h, amounts: {gpu: 1}, for: {queues: [c]}}", "queue 'c'"),
        ("{name: x, from: 1h, duration: 1h}", "neither nodes nor amounts"),
        ("{name: x, from: 1h, duration: 0, amounts: {gpu: 1}}", "not after its start"),
        ("{name: x, from: 1h, duration: 2h, every: 1h, times: 2, amounts: {gpu: 1}}", "`every`"),
        ("{name: x, from: 1h, to: 2h, amounts: {gpu: 1}}", "to"),
    ],
)
def test_what_is_wrong_with_it_is_said(tmp_path: Path, line: str, told: str) -> None:
    jobs = "jobs: [{name: j, queue: a}]\n"
    with pytest.raises(BadInput, match=told):
        read(tmp_path, f"{jobs}reservations:\n- {line}\n")
