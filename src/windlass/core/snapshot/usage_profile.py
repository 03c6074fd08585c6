"""How much of its quota each queue gives back over time: expected ends of running workloads, by
queue.

The snapshot keeps one profile, changed by every event. A question about a time costs as much as
there are workloads that end before it, and reservations start soon.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from windlass.core import looks, queues
from windlass.core.facts import Running
from windlass.core.queues import Sums

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


class UsageProfile:
    def __init__(self) -> None:
        self._ends: dict[str, list[tuple[float, str]]] = {}
        """Queue -> (expected end, workload), ascending."""

    def enter(self, running: Running) -> None:
        if running.expected_end is not None:
            entry = (running.expected_end, running.unit.key)
            bisect.insort(self._ends.setdefault(running.unit.queue, []), entry)

    def leave(self, running: Running) -> None:
        if running.expected_end is not None:
            line = self._ends[running.unit.queue]
            del line[bisect.bisect_left(line, (running.expected_end, running.unit.key))]

    def ending(self, queue: str, now: float, until: float) -> Iterator[str]:
        """Workloads of the queue that are expected to end by then; late ones as `looks` has it."""
        for end, key in self._ends.get(queue, ()):
            if end > until:
                return
            estimated = looks.believed(end, now)
            if estimated is not None and estimated <= until:
                yield key


def released_by(cycle: Cycle, branch: str, time: float) -> Sums:
    """What a queue and those below it give back by then as running workloads end, less what their
    reserved workloads take by then and keep."""
    tree, snapshot, found = cycle.tree, cycle.snapshot, Sums()
    below = [branch]
    for name in below:
        below += tree.children.get(name, ())
        for key in snapshot.profile.ending(name, cycle.now, time):
            queues.add(found, cycle.held.get(key, {}))
    for held in cycle.reservations:
        if held.start <= time < held.end and branch in tree.path(held.unit.queue):
            queues.add(found, cycle.need(held.unit), -1)
    return found
