"""A real API server that says it is of another version, or of another time: what is asked goes
through as it is, and only the answer to /version or the answers' date is changed."""

from __future__ import annotations

import datetime
import email.utils
import http.client
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.harness.control_plane import ControlPlane

Headers = dict[str, str]
_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Elder:
    """Where it is found, and what was written through it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.writes: list[str] = []


def of_version(plane: ControlPlane, major: int, minor: int) -> AbstractContextManager[Elder]:
    told = {"major": str(major), "minor": str(minor), "gitVersion": f"v{major}.{minor}.9"}

    def change(path: str, _: Headers, data: bytes) -> bytes:
        return json.dumps(json.loads(data) | told).encode() if path == "/version" else data

    return _changed(plane, f"elder-{major}-{minor}", change)


def of_time(plane: ControlPlane, seconds: int) -> AbstractContextManager[Elder]:
    """Its clock is ahead by so much."""

    def change(_: str, headers: Headers, data: bytes) -> bytes:
        told = email.utils.parsedate_to_datetime(headers["Date"])
        shifted = told + datetime.timedelta(seconds=seconds)
        headers["Date"] = email.utils.format_datetime(shifted, usegmt=True)
        return data

    return _changed(plane, f"clock-{seconds}", change)


@contextmanager
def _changed(
    plane: ControlPlane, name: str, change: Callable[[str, Headers, bytes], bytes]
) -> Iterator[Elder]:
    certificate, key = plane.issue_server("elder", ["127.0.0.1"])
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)
    upstream = plane.url.removeprefix("https://")
    made = Elder(plane.directory / f"{name}.kubeconfig")

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.command != "GET":
                made.writes.append(f"{self.command} {self.path}")
            there = http.client.HTTPSConnection(upstream, context=plane.rest.tls)
            there.request(self.command, self.path, body, _without(self.headers))
            answer = there.getresponse()
            headers = _without(answer.headers)
            data = change(self.path, headers, answer.read())
            # Not send_response: the date is the API server's.
            self.send_response_only(answer.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            there.close()

        do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = pass_on  # noqa: N815 - its names

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = own.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    made.kubeconfig.write_text(plane.kubeconfig.read_text().replace(plane.url, url))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def _without(headers: http.client.HTTPMessage) -> Headers:
    """What is about one connection stays on it."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP}
