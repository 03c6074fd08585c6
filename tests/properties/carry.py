"""Carrying a decision out as the platform would: the facts, or the events, that follow from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core import state
from windlass.core.facts import Decision, Facts, Nomination, Running, Seat, Unit


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
    """The facts as plain values: on purpose not by the snapshot, which is what is tested."""
    running = {each.unit.key: each for each in facts.running}
    waiting = {unit.key: unit for unit in facts.waiting}
    nodes = {node.name: node for node in facts.nodes}
    queues = {queue.name: queue for queue in facts.queues}
    nominations: dict[str, Nomination] = {each.unit: each for each in facts.nominations}
    reservations = facts.reservations
    for event in events:
        match event:
            case state.NodePut(node):
                nodes[node.name] = node
            case state.NodeGone(name):
                nodes.pop(name, None)
            case state.QueuePut(queue):
                queues[queue.name] = queue
            case state.QueueGone(name):
                queues.pop(name, None)
            case state.Waits(unit):
                running.pop(unit.key, None)
                waiting[unit.key] = unit
            case state.Holds(holder):
                waiting.pop(holder.unit.key, None)
                nominations.pop(holder.unit.key, None)
                running[holder.unit.key] = holder
            case state.Gone(key):
                running.pop(key, None)
                waiting.pop(key, None)
                nominations.pop(key, None)
            case state.Nominated(nomination):
                nominations[nomination.unit] = nomination
            case state.NominationGone(key):
                nominations.pop(key, None)
            case state.Promised(promised):
                reservations = promised
    return dataclasses.replace(
        facts,
        nodes=tuple(nodes.values()),
        queues=tuple(queues.values()),
        running=tuple(running.values()),
        waiting=tuple(waiting.values()),
        nominations=tuple(nominations.values()),
        reservations=reservations,
    )


def staying(running: Running) -> tuple[Seat, ...]:
    """Members that were not told to go."""
    return tuple(s for s in running.seats if (s.role, s.index) not in running.leaving)
