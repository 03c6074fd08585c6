"""Promises to blocked heads: when, where, who may pass, and that they are kept."""

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
    unit,
    verdict,
)
from windlass.core import predict, releases, state
from windlass.core.cycle import decide
from windlass.core.facts import (
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Policy,
    Queue,
    Reservation,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
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
            unit("head", role(1, 8), expected=9.0),
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
def test_a_blocked_head_is_promised_the_earliest_time_at_which_it_fits(running, head, start):
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == ({} if start is None else {"head": start})


def test_the_promise_names_the_seats_and_wakes_the_scheduler():
    running = [runs("r", "a", end=NOW + 50)]
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD]), NOW)
    assert sorted(seat.node for seat in decision.reservations[0].seats) == ["a", "b"]
    assert decision.wake_at == NOW + 50
    assert "1970-01-01T00:17:30Z" in verdict(decision, "head").message


def test_a_required_rack_is_waited_for():
    nodes = [node("a", rack="r1"), node("b", rack="r2"), node("c", rack="r2")]
    running = [runs("r", "b", end=NOW + 50), runs("s", "c", end=NOW + 70)]
    head = dataclasses.replace(HEAD, topology=Topology("rack", required=True))
    decision = decide(snapshot(nodes, running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 70}
    assert {seat.node for seat in decision.reservations[0].seats} == {"b", "c"}


def test_a_unit_of_several_roles_waits_until_all_of_them_fit():
    head = unit("head", role(1, 8, name="leader"), role(2, 4, name="worker"), expected=9.0)
    running = [runs("r", "a", end=NOW + 50), runs("s", "b", end=NOW + 70)]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    assert promises(decision) == {"head": NOW + 70}


def test_members_that_were_told_to_go_count_as_gone_any_moment():
    leaving = dataclasses.replace(runs("r", "a"), leaving=(("w", 0),))
    decision = decide(snapshot([node("a"), node("b")], [leaving], [HEAD]), NOW)
    assert promises(decision) == {"head": NOW}


def test_what_this_decision_starts_is_waited_for_as_well():
    first = unit("first", role(1, 8), expected=40.0)
    decision = decide(snapshot([node("a"), node("b")], [], [first, HEAD]), NOW)
    assert started(decision) == {"first"}
    assert promises(decision) == {"head": NOW + 40}


def test_the_second_promise_waits_for_the_first():
    second = dataclasses.replace(HEAD, key="second", submitted=1.0)
    running = [runs("r", "a", end=NOW + 50)]
    queue = Queue("q", reserve=2)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, second], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 50, "second": NOW + 150}


def test_a_second_promise_may_come_before_the_first_if_it_ends_in_time():
    running = [runs("r", "a", end=NOW + 100), runs("s", "b", end=NOW + 20)]
    small = unit("small", role(1, 8), expected=80.0, submitted=1.0)
    queue = Queue("q", reserve=2)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, small], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 20}
    longer = dataclasses.replace(small, expected=81.0)
    decision = decide(snapshot([node("a"), node("b")], running, [HEAD, longer], [queue]), NOW)
    assert promises(decision) == {"head": NOW + 100, "small": NOW + 200}


@pytest.mark.parametrize(("most", "promised"), [(0, 0), (1, 1), (3, 3), (8, 4)])
def test_there_are_no_more_promises_than_the_policy_says(most, promised):
    heads = [
        unit(f"u{i}", role(2, 8), expected=5.0, submitted=float(i), queue=f"q{i}") for i in range(4)
    ]
    queues = [Queue(f"q{i}") for i in range(4)]
    found = snapshot([node("a"), node("b")], [runs("r", "a", end=NOW + 5)], heads, queues)
    assert len(decide(found, NOW, Policy(reservations=most)).reservations) == promised


def test_a_head_over_its_quota_gets_no_promise():
    queues = [Queue("q", limit={"cpu": 8000})]
    running = [runs("r", "a", end=NOW + 50)]
    assert not decide(snapshot([node("a"), node("b")], running, [HEAD], queues), NOW).reservations


