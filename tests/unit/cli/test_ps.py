"""The rows of `windlass ps`, as the server makes them and the command prints them."""

from __future__ import annotations

import pytest

from tests.unit.cli.invoking import terminal
from tests.unit.control import build
from windlass.cli.commands.jobs import ps
from windlass.cli.lib.output import Output
from windlass.control.explain import narrative
from windlass.control.explain.service import Row
from windlass.kinds.types import run


def a_run(minimum: int | None, most: int, present: int, attempt: int = 0) -> run.Run:
    role = build.role(replicas=most, min_replicas=minimum)
    owner = build.assigned(build.in_phase(build.a_run("job", role), "Running"))
    owner.status.attempt = attempt
    assert owner.status.assignment is not None
    del owner.status.assignment.members["worker"][present:]
    return owner


def printed(owner: run.Run) -> str:
    page = {"items": [narrative.row(Row(owner, "default"))], "active": 1, "waiting": 0,
            "finished": 0, "placed": 1}  # fmt: skip
    with terminal(120):
        return ps.lines(Output(), page, False)[1]


@pytest.mark.parametrize(
    ("owner", "size", "members"),
    [
        (a_run(1, 4, 2), "2/1..4", 2),
        (a_run(1, 4, 4), "4/1..4", 4),
        (a_run(None, 4, 4), "4x", 4),
        (a_run(None, 4, 3), "3/4x", 3),  # it lost one, which is being replaced
    ],
)
def test_the_size_is_the_present_one_and_the_range(owner: run.Run, size: str, members: int) -> None:
    assert narrative.row(Row(owner, "default"))["members"] == members
    assert f" {size} " in printed(owner)


def test_a_run_that_waits_has_the_size_that_it_asks_for() -> None:
    owner = build.in_phase(build.a_run("job", build.role(replicas=4, min_replicas=1)), "Queued")
    assert narrative.row(Row(owner, "default"))["members"] == 0
    assert " 1..4 " in printed(owner)


def test_attempts_are_counted_as_in_logs_and_in_the_environment() -> None:
    assert "attempt" not in printed(a_run(None, 1, 1))
    assert "attempt 1 on n1" in printed(a_run(None, 1, 1, attempt=1))
