"""The object commands against a real server: apply, get, edit, delete, backup, and no server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedServer
from tests.unit.cli.invoking import Result
from tests.unit.cli.invoking import invoke as invoke_anywhere
from windlass.cli.lib import exit_codes
from windlass.ledger import service
from windlass.ledger.db import repository

QUEUE = "{apiVersion: windlass.dev/v1alpha1, kind: Queue, metadata: {name: NAME}, spec: {SPEC}}"
RUN = """\
apiVersion: windlass.dev/v1alpha1
kind: Run
metadata: {name: NAME, labels: {team: cli}}
spec:
  roles:
  - command: [sleep, "1"]
"""


@pytest.fixture
def server(embedded_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> EmbeddedServer:
    monkeypatch.setenv("WINDLASS_STATE", str(embedded_server.state))
    return embedded_server


def invoke(server: EmbeddedServer, *arguments: object, stdin: str = "", **env: str) -> Result:
    return invoke_anywhere(
        *arguments, stdin=stdin, env={"WINDLASS_STATE": str(server.state), **env}
    )


def queue(name: str, spec: str) -> str:
    return QUEUE.replace("NAME", name).replace("SPEC", spec)


def action(result: Result) -> list[str]:
    return [one["action"] for one in result.json["results"]]


def test_apply_creates_changes_and_then_leaves_alone(server: EmbeddedServer) -> None:
    def apply(spec: str) -> list[str]:
        return action(invoke(server, "apply", "--json", "-f", "-", stdin=queue("steps", spec)))

    assert apply("weight: 2, strict: true") == ["created"]
    assert apply("weight: 2, strict: true") == ["unchanged"]
    assert apply("weight: 3, strict: true") == ["configured"]
    assert apply("weight: 3") == ["configured"]
    spec = invoke(server, "get", "queue", "steps", "--json").json["spec"]
    assert spec["weight"] == 3
    assert not spec.get("strict")


def test_apply_of_a_run_twice_changes_nothing(server: EmbeddedServer) -> None:
    text = RUN.replace("NAME", "twice")
    assert action(invoke(server, "apply", "--json", "-f", "-", stdin=text)) == ["created"]
    assert action(invoke(server, "apply", "--json", "-f", "-", stdin=text)) == ["unchanged"]


def test_apply_of_defaults_and_of_other_forms_of_the_same_changes_nothing(
    server: EmbeddedServer,
) -> None:
    text = RUN.replace("NAME", "defaults") + "    replicas: 1\n"
    text += """
