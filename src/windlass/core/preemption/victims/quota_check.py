"""Whether quotas and the rights of the preemptor's queue allow that a set of victims goes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windlass.core.preemption.victims import victim_candidates
from windlass.core.preemption.victims.candidates import Candidates, PreemptionRequest
from windlass.core.quota.quota_tree import QuotaTree

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class QuotaCheck:
    """What quotas say while pieces go and stay: the gainer's queue may use what it needs, and has
    the right to everything that is taken back for it."""

    def __init__(self, claim: PreemptionRequest, pool: Candidates, gone: Mask) -> None:
        self._claim, self._pool = claim, pool
        self._tree: QuotaTree = claim.tree.fork()
        self._taken_from: dict[str, int] = {}
        """Other queue -> how many of its pieces go, but for surplus that yields anyway."""
        self._yields = victim_candidates.yields(pool, claim.workload.queue)
        for queue, _, held in pool.held_by(gone):
            self._tree.add(queue, held, non_preemptible=False, sign=-1)
        for queue, count, _ in pool.held_by(gone & ~self._yields):
            if queue != claim.workload.queue:
                self._taken_from[queue] = count

    def go_until_allowed(self, sequence: Ints) -> int:
        """How many in sequence must go until no quota is in the way."""
        for number, i in enumerate(sequence):
            if self.allow():
                return number
            self.goes(int(i))
        return len(sequence)

    def goes(self, i: int) -> None:
        self._move(i, -1)

    def stays(self, i: int) -> bool:
        """Counts it as staying if quotas allow."""
        self._move(i, +1)
        if self.allow():
            return True
        self._move(i, -1)
        return False

    def _move(self, i: int, sign: int) -> None:
        piece = self._pool.pieces[i]
        queue = piece.running.workload.queue
        self._tree.add(queue, piece.usage, non_preemptible=False, sign=sign)
        if queue != self._claim.workload.queue and not self._yields[i]:
            self._taken_from[queue] = self._taken_from.get(queue, 0) - sign

    def allow(self) -> bool:
        workload = self._claim.workload
        if self._tree.shortage(
            workload.queue, self._claim.need, non_preemptible=not workload.preemptible
        ):
            return False
        return all(
            victim_candidates.may_take_back(self._claim, self._tree, queue)
            for queue, count in self._taken_from.items()
            if count
        )
