"""CPU to parse API server responses: our client's connection beside httptools' parser.

    python -m bench.http_parsing [--json]

httptools (llhttp in C) is not a dependency of the project: `uv pip install httptools` adds it.
Both sides parse the head into a case-insensitive mapping and return the body as bytes. No socket is
involved: the figure is what a parser could save of a request.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from windlass.store.kubernetes.http.connection import Connection, Headers

_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"Audit-Id: 7a6d0d5e-2c0a-4c39-8a0e-0123456789ab\r\n"
    b"Cache-Control: no-cache, private\r\n"
    b"Content-Type: application/json\r\n"
    b"X-Kubernetes-Pf-Flowschema-Uid: 7a6d0d5e-2c0a-4c39-8a0e-0123456789ab\r\n"
    b"X-Kubernetes-Pf-Prioritylevel-Uid: 7a6d0d5e-2c0a-4c39-8a0e-0123456789ab\r\n"
    b"Date: Wed, 18 Nov 2026 18:00:00 GMT\r\n"
)
_ROUNDS = 7
_Parse = Callable[[bytes], Awaitable[bytes]]


def _sized(length: int) -> bytes:
    return _HEAD + b"Content-Length: %d\r\n\r\n" % length + b"x" * length


def _chunked(length: int, count: int) -> bytes:
    chunk = b"%x\r\n" % length + b"x" * length + b"\r\n"
    return _HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * count + b"0\r\n\r\n"


_RESPONSES = {
    "object of 3 KiB": (_sized(3 << 10), 3000),
    "list of 1 MiB": (_sized(1 << 20), 100),
    "watch event of 3 KiB": (_chunked(3 << 10, 1), 3000),
    "100 watch events in one read": (_chunked(3 << 10, 100), 100),
}
"""By name, the bytes of a response and how often it is parsed in a round."""


class _Peer:
    """Answers a request at once with the bytes of a response."""

    def __init__(self, connection: Connection) -> None:
        self.response = b""
        self._connection = connection

    def write(self, _: bytes) -> None:
        self._connection.data_received(self.response)

    def pause_reading(self) -> None:
        """All of a response is there already."""

    def resume_reading(self) -> None:
        """As above."""


def _ours() -> _Parse:
    connection = Connection(None)
    peer = _Peer(connection)
    connection.connection_made(peer)

    async def parse(response: bytes) -> bytes:
        peer.response = response
        await connection.send(b"", has_body=True)
        return await connection.read()

    return parse


def _httptools() -> _Parse | None:
    try:
        httptools: Any = importlib.import_module("httptools")
    except ImportError:
        return None

    class Message:
        def __init__(self) -> None:
            self.headers: dict[str, str] = {}
            self.parts: list[bytes] = []

        def on_header(self, name: bytes, value: bytes) -> None:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

        def on_body(self, part: bytes) -> None:
            self.parts.append(part)

    async def parse(response: bytes) -> bytes:
        message = Message()
        parser = httptools.HttpResponseParser(message)
        parser.feed_data(response)
        parser.get_status_code()
        Headers(message.headers)
        return message.parts[0] if len(message.parts) == 1 else b"".join(message.parts)

    return parse


async def _seconds(parse: _Parse, response: bytes, count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        await parse(response)
    return (time.process_time() - began) / count


async def measure() -> dict[str, dict[str, float]]:
    """By response and parser, microseconds of CPU: the best of several interleaved rounds."""
    parsers = {"windlass": _ours(), "httptools": _httptools()}
    found: dict[str, dict[str, float]] = {name: {} for name in _RESPONSES}
    for _ in range(_ROUNDS):
        for name, (response, count) in _RESPONSES.items():
            for parser, parse in parsers.items():
                if parse is not None:
                    spent = 1e6 * await _seconds(parse, response, count)
                    found[name][parser] = round(min(spent, found[name].get(parser, spent)), 1)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found = asyncio.run(measure())
    if given.json:
        print(json.dumps(found, indent=2))
        return
    for name, row in found.items():
        print(
            f"{name:30}" + "".join(f"{parser} {spent:8.1f} us   " for parser, spent in row.items())
        )


if __name__ == "__main__":
    main()
