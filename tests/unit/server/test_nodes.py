"""Logs and sessions through a gateway: options, refusals before and after the first byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.unit.server.conftest import Served, serving
from windlass.podlogs.options import LogOptions, StreamOptions
from windlass.server.apiserver.node_proxy import StreamKind
from windlass.store import errors
from windlass.store.embedded.api import Api

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
SPDY = "SPDY/3.1+portforward.k8s.io"
POD = "/api/v1/namespaces/default/pods/one"


class Echo:
    """A gateway whose node tells what it was asked, and echoes sessions."""

    async def log(self, pod: dict[str, Any], options: LogOptions) -> AsyncIterator[bytes]:
        await asyncio.sleep(0)
        if options.previous:
            raise errors.BadRequest("there was no container before this one")
        yield f"{pod['metadata']['name']} {options.container} {options.tail_lines}\n".encode()
        if options.follow:
            await asyncio.Event().wait()
        if options.timestamps:
            raise errors.Unavailable("the node went away")
        yield b"end\n"

    async def stream(
        self,
        kind: StreamKind,
        pod: dict[str, Any],
        options: StreamOptions,
        accept: Callable[[], Awaitable[web.WebSocketResponse]],
    ) -> None:
        if options.container == "none":
            raise errors.BadRequest("container none is not valid for pod one")
        socket = await accept()
        await socket.send_str(f"{kind} {socket.ws_protocol} {options.command} {options.ports}")
        async for message in socket:
            await socket.send_bytes(message.data)
            break


@pytest.fixture
async def nodes(api: Api, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(api, tmp_path, gateway=Echo()) as served:
        body = {"metadata": {"name": "one"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        await served.call("POST", "/api/v1/namespaces/default/pods", body)
        yield served


async def test_a_log_is_passed_on_with_its_options(nodes: Served) -> None:
    answer = await nodes.call("GET", f"{POD}/log?container=c&tailLines=5")
    assert (answer.code, answer.body) == (200, "one c 5\nend\n")
    assert answer.headers["Content-Type"].startswith("text/plain")


async def test_a_followed_log_shows_what_there_is_at_once(nodes: Served) -> None:
    headers = {"Authorization": f"Bearer {nodes.token}"}
    url = f"{nodes.url}{POD}/log?follow=true"
    async with asyncio.timeout(10), nodes.session.get(url, headers=headers) as response:
        assert await response.content.readline() == b"one  None\n"
        await nodes.app.stop()
        assert await response.content.read() == b""


async def test_what_the_node_refuses_is_answered_as_a_status(nodes: Served) -> None:
    answer = await nodes.call("GET", f"{POD}/log?previous=true")
    assert (answer.code, answer.body["reason"]) == (400, "BadRequest")
    assert "before" in answer.body["message"]


async def test_a_log_that_breaks_off_does_not_look_complete(nodes: Served) -> None:
    with pytest.raises(aiohttp.ClientError):
        await nodes.call("GET", f"{POD}/log?timestamps=true")


@pytest.mark.parametrize("query", ["tailLines=-1", "tailLines=x", "sinceTime=yesterday"])
async def test_log_options_that_make_no_sense_are_refused(nodes: Served, query: str) -> None:
    assert (await nodes.call("GET", f"{POD}/log?{query}")).code == 400


@pytest.mark.parametrize(
    ("path", "protocol", "greeting"),
    [
        ("exec?command=ls&command=-l", V5, f"exec {V5} ('ls', '-l') ()"),
        ("attach", V4, f"attach {V4} () ()"),
        ("portforward?ports=80,81", SPDY, f"portforward {SPDY} () (80, 81)"),
    ],
)  # fmt: skip
async def test_sessions_run_over_a_websocket_and_are_audited(
    nodes: Served, path: str, protocol: str, greeting: str, tmp_path: Path
) -> None:
    async with nodes.session.ws_connect(
        f"{nodes.url}{POD}/{path}", protocols=[protocol],
        headers={"Authorization": f"Bearer {nodes.token}"},
    ) as socket:  # fmt: skip
        assert await socket.receive_str() == greeting
        await socket.send_bytes(b"\x00hello")
        assert await socket.receive_bytes() == b"\x00hello"
        # From its start: a session may last for days.
        nodes.app._audit.flush()
        lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    kind = path.partition("?")[0]
    (line,) = [each for each in lines if each.get("subresource") == kind]
    assert (line["code"], line["user"], line["name"]) == (101, "admin", "one")
    assert "hello" not in str(line)
    assert "-l" not in str(line)


@pytest.mark.parametrize(
    ("path", "protocol"),
    [
        ("exec?container=none", "v5.channel.k8s.io"),
        ("exec", "v1.nonsense"),
        ("portforward?ports=99999", SPDY),
        ("portforward?ports=" + "9" * 5000, SPDY),
    ],
)
async def test_sessions_are_refused_before_they_are_accepted(
    nodes: Served, path: str, protocol: str
) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        async with nodes.session.ws_connect(
            f"{nodes.url}{POD}/{path}", protocols=[protocol],
            headers={"Authorization": f"Bearer {nodes.token}"},
        ):  # fmt: skip
            pass
    assert caught.value.status == 400


async def test_spdy_is_refused_with_the_way_out(nodes: Served) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
    answer = await nodes.call("POST", f"{POD}/exec?command=ls", headers=headers)
    assert answer.code == 400
    assert "WebSocket" in answer.body["message"]
