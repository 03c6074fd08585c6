"""Reservations beside each other and beside passing workloads: no device is given away twice.

`tests/properties/test_shadows.py` counts all of this again for random cases; here are those that
were once wrong, by name.
"""

import dataclasses

from tests.unit.core.test_reservations import (
    NOW,
    gpus,
    node,
    promises,
    role,
    runs,
    snapshot,
    started,
    whole,
    workload,
)
from windlass.core.cycle.cycle import decide
from windlass.core.model.types import (
    Account,
    Affinity,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Requirement,
    ReservationRecord,
    Running,
)


def of(*models) -> DeviceRequest:
    return DeviceRequest("gpu", models=models)


def with_models(*models, cpu=10) -> Node:
    """g0, g1, ... of these models."""
    devices = tuple(Device(f"g{i}", "gpu", model, memory=1000) for i, model in enumerate(models))
    return Node("a", {"cpu": cpu * 1000}, devices, path=("r1",))


def devices_of(decision) -> dict[str, list[str]]:
    """Workload -> devices that it starts on, or that are reserved for it."""
    return {
        each.workload: [grant.device for pod in each.pods for grant in pod.grants]
        for each in (*decision.placements, *decision.reservations)
    }


def pod(*ids, number=0, name="w") -> PodAssignment:
    return PodAssignment(name, number, "a", whole(*ids))


def test_a_workload_moved_for_a_passer_does_not_move_onto_capacity_reserved_after_the_passer():
    """`first` must leave g0 to the passer, and g1 is reserved for `second` from 100 on, when the
    passer is long gone and `first` still runs: it moves to g2."""
    nodes = [with_models("old", "new", "old")]
    holder = Running(workload("r", role(1, 4, gpus(1))), (pod("g2"),), 0.0, NOW + 50)
    running = [holder, runs("s", "a", cpu=4, end=NOW + 100)]
    first = workload("first", role(1, 3, gpus(1)), expected=100.0)
    second = workload("second", role(1, 5, of("new")), expected=100.0, submitted=1.0)
    passer = workload("p", role(1, 1, of("old")), expected=60.0, submitted=2.0)
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot(nodes, running, [first, second, passer], queues), NOW)
    assert promises(decision) == {"first": NOW + 50, "second": NOW + 100}
    assert devices_of(decision) == {"p": ["g0"], "first": ["g2"], "second": ["g1"]}
    running.append(Running(passer, decision.placements[0].pods, NOW, NOW + 60))
    again = snapshot(nodes, running, [first, second], queues, decision.reservations)
    assert promises(decide(again, NOW + 1)) == promises(decision)


def test_no_workload_passes_if_one_moved_for_it_would_delay_a_later_one():
    """As above, but g2 is never free again: `first` could only move to where `second` will be."""
    nodes = [with_models("old", "new", "old")]
    forever = Running(workload("f", role(1, 0, gpus(1))), (pod("g2"),), 0.0)
    running = [forever, runs("r", "a", cpu=4, end=NOW + 50), runs("s", "a", cpu=4, end=NOW + 100)]
    first = workload("first", role(1, 3, gpus(1)), expected=100.0)
    second = workload("second", role(1, 5, of("new")), expected=100.0, submitted=1.0)
    passer = workload("p", role(1, 1, of("old")), expected=60.0, submitted=2.0)
    waiting = [first, second, passer]
    decision = decide(snapshot(nodes, running, waiting, [Queue("q", reserve=2)]), NOW)
    assert promises(decision) == {"first": NOW + 50, "second": NOW + 100}
    assert not started(decision)


