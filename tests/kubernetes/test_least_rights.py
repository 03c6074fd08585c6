"""Each part's role is exactly what it needs: the API server's own audit log says so.

One scenario goes through everything that parts do: runs with peers, secrets, names, volumes, code
and prices, runs by the clock, other people's pods and gangs, evictions, logs and progress. Then
every verb of every rule was used by its part, or is in `UNUSED` with the reason why it is granted
all the same; and nothing that any part asked for was refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.objects import ok
from tests.harness import players, rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.kubernetes.conftest import Cli
from tests.kubernetes.external_pods import gang, pod
from tests.kubernetes.parts import API, PATIENCE, PLATFORM, Installation, as_user
from tests.kubernetes.test_rights import direct
from windlass.install import names
from windlass.install.manifests import rbac

pytestmark = pytest.mark.kubernetes

Json = dict[str, Any]
Used = dict[str, set[tuple[str, str]]]
"""By account: verb, and resource as `rights` names it."""

_ABSENT = "asked only of kinds that are installed; here only Jobs are"
_AGAIN = "what was told before is told again with a count, within minutes"
_STANDBY = "who does not lead looks when it may"
_OWNED = "no request: the API server asks for it where owners may be protected, as it does here"
_LET_GO = "no request: an admission policy asks for it when the finalizer of the ledger goes"
_SWEPT = "code that nothing names any more is looked for after an hour"
_GANGS = {("get", kind): _ABSENT for kind in rbac._GANG_SIZES if kind != "jobs.batch"}
UNUSED: dict[str, dict[tuple[str, str], str]] = {
    names.SCHEDULER: {
        **_GANGS,
        ("patch", "events"): _AGAIN,
        ("watch", "leases.coordination.k8s.io"): _STANDBY,
    },
    names.CONTROLLERS: {
        ("patch", "events"): _AGAIN,
        ("watch", "leases.coordination.k8s.io"): _STANDBY,
        ("update", "runs.windlass.dev/finalizers"): _OWNED,
        ("update", "cronruns.windlass.dev/finalizers"): _OWNED,
        ("get", "pods"): "a pod that a leader before made, and nobody has seen yet",
    },
    names.AGENT: {
        ("create", "runs.windlass.dev/logs"): "no request: our own server asks for it",
        ("create", "nodes.windlass.dev/metrics"): "no request: our own server asks for it",
    },
    names.SERVER: {
        **_GANGS,
        ("patch", "events"): _AGAIN,
        ("watch", "leases.coordination.k8s.io"): _STANDBY,
        ("create", "events"): "told when a budget is nearly used, used up, or open again",
        ("list", "cronruns.windlass.dev"): _SWEPT,
        ("update", "runs.windlass.dev/finalizers"): _LET_GO,
    },
}
"""By account: what one scenario cannot make it use, and why it is granted all the same."""


@pytest.fixture(scope="module")
def place(
    kubernetes_binaries: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    # With this plug-in an owner reference needs a right, as on clusters that are strict about it.
    strict = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"
    with ControlPlane.start(
        users={"alice": []}, audit=True, audit_reads=True, apiserver_flags=[strict]
    ) as plane:
        made = Installation(plane, tmp_path_factory.mktemp("parts"))
        made.install()
        made.add_node()
        made.add_team("red", "alice")
        own = rest.from_kubeconfig(plane.kubeconfig)
        nodes = players.Players(own)
        nodes.start()
        try:
            made.start("scheduler")
            made.start("controllers")
            made.start_server()
            made.start_agent("n1")
            yield made
        finally:
            made.stop()
            nodes.stop()
            own.close()


def test_every_right_is_used_and_nothing_is_refused(place: Installation, tmp_path: Path) -> None:
    alice = Cli(place.plane.token_kubeconfig("alice"))
    steps = (
        a_schedule, runs_of_all_kinds, a_budget, a_reservation, pods_ask, runs_by_the_clock,
        external_pods, volumes, logs, usage, metrics,
    )  # fmt: skip
    for step in steps:
        step(place, alice, tmp_path)
    used, refused = read_audit(place.plane.directory / "audit.log")
    assert refused == []
    assert place.complaints() == []
    idle: dict[str, list[str]] = {}
    for account, rules in rbac.CLUSTER.items():
        granted = {(verb, what) for verbs, things in rules for what in things for verb in verbs}
        granted |= {(v, what) for what, _, verbs in rbac.SYSTEM.get(account, ()) for v in verbs}
        unused = granted - used.get(account, set())
        known = UNUSED.get(account, {})
        idle[account] = sorted(f"{verb} {what}" for verb, what in unused - known.keys())
        assert known.keys() <= granted, f"{account}: not granted any more"
    assert not any(idle.values()), json.dumps(idle, indent=2)


def read_audit(log: Path) -> tuple[Used, list[str]]:
    """What each of our accounts did, and what it was not allowed to."""
    used: Used = {}
    refused: list[str] = []
    for line in log.read_text().splitlines():
        event = json.loads(line)
        account = event["user"]["username"].rpartition(":")[2]
        what = event.get("objectRef")
        if account not in rbac.ACCOUNTS or what is None:
            continue
        named = what.get("resource", "")
        named += f".{what['apiGroup']}" if what.get("apiGroup") else ""
        named += f"/{what['subresource']}" if what.get("subresource") else ""
        used.setdefault(account, set()).add((event["verb"], named))
        if event.get("responseStatus", {}).get("code") == 403:
            refused.append(f"{account}: {event['verb']} {event['requestURI']}")
    return used, refused


# --- the scenario ---------------------------------------------------------------------------------


def metrics(place: Installation, _: Cli, __: Path) -> None:
    """Each component asks for the scraper's identity and rights."""
    assert all("# TYPE windlass_" in part.metrics() for part in place.parts)


