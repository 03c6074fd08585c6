"""The process: ready when it says so, one per folder, found again, and it ends in order."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness.embedded import EmbeddedServer
from windlass.server import bootstrap, main


def test_it_comes_back_at_the_same_address_with_the_same_token(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with EmbeddedServer.start(state) as server:
        url, kubeconfig = server.url, server.kubeconfig.read_text()
        assert stat.S_IMODE(os.stat(server.kubeconfig).st_mode) == 0o600
        server.stop()
        assert not (state / "server.json").exists()
        command = [sys.executable, "-m", "windlass.server", "--state", str(state)]
        process = subprocess.Popen([*command, "--no-controllers"], stderr=subprocess.PIPE)
        try:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert url in line  # without --listen it takes the port of last time
            assert server.rest().get("/api/v1/namespaces/default").status == 200
            assert server.kubeconfig.read_text() == kubeconfig
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def test_the_state_folder_is_closed_to_other_users(tmp_path: Path) -> None:
    """Also what an older version, or a copy by hand, has left open."""
    state = tmp_path / "state"
    with EmbeddedServer.start(state) as server:
        server.rest().post("/api/v1/namespaces", {"metadata": {"name": "team"}})
        server.stop()
        outside = tmp_path / "outside"
        outside.touch()
        outside.chmod(0o644)
        (state / "link").symlink_to(outside)
        (state / "ledger.db").touch()
        for path in state.iterdir():
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o644)
        server.launch()
        server.rest().post("/api/v1/namespaces", {"metadata": {"name": "other"}})
        found = {path.name: path.lstat().st_mode for path in state.iterdir()}
        del found["link"], found["test-server.log"], found["server.json"]
        assert {"store.db", "store.db-wal", "audit.log", "tls", "ledger.db"} <= found.keys()
        assert [name for name, mode in found.items() if mode & 0o077] == []
        assert outside.stat().st_mode & 0o777 == 0o644


def test_a_second_server_on_the_folder_is_refused(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "state") as server:
        second = subprocess.run(
            [sys.executable, "-m", "windlass.server", "--state", str(server.state)],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 1
        assert "another server is already running" in second.stderr
        assert "Traceback" not in second.stderr
        assert server.rest().get("/readyz").status == 200


def test_the_controllers_run_beside_the_api(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "state", flags=()) as server:
        rest = server.rest()
        path = "/apis/coordination.k8s.io/v1/namespaces/windlass-system/leases"
        with rest.watch(path, timeoutSeconds=20) as watch:
            assert watch.status == 200
            assert next(iter(watch))["object"]["spec"]["holderIdentity"]


def test_a_lost_kubeconfig_is_made_anew(tmp_path: Path) -> None:
    with EmbeddedServer.start(tmp_path / "state") as server:
        server.kubeconfig.unlink()
        server.restart()
        assert server.rest().get("/api/v1/namespaces/default").status == 200


@pytest.mark.parametrize("listen", ["nonsense", "host:", ":80", "127.0.0.1:99999", "h:-1"])
def test_an_address_that_is_none_is_named(
    listen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["--state", str(tmp_path), "--listen", listen]) == 1
    assert "HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"),
     ("box.example", "box.example")],
)  # fmt: skip
def test_clients_are_given_an_address_they_can_call(host: str, shown: str) -> None:
    assert main._host_for_clients(host) == shown


def test_a_port_that_another_process_took_is_not_given_up(tmp_path: Path) -> None:
    """Clients have its address: the server names the process, and comes back when it is gone."""
    server = EmbeddedServer.start(tmp_path / "state")
    url = server.url
    server.stop()
    port = int(url.rpartition(":")[2])
    command = [sys.executable, "-m", "windlass.server", "--state", tmp_path / "state"]
    command.append("--no-controllers")
    with socket.create_server(("127.0.0.1", port)):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use, by process" in done.stderr
    assert f"process {os.getpid()} (" in done.stderr
    with server:
        server.launch()
        assert server.url == url


def test_a_port_that_is_freed_in_time_is_taken(tmp_path: Path) -> None:
    server = EmbeddedServer.start(tmp_path / "state")
    server.stop()
    url = (tmp_path / "state" / "kubeconfig").read_text()
    taken = socket.create_server(("127.0.0.1", bootstrap.known_port(tmp_path / "state/kubeconfig")))
    freeing = threading.Timer(1.0, taken.close)
    freeing.start()
    with server:
        server.launch()
        assert (tmp_path / "state" / "kubeconfig").read_text() == url
    freeing.join()
