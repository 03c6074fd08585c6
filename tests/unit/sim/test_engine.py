"""The engine: what happens to jobs, to the second, with every decision checked."""

from __future__ import annotations

import dataclasses
import json
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.sim.building import COSTS, job, outcome, play, scenario
from windlass.core.model.types import Policy, Queue
from windlass.core.reservation import allowance
from windlass.sim import compare, engine
from windlass.sim.metrics import metrics
from windlass.sim.policy_grid import Variant, combinations
from windlass.sim.scenario import FOREVER, Outage, Scenario, with_runtimes


def test_a_job_waits_for_capacity_and_starts_the_moment_it_is_free() -> None:
    found = play(scenario(job("a", 0, 100), job("b", 10, 50)))
    assert (found["a"].first_start, found["a"].end) == (0, 100)
    assert (found["b"].first_start, found["b"].end, found["b"].waited) == (100, 150, 90)


def test_what_happens_at_the_same_moment_is_decided_at_once() -> None:
    jobs = [job(f"j{n}", 5, 60, gpus=1) for n in range(8)]
    # One decision at the arrival of all, one at the end of all.
    assert outcome(scenario(*jobs)).decisions == 2


def test_a_workload_before_the_head_of_a_strict_queue_does_not_wait_as_those_behind_it_do() -> None:
    """One of its kind started when the head was refused, and was then before it too."""
    strict = Queue("default", order="priority", strict=True)
    jobs = [
        job("one", 0, 100, gpus=2, priority=90),
        job("head", 0, 50, gpus=8, priority=50),
        job("two", 10, 100, gpus=2, priority=90),
    ]
    assert play(scenario(*jobs, queues=(strict,)))["two"].first_start == 10


PASSING = (
    job("running", 0, 100, gpus=4),
    job("head", 1, 50, gpus=8),
    job("short", 2, 90, gpus=4),
    job("long", 3, 500, gpus=4),
)


@pytest.mark.parametrize(
    ("backfill", "starts"),
    [
        ("none", {"head": 100, "short": 150, "long": 150}),
        ("non-reserving", {"head": 592, "short": 2, "long": 92}),
        ("reserving", {"head": 100, "short": 2, "long": 150}),
    ],
)
def test_workloads_that_may_pass_a_waiting_head(backfill: str, starts: dict[str, float]) -> None:
    [variant] = combinations(["fifo"], [backfill])
    found = play(scenario(*PASSING), variant)
    assert {key: found[key].first_start for key in starts} == starts


def _endless(order: str, **said: int) -> dict[str, float | None]:
    """Small jobs without end, of which one always holds half of the only node, and a gang that
    wants it whole."""
    small = [job(f"small-{n:03}", 50 * n, 100, gpus=4) for n in range(200)]
    queue = Queue("default", order=order, **said)
    gang = job("gang", 10, 100, gpus=4, members=2)
    found = play(scenario(*small, gang, queues=(queue,)), grace=0)
    return {key: record.first_start for key, record in found.items()}


def test_small_jobs_without_end_do_not_starve_a_gang_under_shortest() -> None:
    long = 10 + 100 * allowance.RESERVATION_DELAY
    starts = _endless("shortest")
    assert starts["gang"] is not None
    assert long <= starts["gang"] <= long + 100, "those that run then end, and nobody passes"
    assert _endless("shortest", reserve=0)["gang"] == 200 * 50 + 50, "after all of them"


def test_jobs_without_end_do_not_starve_a_gang_under_attained() -> None:
    """Without preemption, so that only the reservation helps: three days, and what runs then."""
    hour, starts = 3600, list[float]()
    for said in ({}, {"reserve": 0}):
        small = [job(f"small-{n:03}", n * hour, 2 * hour, gpus=4) for n in range(6 * 24)]
        gang = job("gang", 10, 2 * hour, gpus=4, members=2)
        queue = Queue("default", order="attained", **said)
        variant = Variant(preempt=False)
        found = play(scenario(*small, gang, queues=(queue,)), variant, grace=0)
        start = found["gang"].first_start
        assert start is not None
        starts.append(start)
    assert starts[0] <= allowance.LONG_WAIT + 10 + 2 * hour
    assert starts[1] > 6 * 24 * hour, "after all of them"