def test_a_passer_takes_an_unreserved_device_if_it_may_not_take_another():
    """The tightest device is reserved for one that can use no other."""
    nodes = [with_models("old", "new", "new")]
    running = [runs("r", "a", cpu=9, end=NOW + 50)]
    head = workload("head", role(1, 3, of("old")), expected=10.0)
    passer = workload("p", role(1, 1, gpus(1)), submitted=1.0)
    decision = decide(snapshot(nodes, running, [head, passer]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert devices_of(decision)["head"] == ["g0"]
    assert devices_of(decision)["p"] != ["g0"]


def test_a_due_workload_starts_on_its_own_devices_where_others_are_reserved():
    """In a `lifo` queue `late` has its turn before `early`, which can use g0 only."""
    nodes = [with_models("old", "new")]
    early = workload("early", role(1, 1, of("old")), expected=100.0)
    late = workload("late", role(1, 5, gpus(1)), expected=10.0, submitted=1.0)
    kept = [
        ReservationRecord("late", NOW, (pod("g1"),)),
        ReservationRecord("early", NOW, (pod("g0"),)),
    ]
    queues = [Queue("q", order="lifo", reserve=2)]
    decision = decide(snapshot(nodes, [], [early, late], queues, kept), NOW)
    assert devices_of(decision) == {"late": ["g1"], "early": ["g0"]}
    assert started(decision) == {"late", "early"}


def test_a_reservation_with_a_port_stays_on_its_devices_in_the_next_decision():
    nodes = [with_models("old", "new")]
    running = [runs("r", "a", cpu=10, end=NOW + 50)]
    port = workload("port", role(1, 1, gpus(1), ports=(80,)), expected=10.0)
    old = workload("old", role(1, 1, of("old")), expected=10.0, submitted=1.0)
    kept = [
        ReservationRecord("port", NOW + 50, (pod("g1"),)),
        ReservationRecord("old", NOW + 50, (pod("g0"),)),
    ]
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot(nodes, running, [port, old], queues, kept), NOW)
    assert promises(decision) == {"port": NOW + 50, "old": NOW + 50}
    assert devices_of(decision) == {"port": ["g1"], "old": ["g0"]}


def test_a_port_that_one_reservation_frees_and_the_next_takes_is_not_reserved_a_third_time():
    """Looking for a start goes to and fro in time, past the moment at which both change."""
    running = [runs("r", "a", cpu=8, end=NOW + 50)]
    port, big = role(1, 2, ports=(80,)), role(1, 8, ports=(80,))
    heads = [
        workload("second", role(1, 2, ports=(80,)), expected=30.0),
        workload("first", port, expected=20.0, submitted=1.0),
        workload("third", big, expected=10.0, submitted=2.0),
    ]
    kept = [
        ReservationRecord("second", NOW + 70, (PodAssignment("w", 0, "a"),)),
        ReservationRecord("first", NOW + 50, (PodAssignment("w", 0, "a"),)),
    ]
    small = workload("third", role(1, 1, ports=(80,)), expected=10.0, submitted=2.0)
    for third in (heads[2], small):
        waiting = [*heads[:2], third]
        decision = decide(
            snapshot([node("a")], running, waiting, [Queue("q", reserve=3, order="lifo")], kept),
            NOW,
        )
        assert promises(decision) == {"first": NOW + 50, "second": NOW + 70, "third": NOW + 100}


def test_only_a_reservation_that_does_not_hold_beside_a_passer_is_dropped():
    """`urgent` takes what is reserved for `first`; the later reservation of `second` still binds
    a workload that is considered in between."""
    nodes = [with_models("old", "new", "new")]
    running = [runs("r", "a", cpu=9, end=NOW + 50)]
    first = workload("first", role(1, 3, of("old")), expected=500.0)
    between = workload(
        "between", role(1, 0, DeviceRequest("gpu", 2, models=("new",))), submitted=1.0
    )
    second = workload("second", role(1, 3, of("new")), expected=10.0, submitted=2.0)
    urgent = workload("urgent", role(1, 1, of("old")), priority=90, submitted=3.0)
    kept = [
        ReservationRecord("first", NOW + 50, (pod("g0"),)),
        ReservationRecord("second", NOW + 90, (pod("g1"),)),
    ]
    waiting = [first, between, second, urgent]
    decision = decide(snapshot(nodes, running, waiting, reservations=kept), NOW)
    assert started(decision) == {"urgent"}
    assert promises(decision)["second"] <= NOW + 90


def test_a_workload_moved_for_a_passer_is_seen_there_by_one_that_starts_with_it():
    """Both reservations start together and both must move, each to a device of its own."""
    nodes = [with_models(*("old",) * 6)]
    running = [
        runs("r", "a", cpu=9, end=NOW + 50),
        Running(workload("s", role(1, 0, gpus(2))), (pod("g4", "g5"),), 0.0, NOW + 50),
    ]
    heads = [
        workload(f"h{i}", role(1, 2, gpus(1)), expected=100.0, submitted=float(i)) for i in (0, 1)
    ]
    kept = [ReservationRecord(f"h{i}", NOW + 50, (pod(f"g{i}"),)) for i in (0, 1)]
    urgent = workload("urgent", role(1, 1, gpus(4)), priority=90, submitted=9.0)
    forever = workload("forever", role(1, 0, gpus(1)), submitted=10.0)
    waiting = [*heads, urgent, forever]
    decision = decide(snapshot(nodes, running, waiting, [Queue("q", reserve=2)], kept), NOW)
    assert started(decision) == {"urgent"}
    assert promises(decision) == {"h0": NOW + 50, "h1": NOW + 50}
    taken = [name for names in devices_of(decision).values() for name in names]
    assert len(taken) == len(set(taken)) == 6


def test_a_workload_that_should_have_ended_does_not_grow_into_reserved_capacity():
    """It is estimated to be as late again, so it would be there when the head is due."""
    elastic = workload("e", role(1, 1, most=9))
    late = Running(elastic, (PodAssignment("w", 0, "b"),), 0.0, expected_end=NOW - 60)
    head = workload("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50), late]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    grown = [each for p in decision.placements if p.workload == "e" for each in p.pods]
    assert len(grown) == 1, "of b's 8, 1 is used and 6 are promised"


def test_a_neighbour_that_should_have_ended_is_believed_to_be_there_as_long_as_its_capacity_is():
    apart = Affinity("host", (Requirement("app", "Exists"),), anti=True)
    late = Running(
        workload("late", role(1, 1, labels=(("app", "x"),))),
        (PodAssignment("w", 0, "a"),),
        0.0,
        NOW - 30,
    )
    head = workload("head", role(1, 1, affinities=(apart,)), expected=10.0)
    alone = dataclasses.replace(node("a"), labels={"host": "a"})
    assert promises(decide(snapshot([alone], [late], [head]), NOW)) == {"head": NOW + 60}


def test_a_workload_that_reclaims_from_starts_is_neither_blocked_by_nor_given_a_reservation():
    """`guest` may start until `right` is due. `right` comes after it, behind a large head of its
    own queue, and has a right to the capacity at once: also where the same was reserved for it
    later."""
    firm = workload("firm", role(1, 0, gpus(1)), queue="other", preemptible=False)
    running = [Running(firm, (pod("g1"),), 0.0, NOW + 500)]
    large = workload("large", role(1, 0, gpus(2)), queue="mine", expected=10.0)
    right = workload("right", role(1, 1, gpus(1)), queue="mine", expected=100.0, submitted=1.0)
    guest = workload("guest", role(1, 1, gpus(1)), queue="other", expected=50.0)
    queues = [Queue("mine", guarantee={"gpu": 1000}, reserve=2), Queue("other", weight=100)]
    kept = [ReservationRecord("right", NOW + 50, (pod("g0"),))]
    waiting = [large, right, guest]
    decision = decide(snapshot([with_models("old", "old")], running, waiting, queues, kept), NOW)
    assert started(decision) == {"right"}
    assert "right" not in promises(decision)


def test_no_workload_passes_a_reservation_within_a_guarantee_by_being_within_its_own():
    """`early` could not stop the head if it ran: both are inside what is guaranteed to them."""
    nodes = [node("a"), node("b"), node("c")]
    firm = {"queue": "third", "preemptible": False}
    running = [runs("r", "a", end=NOW + 50, **firm), runs("s", "c", **firm)]
    head = workload("head", role(2, 8), expected=100.0)
    early = workload("early", role(1, 8), queue="other", submitted=2.0)
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


def test_a_reservation_lasts_while_its_queue_has_reached_a_limit_and_binds_others():
    """Quota comes back with the capacity that it waits for."""
    nodes = [node("a"), node("b")]
    queues = [Queue("q", limit={"cpu": 16000}), Queue("other")]
    head = workload("head", role(2, 8), expected=100.0)
    passer = workload("passer", role(1, 8), queue="other", submitted=1.0)
    kept = [
        ReservationRecord(
            "head", NOW + 50, (PodAssignment("w", 0, "a"), PodAssignment("w", 1, "b"))
        )
    ]
    running = [runs("r", "a", end=NOW + 50)]
    decision = decide(snapshot(nodes, running, [head, passer], queues, kept), NOW)
    assert promises(decision)["head"] == NOW + 50
    assert not started(decision)


def test_partitions_and_ports_that_are_being_freed_for_one_are_not_reserved_for_another():
    """The victim still has them, and so has the next one: they leave once, not twice."""
    sliced = [node("a", gpus=1)]
    part = Grant("g0", "partition", 428, 500, profile="3g", start=0)
    for want, pods in (
        (role(1, 0, DeviceRequest("gpu", profile="3g")), (PodAssignment("w", 0, "a", (part,)),)),
        (role(1, 0, ports=(80,)), (PodAssignment("w", 0, "a"),)),
    ):
        both = 2 if want.devices else 1
        lower = [
            Running(workload(f"low{i}", want, priority=10), _moved(pods, 4 * i), 0.0)
            for i in range(both)
        ]
        urgent = [workload(f"u{i}", want, priority=90, expected=50.0) for i in range(both)]
        head = workload("head", want, expected=10.0, submitted=1.0)
        decision = decide(snapshot(sliced, lower, [*urgent, head]), NOW)
        assert {each.preemptor for each in decision.evictions} == {each.key for each in urgent}
        assert promises(decision) == {"head": NOW + 50}


def _moved(pods, start):
    return tuple(
        dataclasses.replace(s, grants=tuple(dataclasses.replace(g, start=start) for g in s.grants))
        for s in pods
    )


def test_a_reservation_that_was_retained_at_its_turn_binds_all_later_workloads():
    """`right` could pass it at a turn before: now the head counts on it."""
    running = [runs("r", "a", cpu=9, end=NOW + 50, queue="other", preemptible=False)]
    nodes = [with_models("old")]
    late = [Account("mine", excess=1e6)]  # so that the head has its turn before `large`
    head = workload("head", role(1, 5, gpus(1)), queue="other", expected=10.0)
    large = workload("large", role(1, 9, gpus(1)), queue="mine", expected=10.0)
    right = workload("right", role(1, 1, gpus(1)), queue="mine", expected=60.0, submitted=1.0)
    kept = [ReservationRecord("head", NOW + 50, (pod("g0"),))]
    queues = [Queue("mine", guarantee={"gpu": 1000, "cpu": 1000}), Queue("other", weight=100)]
    decision = decide(snapshot(nodes, running, [head, large, right], queues, kept, late), NOW)
    assert promises(decision)["head"] == NOW + 50
    assert not started(decision)
    before = decide(snapshot(nodes, running, [head, right], queues, kept, late), NOW)
    assert started(before) == {"right"}


def test_the_reservation_of_a_passed_workload_is_not_counted_against_the_passer():
    """A queue with one reservation gives it to its first workload, whatever it reserved before."""
    nodes = [node("a"), node("b")]
    low = workload("low", role(2, 8), expected=100.0, priority=10)
    urgent = workload("urgent", role(2, 8), expected=100.0, priority=90, submitted=1.0)
    kept = [
        ReservationRecord("low", NOW + 50, (PodAssignment("w", 0, "a"), PodAssignment("w", 1, "b")))
    ]
    running = [runs("r", "a", end=NOW + 50, preemptible=False)]
    decision = decide(snapshot(nodes, running, [low, urgent], reservations=kept), NOW)
    assert "urgent" in promises(decision)


def test_an_overdue_reservation_lasts_its_whole_duration_from_now_on():
    leaving = dataclasses.replace(runs("r", "a"), leaving=(("w", 0),))
    first = workload("first", role(1, 8), expected=100.0)
    second = workload("second", role(1, 8), expected=100.0, submitted=1.0)
    kept = [
        ReservationRecord("first", NOW - 20, (PodAssignment("w", 0, "a"),)),
        ReservationRecord("second", NOW + 80, (PodAssignment("w", 0, "a"),)),
    ]
    queues = [Queue("q", reserve=2)]
    decision = decide(snapshot([node("a")], [leaving], [first, second], queues, kept), NOW)
    assert promises(decision) == {"first": NOW, "second": NOW + 100}


def test_a_reservation_with_anti_affinity_is_not_kept_where_matching_pods_are_now():
    apart = Affinity("host", (Requirement("app", "Exists"),), anti=True)
    nodes = [dataclasses.replace(node(name), labels={"host": name}) for name in ("a", "b")]
    there = Running(
        workload("x", role(1, 1, labels=(("app", "x"),))), (PodAssignment("w", 0, "a"),), 0.0
    )
    full = runs("r", "b", end=NOW + 50)
    head = workload("head", role(1, 1, affinities=(apart,)), expected=10.0)
    kept = [ReservationRecord("head", NOW, (PodAssignment("w", 0, "a"),))]
    decision = decide(snapshot(nodes, [there, full], [head], reservations=kept), NOW)
    assert not started(decision)
    assert promises(decision) == {"head": NOW + 50}


def test_a_gap_before_a_reservation_is_found_although_useless_capacity_is_freed_in_it():
    """At 20 the second fits and is gone when the head is due; at 60 it would be in its way."""
    running = [
        runs("r", "a", end=NOW + 100),
        runs("s", "b", end=NOW + 20),
        runs("t", "c", cpu=1, end=NOW + 60),
    ]
    nodes = [node("a"), node("b"), node("c", cpu=1)]
    head = workload("head", role(2, 8), expected=100.0)
    small = workload("small", role(1, 8), expected=75.0, submitted=1.0)
    decision = decide(snapshot(nodes, running, [head, small], [Queue("q", reserve=2)]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 20}


def test_capacity_that_is_being_freed_comes_back_when_its_preemptor_ends():
    """Also where earlier reservations tell when all others end."""
    leaving = dataclasses.replace(runs("old", "a", end=NOW + 10), leaving=(("w", 0),))
    equal = runs("equal", "b")
    far = runs("far", "c", cpu=9, end=NOW + 500, queue="z", preemptible=False)
    kept = [ReservationRecord("last", NOW + 500, (PodAssignment("w", 0, "c"),))]
    last = workload("last", role(1, 9), queue="z", expected=10.0)
    urgent = workload("urgent", role(1, 8), expected=50.0, priority=90)
    head = workload("head", role(1, 8), expected=10.0, submitted=1.0)
    waiting = [last, urgent, head]
    nodes = [node("a"), node("b"), node("c", cpu=9)]
    queues = [Queue("q"), Queue("z")]
    decision = decide(snapshot(nodes, [leaving, equal, far], waiting, queues, kept), NOW)
    assert [each.workload for each in decision.nominations] == ["urgent"]
    assert promises(decision) == {"head": NOW + 50, "last": NOW + 500}


def test_a_due_reservation_is_kept_beside_one_that_starts_when_others_have_ended():
    """`brief` leaves quota for `due`, and is gone when `later` starts: the three never run at the
    same time, and what the queue may use is enough for each two that do."""
    queue = Queue("q", order="lifo", limit={"cpu": 3000}, reserve=2)
    waiting = [
        workload("later", role(1, 2), expected=100.0, submitted=0.0),
        workload("due", role(1, 1), expected=900.0, submitted=1.0),
        workload("brief", role(1, 2), expected=5.0, submitted=2.0),
    ]
    before = [
        ReservationRecord("due", NOW, (PodAssignment("w", 0, "a"),)),
        ReservationRecord("later", NOW + 600, (PodAssignment("w", 0, "a"),)),
    ]
    decision = decide(snapshot([node("a")], (), waiting, [queue], before), NOW)
    assert started(decision) == {"brief", "due"}
    assert promises(decision) == {"later": NOW + 5}
