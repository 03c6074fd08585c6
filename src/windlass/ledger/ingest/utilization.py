"""What nodes and pods really used, as the cluster's resource metrics tell it. Pure.

Everybody tells it in the words of `metrics.k8s.io`: the server from what our agents measure, and a
cluster's metrics-server of nodes without one. Agents add what a device's driver says of its
activity to the node's usage. Whatever nobody measures is absent here, and never a zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from windlass.agent import rates
from windlass.kinds import quantity

PATH = "/apis/metrics.k8s.io/v1beta1"


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Of a node, or of a pod."""

    cpu: int
    """Thousandths of cores."""
    memory: int
    """Bytes."""
    devices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """By the name of a node's device, thousandths of the time that it worked."""
    node: str = ""
    """Of a pod: whose agent says so, if one does."""


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    nodes: Mapping[str, Use] = dataclasses.field(default_factory=dict)
    pods: Mapping[tuple[str, str], Use] = dataclasses.field(default_factory=dict)
    """By namespace and name."""
    nodes_choose: bool = False
    """Whether nodes choose which of their devices a pod gets: then a device's name says nothing of
    who held it."""


Meter = Callable[[], Awaitable[Measured]]
"""What is used now; nothing where nobody measures."""
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


def use(told: Iterable[Mapping[str, str]], node: str = "") -> Use:
    """Of all its containers. ValueError if an amount cannot be read."""
    told = list(told)
    devices = {
        "/".join(name.removeprefix(rates.DEVICE).rsplit("-", 1)): quantity.milli(amount)
        for each in told
        for name, amount in each.items()
        if name.startswith(rates.DEVICE)
    }
    cpu = sum(quantity.milli(each.get("cpu", "0")) for each in told)
    memory = sum(quantity.whole(each.get("memory", "0")) for each in told)
    return Use(cpu, memory, devices, node)
