"""Teams, prices, budgets and the ledger on both engines: the same commands, the same numbers, with
the server killed on the way."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from tests.endtoend.engines import Embedded, only_with_images
from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes
from windlass.kinds.values import times

HOLD = "echo once >> {here}/starts; while [ ! -e {here}/go ]; do sleep 0.05; done"


class Cli:
    """The command line as a user of this engine calls it."""

    def __init__(self, engine: Embedded) -> None:
        way = engine.way
        name = "WINDLASS_STATE" if "state" in way else "WINDLASS_KUBECONFIG"
        self._environment = {name: str(next(iter(way.values())))}

    def __call__(self, *words: object) -> Result:
        return invoke(*words, env=self._environment)

    def ok(self, *words: object) -> Result:
        result = self(*words)
        assert result.code == exit_codes.OK, result.err
        return result

    def json(self, *words: object) -> Any:
        return self.ok(*words, "--json").json

    def usage_of(self, run: str) -> dict[str, Any]:
        """The one row of a run, once it is there."""
        found: list[dict[str, Any]] = []

        def told() -> bool:
            found[:] = self.json("usage", "--by", "run", "--run", run)["rows"]
            return len(found) == 1

        until(told, f"the usage of {run} is told")
        return found[0]

    def settled(self) -> dict[str, Any]:
        """The verdict once neither side knows more than the other."""
        found: dict[str, Any] = {}

        def agrees() -> bool:
            found.clear()
            found.update(self.json("usage", "--verify"))
            return not any(map(found.get, ("ghosts", "missing")))

        until(agrees, "the ledger and the cluster agree")
        return found


@pytest.fixture(scope="module")
def cli(engine: Embedded) -> Cli:
    made = Cli(engine)
    for device, why in (("cpu", "price set machine"), ("rocket", "No node has a device of kind")):
        refused = made("price", "set", device, "--per-hour", "3.60")
        assert (refused.code, why in refused.err) == (exit_codes.INVALID, True), refused.err
    made.ok("price", "set", "machine", "--per-hour", "3.60")
    return made


def test_what_a_run_held_is_written_down_once_though_the_server_is_killed(
    engine: Embedded, cli: Cli, tmp_path: Path
) -> None:
    own = engine.at(tmp_path)
    own.submit("kept", HOLD)
    own.wait_phase("kept", "Running")
    engine.server.restart(hard=True)
    until(lambda: not cli.json("usage", "--verify").get("missing"), "what runs is written down")
    (tmp_path / "go").touch()
    own.wait_phase("kept", "Succeeded")
    engine.server.restart(hard=True)
    verdict = cli.settled()
    assert verdict["holds"], verdict
    before = cli.usage_of("kept")
    assert before["costMicros"] > 0
    assert f"Cost: {before['cost']}." in cli.ok("get", "run", "kept").err
    assert "It would cost" in cli.ok("run", "--dry-run", "--cpus", "1", "--", "true").err
    # A second life adds nothing, and a run that is deleted is let go and stays in the ledger.
    engine.server.restart(hard=True)
    assert cli.usage_of("kept") == before
    cli.ok("delete", "run", "kept")
    until(lambda: "kept" not in cli.ok("get", "runs", "-q").out, "it is gone")
    assert cli.usage_of("kept") == before


def test_a_deleted_run_is_kept_until_the_ledger_has_recorded_it(
    engine: Embedded, cli: Cli, tmp_path: Path
) -> None:
    only_with_images(engine, "embedded, a server that is away takes no deletion either")
    own = engine.at(tmp_path)
    own.submit("late", HOLD)
    own.wait_phase("late", "Running")
    engine.platform.server.kill()  # type: ignore[attr-defined]
    api = engine.platform.cluster.plane.rest  # type: ignore[attr-defined]
    path = "/apis/windlass.dev/v1alpha1/namespaces/default/runs/late"
    assert api.delete(path).status in (200, 202)
    until(lambda: api.get(path).json["status"]["phase"] == "Stopped", "it has been stopped")
    assert api.get(path).json["metadata"]["finalizers"] == ["windlass.dev/ledger"]
    engine.server.restart(hard=True)
    until(lambda: api.get(path).status == 404, "it is let go")
    assert cli.usage_of("late")["costMicros"] > 0
    assert cli.settled()["holds"]


def test_nodes_are_listed_whether_they_are_used_or_not(engine: Embedded, cli: Cli) -> None:
    found: dict[str, Any] = {}

    def has_time() -> bool:
        found.update(cli.json("usage", "--all"))
        return bool(found["wall"]["machineHours"] > 0)

    until(has_time, "the nodes have been there for a second")
    assert (
        found["total"]["costMicros"] + found["idle"]["costMicros"] == (found["wall"]["costMicros"])
    )
    fleet = cli.json("usage", "--fleet")
    assert {point["device"] for point in fleet["points"]} >= {"machine"}
    assert "machine" in cli.ok("usage", "--fleet").out


def test_the_fleets_series_tells_what_is_held_used_and_waited_for(
    engine: Embedded, cli: Cli, tmp_path: Path
) -> None:
    own = engine.at(tmp_path)
    own.submit("busy", "while [ ! -e {here}/go ]; do :; done")
    own.wait_phase("busy", "Running")
    own.submit("waits", "true", role={"devices": [{"kind": "npu", "count": 2}]})
    until(lambda: not cli.json("usage", "--verify").get("missing"), "what runs is written down")
    engine.server.restart(hard=True)  # a ledger looks when its life begins, then every minute
    found: dict[str, dict[str, Any]] = {}
    lately = times.seconds(times.now() - datetime.timedelta(minutes=10))
    fleet = ("usage", "--fleet", "--since", lately)

    def told() -> bool:
        for point in cli.json(*fleet)["points"]:
            if point["device"] == "npu" or "waiting" in point:  # a client looked
                found[point["device"]] = point
        mine = found.get("cpu", {}).get("teams", {}).get("default", {})
        return "npu" in found and mine.get("held", 0) > 0 and mine.get("used", 0) > 0

    until(told, "the fleet is told", 180)
    (busy,) = (each for each in cli.json("top", "runs") if each["name"] == "busy")
    assert busy["resources"]["cpu"]["used"] > 0.01, "it burns what it may have: a tenth of a core"
    top = {each["name"]: each["resources"] for each in cli.json("top", "nodes")}
    assert top[engine.node()["metadata"]["name"]]["cpu"]["used"] > 0
    (tmp_path / "go").touch()
    own.wait_phase("busy", "Succeeded")
    assert found["npu"]["waiting"] > 0
    assert found["npu"]["teams"]["default"]["waiting"] > 0
    assert found["machine"]["present"] > 0
    # On a cluster without a metrics-server, too: our own agents measure.
    assert 0 < found["machine"]["used"] <= found["machine"]["measured"]
    assert "used" not in found["npu"], "what nobody measures is not told"
    assert "default" in cli.ok(*fleet, "--by", "team").out
    page = tmp_path / "fleet.html"
    cli.ok(*fleet, "--statement", "html", "-o", str(page))
    assert "<svg" in page.read_text()
    assert "from,device,team" in cli.ok(*fleet, "--statement", "csv").out
    assert cli(*fleet, "--by", "user").code == exit_codes.USAGE
    cli.ok("delete", "run", "waits")


def test_teams_queues_statements_and_budgets(engine: Embedded, cli: Cli, tmp_path: Path) -> None:
    try:
        cli.ok("team", "create", "vision", "--guarantee", "cpu=1", "--member", "alice",
               "--no-tokens")  # fmt: skip
        assert "unchanged" in cli.ok(
            "team", "create", "vision", "--guarantee", "cpu=1", "--member", "alice", "--no-tokens"
        ).out  # fmt: skip
        assert "vision" in [each["name"] for each in cli.json("team", "list")]
        assert "vision" in cli.ok("queue", "tree").out
        file = tmp_path / "tree.yaml"
        file.write_text("queues:\n  vision: {guarantee: {cpu: 2}, namespaces: [vision]}\n")
        assert (
            "is guaranteed 2 cpu instead of 1"
            in cli.ok("queue", "apply", "-f", str(file), "--dry-run").out
        )
        cli.ok("queue", "apply", "-f", str(file), "--yes")
        # The command waits until the budget is in force: what is submitted after it meets it.
        assert "Held" in cli.ok("budget", "set", "vision", "--hours", "machine=0").out
        cli.ok("submit", "-N", "vision", "-n", "held", "--cpus", "100m", "--", "true")
        until(
            lambda: _run(cli, "held", "vision")["status"].get("reason") == "BudgetExhausted",
            "the budget holds it",
        )
        until_then = ("--until", "2099-01-01T00:00:00Z")
        told = cli.ok("budget", "override", "vision", *until_then, "--reason", "x").out
        assert "overridden until 2099" in told
        if not engine.images:  # there a policy of the installation does it: test_teams
            me = cli.json("whoami")["user"]
            assert _queue(cli, "vision")["spec"]["budget"]["override"]["by"] == me
        cli.ok("wait", "held", "-N", "vision", "--timeout", "120s")
        until(lambda: cli.json("usage", "-N", "vision", "--by", "run")["rows"], "it is told")
        cli.settled()
        page = tmp_path / "page.html"
        cli.ok("usage", "-N", "vision", "--statement", "html", "-o", str(page))
        assert "vision" in page.read_text()
        assert "team,month,table" in cli.ok("usage", "-N", "vision", "--statement", "csv").out
        assert cli.json("usage", "-N", "vision", "--statement", "text")["team"] == "vision"
        whole = tmp_path / "all.html"
        cli.ok("usage", "--all", "--statement", "html", "-o", str(whole))
        assert "not allocated" in whole.read_text()
        assert "vision" in whole.read_text()
    finally:
        cli("team", "delete", "vision", "--stop-runs", "-y")


def _run(cli: Cli, name: str, team: str) -> dict[str, Any]:
    return dict(json.loads(cli.ok("get", "run", name, "-N", team, "--json").out))


def _queue(cli: Cli, name: str) -> dict[str, Any]:
    return dict(json.loads(cli.ok("get", "queue", name, "--json").out))