def test_a_reservation_is_remembered_as_it_was_first_made() -> None:
    [variant] = combinations(["fifo"], ["reserving"])
    found = play(scenario(*PASSING), variant)
    assert found["head"].reserved_start == 100


@pytest.mark.parametrize(
    ("checkpoint", "lost", "end"),
    [(200.0, 130.0, 1290.0), (None, 530.0, 1690.0), (0.0, 0.0, 1160.0)],
)
def test_preemption_costs_the_grace_the_work_since_the_checkpoint_and_the_restart(
    checkpoint: float | None, lost: float, end: float
) -> None:
    low, high = job("low", 0, 1000, priority=10), job("high", 500, 100, priority=90)
    found = play(scenario(low, high), checkpoint=checkpoint)
    assert (found["high"].first_start, found["high"].end) == (530, 630)
    assert (found["low"].preempted, found["low"].lost) == (1, lost)
    assert found["low"].end == end


@pytest.mark.parametrize(
    ("said", "left"), [(1000, 660), (2000, 1660), (300, 120), (400, 120), (None, None)]
)
def test_of_a_stopped_job_the_scheduler_knows_what_it_said_less_what_it_kept(
    said: float | None, left: float | None
) -> None:
    """It was stopped at 530 with 400 s saved; that it takes 1000 is not stated."""
    low = job("low", 0, 1000, priority=10, expected=said)
    simulation = engine.Simulation(
        scenario(low, job("high", 500, 100, priority=90)), Variant(preempt=True)
    )
    while "low" not in simulation.snapshot.waiting or simulation.now < 530:
        assert simulation.step()
    assert simulation.snapshot.waiting["low"].expected == left


def test_without_preemption_no_workload_is_stopped() -> None:
    low, high = job("low", 0, 1000, priority=10), job("high", 500, 100, priority=90)
    found = play(scenario(low, high), Variant(preempt=False))
    assert (found["high"].first_start, found["low"].end) == (1000, 1000)


def test_a_job_that_fails_waits_a_while_and_goes_on_from_its_checkpoint() -> None:
    found = play(scenario(job("a", 0, 1000, fails=(300,))))
    # Fails at 300 with 200 saved, starts at 330, loads until 390, works 800 more.
    assert (found["a"].failed, found["a"].lost, found["a"].end) == (1, 100, 1190)


def test_a_gang_that_loses_a_node_is_completed_elsewhere() -> None:
    gang = job("gang", 0, 1000, members=2)
    found = play(scenario(gang, nodes=3, outages=(Outage("node-0000", 500),)))
    # 400 were saved; whole again at once, loaded at 560, 600 seconds are left.
    assert (found["gang"].end, found["gang"].lost, found["gang"].preempted) == (1160, 100, 0)


def test_a_gang_that_cannot_be_completed_goes_back_to_its_queue() -> None:
    gang, small = job("gang", 0, 1000, members=2), job("small", 900, 100, gpus=8)
    outages = (Outage("node-0000", 500, 2000),)
    found = play(scenario(gang, small, nodes=2, outages=outages))
    # It holds its other node until 1100, then the small one gets it.
    assert found["small"].first_start == 1100
    assert found["gang"].end == 2000 + 60 + 600


@pytest.mark.parametrize("more", [(600, 700), (500, 500), (900, 1000), (1000, 1400), (600, 1400)])
def test_a_node_is_back_when_the_last_of_its_outages_is_over(more: tuple[float, float]) -> None:
    outages = (Outage("node-0000", 500, 1000), Outage("node-0000", *more))
    found = play(scenario(job("a", 0, 100), job("b", 700, 50), outages=outages))
    assert found["b"].first_start == max(1000, more[1])


def test_what_came_otherwise_is_no_moment() -> None:
    """A gang that lost a node ends later than it would have: nothing happens when it would have."""
    gang = job("gang", 0, 1000, members=2)
    lost = (Outage("node-0000", 500),)
    played = outcome(scenario(gang, nodes=3, outages=lost))
    # It starts; the node is lost, and another takes its place; it ends, 500 - 400 + 60 s later.
    assert played.timeline.times == [0, 500, 1160]
    alone = outcome(scenario(gang, nodes=2, outages=lost))
    # It waits for repair until 1100. The end that it had before is no moment.
    assert (alone.timeline.times, alone.end) == ([0, 500, 1100], 1100)


