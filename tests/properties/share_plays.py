"""A world of `share_worlds` until its end, with what each queue held over time.

Device-seconds are counted here from what runs, without the simulator's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tests.properties.share_worlds import HOUR, World
from windlass.sim import engine
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.policy_grid import Variant

Floats = npt.NDArray[np.float64]


class Played:
    """A world until its end, with what each queue held over time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._parents = {queue.name: queue.parent for queue in world.queues}
        simulation = engine.Simulation(world.scenario(), Variant())
        times, rows = [0.0], []
        while simulation.now < world.until and simulation.step():
            times.append(simulation.now)
            rows.append(self._held(simulation))
        self._names = [queue.name for queue in world.queues]
        held = np.array(
            [[0.0] * len(self._names), *([row[n] for n in self._names] for row in rows)]
        )
        self._times = np.array(times)
        spans = np.diff(self._times)[:, None]
        self._sums = np.vstack((np.zeros(len(self._names)), np.cumsum(held[:-1] * spans, axis=0)))
        self.outcome: Outcome = simulation.outcome()

    def _held(self, simulation: engine.Simulation) -> dict[str, float]:
        """GPUs of each queue and those below it, from the devices of what runs."""
        found = dict.fromkeys(self._parents, 0.0)
        for running in simulation.snapshot.running.values():
            name = running.workload.queue
            while name:
                found[name] += sum(len(pod.grants) for pod in running.pods)
                name = self._parents[name]
        return found

    def device_seconds(self, since: float, until: float) -> dict[str, float]:
        return dict(zip(self._names, self._until(until) - self._until(since), strict=True))

    def _until(self, moment: float) -> Floats:
        columns = range(len(self._names))
        return np.array([np.interp(moment, self._times, self._sums[:, each]) for each in columns])

    def index(self, since: float, until: float) -> float:
        """Jain's, of the least fair siblings: over what each held of what it was entitled to."""
        entitled, held = self.world.entitled(), self.device_seconds(since, until)
        lowest = 1.0
        for parent in {queue.parent for queue in self.world.queues}:
            ratios = [held[q.name] / entitled[q.name] for q in self.world.children(parent)]
            squares = sum(ratio * ratio for ratio in ratios)
            if squares:
                lowest = min(lowest, sum(ratios) ** 2 / (len(ratios) * squares))
        return lowest

    def windows(self, seconds: float) -> list[float]:
        """The index of each, one beginning every hour."""
        begins = np.arange(0.0, self.world.until - seconds + 1, HOUR)
        return [self.index(begin, begin + seconds) for begin in map(float, begins)]


def ratios(played: Played) -> Mapping[str, float]:
    """What each queue held of what it was entitled to of all that was in use."""
    world = played.world
    held = played.device_seconds(0.0, world.until)
    in_use = sum(held[queue.name] for queue in world.children("")) / world.until
    entitled = world.entitled(in_use)
    return {name: held[name] / world.until / entitled[name] for name in held}
