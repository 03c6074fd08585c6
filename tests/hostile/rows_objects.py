"""Objects that say false things of others: owners, finalizers, uids, versions, generated names."""

from __future__ import annotations

from typing import Any

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    INVALID,
    JSON_PATCH,
    MERGE,
    Attack,
    cron,
    run,
)

_CONFIGS = f"{CORE}/namespaces/red/configmaps"
_RUNS = f"{API}/namespaces/red/runs"
_MADE = (201, *INVALID)
"""Made for the attacker alone, or refused: whatever it says of others has no effect."""


def _owner(kind: str, name: str, uid: str, version: str = "v1", **more: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, **more}


def _config(**about: Any) -> dict[str, Any]:
    return {"metadata": {"name": "hostile-config", **about}, "data": {"key": "value"}}


_OWNERS: dict[str, dict[str, Any]] = {
    "a run of another team": _owner("Run", "plan", "$run_uid", "windlass.dev/v1alpha1"),
    "a secret of another team": _owner("Secret", "keys", "$secret_uid"),
    "a pod of another team": _owner("Pod", "$pod", "$pod_uid", controller=True),
    "another team's object under another name": _owner("ConfigMap", "wrong", "$config_uid"),
    "a namespace": _owner("Namespace", "blue", "$config_uid", blockOwnerDeletion=True),
    "a node": _owner("Node", "$node", "$config_uid"),
    "a kind that is not there": _owner("Evil", "x", "x", "evil.example/v1"),
}
_FINALIZERS = ["windlass.dev/ledger", "evil.example/stay"]

