"""Access: the role table, everyone's rights, the nodes', and the reserved namespace."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.server.auth import rbac
from windlass.server.auth.identity import AUTHENTICATED, MASTERS, NODES, Attributes, Identity

ALICE = Identity("alice", (AUTHENTICATED,))
OPS = Identity("olga", ("ops", AUTHENTICATED))
ROOT = Identity("admin", (MASTERS, AUTHENTICATED))
NODE = Identity("system:node:n1", (NODES, AUTHENTICATED))
W, RBAC, COORD = "windlass.dev", "rbac.authorization.k8s.io", "coordination.k8s.io"


def binding(role: str, *subjects: dict[str, str], kind: str = "ClusterRole") -> dict[str, Any]:
    return {"roleRef": {"kind": kind, "name": role}, "subjects": list(subjects)}


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def bound(role: str, namespace: str = "team") -> rbac.Bindings:
    bindings = rbac.Bindings()
    bindings.put(namespace, "b", binding(role, user("alice")))
    return bindings


def may(
    bindings: rbac.Bindings,
    identity: Identity,
    verb: str,
    resource: str,
    namespace: str = "team",
    name: str = "",
    fields: str = "",
) -> bool:
    full, _, subresource = resource.partition("/")
    plural, _, group = full.partition(".")
    wanted = Attributes(verb, group, plural, subresource, namespace, name, fields)
    return rbac.allows(identity, wanted, bindings)


# resource, verbs of: admin, member, viewer (in their own namespace)
ALL = set(rbac.READ + rbac.WRITE)
READ = set(rbac.READ)
TABLE: dict[str, tuple[set[str], set[str], set[str]]] = {
    f"runs.{W}": (ALL, ALL, READ),
    f"runs.{W}/status": ({"get"}, {"get"}, {"get"}),
    f"cronruns.{W}": (ALL, ALL, READ),
    "configmaps": (ALL, ALL, READ),
    "secrets": (ALL, ALL, set()),
    "services": (ALL, ALL, READ),
    "events": (READ, READ, READ),
    "pods": (READ | {"delete", "deletecollection"},) * 2 + (READ,),
    "pods/log": ({"get"}, {"get"}, {"get"}),
    "pods/exec": ({"get", "create"}, {"get", "create"}, set()),
    "pods/portforward": ({"get", "create"}, {"get", "create"}, set()),
    "pods/binding": (set(), set(), set()),
    "pods/eviction": (set(), set(), set()),
    f"rolebindings.{RBAC}": (ALL, set(), set()),
    f"leases.{COORD}": (set(), set(), set()),
}


@pytest.mark.parametrize("resource", TABLE)
@pytest.mark.parametrize("role", ["windlass-admin", "windlass-member", "windlass-viewer"])
def test_roles_give_exactly_these_verbs_and_only_in_their_namespace(
    resource: str, role: str
) -> None:
    column = ["windlass-admin", "windlass-member", "windlass-viewer"].index(role)
    bindings = bound(role)
    granted = {verb for verb in ALL if may(bindings, ALICE, verb, resource)}
    assert granted == TABLE[resource][column]
    assert not any(may(bindings, ALICE, verb, resource, "other") for verb in ALL)
    assert not any(may(bindings, ALICE, verb, resource, "") for verb in ALL)
    assert not any(may(bindings, Identity("bob"), verb, resource) for verb in ALL)


@pytest.mark.parametrize("role", ["windlass-admin", "windlass-member", "windlass-viewer"])
def test_a_role_in_a_namespace_gives_nothing_at_the_cluster_scope(role: str) -> None:
    bindings = bound(role)
    for resource in ("namespaces", "nodes", f"queues.{W}", f"clusterrolebindings.{RBAC}"):
        for verb in rbac.WRITE:
            assert not may(bindings, ALICE, verb, resource, "", "x")


def test_a_cluster_wide_admin_runs_teams_and_queues() -> None:
    bindings = bound("windlass-admin", "")
    for resource in ("namespaces", f"queues.{W}", f"clusterrolebindings.{RBAC}"):
        assert may(bindings, ALICE, "create", resource, "")
    assert may(bindings, ALICE, "patch", "nodes", "", "n1")
    assert may(bindings, ALICE, "list", f"runs.{W}", "")
    assert may(bindings, ALICE, "create", f"runs.{W}", "any")


@pytest.mark.parametrize("role", ["windlass-admin", "windlass-member"])
def test_no_role_reaches_the_tokens(role: str) -> None:
    """A caller that could write a token could become anyone."""
    bindings = bound(role, "")
    bindings.put("windlass-system", "c", binding(role, user("alice")))
    for verb in ALL:
        assert not may(bindings, ALICE, verb, "secrets", "windlass-system", "t")
        assert not may(bindings, ALICE, verb, "secrets", "")
    assert not may(bindings, ALICE, "create", f"runs.{W}", "windlass-system")
    assert not may(bindings, ALICE, "delete", "namespaces", "", "windlass-system")
    assert not may(bindings, ALICE, "deletecollection", "namespaces", "")
    assert not may(bindings, ALICE, "create", "pods/exec", "windlass-system", "p")
    assert not may(bindings, ALICE, "create", f"rolebindings.{RBAC}", "windlass-system")


def test_everyone_may_look_at_the_machines_and_at_themselves() -> None:
    empty = rbac.Bindings()
    for resource in ("nodes", f"queues.{W}", "priorityclasses.scheduling.k8s.io"):
        assert may(empty, ALICE, "list", resource, "")
        assert not may(empty, ALICE, "delete", resource, "", "x")
    assert may(empty, ALICE, "create", "selfsubjectreviews.authentication.k8s.io", "")
    assert not may(empty, ALICE, "list", "namespaces", "")
    assert not may(empty, ALICE, "get", "namespaces", "", "team")


def test_people_see_their_own_namespace() -> None:
    bindings = bound("windlass-viewer")
    assert may(bindings, ALICE, "get", "namespaces", "", "team")
    assert not may(bindings, ALICE, "get", "namespaces", "", "other")
    assert not may(bindings, ALICE, "list", "namespaces", "")


def test_groups_and_service_accounts_hold_roles_too() -> None:
    bindings = rbac.Bindings()
    bindings.put("team", "b", binding(
        "windlass-member",
        {"kind": "Group", "name": "ops"},
        {"kind": "ServiceAccount", "name": "bot"},
    ))  # fmt: skip
    assert may(bindings, OPS, "create", f"runs.{W}")
    assert may(bindings, Identity("system:serviceaccount:team:bot"), "create", f"runs.{W}")
    assert not may(bindings, Identity("ops"), "create", f"runs.{W}")


def test_a_binding_that_changes_or_goes_takes_its_rights_along() -> None:
    bindings = bound("windlass-member")
    assert may(bindings, ALICE, "create", f"runs.{W}")
    bindings.put("team", "b", binding("windlass-viewer", user("alice")))
    assert not may(bindings, ALICE, "create", f"runs.{W}")
    assert may(bindings, ALICE, "list", f"runs.{W}")
    bindings.remove("team", "b")
    assert not may(bindings, ALICE, "list", f"runs.{W}")


@pytest.mark.parametrize("role", ["cluster-admin", "edit", ""])
def test_roles_of_elsewhere_give_nothing(role: str) -> None:
    bindings = bound(role)
    assert not any(may(bindings, ALICE, verb, f"runs.{W}") for verb in ALL)


def test_a_namespaced_role_of_the_same_name_is_not_ours() -> None:
    bindings = rbac.Bindings()
    bindings.put("team", "b", binding("windlass-admin", user("alice"), kind="Role"))
    assert not may(bindings, ALICE, "list", f"runs.{W}")


def test_masters_may_do_everything() -> None:
    assert may(rbac.Bindings(), ROOT, "delete", "secrets", "windlass-system", "x")
    assert rbac.path_allowed(ROOT, "/metrics", rbac.Bindings())


NODE_CASES = [
    (True, "create", "nodes", "", "", ""),
    (True, "patch", "nodes/status", "", "n1", ""),
    (False, "patch", "nodes/status", "", "n2", ""),
    (False, "delete", "nodes", "", "n1", ""),
    (True, "list", "pods", "", "", "spec.nodeName=n1"),
    (True, "watch", "pods", "", "", "status.phase!=Failed,spec.nodeName==n1"),
    (False, "list", "pods", "", "", ""),
    (False, "list", "pods", "team", "", "spec.nodeName=n2"),
    (False, "list", "pods", "", "", "spec.nodeName!=n1"),
    (True, "patch", "pods/status", "team", "p", ""),
    (False, "create", "pods", "team", "", ""),
    (False, "create", "pods/exec", "team", "p", ""),
    (True, "update", f"leases.{COORD}", "windlass-system", "n1", ""),
    (False, "update", f"leases.{COORD}", "windlass-system", "other", ""),
    (True, "create", "events", "team", "", ""),
    (True, "get", "secrets", "team", "s", ""),
    (False, "get", "secrets", "windlass-system", "s", ""),
    (False, "list", "secrets", "", "", ""),
    (False, "update", "secrets", "team", "s", ""),
    (True, "get", "configmaps", "team", "c", ""),
    (False, "create", f"runs.{W}", "team", "", ""),
]


@pytest.mark.parametrize(("allowed", "verb", "resource", "namespace", "name", "fields"), NODE_CASES)
def test_a_node_touches_only_its_own(
    allowed: bool, verb: str, resource: str, namespace: str, name: str, fields: str
) -> None:
    assert may(rbac.Bindings(), NODE, verb, resource, namespace, name, fields) is allowed


def test_the_name_of_a_node_alone_makes_no_node() -> None:
    pretender = Identity("system:node:n1", (AUTHENTICATED,))
    assert not may(rbac.Bindings(), pretender, "create", "nodes", "")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api", True), ("/apis/windlass.dev", True), ("/openapi/v3", True), ("/version", True),
        ("/metrics", False), ("/apiary", False), ("/debug", False),
    ],
)  # fmt: skip
def test_paths_outside_the_objects(path: str, allowed: bool) -> None:
    assert rbac.path_allowed(ALICE, path, rbac.Bindings()) is allowed
