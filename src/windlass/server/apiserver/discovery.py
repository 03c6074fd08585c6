"""Discovery documents of this server in the plain and the aggregated form of Kubernetes.

Generated from `kinds.registry` plus the reviews, which are never stored. Documents are encoded
once: they do not change while the server runs.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import msgspec

from windlass.kinds import registry
from windlass.kinds.types.resource import Resource
from windlass.server.http import negotiation

VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
OBJECT_VERBS = ("get", "patch", "update")


@dataclasses.dataclass(frozen=True, slots=True)
class Subresource:
    """The description of a subresource: its kind, and its verbs."""

    verbs: tuple[str, ...]
    kind: str = ""
    """Empty: the parent's kind."""
    group: str = ""
    version: str = ""


SUBRESOURCES: dict[str, Subresource] = {
    "status": Subresource(OBJECT_VERBS),
    "binding": Subresource(("create",), "Binding"),
    "eviction": Subresource(("create",), "Eviction", "policy", "v1"),
    "log": Subresource(("get",)),
    "token": Subresource(("create",), "TokenRequest", "authentication.k8s.io", "v1"),
    "exec": Subresource(("create", "get"), "PodExecOptions"),
    "attach": Subresource(("create", "get"), "PodAttachOptions"),
    "portforward": Subresource(("create", "get"), "PodPortForwardOptions"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Review:
    """A review that the server answers in place."""

    group: str
    version: str
    kind: str
    plural: str


REVIEWS: tuple[Review, ...] = (
    Review("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews"),
    Review("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews"),
    Review("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Service:
    """A resource of the platform API that is not an object."""

    name: str
    kind: str
    verbs: tuple[str, ...]


PLATFORM = ("platform.windlass.dev", "v1alpha1")
METRICS = ("metrics.k8s.io", "v1beta1")
"""Served for `kubectl top`. Nothing of it is listed: other `pods` would be ambiguous."""
# `runs/NAME/why` is not listed: a second resource `runs` would make `kubectl get runs` ambiguous.
SERVICES: tuple[Service, ...] = (
    Service("ps", "RunPage", ("get",)),
    Service("plan", "Plan", ("create",)),
    Service("blobs", "Blob", ("get", "patch")),
)


def platform_document(path: str, accept: str | None) -> tuple[bytes, str] | None:
    """The same for a server with the platform API alone."""
    group, version = PLATFORM
    if path in ("/apis", f"/apis/{group}", f"/apis/{group}/{version}"):
        return document(path, accept, "", only=group)
    return None


def document(
    path: str, accept: str | None, address: str, *, only: str = ""
) -> tuple[bytes, str] | None:
    """The discovery document at a path and its content type; None if the path has none. `only`: the
    one group that is served."""
    if path in ("/api", "/apis"):
        version = _aggregated_version(accept)
        if version:
            content_type = (
                f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
            )
            return _aggregated(path, version, only), content_type
        return _versions(address) if path == "/api" else _group_list(only), "application/json"
    body = None
    match path.split("/")[1:]:
        case ["api", version]:
            body = _resource_list("", version)
        case ["apis", group]:
            body = _group(group)
        case ["apis", group, version]:
            body = _resource_list(group, version)
    return None if body is None else (body, "application/json")


@functools.cache
def group_versions() -> dict[str, tuple[str, ...]]:
    """Group -> versions, core first."""
    found: dict[str, dict[str, None]] = {"": {"v1": None}}
    for kind in registry.ALL:
        found.setdefault(kind.resource.group, {})[kind.resource.version] = None
    for review in REVIEWS:
        found.setdefault(review.group, {})[review.version] = None
    for group, version in (PLATFORM, METRICS):
        found.setdefault(group, {})[version] = None
    return {group: tuple(versions) for group, versions in found.items()}


def resources_of(group: str, version: str) -> list[Resource]:
    return [
        kind.resource
        for kind in registry.ALL
        if (kind.resource.group, kind.resource.version) == (group, version)
    ]


def services_of(group: str, version: str) -> tuple[Service, ...]:
    return SERVICES if (group, version) == PLATFORM else ()


def reviews_of(group: str, version: str) -> list[Review]:
    return [review for review in REVIEWS if (review.group, review.version) == (group, version)]


# --- plain --------------------------------------------------------------------------------------


def _versions(address: str) -> bytes:
    return msgspec.json.encode(
        {
            "kind": "APIVersions",
            "versions": list(group_versions()[""]),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }
    )


@functools.cache
def _group_list(only: str) -> bytes:
    served = [only] if only else group_versions()
    groups = [_group_entry(group) for group in served if group]
    return msgspec.json.encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})


def _group(group: str) -> bytes | None:
    if not group or group not in group_versions():
        return None
    return msgspec.json.encode({"kind": "APIGroup", "apiVersion": "v1", **_group_entry(group)})


def _group_entry(group: str) -> dict[str, Any]:
    versions = [
        {"groupVersion": f"{group}/{version}", "version": version}
        for version in group_versions()[group]
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resource_list(group: str, version: str) -> bytes | None:
    if version not in group_versions().get(group, ()):
        return None
    return _resources(group, version)


@functools.cache
def _resources(group: str, version: str) -> bytes:
    entries: list[dict[str, Any]] = []
    for resource in resources_of(group, version):
        entries += _plain_entries(resource)
    entries += [
        {
            "name": review.plural,
            "singularName": review.kind.lower(),
            "namespaced": False,
            "kind": review.kind,
            "verbs": ["create"],
        }
        for review in reviews_of(group, version)
    ]
    entries += [
        {
            "name": service.name,
            "singularName": "",
            "namespaced": True,
            "kind": service.kind,
            "verbs": list(service.verbs),
        }
        for service in services_of(group, version)
    ]
    return msgspec.json.encode(
        {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": entries,
        }
    )


def _plain_entries(resource: Resource) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    entries = [entry]
    for name in resource.subresources:
        described = SUBRESOURCES[name]
        below: dict[str, Any] = {
            "name": f"{resource.plural}/{name}",
            "singularName": "",
            "namespaced": resource.namespaced,
            "kind": described.kind or resource.kind,
            "verbs": list(described.verbs),
        }
        if described.group:
            below |= {"group": described.group, "version": described.version}
        entries.append(below)
    return entries


# --- aggregated ---------------------------------------------------------------------------------


def _aggregated_version(accept: str | None) -> str:
    """The version of apidiscovery.k8s.io the client prefers; "" when it wants the plain form."""
    for clause in negotiation.clauses(accept or ""):
        if clause.parameters.get("as") == "APIGroupDiscoveryList":
            version = clause.parameters.get("v", "")
            if version in ("v2", "v2beta1"):
                return version
        elif clause.media_type in ("application/json", "*/*"):
            return ""
    return ""


@functools.cache
def _aggregated(path: str, version: str, only: str) -> bytes:
    served = [only] if only else group_versions()
    groups = [group for group in served if bool(group) == (path == "/apis")]
    return msgspec.json.encode(
        {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{version}",
            "metadata": {},
            "items": [_aggregated_group(group) for group in groups],
        }
    )


def _aggregated_group(group: str) -> dict[str, Any]:
    versions = []
    for version in group_versions()[group]:
        entries = [_aggregated_entry(resource) for resource in resources_of(group, version)]
        entries += [
            {
                "resource": review.plural,
                "responseKind": _gvk(review.group, review.version, review.kind),
                "scope": "Cluster",
                "singularResource": review.kind.lower(),
                "verbs": ["create"],
            }
            for review in reviews_of(group, version)
        ]
        entries += [
            {
                "resource": service.name,
                "responseKind": _gvk(group, version, service.kind),
                "scope": "Namespaced",
                "singularResource": "",
                "verbs": list(service.verbs),
            }
            for service in services_of(group, version)
        ]
        versions.append({"version": version, "resources": entries, "freshness": "Current"})
    return {"metadata": {"name": group} if group else {}, "versions": versions}


def _aggregated_entry(resource: Resource) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": resource.plural,
        "responseKind": _gvk(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(VERBS),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        entry["subresources"] = [
            _aggregated_subresource(resource, name) for name in resource.subresources
        ]
    return entry


def _aggregated_subresource(resource: Resource, name: str) -> dict[str, Any]:
    described = SUBRESOURCES[name]
    if described.kind:
        kind = _gvk(described.group, described.version or "v1", described.kind)
    else:
        kind = _gvk(resource.group, resource.version, resource.kind)
    return {"subresource": name, "responseKind": kind, "verbs": list(described.verbs)}


def _gvk(group: str, version: str, kind: str) -> dict[str, str]:
    return {"group": group, "version": version, "kind": kind}