# --- who may pass -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passer", "policy", "passes"),
    [
        (unit("p", role(1, 8), expected=50.0), Policy(), True),
        (unit("p", role(1, 8), expected=51.0), Policy(), False),
        (unit("p", role(1, 8)), Policy(), False),
        (unit("p", role(1, 8)), Policy(unknown_runtime="never"), False),
        (unit("p", role(1, 8)), Policy(unknown_runtime="preemptible"), True),
        (unit("p", role(1, 8), preemptible=False), Policy(unknown_runtime="preemptible"), False),
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


def test_room_beside_the_promised_seats_is_free_for_anybody():
    nodes = [node("a"), node("b"), node("c", cpu=4)]
    running = [runs("r", "a", end=NOW + 50), runs("s", "c", cpu=1)]
    forever = [unit(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(5)]
    decision = decide(snapshot(nodes, running, [HEAD, *forever]), NOW)
    assert started(decision) == {"p0", "p1", "p2"}
    assert {p.seats[0].node for p in decision.placements} == {"c"}


def test_what_passed_is_taken_from_the_room_of_the_next_ones():
    head = unit("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50)]
    forever = [unit(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(5)]
    decision = decide(snapshot([node("a"), node("b")], running, [head, *forever]), NOW)
    assert started(decision) == {"p0", "p1"}, "b has 8, of which the head will need 6"


def test_several_roles_of_one_passer_count_together():
    head = unit("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50)]
    passer = unit("p", role(1, 2, name="x"), role(1, 1, name="y"), submitted=1.0)
    decision = decide(snapshot([node("a"), node("b")], running, [head, passer]), NOW)
    assert not started(decision)


def test_quota_that_a_promised_head_will_need_is_not_given_away():
    queues = [Queue("q", limit={"cpu": 17000})]
    nodes = [node("a"), node("b"), node("c")]
    passers = [unit(f"p{i}", role(1, 1), submitted=1.0 + i) for i in range(3)]
    running = [runs("r", "a", "c", end=NOW + 50, queue="other")]
    decision = decide(snapshot(nodes, running, [HEAD, *passers], [*queues, Queue("other")]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert not started(decision), "b is promised"
    nodes.append(node("d", cpu=4))
    decision = decide(snapshot(nodes, running, [HEAD, *passers], [*queues, Queue("other")]), NOW)
    assert started(decision) == {"p0"}
    assert verdict(decision, "p1").reason is Reason.WAITING_FOR_QUOTA


def test_a_running_unit_does_not_grow_into_promised_room():
    elastic = Running(unit("e", role(1, 1, most=9)), (Seat("w", 0, "b"),), 0.0)
    head = unit("head", role(2, 6), expected=100.0)
    running = [runs("r", "a", end=NOW + 50), elastic]
    decision = decide(snapshot([node("a"), node("b")], running, [head]), NOW)
    grown = [s for p in decision.placements if p.unit == "e" for s in p.seats]
    assert len(grown) == 1, "of b's 8, 1 is used and 6 are promised"


# --- devices ------------------------------------------------------------------------------------


def whole(*ids):
    return tuple(Grant(device, "whole", 1000, 1000) for device in ids)


def gpu_runs(key, where, *ids, end=None):
    what = unit(key, role(1, 0, gpus(len(ids))))
    return Running(what, (Seat("w", 0, where, whole(*ids)),), 0.0, expected_end=end)


def test_a_promise_of_devices_leaves_the_others_of_the_node():
    running = [gpu_runs("r", "a", "g0", "g1", end=NOW + 50)]
    head = unit("head", role(1, 0, gpus(3)), expected=10.0)
    passers = [unit(f"p{i}", role(1, 0, gpus(1)), submitted=1.0 + i) for i in range(2)]
    decision = decide(snapshot([node("a", gpus=4)], running, [head, *passers]), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert started(decision) == {"p0"}, "of 4 devices the head leaves one"
    taken = {grant.device for p in decision.placements for s in p.seats for grant in s.grants}
    promised = {grant.device for s in decision.reservations[0].seats for grant in s.grants}
    assert taken == {"g2"}
    assert not taken & promised


def test_a_share_is_not_put_where_it_would_break_a_promised_whole_device():
    running = [gpu_runs("r", "a", "g0", end=NOW + 50)]
    head = unit("head", role(1, 0, gpus(2)), expected=10.0)
    share = unit("p", role(1, 0, DeviceRequest("gpu", memory=100)), submitted=1.0)
    decision = decide(snapshot([node("a", gpus=2)], running, [head, share]), NOW)
    assert not started(decision)
    running = [gpu_runs("r", "a", "g0", "g1", end=NOW + 50)]
    decision = decide(snapshot([node("a", gpus=3)], running, [head, share]), NOW)
    assert started(decision) == {"p"}


# --- promises in later decisions ----------------------------------------------------------------


def test_a_promise_binds_units_whose_turn_comes_earlier_in_the_next_decision():
    queues = [Queue("q"), Queue("other")]
    early = unit("early", role(1, 8), queue="other", submitted=2.0)
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD], queues), NOW)
    again = decide(snapshot(*facts, [HEAD, early], queues, first.reservations), NOW + 1)
    assert promises(again)["head"] == NOW + 50
    assert "early" not in started(again)
    forgotten = decide(snapshot(*facts, [HEAD, early], queues), NOW + 1)
    assert "early" in started(forgotten)


def test_who_has_the_higher_priority_does_not_wait_for_a_promise():
    urgent = unit("urgent", role(1, 8), priority=90, submitted=2.0)
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD]), NOW)
    again = decide(snapshot(*facts, [HEAD, urgent], reservations=first.reservations), NOW + 1)
    assert started(again) == {"urgent"}
    assert "head" not in promises(again), "urgent says nothing about its end"


def test_a_promise_is_given_up_when_its_unit_is_gone_or_asks_for_something_else():
    facts = [node("a"), node("b")], [runs("r", "a", end=NOW + 50)]
    first = decide(snapshot(*facts, [HEAD]), NOW)
    other = unit("p", role(1, 8), submitted=2.0)
    gone = decide(snapshot(*facts, [other], reservations=first.reservations), NOW + 1)
    assert started(gone) == {"p"}
    smaller = dataclasses.replace(HEAD, roles=(role(1, 8),))
    changed = decide(snapshot(*facts, [smaller], reservations=first.reservations), NOW + 1)
    assert started(changed) == {"head"}


def test_a_promise_gets_earlier_when_somebody_ends_early():
    running = [runs("r", "a", end=NOW + 50), runs("s", "b", end=NOW + 70)]
    nodes = [node("a"), node("b")]
    first = decide(snapshot(nodes, running, [HEAD]), NOW)
    again = decide(snapshot(nodes, running[:1], [HEAD], reservations=first.reservations), NOW + 9)
    assert (promises(first), promises(again)) == ({"head": NOW + 70}, {"head": NOW + 50})


def test_a_promise_is_made_anew_when_its_room_is_lost():
    running = [runs("r", "a", end=NOW + 50), runs("s", "c", end=NOW + 70)]
    nodes = [node("a"), node("b"), node("c")]
    first = decide(snapshot(nodes, running, [HEAD]), NOW)
    lost = [dataclasses.replace(nodes[0], ready=False), *nodes[1:]]
    again = decide(snapshot(lost, running, [HEAD], reservations=first.reservations), NOW + 1)
    assert promises(again) == {"head": NOW + 70}


def test_guests_in_promised_room_are_stopped_when_it_is_due():
    policy = Policy(unknown_runtime="preemptible")
    running = [runs("r", "a", end=NOW + 50)]
    guest = unit("guest", role(1, 8), submitted=1.0)
    nodes = [node("a"), node("b")]
    first = decide(snapshot(nodes, running, [HEAD, guest]), NOW, policy)
    assert started(first) == {"guest"}
    running.append(Running(guest, first.placements[0].seats, NOW))
    later = snapshot(nodes, running, [HEAD], reservations=first.reservations)
    second = decide(later, NOW + 1, policy)
    assert promises(second) == {"head": NOW + 50}
    assert not second.evictions
    due = decide(
        snapshot(nodes, running[1:], [HEAD], reservations=second.reservations), NOW + 50, policy
    )
    assert [(e.unit, e.gainer) for e in due.evictions] == [("guest", "head")]
    assert [n.unit for n in due.nominations] == ["head"]


def test_promises_made_out_of_turn_still_see_each_other_in_the_next_decision():
    """`small` starts before the head and runs on beside it: nobody gets its part twice."""
    head = unit("head", role(1, 12), expected=10.0)
    small = unit("small", role(1, 5), expected=40.0, submitted=1.0)
    late = unit("late", role(1, 5), expected=40.0, submitted=2.0)
    nodes = [node("a", cpu=17)]
    running = [runs("r", "a", cpu=6, end=NOW + 30), runs("s", "a", cpu=7, end=NOW + 20)]
    facts = nodes, running, [head, small, late], [Queue("q", reserve=2)]
    first = decide(snapshot(*facts), NOW)
    assert promises(first) == {"head": NOW + 30, "small": NOW + 20}
    at_20 = nodes, running[:1], [head, small, late], [Queue("q", reserve=2)]
    second = decide(snapshot(*at_20, first.reservations), NOW + 20)
    assert started(second) == {"small"}
    assert promises(second)["head"] == NOW + 30


def test_a_due_promise_is_not_lost_to_who_stands_earlier_in_the_tree():
    queues = [Queue("q"), Queue("other")]
    early = unit("early", role(1, 8), queue="other", submitted=2.0, expected=5.0)
    nodes = [node("a"), node("b")]
    promise = Reservation("head", NOW, (Seat("w", 0, "a"), Seat("w", 1, "b")))
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
def demand(draw) -> list[tuple[float, float, Unit]]:
    """(arrives, really runs, unit); who says how long it runs says the truth or more."""
    found = []
    for i in range(draw(st.integers(3, 14))):
        lasts = draw(st.integers(1, 60))
        says = draw(st.sampled_from([lasts, lasts, lasts, lasts + 7, 2 * lasts, None]))
        topology = draw(st.sampled_from([None, None, Topology("rack"), Topology("rack", True)]))
        arrives = float(draw(st.integers(0, 40)))
        what = Unit(
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
"""Believes what units say and guesses nothing about the others."""


class World:
    """Lets time pass: units arrive, are placed by `decide`, and end."""

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
        events: list[state.Event] = []
        for key in sorted(key for key, end in self.ends.items() if end <= self.now):
            events.append(state.Gone(key))
            del self.ends[key]
        while self.coming and self.coming[0][0] <= self.now:
            events.append(state.Waits(self.coming.pop(0)[2]))
        state.apply(self.snapshot, events)
        decision = decide(self.snapshot, self.now, HONEST)
        assert decision == decide(state.build(self.snapshot.facts()), self.now, HONEST)
        self.check(decision)
        for placement in decision.placements:
            what = self.snapshot.waiting[placement.unit]
            end = None if what.expected is None else self.now + what.expected
            holds = state.Holds(Running(what, placement.seats, self.now, end))
            state.apply(self.snapshot, [holds])
            self.ends[what.key] = self.now + self.lasts[what.key]
        state.apply(self.snapshot, [state.Promised(decision.reservations)])
        cluster = self.snapshot.cluster
        assert min(cluster.free.min(), cluster.bank.compute.min(initial=0)) >= 0
        assert cluster.bank.memory.min(initial=0) >= 0

    def check(self, decision) -> None:
        placed = started(decision)
        for key, start in self.promised.items():
            assert self.now <= start or key in placed, f"{key} was promised {start}"
        self.promised = {k: s for k, s in self.promised.items() if k not in placed}
        for key, start in promises(decision).items():
            assert start <= self.promised.get(key, float("inf")), f"{key} was promised earlier"
            self.promised[key] = start
        assert self.promised.keys() == promises(decision).keys(), "a promise was dropped"


@settings(deadline=None, max_examples=150)
@given(nodes=small_clusters(), load=demand(), reserve_each=st.integers(1, 4))
def test_a_promise_is_kept_and_never_gets_later_when_units_end_in_time(nodes, load, reserve_each):
    World(nodes, [Queue("q0", reserve=reserve_each), Queue("q1")], load).run()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 4))))
