"""An upgrade from an earlier commit with runs in flight: nothing is lost and nothing runs twice."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.harness.earlier_commit import Earlier
from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(os.environ.get("WINDLASS_SOAK") != "1", reason="make soak runs it"),
]


def test_an_engine_is_upgraded_while_a_run_runs_and_another_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    state, gate, journal = str(tmp_path / "state"), tmp_path / "gate", tmp_path / "journal"
    earlier = Earlier(tmp_path / "earlier")

    def present(*words: str) -> Result:
        done = invoke(*words, env={"WINDLASS_STATE": state})
        assert done.code == 0, (words, done.out, done.err)
        return done

    script = f"echo begun >> {journal}; while [ ! -e {gate} ]; do sleep 0.2; done"
    cpus = str(os.cpu_count())
    earlier("up", "--detach", WINDLASS_STATE=state)
    try:
        for name in ("running", "waiting"):
            words = ("submit", "--name", name, "-c", cpus, "--", "sh", "-c", script)
            earlier(*words, WINDLASS_STATE=state)
        until(journal.exists, "the first run runs")
        earlier("down", WINDLASS_STATE=state)
        present("backup", str(tmp_path / "before.db"))
        present("up", "--detach")
        assert journal.read_text() == "begun\n", "it was not started again"
        gate.touch()
        present("wait", "running", "waiting")
        for name in ("running", "waiting"):
            status = json.loads(present("get", "run", name, "--json").out)["status"]
            assert (status["phase"], status.get("attempt", 0)) == ("Succeeded", 0), status
        assert journal.read_text() == "begun\n" * 2
        present("usage", "--verify")
    finally:
        invoke("down", "--stop-runs", env={"WINDLASS_STATE": state})
