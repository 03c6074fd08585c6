"""Limits per user, turns of users and past use through the command line, on a real engine."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.test_cli_runs import Engine
from tests.embedded.test_cli_sharing import delete_runs, kill_server, phase, tree
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("users") / "state")
    made.ok("up", "--detach", "--no-kubectl-context", "--fake-nodes", "2", "--gpus", "4")
    for team in ("red", "blue"):
        made.ok("team", "create", team, "--no-tokens")
    try:
        yield made
    finally:
        made("down", "--stop-runs")


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    yield
    delete_runs(engine, "red", "blue")
    until(lambda: not any(item["running"] for item in tree(engine).values()))


def submit(engine: Engine, team: str, name: str, user: str, gpus: int = 1) -> Any:
    """In the name of a user, as an administrator may."""
    role = {
        "name": "worker", "command": ["sleep", "3600"],
        "resources": {"cpu": "100m", "memory": "64Mi"},
        "devices": [{"kind": "gpu", "count": gpus}],
    }  # fmt: skip
    value = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run",
        "metadata": {"name": name, "namespace": team}, "spec": {"user": user, "roles": [role]},
    }  # fmt: skip
    return engine("apply", "-N", team, "-f", "-", stdin=json.dumps(value))


def test_limits_bind_one_user_and_can_be_raised_live(engine: Engine) -> None:
    engine.ok("queue", "set", "red", "--user-limit", "gpu=2", "--user-limit", "submitted=3",
              "--user-limit", "bob:gpu=4")  # fmt: skip
    for number in range(3):
        assert submit(engine, "red", f"a{number}", "ada").code == exit_codes.OK
    refused = submit(engine, "red", "a3", "ada")
    assert refused.code == exit_codes.FORBIDDEN
    assert "user ada has 3 runs in queue red that have not ended, of at most 3" in refused.err
    for number in range(2):
        assert submit(engine, "red", f"b{number}", "bob", gpus=2).code == exit_codes.OK
    until(lambda: phase(engine, "red", "b1")[0] == "Running")
    until(lambda: phase(engine, "red", "a2") == ("Queued", "WaitingForQuota"))
    why = engine.ok("why", "a2", "-N", "red").out.replace("\n  ", " ")
    assert "user ada may hold 0 gpu more of at most 2 gpu in queue red" in why
    assert "gpu=2 submitted=3; bob: gpu=4" in engine.ok("queue", "get", "red").out
    engine.ok("queue", "set", "red", "--user-limit", "gpu=3")
    until(lambda: phase(engine, "red", "a2")[0] == "Running")
    engine.ok("delete", "run/a0", "-N", "red")
    until(lambda: submit(engine, "red", "a4", "ada").code == exit_codes.OK)


def test_users_take_turns_where_they_should(engine: Engine, tmp_path: Path) -> None:
    """ada holds all that bob wants; what comes free is bob's, although ada's run is older."""
    file = tmp_path / "tree.yaml"
    file.write_text("queues:\n  red: {namespaces: [red], userFair: true, halfLife: 7d}\n")
    engine.ok("queue", "apply", "-f", file, "--yes")
    for number in range(9):
        assert submit(engine, "red", f"a{number}", "ada").code == exit_codes.OK
    until(lambda: tree(engine)["red"]["running"] == 8)
    assert submit(engine, "red", "b0", "bob").code == exit_codes.OK
    until(lambda: tree(engine)["red"]["waiting"] == 2)
    running = [f"a{n}" for n in range(9) if phase(engine, "red", f"a{n}")[0] == "Running"]
    engine.ok("delete", f"run/{running[0]}", "-N", "red")
    until(lambda: phase(engine, "red", "b0")[0] == "Running")
    shown = engine.ok("queue", "get", "red").out
    assert "fair sharing between users" in shown
    assert "all use counts, halved in 168 h" in shown
    assert "ada: uses 87.5% of the cluster, entitled to 87.5%" in shown
    spec = engine.ok("get", "queue", "red", "--json").json["spec"]
    assert (spec["userFair"], spec["halfLife"]) == (True, "7d")


def account(engine: Engine, team: str) -> dict[str, Any]:
    found: dict[str, Any] = engine.ok("get", "queue", team, "--json").json["status"]
    return found.get("account") or {"excess": 0.0, "at": ""}


def test_past_use_survives_a_server_that_is_killed(engine: Engine, tmp_path: Path) -> None:
    for number in range(8):
        assert submit(engine, "blue", f"a{number}", "ada").code == exit_codes.OK
    until(lambda: tree(engine)["blue"]["running"] == 8)
    file = tmp_path / "tree.yaml"
    file.write_text("queues:\n  red: {namespaces: [red]}\n")
    engine.ok("queue", "apply", "-f", file, "--yes")
    names = (f"w{number}" for number in range(1000))
    assert submit(engine, "red", next(names), "bob").code == exit_codes.OK
    enough = 8.0
    """Share-seconds: far more than a scheduler counts before it writes them for the first time."""

    def excess(team: str, user: str) -> float:
        # Another run that waits: the status changes, and past use is written with it.
        submit(engine, team, next(names), user)
        time.sleep(1.0)
        return float(account(engine, team)["excess"])

    until(lambda: excess("red", "bob") < -enough, seconds=180)
    until(lambda: "ahead of its share by" in engine.ok("queue", "get", "blue").out)
    until(lambda: excess("blue", "ada") > 0)
    before, ahead = account(engine, "red"), account(engine, "blue")["excess"]
    kill_server(engine)
    assert submit(engine, "red", next(names), "bob").code == exit_codes.OK
    until(lambda: account(engine, "red")["at"] != before["at"])
    assert account(engine, "red")["excess"] < 0.9 * before["excess"]
    state = tmp_path / "state.json"
    engine.ok("export-state", state)
    accounts = {
        (each["queue"], each["user"]): each
        for each in json.loads(state.read_text())["facts"]["accounts"]
    }
    assert accounts["blue", ""]["excess"] > 0.9 * ahead > 0
