"""`decide` as a policy of `bench.packing`: what the platform does with pods that pack by
fragmentation.

Every pod is a workload that waits, the real decision is made, and what it says is carried out. So
the figure of `windlass-decide` is the product's own, with everything around the rule in its way.
"""

from __future__ import annotations

from windlass.core.cycle import cycle
from windlass.core.model.types import ClusterFacts, Node, Placement, Queue, Role, Running, Workload
from windlass.core.packing.potential import DemandShape, Fleet
from windlass.core.snapshot import snapshot
from windlass.sim.inputs import builders, csv_traces

_QUEUE = "pods"
_STAYS = 1e9
"""The estimated runtime of pods in seconds: none leaves, and no runtime is predicted."""


class Deciding:
    """One replay; nodes are named in the order of the fleet, in which ties are broken."""

    def __init__(self, fleet: Fleet) -> None:
        facts = ClusterFacts(tuple(_nodes(fleet)), (Queue(_QUEUE, reserve=0),))
        self._snapshot = snapshot.build(facts)
        self._roles: dict[DemandShape, Role] = {}
        self._asked = 0
        self._chosen: tuple[Workload, Placement] | None = None

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        """No pod is tried twice: a pod without capacity is removed at once."""
        if shape not in self._roles:
            self._roles[shape] = csv_traces.role_of_pod(builders.Roles(), shape)
        now = float(self._asked)
        workload = Workload(
            f"{self._asked:07}", _QUEUE, (self._roles[shape],), now, expected=_STAYS,
            pack="fragmentation",
        )  # fmt: skip
        self._asked += 1
        snapshot.apply(self._snapshot, [snapshot.WaitingPut(workload)])
        placements = cycle.decide(self._snapshot, now).placements
        if not placements:
            snapshot.apply(self._snapshot, [snapshot.WorkloadGone(workload.key)])
            return None
        self._chosen = workload, placements[0]
        (pod,) = placements[0].pods
        cluster = self._snapshot.cluster
        node = cluster.index[pod.node]
        return node, [cluster.device_table.place[node][grant.device] for grant in pod.grants]

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:  # noqa: ARG002
        """Carries out what was chosen last."""
        if self._chosen is None:
            raise ValueError("nothing was chosen: call choose before place.")
        workload, placement = self._chosen
        running = Running(workload, placement.pods, workload.submitted, workload.submitted + _STAYS)
        snapshot.apply(self._snapshot, [snapshot.RunningPut(running)])
        self._chosen = None


def _nodes(fleet: Fleet) -> list[Node]:
    return [
        builders.NodeForm(
            gpus=int((fleet.devices[i] > 0).sum()),
            model=fleet.models[fleet.model[i]],
            cpu=int(fleet.cpu[i]),
            memory=int(fleet.memory[i]) << 20,
        ).node(f"node-{i:06}")
        for i in range(len(fleet.cpu))
    ]
