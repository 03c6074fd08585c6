"""The order in which a decision considers the waiting workloads of all queues.

The next is always the head of the queue whose turn it is (docs/reference/sharing.md, S4). Ranks
are computed again for queues whose use has changed since.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import Workload
from windlass.core.prefilter import equivalence_cache

Turn = tuple[tuple[int, ...], str, int, Workload]
"""Rank, queue, its last move when it was ranked, and the queue's head."""


def in_order(state: DecisionState) -> Iterator[Workload]:
    snapshot, tree = state.snapshot, state.tree
    lines = {
        name: iter(snapshot.pending_in_order(name, state.ordering))
        for name in snapshot.nonempty_queues()
    }
    if len(lines) == 1:
        for name, line in lines.items():
            while (workload := _next(state, name, line)) is not None:
                yield workload
        return
    turns: list[Turn] = []
    for name in lines:
        _queue_up(state, turns, lines, name)
    while turns:
        rank, name, ranked, workload = heapq.heappop(turns)
        if name in tree.queues and ranked != tree.last_change(name):
            now = _rank(state, name, workload)
            if rank < now:  # others moved meanwhile: look again
                heapq.heappush(turns, (now, name, tree.last_change(name), workload))
                continue
        yield workload
        _queue_up(state, turns, lines, name)


def _queue_up(
    state: DecisionState, turns: list[Turn], lines: dict[str, Iterator[Workload]], name: str
) -> None:
    workload, tree = _next(state, name, lines[name]), state.tree
    if workload is not None:
        known = name in tree.queues
        rank, ranked = (_rank(state, name, workload), tree.last_change(name)) if known else ((), 0)
        heapq.heappush(turns, (rank, name, ranked, workload))


def _next(state: DecisionState, name: str, line: Iterator[Workload]) -> Workload | None:
    """The next workload that may start; those before it get their verdicts."""
    seen = 0
    while True:
        cache = equivalence_cache.of(state)
        known = len(cache.unschedulable) + len(cache.over_quota)
        if (
            known > seen
            and name not in state.tree.paused
            and equivalence_cache.is_over(state, name, line)
        ):
            return None
        seen = known
        workload = next(line, None)
        if workload is None or not equivalence_cache.pass_over(state, workload):
            return workload


def _rank(state: DecisionState, name: str, workload: Workload) -> tuple[int, ...]:
    """Queues above their claim, while a sibling waits below its own, come after all others."""
    need = state.need(workload)
    last = not state.tree.within_guarantee(name, need) and state.fair_shares.is_overdrawn(name)
    return int(last), *state.tree.rank(name, need)
