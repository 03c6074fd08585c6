"""One request that is on its way before the rest of the program is loaded.

A command that hands in a job waits for the server longer than for anything else. With this it
sends the request first, with a plain socket, and loads asyncio and all that follows the job while
the server works. Only for the plain case: no proxy, no credential plug-in. Whatever else happens
before the request has left is left to the ordinary way, which knows how to tell it.
"""

from __future__ import annotations

import socket
import urllib.parse

from windlass.store.kubernetes import access as accesses
from windlass.store.kubernetes import network, tls
from windlass.store.kubernetes.access import Access

_CONNECT_SECONDS = 3.0
_SILENCE_SECONDS = 75.0


class Sent:
    """A request that has left; its answer is read when somebody has time for it."""

    def __init__(self, access: Access, connection: socket.socket) -> None:
        self._access = access
        self._connection = connection

    def answer(self) -> tuple[int, bytes] | None:
        """Status and body. None: the server did not carry it out and says so (401, 429, or that it
        is not ready), so that it may be sent again. Raises Unavailable when no answer comes."""
        try:
            with self._connection:
                said = bytearray()
                while piece := self._connection.recv(1 << 16):
                    said += piece
            status, body = _parsed(bytes(said))
        except (OSError, ValueError) as error:
            plain = error if isinstance(error, OSError) else ConnectionError(str(error))
            raise network.unreachable(self._access, plain) from error
        refused = status in (401, 429)
        if status == 503:
            refused = network.is_not_ready(body.decode(errors="replace"))
        return None if refused else (status, body)


def send(access: Access, method: str, path: str, body: bytes) -> Sent | None:
    """Sends it. None: not this way, and nothing was sent."""
    if access.user.exec is not None or network.proxy(access) is not None:
        return None
    url = urllib.parse.urlsplit(access.address)
    secure = url.scheme == "https"
    host, port = url.hostname or "", url.port or (443 if secure else 80)
    try:
        head = network.Letterhead(access, accesses.authorization(access))
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
        raise network.unreachable(access, error) from error
    return Sent(access, connection)


def _parsed(said: bytes) -> tuple[int, bytes]:
    """Status and body of an answer after which the connection was closed."""
    head, end, rest = said.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, tail = first.partition(" ")
    if not end or not version.startswith("HTTP/1.") or not tail[:3].isdigit():
        raise ValueError("the connection broke" if not end else "it does not speak HTTP")
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
