"""What a node and its pods use, as rates: the difference of two snapshots of counters. Pure.

Agents count seconds of CPU (`agent.metrics.usage`). Embedded, the server takes the snapshots; on
Kubernetes the agent does, and sends the rates to the server.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec

DEVICE = "active.windlass.dev/"
"""`active.windlass.dev/gpu-0: 370m`: the device gpu/0 worked 37 percent of the time."""
_SPENT = "usageCoreNanoSeconds"


@dataclasses.dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """A node's stats summary, with the time of a monotonic clock."""

    at: float
    summary: dict[str, Any]


class ContainerRate(msgspec.Struct, frozen=True):
    name: str
    usage: dict[str, str]


class PodRate(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    containers: list[ContainerRate]


class Rates(msgspec.Struct, frozen=True):
    """Average use between two snapshots, as Kubernetes quantities."""

    window: float
    """Seconds between them."""
    node: dict[str, str]
    pods: dict[str, PodRate]
    """By uid."""


def key_of(device: str) -> str:
    """The name of a device's activity in a node's usage."""
    return DEVICE + device.replace("/", "-")


def between(before: UsageSnapshot, after: UsageSnapshot) -> Rates:
    window = max(1e-3, after.at - before.at)
    old = {(uid, stats["name"]): stats for uid, _, stats in _containers(before.summary)}
    pods: dict[str, PodRate] = {}
    for uid, ref, stats in _containers(after.summary):
        pod = pods.setdefault(uid, PodRate(ref["namespace"], ref["name"], []))
        used = _usage(old.get((uid, stats["name"])), stats, window)
        pod.containers.append(ContainerRate(stats["name"], used))
    node = _usage(before.summary["node"], after.summary["node"], window)
    for name, part in after.summary["node"].get("windlass", {}).get("devices", {}).items():
        node[key_of(name)] = f"{round(1000 * part)}m"
    return Rates(window, node, pods)


def _containers(summary: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    for pod in summary["pods"]:
        for container in pod["containers"]:
            yield pod["podRef"]["uid"], pod["podRef"], container


def _usage(old: dict[str, Any] | None, new: dict[str, Any], window: float) -> dict[str, str]:
    spent = new["cpu"][_SPENT] - (old["cpu"][_SPENT] if old else new["cpu"][_SPENT])
    return {
        "cpu": f"{max(0, round(spent / window))}n",
        "memory": f"{new['memory']['workingSetBytes'] // 1024}Ki",
    }
