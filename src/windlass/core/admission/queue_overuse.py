"""Workloads of queues that got far more than their share wait, while others wait below theirs.

Backfill gives capacity to any workload that delays no reservation. Small workloads can always use
what comes free in small pieces, so a queue of small workloads would keep nodes in pieces for ever,
beside queues that wait for whole ones. A queue whose claim is used up (`core.fairshare`) therefore
starts nothing on nodes that a queue below its claim could use. Other nodes stay open to it, so that
no capacity lies idle that others cannot use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import verdicts
from windlass.core.facts import Unit, Verdict
from windlass.core.shapes import OWN

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Mask = npt.NDArray[np.bool_]

LOOK_AGAIN = 600.0
"""Seconds after which it is worth asking whether the claim has recovered."""


def overspent(cycle: Cycle, unit: Unit) -> str:
    """The queue that has used up its claim, so that the workload must wait; empty: it need not."""
    if len(cycle.tree.queues) < 2:
        return ""
    queue = cycle.fair_shares.overspent(unit.queue, cycle.need(unit))
    if not queue:
        return ""
    wanted = _wanted_by_others(cycle, cycle.tree.queues[queue].parent)
    cluster = cycle.scene.cluster
    for shape in cycle.asked(unit).shapes:
        usable = cluster.capacity_of(shape) > 0
        if not (usable & ~wanted).any():
            return queue
    return ""


def refuse(cycle: Cycle, unit: Unit, queue: str) -> Verdict:
    """The verdict, which holds for all workloads of its class until the end of the decision."""
    cycle.wake.append(cycle.now + LOOK_AGAIN)
    verdict = verdicts.over_share(unit, queue)
    kind = cycle.asked(unit).kind
    if kind != OWN:
        cycle.memory.hopeless.setdefault(kind, verdict)
    return verdict


def _wanted_by_others(cycle: Cycle, parent: str) -> Mask:
    """Nodes that waiting workloads of children below their claim could use if those were empty."""
    known = cycle.memory.wanted.get(parent)
    if known is None:
        cluster = cycle.scene.cluster
        known = np.zeros(len(cluster), np.bool_)
        below = cycle.fair_shares.owed_below(parent)
        for name in below:
            below += cycle.tree.children.get(name, ())
            for kind in cycle.snapshot.kinds(name):
                if kind != OWN:
                    for role in cluster.shapes.examples[kind].roles:
                        known |= cluster.capacity_of(cluster.shape_of(role)) > 0
        cycle.memory.wanted[parent] = known
    return known
