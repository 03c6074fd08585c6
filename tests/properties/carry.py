"""Carrying a decision out as the platform would: the facts, or the events, that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core import state
from windlass.core.facts import Decision, Facts, Running, Seat, Unit


def carry_out(facts: Facts, decision: Decision, now: float) -> Facts:
    """Placements run, evicted members leave (and still hold their room), nominations are kept."""
    return _facts_after(facts, steps(facts, decision, now))


def steps(facts: Facts, decision: Decision, now: float) -> list[state.Event]:
    """The events that carrying out a decision causes, in the order in which it is done."""
    running = {each.unit.key: each for each in facts.running}
    waiting = {unit.key: unit for unit in facts.waiting}
    before = {each.unit for each in facts.nominations}
    after = {each.unit for each in decision.nominations}
    found: list[state.Event] = [state.NominationGone(key) for key in sorted(before - after)]
    found += [state.Nominated(nomination) for nomination in decision.nominations]
    for eviction in decision.evictions:
        victim = running[eviction.unit]
        leaving = tuple(dict.fromkeys((*victim.leaving, *eviction.seats)))
        running[eviction.unit] = dataclasses.replace(victim, leaving=leaving)
        found.append(state.Holds(running[eviction.unit]))
    for placement in decision.placements:
        known = running.get(placement.unit)
        if known is None:
            known = _starting(waiting[placement.unit], now, facts)
        known = dataclasses.replace(known, seats=(*known.seats, *placement.seats))
        running[placement.unit] = known
        found.append(state.Holds(known))
    found.append(state.Promised(decision.reservations))
    return found


def members_left(facts: Facts, *, resubmit: bool = True) -> list[state.Event]:
    """Everybody who was told to go is gone; a unit that was stopped whole waits again."""
    found: list[state.Event] = []
    for running in facts.running:
        if not running.leaving:
            continue
        kept = tuple(s for s in running.seats if (s.role, s.index) not in running.leaving)
        if kept:
            found.append(state.Holds(dataclasses.replace(running, seats=kept, leaving=())))
        elif resubmit:
            found.append(state.Waits(running.unit))
        else:
            found.append(state.Gone(running.unit.key))
    return found


def after(facts: Facts, events: Iterable[state.Event]) -> Facts:
    return _facts_after(facts, events)


def _starting(unit: Unit, now: float, facts: Facts) -> Running:
    minimum = next((q.min_runtime for q in facts.queues if q.name == unit.queue), 0.0)
    end = None if unit.expected is None else now + unit.expected
    return Running(unit, (), now, end, protected_until=now + minimum)


def _facts_after(facts: Facts, events: Iterable[state.Event]) -> Facts:
    known = _Known(facts)
    for event in events:
        known.hear(event)
    return known.facts()


class _Known:
    """The facts as plain values: on purpose not by the snapshot, which is what is tested."""

    def __init__(self, facts: Facts) -> None:
        self._before = facts
        self.running = {each.unit.key: each for each in facts.running}
        self.waiting = {unit.key: unit for unit in facts.waiting}
        self.nodes = {node.name: node for node in facts.nodes}
        self.queues = {queue.name: queue for queue in facts.queues}
        self.nominations = {each.unit: each for each in facts.nominations}
        self.reservations, self.quotas = facts.reservations, facts.quotas
        self.advance = facts.advance

    def facts(self) -> Facts:
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

    def hear(self, event: state.Event) -> None:
        match event:
            case state.NodePut(node):
                self.nodes[node.name] = node
            case state.NodeGone(name):
                self.nodes.pop(name, None)
            case state.QueuePut(queue):
                self.queues[queue.name] = queue
            case state.QueueGone(name):
                self.queues.pop(name, None)
            case state.QuotasPut(quotas):
                self.quotas = quotas
            case state.AdvancePut(windows):
                self.advance = windows
            case state.Promised(reservations):
                self.reservations = reservations
            case _:
                self._hear_of_a_unit(event)

    def _hear_of_a_unit(self, event: state.Event) -> None:
        match event:
            case state.Waits(unit):
                self.running.pop(unit.key, None)
                self.waiting[unit.key] = unit
            case state.Holds(holder):
                nomination = self.nominations.get(holder.unit.key)
                self._forget(holder.unit.key)
                self.running[holder.unit.key] = holder
                if nomination is not None and (is_incomplete(holder) or not staying(holder)):
                    self.nominations[holder.unit.key] = nomination
            case state.Saved(key, at):
                if key in self.running:
                    holder = dataclasses.replace(self.running[key], checkpoint_at=at)
                    self.running[key] = holder
            case state.Gone(key):
                self._forget(key)
            case state.Nominated(nomination):
                self.nominations[nomination.unit] = nomination
            case state.NominationGone(key):
                self.nominations.pop(key, None)

    def _forget(self, key: str) -> None:
        for things in (self.running, self.waiting, self.nominations):
            things.pop(key, None)


def is_incomplete(running: Running) -> bool:
    """Whether a gang has fewer members than its minimum, and none of them is leaving."""
    counts = {role.name: 0 for role in running.unit.roles}
    for seat in running.seats:
        counts[seat.role] += 1
    short = any(counts[role.name] < role.least for role in running.unit.roles)
    return running.unit.gang and not running.leaving and short


def staying(running: Running) -> tuple[Seat, ...]:
    """Members that were not told to go."""
    return tuple(s for s in running.seats if (s.role, s.index) not in running.leaving)
