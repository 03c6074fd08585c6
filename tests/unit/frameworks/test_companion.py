"""The companion: real processes that lead and follow, and strangers that are turned away."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from windlass.frameworks import companion

SECRET = "s3cret"


def free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in found]
    for each in found:
        each.close()
    return ports


class Cluster:
    """A lead and its followers, as processes."""

    def __init__(self, folder: Path, size: int = 2) -> None:
        self.folder = folder
        self.members: list[dict[str, Any]] = [
            {"name": f"worker-{n}", "address": "127.0.0.1", "port": port, "cpus": 1, "gpus": 0}
            for n, port in enumerate(free_ports(size))
        ]
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, mode: str, index: int, plan: dict[str, Any] | None = None, **env: str) -> Any:
        root = self.folder / f"root-{index}"
        (root / "run").mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ, "WINDLASS_ROOT": str(root), "WINDLASS_SECRET": SECRET,
            "WINDLASS_PORT": str(self.members[index]["port"]),
            "WINDLASS_MEMBERS": json.dumps(self.members), **env,
        }  # fmt: skip
        if plan is not None:
            base: dict[str, Any] = {
                "background": [],
                "workers": [],
                "ready": [],
                "needs": "",
                "opens": 0,
            }
            environment["WINDLASS_PLAN"] = json.dumps({"members": self.members, **base, **plan})
        process = subprocess.Popen(
            [sys.executable, "-m", "windlass.frameworks.companion", mode],
            env=environment, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    made = Cluster(tmp_path)
    yield made
    made.stop()


def output(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=60)
    return process.returncode, said


RSH = [sys.executable, "-m", "windlass.frameworks.companion", "rsh"]


def test_a_command_runs_on_another_member_and_its_output_and_code_come_back(cluster):
    follower = cluster.start("follow", 1)
    script = f"{' '.join(RSH)} -x worker-1 'pwd; echo oops >&2; exit 7'; echo code $?"
    code, said = output(cluster.start("lead", 0, {"command": ["sh", "-c", script]}))
    assert code == 0
    assert str(cluster.folder / "root-1") in said
    assert "oops" in said
    assert "code 7" in said
    assert output(follower)[0] == 0, "it ends when the lead does"


def test_the_leads_exit_code_is_the_commands_and_workers_end_with_it(cluster):
    follower = cluster.start("follow", 1)
    mark = cluster.folder / "worker-runs"
    plan = {
        "workers": ["sh", "-c", f"echo I am {{address}}; touch {mark}; exec sleep 1000"],
        "ready": ["test", "-e", str(mark)],
        "command": ["sh", "-c", "exit 5"],
    }
    assert output(cluster.start("lead", 0, plan))[0] == 5
    code, said = output(follower)
    assert code == 0
    assert "I am 127.0.0.1" in said


def test_a_worker_that_dies_ends_its_member_with_a_word(cluster):
    follower = cluster.start("follow", 1)
    lead = cluster.start("lead", 0, {"workers": ["sh", "-c", "exit 3"], "command": ["sleep", "60"]})
    code, said = output(follower)
    assert code == 3
    assert "ended with exit code 3" in said
    lead.terminate()


def test_what_runs_beside_the_command_dying_ends_the_run_with_a_word(cluster):
    cluster.start("follow", 1)
    plan = {"background": [["sh", "-c", "sleep 0.3; exit 9"]], "command": ["sleep", "60"]}
    code, said = output(cluster.start("lead", 0, plan))
    assert code == 1
    assert "ended with exit code 9" in said


def test_a_program_that_is_not_there_is_named(cluster):
    cluster.start("follow", 1)
    code, said = output(cluster.start("lead", 0, {"command": ["no-such-program"]}))
    assert code == 1
    assert "cannot start 'no-such-program'" in said


def test_the_signal_reaches_the_command_and_followers_wait_for_the_lead(cluster):
    follower = cluster.start("follow", 1)
    ready, asked = cluster.folder / "ready", cluster.folder / "asked"
    script = f"trap 'touch {asked}; exit 4' USR1; touch {ready}; while :; do sleep 0.05; done"
    lead = cluster.start("lead", 0, {"command": ["sh", "-c", script]})
    while not ready.exists():
        time.sleep(0.02)
    follower.send_signal(signal.SIGUSR1)
    assert follower.poll() is None
    lead.send_signal(signal.SIGUSR1)
    assert output(lead)[0] == 4
    assert asked.exists()
    assert output(follower)[0] == 0


def test_a_follower_that_is_no_longer_needed_ends_with_the_signal(cluster):
    """Or a run whose lead failed at its start would wait for the whole grace."""
    follower = cluster.start("follow", 1)
    ready = cluster.folder / "ready"
    script = f"touch {ready}; exec sleep 1000"
    lead = cluster.start("lead", 0, {"command": ["sh", "-c", script]})
    while not ready.exists():
        time.sleep(0.02)
    follower.send_signal(signal.SIGTERM)
    assert follower.poll() is None
    lead.kill()
    assert output(follower)[0] == 128 + signal.SIGTERM


def test_a_client_without_the_secret_is_rejected(cluster):
    follower = cluster.start("follow", 1)
    port = cluster.members[1]["port"]
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    with pytest.raises((companion.PeerError, EOFError, ConnectionError)):
        companion.connect("127.0.0.1", port, b"wrong")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as stranger:
        nonce = stranger.recv(32)
        # Sending back what the listener itself said proves nothing.
        stranger.sendall(nonce)
        proof = stranger.recv(32)
        stranger.sendall(proof)
        companion.send(stranger, b"x", b'{"argv": ["touch", "evil"]}')
        assert stranger.recv(1) == b""
    assert not (cluster.folder / "root-1" / "evil").exists()
    assert follower.poll() is None
    link = companion.connect("127.0.0.1", port, SECRET.encode())
    companion.send(link, b"q", b"")
    assert output(follower)[0] == 0


def test_when_the_caller_is_gone_its_command_is_killed(cluster):
    cluster.start("follow", 1)
    mark = cluster.folder / "pid"
    script = f"{' '.join(RSH)} worker-1 'echo $$ > {mark}; exec sleep 1000'"
    lead = cluster.start("lead", 0, {"command": ["sh", "-c", script]})
    while not (mark.exists() and mark.read_text().strip()):
        time.sleep(0.02)
    pid = int(mark.read_text())
    lead.terminate()
    lead.wait(30)
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        time.sleep(0.02)


def test_a_follower_that_must_leave_first_reports_how_its_process_ended(cluster):
    """mpirun waits for none of the shells it started: they end after it, and must not complain."""
    follower = cluster.start("follow", 1)
    ready, go = cluster.folder / "ready", cluster.folder / "go"
    remote = f"touch {ready}; while ! test -e {go}; do sleep 0.02; done; echo last words"
    script = (
        f"({' '.join(RSH)} worker-1 '{remote}'; echo code $?) & until test -e {ready}; do :; done"
    )
    lead = cluster.start("lead", 0, {"command": ["sh", "-c", script]})
    assert lead.wait(60) == 0
    # As soon as it is leaving it refuses, or closes what it had not accepted yet.
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
        while True:
            socket.create_connection(("127.0.0.1", cluster.members[1]["port"])).close()
    go.touch()
    assert output(lead) == (0, "last words\ncode 0\n")
    assert output(follower)[0] == 0


def test_files_of_a_framework_are_written_before_the_command(cluster):
    env = {"WINDLASS_FILES": json.dumps({"hostfile": "a\n", "sub/x": "#!/bin/sh\necho hi\n"})}
    root = cluster.folder / "root-0"
    (root / "run").mkdir(parents=True)
    environment = {**os.environ, "WINDLASS_ROOT": str(root), **env}
    words = [sys.executable, "-m", "windlass.frameworks.companion", "exec", "--", "sh", "-c"]
    done = subprocess.run(
        [*words, "cat $WINDLASS_ROOT/run/hostfile; $WINDLASS_ROOT/run/sub/x; exit 6"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (6, "a\nhi\n")
