"""Another team's things: read, written, executed, stopped."""

from __future__ import annotations

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    MERGE,
    PLATFORM,
    RBAC,
    UNKNOWN,
    Attack,
    cron,
    of,
    run,
)
from tests.hostile.worlds import binding

_RUNS, _PODS = f"{API}/namespaces/blue/runs", f"{CORE}/namespaces/blue/pods"
_BLUE, _TEAM = f"{CORE}/namespaces/blue", f"{PLATFORM}/namespaces/blue"
_BOX = f"{_TEAM}/mailboxes/$box"
_KEY = "a" * 64
_LOOKUP = {
    "pipeline": "p", "step": "s", "owner": "attacker", "steps": [{"key": _KEY}],
}  # fmt: skip
_RESULT = {"owner": "attacker", "digest": "$digest", "size": 1, "value": "AA=="}
_UPLOAD = {"Upload-Offset": "0", "Upload-Length": "4"}

READS: list[tuple[str, str, str]] = [
    ("lists runs", "GET", _RUNS),
    ("reads a run", "GET", f"{_RUNS}/plan"),
    ("reads the status of a run", "GET", f"{_RUNS}/plan/status"),
    ("watches runs", "GET", f"{_RUNS}?watch=1&timeoutSeconds=1"),
    ("watches one run", "GET", f"{_RUNS}?watch=1&fieldSelector=metadata.name%3Dplan"),
    ("lists the runs of all teams", "GET", f"{API}/runs"),
    ("watches the runs of all teams", "GET", f"{API}/runs?watch=1&timeoutSeconds=1"),
    ("lists cron runs", "GET", f"{API}/namespaces/blue/cronruns"),
    ("reads a cron run", "GET", f"{API}/namespaces/blue/cronruns/nightly"),
    ("lists pods", "GET", _PODS),
    ("reads a pod", "GET", f"{_PODS}/$pod"),
    ("lists the pods of all teams", "GET", f"{CORE}/pods"),
    ("lists pods by their node", "GET", f"{CORE}/pods?fieldSelector=spec.nodeName%3D$node"),
    ("reads a log", "GET", f"{_PODS}/$pod/log"),
    ("follows a log", "GET", f"{_PODS}/$pod/log?follow=true"),
    ("lists services", "GET", f"{_BLUE}/services"),
    ("lists config maps", "GET", f"{_BLUE}/configmaps"),
    ("reads a config map", "GET", f"{_BLUE}/configmaps/settings"),
    ("lists events", "GET", f"{_BLUE}/events"),
    ("lists the events of all teams", "GET", f"{CORE}/events"),
    ("reads the namespace", "GET", f"{CORE}/namespaces/blue"),
    ("reads ps", "GET", f"{_TEAM}/ps"),
    ("asks why a run waits", "GET", f"{_TEAM}/runs/plan/why"),
    ("asks why no run waits", "GET", f"{_TEAM}/runs/absent/why"),
    ("reads the usage", "GET", f"{_TEAM}/usage"),
    ("reads the statement", "GET", f"{_TEAM}/statement?format=csv"),
    ("reads the addresses of a run", "GET", f"{_TEAM}/runs/plan/addresses"),
    ("lists archived logs", "GET", f"{_TEAM}/runs/plan/logs"),
    ("reads an archived log", "GET", f"{_TEAM}/runs/plan/logs/0-worker-0-u"),
    ("lists the results of steps", "GET", f"{_TEAM}/steps"),
    ("lists studies", "GET", f"{_TEAM}/studies"),
    ("reads a study", "GET", f"{_TEAM}/studies/search"),
    ("lists the trials of a study", "GET", f"{_TEAM}/studies/search/trials"),
    ("asks why a pod waits", "GET", f"{_TEAM}/externalpods/$pod/why"),
    ("reads the usage of a pod", "GET", f"{_TEAM}/podmetrics/$pod"),
    ("lists external pods", "GET", f"{_TEAM}/externalpods"),
    ("reads the usage of pods", "GET", f"{_TEAM}/podmetrics"),
]  # fmt: skip
"""What a viewer of the team may read, and nobody else."""
SECRETS: list[tuple[str, str, str]] = [
    ("lists secrets", "GET", f"{_BLUE}/secrets"),
    ("reads a secret", "GET", f"{_BLUE}/secrets/keys"),
    ("watches secrets", "GET", f"{_BLUE}/secrets?watch=1&timeoutSeconds=1"),
    ("lists the secrets of all teams", "GET", f"{CORE}/secrets"),
    ("lists secrets by their namespace", "GET",
     f"{CORE}/secrets?fieldSelector=metadata.namespace%3Dblue"),
    ("lists role bindings", "GET", f"{RBAC}/namespaces/blue/rolebindings"),
    ("downloads code", "GET", f"{_TEAM}/blobs/$digest"),
    ("asks whether there is code", "HEAD", f"{_TEAM}/blobs/$digest"),
    ("reads a mailbox", "GET", f"{_BOX}/events"),
    ("reads a result of a mailbox", "GET", f"{_BOX}/results/0"),
    ("reads the usage of all teams", "GET", f"{PLATFORM}/usage"),
    ("reads the statement of all teams", "GET", f"{PLATFORM}/statement"),
    ("reads the fleet", "GET", f"{PLATFORM}/fleet"),
    ("verifies the ledger", "GET", f"{PLATFORM}/verify"),
    ("lists external pods of all teams", "GET", f"{PLATFORM}/externalpods"),
    ("reads the usage of all pods", "GET", f"{PLATFORM}/podmetrics"),
]  # fmt: skip
"""What no viewer may read, either."""
WRITES: list[tuple[object, ...]] = [
    ("creates a run", "POST", _RUNS, run()),
    ("replaces a run", "PUT", f"{_RUNS}/plan", run("plan")),
    ("deletes a run", "DELETE", f"{_RUNS}/plan"),
    ("deletes all runs", "DELETE", _RUNS),
    ("deletes the runs of a label", "DELETE", f"{_RUNS}?labelSelector=a%21%3Db"),
    ("creates a cron run", "POST", f"{API}/namespaces/blue/cronruns", cron()),
    ("deletes a cron run", "DELETE", f"{API}/namespaces/blue/cronruns/nightly"),
    ("deletes a pod", "DELETE", f"{_PODS}/$pod"),
    ("deletes all pods", "DELETE", _PODS),
    ("evicts a pod", "POST", f"{_PODS}/$pod/eviction", {"metadata": {"name": "$pod"}}),
    ("binds a pod", "POST", f"{_PODS}/$pod/binding",
     {"metadata": {"name": "$pod"}, "target": {"kind": "Node", "name": "$own_node"}}),
    ("replaces the status of a pod", "PUT", f"{_PODS}/$pod/status", {"status": {}}),
    ("creates a secret", "POST", f"{_BLUE}/secrets", {"metadata": {"name": "hostile"}}),
    ("replaces a secret", "PUT", f"{_BLUE}/secrets/keys", {"metadata": {"name": "keys"}}),
    ("deletes a secret", "DELETE", f"{_BLUE}/secrets/keys"),
    ("deletes config maps", "DELETE", f"{_BLUE}/configmaps"),
    ("creates a service", "POST", f"{_BLUE}/services", {"metadata": {"name": "hostile"}}),
    ("deletes a service", "DELETE", f"{_BLUE}/services/web"),
    ("joins the team", "POST", f"{RBAC}/namespaces/blue/rolebindings", binding("rita", "member")),
    ("removes a member", "DELETE", f"{RBAC}/namespaces/blue/rolebindings/bob-member"),
    ("creates an account", "POST", f"{_BLUE}/serviceaccounts", {"metadata": {"name": "hostile"}}),
    ("asks for a token of an account", "POST", f"{_BLUE}/serviceaccounts/default/token",
     {"spec": {"boundObjectRef": {"kind": "Pod", "name": "$pod"}}}),
    ("deletes the namespace", "DELETE", f"{CORE}/namespaces/blue"),
    ("plans a run", "POST", f"{_TEAM}/plan", run()),
    ("creates a mailbox", "POST", f"{_TEAM}/mailboxes", {}),
    ("deletes a mailbox", "DELETE", _BOX),
    ("puts a call", "PUT", f"{_BOX}/calls/1", b"x"),
    ("discards a call", "DELETE", f"{_BOX}/calls/0"),
    ("claims a step", "POST", f"{_TEAM}/steps/lookup", _LOOKUP),
    ("renews claims", "POST", f"{_TEAM}/steps/renew", {"owner": "attacker"}),
    ("gives up claims", "POST", f"{_TEAM}/steps/release", {"owner": "attacker"}),
    ("reads parts of results", "POST", f"{_TEAM}/steps/similar", {"pipeline": "p", "step": "s"}),
    ("puts the result of a step", "PUT", f"{_TEAM}/stepresults/{_KEY}", _RESULT),
    ("lists the outputs of a run", "GET", f"{_TEAM}/runs/plan/outputs"),
    ("reads an output", "GET", f"{_TEAM}/runs/plan/outputs/blobs/$digest"),
    ("sends an output", "PATCH", f"{_TEAM}/runs/plan/outputs/blobs/$digest", b"evil"),
    ("reads the quota of outputs", "GET", f"{_TEAM}/outputs"),
    ("asks how the command of a pod fares", "GET", f"{_TEAM}/runs/plan/outputs/pod"),
    ("asks for space for outputs", "POST", f"{_TEAM}/runs/plan/outputs/check", {"bytes": 1}),
    ("publishes outputs", "POST", f"{_TEAM}/runs/plan/outputs/publish", {}),
    ("creates a study", "POST", f"{_TEAM}/studies", {"name": "hostile"}),
    ("deletes a study", "DELETE", f"{_TEAM}/studies/search"),
    ("takes over a study", "POST", f"{_TEAM}/studies/search/claim", {"owner": "attacker"}),
    ("ends a study", "POST", f"{_TEAM}/studies/search/release", {"owner": "attacker"}),
    ("writes trials", "PUT", f"{_TEAM}/studies/search/trials", {"trials": []}),
    ("writes an archived log", "PUT", f"{_TEAM}/runs/plan/logs/0-worker-0-u?run=$run_uid", {}),
    ("writes a segment of a log", "PUT",
     f"{_TEAM}/runs/plan/logs/0-worker-0-u/worker/0?run=$run_uid", b"forged"),
    ("executes", "POST", f"{_PODS}/$pod/exec?command=id&stdout=true"),
    ("executes by GET", "GET", f"{_PODS}/$pod/exec?command=id&stdout=true"),
    ("attaches", "POST", f"{_PODS}/$pod/attach?stdout=true"),
    ("forwards a port", "POST", f"{_PODS}/$pod/portforward?ports=80"),
]  # fmt: skip
FILES: list[tuple[str, str, str]] = [
    ("lists the files of a replica", "GET", f"{_TEAM}/runs/plan/files"),
    ("reads a file of a replica", "GET", f"{_TEAM}/runs/plan/files/content?path=x"),
]  # fmt: skip
METRICS: list[tuple[str, str, str]] = [
    ("reads the metrics of all pods", "GET", "/apis/metrics.k8s.io/v1beta1/pods"),
    ("reads the metrics of a team's pods", "GET",
     "/apis/metrics.k8s.io/v1beta1/namespaces/blue/pods"),
    ("reads the metrics of a pod", "GET",
     "/apis/metrics.k8s.io/v1beta1/namespaces/blue/pods/$pod"),
]  # fmt: skip
WORKERS: list[tuple[object, ...]] = [
    ("takes a call", "POST", f"{_BOX}/worker/take"),
    ("reads a call", "GET", f"{_BOX}/worker/calls/0"),
    ("puts a result", "PUT", f"{_BOX}/worker/results/0", b"forged"),
]  # fmt: skip
PATCHES: list[tuple[object, ...]] = [
    ("stops a run", "PATCH", f"{_RUNS}/plan", {"spec": {"stop": True}}),
    ("starts a run", "PATCH", f"{_RUNS}/plan", {"spec": {"suspend": False}}),
    ("takes over a run", "PATCH", f"{_RUNS}/plan", {"spec": {"user": "rita"}}),
    ("patches the status of a run", "PATCH", f"{_RUNS}/plan/status",
     {"status": {"phase": "Failed"}}),
    ("patches a cron run", "PATCH", f"{API}/namespaces/blue/cronruns/nightly",
     {"spec": {"schedule": "* * * * *"}}),
    ("patches a pod", "PATCH", f"{_PODS}/$pod", {"metadata": {"labels": {"a": "b"}}}),
    ("patches a config map", "PATCH", f"{_BLUE}/configmaps/settings", {"data": {"key": "x"}}),
    ("patches a secret", "PATCH", f"{_BLUE}/secrets/keys", {"data": {"key": "AA=="}}),
    ("patches the namespace", "PATCH", f"{CORE}/namespaces/blue",
     {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}),
    ("patches a role binding", "PATCH", f"{RBAC}/namespaces/blue/rolebindings/bob-member",
     {"subjects": [{"kind": "User", "name": "rita"}]}),
]  # fmt: skip