def test_rows_stay_sorted_however_they_come_and_go(steps):
    """(unit, end, rows): a unit that comes again comes with other rows."""
    table, kept = releases.Table(1), {}
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


def test_two_promises_never_claim_the_same_port_of_a_node():
    heads = [
        unit(f"h{i}", role(1, 1, ports=(80,)), expected=10.0, submitted=float(i)) for i in range(3)
    ]
    holder = Running(unit("r", role(1, 1, ports=(80,))), (Seat("w", 0, "a"),), 0.0, NOW + 50)
    decision = decide(snapshot([node("a")], [holder], heads, [Queue("q", reserve=3)]), NOW)
    assert promises(decision) == {"h0": NOW + 50, "h1": NOW + 60, "h2": NOW + 70}
    again = snapshot([node("a")], [holder], heads, [Queue("q", reserve=3)], decision.reservations)
    assert promises(decide(again, NOW + 1)) == promises(decision)


def test_a_state_that_was_saved_counts_as_if_the_unit_had_been_told_anew():
    held = runs("r", "a", end=NOW + 50)
    again = dataclasses.replace(held, checkpoint_at=NOW - 5)
    waiting = [unit("high", role(1, 8), priority=90)]
    saved = state.apply(snapshot([node("a")], [held], waiting), [state.Saved("r", NOW - 5)])
    told = state.apply(snapshot([node("a")], [held], waiting), [state.Holds(again)])
    assert saved.facts() == told.facts()
    assert decide(saved, NOW) == decide(told, NOW)
    columns = [each.roster.columns("q", len(each.cluster.resources)) for each in (saved, told)]
    assert columns[0].since.tolist() == columns[1].since.tolist() == [NOW - 5]
    state.apply(saved, [state.Saved("nobody", NOW)])


