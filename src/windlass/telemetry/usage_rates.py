"""What a node and its pods use, as a rate: two looks at what was used so far make one. Pure.

Agents count seconds of CPU (`agent.usage`). Embedded, the server looks twice; on Kubernetes the
agent does, and tells the server what came of it.
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
class Look:
    """One node's summary at one moment of a clock that never jumps."""

    at: float
    told: dict[str, Any]


class ContainerRate(msgspec.Struct, frozen=True):
    name: str
    usage: dict[str, str]


class PodRate(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    containers: list[ContainerRate]


class Rates(msgspec.Struct, frozen=True):
    """What was used on average between two looks, in Kubernetes' quantities."""

    window: float
    """Seconds between them."""
    node: dict[str, str]
    pods: dict[str, PodRate]
    """By uid."""


def key_of(device: str) -> str:
    """The name of a device's activity in a node's usage."""
    return DEVICE + device.replace("/", "-")


def between(before: Look, after: Look) -> Rates:
    window = max(1e-3, after.at - before.at)
    old = {(uid, stats["name"]): stats for uid, _, stats in _containers(before.told)}
    pods: dict[str, PodRate] = {}
    for uid, ref, stats in _containers(after.told):
        pod = pods.setdefault(uid, PodRate(ref["namespace"], ref["name"], []))
        used = _usage(old.get((uid, stats["name"])), stats, window)
        pod.containers.append(ContainerRate(stats["name"], used))
    node = _usage(before.told["node"], after.told["node"], window)
    for name, part in after.told["node"].get("windlass", {}).get("devices", {}).items():
        node[key_of(name)] = f"{round(1000 * part)}m"
    return Rates(window, node, pods)


def _containers(told: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], dict[str, Any]]]:
    for pod in told["pods"]:
        for container in pod["containers"]:
            yield pod["podRef"]["uid"], pod["podRef"], container


def _usage(old: dict[str, Any] | None, new: dict[str, Any], window: float) -> dict[str, str]:
    spent = new["cpu"][_SPENT] - (old["cpu"][_SPENT] if old else new["cpu"][_SPENT])
    return {
        "cpu": f"{max(0, round(spent / window))}n",
        "memory": f"{new['memory']['workingSetBytes'] // 1024}Ki",
    }
