"""Which reservations are firm, and which workloads of other queues pass a tentative one: sentences
R2 and R3 of docs/reference/sharing.md."""

from __future__ import annotations

import dataclasses

from tests.unit.core.reserving import NOW, node, promises, role, runs, snapshot, started, workload
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    Account,
    Decision,
    PodAssignment,
    Queue,
    ReservationRecord,
    Workload,
)

HOUR = 3600.0
QUEUES = (Queue("one"), Queue("other"))
NODE = node("a")


def head(queue: str, cpu: int = 8, hours: float = 1.0) -> Workload:
    return workload(f"{queue}-head", role(1, cpu), queue=queue, expected=hours * HOUR)


def decide(*waiting: Workload, running=(), reservations=(), **excess: float) -> Decision:
    """With excess by queue, in hours of the whole cluster."""
    accounts = [Account(name, excess=each * HOUR) for name, each in excess.items()]
    facts = snapshot([NODE], running, waiting, QUEUES, reservations, accounts)
    return cycle.decide(facts, NOW)


def firm(decision: Decision) -> dict[str, bool]:
    return {each.workload: each.firm for each in decision.reservations}


def busy(queue: str):
    return runs("busy", "a", end=NOW + HOUR, queue=queue)


def test_of_two_queues_with_equal_shares_both_have_firm_starts() -> None:
    decision = decide(head("one"), head("other"), running=[busy("one")])
    assert promises(decision) == {"other-head": NOW + HOUR, "one-head": NOW + 2 * HOUR}
    assert firm(decision) == {"other-head": True, "one-head": True}


def test_a_start_is_tentative_if_another_queue_will_be_further_behind_then() -> None:
    """Both queues are below their claims then. The next workload of the other has no reservation
    yet, and would find the place taken."""
    decision = decide(head("one"), head("other"), running=[busy("other")], one=0.2, other=-2.0)
    assert promises(decision) == {"other-head": NOW + HOUR, "one-head": NOW + 2 * HOUR}
    assert firm(decision) == {"other-head": True, "one-head": False}


def test_what_the_other_queue_is_reserved_counts_as_its_use_then() -> None:
    """It is behind by less than its reserved workload, which runs beyond that start, repays."""
    long = dataclasses.replace(head("other", cpu=4), expected=9 * HOUR)
    decision = decide(long, head("one", cpu=4), running=[busy("other")], one=0.1, other=-0.1)
    assert promises(decision) == {"other-head": NOW + HOUR, "one-head": NOW + HOUR}
    assert firm(decision) == {"other-head": True, "one-head": True}


def test_a_queue_further_behind_passes_a_tentative_start_of_one_that_is_behind_too() -> None:
    """The start is due now. The first in turn is the queue with the smaller share."""
    given = [tentative("one-head", NOW)]
    decision = decide(head("one"), head("other"), reservations=given, one=0.2, other=-2.0)
    assert started(decision) == {"other-head"}


def test_a_queue_less_far_behind_does_not() -> None:
    given = [tentative("one-head", NOW)]
    decision = decide(head("one"), head("other"), reservations=given, one=-2.0, other=-0.2)
    assert started(decision) == {"one-head"}
    later = [tentative("one-head", NOW + HOUR)]
    beside = decide(
        head("one"), head("other", cpu=4, hours=9), running=[half("one")],
        reservations=later, one=-2.0, other=-0.2,
    )  # fmt: skip
    assert started(beside) == set()


def half(queue: str):
    return runs("busy", "a", end=NOW + HOUR, queue=queue, cpu=4)


def tentative(key: str, start: float) -> ReservationRecord:
    return ReservationRecord(key, start, (PodAssignment("w", 0, "a"),), firm=False)
