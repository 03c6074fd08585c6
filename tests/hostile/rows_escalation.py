"""More rights than one has: roles, tokens, what the platform shares, users of runs."""

from __future__ import annotations

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    INVALID,
    JSON_PATCH,
    MERGE,
    PLATFORM,
    RBAC,
    STRATEGIC,
    Attack,
    cron,
    of,
    run,
)
from tests.hostile.worlds import binding

_RED, _OWN_RUN = f"{API}/namespaces/red", f"{API}/namespaces/red/runs/own"
_BINDINGS = f"{RBAC}/namespaces/red/rolebindings"
_MEMBERS = {"rita": "a member", "ada": "an administrator of a team"}
_MASTER = {
    "metadata": {"name": "hostile"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "rita"}],
}  # fmt: skip
_OVERRIDE = {"until": "2090-01-01T00:00:00Z", "reason": "because", "by": "admin"}

SHARED: list[tuple[object, ...]] = [
    ("creates a queue", "POST", f"{API}/queues",
     {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "hostile"},
      "spec": {"namespaces": ["red"], "guarantee": {"cpu": "1000"}}}),
    ("deletes a queue", "DELETE", f"{API}/queues/of-blue"),
    ("deletes all queues", "DELETE", f"{API}/queues"),
    ("replaces a queue", "PUT", f"{API}/queues/of-blue",
     {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue", "metadata": {"name": "of-blue"},
      "spec": {}}),
    ("creates a reservation", "POST", f"{API}/reservations",
     {"apiVersion": "windlass.dev/v1alpha1", "kind": "Reservation",
      "metadata": {"name": "hostile"},
      "spec": {"from": "2026-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z",
               "amounts": {"cpu": "1"}}}),
    ("deletes a reservation", "DELETE", f"{API}/reservations/far"),
    ("creates prices", "POST", f"{API}/pricelists",
     {"apiVersion": "windlass.dev/v1alpha1", "kind": "PriceList",
      "metadata": {"name": "hostile"}, "spec": {"currency": "EUR"}}),
    ("deletes prices", "DELETE", f"{API}/pricelists"),
    ("creates a priority class", "POST", "/apis/scheduling.k8s.io/v1/priorityclasses",
     {"metadata": {"name": "hostile"}, "value": 1000}),
    ("creates a namespace", "POST", f"{CORE}/namespaces", {"metadata": {"name": "hostile"}}),
    ("deletes the system's namespace", "DELETE", f"{CORE}/namespaces/windlass-system"),
    ("lists namespaces", "GET", f"{CORE}/namespaces"),
    ("creates a node", "POST", f"{CORE}/nodes", {"metadata": {"name": "hostile"}}),
    ("deletes a node", "DELETE", f"{CORE}/nodes/$node"),
    ("reads the metrics of a node's agent", "GET", f"{CORE}/nodes/$node/proxy/metrics/resource"),
    ("reads the summary of a node's agent", "GET", f"{CORE}/nodes/$node/proxy/stats/summary"),
    ("reports the usage of a node", "PUT", f"{PLATFORM}/nodemetrics/$node", {}),
    ("lists secrets of the system", "GET", f"{CORE}/namespaces/windlass-system/secrets"),
    ("writes a secret of the system", "POST", f"{CORE}/namespaces/windlass-system/secrets",
     {"metadata": {"name": "hostile"}}),
    ("reads the settings of the engine", "GET",
     f"{CORE}/namespaces/windlass-system/configmaps/engine"),
    ("creates a run among the system", "POST", f"{API}/namespaces/windlass-system/runs", run()),
    ("makes itself an administrator of all", "POST", f"{RBAC}/clusterrolebindings",
     binding("rita", "admin")),
    ("makes itself a master", "POST", f"{RBAC}/clusterrolebindings", _MASTER),
    ("lists bindings of all teams", "GET", f"{RBAC}/clusterrolebindings"),
    ("creates a pod", "POST", f"{CORE}/namespaces/red/pods",
     {"metadata": {"name": "hostile-pod"},
      "spec": {"hostPID": True, "containers": [{"name": "main", "image": "none"}]}}),
    ("reads metrics", "GET", "/metrics"),
]  # fmt: skip
SHARED_PATCHES: list[tuple[object, ...]] = [
    ("opens a queue to itself", "PATCH", f"{API}/queues/of-blue",
     {"spec": {"namespaces": ["blue", "red"]}}),
    ("overrides a budget", "PATCH", f"{API}/queues/default",
     {"spec": {"budget": {"override": _OVERRIDE}}}),
    ("writes what a queue holds", "PATCH", f"{API}/queues/of-blue/status", {"status": {}}),
    ("takes over a reservation", "PATCH", f"{API}/reservations/far",
     {"spec": {"for": {"namespaces": ["red"]}}}),
    ("patches a node", "PATCH", f"{CORE}/nodes/$node", {"spec": {"unschedulable": True}}),
    ("patches the status of a node", "PATCH", f"{CORE}/nodes/$node/status",
     {"status": {"allocatable": {"cpu": "1000"}}}),
    ("patches the settings of the engine", "PATCH",
     f"{CORE}/namespaces/windlass-system/configmaps/engine",
     {"data": {"server": "https://evil.example"}}),
    ("patches the metadata of its own pod", "PATCH", f"{CORE}/namespaces/red/pods/$own_pod",
     {"metadata": {"annotations": {"windlass.dev/granted-devices": "{}"}}}),
    ("writes the status of its own run", "PATCH", f"{_OWN_RUN}/status",
     {"status": {"assignment": {"attempt": 0, "epoch": 1, "members": {}}}}),
    ("writes the status of its own pod", "PATCH", f"{CORE}/namespaces/red/pods/$own_pod/status",
     {"status": {"phase": "Succeeded"}}),
]  # fmt: skip

