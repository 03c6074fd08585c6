"""Which nodes that do not exist yet would let waiting units start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core import place
from windlass.core.facts import Wanted
from windlass.core.place import Failure, Scene
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

_HELPED_BY_NODES = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, Reason.RESERVED_UNTIL)


def look(cycle: Cycle) -> None:
    """Opens what could be had and sees who would use it, in the order of their verdicts."""
    nodes = cycle.scene.cluster.nodes
    missing = [i for i, node in enumerate(nodes) if node.ready and node.ready_in > 0]
    if not missing or cycle.work.exhausted:
        return
    cluster = cycle.scene.cluster.fork()
    cluster.open_also(missing)
    scene = Scene(cluster, cycle.work, cycle.scene.crowd.fork())
    wanted: dict[str, list[str]] = {}
    new = {nodes[i].name for i in missing}
    for key, verdict in cycle.verdicts.items():
        unit = cycle.snapshot.waiting.get(key)
        if unit is None or key in cycle.nominations or verdict.reason not in _HELPED_BY_NODES:
            continue
        answer = place.place(scene, unit, place.least_of(unit))
        if isinstance(answer, Failure):
            continue
        for name in sorted({seat.node for seat in answer} & new):
            wanted.setdefault(name, []).append(key)
    cycle.wanted = [Wanted(name, tuple(units)) for name, units in sorted(wanted.items())]
