"""Self-reviews of a caller: its identity, one permission, and all of its rules.

Answered in place, never stored. Called by `server.app` for the paths of `discovery.REVIEWS`.
"""

from __future__ import annotations

from typing import Any

from windlass.server.auth import rbac
from windlass.server.auth.authenticator import Access
from windlass.server.auth.identity import Attributes, Identity
from windlass.store import errors


async def answer(
    kind: str, body: dict[str, Any], identity: Identity, access: Access
) -> dict[str, Any]:
    """The review with its status filled in."""
    if body.get("kind", kind) != kind:
        raise errors.BadRequest(f"the body must be a {kind}")
    if kind == "SelfSubjectReview":
        return _self_subject(identity)
    spec = body.get("spec")
    if not isinstance(spec, dict):
        raise errors.Invalid(
            f"{kind} is invalid: spec: Required value",
            causes=(errors.Cause("spec", "Required value", "FieldValueRequired"),),
        )
    if kind == "SelfSubjectAccessReview":
        return await _may(spec, identity, access)
    return _all_rules(spec, identity, access)


def _self_subject(identity: Identity) -> dict[str, Any]:
    return {
        "kind": "SelfSubjectReview",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "status": {"userInfo": {"username": identity.user, "groups": list(identity.groups)}},
    }


async def _may(spec: dict[str, Any], identity: Identity, access: Access) -> dict[str, Any]:
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if isinstance(resource, dict) and path is None:
        allowed = await access.allowed(identity, _attributes(resource))
    elif isinstance(path, dict) and resource is None:
        allowed = rbac.path_allowed(identity, str(path.get("path", "")), access.bindings)
    else:
        message = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        raise errors.Invalid(
            f"SelfSubjectAccessReview is invalid: spec: {message}",
            causes=(errors.Cause("spec", message),),
        )
    return {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "spec": spec,
        "status": {"allowed": allowed},
    }


def _attributes(requested: dict[str, Any]) -> Attributes:
    def text(name: str) -> str:
        value = requested.get(name) or ""
        return value if isinstance(value, str) else str(value)

    return Attributes(
        text("verb"), text("group"), text("resource"), text("subresource"), text("namespace"),
        text("name"),
    )  # fmt: skip


def _all_rules(spec: dict[str, Any], identity: Identity, access: Access) -> dict[str, Any]:
    if identity.is_master:
        resource_rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        paths = [{"verbs": ["*"], "nonResourceURLs": ["*"]}]
    else:
        namespace = spec.get("namespace")
        rules = rbac.rules_in(
            identity, namespace if isinstance(namespace, str) else "", access.bindings
        )
        resource_rules = [
            described for rule in (*rbac.EVERYONE, *rules) for described in _described(rule)
        ]
        urls = [url for path in rbac.OPEN_PATHS for url in (path, f"{path}/*")]
        paths = [{"verbs": ["get"], "nonResourceURLs": urls}]
    return {
        "kind": "SelfSubjectRulesReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {"creationTimestamp": None},
        "spec": {},
        "status": {
            "resourceRules": resource_rules,
            "nonResourceRules": paths,
            "incomplete": bool(identity.node),
        },
    }


def _described(rule: rbac.Rule) -> list[dict[str, list[str]]]:
    """A rule in the form of RBAC: one per API group."""
    by_group: dict[str, list[str]] = {}
    for key in rule.resources:
        full, _, subresource = key.partition("/")
        plural, _, group = full.partition(".")
        name = f"{plural}/{subresource}" if subresource else plural
        by_group.setdefault(group, []).append(name)
    return [
        {"verbs": list(rule.verbs), "apiGroups": [group], "resources": names}
        for group, names in by_group.items()
    ]
