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

import numpy as np
import numpy.typing as npt

from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.snapshot.running_index import EvictionUnit

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PRIORITIES = 1 << 20
"""More than any two priorities differ by, so that the share of a queue counts before them."""


class Yielding:
    """Of one decision: which queues have surplus, and which workloads may take it."""

    def __init__(self, state: DecisionState) -> None:
        self._tree: QuotaTree = state.snapshot.tree
        elastic = state.snapshot.running_index.elastic
        names = sorted(name for name in elastic if name in self._tree.queues)
        self._claims = state.fair_shares.claims if names else {}
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
        mine, theirs = self._tree.diverging_paths(to, name)
        if not mine or not theirs:
            return False  # one of them is above the other: they share one claim
        return self._tree.dominant_share(theirs[-1]) > self._claims[theirs[-1]]

    def order(self, queue: str, priority: Ints) -> Ints:
        """By which surplus goes: the queue with the largest share first, then the priority."""
        share = self._tree.share(queue)
        return np.clip(priority, -_PRIORITIES // 2, _PRIORITIES // 2) - share * _PRIORITIES


def of(state: DecisionState) -> Yielding:
    return state.cache(Yielding, lambda: Yielding(state))


def is_fair(
    state: DecisionState, workload: Workload, need: Sums, pieces: Iterable[EvictionUnit]
) -> bool:
    """Whether these pieces of other queues may go by this rule, together: each queue keeps its
    guarantee, and none ends up with a smaller share than the queue of the preemptor."""
    before, left = state.snapshot.tree, terminating.of(state).left()
    gone, own = dict[str, Sums](), dict[str, Sums]()
    for piece in pieces:
        sums = own if piece.running.workload.queue == workload.queue else gone
        quota_tree.add(sums.setdefault(piece.running.workload.queue, {}), piece.usage)
    mine_gone = own.get(workload.queue, {})
    for name in gone:
        mine, theirs = before.diverging_paths(workload.queue, name)
        for queue in theirs:
            taken = _below(before, gone, queue)
            stays = _less(before.used[queue], left.get(queue, {}), taken)
            if any(stays.get(r, 0) < before.guarantee[queue].get(r, 0) for r in taken):
                return False
        top, stays = theirs[-1], _less(before.used[theirs[-1]], left.get(theirs[-1], {}))
        stays = _less(stays, _below(before, gone, top))
        holds = _less(state.tree.used[mine[-1]], mine_gone)
        quota_tree.add(holds, need)
        if before.share_of(mine[-1], holds) > before.share_of(top, stays):
            return False
    return True


def _below(tree: QuotaTree, sums: Mapping[str, Sums], queue: str) -> Sums:
    """What is named of a queue and of those below it."""
    found: Sums = {}
    for name, each in sums.items():
        if queue in tree.path(name):
            quota_tree.add(found, each)
    return found


def _less(sums: Mapping[str, int], *others: Mapping[str, int]) -> Sums:
    found = dict(sums)
    for other in others:
        quota_tree.add(found, other, -1)
    return found
