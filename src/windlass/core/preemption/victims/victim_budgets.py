"""What may be taken from each queue for another, and what sets of victims cost.

`reclaim_search` tries thousands of small sets, so both are counted in plain Python: pieces come and
go one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from windlass.core.model.types import SHARE_UNIT
from windlass.core.preemption.victims import candidates
from windlass.core.preemption.victims.candidates import (
    FIRST,
    Branch,
    Candidates,
    Giving,
    Price,
    Taken,
)


class Budget:
    """What may still be taken from each queue, resource by resource, while pieces are chosen."""

    def __init__(self, pool: Candidates, shields_at: float | None) -> None:
        self._pool, self._at = pool, shields_at
        self._slots: dict[tuple[int, str, str], int] = {}
        """(branch, queue, resource) -> number."""
        self._limit: list[int] = []
        self._workload: list[int] = []
        """What the whole cluster has."""
        self._taken: list[int] = []
        self._largest: list[int] = []
        """Of the pieces that may reach into the guarantee."""
        self._of_piece: dict[int, list[tuple[int, int]]] = {}
        self._queue = np.empty(len(pool), np.int64)
        for number, (_, rows) in enumerate(pool.queues):
            self._queue[rows] = number
        self._undo: list[list[tuple[int, int]]] = []

    def take(self, i: int) -> bool:
        """Counts a piece as gone if its queues can spare it."""
        ripe = self._at is not None and self._pool.shielded[i] <= self._at
        before: list[tuple[int, int]] = []
        fine = True
        for slot, amount in self.amounts(i):
            before.append((slot, self._largest[slot]))
            self._taken[slot] += amount
            if ripe and amount > self._largest[slot]:
                self._largest[slot] = amount
            over = self._taken[slot] - self._limit[slot]
            if over > 0 and over >= self._largest[slot]:
                fine = False
        self._undo.append(before)
        if not fine:
            self.give_back(i)
        return fine

    def give_back(self, i: int) -> None:
        """Takes back the piece that was taken last."""
        for (slot, amount), (_, largest) in zip(self.amounts(i), self._undo.pop(), strict=True):
            self._taken[slot] -= amount
            self._largest[slot] = largest

    @property
    def below(self) -> int:
        """By how much queues are below their guarantees, in millionths of the cluster."""
        over = zip(self._taken, self._limit, self._workload, strict=True)
        return sum((t - m) * SHARE_UNIT // u for t, m, u in over if t > m)

    def amounts(self, i: int) -> list[tuple[int, int]]:
        """What a piece takes from which queues."""
        found = self._of_piece.get(i)
        if found is None:
            found = self._of_piece[i] = list(self._find(i))
        return found

    def queue_of(self, i: int) -> str:
        return self._pool.queues[int(self._queue[i])][0]

    def _find(self, i: int) -> Iterable[tuple[int, int]]:
        number = int(self._pool.branch[i])
        if number < 0:
            return  # of the preemptor's own queue
        branch = self._pool.branches[number]
        for level in branch.levels[self.queue_of(i)]:
            for resource, spare in branch.spare[level].items():
                amount = int(self._pool.held[resource][i])
                if amount:
                    key = (number, level, resource)
                    if key not in self._slots:
                        self._slots[key] = len(self._limit)
                        self._limit.append(spare)
                        self._workload.append(max(1, branch.capacity.get(resource, 0)))
                        self._taken.append(0)
                        self._largest.append(0)
                    yield self._slots[key], amount


class Prices:
    """What sets of victims cost: as `victim_selection.price`, after how far queues are left below
    their guarantees. Asked for thousands of small sets, so in plain Python."""

    def __init__(self, pool: Candidates, budget: Budget) -> None:
        self._pool, self._budget = pool, budget
        self.cost = pool.lost * pool.size
        self.sequence = np.lexsort(
            (-pool.started, pool.size, self.cost, pool.priority, -pool.above, pool.kind)
        )
        self.rank = np.empty(len(pool), np.int64)
        self.rank[self.sequence] = np.arange(len(pool))
        columns = (pool.kind, pool.priority, self.cost, pool.size)
        self._rows = list(zip(*(column.tolist() for column in columns), strict=True))
        self._known: dict[int, tuple[str, Branch, Taken] | None] = {}
        """What single pieces take from which queue."""

    def of(self, pieces: Sequence[int]) -> Price:
        if not pieces:
            return (0,)
        kinds, priorities, costs, sizes = zip(*(self._rows[i] for i in pieces), strict=True)
        return (
            self._budget.below, max(kinds), self._giving(pieces), max(priorities), sum(costs),
            sum(sizes), len(pieces),
        )  # fmt: skip

    def _giving(self, pieces: Sequence[int]) -> Giving:
        found: dict[str, tuple[Branch, Taken]] = {}
        own_queue = False
        for i in pieces:
            if i not in self._known:
                self._known[i] = self._taken(i)
            known = self._known[i]
            if known is None:
                own_queue |= self._rows[i][0] > FIRST
            else:
                queue, branch, taken = known
                before = found.get(queue)
                found[queue] = (branch, taken if before is None else before[1].also(taken))
        taken_from = ((branch, queue, own) for queue, (branch, own) in found.items())
        return candidates.giving(taken_from, own_queue=own_queue)

    def _taken(self, i: int) -> tuple[str, Branch, Taken] | None:
        pool = self._pool
        if pool.branch[i] < 0:
            return None
        branch = pool.branches[pool.branch[i]]
        amounts = {r: int(pool.held[r][i]) for r in branch.excess[branch.top]}
        return self._budget.queue_of(i), branch, Taken(amounts, amounts, int(pool.above[i]))