def test_ranks_that_change_with_age_are_looked_at_again():
    running = [runs("r", "a", started=NOW - 900)]
    waiting = [unit("head", role(1, 8))]
    queues = [Queue("q", order="attained")]
    decision = decide(snapshot([node("a")], running, waiting, queues), NOW)
    assert decision.wake_at == NOW + 300, "it will have run for 1200 s"
    just = decide(snapshot([node("a")], [runs("r", "a", started=NOW - 500)], waiting, queues), NOW)
    assert just.wake_at == NOW + 100, "until then it is left alone"
    assert decide(snapshot([node("a")], running, waiting), NOW).wake_at is None


def test_what_is_learned_about_others_tells_when_a_silent_unit_ends():
    class Told(predict.History):
        def at(self, now):
            return self

        def expected(self, what):
            return 70.0 if what.kin == "known" else None

        def left(self, what, attained):
            return 70.0 - attained if what.kin == "known" else None

        def index(self, what, attained):
            return attained

    running = [runs("r", "a", kin="known", started=NOW - 20), runs("s", "c", kin="other")]
    passer = unit("p", role(1, 8), submitted=1.0, kin="known")
    facts = Facts(
        (node("a"), node("b"), node("c")), DEFAULT, tuple(running), (HEAD, passer), levels=("rack",)
    )
    decision = decide(state.build(facts, Told()), NOW)
    assert promises(decision) == {"head": NOW + 50}
    assert not started(decision), "it will probably run for 70 s"
    blind = decide(state.build(facts, Told()), NOW, Policy(unknown_runtime="never"))
    assert not promises(blind)