---
apiVersion: v1
kind: Secret
metadata: {name: written}
stringData: {key: value}
"""
    assert action(invoke(server, "apply", "--json", "-f", "-", stdin=text)) == ["created"] * 2
    for flags in ((), ("--dry-run",)):
        again = invoke(server, "apply", "--json", *flags, "-f", "-", stdin=text)
        assert action(again) == ["unchanged"] * 2
    other = text.replace("key: value", "key: other")
    assert action(invoke(server, "apply", "--json", "-f", "-", stdin=other))[1] == "configured"


def test_setting_a_queue_to_what_it_is_says_unchanged(server: EmbeddedServer) -> None:
    invoke(server, "apply", "-f", "-", stdin=queue("same", "weight: 2"))
    assert invoke(server, "queue", "set", "same", "--weight", "3").out == "queue/same changed\n"
    assert invoke(server, "queue", "set", "same", "--weight", "3").out == "queue/same unchanged\n"


def test_apply_keeps_what_others_have_set(server: EmbeddedServer) -> None:
    invoke(server, "apply", "-f", "-", stdin=queue("shared", "weight: 2"))
    edit = "sed -i 's/^spec:/spec:\\n  reserve: 4/'"
    assert invoke(server, "edit", "queue", "shared", EDITOR=edit).code == exit_codes.OK
    invoke(server, "apply", "-f", "-", stdin=queue("shared", "weight: 5"))
    spec = invoke(server, "get", "queue", "shared", "--json").json["spec"]
    assert (spec["weight"], spec["reserve"]) == (5, 4)


def test_a_dry_run_changes_nothing(server: EmbeddedServer) -> None:
    text = queue("ghost", "weight: 2")
    assert action(invoke(server, "apply", "--dry-run", "--json", "-f", "-", stdin=text)) == [
        "created"
    ]
    assert invoke(server, "get", "queue", "ghost").code == exit_codes.NOT_FOUND


def test_one_bad_document_keeps_all_from_being_sent(server: EmbeddedServer) -> None:
    text = queue("fine", "weight: 2") + "\n---\n" + queue("broken", "weight: -1")
    result = invoke(server, "apply", "-f", "-", stdin=text)
    assert result.code == exit_codes.INVALID
    assert "stdin:3: spec.weight" in result.err
    assert invoke(server, "get", "queue", "fine").code == exit_codes.NOT_FOUND


def test_what_the_server_refuses_names_the_document_and_the_rest_is_done(
    server: EmbeddedServer,
) -> None:
    lost = RUN.replace("NAME", "lost").replace("labels", "namespace: nowhere, labels")
    result = invoke(server, "apply", "-f", "-", stdin=lost + "---\n" + queue("after", "weight: 1"))
    assert result.code == exit_codes.NOT_FOUND
    assert "nowhere" in result.err
    assert "stdin:1" in result.err
    assert "queue/after created" in result.out


def test_get_in_every_form(server: EmbeddedServer) -> None:
    invoke(server, "apply", "-f", "-", stdin=RUN.replace("NAME", "forms"))
    table = invoke(server, "get", "runs", "-l", "team=cli").out.splitlines()
    assert table[0].split()[:2] == ["NAME", "PHASE"]
    assert any(line.startswith("forms ") for line in table)
    assert "MESSAGE" in invoke(server, "get", "wr", "-o", "wide").out
    assert "run/forms" in invoke(server, "get", "run", "-q").out.split()
    assert invoke(server, "get", "run/forms", "-o", "json").json["kind"] == "Run"
    assert "kind: Run" in invoke(server, "get", "run", "forms", "-o", "yaml").out
    listed = invoke(server, "get", "runs", "-A", "--json").json
    assert listed["kind"] == "List"
    assert {"Run"} == {item["kind"] for item in listed["items"]}


def test_a_list_shows_fields_that_windlass_itself_does_not_know(server: EmbeddedServer) -> None:
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: odd}, spec: {nodeName: x, dnsPolicy: Default,"
        " containers: [{name: c, command: [a], image: b, stdin: true}]}}"
    )
    assert invoke(server, "apply", "-f", "-", stdin=pod).code == exit_codes.OK
    (found,) = [
        item
        for item in invoke(server, "get", "pods", "--json").json["items"]
        if item["metadata"]["name"] == "odd"
    ]
    assert found["spec"]["dnsPolicy"] == "Default"
    assert found["spec"]["containers"][0]["stdin"] is True


def test_an_empty_list_is_a_hint_and_an_empty_document(server: EmbeddedServer) -> None:
    assert "No cronruns found" in invoke(server, "get", "cronruns").err
    assert invoke(server, "get", "cronruns").out == ""
    assert invoke(server, "get", "cronruns", "--json").json["items"] == []


def test_watch_shows_what_there_is_and_what_changes(server: EmbeddedServer) -> None:
    invoke(server, "apply", "-f", "-", stdin=queue("watched", "weight: 2"))
    watcher = windlass(server, "get", "queue", "watched", "-w", "--json")
    try:
        assert read_event(watcher) == ("ADDED", 2)
        invoke(server, "apply", "-f", "-", stdin=queue("watched", "weight: 3"))
        assert read_event(watcher) == ("MODIFIED", 3)
        server.restart()
        invoke(server, "apply", "-f", "-", stdin=queue("watched", "weight: 4"))
        assert read_event(watcher) == ("MODIFIED", 4)
        invoke(server, "delete", "queue", "watched")
        assert read_event(watcher) == ("DELETED", 4)
        watcher.send_signal(signal.SIGINT)
        _, err = watcher.communicate(timeout=30)
    finally:
        watcher.kill()
    assert watcher.returncode == exit_codes.INTERRUPTED
    assert err.strip() == ""


def test_delete_by_name_by_slash_and_by_file(server: EmbeddedServer, tmp_path: Path) -> None:
    for name in ("d1", "d2", "d3", "d4"):
        invoke(server, "apply", "-f", "-", stdin=queue(name, "weight: 1"))
    assert invoke(server, "delete", "queue", "d1", "-q").out == "queue/d1\n"
    assert invoke(server, "delete", "queue/d2", "queue/d3", "--json").json["deleted"] == [
        "queue/d2",
        "queue/d3",
    ]
    file = tmp_path / "q.yaml"
    file.write_text(queue("d4", "weight: 1"))
    assert invoke(server, "delete", "-f", file).code == exit_codes.OK
    again = invoke(server, "delete", "-f", file)
    assert again.code == exit_codes.NOT_FOUND
    assert "d4" in again.err
    assert invoke(server, "delete", "-f", file, "--ignore-not-found").code == exit_codes.OK


def test_edit_sends_only_changes_and_keeps_the_text_that_was_refused(
    server: EmbeddedServer,
) -> None:
    invoke(server, "apply", "-f", "-", stdin=queue("edited", "weight: 2"))
    assert "unchanged" in invoke(server, "edit", "queue", "edited", EDITOR="true").out
    done = invoke(server, "edit", "queue/edited", EDITOR="sed -i 's/weight: 2/weight: 6/'")
    assert done.out == "queue/edited edited\n"
    refused = invoke(server, "edit", "queue/edited", EDITOR="sed -i 's/weight: 6/weight: -6/'")
    assert refused.code == exit_codes.INVALID
    kept = Path(refused.err.rpartition("kept in ")[2].strip().rstrip("."))
    assert "weight: -6" in kept.read_text()
    kept.unlink()
    garbled = invoke(server, "edit", "queue/edited", EDITOR="sed -i 's/^spec:/spec: [/'")
    assert garbled.code == exit_codes.INVALID
    kept = Path(garbled.err.rpartition("kept in ")[2].strip().rstrip("."))
    assert "spec: [" in kept.read_text()
    kept.unlink()
    renamed = invoke(server, "edit", "queue/edited", EDITOR="sed -i 's/name: edited/name: other/'")
    assert renamed.code == exit_codes.INVALID
    assert invoke(server, "get", "queue/edited", "--json").json["spec"]["weight"] == 6


def test_names_complete_while_a_server_answers(server: EmbeddedServer, tmp_path: Path) -> None:
    def complete(state: Path, words: str) -> list[str]:
        env = {
            "_WINDLASS_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
            "WINDLASS_STATE": str(state),
        }
        return invoke_anywhere(env=env).out.split()

    invoke(server, "apply", "-f", "-", stdin=queue("complete-me", "weight: 1"))
    assert complete(server.state, "windlass get queue comp") == ["plain,complete-me"]
    assert complete(server.state, "windlass edit queue comp") == ["plain,complete-me"]
    assert complete(tmp_path, "windlass get queue comp") == []


def test_backup_of_a_live_store_and_restore_only_when_it_is_down(
    tmp_path: Path,
) -> None:
    state, file = tmp_path / "state", tmp_path / "copy.backup"
    with EmbeddedServer.start(state) as own:
        invoke(own, "apply", "-f", "-", stdin=queue("kept", "weight: 2"))
        repository.LedgerRepository.open(f"sqlite:///{state / service.FILE}").close()
        made = invoke(own, "backup", file, "--json")
        assert made.json["objects"] >= 1
        assert made.json["ledger"] == f"{file}.ledger"
        assert invoke(own, "backup", file).code == exit_codes.CONFLICT
        invoke(own, "delete", "queue", "kept")
        invoke(own, "apply", "-f", "-", stdin=queue("later", "weight: 2"))
        assert invoke(own, "restore", file).code == exit_codes.ALREADY_RUNNING
        own.stop()
        restored = invoke(own, "restore", file, "--json")
        assert restored.code == exit_codes.OK, restored.err
        assert Path(restored.json["kept"]).exists()
        assert Path(restored.json["keptLedger"]).exists()
        own.launch()
        assert invoke(own, "get", "queue", "kept").code == exit_codes.OK
        assert invoke(own, "get", "queue", "later").code == exit_codes.NOT_FOUND


def test_restore_of_something_else_leaves_the_store_alone(tmp_path: Path) -> None:
    (tmp_path / "noise").write_text("this is not a store")
    with EmbeddedServer.start(tmp_path / "state") as own:
        invoke(own, "apply", "-f", "-", stdin=queue("kept", "weight: 2"))
        own.stop()
        result = invoke(own, "restore", tmp_path / "noise")
        assert result.code == exit_codes.INVALID
        assert "The store is unchanged" in result.err
        own.launch()
        assert invoke(own, "get", "queue", "kept").code == exit_codes.OK


def test_a_server_that_is_away_is_named_with_the_remedy(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "state") as own:
        own.kill()
        result = invoke(own, "get", "runs")
    assert result.code == exit_codes.NO_SERVER
    waits, problem, remedy = result.err.splitlines()
    assert "waiting up to" in waits
    assert "127.0.0.1" in problem
    assert "windlass up --state" in remedy


@pytest.mark.parametrize("command", [["get", "runs"], ["logs", "x"], ["delete", "run", "x"]])
def test_a_folder_where_nothing_ever_ran(tmp_path: Path, command: list[str]) -> None:
    result = invoke_anywhere(*command, "--state", tmp_path)
    assert result.code == exit_codes.NO_SERVER
    assert f"windlass up --state {tmp_path}" in result.err


def test_status_down_and_backup_where_nothing_runs(tmp_path: Path) -> None:
    status = invoke_anywhere("status", "--state", tmp_path)
    assert status.code == exit_codes.NO_SERVER
    assert "windlass up" in status.err
    down = invoke_anywhere("down", "--state", tmp_path, "--json")
    assert (down.code, down.json["stopped"]) == (exit_codes.OK, [])
    assert invoke_anywhere("backup", "x", "--state", tmp_path).code == exit_codes.NOT_FOUND


@pytest.mark.parametrize(
    "arguments", [("explain", "run", "--recursive"), ("--help",), ("queue", "list"), ("get", "ns")]
)
def test_output_into_a_closed_pipe_is_silent(
    server: EmbeddedServer, arguments: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "windlass.cli.main", *arguments],
            env={**os.environ, "WINDLASS_STATE": str(server.state)},
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (exit_codes.PIPE_CLOSED, b"")


def windlass(server: EmbeddedServer, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "windlass.cli.main", *arguments],
        env={**os.environ, "WINDLASS_STATE": str(server.state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def read_event(watcher: subprocess.Popen[str]) -> tuple[str, int]:
    assert watcher.stdout is not None
    event = json.loads(watcher.stdout.readline())
    return event["type"], event["object"]["spec"]["weight"]


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own configuration may be read or written."""
    monkeypatch.setenv("HOME", str(tmp_path))


