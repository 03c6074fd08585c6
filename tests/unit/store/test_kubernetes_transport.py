"""What the Kubernetes client does when the server is busy, breaks off, or answers strangely.

The server is a small real one that does as each test says; the client is the whole client.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from windlass.kinds.types.core import ConfigMap, Pod
from windlass.kinds.types.meta import ObjectMeta
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore
from windlass.store.kubernetes.config.model import Access, Cluster, User
from windlass.store.kubernetes.http.proxy_transport import ProxyTransport
from windlass.store.kubernetes.http.retry import REPEATS
from windlass.store.kubernetes.http.transport import HttpTransport

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]

OBJECT = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "uid": "u"}}


def answer(status: int, body: Any = None, **headers: str) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body or OBJECT)
        return web.Response(
            status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )

    return reply


def failure(status: int, reason: str, **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "reason": reason, "message": f"said {reason}", "details": details}


async def break_off(request: web.Request) -> web.StreamResponse:
    """The request was read, perhaps carried out; no answer comes."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@dataclasses.dataclass
class Server:
    """Gives its replies in turn (the last one for ever) and remembers the requests."""

    port: int = 0
    replies: list[Reply] = dataclasses.field(default_factory=list)
    requests: list[web.Request] = dataclasses.field(default_factory=list)
    bodies: list[bytes] = dataclasses.field(default_factory=list)
    pauses: list[float] = dataclasses.field(default_factory=list)
    carrier: type[ProxyTransport | HttpTransport] = ProxyTransport

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        reply = self.replies[0] if len(self.replies) == 1 else self.replies.pop(0)
        return await reply(request)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def store(self, outage_seconds: float = 0.0, **user: Any) -> KubernetesStore:
        access = Access(
            Cluster(server=f"http://127.0.0.1:{self.port}"), User(**user), source="here"
        )
        return KubernetesStore(
            access, self.carrier(access, sleep=self.sleep, outage_seconds=outage_seconds)
        )


@pytest.fixture(params=[ProxyTransport, HttpTransport])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    made = Server(carrier=request.param)
    runner = web.ServerRunner(web.Server(made.handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
async def store(server: Server) -> AsyncIterator[KubernetesStore]:
    made = server.store(token="t")
    yield made
    await made.close()


def config_map() -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name="a", namespace="n"))


CALLS: dict[str, Callable[[KubernetesStore], Awaitable[Any]]] = {
    "get": lambda store: store.get(ConfigMap, "a", "n"),
    "list": lambda store: store.list(ConfigMap, "n"),
    "watch": lambda store: collect(store, []),
    "create": lambda store: store.create(config_map()),
    "replace": lambda store: store.replace(config_map()),
    "merge-patch": lambda store: store.patch(ConfigMap, "a", "n", patch={}),
    "JSON-patch": lambda store: store.patch(ConfigMap, "a", "n", patch=[]),
    "delete": lambda store: store.delete(ConfigMap, "a", "n"),
}
REPEATABLE = {"get", "list", "watch", "replace", "merge-patch", "delete"}
NOT_READY = {
    "while it starts": (
        "the request has been made before all known HTTP paths have been installed, please try "
        "again", {"Retry_After": "5"},
    ),
    "to a policy that fills fields in": (
        "Resource kind windlass.dev/v1alpha1, Kind=Run not found. There can be a delay between "
        "when CustomResourceDefinitions are created and when they are available.", {},
    ),
}  # fmt: skip
"""As kube-apiserver v1.36.3 says it."""


async def collect(store: KubernetesStore, names: list[str]) -> None:
    """Adds to `names` as the events come, so that they are known when the watch fails."""
    async for event in store.watch(ConfigMap, "n"):
        names.append(event.object.name)  # noqa: PERF401


def success(name: str) -> Reply:
    return answer(200, "" if name == "watch" else OBJECT)


@pytest.mark.parametrize("name", CALLS)
async def test_a_busy_server_is_asked_again_after_the_time_it_names(
    server: Server, store: KubernetesStore, name: str
) -> None:
    busy = answer(429, failure(429, "TooManyRequests"), Retry_After="3")
    server.replies = [busy, busy, success(name)]
    await CALLS[name](store)
    assert len(server.requests) == 3
    assert all(3.0 <= pause < 4.0 for pause in server.pauses)
    assert len(set(server.bodies)) == 1


@pytest.mark.parametrize("name", CALLS)
async def test_a_busy_server_is_not_asked_for_ever(
    server: Server, store: KubernetesStore, name: str
) -> None:
    server.replies = [answer(429, failure(429, "TooManyRequests"), Retry_After="1")]
    with pytest.raises(errors.TooManyRequests) as refused:
        await CALLS[name](store)
    assert refused.value.retry_after == 1.0
    assert len(server.requests) == REPEATS + 1


