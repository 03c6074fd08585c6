"""`windlass-learned` of bench.packing: the rule of `pack: fragmentation`, starting from nothing."""

from __future__ import annotations

from windlass.core.packing.fragmentation_packer import Packer, tightest
from windlass.core.packing.potential import DemandShape, Fleet, Learner, Weights


class LearningPacker:
    """A `Packer` that knows nothing of demand but what it was asked for so far.

    Until that suffices it places as `pack: binpack` does.
    """

    def __init__(self, fleet: Fleet, weights: Weights | None = None) -> None:
        self._learner = Learner(fleet, weights=weights)
        self.packer = Packer(fleet, self._learner.tables)

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        if self._learner.observe(shape):
            self.packer.learn(self._learner.tables)
        if shape.count:
            self._learner.add_workload(shape)
        if self._learner.is_informed(shape):
            return self.packer.choose(shape)
        return tightest(self.packer.tables, shape, self.packer.capacity)

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        self.packer.place(shape, node, devices)
