"""What runs: Deployments of scheduler and controllers, the server and its volume, node agents.

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
"""Where the image has its Python: deploy/Containerfile."""
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


def control(options: Options, part: str) -> Iterator[Object]:
    """A Deployment of the scheduler or the controllers: one leads, the other stands by."""
    word = part.removeprefix("windlass-")
    container = _container(options, part, ["-m", "windlass.control", word])
    container["ports"] = [{"name": "health", "containerPort": _HEALTH}]
    container |= _probes("/healthz", "/readyz", "health", "HTTP")
    yield from _standing(word, part, _REPLICAS, _pod(options, part, word, container))


def _standing(word: str, part: str, replicas: int, template: Object) -> Iterator[Object]:
    """A Deployment whose pods go one at a time."""
    yield {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": names.metadata(part, word, names.SYSTEM),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": names.selector(word)},
            # A new one stands by before an old one goes: there is always somebody.
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
    """One server with a volume, or several that keep nothing of their own. `certificate` changes
    with the certificate: so does the pod."""
    word = "server"
    yield {
        "apiVersion": "v1", "kind": "Service",
        "metadata": names.metadata(names.SERVER, word, names.SYSTEM),
        "spec": {
            "selector": names.selector(word),
            "ports": [{"name": "https", "port": 443, "targetPort": _API, "protocol": "TCP"}],
        },
    }  # fmt: skip
    arguments = [
        "-m", "windlass.server", "cluster", "--state", _STATE, "--port", str(_API),
        "--tls-cert", f"{_TLS}/tls.crt", "--tls-key", f"{_TLS}/tls.key",
    ]  # fmt: skip
    if options.storage:
        arguments += ["--storage", options.storage, "--storage-keys", _KEYS]
    container = _container(options, names.SERVER, arguments)
    container["ports"] = [{"name": "https", "containerPort": _API}]
    container["volumeMounts"] += [
        {"name": "state", "mountPath": _STATE},
        {"name": "tls", "mountPath": _TLS, "readOnly": True},
    ]
    if (chosen := options.ledger_key()) is not None:
        # By reference: the address holds a password, and is in no object of ours.
        source = {"secretKeyRef": {"name": chosen[0], "key": chosen[1]}}
        container["env"].append({"name": service.VARIABLE, "valueFrom": source})
    container |= _probes("/livez", "/readyz", "https", "HTTPS")
    template = _pod(options, names.SERVER, word, container)
    template["metadata"]["annotations"] = {
        "windlass.dev/certificate": hashlib.sha256(certificate.encode()).hexdigest()[:16]
    }
    template["spec"]["volumes"].append(
        {"name": "tls", "secret": {"secretName": names.SERVER_TLS, "defaultMode": 0o440}}
    )
    yield from _sharing(options, template) if options.storage else _alone(options, template)


def _sharing(options: Options, template: Object) -> Iterator[Object]:
    """Any number of servers, each like the others: what they keep is in the storage and in
    PostgreSQL."""
    spec, (container,) = template["spec"], template["spec"]["containers"]
    container["volumeMounts"].append({"name": "keys", "mountPath": _KEYS, "readOnly": True})
    # Logs that are read are fetched there for as long as that takes.
    container["env"].append({"name": "TMPDIR", "value": _STATE})
    spec["volumes"] += [
        {"name": "state", "emptyDir": {"sizeLimit": "8Gi"}},
        {"name": "keys", "secret": {"secretName": options.storage_secret, "defaultMode": 0o440}},
    ]
    yield from _standing("server", names.SERVER, int(options.replicas), template)


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
    """One on every node, tainted ones too. It reads what kubelet and Runs' pods write there: as
    root, because that is whose it is, with no more than the right to read what jobs have closed."""
    word = "agent"
    ready = "/tmp/ready"  # noqa: S108 - in a volume of its own
    arguments = ["-m", "windlass.agent", "cluster", "--ready", ready, "--cgroups", _CGROUPS]
    container = _container(options, names.AGENT, arguments)
    container["readinessProbe"] = {"exec": {"command": ["test", "-e", ready]}, "periodSeconds": 2}
    container["env"].append(
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    )
    # NVIDIA's container runtime, where it is the node's, then shows the agent nvidia-smi.
    said = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "utility"}
    container["env"] += [{"name": name, "value": value} for name, value in said.items()]
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
    template = _pod(options, names.AGENT, word, container)
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


def _pod(options: Options, part: str, word: str, container: Object) -> Object:
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
        # Not both on one node, if there are two.
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


def _container(options: Options, part: str, arguments: list[str]) -> Object:
    # Kubernetes says both itself; where its service network leads nowhere, the options do.
    host, _, port = options.api_address.rpartition(":")
    said = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port} if host else {}
    return {
        "name": part.removeprefix("windlass-"),
        "image": options.image,
        "command": [PYTHON, *arguments],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108
            *({"name": name, "value": value} for name, value in said.items()),
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
