"""Backlogged queues get their weighted, hierarchical share over time: S5 of docs/sharing.md.

Random worlds with default settings, played through the simulator for so long that every queue could
repay its largest workload many times. Device-seconds are counted here from what runs, and compared
with the simulator's own figures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import share_worlds
from tests.properties.settings import CAMPAIGN, SOAK, cases
from tests.properties.share_worlds import DAY, HOUR, World
from windlass.sim import engine
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.policy_grid import Variant

pytestmark = CAMPAIGN
Floats = npt.NDArray[np.float64]

MOST = 1500 if SOAK else 160
"""Workloads of a world, about."""
LONG_RUN = 0.05
"""How far device-seconds are from the share at most, in the long run."""
FAIR = 0.98
"""The lowest index over windows."""
WINDOW = 24
"""Windows are so many times as long as the slowest repayment of the world, and a day at least."""


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


def check_long_run(played: Played) -> None:
    found = ratios(played)
    note(f"{played.world}")
    for name, ratio in found.items():
        assert abs(ratio - 1) <= LONG_RUN, (name, ratio)


def check_the_simulators_figures(played: Played) -> None:
    """They say the same as the count of this test."""
    world, entitled = played.world, played.world.entitled()
    end = played.outcome.end
    held = played.device_seconds(0.0, end)
    for name, share in played.outcome.shares.by_queue().items():
        assert share.backlogged == pytest.approx(end, rel=1e-6), name
        assert share.entitled == pytest.approx(entitled[name] / world.devices, rel=1e-4)
        assert share.device_seconds == pytest.approx(held[name], rel=1e-4)
    fairness = played.outcome.shares.queue_fairness()
    assert fairness is not None
    assert fairness.jain == pytest.approx(played.index(0.0, end), abs=2e-3)
    assert fairness.windows == pytest.approx(min(played.windows(DAY)), abs=2e-3)


@cases(6, 150)
@given(st.integers(0, 1 << 32))
def test_backlogged_queues_get_their_share(seed: int) -> None:
    played = Played(share_worlds.draw(seed, MOST))
    check_long_run(played)
    check_the_simulators_figures(played)
    length = max(DAY, WINDOW * played.world.slowest * HOUR)
    assert min(played.windows(length)) >= FAIR
    assert max(record.preempted for record in played.outcome.records) <= 12


@cases(2, 60)
@given(st.integers(0, 1 << 32), st.sampled_from((0.1, 0.5)))
def test_a_queue_that_under_reports_gets_no_more(seed: int, word: float) -> None:
    world = share_worlds.draw(seed, MOST)
    liar = min(world.mixes)
    mix = dataclasses.replace(world.mixes[liar], word=word)
    played = Played(dataclasses.replace(world, mixes={**world.mixes, liar: mix}))
    assert ratios(played)[liar] <= 1 + LONG_RUN


@cases(2, 60)
@given(st.integers(0, 1 << 32))
def test_a_queue_that_splits_its_workloads_gets_no_more(seed: int) -> None:
    world = share_worlds.draw(seed, MOST)
    splits = min(world.mixes)
    mix = dataclasses.replace(world.mixes[splits], sizes=((1, 1),))
    split = dataclasses.replace(world, mixes={**world.mixes, splits: mix})
    assert ratios(Played(split))[splits] <= 1 + LONG_RUN
