"""What fuzzing and hostile reading found, each under its own name so that it stays found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz import samples
from tests.fuzz.wire import Answer, Wire, judge
from tests.harness.embedded import EmbeddedServer
from windlass.kinds.types.resource import Resource

CONFIGMAPS = b"/api/v1/namespaces/fuzz/configmaps"
PODS = b"/api/v1/namespaces/fuzz/pods"
TYPES = {
    "json": b"application/json-patch+json",
    "merge": b"application/merge-patch+json",
    "strategic": b"application/strategic-merge-patch+json",
}


def post(wire: Wire, collection: bytes, body: Any) -> Answer:
    return judge(wire.request(b"POST", collection, json.dumps(body).encode()))


def patch(wire: Wire, target: bytes, kind: str, body: Any) -> Answer:
    headers = {b"Content-Type": TYPES[kind]}
    return judge(wire.request(b"PATCH", target, json.dumps(body).encode(), headers))


def pod(name: str, **spec: Any) -> dict[str, Any]:
    kept = {"containers": [{"name": "main", "image": "i"}], "nodeName": "n"}
    return {"metadata": {"name": name}, "spec": kept | spec}


def nested(depth: int) -> Any:
    return json.loads('{"a":' * depth + "1" + "}" * depth)


@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}"), ("- ", "")], ids=str)
def test_deep_yaml_does_not_end_the_process(
    wire: Wire, fuzzed: EmbeddedServer, pair: tuple[str, str]
) -> None:
    body = (pair[0] * 40_000 + "1" + pair[1] * 40_000).encode()
    headers = {b"Content-Type": b"application/yaml"}
    answer = judge(wire.request(b"POST", CONFIGMAPS, body, headers))
    assert answer.status == 400
    assert b"nested too deeply" in answer.body
    assert fuzzed.process.alive


def test_deep_json_is_refused_before_it_is_stored(wire: Wire) -> None:
    body = {"metadata": {"name": "deep"}, "data": nested(150)}
    assert post(wire, CONFIGMAPS, body).status == 400


def test_json_patches_cannot_deepen_an_object_step_by_step(wire: Wire) -> None:
    assert post(wire, PODS, pod("deepening")).status == 201
    operations = [
        {"op": "add", "path": "/status/x" + "/a" * (90 * step), "value": nested(90)}
        for step in range(20)
    ]
    answer = patch(wire, PODS + b"/deepening/status", "json", operations)
    assert answer.status == 400
    assert b"nested too deeply" in answer.body


def test_a_number_of_thousands_of_digits_in_a_selector_is_refused(wire: Wire) -> None:
    answer = judge(wire.request(b"GET", CONFIGMAPS + b"?labelSelector=a%3E" + b"9" * 5000))
    assert answer.status == 400


@pytest.mark.parametrize("seconds", [1 << 40, (1 << 62) - 1])
def test_a_grace_beyond_all_dates_is_still_a_delete(wire: Wire, seconds: int) -> None:
    name = f"grace-{seconds}"
    post(wire, PODS, pod(name))
    body = json.dumps({"gracePeriodSeconds": seconds}).encode()
    answer = judge(wire.request(b"DELETE", f"{PODS.decode()}/{name}".encode(), body))
    assert answer.status == 200
    assert "deletionTimestamp" in json.loads(answer.body)["metadata"]


def test_a_grace_beyond_all_dates_in_the_pod_itself_is_still_a_delete(wire: Wire) -> None:
    created = post(wire, PODS, pod("patient", terminationGracePeriodSeconds=9 * 10**17))
    if created.status == 201:  # the number may also be refused at once
        assert judge(wire.request(b"DELETE", PODS + b"/patient")).status == 200


def test_an_eviction_with_a_grace_beyond_all_dates_is_answered(wire: Wire) -> None:
    post(wire, PODS, pod("evicted"))
    options = {"deleteOptions": {"gracePeriodSeconds": 1 << 60}}
    assert post(wire, PODS + b"/evicted/eviction", options).status in (201, 422)


def test_copies_of_copies_do_not_fill_the_memory(wire: Wire) -> None:
    post(wire, CONFIGMAPS, {"metadata": {"name": "copies"}, "data": {"k": "v" * 1000}})
    copies = [{"op": "copy", "from": "/data", "path": f"/data/c{i}"} for i in range(60)]
    assert patch(wire, CONFIGMAPS + b"/copies", "json", copies).status == 413


def test_moving_a_large_value_back_and_forth_is_answered(wire: Wire) -> None:
    post(wire, CONFIGMAPS, {"metadata": {"name": "moves"}, "data": {"k": "v" * 1_000_000}})
    moves = [
        {"op": "move", "from": f"/data/{a}", "path": f"/data/{b}"}
        for _ in range(4000)
        for a, b in (("k", "l"), ("l", "k"))
    ]
    assert patch(wire, CONFIGMAPS + b"/moves", "json", moves).status == 200


@pytest.mark.parametrize("field", ["env", "volumeMounts"])
def test_a_strategic_patch_with_a_long_list_is_answered(wire: Wire, field: str) -> None:
    key = {"env": "name", "volumeMounts": "mountPath"}[field]
    post(wire, PODS, pod("long"))
    items = [{key: f"E{i}"} for i in range(60_000)]
    body = {"spec": {"containers": [{"name": "main", field: items}]}}
    assert patch(wire, PODS + b"/long", "strategic", body).status == 422


def test_long_lists_of_finalizers_are_joined_and_taken_apart_in_time(wire: Wire) -> None:
    names = [f"example.com/f{i}" for i in range(40_000)]
    body = {"metadata": {"name": "finalizers", "finalizers": names}}
    post(wire, CONFIGMAPS, body)
    target = CONFIGMAPS + b"/finalizers"
    patch(wire, target, "strategic", {"metadata": {"finalizers": names[::-1]}})
    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": names}}
    assert patch(wire, target, "strategic", gone).status == 200


def test_an_object_does_not_grow_without_bound_by_patches(wire: Wire) -> None:
    runs = next(r for r in samples.RESOURCES if r.key == "runs.windlass.dev")
    assert post(wire, _collection(runs), samples.sample(runs, "growing")).status == 201
    target = samples.path(runs, "growing").encode()
    piece = "z" * 900_000
    answers = [
        patch(wire, target, "merge", {"spec": {"roles": None, "environment": {f"e{i}": piece}}})
        for i in range(4)
    ]
    sizes = [len(wire.request(b"GET", target).body)]
    assert max(sizes) < 2_000_000, [answer.summary for answer in answers]


def test_an_unknown_method_is_refused(wire: Wire) -> None:
    """HTTP itself is broken here, so the answer is HTTP's; it is an answer all the same."""
    assert wire.request(b"BREW", CONFIGMAPS).status in (400, 405)


