"""Which connections to our pods the installed NetworkPolicies let through.

Judged by an evaluator of NetworkPolicy written from its specification: nothing on the test machines
enforces them, and which network plug-in does is up to the cluster."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from windlass.install.manifests import policies, render
from windlass.install.options import Options

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Pod:
    namespace: str
    labels: dict[str, str]
    ports: dict[str, int]
    """By name."""


def _our_pods(options: Options) -> dict[str, Pod]:
    found = {}
    for part in render.parts(options, render.UNMADE):
        for obj in part.objects:
            if obj["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
                template = obj["spec"]["template"]
                (container,) = template["spec"]["containers"]
                ports = {p["name"]: p["containerPort"] for p in container.get("ports", ())}
                about = obj["metadata"]
                found[about["name"]] = Pod(
                    about["namespace"], template["metadata"]["labels"], ports
                )
    return found


def _allows(listed: list[Json], source: str, pod: Pod, port: int) -> bool:
    """Whether a pod of the namespace `source` may connect. A pod that no policy selects takes
    everything; one that some select, what any of them lets through."""
    selecting = [
        each["spec"] for each in listed
        if each["metadata"]["namespace"] == pod.namespace
        and each["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()
        and "Ingress" in each["spec"]["policyTypes"]
    ]  # fmt: skip
    if not selecting:
        return True
    rules = [rule for spec in selecting for rule in spec.get("ingress", ())]
    return any(_from(rule, source) and _to(rule, pod, port) for rule in rules)


def _from(rule: Json, source: str) -> bool:
    """Without `from`: from everywhere."""
    peers = rule.get("from")
    if peers is None:
        return True
    labels = {"kubernetes.io/metadata.name": source}
    return any(
        peer["namespaceSelector"].get("matchLabels", {}).items() <= labels.items()
        for peer in peers
    )  # fmt: skip


def _to(rule: Json, pod: Pod, port: int) -> bool:
    listed = rule.get("ports")
    return listed is None or any(pod.ports.get(each["port"]) == port for each in listed)


_PROBES, _SERVED = 8080, 8443
ROWS = [
    # from which namespace, to what, at which port; without and with Prometheus
    ("red", "windlass-scheduler", _SERVED, False, False),
    ("red", "windlass-scheduler", _PROBES, False, False),
    ("red", "windlass-controllers", _SERVED, False, False),
    ("red", "windlass-controllers", _PROBES, False, False),
    ("red", "windlass-agent", 1, False, False),
    ("red", "windlass-server", _SERVED, True, True),
    ("red", "windlass-server", 22, False, False),
    ("monitoring", "windlass-scheduler", _SERVED, False, True),
    ("monitoring", "windlass-controllers", _SERVED, False, True),
    ("monitoring", "windlass-scheduler", _PROBES, False, False),
    ("monitoring", "windlass-agent", 1, False, False),
    ("windlass-system", "windlass-scheduler", _SERVED, False, False),
    ("windlass-nodes", "windlass-server", _SERVED, True, True),
]


@pytest.mark.parametrize(("source", "to", "port", "usually", "watched"), ROWS)
def test_only_these_connections_reach_our_pods(
    source: str, to: str, port: int, usually: bool, watched: bool
) -> None:
    for options, expected in (
        (Options(), usually),
        (Options(monitoring="monitoring/prometheus"), watched),
    ):
        listed = list(policies.connections(options.scraper()))
        assert _allows(listed, source, _our_pods(options)[to], port) is expected, options


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(
            replicas="2", ledger="secret:books/url", storage_secret="keys",
            storage="s3://windlass?endpoint=https://storage.example:9000",
        ),
    ],
    ids=["a volume", "shared storage"],
)  # fmt: skip
def test_every_pod_of_ours_is_selected_by_a_policy(options: Options) -> None:
    listed = list(policies.connections(options.scraper()))
    for name, pod in _our_pods(options).items():
        chosen = [
            each for each in listed
            if each["metadata"]["namespace"] == pod.namespace
            and each["spec"]["podSelector"]["matchLabels"].items() <= pod.labels.items()
        ]  # fmt: skip
        assert chosen, name