@pytest.mark.parametrize("name", CALLS)
async def test_an_unavailable_server_is_asked_again_only_if_that_is_harmless(
    server: Server, store: KubernetesStore, name: str
) -> None:
    away = answer(503, failure(503, "ServiceUnavailable"), Retry_After="2")
    server.replies = [away, success(name)]
    if name in REPEATABLE:
        await CALLS[name](store)
        assert len(server.requests) == 2
    else:
        with pytest.raises(errors.Unavailable):
            await CALLS[name](store)
        assert len(server.requests) == 1


@pytest.mark.parametrize("when", NOT_READY)
@pytest.mark.parametrize("name", CALLS)
async def test_a_server_that_does_not_know_a_kind_yet_is_asked_again_for_everything(
    server: Server, store: KubernetesStore, name: str, when: str
) -> None:
    message, headers = NOT_READY[when]
    told = failure(503, "ServiceUnavailable") | {"message": message}
    server.replies = [answer(503, told, **headers), success(name)]
    await CALLS[name](store)
    assert len(server.requests) == 2


UNREACHED = {
    "no endpoint": "service unavailable\n",
    "refused": "error trying to reach service: dial tcp 10.0.0.9:8443: connect: connection refused",
}
"""As kube-apiserver v1.36.3 says it of an aggregated API whose server restarts."""


@pytest.mark.parametrize("when", UNREACHED)
@pytest.mark.parametrize("name", ["get", "create", "JSON-patch", "delete"])
async def test_a_server_behind_the_api_server_that_restarts_is_waited_for(
    server: Server, name: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = answer(503, UNREACHED[when])
    server.replies = [*[away] * 20, success(name)]
    store = server.store(outage_seconds=15.0)
    try:
        await CALLS[name](store)
    finally:
        await store.close()
    assert len(server.requests) == 21
    assert [each.getMessage() for each in caplog.records] == [
        "the server of Windlass on the cluster does not answer; waiting up to 45 s for it"
    ]


@pytest.mark.parametrize("outage_seconds", [0.0, 15.0])
async def test_it_is_not_waited_for_for_ever_and_not_by_controllers(
    server: Server, outage_seconds: float
) -> None:
    server.replies = [answer(503, UNREACHED["refused"])]
    store = server.store(outage_seconds=outage_seconds)
    vars(store._transport)["_outage_timeout"]._now = lambda: len(server.requests) * 1.0
    try:
        with pytest.raises(errors.Unavailable, match="restarting, or does not work"):
            await CALLS["create"](store)
    finally:
        await store.close()
    assert len(server.requests) == (46 if outage_seconds else 1)


async def test_a_request_that_may_have_been_executed_is_not_sent_again(server: Server) -> None:
    server.replies = [answer(503, "error trying to reach service: EOF"), success("create")]
    store = server.store(outage_seconds=15.0)
    try:
        with pytest.raises(errors.Unavailable):
            await CALLS["create"](store)
    finally:
        await store.close()
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["create", "merge-patch", "JSON-patch"])
async def test_a_write_is_never_repeated_after_a_broken_connection(
    server: Server, store: KubernetesStore, name: str
) -> None:
    server.replies = [break_off, success(name)]
    with pytest.raises(errors.Unavailable, match=f"http://127.0.0.1:{server.port}"):
        await CALLS[name](store)
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["get", "list", "watch"])
async def test_a_read_is_repeated_after_a_broken_connection(
    server: Server, store: KubernetesStore, name: str
) -> None:
    server.replies = [break_off, break_off, success(name)]
    await CALLS[name](store)
    assert len(server.requests) == 3


FINAL = {
    "503 without a time": (answer(503, failure(503, "ServiceUnavailable")), errors.Unavailable),
    "a time too long": (
        answer(429, failure(429, "TooManyRequests"), Retry_After="3600"), errors.TooManyRequests,
    ),
    "a refusal with a cause": (
        answer(
            429,
            failure(429, "TooManyRequests", causes=[{"reason": "DisruptionBudget"}]),
            Retry_After="1",
        ),
        errors.TooManyRequests,
    ),
    "500": (answer(500, failure(500, "InternalError"), Retry_After="1"), errors.ApiError),
    "404 of a proxy": (answer(404, "<html> nobody here </html>"), errors.NotFound),
    "a redirect": (answer(302, "", Location="http://elsewhere/"), errors.ApiError),
    "not an object": (answer(200, "[]"), errors.ApiError),
    "another shape": (answer(200, '{"data": 5}'), errors.ApiError),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "expected"), FINAL.values(), ids=FINAL)
async def test_other_answers_are_final_and_typed(
    server: Server, store: KubernetesStore, reply: Reply, expected: type[errors.ApiError]
) -> None:
    server.replies = [reply]
    with pytest.raises(expected) as refused:
        await store.get(ConfigMap, "a", "n")
    assert type(refused.value) is expected
    assert len(server.requests) == 1


