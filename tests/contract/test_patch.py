"""Merge-patch and JSON-patch: how they change an object, and how they fail."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.objects import (
    Json,
    config_map,
    core,
    ok,
    own,
    pod,
    refused,
    run,
    version_of,
)
from tests.harness.rest import Rest


@pytest.fixture
def path(api: Rest, ns: str) -> str:
    """A ConfigMap with one key, `k`."""
    ok(api.post(core(ns, "configmaps"), config_map("a", {"k": "v"}, labels={"l": "1"})), 201)
    return core(ns, "configmaps", "a")


@pytest.fixture
def run_path(api: Rest, ns: str) -> str:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    return own(ns, "runs", "a")


# --- merge-patch --------------------------------------------------------------------------------


def test_merge_patch_adds_changes_and_removes(api: Rest, path: str) -> None:
    ok(api.merge(path, {"data": {"new": "1", "k": "2"}}))
    patched = ok(api.merge(path, {"data": {"new": None}, "metadata": {"labels": None}}))
    assert patched["data"] == {"k": "2"}
    assert "labels" not in patched["metadata"]


def test_last_label_and_annotation_take_their_map_with_them(api: Rest, ns: str) -> None:
    marks = {"labels": {"x": "1"}, "annotations": {"y": "2"}}
    ok(api.post(own(ns, "runs"), run("a", **marks)), 201)
    change = {"metadata": {"labels": {"x": None}, "annotations": {"y": None}}}
    metadata = ok(api.merge(own(ns, "runs", "a"), change))["metadata"]
    assert "labels" not in metadata
    assert "annotations" not in metadata


def test_merge_patch_replaces_lists_whole(api: Rest, run_path: str) -> None:
    ok(api.merge(run_path, {"metadata": {"finalizers": ["example.com/a", "example.com/b"]}}))
    patched = ok(api.merge(run_path, {"metadata": {"finalizers": ["example.com/b"]}}))
    assert patched["metadata"]["finalizers"] == ["example.com/b"]
    ok(api.merge(run_path, {"metadata": {"finalizers": None}}))


def test_merge_patch_raises_the_version(api: Rest, path: str) -> None:
    before = ok(api.get(path))
    after = ok(api.merge(path, {"data": {"k": "2"}}))
    assert int(version_of(after)) > int(version_of(before))


def test_merge_patch_that_changes_nothing_keeps_the_version(api: Rest, path: str) -> None:
    before = ok(api.get(path))
    assert version_of(ok(api.merge(path, {"data": {"k": "v"}}))) == version_of(before)
    assert version_of(ok(api.merge(path, {}))) == version_of(before)


def test_merge_patch_with_the_current_version_is_done(api: Rest, path: str) -> None:
    version = version_of(ok(api.get(path)))
    patched = ok(api.merge(path, {"metadata": {"resourceVersion": version}, "data": {"k": "2"}}))
    assert patched["data"] == {"k": "2"}


def test_merge_patch_with_an_old_version_conflicts(api: Rest, path: str) -> None:
    version = version_of(ok(api.get(path)))
    ok(api.merge(path, {"data": {"k": "2"}}))
    answer = api.merge(path, {"metadata": {"resourceVersion": version}, "data": {"k": "3"}})
    refused(answer, 409, "Conflict")
    assert ok(api.get(path))["data"] == {"k": "2"}


def test_merge_patch_of_nothing_is_not_found(api: Rest, ns: str) -> None:
    refused(api.merge(core(ns, "configmaps", "none"), {"data": {"k": "2"}}), 404, "NotFound")


def test_merge_patch_cannot_rename(api: Rest, path: str) -> None:
    refused(api.merge(path, {"metadata": {"name": "b"}}), 400, "BadRequest")


def test_merge_patch_cannot_move_to_another_namespace(api: Rest, path: str) -> None:
    refused(api.merge(path, {"metadata": {"namespace": "default"}}), 400, "BadRequest")


def test_merge_patch_cannot_change_the_uid(api: Rest, path: str) -> None:
    answer = api.merge(path, {"metadata": {"uid": "11111111-2222-3333-4444-555555555555"}})
    assert answer.status in (409, 422), answer.summary


@pytest.mark.parametrize("body", [b"{", b"[1]", b'"text"', b"null", b"17"])
def test_merge_patch_that_is_no_object_is_refused(api: Rest, path: str, body: bytes) -> None:
    refused(api.merge(path, body), 400, "BadRequest")


def test_merge_patch_to_a_wrong_type_is_invalid(api: Rest, path: str) -> None:
    refused(api.merge(path, {"data": 5}), 422, "Invalid")
    assert ok(api.get(path))["data"] == {"k": "v"}


def test_merge_patch_of_an_own_kind_is_validated(api: Rest, run_path: str) -> None:
    answer = api.merge(run_path, {"spec": {"priority": "high"}})
    refused(answer, 422, "Invalid", field="spec.priority")


def test_merge_patch_of_spec_counts_a_generation(api: Rest, run_path: str) -> None:
    assert ok(api.merge(run_path, {"spec": {"suspend": True}}))["metadata"]["generation"] == 2
    assert ok(api.merge(run_path, {"spec": {"suspend": True}}))["metadata"]["generation"] == 2


def test_merge_patch_of_status_leaves_the_spec(api: Rest, run_path: str) -> None:
    body = {"status": {"phase": "Starting", "message": "waits"}, "spec": {"priority": 7}}
    patched = ok(api.merge(f"{run_path}/status", body))
    assert patched["status"]["phase"] == "Starting"
    assert patched["spec"].get("priority") != 7
    assert patched["metadata"]["generation"] == 1


def test_merge_patch_of_spec_leaves_the_status(api: Rest, run_path: str) -> None:
    ok(api.merge(f"{run_path}/status", {"status": {"phase": "Starting"}}))
    patched = ok(api.merge(run_path, {"status": {"phase": "Failed"}, "spec": {"priority": 7}}))
    assert patched["status"]["phase"] == "Starting"
    assert patched["spec"]["priority"] == 7


def test_merge_patch_of_status_with_an_old_version_conflicts(api: Rest, run_path: str) -> None:
    version = version_of(ok(api.get(run_path)))
    ok(api.merge(f"{run_path}/status", {"status": {"phase": "Starting"}}))
    body = {"metadata": {"resourceVersion": version}, "status": {"phase": "Running"}}
    refused(api.merge(f"{run_path}/status", body), 409, "Conflict")


def test_merge_patches_of_disjoint_status_fields_do_not_disturb(api: Rest, run_path: str) -> None:
    ok(api.merge(f"{run_path}/status", {"status": {"phase": "Starting"}}))
    ok(api.merge(f"{run_path}/status", {"status": {"attempt": 1}}))
    status = ok(api.get(run_path))["status"]
    assert (status["phase"], status["attempt"]) == ("Starting", 1)


def test_dry_run_of_a_patch_changes_nothing(api: Rest, path: str) -> None:
    assert ok(api.merge(path, {"data": {"k": "2"}}, dryRun="All"))["data"] == {"k": "2"}
    assert ok(api.get(path))["data"] == {"k": "v"}


# --- JSON-patch ---------------------------------------------------------------------------------

_JSON_PATCHES: dict[str, tuple[list[Json], dict[str, str]]] = {
    "add": ([{"op": "add", "path": "/data/n", "value": "1"}], {"k": "v", "n": "1"}),
    "add-replaces": ([{"op": "add", "path": "/data/k", "value": "1"}], {"k": "1"}),
    "replace": ([{"op": "replace", "path": "/data/k", "value": "1"}], {"k": "1"}),
    "remove": ([{"op": "remove", "path": "/data/k"}], {}),
    "move": ([{"op": "move", "from": "/data/k", "path": "/data/n"}], {"n": "v"}),
    "copy": ([{"op": "copy", "from": "/data/k", "path": "/data/n"}], {"k": "v", "n": "v"}),
    "test-holds": (
        [
            {"op": "test", "path": "/data/k", "value": "v"},
            {"op": "replace", "path": "/data/k", "value": "1"},
        ],
        {"k": "1"},
    ),
    "whole-map": ([{"op": "replace", "path": "/data", "value": {"z": "9"}}], {"z": "9"}),
    "escaped-slash": (
        [{"op": "add", "path": "/metadata/labels/example.com~1x", "value": "1"}], {"k": "v"},
    ),
    "nothing": ([], {"k": "v"}),
}  # fmt: skip


@pytest.mark.parametrize("case", _JSON_PATCHES)
def test_json_patch(api: Rest, path: str, case: str) -> None:
    operations, expected = _JSON_PATCHES[case]
    assert ok(api.json_patch(path, operations)).get("data", {}) == expected
    assert ok(api.get(path)).get("data", {}) == expected


def test_json_patch_escapes_a_slash_in_a_key(api: Rest, path: str) -> None:
    operation = {"op": "add", "path": "/metadata/labels/example.com~1x", "value": "1"}
    patched = ok(api.json_patch(path, [operation]))
    assert patched["metadata"]["labels"] == {"l": "1", "example.com/x": "1"}


def test_json_patch_inserts_and_appends_to_lists(api: Rest, run_path: str) -> None:
    ok(api.merge(run_path, {"metadata": {"finalizers": ["example.com/b"]}}))
    patched = ok(
        api.json_patch(
            run_path,
            [
                {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/c"},
                {"op": "add", "path": "/metadata/finalizers/0", "value": "example.com/a"},
            ],
        )
    )
    assert patched["metadata"]["finalizers"] == ["example.com/a", "example.com/b", "example.com/c"]
    ok(api.merge(run_path, {"metadata": {"finalizers": None}}))


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/k", "value": "other"},
        {"op": "remove", "path": "/data/none"},
        {"op": "add", "path": "/none/deeper/k", "value": "1"},
        {"op": "move", "from": "/data/none", "path": "/data/k"},
        {"op": "frobnicate", "path": "/data/k"},
        {"op": "replace", "path": "/data", "value": 5},
    ],
    ids=["test", "remove", "add", "move", "unknown-op", "wrong-type"],
)
def test_json_patch_that_cannot_be_applied_is_invalid(
    api: Rest, path: str, operation: Json
) -> None:
    before = ok(api.get(path))
    refused(api.json_patch(path, [operation]), 422, "Invalid")
    assert ok(api.get(path)) == before


def test_json_patch_is_all_or_nothing(api: Rest, path: str) -> None:
    operations = [
        {"op": "replace", "path": "/data/k", "value": "1"},
        {"op": "test", "path": "/data/k", "value": "v"},
    ]
    refused(api.json_patch(path, operations), 422, "Invalid")
    assert ok(api.get(path))["data"] == {"k": "v"}


@pytest.mark.parametrize("body", [b"{", {"op": "add"}, "text"], ids=["cut", "object", "string"])
def test_json_patch_that_is_no_list_is_refused(api: Rest, path: str, body: Any) -> None:
    refused(api.json_patch(path, body), 400, "BadRequest")


def test_json_patch_tests_the_version(api: Rest, path: str) -> None:
    guard = {"op": "test", "path": "/metadata/resourceVersion", "value": "1"}
    change = {"op": "replace", "path": "/data/k", "value": "1"}
    refused(api.json_patch(path, [guard, change]), 422, "Invalid")
    guard["value"] = version_of(ok(api.get(path)))
    assert ok(api.json_patch(path, [guard, change]))["data"] == {"k": "1"}


def test_json_patch_cannot_rename(api: Rest, path: str) -> None:
    operation = {"op": "replace", "path": "/metadata/name", "value": "b"}
    refused(api.json_patch(path, [operation]), 400, "BadRequest")


def test_json_patch_of_status(api: Rest, run_path: str) -> None:
    ok(api.merge(f"{run_path}/status", {"status": {"phase": "Starting"}}))
    operation = {"op": "replace", "path": "/status/phase", "value": "Running"}
    assert ok(api.json_patch(f"{run_path}/status", [operation]))["status"]["phase"] == "Running"


# --- which patches a kind takes -----------------------------------------------------------------


def test_patch_without_a_patch_content_type_is_refused(api: Rest, path: str) -> None:
    answer = api.request("PATCH", path, {"data": {"k": "2"}})
    refused(answer, 415, "UnsupportedMediaType")


def test_strategic_patch_of_an_own_kind_is_refused(api: Rest, run_path: str) -> None:
    refused(api.strategic(run_path, {"spec": {}}), 415, "UnsupportedMediaType")


def test_patch_of_a_pod_cannot_set_its_node(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    refused(api.merge(core(ns, "pods", "a"), {"spec": {"nodeName": "n1"}}), 422, "Invalid")
