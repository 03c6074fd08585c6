"""How answers look: tables, metadata only, YAML; discovery, version, OpenAPI."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.contract.objects import Json, core, create_secrets, ok, own, run
from tests.harness.rest import Rest

_TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
_AGGREGATED = {
    "Accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,"
    "application/json"
}


def metadata_only(kind: str) -> dict[str, str]:
    return {"Accept": f"application/json;as={kind};v=v1;g=meta.k8s.io"}


# --- tables -------------------------------------------------------------------------------------


def test_table_of_a_list_has_a_row_for_each_object(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b")
    table = ok(api.get(core(ns, "secrets"), headers=_TABLE))
    assert (table["apiVersion"], table["kind"]) == ("meta.k8s.io/v1", "Table")
    assert table["metadata"]["resourceVersion"].isdigit()
    assert [row["cells"][0] for row in table["rows"]] == ["a", "b"]


def test_table_describes_its_columns(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    table = ok(api.get(core(ns, "secrets"), headers=_TABLE))
    first = table["columnDefinitions"][0]
    assert (first["name"], first["type"], first["format"]) == ("Name", "string", "name")
    for column in table["columnDefinitions"]:
        assert {"name", "type", "format", "description", "priority"} <= set(column)
    assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])


def test_table_rows_carry_the_metadata_of_their_object(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    row = ok(api.get(core(ns, "secrets"), headers=_TABLE))["rows"][0]["object"]
    assert (row["apiVersion"], row["kind"]) == ("meta.k8s.io/v1", "PartialObjectMetadata")
    assert row["metadata"]["uid"] == created["metadata"]["uid"]


def test_table_rows_carry_what_was_asked_for(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    path = core(ns, "secrets", "a")
    whole = ok(api.get(path, headers=_TABLE, includeObject="Object"))["rows"][0]["object"]
    assert whole["kind"] == "Secret"
    bare = ok(api.get(path, headers=_TABLE, includeObject="None"))["rows"][0]
    assert bare.get("object") is None


def test_table_of_runs_has_the_columns_of_the_kind(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a", {"queue": "support"})), 201)
    table = ok(api.get(own(ns, "runs"), headers=_TABLE))
    columns = [column["name"] for column in table["columnDefinitions"]]
    row = dict(zip(columns, table["rows"][0]["cells"], strict=True))
    assert (row["Name"], row["Phase"], row["Queue"]) == ("a", "Queued", "support")
    wide = {c["name"] for c in table["columnDefinitions"] if c["priority"] > 0}
    assert "Priority" in wide


def test_table_of_an_empty_list_still_has_columns(api: Rest, ns: str) -> None:
    table = ok(api.get(own(ns, "runs"), headers=_TABLE))
    assert table["columnDefinitions"]
    assert table["rows"] == []


def test_table_pages_like_a_list(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a", "b", "c")
    table = ok(api.get(core(ns, "secrets"), headers=_TABLE, limit=2))
    assert len(table["rows"]) == 2
    assert table["metadata"]["continue"]


def test_failure_is_a_status_even_if_a_table_was_asked_for(api: Rest, ns: str) -> None:
    answer = api.get(core(ns, "secrets", "none"), headers=_TABLE)
    assert (answer.status, answer.json["kind"]) == (404, "Status")


# --- metadata only, YAML ------------------------------------------------------------------------


def test_metadata_of_one_object(api: Rest, ns: str) -> None:
    created = create_secrets(api, ns, "a")[0]
    found = ok(api.get(core(ns, "secrets", "a"), headers=metadata_only("PartialObjectMetadata")))
    assert (found["apiVersion"], found["kind"]) == ("meta.k8s.io/v1", "PartialObjectMetadata")
    assert found["metadata"]["uid"] == created["metadata"]["uid"]
    assert "data" not in found
    assert "type" not in found


def test_metadata_of_a_list(api: Rest, ns: str) -> None:
    ok(api.post(own(ns, "runs"), run("a")), 201)
    listing = ok(api.get(own(ns, "runs"), headers=metadata_only("PartialObjectMetadataList")))
    assert listing["kind"] == "PartialObjectMetadataList"
    assert [item["kind"] for item in listing["items"]] == ["PartialObjectMetadata"]
    assert "spec" not in listing["items"][0]


def test_object_as_yaml(api: Rest, ns: str) -> None:
    create_secrets(api, ns, "a")
    answer = api.get(core(ns, "secrets", "a"), headers={"Accept": "application/yaml"})
    assert answer.status == 200
    assert yaml.safe_load(answer.body)["metadata"]["name"] == "a"


def test_create_from_yaml(api: Rest, ns: str) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n"
    created = ok(api.post(core(ns, "configmaps"), body, content_type="application/yaml"), 201)
    assert created["data"] == {"k": "v"}


def test_strict_yaml_refuses_a_key_that_is_given_twice(api: Rest, ns: str) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: v\n  k: w\n"
    path = core(ns, "configmaps")
    answer = api.post(f"{path}?fieldValidation=Strict", body, content_type="application/yaml")
    assert answer.status == 400
    message = json.loads(answer.body)["message"]
    assert 'line 7: key "k" already set in map' in message


@pytest.mark.parametrize("accept", ["*/*", "text/html, */*;q=0.1"])
def test_json_is_answered_to_clients_that_accept_anything(api: Rest, ns: str, accept: str) -> None:
    answer = api.get(core(ns, "secrets"), headers={"Accept": accept})
    assert ok(answer)["kind"] == "SecretList"
    assert answer.headers["Content-Type"].startswith("application/json")


# --- discovery ----------------------------------------------------------------------------------


def test_core_versions(api: Rest) -> None:
    answer = ok(api.get("/api"))
    assert (answer["kind"], answer["versions"]) == ("APIVersions", ["v1"])


def test_groups(api: Rest) -> None:
    answer = ok(api.get("/apis"))
    assert answer["kind"] == "APIGroupList"
    groups = {group["name"]: group for group in answer["groups"]}
    assert {"windlass.dev", "coordination.k8s.io", "scheduling.k8s.io"} <= set(groups)
    assert groups["windlass.dev"]["preferredVersion"]["groupVersion"] == "windlass.dev/v1alpha1"


def test_one_group(api: Rest) -> None:
    group = ok(api.get("/apis/windlass.dev"))
    assert (group["kind"], group["name"]) == ("APIGroup", "windlass.dev")
    assert [version["version"] for version in group["versions"]] == ["v1alpha1"]


def resources(api: Rest, path: str) -> dict[str, Json]:
    answer = ok(api.get(path))
    assert answer["kind"] == "APIResourceList"
    return {resource["name"]: resource for resource in answer["resources"]}


def test_resources_of_the_core_group(api: Rest) -> None:
    found = resources(api, "/api/v1")
    assert found["pods"]["namespaced"] is True
    assert found["nodes"]["namespaced"] is False
    assert "po" in found["pods"]["shortNames"]
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(
        found["configmaps"]["verbs"]
    )
    assert {"pods/status", "pods/binding", "pods/eviction", "pods/log"} <= set(found)


def test_resources_of_the_own_group(api: Rest) -> None:
    found = resources(api, "/apis/windlass.dev/v1alpha1")
    assert {"runs", "runs/status", "cronruns", "queues"} <= set(found)
    assert (found["runs"]["kind"], found["runs"]["singularName"]) == ("Run", "run")
    assert "wr" in found["runs"]["shortNames"]
    assert found["queues"]["namespaced"] is False


@pytest.mark.parametrize("path", ["/api", "/apis"])
def test_aggregated_discovery(api: Rest, path: str) -> None:
    answer = api.get(path, headers=_AGGREGATED)
    listing = ok(answer)
    assert listing["kind"] == "APIGroupDiscoveryList"
    assert listing["apiVersion"] == "apidiscovery.k8s.io/v2"
    assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
    groups = {group["metadata"].get("name", ""): group for group in listing["items"]}
    if path == "/api":
        names = {r["resource"] for r in groups[""]["versions"][0]["resources"]}
        assert {"pods", "configmaps", "secrets", "nodes", "namespaces"} <= names
    else:
        found = {r["resource"]: r for r in groups["windlass.dev"]["versions"][0]["resources"]}
        assert found["runs"]["scope"] == "Namespaced"
        assert found["runs"]["responseKind"]["kind"] == "Run"
        assert found["runs"]["subresources"][0]["subresource"] == "status"


def test_version_is_a_kubernetes_version(api: Rest) -> None:
    version = ok(api.get("/version"))
    assert version["major"] == "1"
    assert version["gitVersion"].startswith("v1.")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
def test_health(api: Rest, path: str) -> None:
    assert api.get(path).body == b"ok"


def test_open_api_lists_a_document_for_each_group(api: Rest) -> None:
    paths = ok(api.get("/openapi/v3"))["paths"]
    assert {"api/v1", "apis/windlass.dev/v1alpha1"} <= set(paths)
    document = ok(api.get(paths["apis/windlass.dev/v1alpha1"]["serverRelativeURL"]))
    assert document["openapi"].startswith("3.")
    assert "/apis/windlass.dev/v1alpha1/namespaces/{namespace}/runs" in document["paths"]


def test_open_api_describes_our_fields(api: Rest) -> None:
    document = ok(api.get("/openapi/v3/apis/windlass.dev/v1alpha1"))
    schemas = document["components"]["schemas"]
    (schema,) = [
        schema
        for schema in schemas.values()
        if {"group": "windlass.dev", "kind": "Run", "version": "v1alpha1"}
        in schema.get("x-kubernetes-group-version-kind", [])
    ]
    spec = resolved(schemas, schema["properties"]["spec"])
    priority = resolved(schemas, spec["properties"]["priority"])
    assert priority["type"] == "integer"
    assert priority["description"]


def resolved(schemas: Json, schema: Json) -> Json:
    """The schema itself, if it stands elsewhere: both ways are legal OpenAPI."""
    reference = schema.get("$ref") or (schema.get("allOf") or [{}])[0].get("$ref")
    found: Json = schemas[reference.rsplit("/", 1)[-1]] if reference else schema
    return found