def runs_of_all_kinds(place: Installation, alice: Cli, folder: Path) -> None:
    (folder / "job.py").write_text("print('hello')\n")
    submit(place, "plain", {"cpu": "2", "seconds": "3"})
    submit(place, "fails", {"retries": {"limit": 1, "causes": ["Failed"]}, "fails": True})
    submit(place, "peers", {"framework": "ray", "replicas": 2})
    alice("submit", "-N", "red", "-n", "sent", "--workdir", str(folder), "--", "true")
    waiting.until(lambda: place.pods("red", "sent"), "sent runs", PATIENCE)
    for name in ("plain", "peers"):
        place.reaches("red", name, "Succeeded")
    alice("why", "-N", "red", "sent")
    alice("stop", "-N", "red", "sent")
    place.reaches("red", "sent", "Stopped")
    submit(place, "short", {"ttl": "1s"})
    gone = f"{API}/namespaces/red/runs/short"
    waiting.until(lambda: place.rest.get(gone).status == 404, "it goes by itself", PATIENCE)
    alice("delete", "-N", "red", "run", "plain")
    place.reaches("red", "fails", "Failed")


def a_budget(place: Installation, _: Cli, __: Path) -> None:
    spec = {"budget": {"deviceHours": {"cpu": "1m"}, "per": "total"}}
    ok(place.rest.merge(f"{API}/queues/default", {"spec": spec}))

    def told() -> bool:
        return bool(ok(place.rest.get(f"{API}/queues/default"))["status"].get("budget"))

    waiting.until(told, "the ledger tells what is left", 3 * PATIENCE)
    ok(place.rest.merge(f"{API}/queues/default", {"spec": {"budget": None}}))


def a_reservation(place: Installation, alice: Cli, _: Path) -> None:
    """A window for no team closes the only node; alice may read it and not write it."""
    spec = {"from": "2026-01-01T00:00:00Z", "to": "2099-01-01T00:00:00Z"}
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Reservation",
        "metadata": {"name": "closed"}, "spec": {**spec, "nodes": {"names": ["n1"]}},
    }  # fmt: skip
    path = f"{API}/reservations"
    ok(place.rest.post(path, body), 201)

    def is_active() -> bool:
        return ok(place.rest.get(f"{path}/closed")).get("status", {}).get("state") == "Active"

    waiting.until(is_active, "the scheduler tells its state", PATIENCE)
    person = as_user(place.plane, "alice")
    assert ok(person.get(f"{path}/closed"))["status"]["nodes"] == ["n1"]
    assert person.delete(f"{path}/closed").status == 403
    assert person.merge(f"{path}/closed", {"spec": {"reason": "x"}}).status == 403
    submit(place, "kept-out", {})
    run = f"{API}/namespaces/red/runs/kept-out"

    def waits() -> bool:
        return ok(place.rest.get(run)).get("status", {}).get("reason") == "ReservedUntil"

    waiting.until(waits, "it waits for the reservation", PATIENCE)
    alice("why", "-N", "red", "kept-out")
    ok(place.rest.delete(f"{path}/closed"))
    place.reaches("red", "kept-out", "Succeeded")


