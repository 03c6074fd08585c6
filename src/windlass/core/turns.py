"""The order in which a decision considers the waiting workloads of all queues.

The next is always the head of the queue whose turn it is (S4 of docs/sharing.md). Ranks are
computed again for queues whose use has changed since.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core import alike
from windlass.core.facts import Unit

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Turn = tuple[tuple[int, ...], str, int, Unit]
"""Rank, queue, its last move when it was ranked, and the queue's head."""


def in_order(cycle: Cycle) -> Iterator[Unit]:
    snapshot, tree = cycle.snapshot, cycle.tree
    lines = {name: iter(snapshot.line(name, cycle.standing)) for name in snapshot.lines()}
    if len(lines) == 1:
        for name, line in lines.items():
            while (unit := _next(cycle, name, line)) is not None:
                yield unit
        return
    turns: list[Turn] = []
    for name in lines:
        _queue_up(cycle, turns, lines, name)
    while turns:
        rank, name, ranked, unit = heapq.heappop(turns)
        if name in tree.queues and ranked != tree.last_move(name):
            now = _rank(cycle, name, unit)
            if rank < now:  # others moved meanwhile: look again
                heapq.heappush(turns, (now, name, tree.last_move(name), unit))
                continue
        yield unit
        _queue_up(cycle, turns, lines, name)


def _queue_up(cycle: Cycle, turns: list[Turn], lines: dict[str, Iterator[Unit]], name: str) -> None:
    unit, tree = _next(cycle, name, lines[name]), cycle.tree
    if unit is not None:
        known = name in tree.queues
        rank, ranked = (_rank(cycle, name, unit), tree.last_move(name)) if known else ((), 0)
        heapq.heappush(turns, (rank, name, ranked, unit))


def _next(cycle: Cycle, name: str, line: Iterator[Unit]) -> Unit | None:
    """The next workload that may start; those before it get their verdicts."""
    memory, seen = cycle.memory, 0
    while True:
        known = len(memory.hopeless) + len(memory.short)
        if known > seen and name not in cycle.tree.held and alike.is_over(cycle, name, line):
            return None
        seen = known
        unit = next(line, None)
        if unit is None or not alike.pass_over(cycle, unit):
            return unit


def _rank(cycle: Cycle, name: str, unit: Unit) -> tuple[int, ...]:
    """Queues above their claim, while a sibling waits below its own, come after all others."""
    need = cycle.need(unit)
    last = not cycle.tree.inside(name, need) and cycle.fair_shares.is_overdrawn(name)
    return int(last), *cycle.tree.rank(name, need)