def test_an_elastic_job_grows_and_is_done_sooner() -> None:
    found = play(scenario(job("elastic", 0, 400, gpus=1, members=1, most=4)))
    assert found["elastic"].end == 100


def test_jobs_without_end_leave_the_simulation_finite() -> None:
    found = play(scenario(job("server", 0, FOREVER, gpus=4), job("a", 5, 10, gpus=4)))
    assert (found["server"].end, found["a"].end) == (None, 15)


def test_a_job_that_fits_nowhere_waits_with_a_reason() -> None:
    played = outcome(scenario(job("huge", 0, 10, members=9)))
    assert metrics.summary(played)["never_started"] == 1
    assert "needs 9" in played.verdicts["huge"]


def test_runtimes_unknown_to_the_core_stay_unknown() -> None:
    hidden = with_runtimes(scenario(*PASSING), "unknown")
    assert all(each.workload.expected is None for each in hidden.jobs)
    assert [each.duration for each in hidden.jobs] == [each.duration for each in PASSING]


def test_the_same_simulation_twice_gives_the_same_bytes() -> None:
    played = _random_scenario(11)
    variants = combinations(["fifo", "fair"], ["reserving"])
    texts = {json.dumps(compare.compare(played, variants).data()) for _ in range(2)}
    assert len(texts) == 1


def test_running_workloads_of_the_beginning_go_on_to_their_end() -> None:
    first = engine.Simulation(scenario(job("a", 0, 100), job("b", 10, 50)), Variant())
    first.step()
    facts = first.snapshot.facts()
    later = Scenario("later", facts, (job("a", 0, 60), job("b", 40, 50)), costs=COSTS, start=40)
    found = play(later)
    assert (found["a"].end, found["b"].first_start) == (100, 100)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10_000),
    order=st.sampled_from(["fifo", "lifo", "priority", "fair", "shortest", "attained"]),
    backfill=st.sampled_from(["none", "non-reserving", "reserving"]),
    preempt=st.booleans(),
)
def test_no_rule_is_broken_and_all_work_is_done(
    seed: int, order: str, backfill: str, preempt: bool
) -> None:
    [variant] = combinations([order], [backfill], ["on" if preempt else "off"])
    for record in outcome(_random_scenario(seed), variant).records:
        assert record.end is not None
        least = sum(role.min_count for role in record.job.workload.roles)
        most = sum(role.max_count for role in record.job.workload.roles)
        # Work that was lost had to be done again; more pods than the least do it faster.
        assert record.ran * most / least >= record.job.duration + record.lost - 1e-6
        assert record.waited >= 0


def _random_scenario(seed: int) -> Scenario:
    chance = random.Random(seed)
    queues = (
        Queue("default", guarantee={"gpu": 16000}, min_runtime=60),
        Queue("other", limit={"gpu": 24000}, weight=2),
    )
    jobs = []
    for number in range(chance.randrange(2, 25)):
        members = chance.choice([1, 1, 1, 2, 3])
        lasts = float(chance.choice([5, 60, 600, 3600]))
        jobs.append(
            job(
                f"j{number:02}",
                float(chance.randrange(0, 2000, 50)),
                lasts,
                gpus=chance.choice([0, 1, 2, 4, 8]),
                members=members,
                most=members + chance.choice([0, 0, 2]),
                fails=(lasts / 2,) if chance.random() < 0.1 else (),
                queue=chance.choice(["default", "other"]),
                priority=chance.choice([10, 50, 90]),
                user=chance.choice(["ada", "bob"]),
                expected=chance.choice([lasts, lasts * 2, None]),
            )
        )
    outages = tuple(
        Outage(f"node-{n:04}", float(chance.randrange(3000)), 6000.0)
        for n in range(chance.choice([0, 0, 1]))
    )
    return scenario(*jobs, nodes=4, rack=2, queues=queues, outages=outages)


