"""How far a job is, to the last bit."""

from __future__ import annotations

import pytest

from tests.unit.sim.building import job
from windlass.core.model.types import Running
from windlass.sim.job_progress import Live, Record


@pytest.mark.parametrize(
    ("started", "now", "last"),
    [
        (0.0, 599.0, 400.0),
        (0.0, 600.0, 600.0),
        (1803.3333333333333, 2403.333333333333, 2403.333333333333),
    ],
    ids=["between two", "at one", "at one that rounding puts a little later"],
)
def test_the_next_checkpoint_comes_after_now_and_the_last_one_does_not(
    started: float, now: float, last: float
) -> None:
    """One that is due again as soon as it was taken would hold the simulation there for ever."""
    what = job("j")
    live = Live(Record(what), Running(what.workload, (), started), started, 0.0)
    assert live.checkpoint(now, 200.0) == last
    assert live.checkpoint(now, 200.0) <= now < live.next_checkpoint(now, 200.0)
