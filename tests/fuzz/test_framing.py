"""Attacks on the framing of HTTP, on every port on which a process of the engine listens.

Each is answered with a refusal or with a closed connection, no request is smuggled in, the server
answers its health check afterwards, and no handle is left open.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from tests.faults.driver import Door
from tests.fuzz.framing import ANSWER_OF_SMUGGLED, ATTACKS, Attack
from tests.harness.embedded import EmbeddedServer
from tests.harness.waiting import until
from windlass.agent.runtime import procfs

PATH = b"/api/v1/namespaces/default/configmaps"
PATIENCE = 60.0
"""More than the server's own limits: 15 s for a head, 22 s for the largest body."""
_LAST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""After an attack, so that a server that kept the connection open closes it."""
_QUIET = 3.0
"""A server that says nothing for so long waits for the rest of the attack."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """The server with its controllers."""
    with EmbeddedServer.start(tmp_path_factory.mktemp("framing") / "state", flags=()) as server:
        yield server
        assert server.process.alive, server.process.log_tail()
        assert "Traceback" not in (server.state / "test-server.log").read_text()


def test_the_server_listens_on_its_one_port(engine: EmbeddedServer) -> None:
    """A new port needs these attacks too."""
    assert ports(engine) == [int(engine.url.rpartition(":")[2])]


@pytest.mark.parametrize("name", [name for name, each in ATTACKS.items() if each.ends])
def test_an_attack_on_the_framing(engine: EmbeddedServer, name: str) -> None:
    for port in ports(engine):
        attack(engine, port, ATTACKS[name])
    healthy(engine)


@pytest.mark.timeout(180)
def test_attacks_that_never_end_are_ended(engine: EmbeddedServer) -> None:
    """All at once, because each takes as long as the server's limit."""
    before = handles(engine)
    failed: list[str] = []

    def run(name: str, port: int) -> None:
        try:
            attack(engine, port, ATTACKS[name])
        except AssertionError as problem:
            failed.append(f"{name}: {problem}")

    threads = [
        threading.Thread(target=run, args=(name, port))
        for name, each in ATTACKS.items() if not each.ends for port in ports(engine)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    healthy(engine)
    for thread in threads:
        thread.join()
    assert failed == []
    until(lambda: handles(engine) <= before + 2, "all connections are closed")


@pytest.mark.timeout(180)
def test_two_thousand_silent_connections_leave_the_server_open(engine: EmbeddedServer) -> None:
    before = handles(engine)
    address = ("127.0.0.1", int(engine.url.rpartition(":")[2]))
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            for _ in range(100):
                stack.enter_context(contextlib.closing(socket.create_connection(address, 30)))
            healthy(engine)
        assert handles(engine) - before < 600
    until(lambda: handles(engine) <= before + 2, "all connections are closed")


def ports(engine: EmbeddedServer) -> list[int]:
    pid = engine.process.pid
    return sorted(procfs.listening_ports([pid, *procfs.descendants(pid)]))


def handles(engine: EmbeddedServer) -> int:
    return len(os.listdir(f"/proc/{engine.process.pid}/fd"))


def healthy(engine: EmbeddedServer) -> None:
    """A new connection gets an answer."""
    client = engine.rest()
    try:
        assert client.get("/healthz").status == 200
    finally:
        client.close()


def attack(engine: EmbeddedServer, port: int, wanted: Attack) -> None:
    door = Door.to(engine)
    token = door.headers["Authorization"].partition(" ")[2].encode()
    sent = wanted.sent.replace(b"TOKEN", token).replace(b"PATH", PATH)
    received = exchange(port, sent, door.tls if wanted.tls else None, ends=wanted.ends)
    codes = [int(code) for code in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", received, re.MULTILINE)]
    assert ANSWER_OF_SMUGGLED not in received, received[:2000]
    if codes:
        assert codes[0] in wanted.allowed, received[:2000]
    assert token not in received
    assert b"Traceback" not in received


def exchange(port: int, sent: bytes, tls: ssl.SSLContext | None, *, ends: bool) -> bytes:
    """All that the server answers until it closes the connection."""
    plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
    received = b""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        stack.callback(plain.close)
        link: socket.socket = plain
        if tls is not None:
            link = stack.enter_context(tls.wrap_socket(plain, server_hostname="127.0.0.1"))
        link.settimeout(PATIENCE)
        sending = threading.Thread(target=_send, args=(link, sent), daemon=True)
        sending.start()
        if ends:
            sending.join()
            _send(link, _LAST)
            link.settimeout(_QUIET)
        while piece := link.recv(65536):
            received += piece
    return received


def _send(link: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        link.sendall(data)
