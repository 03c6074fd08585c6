"""Promises beside each other and beside those who pass: nobody's devices are given away twice.

`tests/properties/test_shadows.py` counts all of this again for random cases; here are those that
were once wrong, by name.
"""

import dataclasses

from tests.unit.core.test_reserve import (
    NOW,
    gpus,
    node,
    promises,
    role,
    runs,
    snapshot,
    started,
    unit,
    whole,
)
from windlass.core.cycle import decide
from windlass.core.facts import (
    Account,
    Affinity,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Queue,
    Requirement,
    Reservation,
    Running,
    Seat,
)


def of(*models) -> DeviceRequest:
    return DeviceRequest("gpu", models=models)


def with_models(*models, cpu=10) -> Node:
    """g0, g1, ... of these models."""
    devices = tuple(Device(f"g{i}", "gpu", model, memory=1000) for i, model in enumerate(models))
    return Node("a", {"cpu": cpu * 1000}, devices, path=("r1",))


def devices_of(decision) -> dict[str, list[str]]:
    """Unit -> devices that it starts on, or is promised."""
    return {
        each.unit: [grant.device for seat in each.seats for grant in seat.grants]
        for each in (*decision.placements, *decision.reservations)
    }


def seat(*ids, number=0, name="w") -> Seat:
    return Seat(name, number, "a", whole(*ids))


def test_who_moves_for_a_passer_does_not_move_onto_what_is_promised_after_the_passer_has_ended():
    """`first` must leave g0 to the passer, and g1 is promised to `second` from 100 on, when the
    passer is long gone and `first` still runs: it moves to g2."""
    nodes = [with_models("old", "new", "old")]
    holder = Running(unit("r", role(1, 4, gpus(1))), (seat("g2"),), 0.0, NOW + 50)
    running = [holder, runs("s", "a", cpu=4, end=NOW + 100)]
    first = unit("first", role(1, 3, gpus(1)), expected=100.0)
    second = unit("second", role(1, 5, of("new")), expected=100.0, submitted=1.0)
    passer = unit("p", role(1, 1, of("old")), expected=60.0, submitted=2.0)
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot(nodes, running, [first, second, passer], queues), NOW)
    assert promises(decision) == {"first": NOW + 50, "second": NOW + 100}
    assert devices_of(decision) == {"p": ["g0"], "first": ["g2"], "second": ["g1"]}
    running.append(Running(passer, decision.placements[0].seats, NOW, NOW + 60))
    again = snapshot(nodes, running, [first, second], queues, decision.reservations)
    assert promises(decide(again, NOW + 1)) == promises(decision)


def test_nobody_passes_if_who_moves_for_it_would_delay_somebody_after_it():
    """As above, but g2 is never free again: `first` could only move to where `second` will be."""
    nodes = [with_models("old", "new", "old")]
    forever = Running(unit("f", role(1, 0, gpus(1))), (seat("g2"),), 0.0)
    running = [forever, runs("r", "a", cpu=4, end=NOW + 50), runs("s", "a", cpu=4, end=NOW + 100)]
    first = unit("first", role(1, 3, gpus(1)), expected=100.0)
    second = unit("second", role(1, 5, of("new")), expected=100.0, submitted=1.0)
    passer = unit("p", role(1, 1, of("old")), expected=60.0, submitted=2.0)
    waiting = [first, second, passer]
    decision = decide(snapshot(nodes, running, waiting, [Queue("q", reserve=2)]), NOW)
    assert promises(decision) == {"first": NOW + 50, "second": NOW + 100}
    assert not started(decision)


