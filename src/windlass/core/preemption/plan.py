"""What can be done for a workload that may have others stopped, one possibility after another.

First workloads of its own queue and preferred victims of others (`freeing`), then any workloads of
queues that borrow, chosen by place (`reclaim_search`), then a gang that reaches into the guarantee
of its queue. If only protection by run time is in the way, it is said until when.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import freeing, models, reclaim, reclaim_search, verdicts, victims, yielding
from windlass.core.freeing import Plan, Trial
from windlass.core.victims import Claim, Floats, Pool

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

_FEW = 32
"""Workloads among which the cheapest are looked for in two ways."""
_PROTECTED = "those that it may preempt must first run for their queue's minimum runtime"
_SHIELDED = (
    "what it may preempt goes only as a whole and reaches into its queue's guarantee; it is "
    "protected until"
)


@dataclasses.dataclass
class Chances:
    """Of one claim."""

    cycle: Cycle
    claim: Claim
    trial_of: Callable[[Pool], Trial]
    pool: Pool
    """What gives way to it in its own queue, preferred victims of other queues, and surplus."""

    @functools.cached_property
    def everybody(self) -> Pool:
        """With all other workloads of queues that borrow."""
        return reclaim.pool(self.cycle, self.claim, wide=True) if self.claim.scarce else self.pool

    @functools.cached_property
    def wide(self) -> Pool:
        """The same, with no more surplus than may go together."""
        return victims.fair_part(self.cycle, self.claim, self.everybody)

    def plan(self, at: float) -> tuple[Pool, Plan] | None:
        """What is done if it is `at` that time."""
        found = self._preferred(at)
        if found is not None:
            return self._cheaper(*found, at)
        return self._by_place(at, straddling=False) or self._by_place(at, straddling=True)

    def _preferred(self, at: float) -> tuple[Pool, Plan] | None:
        pool = self.pool
        plan = self._first_plan(pool, at)
        if plan is not None and not self._is_fair(pool, plan):
            pool = victims.fair_part(self.cycle, self.claim, pool)
            plan = self._first_plan(pool, at)
        return None if plan is None else (pool, plan)

    def _first_plan(self, pool: Pool, at: float) -> Plan | None:
        in_turn = models.in_turn(self.claim.unit)
        return (
            freeing.plan(self.trial_of, pool, pool.protected <= at, in_turn) if len(pool) else None
        )

    def _is_fair(self, pool: Pool, plan: Plan) -> bool:
        """Whether the surplus of other queues that goes by a plan may go together."""
        unit = self.claim.unit
        yields = plan.gone & victims.yields(pool, unit.queue)
        if not yields.any():
            return True
        for name, part in pool.queues:
            if name == unit.queue:
                yields[part] = plan.gone[part]
        pieces = [pool.pieces[i] for i in np.flatnonzero(yields).tolist()]
        return yielding.is_fair(self.cycle, unit, self.claim.need, pieces)

    def _cheaper(self, pool: Pool, plan: Plan, at: float) -> tuple[Pool, Plan]:
        """The plan, or one by place that costs less: looked for where few may go, since there it
        takes little time, and few have much to choose from."""
        if len(pool) <= _FEW and plan.gone.any() and len(self.everybody) <= _FEW:
            found = self._by_place(at, straddling=False)
            if found is not None and found[1].price < plan.price:
                return found
        return pool, plan

    def _by_place(self, at: float, *, straddling: bool) -> tuple[Pool, Plan] | None:
        if not self.everybody.branches:
            return None
        in_turn = models.in_turn(self.claim.unit)
        plan = reclaim_search.find(self.trial_of, self.wide, in_turn, at=at, straddling=straddling)
        return None if plan is None else (self.wide, plan)

    # --- protection

    def why_protected(self) -> str:
        """If only protection by run time is in the way, asks for a decision as soon as enough of it
        is over, and says when that is."""
        now, everybody = self.cycle.now, self.everybody
        runtimes = np.concatenate([self.pool.protected, everybody.protected])
        shields = everybody.shielded if everybody.branches else runtimes
        first = self._first(runtimes[runtimes > now], lambda at: self.plan(at) is not None)
        later = self._first(
            shields[shields > now], lambda at: self._by_place(at, straddling=True) is not None
        )
        due = min((each for each in (first, later) if each is not None), default=None)
        if due is None:
            return ""
        self.cycle.wake.append(due)
        if due == first:
            return f"{_PROTECTED}, not over for enough of them before {verdicts.moment(due)}"
        return f"{_SHIELDED} {verdicts.moment(due)}"

    def _first(self, ends: Floats, works: Callable[[float], bool]) -> float | None:
        """The first of these moments at which it works; None: at none."""
        moments: list[float] = np.unique(ends).tolist()
        if not moments or not works(moments[-1]):
            return None
        return moments[freeing.first_that(lambda n: works(moments[n]), 0, len(moments) - 1)]
