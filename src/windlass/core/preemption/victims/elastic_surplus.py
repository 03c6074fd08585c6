"""Surplus of elastic workloads yields to workloads that wait for their minimum.

An elastic workload grows only into capacity that no waiting workload needs. It gives that capacity
back in the same way. A waiting workload of the same queue may take surplus whatever the priorities.
A waiting workload of another queue may take surplus of a queue that is above its fair share, as
long as its own queue does not end up above that queue. Shares are compared at the level of the tree
where the two queues part. The minimum of a workload is never touched by this rule.

The share of a victim's queue is that of the start of the decision, less what was evicted since. So
the rights of a waiting workload only shrink while a decision is made, and a refusal stays true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import queues
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Piece

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle
    from windlass.core.facts import Unit
    from windlass.core.victims import Pool

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PRIORITIES = 1 << 20
"""More than any two priorities differ by, so that the share of a queue counts before them."""


class Yielding:
    """Of one decision: which queues have surplus, and who may take it."""

    def __init__(self, cycle: Cycle) -> None:
        self._tree: Tree = cycle.snapshot.tree
        elastic = cycle.snapshot.roster.elastic
        names = sorted(name for name in elastic if name in self._tree.queues)
        self._claims = cycle.fair_shares.claims if names else {}
        self._elastic = names
        self._found: dict[str, list[str]] = {}

    def queues_for(self, queue: str) -> list[str]:
        """Other queues whose surplus a workload of this queue may be allowed to take."""
        found = self._found.get(queue)
        if found is None:
            found = [name for name in self._elastic if name != queue and self._gives(name, queue)]
            self._found[queue] = found
        return found

    def _gives(self, name: str, to: str) -> bool:
        """Whether a queue is above its claim where the two queues part."""
        mine, theirs = self._tree.parting(to, name)
        if not mine or not theirs:
            return False  # one of them is above the other: they share one claim
        return self._tree.dominant_share(theirs[-1]) > self._claims[theirs[-1]]

    def order(self, queue: str, priority: Ints) -> Ints:
        """By which surplus goes: the queue with the largest share first, then the priority."""
        share = self._tree.share(queue)
        return np.clip(priority, -_PRIORITIES // 2, _PRIORITIES // 2) - share * _PRIORITIES


def is_fair(cycle: Cycle, unit: Unit, need: Sums, pieces: Iterable[Piece]) -> bool:
    """Whether these pieces of other queues may go by this rule, together: each queue keeps its
    guarantee, and none ends up with a smaller share than the queue of the preemptor."""
    before, left = cycle.snapshot.tree, cycle.departures.left()
    gone, own = dict[str, Sums](), dict[str, Sums]()
    for piece in pieces:
        sums = own if piece.running.unit.queue == unit.queue else gone
        queues.add(sums.setdefault(piece.running.unit.queue, {}), piece.held)
    mine_gone = own.get(unit.queue, {})
    for name in gone:
        mine, theirs = before.parting(unit.queue, name)
        for queue in theirs:
            taken = _below(before, gone, queue)
            stays = _less(before.used[queue], left.get(queue, {}), taken)
            if any(stays.get(r, 0) < before.guarantee[queue].get(r, 0) for r in taken):
                return False
        top, stays = theirs[-1], _less(before.used[theirs[-1]], left.get(theirs[-1], {}))
        stays = _less(stays, _below(before, gone, top))
        holds = _less(cycle.tree.used[mine[-1]], mine_gone)
        queues.add(holds, need)
        if before.share_of(mine[-1], holds) > before.share_of(top, stays):
            return False
    return True


def fair_part(cycle: Cycle, unit: Unit, need: Sums, pool: Pool, order: Ints) -> Mask:
    """As many pieces of a pool, in an order, as may go by this rule even if all of them do."""
    found = np.zeros(len(pool), np.bool_)
    chosen: list[Piece] = []
    for i in order.tolist():
        if is_fair(cycle, unit, need, [*chosen, pool.pieces[i]]):
            chosen.append(pool.pieces[i])
            found[i] = True
    return found


def _below(tree: Tree, sums: Mapping[str, Sums], queue: str) -> Sums:
    """What is named of a queue and of those below it."""
    found: Sums = {}
    for name, each in sums.items():
        if queue in tree.path(name):
            queues.add(found, each)
    return found


def _less(sums: Mapping[str, int], *others: Mapping[str, int]) -> Sums:
    found = dict(sums)
    for other in others:
        queues.add(found, other, -1)
    return found
