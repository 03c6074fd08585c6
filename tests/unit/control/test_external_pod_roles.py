"""Pods that ask for the same are read once; nothing that a pod asks for is overlooked by that."""

from __future__ import annotations

import itertools
from typing import Any

from windlass.control.convert import external_pods, pod_workloads
from windlass.control.volumes import attach_limits, topology
from windlass.kinds import codec
from windlass.kinds.types import core

CPU, MORE = {"requests": {"cpu": "1"}}, {"requests": {"cpu": "8"}}
ZONE = "topology.kubernetes.io/zone"
TERM = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "a"}}}
SPECS: list[dict[str, Any]] = [
    {},
    {"containers": [{"name": "main", "resources": {"requests": {"cpu": "4"}}}]},
    {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    {"containers": [{"name": "main", "resources": CPU}, {"name": "side", "resources": CPU}]},
    {"containers": [{"name": "main", "ports": [{"containerPort": 80, "hostPort": 80}]}]},
    {"initContainers": [{"name": "first", "resources": MORE}]},
    {"initContainers": [{"name": "first", "resources": MORE, "restartPolicy": "Always"}]},
    {"resources": {"requests": {"cpu": "3"}}},
    {"overhead": {"cpu": "100m"}},
    {"nodeSelector": {"zone": "a"}},
    {"tolerations": [{"operator": "Exists"}]},
    {
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
        ]
    },
    {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [TERM]}}},
    {
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 5,
                        "preference": {
                            "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]
                        },
                    }
                ]
            }
        }
    },
]


def _pod(spec: dict[str, Any], name: str = "p", labels: dict[str, str] | None = None) -> core.Pod:
    containers = [{"name": "main", "resources": CPU}]
    return codec.from_dict(
        core.Pod,
        {
            "metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels or {}},
            "spec": {"schedulerName": "windlass", "containers": containers, **spec},
        },
    )


def _reader() -> pod_workloads.Reader:
    known = topology.Volumes()
    return pod_workloads.Reader(known, attach_limits.Attachments(known))


def _role(reader: pod_workloads.Reader, pod: core.Pod) -> Any:
    (role,) = reader.waiting(pod, "default").roles
    return role


def test_pods_with_different_requests_have_different_keys() -> None:
    pods = [_pod(spec) for spec in SPECS]
    pods += [_pod({}, labels={"app": "a"}), _pod({}, labels={"app": "b"})]
    reader = _reader()
    for one, other in itertools.combinations(pods, 2):
        assert external_pods.asks(one) != external_pods.asks(other)
        assert _role(reader, one) != _role(reader, other)
    for pod in pods:
        assert _role(reader, pod) == external_pods.role(
            pod, pod_workloads.ROLE, lambda _: frozenset()
        )


def test_pods_of_one_template_share_what_was_read_of_the_first() -> None:
    reader = _reader()
    for spec in SPECS:
        env = [{"name": "RANK", "value": "1"}]
        containers = [{**each, "env": env} for each in spec.get("containers", ())]
        twin = {**spec, "hostname": "other", **({"containers": containers} if containers else {})}
        assert _role(reader, _pod(spec, "one")) is _role(reader, _pod(twin, "two"))


def test_terms_with_a_namespace_selector_are_converted_again_when_namespaces_change() -> None:
    term = {**TERM, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    reader, pod = _reader(), _pod({"affinity": near})
    reader.namespaces = {"one": {"team": "a"}}
    before = _role(reader, pod)
    reader.namespaces = {"one": {}, "two": {"team": "a"}}
    (after,) = _role(reader, pod).affinities
    assert before.affinities[0].namespaces == {"one"}
    assert after.namespaces == {"two"}
