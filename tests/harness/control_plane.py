"""A real Kubernetes control plane on loopback, started in seconds and gone when it is stopped.

Used by the pytest plug-in and by benchmarks. Every control plane has its own certificates, ports
and etcd; nothing of the machine's own Kubernetes configuration is read or written.
"""

from __future__ import annotations

import csv
import json
import secrets
import shutil
import signal
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.harness import build, rest, waiting
from tests.harness.certificates import Authority, write_service_account_keys
from tests.harness.processes import Process, Stoppable, free_ports, remove_at_exit

ADMIN_GROUP = "system:masters"
_IN_MEMORY = Path("/dev/shm")

# These want a cloud.
_CONTROLLERS_OFF = (
    "node-ipam-controller", "node-route-controller", "service-lb-controller",
    "cloud-node-lifecycle-controller",
)  # fmt: skip

# Most nodes of tests have no kubelet: these would taint them and evict their pods. Nobody would
# take back the taint that the API server puts on new nodes, so that is off too.
_NEED_KUBELETS = ("node-lifecycle-controller", "taint-eviction-controller")

_KWOK_CONFIGURATION = {
    "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
    "kind": "KwokConfiguration",
    "options": {
        "podPlayStageParallelism": 16,
        "nodePlayStageParallelism": 16,
        "nodeLeaseParallelism": 4,
        "enableDebuggingHandlers": False,
    },
}


