"""What is remembered of one unit holds for those alike, and for nobody else (I12), by name.

`tests/properties/test_alike.py` decides random cases with and without remembering.
"""

import pytest

from tests.unit.core import preempting
from tests.unit.core.test_reserve import NOW, promises, role, runs, snapshot, started, unit
from windlass.core import foresight
from windlass.core.cycle import decide
from windlass.core.facts import (
    Affinity,
    Constraint,
    Node,
    Preference,
    Queue,
    Requirement,
    Reservation,
    Running,
    Seat,
    Spread,
    Unit,
)

APP = (("app", "x"),)
NEAR = Affinity("host", (Requirement("app", "In", ("x",)),))
APART = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)

EITHER_WAY = pytest.mark.parametrize("many", [0, foresight.MANY], ids=["at one look", "one by one"])


def host(name, cpu=8) -> Node:
    return Node(name, {"cpu": cpu * 1000}, labels={"host": name}, path=("r1",))


def test_who_wants_to_be_near_somebody_is_asked_again_once_that_one_starts():
    near = [
        unit(key, role(1, 1, affinities=(NEAR,)), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    friend = unit("friend", role(1, 1, labels=APP), submitted=1.0)
    decision = decide(snapshot([host("a"), host("b")], (), [*near, friend]), NOW)
    assert started(decision) == {"friend", "late"}


def test_who_is_spread_over_others_is_asked_again_once_one_of_them_starts():
    """There is one on a and none on b, which is too small: until somebody starts there."""
    evenly = Spread("host", (Requirement("app", "In", ("x",)),))
    spread = [
        unit(key, role(1, 6, labels=APP, spreads=(evenly,)), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    first = Running(unit("first", role(1, 1, labels=APP)), (Seat("w", 0, "a"),), 0.0)
    filler = unit("filler", role(1, 1, labels=APP), submitted=1.0)
    decision = decide(snapshot([host("a"), host("b", 1)], [first], [*spread, filler]), NOW)
    assert started(decision) == {"filler", "late"}


def test_of_several_roles_each_unit_is_tried_as_it_would_rather_sit():
    """Where the first sits decides whether the second finds a place: who spreads its members does
    not speak for who packs them."""
    roles = role(2, 3, name="one"), role(1, 4, name="other")
    nodes = [host("a", 2), host("b", 6), host("c", 5)]
    loose, tight = unit("loose", *roles, pack="spread"), unit("tight", *roles, submitted=1.0)
    assert not started(decide(snapshot(nodes, (), [loose]), NOW))
    assert started(decide(snapshot(nodes, (), [loose, tight]), NOW)) == {"tight"}


def test_with_terms_each_unit_is_tried_as_it_would_rather_sit():
    """They must be together, and only one of the nodes has room for all of them."""
    there = (Preference((Requirement("host", "In", ("b",)),), 1),)
    units = [
        unit("anywhere", role(3, 1, labels=APP, affinities=(NEAR,))),
        unit("there", role(3, 1, labels=APP, affinities=(NEAR,), prefers=there), submitted=1.0),
    ]
    decision = decide(snapshot([host("a", 2), host("b", 5)], (), units), NOW)
    assert started(decision) == {"there"}


@pytest.mark.parametrize("terms", [(), (APART,)], ids=["passed over", "asked in turn"])
def test_who_would_delay_a_promise_does_not_speak_for_one_that_ends_before(terms):
    """They ask for the same and differ only in how long they run; the head needs both nodes."""
    busy = runs("busy", "a", end=NOW + 100)
    head = unit("head", role(2, 8), expected=100.0)
    others = [
        unit(key, role(1, 4, affinities=terms), expected=seconds, submitted=at)
        for key, seconds, at in (("long", 900.0, 1.0), ("brief", 50.0, 2.0))
    ]
    decision = decide(snapshot([host("a"), host("b")], [busy], [head, *others]), NOW)
    assert promises(decision) == {"head": NOW + 100}
    assert started(decision) == {"brief"}


def test_whom_a_quota_and_a_promise_keep_waiting_does_not_speak_for_one_that_ends_before():
    """Both may stop `low` to stay inside their queue's limit, but the room that it leaves is
    promised from the time at which it would have ended."""
    queues = [Queue("few", limit={"cpu": 4000}), Queue("wide", weight=9)]
    low = runs("low", "a", end=NOW + 100, cpu=4, queue="few", priority=1)
    head = unit("head", role(1, 8), queue="wide", expected=100.0)
    others = [
        unit(key, role(1, 4), queue="few", priority=9, expected=seconds, submitted=at)
        for key, seconds, at in (("long", 900.0, 1.0), ("brief", 50.0, 2.0))
    ]
    decision = decide(snapshot([host("a")], [low], [head, *others], queues), NOW)
    assert promises(decision) == {"head": NOW + 100, "long": NOW + 200}
    assert [(each.unit, each.gainer) for each in decision.evictions] == [("low", "brief")]


@pytest.mark.parametrize("terms", [(), (APART,)], ids=["passed over", "asked in turn"])
@EITHER_WAY
def test_who_was_refused_before_somebody_was_told_to_go_does_not_speak_for_who_comes_after(
    terms, many, monkeypatch
):
    """`claim` takes back one GPU and a gang of four goes whole; the last counts on what is left."""
    monkeypatch.setattr(foresight, "MANY", many)
    world = preempting.World(
        [preempting.node("n", 4)], [Queue("a", guarantee={"gpu": 1000}, reserve=0), Queue("b")]
    )
    world.start(
        preempting.unit("gang", "b", members=4), preempting.unit("low", "a", gpus=0, priority=1)
    )
    pair = [
        Unit(key, "a", (preempting.role(1, 2, affinities=terms),), submitted=at)
        for key, at in (("early", 0.0), ("late", 2.0))
    ]
    world.wait(*pair, preempting.unit("claim", "a", submitted=1.0)).decide()
    assert world.evicted == {"gang": 4}
    assert {each.unit for each in world.decision.nominations} == {"claim", "late"}


def test_whom_a_quota_kept_waiting_does_not_speak_for_who_comes_after_somebody_was_told_to_go():
    """The same where there is room, but all that the two queues may use together is used."""
    queues = [
        Queue("p", limit={"gpu": 4000}),
        Queue("a", "p", guarantee={"gpu": 1000}, reserve=0),
        Queue("b", "p"),
    ]
    world = preempting.World([preempting.node("n", 8)], queues)
    world.start(
        preempting.unit("gang", "b", members=4), preempting.unit("low", "a", gpus=0, priority=1)
    )
    pair = [
        preempting.unit(key, "a", gpus=2, submitted=at) for key, at in (("early", 0.0), ("late", 2))
    ]
    world.wait(*pair, preempting.unit("claim", "a", submitted=1.0)).decide()
    assert world.evicted == {"gang": 4}
    assert {each.unit for each in world.decision.nominations} == {"claim", "late"}


@pytest.mark.parametrize(
    ("rules", "low"),
    [({}, False), ({}, True), ({"limit": {"gpu": 2000}}, False)],
    ids=["no room", "whom it may stop is no help", "a quota"],
)
@EITHER_WAY
def test_who_was_refused_before_a_start_was_withheld_is_asked_again(rules, low, many, monkeypatch):
    """`mine` needs one of the two GPUs on which `late` is about to start; `small` fits on the
    other. It was told to wait for another reason in each case."""
    monkeypatch.setattr(foresight, "MANY", many)
    queues = [Queue("a", guarantee={"gpu": 1000}), Queue("b", reserve=0, **rules)]
    world = preempting.World([preempting.node("n", 2)], queues)
    if low:
        world.start(preempting.unit("low", "b", gpus=0, priority=1))
    world.wait(preempting.unit("head", "a", gpus=9, priority=90), preempting.unit("mine", "a"))
    world.wait(
        preempting.unit("late", "b", gpus=2), preempting.unit("small", "b", submitted=1.0)
    ).decide()
    assert {each.unit for each in world.decision.placements} == {"mine", "small"}


def test_whom_a_quota_keeps_waiting_as_another_has_the_same_right_to_look_twice():
    """Both may take back what b borrows. First that is `low`, which is not where they must be; once
    `strong` is promised its room, `r1` and `r2` hold what is borrowed."""
    queues = [
        Queue("p", limit={"gpu": 4000}),
        Queue("a", "p", guarantee={"gpu": 2000}, weight=9),
        Queue("b", "p", guarantee={"gpu": 2000}),
    ]
    world = preempting.World([preempting.node("n1", 2), preempting.node("n2", 2)], queues)
    world.run(preempting.unit("low", "b", gpus=2, priority=1), "n2")
    for key in ("r1", "r2"):
        world.run(preempting.unit(key, "b", priority=10), "n1")
    there = Constraint(names=frozenset(("n1",)))
    world.wait(*(preempting.unit(key, "a", constraint=there) for key in ("mine1", "mine2")))
    world.wait(preempting.unit("strong", "b", gpus=2, priority=90)).decide()
    assert world.evicted == {"low": 1, "r1": 1, "r2": 1}
    assert {each.unit for each in world.decision.nominations} == {"strong", "mine1", "mine2"}


def test_who_was_promised_a_start_is_asked_itself_whatever_another_of_its_kind_was_told():
    """The other came first, finds no room and may be promised nothing; who runs ends earlier than
    it said when the promise was made."""
    waiting = [
        unit(key, role(1, 8), expected=100.0, submitted=at)
        for key, at in (("other", 0.0), ("promised", 1.0))
    ]
    before = [Reservation("promised", NOW + 100, (Seat("w", 0, "a"),))]
    queues = [Queue("q", reserve=1)]
    running = [runs("busy", "a", end=NOW + 50)]
    decision = decide(snapshot([host("a")], running, waiting, queues, before), NOW)
    assert promises(decision) == {"promised": NOW + 50}
