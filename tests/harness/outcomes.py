"""What may be tried again, what may be skipped, and the record of both. Part of `plugin`.

A test is tried a second time only if it belongs to a suite of `TIMING_SENSITIVE`. Under CI=true a
test is skipped only for a reason of `MAY_BE_SKIPPED`. Whatever else fails or is skipped fails the
run. `tests.harness.retry` reads the record of the first run.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

RECORD = Path(__file__).resolve().parents[2] / ".pytest_cache" / "outcomes.json"

TIMING_SENSITIVE = {
    "tests/contract/": "a kube-apiserver answers late while other tests use both cores",
    "tests/embedded/": "engines of several processes are started, killed and waited for",
    "tests/endtoend/": "kubelets start pods and pull images beside other tests",
    "tests/faults/": "processes are killed at random moments and must come back in time",
    "tests/frameworks/": "frameworks elect leaders and give up on slow members by the clock",
    "tests/fuzz/": "requests to a server that other tests slow down have a time limit",
    "tests/harness/": "a control plane must be ready within a limit",
    "tests/kubernetes/": "leases, probes and evictions of a real control plane go by the clock",
    "tests/load/": "memory and order are compared while other tests use both cores",
    "tests/unit/agent/": "processes are started, signalled and waited for",
    "tests/unit/cli/test_supervisor.py": "processes are started, signalled and waited for",
    "tests/unit/server/": "PostgreSQL and an object store are started and stopped beside the tests",
}
"""Path of a suite or file -> why the clock may fail its tests on a busy machine."""

MAY_BE_SKIPPED = {
    r"make soak": "a campaign of hours; `make soak` runs it",
    r"^one engine only: ": "a test for both engines, of which one has nothing of the kind",
    r"root may write everywhere": "its opposite is tested: these tests run as root",
}
"""Reason of a skip, as a regular expression -> why that is right even under CI=true."""


@dataclasses.dataclass(eq=False)
class Outcomes:
    """Of one run; on the controller of pytest-xdist it hears of all workers' tests."""

    failed: list[str] = dataclasses.field(default_factory=list)
    collection_errors: list[str] = dataclasses.field(default_factory=list)
    skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    passed: int = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collection_errors.append(report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        elif report.skipped and not hasattr(report, "wasxfail"):
            self.skipped[reason_of(report)] += 1
        elif report.passed and report.when == "call":
            self.passed += 1

    def forbidden_skips(self) -> list[str]:
        """Reasons for which nothing may be skipped under CI=true."""
        if os.environ.get("CI") != "true":
            return []
        return [r for r in self.skipped if not any(re.search(may, r) for may in MAY_BE_SKIPPED)]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.forbidden_skips() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps(self.record(int(session.exitstatus))))

    def record(self, exit_code: int) -> dict[str, Any]:
        return {
            "exitCode": exit_code,
            "passed": self.passed,
            "failed": self.failed,
            "collectionErrors": self.collection_errors,
            "forbiddenSkips": self.forbidden_skips(),
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        forbidden = self.forbidden_skips()
        for reason, count in self.skipped.most_common():
            allowed = "not allowed under CI=true" if reason in forbidden else "allowed"
            terminalreporter.write_line(f"skipped {count} ({allowed}): {reason}")


def timing_reason(nodeid: str) -> str:
    """Why the test may be tried again; empty if it may not."""
    return next((why for path, why in TIMING_SENSITIVE.items() if nodeid.startswith(path)), "")


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return str(report.longrepr)