PROXIES: list[tuple[object, ...]] = [
    ("reads the files of a node", "GET", f"{CORE}/nodes/$node/proxy/logs/"),
    ("runs a command through a node", "POST", f"{CORE}/nodes/$node/proxy/run/blue/$pod/worker"),
    ("reads the pods of a node", "GET", f"{CORE}/nodes/$node/proxy/pods"),
]  # fmt: skip
TOKENS: list[tuple[object, ...]] = [
    ("creates a token for itself", "POST", f"{PLATFORM}/tokens", {"user": "rita"}),
    ("creates a token for another", "POST", f"{PLATFORM}/tokens", {"user": "bob"}),
    ("creates a token of a master", "POST", f"{PLATFORM}/tokens",
     {"user": "rita", "groups": ["system:masters"]}),
    ("replaces the token of another", "POST", f"{PLATFORM}/tokens/$token/rotate"),
    ("revokes the token of another", "DELETE", f"{PLATFORM}/tokens/$token"),
]  # fmt: skip


def _escalations() -> list[Attack]:
    """The user, the priority and the protection of runs, by each way of writing them."""
    found = []
    for what, spec in (
        ("in another's name", {"user": "bob"}),
        ("in the administrator's name", {"user": "admin"}),
        ("before all others", {"priority": 1000}),
        ("that nothing stops", {"preemptible": False}),
        ("in another team's queue", {"queue": "of-blue"}),
    ):
        found += [
            Attack(f"a member creates a run {what}", "rita", "POST", f"{_RED}/runs", run(**spec)),
            Attack(f"a member creates a cron run {what}", "rita", "POST", f"{_RED}/cronruns",
                   cron(**spec)),
            Attack(f"a member patches its run to be {what}", "rita", "PATCH", _OWN_RUN,
                   {"spec": spec}, kind=MERGE, expected=(403, *INVALID)),
        ]  # fmt: skip
        ((field, value),) = spec.items()
        operations = [{"op": "add", "path": f"/spec/{field}", "value": value}]
        found.append(
            Attack(f"a member patches its run by operations to be {what}", "rita", "PATCH",
                   _OWN_RUN, operations, kind=JSON_PATCH, expected=(403, *INVALID)))  # fmt: skip
    return found