def pods_ask(place: Installation, alice: Cli, _: Path) -> None:
    """A pod with its own token; and a person who sends functions."""
    submit(place, "asks", {"seconds": "600"})
    (made,) = waiting.until(lambda: place.pods("red", "asks"), "it has a pod", PATIENCE)
    bound_to = {"kind": "Pod", "apiVersion": "v1", "name": made["metadata"]["name"]}
    spec = {"audiences": ["windlass"], "expirationSeconds": 600, "boundObjectRef": bound_to}
    path = "/api/v1/namespaces/red/serviceaccounts/default/token"
    token = ok(place.rest.post(path, {"spec": spec}), 201)["status"]["token"]
    book = f"{PLATFORM}/namespaces/red/runs/asks/addresses?attempt=0"
    assert direct(place, book, {"Authorization": f"Bearer {token}"}, None) == 200
    alice("stop", "-N", "red", "asks")
    mailboxes = f"{PLATFORM}/namespaces/red/mailboxes"
    ok(as_user(place.plane, "alice").post(mailboxes, {}), 201)


def submit(place: Installation, name: str, more: Json) -> None:
    role = {
        "command": ["true"], "replicas": more.get("replicas", 1),
        "resources": {"cpu": more.get("cpu", "100m"), "memory": "64Mi"},
    }  # fmt: skip
    spec: Json = {
        "user": "admin", "roles": [role], "framework": more.get("framework", "process"),
        "overrides": {"annotations": {
            players.RUN_FOR: more.get("seconds", "1"),
            players.FAIL: "3" if "fails" in more else "0",
        }},
    }  # fmt: skip
    spec |= {"retries": more["retries"]} if "retries" in more else {}
    spec |= {"ttlAfterFinished": more["ttl"]} if "ttl" in more else {}
    spec |= {"mounts": more["mounts"]} if "mounts" in more else {}
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
        "spec": spec,
    }  # fmt: skip
    ok(place.rest.post(f"{API}/namespaces/red/runs", body), 201)


def a_schedule(place: Installation, alice: Cli, _: Path) -> None:
    """First of all: the next full minute comes while the other steps run."""
    alice(
        "cron", "create", "-N", "red", "-n", "often", "--schedule", "* * * * *",
        "--", "true",
    )  # fmt: skip


def runs_by_the_clock(place: Installation, alice: Cli, _: Path) -> None:
    def made() -> list[str]:
        listed = ok(place.rest.get(f"{API}/namespaces/red/runs"))["items"]
        return [each["metadata"]["name"] for each in listed if "often" in each["metadata"]["name"]]

    waiting.until(made, "its run is there", 2 * PATIENCE)
    alice("cron", "delete", "-N", "red", "often")


def external_pods(place: Installation, alice: Cli, _: Path) -> None:
    pods = "/api/v1/namespaces/red/pods"
    small = {"cpu": "100m"}
    for each in gang("theirs", 2, requests=small):
        ok(place.rest.post(pods, each), 201)
    job = {
        "metadata": {"name": "job"},
        "spec": {
            "parallelism": 2, "completions": 2, "completionMode": "Indexed",
            "template": {"spec": {
                "schedulerName": "windlass", "restartPolicy": "Never",
                "containers": [{"name": "main", "image": "none"}],
            }},
        },
    }  # fmt: skip
    ok(place.rest.post("/apis/batch/v1/namespaces/red/jobs", job), 201)
    ok(place.rest.post(pods, pod("low", requests={"cpu": "3"}, priority=None)), 201)
    waiting.until(lambda: bound(place, "low"), "it is bound", PATIENCE)
    ok(place.rest.post("/apis/scheduling.k8s.io/v1/priorityclasses", {
        "metadata": {"name": "high"}, "value": 1000}), 201)  # fmt: skip
    high = pod("high", requests={"cpu": "3"}, priorityClassName="high")
    # The API server knows a class a moment after it was made.
    waiting.until(lambda: place.rest.post(pods, high).status == 201, "it is taken", PATIENCE)
    waiting.until(lambda: bound(place, "high"), "it takes the room", PATIENCE)
    for name in ("theirs-0", "theirs-1"):
        waiting.until(lambda n=name: bound(place, n), "the gang is bound", PATIENCE)
    # The server reads the size of the Job's gang as the scheduler does.
    alice.json("ps", "-N", "red")
    # More than there is: it waits, and its condition says so.
    ok(place.rest.post(pods, pod("vast", requests={"cpu": "64"})), 201)
    waiting.until(lambda: told(place, "vast"), "it is told", PATIENCE)
    assert "64 cpu" in alice("why", "-N", "red", "pod/vast").out
    listed = {each["name"]: each for each in alice.json("ps", "-N", "red", "--pods")["items"]}
    assert (listed["high"]["node"], listed["vast"]["phase"]) == ("n1", "Queued")
    explained_as_decided(place, alice)
    ok(place.rest.delete(f"{pods}/high", {"gracePeriodSeconds": 0}))


