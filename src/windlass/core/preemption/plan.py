"""What can be done for a workload that may have others stopped, one possibility after another.

First workloads of its own queue and preferred victims of others (`freeing`), then any workloads of
queues that borrow, chosen by place (`reclaim_search`), then a gang that reaches into the guarantee
of its queue. If only protection by run time is in the way, the reason names the time it ends.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import PROTECTED
from windlass.core.preemption.victims import (
    elastic_surplus,
    reclaim,
    reclaim_search,
    victim_candidates,
    victim_selection,
)
from windlass.core.preemption.victims.candidates import Candidates, Floats, PreemptionRequest
from windlass.core.preemption.victims.simulation import PreemptionSimulation
from windlass.core.preemption.victims.victim_selection import Plan
from windlass.core.quota import device_models
from windlass.core.verdicts import formatting

_FEW = 32
"""Workloads among which the cheapest are looked for in two ways."""
_PROTECTED = "those that it may preempt must first run for their queue's minimum runtime"
_BUDGETS = (
    "PodDisruptionBudgets do not allow the eviction of enough of the pods that it may preempt"
)
_SHIELDED = (
    "what it may preempt goes only as a whole and reaches into its queue's guarantee; it is "
    "protected until"
)


@dataclasses.dataclass
class Chances:
    """Of one claim."""

    state: DecisionState
    claim: PreemptionRequest
    trial_of: Callable[[Candidates], PreemptionSimulation]
    pool: Candidates
    """What gives way to it in its own queue, preferred victims of other queues, and surplus."""

    @functools.cached_property
    def all_victims(self) -> Candidates:
        """With all other workloads of queues that borrow."""
        return reclaim.pool(self.state, self.claim, wide=True) if self.claim.scarce else self.pool

    @functools.cached_property
    def wide(self) -> Candidates:
        """The same, with no more surplus than may go together."""
        return victim_candidates.fair_part(self.state, self.claim, self.all_victims)

    def plan(self, at: float) -> tuple[Candidates, Plan] | None:
        """What is done if it is `at` that time."""
        found = self._preferred(at)
        if found is not None:
            return self._cheaper(*found, at)
        return self._by_place(at, straddling=False) or self._by_place(at, straddling=True)

    def _preferred(self, at: float) -> tuple[Candidates, Plan] | None:
        pool = self.pool
        plan = self._first_plan(pool, at)
        if plan is not None and not self._is_fair(pool, plan):
            pool = victim_candidates.fair_part(self.state, self.claim, pool)
            plan = self._first_plan(pool, at)
        return None if plan is None else (pool, plan)

    def _first_plan(self, pool: Candidates, at: float) -> Plan | None:
        in_turn = device_models.in_turn(self.claim.workload)
        return (
            victim_selection.plan(self.trial_of, pool, pool.protected <= at, in_turn)
            if len(pool)
            else None
        )

    def _is_fair(self, pool: Candidates, plan: Plan) -> bool:
        """Whether the surplus of other queues that a plan evicts may be evicted together."""
        workload = self.claim.workload
        yields = plan.gone & victim_candidates.yields(pool, workload.queue)
        if not yields.any():
            return True
        for name, part in pool.queues:
            if name == workload.queue:
                yields[part] = plan.gone[part]
        pieces = [pool.pieces[i] for i in np.flatnonzero(yields).tolist()]
        return elastic_surplus.is_fair(self.state, workload, self.claim.need, pieces)

    def _cheaper(self, pool: Candidates, plan: Plan, at: float) -> tuple[Candidates, Plan]:
        """The plan, or one by place that costs less: looked for where few may go, since there it
        takes little time, and few have much to choose from."""
        if len(pool) <= _FEW and plan.gone.any() and len(self.all_victims) <= _FEW:
            found = self._by_place(at, straddling=False)
            if found is not None and found[1].price < plan.price:
                return found
        return pool, plan

    def _by_place(self, at: float, *, straddling: bool) -> tuple[Candidates, Plan] | None:
        if not self.all_victims.branches:
            return None
        in_turn = device_models.in_turn(self.claim.workload)
        plan = reclaim_search.find(self.trial_of, self.wide, in_turn, at=at, straddling=straddling)
        return None if plan is None else (self.wide, plan)

    # --- protection

    def why_protected(self) -> str:
        """If only protection by run time is in the way, asks for a decision as soon as enough of it
        is over, and says when that is."""
        now, all_victims = self.state.now, self.all_victims
        runtimes = np.concatenate([self.pool.protected, all_victims.protected])
        shields = all_victims.shielded if all_victims.branches else runtimes
        first = self._first(runtimes[runtimes > now], lambda at: self.plan(at) is not None)
        later = self._first(
            shields[shields > now], lambda at: self._by_place(at, straddling=True) is not None
        )
        due = min((each for each in (first, later) if each is not None), default=None)
        if due is None:
            return ""
        if due >= PROTECTED:
            return _BUDGETS  # the change of a budget is an event
        self.state.wakeups.append(due)
        if due == first:
            return f"{_PROTECTED}, not over for enough of them before {formatting.moment(due)}"
        return f"{_SHIELDED} {formatting.moment(due)}"

    def _first(self, ends: Floats, works: Callable[[float], bool]) -> float | None:
        """The first of these moments at which it works; None: at none."""
        moments: list[float] = np.unique(ends).tolist()
        if not moments or not works(moments[-1]):
            return None
        return moments[
            victim_selection.first_that(lambda n: works(moments[n]), 0, len(moments) - 1)
        ]