@pytest.mark.parametrize("fields", [{"x" * 70_000: 1}, {f"field{i}": 1 for i in range(20_000)}])
def test_warnings_never_make_the_head_of_an_answer_too_long(
    fuzzed: EmbeddedServer, fields: dict[str, int]
) -> None:
    runs = next(r for r in samples.RESOURCES if r.key == "runs.windlass.dev")
    body = samples.sample(runs, "") | fields
    body["metadata"] = {"generateName": "warned-"}
    answer = fuzzed.rest().post(samples.path(runs), body)
    assert answer.status == 201, answer.summary
    told = answer.headers.get_all("Warning") or []
    assert told
    assert sum(len(line) for line in told) < 8000


@pytest.mark.parametrize("labels", [["a"], ["ab"], "ab", 1, [["a", "b"]], True])
def test_a_namespace_with_labels_that_are_no_object_is_refused(wire: Wire, labels: Any) -> None:
    body = {"metadata": {"name": "fuzz-labels", "labels": labels}}
    assert post(wire, b"/api/v1/namespaces", body).status in (400, 422)


@pytest.mark.parametrize("operation", ["move", "copy"])
def test_a_json_patch_from_what_is_no_pointer_is_refused(wire: Wire, operation: str) -> None:
    post(wire, CONFIGMAPS, {"metadata": {"name": "pointer"}, "data": {"k": "v"}})
    for source in (" ", "data", "data/k", "~"):
        body = [{"op": operation, "path": "", "from": source}]
        assert patch(wire, CONFIGMAPS + b"/pointer", "json", body).status == 422


def test_a_body_that_is_not_what_its_encoding_says_is_refused(wire: Wire) -> None:
    answer = judge(wire.request(b"POST", CONFIGMAPS, b"{}", {b"Content-Encoding": b"gzip"}))
    assert answer.status == 400


@pytest.mark.parametrize("header", [b"Impersonate-User", b"Impersonate-Group"])
def test_names_that_are_not_utf8_are_refused(wire: Wire, header: bytes) -> None:
    headers = {b"Impersonate-User": b"u"} | {header: b"a\xff"}
    for method in (b"GET", b"POST"):
        assert judge(wire.request(method, CONFIGMAPS, b"{}", headers)).status == 400


@pytest.mark.parametrize(
    "target",
    [b"/\xff", CONFIGMAPS + b"/\xff", CONFIGMAPS + b"?fieldSelector=\xff%3Da", b"/api/\xc3\x28/x"],
)
def test_urls_that_are_not_utf8_are_refused(wire: Wire, target: bytes) -> None:
    """Raw, HTTP itself forbids them; percent-encoded, they name nothing that exists."""
    assert wire.request(b"GET", target).status == 400
    for headers in ({}, {b"Authorization": b"Bearer nobody"}):
        quoted = target.replace(b"\xff", b"%FF").replace(b"\xc3", b"%C3")
        assert judge(wire.request(b"GET", quoted, headers=headers)).status in (400, 401, 404)


def _collection(resource: Resource) -> bytes:
    return samples.path(resource).encode()
