"""A port of a running replica is reached from this machine, by number and by name."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import windlass
from tests.harness.waiting import until
from windlass.store import errors

SERVER = """
import http.server, os
class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    do_GET = lambda self: (self.send_response(200), self.send_header("Content-Length", "2"),
                           self.end_headers(), self.wfile.write(b"ok"))
    log_message = lambda *_: None
port = int(os.environ["WINDLASS_PORT_WEB"])
server = http.server.ThreadingHTTPServer(("localhost", port), Echo)
print("ready", flush=True)
server.serve_forever()
"""
SMALL: dict[str, Any] = {"cpus": "100m", "memory": "64Mi"}


def post(port: int, data: bytes) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/", data=data, method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def test_a_port_is_forwarded_while_the_block_runs(client: windlass.Client, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVER)
    handle = client.run(["python3", "serve.py"], workdir=tmp_path, ports={"web": 8123}, **SMALL)
    try:
        assert next(handle.logs(follow=True)).text == "ready"
        until(lambda: handle.status.phase == "Running", "it runs")
        with handle.port_forward("web") as port:
            contents = [os.urandom(3_000_000) for _ in range(4)]
            answers: dict[int, bytes] = {}

            def ask(number: int) -> None:
                answers[number] = post(port, contents[number])

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            digests = [hashlib.sha256(answers[n]).digest() for n in range(4)]
            assert digests == [hashlib.sha256(each).digest() for each in contents]
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), 5)
        with pytest.raises(errors.NotFound, match="declares no port"), handle.port_forward("nope"):
            pass
        with handle.port_forward(1) as port, pytest.raises(OSError):  # noqa: PT011 - any refusal
            post(port, b"x")
    finally:
        handle.delete(wait=True)
