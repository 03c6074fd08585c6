"""Sends one request before the rest of the program is loaded.

A command that submits a job spends most of its time waiting for the server. With this module it
sends the request first, over a plain socket, and loads asyncio and the code that follows the job
while the server works. Only for the simple case: no proxy, no credential plug-in. On any error
before the request is sent, the caller uses the normal transport, which reports it.
"""

from __future__ import annotations

import socket
import urllib.parse

from windlass.store import errors
from windlass.store.kubernetes.config import model as accesses
from windlass.store.kubernetes.config import tls
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import request_headers

_CONNECT_SECONDS = 3.0
_SILENCE_SECONDS = 75.0


class EarlyRequest:
    """A request that was sent; `response` reads its response later."""

    def __init__(self, access: Access, connection: socket.socket) -> None:
        self._access = access
        self._connection = connection

    def response(self) -> tuple[int, bytes] | None:
        """Status and body. None: the server reports that it did not execute the request (401, 429,
        not ready), so that it may be sent again. Raises AnswerLost when no response arrives."""
        try:
            with self._connection:
                received = bytearray()
                while piece := self._connection.recv(1 << 16):
                    received += piece
            status, body = _parsed(bytes(received))
        except (OSError, ValueError) as error:
            plain = error if isinstance(error, OSError) else ConnectionError(str(error))
            raise errors.AnswerLost(
                request_headers.unreachable(self._access, plain).message
            ) from error
        refused = status in (401, 429)
        if status == 503:
            refused = request_headers.is_not_ready(body.decode(errors="replace"))
        return None if refused else (status, body)


def send(access: Access, method: str, path: str, body: bytes) -> EarlyRequest | None:
    """Sends a request. Returns None if nothing was sent: use the normal transport."""
    if access.user.exec is not None or request_headers.proxy(access) is not None:
        return None
    url = urllib.parse.urlsplit(access.address)
    secure = url.scheme == "https"
    host, port = url.hostname or "", url.port or (443 if secure else 80)
    try:
        head = request_headers.RequestHeaders(access, accesses.authorization(access))
        request = head.encode(method, path, body=body, headers={"Connection": "close"})
        made = tls.context(access, accesses.certificate(access)) if secure else None
        connection = socket.create_connection((host, port), _CONNECT_SECONDS)
    except (OSError, ValueError, accesses.KubeconfigError):
        return None
    try:
        if made is not None:
            name = access.cluster.tls_server_name or host
            connection = made.wrap_socket(connection, server_hostname=name)
    except (OSError, ValueError):
        connection.close()
        return None
    try:
        connection.settimeout(_SILENCE_SECONDS)
        connection.sendall(request)
    except OSError as error:
        connection.close()
        raise errors.AnswerLost(request_headers.unreachable(access, error).message) from error
    return EarlyRequest(access, connection)


def _parsed(received: bytes) -> tuple[int, bytes]:
    """Status and body of a response that ends with the connection."""
    head, end, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, tail = first.partition(" ")
    if not end or not version.startswith("HTTP/1.") or not tail[:3].isdigit():
        raise ValueError("the connection broke" if not end else "the server does not speak HTTP")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return int(tail[:3]), _joined(rest)
    if len(rest) < int(headers.get("content-length", 0)):
        raise ValueError("the connection broke")
    return int(tail[:3]), rest


def _joined(rest: bytes) -> bytes:
    parts: list[bytes] = []
    while True:
        line, end, rest = rest.partition(b"\r\n")
        size = int(line.split(b";", 1)[0], 16) if end else -1
        if size == 0:
            return b"".join(parts)
        if size < 0 or len(rest) < size + 2:
            raise ValueError("the connection broke")
        parts.append(rest[:size])
        rest = rest[size + 2 :]
