"""The state of a platform that runs, as a file, and what would be if it were otherwise."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes

QUEUE = """
apiVersion: windlass.dev/v1alpha1
kind: Queue
metadata: {name: support}
spec: {limit: {cpu: 300m}}
"""


class Platform:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, *arguments: object, stdin: str = "") -> Result:
        return invoke(*arguments, stdin=stdin, env={"WINDLASS_STATE": str(self.path)})

    def submit(self, name: str, queue: str) -> None:
        result = self(
            "submit", "--name", name, "--queue", queue, "--cpus", "200m", "--", "sleep", "600"
        )
        assert result.code == exit_codes.OK, result.err

    def until(self, name: str, phase: str, reason: str) -> None:
        deadline = time.monotonic() + 60
        status: dict[str, Any] = {}
        while time.monotonic() < deadline:
            status = self("get", "run", name, "--json").json.get("status", {})
            if (status.get("phase", "Queued"), status.get("reason")) == (phase, reason):
                return
            time.sleep(0.05)
        pytest.fail(f"{name} is not {phase} ({reason}) but {status}")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One run in the queue `default`, one in `support`, and one that waits there for quota."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        platform = Platform(tmp_path_factory.mktemp("platform") / "state")
        assert platform("up", "--detach", "--json").code == exit_codes.OK
        try:
            assert platform("apply", "-f", "-", stdin=QUEUE).code == exit_codes.OK
            for name, queue in (("one", "default"), ("two", "support"), ("three", "support")):
                platform.submit(name, queue)
                reason = "WaitingForQuota" if name == "three" else "MembersRunning"
                platform.until(name, "Queued" if name == "three" else "Running", reason)
            yield platform
        finally:
            platform("down", "--stop-runs")


@pytest.fixture
def state(platform: Platform, tmp_path: Path) -> Path:
    file = tmp_path / "state.json"
    result = platform("export-state", file, "--json")
    assert result.code == exit_codes.OK, result.err
    found = result.json
    assert (found["nodes"], found["running"], found["waiting"]) == (1, 2, 1)
    return file


def waited(*arguments: object) -> float:
    """Seconds that the waiting run would wait from now on."""
    result = invoke("simulate", *arguments, "--json")
    assert result.code == exit_codes.OK, result.err
    [policy] = result.json["policies"]
    assert policy["jobs"] == 3
    seconds: float = policy["wait_s"]["max"]
    return seconds


def test_what_if_the_queue_had_more(state: Path) -> None:
    as_is = waited("--state", state)
    assert as_is > 3600
    assert waited("--state", state, "--set", "queue.support.limit.cpu=+100m") < as_is - 3600


def test_what_if_there_were_fewer_or_more_nodes(platform: Platform, state: Path) -> None:
    [node] = json.loads(state.read_bytes())["facts"]["nodes"]
    pool = f"kubernetes.io/hostname={node['labels']['kubernetes.io/hostname']}"
    double = invoke("simulate", "--state", state, "--nodes-scale", f"{pool}:2", "--json")
    assert double.json["nodes"] == 2
    none = invoke("simulate", "--state", state, "--nodes-scale", "0.1", "--json")
    assert none.json["policies"][0]["finished"] == 0


def test_the_state_can_be_piped_and_keeps_what_jobs_run_to_itself(platform: Platform) -> None:
    result = platform("export-state", "-")
    assert result.code == exit_codes.OK, result.err
    assert result.json["format"] == "windlass-state/1"
    assert "sleep" not in result.out


def test_where_nothing_runs_the_remedy_is_shown(tmp_path: Path) -> None:
    result = invoke("export-state", tmp_path / "x", "--state", tmp_path / "nowhere")
    assert result.code == exit_codes.NO_SERVER
    assert "windlass up" in result.err
    assert not (tmp_path / "x").exists()
