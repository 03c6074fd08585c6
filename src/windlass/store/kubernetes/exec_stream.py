"""exec and attach over WebSocket, in kubectl's protocol.

The CLI and the SDK call `open_session`. A session is a stream of (channel, bytes): channel 1 is
stdout, 2 is stderr, 3 has the exit status; the client sends stdin on channel 0 and the terminal
size on channel 4. Imported only when it is used.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import yarl

from windlass.store import errors
from windlass.store.kubernetes.config import exec_plugin, tls
from windlass.store.kubernetes.config.model import Access
from windlass.store.kubernetes.http import request_headers

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255


class ExecSession:
    """A session with one process."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self.exit_code: int | None = None
        """Set when `output` has ended; None if the process did not run to its end."""
        self.message = ""
        """The server's message about that."""

    async def output(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yields channel (1 or 2) and bytes until the process ends."""
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STATUS:
                self._note_end(data)
            elif channel in (STDOUT, STDERR) and data:
                yield channel, data

    async def send(self, data: bytes) -> None:
        await self._socket.send_bytes(bytes((STDIN,)) + data)

    async def end_input(self) -> None:
        """Closes stdin."""
        if self._socket.protocol == PROTOCOLS[0]:
            await self._socket.send_bytes(bytes((CLOSE, STDIN)))

    async def resize(self, columns: int, lines: int) -> None:
        size = json.dumps({"Width": columns, "Height": lines}).encode()
        await self._socket.send_bytes(bytes((RESIZE,)) + size)

    def _note_end(self, data: bytes) -> None:
        status: dict[str, Any] = json.loads(data or b"{}")
        self.message = str(status.get("message", ""))
        if status.get("status") == "Success":
            self.exit_code = 0
            return
        for cause in (status.get("details") or {}).get("causes") or ():
            if cause.get("reason") == "ExitCode":
                self.exit_code = int(cause.get("message", 1))
                return


@contextlib.asynccontextmanager
async def open_session(
    access: Access,
    pod: str,
    namespace: str,
    command: Sequence[str] = (),
    *,
    attach: bool = False,
    stdin: bool = False,
    tty: bool = False,
    container: str = "",
) -> AsyncIterator[ExecSession]:
    """A session with a new process in a pod (exec) or with its running process (`attach`)."""
    query = [("stdin", str(stdin).lower()), ("stdout", "true"), ("tty", str(tty).lower())]
    query += [("stderr", "false" if tty else "true"), *(("command", word) for word in command)]
    query += [("container", container)] if container else []
    what = "attach" if attach else "exec"
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/{what}"
    async with connected(access, path, query, PROTOCOLS) as socket:
        yield ExecSession(socket)


@contextlib.asynccontextmanager
async def connected(
    access: Access, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A WebSocket to a subresource of a pod, in one of the protocols."""
    credential = await exec_plugin.credentials_of(access).current()
    headers = dict(request_headers.impersonation(access.user))
    if credential.authorization:
        headers["Authorization"] = credential.authorization
    url = yarl.URL(access.address + path, encoded=True).extend_query(query)
    async with aiohttp.ClientSession() as client:
        try:
            socket = await client.ws_connect(
                url, protocols=protocols, headers=headers, proxy=request_headers.proxy(access),
                ssl=tls.context(access, credential.certificate), max_msg_size=0, heartbeat=30.0,
            )  # fmt: skip
        except aiohttp.WSServerHandshakeError as problem:
            raise await _refusal(client, url, headers, access, credential.certificate) from problem
        except (aiohttp.ClientError, OSError) as problem:
            cause = (
                problem.os_error if isinstance(problem, aiohttp.ClientConnectorError) else problem
            )
            raise request_headers.unreachable(access, cause) from problem
        async with socket:
            yield socket


async def _refusal(
    client: aiohttp.ClientSession,
    url: yarl.URL,
    headers: dict[str, str],
    access: Access,
    certificate: tuple[bytes, bytes] | None,
) -> errors.ApiError:
    """The server's error: the response to a handshake has no body, that to a plain request has."""
    async with client.get(url, headers=headers, ssl=tls.context(access, certificate)) as answer:
        body = await answer.read()
    try:
        status = json.loads(body)
    except ValueError:
        status = {"message": body[:300].decode(errors="replace")}
    return errors.from_status(status, answer.status)
