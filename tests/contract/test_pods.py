"""Pods: defaults, what is refused, binding to a node, eviction, the status a node writes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.objects import Json, binding, core, ok, pod, refused, version_of
from tests.harness.rest import Rest


def make(api: Rest, ns: str, name: str = "a", **metadata: Any) -> Json:
    created: Json = ok(api.post(core(ns, "pods"), pod(name, **metadata)), 201)
    return created


def eviction(name: str, **fields: object) -> Json:
    return {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **fields}


def test_pod_gets_the_defaults_that_clients_rely_on(api: Rest, ns: str) -> None:
    created = make(api, ns)
    assert created["spec"]["restartPolicy"] == "Always"
    assert created["spec"]["terminationGracePeriodSeconds"] == 30
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert created["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"containers": []}, "spec.containers"),
        ({"containers": [{"name": "a", "image": "i"}] * 2}, "spec.containers[1].name"),
        ({"containers": [{"name": "Bad_Name", "image": "i"}]}, "spec.containers[0].name"),
        ({"containers": [{"name": "a", "image": "i"}], "restartPolicy": "Perhaps"},
         "spec.restartPolicy"),
        ({"containers": [{"name": "a", "image": "i", "env": [{"name": "", "value": "x"}]}]},
         "spec.containers[0].env[0].name"),
        ({"containers": [
            {"name": "a", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}]},
         "spec.containers[0].volumeMounts[0].name"),
        ({"containers": [{"name": "a", "image": "i", "resources": {
            "requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}]},
         "spec.containers[0].resources.requests"),
    ],
    ids=["none", "same-name", "bad-name", "restart-policy", "env-name", "no-volume", "over-limit"],
)  # fmt: skip
def test_pod_that_breaks_a_rule_is_invalid(api: Rest, ns: str, spec: Json, field: str) -> None:
    body = pod("a") | {"spec": spec}
    refused(api.post(core(ns, "pods"), body), 422, "Invalid", field=field)


def test_pod_with_a_bad_quantity_is_refused(api: Rest, ns: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "lots"}}
    assert api.post(core(ns, "pods"), body).status in (400, 422)


def test_limits_are_requests_unless_given(api: Rest, ns: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1"}}
    created = ok(api.post(core(ns, "pods"), body), 201)
    assert created["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}


# --- binding ------------------------------------------------------------------------------------


def test_binding_sets_the_node_and_the_condition(api: Rest, ns: str) -> None:
    make(api, ns)
    answer = ok(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 201)
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    bound = ok(api.get(core(ns, "pods", "a")))
    assert bound["spec"]["nodeName"] == "n1"
    conditions = {c["type"]: c["status"] for c in bound["status"]["conditions"]}
    assert conditions["PodScheduled"] == "True"


def test_binding_merges_its_annotations_into_the_pod(api: Rest, ns: str) -> None:
    make(api, ns, annotations={"old": "1"})
    body = binding("a", "n1", annotations={"new": "2"})
    ok(api.post(core(ns, "pods", "a", "binding"), body), 201)
    annotations = ok(api.get(core(ns, "pods", "a")))["metadata"]["annotations"]
    assert annotations == {"old": "1", "new": "2"}


def test_binding_twice_conflicts(api: Rest, ns: str) -> None:
    make(api, ns)
    ok(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 201)
    refused(api.post(core(ns, "pods", "a", "binding"), binding("a", "n2")), 409, "Conflict")
    assert ok(api.get(core(ns, "pods", "a")))["spec"]["nodeName"] == "n1"


def test_binding_of_another_uid_conflicts(api: Rest, ns: str) -> None:
    created = make(api, ns)
    wrong = binding("a", "n1", uid="11111111-2222-3333-4444-555555555555")
    refused(api.post(core(ns, "pods", "a", "binding"), wrong), 409, "Conflict")
    right = binding("a", "n1", uid=created["metadata"]["uid"])
    ok(api.post(core(ns, "pods", "a", "binding"), right), 201)


def test_binding_of_an_old_version_conflicts(api: Rest, ns: str) -> None:
    version = version_of(make(api, ns))
    ok(api.merge(core(ns, "pods", "a"), {"metadata": {"labels": {"x": "1"}}}))
    answer = api.post(core(ns, "pods", "a", "binding"), binding("a", "n1", resourceVersion=version))
    refused(answer, 409, "Conflict")


def test_binding_of_a_pod_that_is_being_deleted_conflicts(api: Rest, ns: str) -> None:
    make(api, ns, finalizers=["example.com/hold"])
    ok(api.delete(core(ns, "pods", "a")))
    refused(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 409, "Conflict")
    ok(api.merge(core(ns, "pods", "a"), {"metadata": {"finalizers": None}}))


def test_binding_of_a_gated_pod_conflicts(api: Rest, ns: str) -> None:
    body = pod("a")
    body["spec"]["schedulingGates"] = [{"name": "example.com/wait"}]
    ok(api.post(core(ns, "pods"), body), 201)
    refused(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 409, "Conflict")


def test_binding_of_nothing_is_not_found(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1")), 404, "NotFound")


def test_binding_with_another_name_is_refused(api: Rest, ns: str) -> None:
    make(api, ns)
    refused(api.post(core(ns, "pods", "a", "binding"), binding("b", "n1")), 400, "BadRequest")


def test_binding_without_a_node_is_refused(api: Rest, ns: str) -> None:
    make(api, ns)
    body = binding("a", "n1")
    del body["target"]
    assert api.post(core(ns, "pods", "a", "binding"), body).status >= 400
    assert "nodeName" not in ok(api.get(core(ns, "pods", "a")))["spec"]


def test_dry_run_of_a_binding_binds_nothing(api: Rest, ns: str) -> None:
    make(api, ns)
    ok(api.post(core(ns, "pods", "a", "binding"), binding("a", "n1"), dryRun="All"), 201)
    assert "nodeName" not in ok(api.get(core(ns, "pods", "a")))["spec"]


# --- eviction -----------------------------------------------------------------------------------


def test_eviction_of_a_waiting_pod_removes_it(api: Rest, ns: str) -> None:
    make(api, ns)
    answer = ok(api.post(core(ns, "pods", "a", "eviction"), eviction("a")), 201)
    assert answer["status"] == "Success"
    assert api.get(core(ns, "pods", "a")).status == 404


def test_eviction_of_a_pod_on_a_node_waits_for_its_grace(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    body = eviction("a", deleteOptions={"gracePeriodSeconds": 7})
    ok(api.post(core(ns, "pods", "a", "eviction"), body), 201)
    metadata = ok(api.get(core(ns, "pods", "a")))["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 7


def test_eviction_of_nothing_is_not_found(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "pods", "a", "eviction"), eviction("a")), 404, "NotFound")


def test_eviction_with_another_name_is_refused(api: Rest, ns: str) -> None:
    make(api, ns)
    refused(api.post(core(ns, "pods", "a", "eviction"), eviction("b")), 400, "BadRequest")


def test_eviction_of_another_uid_conflicts(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    options = {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}
    answer = api.post(core(ns, "pods", "a", "eviction"), eviction("a", deleteOptions=options))
    refused(answer, 409, "Conflict")


# --- status -------------------------------------------------------------------------------------


def test_status_of_containers_is_kept(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    ended = {"exitCode": 3, "reason": "Error", "finishedAt": "2026-01-01T00:00:00Z"}
    container = {
        "name": "main", "ready": False, "restartCount": 0, "image": "example/image:1",
        "imageID": "x", "state": {"terminated": ended},
    }  # fmt: skip
    body = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    ok(api.merge(core(ns, "pods", "a", "status"), body))
    status = ok(api.get(core(ns, "pods", "a")))["status"]
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_labels_of_a_pod_may_change(api: Rest, ns: str) -> None:
    make(api, ns)
    patched = ok(api.merge(core(ns, "pods", "a"), {"metadata": {"labels": {"x": "1"}}}))
    assert patched["metadata"]["labels"] == {"x": "1"}


def test_annotations_may_be_written_along_with_the_status(api: Rest, ns: str) -> None:
    make(api, ns, annotations={"kept": "1"})
    body = {"metadata": {"annotations": {"x/progress": "0.5"}}, "status": {"phase": "Running"}}
    ok(api.merge(core(ns, "pods", "a", "status"), body))
    found = ok(api.get(core(ns, "pods", "a")))
    assert found["metadata"]["annotations"] == {"kept": "1", "x/progress": "0.5"}
    assert found["status"]["phase"] == "Running"
