"""`decide`: which workloads start where, which are evicted for which, which get a reservation, and
why the others wait.

`Cycle` is the driver: it calls the steps of a decision in order, on one `DecisionState`. The same
snapshot, time and policy give the same answer, byte for byte. Work is counted in node-visits and
bounded by the policy.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from windlass.core.admission import checks, queue_overuse, user_limits
from windlass.core.calendar import advance_windows
from windlass.core.cycle import (
    clearing,
    defragmentation,
    elastic_growth,
    gang_repair,
    node_provisioning,
    nominations,
    start,
    turns,
    wakeup,
)
from windlass.core.decision.attempt import Attempt
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Decision, Policy, Verdict, Workload
from windlass.core.preemption import preemption, reclaim_from_starts
from windlass.core.prefilter import equivalence_cache
from windlass.core.quota import device_models
from windlass.core.quota.quota_tree import Shortage
from windlass.core.reservation import (
    allowance,
    backfill,
    overlap,
    quota_forecast,
    redeem,
    reservations,
    withdrawals,
)
from windlass.core.snapshot.snapshot import Snapshot
from windlass.core.verdicts import messages


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    """A decision makes no reference cycles, so the garbage collector finds nothing in it, and one
    pass over everything else costs as much as a decision."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_without_gc()
def decide(snapshot: Snapshot, now: float, policy: Policy = Policy()) -> Decision:  # noqa: B008
    return run(snapshot, now, policy).decision()


@_without_gc()
def run(snapshot: Snapshot, now: float, policy: Policy) -> Cycle:
    """The whole policy. `core.explain.explain` reads the state of the cycle afterwards."""
    windows = advance_windows.open_at(snapshot, now)
    view = snapshot if windows is None else windows.view()
    cycle = Cycle(DecisionState(view, now, policy, windows))
    cycle.run()
    return cycle


class _BlockedHeads(set[tuple[str, str]]):
    """(Strict queue, resource class) whose head waits."""


class _StartedAtOnce(set[str]):
    """Workloads for whose start no work was left, though there was capacity for them."""


