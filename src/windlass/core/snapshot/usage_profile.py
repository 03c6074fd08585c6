"""How much of its quota each queue gives back over time: expected ends of running workloads, by
queue.

The snapshot keeps one profile, changed by every event. A question about a time costs as much as
there are workloads that end before it, and reservations start soon.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from windlass.core.fairness import past_use
from windlass.core.model.types import Running
from windlass.core.prediction import aging


class UsageProfile:
    def __init__(self) -> None:
        self._ends: dict[str, list[tuple[float, str]]] = {}
        """Queue -> (expected end, workload), ascending."""
        self._devices = self._device_seconds = 0
        """Of workloads with an expected end. Whole numbers: in whatever order workloads come and
        go, the sums are the same."""

    def add(self, running: Running) -> None:
        if running.expected_end is not None:
            entry = (running.expected_end, running.workload.key)
            bisect.insort(self._ends.setdefault(running.workload.queue, []), entry)
            self._count(running, running.expected_end, 1)

    def remove(self, running: Running) -> None:
        if running.expected_end is not None:
            line = self._ends[running.workload.queue]
            del line[bisect.bisect_left(line, (running.expected_end, running.workload.key))]
            self._count(running, running.expected_end, -1)

    def _count(self, running: Running, end: float, sign: int) -> None:
        devices = sum(len(pod.grants) for pod in running.pods) or 1
        seconds = min(max(0.0, end - running.started), past_use.LONGEST_HORIZON)
        self._devices += sign * devices
        self._device_seconds += sign * devices * round(seconds)

    @property
    def horizon(self) -> float:
        """The expected length of running workloads, in seconds: the mean over their devices."""
        mean = self._device_seconds / self._devices if self._devices else 0.0
        return max(past_use.HORIZON, mean)

    def ending(self, queue: str, now: float, until: float) -> Iterator[str]:
        """Workloads of the queue that are expected to end by then; late ones as
        `core.prediction.aging` estimates."""
        for end, key in self._ends.get(queue, ()):
            if end > until:
                return
            estimated = aging.estimated_end(end, now)
            if estimated is not None and estimated <= until:
                yield key
