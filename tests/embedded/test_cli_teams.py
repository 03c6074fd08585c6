"""Teams through the command line on a real engine: made in one step, again without effect, gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import windlass
from tests.embedded.test_cli_runs import SMALL, Engine
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("teams") / "state")
    made.ok("up", "--detach", "--no-kubectl-context")
    try:
        yield made
    finally:
        made("down", "--stop-runs")


def test_a_team_is_made_in_one_step_and_again_nothing_changes(
    engine: Engine, tmp_path: Path
) -> None:
    flags = ("--guarantee", "cpu=1", "--limit", "cpu=2", "--weight", "2", "--member", "alice",
             "--viewer", "bob")  # fmt: skip
    made = engine.ok("team", "create", "support", *flags, "--write", tmp_path, "--json").json
    assert made["changed"] is True
    assert {step["action"] for step in made["steps"]} == {"created"}
    again = engine.ok("team", "create", "support", *flags, "--json").json
    assert again["changed"] is False
    assert {step["action"] for step in again["steps"]} == {"unchanged"}
    assert not [each for each in again["tokens"] if "token" in each]
    namespace = engine.ok("get", "namespace", "support", "--json").json
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
    spec = engine.ok("get", "queue", "support", "--json").json["spec"]
    assert (spec["namespaces"], spec["guarantee"], spec["weight"]) == (["support"], {"cpu": "1"}, 2)

    alice, bob = (("--kubeconfig", tmp_path / f"{who}.kubeconfig") for who in ("alice", "bob"))
    ran = engine("run", *alice, "-n", "hers", *SMALL, "--", "echo", "it works")
    assert (ran.code, ran.out) == (exit_codes.OK, "it works\n")
    assert engine.ok("logs", *bob, "hers").out == "it works\n"
    assert engine("submit", *bob, "--", "true").code == exit_codes.FORBIDDEN
    refused = engine("ps", *alice, "-N", "default")
    assert refused.code == exit_codes.FORBIDDEN
    assert "You are in support (member); choose a team with -N TEAM" in refused.err
    second = engine.ok("token", "create", "alice", "--write", tmp_path / "second", "--json").json
    assert second["file"] == str(tmp_path / "second" / "alice.kubeconfig")
    assert engine.ok("ps", "--kubeconfig", second["file"], "--json").json["items"]
    engine.ok("token", "revoke", second["id"])
    engine.ok("run", "-n", "unseen", *SMALL, "--", "true")
    for who in (alice, bob):
        page = engine.ok("ps", *who, "-A", "--json").json
        assert [each["name"] for each in page["items"]] == ["hers"]
        assert (page["active"], page["waiting"], page["finished"]) == (0, 0, 1)
    everything = engine.ok("ps", "-A", "--json").json["items"]
    assert {"hers", "unseen"} <= {each["name"] for each in everything}
    engine.ok("submit", *alice, "-n", "busy", *SMALL, "--", "sleep", "60")
    engine.ok("submit", "-n", "hidden", *SMALL, "--", "sleep", "60")
    until(lambda: len(engine.ok("top", "runs", "-A", "--json").json) == 2)
    (seen,) = engine.ok("top", "runs", "-A", *alice, "--json").json
    assert (seen["namespace"], seen["name"]) == ("support", "busy")
    for flags, known in (((), True), (alice, False)):
        (node,) = engine.ok("top", "nodes", *flags, "--json").json
        assert ("given" in node["resources"]["cpu"]) is known, "she may not read pods of others"
    engine.ok("stop", "hidden", "--wait")
    engine.ok("stop", "busy", *alice, "--wait")
    assert engine.ok("whoami", *alice, "--json").json["teams"] == {"support": "member"}
    assert engine.ok("whoami", *bob, "--json").json["teams"] == {"support": "viewer"}
    (own,) = engine.ok("token", "list", *alice, "--json").json
    until(lambda: engine.ok("token", "list", *alice, "--json").json[0]["lastUsed"])
    engine.ok("token", "revoke", own["id"], *alice)
    assert engine("ps", *alice).code == exit_codes.FORBIDDEN


def test_people_come_and_go_and_the_queue_changes(engine: Engine) -> None:
    engine.ok("team", "create", "vision", "--member", "carol", "--no-tokens")
    engine.ok("team", "set", "vision", "--guarantee", "cpu=1", "--admin", "dan",
              "--member", "group:ml", "--remove", "carol", "--no-tokens")  # fmt: skip
    found = engine.ok("team", "get", "vision", "--json").json
    assert (found["admins"], found["members"]) == (["dan"], ["group:ml"])
    assert found["queue"]["spec"]["guarantee"] == {"cpu": "1"}
    assert engine("team", "set", "nobody", "--weight", "2").code == exit_codes.NOT_FOUND
    assert "vision" in engine.ok("team", "list", "-q").out.splitlines()


def test_a_team_with_live_runs_is_deleted_only_with_the_flag_and_leaves_nothing(
    engine: Engine,
) -> None:
    made = engine.ok("team", "create", "brief", "--member", "eve", "--json").json
    (token,) = (each["token"] for each in made["tokens"])
    assert token.startswith("wl_")
    told = engine.ok("submit", "-N", "brief", "-n", "long", *SMALL, "--", "sleep", "600")
    assert "windlass why long -N brief" in told.err
    refused = engine("team", "delete", "brief", "--yes")
    assert refused.code == exit_codes.CONFLICT
    assert "long" in refused.err
    assert "--stop-runs" in refused.err
    assert "is being deleted" not in refused.err
    dry = engine.ok("team", "delete", "brief", "--stop-runs", "--dry-run", "--json").json
    assert (dry["runs"], dry["deleted"], len(dry["tokens"])) == (["long"], False, 1)
    engine.ok("team", "delete", "brief", "--stop-runs", "--yes")
    assert engine("team", "get", "brief").code == exit_codes.NOT_FOUND
    assert engine("get", "namespace", "brief").code == exit_codes.NOT_FOUND
    assert engine("get", "queue", "brief").code == exit_codes.NOT_FOUND
    users = {each["user"] for each in engine.ok("token", "list", "--json").json}
    assert "eve" not in users


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("team", "create", "Bad_Name"), exit_codes.INVALID, "lower-case"),
        (("team", "create", "windlass-system"), exit_codes.INVALID, "another name"),
        (("team", "create", "x", "--guarantee", "gpu"), exit_codes.USAGE, "gpu=8"),
        (("team", "create", "x", "--guarantee", "gpu=many"), exit_codes.INVALID, "guarantee"),
        (("team", "create", "x", "--member", "group:"), exit_codes.USAGE, "group:NAME"),
        (("team", "create", "x", "--ttl", "soon", "--member", "a"), exit_codes.INVALID, "never"),
        (("team", "create", "x", "--quota", "pods=3"), exit_codes.INVALID, "--limit"),
        (("token", "revoke"), exit_codes.USAGE, "token list"),
        (("token", "revoke", "0123456789ab"), exit_codes.NOT_FOUND, "windlass token list"),
        (("team", "get", "suport"), exit_codes.NOT_FOUND, "There is no team 'suport'"),
        (("team", "set", "suport", "--weight", "3"), exit_codes.NOT_FOUND, "windlass team list"),
        (("token", "create", "ci", "--account"), exit_codes.USAGE, "--account"),
    ],
)
def test_bad_words_are_one_sentence_with_a_remedy(
    engine: Engine, words: tuple[str, ...], code: int, told: str
) -> None:
    result = engine(*words)
    assert result.code == code, result.err
    assert told in result.err
    assert "Traceback" not in result.err


def test_the_sdk_has_teams_and_tokens(engine: Engine) -> None:
    with windlass.Client(state=engine.state) as client:
        steps = client.teams.create("coded", guarantee={"cpu": 1}, members=["fay"])
        assert {step.action for step in steps} == {"created"}
        again = client.teams.create("coded", guarantee={"cpu": 1}, members=["fay"])
        assert {step.action for step in again} == {"unchanged"}
        made = client.tokens.create("fay", ttl="1h")
        assert client.teams.get("coded").people["member"] == ["fay"]
        assert json.dumps(client.tokens.list())
        client.tokens.revoke(made["id"])
        client.teams.delete("coded")
        assert "coded" not in [each.name for each in client.teams.list()]
