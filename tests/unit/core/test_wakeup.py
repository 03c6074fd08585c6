"""When time alone changes the reservations: late workloads, and delays that end."""

import dataclasses

import pytest

from tests.unit.core.reserving import (
    HEAD,
    NOW,
    node,
    promises,
    role,
    runs,
    snapshot,
    started,
    workload,
)
from windlass.core.cycle.cycle import decide
from windlass.core.model.types import PodAssignment, Queue, ReservationRecord, Workload
from windlass.core.reservation import allowance
from windlass.core.snapshot.snapshot import ReservationsPut, apply

# --- workloads that run longer than stated ------------------------------------------------------


def test_the_estimated_end_of_an_overrun_stays_until_the_scheduler_wakes():
    """The head waits for one that should have ended 30 s ago, and `passer` would end before that
    is given up. If the head got a later reservation at each moment, the passer would slip in
    at one that no wake-up named."""
    passer = workload("passer", role(1, 8), expected=70.0, submitted=1.0)
    world = snapshot([node("a"), node("b")], [runs("r", "a", end=NOW - 30)], [HEAD, passer])
    first = decide(world, NOW)
    assert (promises(first), first.wake_at) == ({"head": NOW + 60}, NOW + 30)
    apply(world, [ReservationsPut(first.reservations)])
    for later in (NOW + 5, NOW + 29.9):
        again = decide(world, later)
        assert (promises(again), started(again), again.wake_at) == (
            {"head": NOW + 60}, set(), NOW + 30,
        )  # fmt: skip
    woken = decide(world, NOW + 30)
    assert started(woken) == {"passer"}, "as late again: it ends long before"
    assert promises(woken) == {"head": NOW + 150}


def test_an_end_that_no_reservation_counts_on_is_not_waited_for():
    """`s` has no known end, so the head has no start whether or not `r` is late."""
    running = [runs("r", "a", end=NOW + 50), runs("s", "b")]
    assert decide(snapshot([node("a"), node("b")], running, [HEAD]), NOW).wake_at is None


def test_a_workload_that_ends_at_this_moment_is_not_late_yet():
    decision = decide(snapshot([node("a"), node("b")], [runs("r", "a", end=NOW)], [HEAD]), NOW)
    assert promises(decision) == {"head": pytest.approx(NOW, abs=1e-5)}
    assert NOW < decision.wake_at < NOW + 1e-5


# --- where only a workload that waited long gets a reservation ----------------------------------

LONG = allowance.RESERVATION_DELAY * 100.0
"""For HEAD, which runs for 100 s."""
SHORTEST = (Queue("q", order="shortest"),)
BLOCKED = (runs("r", "a", end=NOW + 50),)
SMALLER = workload("smaller", role(2, 8), expected=50.0)


def since(seconds, what=HEAD, **more) -> Workload:
    return dataclasses.replace(what, submitted=NOW - seconds, **more)


FIRM = (runs("r", "a", end=NOW + 50, preemptible=False),)
"""Under `attained` a workload that ran is preempted by one that has not."""


def told(*waiting, queues=SHORTEST, running=BLOCKED, reservations=()):
    nodes = [node("a"), node("b")]
    return decide(snapshot(nodes, running, waiting, queues, reservations), NOW)


@pytest.mark.parametrize(
    ("head", "promised"),
    [
        (since(LONG), True),
        (since(LONG - 1), False),
        (since(LONG + 39, attained=40.0), False),
        (since(LONG + 40, attained=40.0), True),
        (since(allowance.LONG_WAIT, expected=None), True),
        (since(allowance.LONG_WAIT - 1, expected=None), False),
    ],
    ids=[
        "it waited long for how long it runs", "not yet", "what it ran before was no waiting",
        "it waited long besides", "it does not say how long it runs", "nor does this one",
    ],
)  # fmt: skip
def test_under_shortest_only_a_head_that_waited_long_gets_a_reservation(head, promised):
    decision = told(head)
    assert promises(decision) == ({"head": NOW + 50} if promised else {})
    passer = workload("passer", role(1, 8), expected=90.0)
    then = told(head, passer, reservations=decision.reservations)
    assert started(then) == (set() if promised else {"passer"}), "though it has less work to do"


