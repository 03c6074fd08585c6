"""The ledger end to end: what runs held is written down exactly once, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes

SMALL = ("--cpus", "100m", "--memory", "64Mi")
PRICES = {
    "apiVersion": "windlass.dev/v1alpha1",
    "kind": "PriceList",
    "metadata": {"name": "prices"},
    "spec": {
        "effectiveFrom": "2026-01-01T00:00:00Z",
        "entries": [{"device": "machine", "rented": {"perHour": "3.60"}}],
    },
}


class Engine:
    def __init__(self, state: Path) -> None:
        self.state = state
        self.environment = {"WINDLASS_STATE": str(state)}

    def __call__(self, *arguments: object) -> Result:
        return invoke(*arguments, env=self.environment)

    def ok(self, *arguments: object) -> Result:
        result = self(*arguments)
        assert result.code == exit_codes.OK, result.err
        return result

    def kill_server(self) -> None:
        """With SIGKILL; its supervisor starts another."""
        pid = self._pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: self._pid() not in (0, pid), "another server runs")
        until(lambda: self("get", "queues").code == exit_codes.OK, "it answers")

    def _pid(self) -> int:
        try:
            return int(json.loads((self.state / "server.json").read_text())["pid"])
        except (OSError, ValueError):
            return 0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = Engine(tmp_path / "state")
    made.ok("up", "--detach", "--no-kubectl-context")
    try:
        yield made
    finally:
        made("down", "--stop-runs")


def usage(engine: Engine, *more: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.ok("usage", "--json", *more).json
    return found


def by_run(engine: Engine) -> dict[str, Any]:
    return {row["labels"]["run"]: row for row in usage(engine, "--by", "run")["rows"]}


def verdict(engine: Engine) -> dict[str, Any]:
    found: dict[str, Any] = engine.ok("usage", "--verify", "--json").json
    return found


def test_killed_between_any_two_steps_every_run_is_written_down_once(engine, tmp_path):
    prices = tmp_path / "prices.json"
    prices.write_text(json.dumps(PRICES))
    engine.ok("apply", "-f", str(prices))
    phases = ("Queued", "Starting", "Running", "Succeeded")
    for number, phase in enumerate(phases):
        name = f"job{number}"
        engine.ok("submit", "-n", name, *SMALL, "--", "sleep", "2")
        until(lambda n=name, p=phase: _reached(engine, n, p), f"{name} is {phase}")
        engine.kill_server()
    for number in range(len(phases)):
        engine.ok("wait", f"job{number}", "--timeout", "120s")
    names = [f"job{number}" for number in range(len(phases))]
    until(lambda: sorted(by_run(engine)) == names, "what each used is told")
    for number in range(len(phases)):
        run = json.loads(engine.ok("get", "run", f"job{number}", "--json").out)
        held = [each for each in run["status"]["held"] if each["attempt"] == 0]
        assert len(held) == 1
        assert held[0]["until"] >= held[0]["since"]
    # A run has ended before the ledger has written so: until then what it held is open.
    until(lambda: not any(map(verdict(engine).get, ("ghosts", "missing"))), "all is written down")
    assert verdict(engine)["holds"]
    before = by_run(engine)
    engine.kill_server()
    until(lambda: by_run(engine), "the ledger answers")
    assert by_run(engine) == before


def test_a_run_that_is_deleted_is_kept_until_it_is_written_down_and_its_usage_stays(engine):
    engine.ok(
        "run", "-n", "gone", *SMALL, "--", "true"
    )  # less than a second: it is recorded all the same
    engine.ok("delete", "run", "gone")
    until(lambda: "gone" not in engine.ok("get", "runs", "-q").out, "it is gone")
    # Seconds count when they are over.
    until(lambda: list(by_run(engine)) == ["gone"], "what it used is told")


def test_a_running_run_that_is_deleted_ends_and_its_usage_stays(engine):
    engine.ok("submit", "-n", "long", *SMALL, "--", "sh", "-c", "sleep 1; echo on; sleep 1000")
    until(lambda: "on" in engine("logs", "long").out, "it has run for a second")
    engine.ok("delete", "run", "long")
    until(lambda: "long" not in engine.ok("get", "runs", "-q").out, "it is gone")
    # Seconds count when they are over.
    until(lambda: list(by_run(engine)) == ["long"], "what it used is told")


def test_a_server_killed_while_a_run_is_deleted_writes_it_down_once_and_lets_it_go(engine):
    for name in ("one", "two", "three"):
        engine.ok("submit", "-n", name, *SMALL, "--", "sleep", "1000")
        until(lambda n=name: _reached(engine, n, "Running"), f"{name} runs")
        engine.ok("delete", "run", name)
        engine.kill_server()
        until(lambda n=name: n not in engine.ok("get", "runs", "-q").out, f"{name} is gone")
    until(lambda: sorted(by_run(engine)) == ["one", "three", "two"], "what each used is told")
    found = verdict(engine)
    assert found["holds"]
    assert not any(map(found.get, ("ghosts", "missing")))


def test_without_a_ledger_nothing_hangs(engine):
    engine.ok("submit", "-n", "before", *SMALL, "--", "sleep", "1")
    engine.ok("wait", "before", "--timeout", "60s")
    engine.ok("down")
    engine.environment["WINDLASS_LEDGER"] = "off"
    engine.ok("up", "--detach", "--no-kubectl-context")
    engine.ok("run", "-n", "after", *SMALL, "--", "true")
    engine.ok("delete", "run", "before", "after")
    until(lambda: engine.ok("get", "runs", "-q").out.strip() == "", "both are gone")
    assert "has no ledger" in engine("usage").err


def _reached(engine: Engine, name: str, phase: str) -> bool:
    found = json.loads(engine.ok("get", "run", name, "--json").out)["status"]
    order = ("Queued", "Starting", "Running", "Succeeded")
    return order.index(found.get("phase", "Queued")) >= order.index(phase)
