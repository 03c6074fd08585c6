"""Strategic merge patch, as kubectl sends it for core kinds: lists merge by their key."""

from __future__ import annotations

from tests.contract.objects import Json, config_map, core, ok, owned_by, pod, refused
from tests.harness.rest import Rest


def node(name: str, **spec: object) -> Json:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def two_containers(name: str) -> Json:
    body = pod(name)
    body["spec"]["containers"].append({"name": "side", "image": "example/side:1"})
    return body


def test_maps_are_merged(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a", {"k": "v", "gone": "x"})), 201)
    patched = ok(api.strategic(core(ns, "configmaps", "a"), {"data": {"new": "1", "gone": None}}))
    assert patched["data"] == {"k": "v", "new": "1"}


def test_containers_are_matched_by_name(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), two_containers("a")), 201)
    change = {"spec": {"containers": [{"name": "side", "image": "example/side:2"}]}}
    containers = ok(api.strategic(core(ns, "pods", "a"), change))["spec"]["containers"]
    assert {c["name"]: c["image"] for c in containers} == {
        "main": "example/image:1",
        "side": "example/side:2",
    }


def test_finalizers_are_added_to(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a", finalizers=["example.com/a"])), 201)
    path = core(ns, "configmaps", "a")
    patched = ok(api.strategic(path, {"metadata": {"finalizers": ["example.com/b"]}}))
    assert sorted(patched["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_single_values_are_deleted_from_a_list(api: Rest, ns: str) -> None:
    held = ["example.com/a", "example.com/b"]
    ok(api.post(core(ns, "configmaps"), config_map("a", finalizers=held)), 201)
    path = core(ns, "configmaps", "a")
    change = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    assert ok(api.strategic(path, change))["metadata"]["finalizers"] == ["example.com/b"]
    ok(api.merge(path, {"metadata": {"finalizers": None}}))


def test_owner_references_are_matched_by_uid(api: Rest, ns: str) -> None:
    first = ok(api.post(core(ns, "configmaps"), config_map("first")), 201)
    second = ok(api.post(core(ns, "configmaps"), config_map("second")), 201)
    owners = [owned_by(first), owned_by(second)]
    ok(api.post(core(ns, "configmaps"), config_map("a", ownerReferences=[owners[0]])), 201)
    path = core(ns, "configmaps", "a")
    patched = ok(api.strategic(path, {"metadata": {"ownerReferences": [owners[1]]}}))
    assert {o["name"] for o in patched["metadata"]["ownerReferences"]} == {"first", "second"}
    change = {"metadata": {"ownerReferences": [{"$patch": "delete", "uid": owners[0]["uid"]}]}}
    patched = ok(api.strategic(path, change))
    assert [o["name"] for o in patched["metadata"]["ownerReferences"]] == ["second"]


def test_taints_are_replaced_as_kubectl_does(api: Rest, ns: str) -> None:
    name = f"{ns}-node"
    taint = {"key": "a", "effect": "NoSchedule"}
    ok(api.post("/api/v1/nodes", node(name, taints=[taint])), 201)
    change = {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}
    patched = ok(api.strategic(f"/api/v1/nodes/{name}", change))
    assert [t["key"] for t in patched["spec"]["taints"]] == ["b"]
    ok(api.delete(f"/api/v1/nodes/{name}"))


def test_cordon_and_uncordon(api: Rest, ns: str) -> None:
    name = f"{ns}-node"
    ok(api.post("/api/v1/nodes", node(name)), 201)
    patched = ok(api.strategic(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}}))
    assert patched["spec"]["unschedulable"] is True
    patched = ok(api.strategic(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}}))
    assert "unschedulable" not in patched["spec"]
    ok(api.delete(f"/api/v1/nodes/{name}"))


def test_conditions_are_matched_by_type(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    path = core(ns, "pods", "a", "status")
    ok(api.strategic(path, {"status": {"conditions": [{"type": "A", "status": "True"}]}}))
    ok(api.strategic(path, {"status": {"conditions": [{"type": "B", "status": "True"}]}}))
    change = {"status": {"conditions": [{"type": "A", "status": "False"}]}}
    conditions = ok(api.strategic(path, change))["status"]["conditions"]
    assert {c["type"]: c["status"] for c in conditions} == {"A": "False", "B": "True"}


def test_condition_is_deleted_by_type(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    path = core(ns, "pods", "a", "status")
    both = [{"type": "A", "status": "True"}, {"type": "B", "status": "True"}]
    ok(api.strategic(path, {"status": {"conditions": both}}))
    change = {"status": {"conditions": [{"$patch": "delete", "type": "A"}]}}
    conditions = ok(api.strategic(path, change))["status"]["conditions"]
    assert [c["type"] for c in conditions] == ["B"]


def test_map_is_replaced_on_demand(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a", {"k": "v"})), 201)
    change = {"data": {"$patch": "replace", "z": "9"}}
    assert ok(api.strategic(core(ns, "configmaps", "a"), change))["data"] == {"z": "9"}


def test_whole_list_is_replaced_on_demand(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    path = core(ns, "pods", "a", "status")
    ok(api.strategic(path, {"status": {"conditions": [{"type": "A", "status": "True"}]}}))
    change = {"status": {"conditions": [{"$patch": "replace"}, {"type": "C", "status": "True"}]}}
    conditions = ok(api.strategic(path, change))["status"]["conditions"]
    assert [c["type"] for c in conditions] == ["C"]


def test_list_without_its_merge_key_is_refused(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "pods"), pod("a")), 201)
    change = {"spec": {"containers": [{"image": "example/image:2"}]}}
    answer = api.strategic(core(ns, "pods", "a"), change)
    assert answer.status in (400, 422, 500), answer.summary
    assert ok(api.get(core(ns, "pods", "a")))["spec"]["containers"][0]["image"] == "example/image:1"


def test_strategic_patch_with_an_old_version_conflicts(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a")), 201)
    path = core(ns, "configmaps", "a")
    change = {"metadata": {"resourceVersion": "1"}, "data": {"k": "2"}}
    refused(api.strategic(path, change), 409, "Conflict")


def test_strategic_patch_that_is_no_object_is_refused(api: Rest, ns: str) -> None:
    ok(api.post(core(ns, "configmaps"), config_map("a")), 201)
    refused(api.strategic(core(ns, "configmaps", "a"), b"[1]"), 400, "BadRequest")
