"""What jobs cost, where nodes have prices.

The rule: for every second and every node, a job pays the node's price times the largest part that
it holds there of any one resource: half of the GPUs, or half of the CPUs, is half of the price. A
GPU of which a share is allocated counts by the larger of its compute and its memory. No job pays
for unallocated capacity; `Prices.total` is what the nodes themselves cost.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable

from windlass.core.model.types import WHOLE, Device, Node, PodAssignment, Workload

BILLIONTH = 1e-9


class Prices:
    def __init__(self, nodes: Iterable[Node]) -> None:
        there = [node for node in nodes if node.price]
        self._nodes = {node.name: node for node in there}
        self._devices = {(node.name, d.id): d for node in there for d in node.devices}
        self.total = BILLIONTH * sum(node.price for node in there if node.ready_in <= 0)
        """Of all nodes that exist, a second; 0: nothing has a price."""

    def fee(self, workload: Workload, pods: Iterable[PodAssignment]) -> float:
        """What a workload pays a second for these pods."""
        if not self._nodes:
            return 0.0
        roles = {role.name: role for role in workload.roles}
        allocated: dict[str, dict[str, float]] = {}
        for pod in pods:
            node = self._nodes.get(pod.node)
            if node is None:
                continue
            parts = allocated.setdefault(pod.node, collections.defaultdict(float))
            for name, amount in roles[pod.role].needs.items():
                if node.allocatable.get(name):
                    parts[name] += amount / node.allocatable[name]
            for grant in pod.grants:
                device = self._devices.get((pod.node, grant.device))
                if device is not None:
                    part = grant.compute / WHOLE
                    if device.memory:
                        part = max(part, grant.memory / device.memory)
                    parts[f"device {device.kind}"] += part / _count(node, device)
        return BILLIONTH * sum(
            self._nodes[name].price * min(1.0, max(parts.values(), default=0.0))
            for name, parts in allocated.items()
        )


def _count(node: Node, device: Device) -> int:
    return sum(each.kind == device.kind for each in node.devices)