_STRANGERS = {"rita": "a member of another team", "nora": "somebody in no team"}
_ALL_BUT_VIEWERS = _STRANGERS | {"ada": "an administrator of another team"}
_ALL = _ALL_BUT_VIEWERS | {"vic": "a viewer of the team"}
_UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "v5.channel.k8s.io",
}  # fmt: skip

ROWS: list[Attack] = [
    *of(_STRANGERS, READS),
    *of({"ada": "an administrator of another team"}, READS[:4]),
    *of(_ALL, SECRETS),
    *of({"rita": "a member of another team", "vic": "a viewer of the team"}, WRITES),
    *of({"ada": "an administrator of another team"}, WRITES[:4] + WRITES[16:23]),
    *of({"rita": "a member of another team"}, METRICS, engines=EMBEDDED),
    *of(_ALL, FILES, engines=EMBEDDED),
    *of({"nobody": "somebody without the mailbox's token"}, WORKERS, expected=UNKNOWN),
    *of(_ALL, PATCHES, kind=MERGE),
    *of({"nobody": "nobody"}, READS[:6] + SECRETS[:2] + WRITES[:3], expected=UNKNOWN),
    *of({"made-up": "a made-up token"}, READS[:2] + SECRETS[:2] + WRITES[:2], expected=UNKNOWN),
    Attack(
        "a member of another team opens a session over a web socket", "rita", "GET",
        f"{_PODS}/$pod/exec?command=sh&stdin=true&stdout=true", headers=_UPGRADE,
    ),
    Attack(
        "a viewer opens a session over a web socket", "vic", "GET",
        f"{_PODS}/$pod/attach?stdin=true", headers=_UPGRADE,
    ),
    Attack(
        "a member of another team uploads code", "rita", "PATCH", f"{_TEAM}/blobs/$digest",
        b"evil", kind="application/octet-stream", headers=_UPLOAD,
    ),
    Attack(
        "a viewer uploads code", "vic", "PATCH", f"{_TEAM}/blobs/$digest", b"evil",
        kind="application/octet-stream", headers=_UPLOAD,
    ),
    Attack(
        "a member asks its own team for the code of another", "rita", "GET",
        f"{PLATFORM}/namespaces/red/blobs/$digest", expected=(404,),
    ),
    Attack(
        "a member asks its own team for the mailbox of another", "rita", "GET",
        f"{PLATFORM}/namespaces/red/mailboxes/$box/events", expected=(404,),
    ),
    Attack(
        "a member deletes the mailbox of another team through its own", "rita", "DELETE",
        f"{PLATFORM}/namespaces/red/mailboxes/$box", expected=(404,),
    ),
    Attack(
        "the token of a mailbox opens nothing in another namespace", "nobody", "POST",
        f"{PLATFORM}/namespaces/red/mailboxes/$box/worker/take", expected=UNKNOWN,
        headers={"Authorization": "Bearer $box_token"}, door="server",
    ),
    Attack(
        "the token of a mailbox is no user's", "nobody", "GET", f"{_BOX}/events",
        expected=UNKNOWN, headers={"Authorization": "Bearer $box_token"}, door="server",
    ),
    Attack(
        "a member sees only its own runs among those of all teams", "rita", "GET",
        f"{PLATFORM}/ps", expected=(200,), lacks=('"plan"', '"works"', "nightly"),
    ),
    Attack(
        "somebody in no team sees no run", "nora", "GET", f"{PLATFORM}/ps", expected=(200,),
        lacks=('"plan"', '"works"', '"own"'),
    ),
    Attack(
        "a member sees no names of other teams in the quota tree", "rita", "GET",
        f"{PLATFORM}/queues", expected=(200,), lacks=('"plan"', '"works"'),
    ),
    Attack(
        "a member lists its own tokens alone", "rita", "GET", f"{PLATFORM}/tokens",
        expected=(200,), engines=EMBEDDED, lacks=('"bob"', '"ada"', "$token"),
    ),
]  # fmt: skip
