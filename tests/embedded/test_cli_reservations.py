"""Advance reservations through the command line, on a real engine with nodes that pretend."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import windlass
from tests.embedded.test_cli_runs import Engine
from tests.embedded.test_cli_sharing import delete_runs
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes
from windlass.kinds.values import times

GPU = ("--gpus", "1", "--cpus", "100m", "--memory", "64Mi")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("reservations") / "state")
    made.ok("up", "--detach", "--no-kubectl-context", "--fake-nodes", "2", "--gpus", "4")
    for team in ("red", "blue"):
        made.ok("team", "create", team, "--no-tokens")
    try:
        yield made
    finally:
        made("down")


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    yield
    for name in engine.ok("reservation", "list", "-q").out.split():
        engine.ok("reservation", "delete", name)
    delete_runs(engine, "red", "blue")
    until(lambda: not engine.ok("get", "pods", "-A", "-q").out.split())


def submit(engine: Engine, team: str, name: str, *flags: str) -> None:
    engine.ok("submit", "-N", team, "-n", name, *GPU, *flags, "--", "sleep", "3600")


def phase(engine: Engine, team: str, name: str) -> tuple[str, str]:
    status = engine.ok("get", "run", name, "-N", team, "--json").json["status"]
    return status.get("phase", "Queued"), status.get("reason", "")


def state(engine: Engine, name: str) -> str:
    found = engine.ok("reservation", "get", name, "--json").json
    return str(found.get("status", {}).get("state", ""))


def gpu_nodes(engine: Engine) -> list[str]:
    listed = engine.ok("get", "nodes", "--json").json["items"]
    found = [
        each["metadata"]["name"]
        for each in listed
        if any(name.endswith("gpu") for name in each["status"].get("allocatable", {}))
    ]
    assert len(found) == 2, listed
    return sorted(found)


def test_a_maintenance_window_to_come_keeps_out_what_would_still_run_then(engine: Engine) -> None:
    nodes = [flag for name in gpu_nodes(engine) for flag in ("--node", name)]
    made = engine.ok(
        "reservation", "create", "cooling", "--from", "+1h", "--duration", "8h", *nodes,
        "--reason", "work on the cooling",
    )  # fmt: skip
    assert "reservation/cooling created" in made.out
    until(lambda: state(engine, "cooling") == "Scheduled")
    submit(engine, "red", "long", "--timeout", "2h")
    submit(engine, "red", "short", "--timeout", "30m")
    until(lambda: phase(engine, "red", "short")[0] == "Running")
    until(lambda: phase(engine, "red", "long")[1] == "ReservedUntil")
    why = " ".join(engine.ok("why", "long", "-N", "red").out.split())
    begin = engine.ok("reservation", "get", "cooling", "--json").json["spec"]["from"]
    assert f"reservation cooling reserves the capacity for maintenance from {begin}" in why
    shown = engine.ok("reservation", "get", "cooling").out
    assert "work on the cooling" in shown
    assert "maintenance" in shown
    engine.ok("reservation", "delete", "cooling")
    until(lambda: phase(engine, "red", "long")[0] == "Running")


def test_at_its_start_others_are_stopped_and_only_those_it_is_for_start(engine: Engine) -> None:
    for number in range(8):
        submit(engine, "red", f"r{number}")
    until(lambda: all(phase(engine, "red", f"r{n}")[0] == "Running" for n in range(8)))
    engine.ok(
        "reservation", "create", "course", "--from", "now", "--duration", "1h", "--amount",
        "gpu=4", "--team", "blue",
    )  # fmt: skip
    until(lambda: state(engine, "course") == "Active")
    until(lambda: sum(phase(engine, "red", f"r{n}")[0] == "Running" for n in range(8)) == 4)
    waiting = [n for n in range(8) if phase(engine, "red", f"r{n}")[0] == "Queued"]
    until(lambda: all(phase(engine, "red", f"r{n}")[1] == "ReservedUntil" for n in waiting))
    for number in range(4):
        submit(engine, "blue", f"b{number}")
    until(lambda: all(phase(engine, "blue", f"b{n}")[0] == "Running" for n in range(4)))

    def used() -> object:
        return engine.ok("reservation", "get", "course", "--json").json["status"].get("used")

    until(lambda: used() == {"gpu": "4"})
    assert "gpu=4" in engine.ok("reservation", "list").out
    engine.ok("reservation", "delete", "course")


def test_a_window_by_the_clock_begins_and_ends_by_itself(engine: Engine) -> None:
    end = times.seconds(times.now() + datetime.timedelta(seconds=12))
    names = gpu_nodes(engine)
    flags = [flag for name in names for flag in ("--node", name)]
    engine.ok("reservation", "create", "brief", "--from", "now", "--to", end, *flags)
    submit(engine, "red", "waits")
    until(lambda: phase(engine, "red", "waits")[1] == "ReservedUntil")
    until(lambda: phase(engine, "red", "waits")[0] == "Running")
    assert times.seconds(times.now()) >= end
    until(lambda: state(engine, "brief") == "Ended")


def test_what_is_wrong_is_said_in_one_sentence(engine: Engine) -> None:
    bad = engine("reservation", "create", "x", "--from", "now", "--node", "n", "--json")
    assert bad.code == exit_codes.INVALID
    assert "needs an end" in bad.error["remedy"]
    worse = engine("reservation", "create", "x", "--from", "+2parsecs", "--node", "n", "--json")
    assert worse.code == exit_codes.USAGE
    assert engine("reservation", "get", "nothing").code == exit_codes.NOT_FOUND
    clash = ("reservation", "create", "one", "--from", "+1h", "--duration", "1h", "--node", "gone")
    engine.ok(*clash)
    until(lambda: "there is no node gone" in engine.ok("reservation", "list").err)


def test_an_exported_state_has_the_windows_in_it(engine: Engine, tmp_path: Path) -> None:
    engine.ok("reservation", "create", "r", "--from", "+1h", "--duration", "1h", "--node", "n")
    engine.ok("export-state", tmp_path / "state.json")
    (window,) = json.loads((tmp_path / "state.json").read_text())["facts"]["advance"]
    assert (window["name"], window["nodes"]) == ("r", ["n"])


def test_the_sdk_has_reservations(engine: Engine) -> None:
    with windlass.Client(state=engine.state) as client:
        made = client.reservations.create(
            "coded", start="+1h", lasts="30m", amounts={"gpu": 2}, queues=["red"]
        )
        assert made.spec.amounts == {"gpu": 2}
        until(lambda: client.reservations.get("coded").status.state == "Scheduled")
        assert [each.name for each in client.reservations.list()] == ["coded"]
        with pytest.raises(windlass.errors.Invalid):
            client.reservations.create("never", start="now", lasts="1h")
        client.reservations.delete("coded")


def test_members_of_a_team_may_read_them_and_not_write(engine: Engine) -> None:
    engine.ok("reservation", "create", "r", "--from", "+1h", "--duration", "1h", "--node", "n")
    made = engine.ok("team", "set", "red", "--member", "mia", "--json").json
    (token,) = (each["token"] for each in made["tokens"])
    server = yaml.safe_load((engine.state / "kubeconfig").read_text())["clusters"][0]["cluster"]
    path = f"{server['server']}/apis/windlass.dev/v1alpha1/reservations"
    context = ssl.create_default_context(
        cadata=base64.b64decode(server["certificate-authority-data"]).decode()
    )
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(path, headers=head), context=context) as got:
        assert [each["metadata"]["name"] for each in json.load(got)["items"]] == ["r"]
    gone = urllib.request.Request(f"{path}/r", headers=head, method="DELETE")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(gone, context=context)
    assert refused.value.code == 403
