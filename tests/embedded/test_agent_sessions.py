"""Stock kubectl against a server and an agent: exec, attach, port-forward, cp, logs, top."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Kubectl
from tests.harness.embedded import EmbeddedServer
from tests.harness.processes import Process
from tests.harness.waiting import until
from windlass.agent.node import inventory

pytestmark = pytest.mark.kubernetes  # the binary is built with the control plane's
NODE = inventory.node_name()
PATIENCE = 60.0
SERVE = (
    "import http.server,sys; s = http.server.HTTPServer(('127.0.0.1', 0), "
    "http.server.SimpleHTTPRequestHandler); open('port', 'w').write(str(s.server_port)); "
    "s.serve_forever()"
)


class Engine:
    """A server without controllers, and an agent."""

    def __init__(self, folder: Path) -> None:
        self.server = EmbeddedServer(folder / "state")
        self.folder = folder
        self.agent = self._new_agent()

    def start(self) -> None:
        self.server.launch()
        self.agent.start()
        until(lambda: any("status" in node for node in self.get("/api/v1/nodes")["items"]))

    def restart_agent(self) -> None:
        self.agent.kill()
        self.agent = self._new_agent()
        self.agent.start()

    def stop(self) -> None:
        for record in self.folder.glob("state/agent/pods/*/containers/*/*/shim.json"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        self.agent.stop()
        self.server.kill()

    def get(self, path: str) -> Any:
        client = self.server.rest()
        try:
            return client.get(path).json
        finally:
            client.close()

    def pod(self, name: str, script: str, **container: Any) -> Path:
        """A running pod; its working folder."""
        made = {
            "metadata": {"name": name},
            "spec": {
                "nodeName": NODE, "restartPolicy": "Never",
                "containers": [{
                    "name": "c", "image": "windlass.dev/host", "command": ["sh", "-c", script],
                    **container,
                }],
            },
        }  # fmt: skip
        client = self.server.rest()
        try:
            answer = client.post("/api/v1/namespaces/team/pods", made)
            assert answer.status == 201, answer.summary
        finally:
            client.close()
        path = f"/api/v1/namespaces/team/pods/{name}"
        until(lambda: self.get(path)["status"].get("phase") in ("Running", "Succeeded", "Failed"))
        uid = self.get(path)["metadata"]["uid"]
        return self.folder / "state/agent/pods" / uid / "root/work"

    def _new_agent(self) -> Process:
        state = self.server.state
        command = [sys.executable, "-m", "windlass.agent", "--state", state / "agent"]
        command += ["--kubeconfig", state / "agent/kubeconfig"]  # its own: one node's rights
        return Process("windlass.agent", command, state / "test-agent.log")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(tmp_path_factory.mktemp("sessions"))
    made.start()
    client = made.server.rest()
    client.post("/api/v1/namespaces", {"metadata": {"name": "team"}})
    client.close()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def kubectl(engine: Engine, kubernetes_binaries: Path, tmp_path_factory: Any) -> Kubectl:
    home = tmp_path_factory.mktemp("home")
    return Kubectl(kubernetes_binaries / "kubectl", engine.server.kubeconfig, home, "team")


@pytest.fixture(scope="module")
def shell(engine: Engine) -> Path:
    """A pod that waits, for commands to be run in."""
    script = f'echo ready; exec {sys.executable} -c "{SERVE}"'
    place = engine.pod("shell", script, env=[{"name": "COLOUR", "value": "blue"}])
    until((place / "port").exists)
    return place


# --- exec


def test_exec_has_the_pods_environment_folder_and_user(kubectl: Kubectl, shell: Path) -> None:
    said = kubectl("exec", "shell", "--", "sh", "-c", "echo $COLOUR; pwd; id -u")
    seen = shell.parents[3] / "self/work"  # the same in all pods of the node
    assert said.splitlines() == ["blue", str(seen), str(shell.stat().st_uid)]


def test_exec_passes_on_the_exit_code_and_both_streams(kubectl: Kubectl, shell: Path) -> None:
    done = kubectl.attempt("exec", "shell", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout == "out\n"
    assert done.stderr.splitlines()[0] == "err"


def test_exec_reads_from_stdin_to_its_end(kubectl: Kubectl, shell: Path) -> None:
    text = "".join(f"{number}\n" for number in range(50_000))
    assert kubectl("exec", "-i", "shell", "--", "cat", text=text) == text


def test_exec_of_what_is_not_there_says_so(kubectl: Kubectl, shell: Path) -> None:
    told = kubectl.refused("exec", "shell", "--", "no-such-program")
    assert "no-such-program" in told


def test_exec_into_what_does_not_run_says_so(kubectl: Kubectl, engine: Engine) -> None:
    engine.pod("over", "exit 0")
    until(lambda: engine.get("/api/v1/namespaces/team/pods/over")["status"]["phase"] != "Running")
    assert "completed pod" in kubectl.refused("exec", "over", "--", "true")


def test_exec_on_a_terminal_of_the_clients_size(kubectl: Kubectl, shell: Path) -> None:
    script = "stty size; tty; while ! stty size | grep -q '40 132'; do sleep 0.05; done; echo grew"
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [*kubectl._command, "exec", "-it", "shell", "--", "sh", "-c", script]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=kubectl.environment,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread
    )  # fmt: skip
    os.close(slave)
    said = b""
    while b"/dev/pts/" not in said:
        said += os.read(master, 4096)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 132, 0, 0))
    os.kill(process.pid, signal.SIGWINCH)
    with contextlib.suppress(OSError):
        while data := os.read(master, 4096):
            said += data
    assert process.wait(PATIENCE) == 0
    os.close(master)
    assert b"grew" in said


def test_what_exec_started_ends_when_its_client_goes(kubectl: Kubectl, shell: Path) -> None:
    script = "echo $$ > execpid; while :; do sleep 0.05; done"
    client = kubectl.start("exec", "shell", "--", "sh", "-c", script)
    until((shell / "execpid").exists)
    until(lambda: (shell / "execpid").read_text().strip())
    pid = (shell / "execpid").read_text().strip()
    client.kill()
    client.wait()
    until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_files_are_copied_in_and_out(kubectl: Kubectl, shell: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(os.urandom(300_000))
    kubectl("cp", str(tmp_path / "in"), "shell:there")
    kubectl("cp", "shell:there", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == (tmp_path / "in").read_bytes()


# --- port-forward


def forwarded(kubectl: Kubectl, port: str) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        local = probe.getsockname()[1]
    client = kubectl.start("port-forward", "pod/shell", f"{local}:{port}")
    assert client.stdout is not None
    assert "Forwarding from" in client.stdout.readline()
    try:
        yield local
    finally:
        client.kill()
        client.wait()


def test_a_port_of_the_pod_is_reached_many_times_and_at_once(kubectl: Kubectl, shell: Path) -> None:
    (shell / "big").write_bytes(os.urandom(3_000_000))
    with contextlib.contextmanager(forwarded)(kubectl, (shell / "port").read_text()) as local:

        def fetch(_: int) -> bytes:
            with urllib.request.urlopen(f"http://127.0.0.1:{local}/big", timeout=30) as answer:
                return bytes(answer.read())

        with ThreadPoolExecutor(4) as pool:
            bodies = list(pool.map(fetch, range(8)))
    assert all(body == (shell / "big").read_bytes() for body in bodies)


def test_a_port_of_another_process_is_not(kubectl: Kubectl, shell: Path, engine: Engine) -> None:
    api = engine.server.url.rpartition(":")[2]
    with (
        contextlib.contextmanager(forwarded)(kubectl, api) as local,
        socket.create_connection(("127.0.0.1", local)) as connection,
    ):
        connection.settimeout(30)
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert connection.recv(100) == b""


# --- attach


def test_attach_shows_what_is_said_and_passes_on_what_is_typed(
    kubectl: Kubectl, engine: Engine
) -> None:
    script = 'while read line; do echo "heard $line"; [ "$line" = end ] && exit 0; done'
    engine.pod("listener", script, stdin=True)
    client = subprocess.Popen(
        [*kubectl._command, "attach", "-i", "listener"], env=kubectl.environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    said, _ = client.communicate("one\nend\n", timeout=PATIENCE)
    assert said.splitlines() == ["heard one", "heard end"]
    assert kubectl("logs", "listener").splitlines() == ["heard one", "heard end"]


# --- logs and usage


def test_logs_are_followed_across_rotations_to_the_last_line(
    kubectl: Kubectl, engine: Engine
) -> None:
    line = "x" * 1000
    script = f"for i in $(seq 1 24000); do echo $i {line}; done"
    engine.pod("talker", script)
    said = kubectl("logs", "-f", "talker", "--tail", "1").splitlines()
    assert said[-1].split()[0] == "24000"
    numbers = [int(text.split()[0]) for text in said]
    assert numbers == list(range(numbers[0], 24001))
    whole = kubectl("logs", "talker").splitlines()
    assert len(whole) == 24000
    assert kubectl("logs", "talker", "--tail", "12000").splitlines() == whole[-12000:]


def test_top_shows_nodes_and_pods(kubectl: Kubectl, shell: Path) -> None:
    assert NODE in kubectl("top", "nodes")
    header, row = kubectl("top", "pods", "shell").splitlines()
    assert header.split() == ["NAME", "CPU(cores)", "MEMORY(bytes)"]
    assert row.split()[0] == "shell"
    page = kubectl("get", "--raw", f"/api/v1/nodes/{NODE}/proxy/metrics/resource")
    assert 'container_memory_working_set_bytes{container="c",namespace="team",pod="shell"}' in page


# --- with the agent killed


def test_sessions_work_with_the_next_agent(kubectl: Kubectl, engine: Engine, shell: Path) -> None:
    engine.restart_agent()
    until(lambda: kubectl.attempt("exec", "shell", "--", "true").returncode == 0)
    assert kubectl("exec", "shell", "--", "sh", "-c", "echo $COLOUR") == "blue\n"
    assert kubectl("logs", "shell").splitlines()[0] == "ready"
