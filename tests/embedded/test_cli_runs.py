"""What people do with jobs through the command line, on a real engine."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes

SMALL = ("--cpus", "100m", "--memory", "64Mi")
WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


class Engine:
    def __init__(self, state: Path) -> None:
        self.state = state

    def __call__(self, *arguments: object, stdin: str = "") -> Result:
        return invoke(*arguments, stdin=stdin, env={"WINDLASS_STATE": str(self.state)})

    def ok(self, *arguments: object, stdin: str = "") -> Result:
        result = self(*arguments, stdin=stdin)
        assert result.code == exit_codes.OK, result.err
        return result

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ok("get", "run", name, "--json").json.get("status", {})
        return found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("runs") / "state")
    made.ok("up", "--detach", "--no-kubectl-context")
    try:
        yield made
    finally:
        made("down", "--stop-runs")


@pytest.fixture
def cores(engine: Engine) -> str:
    (node,) = engine.ok("status", "--json").json["nodes"]
    return str(node["allocatable"]["cpu"])


def test_a_followed_run_whose_output_is_not_read_on_ends_the_command_silently(
    engine: Engine,
) -> None:
    program = [*WINDLASS, "run", "-n", "piped", *SMALL, "--", "sh", "-c", "seq 50000; sleep 600"]
    command = subprocess.Popen(
        program,
        env={**os.environ, "WINDLASS_STATE": str(engine.state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert command.stderr is not None
    assert command.stdout.readline() == "1\n"
    command.stdout.close()
    lines = command.stderr.read().splitlines()
    assert command.wait() == exit_codes.PIPE_CLOSED
    assert [line for line in lines if not line.startswith("run/piped ")] == []
    assert engine.status("piped")["phase"] == "Running"
    engine.ok("delete", "run", "piped")


# --- A1, A2, A5: submit with everything that can be said


def test_a_job_with_all_its_flags_is_submitted_and_ends(engine: Engine) -> None:
    engine.ok(
        "submit", "-n", "flags", "-w", "2", *SMALL, "--shm", "32Mi", "-e", "GREETING=hi",
        "-l", "team=a", "-a", "note=x", "--priority", "70", "--timeout", "5m", "--ttl", "1h",
        "--retries", "1", "--", "sh", "-c", "echo $GREETING from $WINDLASS_RANK",
    )  # fmt: skip
    assert engine("wait", "flags", "--timeout", "60s").code == exit_codes.OK
    assert sorted(engine.ok("logs", "flags").out.splitlines()) == [
        "worker/0 | hi from 0", "worker/1 | hi from 1",
    ]  # fmt: skip
    spec = engine.ok("get", "run", "flags", "--json").json["spec"]
    assert (spec["priority"], spec["ttlAfterFinished"]) == (70, "1h")


def test_a_dry_run_shows_object_plan_and_start_and_submits_nothing(engine: Engine) -> None:
    shown = engine.ok("run", "-n", "ghost", *SMALL, "--dry-run", "--json", "--", "true").json
    assert shown["object"]["spec"]["roles"][0]["command"] == ["true"]
    assert shown["plan"]["start"]["sure"] == "now"
    assert engine("get", "run", "ghost").code == exit_codes.NOT_FOUND


def test_an_impossible_job_is_refused_with_numbers_unless_forced(engine: Engine) -> None:
    refused = engine("submit", "-n", "huge", "--cpus", "999", "--", "true")
    assert refused.code == exit_codes.FAILED
    assert "999 cpu" in refused.err
    assert engine("get", "run", "huge").code == exit_codes.NOT_FOUND
    run = engine("run", "--cpus", "999", "--", "true")
    assert run.code == exit_codes.RUN_NOT_STARTED
    assert "Not submitted." in run.err
    assert " submitted\n" not in run.err, "what is deleted again was never announced"
    engine.ok("submit", "-n", "forced", "--cpus", "999", "--force", "--", "true")
    assert engine.ok("why", "forced", "--json").json["reason"] == "Impossible"
    engine.ok("delete", "run", "forced")


@pytest.mark.parametrize(
    ("flags", "code", "remedy"),
    [
        (("--timeout", "3x"), exit_codes.INVALID, "1h30m"),
        (("-n", "Bad_Name"), exit_codes.INVALID, "--name Bad_Name cannot be used."),
        (
            ("--cpus", "8x"),
            exit_codes.INVALID,
            "--cpus 8x cannot be used.\n  It must be a quantity",
        ),
        (("-N", "nowhere"), exit_codes.NOT_FOUND, "windlass get namespaces"),
        (("--queue", "nowhere"), exit_codes.FAILED, "have the queue created"),
        (("--image", "x"), exit_codes.INVALID, "--image x"),
    ],
)
def test_what_the_server_refuses_is_one_sentence_and_leaves_nothing(
    engine: Engine, flags: tuple[str, ...], code: int, remedy: str
) -> None:
    before = engine.ok("get", "runs", "-A", "-q").out
    result = engine("submit", *flags, "--", "true")
    assert result.code == code, result.err
    assert result.err.startswith("error: ")
    assert remedy in result.err
    assert "Traceback" not in result.err
    assert engine.ok("get", "runs", "-A", "-q").out == before


def test_a_missing_secret_is_found_before_anything_is_submitted(engine: Engine) -> None:
    for command, code in (("run", exit_codes.RUN_NOT_STARTED), ("submit", exit_codes.NOT_FOUND)):
        result = engine(
            command, "-n", "keyed", *SMALL, "--env-secret", "keys", "-v", "config:nada:/c",
            "--", "sh", "-c", "echo $KEY",
        )  # fmt: skip
        assert result.code == code, result.err
        assert "secret/keys, configmap/nada do not exist in namespace default" in result.err
        assert "windlass secret create keys" in result.err
        assert engine("get", "run", "keyed").code == exit_codes.NOT_FOUND
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"},
              "stringData": {"KEY": "open"}}  # fmt: skip
    engine.ok("apply", "-f", "-", stdin=json.dumps(secret))
    result = engine.ok("run", *SMALL, "--env-secret", "keys", "--", "sh", "-c", "echo $KEY")
    assert result.out == "open\n"
    engine.ok("submit", "--force", "-n", "keyed", *SMALL, "--env-secret", "later", "--", "true")
    engine.ok("delete", "run", "keyed")


# --- A3: code


def test_the_working_folder_goes_along_without_what_is_ignored(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.sh").write_text("cat data.txt; ls\n")
    (tmp_path / "data.txt").write_text("from the folder\n")
    (tmp_path / "secret.log").write_text("x")
    (tmp_path / ".gitignore").write_text("*.log\n")
    monkeypatch.chdir(tmp_path)
    result = engine("run", *SMALL, "--workdir", ".", "--", "sh", "main.sh")
    assert result.code == exit_codes.OK, result.err
    assert "from the folder" in result.out
    assert "secret.log" not in result.out
    assert "secret.log" in result.err


def test_a_huge_folder_is_refused_before_anything_is_sent(engine: Engine, tmp_path: Path) -> None:
    with open(tmp_path / "model.bin", "wb") as file:
        file.truncate(2 << 20)
    flags = ("--workdir", tmp_path, "--workdir-limit", "1Mi")
    result = engine("submit", "-n", "heavy", *SMALL, *flags, "--", "true")
    assert result.code == exit_codes.FAILED
    assert "model.bin" in result.err
    assert ".windlassignore" in result.err
    assert engine("get", "run", "heavy").code == exit_codes.NOT_FOUND


def test_broken_requirements_are_reported_with_the_output_of_the_tool(engine: Engine) -> None:
    result = engine("run", "-n", "unknown", *SMALL, "-r", "not a package!!", "--", "true")
    assert result.code != exit_codes.OK
    assert "ImageOrEnvironmentFailed" in result.err
    assert "not a package!!" in result.err


# --- A4: data


def test_a_job_with_requirements_of_its_own_can_import_windlass(engine: Engine) -> None:
    code = "import windlass; windlass.report(0.5, loss=2.0); print(windlass.context().run)"
    engine("run", "-n", "own-needs", *SMALL, "--python", "3.11", "--", "python", "-c", code)
    status = engine("get", "run", "own-needs", "--json").json["status"]
    assert (status["phase"], engine("logs", "own-needs").out) == ("Succeeded", "own-needs\n")


def test_data_of_the_machine_is_mounted(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("data of the machine")
    result = engine("run", *SMALL, "-v", f"{tmp_path}:{tmp_path}", "--", "cat", f"{tmp_path}/x")
    assert (result.code, result.out) == (exit_codes.OK, "data of the machine\n")


# --- A6: list, get, why


def test_ps_and_why_show_which_run_waits_for_which(engine: Engine, cores: str) -> None:
    engine.ok("submit", "-n", "greedy", "--cpus", cores, "--memory", "64Mi", "--expected", "10m",
              "--", "sleep", "300")  # fmt: skip
    try:
        engine.ok("wait", "greedy", "--started", "--timeout", "60s")
        engine.ok("submit", "-n", "patient", *SMALL, "--", "echo", "at last")
        page = engine.ok("ps", "--json").json
        rows = {row["name"]: row for row in page["items"]}
        assert rows["greedy"]["phase"] == "Running"
        assert rows["patient"]["position"] == 1
        assert "PHASE" in engine.ok("ps").out
        told = engine.ok("why", "patient")
        assert "run greedy" in told.out.lower()
        assert "It would start when run greedy ends" in " ".join(told.out.split())
        assert engine.ok("why", "patient", "--json").json["start"]["at"]
        assert engine.ok("queue", "get", "default", "--json").json["runs"]
    finally:
        engine.ok("stop", "greedy", "--wait")
    assert engine("attach", "patient").out == "at last\n"


def test_why_of_a_failed_run_has_the_last_lines_and_the_remedy(engine: Engine) -> None:
    assert engine("run", "-n", "broken", *SMALL, "--", "sh", "-c", "echo oops; exit 4").code == 4
    told = engine.ok("why", "broken").out
    assert "exit code 4" in told
    assert "oops" in told
    assert "What you can do: Read the last lines of the log." in told


# --- A7: logs, exec


def test_logs_by_rank_tail_and_time(engine: Engine) -> None:
    engine.ok("run", "-n", "talk", "-w", "2", *SMALL, "--", "sh", "-c",
              "for i in 1 2 3; do echo line $i of $WINDLASS_RANK; done")  # fmt: skip
    assert engine.ok("logs", "talk", "--rank", "1", "--tail", "1").out == "worker/1 | line 3 of 1\n"
    assert len(engine.ok("logs", "talk", "--since", "1h").out.splitlines()) == 6
    wrong = engine("logs", "talk", "--since", "yesterday")
    assert (wrong.code, "5m" in wrong.err) == (exit_codes.USAGE, True)


LISTEN = "trap 'echo last words of $WINDLASS_RANK; exit 0' TERM; while :; do sleep 0.05; done"


def test_a_member_that_is_stopped_because_another_failed_keeps_its_last_words(
    engine: Engine,
) -> None:
    script = f"echo hello; [ $WINDLASS_RANK = 1 ] && sleep 1 && exit 3; {LISTEN}"
    seen = engine("run", "-n", "torn", "-w", "2", *SMALL, "--", "bash", "-c", script)
    assert seen.code == 3
    expected = ["worker/0 | hello", "worker/0 | last words of 0", "worker/1 | hello"]
    assert sorted(seen.out.splitlines()) == expected
    assert engine.ok("logs", "torn").out.splitlines() == expected
    assert engine.ok("logs", "torn", "--rank", "0", "--tail", "1").out == f"{expected[1]}\n"
    engine.ok("delete", "run", "torn")


def test_the_log_of_a_run_that_was_stopped_is_kept_as_long_as_the_run(engine: Engine) -> None:
    engine.ok("submit", "-n", "halted", *SMALL, "--", "bash", "-c", f"echo hello; {LISTEN}")
    until(lambda: engine("logs", "halted").out == "hello\n")
    engine.ok("stop", "halted", "--wait")
    assert engine.ok("logs", "halted").out == "hello\nlast words of 0\n"
    said = engine.ok("logs", "-f", "halted", "--json").json_lines
    assert [line["text"] for line in said] == ["hello", "last words of 0"]
    engine.ok("delete", "run", "halted")


def test_earlier_attempts_are_shown_when_asked_for(engine: Engine, tmp_path: Path) -> None:
    flag = tmp_path / "up"
    script = (
        f"echo attempt $WINDLASS_ATTEMPT; [ $WINDLASS_ATTEMPT = 0 ] && touch {flag} && sleep 99"
    )
    engine.ok("submit", "-n", "again", "--retries", "1", *SMALL, "--", "bash", "-c",
              f"{script}; true")  # fmt: skip
    until(flag.exists)
    engine.ok(
        "delete",
        "pod",
        engine.ok("get", "pods", "-l", "windlass.dev/run=again", "-o", "name")
        .out.strip()
        .removeprefix("pod/"),
    )
    engine.ok("wait", "again", "--timeout", "90s")
    assert engine.ok("logs", "again").out == "attempt 1\n"
    assert engine.ok("logs", "again", "--attempt", "0").out == "attempt 0\n"
    shown = engine.ok("logs", "again", "--attempt", "all").out.splitlines()
    assert shown == ["#0 worker/0 | attempt 0", "#1 worker/0 | attempt 1"]
    wrong = engine("logs", "again", "--attempt", "first")
    assert (wrong.code, "neither a number nor all" in wrong.err) == (exit_codes.USAGE, True)


def test_exec_runs_a_command_beside_the_job(engine: Engine) -> None:
    engine.ok("submit", "-n", "host", *SMALL, "-e", "INSIDE=yes", "--", "sleep", "300")
    try:
        engine.ok("wait", "host", "--started", "--timeout", "60s")
        done = subprocess.run(
            [*WINDLASS, "exec", "host", "--", "sh", "-c", "echo inside=$INSIDE; exit 5"],
            env={**os.environ, "WINDLASS_STATE": str(engine.state)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (5, "inside=yes\n"), done.stderr
        missing = engine("exec", "host", "--", "no-such-program")
        assert missing.code == exit_codes.FAILED
        assert "no-such-program: No such file" in missing.err
        talk = _Terminal(engine, "exec", "-it", "host")
        try:
            talk.read_until("# " if os.getuid() == 0 else "$ ")
            talk.write("echo $((6 * 7))\r")
            talk.read_until("42")
            talk.write("exit 3\r")
            assert talk.process.wait(60) == 3
        finally:
            talk.close()
    finally:
        engine.ok("stop", "host")


# --- A9: stop, delete, prune, time limits


def test_stop_keeps_the_record_and_prune_removes_it(engine: Engine) -> None:
    engine.ok("submit", "-n", "ended", *SMALL, "--", "sleep", "300")
    engine.ok("wait", "ended", "--started", "--timeout", "60s")
    assert "run/ended Stopped" in engine.ok("stop", "ended", "--wait").out
    assert "already ended" in engine.ok("stop", "ended", "--wait").out
    assert engine.status("ended")["phase"] == "Stopped"
    assert engine("wait", "ended").code == exit_codes.FAILED
    time.sleep(1.1)
    assert "run/ended" in engine.ok("prune", "--older-than", "1s", "--dry-run").out
    assert "run/ended" in engine.ok("prune", "--older-than", "1s", "-y", "--json").json["deleted"]
    assert engine("get", "run", "ended").code == exit_codes.NOT_FOUND


def test_a_job_that_runs_too_long_ends(engine: Engine) -> None:
    engine.ok("submit", "-n", "slow", *SMALL, "--timeout", "1s", "--retries", "0", "--grace", "1s",
              "--", "sleep", "300")  # fmt: skip
    assert engine("wait", "slow", "--timeout", "60s").code == exit_codes.FAILED
    assert engine.status("slow")["reason"] == "Timeout"


# --- A10: grow and shrink; hold and let go


def test_scale_suspend_and_resume(engine: Engine) -> None:
    engine.ok("submit", "-n", "elastic", "-w", "1", *SMALL, "--suspend", "--", "sh", "-c",
              "echo $WINDLASS_SIZE")  # fmt: skip
    beyond = engine("scale", "elastic", "4000")
    assert (beyond.code, "--force" in beyond.err) == (exit_codes.FAILED, True)
    assert beyond.err.startswith("error: Impossible: needs 4000 x ")
    scaled = engine.ok("scale", "elastic", "2")
    assert scaled.out == "run/elastic worker: 1 -> 2 replicas\n"
    assert "starts with the new size" in scaled.err
    assert engine.ok("why", "elastic", "--json").json["reason"] == "Suspended"
    engine.ok("resume", "elastic")
    engine.ok("wait", "elastic", "--timeout", "60s")
    assert sorted(engine.ok("logs", "elastic").out.split("\n"))[1:] == [
        "worker/0 | 2", "worker/1 | 2",
    ]  # fmt: skip
    assert engine("scale", "elastic", "3").code == exit_codes.CONFLICT


# --- A11: by the clock


def test_cron_is_made_listed_held_started_and_deleted(engine: Engine) -> None:
    engine.ok("cron", "create", "-n", "nightly", "--schedule", "0 3 * * *", *SMALL, "--",
              "echo", "good night")  # fmt: skip
    until(lambda: "next start" in engine.ok("cron", "get", "nightly").out, "it is scheduled")
    (row,) = engine.ok("cron", "list").out.splitlines()[1:]
    assert re.search(r"^nightly .* never +in \d+[hm]", row)
    engine.ok("cron", "suspend", "nightly")
    assert "suspended" in engine.ok("cron", "list").out
    engine.ok("cron", "resume", "nightly")
    made = engine.ok("cron", "run-now", "nightly", "-q").out.strip().removeprefix("run/")
    engine.ok("wait", made, "--timeout", "60s")
    assert engine.ok("logs", made).out == "good night\n"
    runs = engine.ok("cron", "get", "nightly", "--json").json["runs"]
    assert [each["metadata"]["name"] for each in runs] == [made]
    engine.ok("cron", "delete", "nightly")
    assert engine("cron", "get", "nightly").code == exit_codes.NOT_FOUND


# --- A19 and the rest


def test_whoami_events_and_top(engine: Engine) -> None:
    assert engine.ok("whoami", "-q").out == "admin\n"
    engine.ok("run", "-n", "seen", *SMALL, "--", "true")
    assert "Queued -> Starting" in engine.ok("events", "seen").out
    (node,) = engine.ok("top", "nodes", "--json").json
    assert node["resources"]["cpu"]["total"] > 0
    assert "cpu" in engine.ok("top", "nodes").out


def test_a_user_without_the_right_sees_the_user_to_ask(engine: Engine, tmp_path: Path) -> None:
    config = json.loads((engine.state / "kubeconfig").read_text())
    config["users"][0]["user"]["as"] = "bob"
    as_bob = tmp_path / "kubeconfig"
    as_bob.write_text(json.dumps(config))
    for command in (("ps",), ("why", "x"), ("submit", "--", "true"), ("stop", "x"), ("logs", "x")):
        result = engine(command[0], "--kubeconfig", as_bob, *command[1:])
        assert result.code == exit_codes.FORBIDDEN, (command, result.err)
        assert "bob" in result.err
        assert "Ask an administrator" in result.err
    assert engine.ok("whoami", "--kubeconfig", as_bob, "-q").out == "bob\n"


def test_rerun_and_a_file_with_overrides(engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "once.yaml"
    engine.ok("init", file, "--", "sh", "-c", "echo run $N")
    result = engine("run", "-f", file, "-e", "N=7", *SMALL)
    assert (result.code, result.out) == (0, "run 7\n")
    edited = engine("run", "-f", file, "-e", "N=8", *SMALL)
    assert (edited.code, edited.out) == (0, "run 8\n"), "the same file is submitted again"
    named = ("-f", file, "-n", "once", *SMALL)
    engine.ok("run", *named, "-e", "N=7")
    again = engine("rerun", "once", "-n", "twice", "--attach")
    assert (again.code, again.out) == (0, "run 7\n")
    for command, code in (("run", exit_codes.RUN_NOT_STARTED), ("submit", exit_codes.CONFLICT)):
        taken = engine(command, *named)
        assert taken.code == code
        assert "Run 'once' exists already; it has ended (Succeeded)." in taken.err
        assert "Use --replace" in taken.err


def test_replace_deletes_only_an_ended_run_and_only_for_one_that_is_accepted(
    engine: Engine,
) -> None:
    once = ("-n", "replaced", *SMALL)
    uids = []
    for word in ("first", "second"):
        assert engine.ok("run", *once, "--replace", "--", "echo", word).out == f"{word}\n"
        uids.append(engine.ok("get", "run", "replaced", "--json").json["metadata"]["uid"])
    assert uids[0] != uids[1]
    for refused, code in (("-c", "999"), exit_codes.RUN_NOT_STARTED), (
        ("-m", "1Zi"), exit_codes.USAGE
    ):  # fmt: skip
        result = engine("run", *once, *refused, "--replace", "--", "true")
        assert result.code == code, result.err
    assert engine.ok("logs", "replaced").out == "second\n"
    engine.ok("submit", *once, "--replace", "--", "sleep", "1000")
    result = engine("submit", *once, "--replace", "--", "true")
    assert result.code == exit_codes.CONFLICT
    assert "Stop it first: windlass stop replaced" in result.err
    engine.ok("delete", "run", "replaced")


def test_a_cron_from_a_file_that_generates_names_is_named_like_the_file(
    engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "nightly.yaml"
    engine.ok("init", file, "--", "true")
    made = engine.ok("cron", "create", "--schedule", "@yearly", "-f", file, "--json").json
    assert made["metadata"]["name"] == "nightly"
    engine.ok("cron", "delete", "nightly")


def test_queues_are_made_changed_and_deleted(engine: Engine) -> None:
    engine.ok("queue", "create", "vision", "--guarantee", "cpu=1", "--limit", "cpu=2")
    assert "warning" not in engine.ok("queue", "set", "vision", "--weight", "3").err
    warned = engine.ok("queue", "set", "vision", "--guarantee", "cpu=999", "--limit", "cpu=999")
    assert "Queue vision is guaranteed 999 cpu in all, but the cluster has" in warned.err
    engine.ok("queue", "set", "vision", "--guarantee", "cpu=1", "--limit", "cpu=2")
    assert engine.ok("get", "queue", "vision", "--json").json["spec"]["weight"] == 3
    assert "vision" in engine.ok("queue", "list").out
    engine.ok("queue", "delete", "vision")


@pytest.mark.parametrize(("answer", "phase"), [("d", "Running"), ("s", "Stopped")])
def test_ctrl_c_asks_whether_to_detach_or_to_stop(engine: Engine, answer: str, phase: str) -> None:
    name = f"asked-{answer}"
    talk = _Terminal(engine, "run", "-n", name, *SMALL, "--", "sh", "-c", "echo begun; sleep 300")
    try:
        talk.read_until("begun")
        talk.write("\x03")
        talk.read_until("(s)top it?")
        talk.write(f"{answer}\n")
        assert talk.process.wait(60) == exit_codes.INTERRUPTED
        until(lambda: engine.status(name)["phase"] == phase)
    finally:
        talk.close()
        engine("stop", name)


def test_a_table_that_is_watched_stays_in_its_place(engine: Engine) -> None:
    engine.ok("submit", "-n", "watched", *SMALL, "--", "sleep", "300")
    until(lambda: engine.status("watched")["phase"] == "Running")
    talk = _Terminal(engine, "ps", "-w")
    try:
        talk.read_until("watched")
        assert not re.search(r"\x1b\[\d+F", talk.seen)
        engine.ok("stop", "watched")
        talk.read_match(r"watched +Stopped")
        assert re.search(r"\x1b\[\d+F", talk.seen), "the cursor goes up over what it showed before"
        talk.write("\x03")
        assert talk.process.wait(60) == exit_codes.INTERRUPTED
    finally:
        talk.close()


def test_top_draws_what_nodes_and_runs_use(engine: Engine) -> None:
    engine.ok("submit", "-n", "busy", *SMALL, "--", "sleep", "300")
    until(lambda: "busy" in engine.ok("top", "runs").out)
    (line,) = [each for each in engine.ok("top", "runs").out.splitlines() if "busy" in each]
    assert re.search(r"[█░#.]{10} \S+/", line), line
    assert re.search(r"cpu +[█░#.]+ \S+ used of", engine.ok("top", "nodes").out)
    engine.ok("stop", "busy")


class _Terminal:
    """A command on a terminal of its own."""

    def __init__(self, engine: Engine, *arguments: str) -> None:
        self._near, far = pty.openpty()
        self.process = subprocess.Popen(
            [*WINDLASS, *arguments], stdin=far, stdout=far, stderr=far, start_new_session=True,
            env={**os.environ, "WINDLASS_STATE": str(engine.state), "TERM": "dumb"},
            preexec_fn=_controlling,  # noqa: PLW1509 (it calls one function of the kernel)
        )  # fmt: skip
        os.close(far)
        self.seen = ""

    def read_until(self, text: str) -> None:
        self.read_match(re.escape(text))

    def read_match(self, pattern: str) -> None:
        while not re.search(pattern, self.seen):
            self.seen += os.read(self._near, 4096).decode(errors="replace")

    def write(self, text: str) -> None:
        os.write(self._near, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._near)


def _controlling() -> None:
    """The terminal sends the command its signals."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_json_everywhere_is_one_document(engine: Engine) -> None:
    for command in (("ps",), ("queue", "list"), ("cron", "list"), ("events",), ("top", "runs")):
        json.loads(engine.ok(*command, "--json").out)
