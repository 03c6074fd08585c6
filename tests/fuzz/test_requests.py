"""Any request: an answer in time, never an internal error, always a Status when refused."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import samples, strategies
from tests.fuzz.wire import Wire, judge
from windlass.kinds.types.resource import Resource

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

MERGE = {b"Content-Type": b"application/merge-patch+json"}
JSON_PATCH = {b"Content-Type": b"application/json-patch+json"}
STRATEGIC = {b"Content-Type": b"application/strategic-merge-patch+json"}


def target(resource: Resource, name: str = "", subresource: str = "") -> bytes:
    return samples.path(resource, name, subresource).encode()


def put_sample(wire: Wire, resource: Resource, name: str) -> None:
    """The object is there, whatever an earlier example left of it."""
    body = strategies.encoded(samples.sample(resource, name))
    answer = judge(wire.request(b"POST", target(resource), body))
    assert answer.status in (201, 409), answer.summary


def drop(wire: Wire, resource: Resource, name: str) -> None:
    """Away with it: without its finalizers, then deleted without grace."""
    place = target(resource, name)
    judge(wire.request(b"PATCH", place, b'{"metadata":{"finalizers":null}}', MERGE))
    judge(wire.request(b"DELETE", place, b'{"gracePeriodSeconds":0}'))


@pytest.mark.parametrize("resource", samples.RESOURCES, ids=lambda resource: resource.key)
def test_every_sample_is_valid(wire: Wire, resource: Resource) -> None:
    """The fuzzed objects start from something real."""
    put_sample(wire, resource, "fuzz-sample")
    answer = wire.request(b"GET", target(resource, "fuzz-sample"))
    assert answer.status == 200, answer.summary
    drop(wire, resource, "fuzz-sample")


@strategies.FUZZ
@given(resource=strategies.resources, name=strategies.names, data=st.data())
def test_creating_a_bent_object(
    wire: Wire, resource: Resource, name: str, data: st.DataObject
) -> None:
    body = data.draw(strategies.bent(samples.sample(resource, name)))
    query = data.draw(st.sampled_from([b"", b"?fieldValidation=Strict", b"?dryRun=All"]))
    judge(wire.request(b"POST", target(resource) + query, strategies.encoded(body)))
    drop(wire, resource, name)


@strategies.FUZZ
@given(resource=strategies.resources, name=strategies.names, data=st.data())
def test_replacing_by_a_bent_object(
    wire: Wire, resource: Resource, name: str, data: st.DataObject
) -> None:
    put_sample(wire, resource, name)
    body = data.draw(strategies.bent(samples.sample(resource, name)))
    subresource = data.draw(st.sampled_from(["", *resource.subresources[:1]]))
    judge(wire.request(b"PUT", target(resource, name, subresource), strategies.encoded(body)))


@pytest.mark.parametrize("kind", ["merge", "strategic", "json"])
@strategies.FUZZ
@given(resource=strategies.resources, name=strategies.names, data=st.data())
def test_patching(
    wire: Wire, kind: str, resource: Resource, name: str, data: st.DataObject
) -> None:
    put_sample(wire, resource, name)
    whole = samples.sample(resource, name)
    draws: dict[str, tuple[Any, dict[bytes, bytes]]] = {
        "merge": (strategies.bent(whole), MERGE),
        "strategic": (strategies.strategic_patches(whole), STRATEGIC),
        "json": (strategies.json_patches(whole), JSON_PATCH),
    }
    patches, headers = draws[kind]
    patch = data.draw(patches)
    subresource = data.draw(st.sampled_from(["", *resource.subresources[:1]]))
    place = target(resource, name, subresource)
    judge(wire.request(b"PATCH", place, strategies.encoded(patch), headers))


@strategies.FUZZ
@given(
    resource=strategies.resources, name=strategies.names, options=strategies.values, data=st.data()
)
def test_deleting_with_any_options(
    wire: Wire, resource: Resource, name: str, options: Any, data: st.DataObject
) -> None:
    put_sample(wire, resource, name)
    fields = ["gracePeriodSeconds", "propagationPolicy", "preconditions", "dryRun", "kind",
              "orphanDependents"]  # fmt: skip
    body = data.draw(
        st.one_of(st.just(options), st.dictionaries(st.sampled_from(fields), strategies.values))
    )
    judge(wire.request(b"DELETE", target(resource, name), strategies.encoded(body)))


@strategies.FUZZ
@given(name=strategies.names, verb=st.sampled_from(["binding", "eviction"]), data=st.data())
def test_acting_on_pods(wire: Wire, name: str, verb: str, data: st.DataObject) -> None:
    pods = next(resource for resource in samples.RESOURCES if resource.key == "pods")
    put_sample(wire, pods, name)
    whole = {
        "metadata": {"name": name, "uid": "u", "annotations": {"a": "b"}, "labels": {}},
        "target": {"kind": "Node", "name": "node-a"},
        "deleteOptions": {"gracePeriodSeconds": 1, "preconditions": {"uid": "u"}},
    }
    body = data.draw(strategies.bent(whole))
    judge(wire.request(b"POST", target(pods, name, verb), strategies.encoded(body)))


@strategies.FUZZ
@given(
    resource=strategies.resources,
    query=strategies.queries,
    method=st.sampled_from([b"GET", b"DELETE", b"PATCH"]),
    name=st.sampled_from(["", "fuzz-a"]),
)
def test_any_query(wire: Wire, resource: Resource, query: bytes, method: bytes, name: str) -> None:
    place = target(resource, name)
    if resource.kind in ("Namespace", "ClusterRoleBinding") and method == b"DELETE":
        method = b"GET"  # what the other examples stand on is not theirs to delete
    stream = b"watch" in query or b"follow" in query
    judge(wire.request(method, place + b"?" + query, b"{}", MERGE, stream=stream))


@strategies.FUZZ
@given(method=strategies.methods, path=strategies.paths, body=strategies.values)
def test_any_path(wire: Wire, method: bytes, path: bytes, body: Any) -> None:
    judge(wire.request(method, path, strategies.encoded(body)))


@strategies.FUZZ
@given(
    resource=strategies.resources,
    method=st.sampled_from([b"GET", b"POST", b"PATCH"]),
    headers=strategies.headers,
    body=st.one_of(st.binary(max_size=60), strategies.values.map(strategies.encoded)),
)
def test_any_header(
    wire: Wire, resource: Resource, method: bytes, headers: dict[bytes, bytes], body: bytes
) -> None:
    place = target(resource, "fuzz-a" if method == b"PATCH" else "")
    answer = wire.request(method, place, body, headers)
    if headers.get(b"Content-Encoding", b"") in (b"", b"gzip"):
        judge(answer)  # other encodings are refused by HTTP itself, without a Status
    assert answer.status < 500, answer.summary


@strategies.FUZZ
@given(resource=strategies.resources, data=st.data())
def test_any_body(wire: Wire, resource: Resource, data: st.DataObject) -> None:
    """Bytes that are not JSON, or JSON that no encoder would write."""
    valid = strategies.encoded(samples.sample(resource, "fuzz-e"))
    body = data.draw(
        st.one_of(
            st.binary(max_size=200),
            st.integers(0, len(valid)).map(lambda cut: valid[:cut]),
            st.sampled_from(
                [b'{"metadata":{"name":"a","name":"b"}}', b'{"metadata":{"name":"\\ud800"}}',
                 b'{"metadata":{"name":"fuzz-e","annotations":{"a":"\\ud83d"}}}', b"\xef\xbb\xbf{}",
                 b'{"metadata":{"name":"fuzz-e","annotations":{"a":"\xff\xfe"}}}', b"NaN", b"[]",
                 b'{"a":Infinity}', b'{"a":1' + b"0" * 5000 + b"}", b'{"a":1e400}', b"nul", b'"']
            ),
            st.sampled_from([10, 500, 1100, 50_000]).map(strategies.deep),
            st.sampled_from([500, 50_000]).map(lambda n: strategies.deep(n, "[", "]")),
        )
    )  # fmt: skip
    types = [b"application/json", b"application/yaml", b"application/vnd.kubernetes.protobuf"]
    headers = {b"Content-Type": data.draw(st.sampled_from(types))}
    query = data.draw(st.sampled_from([b"", b"?fieldValidation=Strict"]))
    judge(wire.request(b"POST", target(resource) + query, body, headers))
    drop(wire, resource, "fuzz-e")


@strategies.FUZZ
@given(noise=st.binary(max_size=120))
def test_any_protobuf(wire: Wire, noise: bytes) -> None:
    headers = {b"Content-Type": b"application/vnd.kubernetes.protobuf"}
    place = b"/api/v1/namespaces/fuzz/pods/fuzz-a"
    judge(wire.request(b"DELETE", place, b"k8s\x00" + noise, headers))


@strategies.FUZZ
@given(body=st.binary(min_size=40, max_size=200), cut=st.integers(1, 60))
def test_bodies_that_break_off(wire: Wire, body: bytes, cut: int) -> None:
    """A compressed body that breaks off is refused and leaves nothing behind; where only its
    end mark is missing, all of it is stored."""
    whole = {"metadata": {"name": "fuzz-cut"}, "data": {"k": base64.b64encode(body).decode()}}
    packed = gzip.compress(strategies.encoded(whole))[:-cut]
    place = b"/api/v1/namespaces/fuzz/configmaps"
    answer = wire.request(b"POST", place, packed, {b"Content-Encoding": b"gzip"})
    if judge(answer).status == 201:
        assert json.loads(answer.body)["data"] == whole["data"]
        wire.request(b"DELETE", place + b"/fuzz-cut")
    else:
        assert wire.request(b"GET", place + b"/fuzz-cut").status == 404
