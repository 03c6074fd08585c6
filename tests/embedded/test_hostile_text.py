"""No command lets text of a job control the terminal, except those that are raw by contract."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.harness import rest
from tests.harness.embedded import EmbeddedServer
from tests.unit.cli.invoking import Result, invoke, terminal
from windlass.cli import main
from windlass.cli.lib import terminal_text
from windlass.cli.lib.output import Output

ATTACKS = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;b3duZWQ=\x1b\\",
    "clear": "\x1b[2J\x1b[H",
    "hidden": "\x1b[8m",
    "carriage return": "fine\rerror: forged",
    "backspace": "good\b\b\b\bevil",
    "C1": "\x9b2J\x9d0;owned\x9c",
    "delete": "\x7f",
    "right to left": "\u202egnp.exe\u2066",
    "line separator": "a\u2028b",
    "tags": "\U000e0041",
    "own mark": "\x00[31m",
}
HOSTILE = "begin " + " ".join(ATTACKS.values()) + " end"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"

WALKED = (
    "ps", "ps -A", "ps --json", "ps --pods", "why evil", "why evil --json", "why pod/evil-pod",
    "events", "events evil", "events --json", "get runs", "get runs -o wide", "get run evil",
    "get run evil --json", "get run evil -o yaml", "get pods", "get pods -o wide", "get events",
    "get pod evil-pod -o yaml", "get queues", "get nodes", "top", "top --json", "status",
    "status --json", "usage", "usage --json", "queue list", "queue tree", "team list", "token list",
    "cron list", "reservation list", "price list", "budget list", "whoami", "doctor", "version",
    "wait evil --timeout 1s", "stop evil --dry-run", "delete run evil --dry-run", "explain run",
    "pipeline steps", "logs evil", "get run \x1b[2J", "why \x1b[2J", "get \u202ekind",
    "scale evil 3", "suspend evil", "resume evil", "rerun evil --dry-run", "prune --dry-run",
    "move evil --queue default", "set-priority evil 10", "simulate /\x1b[2J", "stop \x1b[2J",
    "cp evil:/\x1b[2J .", "cp --list evil:", "outputs evil", "outputs list evil", "outputs usage",
    "port-forward evil \x1b[2J", "secret list", "secret delete \x1b[2J", "study list",
    "study get \x1b[2J", "tune -s \x1b[2J -- true",
)  # fmt: skip
"""Every command that prints objects of a cluster, or what it was given. `logs` is walked because
the run has no pod: its messages must be clean."""
NOT_WALKED = {
    "run": "prints the job's own output, as `logs`; its messages are those of `wait`",
    "submit": "prints names", "exec": "a terminal session", "attach": "a terminal session",
    "apply": "prints names of the user's file",
    "edit": "opens an editor", "export-state": "writes JSON", "up": "starts an engine",
    "down": "stops the engine", "init": "prints a template", "debug-dump": "writes a file",
    "backup": "writes a file", "restore": "reads a file", "install": "prints manifests",
    "upgrade": "prints manifests", "manifests": "writes files", "uninstall": "asks and deletes",
    "completion": "prints a script",
}  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    server = EmbeddedServer.start(tmp_path_factory.mktemp("hostile") / "state")
    client = server.rest()
    make_run(client, "evil")
    make_pod(client)
    event = {
        "metadata": {"generateName": "evil-"}, "reason": "Reason", "message": HOSTILE,
        "type": "Normal",
        "involvedObject": {"kind": "Run", "name": "evil", "namespace": "default"},
    }  # fmt: skip
    must(client.post("/api/v1/namespaces/default/events", event))
    yield server
    client.close()
    server.stop()


def must(answer: Any) -> Any:
    assert answer.status < 300, answer
    return answer


def make_run(client: rest.Rest, name: str) -> None:
    spec = {"roles": [{"command": ["sh", "-c", HOSTILE.replace("\x00", "")]}]}
    must(client.post(RUNS, {"metadata": {"name": name}, "spec": spec}))
    step = {"from": "Running", "to": "Failed", "at": "2026-01-01T00:00:00Z",
            "reason": "CodeFailed", "message": HOSTILE}  # fmt: skip
    status = {"phase": "Failed", "reason": "CodeFailed", "message": HOSTILE, "history": [step]}
    must(client.merge(f"{RUNS}/{name}/status", {"status": status}))


def make_pod(client: rest.Rest) -> None:
    spec = {"containers": [{"name": "c", "image": "host", "command": ["true"]}],
            "schedulerName": "windlass"}  # fmt: skip
    notes = {"note": HOSTILE.replace("\x00", "")}
    pods = "/api/v1/namespaces/default/pods"
    must(client.post(pods, {"metadata": {"name": "evil-pod", "annotations": notes}, "spec": spec}))
    ended = {"exitCode": 1, "reason": "Error", "message": HOSTILE}
    waiting = {"type": "PodScheduled", "status": "False", "reason": HOSTILE, "message": HOSTILE}
    status = {
        "phase": "Failed", "reason": "Evicted", "message": HOSTILE, "conditions": [waiting],
        "containerStatuses": [
            {"name": "c", "image": "host", "imageID": "", "ready": False, "restartCount": 0,
             "state": {"terminated": ended}}
        ],
    }  # fmt: skip
    must(client.merge(f"{pods}/evil-pod/status", {"status": status}))


def walk(server: EmbeddedServer, line: str) -> Result:
    return invoke(*line.split(" "), env={"WINDLASS_STATE": str(server.state)})


@pytest.mark.parametrize("line", WALKED, ids=repr)
def test_no_command_prints_control_characters(hostile: EmbeddedServer, line: str) -> None:
    printed = walk(hostile, line)
    assert not OBEYED.search(printed.out)
    assert not OBEYED.search(printed.err)
    assert "Internal error" not in printed.err


def test_every_command_is_walked_or_has_a_reason() -> None:
    walked = {line.split(" ")[0] for line in WALKED}
    known = {name for section in main.SECTIONS.values() for name in section}
    assert known - walked - NOT_WALKED.keys() == set()


def test_hostile_text_stays_readable(hostile: EmbeddedServer) -> None:
    assert r"\x1b]0;owned\x07" in walk(hostile, "why evil").out
    assert r"\x1b[2J" in walk(hostile, "ps").out


def test_json_keeps_the_text(hostile: EmbeddedServer) -> None:
    status = walk(hostile, "get run evil --json").json["status"]
    assert status["message"] == HOSTILE


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_only_our_own_styles_reach_a_terminal(attack: str) -> None:
    with terminal(80) as screen:
        out = Output()
        out.say(f"{out.style('name' + attack, screen, fg='red')} {attack}")
        out.table(["NAME"], [[attack]])
    own = screen.text.replace("\x1b[31m", "").replace("\x1b[0m", "")
    assert "\x1b[31mname" in screen.text
    assert not OBEYED.search(own)


def test_a_message_cannot_forge_a_second_line() -> None:
    assert terminal_text.one_line("fine\nerror: forged\r\nx") == "fine error: forged x"


def test_escaped_json_means_the_same() -> None:
    document = json.dumps({"k": HOSTILE}, ensure_ascii=False)
    assert json.loads(terminal_text.in_json(document)) == {"k": HOSTILE}