def explained_as_decided(place: Installation, alice: Cli) -> None:
    """What the server says of a run is what the scheduler decides: it sees quotas, claims,
    disruption budgets and cordons with rights of its own."""
    namespace, policies = "/api/v1/namespaces/red", "/apis/policy/v1/namespaces/red"
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"cpu": "4"}}}
    ok(place.rest.post(f"{namespace}/resourcequotas", quota), 201)
    words = "ResourceQuota red/small leaves"

    def planned(*more: str) -> str:
        return alice("run", "-N", "red", "--dry-run", *more, "-m", "64Mi", "--", "true").err

    waiting.until(lambda: words in planned("-c", "4"), "the server sees the quota", PATIENCE)
    alice("submit", "-N", "red", "-n", "over", "-c", "4", "-m", "64Mi", "--", "true")
    assert words in alice("why", "-N", "red", "over").out

    def decided() -> bool:
        return words in str(place.run("red", "over")["status"].get("message"))

    waiting.until(decided, "the scheduler says the same", PATIENCE)
    ok(place.rest.delete(f"{namespace}/resourcequotas/small"))
    alice("stop", "-N", "red", "over")
    volume = {"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none",
                       "resources": {"requests": {"storage": "1Gi"}}},
              "metadata": {"name": "unbound"}}  # fmt: skip
    ok(place.rest.post(CLAIMS, volume), 201)
    waiting.until(
        lambda: "claim unbound" in planned("--mount", "claim:unbound:/data"),
        "the server sees the claim", PATIENCE,
    )  # fmt: skip
    assert "claim absent does not exist" in planned("--mount", "claim:absent:/data")
    budget = {"metadata": {"name": "keep"}, "spec": {"maxUnavailable": 0, "selector": {}}}
    ok(place.rest.post(f"{policies}/poddisruptionbudgets", budget), 201)
    higher = pod("higher", requests={"cpu": "3500m"}, priorityClassName="higher")
    ok(place.rest.post("/apis/scheduling.k8s.io/v1/priorityclasses", {
        "metadata": {"name": "higher"}, "value": 2000}), 201)  # fmt: skip
    waiting.until(
        lambda: place.rest.post(f"{namespace}/pods", higher).status == 201, "it is taken", PATIENCE
    )
    waiting.until(
        lambda: "PodDisruptionBudgets" in alice("why", "-N", "red", "pod/higher").out,
        "the server sees the budget", PATIENCE,
    )  # fmt: skip
    ok(place.rest.delete(f"{namespace}/pods/higher", {"gracePeriodSeconds": 0}))
    ok(place.rest.delete(f"{policies}/poddisruptionbudgets/keep"))
    ok(place.rest.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": True}}))
    waiting.until(
        lambda: "node n1 is cordoned" in planned("-c", "4"), "the server sees the cordon", PATIENCE
    )
    ok(place.rest.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": None}}))
    members_are_capped(place)


def members_are_capped(place: Installation) -> None:
    """A member's Run has the default priority at most and is preemptible; an administrator of the
    team may ask for more."""
    role = {"command": ["true"], "resources": {"cpu": "100m", "memory": "64Mi"}}

    def asks(who: rest.Rest, name: str, **spec: Any) -> rest.Answer:
        body = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": name},
            "spec": {"roles": [role], **spec},
        }  # fmt: skip
        return who.post(f"{API}/namespaces/red/runs", body, dryRun="All")

    alice = as_user(place.plane, "alice")
    assert asks(alice, "usual", priority=50).status == 201
    for spec in ({"priority": 51}, {"preemptible": False}):
        answer = asks(alice, "first", **spec)
        assert answer.status == 403, answer.summary
        assert "only administrators of a team may" in answer.summary
    group = "rbac.authorization.k8s.io"
    role_ref = {"apiGroup": group, "kind": "ClusterRole", "name": "windlass-admin"}
    subject = {"apiGroup": group, "kind": "User", "name": "alice"}
    binding = {"metadata": {"name": "leads"}, "roleRef": role_ref, "subjects": [subject]}
    ok(place.rest.post(f"/apis/{group}/v1/namespaces/red/rolebindings", binding), 201)

    def allowed() -> bool:
        found = [asks(alice, "first", **s) for s in ({"priority": 90}, {"preemptible": False})]
        return all(answer.status == 201 for answer in found)

    waiting.until(allowed, "an administrator may", PATIENCE)


def bound(place: Installation, name: str) -> str:
    found = place.rest.get(f"/api/v1/namespaces/red/pods/{name}").json
    return str(found.get("spec", {}).get("nodeName", ""))


def told(place: Installation, name: str) -> bool:
    found = place.rest.get(f"/api/v1/namespaces/red/pods/{name}").json
    return bool(found.get("status", {}).get("conditions"))


CLAIMS = "/api/v1/namespaces/red/persistentvolumeclaims"


def volumes(place: Installation, _: Cli, __: Path) -> None:
    """Claims of runs and of external pods that wait for their node: for some a volume is
    made, for the others there is one."""
    for number in range(2):
        ok(place.rest.post("/api/v1/persistentvolumes", {
            "metadata": {"name": f"there-{number}"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "storageClassName": "there", "hostPath": {"path": "/nowhere"},
            }}), 201)  # fmt: skip
    makers = {"later": "test.windlass.dev/nobody", "there": "kubernetes.io/no-provisioner"}
    for name, by in makers.items():
        ok(place.rest.post("/apis/storage.k8s.io/v1/storageclasses", {
            "metadata": {"name": name}, "provisioner": by,
            "volumeBindingMode": "WaitForFirstConsumer"}), 201)  # fmt: skip
        ours, theirs = f"ours-{name}", f"theirs-{name}"
        for each in (ours, theirs):
            ok(place.rest.post(CLAIMS, {
                "metadata": {"name": each},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": name,
                         "resources": {"requests": {"storage": "1Gi"}}}}), 201)  # fmt: skip
        submit(place, f"mounts-{name}", {"mounts": [{"from": f"claim:{ours}", "path": "/data"}]})
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": theirs}}
        made = pod(f"claims-{name}", volumes=[volume])
        ok(place.rest.post("/api/v1/namespaces/red/pods", made), 201)
    for each in ("ours-later", "theirs-later"):
        waiting.until(lambda e=each: _node(place, e), f"a node is chosen for {each}", PATIENCE)
    for each in ("ours-there", "theirs-there"):
        waiting.until(lambda e=each: _is_bound(place, e), f"{each} is bound", PATIENCE)


