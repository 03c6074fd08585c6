"""The workloads: Deployments of scheduler and controllers, the server and its volume, node agents.

All pods of windlass-system fit the restricted Pod Security Standard: no root, no capability, a
file system that cannot be written to but where a volume says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from windlass.install import names
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.ledger import service

PYTHON = "/usr/local/bin/python3"
"""Path of Python in the image (deploy/Containerfile)."""
USER = 10001
_HEALTH, _API = 8080, 8443
_REPLICAS = 2
_STATE, _TLS, _KEYS = "/var/lib/windlass", "/etc/windlass/tls", "/etc/windlass/storage"
_CGROUPS = "/host/cgroup"
_RESOURCES = {
    names.SCHEDULER: {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
    names.CONTROLLERS: {
        "requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "4Gi"},
    },
    names.SERVER: {"requests": {"cpu": "250m", "memory": "256Mi"}, "limits": {"memory": "4Gi"}},
    names.AGENT: {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
}  # fmt: skip
"""The working set of 5,000 nodes and 50,000 pods is below these limits."""


def control(options: Options, part: str, certificate: str) -> Iterator[Object]:
    """A Deployment of the scheduler or the controllers: one leader and one standby; and a Service,
    whose endpoints Prometheus scrapes. `certificate`: of /metrics."""
    word = part.removeprefix("windlass-")
    arguments = [
        "-m", "windlass.control", word, "--metrics-listen", f"0.0.0.0:{_API}",
        "--tls-cert", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key",
    ]  # fmt: skip
    container = container_of(options, part, arguments)
    container["ports"] = [
        {"name": "health", "containerPort": _HEALTH},
        {"name": names.METRICS_PORT, "containerPort": _API},
    ]
    container["volumeMounts"].append({"name": "tls", "mountPath": _TLS, "readOnly": True})
    container |= _probes("/healthz", "/readyz", "health", "HTTP")
    template = pod_of(options, part, word, container)
    _add_certificate(template, names.METRICS_TLS, certificate)
    port = {"name": names.METRICS_PORT, "port": 443, "targetPort": _API, "protocol": "TCP"}
    yield {
        "apiVersion": "v1", "kind": "Service",
        "metadata": names.metadata(part, word, names.SYSTEM),
        "spec": {"selector": names.selector(word), "ports": [port]},
    }  # fmt: skip
    yield from _deployment(word, part, _REPLICAS, template)


def _add_certificate(template: Object, secret: str, certificate: str) -> None:
    """Mounted, and named in an annotation: pods are replaced when it changes."""
    template["metadata"]["annotations"] = {
        "windlass.dev/certificate": hashlib.sha256(certificate.encode()).hexdigest()[:16]
    }
    template["spec"]["volumes"].append(
        {"name": "tls", "secret": {"secretName": secret, "defaultMode": 0o440}}
    )


def _deployment(word: str, part: str, replicas: int, template: Object) -> Iterator[Object]:
    """A Deployment whose pods are replaced one at a time."""
    yield {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": names.metadata(part, word, names.SYSTEM),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.selector(word)},
            # A new pod is ready before an old one stops: one is always running.
            "strategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": template,
        },
    }  # fmt: skip
    yield {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": names.metadata(part, word, names.SYSTEM),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(word)}},
    }  # fmt: skip


def server(options: Options, certificate: str) -> Iterator[Object]:
    """One server with a volume, or several stateless ones. `certificate` is a hash of the
    certificate: pods are replaced when it changes."""
    word = "server"
    yield {
        "apiVersion": "v1", "kind": "Service",
        "metadata": names.metadata(names.SERVER, word, names.SYSTEM),
        "spec": {
            "selector": names.selector(word),
            "ports": [{"name": names.API_PORT, "port": 443, "targetPort": _API, "protocol": "TCP"}],
        },
    }  # fmt: skip
    arguments = [
        "-m", "windlass.server", "cluster", "--state", _STATE, "--port", str(_API),
        "--tls-cert", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key",
    ]  # fmt: skip
    if options.storage:
        arguments += ["--storage", options.storage, "--storage-keys", _KEYS]
    container = container_of(options, names.SERVER, arguments)
    container["ports"] = [{"name": names.API_PORT, "containerPort": _API}]
    container["volumeMounts"] += [
        {"name": "state", "mountPath": _STATE},
        {"name": "tls", "mountPath": _TLS, "readOnly": True},
    ]
    if (chosen := options.ledger_key()) is not None:
        # By reference: the address contains a password, which no other object may have.
        source = {"secretKeyRef": {"name": chosen[0], "key": chosen[1]}}
        container["env"].append({"name": service.VARIABLE, "valueFrom": source})
    container |= _probes("/livez", "/readyz", names.API_PORT, "HTTPS")
    template = pod_of(options, names.SERVER, word, container)
    _add_certificate(template, names.SERVER_TLS, certificate)
    yield from _sharing(options, template) if options.storage else _alone(options, template)


def _sharing(options: Options, template: Object) -> Iterator[Object]:
    """Stateless servers: their data is in the S3 storage and in PostgreSQL."""
    spec, (container,) = template["spec"], template["spec"]["containers"]
    container["volumeMounts"].append({"name": "keys", "mountPath": _KEYS, "readOnly": True})
    # Archived logs are downloaded there while they are read.
    container["env"].append({"name": "TMPDIR", "value": _STATE})
    spec["volumes"] += [
        {"name": "state", "emptyDir": {"sizeLimit": "8Gi"}},
        {"name": "keys", "secret": {"secretName": options.storage_secret, "defaultMode": 0o440}},
    ]
    yield from _deployment("server", names.SERVER, int(options.replicas), template)


def _alone(options: Options, template: Object) -> Iterator[Object]:
    claim: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": options.storage_size}},
    }
    if options.storage_class:
        claim["storageClassName"] = options.storage_class
    yield {
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": names.metadata(names.SERVER, "server", names.SYSTEM),
        "spec": {
            "replicas": 1,  # more would each have files of their own
            "serviceName": names.SERVER,
            # With OrderedReady a pod that never became ready (an image that cannot be pulled) is
            # never replaced by one of a corrected template.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": names.selector("server")},
            "template": template,
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "metadata": {"name": "state"}, "spec": claim,
                }
            ],
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Retain", "whenScaled": "Retain",
            },
        },
    }  # fmt: skip


def agents(options: Options) -> Iterator[Object]:
    """The DaemonSet of node agents, on all nodes including tainted ones. It reads files of kubelet
    and of Runs' pods: as root, because root owns them, with the one capability to read files that
    jobs have made private."""
    word = "agent"
    ready = "/tmp/ready"  # noqa: S108 - in a volume of its own
    arguments = ["-m", "windlass.agent", "cluster", "--ready", ready, "--cgroups", _CGROUPS]
    container = container_of(options, names.AGENT, arguments)
    container["readinessProbe"] = {"exec": {"command": ["test", "-e", ready]}, "periodSeconds": 2}
    container["env"].append(
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    )
    # With these, NVIDIA's container runtime mounts nvidia-smi into the agent's container.
    nvidia = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    container["env"] += [{"name": name, "value": value} for name, value in nvidia.items()]
    container["securityContext"]["capabilities"]["add"] = ["DAC_READ_SEARCH"]
    container["volumeMounts"] += [
        {"name": "logs", "mountPath": "/var/log"},
        {
            "name": "volumes", "mountPath": "/var/lib/kubelet/pods", "readOnly": True,
            "mountPropagation": "HostToContainer",
        },
        {"name": "devices", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True},
        {
            "name": "cgroups", "mountPath": _CGROUPS, "readOnly": True,
            "recursiveReadOnly": "IfPossible",
        },
    ]  # fmt: skip
    template = pod_of(options, names.AGENT, word, container)
    spec = template["spec"]
    del spec["topologySpreadConstraints"]
    spec["securityContext"] = {
        "runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    spec["tolerations"] = [{"operator": "Exists"}]
    spec["volumes"] += [
        {"name": "logs", "hostPath": {"path": "/var/log", "type": "Directory"}},
        {
            "name": "volumes",
            "hostPath": {"path": "/var/lib/kubelet/pods", "type": "Directory"},
        },
        {
            "name": "devices",
            "hostPath": {"path": "/var/lib/kubelet/pod-resources", "type": "DirectoryOrCreate"},
        },
        {"name": "cgroups", "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"}},
    ]  # fmt: skip
    yield {
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": names.metadata(names.AGENT, word, names.NODES),
        "spec": {
            "selector": {"matchLabels": names.selector(word)},
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%"},
            },
            "template": template,
        },
    }  # fmt: skip


def pod_of(options: Options, part: str, word: str, container: Object) -> Object:
    spec: Object = {
        "serviceAccountName": part,
        "automountServiceAccountToken": True,
        "priorityClassName": names.PRIORITY,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {
            "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # On different nodes if possible.
        "topologySpreadConstraints": [
            {
                "maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": names.selector(word)},
            }
        ],
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}}],
    }  # fmt: skip
    if options.pull_secret:
        spec["imagePullSecrets"] = [{"name": options.pull_secret}]
    return {"metadata": {"labels": names.labels(word)}, "spec": spec}


def container_of(options: Options, part: str, arguments: list[str]) -> Object:
    # Kubernetes sets both; the options replace them if the service network is not reachable.
    host, _, port = options.api_address.rpartition(":")
    given = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port} if host else {}
    return {
        "name": part.removeprefix("windlass-"),
        "image": options.image,
        "command": [PYTHON, *arguments],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            *({"name": name, "value": value} for name, value in given.items()),
        ],
        "resources": _RESOURCES[part],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probes(alive: str, ready: str, port: str, scheme: str) -> Object:
    def get(path: str) -> Object:
        return {"path": path, "port": port, "scheme": scheme}

    return {
        "livenessProbe": {
            "httpGet": get(alive), "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 6,
        },
        "readinessProbe": {
            "httpGet": get(ready), "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 3,
        },
        "startupProbe": {
            "httpGet": get(alive), "periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 60,
        },
    }  # fmt: skip
