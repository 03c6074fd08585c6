"""Replacing: optimistic concurrency, what is immutable, spec and status kept apart."""

from __future__ import annotations

from tests.contract.objects import (
    Json,
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
    version_of,
)
from tests.harness.rest import Rest


def create_config(api: Rest, ns: str) -> Json:
    created: Json = ok(api.post(core(ns, "configmaps"), config_map("a")), 201)
    return created


def create_run(api: Rest, ns: str) -> Json:
    created: Json = ok(api.post(own(ns, "runs"), run("a")), 201)
    return created


def test_replace_writes_the_object_and_raises_its_version(api: Rest, ns: str) -> None:
    created = create_config(api, ns)
    replaced = ok(api.put(core(ns, "configmaps", "a"), created | {"data": {"x": "y"}}))
    assert replaced["data"] == {"x": "y"}
    assert int(version_of(replaced)) > int(version_of(created))
    assert replaced["metadata"]["uid"] == created["metadata"]["uid"]


def test_replace_removes_what_the_new_object_does_not_have(api: Rest, ns: str) -> None:
    body = config_map("a", labels={"x": "1"}, annotations={"y": "2"})
    created = ok(api.post(core(ns, "configmaps"), body), 201)
    del created["metadata"]["labels"], created["metadata"]["annotations"], created["data"]
    replaced = ok(api.put(core(ns, "configmaps", "a"), created))
    assert "data" not in replaced
    assert "labels" not in replaced["metadata"]
    assert "annotations" not in replaced["metadata"]


def test_replace_of_an_old_version_conflicts(api: Rest, ns: str) -> None:
    created = create_config(api, ns)
    ok(api.put(core(ns, "configmaps", "a"), created | {"data": {"x": "1"}}))
    answer = api.put(core(ns, "configmaps", "a"), created | {"data": {"x": "2"}})
    status = refused(answer, 409, "Conflict")
    assert "the object has been modified" in status["message"]
    assert ok(api.get(core(ns, "configmaps", "a")))["data"] == {"x": "1"}


def test_core_kind_without_a_version_is_replaced_unconditionally(api: Rest, ns: str) -> None:
    create_config(api, ns)
    replaced = ok(api.put(core(ns, "configmaps", "a"), config_map("a", {"x": "y"})))
    assert replaced["data"] == {"x": "y"}


def test_own_kind_without_a_version_is_refused(api: Rest, ns: str) -> None:
    create_run(api, ns)
    answer = api.put(own(ns, "runs", "a"), run("a"))
    refused(answer, 422, "Invalid", field="metadata.resourceVersion")


def test_lease_without_a_version_is_refused(api: Rest, ns: str) -> None:
    ok(api.post(leases(ns), lease("a")), 201)
    answer = api.put(leases(ns, "a"), lease("a"))
    refused(answer, 422, "Invalid", field="metadata.resourceVersion")


def test_lease_is_renewed_only_by_its_last_reader(api: Rest, ns: str) -> None:
    first = ok(api.post(leases(ns), lease("a")), 201)
    renewed = first | {"spec": first["spec"] | {"holderIdentity": "two", "leaseTransitions": 1}}
    ok(api.put(leases(ns, "a"), renewed))
    refused(api.put(leases(ns, "a"), first), 409, "Conflict")
    assert ok(api.get(leases(ns, "a")))["spec"]["holderIdentity"] == "two"


def test_replace_of_nothing_is_not_found(api: Rest, ns: str) -> None:
    refused(api.put(core(ns, "configmaps", "a"), config_map("a")), 404, "NotFound")
    body = run("a", resourceVersion="1")
    refused(api.put(own(ns, "runs", "a"), body), 404, "NotFound")


def test_replace_with_another_name_than_the_path_is_refused(api: Rest, ns: str) -> None:
    create_config(api, ns)
    refused(api.put(core(ns, "configmaps", "a"), config_map("b")), 400, "BadRequest")


def test_replace_with_another_namespace_than_the_path_is_refused(api: Rest, ns: str) -> None:
    create_config(api, ns)
    body = config_map("a", namespace="other")
    refused(api.put(core(ns, "configmaps", "a"), body), 400, "BadRequest")


def test_replace_with_another_kind_than_the_path_is_refused(api: Rest, ns: str) -> None:
    create_config(api, ns)
    refused(api.put(core(ns, "configmaps", "a"), secret("a")), 400, "BadRequest")


def test_replace_with_another_uid_conflicts(api: Rest, ns: str) -> None:
    create_config(api, ns)
    body = config_map("a", uid="11111111-2222-3333-4444-555555555555")
    refused(api.put(core(ns, "configmaps", "a"), body), 409, "Conflict")