def _node(place: Installation, claim: str) -> bool:
    found = ok(place.rest.get(f"{CLAIMS}/{claim}"))["metadata"].get("annotations", {})
    return "volume.kubernetes.io/selected-node" in found


def _is_bound(place: Installation, claim: str) -> bool:
    return bool(ok(place.rest.get(f"{CLAIMS}/{claim}"))["status"]["phase"] == "Bound")


def logs(place: Installation, alice: Cli, _: Path) -> None:
    """What a node's disk holds of a run: its progress and its log, which outlives its pod."""
    submit(place, "talks", {"seconds": "5"})
    (made,) = waiting.until(lambda: place.pods("red", "talks"), "it has a pod", PATIENCE)
    uid, name = made["metadata"]["uid"], made["metadata"]["name"]
    job = place.folder / "kubelet/pods" / uid / "volumes/kubernetes.io~empty-dir/run"
    job.mkdir(parents=True)
    (job / "progress.json").write_text('{"fraction": 0.5}')
    os.chown(job / "progress.json", 10001, 10001)
    log = place.folder / "logs/pods" / f"red_{name}_{uid}" / "worker"
    log.mkdir(parents=True)
    (log / "0.log").write_text("2026-01-01T00:00:00.000000000Z stdout F still here\n")

    def held() -> bool:
        return any((place.folder / "logs/windlass").rglob("held.json"))

    waiting.until(held, "it is held", PATIENCE)
    place.reaches("red", "talks", "Succeeded")
    place.rest.delete(f"/api/v1/namespaces/red/pods/{name}", {"gracePeriodSeconds": 0})

    def kept() -> bool:
        path = "/apis/platform.windlass.dev/v1alpha1/namespaces/red/runs/talks/logs"
        return bool(ok(place.rest.get(path))["items"])

    waiting.until(kept, "its log is with the server", PATIENCE)
    assert "still here" in alice("logs", "-N", "red", "talks").out


def usage(place: Installation, alice: Cli, _: Path) -> None:
    """What a node uses, its agent tells."""

    def told() -> bool:
        (node,) = alice.json("top", "nodes")
        return "used" in node["resources"]["cpu"]

    waiting.until(told, "the node is measured", PATIENCE)
