"""Backlogged queues get their weighted, hierarchical share over time: S5 of docs/sharing.md.

Random worlds with default settings, played through the simulator for so long that every queue could
repay its largest workload many times. `python -m bench.shares` has the figures of many worlds.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import share_worlds
from tests.properties.settings import CAMPAIGN, SOAK, cases
from tests.properties.share_plays import Played, ratios
from tests.properties.share_worlds import DAY, HOUR

pytestmark = CAMPAIGN

MOST = 1500 if SOAK else 160
"""Workloads of a world, about."""
LONG_RUN = 0.05
"""How far device-seconds are from the share at most, in the long run."""
FAIR = 0.98
"""The lowest index over windows."""
WINDOW = 24
"""Windows are so many times as long as the slowest repayment of the world, and a day at least."""


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
