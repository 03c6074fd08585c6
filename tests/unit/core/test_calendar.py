"""Reservations and maintenance in a decision (docs/guide/reserve-capacity.md, W1 to W15)."""

import dataclasses

import pytest

from tests.unit.core.preempting import node, workload
from windlass.core.cycle import cycle
from windlass.core.invariants import invariants
from windlass.core.model.types import (
    AdvanceReservation,
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Nomination,
    PodAssignment,
    Policy,
    Queue,
    ReservationRecord,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import (
    AdvancePut,
    BadFacts,
    NodePut,
    ReservationsPut,
    Snapshot,
    WaitingPut,
    apply,
    build,
)

NOW = 10_000.0
START, END = NOW + 1000, NOW + 2000
QUEUES = (Queue("a"), Queue("b"), Queue("a1", "a"))
NODES = (node("n0"), node("n1"))


def window(**more) -> AdvanceReservation:
    if "amounts" not in more and "selector" not in more:
        more.setdefault("nodes", frozenset(("n0",)))
    return AdvanceReservation(**{"name": "res", "start": START, "end": END, **more})


def world(*waiting, windows=(), running=(), nodes=NODES, queues=QUEUES, **more) -> Snapshot:
    return build(
        ClusterFacts(tuple(nodes), tuple(queues), tuple(running), tuple(waiting), levels=("rack",),
              advance=tuple(windows), **more)
    )  # fmt: skip


def decide(snapshot, now=NOW, policy=Policy()):  # noqa: B008
    """Decided twice, once by a fresh snapshot, and held against the rules."""
    decision = cycle.decide(snapshot, now, policy)
    fresh = build(snapshot.facts(), snapshot.history)
    assert repr(decision) == repr(cycle.decide(fresh, now, policy))
    assert invariants.broken(snapshot, decision, now) == []
    return decision


def started(decision) -> dict[str, list[str]]:
    return {each.workload: [pod.node for pod in each.pods] for each in decision.placements}


def verdict(decision, key):
    return next(each for each in decision.verdicts if each.workload == key)


def runs(key, nodes, *, queue="b", gpus=8, at=NOW - 100, expected=None, **more) -> Running:
    """One pod of so many GPUs on each of the nodes; devices from g0 on, or from `first`."""
    first, leaving = more.pop("first", 0), more.pop("leaving", ())
    grants = tuple(Grant(f"g{i}") for i in range(first, first + gpus))
    what = workload(key, queue, len(nodes), gpus, expected=expected, **more)
    pods = tuple(PodAssignment("w", i, name, grants) for i, name in enumerate(nodes))
    end = None if expected is None else at + expected
    return Running(what, pods, at, end, leaving=leaving)


# --- before the window


def test_a_workload_that_would_still_run_at_the_start_of_a_window_does_not_start_on_its_nodes():
    everything = window(nodes=frozenset(("n0", "n1")))
    long, short = workload("long", "b", expected=1001.0), workload("short", "b", expected=1000.0)
    decision = decide(world(long, short, windows=[everything]))
    assert set(started(decision)) == {"short"}
    told = verdict(decision, "long")
    assert told.reason == "ReservedUntil"
    assert told.resource == "res"
    assert (
        "reservation res reserves the capacity for maintenance from 1970-01-01T03:03:20Z until "
        in told.message
    )
    assert "it would still run then" in told.message


def test_it_starts_on_other_nodes():
    decision = decide(world(workload("long", "b", gpus=8, expected=5000.0), windows=[window()]))
    assert started(decision) == {"long": ["n1"]}


def test_the_maximum_duration_binds_before_the_expected_one():
    both = window(nodes=frozenset(("n0", "n1")))
    late = workload("late", "b", expected=10.0, max_runtime=1001.0)
    early = workload("early", "b", expected=5000.0, max_runtime=900.0)
    assert set(started(decide(world(late, early, windows=[both])))) == {"early"}


def test_learned_estimates_do_not_count():
    """A predictor that has seen such workloads end early must not let one into the window."""
    both = window(nodes=frozenset(("n0", "n1")))
    snapshot = world(windows=[both])
    for i in range(50):
        each = workload(f"old{i}", "b", history_key="b/eve")
        snapshot.history.register(each, NOW - 500)
        snapshot.history.observe(each, 5.0)
    apply(snapshot, [WaitingPut(workload("silent", "b", history_key="b/eve", preemptible=False))])
    decision = decide(snapshot)
    assert started(decision) == {}
    assert "does not say how long it runs" in verdict(decision, "silent").message


def test_a_preemptible_workload_of_unknown_length_starts_there_until_its_grace_would_reach_in():
    both = window(nodes=frozenset(("n0", "n1")))
    guest = workload("guest", "b", grace=60.0)
    assert set(started(decide(world(guest, windows=[both])))) == {"guest"}
    assert set(started(decide(world(guest, windows=[both]), START - 61))) == {"guest"}
    assert started(decide(world(guest, windows=[both]), START - 60)) == {}


def test_its_queues_minimum_run_time_must_fit_before_the_window_as_well():
    both, queues = window(nodes=frozenset(("n0", "n1"))), (Queue("b", min_runtime=500.0),)
    guest = workload("guest", "b", grace=60.0)
    assert started(decide(world(guest, windows=[both], queues=queues), START - 560)) == {}
    assert started(decide(world(guest, windows=[both], queues=queues), START - 561)) != {}


def test_beneficiaries_by_queue_and_below_namespace_and_user_start_there():
    both = window(
        nodes=frozenset(("n0", "n1")), queues=frozenset("a"), namespaces=frozenset(("ns",)),
        users=frozenset(("ann",)),
    )  # fmt: skip
    waiting = (
        workload("queue", "a", expected=5e3), workload("below", "a1", expected=5e3),
        workload("space", "b", expected=5e3, namespace="ns"),
        workload("user", "b", expected=5e3, user="ann"), workload("other", "b", expected=5e3),
    )  # fmt: skip
    assert set(started(decide(world(*waiting, windows=[both])))) == {
        "queue", "below", "space", "user",
    }  # fmt: skip


def test_nodes_are_reserved_by_labels_too_and_follow_them():
    labelled = dataclasses.replace(NODES[0], labels={"pool": "x"})
    reserved = window(selector=(("pool", "x"),))
    snapshot = world(workload("big", "b", 2, 8, expected=5e3), windows=[reserved], nodes=NODES)
    assert set(started(decide(snapshot))) == {"big"}
    apply(snapshot, [NodePut(labelled)])
    assert started(decide(snapshot)) == {}


def test_a_new_window_binds_an_old_snapshot_and_a_deleted_one_does_not():
    snapshot = world(workload("big", "b", 2, 8, expected=5e3))
    assert set(started(decide(snapshot))) == {"big"}
    apply(snapshot, [AdvancePut((window(),))])
    assert started(decide(snapshot)) == {}
    apply(snapshot, [AdvancePut(())])
    assert set(started(decide(snapshot))) == {"big"}


def test_nodes_that_come_and_go_leave_the_window_where_it_was():
    snapshot = world(workload("big", "b", 2, 8, expected=5e3), windows=[window()])
    assert started(decide(snapshot)) == {}
    apply(snapshot, [NodePut(node("m9"))])
    assert started(decide(snapshot)) == {"big": ["m9", "n1"]}


def test_a_reservation_that_recurs_makes_one_shape_of_all_that_run_into_it():
    """Everything that is kept per shape would be kept eight times otherwise."""
    nights = [window(start=START + i * 5000, end=END + i * 5000) for i in range(8)]
    waiting = [workload(f"u{i}", "b", 2, 8, expected=2000.0 + 5000 * i) for i in range(8)]
    queues = (Queue("b", reserve=0),)
    snapshot = world(*waiting, windows=nights, queues=queues)
    assert started(decide(snapshot)) == {}
    reserved = {shape.constraint.reserved for shape in snapshot.cluster.shapes.by_id}
    assert reserved == {(), (nights[0].id,)}


# --- at its start, and in it


def test_in_the_window_only_beneficiaries_start_there_and_after_it_all_workloads():
    both = window(nodes=frozenset(("n0", "n1")), queues=frozenset("a"))
    waiting = workload("other", "b", expected=10.0), workload("mine", "a", expected=10.0)
    decision = decide(world(*waiting, windows=[both]), START)
    assert set(started(decision)) == {"mine"}
    told = verdict(decision, "other")
    assert (told.reason, "until 1970-01-01T03:20:00Z" in told.message) == ("ReservedUntil", True)
    assert set(started(decide(world(*waiting, windows=[both]), END))) == {"other", "mine"}


def test_workloads_there_are_evicted_so_that_their_grace_is_over_at_the_start():
    running = runs("guest", ["n0"], grace=60.0)
    snapshot = world(windows=[window()], running=[running])
    assert decide(snapshot, START - 61).evictions == ()
    assert decide(snapshot, START - 61).wake_at == START - 60
    (eviction,) = decide(snapshot, START - 60).evictions
    assert (eviction.workload, eviction.preemptor, eviction.reservation) == ("guest", "", "res")
    assert eviction.reason == "reservation res begins at 1970-01-01T03:03:20Z"
    (late,) = decide(snapshot, START + 5).evictions
    assert "began" in late.reason


def test_what_ends_in_time_by_its_own_word_is_left_alone_until_it_has_not():
    ends = runs("ends", ["n0"], at=START - 500, expected=490.0, grace=60.0)
    snapshot = world(windows=[window()], running=[ends])
    assert decide(snapshot, START - 30).evictions == ()
    assert decide(snapshot, START - 30).wake_at <= START - 10
    assert len(decide(snapshot, START - 10).evictions) == 1


def test_what_must_not_be_stopped_stays_and_beneficiaries_stay():
    firm = runs("firm", ["n0"], gpus=4, preemptible=False)
    mine = runs("mine", ["n0"], queue="a", gpus=4, first=4)
    snapshot = world(windows=[window(queues=frozenset("a"))], running=[firm, mine])
    assert decide(snapshot, START).evictions == ()


def test_an_elastic_workload_gives_up_only_the_members_that_are_in_the_way():
    most = dataclasses.replace(runs("wide", ["n1", "n0"], gpus=2).workload.roles[0], min_count=1)
    wide = runs("wide", ["n1", "n0"], gpus=2)
    wide = dataclasses.replace(wide, workload=dataclasses.replace(wide.workload, roles=(most,)))
    (eviction,) = decide(world(windows=[window()], running=[wide]), START).evictions
    assert eviction.pods == (("w", 1),)


def test_a_gang_with_a_member_in_the_way_leaves_whole():
    (eviction,) = decide(
        world(windows=[window()], running=[runs("gang", ["n1", "n0"])]), START
    ).evictions
    assert len(eviction.pods) == 2


def test_no_workload_grows_or_is_repaired_into_a_window():
    elastic = runs("grows", ["n1"], gpus=8)
    role = dataclasses.replace(elastic.workload.roles[0], max_count=2)
    elastic = dataclasses.replace(
        elastic, workload=dataclasses.replace(elastic.workload, roles=(role,))
    )
    snapshot = world(windows=[window()], running=[elastic])
    assert started(decide(snapshot, START)) == {}
    assert started(decide(snapshot, END)) == {"grows": ["n0"]}
    lost = runs("lost", ["n1", "n0"], gpus=8)
    lost = dataclasses.replace(lost, pods=lost.pods[:1])
    assert started(decide(world(windows=[window()], running=[lost]), START)) == {}
    assert started(decide(world(running=[lost]), START)) == {"lost": ["n0"]}


def test_no_workload_is_preempted_on_a_node_that_a_window_closes():
    low = runs("low", ["n0"], priority=1, expected=500.0)
    firm = runs("firm", ["n1"], preemptible=False)
    high = workload("high", "b", gpus=8, priority=90, expected=5e3)
    queues = (Queue("b", order="priority"),)
    assert decide(world(high, running=[low, firm], queues=queues)).evictions != ()
    decision = decide(world(high, running=[low, firm], queues=queues, windows=[window()]))
    assert decision.evictions == ()


def test_cleared_capacity_goes_to_beneficiaries_whichever_workload_waits_longer():
    running = runs("guest", ["n0"], grace=60.0), runs("firm", ["n1"], preemptible=False)
    mine, other = workload("mine", "a", gpus=8, submitted=50.0), workload("other", "b", gpus=8)
    reserved = [window(queues=frozenset("a"))]
    snapshot = world(mine, other, windows=reserved, running=running)
    decision = decide(snapshot, START - 60)
    assert [each.workload for each in decision.evictions] == ["guest"]
    apply(snapshot, [WaitingPut(running[0].workload)])
    assert started(decide(snapshot, START - 1)) == {"mine": ["n0"]}


# --- reserved starts of blocked heads


def test_a_blocked_heads_start_never_falls_into_a_window():
    busy = runs("busy", ["n0"], at=NOW, expected=500.0), runs("firm", ["n1"], preemptible=False)
    head = workload("head", "b", gpus=8, expected=600.0)
    (promise,) = decide(world(head, running=busy)).reservations
    assert promise.start == NOW + 500
    (promise,) = decide(world(head, running=busy, windows=[window()])).reservations
    assert promise.start == END


def test_it_may_end_at_the_very_start_of_a_window():
    busy = runs("busy", ["n0"], at=NOW, expected=500.0), runs("firm", ["n1"], preemptible=False)
    head = workload("head", "b", gpus=8, expected=500.0)
    (promise,) = decide(world(head, running=busy, windows=[window()])).reservations
    assert promise.start == NOW + 500


def test_a_reserved_start_is_withdrawn_with_a_reason_when_a_window_is_added():
    busy = runs("firm", ["n1"], preemptible=False)
    head = workload("head", "b", gpus=8, expected=600.0)
    pods = (PodAssignment("w", 0, "n0", tuple(Grant(f"g{i}") for i in range(8))),)
    given = (ReservationRecord("head", NOW + 600, pods),)
    snapshot = world(head, running=[busy], windows=[window()], reservations=given)
    decision = decide(snapshot, NOW + 500)
    assert [each.start for each in decision.reservations] == [END]
    assert verdict(decision, "head").reason == "ReservedUntil"


def test_capacity_that_was_nominated_is_withdrawn_when_a_window_closes_it():
    leaving = runs("low", ["n0"], expected=5e3, leaving=(("w", 0),))
    firm = runs("firm", ["n1"], preemptible=False)
    pods = (PodAssignment("w", 0, "n0", tuple(Grant(f"g{i}") for i in range(8))),)
    high = workload("high", "b", gpus=8, expected=5e3)
    facts = world(high, running=[leaving, firm]).facts()
    nominated = dataclasses.replace(facts, nominations=(Nomination("high", pods),))
    assert decide(build(nominated)).nominations != ()
    closed = dataclasses.replace(nominated, advance=(window(),))
    assert decide(build(closed)).nominations == ()


def test_a_head_that_waits_for_the_end_of_a_window_keeps_no_beneficiary_out_of_it():
    head = workload("head", "b", gpus=8, expected=600.0)
    busy = runs("firm", ["n1"], preemptible=False)
    snapshot = world(head, running=[busy], windows=[window(queues=frozenset("a"))])
    first = decide(snapshot, START)
    assert [each.start for each in first.reservations] == [END]
    apply(snapshot, [ReservationsPut(first.reservations)])
    apply(snapshot, [WaitingPut(workload("mine", "a", gpus=8, submitted=50.0))])
    assert started(decide(snapshot, START + 1)) == {"mine": ["n0"]}


# --- amounts


def test_amounts_keep_so_many_devices_from_others_and_no_more():
    four = window(amounts={"gpu": 4000}, queues=frozenset("a"))
    waiting = [workload(f"u{i}", "b", expected=5e3) for i in range(16)]
    assert len(started(decide(world(*waiting, windows=[four])))) == 12
    assert len(started(decide(world(*waiting, windows=[four]), START))) == 12
    assert len(started(decide(world(*waiting, windows=[four]), END))) == 16


def test_amounts_prefer_whole_nodes_so_that_a_gang_of_the_beneficiaries_fits():
    eight = window(amounts={"gpu": 8000}, queues=frozenset("a"))
    waiting = [workload(f"u{i}", "b", expected=5e3, pack="spread") for i in range(10)]
    snapshot = world(*waiting, workload("gang", "a", gpus=8, submitted=99.0), windows=[eight])
    found = started(decide(snapshot, START))
    assert "gang" in found
    assert len(found) == 9


def test_what_beneficiaries_hold_counts_towards_the_amount():
    eight = window(amounts={"gpu": 8000}, queues=frozenset("a"))
    mine = runs("mine", ["n0"], queue="a", gpus=6)
    waiting = [workload(f"u{i}", "b", expected=5e3) for i in range(16)]
    decision = decide(world(*waiting, windows=[eight], running=[mine]), START)
    assert len(started(decision)) == 8


def test_only_as_many_are_evicted_as_the_amount_takes():
    running = [runs(f"r{i}", ["n0"], gpus=2, first=2 * i, at=NOW - 100 + i) for i in range(4)]
    running += [runs("firm", ["n1"], preemptible=False)]
    four = window(amounts={"gpu": 4000}, queues=frozenset("a"))
    decision = decide(world(windows=[four], running=running), START)
    assert sorted(each.workload for each in decision.evictions) == ["r2", "r3"]


def test_amounts_of_a_model_leave_other_models_alone():
    def of(name, model):
        devices = tuple(Device(f"g{i}", "gpu", model, memory=80) for i in range(8))
        return Node(name, {"cpu": 64_000}, devices, path=("r0",))

    nodes = (of("n0", "old"), of("n1", "new"))
    new = window(amounts={"gpu/new": 6000}, queues=frozenset("a"))
    request = (DeviceRequest("gpu", models=("new",)),)
    picky = [
        Workload(f"u{i}", "b", (Role("w", 1, 1, {"cpu": 1000}, request),), -1.0, expected=5e3)
        for i in range(4)
    ]
    easy = [workload(f"e{i}", "b", expected=5e3) for i in range(8)]
    found = started(decide(world(*picky, *easy, windows=[new], nodes=nodes), START))
    assert sum(name.startswith("u") for name in found) == 2
    assert sum(name.startswith("e") for name in found) == 8


def test_processors_alone_can_be_reserved():
    some = window(amounts={"cpu": 100_000}, queues=frozenset("a"))
    waiting = [workload(f"u{i}", "b", gpus=0, cpu=8, expected=5e3) for i in range(16)]
    assert len(started(decide(world(*waiting, windows=[some]), START))) == 3


def test_before_the_window_capacity_that_comes_back_in_time_is_counted():
    """Four devices are reserved; four are busy and end before. One more may be used now."""
    four = window(amounts={"gpu": 4000}, queues=frozenset("a"))
    busy = runs("busy", ["n0"], gpus=4, at=NOW, expected=900.0)
    firm = runs("firm", ["n1"], preemptible=False)
    waiting = [workload(f"u{i}", "b", expected=5e3) for i in range(8)]
    decision = decide(world(*waiting, windows=[four], running=[busy, firm]))
    assert len(started(decision)) == 4


def test_overlapping_reservations_of_amounts_add_up_and_later_ones_do_not():
    first = window(amounts={"gpu": 3000}, queues=frozenset("a"))
    second = window(name="res2", amounts={"gpu": 4000}, queues=frozenset("a"), start=START + 1)
    later = window(
        name="res3", amounts={"gpu": 4000}, queues=frozenset("a"), start=END, end=END + 9
    )
    waiting = [workload(f"u{i}", "b", expected=1e6) for i in range(16)]
    assert len(started(decide(world(*waiting, windows=[first, second])))) == 9
    assert len(started(decide(world(*waiting, windows=[first, later])))) == 12


# --- bad facts


@pytest.mark.parametrize(
    "bad",
    [
        window(end=START),
        window(nodes=frozenset("n"), amounts={"gpu": 1}),
        AdvanceReservation("res", START, END),
        window(amounts={"gpu": -1}),
        window(start=float("nan")),
    ],
)
def test_windows_that_contradict_themselves_are_refused(bad):
    with pytest.raises(BadFacts, match="reservation res"):
        world(windows=[bad])
    with pytest.raises(BadFacts, match="reservation res"):
        apply(world(), [AdvancePut((bad,))])