def test_a_passer_takes_a_device_that_is_promised_to_nobody_if_it_may_not_take_another():
    """The tightest device is promised to one that can use no other."""
    nodes = [with_models("old", "new", "new")]
    running = [runs("r", "a", cpu=9, end=NOW + 50)]
    head = unit("head", role(1, 3, of("old")), expected=10.0)
    passer = unit("p", role(1, 1, gpus(1)), submitted=1.0)
    decision = decide(snapshot(nodes, running, [head, passer]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert devices_of(decision)["head"] == ["g0"]
    assert devices_of(decision)["p"] != ["g0"]


def test_who_is_due_starts_on_its_own_devices_where_others_would_be_somebody_elses():
    """In a `lifo` queue `late` has its turn before `early`, which can use g0 only."""
    nodes = [with_models("old", "new")]
    early = unit("early", role(1, 1, of("old")), expected=100.0)
    late = unit("late", role(1, 5, gpus(1)), expected=10.0, submitted=1.0)
    kept = [Reservation("late", NOW, (seat("g1"),)), Reservation("early", NOW, (seat("g0"),))]
    queues = [Queue("q", order="lifo", reserve=2)]
    decision = decide(snapshot(nodes, [], [early, late], queues, kept), NOW)
    assert devices_of(decision) == {"late": ["g1"], "early": ["g0"]}
    assert started(decision) == {"late", "early"}


def test_a_promise_with_a_port_stays_on_its_devices_in_the_next_decision():
    nodes = [with_models("old", "new")]
    running = [runs("r", "a", cpu=10, end=NOW + 50)]
    port = unit("port", role(1, 1, gpus(1), ports=(80,)), expected=10.0)
    old = unit("old", role(1, 1, of("old")), expected=10.0, submitted=1.0)
    kept = [
        Reservation("port", NOW + 50, (seat("g1"),)),
        Reservation("old", NOW + 50, (seat("g0"),)),
    ]
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot(nodes, running, [port, old], queues, kept), NOW)
    assert promises(decision) == {"port": NOW + 50, "old": NOW + 50}
    assert devices_of(decision) == {"port": ["g1"], "old": ["g0"]}


def test_a_port_that_one_promise_leaves_and_the_next_takes_is_not_promised_a_third_time():
    """Looking for a start goes to and fro in time, past the moment at which both change."""
    running = [runs("r", "a", cpu=8, end=NOW + 50)]
    port, big = role(1, 2, ports=(80,)), role(1, 8, ports=(80,))
    heads = [
        unit("second", role(1, 2, ports=(80,)), expected=30.0),
        unit("first", port, expected=20.0, submitted=1.0),
        unit("third", big, expected=10.0, submitted=2.0),
    ]
    kept = [
        Reservation("second", NOW + 70, (Seat("w", 0, "a"),)),
        Reservation("first", NOW + 50, (Seat("w", 0, "a"),)),
    ]
    small = unit("third", role(1, 1, ports=(80,)), expected=10.0, submitted=2.0)
    for third in (heads[2], small):
        waiting = [*heads[:2], third]
        decision = decide(
            snapshot([node("a")], running, waiting, [Queue("q", reserve=3, order="lifo")], kept),
            NOW,
        )
        assert promises(decision) == {"first": NOW + 50, "second": NOW + 70, "third": NOW + 100}


def test_only_a_promise_that_does_not_hold_beside_who_passes_it_is_given_up():
    """`urgent` takes what `first` was promised; what `second` was promised after that still binds
    who has its turn in between."""
    nodes = [with_models("old", "new", "new")]
    running = [runs("r", "a", cpu=9, end=NOW + 50)]
    first = unit("first", role(1, 3, of("old")), expected=500.0)
    between = unit("between", role(1, 0, DeviceRequest("gpu", 2, models=("new",))), submitted=1.0)
    second = unit("second", role(1, 3, of("new")), expected=10.0, submitted=2.0)
    urgent = unit("urgent", role(1, 1, of("old")), priority=90, submitted=3.0)
    kept = [
        Reservation("first", NOW + 50, (seat("g0"),)),
        Reservation("second", NOW + 90, (seat("g1"),)),
    ]
    waiting = [first, between, second, urgent]
    decision = decide(snapshot(nodes, running, waiting, reservations=kept), NOW)
    assert started(decision) == {"urgent"}
    assert promises(decision)["second"] <= NOW + 90


def test_who_moves_for_a_passer_is_seen_there_by_who_starts_with_it():
    """Both promises start together and both must move, each to a device of its own."""
    nodes = [with_models(*("old",) * 6)]
    running = [
        runs("r", "a", cpu=9, end=NOW + 50),
        Running(unit("s", role(1, 0, gpus(2))), (seat("g4", "g5"),), 0.0, NOW + 50),
    ]
    heads = [unit(f"h{i}", role(1, 2, gpus(1)), expected=100.0, submitted=float(i)) for i in (0, 1)]
    kept = [Reservation(f"h{i}", NOW + 50, (seat(f"g{i}"),)) for i in (0, 1)]
    urgent = unit("urgent", role(1, 1, gpus(4)), priority=90, submitted=9.0)
    forever = unit("forever", role(1, 0, gpus(1)), submitted=10.0)
    waiting = [*heads, urgent, forever]
    decision = decide(snapshot(nodes, running, waiting, [Queue("q", reserve=2)], kept), NOW)
    assert started(decision) == {"urgent"}
    assert promises(decision) == {"h0": NOW + 50, "h1": NOW + 50}
    taken = [name for names in devices_of(decision).values() for name in names]
    assert len(taken) == len(set(taken)) == 6


def test_a_unit_that_should_have_ended_does_not_grow_into_promised_room():
    """It is believed to be as late again, so it would be there when the head is due."""
    elastic = unit("e", role(1, 1, most=9))
    late = Running(elastic, (Seat("w", 0, "b"),), 0.0, expected_end=NOW - 60)
    head = unit("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50), late]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    grown = [each for p in decision.placements if p.unit == "e" for each in p.seats]
    assert len(grown) == 1, "of b's 8, 1 is used and 6 are promised"


def test_a_neighbour_that_should_have_ended_is_believed_to_be_there_as_long_as_its_room_is():
    apart = Affinity("host", (Requirement("app", "Exists"),), anti=True)
    late = Running(
        unit("late", role(1, 1, labels=(("app", "x"),))), (Seat("w", 0, "a"),), 0.0, NOW - 30
    )
    head = unit("head", role(1, 1, affinities=(apart,)), expected=10.0)
    alone = dataclasses.replace(node("a"), labels={"host": "a"})
    assert promises(decide(snapshot([alone], [late], [head]), NOW)) == {"head": NOW + 60}


def test_who_takes_its_room_back_at_the_second_look_is_neither_kept_off_it_nor_promised_it():
    """`guest` may start until `right` is due. `right` comes after it, behind a large head of its
    own queue, and has a right to the room at once: also where it was promised the same later."""
    firm = unit("firm", role(1, 0, gpus(1)), queue="other", preemptible=False)
    running = [Running(firm, (seat("g1"),), 0.0, NOW + 500)]
    large = unit("large", role(1, 0, gpus(2)), queue="mine", expected=10.0)
    right = unit("right", role(1, 1, gpus(1)), queue="mine", expected=100.0, submitted=1.0)
    guest = unit("guest", role(1, 1, gpus(1)), queue="other", expected=50.0)
    queues = [Queue("mine", guarantee={"gpu": 1000}, reserve=2), Queue("other", weight=100)]
    kept = [Reservation("right", NOW + 50, (seat("g0"),))]
    waiting = [large, right, guest]
    decision = decide(snapshot([with_models("old", "old")], running, waiting, queues, kept), NOW)
    assert started(decision) == {"right"}
    assert "right" not in promises(decision)


def test_nobody_passes_a_promise_inside_a_guarantee_by_being_inside_its_own():
    """`early` could not stop the head if it ran: both are inside what is guaranteed to them."""
    nodes = [node("a"), node("b"), node("c")]
    firm = {"queue": "third", "preemptible": False}
    running = [runs("r", "a", end=NOW + 50, **firm), runs("s", "c", **firm)]
    head = unit("head", role(2, 8), expected=100.0)
    early = unit("early", role(1, 8), queue="other", submitted=2.0)
    queues = [
        Queue("q", guarantee={"cpu": 16000}),
        Queue("other", guarantee={"cpu": 8000}),
        Queue("third"),
    ]
    first = decide(snapshot(nodes, running, [head], queues), NOW)
    assert promises(first) == {"head": NOW + 50}
    again = decide(snapshot(nodes, running, [head, early], queues, first.reservations), NOW + 1)
    assert not started(again)
    assert promises(again)["head"] == NOW + 50
    borrowed = [dataclasses.replace(queues[0], guarantee={"cpu": 8000}), *queues[1:]]
    passed = decide(snapshot(nodes, running, [head, early], borrowed, first.reservations), NOW + 1)
    assert started(passed) == {"early"}, "the head would borrow"


def test_a_promise_lasts_while_its_queue_has_reached_a_limit_and_others_keep_off_it():
    """Quota comes back with the room that it waits for."""
    nodes = [node("a"), node("b")]
    queues = [Queue("q", limit={"cpu": 16000}), Queue("other")]
    head = unit("head", role(2, 8), expected=100.0)
    passer = unit("passer", role(1, 8), queue="other", submitted=1.0)
    kept = [Reservation("head", NOW + 50, (Seat("w", 0, "a"), Seat("w", 1, "b")))]
    running = [runs("r", "a", end=NOW + 50)]
    decision = decide(snapshot(nodes, running, [head, passer], queues, kept), NOW)
    assert promises(decision)["head"] == NOW + 50
    assert not started(decision)


def test_slices_and_ports_that_are_being_freed_for_one_are_not_promised_to_another():
    """The victim still has them, and so has who will come: they are gone once, not twice."""
    sliced = [node("a", gpus=1)]
    part = Grant("g0", "partition", 428, 500, profile="3g", start=0)
    for want, seats in (
        (role(1, 0, DeviceRequest("gpu", profile="3g")), (Seat("w", 0, "a", (part,)),)),
        (role(1, 0, ports=(80,)), (Seat("w", 0, "a"),)),
    ):
        both = 2 if want.devices else 1
        lower = [
            Running(unit(f"low{i}", want, priority=10), _moved(seats, 4 * i), 0.0)
            for i in range(both)
        ]
        urgent = [unit(f"u{i}", want, priority=90, expected=50.0) for i in range(both)]
        head = unit("head", want, expected=10.0, submitted=1.0)
        decision = decide(snapshot(sliced, lower, [*urgent, head]), NOW)
        assert {each.gainer for each in decision.evictions} == {each.key for each in urgent}
        assert promises(decision) == {"head": NOW + 50}


def _moved(seats, start):
    return tuple(
        dataclasses.replace(s, grants=tuple(dataclasses.replace(g, start=start) for g in s.grants))
        for s in seats
    )


def test_a_promise_that_was_kept_at_its_turn_binds_all_who_come_after():
    """`right` could pass it at a turn before: now the head counts on it."""
    running = [runs("r", "a", cpu=9, end=NOW + 50, queue="other", preemptible=False)]
    nodes = [with_models("old")]
    late = [Account("mine", excess=1e6)]  # so that the head has its turn before `large`
    head = unit("head", role(1, 5, gpus(1)), queue="other", expected=10.0)
    large = unit("large", role(1, 9, gpus(1)), queue="mine", expected=10.0)
    right = unit("right", role(1, 1, gpus(1)), queue="mine", expected=60.0, submitted=1.0)
    kept = [Reservation("head", NOW + 50, (seat("g0"),))]
    queues = [Queue("mine", guarantee={"gpu": 1000, "cpu": 1000}), Queue("other", weight=100)]
    decision = decide(snapshot(nodes, running, [head, large, right], queues, kept, late), NOW)
    assert promises(decision)["head"] == NOW + 50
    assert not started(decision)
    before = decide(snapshot(nodes, running, [head, right], queues, kept, late), NOW)
    assert started(before) == {"right"}


def test_a_promise_to_who_is_passed_is_not_counted_against_who_passes():
    """A queue that promises one start promises it to its first, whatever it promised before."""
    nodes = [node("a"), node("b")]
    low = unit("low", role(2, 8), expected=100.0, priority=10)
    urgent = unit("urgent", role(2, 8), expected=100.0, priority=90, submitted=1.0)
    kept = [Reservation("low", NOW + 50, (Seat("w", 0, "a"), Seat("w", 1, "b")))]
    running = [runs("r", "a", end=NOW + 50, preemptible=False)]
    decision = decide(snapshot(nodes, running, [low, urgent], reservations=kept), NOW)
    assert "urgent" in promises(decision)


def test_a_promise_that_is_overdue_takes_as_long_as_it_takes_from_now_on():
    leaving = dataclasses.replace(runs("r", "a"), leaving=(("w", 0),))
    first = unit("first", role(1, 8), expected=100.0)
    second = unit("second", role(1, 8), expected=100.0, submitted=1.0)
    kept = [
        Reservation("first", NOW - 20, (Seat("w", 0, "a"),)),
        Reservation("second", NOW + 80, (Seat("w", 0, "a"),)),
    ]
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot([node("a")], [leaving], [first, second], queues, kept), NOW)
    assert promises(decision) == {"first": NOW, "second": NOW + 100}


def test_a_promise_to_who_keeps_away_from_others_is_not_kept_where_they_are_by_now():
    apart = Affinity("host", (Requirement("app", "Exists"),), anti=True)
    nodes = [dataclasses.replace(node(name), labels={"host": name}) for name in ("a", "b")]
    there = Running(unit("x", role(1, 1, labels=(("app", "x"),))), (Seat("w", 0, "a"),), 0.0)
    full = runs("r", "b", end=NOW + 50)
    head = unit("head", role(1, 1, affinities=(apart,)), expected=10.0)
    kept = [Reservation("head", NOW, (Seat("w", 0, "a"),))]
    decision = decide(snapshot(nodes, [there, full], [head], reservations=kept), NOW)
    assert not started(decision)
    assert promises(decision) == {"head": NOW + 50}


def test_a_gap_before_a_promise_is_found_although_room_comes_back_in_it_that_is_of_no_use():
    """At 20 the second fits and is gone when the head is due; at 60 it would be in its way."""
    running = [
        runs("r", "a", end=NOW + 100),
        runs("s", "b", end=NOW + 20),
        runs("t", "c", cpu=1, end=NOW + 60),
    ]
    nodes = [node("a"), node("b"), node("c", cpu=1)]
    head = unit("head", role(2, 8), expected=100.0)
    small = unit("small", role(1, 8), expected=75.0, submitted=1.0)
    decision = decide(snapshot(nodes, running, [head, small], [Queue("q", reserve=2)]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 20}


def test_room_that_is_being_freed_comes_back_when_who_gets_it_ends():
    """Also where it is known from an earlier promise when everybody else does."""
    leaving = dataclasses.replace(runs("old", "a", end=NOW + 10), leaving=(("w", 0),))
    equal = runs("equal", "b")
    far = runs("far", "c", cpu=9, end=NOW + 500, queue="z", preemptible=False)
    kept = [Reservation("last", NOW + 500, (Seat("w", 0, "c"),))]
    last = unit("last", role(1, 9), queue="z", expected=10.0)
    urgent = unit("urgent", role(1, 8), expected=50.0, priority=90)
    head = unit("head", role(1, 8), expected=10.0, submitted=1.0)
    waiting = [last, urgent, head]
    nodes = [node("a"), node("b"), node("c", cpu=9)]
    queues = [Queue("q"), Queue("z")]
    decision = decide(snapshot(nodes, [leaving, equal, far], waiting, queues, kept), NOW)
    assert [each.unit for each in decision.nominations] == ["urgent"]
    assert promises(decision) == {"head": NOW + 50, "last": NOW + 500}


def test_a_promise_that_is_due_is_kept_beside_one_that_starts_when_others_have_ended():
    """`brief` leaves quota for `due`, and is gone when `later` starts: the three never run at the
    same time, and what the queue may use is enough for each two that do."""
    queue = Queue("q", order="lifo", limit={"cpu": 3000}, reserve=2)
    waiting = [
        unit("later", role(1, 2), expected=100.0, submitted=0.0),
        unit("due", role(1, 1), expected=900.0, submitted=1.0),
        unit("brief", role(1, 2), expected=5.0, submitted=2.0),
    ]
    before = [
        Reservation("due", NOW, (Seat("w", 0, "a"),)),
        Reservation("later", NOW + 600, (Seat("w", 0, "a"),)),
    ]
    decision = decide(snapshot([node("a")], (), waiting, [queue], before), NOW)
    assert started(decision) == {"brief", "due"}
    assert promises(decision) == {"later": NOW + 5}
