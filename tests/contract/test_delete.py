"""Deleting: preconditions, finalizers, grace, collections; dependents; namespaces that end."""

from __future__ import annotations

from typing import Any

from tests.contract.conftest import new_namespace
from tests.contract.objects import (
    Json,
    config_map,
    core,
    create_secrets,
    names,
    ok,
    own,
    owned_by,
    pod,
    refused,
    run,
    version_of,
)
from tests.harness.rest import Rest
from tests.harness.waiting import until

_HOLD = "example.com/hold"


def make(api: Rest, ns: str, name: str, **metadata: Any) -> Json:
    created: Json = ok(api.post(core(ns, "configmaps"), config_map(name, **metadata)), 201)
    return created


def is_gone(api: Rest, path: str) -> bool:
    return api.get(path).status == 404


# --- one object ---------------------------------------------------------------------------------


def test_delete_answers_success_and_the_object_is_gone(api: Rest, ns: str) -> None:
    created = make(api, ns, "a")
    status = ok(api.delete(core(ns, "configmaps", "a")))
    assert (status["kind"], status["status"]) == ("Status", "Success")
    assert status["details"]["name"] == "a"
    assert status["details"]["uid"] == created["metadata"]["uid"]
    assert is_gone(api, core(ns, "configmaps", "a"))


