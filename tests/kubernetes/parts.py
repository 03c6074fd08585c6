"""An installation whose parts are processes of the test: each with the token of its ServiceAccount.

The node's part is played by the test: it reports what becomes of pods.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.contract.objects import ok
from tests.harness import rest, waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import scrape
from tests.harness.processes import Process, free_ports
from tests.kubernetes.conftest import Cli, add_default_class
from windlass.install import names

PATIENCE = 240
API = "/apis/windlass.dev/v1alpha1"
PLATFORM = "/apis/platform.windlass.dev/v1alpha1"
SERVICE = "/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.platform.windlass.dev"


class Part:
    """One process of ours."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        url: str,
        *,
        metrics_url: str,
        token: str,
    ) -> None:
        self._url, self._token = url, token
        self.metrics_url = f"{metrics_url}/metrics"
        log = folder / f"{name}-{url.rpartition(':')[2]}.log"
        self.process = Process(name, [sys.executable, "-m", *command], log)
        self.process.start()
        self.process.wait_ready(lambda: self.says("/readyz") == "ok")

    def says(self, path: str) -> str:
        try:
            # Whose certificate it is does not matter here: it answers, or it does not.
            trust = ssl._create_unverified_context()
            with urllib.request.urlopen(self._url + path, context=trust) as answer:
                return str(answer.read().decode())
        except OSError as problem:
            return str(problem)

    def metrics(self) -> str:
        return scrape(self.metrics_url, self._token)

    def leads(self) -> bool:
        return any(
            line.startswith("windlass_leading{") and line.endswith(" 1")
            for line in self.metrics().splitlines()
        )


