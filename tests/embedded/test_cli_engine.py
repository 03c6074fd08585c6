"""`windlass up` and what people do with it: real processes, real signals, real jobs."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import until
from tests.unit.cli.invoking import Result, invoke
from windlass.cli.lib import exit_codes
from windlass.cli.lib import state_dir as states
from windlass.version import VERSION

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own configuration may be read or written."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("WINDLASS_STATE", raising=False)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(tmp_path_factory.mktemp("engine") / "state") as running:
        yield running


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Engine]:
    with Engine(tmp_path / "state") as running:
        yield running


class Engine:
    """A detached engine on a folder of its own; stopped at the end with everything it runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = states.StateFolder(path)

    def __enter__(self) -> Engine:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self("down", "--stop-runs")

    def __call__(self, *arguments: object, stdin: str = "") -> Result:
        return invoke(*arguments, stdin=stdin, env={"WINDLASS_STATE": str(self.path)})

    def up(self) -> Result:
        result = self("up", "--detach", "--json")
        assert result.code == exit_codes.OK, result.err
        return result

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """A command as a process of its own, to be interrupted."""
        return subprocess.Popen(
            [*WINDLASS, *arguments],
            env={**os.environ, "WINDLASS_STATE": str(self.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run_status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = self("get", "run", name, "--json").json.get("status", {})
        return status


def test_run_shows_the_output_and_ends_with_the_code_of_the_job(engine: Engine) -> None:
    good = engine("run", "--", "sh", "-c", "echo first; echo second")
    assert (good.code, good.out) == (0, "first\nsecond\n")
    bad = engine("run", "--", "sh", "-c", "echo trouble >&2; exit 7")
    assert bad.code == 7
    assert "trouble" in bad.out
    assert "CodeFailed" in bad.err


def test_the_state_folder_is_for_its_owner_only(engine: Engine) -> None:
    assert engine.path.stat().st_mode & 0o077 == 0


def test_run_for_programs_is_one_document_per_line(engine: Engine) -> None:
    lines = engine("run", "--json", "--name", "lines", "--", "echo", "hi").json_lines
    assert {"type": "log", "role": "worker", "index": 0, "text": "hi", "attempt": 0} in lines
    assert [line["type"] for line in lines[-3:]] == ["log", "state", "end"]
    assert lines[-1]["run"]["status"]["phase"] == "Succeeded"


def test_lines_of_several_members_say_whose_they_are(engine: Engine) -> None:
    script = 'echo "I am $WINDLASS_INDEX"'
    result = engine("run", "-w", "2", "--cpus", "500m", "--", "sh", "-c", script)
    assert sorted(result.out.splitlines()) == ["worker/0 | I am 0", "worker/1 | I am 1"]


def test_environment_of_a_job(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "passed on")
    result = engine("run", "-e", "A=b=c", "-e", "MINE", "--", "sh", "-c", 'echo "$A $MINE"')
    assert result.out == "b=c passed on\n"
    unset = engine("run", "-e", "NOT_SET_ANYWHERE", "--", "true")
    assert unset.code in (exit_codes.USAGE, exit_codes.RUN_NOT_STARTED)
    assert "NOT_SET_ANYWHERE" in unset.err


def test_logs_afterwards_by_run_by_pod_and_by_tail(engine: Engine) -> None:
    engine("run", "--name", "talk", "--", "sh", "-c", "echo one; echo two; echo three")
    assert engine("logs", "talk").out == "one\ntwo\nthree\n"
    assert engine("logs", "talk", "--tail", "1").out == "three\n"
    assert engine("logs", "talk", "--json").json_lines[0]["text"] == "one"
    pods = engine("get", "pods", "-l", "windlass.dev/run=talk", "-q").out.split()
    assert engine("logs", pods[0].removeprefix("pod/")).out == "one\ntwo\nthree\n"
    missing = engine("logs", "nobody")
    assert missing.code == exit_codes.NOT_FOUND
    assert "windlass get runs" in missing.err


def test_following_starts_before_the_job_and_ends_with_it(engine: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"echo waiting; while [ ! -e {gate} ]; do sleep 0.05; done; echo through"
    engine("submit", "--name", "gated", "--", "sh", "-c", script)
    follower = engine.start("logs", "-f", "gated")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "waiting\n"
    gate.touch()
    rest, err = follower.communicate(timeout=60)
    assert rest == "through\n"
    assert follower.returncode == 0, err


def test_following_survives_a_killed_server_without_losing_or_doubling_a_line(
    engine: Engine, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = (
        "i=0; while [ $i -lt 500 ]; do i=$((i+1)); echo line $i; done; "
        f"while [ ! -e {gate} ]; do sleep 0.05; done; echo the end"
    )
    engine("submit", "--name", "cut", "--", "sh", "-c", script)
    follower = engine.start("logs", "-f", "cut")
    assert follower.stdout is not None
    before = [follower.stdout.readline() for _ in range(500)]
    server = engine.folder.server()
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: _came_back(engine, "server", server.pid))
    until(lambda: engine("status", "-q").code == exit_codes.OK)
    gate.touch()
    rest, err = follower.communicate(timeout=90)
    assert before == [f"line {i}\n" for i in range(1, 501)]
    assert rest == "the end\n"
    assert follower.returncode == 0, err


def test_a_job_that_waits_says_why_with_amounts(engine: Engine) -> None:
    engine("submit", "--name", "huge", "--cpus", "4000", "--force", "--", "true")
    until(lambda: bool(engine.run_status("huge").get("reason")))
    status = engine.run_status("huge")
    assert (status["phase"], status["reason"]) == ("Queued", "Impossible")
    assert "4000" in status["message"]
    assert engine("delete", "run", "huge").code == exit_codes.OK


def test_stopping_what_has_ended_says_how_it_ended_and_leaves_its_record_alone(
    engine: Engine,
) -> None:
    engine("run", "--name", "good", "--", "true")
    engine("run", "--name", "bad", "--", "sh", "-c", "exit 7")
    stopped = engine("stop", "good", "bad")
    assert stopped.code == exit_codes.OK
    good, bad = stopped.out.splitlines()
    assert good == "run/good has already ended (Succeeded)"
    assert bad.startswith("run/bad has already ended (Failed: ")
    assert "exit code 7" in bad
    assert engine("stop", "good", "--json", "--wait").json == {"changed": []}
    assert "stop" not in engine("get", "run", "good", "--json").json["spec"]


def test_why_says_once_that_a_run_succeeded(engine: Engine) -> None:
    engine("run", "--name", "fine", "--", "true")
    sentences = engine("why", "fine", "--json").json["sentences"]
    assert len(sentences) == 1
    assert sentences[0].startswith("Succeeded ")


def test_a_port_in_use_is_reported_once_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = invoke("up", "--detach", "--state", tmp_path / "state", "--listen", address)
    assert result.code == exit_codes.FAILED
    assert result.err.count(address) == 1
    assert "Address already in use" in result.err
    assert "--listen" in result.err
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_reported_before_anything_is_created(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
    try:
        result = invoke("up", "--detach", "--state", disk / "deep" / "state")
        assert result.code == exit_codes.FAILED
        assert f"The disk of {disk} is full: 4 MiB are free" in result.err
        assert "--state DIR" in result.err
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_queues_tell_what_they_hold_borrow_and_lend(engine: Engine) -> None:
    engine("queue", "create", "lender", "--guarantee", "cpu=100000")
    engine("queue", "create", "borrower")
    engine("submit", "--name", "held", "--queue", "borrower", "--cpus", "0.1", "--", "sleep", "600")

    def status(name: str) -> dict[str, Any]:
        found: dict[str, Any] = engine("queue", "get", name, "--json").json["queue"]
        return found.get("status") or {}

    until(lambda: status("borrower").get("running") == 1)
    assert status("borrower")["used"]["cpu"] == status("borrower")["borrowed"]["cpu"] == "100m"
    until(lambda: bool(status("lender").get("lent")))
    assert "100m borrowed" in engine("queue", "get", "borrower").out
    assert "counts as" in engine("queue", "get", "lender").out
    shown = engine("queue", "list").out
    assert "BORROWED" in shown
    assert "cpu=100m" in shown
    engine("delete", "run", "held")
    until(lambda: status("borrower").get("running", 0) == 0)
    for name in ("lender", "borrower"):
        assert engine("queue", "delete", name).code == exit_codes.OK


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(engine: Engine) -> None:
    follower = engine.start("run", "--name", "left", "--", "sh", "-c", "echo up; sleep 600")
    assert follower.stdout is not None
    assert follower.stdout.readline() == "up\n"
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=60)
    assert follower.returncode == exit_codes.INTERRUPTED
    assert "windlass attach left" in err
    assert "Traceback" not in err
    assert engine.run_status("left")["phase"] == "Running"
    engine("delete", "run", "left")


def test_a_second_up_names_the_first(engine: Engine) -> None:
    second = engine("up")
    assert second.code == exit_codes.ALREADY_RUNNING
    server = engine.folder.server()
    assert server is not None
    assert server.url in second.err
    assert "windlass down" in second.err


def test_status_tells_people_and_programs(engine: Engine) -> None:
    shown = engine("status")
    assert shown.code == exit_codes.OK
    assert "ready" in shown.out
    data = engine("status", "--json").json
    assert data["engine"]["server"]["pid"]
    assert data["nodes"][0]["ready"] is True
    assert set(data["runs"]) >= {"Running", "Queued", "Succeeded", "Failed"}
    assert engine("status", "-q").out == "up\n"


def test_status_tells_what_scheduler_controllers_and_ledger_do(engine: Engine) -> None:
    engine("run", "--", "true")

    def leaders() -> dict[str, Any]:
        found = engine("status", "--json").json["leaders"]
        return {each["name"]: each for each in found if each["leads"] and each["work"]}

    until(lambda: {"scheduler", "controllers", "ledger"} == leaders().keys())
    until(lambda: leaders()["scheduler"]["work"]["lastAt"] is not None)
    work = leaders()["controllers"]["work"]
    assert (work["version"], work["recentErrors"]) == (VERSION, 0)
    assert "last decision" in engine("status").out


def test_a_debug_dump_has_what_a_report_needs_and_no_secret(engine: Engine, tmp_path: Path) -> None:
    engine("run", "-n", "secretive", "-e", "KEY=hidden-1", "--", "sh", "-c", "echo hidden-2")
    file = tmp_path / "dump.tar.gz"
    done = engine("debug-dump", file, "--json")
    assert done.code == exit_codes.OK, done.err
    assert done.json["missing"] == {}
    assert file.stat().st_mode & 0o077 == 0, "only the caller may read it"
    files = unpacked(file)
    assert {"logs/server.log", "logs/agent.log", "metrics/server.txt", "status.json"} <= set(files)
    runs = json.loads(files["objects/runs.json"])
    (spoken,) = [each for each in runs if each["metadata"]["name"] == "secretive"]
    assert spoken["status"]["phase"] == "Succeeded"
    assert "KEY" in spoken["spec"]["roles"][0]["env"]
    assert not any("hidden" in content for content in files.values())
    assert engine("debug-dump", file).code == exit_codes.CONFLICT


def unpacked(file: Path) -> dict[str, str]:
    with tarfile.open(file) as tar:
        return {
            member.name.partition("/")[2]: content.read().decode()
            for member in tar.getmembers()
            if (content := tar.extractfile(member))
        }


def test_kubectl_uses_the_kubeconfig_that_up_wrote(
    engine: Engine, kubernetes_binaries: Path
) -> None:
    queues = kubectl(engine, kubernetes_binaries, "get", "queues", "-o", "name")
    assert "queue.windlass.dev/default" in queues


def test_kubectl_shows_the_logs_of_a_job_and_follows_them_to_the_end(
    engine: Engine, kubernetes_binaries: Path
) -> None:
    engine("submit", "--name", "spoken", "--", "sh", "-c", "echo one; sleep 1; echo two")
    pods = engine("get", "pods", "-l", "windlass.dev/run=spoken", "-q")
    while not pods.out:
        pods = engine("get", "pods", "-l", "windlass.dev/run=spoken", "-q")
    pod = pods.out.split()[0]
    phase = ("get", pod, "-o", "jsonpath={.status.phase}")
    while kubectl(engine, kubernetes_binaries, *phase) in ("", "Pending"):
        continue
    assert kubectl(engine, kubernetes_binaries, "logs", "-f", pod) == "one\ntwo\n"
    assert kubectl(engine, kubernetes_binaries, "logs", "--tail=1", pod) == "two\n"


def kubectl(engine: Engine, binaries: Path, *words: str) -> str:
    """What a stock kubectl prints, with nothing but what `up` wrote for it."""
    command = [str(binaries / "kubectl"), "--kubeconfig", str(engine.folder.kubeconfig)]
    done = subprocess.run(
        [*command, "--context", "windlass", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("part", ["server", "agent"])
def test_a_part_that_is_killed_comes_back(engine: Engine, part: str) -> None:
    before = engine.folder.children()[part]
    os.kill(before.process.pid, signal.SIGKILL)
    until(lambda: _came_back(engine, part, before.process.pid))
    until(lambda: engine("status", "-q").code == exit_codes.OK)
    assert engine("run", "--", "echo", "again").out == "again\n"
    assert engine("status", "--json").json["engine"]["restarts"][part] > before.restarts


def _came_back(engine: Engine, part: str, old: int) -> bool:
    child = engine.folder.children().get(part)
    return child is not None and child.process.alive() and child.process.pid != old


def test_commands_wait_for_a_server_that_was_killed(engine: Engine) -> None:
    server = engine.folder.server()
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    submitted = engine("submit", "-n", "meanwhile", "-c", "100m", "--", "true")
    assert submitted.code == exit_codes.OK, submitted.err
    assert "The engine is restarting its server since" in submitted.err
    assert "waiting up to 15 s" in submitted.err


def test_jobs_outlive_the_engine_and_are_found_again(fresh: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    script = f"while [ ! -e {gate} ]; do sleep 0.05; done; exit 5"
    fresh("submit", "--name", "sturdy", "--", "sh", "-c", script)
    until(lambda: fresh.run_status("sturdy").get("phase") == "Running")
    down = fresh("down", "--json")
    assert down.json["runs"] == ["default/sturdy"]
    assert {one["name"] for one in down.json["stopped"]} == {"supervisor", "server", "agent"}
    assert fresh("status").code == exit_codes.NO_SERVER
    gate.touch()
    fresh.up()
    until(lambda: fresh.run_status("sturdy").get("phase") == "Failed")
    assert fresh.run_status("sturdy")["exitCode"] == 5


def test_down_with_stop_runs_leaves_nothing_running(fresh: Engine, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"import os, time; open('{mark}', 'w').write(str(os.getpid())); time.sleep(600)"
    fresh("submit", "--name", "long", "--", sys.executable, "-c", script)
    until(lambda: mark.exists() and bool(mark.read_text()))
    pid = int(mark.read_text())
    assert fresh("down", "--stop-runs").code == exit_codes.OK
    assert states.start_time(pid) == 0
    assert fresh("down").code == exit_codes.OK


def test_up_in_the_foreground_stops_everything_on_ctrl_c(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state")
    front = engine.start("up", "--json")
    announced = read_document(front)
    assert announced["url"].startswith("https://127.0.0.1:")
    parts = [child.process for child in engine.folder.children().values()]
    assert len(parts) == 2
    front.send_signal(signal.SIGINT)
    _, err = front.communicate(timeout=60)
    assert front.returncode == exit_codes.INTERRUPTED
    assert "Traceback" not in err
    assert not any(part.alive() for part in parts)
    assert engine("status").code == exit_codes.NO_SERVER


def test_up_in_the_foreground_ends_when_another_process_says_down(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state")
    front = engine.start("up", "--json")
    read_document(front)
    assert engine("down").code == exit_codes.OK
    front.communicate(timeout=60)
    assert front.returncode == exit_codes.OK


def test_of_two_that_start_at_once_one_becomes_the_engine(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state")
    both = [engine.start("up", "--detach"), engine.start("up", "--detach")]
    try:
        errors = [one.communicate(timeout=120)[1] for one in both]
        assert sorted(one.returncode for one in both) == [
            exit_codes.OK,
            exit_codes.ALREADY_RUNNING,
        ], errors
    finally:
        assert engine("down").code == exit_codes.OK


def test_an_engine_stays_up_when_the_output_of_up_is_not_read(tmp_path: Path) -> None:
    """`windlass up --detach | head -1`"""
    engine = Engine(tmp_path / "state")
    starting = engine.start("up", "--detach")
    assert starting.stdout is not None
    starting.stdout.close()
    try:
        starting.wait(120)
        assert engine("run", "--", "echo", "there").out == "there\n"
    finally:
        assert engine("down").code == exit_codes.OK


def test_after_a_killed_supervisor_up_works_again(fresh: Engine) -> None:
    supervisor = fresh.folder.supervisor()
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGKILL)
    until(lambda: fresh.folder.supervisor() is None)
    fresh.up()
    assert fresh("run", "--", "echo", "back").out == "back\n"


def test_nothing_is_left_when_up_in_the_foreground_is_killed(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state")
    front = engine.start("up", "--json")
    read_document(front)
    parts = [child.process for child in engine.folder.children().values()]
    front.kill()
    front.wait()
    until(lambda: not any(part.alive() for part in parts))


def test_an_engine_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    engine = Engine(tmp_path / "state")
    engine.path.mkdir()
    (engine.path / "store.db").write_text("this is not a database")
    result = engine("up", "--detach")
    assert result.code == exit_codes.FAILED
    assert "server" in result.err
    assert "is not a database" in result.err
    assert "windlass restore" in result.err
    assert engine.folder.supervisor() is None


def test_up_writes_a_context_for_kubectl_only_where_it_was_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path(os.environ["HOME"]) / ".kube" / "config"
    config.parent.mkdir()
    config.write_text("# ours\napiVersion: v1\nkind: Config\ncurrent-context: work\n"
                      "clusters: [{name: w, cluster: {server: 'https://127.0.0.1:1'}}]\n"
                      "contexts: [{name: work, context: {cluster: w}}]\n")  # fmt: skip
    before = config.read_text()
    engine = Engine(tmp_path / "state")
    monkeypatch.setenv("KUBECONFIG", str(config))
    try:
        said = invoke("up", "--detach", "--state", engine.path)
        assert f"commands use context work of {config} (KUBECONFIG), not this engine" in said.out
        assert f"export WINDLASS_STATE={engine.path}" in said.out
        assert f"windlass run --state {engine.path} --" in said.err
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / ".windlass").symlink_to(engine.path)
        other = invoke("submit", "--", "true")
        assert "Using https://127.0.0.1:1 (KUBECONFIG, context work), not the engine" in other.err
        assert "not the engine" not in engine("ps").err
        assert config.read_text() == before
    finally:
        engine("down")
    try:
        result = engine("up", "--detach", "--kubectl-context", "--json")
        assert result.json["context"] == "windlass"
    finally:
        engine("down")
    text = config.read_text()
    assert '"name": "windlass"' in text
    assert text.startswith("# ours\n")
    assert "name: work" in text
    assert "current-context: work" in text


def test_a_narrow_terminal_shows_a_narrow_table(engine: Engine) -> None:
    engine("run", "--name", "a-rather-long-name-for-a-job", "--", "true")
    shown = in_terminal(engine, 40, "get", "runs", "-o", "wide")
    assert any(line.startswith("a-rather-long") for line in shown.splitlines())
    assert max(map(len, shown.splitlines())) <= 40


def in_terminal(engine: Engine, width: int, *arguments: str) -> str:
    """What a person sees on a terminal of this width."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "WINDLASS_STATE": str(engine.path), "COLUMNS": str(width), "NO_COLOR": "1"}
    done = subprocess.Popen([*WINDLASS, *arguments], env=env, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert done.wait() == 0
    return shown.decode().replace("\r\n", "\n")


def read_document(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The first JSON document that a process prints, as soon as it is complete."""
    assert process.stdout is not None
    text = ""
    for line in process.stdout:
        text += line
        try:
            document: dict[str, Any] = json.loads(text)
        except ValueError:
            continue
        return document
    raise AssertionError(f"no document, but: {text!r}")
