"""I9: a reservation is kept, whatever the orders, priorities, queues and what is borrowed."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties.settings import CAMPAIGN, cases
from tests.unit.sim.building import job, scenario
from windlass.core.model.types import Queue
from windlass.sim import compare, engine
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.policy_grid import ORDERS, Variant
from windlass.sim.scenario import Costs, Scenario

pytestmark = CAMPAIGN
AT_ONCE = Costs(grace=0.0, checkpoint=200.0, restart=0.0)


@cases(120, 5000)
@example(59, True)
@example(668777, True)  # guarantees exceed capacity: what a queue may borrow changed with a turn
@example(510511, True)  # a checkpoint that rounding put before now was due for ever
@given(st.integers(0, 1 << 32), st.booleans())
def test_a_reserved_start_is_kept_unless_an_entitled_workload_passes(
    seed: int, preempt: bool
) -> None:
    """Units run as long as they say, or shorter; nobody passes a promise but who could stop it."""
    played = _random_scenario(seed)
    variant = Variant(preempt=preempt)
    checker = compare.checker_for(played, variant, again=0)
    assert checker.reservation_check is not None
    outcome = engine.run(played, variant, checker=checker)
    # A workload that lost its place in a strict queue waits behind a head that can never start.
    strict = {queue.name for queue in played.facts.queues if queue.strict}
    shut = {r.job.workload.queue for r in outcome.records if not _can_run(r)} & strict
    for record in outcome.records:
        assert record.end is not None or not _can_run(record) or record.job.workload.queue in shut


@cases(40, 1000)
@example(19786, "lifo")  # a reservation that got other devices was still seen on its old ones
@given(st.integers(0, 1 << 32), st.sampled_from(ORDERS))
def test_among_equals_of_one_queue_no_workload_starts_after_its_reservation(
    seed: int, order: str
) -> None:
    outcome = _alike(seed, order)
    late = [
        r
        for r in outcome.records
        if r.reserved_start is not None and r.first_start > r.reserved_start
    ]
    assert not late


def _alike(seed: int, order: str) -> Outcome:
    chance = random.Random(seed)
    queue = Queue("default", order=order, reserve=chance.choice((1, 1, 2, 4)))
    played = scenario(
        *(_random_job(chance, number, ("default",), (50,)) for number in range(18)),
        nodes=3, queues=(queue,), costs=AT_ONCE,
    )  # fmt: skip
    return engine.run(played, Variant(preempt=False))


def _can_run(record: object) -> bool:
    return getattr(record, "first_start", None) is not None


def _random_scenario(seed: int) -> Scenario:
    chance = random.Random(seed)
    names = ("a", "b", "c")[: chance.randint(1, 3)]
    top = chance.random() < 0.3
    queues = [
        Queue(
            name,
            parent="top" if top else "",
            guarantee=chance.choice(({}, {}, {"gpu": 8000}, {"gpu": 16000})),
            limit=chance.choice(({}, {}, {"gpu": 24000})),
            lend=chance.choice(({}, {}, {"gpu": 4000})),
            weight=chance.choice((1, 2)),
            order=chance.choice(ORDERS),
            strict=chance.random() < 0.25,
            reserve=chance.choice((1, 1, 2, 3)),
            min_runtime=chance.choice((0.0, 60.0)),
            max_priority=chance.choice((None, None, 50)),
        )
        for name in names
    ]
    if top:
        queues.append(Queue("top", limit=chance.choice(({}, {"gpu": 24000}))))
    jobs = [
        _random_job(chance, number, names, chance.choice(((50,), (10, 50, 90))))
        for number in range(chance.randint(4, 24))
    ]
    return scenario(*jobs, nodes=4, rack=chance.choice((0, 2)), queues=tuple(queues), costs=AT_ONCE)


def _random_job(
    chance: random.Random, number: int, queues: tuple[str, ...], priorities: tuple[int, ...]
):
    members = chance.choice((1, 1, 1, 2, 3))
    lasts = float(chance.choice((5, 60, 600, 3600)))
    return job(
        f"j{number:02}",
        float(chance.randrange(0, 2000, 50)),
        lasts,
        gpus=chance.choice((1, 2, 4, 8)),
        members=members,
        most=members + chance.choice((0, 0, 0, 2)),
        queue=chance.choice(queues),
        priority=chance.choice(priorities),
        user=chance.choice(("ada", "bob")),
        expected=chance.choice((lasts, lasts, lasts * 2)),
        preemptible=chance.random() < 0.9,
    )
