"""Creating objects: names, what the server sets, what it refuses."""

from __future__ import annotations

import re

import pytest

from tests.contract.objects import (
    Json,
    causes,
    config_map,
    core,
    lease,
    leases,
    ok,
    own,
    pod,
    queue,
    refused,
    run,
    secret,
)
from tests.harness.rest import Rest

_TIME = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
_OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "u"}
_UID = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def test_create_answers_201_with_the_metadata_the_server_sets(api: Rest, ns: str) -> None:
    metadata = ok(api.post(core(ns, "configmaps"), config_map("a")), 201)["metadata"]
    assert metadata["name"] == "a"
    assert metadata["namespace"] == ns
    assert _UID.match(metadata["uid"])
    assert _TIME.match(metadata["creationTimestamp"])
    assert metadata["resourceVersion"].isdigit()


def test_create_answers_the_whole_object_with_kind_and_version(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), config_map("a", {"x": "y"})), 201)
    assert (created["apiVersion"], created["kind"]) == ("v1", "ConfigMap")
    assert created["data"] == {"x": "y"}


def test_create_starts_generation_at_one(api: Rest, ns: str) -> None:
    assert ok(api.post(own(ns, "runs"), run("a")), 201)["metadata"]["generation"] == 1


def test_create_of_a_cluster_scoped_kind(api: Rest, ns: str) -> None:
    created = ok(api.post(own("", "queues"), queue(f"{ns}-queue")), 201)
    assert "namespace" not in created["metadata"]


def test_generate_name_adds_five_characters(api: Rest, ns: str) -> None:
    body = config_map("", generateName="batch-")
    made = [ok(api.post(core(ns, "configmaps"), body), 201)["metadata"] for _ in range(3)]
    assert all(re.fullmatch(r"batch-[a-z0-9]{5}", metadata["name"]) for metadata in made)
    assert len({metadata["name"] for metadata in made}) == 3
    assert made[0]["generateName"] == "batch-"


def test_name_wins_over_generate_name(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), config_map("a", generateName="b-")), 201)
    assert created["metadata"]["name"] == "a"


def test_long_generate_name_is_cut_to_fit(api: Rest, ns: str) -> None:
    body = config_map("", generateName="x" * 70 + "-")
    created = ok(api.post(core(ns, "configmaps"), body), 201)
    assert created["metadata"]["name"].startswith("x" * 58)
    assert len(created["metadata"]["name"]) <= 253


def test_create_without_any_name_is_invalid(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "configmaps"), config_map("")), 422, "Invalid", field="metadata.name")


@pytest.mark.parametrize(
    "name",
    [
        "Upper",
        "under_score",
        "-lead",
        "trail-",
        ".dot",
        "two..dots",
        "sla/sh",
        "per%cent",
        "a" * 254,
    ],
)
def test_create_refuses_a_bad_name(api: Rest, ns: str, name: str) -> None:
    refused(
        api.post(core(ns, "configmaps"), config_map(name)), 422, "Invalid", field="metadata.name"
    )


def test_create_allows_dots_and_253_characters(api: Rest, ns: str) -> None:
    for name in ("a.b-c.d", "a" * 253, "0"):
        ok(api.post(core(ns, "configmaps"), config_map(name)), 201)


@pytest.mark.parametrize("name", ["with.dot", "Upper", "a" * 64, ""])
def test_namespace_names_are_labels(api: Rest, ns: str, name: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    refused(api.post("/api/v1/namespaces", body), 422, "Invalid", field="metadata.name")


def test_create_twice_says_already_exists(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a")), 201)
    status = refused(api.post(core(ns, "configmaps"), config_map("a")), 409, "AlreadyExists")
    assert status["details"]["name"] == "a"
    assert status["details"]["kind"] == "configmaps"


def test_own_kind_twice_says_already_exists_with_its_group(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    status = refused(api.post(own(ns, "runs"), run("a")), 409, "AlreadyExists")
    assert status["details"] == {"name": "a", "group": "windlass.dev", "kind": "runs"}
    assert status["message"] == 'runs.windlass.dev "a" already exists'


def test_same_name_in_two_namespaces_is_two_objects(api: Rest, ns: str) -> None:
    one = ok(api.post(core(ns, "configmaps"), config_map("same-name")), 201)
    two = ok(api.post(core("default", "configmaps"), config_map(f"same-name-{ns}")), 201)
    assert one["metadata"]["uid"] != two["metadata"]["uid"]


def test_create_in_an_unknown_namespace_is_not_found(api: Rest) -> None:
    status = refused(api.post(core("nowhere", "configmaps"), config_map("a")), 404, "NotFound")
    assert status["details"]["name"] == "nowhere"
    assert status["details"]["kind"] == "namespaces"


def test_own_kind_in_an_unknown_namespace_is_not_found(api: Rest) -> None:
    status = refused(api.post(own("nowhere", "runs"), run("a")), 404, "NotFound")
    assert status["details"]["kind"] == "namespaces"


def test_create_of_another_kind_than_the_path_is_refused(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "configmaps"), secret("a")), 400, "BadRequest")


def test_create_of_another_version_than_the_path_is_refused(api: Rest, ns: str) -> None:
    body = config_map("a") | {"apiVersion": "v2"}
    refused(api.post(core(ns, "configmaps"), body), 400, "BadRequest")


def test_own_kind_with_another_kind_than_the_path_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(own(ns, "runs"), run("a") | {"kind": "Queue"})
    assert answer.status in (400, 422), answer.summary
    assert api.get(own(ns, "runs", "a")).status == 404


def test_create_with_another_namespace_than_the_path_is_refused(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "configmaps"), config_map("a", namespace="other")), 400, "BadRequest")