def test_delete_of_an_own_kind_answers_success_with_its_group(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    details = ok(api.delete(own(ns, "runs", "a")))["details"]
    assert (details["name"], details["group"], details["kind"]) == ("a", "windlass.dev", "runs")


def test_delete_twice_is_not_found(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    ok(api.delete(core(ns, "configmaps", "a")))
    refused(api.delete(core(ns, "configmaps", "a")), 404, "NotFound")


def test_delete_with_the_right_uid_is_done(api: Rest, ns: str) -> None:
    uid = make(api, ns, "a")["metadata"]["uid"]
    ok(api.delete(core(ns, "configmaps", "a"), {"preconditions": {"uid": uid}}))


def test_delete_with_another_uid_conflicts(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    body = {"preconditions": {"uid": "11111111-2222-3333-4444-555555555555"}}
    refused(api.delete(core(ns, "configmaps", "a"), body), 409, "Conflict")
    ok(api.get(core(ns, "configmaps", "a")))


def test_delete_with_an_old_version_conflicts(api: Rest, ns: str) -> None:
    version = version_of(make(api, ns, "a"))
    changed = ok(api.merge(core(ns, "configmaps", "a"), {"data": {"k": "2"}}))
    path = core(ns, "configmaps", "a")
    body = {"preconditions": {"resourceVersion": version}}
    refused(api.delete(path, body), 409, "Conflict")
    ok(api.delete(path, {"preconditions": {"resourceVersion": version_of(changed)}}))


def test_dry_run_of_a_delete_leaves_the_object(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    ok(api.delete(core(ns, "configmaps", "a"), {"dryRun": ["All"]}))
    ok(api.delete(core(ns, "configmaps", "a"), dryRun="All"))
    assert "deletionTimestamp" not in ok(api.get(core(ns, "configmaps", "a")))["metadata"]


def test_unknown_propagation_is_refused(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    path = core(ns, "configmaps", "a")
    answer = api.delete(path, {"propagationPolicy": "Sideways"})
    refused(answer, 422, "Invalid", field="propagationPolicy")
    refused(api.delete(path, propagationPolicy="Sideways"), 422, "Invalid")


def test_delete_with_a_broken_body_is_refused(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    refused(api.delete(core(ns, "configmaps", "a"), b"{bad"), 400, "BadRequest")
    ok(api.get(core(ns, "configmaps", "a")))


def test_delete_options_may_name_their_kind(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
    ok(api.delete(core(ns, "configmaps", "a"), body))


# --- finalizers ---------------------------------------------------------------------------------


def test_finalizer_keeps_the_object_with_a_deletion_time(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    answer = ok(api.delete(core(ns, "configmaps", "a")))
    assert answer["kind"] == "ConfigMap"
    metadata = ok(api.get(core(ns, "configmaps", "a")))["metadata"]
    assert metadata["deletionTimestamp"]
    assert metadata["finalizers"] == [_HOLD]
    ok(api.merge(core(ns, "configmaps", "a"), {"metadata": {"finalizers": None}}))


def test_delete_again_while_held_changes_nothing(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    path = core(ns, "configmaps", "a")
    first = ok(api.delete(path))
    assert version_of(ok(api.delete(path))) == version_of(first)
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_last_finalizer_removed_ends_the_object(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD, "example.com/other"])
    path = core(ns, "configmaps", "a")
    ok(api.delete(path))
    ok(api.merge(path, {"metadata": {"finalizers": ["example.com/other"]}}))
    ok(api.get(path))
    ok(api.merge(path, {"metadata": {"finalizers": []}}))
    assert is_gone(api, path)


def test_finalizer_cannot_be_added_once_deleted(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    path = core(ns, "configmaps", "a")
    ok(api.delete(path))
    answer = api.merge(path, {"metadata": {"finalizers": [_HOLD, "example.com/more"]}})
    refused(answer, 422, "Invalid", field="metadata.finalizers")
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_held_object_may_still_be_changed(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    path = core(ns, "configmaps", "a")
    ok(api.delete(path))
    assert ok(api.merge(path, {"data": {"k": "2"}}))["metadata"]["deletionTimestamp"]
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_deletion_time_cannot_be_taken_back(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    path = core(ns, "configmaps", "a")
    held = ok(api.delete(path))
    api.merge(path, {"metadata": {"deletionTimestamp": None}})
    now = ok(api.get(path))["metadata"]
    assert now["deletionTimestamp"] == held["metadata"]["deletionTimestamp"]
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_watch_tells_of_a_held_deletion_and_then_of_its_end(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "secrets"), _held_secret()), 201)
    path = core(ns, "secrets", "a")
    with api.watch(core(ns, "secrets"), resourceVersion=version_of(created)) as watch:
        ok(api.delete(path))
        ok(api.merge(path, {"metadata": {"finalizers": None}}))
        events = watch.take(2)
    assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
    assert events[0]["object"]["metadata"]["deletionTimestamp"]


def _held_secret() -> Json:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a", "finalizers": [_HOLD]}}


# --- grace --------------------------------------------------------------------------------------


def test_pod_without_a_node_is_gone_at_once(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    ok(api.delete(core(ns, "pods", "a")))
    assert is_gone(api, core(ns, "pods", "a"))


def test_pod_on_a_node_waits_for_its_grace(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    answer = ok(api.delete(core(ns, "pods", "a")))
    assert answer["kind"] == "Pod"
    metadata = ok(api.get(core(ns, "pods", "a")))["metadata"]
    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["deletionTimestamp"] > metadata["creationTimestamp"]


def test_grace_is_the_pods_own_unless_asked(api: Rest, ns: str) -> None:
    body = pod("a", node="n1")
    body["spec"]["terminationGracePeriodSeconds"] = 77
    ok(api.post(core(ns, "pods"), body), 201)
    assert ok(api.delete(core(ns, "pods", "a")))["metadata"]["deletionGracePeriodSeconds"] == 77


def test_grace_may_be_shortened_but_not_lengthened(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    path = core(ns, "pods", "a")
    graces = []
    for seconds in (20, 5, 50):
        ok(api.delete(path, {"gracePeriodSeconds": seconds}))
        graces.append(ok(api.get(path))["metadata"]["deletionGracePeriodSeconds"])
    assert graces == [20, 5, 5]


def test_grace_of_zero_removes_the_pod_at_once(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    ok(api.delete(core(ns, "pods", "a")))
    ok(api.delete(core(ns, "pods", "a"), {"gracePeriodSeconds": 0}))
    assert is_gone(api, core(ns, "pods", "a"))


def test_grace_as_a_query_parameter(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    ok(api.delete(core(ns, "pods", "a"), gracePeriodSeconds=0))
    assert is_gone(api, core(ns, "pods", "a"))


def test_finished_pod_is_gone_at_once(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a", node="n1")), 201)
    ok(api.merge(core(ns, "pods", "a", "status"), {"status": {"phase": "Succeeded"}}))
    ok(api.delete(core(ns, "pods", "a")))
    assert is_gone(api, core(ns, "pods", "a"))


# --- collections --------------------------------------------------------------------------------


def test_collection_is_deleted_by_label(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b", labels={"x": "1"})
    create_secrets(api, ns, "c")
    deleted = ok(api.delete(core(ns, "secrets"), labelSelector="x=1"))
    assert names(deleted) == ["a", "b"]
    assert names(ok(api.get(core(ns, "secrets")))) == ["c"]


def test_collection_is_deleted_by_field(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    ok(api.delete(core(ns, "secrets"), fieldSelector="metadata.name=a"))
    assert names(ok(api.get(core(ns, "secrets")))) == ["b"]


def test_collection_of_an_own_kind_is_deleted_whole(api: Rest, ns: str) -> None:
    for name in ("a", "b"):
        ok(api.post(own(ns, "runs"), run(name)), 201)
    ok(api.delete(own(ns, "runs")))
    assert ok(api.get(own(ns, "runs")))["items"] == []


def test_collection_in_another_namespace_is_left_alone(api: Rest, ns: str) -> None:
    other = new_namespace(api)
    create_secrets(api, ns, "a")
    create_secrets(api, other, "a")
    ok(api.delete(core(ns, "secrets")))
    assert names(ok(api.get(core(other, "secrets")))) == ["a"]


def test_dry_run_of_a_collection_leaves_it(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    ok(api.delete(core(ns, "secrets"), dryRun="All"))
    assert names(ok(api.get(core(ns, "secrets")))) == ["a", "b"]


# --- dependents ---------------------------------------------------------------------------------


def test_dependents_go_after_their_owner(api: Rest, ns: str) -> None:
    owner = make(api, ns, "owner")
    make(api, ns, "child", ownerReferences=[owned_by(owner)])
    ok(api.delete(core(ns, "configmaps", "owner"), {"propagationPolicy": "Background"}))
    until(lambda: is_gone(api, core(ns, "configmaps", "child")), "the child is gone")


def test_dependents_of_dependents_go_too(api: Rest, ns: str) -> None:
    owner = make(api, ns, "owner")
    child = make(api, ns, "child", ownerReferences=[owned_by(owner)])
    make(api, ns, "grandchild", ownerReferences=[owned_by(child)])
    ok(api.delete(core(ns, "configmaps", "owner")))
    until(lambda: is_gone(api, core(ns, "configmaps", "grandchild")), "the grandchild is gone")


def test_pods_go_after_their_run(api: Rest, ns: str) -> None:
    owner = ok(api.post(own(ns, "runs"), run("owner")), 201)
    ok(api.post(core(ns, "pods"), pod("member", ownerReferences=[owned_by(owner)])), 201)
    ok(api.delete(own(ns, "runs", "owner")))
    until(lambda: is_gone(api, core(ns, "pods", "member")), "the pod is gone")


def test_dependent_with_another_owner_stays(api: Rest, ns: str) -> None:
    first, second = make(api, ns, "first"), make(api, ns, "second")
    make(api, ns, "child", ownerReferences=[owned_by(first), owned_by(second)])
    make(api, ns, "witness", ownerReferences=[owned_by(first)])
    ok(api.delete(core(ns, "configmaps", "first")))
    until(lambda: is_gone(api, core(ns, "configmaps", "witness")), "the collector ran")
    ok(api.get(core(ns, "configmaps", "child")))


def test_dependent_of_an_owner_that_never_was_goes(api: Rest, ns: str) -> None:
    owner = make(api, ns, "owner")
    ghost = owned_by(owner) | {"uid": "11111111-2222-3333-4444-555555555555"}
    make(api, ns, "child", ownerReferences=[ghost])
    until(lambda: is_gone(api, core(ns, "configmaps", "child")), "the child is gone")
    ok(api.get(core(ns, "configmaps", "owner")))


def test_orphans_stay_without_their_owner(api: Rest, ns: str) -> None:
    owner = make(api, ns, "owner")
    make(api, ns, "child", ownerReferences=[owned_by(owner)])
    path = core(ns, "configmaps", "child")
    ok(api.delete(core(ns, "configmaps", "owner"), {"propagationPolicy": "Orphan"}))
    until(lambda: is_gone(api, core(ns, "configmaps", "owner")), "the owner is gone")
    assert not ok(api.get(path))["metadata"].get("ownerReferences")


def test_foreground_owner_waits_for_dependents_that_block_it(api: Rest, ns: str) -> None:
    owner = make(api, ns, "owner")
    blocking = owned_by(owner, blockOwnerDeletion=True)
    make(api, ns, "child", ownerReferences=[blocking], finalizers=[_HOLD])
    owner_path, child_path = core(ns, "configmaps", "owner"), core(ns, "configmaps", "child")
    answer = ok(api.delete(owner_path, {"propagationPolicy": "Foreground"}))
    assert answer["metadata"]["finalizers"] == ["foregroundDeletion"]
    until(
        lambda: ok(api.get(child_path))["metadata"].get("deletionTimestamp"),
        "the child is asked to go",
    )
    assert ok(api.get(owner_path))["metadata"]["deletionTimestamp"]
    ok(api.merge(child_path, {"metadata": {"finalizers": None}}))
    until(lambda: is_gone(api, owner_path), "the owner is gone")


# --- namespaces ---------------------------------------------------------------------------------


def test_default_namespace_is_there_and_active(api: Rest) -> None:
    assert ok(api.get("/api/v1/namespaces/default"))["status"]["phase"] == "Active"


def test_new_namespace_is_active_and_labelled(api: Rest, ns: str) -> None:
    namespace = ok(api.get(f"/api/v1/namespaces/{ns}"))
    assert namespace["status"]["phase"] == "Active"
    assert namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] == ns


def test_deleted_namespace_takes_its_objects_with_it(api: Rest, ns: str) -> None:
    make(api, ns, "a")
    ok(api.post(own(ns, "runs"), run("a")), 201)
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    ok(api.delete(f"/api/v1/namespaces/{ns}"))
    until(lambda: is_gone(api, f"/api/v1/namespaces/{ns}"), "the namespace is gone")
    assert is_gone(api, core(ns, "configmaps", "a"))
    assert is_gone(api, own(ns, "runs", "a"))


def test_nothing_is_created_in_a_namespace_that_ends(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    answer = ok(api.delete(f"/api/v1/namespaces/{ns}"))
    assert answer["status"]["phase"] == "Terminating"
    status = refused(api.post(core(ns, "configmaps"), config_map("b")), 403, "Forbidden")
    assert status["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    ok(api.merge(core(ns, "configmaps", "a"), {"metadata": {"finalizers": None}}))
    until(lambda: is_gone(api, f"/api/v1/namespaces/{ns}"), "the namespace is gone")


def test_namespace_waits_for_what_is_held_inside(api: Rest, ns: str) -> None:
    make(api, ns, "a", finalizers=[_HOLD])
    path = core(ns, "configmaps", "a")
    ok(api.delete(f"/api/v1/namespaces/{ns}"))
    until(
        lambda: ok(api.get(path))["metadata"].get("deletionTimestamp"),
        "what is inside is asked to go",
    )
    assert ok(api.get(f"/api/v1/namespaces/{ns}"))["status"]["phase"] == "Terminating"
    ok(api.merge(path, {"metadata": {"finalizers": None}}))
    until(lambda: is_gone(api, f"/api/v1/namespaces/{ns}"), "the namespace is gone")


def test_default_namespace_cannot_be_deleted(api: Rest) -> None:
    refused(api.delete("/api/v1/namespaces/default"), 403, "Forbidden")
