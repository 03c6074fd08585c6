"""The two worlds of the campaign: an embedded engine with an agent and running jobs, and a control
plane of Kubernetes with our server, where pods are objects that no kubelet runs."""

from __future__ import annotations

import base64
import json
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

from tests.contract.objects import ok
from tests.embedded.test_first_log_line import Engine
from tests.harness.control_plane import ControlPlane
from tests.harness.waiting import until
from tests.hostile.attack import API, CORE, PLATFORM, run
from tests.hostile.worlds import ROLES, Caller, World
from tests.kubernetes.parts import Installation
from windlass.install import names
from windlass.kinds import registry

PEOPLE = ("rita", "ada", "bob", "vic", "nora")
_TOKENS = f"{PLATFORM}/tokens"
_UNSEEN = ("events", "leases.coordination.k8s.io")
"""Kinds that the engine itself writes all the time."""


class EmbeddedWorld(World):
    engine = "embedded"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._engine = Engine(folder)
        self._engine.start()
        self.admin = self._engine.server.rest()
        for user in PEOPLE:
            self.callers[user] = Caller(self._token(user)["token"], user)
        expired = self._token("bob", "1s")
        revoked = self._token("bob")
        ok(self.admin.delete(f"{_TOKENS}/{revoked['id']}"))
        self.callers |= {
            "nobody": Caller(), "made-up": Caller("wl_0123456789ab_" + "x" * 43),
            "expired": Caller(expired["token"]), "revoked": Caller(revoked["token"]),
        }  # fmt: skip
        self.make()
        self.values["token"] = ok(self.client("bob").get(_TOKENS))["items"][0]["id"]
        self._start_jobs()
        self._add_machines()
        ended = self.client("expired")
        until(lambda: ended.get("/version").status in (200, 401), "it answers")
        until(lambda: ended.get(f"{CORE}/namespaces").status == 401, "the token has expired")

    def door(self, name: str) -> tuple[str, ssl.SSLContext]:
        del name  # there is one
        assert self.admin.tls is not None
        return self.admin.url, self.admin.tls

    def audited(self) -> Counter[tuple[str, int]]:
        lines = (self._engine.server.state / "audit.log").read_text().splitlines()
        told = [json.loads(line) for line in lines]
        return Counter(
            # Who acts as another is named, too, and is the one who was refused.
            (each.get("by") or each["user"], each["code"])
            for each in told
            if each["code"] in (401, 403)
        )

    def lists(self) -> list[str]:
        kinds = (kind.resource for kind in registry.ALL)
        return [each.path("") for each in kinds if each.key not in _UNSEEN]

    def stop(self) -> None:
        self.admin.close()
        self._engine.stop()

    def _wait_for_rights(self) -> None:
        """A binding counts as soon as its request is answered."""

    def _token(self, user: str, ttl: str = "1h") -> dict[str, Any]:
        made: dict[str, Any] = ok(self.admin.post(_TOKENS, {"user": user, "ttl": ttl}), 201)
        return made

    def _start_jobs(self) -> None:
        """A job of each team that runs as long as the campaign."""
        for namespace, user, name, says in (
            ("blue", "bob", "works", "canary-log"), ("red", "rita", "own", "hello"),
        ):  # fmt: skip
            body = run(name, suspend=False)
            body["spec"]["roles"][0]["command"] = ["sh", "-c", f"echo {says}; sleep 86400"]
            ok(self.client(user).post(f"{API}/namespaces/{namespace}/runs", body), 201)
            path = f"{API}/namespaces/{namespace}/runs/{name}"

            def is_running(path: str = path) -> bool:
                status: Any = ok(self.admin.get(path)).get("status", {})
                return bool(status.get("phase") == "Running")

            until(is_running, f"{name} runs")
            chosen = {"labelSelector": f"windlass.dev/run={name}"}
            (pod,) = ok(self.admin.get(f"{CORE}/namespaces/{namespace}/pods", **chosen))["items"]
            key = "pod" if namespace == "blue" else "own_pod"
            self.values[key], self.values[f"{key}_uid"] = (
                pod["metadata"]["name"], pod["metadata"]["uid"],
            )  # fmt: skip
            self.values["node"] = pod["spec"]["nodeName"]
        log = f"{CORE}/namespaces/blue/pods/{self.values['pod']}/log"
        until(lambda: b"canary-log" in self.admin.get(log).body, "the victim has spoken")

    def _add_machines(self) -> None:
        """Tokens of pods and of nodes; the second node is an object alone."""
        bound = {"kind": "Pod", "name": self.values["own_pod"]}
        path = f"{CORE}/namespaces/red/serviceaccounts/default/token"
        made = ok(self.admin.post(path, {"spec": {"boundObjectRef": bound}}), 201)
        token = made["status"]["token"]
        user = "system:serviceaccount:red:default"
        self.callers["pod"] = Caller(token, user)
        self.callers["pod-tampered"] = Caller(_for_another_pod(token, self.values))
        self.callers["pod-unsigned"] = Caller(token.partition(".")[0] + ".")
        ok(self.admin.post(f"{CORE}/nodes", {"metadata": {"name": "stolen"}}), 201)
        name = "system:node:stolen"
        body = {"user": name, "groups": ["system:nodes"]}
        stolen = ok(self.admin.post(_TOKENS, body), 201)["token"]
        self.callers["node"] = Caller(stolen, name)
        self.values |= {"own_node": "stolen", "other_node": self.values["node"]}


