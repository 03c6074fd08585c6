"""Which nodes that do not exist yet would let waiting units start: the cheapest that would do.

Units are looked at in the order of their verdicts. Each uses what exists and what those before it
want; only what is still missing is added. Where nodes have prices, the fewest nodes that suffice
are taken from a list that is sorted by price per member they would hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import alike, place
from windlass.core.facts import Seat, Unit, Wanted
from windlass.core.place import Failure, Scene
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
_HELPED_BY_NODES = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.RESERVED_UNTIL)
_FINE = 1 << 20
"""Prices per member are compared in such parts of a billionth."""


def look(cycle: Cycle) -> None:
    """Opens what could be had and sees who would use it, in the order of their verdicts."""
    nodes = cycle.scene.cluster.nodes
    missing = [i for i, node in enumerate(nodes) if node.ready and node.ready_in > 0]
    if not missing:
        return
    alike.tell_the_rest(cycle)
    cluster = cycle.scene.cluster.fork()
    cluster.open_also(missing)
    scene = Scene(cluster, cycle.work, cycle.scene.crowd.fork())
    new = np.zeros(len(nodes), np.bool_)
    new[missing] = True
    there = ~new
    wanted: dict[str, list[str]] = {}
    for key, verdict in cycle.verdicts.items():
        if cycle.work.exhausted:
            break
        unit = cycle.snapshot.waiting.get(key)
        if unit is None or key in cycle.nominations or verdict.reason not in _HELPED_BY_NODES:
            continue
        seats = _seats(scene, unit, there, np.flatnonzero(new & ~there))
        used = {seat.node for seat in seats}
        there[[cluster.index[name] for name in used]] = True
        for name in sorted(name for name in used if new[cluster.index[name]]):
            wanted.setdefault(name, []).append(key)
    cycle.wanted = [Wanted(name, tuple(units)) for name, units in sorted(wanted.items())]


def _seats(scene: Scene, unit: Unit, there: npt.NDArray[np.bool_], more: Ints) -> tuple[Seat, ...]:
    """Seats with as few and as cheap further nodes as are found; none when all do not suffice."""
    wishes = place.least_of(unit)
    if not scene.cluster.priced:
        answer = place.place(scene, unit, wishes)
        return () if isinstance(answer, Failure) else answer
    more = _cheapest_first(scene, wishes, more)

    def try_with(count: int) -> tuple[Seat, ...]:
        scene.within = there.copy()
        scene.within[more[:count]] = True
        answer = place.place(scene, unit, wishes)
        scene.within = None
        return () if isinstance(answer, Failure) else answer

    mark = scene.cluster.mark()
    low, high = 0, len(more)
    found = try_with(high)
    while found and low < high:
        middle = (low + high) // 2
        scene.cluster.rollback(mark)
        if try_with(middle):
            high = middle
        else:
            low = middle + 1
        scene.cluster.rollback(mark)
        if low == high:
            found = try_with(low)
    return found


def _cheapest_first(scene: Scene, wishes: list[place.Wish], more: Ints) -> Ints:
    """By price per member that a node would hold, then the sooner; those that hold none are out."""
    holds = np.zeros(len(more), np.int64)
    for wish in wishes:
        holds += np.minimum(scene.caps(scene.shape(wish.role))[more], wish.count)
    useful = np.flatnonzero(holds)
    each = scene.cluster.price[more[useful]] * _FINE // holds[useful]
    ready = np.array([scene.cluster.nodes[i].ready_in for i in more[useful]])
    return more[useful[np.lexsort((ready, each))]]
