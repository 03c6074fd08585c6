"""Connections that say nothing, too little or too much, beside those of users that signed in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.harness.waiting import until_async
from tests.unit.server.conftest import Served
from tests.unit.server.test_pod_tokens import a_token
from tests.unit.server.test_rendezvous import a_gang
from windlass.server.auth import certificates
from windlass.server.fairness import settings
from windlass.server.http import bodies, connections

MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture
async def port(served: Served, tmp_path: Path) -> AsyncIterator[int]:
    """The server of `served` behind the listener of the real one."""
    files = certificates.ensure(tmp_path / "tls", "127.0.0.1")
    server = served.app.server()
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    bound = connections.bind("127.0.0.1", 0)
    listener = connections.Listener(server, bound, certificates.server_context(files))
    async with listener.accepting():
        yield listener.port
    await runner.cleanup()


Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(port: int, *, tls: bool = True) -> Pipe:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await asyncio.open_connection("127.0.0.1", port, ssl=context if tls else None)


async def ended(pipe: Pipe) -> bytes:
    """What the server sent before it closed the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return await asyncio.wait_for(pipe[0].read(), 30)
    return b""


def head(served: Served, path: str, *lines: str, method: str = "GET", token: str = "") -> bytes:
    told = (
        f"{method} {path} HTTP/1.1",
        "Host: x",
        f"Authorization: Bearer {token or served.token}",
    )
    return "\r\n".join((*told, *lines, "", "")).encode()


async def answer(pipe: Pipe) -> tuple[int, bytes]:
    """The code and the body of the next response with a length."""
    reader = pipe[0]
    first = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    lines = first.decode().split("\r\n")
    lengths = [int(line.partition(":")[2]) for line in lines if "content-length" in line.lower()]
    return int(lines[0].split()[1]), await reader.readexactly(lengths[0] if lengths else 0)


def limit(served: Served, **changes: float) -> None:
    table = served.app.connections
    table.limits = dataclasses.replace(table.limits, **changes)