@pytest.mark.parametrize(("said", "promised"), [(1, True), (0, False)])
def test_a_queue_with_a_number_of_reservations_has_no_reservation_delay(said, promised):
    queues = [Queue("q", order="shortest", reserve=said)]
    for waited in (0.0, 2 * LONG):
        assert bool(promises(told(since(waited), queues=queues))) == promised
    assert told(since(0.0), queues=queues).wake_at == (NOW + 50 if promised else None)


def test_time_alone_ends_patience_so_the_scheduler_wakes_then():
    assert told(since(LONG - 7)).wake_at == NOW + 7
    assert told(since(LONG - 7), since(LONG - 5, key="other")).wake_at == NOW + 5
    assert told(since(1.0, expected=None)).wake_at == NOW - 1.0 + allowance.LONG_WAIT
    assert told(since(LONG)).wake_at == NOW + 50, "there is nothing but the promise to wait for"


def test_while_one_has_a_reservation_only_the_delay_of_a_workload_that_may_pass_it_ends():
    low, high = since(LONG, key="low", priority=10), since(LONG - 7, key="high", priority=90)
    assert told(low, high).wake_at == NOW + 7
    assert told(low, since(LONG - 7, key="equal", priority=10)).wake_at == NOW + 50


def test_a_reservation_is_kept_whatever_is_estimated_of_its_length_since():
    pods = tuple(PodAssignment("w", index, name) for index, name in enumerate("ab"))
    given = [ReservationRecord("head", NOW + 50, pods)]
    passer = workload("passer", role(1, 8), expected=90.0)
    decision = told(since(LONG - 7), passer, reservations=given)
    assert (promises(decision), started(decision)) == ({"head": NOW + 50}, set())


@pytest.mark.parametrize("many", [1, 70])
def test_a_new_workload_does_not_hide_another_of_its_class_that_waited_long(many):
    """A verdict holds for all of its class, but not how long they waited."""
    young = [since(1.0, key=f"young-{n:02}", expected=50.0) for n in range(many)]
    assert promises(told(*young, since(LONG))) == {"head": NOW + 50}


@pytest.mark.parametrize("order", ["shortest", "attained"])
def test_of_those_that_waited_long_the_oldest_gets_the_reservation_whatever_the_order(order):
    """So the wait of each is bounded: only those that were submitted before it come first."""
    queues = [Queue("q", order=order)]
    old, young = since(3 * allowance.LONG_WAIT, key="old"), since(2 * allowance.LONG_WAIT, SMALLER)
    assert promises(told(young, old, queues=queues, running=FIRM)) == {"old": NOW + 50}
    never = since(4 * allowance.LONG_WAIT, workload("never", role(3, 8), expected=100.0))
    assert promises(told(never, young, old, queues=queues, running=FIRM)) == {"old": NOW + 50}


def test_a_reservation_of_an_earlier_decision_is_not_taken_by_an_older_workload():
    young = since(2 * allowance.LONG_WAIT, SMALLER)
    given = told(young).reservations
    old = since(3 * allowance.LONG_WAIT, key="old")
    assert promises(told(young, old, reservations=given)) == {"smaller": NOW + 50}


@pytest.mark.parametrize(("waited", "promised"), [(0.0, False), (1.0, True)])
def test_under_attained_a_workload_gets_a_reservation_after_three_days(waited, promised):
    queues = [Queue("q", order="attained")]
    decision = told(since(allowance.LONG_WAIT - 1 + waited), queues=queues, running=FIRM)
    assert promises(decision) == ({"head": NOW + 50} if promised else {})
    assert promised or decision.wake_at == NOW + 1
