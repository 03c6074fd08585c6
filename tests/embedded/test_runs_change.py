"""Runs that change while they live, with real processes: preempted, resized, restarted, stopped.

Jobs wait for files that the test makes, so nothing here depends on how fast the machine is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.test_skeleton import PODS, RUNS, Engine, until

SAVES = (
    'trap "echo saved >> {here}/saves; exit 0" TERM; echo attempt $WINDLASS_ATTEMPT; '
    "while [ ! -e {here}/go ]; do sleep 0.02; done"
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("engine"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def engine(shared: Engine, tmp_path: Path) -> Engine:
    """One engine for all, with a folder for each."""
    own = copy.copy(shared)
    own.here = tmp_path
    return own


def cores(engine: Engine, part: float) -> dict[str, Any]:
    """Resources of a member that takes this part of the machine."""
    (node,) = engine.get("/api/v1/nodes")["items"]
    text = node["status"]["allocatable"]["cpu"]
    milli = int(text[:-1]) if text.endswith("m") else int(text) * 1000
    return {"resources": {"cpu": f"{int(milli * part)}m", "memory": "32Mi"}}


def pods(engine: Engine, name: str) -> dict[str, dict[str, Any]]:
    """By index."""
    found = engine.get(f"{PODS}?labelSelector=windlass.dev/run={name}")["items"]
    return {pod["metadata"]["labels"]["windlass.dev/index"]: pod for pod in found}


def change(engine: Engine, name: str, spec: dict[str, Any]) -> None:
    engine.write("PATCH", f"{RUNS}/{name}", {"spec": spec})


def test_a_better_run_takes_the_room_and_gives_it_back(engine: Engine) -> None:
    whole = cores(engine, 0.9)
    engine.submit("low", SAVES, role=whole, priority=10)
    engine.wait_phase("low", "Running")
    engine.submit("high", "echo high", role=whole, priority=90)
    engine.wait_phase("high", "Succeeded")
    assert (engine.here / "saves").read_text() == "saved\n"
    again = engine.wait_phase("low", "Running")
    assert (again["attempt"], again.get("retries", 0)) == (1, 0)
    (engine.here / "go").touch()
    engine.wait_phase("low", "Succeeded")
    assert engine.log("low") == "attempt 1\n"


def test_a_member_that_fails_starts_again_alone(engine: Engine) -> None:
    script = (
        "echo $WINDLASS_INDEX >> {here}/starts; if [ $WINDLASS_INDEX = 1 ] && "
        "[ $(grep -c 1 {here}/starts) = 1 ]; then exit 3; fi; "
        "while [ ! -e {here}/go ]; do sleep 0.02; done"
    )
    engine.submit("restarted", script, role={"replicas": 2}, restart="pod")
    starts = engine.here / "starts"
    until(
        lambda: starts.exists() and sorted(starts.read_text().split()) == ["0", "1", "1"],
        "member 1 has started again",
    )
    (engine.here / "go").touch()
    status = engine.wait_phase("restarted", "Succeeded")
    assert (status.get("attempt", 0), status["restarts"]) == (0, 1)


def test_its_user_makes_a_run_smaller_and_larger_while_it_runs(engine: Engine) -> None:
    role = {"replicas": 3, "minReplicas": 1, "resize": "live"}
    engine.submit("resized", SAVES, role=role)
    engine.wait_phase("resized", "Running")
    first = pods(engine, "resized")["0"]["metadata"]["uid"]
    spec = engine.get(f"{RUNS}/resized")["spec"]["roles"][0]
    change(engine, "resized", {"roles": [{**spec, "replicas": 1}]})
    until(lambda: set(pods(engine, "resized")) == {"0"}, "one member is left")
    until(lambda: len((engine.here / "saves").read_text().split()) == 2, "two have saved")
    change(engine, "resized", {"roles": [{**spec, "replicas": 2}]})
    until(lambda: engine.status("resized").get("members") == {"worker": 2}, "another has joined")
    assert pods(engine, "resized")["0"]["metadata"]["uid"] == first, "who stays is left alone"
    (engine.here / "go").touch()
    assert engine.wait_phase("resized", "Succeeded").get("attempt", 0) == 0


def test_a_run_that_its_user_stops_stays_as_a_record(engine: Engine) -> None:
    engine.submit("stopped", SAVES, checkpoint={"grace": "1h"})
    engine.wait_phase("stopped", "Running")
    change(engine, "stopped", {"stop": True})
    status = engine.wait_phase("stopped", "Stopped")
    assert status["reason"] == "UserStopped"
    assert (engine.here / "saves").exists()


def test_a_run_that_is_held_saves_and_goes_on_when_it_is_released(engine: Engine) -> None:
    engine.submit("held", SAVES)
    engine.wait_phase("held", "Running")
    change(engine, "held", {"suspend": True})
    engine.wait_phase("held", "Queued")
    assert (engine.here / "saves").exists()
    change(engine, "held", {"suspend": False})
    (engine.here / "go").touch()
    assert engine.wait_phase("held", "Succeeded")["attempt"] == 1