class Cycle:
    """The driver of one decision."""

    def __init__(self, state: DecisionState) -> None:
        self.state = state

    def run(self) -> None:
        state = self.state
        # 0. Workloads that must leave capacity of an advance reservation are evicted.
        clearing.clear(state)
        # 1. Nominated capacity is kept for its workload, which starts there once it is free.
        nominations.keep(state)
        # 2. Reservations of the last decision hold from the start, where they still can.
        reservations.restore_all(state)
        # 3. A gang that lost pods comes first: until it is complete it wastes what it holds.
        gang_repair.repair(state)
        # 4. All waiting workloads, in the order of the quota tree and of each queue: each starts,
        #    or preempts, or gets a reservation, or a verdict. Later ones delay no reservation.
        self.consider_all()
        # 5. Workloads that may reclaim a guarantee take it from placements of this decision.
        reclaim_from_starts.run(state, self.consider_all)
        # 6. A workload that would fit if others ran elsewhere has them moved, where they allow it.
        defragmentation.run(state)
        # 7. Elastic workloads grow into what no waiting workload could use.
        elastic_growth.grow(state)
        # 8. Nodes that do not exist yet and would help workloads that still wait.
        node_provisioning.run(state)
        # 9. Firm reservations of the last decision that are not kept, and why.
        withdrawals.announce(state)

    # --- 4

    def consider_all(self) -> None:
        """Gives every waiting workload a turn."""
        for workload in turns.in_order(self.state):
            self.consider(workload)

    def consider(self, workload: Workload) -> None:
        """One waiting workload: it starts, or preempts others, or gets a verdict."""
        state, key = self.state, workload.key
        state.considered.append(key)
        if key in state.placements or key in state.nominations:
            return
        barred = checks.barred(state, workload) or user_limits.behind_own(state, workload)
        if barred is not None:
            self._conclude(key, barred)
            user_limits.hold_back(state, workload, barred)
            return
        known = equivalence_cache.known(state, workload)
        if known is not None:
            self._conclude(key, known)
            preemption.same_rights(state, known.workload, workload)
            return
        reservation = overlap.release(state, workload)
        before = state.generation
        verdict, why = self._verdict(workload, reservation)
        if verdict is None:
            return
        self._conclude(key, verdict)
        state.unresolved |= not verdict.resolved
        if reservation is None and state.generation == before:
            equivalence_cache.remember(state, workload, verdict, why)

    def _conclude(self, key: str, verdict: Verdict) -> None:
        equivalence_cache.of(self.state)  # workloads that it was done with get their verdicts first
        self.state.verdicts[key] = verdict

    def _verdict(
        self, workload: Workload, reservation: Reservation | None
    ) -> tuple[Verdict | None, str]:
        """Why it waits (None: it starts, or capacity is nominated to it), and why no workload is
        evicted for it. `reservation`: the one it had, which is released."""
        state = self.state
        refused = checks.refused(state, workload)
        if refused is not None:
            return refused, ""
        if reservation is None and self._is_blocked(workload):
            return messages.behind(workload), ""
        over = state.namespace_shortage(workload)
        if over is not None:
            reservations.retain(state, reservation)
            verdict = messages.lasting(state, workload, messages.over_space(workload, over))
            return self._wait(workload, verdict), ""
        if reservation is None and (overspent := queue_overuse.overspent(state, workload)):
            verdict = queue_overuse.refuse(state, workload, overspent)
            equivalence_cache.unschedulable(state, workload, verdict)
            return verdict, ""
        narrowed = device_models.permitted(state.context.cluster, state.tree, workload)
        if not isinstance(narrowed, Shortage):
            return self._with_models(narrowed, reservation)
        reservations.retain(state, reservation)
        verdict = messages.lasting(state, workload, messages.over_quota(workload, narrowed))
        if reservation is None:
            equivalence_cache.over_quota(state, workload, verdict)
        return self._wait(workload, verdict), ""

    def _with_models(
        self, workload: Workload, reservation: Reservation | None
    ) -> tuple[Verdict | None, str]:
        """For a workload that is narrowed to the device models that its queue may use."""
        state = self.state
        short = state.tree.shortage(
            workload.queue, state.need(workload), non_preemptible=not workload.preemptible
        )
        attempt = backfill.attempt(state, workload)
        if short is None:
            return self._start_or_preempt(attempt, reservation)
        beside = quota_forecast.shortage_beside(state, workload, attempt.need, attempt.overlapping)
        if beside is None and preemption.within_queue(state, attempt, short).found:
            return None, ""
        return self._wait_for_quota(workload, short, reservation), ""

    def _wait_for_quota(
        self, workload: Workload, shortage: Shortage, reservation: Reservation | None
    ) -> Verdict:
        """A rule of the quota tree keeps the workload waiting: it gets a reservation for when that
        has changed."""
        state = self.state
        verdict = messages.lasting(state, workload, messages.over_quota(workload, shortage))
        found = reservations.reserve(state, workload, reservation)
        if found is not None:
            return self._wait(workload, messages.reserved(verdict, found))
        if reservation is None and not allowance.may_reserve(state, workload):
            equivalence_cache.over_quota(state, workload, verdict)
        return self._wait(workload, verdict)

    def _start_or_preempt(
        self, attempt: Attempt, reservation: Reservation | None
    ) -> tuple[Verdict | None, str]:
        """For a workload that its quotas let start."""
        state, workload = self.state, attempt.workload
        beside = None
        # A reservation that is due was made beside the others: workloads that started since left
        # quota for all of them, or end before they start.
        if attempt.overlapping and not redeem.is_due(state, reservation):
            beside = quota_forecast.shortage_beside(
                state, workload, attempt.need, attempt.overlapping
            )
        if beside is not None:
            reservations.retain(state, reservation)
            verdict = messages.lasting(state, workload, messages.over_quota(workload, beside))
            return self._wait(workload, verdict), ""
        failure = start.start(state, attempt)
        if failure is None or redeem.redeem(state, workload, reservation):
            return None, ""
        outcome = preemption.preempt_for(state, attempt, failure)
        if outcome.found:
            return None, ""
        verdict = messages.no_capacity(state, workload, failure, outcome.why)
        found = reservations.reserve(state, workload, reservation)
        if found is not None:
            at_once = not failure.resolved and redeem.is_due(state, found)
            if at_once and self._starts_at_once(workload):
                return None, ""
            verdict = verdict if at_once else messages.reserved(verdict, found)
        return self._wait(workload, verdict), outcome.why

    def _starts_at_once(self, workload: Workload) -> bool:
        """For a start that was not looked for, because the work of this decision is used up: the
        search for a reservation may find free capacity now. It starts one workload so, and
        no more; the next decision considers the others. A reservation for now would start it at a
        moment that no wake-up names."""
        state = self.state
        found, started = overlap.release(state, workload), state.cache(_StartedAtOnce)
        if not started and redeem.redeem(state, workload, found):
            started.add(workload.key)
            return True
        allowance.searched_in_vain(state, workload, never=False)
        return False

    def _is_blocked(self, workload: Workload) -> bool:
        """Whether a head of its strict queue waits for the same resources."""
        blocked = self.state.shrinking_cache(_BlockedHeads)
        return (workload.queue, self.state.info(workload).resource_class) in blocked

    def _wait(self, workload: Workload, verdict: Verdict) -> Verdict:
        state = self.state
        if state.tree.queues[workload.queue].strict:
            blocked = state.shrinking_cache(_BlockedHeads)
            blocked.add((workload.queue, state.info(workload).resource_class))
            equivalence_cache.block(state, workload)
        return verdict

    # --- the answer

    @property
    def turn_of(self) -> dict[str, int]:
        """The turn of each workload, counted from 1."""
        equivalence_cache.finish(self.state)
        keys = dict.fromkeys(self.state.considered)
        return {key: number for number, key in enumerate(keys, start=1)}

    def waits(self) -> dict[str, Verdict]:
        """Waiting workloads in the order of their turns, with their verdicts. A verdict that many
        share names one of them: see `verdict_of`."""
        state = self.state
        equivalence_cache.finish(state)
        return {key: why for key, why in state.verdicts.items() if key not in state.placements}

    def verdict_of(self, key: str) -> Verdict:
        """The verdict on a workload that waits."""
        equivalence_cache.finish(self.state)
        return messages.addressed(self.state.verdicts[key], key)

    def decision(self, *, verdicts: bool = True) -> Decision:
        """The answer, with or without verdicts."""
        state = self.state
        return Decision(
            placements=tuple(state.placements.values()),
            evictions=tuple(state.evictions),
            nominations=tuple(state.nominations.values()),
            reservations=tuple(reservation.record for reservation in state.reservations),
            withdrawals=state.withdrawals,
            wanted=tuple(state.wanted_nodes),
            verdicts=tuple(self._verdicts()) if verdicts else (),
            wake_at=wakeup.next_moment(state),
            operations=state.policy.operations - state.work.left,
        )

    def _verdicts(self) -> list[Verdict]:
        equivalence_cache.finish(self.state)
        known, addressed = self.state.verdicts, messages.addressed
        waiting = known.keys() - self.state.placements.keys()
        return [addressed(known[key], key) for key in sorted(waiting)]
