"""The sharing tree through the command line, on a real engine with nodes that pretend."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.embedded.test_cli_runs import Engine
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes

GPU = ("--gpus", "1", "--cpus", "100m", "--memory", "64Mi")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("sharing") / "state")
    made.ok("up", "--detach", "--no-kubectl-context", "--fake-nodes", "2", "--gpus", "4")
    made.ok("queue", "create", "company", "--guarantee", "gpu=8")
    for team in ("red", "blue"):
        made.ok("team", "create", team, "--parent", "company", "--guarantee", "gpu=4",
                "--no-tokens")  # fmt: skip
    try:
        yield made
    finally:
        made("down")


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    yield
    for team in ("red", "blue"):
        engine.ok("queue", "resume", team)
    delete_runs(engine, "red", "blue")
    until(lambda: not any(item["running"] for item in tree(engine).values()))


def delete_runs(engine: Engine, *teams: str) -> None:
    """Deletes all runs of the teams; returns when none is left."""
    for team in teams:
        if names := engine.ok("get", "runs", "-N", team, "-q").out.split():
            engine("delete", "runs", *(name.rpartition("/")[2] for name in names), "-N", team)
    for team in teams:
        until(lambda team=team: not engine.ok("get", "runs", "-N", team, "-q").out.split())


def tree(engine: Engine) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in engine.ok("queue", "tree", "--json").json["items"]}


def submit(engine: Engine, team: str, name: str, *flags: str) -> None:
    engine.ok("submit", "-N", team, "-n", name, *(flags or GPU), "--", "sleep", "3600")


def phase(engine: Engine, team: str, name: str) -> tuple[str, str]:
    status = engine.ok("get", "run", name, "-N", team, "--json").json["status"]
    return status.get("phase", "Queued"), status.get("reason", "")


def test_the_tree_shows_borrowing_and_lending_queues_in_80_columns(engine: Engine) -> None:
    for number in range(6):
        submit(engine, "red", f"r{number}")
    until(lambda: tree(engine)["red"]["running"] == 6)
    found = tree(engine)
    assert (found["red"]["used"]["gpu"], found["red"]["borrowed"]["gpu"]) == ("6", "2")
    assert found["blue"]["lent"] == {"gpu": "2"}
    assert (found["company"]["depth"], found["red"]["depth"]) == (0, 1)
    shown = engine.ok("queue", "tree").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "No changes pending." in shown


def test_a_plan_of_a_tree_file_names_runs_that_start_and_stop_before_it_is_applied(
    engine: Engine, tmp_path: Path
) -> None:
    for number in range(4):
        submit(engine, "red", f"r{number}")
    until(lambda: tree(engine)["red"]["running"] == 4)
    # Times are in seconds. These four are the elder, hold one node and are guaranteed.
    second = int(time.time())
    until(lambda: int(time.time()) > second)
    for number in range(4, 8):
        submit(engine, "red", f"r{number}")
    until(lambda: tree(engine)["red"]["running"] == 8)
    submit(engine, "blue", "b0", *("--gpus", "4", "--cpus", "1", "--memory", "64Mi"))
    until(lambda: phase(engine, "blue", "b0")[0] == "Running")
    submit(engine, "blue", "b1")
    until(lambda: phase(engine, "blue", "b1")[1] == "WaitingForCapacity")
    text = engine.ok("queue", "tree", "-o", "yaml").out
    same, more = tmp_path / "same.yaml", tmp_path / "more.yaml"
    same.write_text(text)
    assert engine.ok("queue", "apply", "-f", same, "--json").json["changes"] == []
    more.write_text(
        "queues:\n  company:\n    guarantee: {gpu: 8}\n    queues:\n"
        "      red: {guarantee: {gpu: 3}, namespaces: [red]}\n"
        "      blue: {guarantee: {gpu: 5}, namespaces: [blue]}\n"
    )
    dry = engine.ok("queue", "apply", "-f", more, "--dry-run")
    assert "would be stopped: red/r" in dry.out
    assert "would start: blue/b1" in dry.out
    assert "blue gains: is guaranteed 5 gpu instead of 4" in dry.out
    assert phase(engine, "blue", "b1")[0] == "Queued"
    assert engine("queue", "apply", "-f", more).code == exit_codes.USAGE  # no server answers
    engine.ok("queue", "apply", "-f", more, "--yes")
    until(lambda: phase(engine, "blue", "b1")[0] == "Running")
    assert tree(engine)["red"]["running"] == 3
    engine.ok("queue", "apply", "-f", same, "--yes")
    until(lambda: len(tree(engine)) == 4)


def test_pausing_draining_and_moving_lose_no_run(engine: Engine) -> None:
    submit(engine, "red", "here")
    until(lambda: phase(engine, "red", "here")[0] == "Running")
    engine.ok("queue", "pause", "red")
    submit(engine, "red", "later")
    until(lambda: phase(engine, "red", "later") == ("Queued", "QueuePaused"))
    assert "paused" in engine.ok("queue", "tree").out
    engine.ok("queue", "drain", "red", "--now", "--wait")
    assert phase(engine, "red", "here")[0] == "Queued"
    assert engine("move", "-N", "red", "here", "--queue", "blue").code == exit_codes.FORBIDDEN
    engine.ok("move", "-N", "red", "here", "--queue", "default")
    engine.ok("set-priority", "-N", "red", "here", "later", "80")
    until(lambda: phase(engine, "red", "here")[0] == "Running")
    assert tree(engine)["default"]["running"] == 1
    engine.ok("queue", "resume", "red")
    until(lambda: phase(engine, "red", "later")[0] == "Running")
    spec = engine.ok("get", "run", "later", "-N", "red", "--json").json["spec"]
    assert spec["priority"] == 80


def test_a_server_that_is_killed_after_each_change_loses_no_run_and_no_change(
    engine: Engine,
) -> None:
    submit(engine, "red", "here")
    until(lambda: phase(engine, "red", "here")[0] == "Running")
    engine.ok("queue", "drain", "red", "--now")
    kill_server(engine)
    until(lambda: phase(engine, "red", "here") == ("Queued", "QueuePaused"))
    engine.ok("move", "-N", "red", "here", "--queue", "default")
    kill_server(engine)
    until(lambda: phase(engine, "red", "here")[0] == "Running")
    engine.ok("set-priority", "-N", "red", "here", "80")
    engine.ok("queue", "resume", "red")
    kill_server(engine)
    submit(engine, "red", "later")
    until(lambda: phase(engine, "red", "later")[0] == "Running")
    run = engine.ok("get", "run", "here", "-N", "red", "--json").json
    assert (run["spec"]["queue"], run["spec"]["priority"]) == ("default", 80)
    assert run["status"]["phase"] == "Running"
    assert run["status"]["attempt"] == 1, "stopped once by the drain, and never again"


def kill_server(engine: Engine) -> None:
    """kill -9; returns when another answers."""
    description = engine.state / "server.json"
    before = json.loads(description.read_text())["pid"]
    os.kill(before, signal.SIGKILL)

    def answers() -> bool:
        other = description.exists() and json.loads(description.read_text())["pid"] != before
        return other and engine("queue", "tree", "-q").code == exit_codes.OK

    until(answers, seconds=180)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("queues: 3", "mapping"),
        ("queues: {a: {parent: b}}", "leave out parent"),
        ("queues: {a: {wieght: 3}}", "did you mean weight"),
        ("queues: {a: {weight: 0}}", "at least 1"),
        ("queues: {a: {guarantee: {gpu: 2}, queues: {b: {guarantee: {gpu: 3}}}}}", "below a (b)"),
        ("queues: {a: {namespaces: [red]}}", "amespace red belongs to the queues a and red"),
    ],
)
def test_a_bad_tree_is_refused_in_sentences_and_changes_nothing(
    engine: Engine, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    before = engine.ok("get", "queues", "-q").out
    result = engine("queue", "apply", "-f", file, "--yes")
    assert result.code == exit_codes.INVALID, result.err
    assert told in result.err
    assert engine.ok("get", "queues", "-q").out == before
    assert engine("team", "create", "x", "--parent", "nowhere").code == exit_codes.NOT_FOUND
