"""The core kinds that Windlass uses: what each does beyond being an object."""

from __future__ import annotations

import base64

import pytest

from tests.contract.objects import Json, config_map, core, lease, leases, ok, refused, secret
from tests.harness.rest import Rest


def test_secret_text_becomes_data(api: Rest, ns: str) -> None:
    body = secret("a") | {"stringData": {"a": "hello"}, "data": {"b": "aGk="}}
    created = ok(api.post(core(ns, "secrets"), body), 201)
    assert created["data"] == {"a": base64.b64encode(b"hello").decode(), "b": "aGk="}
    assert "stringData" not in created
    assert created["type"] == "Opaque"


def test_secret_text_wins_over_data(api: Rest, ns: str) -> None:
    body = secret("a") | {"stringData": {"k": "new"}, "data": {"k": "b2xk"}}
    created = ok(api.post(core(ns, "secrets"), body), 201)
    assert created["data"]["k"] == base64.b64encode(b"new").decode()


def test_secret_text_is_merged_by_a_patch(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "secrets"), secret("a") | {"data": {"b": "aGk="}}), 201)
    patched = ok(api.merge(core(ns, "secrets", "a"), {"stringData": {"a": "x"}}))
    assert patched["data"] == {"a": "eA==", "b": "aGk="}


def test_secret_data_that_is_not_base64_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "secrets"), secret("a") | {"data": {"a": "???"}})
    assert answer.status in (400, 422), answer.summary


@pytest.mark.parametrize("key", ["a b", "a/b", "", "x" * 254])
def test_bad_key_of_a_secret_is_invalid(api: Rest, ns: str, key: str) -> None:
    answer = api.post(core(ns, "secrets"), secret("a") | {"data": {key: "aGk="}})
    refused(answer, 422, "Invalid", field=f"data[{key}]")


def test_bad_key_of_a_config_map_is_invalid(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "configmaps"), config_map("a", {"a b": "x"}))
    refused(answer, 422, "Invalid", field="data[a b]")


def test_config_map_keeps_binary_data(api: Rest, ns: str) -> None:
    binary = base64.b64encode(bytes(range(256))).decode()
    body = config_map("a", {"t": "ü\n"}) | {"binaryData": {"b": binary}}
    ok(api.post(core(ns, "configmaps"), body), 201)
    found = ok(api.get(core(ns, "configmaps", "a")))
    assert found["data"] == {"t": "ü\n"}
    assert found["binaryData"] == {"b": binary}


def test_same_key_in_data_and_binary_data_is_invalid(api: Rest, ns: str) -> None:
    body = config_map("a", {"k": "x"}) | {"binaryData": {"k": "aGk="}}
    refused(api.post(core(ns, "configmaps"), body), 422, "Invalid")


def test_config_map_with_a_number_as_value_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "configmaps"), config_map("a") | {"data": {"a": 1}})
    assert answer.status in (400, 422), answer.summary


def test_immutable_cannot_be_taken_back(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "secrets"), secret("a") | {"immutable": True}), 201)
    answer = api.merge(core(ns, "secrets", "a"), {"immutable": False})
    refused(answer, 422, "Invalid", field="immutable")


def test_lease_keeps_microseconds(api: Rest, ns: str) -> None:
    body = lease("a")
    body["spec"] |= {"renewTime": "2026-01-01T00:00:00.123456Z", "leaseTransitions": 4}
    ok(api.post(leases(ns), body), 201)
    spec = ok(api.get(leases(ns, "a")))["spec"]
    assert spec["renewTime"] == "2026-01-01T00:00:00.123456Z"
    assert spec["leaseTransitions"] == 4


def test_lease_of_no_duration_is_invalid(api: Rest, ns: str) -> None:
    body = lease("a") | {"spec": {"leaseDurationSeconds": 0}}
    refused(api.post(leases(ns), body), 422, "Invalid", field="spec.leaseDurationSeconds")


def event(name: str, involved_namespace: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": involved_namespace},
        "reason": "Started",
        "message": "it started",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "test"},
    }


def test_event_round_trip_and_count(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "events"), event("a", ns)), 201)
    assert created["source"] == {"component": "test"}
    patched = ok(
        api.merge(core(ns, "events", "a"), {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z"})
    )
    assert (patched["count"], patched["firstTimestamp"]) == (2, "2026-01-01T00:00:00Z")


def test_event_of_another_namespace_is_invalid(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "events"), event("a", "default"))
    refused(answer, 422, "Invalid", field="involvedObject.namespace")


def test_node_keeps_the_status_it_was_created_with(api: Rest, ns: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"{ns}-node"},
        "status": {
            "capacity": {"cpu": "8", "memory": "32Gi", "example.com/gpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    created = ok(api.post("/api/v1/nodes", body), 201)
    assert created["status"]["capacity"] == {"cpu": "8", "memory": "32Gi", "example.com/gpu": "4"}
    ok(api.delete(f"/api/v1/nodes/{ns}-node"))


def test_node_status_is_patched_apart(api: Rest, ns: str) -> None:
    path = f"/api/v1/nodes/{ns}-node"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{ns}-node"}}
    ok(api.post("/api/v1/nodes", body), 201)
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "Up"}]}
    ok(api.strategic(f"{path}/status", {"status": ready}))
    assert ok(api.get(path))["status"]["conditions"][0]["reason"] == "Up"
    ok(api.delete(path))


def test_value_of_a_priority_class_is_immutable(api: Rest, ns: str) -> None:
    root = "/apis/scheduling.k8s.io/v1/priorityclasses"
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5}
    ok(api.post(root, body | {"metadata": {"name": ns}}), 201)
    refused(api.merge(f"{root}/{ns}", {"value": 6}), 422, "Invalid", field="value")
    ok(api.delete(f"{root}/{ns}"))


def test_headless_service_keeps_its_selector_and_ports(api: Rest, ns: str) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "a"},
        "spec": {"clusterIP": "None", "selector": {"run": "x"}, "ports": [{"port": 80}]},
    }
    created = ok(api.post(core(ns, "services"), body), 201)["spec"]
    assert created["clusterIP"] == "None"
    assert created["selector"] == {"run": "x"}
    assert created["ports"][0]["port"] == 80


def test_role_of_a_binding_is_immutable(api: Rest, ns: str) -> None:
    root = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{ns}/rolebindings"
    group = "rbac.authorization.k8s.io"
    body = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "a"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "windlass-member"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
    }
    created = ok(api.post(root, body), 201)
    assert created["subjects"] == body["subjects"]
    other = {"roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "windlass-admin"}}
    refused(api.merge(f"{root}/a", other), 422, "Invalid", field="roleRef")