ROWS: list[Attack] = [
    *(
        Attack(f"a member's object belongs to {what}", "rita", "POST", _CONFIGS,
               _config(ownerReferences=[owner]), expected=_MADE)
        for what, owner in _OWNERS.items()
    ),
    *(
        Attack(f"a member's run belongs to {what}", "rita", "POST", _RUNS,
               run() | {"metadata": {"name": "hostile-run", "ownerReferences": [owner]}},
               expected=(*_MADE, 403))
        for what, owner in list(_OWNERS.items())[:3]
    ),
    Attack("a member's object has an owner without a uid", "rita", "POST", _CONFIGS,
           _config(ownerReferences=[_owner("Secret", "keys", "")]), expected=INVALID),
    Attack("a member's object has two controllers", "rita", "POST", _CONFIGS,
           _config(ownerReferences=[_owner("Pod", "a", "x", controller=True),
                                    _owner("Pod", "b", "y", controller=True)]),
           expected=INVALID),
    Attack("a member's object has another's uid", "rita", "POST", _CONFIGS,
           _config(uid="$config_uid"), expected=_MADE),
    Attack("a member's object is in another namespace than its path", "rita", "POST", _CONFIGS,
           _config(namespace="blue"), expected=INVALID),
    Attack("a member's object has another name than its path", "rita", "PUT",
           f"{_CONFIGS}/hostile-config", {"metadata": {"name": "other"}}, expected=(*INVALID, 404)),
    Attack("a member's object is deleted already", "rita", "POST", _CONFIGS,
           _config(deletionTimestamp="2020-01-01T00:00:00Z", deletionGracePeriodSeconds=0,
                   finalizers=["evil.example/stay"]), expected=_MADE),
    Attack("a member's object links to itself elsewhere", "rita", "POST", _CONFIGS,
           _config(selfLink="/api/v1/namespaces/blue/secrets/keys"),
           expected=_MADE),
    Attack("a member's run has finalizers of the platform", "rita", "POST", _RUNS,
           run() | {"metadata": {"name": "hostile-run", "finalizers": _FINALIZERS}},
           expected=(*_MADE, 403)),
    Attack("a member removes what keeps its run for the ledger", "rita", "PATCH", f"{_RUNS}/own",
           {"metadata": {"finalizers": None}}, kind=MERGE),
    Attack("a member removes what keeps its run for the ledger by operations", "rita", "PATCH",
           f"{_RUNS}/own", [{"op": "remove", "path": "/metadata/finalizers"}], kind=JSON_PATCH),
    Attack("a member's run brings its own status", "rita", "POST", _RUNS,
           run() | {"status": {"phase": "Running", "assignment": {
               "attempt": 0, "epoch": 1, "members": {"worker": [{"node": "n1"}]}}}},
           expected=_MADE, lacks=('"epoch":1',)),
    Attack("a member's cron run brings its own runs", "rita", "POST",
           f"{API}/namespaces/red/cronruns",
           cron() | {"status": {"active": [{"name": "plan", "uid": "$run_uid"}]}},
           expected=_MADE, lacks=("$run_uid",)),
    Attack("a member deletes with the uid of another", "rita", "DELETE", f"{_RUNS}/own",
           {"preconditions": {"uid": "$run_uid"}}, expected=(409,)),
    Attack("a member replaces an object of an old version", "rita", "PUT",
           f"{_RUNS}/own", run("own") | {"metadata": {"name": "own", "resourceVersion": "1"}},
           expected=(409, *INVALID)),
    Attack("a member writes to a subresource that is not there", "rita", "PUT",
           f"{_CONFIGS}/hostile-config/status", _config(), expected=(403, 404, 405)),
    Attack("a member scales its run as if it were a deployment", "rita", "PATCH",
           f"{_RUNS}/own/scale", {"spec": {"replicas": 1000}}, kind=MERGE, expected=(403, 404)),
    Attack("a member finalizes its namespace", "rita", "PUT", f"{CORE}/namespaces/red/finalize",
           {"metadata": {"name": "red"}, "spec": {"finalizers": []}}, expected=(403, 404, 405)),
    Attack("a member deletes its namespace", "rita", "DELETE", f"{CORE}/namespaces/red"),
    Attack("a member moves its run into another namespace", "rita", "PATCH", f"{_RUNS}/own",
           {"metadata": {"namespace": "blue"}}, kind=MERGE, expected=INVALID),
    Attack("a member renames its run by operations", "rita", "PATCH", f"{_RUNS}/own",
           [{"op": "replace", "path": "/metadata/name", "value": "plan"},
            {"op": "replace", "path": "/metadata/namespace", "value": "blue"}],
           kind=JSON_PATCH, expected=INVALID),
    Attack("a member gives its run another uid", "rita", "PATCH", f"{_RUNS}/own",
           {"metadata": {"uid": "$run_uid"}}, kind=MERGE, expected=(409, *INVALID)),
    Attack("a member makes another kind of its run", "rita", "PATCH", f"{_RUNS}/own",
           {"kind": "Queue", "apiVersion": "windlass.dev/v1alpha1"}, kind=MERGE,
           expected=INVALID),
    Attack("a member posts a binding where runs are", "rita", "POST", _RUNS,
           {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "hostile-run"}}, expected=INVALID),
    Attack("a member generates a name that leaves the folder", "rita", "POST", _RUNS,
           run() | {"metadata": {"generateName": "../../hostile-"}}, expected=INVALID),
    Attack("a member selects by a label that is no selector", "rita", "GET",
           f"{_RUNS}?labelSelector=a+in+%28%27%29+or+1%3D1", expected=(400,)),
    Attack("a member selects by a field that is none", "rita", "GET",
           f"{_RUNS}?fieldSelector=spec.roles%5B0%5D%3Dx%27%3B--", expected=(400,)),
    Attack("a member continues another's list", "rita", "GET",
           f"{_RUNS}?limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi8ifQ",
           expected=(200, 400, 410), lacks=('"plan"',)),
    Attack("a member continues a list with a made-up token", "rita", "GET",
           f"{_RUNS}?continue=..%2F..%2Fblue", expected=(400, 410)),
    Attack("a member asks for a version of the future", "rita", "GET",
           f"{_RUNS}?resourceVersion=99999999999999999999", expected=(400, 504)),
    Attack("a member asks for a negative limit", "rita", "GET", f"{_RUNS}?limit=-1",
           expected=(200, 400)),
    Attack("a member waits for a day", "rita", "GET",
           f"{_RUNS}?watch=1&resourceVersion=abc", expected=(400,), on_kubernetes=(400, 500)),
    Attack("a member applies with the manager of another", "rita", "PATCH",
           f"{_CONFIGS}/hostile-config?fieldManager=windlass-install&force=true", _config(),
           kind="application/apply-patch+yaml", expected=(415,), engines=EMBEDDED),
]  # fmt: skip