def test_core_kinds_may_leave_kind_and_version_to_the_path(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), {"metadata": {"name": "a"}}), 201)
    assert (created["apiVersion"], created["kind"]) == ("v1", "ConfigMap")


def test_dry_run_answers_like_a_create_and_leaves_nothing(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), config_map("a"), dryRun="All"), 201)
    assert created["metadata"]["uid"]
    refused(api.get(core(ns, "configmaps", "a")), 404, "NotFound")


def test_dry_run_still_validates(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "configmaps"), config_map("Bad_Name"), dryRun="All"), 422, "Invalid")


def test_dry_run_sees_what_exists(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a")), 201)
    answer = api.post(core(ns, "configmaps"), config_map("a"), dryRun="All")
    refused(answer, 409, "AlreadyExists")


def test_unknown_dry_run_directive_is_refused(api: Rest, ns: str) -> None:
    answer = api.post(core(ns, "configmaps"), config_map("a"), dryRun="Some")
    refused(answer, 422, "Invalid", field="dryRun")
    refused(api.get(core(ns, "configmaps", "a")), 404)


def test_uid_creation_time_and_generation_cannot_be_forged(api: Rest, ns: str) -> None:
    forged: Json = {
        "uid": "11111111-2222-3333-4444-555555555555",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "generation": 77,
    }
    metadata = ok(api.post(own(ns, "runs"), run("a", **forged)), 201)["metadata"]
    assert metadata["uid"] != forged["uid"]
    assert metadata["creationTimestamp"] != forged["creationTimestamp"]
    assert metadata["generation"] == 1


def test_deletion_time_cannot_be_forged(api: Rest, ns: str) -> None:
    body = config_map("a", deletionTimestamp="2001-01-01T00:00:00Z", deletionGracePeriodSeconds=5)
    metadata = ok(api.post(core(ns, "configmaps"), body), 201)["metadata"]
    assert "deletionTimestamp" not in metadata
    assert "deletionGracePeriodSeconds" not in metadata


def test_status_of_an_own_kind_is_dropped_on_create(api: Rest, ns: str) -> None:
    created = ok(api.post(own(ns, "runs"), run("a") | {"status": {"phase": "Running"}}), 201)
    assert created.get("status", {}).get("phase") != "Running"


def test_status_of_a_pod_is_pending_on_create(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "pods"), pod("a") | {"status": {"phase": "Running"}}), 201)
    assert created["status"]["phase"] == "Pending"


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"labels": {"bad key": "v"}}, "metadata.labels"),
        ({"labels": {"k": "bad value"}}, "metadata.labels"),
        ({"labels": {"k": "v" * 64}}, "metadata.labels"),
        ({"annotations": {"bad key": "v"}}, "metadata.annotations"),
        ({"annotations": {"k": "v" * (256 * 1024)}}, "metadata.annotations"),
        ({"generateName": "Bad_"}, "metadata.generateName"),
        ({"ownerReferences": [_OWNER | {"uid": ""}]}, "metadata.ownerReferences"),
        ({"ownerReferences": [_OWNER | {"kind": ""}]}, "metadata.ownerReferences"),
        ({"ownerReferences": [_OWNER | {"name": ""}]}, "metadata.ownerReferences"),
        ({"finalizers": ["bad name"]}, "metadata.finalizers"),
    ],
    ids=[
        "label-key", "label-value", "label-length", "annotation-key", "annotations-size",
        "generate-name", "owner-without-uid", "owner-without-kind", "owner-without-name",
        "finalizer",
    ],
)  # fmt: skip
def test_create_refuses_bad_metadata(
    api: Rest, ns: str, metadata: dict[str, object], field: str
) -> None:
    body = config_map("a")
    body["metadata"].update(metadata)
    status = refused(api.post(core(ns, "configmaps"), body), 422, "Invalid")
    assert any(found.startswith(field) for found in causes(status)), status


def test_empty_parts_of_metadata_are_left_out(api: Rest, ns: str) -> None:
    empty: Json = {"labels": {}, "annotations": {}, "finalizers": [], "ownerReferences": []}
    metadata = ok(api.post(core(ns, "configmaps"), config_map("a", **empty)), 201)["metadata"]
    assert not set(empty) & set(metadata)


def test_every_create_has_a_new_uid_and_a_later_version(api: Rest, ns: str) -> None:
    first = ok(api.post(core(ns, "configmaps"), config_map("a")), 201)["metadata"]
    ok(api.delete(core(ns, "configmaps", "a")))
    second = ok(api.post(core(ns, "configmaps"), config_map("a")), 201)["metadata"]
    assert first["uid"] != second["uid"]
    assert int(second["resourceVersion"]) > int(first["resourceVersion"])


def test_post_to_an_object_is_not_allowed(api: Rest, ns: str) -> None:
    refused(api.post(core(ns, "configmaps", "a"), config_map("a")), 405, "MethodNotAllowed")


def test_unknown_fields_of_metadata_do_not_survive(api: Rest, ns: str) -> None:
    created = ok(api.post(leases(ns), lease("a", favourite="blue")), 201)
    assert "favourite" not in created["metadata"]
