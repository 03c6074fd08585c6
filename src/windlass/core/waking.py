"""When time alone changes the answer: the next moment at which it is worth asking again.

Everything in a decision that follows the clock moves in steps, and the moments of these steps are
gathered here: promised starts, minimum runtimes and pauses that end (noted where they stand in the
way), windows of advance reservations and the last moments before them, patience that ends, looks at
running units, and ends that were believed in and passed. Until the first of them the same facts
give the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import allowance, fairshare, looks, overcommit, passing, predict, releases

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def next_moment(cycle: Cycle) -> float | None:
    """None: nothing changes before something happens."""
    moments = itertools.chain(
        cycle.wake,
        () if cycle.windows is None else cycle.windows.moments,
        (held.start for held in cycle.reservations),
        allowance.patience_ends(cycle),
        _looks(cycle),
        _ends(cycle),
        fairshare.next_preemption(cycle.snapshot, cycle.now),
        overcommit.next_turn(cycle),
    )
    first = min((at for at in moments if cycle.now < at < passing.FOREVER), default=None)
    return None if first is None else float(first)  # some come out of arrays


def _looks(cycle: Cycle) -> Iterator[float]:
    """When running units are looked at again, while somebody waits of whom that tells something:
    whoever runs, in whatever queue, tells something about those who wait."""
    if cycle.running and _is_learned(cycle):
        started = np.array([each.started for each in cycle.running.values()], np.float64)
        before = np.array([each.unit.attained for each in cycle.running.values()], np.float64)
        alone = predict.EAGER.all_left_alone(before)
        yield float(looks.next_looks(cycle.now, started, before, alone).min())


def _is_learned(cycle: Cycle) -> bool:
    """Whether the answer depends on what was learned of units: as ranks, or as ends that promises
    count on. Of whom nothing is known, looks tell nothing."""
    promising = bool(cycle.reservations or cycle.memory.in_vain)
    if promising and cycle.ledger.believes(cycle):
        return True
    for name in cycle.snapshot.lines():
        queue = cycle.tree.queues.get(name)
        if queue is None:
            continue
        if queue.order == "attained":
            return True
        silent = (unit for unit in cycle.snapshot.members(name) if unit.expected is None)
        if (promising or queue.order == "shortest") and any(
            cycle.predicted(unit) is not None for unit in silent
        ):
            return True
    return False


def _ends(cycle: Cycle) -> Iterator[float]:
    """When running workloads should have ended: if they have not, they are expected to end later,
    and reservations that count on it start later. One that starts before the estimated end counts
    on nothing then."""
    if not cycle.reservations and not cycle.memory.searched:
        return
    until = passing.FOREVER
    if not cycle.memory.searched:
        until = max(held.start for held in cycle.reservations)
    yield from cycle.ledger.next_ends(cycle, until)
    for key in cycle.placements:  # the ledger may not know them yet
        end = releases.expected_end(cycle, cycle.running[key])
        if end is not None and end <= until:
            yield float(looks.beliefs_end(np.array([end]), cycle.now)[0])
