"""Raw HTTP to a server: any bytes may be sent, every answer is judged.

Used by the fuzz tests. What must hold for every request whatever it says: an answer in time, never
an internal error, and a Status object when it is refused.
"""

from __future__ import annotations

import dataclasses
import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.faults.driver import Door

ANSWER_SECONDS = 20
CLEAR_5XX = {"ServiceUnavailable", "Timeout"}
"""Reasons that a 503 or 504 may give: something is missing or lies in the future."""


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes

    @property
    def summary(self) -> str:
        return f"{self.status} {self.content_type}: {self.body[:400]!r}"


class Wire:
    """One kept connection, opened again when the server closes it."""

    def __init__(self, door: Door) -> None:
        self._host, self._port = door.url.removeprefix("https://").split(":")
        self._door = door
        self._socket: ssl.SSLSocket | None = None

    def request(
        self,
        method: bytes,
        target: bytes,
        body: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
        *,
        stream: bool = False,
    ) -> Answer:
        """Sends a framed request with these exact bytes. `stream`: only the head is read."""
        lines = {
            b"Host": b"localhost",
            b"Authorization": self._door.headers["Authorization"].encode(),
            b"Content-Length": b"%d" % len(body),
            b"Content-Type": b"application/json",
        } | dict(headers or {})
        head = b"%b %b HTTP/1.1\r\n" % (method, target)
        head += b"".join(b"%b: %b\r\n" % line for line in lines.items())
        return self.send(head + b"\r\n" + body, stream=stream)

    def send(self, data: bytes, *, stream: bool = False, end: bool = False) -> Answer:
        """Sends bytes as they are; `end` closes our side after them."""
        kept = self._socket is not None
        try:
            return self._exchange(data, stream, end)
        except (http.client.HTTPException, ConnectionError, ssl.SSLError):
            self.close()
            if not kept:
                raise
        return self._exchange(data, stream, end)  # the kept connection had been closed meanwhile

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _exchange(self, data: bytes, stream: bool, end: bool) -> Answer:
        if self._socket is None:
            plain = socket.create_connection((self._host, int(self._port)), ANSWER_SECONDS)
            self._socket = self._door.tls.wrap_socket(plain, server_hostname=self._host)
            self._socket.settimeout(ANSWER_SECONDS)
        self._socket.sendall(data)
        if end:
            self._socket.unwrap()
        method = data.partition(b" ")[0].decode("latin-1")
        response = http.client.HTTPResponse(self._socket, method=method)
        response.begin()
        content = b"" if stream and response.status == 200 else response.read()
        answer = Answer(response.status, response.headers.get("Content-Type", ""), content)
        if response.will_close or stream or end:
            self.close()
        return answer


def judge(answer: Answer) -> Answer:
    """Fails when the answer is one that no request may get."""
    if answer.status < 400 or not answer.body:
        assert answer.status < 500, answer.summary
        return answer
    assert answer.content_type.startswith("application/json"), answer.summary
    status = json.loads(answer.body)
    assert status["kind"] == "Status", answer.summary
    assert status["status"] == "Failure", answer.summary
    assert status["code"] == answer.status, answer.summary
    assert status["message"], answer.summary
    assert answer.status < 500 or status["reason"] in CLEAR_5XX, answer.summary
    return answer


def judged(case: Any, door: Door, authority: Path) -> Any:
    """What the server answers to a generated call; it was judged like all others."""
    response = case.call(
        base_url=door.url, headers=door.headers, verify=str(authority), timeout=ANSWER_SECONDS
    )
    content_type = response.headers.get("content-type", [""])[0]
    judge(Answer(response.status_code, content_type, response.content))
    return response
