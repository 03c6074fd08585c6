"""Sends one attack as bytes, and says what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import socket
import ssl
import urllib.parse
from collections.abc import Callable

from tests.hostile.attack import GONE, Attack, Request, request_of
from tests.hostile.worlds import CANARIES, OWN, World

SECONDS = 30.0
"""For an answer, health included. Generous: what is measured is whether there is one."""
_REFUSALS = (401, 403)


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""


def problems(world: World, row: Attack, baseline: dict[str, str]) -> list[str]:
    """Sends the attack; everything that is not as it must be."""
    return outcome(world, row, lambda request: request, baseline)


def outcome(
    world: World, row: Attack, written: Callable[[Request], Request], baseline: dict[str, str]
) -> list[str]:
    """The same, with the request as `written` writes it."""
    found = []
    answers = _send(world, row, written)
    for answer in answers:
        if answer.status not in row.allowed(world.engine):
            found.append(f"answered {answer.status} {answer.body[:300]!r}")
        told = [word for word in (*CANARIES, *row.lacks) if word.encode() in answer.body]
        found += [f"the answer has {word}" for word in told]
        if answer.status in _REFUSALS:
            user = world.callers[row.actor].user if answer.status == 403 else ""
            world.sent[user, answer.status] += 1
    if row.method in ("POST", "PUT", "PATCH") and any(each.status < 300 for each in answers):
        _tidy(world, row)
    return found + changes(world, baseline)


def changes(world: World, baseline: dict[str, str]) -> list[str]:
    now = world.digest()
    keys = sorted(key for key in baseline.keys() | now.keys() if baseline.get(key) != now.get(key))
    words = {True: "is new", False: "has changed"}
    return [f"{key} {words[key not in baseline] if key in now else 'is gone'}" for key in keys]


def _send(world: World, row: Attack, written: Callable[[Request], Request]) -> list[Answer]:
    world.rows += 1
    request = written(request_of(row, world.values | {"n": str(world.rows)}))
    url, tls = world.door(row.door)
    token = world.callers[row.actor].token
    headers = {"Host": urllib.parse.urlsplit(url).netloc}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    data = _bytes_of(request, headers | request.headers)
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(_connected(url, tls)) for _ in range(row.at_once)]
        # A server may refuse and close before it has read everything.
        for each in sockets:
            with contextlib.suppress(OSError):
                each.sendall(data)
        assert_alive(world)
        return [_answer(each, row.method) for each in sockets]


def assert_alive(world: World) -> None:
    """Health over a connection of its own, at every door."""
    for door in ("api", "server"):
        url, tls = world.door(door)
        parts = urllib.parse.urlsplit(url)
        connection = http.client.HTTPSConnection(
            str(parts.hostname), parts.port, context=tls, timeout=SECONDS
        )
        token = world.admin.token if door == "api" else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with contextlib.closing(connection):
            connection.request("GET", "/healthz", headers=headers)
            answer = connection.getresponse()
            assert answer.status == 200, f"{door}: {answer.status} {answer.read(300)!r}"


def _bytes_of(request: Request, headers: dict[str, str]) -> bytes:
    lines = {"Content-Length": str(len(request.body)), "Connection": "close"} | headers
    head = f"{request.method} {request.path} HTTP/1.1\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return head.encode("utf-8", "surrogateescape") + b"\r\n" + request.body


def _connected(url: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
    parts = urllib.parse.urlsplit(url)
    plain = socket.create_connection((str(parts.hostname), parts.port or 443), SECONDS)
    return tls.wrap_socket(plain, server_hostname=parts.hostname)


def _answer(connection: ssl.SSLSocket, method: str) -> Answer:
    try:
        response = http.client.HTTPResponse(connection, method=method)
        response.begin()
        # After an upgrade the connection is no longer HTTP.
        body = b"" if response.status == 101 else response.read()
    except (http.client.HTTPException, OSError):
        return Answer(GONE)
    return Answer(response.status, body)


def _tidy(world: World, row: Attack) -> None:
    """Removes what the attacker was allowed to make for itself."""
    path, _, _ = row.path.partition("?")
    collection, _, _ = path.partition("/hostile-")
    if f"/namespaces/{OWN[0]}/" not in collection or "$" in collection:
        return
    listed = world.admin.get(collection)
    if listed.status != 200:
        return
    for item in json.loads(listed.body).get("items", ()):
        name = item["metadata"]["name"]
        if name.startswith(OWN[1]):
            target = f"{collection}/{name}"
            world.admin.merge(target, {"metadata": {"finalizers": None}})
            world.admin.delete(target, {"gracePeriodSeconds": 0})
