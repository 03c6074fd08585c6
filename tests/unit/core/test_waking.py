"""When time alone changes who is promised a start: late units, and patience that ends."""

import dataclasses

import pytest

from tests.unit.core.reserving import HEAD, NOW, node, promises, role, runs, snapshot, started, unit
from windlass.core import allowance, state
from windlass.core.cycle import decide
from windlass.core.facts import Queue, Reservation, Seat, Unit

# --- who runs longer than it should -------------------------------------------------------------


def test_what_is_believed_of_who_is_late_stays_until_the_scheduler_wakes():
    """The head waits for one that should have ended 30 s ago, and `passer` would end before that
    is given up. If the head were promised a later start at each moment, the passer would slip in
    at one that nobody named."""
    passer = unit("passer", role(1, 8), expected=70.0, submitted=1.0)
    world = snapshot([node("a"), node("b")], [runs("r", "a", end=NOW - 30)], [HEAD, passer])
    first = decide(world, NOW)
    assert (promises(first), first.wake_at) == ({"head": NOW + 60}, NOW + 30)
    state.apply(world, [state.Promised(first.reservations)])
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


def test_who_ends_in_this_very_moment_is_not_late_yet():
    decision = decide(snapshot([node("a"), node("b")], [runs("r", "a", end=NOW)], [HEAD]), NOW)
    assert promises(decision) == {"head": pytest.approx(NOW, abs=1e-5)}
    assert NOW < decision.wake_at < NOW + 1e-5


# --- where only who waited long is promised a start ---------------------------------------------

LONG = allowance.PATIENCE * 100.0
"""For HEAD, which runs for 100 s."""
SHORTEST = (Queue("q", order="shortest"),)
BLOCKED = (runs("r", "a", end=NOW + 50),)


def since(seconds, what=HEAD, **more) -> Unit:
    return dataclasses.replace(what, submitted=NOW - seconds, **more)


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
        (since(1e9, expected=None), False),
    ],
    ids=[
        "it waited long for how long it runs", "not yet", "what it ran before was no waiting",
        "it waited long besides", "it does not say how long it runs",
    ],
)  # fmt: skip
def test_under_shortest_only_a_head_that_waited_long_is_promised_a_start(head, promised):
    decision = told(head)
    assert promises(decision) == ({"head": NOW + 50} if promised else {})
    passer = unit("passer", role(1, 8), expected=90.0)
    then = told(head, passer, reservations=decision.reservations)
    assert started(then) == (set() if promised else {"passer"}), "though it has less work to do"


@pytest.mark.parametrize(("said", "promised"), [(1, True), (0, False)])
def test_a_queue_that_says_how_many_it_promises_has_no_patience(said, promised):
    queues = [Queue("q", order="shortest", reserve=said)]
    for waited in (0.0, 2 * LONG):
        assert bool(promises(told(since(waited), queues=queues))) == promised
    assert told(since(0.0), queues=queues).wake_at == (NOW + 50 if promised else None)


def test_time_alone_ends_patience_so_the_scheduler_wakes_then():
    assert told(since(LONG - 7)).wake_at == NOW + 7
    assert told(since(LONG - 7), since(LONG - 5, key="other")).wake_at == NOW + 5
    assert told(since(1.0, expected=None)).wake_at is None, "its patience never ends"
    assert told(since(LONG)).wake_at == NOW + 50, "there is nothing but the promise to wait for"


def test_while_one_is_promised_a_start_only_the_patience_of_who_may_pass_it_ends():
    low, high = since(LONG, key="low", priority=10), since(LONG - 7, key="high", priority=90)
    assert told(low, high).wake_at == NOW + 7
    assert told(low, since(LONG - 7, key="equal", priority=10)).wake_at == NOW + 50


def test_a_promise_once_given_is_kept_whatever_is_believed_of_its_length_since():
    seats = tuple(Seat("w", index, name) for index, name in enumerate("ab"))
    given = [Reservation("head", NOW + 50, seats)]
    passer = unit("passer", role(1, 8), expected=90.0)
    decision = told(since(LONG - 7), passer, reservations=given)
    assert (promises(decision), started(decision)) == ({"head": NOW + 50}, set())


@pytest.mark.parametrize("many", [1, 70])
def test_who_waits_since_shortly_does_not_hide_another_of_its_kind_that_waited_long(many):
    """What one is told holds for all of its kind, but not how long they waited."""
    young = [since(1.0, key=f"young-{n:02}", expected=50.0) for n in range(many)]
    assert promises(told(*young, since(LONG))) == {"head": NOW + 50}
