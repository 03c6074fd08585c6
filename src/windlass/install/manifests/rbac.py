"""The permissions of each component, which are exactly those it needs, and the roles of users.

A test runs every component with the token of its ServiceAccount, so a missing permission fails it.
A component that needs access to another resource gets a line in this table.
"""

from __future__ import annotations

from collections.abc import Iterator

from windlass.control import wiring
from windlass.control.model import capabilities, policy
from windlass.install import names
from windlass.install.names import Object
from windlass.ledger import service
from windlass.server.auth import rbac, request_header
from windlass.server.fairness import settings
from windlass.server.platform import paths

_API = "rbac.authorization.k8s.io"
_READ = ("get", "list", "watch")
_FOLLOW = ("list", "watch")
"""For resources that are cached by informers and never read one by one."""

Rule = tuple[tuple[str, ...], tuple[str, ...]]
"""Verbs, and resources as `server.auth.identity.Attributes.key` names them."""

_VOLUMES = ("persistentvolumeclaims", "persistentvolumes", "storageclasses.storage.k8s.io")

_DRIVERS = tuple(
    f"{kind}.storage.k8s.io"
    for kind in ("csidrivers", "csinodes", "csistoragecapacities", "volumeattachments")
)
"""The CSI drivers and their attach limits."""

_GANG_SIZES = (
    "jobs.batch",
    "jobsets.jobset.x-k8s.io",
    "podgroups.scheduling.x-k8s.io",
    "podgroups.scheduling.sigs.k8s.io",
    "sparkapplications.sparkoperator.k8s.io",
    *(f"{kind}jobs.kubeflow.org" for kind in ("pytorch", "tf", "mpi", "xgboost", "paddle", "jax")),
)

_DECISION: tuple[Rule, ...] = (
    (_FOLLOW, ("nodes", "pods", "runs.windlass.dev", "queues.windlass.dev")),
    (_FOLLOW, ("reservations.windlass.dev",)),
    (_FOLLOW, ("resourcequotas", "runtimeclasses.node.k8s.io", *_VOLUMES, *_DRIVERS)),
    # Namespace selectors and disruption budgets of external pods.
    (_FOLLOW, ("namespaces", "poddisruptionbudgets.policy")),
    # How many pods a gang of external pods has.
    (("get",), _GANG_SIZES),
)
"""What `control.scheduler.cluster_state` reads: the scheduler to decide, the server to explain."""

_CALLERS: Rule = (
    ("create",),
    ("subjectaccessreviews.authorization.k8s.io", "tokenreviews.authentication.k8s.io"),
)
"""To authenticate and authorise callers: for /metrics, and for what the server serves."""

CLUSTER: dict[str, tuple[Rule, ...]] = {
    names.SCHEDULER: (
        *_DECISION,
        (("create",), ("pods/binding", "pods/eviction")),
        (("patch",), ("pods/status",)),
        # For which node a volume is to be made, or which one a claim gets.
        (("patch",), ("persistentvolumeclaims", "persistentvolumes")),
        (("patch",), ("runs.windlass.dev/status", "queues.windlass.dev/status")),
        (("patch",), ("reservations.windlass.dev/status",)),
        (("create", "patch"), ("events",)),
        _CALLERS,
    ),
    names.CONTROLLERS: (
        (_READ, ("pods", "runs.windlass.dev", "cronruns.windlass.dev")),
        (_FOLLOW, ("nodes", "runtimeclasses.node.k8s.io", *_VOLUMES)),
        # For which node a volume is to be made, or which one a claim gets.
        (("patch",), ("persistentvolumeclaims", "persistentvolumes")),
        (("create", "delete"), ("pods",)),
        (("create",), ("secrets", "services")),
        (("create", "patch", "delete"), ("runs.windlass.dev",)),
        (("patch",), ("runs.windlass.dev/status", "cronruns.windlass.dev/status")),
        # Owners of what is created: where the cluster asks for the right to hold their deletion.
        # The finalizer of the ledger is removed where no ledger is any more.
        (("update",), ("runs.windlass.dev/finalizers", "cronruns.windlass.dev/finalizers")),
        (("create", "patch"), ("events",)),
        _CALLERS,
    ),
    names.SERVER: (
        *_DECISION,
        (("get",), ("pods", "runs.windlass.dev", "namespaces")),
        # Code that nothing names any more is removed.
        (("list",), ("cronruns.windlass.dev",)),
        # The ledger: prices, what is written down need not be kept, and what is left of budgets.
        (_FOLLOW, ("pricelists.windlass.dev",)),
        # The usage of nodes and pods from the cluster's metrics server, without node agents.
        (("list",), ("nodes.metrics.k8s.io", "pods.metrics.k8s.io")),
        (("create", "patch"), ("events",)),
        (("patch",), ("runs.windlass.dev", "runs.windlass.dev/status")),
        # To remove the finalizer of the ledger: an admission policy asks for this right.
        (("update",), ("runs.windlass.dev/finalizers",)),
        (("patch",), ("queues.windlass.dev/status",)),
        _CALLERS,
    ),
    names.AGENT: (
        (_FOLLOW, ("pods",)),
        # To annotate pods with the progress of jobs.
        (("patch",), ("pods",)),
        # Logs are kept by the server: the API server's door, and what the server asks for there.
        (("update",), (f"runs.{paths.GROUP}/logs",)),
        (("create",), ("runs.windlass.dev/logs",)),
        # What its node uses: the same two doors.
        (("update",), (f"nodemetrics.{paths.GROUP}",)),
        (("create",), ("nodes.windlass.dev/metrics",)),
    ),
}
"""By ServiceAccount, anywhere in the cluster."""

