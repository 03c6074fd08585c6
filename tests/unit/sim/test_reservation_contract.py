"""Rows of the sharing contract about reservations, played as scenarios (R1 to R7)."""

from __future__ import annotations

import dataclasses
import random
import statistics

import pytest

from tests.unit.sim.building import COSTS, job, play, scenario
from windlass.core.model.types import Queue
from windlass.sim.job_progress import Record
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import Job

HOUR = 3600.0
NO_PREEMPTION = Variant(preempt=False)


def waited(record: Record) -> float:
    assert record.first_start is not None
    return record.first_start - record.job.workload.submitted


def small_runs(count: int, every: float, lasts: float, **more) -> list[Job]:
    return [job(f"s{number:03}", number * every, lasts, gpus=1, **more) for number in range(count)]


@pytest.mark.parametrize("above", [False, True], ids=["own limit", "limit of an ancestor"])
def test_a_head_that_only_a_limit_keeps_waiting_starts_as_soon_as_in_a_strict_queue(above):
    """R5. Eight of 16 GPUs may be used; small runs keep coming and would use the quota for ever."""
    limit = {"gpu": 8000}
    queues = (
        (Queue("org", limit=limit), Queue("team", parent="org"))
        if above
        else (Queue("team", limit=limit),)
    )
    jobs = small_runs(200, 0.1 * HOUR, 1.5 * HOUR, queue="team")
    gang = job("gang", 2 * HOUR, 2 * HOUR, gpus=8, queue="team")
    head = play(scenario(*jobs, gang, nodes=2, queues=queues))["gang"]
    strict = tuple(dataclasses.replace(queue, strict=queue.name == "team") for queue in queues)
    bound = play(scenario(*jobs, gang, nodes=2, queues=strict))["gang"]
    assert waited(head) <= 1.2 * waited(bound)
    assert head.reserved_start == head.first_start


def test_others_of_the_queue_pass_a_head_that_waits_for_quota_if_they_end_before():
    """R1. The long run ends at 10 h; until then runs of half an hour use the rest of the limit."""
    jobs = [
        job("long", 0, 10 * HOUR, gpus=4, queue="team"),
        job("gang", HOUR, HOUR, gpus=8, queue="team"),
        *(
            job(f"s{number}", 2 * HOUR + number * HOUR, 0.5 * HOUR, gpus=4, queue="team")
            for number in range(7)
        ),
        job("late", 9.8 * HOUR, 0.5 * HOUR, gpus=4, queue="team"),
    ]
    queues = (Queue("team", limit={"gpu": 8000}),)
    records = play(scenario(*jobs, nodes=2, queues=queues))
    assert records["gang"].first_start == 10 * HOUR
    assert all(waited(records[f"s{number}"]) == 0 for number in range(7))
    assert records["late"].first_start == 11 * HOUR


def test_a_head_that_waits_for_what_others_lend_gets_a_start():
    """R5. The owner lends 4 of its 8: the borrower may use 12 of 16 GPUs."""
    queues = (Queue("owner", guarantee={"gpu": 8000}, lend={"gpu": 4000}), Queue("borrower"))
    jobs = [
        job("first", 0, 2 * HOUR, gpus=8, queue="borrower"),
        *(
            job(f"s{number:02}", number * 0.25 * HOUR, HOUR, gpus=2, queue="borrower")
            for number in range(40)
        ),
        job("gang", HOUR, HOUR, gpus=4, members=3, queue="borrower"),
    ]
    record = play(scenario(*jobs, nodes=2, queues=queues))["gang"]
    assert waited(record) <= 1.5 * HOUR


@pytest.mark.parametrize("impossible", [0, 4, 40])
def test_workloads_that_can_never_start_use_up_no_reservation(impossible):
    """R6. They stand at the head of the queue; behind them a gang competes with small runs."""
    never = [
        job(f"never{number:02}", number, HOUR, gpus=8 + 1 + number % 3)
        for number in range(impossible)
    ]
    jobs = small_runs(200, 0.1 * HOUR, 2 * HOUR)
    gang = job("gang", 2 * HOUR, HOUR, gpus=8, members=2)
    record = play(scenario(*never, *jobs, gang, nodes=2), NO_PREEMPTION)["gang"]
    assert waited(record) <= 2.5 * HOUR


@pytest.mark.parametrize("teams", [8, 12])
def test_a_queue_that_holds_nothing_gets_its_first_reservation_however_many_queues_wait(teams):
    """R6. All queues are in overload with gangs of their own; one comes late with its first."""
    queues = (*(Queue(f"q{number:02}") for number in range(teams)), Queue("late"))
    jobs = [
        job(f"j{number:02}-{turn:02}", turn * 900.0 + number, HOUR, queue=f"q{number:02}")
        for number in range(teams)
        for turn in range(16)
    ]
    gang = job("gang", 3 * HOUR, HOUR, gpus=8, members=3, queue="late")
    record = play(scenario(*jobs, gang, nodes=4, queues=queues), NO_PREEMPTION)["gang"]
    assert waited(record) <= 5 * HOUR


def test_a_withdrawn_start_is_recorded_with_its_reason():
    """R4. The higher priority comes after the start was given, and needs the same place."""
    jobs = [
        job("now", 0, HOUR, gpus=8),
        job("head", 60, HOUR, gpus=8),
        job("urgent", 120, HOUR, gpus=8, priority=90, preempts=False),
    ]
    records = play(scenario(*jobs, nodes=1, costs=dataclasses.replace(COSTS, grace=0)))
    assert records["head"].first_start == 2 * HOUR
    assert "priority 90" in records["head"].attempts[0].withdrawn_because


# --- estimates that are too short (R7) ------------------------------------------------------------


def seven_users(part: float) -> dict[str, list[Record]]:
    """Each user keeps submitting runs of up to 4 GPUs and some gangs of 16, on 32 GPUs in overload.
    User u0 says that its runs take such a part of what they take; waits by user, and of gangs."""
    chance = random.Random(7)
    jobs = []
    for number in range(420):
        user, gang = f"u{number % 7}", number % 20 == 13
        lasts = chance.choice((0.5, 1.0, 2.0, 4.0)) * HOUR
        jobs.append(
            job(
                f"j{number:03}", number * 0.13 * HOUR, lasts,
                gpus=8 if gang else chance.choice((1, 2, 4)), members=2 if gang else 1,
                user=user, history_key=user,
                expected=lasts * (part if user == "u0" and not gang else 1.0),
            )
        )  # fmt: skip
    played = scenario(*jobs, nodes=4, costs=dataclasses.replace(COSTS, grace=0))
    found: dict[str, list[Record]] = {}
    for record in play(played).values():
        workload = record.job.workload
        found.setdefault("gangs" if workload.roles[0].min_count > 1 else workload.user, []).append(
            record
        )
    return found


def mean_wait(records: list[Record]) -> float:
    return statistics.fmean(record.waited for record in records)


def test_a_user_who_claims_a_tenth_gains_nothing_worth_mentioning():
    honest, gaming = seven_users(1.0), seven_users(0.1)
    assert mean_wait(gaming["u0"]) >= 0.9 * mean_wait(honest["u0"])
    assert mean_wait(gaming["gangs"]) <= 1.1 * mean_wait(honest["gangs"])