async def test_what_a_proxy_says_is_shown(server: Server, store: KubernetesStore) -> None:
    server.replies = [answer(502, "upstream\n is  away")]
    with pytest.raises(errors.ApiError, match="answered 502: upstream is away"):
        await store.get(ConfigMap, "a", "n")


async def test_an_error_event_is_raised_as_its_class(
    server: Server, store: KubernetesStore
) -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    added = {"type": "ADDED", "object": OBJECT}
    lines = [json.dumps(added), json.dumps({"type": "ERROR", "object": gone})]
    server.replies = [answer(200, "\n".join(lines))]
    seen: list[str] = []
    with pytest.raises(errors.Gone, match="too old"):
        await collect(store, seen)
    assert seen == ["a"]


async def test_a_stream_that_breaks_is_unavailable(server: Server, store: KubernetesStore) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"type": "ADDED", "object": OBJECT}).encode() + b'\n{"ty')
        assert request.transport is not None
        request.transport.abort()
        return response

    server.replies = [half]
    seen: list[str] = []
    with pytest.raises(errors.Unavailable):
        await collect(store, seen)
    assert seen == ["a"]


async def test_logs_are_passed_on_as_they_come(server: Server, store: KubernetesStore) -> None:
    more = asyncio.Event()

    async def speak(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await more.wait()
        await response.write(b"two")
        return response

    server.replies = [speak]
    stream = store.logs(
        "p", "n", container="c", follow=True, tail_lines=0, since_seconds=9, timestamps=True,
        previous=True,
    )  # fmt: skip
    assert await anext(aiter(stream)) == b"one\n"
    more.set()
    assert [chunk async for chunk in stream] == [b"two"]
    assert dict(server.requests[0].query) == {
        "container": "c", "follow": "true", "tailLines": "0", "sinceSeconds": "9",
        "timestamps": "true", "previous": "true",
    }  # fmt: skip
    assert server.requests[0].path == "/api/v1/namespaces/n/pods/p/log"


async def test_selectors_travel_unharmed(server: Server, store: KubernetesStore) -> None:
    server.replies = [answer(200, {"metadata": {}, "items": None})]
    labels, fields = "a in (b, c),d!=e+f&g", "status.phase!=Failed,metadata.name=ä/%2F"
    await store.list(
        Pod, label_selector=labels, field_selector=fields, limit=3, continue_token="x==&y"
    )
    assert dict(server.requests[0].query) == {
        "labelSelector": labels, "fieldSelector": fields, "limit": "3", "continue": "x==&y",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a?b", "a#b", "%2e", "a b", "a\nb"])
async def test_a_name_cannot_leave_its_place_in_the_path(
    server: Server, store: KubernetesStore, name: str
) -> None:
    calls: list[Awaitable[Any]] = [
        store.get(ConfigMap, name, "n"),
        store.delete(ConfigMap, name, "n"),
        store.get(ConfigMap, "a", name),
        store.create(ConfigMap(metadata=ObjectMeta(name="a", namespace=name))),
    ]
    for call in calls:
        with pytest.raises(errors.BadRequest):
            await call
    assert server.requests == []


USERS = {
    "token": ({"token": "t"}, "Bearer t"),
    "password": ({"username": "u", "password": "p"}, "Basic dTpw"),
    "token before password": ({"token": "t", "username": "u"}, "Bearer t"),
    "nobody": ({}, None),
}


@pytest.mark.parametrize(("user", "expected"), USERS.values(), ids=USERS)
async def test_each_request_has_our_user_agent(
    server: Server, user: dict[str, Any], expected: str | None
) -> None:
    server.replies = [answer(200)]
    store = server.store(**user)
    await store.get(ConfigMap, "a", "n")
    await store.close()
    headers = server.requests[0].headers
    assert headers.get("Authorization") == expected
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("windlass/")


async def test_a_server_below_a_path(server: Server) -> None:
    server.replies = [answer(200)]
    access = Access(Cluster(server=f"http://127.0.0.1:{server.port}/k8s/c1/"), User())
    store = KubernetesStore(access, server.carrier(access))
    await store.get(ConfigMap, "a", "n")
    await store.close()
    assert server.requests[0].path == "/k8s/c1/api/v1/namespaces/n/configmaps/a"


async def test_raw_requests_come_back_as_they_are(server: Server, store: KubernetesStore) -> None:
    server.replies = [answer(418, "teapot", X_Kind="pot")]
    status, headers, body = await store.raw(
        "PUT", "/x/y", body=b"b", content_type="text/plain", query=[("c", "1"), ("c", "2")],
        headers={"X-Ask": "1"},
    )  # fmt: skip
    assert (status, headers["X-Kind"], body) == (418, "pot", b"teapot")
    asked = server.requests[0]
    assert asked.query.getall("c") == ["1", "2"]
    assert (asked.headers["Content-Type"], asked.headers["X-Ask"]) == ("text/plain", "1")
    assert server.bodies == [b"b"]
