"""Windlass on a cluster with real nodes: scheduler, controllers and server as processes of this
machine, which pods and the cluster's API server reach at the address of the first node.

What an installation writes into the cluster is written here by hand: the engine's facts, the queue
`default`, and the platform API as an aggregated API behind a Service without a selector.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.harness import images, rest, waiting
from tests.harness.balancer import Balancer
from tests.harness.kubelet import Cluster
from tests.harness.processes import Process, Stoppable, free_ports
from windlass.control.model import capabilities
from windlass.install import options
from windlass.install.manifests import rbac, workloads

NAMESPACE = capabilities.NAMESPACE
_SERVICE = "windlass-server"
_ENVIRONMENTS = "environments"
_GROUP, _VERSION = "platform.windlass.dev", "v1alpha1"


@dataclasses.dataclass(frozen=True)
class Shared:
    """Where several servers keep what they keep."""

    storage: str
    keys: Path
    database: str
    servers: int = 2


class Platform(Stoppable):
    """The processes; each may be killed and started again."""

    def __init__(self, cluster: Cluster, folder: Path, shared: Shared | None = None) -> None:
        self.cluster = cluster
        self.folder = folder
        self.kubeconfig = cluster.plane.kubeconfig
        ports = free_ports(shared.servers if shared else 1)
        scheduler, controllers = free_ports(2)
        self.balancer = Balancer(cluster.address, lambda: [(cluster.address, p) for p in ports])
        self._port = self.balancer.port if shared else ports[0]
        names = [f"{_SERVICE}.{NAMESPACE}.svc", cluster.address]
        certificate, key = cluster.plane.issue_server(_SERVICE, names)
        where = [] if shared is None else [
            f"--storage={shared.storage}", f"--storage-keys={shared.keys}",
            f"--ledger={shared.database}",
        ]  # fmt: skip
        self.servers = [
            self._process(
                f"server{number or ''}", "windlass.server", "cluster",
                f"--state={folder / f'server{number or str()}'}", f"--port={port}",
                f"--tls-cert={certificate}", f"--tls-key={key}", *where,
            )
            for number, port in enumerate(ports)
        ]  # fmt: skip
        self.addresses = [f"https://{cluster.address}:{port}" for port in ports]
        self.server = self.servers[0]
        self.scheduler = self._process(
            "scheduler", "windlass.control", "scheduler", f"--listen=127.0.0.1:{scheduler}"
        )
        self.controllers = self._process(
            "controllers", "windlass.control", "controllers", f"--listen=127.0.0.1:{controllers}"
        )

    def start_agents(self) -> None:
        """The node agents as they are installed: a DaemonSet, with no more than its rights. The
        cluster's own scheduler places them."""
        plane = self.cluster.plane
        plane.start_scheduler()
        account = workloads.names.AGENT
        for obj in rbac.objects():
            if obj["metadata"]["name"] == account:
                self._write_object(obj)
        priority = workloads.names.PRIORITY
        self._write(
            "/apis/scheduling.k8s.io/v1/priorityclasses", "scheduling.k8s.io/v1", "PriorityClass",
            priority, value=900000000,
        )  # fmt: skip
        port = plane.url.rpartition(":")[2]
        chosen = options.Options(
            image=images.PLATFORM, api_address=f"{self.cluster.address}:{port}"
        )  # fmt: skip
        for obj in workloads.agents(chosen):
            self._write_object(obj)
        sets = f"/apis/apps/v1/namespaces/{workloads.names.NODES}/daemonsets/{account}"
        waiting.until(lambda: _is_everywhere(plane.rest, sets), "an agent on each node", 60)

    @classmethod
    def start(cls, cluster: Cluster, folder: Path, shared: Shared | None = None) -> Platform:
        made = cls(cluster, folder, shared)
        try:
            made._write_objects()
            if shared:
                made.balancer.start()
            for process in (*made.servers, made.scheduler, made.controllers):
                process.start()
            made.server.wait_ready(made._serves)
            made.start_agents()
        except BaseException:
            made.stop()
            raise
        return made

    def restart_server(self, *, hard: bool = True) -> None:
        """Ends it (kill -9 unless `hard` is false) and starts it on the same files and port."""
        self.server.kill() if hard else self.server.stop()
        self.server.start()
        self.server.wait_ready(self._serves)

    @contextlib.contextmanager
    def without_controllers(self) -> Iterator[None]:
        """They have given their lease back, and come again afterwards."""
        self.controllers.stop()
        try:
            yield
        finally:
            self.controllers.start()

    def stop(self) -> None:
        for process in (self.controllers, self.scheduler, *self.servers):
            process.stop()
        self.balancer.stop()

    # --- helpers

    def _process(self, name: str, module: str, *words: str) -> Process:
        command = [sys.executable, "-m", module, *words, f"--kubeconfig={self.kubeconfig}"]
        return Process(name, command, self.folder / f"{name}.log")

    def _serves(self) -> bool:
        path = f"/apis/{_GROUP}/{_VERSION}/namespaces/default/runs/none/logs"
        answer = self.cluster.plane.rest.get(path)
        return answer.status == 404 and b"none" in answer.body

    def _write_objects(self) -> None:
        authority = self.cluster.plane.ca_file.read_text()
        facts = capabilities.Engine(
            image=images.PLATFORM,
            server=f"https://{self.cluster.address}:{self._port}",
            authority=authority,
            python=images.PYTHON,
            environments=f"claim:{_ENVIRONMENTS}",
            ledger=True,
        )
        for namespace in (NAMESPACE, workloads.names.NODES):
            self._write("/api/v1/namespaces", "v1", "Namespace", namespace)
        configs = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self._write(configs, "v1", "ConfigMap", capabilities.NAME, data=facts.data())
        self._write_environments()
        for obj in rbac.user_roles():
            self._write_object(obj)
        queues = "/apis/windlass.dev/v1alpha1/queues"
        self._write(queues, "windlass.dev/v1alpha1", "Queue", "default", spec={})
        services = f"/api/v1/namespaces/{NAMESPACE}/services"
        port = {"port": 443, "targetPort": self._port, "name": "https"}
        self._write(services, "v1", "Service", _SERVICE, spec={"ports": [port]})
        self._write(
            f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
            "discovery.k8s.io/v1",
            "EndpointSlice",
            _SERVICE,
            labels={"kubernetes.io/service-name": _SERVICE},
            addressType="IPv4",
            ports=[{"name": "https", "port": self._port}],
            endpoints=[{"addresses": [self.cluster.address], "conditions": {"ready": True}}],
        )
        self._write(
            "/apis/apiregistration.k8s.io/v1/apiservices",
            "apiregistration.k8s.io/v1",
            "APIService",
            f"{_VERSION}.{_GROUP}",
            spec={
                "group": _GROUP,
                "version": _VERSION,
                "groupPriorityMinimum": 1000,
                "versionPriority": 10,
                "service": {"name": _SERVICE, "namespace": NAMESPACE, "port": 443},
                "caBundle": base64.b64encode(authority.encode()).decode(),
            },
        )

    def _write_environments(self) -> None:
        """A claim of the namespace `default` on a folder that all nodes can write to at once."""
        folder = self.folder / _ENVIRONMENTS
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        room = {"storage": "1Gi"}
        shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self._write(
            "/api/v1/persistentvolumes", "v1", "PersistentVolume", _ENVIRONMENTS,
            spec={**shared, "capacity": room, "hostPath": {"path": str(folder)}},
        )  # fmt: skip
        self._write(
            "/api/v1/namespaces/default/persistentvolumeclaims", "v1", "PersistentVolumeClaim",
            _ENVIRONMENTS,
            spec={**shared, "resources": {"requests": room}, "volumeName": _ENVIRONMENTS},
        )  # fmt: skip

    def _write_object(self, obj: dict[str, Any]) -> None:
        metadata, kind = obj["metadata"], obj["kind"]
        version = obj["apiVersion"]
        base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        space = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
        path = f"{base}{space}/{kind.lower()}s"
        fields = {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}
        self._write(path, version, kind, metadata["name"], **fields)

    def _write(
        self, path: str, version: str, kind: str, name: str, labels: Any = None, **fields: Any
    ) -> None:
        metadata = {"name": name, "labels": labels or {}}
        body = {"apiVersion": version, "kind": kind, "metadata": metadata} | fields
        answer = self.cluster.plane.rest.post(path, body)
        if answer.status == 409:
            answer = self.cluster.plane.rest.merge(f"{path}/{name}", body)
        if answer.status not in (200, 201):
            raise AssertionError(f"{kind} {name} was refused: {answer.summary}")


def _is_everywhere(api: rest.Rest, path: str) -> bool:
    status = api.get(path).json.get("status", {})
    wanted = status.get("desiredNumberScheduled", 0)
    return bool(wanted) and status.get("numberReady") == wanted
