"""Reservations of blocked heads: when, where, what may pass, and that they are kept."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.reserving import (
    DEFAULT,
    HEAD,
    NOW,
    gpus,
    node,
    promises,
    role,
    runs,
    snapshot,
    started,
    verdict,
    workload,
)
from windlass.core.cycle.cycle import decide
from windlass.core.model.types import (
    ClusterFacts,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Policy,
    Queue,
    ReservationRecord,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.prediction import predictor
from windlass.core.snapshot import availability_profile
from windlass.core.snapshot.snapshot import (
    CheckpointSaved,
    Event,
    ReservationsPut,
    RunningPut,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.kinds.reasons import Reason

# --- when ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("running", "head", "start"),
    [
        ([runs("r", "a", "b", end=NOW + 50)], HEAD, NOW + 50),
        ([runs("r", "a", end=NOW + 50), runs("s", "b", end=NOW + 70)], HEAD, NOW + 70),
        ([runs("r", "a", end=NOW + 50)], HEAD, NOW + 50),
        ([runs("r", "a"), runs("s", "b", end=NOW + 70)], HEAD, None),
        (
            [runs("r", "a"), runs("s", "b", end=NOW + 70)],
            workload("head", role(1, 8), expected=9.0),
            NOW + 70,
        ),
        ([runs("r", "a", end=NOW - 30)], HEAD, NOW + 60),
    ],
    ids=[
        "when the one ends", "when the last ends", "when the missing half ends",
        "never while one that must go says nothing", "as soon as one place is free",
        "who is late is believed to be as late again, or twice that",
    ],
)  # fmt: skip
def test_a_blocked_head_gets_a_reservation_for_the_earliest_time_at_which_it_fits(
    running, head, start
):
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == ({} if start is None else {"head": start})


def test_the_reservation_names_the_pods_and_wakes_the_scheduler():
    running = [runs("r", "a", end=NOW + 50)]
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD]), NOW)
    assert sorted(pod.node for pod in decision.reservations[0].pods) == ["a", "b"]
    assert decision.wake_at == NOW + 50
    assert "1970-01-01T00:17:30Z" in verdict(decision, "head").message


def test_a_required_rack_is_waited_for():
    nodes = [node("a", rack="r1"), node("b", rack="r2"), node("c", rack="r2")]
    running = [runs("r", "b", end=NOW + 50), runs("s", "c", end=NOW + 70)]
    head = dataclasses.replace(HEAD, topology=Topology("rack", required=True))
    decision = decide(snapshot(nodes, running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 70}
    assert {pod.node for pod in decision.reservations[0].pods} == {"b", "c"}


def test_a_workload_of_several_roles_waits_until_all_of_them_fit():
    head = workload("head", role(1, 8, name="leader"), role(2, 4, name="worker"), expected=9.0)
    running = [runs("r", "a", end=NOW + 50), runs("s", "b", end=NOW + 70)]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 70}


def test_evicted_pods_may_end_at_any_moment():
    leaving = dataclasses.replace(runs("r", "a"), leaving=(("w", 0),))
    decision = decide(snapshot([node("a"), node("b")], [leaving], [HEAD]), NOW)
    assert promises(decision) == {"head": NOW}


def test_what_this_decision_starts_is_waited_for_as_well():
    first = workload("first", role(1, 8), expected=40.0)
    decision = decide(snapshot([node("a"), node("b")], [], [first, HEAD]), NOW)
    assert started(decision) == {"first"}
    assert promises(decision) == {"head": NOW + 40}


def test_the_second_reservation_waits_for_the_first():
    second = dataclasses.replace(HEAD, key="second", submitted=1.0)
    running = [runs("r", "a", end=NOW + 50)]
    queue = Queue("q", reserve=2)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, second], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 50, "second": NOW + 150}


def test_a_second_reservation_may_start_before_the_first_if_it_ends_in_time():
    running = [runs("r", "a", end=NOW + 100), runs("s", "b", end=NOW + 20)]
    small = workload("small", role(1, 8), expected=80.0, submitted=1.0)
    queue = Queue("q", reserve=2)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, small], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 20}
    longer = dataclasses.replace(small, expected=81.0)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, longer], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 200}


@pytest.mark.parametrize(("most", "promised"), [(0, 0), (1, 1), (3, 3), (8, 4)])
def test_there_are_no_more_reservations_than_the_policy_allows(most, promised):
    heads = [
        workload(f"u{i}", role(2, 8), expected=5.0, submitted=float(i), queue=f"q{i}")
        for i in range(4)
    ]
    queues = [Queue(f"q{i}") for i in range(4)]
    found = snapshot([node("a"), node("b")], [runs("r", "a", end=NOW + 5)], heads, queues)
    assert len(decide(found, NOW, Policy(reservations=most)).reservations) == promised


def test_a_head_over_its_quota_gets_no_reservation():
    queues = [Queue("q", limit={"cpu": 8000})]
    running = [runs("r", "a", end=NOW + 50)]
    assert not decide(snapshot([node("a"), node("b")], running, [HEAD], queues), NOW).reservations


# --- what may pass ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passer", "policy", "passes"),
    [
        (workload("p", role(1, 8), expected=50.0), Policy(), True), (workload("p", role(1, 8),
        expected=51.0), Policy(), False), (workload("p", role(1, 8)), Policy(), False),
        (workload("p", role(1, 8)), Policy(unknown_runtime="never"), False), (workload("p", role(1,
        8)), Policy(unknown_runtime="preemptible"), True), (workload("p", role(1, 8),
        preemptible=False), Policy(unknown_runtime="preemptible"), False),
    ],
    ids=[
        "ends just in time", "ends a second too late", "nothing is known of it", "never",
        "may be stopped", "may not be stopped",
    ],
)  # fmt: skip
def test_others_pass_only_if_they_cannot_delay_the_head(passer, policy, passes):
    passer = dataclasses.replace(passer, submitted=1.0)
    running = [runs("r", "a", end=NOW + 50)]
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, passer]), NOW, policy)
    assert ("p" in started(decision)) == passes
    if not passes:
        assert verdict(decision, "p").reason is Reason.RESERVED_UNTIL


def test_capacity_beside_the_reserved_pods_is_free_for_all():
    nodes = [node("a"), node("b"), node("c", cpu=4)]
    running = [runs("r", "a", end=NOW + 50), runs("s", "c", cpu=1)]
    forever = [workload(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(5)]
    decision = decide(snapshot(nodes, running, [HEAD, *forever]), NOW)
    assert started(decision) == {"p0", "p1", "p2"}
    assert {p.pods[0].node for p in decision.placements} == {"c"}


def test_what_passed_is_taken_from_the_capacity_of_the_next_ones():
    head = workload("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50)]
    forever = [workload(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(5)]
    decision = decide(snapshot([node("a"), node("b")], running, [head, *forever]), NOW)
    assert started(decision) == {"p0", "p1"}, "b has 8, of which the head will need 6"


def test_several_roles_of_one_passer_count_together():
    head = workload("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50)]
    passer = workload("p", role(1, 2, name="x"), role(1, 1, name="y"), submitted=1.0)
    decision = decide(snapshot([node("a"), node("b")], running, [head, passer]), NOW)
    assert not started(decision)


def test_quota_that_a_reserved_head_will_need_is_not_given_away():
    queues = [Queue("q", limit={"cpu": 17000})]
    nodes = [node("a"), node("b"), node("c")]
    passers = [workload(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(3)]
    running = [runs("r", "a", "c", end=NOW + 50, queue="other")]
    decision = decide(snapshot(nodes, running, [HEAD, *passers], [*queues, Queue("other")]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert not started(decision), "b is promised"
    nodes.append(node("d", cpu=4))
    decision = decide(snapshot(nodes, running, [HEAD, *passers], [*queues, Queue("other")]), NOW)
    assert started(decision) == {"p0"}
    assert verdict(decision, "p1").reason is Reason.WAITING_FOR_QUOTA


def test_a_running_workload_does_not_grow_into_reserved_capacity():
    elastic = Running(workload("e", role(1, 1, most=9)), (PodAssignment("w", 0, "b"),), 0.0)
    head = workload("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50), elastic]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    grown = [s for p in decision.placements if p.workload == "e" for s in p.pods]
    assert len(grown) == 1, "of b's 8, 1 is used and 6 are promised"


# --- devices ------------------------------------------------------------------------------------


def whole(*ids):
    return tuple(Grant(device, "whole", 1000, 1000) for device in ids)


def gpu_runs(key, where, *ids, end=None):
    what = workload(key, role(1, 0, gpus(len(ids))))
    return Running(what, (PodAssignment("w", 0, where, whole(*ids)),), 0.0, expected_end=end)


def test_a_reservation_of_devices_leaves_the_others_of_the_node():
    running = [gpu_runs("r", "a", "g0", "g1", end=NOW + 50)]
    head = workload("head", role(1, 0, gpus(3)), expected=10.0)
    passers = [workload(f"p{i}", role(1, 0, gpus(1)), submitted=1.0 + i) for i in range(2)]
    decision = decide(snapshot([node("a", gpus=4)], running, [head, *passers]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert started(decision) == {"p0"}, "of 4 devices the head leaves one"
    taken = {grant.device for p in decision.placements for s in p.pods for grant in s.grants}
    promised = {grant.device for s in decision.reservations[0].pods for grant in s.grants}
    assert taken == {"g2"}
    assert not taken & promised


def test_a_share_is_not_placed_on_a_reserved_whole_device():
    running = [gpu_runs("r", "a", "g0", end=NOW + 50)]
    head = workload("head", role(1, 0, gpus(2)), expected=10.0)
    share = workload("p", role(1, 0, DeviceRequest("gpu", memory=100)), submitted=1.0)
    decision = decide(snapshot([node("a", gpus=2)], running, [head, share]), NOW)
    assert not started(decision)
    running = [gpu_runs("r", "a", "g0", "g1", end=NOW + 50)]
    decision = decide(snapshot([node("a", gpus=3)], running, [head, share]), NOW)
    assert started(decision) == {"p"}


# --- reservations in later decisions ------------------------------------------------------------


def test_a_reservation_binds_workloads_with_an_earlier_turn_in_the_next_decision():
    queues = [Queue("q"), Queue("other")]
    early = workload("early", role(1, 8), queue="other", submitted=2.0)
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD], queues), NOW)
    again = decide(snapshot(*facts, [HEAD, early], queues, first.reservations), NOW + 1)
    assert promises(again)["head"] == NOW + 50
    assert "early" not in started(again)
    forgotten = decide(snapshot(*facts, [HEAD, early], queues), NOW + 1)
    assert "early" in started(forgotten)


def test_a_higher_priority_does_not_wait_for_a_reservation():
    urgent = workload("urgent", role(1, 8), priority=90, submitted=2.0)
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD]), NOW)
    again = decide(snapshot(*facts, [HEAD, urgent], reservations=first.reservations), NOW + 1)
    assert started(again) == {"urgent"}
    assert "head" not in promises(again), "urgent says nothing about its end"


def test_a_reservation_is_dropped_when_its_workload_is_gone_or_changes_its_request():
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD]), NOW)
    other = workload("p", role(1, 8), submitted=2.0)
    gone = decide(snapshot(*facts, [other], reservations=first.reservations), NOW + 1)
    assert started(gone) == {"p"}
    smaller = dataclasses.replace(HEAD, roles=(role(1, 8),))
    changed = decide(snapshot(*facts, [smaller], reservations=first.reservations), NOW + 1)
    assert started(changed) == {"head"}


def test_a_reservation_gets_earlier_when_a_workload_ends_early():
    running = [runs("r", "a", end=NOW + 50), runs("s", "b", end=NOW + 70)]
    nodes = [node("a"), node("b")]
    first = decide(snapshot(nodes, running, [HEAD]), NOW)
    again = decide(snapshot(nodes, running[:1], [HEAD], reservations=first.reservations), NOW + 9)
    assert (promises(first), promises(again)) == ({"head": NOW + 70}, {"head": NOW + 50})


def test_a_reservation_is_made_again_when_its_capacity_is_lost():
    running = [runs("r", "a", end=NOW + 50), runs("s", "c", end=NOW + 70)]
    nodes = [node("a"), node("b"), node("c")]
    first = decide(snapshot(nodes, running, [HEAD]), NOW)
    lost = [dataclasses.replace(nodes[0], ready=False), *nodes[1:]]
    again = decide(snapshot(lost, running, [HEAD], reservations=first.reservations), NOW + 1)
    assert promises(again) == {"head": NOW + 70}


def test_workloads_on_reserved_capacity_are_evicted_when_it_is_due():
    policy = Policy(unknown_runtime="preemptible")
    running = [runs("r", "a", end=NOW + 50)]
    guest = workload("guest", role(1, 8), submitted=1.0)
    nodes = [node("a"), node("b")]
    first = decide(snapshot(nodes, running, [HEAD, guest]), NOW, policy)
    assert started(first) == {"guest"}
    running.append(Running(guest, first.placements[0].pods, NOW))
    later = snapshot(nodes, running, [HEAD], reservations=first.reservations)
    second = decide(later, NOW + 1, policy)
    assert promises(second) == {"head": NOW + 50}
    assert not second.evictions
    due = decide(
        snapshot(nodes, running[1:], [HEAD], reservations=second.reservations), NOW + 50, policy
    )
    assert [(e.workload, e.preemptor) for e in due.evictions] == [("guest", "head")]
    assert [n.workload for n in due.nominations] == ["head"]


def test_reservations_made_out_of_turn_still_see_each_other_in_the_next_decision():
    """`small` starts before the head and runs on beside it: no capacity is given away twice."""
    head = workload("head", role(1, 12), expected=10.0)
    small = workload("small", role(1, 5), expected=40.0, submitted=1.0)
    late = workload("late", role(1, 5), expected=40.0, submitted=2.0)
    nodes = [node("a", cpu=17)]
    running = [runs("r", "a", cpu=6, end=NOW + 30), runs("s", "a", cpu=7, end=NOW + 20)]
    facts = nodes, running, [head, small, late], [Queue("q", reserve=2)]
    first = decide(snapshot(*facts), NOW)
    assert promises(first) == {"head": NOW + 30, "small": NOW + 20}
    at_20 = nodes, running[:1], [head, small, late], [Queue("q", reserve=2)]
    second = decide(snapshot(*at_20, first.reservations), NOW + 20)
    assert started(second) == {"small"}
    assert promises(second)["head"] == NOW + 30


def test_a_due_reservation_is_not_lost_to_a_queue_earlier_in_the_tree():
    queues = [Queue("q"), Queue("other")]
    early = workload("early", role(1, 8), queue="other", submitted=2.0, expected=5.0)
    nodes = [node("a"), node("b")]
    promise = ReservationRecord(
        "head", NOW, (PodAssignment("w", 0, "a"), PodAssignment("w", 1, "b"))
    )
    decision = decide(snapshot(nodes, [], [HEAD, early], queues, [promise]), NOW)
    assert started(decision) == {"head"}


# --- kept, whatever happens ---------------------------------------------------------------------


@st.composite
def roles_of(draw) -> tuple[Role, ...]:
    members = draw(st.integers(1, 4))
    request = draw(
        st.sampled_from(
            [
                (),
                (gpus(1),),
                (gpus(2),),
                (gpus(4),),
                (DeviceRequest("gpu", compute=400, memory=300),),
                (DeviceRequest("gpu", memory=600),),
                (DeviceRequest("gpu", ratio=2),),
                (DeviceRequest("gpu", profile="3g"),),
                (DeviceRequest("gpu", profile="1g"),),
            ]
        )
    )
    cpu = draw(st.integers(0 if request else 1, 8))
    worker = role(members, cpu, *request)
    if draw(st.integers(0, 5)):
        return (worker,)
    return (worker, role(1, draw(st.integers(1, 8)), name="leader"))


@st.composite
def demand(draw) -> list[tuple[float, float, Workload]]:
    """(arrives, really runs, workload); a stated duration is the true one or longer."""
    found = []
    for i in range(draw(st.integers(3, 14))):
        lasts = draw(st.integers(1, 60))
        says = draw(st.sampled_from([lasts, lasts, lasts, lasts + 7, 2 * lasts, None]))
        topology = draw(st.sampled_from([None, None, Topology("rack"), Topology("rack", True)]))
        arrives = float(draw(st.integers(0, 40)))
        what = Workload(
            f"u{i:02}", draw(st.sampled_from(["q0", "q1"])), draw(roles_of()), arrives,
            expected=None if says is None else float(says), topology=topology,
            pack=draw(st.sampled_from(["binpack", "spread"])),
        )  # fmt: skip
        found.append((arrives, float(lasts), what))
    return found


@st.composite
def small_clusters(draw) -> list[Node]:
    return [
        node(
            f"n{i}",
            draw(st.sampled_from([4, 8, 16])),
            draw(st.sampled_from([0, 1, 4])),
            f"r{i % 2}",
        )
        for i in range(draw(st.integers(1, 5)))
    ]


HONEST = Policy(unknown_runtime="never")
"""Believes what workloads say and guesses nothing about the others."""


class World:
    """Lets time pass: workloads arrive, are placed by `decide`, and end."""

    def __init__(self, nodes, queues, load) -> None:
        self.snapshot = snapshot(nodes, queues=queues)
        self.coming = sorted(load, key=lambda each: each[0])
        self.lasts = {what.key: lasts for _, lasts, what in load}
        self.ends: dict[str, float] = {}
        self.promised: dict[str, float] = {}
        self.now = 0.0

    def run(self) -> None:
        for _ in range(400):
            moments = [at for at, _, _ in self.coming[:1]] + list(self.ends.values())
            if not moments:
                return
            self.now = min(moments)
            self.step()

    def step(self) -> None:
        events: list[Event] = []
        for key in sorted(key for key, end in self.ends.items() if end <= self.now):
            events.append(WorkloadGone(key))
            del self.ends[key]
        while self.coming and self.coming[0][0] <= self.now:
            events.append(WaitingPut(self.coming.pop(0)[2]))
        apply(self.snapshot, events)
        decision = decide(self.snapshot, self.now, HONEST)
        assert decision == decide(build(self.snapshot.facts()), self.now, HONEST)
        self.check(decision)
        for placement in decision.placements:
            what = self.snapshot.waiting[placement.workload]
            end = None if what.expected is None else self.now + what.expected
            holds = RunningPut(Running(what, placement.pods, self.now, end))
            apply(self.snapshot, [holds])
            self.ends[what.key] = self.now + self.lasts[what.key]
        apply(self.snapshot, [ReservationsPut(decision.reservations)])
        cluster = self.snapshot.cluster
        assert min(cluster.free.min(), cluster.device_table.compute.min(initial=0)) >= 0
        assert cluster.device_table.memory.min(initial=0) >= 0

    def check(self, decision) -> None:
        """Only firm starts are kept (R4 of the sharing contract): a tentative one may be passed by
        a queue below its entitlement."""
        placed = started(decision)
        firm = {each.workload: each.start for each in decision.reservations if each.firm}
        for key, start in self.promised.items():
            assert self.now <= start or key in placed, f"{key} was promised {start}"
        self.promised = {k: s for k, s in self.promised.items() if k not in placed}
        for key, start in firm.items():
            assert start <= self.promised.get(key, float("inf")), f"{key} was promised earlier"
            self.promised[key] = start
        assert self.promised.keys() == firm.keys(), "a promise was dropped"


@settings(deadline=None, max_examples=150)
@given(nodes=small_clusters(), load=demand(), reserve_each=st.integers(1, 4))
def test_a_reservation_is_kept_and_never_gets_later_when_workloads_end_in_time(
    nodes, load, reserve_each
):
    World(nodes, [Queue("q0", reserve=reserve_each), Queue("q1")], load).run()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 4))))
def test_rows_stay_sorted_however_they_come_and_go(steps):
    """(workload, end, rows): a workload that comes again comes with other rows."""
    table, kept = availability_profile.Table(1), {}
    for key, end, count in steps:
        table.drop(kept.pop(key, (0, [], 0))[1])
        kept[key] = (end, table.put(float(end), np.full((1, count), key)), count)
        if key % 3 == 0:
            table.in_order()
    order, times = table.in_order()
    expected = sorted(
        (float(end), key) for key, (end, _, count) in kept.items() for _ in range(count)
    )
    assert times.tolist() == [end for end, _ in expected]
    assert sorted(zip(times.tolist(), table.values[0, order].tolist(), strict=True)) == expected


def test_two_reservations_never_claim_the_same_port_of_a_node():
    heads = [
        workload(f"h{i}", role(1, 1, ports=(80,)), expected=10.0, submitted=float(i))
        for i in range(3)
    ]
    holder = Running(
        workload("r", role(1, 1, ports=(80,))), (PodAssignment("w", 0, "a"),), 0.0, NOW + 50
    )
    decision = decide(snapshot([node("a")], [holder], heads, [Queue("q", reserve=3)]), NOW)
    assert promises(decision) == {"h0": NOW + 50, "h1": NOW + 60, "h2": NOW + 70}
    again = snapshot([node("a")], [holder], heads, [Queue("q", reserve=3)], decision.reservations)
    assert promises(decide(again, NOW + 1)) == promises(decision)


def test_a_saved_state_counts_as_if_the_workload_had_been_added_again():
    held = runs("r", "a", end=NOW + 50)
    again = dataclasses.replace(held, checkpoint_at=NOW - 5)
    waiting = [workload("high", role(1, 8), priority=90)]
    saved = apply(snapshot([node("a")], [held], waiting), [CheckpointSaved("r", NOW - 5)])
    told = apply(snapshot([node("a")], [held], waiting), [RunningPut(again)])
    assert saved.facts() == told.facts()
    assert decide(saved, NOW) == decide(told, NOW)
    columns = [
        each.running_index.columns("q", len(each.cluster.resources)) for each in (saved, told)
    ]
    assert columns[0].since.tolist() == columns[1].since.tolist() == [NOW - 5]
    apply(saved, [CheckpointSaved("nobody", NOW)])


def test_ranks_that_change_with_age_are_looked_at_again():
    running = [runs("r", "a", started=NOW - 900)]
    waiting = [workload("head", role(1, 8))]
    queues = [Queue("q", order="attained")]
    decision = decide(snapshot([node("a")], running, waiting, queues), NOW)
    assert decision.wake_at == NOW + 300, "it will have run for 1200 s"
    just = decide(snapshot([node("a")], [runs("r", "a", started=NOW - 500)], waiting, queues), NOW)
    assert just.wake_at == NOW + 100, "until then it is left alone"
    assert decide(snapshot([node("a")], running, waiting), NOW).wake_at is None


def test_what_is_learned_about_others_tells_when_a_silent_workload_ends():
    class Told(predictor.History):
        def at(self, now):
            return self

        def expected(self, what):
            return 70.0 if what.history_key == "known" else None

        def left(self, what, attained):
            return 70.0 - attained if what.history_key == "known" else None

        def index(self, what, attained):
            return attained

    running = [
        runs("r", "a", history_key="known", started=NOW - 20),
        runs("s", "c", history_key="other"),
    ]
    passer = workload("p", role(1, 8), submitted=1.0, history_key="known")
    facts = ClusterFacts(
        (node("a"), node("b"), node("c")), DEFAULT, tuple(running), (HEAD, passer), levels=("rack",)
    )
    decision = decide(build(facts, Told()), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert not started(decision), "it will probably run for 70 s"
    blind = decide(build(facts, Told()), NOW, Policy(unknown_runtime="never"))
    assert not promises(blind)