def test_small_jobs_do_not_wait_behind_the_surplus_of_an_elastic_one() -> None:
    """Issue 17 row 10: they waited 9.8 h; now for the grace of the pods that go."""
    small = [job(f"s{i}", 600, 3600, gpus=1) for i in range(4)]
    wide = job("wide", 0, 40 * 3600, gpus=1, members=1, most=8)
    found = play(scenario(wide, *small))
    assert {found[f"s{i}"].waited for i in range(4)} == {COSTS.grace}
    assert found["wide"].shrunk == 1


def test_a_stream_of_short_jobs_shrinks_an_elastic_one_only_once_in_a_pause() -> None:
    """Every five minutes a job of one minute comes. Without a pause each of them would shrink the
    elastic job, which would grow again a minute later."""
    short = [job(f"s{i:02}", 600 + 300 * i, 60, gpus=1) for i in range(48)]
    wide = job("wide", 0, 100 * 3600, gpus=1, members=1, most=8)
    found = play(scenario(wide, *short))
    hours = 48 * 300 / 3600
    assert 1 <= found["wide"].shrunk <= hours * 3600 / Policy().growth_pause
    assert max(found[each.workload.key].waited for each in short) <= COSTS.grace


def test_a_movable_job_is_moved_so_that_a_waiting_one_starts() -> None:
    """Both nodes are half full. The movable job goes to the other node and loses little work; the
    large one does not wait until either of them ends."""
    jobs = [
        job("first", 0, 3000, gpus=4, movable=True),
        job("long", 0, 9000, gpus=8),
        job("other", 0, 9000, gpus=4),
        job("blocker", 0, 500, gpus=4),
    ]
    large = job("large", 700, 600, gpus=8)
    fixed = [dataclasses.replace(each.workload, movable=False) for each in jobs]
    still = [
        dataclasses.replace(each, workload=workload)
        for each, workload in zip(jobs, fixed, strict=True)
    ]
    moved, kept = (play(scenario(*listed, large, nodes=3)) for listed in (jobs, still))
    assert kept["large"].waited > 1000
    assert moved["large"].waited == COSTS.grace
    assert len(moved["first"].moved) == 1
    assert moved["first"].preempted == 0
    assert moved["first"].end is not None
    # The grace, a new start, and the work since its last checkpoint are all that it costs.
    delay = moved["first"].end - kept["first"].end
    assert delay <= COSTS.grace + COSTS.restart + COSTS.checkpoint


def test_small_claims_on_a_guarantee_do_not_keep_a_gang_from_getting_done() -> None:
    """One run of a minute every twenty minutes, against a gang of six hours that holds what is
    guaranteed to it and to its owner, and saves nothing: it is stopped after 10, 20, 40 ... minutes
    at the earliest, so no more than log2(360 / 10) + 1 times."""
    queues = (Queue("a", guarantee={"gpu": 8000}), Queue("b", guarantee={"gpu": 8000}))
    gang = job("gang", 0, 6 * 3600, members=2, queue="b")
    small = [job(f"a{n:02}", 1000 + 1200 * n, 60, gpus=1, queue="a") for n in range(60)]
    found = play(scenario(gang, *small, nodes=2, queues=queues), checkpoint=None, restart=0)
    assert found["gang"].end is not None
    assert 1 <= found["gang"].preempted <= 6
    assert found["gang"].end < 20 * 3600
    assert all(record.end is not None for record in found.values())


def test_after_a_node_is_lost_guarantees_are_granted_in_turns_in_whole_nodes() -> None:
    """Three queues are each guaranteed a node of eight and have runs of eight for days; the node of
    one of them is lost. It gets a node again as soon as another had its turn, about an hour later,
    and from then on all three have two thirds of what they had."""
    queues = tuple(Queue(name, guarantee={"gpu": 8000}) for name in "abc")
    jobs = [job(name, 0, 20 * 3600, queue=name) for name in "abc"]
    lost = Outage("node-0002", 3600, FOREVER)
    found = play(scenario(*jobs, nodes=3, queues=queues, outages=(lost,)), checkpoint=600)
    ends = [record.end for record in found.values() if record.end is not None]
    assert len(ends) == 3
    assert max(ends) <= 1.6 * 20 * 3600
    assert max(ends) - min(ends) <= 3 * 3600
    assert max(record.preempted for record in found.values()) <= 16, "once in about two hours"
