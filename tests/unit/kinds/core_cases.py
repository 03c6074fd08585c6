"""Objects of Kubernetes' own kinds and the fields that kube-apiserver refuses in them."""

from __future__ import annotations

from typing import Any

from windlass.kinds.types import core
from windlass.kinds.types.meta import Object

Json = dict[str, Any]


def build(kind: type[Object], name: str = "sample", **body: Any) -> Json:
    resource = kind.resource
    metadata = {"name": name} | ({"namespace": "default"} if resource.namespaced else {})
    head = {"apiVersion": resource.api_version, "kind": resource.kind}
    return head | {"metadata": metadata | body.pop("metadata", {})} | body


def pod(*, metadata: Json | None = None, container: Json | None = None, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "busybox:1"} | (container or {})]
    return build(core.Pod, metadata=metadata or {}, spec={"containers": containers} | spec)


def config_map(**body: Any) -> Json:
    return build(core.ConfigMap, **body)


def secret(**body: Any) -> Json:
    return build(core.Secret, **body)


def service(**spec: Any) -> Json:
    return build(core.Service, spec={"ports": [{"port": 80}]} | spec)


def binding(**body: Any) -> Json:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subjects = [{"kind": "User", "name": "alice"}]
    return build(core.RoleBinding, **({"roleRef": role, "subjects": subjects} | body))


