"""What people do with files, outputs and secrets through the command line, on a real engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedded.test_cli_runs import SMALL, WINDLASS, Engine
from tests.harness.waiting import until
from windlass.cli.lib import exit_codes

WRITE = "mkdir out; echo one > out/1.txt; echo two > out/2.log"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("files") / "state")
    made.ok("up", "--detach", "--no-kubectl-context")
    try:
        yield made
    finally:
        made("down", "--stop-runs")


def test_the_end_of_a_run_says_where_its_files_are_and_the_command_works(
    engine: Engine, tmp_path: Path
) -> None:
    result = engine.ok("run", "-n", "writes", *SMALL, "--", "sh", "-c", WRITE)
    assert "run/writes wrote 2 files (8 bytes), kept until it is deleted" in result.err
    assert "Copy them: windlass cp writes: ." in result.err
    copied = engine.ok("cp", "writes:", tmp_path)
    assert copied.out.splitlines() == [f"2 files, 8 bytes in {tmp_path}"]
    assert (tmp_path / "out/1.txt").read_text() == "one\n"
    again = engine.ok("cp", "--json", "writes:out/*.txt", tmp_path / "out").json
    assert (again["files"], again["unchanged"]) == (1, 1)
    listed = engine.ok("cp", "--list", "writes:out", "-q")
    assert listed.out.split() == ["1.txt", "2.log"]
    silent = engine.ok("run", "-n", "silent", *SMALL, "--", "true")
    assert "wrote" not in silent.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("writes:none", "."), exit_codes.FAILED, "There is no none in the run."),
        (("a", "b"), exit_codes.USAGE, "Neither SRC nor DEST names a run."),
        (("writes:a", "writes:b"), exit_codes.USAGE, "Both name a run."),
        (("writes:a",), exit_codes.USAGE, "cp needs SRC and DEST"),
        (("nobody:a", "."), exit_codes.NOT_FOUND, "There is no run 'nobody'."),
        (("writes/boss-1:a", "."), exit_codes.FAILED, "no replica 'boss-1'"),
        ((".", "writes:a"), exit_codes.CONFLICT, "needs a running replica"),
    ],
)
def test_what_cannot_be_copied_is_refused_in_a_sentence(
    engine: Engine, arguments: tuple[str, ...], code: int, text: str
) -> None:
    result = engine("cp", *arguments)
    assert (result.code, text in result.err) == (code, True), result.err


def test_outputs_are_listed_downloaded_and_pinned(engine: Engine, tmp_path: Path) -> None:
    result = engine.ok(
        "run",
        "-n",
        "kept",
        *SMALL,
        "--output",
        "out",
        "--output",
        "*.none",
        "--",
        "sh",
        "-c",
        WRITE,
    )
    assert "run/kept has outputs: 2 files (8 bytes)" in result.err
    listed = engine.ok("outputs", "kept", "--json").json
    assert [(each["path"], each["size"]) for each in listed["items"]] == [
        ("out/1.txt", 4), ("out/2.log", 4),
    ]  # fmt: skip
    engine.ok("outputs", "download", "kept", tmp_path)
    assert (tmp_path / "out/2.log").read_text() == "two\n"
    assert engine.ok("outputs", "pin", "kept", "--json").json == {"run": "kept", "pinned": True}
    engine.ok("run", "-n", "other", *SMALL, "--", "true")
    prune = ("prune", "--older-than", "1s", "-y")
    until(lambda: engine.ok(*prune) and engine("get", "run", "other").code, "another is removed")
    assert engine.ok("outputs", "kept", "--json").json["pinned"] is True
    assert engine.ok("outputs", "quota", "3Gi").out == "Team default keeps up to 3Gi of outputs.\n"
    assert engine.ok("outputs", "usage", "--json").json["quota"] == 3 << 30
    assert engine("outputs", "quota", "much").code == exit_codes.USAGE


def test_values_of_secrets_come_from_files_or_stdin_and_are_never_printed(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "key.pem").write_bytes(b"\x00binary\n")
    (tmp_path / ".env").write_text("# none\nA=1\nexport B='two words'\n")
    made = engine.ok("secret", "create", "hf", "TOKEN", stdin="s3cret\n")
    assert "s3cret" not in made.out + made.err
    assert "secret/hf created: TOKEN." in made.out
    engine.ok("secret", "create", "more", "--env-file", tmp_path / ".env")
    engine.ok("secret", "create", "file", "--from-file", tmp_path / "key.pem")
    shown = engine.ok("secret", "list")
    assert "A, B" in shown.out
    assert "key.pem" in shown.out
    assert "s3cret" not in shown.out
    script = 'printf %s "$TOKEN" | cksum; printf %s "$B"'
    printed = engine.ok(
        "run", *SMALL, "--env-secret", "hf", "--env-secret", "more", "--", "sh", "-c", script
    ).out
    wanted = subprocess.run(
        ["cksum"], input=b"s3cret", stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    assert printed.splitlines() == [wanted.strip(), "two words"]
    conflict = engine("secret", "create", "hf", "OTHER", stdin="x")
    assert conflict.code == exit_codes.CONFLICT
    engine.ok("secret", "create", "hf", "OTHER", "--replace", stdin="x")
    listed = engine.ok("secret", "list", "--json").json["items"]
    assert {"name": "hf", "keys": ["OTHER"]} in listed
    engine.ok("secret", "delete", "hf")
    assert engine("secret", "delete", "hf").code == exit_codes.NOT_FOUND


def test_a_value_in_the_arguments_is_refused_and_not_repeated(engine: Engine) -> None:
    result = engine("secret", "create", "hf", "TOKEN=s3cret")
    assert result.code == exit_codes.USAGE
    assert "s3cret" not in result.err


def test_a_port_is_forwarded_until_the_command_is_interrupted(
    engine: Engine, tmp_path: Path
) -> None:
    program = (
        "import os, socket; s = socket.create_server(('localhost', int("
        "os.environ['WINDLASS_PORT_ECHO'])));"
        "print('ready', flush=True)\nwhile True: c, _ = s.accept(); c.sendall(b'hello'); c.close()"
    )
    engine.ok("submit", "-n", "echo", *SMALL, "--port", "echo=7000", "--", "python3", "-c", program)
    logs = subprocess.Popen(
        [*WINDLASS, "logs", "-f", "echo", "--state", str(engine.state)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert logs.stdout is not None
    assert logs.stdout.readline() == "ready\n"
    logs.terminate()
    logs.wait(30)
    forward = subprocess.Popen(
        [*WINDLASS, "port-forward", "echo", ":echo", "--json", "--state", str(engine.state)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert forward.stdout is not None
    local = json.loads(forward.stdout.readline())["local"]
    import socket

    with socket.create_connection(("127.0.0.1", local), 30) as link:
        assert link.recv(100) == b"hello"
    forward.send_signal(2)
    assert forward.wait(30) == exit_codes.INTERRUPTED
    assert engine("port-forward", "echo", "nope").code == exit_codes.NOT_FOUND
    engine.ok("stop", "echo", "--wait")