def test_a_token_is_rotated_by_its_user_and_the_own_kubeconfig_follows(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    made = invoke(server, "token", "create", "rita", "--json").json
    rotated = invoke(server, "token", "rotate", "rita", "--json")
    assert rotated.code == exit_codes.OK, rotated.err
    assert rotated.json["replaces"] == made["id"]
    invoke(server, "token", "create", "rita")
    two = invoke(server, "token", "rotate", "rita")
    assert two.code == exit_codes.USAGE
    assert "has 2 tokens" in two.err
    assert invoke(server, "token", "rotate", "no-such").code == exit_codes.NOT_FOUND

    before = server.kubeconfig.read_text()
    listed = invoke(server, "token", "list", "--json").json
    (own,) = [each["id"] for each in listed if f"wl_{each['id']}_" in before]
    assert invoke(server, "token", "rotate", own).code == exit_codes.OK
    after = server.kubeconfig.read_text()
    assert own not in after
    assert server.kubeconfig.stat().st_mode & 0o777 == 0o600
    assert invoke(server, "token", "list").code == exit_codes.OK


def test_a_backup_is_encrypted_with_a_key_and_restored_only_with_it(tmp_path: Path) -> None:
    file, key = tmp_path / "sealed.backup", tmp_path / "backup.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o644)
    with EmbeddedServer.start(tmp_path / "state") as own:
        invoke(own, "apply", "-f", "-", stdin=queue("kept", "weight: 2"))
        refused = invoke(own, "backup", "--key", key, file)
        assert refused.code == exit_codes.INVALID
        assert f"chmod 600 {key}" in refused.err
        key.chmod(0o600)
        assert invoke(own, "backup", "--key", key, file, "--json").json["encrypted"] is True
        assert b"kept" not in file.read_bytes()
        invoke(own, "delete", "queue", "kept")
        own.stop()
        without = invoke(own, "restore", file)
        assert without.code == exit_codes.INVALID
        assert "--key" in without.err
        assert invoke(own, "restore", file, "--key", key).code == exit_codes.OK
        own.launch()
        assert invoke(own, "get", "queue", "kept").code == exit_codes.OK