ROWS: list[Attack] = [
    *of({"rita": "a member"}, SHARED),
    *of({"ada": "an administrator of a team"}, SHARED[:10] + SHARED[12:24]),
    *of({"nora": "somebody in no team"}, SHARED[:2] + SHARED[13:19]),
    *of(_MEMBERS | {"nora": "somebody in no team", "node": "a node"}, PROXIES,
        expected=(403, 404)),
    *of(_MEMBERS, SHARED_PATCHES[:7], kind=MERGE),
    *of({"rita": "a member"}, SHARED_PATCHES[7:], kind=MERGE, expected=(403, 405)),
    *of(_MEMBERS, TOKENS, engines=EMBEDDED),
    *_escalations(),
    Attack("a member moves its run's user by operations", "rita", "PATCH", _OWN_RUN,
           [{"op": "copy", "from": "/metadata/name", "path": "/spec/user"}], kind=JSON_PATCH,
           expected=(403, *INVALID)),
    Attack("a member replaces its run's whole spec by operations", "rita", "PATCH", _OWN_RUN,
           [{"op": "replace", "path": "/spec", "value": run(user="bob")["spec"]}],
           kind=JSON_PATCH, expected=(403, *INVALID)),
    Attack("a member replaces its run's user by a strategic patch", "rita", "PATCH", _OWN_RUN,
           {"spec": {"$$patch": "replace", "user": "bob"}}, kind=STRATEGIC,
           expected=(403, 415, *INVALID)),
    Attack("a member lets another team in", "rita", "POST", _BINDINGS, binding("bob", "member")),
    Attack("a member makes itself the administrator", "rita", "POST", _BINDINGS,
           binding("rita", "admin")),
    Attack("a member patches its role", "rita", "PATCH", f"{_BINDINGS}/rita-member",
           {"roleRef": {"name": "windlass-admin"}}, kind=MERGE),
    Attack("a member removes the administrator", "rita", "DELETE", f"{_BINDINGS}/ada-admin"),
    Attack("a member creates an account", "rita", "POST",
           f"{CORE}/namespaces/red/serviceaccounts", {"metadata": {"name": "hostile"}}),
    Attack("a member asks for the token of its team's account", "rita", "POST",
           f"{CORE}/namespaces/red/serviceaccounts/default/token", {"spec": {}}),
    Attack("an administrator of a team asks for the token of its account", "ada", "POST",
           f"{CORE}/namespaces/red/serviceaccounts/default/token", {"spec": {}}),
    Attack("a member creates a role", "rita", "POST", f"{RBAC}/clusterroles",
           {"metadata": {"name": "hostile"}, "rules": []}, expected=(403, 404)),
    Attack("an administrator of a team creates a role", "ada", "POST", f"{RBAC}/clusterroles",
           {"metadata": {"name": "hostile"}, "rules": []}, expected=(403, 404)),
    Attack("a member changes a role", "rita", "PATCH", f"{RBAC}/clusterroles/windlass-member",
           {"rules": []}, kind=MERGE, expected=(403, 404)),
    Attack("a member removes an admission policy", "rita", "DELETE",
           "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/"
           "windlass-privileges-of-runs", expected=(403, 404)),
    Attack("a member binds its own pod to a node", "rita", "POST",
           f"{CORE}/namespaces/red/pods/$own_pod/binding",
           {"metadata": {"name": "$own_pod"}, "target": {"kind": "Node", "name": "$node"}}),
    Attack("a member adds a container to its own pod", "rita", "PATCH",
           f"{CORE}/namespaces/red/pods/$own_pod/ephemeralcontainers",
           {"spec": {"ephemeralContainers": [{"name": "x", "image": "x"}]}}, kind=STRATEGIC,
           expected=(403, 404)),
    Attack("a member plans another tree of queues", "rita", "POST", f"{PLATFORM}/queues/plan",
           {"queues": []}),
]  # fmt: skip