class ControlPlane(Stoppable):
    """etcd, kube-apiserver and, unless switched off, kube-controller-manager."""

    def __init__(
        self,
        *,
        durable: bool = False,
        data_dir: Path | None = None,
        users: Mapping[str, Sequence[str]] | None = None,
        controllers: bool = True,
        audit: bool = False,
        audit_reads: bool = False,
        addresses: Sequence[str] = (),
        kubelets: bool = False,
        apiserver_flags: Sequence[str] = (),
        controller_flags: Sequence[str] = (),
    ) -> None:
        """Prepares files; `start` runs it. `users` (name -> groups) get bearer tokens. Besides
        loopback it answers at `addresses`. With `kubelets` its nodes are real."""
        self.directory = Path(tempfile.mkdtemp(prefix="windlass-control-plane-"))
        remove_at_exit(self.directory)
        self._durable = durable
        self._data_dir = data_dir or self._default_data_dir()
        self._owns_data_dir = data_dir is None
        self._audit, self._audit_reads = audit, audit_reads
        self._addresses = tuple(addresses)
        self._kubelets = kubelets
        self._extra_flags = tuple(apiserver_flags), tuple(controller_flags)
        self._with_controllers = controllers
        self._etcd_port, self._peer_port, self._port, self._manager_port = free_ports(4)
        self.url = f"https://127.0.0.1:{self._port}"
        self._authority = Authority(self.directory, "ca")
        self._front_proxy = Authority(self.directory, "front-proxy-ca")
        self.ca_file = self._authority.certificate
        self._service_account_keys = write_service_account_keys(self.directory)
        everyone = {"admin": [ADMIN_GROUP], **(users or {})}
        self.tokens = {user: secrets.token_urlsafe(24) for user in everyone}
        self._write_tokens(everyone)
        self.admin_token = self.tokens["admin"]
        self.kubeconfig = self.token_kubeconfig("admin")
        self.rest = rest.Rest(
            self.url, ssl.create_default_context(cafile=str(self.ca_file)), self.admin_token
        )
        self.etcd = Process("etcd", self._etcd_command(), self._log("etcd"))
        self.apiserver = Process(
            "kube-apiserver", self._apiserver_command(), self._log("kube-apiserver")
        )
        self.controller_manager = Process(
            "kube-controller-manager", self._manager_command(), self._log("controller-manager")
        )
        self._others: list[Process] = []

    @classmethod
    def start(cls, crds: Path | None = None, **options: Any) -> ControlPlane:
        """A control plane that answers; options as of the constructor.

        Controllers know the kinds of `crds` from their start: the garbage collector looks for
        kinds that come later only every 30 seconds.
        """
        plane = cls(**options)
        try:
            plane.etcd.start()
            plane.etcd.wait_ready(plane._etcd_ready)
            plane._start_apiserver()
            if crds is not None:
                plane.install_crds(crds)
            if plane._with_controllers:
                plane.controller_manager.start()
                plane.controller_manager.wait_ready(plane._controllers_ready)
        except BaseException:
            plane.stop()
            raise
        return plane

    def stop(self) -> None:
        """Ends everything it started and removes its files. May be called twice."""
        for process in (*reversed(self._others), self.controller_manager, self.apiserver):
            process.kill()
        self.etcd.kill()
        self.rest.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._owns_data_dir:
            shutil.rmtree(self._data_dir, ignore_errors=True)

    # --- faults -------------------------------------------------------------------------------

    def stop_apiserver(self) -> None:
        self.apiserver.kill()

    def restart_apiserver(self, *flags: str) -> None:
        """kill -9, then the same server on the same port; returns when it answers again. `flags`
        are said until the next restart."""
        self.apiserver.kill()
        self.apiserver.command = [*self._apiserver_command(), *flags]
        self._start_apiserver()

    def replace_front_proxy(self) -> None:
        """Another authority vouches for the API server before aggregated APIs from now on."""
        self._front_proxy = Authority(self.directory, f"front-proxy-ca-{secrets.token_hex(3)}")
        self.restart_apiserver()

    def metric(self, name: str, *words: str) -> float:
        """The sum of an API server's metric over the lines that hold all the words."""
        page = self.rest.get("/metrics").body.decode()
        lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        chosen = [line for line in lines if all(word in line for word in words)]
        return sum(float(line.rpartition(" ")[2]) for line in chosen)

    def forget_history(self) -> None:
        """Compacts etcd to its present and restarts the API server, whose memory would hide it."""
        etcd = self._etcd_rest()
        header = etcd.post("/v3/kv/range", {"key": "AA=="}).json["header"]
        answer = etcd.post("/v3/kv/compaction", {"revision": header["revision"], "physical": True})
        if answer.status != 200:
            raise RuntimeError(f"etcd did not compact: {answer.summary}")
        self.restart_apiserver()

    def pause(self) -> None:
        """The API server hangs: connections stay open, nothing is answered."""
        self.apiserver.send(signal.SIGSTOP)

    def resume(self) -> None:
        self.apiserver.send(signal.SIGCONT)

    # --- users --------------------------------------------------------------------------------

    def token_kubeconfig(self, user: str) -> Path:
        """A kubeconfig with the bearer token of a user named at the start."""
        return self._write_kubeconfig(user, {"token": self.tokens[user]})

    def certificate_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig with a client certificate for any user; made when asked for."""
        name = f"user-{user.replace(':', '-')}"
        certificate, key = self._authority.issue_client(name, user, groups)
        return self._write_kubeconfig(
            name, {"client-certificate": str(certificate), "client-key": str(key)}
        )

    def issue_server(self, name: str, hosts: Sequence[str]) -> tuple[Path, Path]:
        """Certificate and key files of another server that this control plane's clients trust."""
        return self._authority.issue_server(name, hosts)

    # --- contents -----------------------------------------------------------------------------

    def install_crds(self, path: Path) -> None:
        """Creates or replaces the CRDs of a file, or of all files of a folder; waits until the
        API serves them."""
        files = (
            sorted(path.glob("*.y*ml")) + sorted(path.glob("*.json")) if path.is_dir() else [path]
        )
        documents = [crd for file in files for crd in yaml.safe_load_all(file.read_text()) if crd]
        if not documents:
            raise FileNotFoundError(f"no CRD in {path}")
        for crd in documents:
            self._write_crd(crd)
        for crd in documents:
            waiting.until(lambda c=crd: self._serves(c), f"{crd['metadata']['name']} is served")

    def start_kwok(self) -> Process:
        """Simulated kubelets: all nodes run, and so does every pod that is bound to one."""
        file = self.directory / "kwok.yaml"
        stages = (_runs_if("Node", "NotIn", "Running"), _runs_if("Pod", "In", "Pending"))
        documents = (_KWOK_CONFIGURATION, *stages)
        file.write_text("\n---\n".join(json.dumps(each) for each in documents))
        command: list[str | Path] = [
            build.binary("kwok"), f"--kubeconfig={self.kubeconfig}", f"--config={file}",
            "--manage-all-nodes=true", "--node-lease-duration-seconds=0",
        ]  # fmt: skip
        return self._start_other("kwok", command)

    def start_scheduler(self, profile: Mapping[str, Any] | None = None) -> Process:
        """The stock scheduler, with fields of its KubeSchedulerConfiguration from `profile`."""
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            "clientConnection": {"kubeconfig": str(self.kubeconfig), "qps": 5000, "burst": 5000},
            **(profile or {}),
        }
        file = self.directory / "scheduler.json"
        file.write_text(json.dumps(config))
        return self._start_other(
            "kube-scheduler",
            [build.binary("kube-scheduler"), f"--config={file}", "--secure-port=0"],
        )

    # --- helpers ------------------------------------------------------------------------------

    def _default_data_dir(self) -> Path:
        in_memory = not self._durable and _IN_MEMORY.is_dir()
        parent = _IN_MEMORY if in_memory else self.directory
        folder = Path(tempfile.mkdtemp(prefix="windlass-etcd-", dir=parent))
        remove_at_exit(folder)
        return folder

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _start_other(self, name: str, command: Sequence[str | Path]) -> Process:
        process = Process(name, command, self._log(name))
        self._others.append(process)
        process.start()
        return process

    def _start_apiserver(self) -> None:
        self.rest.close()
        self.apiserver.start()
        self.apiserver.wait_ready(lambda: self._answers("/readyz"))

    def _etcd_ready(self) -> bool:
        return _answers(self._etcd_rest(), "/health")

    def _etcd_rest(self) -> rest.Rest:
        return rest.Rest(f"http://127.0.0.1:{self._etcd_port}", None)

    def _answers(self, path: str) -> bool:
        return _answers(self.rest, path)

    def _controllers_ready(self) -> bool:
        return self._answers("/api/v1/namespaces/default/serviceaccounts/default")

    def _write_tokens(self, users: Mapping[str, Sequence[str]]) -> None:
        with (self.directory / "tokens.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            for user, groups in users.items():
                writer.writerow([self.tokens[user], user, user, ",".join(groups)])

    def _write_kubeconfig(self, name: str, credentials: Mapping[str, str]) -> Path:
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": dict(credentials)}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        }
        path = self.directory / f"{name}.kubeconfig"
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def _etcd_command(self) -> list[str | Path]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self._etcd_port, self._peer_port))
        command: list[str | Path] = [
            build.binary("etcd"), f"--data-dir={self._data_dir}",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}", "--quota-backend-bytes=8589934592",
        ]  # fmt: skip
        return command if self._durable else [*command, "--unsafe-no-fsync"]

    def _apiserver_command(self) -> list[str | Path]:
        hosts = ("localhost", "127.0.0.1", "10.96.0.1", "kubernetes.default.svc", *self._addresses)
        certificate, key = self._authority.issue_server("apiserver", hosts)
        kubelet_certificate, kubelet_key = self._authority.issue_client(
            "apiserver-kubelet", "apiserver-kubelet", [ADMIN_GROUP]
        )
        private, public = self._service_account_keys
        issuer = "https://kubernetes.default.svc"
        return [
            build.binary("kube-apiserver"), f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={'0.0.0.0' if self._addresses else '127.0.0.1'}",
            f"--secure-port={self._port}",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}",
            f"--client-ca-file={self.ca_file}", f"--token-auth-file={self.directory}/tokens.csv",
            "--service-cluster-ip-range=10.96.0.0/16", f"--service-account-issuer={issuer}",
            f"--service-account-key-file={public}", f"--service-account-signing-key-file={private}",
            f"--api-audiences={issuer}",
            f"--kubelet-client-certificate={kubelet_certificate}",
            f"--kubelet-client-key={kubelet_key}",
            "--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC",
            "--allow-privileged=true", "--event-ttl=10m", "--anonymous-auth=false",
            *([] if self._kubelets else ["--disable-admission-plugins=TaintNodesByCondition"]),
            "--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000",
            *self._aggregation_flags(), *self._audit_flags(), *self._extra_flags[0],
        ]  # fmt: skip

    def _aggregation_flags(self) -> list[str]:
        """With these the server proxies to aggregated APIs and tells them who called."""
        certificate, key = self._front_proxy.issue_client("front-proxy", "front-proxy-client")
        return [
            f"--requestheader-client-ca-file={self._front_proxy.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={certificate}",
            f"--proxy-client-key-file={key}",
            "--enable-aggregator-routing=true",
        ]

    def _audit_flags(self) -> list[str]:
        if not self._audit:
            return []
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                *(
                    []
                    if self._audit_reads
                    else [{"level": "None", "verbs": ["get", "list", "watch"]}]
                ),
                {"level": "Metadata"},
            ],
        }
        file = self.directory / "audit-policy.json"
        file.write_text(json.dumps(policy))
        return [f"--audit-policy-file={file}", f"--audit-log-path={self.directory}/audit.log"]

    def _manager_command(self) -> list[str | Path]:
        user = "system:kube-controller-manager"
        kubeconfig = self.certificate_kubeconfig(user)
        names = _CONTROLLERS_OFF if self._kubelets else _CONTROLLERS_OFF + _NEED_KUBELETS
        off = ",".join(f"-{name}" for name in names)
        return [
            build.binary("kube-controller-manager"), f"--kubeconfig={kubeconfig}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--service-account-private-key-file={self._service_account_keys[0]}",
            f"--root-ca-file={self.ca_file}", f"--cluster-signing-cert-file={self.ca_file}",
            f"--cluster-signing-key-file={self._authority.key}",
            "--use-service-account-credentials=true", "--leader-elect=false",
            f"--secure-port={self._manager_port}", "--bind-address=127.0.0.1",
            f"--cert-dir={self.directory}/controller-manager",
            "--kube-api-qps=500", "--kube-api-burst=1000", f"--controllers=*,{off}",
            *self._extra_flags[1],
        ]  # fmt: skip

    def _write_crd(self, crd: dict[str, Any]) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        answer = self.rest.post(path, crd)
        if answer.status == 409:
            one = f"{path}/{crd['metadata']['name']}"
            answer = self.rest.merge(one, crd)
        if answer.status not in (200, 201):
            raise AssertionError(f"{crd['metadata']['name']} was refused: {answer.summary}")

    def _serves(self, crd: dict[str, Any]) -> bool:
        """Whether every version of the kind can be listed (429 and 404 come first)."""
        spec = crd["spec"]
        return all(
            self._answers(f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}")
            for version in spec["versions"]
            if version["served"]
        )


def _answers(client: rest.Rest, path: str) -> bool:
    try:
        return client.get(path).status == 200
    except OSError:
        return False


def _runs_if(kind: str, operator: str, phase: str) -> dict[str, Any]:
    """A stage of KWOK: what is in such a phase runs at once."""
    waits = {"key": ".status.phase", "operator": operator, "values": [phase]}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": f"{kind.lower()}-running"},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": [waits]},
            "next": {"statusTemplate": "phase: Running"},
        },
    }