SILENT = {
    "no handshake": (False, b""),
    "half a handshake": (False, b"\x16\x03\x01\x02\x00"),
    "no request": (True, b""),
    "half a head": (True, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "),
}


@pytest.mark.parametrize(("tls", "sent"), SILENT.values(), ids=SILENT)
async def test_a_connection_that_sends_no_request_is_closed(
    served: Served, port: int, tls: bool, sent: bytes
) -> None:
    limit(served, head_seconds=0.5)
    pipe = await opened(port, tls=tls)
    pipe[1].write(sent)
    await ended(pipe)
    await until_async(lambda: len(served.app.connections) == 0)


async def test_a_head_that_trickles_is_closed_even_after_a_request(
    served: Served, port: int
) -> None:
    pipe = await opened(port)
    pipe[1].write(head(served, MAPS))
    assert (await answer(pipe))[0] == 200
    limit(served, head_seconds=0.5)
    pipe[1].write(b"GET / HTTP/1.1\r\n")
    assert b"408 Request Timeout" in await ended(pipe)


async def test_a_body_that_stops_coming_is_answered_408(
    served: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", -60.0)
    pipe = await opened(port)
    body = ("Content-Length: 100", "Content-Type: application/json")
    pipe[1].write(head(served, MAPS, *body, method="POST") + b'{"metadata"')
    assert (await answer(pipe))[0] == 408


async def test_a_pod_whose_report_stops_coming_is_answered_408(
    served: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "BODY_SECONDS", -60.0)
    token = await a_token(served, (await a_gang(served))[0])
    place = "/apis/platform.windlass.dev/v1alpha1/namespaces/default/runs/job/outputs/check"
    pipe = await opened(port)
    body = ("Content-Length: 100", "Content-Type: application/json")
    pipe[1].write(head(served, place, *body, method="POST", token=token) + b'{"bytes"')
    assert (await answer(pipe))[0] == 408


async def test_an_upload_that_stops_coming_is_answered_408(
    served: Served, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "PIECE_SECONDS", 0.2)
    place = f"/apis/platform.windlass.dev/v1alpha1/namespaces/default/blobs/sha256:{'a' * 64}"
    pipe = await opened(port)
    upload = ("Upload-Offset: 0", "Upload-Length: 100", "Content-Length: 100")
    pipe[1].write(head(served, place, *upload, method="PATCH") + b"some")
    assert (await answer(pipe))[0] == 408


async def test_silent_connections_do_not_keep_a_user_out(served: Served, port: int) -> None:
    limit(served, anonymous=5, of_one_address=5)
    signed_in = await opened(port)
    signed_in[1].write(head(served, MAPS))
    assert (await answer(signed_in))[0] == 200
    silent = [await opened(port, tls=number % 2 == 0) for number in range(30)]
    fresh = await opened(port)
    for pipe in (fresh, signed_in):
        pipe[1].write(head(served, MAPS))
        assert (await answer(pipe))[0] == 200
    await until_async(lambda: len(served.app.connections) <= 7)
    assert await ended(silent[0]) == b""


async def test_a_refused_token_costs_the_connection(served: Served, port: int) -> None:
    pipe = await opened(port)
    pipe[1].write(head(served, MAPS, token="wl_abc_wrong"))
    assert b"401 Unauthorized" in await ended(pipe)


async def test_one_user_has_a_limited_number_of_connections(served: Served, port: int) -> None:
    token = await served.user("bob")
    served.app.apply_limits(settings.read({"members.connections": "2"})[0])
    pipes = []
    for _ in range(2):
        pipes.append(await opened(port))
        pipes[-1][1].write(head(served, "/version", token=token))
        await answer(pipes[-1])
        pipes[-1][1].write(head(served, "/apis", token=token))
        assert (await answer(pipes[-1]))[0] == 200
    third = await opened(port)
    third[1].write(head(served, "/apis", token=token))
    refused = await ended(third)
    assert b"429 Too Many Requests" in refused
    assert b"members.connections" in refused
    pipes[0][1].close()
    await until_async(lambda: served.app.queues.flow("members", "user bob").connections == 1)
    fourth = await opened(port)
    fourth[1].write(head(served, "/apis", token=token))
    assert (await answer(fourth))[0] == 200


async def test_a_response_that_is_never_read_is_given_up(served: Served, port: int) -> None:
    for number in range(28):
        body = {"metadata": {"name": f"map-{number}"}, "data": {"text": "x" * 500_000}}
        assert (await served.call("POST", MAPS, body)).code == 201
    limit(served, unread_seconds=0.5)
    pipe = await opened(port)
    pipe[1].write(head(served, MAPS))
    await until_async(lambda: len(served.app.connections) == 2)
    await until_async(lambda: len(served.app.connections) == 1)


async def test_watches_beyond_the_limit_are_refused_and_counted(served: Served) -> None:
    await served.team("team")
    token = await served.user("bob")
    await served.call(
        "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings",
        {"metadata": {"name": "bob"}, "subjects": [{"kind": "User", "name": "bob",
         "apiGroup": "rbac.authorization.k8s.io"}], "roleRef": {"kind": "ClusterRole",
         "name": "windlass-member", "apiGroup": "rbac.authorization.k8s.io"}},
    )  # fmt: skip
    await until_async(lambda: served.app._access.bindings.roles(_identity("bob"), "team"))
    served.app.apply_limits(settings.read({"members.watches": "3"})[0])
    url = f"{served.url}/api/v1/namespaces/team/configmaps?watch=1"
    headers = {"Authorization": f"Bearer {token}"}
    async with contextlib.AsyncExitStack() as stack:
        answers = [
            await stack.enter_async_context(served.session.get(url, headers=headers))
            for _ in range(5)
        ]
        assert [each.status for each in answers] == [200, 200, 200, 429, 429]
        assert answers[-1].headers["Retry-After"] == "1"
        page = (await served.call("GET", "/metrics")).body
        assert 'windlass_api_streams_open{level="members"} 3' in page
        refused = 'windlass_api_requests_refused_total{level="members",limit="watches"} 2'
        assert refused in page


def _identity(user: str):
    from windlass.server.auth.identity import AUTHENTICATED, Identity

    return Identity(user, (AUTHENTICATED,))
