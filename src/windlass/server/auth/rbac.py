"""The three roles, the permissions of everyone and of a node's agent: tables, and the check.

Pure. `server.auth.authenticator` keeps the bindings up to date and calls `allows`. The same roles
exist on Kubernetes as ClusterRoles, so that a team consists of the same objects on both engines.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from windlass.server.auth.identity import SYSTEM_NAMESPACE, Attributes, Identity

READ = ("get", "list", "watch")
WRITE = ("create", "update", "patch", "delete", "deletecollection")
STREAMS = ("pods/exec", "pods/attach", "pods/portforward")


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """Verbs that are allowed on resources, named as in `Attributes.key`."""

    verbs: tuple[str, ...]
    resources: tuple[str, ...]

    def covers(self, verb: str, key: str) -> bool:
        return verb in self.verbs and key in self.resources


_RUNS = ("runs.windlass.dev", "cronruns.windlass.dev")
_STATUSES = ("runs.windlass.dev/status", "cronruns.windlass.dev/status", "pods/status")
_VIEWER = (
    Rule(READ, (*_RUNS, "pods", "configmaps", "services", "events")),
    Rule(("get",), (*_STATUSES, "pods/log")),
)
_MEMBER = (
    Rule(READ + WRITE, (*_RUNS, "configmaps", "secrets", "services")),
    Rule((*READ, "delete", "deletecollection"), ("pods",)),
    Rule(READ, ("events",)),
    Rule(("get",), (*_STATUSES, "pods/log")),
    Rule(("get", "create"), STREAMS),
)
_ADMIN = (
    *_MEMBER,
    Rule(READ + WRITE, ("rolebindings.rbac.authorization.k8s.io", "serviceaccounts")),
    # Cluster-scoped: effective only through a ClusterRoleBinding.
    Rule(
        READ + WRITE,
        (
            "namespaces", "queues.windlass.dev", "pricelists.windlass.dev",
            "reservations.windlass.dev",
            "priorityclasses.scheduling.k8s.io",
            "clusterrolebindings.rbac.authorization.k8s.io",
        ),
    ),
    Rule(("list", "create", "delete"), ("tokens.platform.windlass.dev",)),
    # A priority above the default, and runs that are not preempted.
    Rule(("prioritize",), ("runs.windlass.dev",)),
    Rule((*READ, "update", "patch"), ("nodes",)),
)  # fmt: skip

ROLES: dict[str, tuple[Rule, ...]] = {
    "windlass-admin": _ADMIN,
    "windlass-member": _MEMBER,
    "windlass-viewer": _VIEWER,
}
EVERYONE = (
    Rule(READ, (
        "queues.windlass.dev", "pricelists.windlass.dev", "reservations.windlass.dev", "nodes",
        "priorityclasses.scheduling.k8s.io",
    )),
    # The quota tree, the usage of nodes, and the runs of all teams of the caller; the handlers
    # authorise the named objects again.
    Rule(
        ("get", "list"),
        (
            "queues.platform.windlass.dev", "nodemetrics.platform.windlass.dev",
            "ps.platform.windlass.dev",
        ),
    ),
    Rule(
        ("create",),
        (
            "selfsubjectreviews.authentication.k8s.io",
            "selfsubjectaccessreviews.authorization.k8s.io",
            "selfsubjectrulesreviews.authorization.k8s.io",
        ),
    ),
)  # fmt: skip
OPEN_PATHS = ("/api", "/apis", "/openapi", "/version", "/healthz", "/readyz", "/livez")
"""Paths outside the objects that every authenticated caller may read."""

_NODE_ANYWHERE = (
    Rule(READ, ("services", "namespaces", "serviceaccounts")),
    # Only for pods of this node: `pod_tokens` checks the named pod.
    Rule(("create",), ("serviceaccounts/token",)),
    Rule(("create", "update", "patch"), ("events",)),
    # The users with permissions here decide the user of pods (`agent.node.single_tenant`).
    Rule(
        READ,
        (
            "rolebindings.rbac.authorization.k8s.io",
            "clusterrolebindings.rbac.authorization.k8s.io",
        ),
    ),
)
NAMED_BY_PODS = ("secrets", "configmaps")
"""An agent reads those that pods of its node name: `auth.node_authorizer`."""
_NODE_OWN = (
    Rule(("create", "get", "update", "patch"), ("nodes", "leases.coordination.k8s.io")),
    Rule(("get", "update", "patch"), ("nodes/status",)),
)
_NODE_PODS = (
    Rule((*READ, "delete"), ("pods",)),
    Rule(("get", "update", "patch"), ("pods/status",)),
)


@dataclasses.dataclass(slots=True)
class Bindings:
    """The roles of users by namespace; "" means every namespace. Filled by watches."""

    _bindings: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = dataclasses.field(
        default_factory=dict
    )
    _roles: dict[str, dict[str, set[str]]] | None = None

    def put(self, namespace: str, name: str, obj: dict[str, Any]) -> None:
        role = obj.get("roleRef") or {}
        known = role.get("kind") == "ClusterRole" and role.get("name") in ROLES
        subjects = tuple(_subject(subject, namespace) for subject in obj.get("subjects") or ())
        if known and subjects:
            self._bindings[namespace, name] = (role["name"], subjects)
        else:
            self._bindings.pop((namespace, name), None)
        self._roles = None

    def remove(self, namespace: str, name: str) -> None:
        self._bindings.pop((namespace, name), None)
        self._roles = None

    def roles(self, identity: Identity, namespace: str) -> set[str]:
        """Roles in exactly this namespace ("" for those in every namespace)."""
        if self._roles is None:
            self._roles = self._by_subject()
        found: set[str] = set()
        for subject in (f"User:{identity.user}", *(f"Group:{g}" for g in identity.groups)):
            found |= self._roles.get(subject, {}).get(namespace, set())
        return found

    def _by_subject(self) -> dict[str, dict[str, set[str]]]:
        found: dict[str, dict[str, set[str]]] = {}
        for (namespace, _), (role, subjects) in self._bindings.items():
            for subject in subjects:
                found.setdefault(subject, {}).setdefault(namespace, set()).add(role)
        return found


def allows(identity: Identity, wanted: Attributes, bindings: Bindings) -> bool:
    """Whether the caller may do it. For agents `authenticator` also checks the pods of the node."""
    if identity.pod is not None:
        return False
    if identity.is_master:
        return True
    key = wanted.key
    if any(rule.covers(wanted.verb, key) for rule in EVERYONE):
        return True
    if identity.node:
        return _node_allows(identity.node, wanted, key)
    if key == "namespaces" and wanted.verb == "get" and bindings.roles(identity, wanted.name):
        return True  # the name is the namespace: users may see those in which they have a role
    return any(
        rule.covers(wanted.verb, key) for rule in rules_in(identity, wanted.namespace, bindings)
    ) and not _reserved(wanted)


def rules_in(identity: Identity, namespace: str, bindings: Bindings) -> Iterator[Rule]:
    """The rules of the caller in a namespace, from bindings there and in every namespace."""
    granted = bindings.roles(identity, "")
    if namespace:
        granted = granted | bindings.roles(identity, namespace)
    for role in sorted(granted):
        yield from ROLES[role]


def path_allowed(identity: Identity, path: str, bindings: Bindings) -> bool:
    """Paths outside the objects. Metrics cover all users: only for roles that see everything."""
    if identity.pod is not None:
        return False
    if identity.is_master or any(path == p or path.startswith(p + "/") for p in OPEN_PATHS):
        return True
    granted = bindings.roles(identity, "")
    return path == "/metrics" and bool(granted & {"windlass-admin", "windlass-viewer"})


def _reserved(wanted: Attributes) -> bool:
    """What no role permits: tokens are Secrets of the system namespace, and with the permission to
    write one a user could become any other."""
    if wanted.resource == "secrets" and wanted.namespace in ("", SYSTEM_NAMESPACE):
        return True
    if wanted.verb in READ:
        return False
    if wanted.resource == "namespaces":
        return wanted.name == SYSTEM_NAMESPACE or wanted.verb == "deletecollection"
    return wanted.namespace == SYSTEM_NAMESPACE


def _node_allows(node: str, wanted: Attributes, key: str) -> bool:
    verb = wanted.verb
    if key in NAMED_BY_PODS:
        return verb == "get" and bool(wanted.name) and wanted.namespace != SYSTEM_NAMESPACE
    if any(rule.covers(verb, key) for rule in _NODE_ANYWHERE):
        return True
    if any(rule.covers(verb, key) for rule in _NODE_PODS):
        selected = f"spec.nodeName={node}" in wanted.field_selector.replace("==", "=").split(",")
        return bool(wanted.name) or selected
    own = wanted.name == node or (verb == "create" and not wanted.name)
    return own and any(rule.covers(verb, key) for rule in _NODE_OWN)


def _subject(subject: dict[str, Any], namespace: str) -> str:
    kind, name = subject.get("kind", ""), subject.get("name", "")
    if kind == "ServiceAccount":
        return f"User:system:serviceaccount:{subject.get('namespace') or namespace}:{name}"
    return f"{kind}:{name}"
