"""Which failed runs may be tried again, and which must stay failed."""

from __future__ import annotations

import pytest

from tests.harness import outcomes, retry

LATE = "tests/kubernetes/test_replicas.py::test_a_leader_goes"
STEADY = "tests/unit/core/test_cycle.py::test_a_workload_starts"


def record(*failed: str, **more: object) -> dict[str, object]:
    usual = {"exitCode": 1, "passed": 7, "collectionErrors": [], "forbiddenSkips": []}
    return {**usual, "failed": list(failed), **more}


def test_only_late_tests_are_tried_again() -> None:
    assert retry.refusal(record(LATE)) == ""


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (record(LATE, STEADY), "do not depend on time"),
        (record(LATE, collectionErrors=["tests/unit/x.py"]), "could not be collected"),
        (record(LATE, forbiddenSkips=["no Go"]), "skipped that must run"),
        (record(LATE, exitCode=2), "exit code 2"),
        (record(), "exit code 1"),
        (record(*[f"{LATE}[{n}]" for n in range(13)]), "at most 12"),
    ],
)
def test_anything_else_stays_failed(made: dict[str, object], why: str) -> None:
    assert why in retry.refusal(made)


def report(nodeid: str, outcome: str, **more: object) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("x.py", 1, "x"), {}, outcome, more.get("longrepr"), "call")


def test_a_skip_without_a_permitted_reason_fails_a_run_of_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = outcomes.Outcomes()
    for why in ("Skipped: make soak runs it", "Skipped: no Go"):
        made.pytest_runtest_logreport(report(STEADY, "skipped", longrepr=("x.py", 1, why)))
    monkeypatch.delenv("CI", raising=False)
    assert made.forbidden_skips() == []
    monkeypatch.setenv("CI", "true")
    assert made.forbidden_skips() == ["no Go"]


def test_a_test_that_fails_in_two_phases_counts_once() -> None:
    made = outcomes.Outcomes()
    for _ in range(2):
        made.pytest_runtest_logreport(report(STEADY, "failed"))
    assert made.record(1)["failed"] == [STEADY]


def test_every_suite_that_may_be_late_exists() -> None:
    root = outcomes.RECORD.parents[1]
    assert [path for path in outcomes.TIMING_SENSITIVE if not (root / path).exists()] == []
