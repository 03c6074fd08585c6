"""Runs that change while they live, with real processes: preempted, resized, restarted, stopped.

Jobs wait for files that the test makes, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.embedded.test_first_log_line import PODS, RUNS
from tests.endtoend.engines import Embedded
from tests.harness.waiting import until

SAVES = (
    'trap "echo saved >> {here}/saves; exit 0" TERM; echo attempt $WINDLASS_ATTEMPT; '
    "while [ ! -e {here}/go ]; do sleep 0.02; done"
)


@pytest.fixture
def here(engine: Embedded, tmp_path: Path) -> Embedded:
    """One engine for all, with a folder for each."""
    return engine.at(tmp_path)


def cores(engine: Embedded, part: float) -> dict[str, Any]:
    """Resources of a member that takes this part of the machine."""
    text = engine.node()["status"]["allocatable"]["cpu"]
    milli = int(text[:-1]) if text.endswith("m") else int(text) * 1000
    return {"resources": {"cpu": f"{int(milli * part)}m", "memory": "32Mi"}}


def pods(engine: Embedded, name: str) -> dict[str, dict[str, Any]]:
    """By index."""
    found = engine.get(f"{PODS}?labelSelector=windlass.dev/run={name}")["items"]
    return {pod["metadata"]["labels"]["windlass.dev/index"]: pod for pod in found}


def change(engine: Embedded, name: str, spec: dict[str, Any]) -> None:
    engine.write("PATCH", f"{RUNS}/{name}", {"spec": spec})


def test_a_better_run_takes_the_capacity_and_gives_it_back(here: Embedded) -> None:
    whole = cores(here, 0.9)
    here.submit("low", SAVES, role=whole, priority=10)
    here.wait_phase("low", "Running")
    here.submit("high", "echo high", role=whole, priority=90)
    here.wait_phase("high", "Succeeded")
    assert (here.here / "saves").read_text() == "saved\n"
    again = here.wait_phase("low", "Running")
    assert (again["attempt"], again.get("retries", 0)) == (1, 0)
    (here.here / "go").touch()
    here.wait_phase("low", "Succeeded")
    assert here.log("low") == "attempt 1\n"


def test_a_member_that_fails_starts_again_alone(here: Embedded) -> None:
    script = (
        "echo $WINDLASS_INDEX >> {here}/starts; if [ $WINDLASS_INDEX = 1 ] && "
        "[ $(grep -c 1 {here}/starts) = 1 ]; then exit 3; fi; "
        "while [ ! -e {here}/go ]; do sleep 0.02; done"
    )
    here.submit("restarted", script, role={"replicas": 2}, restart="pod")
    starts = here.here / "starts"
    until(
        lambda: starts.exists() and sorted(starts.read_text().split()) == ["0", "1", "1"],
        "member 1 has started again",
    )
    (here.here / "go").touch()
    status = here.wait_phase("restarted", "Succeeded")
    assert (status.get("attempt", 0), status["restarts"]) == (0, 1)


def test_its_user_makes_a_run_smaller_and_larger_while_it_runs(here: Embedded) -> None:
    role = {"replicas": 3, "minReplicas": 1, "resize": "live"}
    here.submit("resized", SAVES, role=role)
    here.wait_phase("resized", "Running")
    first = pods(here, "resized")["0"]["metadata"]["uid"]
    spec = here.get(f"{RUNS}/resized")["spec"]["roles"][0]
    change(here, "resized", {"roles": [{**spec, "replicas": 1}]})
    until(lambda: set(pods(here, "resized")) == {"0"}, "one member is left")
    until(lambda: len((here.here / "saves").read_text().split()) == 2, "two have saved")
    change(here, "resized", {"roles": [{**spec, "replicas": 2}]})
    until(lambda: here.status("resized").get("members") == {"worker": 2}, "another has joined")
    assert pods(here, "resized")["0"]["metadata"]["uid"] == first, "who stays is left alone"
    (here.here / "go").touch()
    assert here.wait_phase("resized", "Succeeded").get("attempt", 0) == 0


def test_a_run_that_its_user_stops_stays_as_a_record(here: Embedded) -> None:
    here.submit("stopped", SAVES, checkpoint={"grace": "1h"})
    here.wait_phase("stopped", "Running")
    change(here, "stopped", {"stop": True})
    status = here.wait_phase("stopped", "Stopped")
    assert status["reason"] == "UserStopped"
    assert (here.here / "saves").exists()


def test_a_run_that_is_held_saves_and_goes_on_when_it_is_released(here: Embedded) -> None:
    here.submit("held", SAVES)
    here.wait_phase("held", "Running")
    change(here, "held", {"suspend": True})
    here.wait_phase("held", "Queued")
    assert (here.here / "saves").exists()
    change(here, "held", {"suspend": False})
    (here.here / "go").touch()
    assert here.wait_phase("held", "Succeeded")["attempt"] == 1