def test_creation_time_survives_a_replace(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    metadata = created["metadata"] | {"creationTimestamp": "2001-01-01T00:00:00Z"}
    replaced = ok(api.put(own(ns, "runs", "a"), created | {"metadata": metadata}))
    assert replaced["metadata"]["creationTimestamp"] == created["metadata"]["creationTimestamp"]


def test_replace_with_only_what_the_user_wrote(api: Rest, ns: str) -> None:
    version = version_of(create_run(api, ns))
    body = run("a", {"priority": 60}, resourceVersion=version)
    assert ok(api.put(own(ns, "runs", "a"), body))["spec"]["priority"] == 60


def test_replace_that_changes_nothing_keeps_the_version(api: Rest, ns: str) -> None:
    created = create_config(api, ns)
    assert version_of(ok(api.put(core(ns, "configmaps", "a"), created))) == version_of(created)


def test_own_kind_that_changes_nothing_keeps_version_and_generation(api: Rest, ns: str) -> None:
    # Defaults of a status are shown from the start and stored with the first write after that.
    written = ok(api.put(own(ns, "runs", "a"), create_run(api, ns)))
    assert ok(api.put(own(ns, "runs", "a"), written))["metadata"] == written["metadata"]


def test_generation_counts_changes_of_the_spec(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    changed = created | {"spec": created["spec"] | {"priority": 60}}
    replaced = ok(api.put(own(ns, "runs", "a"), changed))
    assert replaced["metadata"]["generation"] == 2


def test_generation_does_not_count_changes_of_metadata(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    version = version_of(created)
    created["metadata"]["labels"] = {"x": "y"}
    replaced = ok(api.put(own(ns, "runs", "a"), created))
    assert replaced["metadata"]["generation"] == 1
    assert int(version_of(replaced)) > int(version)


def test_generation_cannot_be_forged_by_a_replace(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    created["metadata"]["generation"] = 99
    assert ok(api.put(own(ns, "runs", "a"), created))["metadata"]["generation"] == 1


def test_replace_ignores_status_where_it_is_a_subresource(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    body = created | {"status": {"phase": "Running"}, "spec": created["spec"] | {"priority": 7}}
    replaced = ok(api.put(own(ns, "runs", "a"), body))
    assert replaced["spec"]["priority"] == 7
    assert replaced.get("status", {}).get("phase") != "Running"


def test_replace_of_status_ignores_spec_and_keeps_generation(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    body = created | {"status": {"phase": "Starting"}, "spec": created["spec"] | {"priority": 7}}
    replaced = ok(api.put(own(ns, "runs", "a", "status"), body))
    assert replaced["status"]["phase"] == "Starting"
    assert replaced["spec"] == created["spec"]
    assert replaced["metadata"]["generation"] == 1


def test_replace_of_status_ignores_labels(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    created["metadata"]["labels"] = {"x": "y"}
    replaced = ok(
        api.put(own(ns, "runs", "a", "status"), created | {"status": {"phase": "Starting"}})
    )
    assert "labels" not in replaced["metadata"]


def test_replace_of_status_conflicts_too(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    ok(api.put(own(ns, "runs", "a", "status"), created | {"status": {"phase": "Starting"}}))
    stale = created | {"status": {"phase": "Failed"}}
    refused(api.put(own(ns, "runs", "a", "status"), stale), 409, "Conflict")


def test_status_survives_a_replace_of_the_spec(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    with_status = ok(
        api.put(own(ns, "runs", "a", "status"), created | {"status": {"phase": "Starting"}})
    )
    del with_status["status"]
    with_status["spec"]["priority"] = 7
    assert ok(api.put(own(ns, "runs", "a"), with_status))["status"]["phase"] == "Starting"


def test_get_of_the_status_subresource_is_the_object(api: Rest, ns: str) -> None:
    created = create_run(api, ns)
    assert ok(api.get(own(ns, "runs", "a", "status"))) == created


def test_status_of_a_cluster_scoped_kind(api: Rest, ns: str) -> None:
    path = own("", "queues", f"{ns}-queue")
    created = ok(api.post(own("", "queues"), queue(f"{ns}-queue")), 201)
    replaced = ok(api.put(f"{path}/status", created | {"status": {"pending": 3}}))
    assert replaced["status"]["pending"] == 3
    assert ok(api.get(path))["status"]["pending"] == 3


def test_kind_without_a_status_subresource_says_not_found(api: Rest, ns: str) -> None:
    created = create_config(api, ns)
    assert api.put(core(ns, "configmaps", "a", "status"), created).status == 404


def test_dry_run_of_a_replace_changes_nothing(api: Rest, ns: str) -> None:
    created = create_config(api, ns)
    body = created | {"data": {"x": "y"}}
    assert ok(api.put(core(ns, "configmaps", "a"), body, dryRun="All"))["data"] == {"x": "y"}
    assert ok(api.get(core(ns, "configmaps", "a"))) == created


def test_immutable_config_map_stays_as_it_is(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "configmaps"), config_map("a") | {"immutable": True}), 201)
    answer = api.put(core(ns, "configmaps", "a"), created | {"data": {"x": "y"}})
    refused(answer, 422, "Invalid", field="data")


def test_type_of_a_secret_is_immutable(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "secrets"), secret("a")), 201)
    answer = api.put(core(ns, "secrets", "a"), created | {"type": "example.com/other"})
    refused(answer, 422, "Invalid", field="type")


def test_command_of_a_pod_is_immutable(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "pods"), pod("a")), 201)
    created["spec"]["containers"][0]["command"] = ["other"]
    refused(api.put(core(ns, "pods", "a"), created), 422, "Invalid", field="spec")


def test_node_of_a_pod_is_not_set_by_a_replace(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "pods"), pod("a")), 201)
    created["spec"]["nodeName"] = "n1"
    refused(api.put(core(ns, "pods", "a"), created), 422, "Invalid")


def test_status_of_a_pod_is_written_through_its_subresource(api: Rest, ns: str) -> None:
    created = ok(api.post(core(ns, "pods"), pod("a")), 201)
    created["status"]["phase"] = "Running"
    assert ok(api.put(core(ns, "pods", "a"), created))["status"]["phase"] == "Pending"
    assert ok(api.put(core(ns, "pods", "a", "status"), created))["status"]["phase"] == "Running"
