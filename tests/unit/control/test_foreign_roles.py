"""Pods that ask for the same are read once; nothing that a pod asks for is overlooked by that."""

from __future__ import annotations

import itertools
from typing import Any

from windlass.control import attaching, foreign, podunits, volumes
from windlass.kinds import kubernetes, wire

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


def _pod(
    spec: dict[str, Any], name: str = "p", labels: dict[str, str] | None = None
) -> kubernetes.Pod:
    containers = [{"name": "main", "resources": CPU}]
    return wire.from_dict(
        kubernetes.Pod,
        {
            "metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels or {}},
            "spec": {"schedulerName": "windlass", "containers": containers, **spec},
        },
    )


def _reader() -> podunits.Reader:
    known = volumes.Volumes()
    return podunits.Reader(known, attaching.Attachments(known))


def _role(reader: podunits.Reader, pod: kubernetes.Pod) -> Any:
    (role,) = reader.waiting(pod, "default").roles
    return role


def test_pods_that_differ_in_anything_they_ask_for_are_told_apart() -> None:
    pods = [_pod(spec) for spec in SPECS]
    pods += [_pod({}, labels={"app": "a"}), _pod({}, labels={"app": "b"})]
    reader = _reader()
    for one, other in itertools.combinations(pods, 2):
        assert foreign.asks(one) != foreign.asks(other)
        assert _role(reader, one) != _role(reader, other)
    for pod in pods:
        assert _role(reader, pod) == foreign.role(pod, podunits.ROLE, lambda _: frozenset())


def test_pods_of_one_template_share_what_was_read_of_the_first() -> None:
    reader = _reader()
    for spec in SPECS:
        env = [{"name": "RANK", "value": "1"}]
        containers = [{**each, "env": env} for each in spec.get("containers", ())]
        twin = {**spec, "hostname": "other", **({"containers": containers} if containers else {})}
        assert _role(reader, _pod(spec, "one")) is _role(reader, _pod(twin, "two"))


def test_who_selects_namespaces_by_labels_is_read_again_when_they_change() -> None:
    term = {**TERM, "namespaceSelector": {"matchLabels": {"team": "a"}}}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    reader, pod = _reader(), _pod({"affinity": near})
    reader.namespaces = {"one": {"team": "a"}}
    before = _role(reader, pod)
    reader.namespaces = {"one": {}, "two": {"team": "a"}}
    (after,) = _role(reader, pod).affinities
    assert before.affinities[0].namespaces == {"one"}
    assert after.namespaces == {"two"}
