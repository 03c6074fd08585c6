"""Backfilled workloads that overrun their estimate make place for the reservation (R7)."""

import dataclasses

import pytest

from tests.unit.core.reserving import HEAD, NOW, node, promises, runs, snapshot, started
from windlass.core.cycle.cycle import decide
from windlass.core.model.types import PodAssignment, Queue, ReservationRecord
from windlass.core.prediction.predictor import History

SEATS = (PodAssignment("w", 0, "a"), PodAssignment("w", 1, "b"))
NODES = (node("a"), node("b"))


def given(start, made=NOW - 500):
    return [ReservationRecord("head", start, SEATS, made=made)]


def backfilled(**more):
    """Let in after the reservation was made; it should have ended ten seconds ago."""
    return runs("late", "a", end=NOW - 10, started=NOW - 400, **more)


def test_a_backfilled_workload_that_overran_is_preempted_when_the_reservation_is_due():
    decision = decide(snapshot(NODES, [backfilled()], [HEAD], reservations=given(NOW)), NOW)
    assert [(each.workload, each.preemptor) for each in decision.evictions] == [("late", "head")]
    assert "ran longer than expected" in decision.evictions[0].reason
    assert [each.workload for each in decision.nominations] == ["head"]
    assert not decision.withdrawals


@pytest.mark.parametrize(("guaranteed", "goes"), [(8000, False), (0, True)])
def test_what_lies_inside_the_guarantee_of_another_queue_does_not_yield(guaranteed, goes):
    late = backfilled(queue="other")
    queues = [Queue("q"), Queue("other", guarantee={"cpu": guaranteed})]
    decision = decide(snapshot(NODES, [late], [HEAD], queues, given(NOW)), NOW)
    assert bool(decision.evictions) is goes


def test_until_then_it_runs_on_and_the_start_stays():
    decision = decide(snapshot(NODES, [backfilled()], [HEAD], reservations=given(NOW + 20)), NOW)
    assert not decision.evictions
    assert promises(decision) == {"head": NOW + 20}
    assert not decision.withdrawals


@pytest.mark.parametrize(
    ("running", "made"),
    [
        (backfilled(preemptible=False), NOW - 500),
        (dataclasses.replace(backfilled(), protected_until=NOW + 60), NOW - 500),
        (backfilled(), NOW - 300),
        (backfilled(), None),
    ],
    ids=["not preemptible", "before its minimum runtime", "it was there first", "not known"],
)
def test_others_run_on_and_the_start_is_withdrawn_with_the_reason(running, made):
    decision = decide(snapshot(NODES, [running], [HEAD], reservations=given(NOW, made)), NOW)
    assert not decision.evictions
    assert not started(decision)
    (withdrawal,) = decision.withdrawals
    assert (withdrawal.workload, withdrawal.start) == ("head", NOW)
    assert withdrawal.reason == "a workload of queue q ran longer than its estimate"
    assert promises(decision)["head"] > NOW


def test_a_lost_node_is_named():
    nodes = [node("a"), node("c")]
    running = [runs("r", "a", end=NOW + 50), runs("s", "c", end=NOW + 90)]
    decision = decide(snapshot(nodes, running, [HEAD], reservations=given(NOW + 50)), NOW)
    assert promises(decision) == {"head": NOW + 90}
    assert [each.reason for each in decision.withdrawals] == ["node b was lost"]


# --- what is said, and what is believed ----------------------------------------------------------


def ended(history, count, said, ran, user="ada"):
    for number in range(count):
        workload = dataclasses.replace(
            HEAD, key=f"{user}{ran}{number}", history_key=user, expected=said
        )
        history.observe(workload, ran)


def says(seconds, user="ada", **more):
    return dataclasses.replace(HEAD, history_key=user, expected=seconds, **more)


def test_an_estimate_is_multiplied_by_how_wrong_the_user_was_lately():
    history = History()
    ended(history, 2, 100.0, 1000.0)
    assert history.estimate(says(60.0)) == 60.0  # two are too few to say
    ended(history, 1, 100.0, 1000.0)
    assert history.estimate(says(60.0)) == 600.0
    assert history.estimate(says(60.0, user="bob")) == 60.0
    assert History.from_state(history.to_state()).estimate(says(60.0)) == 600.0


def test_a_user_is_believed_again_after_good_estimates():
    history = History()
    ended(history, 12, 100.0, 1000.0)
    ended(history, 12, 100.0, 90.0)
    assert history.estimate(says(60.0)) == 60.0


def test_estimates_that_are_too_long_are_taken_as_they_are():
    history = History()
    ended(history, 12, 100.0, 10.0)
    assert history.estimate(says(60.0)) == 60.0


def test_the_limit_at_which_a_workload_is_stopped_bounds_what_is_believed():
    history = History()
    ended(history, 12, 100.0, 1000.0)
    assert history.estimate(says(60.0, max_runtime=120.0)) == 120.0


def test_a_workload_without_estimate_is_gone_when_its_limit_has_passed():
    """It may so be let in before a reservation."""
    brief = dataclasses.replace(
        HEAD, key="brief", roles=(dataclasses.replace(HEAD.roles[0], min_count=1, max_count=1),),
        expected=None, submitted=1.0, max_runtime=50.0,
    )  # fmt: skip
    running = [runs("r", "a", end=NOW + 50)]
    assert started(decide(snapshot(NODES, running, [HEAD, brief]), NOW)) == {"brief"}
    longer = dataclasses.replace(brief, max_runtime=51.0)
    assert not started(decide(snapshot(NODES, running, [HEAD, longer]), NOW))