_LEASE = ("get", "watch", "update")
_ENGINE = ("configmaps", capabilities.NAME, _FOLLOW)
_POLICY = ("configmaps", policy.NAME, _FOLLOW)
SYSTEM: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    names.SCHEDULER: (
        _ENGINE,
        _POLICY,
        ("leases.coordination.k8s.io", wiring.Scheduler.lease, _LEASE),
    ),
    names.CONTROLLERS: (
        _ENGINE,
        ("leases.coordination.k8s.io", wiring.Controllers.lease, _LEASE),
        ("leases.coordination.k8s.io", wiring.Scheduler.lease, _READ),
    ),
    names.SERVER: (
        _ENGINE,
        _POLICY,
        ("configmaps", capabilities.NAME, ("get",)),
        ("configmaps", settings.NAME, ("get",)),
        ("leases.coordination.k8s.io", service.LEASE, _LEASE),
    ),
}
"""By ServiceAccount, of single objects in windlass-system: resource, name, verbs."""

ACCOUNTS = {
    names.SCHEDULER: names.SYSTEM,
    names.CONTROLLERS: names.SYSTEM,
    names.SERVER: names.SYSTEM,
    names.AGENT: names.NODES,
}
"""ServiceAccount -> its namespace."""


def objects() -> Iterator[Object]:
    for account, namespace in ACCOUNTS.items():
        yield {
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": names.metadata(account, "rights", namespace),
            # Only pods that request a token get one.
            "automountServiceAccountToken": False,
        }  # fmt: skip
    for account, rules in CLUSTER.items():
        made = [_rule(verbs, resource) for verbs, resources in rules for resource in resources]
        yield from _bound("Cluster", account, account, "", made)
    for account, rights in SYSTEM.items():
        made = [_rule(verbs, resource, only=name) for resource, name, verbs in rights]
        yield from _bound("", account, account, names.SYSTEM, made)
    yield _binding(
        "", "windlass-server-authentication", "extension-apiserver-authentication-reader",
        names.SERVER, request_header.NAMESPACE, kind="Role",
    )  # fmt: skip
    yield {
        "apiVersion": f"{_API}/v1", "kind": "ClusterRole",
        "metadata": names.metadata(names.SCRAPER, "rights"),
        "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}],
    }  # fmt: skip
    yield from user_roles()


def user_roles() -> Iterator[Object]:
    """The three roles of team members, and the permissions of all users."""
    for role, rules in rbac.ROLES.items():
        made = [_rule(rule.verbs, resource) for rule in rules for resource in rule.resources]
        # The server checks the caller's permissions on runs itself.
        made.append({"apiGroups": [paths.GROUP], "resources": ["*"], "verbs": ["*"]})
        yield _role("Cluster", role, "", made)
    made = [
        _rule(rule.verbs, resource)
        for rule in rbac.EVERYONE
        for resource in rule.resources
        if "reviews" not in resource  # Kubernetes grants these to every user itself
    ]
    yield _role("Cluster", "windlass-everyone", "", made)
    yield {
        "apiVersion": f"{_API}/v1", "kind": "ClusterRoleBinding",
        "metadata": names.metadata("windlass-everyone", "rights"),
        "roleRef": {"apiGroup": _API, "kind": "ClusterRole", "name": "windlass-everyone"},
        "subjects": [{"apiGroup": _API, "kind": "Group", "name": "system:authenticated"}],
    }  # fmt: skip


def _bound(
    scope: str, name: str, account: str, namespace: str, rules: list[Object]
) -> Iterator[Object]:
    yield _role(scope, name, namespace, rules)
    yield _binding(scope, name, name, account, namespace)


def _role(scope: str, name: str, namespace: str, rules: list[Object]) -> Object:
    return {
        "apiVersion": f"{_API}/v1",
        "kind": f"{scope}Role",
        "metadata": names.metadata(name, "rights", namespace),
        "rules": rules,
    }


def _binding(
    scope: str, name: str, role: str, account: str, namespace: str, kind: str = ""
) -> Object:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": ACCOUNTS[account]}
    return {
        "apiVersion": f"{_API}/v1",
        "kind": f"{scope}RoleBinding",
        "metadata": names.metadata(name, "rights", namespace),
        "roleRef": {"apiGroup": _API, "kind": kind or f"{scope}Role", "name": role},
        "subjects": [subject],
    }


def _rule(verbs: tuple[str, ...], resource: str, only: str = "") -> Object:
    """`runs.windlass.dev/status` as a rule names it."""
    full, _, subresource = resource.partition("/")
    plural, _, group = full.partition(".")
    named = f"{plural}/{subresource}" if subresource else plural
    rule: Object = {"apiGroups": [group], "resources": [named], "verbs": list(verbs)}
    return rule | ({"resourceNames": [only]} if only else {})