def _for_another_pod(token: str, values: dict[str, str]) -> str:
    """The token with the victim's pod in its claims, and its old signature."""
    claims, _, mac = token.removeprefix("wp_").partition(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    told |= {"namespace": "blue", "pod": values["pod"], "uid": values["pod_uid"]}
    forged = base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()
    return f"wp_{forged}.{mac}"


class KubernetesWorld(World):
    engine = "kubernetes"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.plane = ControlPlane.start(users={user: [] for user in PEOPLE})
        self.admin = self.plane.rest
        self._installation = Installation(self.plane, folder)
        try:
            self._begin()
        except BaseException:
            self.stop()
            raise

    def _begin(self) -> None:
        made = self._installation
        made.install()
        for node in ("n1", "n2"):
            made.add_node(node)
        made.start_server()
        for user in PEOPLE:
            self.callers[user] = Caller(self.plane.tokens[user], user)
        self.callers |= {"nobody": Caller(), "made-up": Caller("x" * 43)}
        self.make()
        self.values |= {"node": "n2", "own_node": "n1", "other_node": "n2", "token": "0123456789ab"}
        self._add_pods()
        self._add_machines()

    def door(self, name: str) -> tuple[str, ssl.SSLContext]:
        if name == "server":
            return self._installation.server_url, ssl._create_unverified_context()
        assert self.plane.rest.tls is not None
        return self.plane.url, self.plane.rest.tls

    def audited(self) -> Counter[tuple[str, int]]:
        raise NotImplementedError("the audit log of the cluster is the cluster's")

    def lists(self) -> list[str]:
        kinds = (kind.resource for kind in registry.ALL)
        ours = [each.path("") for each in kinds if each.key not in _UNSEEN]
        group = "/apis/admissionregistration.k8s.io/v1"
        return [
            *ours, "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/roles", "/apis/apps/v1/daemonsets",
            "/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets",
            "/apis/networking.k8s.io/v1/networkpolicies",
            f"{group}/validatingadmissionpolicies", f"{group}/mutatingadmissionpolicies",
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "/apis/apiregistration.k8s.io/v1/apiservices",
        ]  # fmt: skip

    def stop(self) -> None:
        self._installation.stop()
        self.plane.stop()

    def _wait_for_rights(self) -> None:
        """The API server's authoriser, and each policy, learn of their objects a moment later."""
        runs = {team: f"{API}/namespaces/{team}/runs" for team in ROLES}
        for team, user in (("red", "rita"), ("blue", "bob")):
            who = self.client(user)
            until(lambda w=who, t=team: w.post(runs[t], run("x"), dryRun="All").status == 201,
                  f"{user} may create runs")  # fmt: skip
        rita = self.client("rita")
        for spec in ({"user": "bob"}, {"priority": 90}):
            body = run("x", **spec)
            until(lambda b=body: rita.post(runs["red"], b, dryRun="All").status == 403,
                  f"the policy for {spec} is in force")  # fmt: skip

    def _add_pods(self) -> None:
        """What controllers and nodes would have made of a run of each team."""
        for namespace, node, user in (("blue", "n2", "bob"), ("red", "n1", "rita")):
            name = "works" if namespace == "blue" else "own"
            path = f"{API}/namespaces/{namespace}/runs"
            body = run(name)
            body["metadata"]["finalizers"] = ["windlass.dev/ledger"]
            made = ok(self.client(user).post(path, body), 201)["metadata"]["uid"]
            held = {"attempt": 0, "epoch": 1, "members": {"worker": [{"node": node}]}}
            status = {"status": {"assignment": held, "phase": "Running"}}
            ok(self.admin.merge(f"{path}/{name}/status", status))
            owner = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "name": name,
                     "uid": made, "controller": True}  # fmt: skip
            labels = {"windlass.dev/run": name, "windlass.dev/role": "worker",
                      "windlass.dev/attempt": "0", "windlass.dev/index": "0"}  # fmt: skip
            body = {
                "metadata": {"name": f"{name}-0", "labels": labels, "ownerReferences": [owner]},
                "spec": {"nodeName": node, "containers": [{"name": "worker", "image": "none"}]},
            }
            pods = f"{CORE}/namespaces/{namespace}/pods"
            accounts = f"{CORE}/namespaces/{namespace}/serviceaccounts/default"
            until(lambda a=accounts: self.admin.get(a).status == 200, "there is an account")
            pod = ok(self.admin.post(pods, body), 201)
            key = "pod" if namespace == "blue" else "own_pod"
            self.values |= {key: f"{name}-0", f"{key}_uid": pod["metadata"]["uid"]}
            if namespace == "blue":
                self.values["works_uid"] = made

    def _add_machines(self) -> None:
        user = "system:serviceaccount:red:default"
        self.callers["pod"] = Caller(self._pod_token("windlass"), user)
        self.callers["pod-elsewhere"] = Caller(self._pod_token("elsewhere"))
        self.callers["pod-of-cluster"] = Caller(self._pod_token(""), user)
        self.callers["pod-tampered"] = Caller(_resigned(self.callers["pod"].token, self.values))
        self.callers["pod-gone"] = Caller(self._token_of_a_pod_that_goes())
        self._installation.kubeconfig(names.AGENT, names.NODES, "n1")
        agent = f"system:serviceaccount:{names.NODES}:{names.AGENT}"
        self.callers["node"] = Caller(self.plane.tokens[names.AGENT], agent)
        progress = {"metadata": {"annotations": {"windlass.dev/progress": "{}"}}}
        path = f"{CORE}/namespaces/blue/pods/{self.values['pod']}"
        node = self.client("node")
        until(lambda: node.merge(path, progress, dryRun="All").status == 403, "a policy for agents")

    def _pod_token(self, audience: str, pod: str = "", namespace: str = "red") -> str:
        bound = {"kind": "Pod", "apiVersion": "v1", "name": pod or self.values["own_pod"]}
        spec: dict[str, Any] = {"expirationSeconds": 3600, "boundObjectRef": bound}
        spec |= {"audiences": [audience]} if audience else {}
        path = f"{CORE}/namespaces/{namespace}/serviceaccounts/default/token"
        return str(ok(self.admin.post(path, {"spec": spec}), 201)["status"]["token"])

    def _token_of_a_pod_that_goes(self) -> str:
        pods = f"{CORE}/namespaces/red/pods"
        spec = {"nodeName": "n1", "containers": [{"name": "main", "image": "none"}]}
        ok(self.admin.post(pods, {"metadata": {"name": "leaver"}, "spec": spec}), 201)
        token = self._pod_token("windlass", "leaver")
        ok(self.admin.delete(f"{pods}/leaver", {"gracePeriodSeconds": 0}))
        return token


def _resigned(token: str, values: dict[str, str]) -> str:
    """A pod's token with the victim's pod in its claims, and its old signature."""
    head, claims, mac = token.split(".")
    told = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    told["kubernetes.io"]["namespace"] = "blue"
    told["kubernetes.io"]["pod"] = {"name": values["pod"], "uid": values["pod_uid"]}
    forged = base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()
    return f"{head}.{forged}.{mac}"