GOOD: dict[str, Json] = {
    "pod": pod(),
    "pod with init container and volume": pod(
        initContainers=[{"name": "first", "image": "busybox", "restartPolicy": "Always"}],
        volumes=[{"name": "tmp", "emptyDir": {}}], restartPolicy="Never",
        container={"volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                   "resources": {"limits": {"cpu": 0.5, "memory": "1Gi"}}},
    ),
    "pod with odd labels": pod(metadata={"labels": {"a.b/C_d": "", "x": "A.b-c_9"}}),
    "pod with odd env": pod(container={"env": [{"name": "a-b.c", "value": "1"}]}),
    "config map": config_map(data={"a.b-c_D": "x"}, binaryData={"b": "AAEC"}),
    "secret": secret(stringData={"a": "b"}, data={"c": "ZA=="}),
    "service": service(), "headless service": service(clusterIP="None", ports=[]),
    "lease": build(core.Lease, spec={"leaseDurationSeconds": 15,
                                           "renewTime": "2026-01-01T10:20:00.000000Z"}),
    "priority class": build(core.PriorityClass, value=5),
    "role binding": binding(),
    "role binding with a free name": binding() | {"metadata": {"name": "a:b_C",
                                                               "namespace": "default"}},
    "node": build(core.Node, spec={"taints": [{"key": "a/b", "effect": "NoSchedule"}]}),
    "namespace": build(core.Namespace, "some-team"),
    "event": build(core.Event, involvedObject={"namespace": "default", "name": "x"}),
}  # fmt: skip

BAD: dict[str, tuple[Json, str]] = {
    "name of a pod": (pod(metadata={"name": "Pod"}), "metadata.name"),
    "long name of a pod": (pod(metadata={"name": "a" * 254}), "metadata.name"),
    "name of a namespace": (build(core.Namespace, "a.b"), "metadata.name"),
    "name of a service": (build(core.Service, "a.b", spec={"ports": [{"port": 1}]}),
                          "metadata.name"),
    "name of a role binding": (binding() | {"metadata": {"name": "a%b", "namespace": "default"}},
                               "metadata.name"),
    "key of a label": (pod(metadata={"labels": {"-a": "x"}}), "metadata.labels"),
    "prefix of a label": (pod(metadata={"labels": {"A/a": "x"}}), "metadata.labels"),
    "value of a label": (pod(metadata={"labels": {"a": "b c"}}), "metadata.labels"),
    "long value of a label": (pod(metadata={"labels": {"a": "b" * 64}}), "metadata.labels"),
    "key of an annotation": (pod(metadata={"annotations": {"a b": "x"}}), "metadata.annotations"),
    "no containers": (pod(containers=[]), "spec.containers"),
    "no image": (pod(containers=[{"name": "a"}]), "spec.containers[0].image"),
    "no container name": (pod(container={"name": ""}), "spec.containers[0].name"),
    "name of a container": (pod(container={"name": "A"}), "spec.containers[0].name"),
    "two containers of one name": (pod(containers=[{"name": "a", "image": "x"}] * 2),
                                   "spec.containers[1].name"),
    "restart policy": (pod(restartPolicy="never"), "spec.restartPolicy"),
    "pull policy": (pod(container={"imagePullPolicy": "never"}),
                    "spec.containers[0].imagePullPolicy"),
    "container port": (pod(container={"ports": [{"containerPort": 70000}]}),
                       "spec.containers[0].ports[0].containerPort"),
    "deadline": (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds"),
    "request above limit": (
        pod(container={"resources": {"requests": {"cpu": 2}, "limits": {"cpu": 1}}}),
        "spec.containers[0].resources.requests",
    ),
    "request below zero": (pod(container={"resources": {"requests": {"cpu": -1}}}),
                           "spec.containers[0].resources.requests[cpu]"),
    "mount of no volume": (
        pod(container={"volumeMounts": [{"name": "x", "mountPath": "/x"}]}),
        "spec.containers[0].volumeMounts[0].name",
    ),
    "two volumes of one name": (pod(volumes=[{"name": "a", "emptyDir": {}}] * 2),
                                "spec.volumes[1].name"),
    "node selector": (pod(nodeSelector={"a b": "c"}), "spec.nodeSelector"),
    "hostname": (pod(hostname="A"), "spec.hostname"),
    "env without name": (pod(container={"env": [{"name": ""}]}), "spec.containers[0].env[0].name"),
    "env name": (pod(container={"env": [{"name": "a=b"}]}), "spec.containers[0].env[0].name"),
    "key of a config map": (config_map(data={"a b": "x"}), "data[a b]"),
    "key of both maps": (config_map(data={"a": "x"}, binaryData={"a": "AAEC"}), "data[a]"),
    "service type": (service(type="Local"), "spec.type"),
    "service without ports": (service(ports=[]), "spec.ports"),
    "service port": (service(ports=[{"port": 0}]), "spec.ports[0].port"),
    "lease of no time": (build(core.Lease, spec={"leaseDurationSeconds": 0}),
                         "spec.leaseDurationSeconds"),
    "lease transitions": (build(core.Lease, spec={"leaseTransitions": -1}),
                          "spec.leaseTransitions"),
    "priority of the system": (build(core.PriorityClass, value=2_000_000_000), "value"),
    "preemption policy": (build(core.PriorityClass, value=1, preemptionPolicy="x"),
                          "preemptionPolicy"),
    "kind of a role": (binding(roleRef={"kind": "Job", "name": "a",
                                        "apiGroup": "rbac.authorization.k8s.io"}), "roleRef.kind"),
    "kind of a subject": (binding(subjects=[{"kind": "Robot", "name": "a"}]), "subjects[0].kind"),
    "taint effect": (build(core.Node, spec={"taints": [{"key": "a", "effect": "No"}]}),
                     "spec.taints[0].effect"),
    "finalizer": (pod(metadata={"finalizers": ["a b"]}), "metadata.finalizers[0]"),
    "event of another namespace": (
        build(core.Event, involvedObject={"namespace": "other", "name": "x"}),
        "involvedObject.namespace",
    ),
}  # fmt: skip

CHANGES: dict[str, tuple[Json, Json, str]] = {
    "image of a pod": (pod(), pod(container={"image": "busybox:2"}), ""),
    "toleration added": (pod(), pod(tolerations=[{"key": "a", "operator": "Exists"}]), ""),
    "deadline added": (pod(), pod(activeDeadlineSeconds=5), ""),
    "labels of a pod": (pod(), pod(metadata={"labels": {"a": "b"}}), ""),
    "command of a pod": (pod(), pod(container={"command": ["x"]}), "spec"),
    "node of a pod": (pod(), pod(nodeName="n1"), "spec"),
    "deadline lengthened": (pod(activeDeadlineSeconds=5), pod(activeDeadlineSeconds=6),
                            "spec.activeDeadlineSeconds"),
    "toleration taken away": (pod(tolerations=[{"key": "a", "operator": "Exists"}]), pod(),
                              "spec.tolerations"),
    "container added": (pod(), pod(containers=[{"name": "main", "image": "busybox:1"},
                                               {"name": "b", "image": "x"}]), "spec.containers"),
    "type of a secret": (secret(), secret(type="other"), "type"),
    "data of a secret": (secret(), secret(stringData={"a": "b"}), ""),
    "immutable config map": (
        config_map(immutable=True), config_map(immutable=True, data={"a": "b"}), "data",
    ),
    "config map made mutable": (config_map(immutable=True), config_map(), "immutable"),
    "value of a priority class": (build(core.PriorityClass, value=1),
                                  build(core.PriorityClass, value=2), "value"),
    "role of a binding": (
        binding(), binding(roleRef={"kind": "ClusterRole", "name": "edit",
                                    "apiGroup": "rbac.authorization.k8s.io"}), "roleRef",
    ),
}  # fmt: skip
