"""What is cached of one workload holds for its equivalence class and no other (I12), case by case.

`tests/properties/test_equivalence_classes.py` decides random cases with and without remembering.
"""

import pytest

from tests.unit.core import preempting
from tests.unit.core.test_reservations import NOW, promises, role, runs, snapshot, started, workload
from windlass.core.cycle.cycle import decide
from windlass.core.model.types import (
    Affinity,
    Constraint,
    Node,
    PodAssignment,
    Preference,
    Queue,
    Requirement,
    ReservationRecord,
    Running,
    Spread,
    Workload,
)
from windlass.core.preemption import batch_bounds

APP = (("app", "x"),)
NEAR = Affinity("host", (Requirement("app", "In", ("x",)),))
APART = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)

EITHER_WAY = pytest.mark.parametrize(
    "many", [0, batch_bounds.MANY], ids=["at one look", "one by one"]
)


def host(name, cpu=8) -> Node:
    return Node(name, {"cpu": cpu * 1000}, labels={"host": name}, path=("r1",))


def test_a_workload_with_affinity_is_considered_again_once_its_target_starts():
    near = [
        workload(key, role(1, 1, affinities=(NEAR,)), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    friend = workload("friend", role(1, 1, labels=APP), submitted=1.0)
    decision = decide(snapshot([host("a"), host("b")], (), [*near, friend]), NOW)
    assert started(decision) == {"friend", "late"}


def test_a_workload_with_spread_terms_is_considered_again_once_a_matching_pod_starts():
    """There is one on a and none on b, which is too small: until a workload starts there."""
    evenly = Spread("host", (Requirement("app", "In", ("x",)),))
    spread = [
        workload(key, role(1, 6, labels=APP, spreads=(evenly,)), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    first = Running(workload("first", role(1, 1, labels=APP)), (PodAssignment("w", 0, "a"),), 0.0)
    filler = workload("filler", role(1, 1, labels=APP), submitted=1.0)
    decision = decide(snapshot([host("a"), host("b", 1)], [first], [*spread, filler]), NOW)
    assert started(decision) == {"filler", "late"}


def test_of_several_roles_each_workload_is_tried_as_it_would_rather_sit():
    """Where the first runs decides whether the second finds a place: a workload that spreads its
    pods has no verdict in common with one that packs them."""
    roles = role(2, 3, name="one"), role(1, 4, name="other")
    nodes = [host("a", 2), host("b", 6), host("c", 5)]
    loose, tight = (
        workload("loose", *roles, pack="spread"),
        workload("tight", *roles, submitted=1.0),
    )
    assert not started(decide(snapshot(nodes, (), [loose]), NOW))
    assert started(decide(snapshot(nodes, (), [loose, tight]), NOW)) == {"tight"}


def test_with_terms_each_workload_is_tried_as_it_would_rather_sit():
    """They must be together, and only one of the nodes has capacity for all of them."""
    there = (Preference((Requirement("host", "In", ("b",)),), 1),)
    workloads = [
        workload("anywhere", role(3, 1, labels=APP, affinities=(NEAR,))),
        workload("there", role(3, 1, labels=APP, affinities=(NEAR,), prefers=there), submitted=1.0),
    ]
    decision = decide(snapshot([host("a", 2), host("b", 5)], (), workloads), NOW)
    assert started(decision) == {"there"}


@pytest.mark.parametrize("terms", [(), (APART,)], ids=["passed over", "asked in turn"])
def test_a_verdict_for_delaying_a_reservation_does_not_apply_to_one_that_ends_before(terms):
    """They ask for the same and differ only in how long they run; the head needs both nodes."""
    busy = runs("busy", "a", end=NOW + 100)
    head = workload("head", role(2, 8), expected=100.0)
    others = [
        workload(key, role(1, 4, affinities=terms), expected=seconds, submitted=at)
        for key, seconds, at in (("long", 900.0, 1.0), ("brief", 50.0, 2.0))
    ]
    decision = decide(snapshot([host("a"), host("b")], [busy], [head, *others]), NOW)
    assert promises(decision) == {"head": NOW + 100}
    assert started(decision) == {"brief"}


def test_a_verdict_for_quota_and_reservation_does_not_apply_to_one_that_ends_before():
    """Both may stop `low` to stay inside their queue's limit, but the capacity that it leaves is
    reserved from the time at which it would have ended."""
    queues = [Queue("few", limit={"cpu": 4000}), Queue("wide", weight=9)]
    low = runs("low", "a", end=NOW + 100, cpu=4, queue="few", priority=1)
    head = workload("head", role(1, 8), queue="wide", expected=100.0)
    others = [
        workload(key, role(1, 4), queue="few", priority=9, expected=seconds, submitted=at)
        for key, seconds, at in (("long", 900.0, 1.0), ("brief", 50.0, 2.0))
    ]
    decision = decide(snapshot([host("a")], [low], [head, *others], queues), NOW)
    assert promises(decision) == {"head": NOW + 100, "long": NOW + 200}
    assert [(each.workload, each.preemptor) for each in decision.evictions] == [("low", "brief")]


@pytest.mark.parametrize("terms", [(), (APART,)], ids=["passed over", "asked in turn"])
@EITHER_WAY
def test_a_refusal_before_an_eviction_does_not_apply_after_it(terms, many, monkeypatch):
    """`claim` takes back one GPU and a gang of four goes whole; the last counts on what is left."""
    monkeypatch.setattr(batch_bounds, "MANY", many)
    world = preempting.World(
        [preempting.node("n", 4)], [Queue("a", guarantee={"gpu": 1000}, reserve=0), Queue("b")]
    )
    world.start(
        preempting.workload("gang", "b", members=4),
        preempting.workload("low", "a", gpus=0, priority=1),
    )
    pair = [
        Workload(key, "a", (preempting.role(1, 2, affinities=terms),), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    world.wait(*pair, preempting.workload("claim", "a", submitted=1.0)).decide()
    assert world.evicted == {"gang": 4}
    assert {each.workload for each in world.decision.nominations} == {"claim", "late"}


def test_a_quota_verdict_before_an_eviction_does_not_apply_after_it():
    """The same where there is capacity, but all that the two queues may use together is used."""
    queues = [
        Queue("p", limit={"gpu": 4000}),
        Queue("a", "p", guarantee={"gpu": 1000}, reserve=0),
        Queue("b", "p"),
    ]
    world = preempting.World([preempting.node("n", 8)], queues)
    world.start(
        preempting.workload("gang", "b", members=4),
        preempting.workload("low", "a", gpus=0, priority=1),
    )
    pair = [
        preempting.workload(key, "a", gpus=2, submitted=at)
        for key, at in (("early", 0.0), ("late", 2))
    ]
    world.wait(*pair, preempting.workload("claim", "a", submitted=1.0)).decide()
    assert world.evicted == {"gang": 4}
    assert {each.workload for each in world.decision.nominations} == {"claim", "late"}


@pytest.mark.parametrize(
    ("rules", "low"),
    [({}, False), ({}, True), ({"limit": {"gpu": 2000}}, False)],
    ids=["no room", "whom it may stop is no help", "a quota"],
)
@EITHER_WAY
def test_a_workload_refused_before_a_retraction_is_considered_again(rules, low, many, monkeypatch):
    """`mine` needs one of the two GPUs on which `late` is about to start; `small` fits on the
    other. Its verdict had another reason in each case."""
    monkeypatch.setattr(batch_bounds, "MANY", many)
    queues = [Queue("a", guarantee={"gpu": 1000}), Queue("b", reserve=0, **rules)]
    world = preempting.World([preempting.node("n", 2)], queues)
    if low:
        world.start(preempting.workload("low", "b", gpus=0, priority=1))
    world.wait(
        preempting.workload("head", "a", gpus=9, priority=90), preempting.workload("mine", "a")
    )
    world.wait(
        preempting.workload("late", "b", gpus=2), preempting.workload("small", "b", submitted=1.0)
    ).decide()
    assert {each.workload for each in world.decision.placements} == {"mine", "small"}


def test_workloads_of_one_class_under_quota_have_the_same_right_to_reclaim():
    """Both may take back what b borrows. First that is `low`, which is not where they must be; once
    `strong` has a reservation, `r1` and `r2` hold what is borrowed."""
    queues = [
        Queue("p", limit={"gpu": 4000}),
        Queue("a", "p", guarantee={"gpu": 2000}, weight=9),
        Queue("b", "p", guarantee={"gpu": 2000}),
    ]
    world = preempting.World([preempting.node("n1", 2), preempting.node("n2", 2)], queues)
    world.run(preempting.workload("low", "b", gpus=2, priority=1), "n2")
    for key in ("r1", "r2"):
        world.run(preempting.workload(key, "b", priority=10), "n1")
    there = Constraint(names=frozenset(("n1",)))
    world.wait(*(preempting.workload(key, "a", constraint=there) for key in ("mine1", "mine2")))
    world.wait(preempting.workload("strong", "b", gpus=2, priority=90)).decide()
    assert world.evicted == {"low": 1, "r1": 1, "r2": 1}
    assert {each.workload for each in world.decision.nominations} == {"strong", "mine1", "mine2"}


def test_a_workload_with_a_reservation_is_considered_itself_whatever_the_verdict_on_its_class():
    """The other came first, finds no capacity and gets no reservation; the running one ends earlier
    than it said when the reservation was made."""
    waiting = [
        workload(key, role(1, 8), expected=100.0, submitted=at)
        for key, at in (("other", 0.0), ("promised", 1.0))
    ]
    before = [ReservationRecord("promised", NOW + 100, (PodAssignment("w", 0, "a"),))]
    queues = [Queue("q", reserve=1)]
    running = [runs("busy", "a", end=NOW + 50)]
    decision = decide(snapshot([host("a")], running, waiting, queues, before), NOW)
    assert promises(decision) == {"promised": NOW + 50}