class Installation:
    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder, self.rest = plane, folder, plane.rest
        self.parts: list[Part] = []
        self._agent: Process | None = None
        self.address = _own_address()

    def install(self, *more: str) -> None:
        add_default_class(self.plane)
        Cli(self.plane.kubeconfig).json("install", "--no-wait", *more)

    def kubeconfig(self, account: str, namespace: str = names.SYSTEM, node: str = "") -> Path:
        """With the token of a ServiceAccount, and no other right. `node`: where it is used, which
        a pod's token says too."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        where = {"kind": "Node", "apiVersion": "v1", "name": node}
        spec = {"expirationSeconds": 7200} | ({"boundObjectRef": where} if node else {})
        token = ok(self.rest.post(path, {"spec": spec}), 201)
        self.plane.tokens[account] = token["status"]["token"]
        return self.plane.token_kubeconfig(account)

    def start(self, part: str, kubeconfig: Path | None = None) -> Part:
        """The scheduler or the controllers."""
        port, metrics = free_ports(2)
        known = kubeconfig or self.kubeconfig(f"windlass-{part}")
        certificate, key = self._certificate(names.METRICS_TLS)
        command = [
            "windlass.control", part, "--kubeconfig", known, "--listen", f"127.0.0.1:{port}",
            "--metrics-listen", f"127.0.0.1:{metrics}", "--tls-cert", certificate, "--tls-key", key,
        ]  # fmt: skip
        where = f"http://127.0.0.1:{port}"
        exposed = f"https://127.0.0.1:{metrics}"
        made = Part(
            part, command, self.folder, where, metrics_url=exposed, token=self.plane.admin_token
        )
        return self._add(made)

    def start_server(self) -> Part:
        """The server, where the API server reaches it; returns when it does."""
        (port,) = free_ports(1)
        certificate, key = self._certificate(names.SERVER_TLS)
        command = [
            "windlass.server", "cluster", "--state", self.folder / "state",
            "--kubeconfig", self.kubeconfig(names.SERVER), "--port", str(port),
            "--tls-cert", certificate, "--tls-key", key,
        ]  # fmt: skip
        self._route(port)
        self.server_url = f"https://{self.address}:{port}"
        made = Part(
            "server", command, self.folder, self.server_url,
            metrics_url=self.server_url, token=self.plane.admin_token,
        )  # fmt: skip
        part = self._add(made)
        waiting.until(self._available, "the API server reaches it", PATIENCE)
        return part

    def start_agent(self, node: str) -> Process:
        """An agent whose node's disk is a folder of the test: `kubelet` and `logs/pods` in it."""
        for each in ("kubelet/pods", "logs/pods"):
            (self.folder / each).mkdir(parents=True)
        ready = self.folder / "agent-ready"
        command = [
            sys.executable, "-m", "windlass.agent", "cluster", "--node", node,
            "--kubeconfig", self.kubeconfig(names.AGENT, names.NODES, node),
            "--logs", self.folder / "logs/pods", "--state", self.folder / "logs/windlass",
            "--kubelet", self.folder / "kubelet", "--ready", ready,
        ]  # fmt: skip
        self._agent = Process("agent", command, self.folder / "agent.log")
        self._agent.start()
        self._agent.wait_ready(ready.exists)
        return self._agent

    def stop(self) -> None:
        if self._agent is not None:
            self._agent.stop()
        for part in self.parts:
            part.process.stop()

    def complaints(self) -> list[str]:
        """Lines of the parts' logs that say that something was not allowed."""
        return [
            line
            for part in self.parts
            for line in part.process.log.read_text().splitlines()
            if "forbidden" in line.lower()
        ]

    # --- objects

    def add_node(self, name: str = "n1") -> None:
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "20"}
        ready = {"type": "Ready", "status": "True"}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        ok(self.rest.post("/api/v1/nodes", {"metadata": {"name": name}, "status": status}), 201)

    def add_team(self, name: str, user: str, role: str = "windlass-member") -> None:
        ok(self.rest.post("/api/v1/namespaces", {"metadata": {"name": name}}), 201)
        self.bind(name, user, role)

    def bind(self, name: str, user: str, role: str) -> None:
        """Makes a person one of a team."""
        group = "rbac.authorization.k8s.io"
        body = {
            "apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        }  # fmt: skip
        ok(self.rest.post(f"/apis/{group}/v1/namespaces/{name}/rolebindings", body), 201)

    def run(self, namespace: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = ok(self.rest.get(f"{API}/namespaces/{namespace}/runs/{name}"))
        return found

    def pods(self, namespace: str, run: str) -> list[dict[str, Any]]:
        chosen = f"windlass.dev/run={run}"
        listed = self.rest.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=chosen)
        found: list[dict[str, Any]] = ok(listed)["items"]
        return found

    def reaches(self, namespace: str, name: str, phase: str) -> dict[str, Any]:
        def there() -> Any:
            found = self.run(namespace, name)
            return found if found["status"]["phase"] == phase else None

        found: dict[str, Any] = waiting.until(there, f"{name} is {phase}", PATIENCE)
        return found

    def report(self, namespace: str, run: str, **status: Any) -> None:
        """What a node says of the pods of a run."""
        try:
            pods = waiting.until(lambda: self.pods(namespace, run), "it has pods", PATIENCE)
        except AssertionError as problem:
            told = self.complaints() or [part.process.log_tail(5) for part in self.parts]
            status = self.run(namespace, run)["status"]
            raise AssertionError(f"{problem}: {status}\n" + "\n".join(told[-5:])) from None
        for pod in pods:
            path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/status"
            ok(self.rest.merge(path, {"status": status}))

    # --- helpers

    def _certificate(self, secret: str) -> tuple[Path, Path]:
        """The files of a Secret, where a pod has its volume."""
        path = f"/api/v1/namespaces/{names.SYSTEM}/secrets/{secret}"
        data = ok(self.rest.get(path))["data"]
        folder = self.folder / secret
        folder.mkdir(exist_ok=True)
        for name in ("tls.crt", "tls.key"):
            (folder / name).write_bytes(base64.b64decode(data[name]))
        return folder / "tls.crt", folder / "tls.key"

    def _add(self, part: Part) -> Part:
        self.parts.append(part)
        return part

    def _route(self, port: int) -> None:
        """In the place of the pod that the Service would choose."""
        body = {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {
                "name": "server-of-the-test",
                "labels": {"kubernetes.io/service-name": names.SERVER},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": True}}],
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }  # fmt: skip
        slices = f"/apis/discovery.k8s.io/v1/namespaces/{names.SYSTEM}/endpointslices"
        self.rest.delete(f"{slices}/server-of-the-test")
        ok(self.rest.post(slices, body), 201)

    def _available(self) -> bool:
        conditions = ok(self.rest.get(SERVICE)).get("status", {}).get("conditions", ())
        return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)


def _own_address() -> str:
    """An address of this machine that is not loopback: Kubernetes takes no other as an endpoint."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("203.0.113.1", 9))  # nothing is sent
        return str(probe.getsockname()[0])


def as_user(plane: ControlPlane, user: str) -> rest.Rest:
    return rest.Rest(plane.url, plane.rest.tls, plane.tokens[user])


def json_of(answer: rest.Answer) -> Any:
    return json.loads(answer.body)
