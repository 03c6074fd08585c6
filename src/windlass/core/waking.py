"""When time alone changes the answer: the next moment at which it is worth asking again.

Everything in a decision that follows the clock moves in steps, and the moments of these steps are
gathered here: promised starts, minimum runtimes and pauses that end (noted where they stand in the
way), patience that ends, looks at running units, and ends that were believed in and passed. Until
the first of them the same facts give the same answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from windlass.core import looks, predict, releases, reserve

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def next_moment(cycle: Cycle) -> float | None:
    """None: nothing changes before something happens."""
    moments = itertools.chain(
        cycle.wake,
        (held.start for held in cycle.reservations),
        reserve.patience_ends(cycle),
        _looks(cycle),
        _ends(cycle),
    )
    return min((at for at in moments if cycle.now < at < reserve.FOREVER), default=None)


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
    promising = _is_promising(cycle)
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
    """When running units should have ended: if they have not, something else is believed of them,
    and of promises that count on it."""
    if not _is_promising(cycle):
        return
    yield from cycle.ledger.next_ends(cycle)
    for key in cycle.placements:  # the ledger may not know them yet
        end = releases.expected_end(cycle, cycle.running[key])
        if end is not None:
            yield float(looks.beliefs_end(np.array([end]), cycle.now)[0])


def _is_promising(cycle: Cycle) -> bool:
    """Whether anything is promised, or would be if a start could be found."""
    return bool(cycle.reservations or cycle.memory.searched)
