"""Which nodes are feasible for a constraint, and how preferences score them.

These results follow from labels, taints and names alone. They are computed once per constraint and
shared by all copies of a cluster. Whether a node is schedulable at the moment is up to the cluster.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import constraints
from windlass.core.cluster.numbering import Numbers
from windlass.core.model.types import Constraint, Node, Preference

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class NodeFilter:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._whole: tuple[NodeFilter, Ints] | None = None
        """Of a part: what it is a part of, and which nodes."""
        self._masks: dict[Constraint, Mask] = {}
        self._everywhere: dict[Constraint, bool] = {}
        self._scores: dict[tuple[Preference, ...], Ints] = {}

    def part(self, where: Ints) -> NodeFilter:
        """Of some of the nodes."""
        fork = NodeFilter(())
        fork._whole = (self, where)
        return fork

    def mask(self, constraint: Constraint) -> Mask:
        """Nodes that a constraint accepts. Read only."""
        found = self._masks.get(constraint)
        if found is None:
            if constraint.reserved:  # labels say nothing about advance reservations
                found = self.mask(dataclasses.replace(constraint, reserved=()))
            elif self._whole is not None:
                found = self._whole[0].mask(constraint)[self._whole[1]]
            else:
                feasible = (constraints.feasible(constraint, node) for node in self._nodes)
                found = np.fromiter(feasible, np.bool_, len(self._nodes))
            self._masks[constraint] = found
        return found

    def everywhere(self, constraint: Constraint) -> bool:
        """Whether all nodes are accepted, as mostly they are."""
        found = self._everywhere.get(constraint)
        if found is None:
            found = self._whole is not None and self._whole[0].everywhere(constraint)
            found = self._everywhere[constraint] = found or bool(self.mask(constraint).all())
        return found

    def scores(self, preferences: tuple[Preference, ...]) -> Ints:
        """How much each node is preferred. Read only."""
        found = self._scores.get(preferences)
        if found is None:
            if self._whole is not None:
                found = self._whole[0].scores(preferences)[self._whole[1]]
            else:
                scores = (constraints.preference_score(preferences, node) for node in self._nodes)
                found = np.fromiter(scores, np.int64, len(self._nodes))
            self._scores[preferences] = found
        return found

    def update(self, i: int, node: Node) -> None:
        """New facts about a node."""
        self._everywhere.clear()
        for constraint, mask in self._masks.items():
            mask[i] = constraints.feasible(constraint, node)
        for preferences, scores in self._scores.items():
            scores[i] = constraints.preference_score(preferences, node)

    def carry_over(self, old: NodeFilter, numbers: Numbers, fresh: list[int]) -> None:
        """What was found out about nodes under other numbers; `fresh` are new here."""
        for constraint, mask in old._masks.items():
            feasible = [constraints.feasible(constraint, self._nodes[i]) for i in fresh]
            self._masks[constraint] = numbers.by_node(mask, fresh, feasible)
        for preferences, scores in old._scores.items():
            more = [constraints.preference_score(preferences, self._nodes[i]) for i in fresh]
            self._scores[preferences] = numbers.by_node(scores, fresh, more)
