"""Discovery and paths: every kind is found, and only what is served is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from windlass.kinds import registry
from windlass.server.apiserver import discovery, openapi, paths
from windlass.server.platform import openapi as platform
from windlass.store import errors


def document(path: str, accept: str | None = None) -> dict[str, Any]:
    found = discovery.document(path, accept, "here:1")
    assert found is not None
    decoded: dict[str, Any] = msgspec.json.decode(found[0])
    return decoded


def test_every_kind_is_listed_with_its_names_and_verbs() -> None:
    for kind in registry.ALL:
        resource = kind.resource
        prefix = f"/apis/{resource.group}" if resource.group else "/api"
        listed = {r["name"]: r for r in document(f"{prefix}/{resource.version}")["resources"]}
        entry = listed[resource.plural]
        assert entry["kind"] == resource.kind
        assert entry["singularName"] == resource.kind.lower()
        assert entry["namespaced"] is resource.namespaced
        assert entry.get("shortNames", []) == list(resource.short_names)
        assert set(entry["verbs"]) >= {"get", "list", "watch", "create", "delete"}
        assert {f"{resource.plural}/{s}" for s in resource.subresources} <= set(listed)


def test_aggregated_discovery_says_the_same_as_the_plain_one() -> None:
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    for root in ("/api", "/apis"):
        for item in document(root, accept)["items"]:
            group = item["metadata"].get("name", "")
            for version in item["versions"]:
                prefix = f"/apis/{group}" if group else "/api"
                plain = document(f"{prefix}/{version['version']}")["resources"]
                names = {r["resource"] for r in version["resources"]}
                assert names == {r["name"] for r in plain if "/" not in r["name"]}
                subresources = {
                    f"{r['resource']}/{s['subresource']}"
                    for r in version["resources"]
                    for s in r.get("subresources", [])
                }
                assert subresources == {r["name"] for r in plain if "/" in r["name"]}


@pytest.mark.parametrize("path", ["/apis/nope", "/apis/windlass.dev/v9", "/api/v2", "/other"])
def test_what_is_not_served_is_not_found(path: str) -> None:
    assert discovery.document(path, None, "here:1") is None


FOUND = {
    "/api/v1/pods": ("pods", "", "", ""),
    "/api/v1/namespaces": ("namespaces", "", "", ""),
    "/api/v1/namespaces/team": ("namespaces", "", "team", ""),
    "/api/v1/namespaces/team/status": ("namespaces", "", "team", "status"),
    "/api/v1/namespaces/team/pods": ("pods", "team", "", ""),
    "/api/v1/namespaces/status/pods": ("pods", "status", "", ""),
    "/api/v1/namespaces/team/pods/one": ("pods", "team", "one", ""),
    "/api/v1/namespaces/team/pods/one/log": ("pods", "team", "one", "log"),
    "/api/v1/namespaces/team/pods/a%2Fb": ("pods", "team", "a/b", ""),
    "/apis/windlass.dev/v1alpha1/queues/q": ("queues.windlass.dev", "", "q", ""),
    "/apis/windlass.dev/v1alpha1/namespaces/t/runs/r/status": (
        "runs.windlass.dev", "t", "r", "status",
    ),
}  # fmt: skip


@pytest.mark.parametrize("path", FOUND)
def test_paths_name_their_target(path: str) -> None:
    target = paths.parse(path)
    assert isinstance(target, paths.Target)
    assert (
        target.resource.key, target.namespace, target.name, target.subresource,
    ) == FOUND[path]  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        "/", "", "//", "/api/v1", "/api/v1/nope", "/api/v1/pods/one", "/api/v1//pods",
        "/api/v1/namespaces/team/nodes", "/api/v1/namespaces/team/pods/one/nope",
        "/api/v1/namespaces/team/pods/one/log/more", "/apis/windlass.dev/v1alpha1",
        "/apis/windlass.dev/v9/runs", "/api/v1/namespaces/t/pods/one/status/x",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews/x",
    ],
)  # fmt: skip
def test_other_paths_name_nothing(path: str) -> None:
    assert paths.parse(path) is None


def test_openapi_index_lists_each_group_and_changes_with_its_document() -> None:
    index = msgspec.json.decode(openapi.document("/openapi/v3", platform.embedded))["paths"]
    assert {"api/v1", "apis/windlass.dev/v1alpha1"} <= set(index)
    for place, entry in index.items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{place}?hash=")


def test_openapi_documents_refer_only_to_what_they_hold() -> None:
    for group, versions in discovery.group_versions().items():
        for version in versions:
            place = f"apis/{group}/{version}" if group else f"api/{version}"
            found = msgspec.json.decode(openapi.document(f"/openapi/v3/{place}", platform.embedded))
            names = set(found["components"]["schemas"])
            assert {r.rpartition("/")[2] for r in references(found)} <= names
            ids = [op["operationId"] for path in found["paths"].values()
                   for op in path.values() if isinstance(op, dict)]  # fmt: skip
            assert len(ids) == len(set(ids))


def test_openapi_says_that_patches_take_field_validation() -> None:
    """kubectl validates on the server only where this is said."""
    found = msgspec.json.decode(
        openapi.document("/openapi/v3/apis/windlass.dev/v1alpha1", platform.embedded)
    )
    path = "/apis/windlass.dev/v1alpha1/namespaces/{namespace}/runs/{name}"
    patch = found["paths"][path]["patch"]
    assert "fieldValidation" in {p["name"] for p in patch["parameters"]}
    assert patch["x-kubernetes-group-version-kind"]["kind"] == "Run"


@pytest.mark.parametrize("path", ["/openapi/v3/api/v9", "/openapi/v3/apis/x/v1", "/openapi/v4"])
def test_openapi_of_what_is_not_served_is_not_found(path: str) -> None:
    with pytest.raises(errors.NotFound):
        openapi.document(path, platform.embedded)


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for item in value.values() for r in references(item)]
    if isinstance(value, list):
        return [r for item in value for r in references(item)]
    return []
