"""`decide` as a policy of `bench.packing`: what the platform does with pods that pack by
fragmentation.

Every pod is a unit that waits, the real decision is made, and what it says is carried out. So the
figure of `windlass-decide` is the product's own, with everything around the rule in its way.
"""

from __future__ import annotations

from windlass.core import cycle, state
from windlass.core.facts import Facts, Node, Placement, Queue, Role, Running, Unit
from windlass.core.packing_tables import Fleet, Shape
from windlass.sim import shaping, traces

_QUEUE = "pods"
_STAYS = 1e9
"""Seconds that pods are said to run: none leaves, and nobody has to guess."""


class Deciding:
    """One replay; nodes are named in the order of the fleet, in which ties are broken."""

    def __init__(self, fleet: Fleet) -> None:
        facts = Facts(tuple(_nodes(fleet)), (Queue(_QUEUE, reserve=0),))
        self._snapshot = state.build(facts)
        self._roles: dict[Shape, Role] = {}
        self._asked = 0
        self._chosen: tuple[Unit, Placement] | None = None

    def choose(self, shape: Shape) -> tuple[int, list[int]] | None:
        """Nobody is tried twice: who finds no room goes at once."""
        if shape not in self._roles:
            self._roles[shape] = traces.role_of_pod(shaping.Roles(), shape)
        now = float(self._asked)
        unit = Unit(
            f"{self._asked:07}", _QUEUE, (self._roles[shape],), now, expected=_STAYS,
            pack="fragmentation",
        )  # fmt: skip
        self._asked += 1
        state.apply(self._snapshot, [state.Waits(unit)])
        placements = cycle.decide(self._snapshot, now).placements
        if not placements:
            state.apply(self._snapshot, [state.Gone(unit.key)])
            return None
        self._chosen = unit, placements[0]
        (seat,) = placements[0].seats
        cluster = self._snapshot.cluster
        node = cluster.index[seat.node]
        return node, [cluster.bank.place[node][grant.device] for grant in seat.grants]

    def place(self, shape: Shape, node: int, devices: list[int]) -> None:  # noqa: ARG002
        """Carries out what was chosen last."""
        if self._chosen is None:
            raise ValueError("nothing was chosen: call choose before place.")
        unit, placement = self._chosen
        running = Running(unit, placement.seats, unit.submitted, unit.submitted + _STAYS)
        state.apply(self._snapshot, [state.Holds(running)])
        self._chosen = None


def _nodes(fleet: Fleet) -> list[Node]:
    return [
        shaping.NodeForm(
            gpus=int((fleet.devices[i] > 0).sum()),
            model=fleet.models[fleet.model[i]],
            cpu=int(fleet.cpu[i]),
            memory=int(fleet.memory[i]) << 20,
        ).node(f"node-{i:06}")
        for i in range(len(fleet.cpu))
    ]
