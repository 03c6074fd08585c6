"""The whole way of a request: verbs, refusals as Status, forms, watches that end in order."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import aiohttp
import pytest

from tests.unit.server.conftest import Served
from windlass.kinds.types import core
from windlass.server.auth.authenticator import Access
from windlass.server.auth.pod_tokens import PodTokens
from windlass.server.http import bodies
from windlass.store.embedded.client import EmbeddedStore

PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/default/runs"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def config(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def run(name: str, **spec: Any) -> dict[str, Any]:
    role = {"name": "worker", "command": ["true"]}
    return {"metadata": {"name": name}, "spec": {"roles": [role], **spec}}


async def test_an_object_lives_through_all_verbs(served: Served) -> None:
    made = await served.call("POST", MAPS, config("one", a="1"))
    assert made.code == 201
    assert (await served.call("GET", f"{MAPS}/one")).body["data"] == {"a": "1"}
    made.body["data"] = {"a": "2"}
    assert (await served.call("PUT", f"{MAPS}/one", made.body)).body["data"] == {"a": "2"}
    merge = {"Content-Type": "application/merge-patch+json"}
    patched = await served.call("PATCH", f"{MAPS}/one", data=b'{"data":{"b":"3"}}', headers=merge)
    assert patched.body["data"] == {"a": "2", "b": "3"}
    listed = await served.call("GET", MAPS)
    assert listed.body["kind"] == "ConfigMapList"
    assert [item["metadata"]["name"] for item in listed.body["items"]] == ["one"]
    gone = await served.call("DELETE", f"{MAPS}/one")
    assert (gone.code, gone.body["status"]) == (200, "Success")
    assert gone.body["details"]["uid"] == made.body["metadata"]["uid"]
    assert (await served.call("GET", f"{MAPS}/one")).code == 404


REFUSALS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/nope", {}, 404, "NotFound"),
    ("GET", "/", {}, 404, "NotFound"),
    ("GET", "/api/v1/nopes", {}, 404, "NotFound"),
    ("GET", f"{PODS}/none", {}, 404, "NotFound"),
    ("GET", f"{PODS}/none/status/more", {}, 404, "NotFound"),
    ("POST", f"{PODS}/one", {"json": {}}, 405, "MethodNotAllowed"),
    ("DELETE", "/api/v1/pods", {}, 405, "MethodNotAllowed"),
    ("POST", "/api/v1/pods", {"json": {}}, 405, "MethodNotAllowed"),
    ("OPTIONS", PODS, {}, 405, "MethodNotAllowed"),
    ("PUT", "/version", {}, 405, "MethodNotAllowed"),
    ("POST", "/apis", {}, 405, "MethodNotAllowed"),
    ("DELETE", f"{PODS}/one/log", {}, 405, "MethodNotAllowed"),
    ("POST", PODS, {"data": b"{"}, 400, "BadRequest"),
    ("POST", PODS, {"data": b""}, 400, "BadRequest"),
    ("POST", PODS, {"json": []}, 400, "BadRequest"),
    ("POST", PODS, {"json": {"kind": "Secret"}}, 400, "BadRequest"),
    ("POST", PODS, {"data": b"[" * 100_000}, 400, "BadRequest"),
    ("POST", PODS, {"data": b'{"metadata":{"name":"\xff"}}'}, 400, "BadRequest"),
    ("POST", PODS, {"json": {"metadata": {"name": "a", "namespace": "b"}}}, 400, "BadRequest"),
    ("POST", PODS, {"data": b"x", "headers": {"Content-Type": "text/html"}}, 415,
     "UnsupportedMediaType"),
    ("POST", PODS, {"data": b"a: &x [1]\nb: *x", "headers": {"Content-Type": "application/yaml"}},
     400, "BadRequest"),
    ("POST", f"{PODS}?dryRun=Some", {"json": pod("a")}, 422, "Invalid"),
    ("POST", f"{PODS}?fieldValidation=No", {"json": pod("a")}, 422, "Invalid"),
    ("POST", f"{MAPS}?fieldValidation=Strict", {"data": b'{"data":{"a":"1","a":"2"}}'}, 400,
     "BadRequest"),
    ("PATCH", f"{PODS}/one", {"data": b"{}", "headers": {"Content-Type": "application/json"}}, 415,
     "UnsupportedMediaType"),
    ("PATCH", f"{PODS}/one",
     {"data": b"{}", "headers": {"Content-Type": "application/apply-patch+yaml"}}, 415,
     "UnsupportedMediaType"),
    ("PATCH", f"{PODS}/one",
     {"data": b"{}", "headers": {"Content-Type": "application/json-patch+json"}}, 400,
     "BadRequest"),
    ("GET", f"{PODS}?limit=many", {}, 400, "BadRequest"),
    ("GET", f"{PODS}?limit=" + "9" * 40, {}, 400, "BadRequest"),
    ("GET", f"{PODS}?labelSelector=a+in+(", {}, 400, "BadRequest"),
    ("GET", f"{PODS}?watch=1&labelSelector=a+in+(", {}, 400, "BadRequest"),
    ("GET", f"{PODS}?watch=1&resourceVersion=x", {}, 400, "BadRequest"),
    ("GET", f"{PODS}?continue=x", {}, 400, "BadRequest"),
    ("GET", f"{PODS}?sendInitialEvents=true", {}, 422, "Invalid"),
    ("GET", f"{PODS}?watch=1&sendInitialEvents=true", {}, 422, "Invalid"),
    ("GET", f"{PODS}?watch=1&resourceVersionMatch=NotOlderThan", {}, 422, "Invalid"),
    ("GET", PODS, {"headers": {"Accept": "text/html"}}, 406, "NotAcceptable"),
    ("GET", f"{PODS}?includeObject=All", {"headers": TABLE}, 422, "Invalid"),
    ("DELETE", f"{PODS}/one?gracePeriodSeconds=-1", {}, 422, "Invalid"),
    ("DELETE", f"{PODS}/one", {"json": {"kind": "Pod"}}, 400, "BadRequest"),
    ("DELETE", f"{PODS}/one", {"json": {"propagationPolicy": "Sometimes"}}, 422, "Invalid"),
    ("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"json": {}}, 422,
     "Invalid"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path", "options", "code", "reason"), REFUSALS)
async def test_bad_requests_are_answered_with_a_status(
    served: Served, method: str, path: str, options: dict[str, Any], code: int, reason: str
) -> None:
    options = dict(options)
    if "data" in options:
        options["headers"] = {"Content-Type": "application/json", **options.get("headers", {})}
    answer = await served.call(method, path, **options)
    assert (answer.code, answer.body["reason"]) == (code, reason)
    assert answer.body["kind"] == "Status"
    assert answer.body["message"]


@pytest.mark.parametrize("chunked", [False, True])
async def test_bodies_beyond_the_limit_are_refused(served: Served, chunked: bool) -> None:
    data = json.dumps(config("big", a="x" * bodies.MAX_BYTES)).encode()

    async def pieces() -> Any:
        for start in range(0, len(data), 1 << 16):
            yield data[start : start + (1 << 16)]

    answer = await served.call(
        "POST", MAPS, data=pieces() if chunked else data,
        headers={"Content-Type": "application/json"},
    )  # fmt: skip
    assert (answer.code, answer.body["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_packed_body_does_not_get_round_the_limit(served: Served) -> None:
    data = gzip.compress(json.dumps(config("big", a="x" * bodies.MAX_BYTES)).encode())
    answer = await served.call(
        "POST", MAPS, data=data,
        headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
    )  # fmt: skip
    assert answer.code == 413


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer x", "Bearer wl_a_b", "Basic YTpi", "Bearer wl_" + "a" * 1000 + "_b",
     "Bearer wl_../../x_y"],
)  # fmt: skip
async def test_without_a_good_token_there_is_nothing_to_see(served: Served, header: str) -> None:
    for path in (PODS, "/apis", "/metrics", "/nope"):
        answer = await served.call("GET", path, token="", headers={"Authorization": header})
        assert (answer.code, answer.body["reason"]) == (401, "Unauthorized")
    assert (await served.call("GET", "/healthz", token="")).body == "ok"


async def test_a_refusal_is_the_same_whether_the_object_exists(served: Served) -> None:
    await served.call("POST", MAPS, config("there"))
    token = await served.user("bob")
    answers = [
        await served.call("GET", f"{MAPS}/{name}", token=token) for name in ("there", "gone")
    ]
    messages = {a.body["message"].replace("there", "X").replace("gone", "X") for a in answers}
    assert [a.code for a in answers] == [403, 403]
    assert len(messages) == 1
    assert 'User "bob" cannot get resource "configmaps"' in messages.pop()


async def test_a_run_carries_its_callers_name(served: Served) -> None:
    token = await member(served, "alice")
    made = await served.call("POST", RUNS, run("mine"), token=token)
    assert made.body["spec"]["user"] == "alice"
    foreign = await served.call("POST", RUNS, run("his", user="bob"), token=token)
    assert foreign.code == 403
    assert "spec.user" in foreign.body["message"]
    assert (await served.call("POST", RUNS, run("his", user="bob"))).code == 201


async def test_members_write_runs_but_never_their_status(served: Served) -> None:
    token = await member(served, "alice")
    await served.call("POST", RUNS, run("mine"), token=token)
    headers = {"Content-Type": "application/merge-patch+json"}
    body = b'{"status":{"phase":"Succeeded"}}'
    refused = await served.call(
        "PATCH", f"{RUNS}/mine/status", data=body, headers=headers, token=token
    )
    assert refused.code == 403
    assert (await served.call("GET", f"{RUNS}/mine/status", token=token)).code == 200


async def test_a_node_reaches_only_pods_bound_to_it(served: Served) -> None:
    token = await served.user("system:node:n1", "system:nodes")
    for name, node in (("mine", "n1"), ("other", "n2")):
        body = pod(name)
        body["spec"]["nodeName"] = node
        await served.call("POST", PODS, body)
    codes = {
        name: (await served.call("GET", f"{PODS}/{name}", token=token)).code
        for name in ("mine", "other", "absent")
    }
    assert codes == {"mine": 200, "other": 403, "absent": 403}
    node = {"metadata": {"name": "n2"}}
    assert (await served.call("POST", "/api/v1/nodes", node, token=token)).code == 403
    node["metadata"]["name"] = "n1"
    assert (await served.call("POST", "/api/v1/nodes", node, token=token)).code == 201


async def test_a_revoked_token_opens_nothing(served: Served) -> None:
    from windlass.server.auth.bearer_tokens import revoke_token

    token = await served.user("alice")
    assert (await served.call("GET", "/api", token=token)).code == 200
    await revoke_token(served.api, token.split("_")[1])
    async with asyncio.timeout(10):
        while (await served.call("GET", "/api", token=token)).code != 401:
            await asyncio.sleep(0)


async def test_acting_as_another_needs_all_rights(served: Served) -> None:
    as_bob = {"Impersonate-User": "bob"}
    review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    who = await served.call("POST", review, {}, headers=as_bob)
    assert who.body["status"]["userInfo"]["username"] == "bob"
    token = await served.user("alice")
    assert (await served.call("POST", review, {}, headers=as_bob, token=token)).code == 403


async def test_reviews_answer_about_the_caller(served: Served) -> None:
    token = await member(served, "alice")
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    async def allowed(**attributes: str) -> bool:
        body = {"spec": {"resourceAttributes": attributes}}
        answer = await served.call("POST", path, body, token=token)
        return bool(answer.body["status"]["allowed"])

    runs = {"group": "windlass.dev", "resource": "runs"}
    assert await allowed(verb="create", namespace="default", **runs)
    assert not await allowed(verb="create", namespace="other", **runs)
    rules = await served.call(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        {"spec": {"namespace": "default"}}, token=token,
    )  # fmt: skip
    granted = rules.body["status"]["resourceRules"]
    assert any(r["apiGroups"] == ["windlass.dev"] and "create" in r["verbs"] for r in granted)


async def test_unknown_fields_are_named_in_warnings(served: Served) -> None:
    body = run("typo")
    body["spec"]["priorty"] = 3
    answer = await served.call("POST", RUNS, body)
    assert answer.code == 201
    assert "priorty" in answer.headers["Warning"]
    assert answer.headers["Warning"].startswith('299 - "')
    assert (await served.call("POST", f"{RUNS}?fieldValidation=Strict", body)).code == 400


async def test_tables_and_metadata_are_made_on_request(served: Served) -> None:
    await served.call("POST", PODS, pod("one"))
    for path in (PODS, f"{PODS}/one"):
        table = (await served.call("GET", path, headers=TABLE)).body
        assert table["kind"] == "Table"
        assert table["rows"][0]["cells"][0] == "one"
        assert table["metadata"]["resourceVersion"]
    accept = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
    partial = (await served.call("GET", PODS, headers={"Accept": accept})).body
    assert partial["kind"] == "PartialObjectMetadataList"
    assert set(partial["items"][0]) == {"kind", "apiVersion", "metadata"}
    text = (await served.call("GET", f"{PODS}/one", headers={"Accept": "application/yaml"})).body
    assert "kind: Pod" in text


async def test_yaml_bodies_become_the_same_objects(served: Served) -> None:
    body = b"metadata: {name: one}\ndata: {on: '1', date: '2026-01-01'}\n"
    answer = await served.call(
        "POST", MAPS, data=body, headers={"Content-Type": "application/yaml"}
    )
    assert answer.code == 201
    assert answer.body["data"]["date"] == "2026-01-01"


async def test_pages_are_read_on_with_their_token(served: Served) -> None:
    for name in "abc":
        await served.call("POST", MAPS, config(name))
    first = (await served.call("GET", f"{MAPS}?limit=2")).body
    assert len(first["items"]) == 2
    token = first["metadata"]["continue"]
    second = (await served.call("GET", f"{MAPS}?limit=2&continue={token}")).body
    assert [item["metadata"]["name"] for item in second["items"]] == ["c"]


async def test_binding_and_eviction_act_on_the_pod(served: Served) -> None:
    await served.call("POST", PODS, pod("one"))
    binding = {"kind": "Binding", "metadata": {"name": "one"}, "target": {"name": "n1"}}
    bound = await served.call("POST", f"{PODS}/one/binding", binding)
    assert (bound.code, bound.body["status"]) == (201, "Success")
    assert (await served.call("GET", f"{PODS}/one")).body["spec"]["nodeName"] == "n1"
    assert (await served.call("POST", f"{PODS}/one/binding", binding)).code == 409
    eviction = {"kind": "Eviction", "metadata": {"name": "one"}}
    assert (await served.call("POST", f"{PODS}/one/eviction", eviction)).code == 201
    after = (await served.call("GET", f"{PODS}/one")).body
    assert "deletionTimestamp" in after["metadata"]


@pytest.mark.parametrize("what", ["log", "exec?command=ls", "attach", "portforward?ports=80"])
async def test_without_a_way_to_the_node_that_is_said(served: Served, what: str) -> None:
    await served.call("POST", PODS, pod("one"))
    answer = await served.call("GET", f"{PODS}/one/{what}")
    assert (answer.code, answer.body["reason"]) == (503, "ServiceUnavailable")


@pytest.mark.parametrize("path", ["/version", "/api", "/apis/windlass.dev", MAPS, "/healthz"])
async def test_a_slash_at_the_end_changes_nothing(served: Served, path: str) -> None:
    bodies = [(await served.call("GET", asked)).body for asked in (path + "/", path)]
    for body in bodies:
        if isinstance(body, dict) and "items" in body:
            del body["metadata"]["resourceVersion"]  # noting a token's use moves it on
    assert bodies[0] == bodies[1]


async def test_collections_are_deleted_by_selector(served: Served) -> None:
    for name, team in (("a", "x"), ("b", "x"), ("c", "y")):
        body = config(name)
        body["metadata"]["labels"] = {"team": team}
        await served.call("POST", MAPS, body)
    assert (await served.call("DELETE", f"{MAPS}?labelSelector=team=x")).code == 200
    left = (await served.call("GET", MAPS)).body["items"]
    assert [item["metadata"]["name"] for item in left] == ["c"]


# --- watches ------------------------------------------------------------------------------------


async def lines(response: aiohttp.ClientResponse, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(10):
        return [json.loads(await response.content.readline()) for _ in range(count)]


INITIAL = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"


def watch(served: Served, query: str, headers: dict[str, str] | None = None) -> Any:
    return served.session.get(
        f"{served.url}{MAPS}?watch=true&{query}",
        headers={"Authorization": f"Bearer {served.token}", **(headers or {})},
    )


async def test_a_watch_tells_what_happens(served: Served) -> None:
    version = (await served.call("GET", MAPS)).body["metadata"]["resourceVersion"]
    async with watch(served, f"resourceVersion={version}") as response:
        await served.call("POST", MAPS, config("one"))
        await served.call("DELETE", f"{MAPS}/one")
        events = await lines(response, 2)
    assert [event["type"] for event in events] == ["ADDED", "DELETED"]
    assert events[0]["object"]["metadata"]["name"] == "one"


async def test_a_watch_of_tables_names_the_columns_once(served: Served) -> None:
    await served.call("POST", MAPS, config("one"))
    await served.call("POST", MAPS, config("two"))
    async with watch(served, INITIAL, TABLE) as response:
        events = await lines(response, 3)
    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    assert [bool(e["object"]["columnDefinitions"]) for e in events] == [True, False, False]
    assert [len(e["object"]["rows"]) for e in events] == [1, 1, 0]


async def test_a_watch_ends_when_its_time_is_up(served: Served) -> None:
    async with asyncio.timeout(10), watch(served, "timeoutSeconds=1") as response:
        assert await response.content.read() == b""


async def test_stopping_ends_watches_in_order(served: Served) -> None:
    async with watch(served, "allowWatchBookmarks=true") as response:
        await served.app.stop()
        async with asyncio.timeout(10):
            assert await response.content.read() == b""  # a clean end: no broken chunk
    assert (await served.call("GET", "/readyz", token="")).code == 503
    assert (await served.call("GET", "/livez", token="")).code == 200


async def test_watches_are_counted_while_they_are_open(served: Served) -> None:
    async with watch(served, "") as _:
        metrics = (await served.call("GET", "/metrics")).body
        assert 'windlass_api_watches{resource="configmaps"} 1' in metrics
    assert 'windlass_api_requests_total{verb="get"' in (await served.call("GET", "/metrics")).body


# --- failures inside ------------------------------------------------------------------------------


async def test_a_failure_inside_is_answered_with_an_id(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> bytes:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(served.api, "get", broken)
    answer = await served.call("GET", f"{PODS}/one")
    assert (answer.code, answer.body["reason"]) == (500, "InternalError")
    assert "secret detail" not in answer.body["message"]
    failure = answer.body["message"].split("id ")[1].split()[0]
    assert failure in caplog.text


async def member(served: Served, user: str) -> str:
    """A token of a member of the namespace `default`, whose binding is in force."""
    await served.call(
        "POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/{BINDINGS}",
        {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                        "name": "windlass-member"},
            "subjects": [{"kind": "User", "name": user}],
        },
    )  # fmt: skip
    token = await served.user(user)
    async with asyncio.timeout(10):
        while (await served.call("GET", RUNS, token=token)).code != 200:
            await asyncio.sleep(0)
    return token


BINDINGS = core.RoleBinding.resource.plural


async def test_access_starts_with_what_is_stored(served: Served) -> None:
    """A second server on the same store knows tokens and bindings at once."""
    token = await member(served, "alice")
    access = Access(served.api, PodTokens(EmbeddedStore(served.api), b"key"))
    await access.start()
    try:
        identity = await access.authenticate(f"Bearer {token}")
        assert identity.user == "alice"
        assert access.bindings.roles(identity, "default") == {"windlass-member"}
    finally:
        await access.stop()
