"""A full, valid object of every served kind: what the fuzz tests bend out of shape."""

from __future__ import annotations

from typing import Any

from windlass.kinds import registry
from windlass.kinds.types.resource import Resource

Json = dict[str, Any]
NAMESPACE = "fuzz"

_CONTAINER: Json = {
    "name": "main",
    "image": "example/image:1",
    "command": ["sleep", "1"],
    "env": [
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    ],
    "ports": [{"containerPort": 80, "name": "http"}],
    "resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"cpu": 1}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
}
_RUN_SPEC: Json = {
    "queue": "default",
    "roles": [
        {
            "name": "worker",
            "command": ["python", "train.py"],
            "replicas": 2,
            "resources": {"cpu": "1", "memory": "1Gi"},
            "env": {"A": "1"},
        }
    ],
}

BODIES: dict[str, Json] = {
    "configmaps": {"data": {"key": "value"}, "binaryData": {"b": "AAA="}},
    "events": {
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": NAMESPACE},
        "reason": "Started", "message": "m", "type": "Normal", "count": 1,
        "lastTimestamp": "2026-01-01T00:00:00Z", "source": {"component": "c"},
    },
    "namespaces": {},
    "nodes": {
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {"capacity": {"cpu": "4"}, "allocatable": {"cpu": "3900m", "memory": "8Gi"}},
    },
    "pods": {
        "spec": {
            "containers": [_CONTAINER], "nodeName": "node-a",
            "terminationGracePeriodSeconds": 0, "volumes": [{"name": "v", "emptyDir": {}}],
            "tolerations": [{"key": "k", "operator": "Exists"}], "restartPolicy": "Never",
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    },
    "secrets": {"type": "Opaque", "data": {"k": "AAA="}},
    "serviceaccounts": {"secrets": [{"name": "s"}]},
    "services": {"spec": {"ports": [{"port": 80, "name": "http"}], "selector": {"a": "b"}}},
    "leases.coordination.k8s.io": {
        "spec": {
            "holderIdentity": "h", "leaseDurationSeconds": 15, "leaseTransitions": 1,
            "renewTime": "2026-01-01T00:00:00.000000Z",
        }
    },
    "clusterrolebindings.rbac.authorization.k8s.io": {
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "windlass-viewer",
        },
        "subjects": [{"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"}],
    },
    "rolebindings.rbac.authorization.k8s.io": {
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
            "name": "windlass-member",
        },
        "subjects": [{"kind": "Group", "name": "g", "apiGroup": "rbac.authorization.k8s.io"}],
    },
    "priorityclasses.scheduling.k8s.io": {"value": 10, "description": "d"},
    "cronruns.windlass.dev": {
        "spec": {
            "schedule": "0 3 * * *", "timeZone": "Europe/Berlin",
            "template": {"spec": _RUN_SPEC},
        }
    },
    "reservations.windlass.dev": {
        "spec": {
            "schedule": "0 20 * * 6", "timeZone": "Europe/Berlin", "duration": "8h",
            "nodes": {"selector": {"row": "b"}},
            "for": {"queues": ["team-a"], "namespaces": ["team-a"], "users": ["ann"]},
            "reason": "a course",
        }
    },
    "pricelists.windlass.dev": {
        "spec": {
            "currency": "EUR", "effectiveFrom": "2099-01-01T00:00:00Z",
            "entries": [
                {"device": "gpu", "model": "a100", "rented": {"perHour": "2.50"}},
                {"device": "machine", "owned": {"purchase": "9000", "life": "1825d", "watts": 400}},
            ],
        }
    },
    "queues.windlass.dev": {"spec": {}},
    "runs.windlass.dev": {"spec": _RUN_SPEC},
}  # fmt: skip

RESOURCES: list[Resource] = [kind.resource for kind in registry.by_key().values()]


def sample(resource: Resource, name: str) -> Json:
    metadata: Json = {
        "name": name,
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "finalizers": ["example.com/hold"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "no-such-uid"}
        ],
    }
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}
    return head | BODIES[resource.key]


def path(resource: Resource, name: str = "", subresource: str = "") -> str:
    root = f"/apis/{resource.api_version}" if resource.group else "/api/v1"
    parts = [f"namespaces/{NAMESPACE}"] if resource.namespaced else []
    parts += [part for part in (resource.plural, name, subresource) if part]
    return "/".join([root, *parts])
