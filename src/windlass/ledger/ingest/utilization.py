"""The measured usage of nodes and pods, from the resource metrics of the cluster. Pure.

All sources use the format of `metrics.k8s.io`: the server with the measurements of agents, and the
cluster's metrics-server for nodes without an agent. Agents add the activity of devices, as drivers
report it, to the usage of the node. What is not measured is absent here, and never zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from windlass.kinds.values import quantity
from windlass.telemetry import usage_rates

PATH = "/apis/metrics.k8s.io/v1beta1"


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """The usage of a node or of a pod."""

    cpu: int
    """Thousandths of cores."""
    memory: int
    """Bytes."""
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By device name, thousandths of the time in which it was active."""
    node: str = ""
    """For a pod: the node whose agent measured it, if one did."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    nodes: Mapping[str, Use] = dataclasses.field(default_factory=dict)
    pods: Mapping[tuple[str, str], Use] = dataclasses.field(default_factory=dict)
    """By namespace and name."""
    nodes_choose: bool = False
    """Whether nodes choose the devices of a pod: then the name of a device does not identify the
    pod."""


Meter = Callable[[], Awaitable[Measured]]
"""The usage now; empty without measurements."""
NOTHING = Measured()


def read(nodes: Mapping[str, Any], pods: Mapping[str, Any]) -> Measured:
    """From a NodeMetricsList and a PodMetricsList."""
    by_node = {item["metadata"]["name"]: use([item["usage"]]) for item in nodes["items"]}
    by_pod = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): use(
            [each["usage"] for each in item["containers"]]
        )
        for item in pods["items"]
    }
    return Measured(by_node, by_pod)


def use(usages: Iterable[Mapping[str, str]], node: str = "") -> Use:
    """The sum of all containers. Raises ValueError if an amount cannot be parsed."""
    usages = list(usages)
    devices = {
        "/".join(name.removeprefix(usage_rates.DEVICE).rsplit("-", 1)): quantity.milli(amount)
        for each in usages
        for name, amount in each.items()
        if name.startswith(usage_rates.DEVICE)
    }
    cpu = sum(quantity.milli(each.get("cpu", "0")) for each in usages)
    memory = sum(quantity.whole(each.get("memory", "0")) for each in usages)
    return Use(cpu, memory, devices, node)
