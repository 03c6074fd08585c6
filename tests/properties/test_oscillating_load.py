"""Firm starts under a load that comes and goes: R2 and R4 of docs/reference/sharing.md.

Queues submit in turns, each a burst per period, so that a queue is now ahead of its share and now
behind. Estimates are true, and victims leave at once.
"""

from __future__ import annotations

import random

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties.settings import CAMPAIGN, cases
from tests.unit.sim.building import job, scenario
from windlass.core.model.types import Queue
from windlass.sim import compare, engine
from windlass.sim.metrics import metrics
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import Costs, Scenario

pytestmark = CAMPAIGN
HOUR = 3600.0
BURSTS = 12
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8))
"""Pods, and GPUs of each."""


def oscillating(seed: int, *, guarantees: bool) -> Scenario:
    throw = random.Random(seed)
    count, period = throw.choice((2, 3, 4)), throw.choice((2, 4, 8)) * HOUR
    queues = tuple(
        Queue(
            f"q{number}",
            weight=throw.choice((1, 1, 2, 3)),
            guarantee={"gpu": 8000} if guarantees and throw.random() < 0.3 else {},
        )
        for number in range(count)
    )
    jobs = []
    for number, queue in enumerate(queues):
        for burst in range(BURSTS):
            begins = number * period / count + burst * period
            for each in range(throw.randint(2, 6)):
                pods, gpus = throw.choice(SHAPES)
                lasts = throw.choice((0.1, 0.25, 0.5, 1, 2)) * HOUR * throw.uniform(0.8, 1.2)
                name = f"{queue.name}-{burst:02}-{each}"
                jobs.append(
                    job(name, begins + each * 60, lasts, gpus=gpus, members=pods,
                        queue=queue.name, expected=lasts)
                )  # fmt: skip
    costs = Costs(grace=0.0, checkpoint=200.0, restart=0.0)
    return scenario(*jobs, nodes=4, queues=queues, costs=costs)


@cases(4, 300)
@given(st.integers(0, 1 << 32), st.booleans())
def test_every_firm_start_is_kept_or_withdrawn_before_with_a_reason(
    seed: int, guarantees: bool
) -> None:
    played, variant = oscillating(seed, guarantees=guarantees), Variant()
    checker = compare.checker_for(played, variant, again=0)
    assert checker.reservation_check is not None
    found = metrics.reservation_counts(engine.run(played, variant, checker=checker).records)
    note(f"{found}")
    assert found["worst_delay_s"] == 0
    assert found["kept"] + found["withdrawn"] == found["made"] > 0
    assert all("reclaims its guarantee" in reason for reason in found["withdrawn_because"])
    if not any(queue.guarantee for queue in played.facts.queues):
        assert found["withdrawn"] == 0
