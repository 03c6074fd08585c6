"""Which nodes accept which members, and which of them they like.

What follows from labels, taints and names alone, found once per constraint and shared by all copies
of a cluster. Whether a node takes anybody at all right now is the cluster's to say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from windlass.core import constraints
from windlass.core.facts import Constraint, Node, Preference
from windlass.core.numbers import Numbers

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Accepting:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._whole: tuple[Accepting, Ints] | None = None
        """Of a part: what it is a part of, and which nodes."""
        self._masks: dict[Constraint, Mask] = {}
        self._everywhere: dict[Constraint, bool] = {}
        self._points: dict[tuple[Preference, ...], Ints] = {}

    def part(self, where: Ints) -> Accepting:
        """Of some of the nodes."""
        twin = Accepting(())
        twin._whole = (self, where)
        return twin

    def mask(self, constraint: Constraint) -> Mask:
        """Nodes that a constraint accepts. Read only."""
        found = self._masks.get(constraint)
        if found is None:
            if constraint.reserved:  # labels say nothing about advance reservations
                found = self.mask(dataclasses.replace(constraint, reserved=()))
            elif self._whole is not None:
                found = self._whole[0].mask(constraint)[self._whole[1]]
            else:
                accepts = (constraints.accepts(constraint, node) for node in self._nodes)
                found = np.fromiter(accepts, np.bool_, len(self._nodes))
            self._masks[constraint] = found
        return found

    def everywhere(self, constraint: Constraint) -> bool:
        """Whether all nodes are accepted, as mostly they are."""
        found = self._everywhere.get(constraint)
        if found is None:
            found = self._whole is not None and self._whole[0].everywhere(constraint)
            found = self._everywhere[constraint] = found or bool(self.mask(constraint).all())
        return found

    def points(self, preferences: tuple[Preference, ...]) -> Ints:
        """How much each node is preferred. Read only."""
        found = self._points.get(preferences)
        if found is None:
            if self._whole is not None:
                found = self._whole[0].points(preferences)[self._whole[1]]
            else:
                points = (constraints.points(preferences, node) for node in self._nodes)
                found = np.fromiter(points, np.int64, len(self._nodes))
            self._points[preferences] = found
        return found

    def update(self, i: int, node: Node) -> None:
        """New facts about a node."""
        self._everywhere.clear()
        for constraint, mask in self._masks.items():
            mask[i] = constraints.accepts(constraint, node)
        for preferences, points in self._points.items():
            points[i] = constraints.points(preferences, node)

    def carry_over(self, old: Accepting, numbers: Numbers, fresh: list[int]) -> None:
        """What was found out about nodes under other numbers; `fresh` are new here."""
        for constraint, mask in old._masks.items():
            accepts = [constraints.accepts(constraint, self._nodes[i]) for i in fresh]
            self._masks[constraint] = numbers.by_node(mask, fresh, accepts)
        for preferences, points in old._points.items():
            more = [constraints.points(preferences, self._nodes[i]) for i in fresh]
            self._points[preferences] = numbers.by_node(points, fresh, more)
