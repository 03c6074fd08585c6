"""Carrying a decision out as the platform would: the facts, or the events, that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core.model.types import ClusterFacts, Decision, PodAssignment, Running, Workload
from windlass.core.snapshot import snapshot


def carry_out(facts: ClusterFacts, decision: Decision, now: float) -> ClusterFacts:
    """Placements run, evicted members leave (and still hold their capacity), nominations are
    kept."""
    return _facts_after(facts, steps(facts, decision, now))


def steps(facts: ClusterFacts, decision: Decision, now: float) -> list[snapshot.Event]:
    """The events that carrying out a decision causes, in the order in which it is done."""
    running = {each.workload.key: each for each in facts.running}
    waiting = {workload.key: workload for workload in facts.waiting}
    before = {each.workload for each in facts.nominations}
    after = {each.workload for each in decision.nominations}
    found: list[snapshot.Event] = [snapshot.NominationGone(key) for key in sorted(before - after)]
    found += [snapshot.Nominated(nomination) for nomination in decision.nominations]
    for eviction in decision.evictions:
        victim = running[eviction.workload]
        leaving = tuple(dict.fromkeys((*victim.leaving, *eviction.pods)))
        running[eviction.workload] = dataclasses.replace(victim, leaving=leaving)
        found.append(snapshot.RunningPut(running[eviction.workload]))
    for placement in decision.placements:
        known = running.get(placement.workload)
        if known is None:
            known = _starting(waiting[placement.workload], now, facts)
        known = dataclasses.replace(known, pods=(*known.pods, *placement.pods))
        running[placement.workload] = known
        found.append(snapshot.RunningPut(known))
    found.append(snapshot.ReservationsPut(decision.reservations))
    return found


def members_left(facts: ClusterFacts, *, resubmit: bool = True) -> list[snapshot.Event]:
    """All evicted pods are gone; a workload that was evicted whole waits again."""
    found: list[snapshot.Event] = []
    for running in facts.running:
        if not running.leaving:
            continue
        kept = tuple(s for s in running.pods if (s.role, s.index) not in running.leaving)
        if kept:
            found.append(snapshot.RunningPut(dataclasses.replace(running, pods=kept, leaving=())))
        elif resubmit:
            found.append(snapshot.WaitingPut(running.workload))
        else:
            found.append(snapshot.WorkloadGone(running.workload.key))
    return found


def after(facts: ClusterFacts, events: Iterable[snapshot.Event]) -> ClusterFacts:
    return _facts_after(facts, events)


def _starting(workload: Workload, now: float, facts: ClusterFacts) -> Running:
    minimum = next((q.min_runtime for q in facts.queues if q.name == workload.queue), 0.0)
    end = None if workload.expected is None else now + workload.expected
    return Running(workload, (), now, end, protected_until=now + minimum)


def _facts_after(facts: ClusterFacts, events: Iterable[snapshot.Event]) -> ClusterFacts:
    known = _Known(facts)
    for event in events:
        known.hear(event)
    return known.facts()


class _Known:
    """The facts as plain values: on purpose not by the snapshot, which is what is tested."""

    def __init__(self, facts: ClusterFacts) -> None:
        self._before = facts
        self.running = {each.workload.key: each for each in facts.running}
        self.waiting = {workload.key: workload for workload in facts.waiting}
        self.nodes = {node.name: node for node in facts.nodes}
        self.queues = {queue.name: queue for queue in facts.queues}
        self.nominations = {each.workload: each for each in facts.nominations}
        self.reservations, self.quotas = facts.reservations, facts.quotas
        self.advance = facts.advance

    def facts(self) -> ClusterFacts:
        return dataclasses.replace(
            self._before,
            nodes=tuple(self.nodes.values()),
            queues=tuple(self.queues.values()),
            running=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            nominations=tuple(self.nominations.values()),
            reservations=self.reservations,
            quotas=self.quotas,
            advance=self.advance,
        )

    def hear(self, event: snapshot.Event) -> None:
        match event:
            case snapshot.NodePut(node):
                self.nodes[node.name] = node
            case snapshot.NodeGone(name):
                self.nodes.pop(name, None)
            case snapshot.QueuePut(queue):
                self.queues[queue.name] = queue
            case snapshot.QueueGone(name):
                self.queues.pop(name, None)
            case snapshot.QuotasPut(quotas):
                self.quotas = quotas
            case snapshot.AdvancePut(windows):
                self.advance = windows
            case snapshot.ReservationsPut(reservations):
                self.reservations = reservations
            case _:
                self._hear_of_a_workload(event)

    def _hear_of_a_workload(self, event: snapshot.Event) -> None:
        match event:
            case snapshot.WaitingPut(workload):
                self.running.pop(workload.key, None)
                self.waiting[workload.key] = workload
            case snapshot.RunningPut(holder):
                nomination = self.nominations.get(holder.workload.key)
                self._forget(holder.workload.key)
                self.running[holder.workload.key] = holder
                if nomination is not None and (is_incomplete(holder) or not staying(holder)):
                    self.nominations[holder.workload.key] = nomination
            case snapshot.CheckpointSaved(key, at):
                if key in self.running:
                    holder = dataclasses.replace(self.running[key], checkpoint_at=at)
                    self.running[key] = holder
            case snapshot.WorkloadGone(key):
                self._forget(key)
            case snapshot.Nominated(nomination):
                self.nominations[nomination.workload] = nomination
            case snapshot.NominationGone(key):
                self.nominations.pop(key, None)

    def _forget(self, key: str) -> None:
        for things in (self.running, self.waiting, self.nominations):
            things.pop(key, None)


def is_incomplete(running: Running) -> bool:
    """Whether a gang has fewer members than its minimum, and none of them is leaving."""
    counts = {role.name: 0 for role in running.workload.roles}
    for pod in running.pods:
        counts[pod.role] += 1
    short = any(counts[role.name] < role.min_count for role in running.workload.roles)
    return running.workload.gang and not running.leaving and short


def staying(running: Running) -> tuple[PodAssignment, ...]:
    """Pods that were not evicted."""
    return tuple(s for s in running.pods if (s.role, s.index) not in running.leaving)
