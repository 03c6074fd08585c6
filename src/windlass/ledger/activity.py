"""What nodes and pods really used, as the cluster's resource metrics tell it. Pure.

Both engines speak `metrics.k8s.io`: embedded, the server makes it from what its agents measure; on
Kubernetes metrics-server does, where it is installed. Agents add what a device's driver says of its
activity to the node's usage. Whatever nobody measures is absent here, and never a zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from windlass.kinds import quantity

PATH = "/apis/metrics.k8s.io/v1beta1"
DEVICE = "active.windlass.dev/"
"""`active.windlass.dev/gpu-0: 370m`: the device gpu/0 worked 37 percent of the time."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Of a node, or of a pod."""

    cpu: int
    """Thousandths of cores."""
    memory: int
    """Bytes."""
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By the name of a node's device, thousandths of the time that it worked."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    nodes: Mapping[str, Use] = dataclasses.field(default_factory=dict)
    pods: Mapping[tuple[str, str], Use] = dataclasses.field(default_factory=dict)
    """By namespace and name."""


Meter = Callable[[], Awaitable[Measured]]
"""What is used now; nothing where nobody measures."""
NOTHING = Measured()


def key_of(device: str) -> str:
    """The name of a device's activity in a node's usage."""
    return DEVICE + device.replace("/", "-")


def read(nodes: Mapping[str, Any], pods: Mapping[str, Any]) -> Measured:
    """From a NodeMetricsList and a PodMetricsList."""
    by_node = {item["metadata"]["name"]: _use([item["usage"]]) for item in nodes["items"]}
    by_pod = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): _use(
            [each["usage"] for each in item["containers"]]
        )
        for item in pods["items"]
    }
    return Measured(by_node, by_pod)


def _use(told: list[Mapping[str, str]]) -> Use:
    devices = {
        "/".join(name.removeprefix(DEVICE).rsplit("-", 1)): quantity.milli(amount)
        for each in told
        for name, amount in each.items()
        if name.startswith(DEVICE)
    }
    cpu = sum(quantity.milli(each.get("cpu", "0")) for each in told)
    memory = sum(quantity.whole(each.get("memory", "0")) for each in told)
    return Use(cpu, memory, devices)
