"""`decide`: who starts where now, and why the others wait.

First fit: units by priority, then age; nodes by name; a unit starts with the least of all its
groups or not at all, and takes up to the most while there is room. Same snapshot, same answer.

The live scheduler and the simulator call it; it reads no clock and touches nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from windlass.core import words
from windlass.core.snapshot import (
    Amounts,
    Decision,
    Group,
    Node,
    Placement,
    Policy,
    Queue,
    Snapshot,
    Unit,
    Verdict,
)
from windlass.kinds.reasons import Reason

Free = dict[str, dict[str, int]]
"""Node -> dimension -> amount that nobody holds."""


def decide(snapshot: Snapshot, now: float, policy: Policy) -> Decision:
    """Places what fits and says of everything else why it waits."""
    free: Free = {node.name: dict(node.free) for node in snapshot.nodes}
    quota = _Quota(snapshot.queues)
    placements: list[Placement] = []
    verdicts: list[Verdict] = []
    blocked: dict[str, str] = {}
    wake: list[float] = []
    for unit in _in_order(snapshot.units, quota.queues):
        if unit.not_before > now:
            wake.append(unit.not_before)
            continue
        if len(placements) >= policy.most_placements:
            wake.append(now)
            break
        answer = _judge(unit, quota, blocked) or _place(unit, snapshot.nodes, free)
        if isinstance(answer, Placement):
            placements.append(answer)
            quota.take(unit, answer)
            continue
        verdicts.append(answer)
        if unit.queue in quota.queues and quota.queues[unit.queue].strict:
            blocked.setdefault(unit.queue, unit.key)
    return Decision(tuple(placements), tuple(verdicts), min(wake, default=None))


def _in_order(units: Iterable[Unit], queues: Mapping[str, Queue]) -> list[Unit]:
    def rank(unit: Unit) -> tuple[int, float, str]:
        queue = queues.get(unit.queue)
        cap = queue.max_priority if queue is not None else None
        priority = unit.priority if cap is None else min(unit.priority, cap)
        return -priority, unit.submitted, unit.key

    return sorted(units, key=rank)


def _judge(unit: Unit, quota: _Quota, blocked: Mapping[str, str]) -> Verdict | None:
    """What forbids the unit to start wherever there may be room."""
    if unit.unsupported:
        return Verdict(unit.key, Reason.UNSUPPORTED, unit.unsupported)
    if unit.queue not in quota.queues:
        message = words.no_such_queue(unit.queue, quota.queues)
        return Verdict(unit.key, Reason.NO_SUCH_QUEUE, message)
    if unit.queue in blocked:
        return Verdict(unit.key, Reason.BEHIND_IN_QUEUE, words.behind(unit.queue))
    short = quota.shortage(unit)
    return None if short is None else Verdict(unit.key, Reason.WAITING_FOR_QUOTA, short)


class _Quota:
    """What each queue may still use, with those above it."""

    def __init__(self, queues: Iterable[Queue]) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self._used: dict[str, dict[str, int]] = {name: {} for name in self.queues}
        for queue in self.queues.values():
            self._add(queue.name, queue.used)

    def shortage(self, unit: Unit) -> str | None:
        """Which queue's limit is in the way of the unit's least, or None."""
        needs = _total(unit.groups)
        for name in self._upwards(unit.queue):
            for dimension, limit in sorted(self.queues[name].limit.items()):
                left = limit - self._used[name].get(dimension, 0)
                if needs.get(dimension, 0) > left:
                    return words.over_limit(dimension, needs[dimension], name, max(0, left))
        return None

    def take(self, unit: Unit, placement: Placement) -> None:
        for group in unit.groups:
            count = len(placement.members[group.name])
            self._add(unit.queue, {d: n * count for d, n in group.needs.items()})

    def _add(self, queue: str, amounts: Amounts) -> None:
        for name in self._upwards(queue):
            for dimension, amount in amounts.items():
                self._used[name][dimension] = self._used[name].get(dimension, 0) + amount

    def _upwards(self, name: str) -> Iterable[str]:
        seen: set[str] = set()
        while name in self.queues and name not in seen:
            seen.add(name)
            yield name
            name = self.queues[name].parent


def _total(groups: Iterable[Group]) -> dict[str, int]:
    """What the least of all groups needs together."""
    sums: dict[str, int] = {}
    for group in groups:
        for dimension, amount in group.needs.items():
            sums[dimension] = sums.get(dimension, 0) + amount * group.least
    return sums


def _place(unit: Unit, nodes: Sequence[Node], free: Free) -> Placement | Verdict:
    """Takes the unit's room out of `free`, or leaves it untouched and says what is short."""
    if not nodes:
        return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, "no node has joined yet")
    allowed = [node for node in nodes if _accepts(unit, node)]
    for group in unit.groups:
        if not any(_holds(node.capacity, group.needs) for node in allowed):
            return Verdict(unit.key, Reason.IMPOSSIBLE, words.impossible(group, allowed))
    candidates = sorted(node.name for node in allowed if node.open)
    trial: Free = {name: dict(free[name]) for name in candidates}
    members: dict[str, list[str]] = {}
    for group in unit.groups:
        members[group.name] = _fill(group.least, group.needs, candidates, trial)
        if len(members[group.name]) < group.least:
            placed = len(members[group.name])
            message = words.no_room(group, placed, [trial[name] for name in candidates])
            return Verdict(unit.key, Reason.WAITING_FOR_CAPACITY, message)
    for group in unit.groups:
        members[group.name] += _fill(group.most - group.least, group.needs, candidates, trial)
    free.update(trial)
    return Placement(unit.key, {name: tuple(chosen) for name, chosen in members.items()})


def _fill(count: int, needs: Amounts, candidates: list[str], free: Free) -> list[str]:
    """Up to `count` nodes, one per member, each with its room taken."""
    chosen: list[str] = []
    for name in candidates:
        while len(chosen) < count and _holds(free[name], needs):
            for dimension, amount in needs.items():
                free[name][dimension] -= amount
            chosen.append(name)
    return chosen


def _holds(amounts: Amounts, needs: Amounts) -> bool:
    return all(amounts.get(dimension, 0) >= amount for dimension, amount in needs.items() if amount)


def _accepts(unit: Unit, node: Node) -> bool:
    if any(node.labels.get(key) != value for key, value in unit.selector.items()):
        return False
    return all(
        taint.effect == "PreferNoSchedule" or any(t.accepts(taint) for t in unit.tolerations)
        for taint in node.taints
    )
