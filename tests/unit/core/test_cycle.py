"""The cycle: promises that are kept or void, orders, bounds of the work, and input that is bad."""

from __future__ import annotations

import dataclasses
import gc
import math
import weakref

import pytest

from windlass.core import cycle, facts_check, predict, state
from windlass.core.facts import (
    Affinity,
    Device,
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Nomination,
    Policy,
    Profile,
    Queue,
    Requirement,
    Reservation,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
)
from windlass.kinds.reasons import Reason
from windlass.sim import synthetic

NOW = 1000.0


def node(name: str, cpu: int = 4, gpus: int = 0, **more: object) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", memory=1000) for i in range(gpus))
    return Node(name, {"cpu": cpu * 1000}, devices, **more)  # type: ignore[arg-type]


def unit(key: str, members: int = 1, cpu: int = 1, **more: object) -> Unit:
    role = Role("w", members, int(more.pop("most", members)), {"cpu": cpu * 1000})  # type: ignore[call-overload]
    return Unit(key, str(more.pop("queue", "q")), (role,), **more)  # type: ignore[arg-type]


def seats(*names: str) -> tuple[Seat, ...]:
    return tuple(Seat("w", i, name) for i, name in enumerate(names))


def decided(facts: Facts, policy: Policy = Policy()) -> cycle.Decision:  # noqa: B008
    return cycle.decide(state.build(facts), NOW, policy)


def started(decision: cycle.Decision) -> list[str]:
    return [placement.unit for placement in decision.placements]


# --- promises -----------------------------------------------------------------------------------

PROMISED = (Nomination("me", seats("n0")),)


def test_nominated_room_is_held_until_it_is_free_and_then_taken() -> None:
    leaving = Running(unit("old", cpu=4), seats("n0"), 0.0, leaving=(("w", 0),))
    facts = Facts(
        (node("n0"),), (Queue("q"),), (leaving,), (unit("me", cpu=4), unit("x")), PROMISED
    )
    first = decided(facts)
    assert (started(first), first.nominations) == ([], PROMISED)
    assert started(decided(dataclasses.replace(facts, running=()))) == ["me"]


@pytest.mark.parametrize(
    "nodes",
    [(node("n1"),), (node("n0", ready=False), node("n1")), (node("n0", ready_in=9.0), node("n1"))],
    ids=["node-gone", "node-closed", "node-not-there"],
)
def test_a_promise_whose_place_is_gone_is_void(nodes: tuple[Node, ...]) -> None:
    facts = Facts(nodes, (Queue("q"),), waiting=(unit("me"),), nominations=PROMISED)
    decision = decided(facts)
    assert [seat.node for p in decision.placements for seat in p.seats] == ["n1"]
    assert decision.nominations == ()


def test_a_promise_to_somebody_who_went_away_holds_nothing() -> None:
    facts = Facts((node("n0"),), (Queue("q"),), waiting=(unit("x", 4),), nominations=PROMISED)
    assert started(decided(facts)) == ["x"]


@pytest.mark.parametrize(
    "event",
    [state.Holds(Running(unit("me"), seats("n0"), NOW)), state.Gone("me")],
    ids=["starts", "goes"],
)
def test_held_room_is_forgotten_with_a_start_or_an_end(event: state.Event) -> None:
    """Else a unit that waits again later would find room held for it."""
    facts = Facts((node("n0"),), (Queue("q"),), waiting=(unit("me"),), nominations=PROMISED)
    snapshot = state.apply(state.build(facts), [event, state.Waits(unit("me", cpu=2))])
    assert snapshot.nominations == {}


def test_a_unit_that_is_told_of_twice_is_demand_once() -> None:
    class Counts:
        seen = 0

        def observe(self, cluster, shape, members):
            self.seen += members

    snapshot = state.build(Facts((node("n0"),), (Queue("q"),)))
    snapshot.history.demand = counts = Counts()  # type: ignore[assignment]
    state.apply(snapshot, [state.Waits(unit("me", 3))] * 2)
    state.apply(snapshot, [state.Holds(Running(unit("me", 3), seats("n0", "n0", "n0"), NOW))])
    state.apply(snapshot, [state.Waits(unit("me", 3))])
    assert counts.seen == 3


def test_a_promise_for_another_wish_is_void() -> None:
    facts = Facts((node("n0"),), (Queue("q"),), waiting=(unit("me", 2),), nominations=PROMISED)
    assert [len(p.seats) for p in decided(facts).placements] == [2]


def test_promised_devices_are_not_free_while_they_are_cut_otherwise() -> None:
    """The compute would suffice, but a device is in one ratio at a time."""
    device = Device("g0", "gpu", forms=frozenset(("ratio",)))
    old_role = Role("w", 1, 1, {}, (DeviceRequest("gpu", ratio=4),))
    new_role = Role("w", 1, 1, {}, (DeviceRequest("gpu", ratio=2),))
    old = Running(
        Unit("old", "q", (old_role,)),
        (Seat("w", 0, "n", (Grant("g0", "ratio", 250, ratio=4),)),),
        0.0, leaving=(("w", 0),),
    )  # fmt: skip
    promise = (Nomination("me", (Seat("w", 0, "n", (Grant("g0", "ratio", 500, ratio=2),)),)),)
    me = Unit("me", "q", (new_role,))
    facts = Facts((Node("n", {}, (device,)),), (Queue("q"),), (old,), (me,), promise)
    assert started(decided(facts)) == []
    assert started(decided(dataclasses.replace(facts, running=()))) == ["me"]


# --- elastic units and repair stay in bounds ----------------------------------------------------


def test_an_elastic_unit_grows_inside_the_domain_it_requires() -> None:
    nodes = tuple(node(f"n{i}", cpu=2, path=(f"r{i // 2}",)) for i in range(4))
    me = unit("me", 2, cpu=2, most=4, topology=Topology("rack", required=True))
    other = Running(unit("x", 1, cpu=2), seats("n1"), 0.0)
    facts = Facts(nodes, (Queue("q"),), (other,), (me,), levels=("rack",))
    (placement,) = decided(facts).placements
    assert {seat.node for seat in placement.seats} == {"n2", "n3"}


def test_a_gang_that_cannot_be_completed_does_not_grow_member_by_member() -> None:
    hurt = Running(unit("me", 5, cpu=2, most=6), seats("n0"), 0.0)
    facts = Facts((node("n0"), node("n1")), (Queue("q"),), (hurt,))
    assert decided(facts).placements == ()


def test_repair_stays_on_the_node_that_is_required() -> None:
    me = unit("me", 3, topology=Topology("node", required=True))
    facts = Facts((node("n0"), node("n1", 2)), (Queue("q"),), (Running(me, seats("n1"), 0.0),))
    assert decided(facts).placements == ()
    roomy = dataclasses.replace(facts, nodes=(node("n0"), node("n1", 3)))
    (placement,) = decided(roomy).placements
    assert {seat.node for seat in placement.seats} == {"n1"}


def test_repair_stays_near_the_rest_where_that_is_preferred_and_possible() -> None:
    nodes = tuple(node(f"n{i}", cpu=1, path=(f"r{i // 2}",)) for i in range(4))
    me = Running(unit("me", 2, topology=Topology("rack")), seats("n3"), 0.0)
    facts = Facts(nodes, (Queue("q"),), (me,), levels=("rack",))
    (placement,) = decided(facts).placements
    assert [seat.node for seat in placement.seats] == ["n2"]
    full = dataclasses.replace(facts, nodes=(*nodes[:2], node("n2", cpu=0, path=("r1",)), nodes[3]))
    (placement,) = decided(full).placements
    assert [seat.node for seat in placement.seats] == ["n0"]


def test_repair_does_not_pass_a_limit() -> None:
    me = Running(unit("me", 3), seats("n0", "n0"), 0.0)
    facts = Facts((node("n0"),), (Queue("q", limit={"cpu": 2000}),), (me,))
    assert decided(facts).placements == ()


def test_repair_takes_a_model_that_its_queue_may_use() -> None:
    """Any model would do; of the one with most room its queue may use none."""
    pair = Role("w", 2, 2, {}, (DeviceRequest("gpu"),))
    hurt = Running(Unit("me", "q", (pair,)), (Seat("w", 0, "old", (Grant("g0"),)),), 0.0)
    new, old = (
        Node(name, {}, tuple(Device(f"g{i}", "gpu", name) for i in range(count)))
        for name, count in (("new", 2), ("old", 2))
    )
    queue = Queue("q", limit={"gpu/new": 0})
    (placement,) = decided(Facts((new, old), (queue,), (hurt,))).placements
    assert [(seat.index, seat.node) for seat in placement.seats] == [(1, "old")]
    full = dataclasses.replace(old, devices=old.devices[:1])
    assert decided(Facts((new, full), (queue,), (hurt,))).placements == ()


def test_members_placed_in_one_decision_keep_those_of_the_same_decision_away() -> None:
    apart = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)
    plain = Role("w", 1, 1, {"cpu": 1000}, labels=(("app", "x"),))
    shy = Role("w", 1, 1, {"cpu": 1000}, affinities=(apart,))
    nodes = tuple(node(f"n{i}", labels={"host": f"n{i}"}) for i in range(2))
    waiting = (Unit("plain", "q", (plain,), submitted=1.0), Unit("shy", "q", (shy,), submitted=2.0))
    placed = decided(Facts(nodes, (Queue("q"),), waiting=waiting)).placements
    assert len({seat.node for p in placed for seat in p.seats}) == 2


def test_several_roles_fit_on_the_one_node_they_require() -> None:
    roles = (Role("a", 1, 1, {"cpu": 1000}), Role("b", 2, 2, {"cpu": 1000}))
    me = Unit("me", "q", roles, topology=Topology("node", required=True))
    (placement,) = decided(
        Facts((node("n0", 2), node("n1")), (Queue("q"),), waiting=(me,))
    ).placements
    assert {seat.node for seat in placement.seats} == {"n1"}


# --- bounded work -------------------------------------------------------------------------------


def test_what_was_not_looked_at_is_unresolved_never_impossible() -> None:
    waiting = tuple(unit(f"u{i}", submitted=float(i)) for i in range(5))
    facts = Facts(tuple(node(f"n{i}") for i in range(10)), (Queue("q"),), waiting=waiting)
    decision = decided(facts, Policy(operations=15, grow=False))
    assert 0 < len(decision.placements) < 5
    assert {(v.reason, v.resolved) for v in decision.verdicts} == {
        (Reason.WAITING_FOR_CAPACITY, False)
    }


# --- events -------------------------------------------------------------------------------------


def test_growth_ends_with_the_work_that_a_decision_may_take() -> None:
    """What is left is grown into by the next decision."""
    facts = Facts((node("n0", cpu=64),), (Queue("q"),), waiting=(unit("me", most=60),))
    some = decided(facts, Policy(operations=20))
    assert 1 < len(some.placements[0].seats) < 60
    assert len(decided(facts).placements[0].seats) == 60


def test_a_node_may_start_to_count_volumes() -> None:
    snapshot = state.build(Facts((node("n"),), (Queue("q"),)))
    state.apply(snapshot, [state.NodePut(node("n", attach_limits={"disk": 1}))])
    role = Role("w", 2, 2, {}, attach=(("disk", 1),))
    state.apply(snapshot, [state.Waits(Unit("me", "q", (role,)))])
    assert cycle.decide(snapshot, NOW).verdicts[0].reason is Reason.IMPOSSIBLE


def test_a_node_that_arrives_adds_to_what_guarantees_are_measured_by() -> None:
    facts = Facts((node("n"), node("m", ready_in=60.0)), (Queue("q", guarantee={"cpu": 8000}),))
    snapshot = state.build(facts)
    assert snapshot.tree.guarantee["q"] == {"cpu": 4000}
    state.apply(snapshot, [state.NodePut(node("m"))])
    assert snapshot.tree.guarantee["q"] == {"cpu": 8000}


def test_a_device_that_was_set_up_anew_under_a_partition_is_counted_as_taken() -> None:
    small = Device("g0", "gpu", slices=2, profiles=(Profile("half", 1, (0, 1)),),
                   forms=frozenset(("partition",)))  # fmt: skip
    held = Running(
        Unit("old", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", profile="third"),)),)),
        (Seat("w", 0, "n", (Grant("g0", "partition", 0, profile="third"),)),), 0.0,
    )  # fmt: skip
    me = Unit("me", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", profile="half"),)),))
    assert started(decided(Facts((Node("n", {}, (small,)),), (Queue("q"),), (held,), (me,)))) == []


# --- what one is told holds only for those of whom it is true -------------------------------------


def several(key: str, workers: int, helpers: int) -> Unit:
    roles = (Role("w", workers, workers, {"gpu": 1}), Role("h", helpers, helpers, {"cpu": 3000}))
    return Unit(key, "q", roles)


def test_as_many_members_in_other_roles_may_fit() -> None:
    """One helper fits, so that two do not; as many members with one helper do."""
    host = Node("n", {"cpu": 4000, "gpu": 4})
    facts = Facts((host,), (Queue("q"),), waiting=(several("a", 1, 2), several("b", 2, 1)))
    assert started(decided(facts)) == ["b"]


def test_who_minds_its_neighbours_does_not_speak_for_who_does_not() -> None:
    apart = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)
    shy = Role("w", 2, 2, {"cpu": 1000}, labels=(("app", "x"),), affinities=(apart,))
    plain = Role("w", 2, 2, {"cpu": 1000})
    host = node("n", labels={"host": "n"})
    facts = Facts(
        (host,), (Queue("q"),), waiting=(Unit("a", "q", (shy,)), Unit("b", "q", (plain,)))
    )
    assert started(decided(facts)) == ["b"]


def test_others_are_stopped_for_a_small_unit_though_in_vain_for_a_large_one() -> None:
    low = Running(unit("low", cpu=2, priority=10), seats("n0"), 0.0)
    firm = Running(unit("firm", cpu=2, priority=90, preemptible=False), seats("n1"), 0.0)
    large, small = unit("large", 2, cpu=2, priority=50), unit("small", cpu=2, priority=50)
    nodes = (node("n0", cpu=2), node("n1", cpu=2))
    found = decided(
        Facts(nodes, (Queue("q", guarantee={"cpu": 2000}),), (low, firm), (large, small))
    )
    assert [(each.unit, each.gainer) for each in found.evictions] == [("low", "small")]


# --- bad input ----------------------------------------------------------------------------------

BAD = [
    (Facts((node("n", cpu=-1),)), "node n: cpu is -1000"),
    (Facts((Node("n", {"cpu": math.nan}),)), "node n: cpu is nan"),  # type: ignore[dict-item]
    (Facts((Node("n", {"cpu": 1.5}),)), "node n: cpu is 1.5"),  # type: ignore[dict-item]
    (Facts((node("n"), node("n"))), "node 'n' is there twice"),
    (Facts((Node("n", {}, (Device("g", "gpu"),) * 2),)), "device 'g' is there twice"),
    (Facts((Node("n", {}, (Device("g", "gpu", compute=0),)),)), "device g has no compute"),
    (Facts((Node("n", {}, (Device("g", "gpu", memory=-5),)),)), "memory is -5"),
    (Facts((Node("n", {}, (Device("g", "gpu", slices=1, profiles=(Profile("p", 2, (0,)),)),)),)),
     "profile p does not fit"),
    (Facts(queues=(Queue("q"), Queue("q"))), "queue 'q' is there twice"),
    (Facts(queues=(Queue("q", weight=0),)), "queue q: weight is 0"),
    (Facts(queues=(Queue("q", limit={"gpu": -1}),)), "queue q: gpu is -1"),
    (Facts(queues=(Queue("q", half_life=math.nan),)), "queue q: half_life is nan"),
    (Facts(waiting=(unit("u"), unit("u"))), "unit 'u' is there twice"),
    (Facts(waiting=(unit("u", -1),)), "role w wants -1 to -1 members"),
    (Facts(waiting=(unit("u", cpu=-1),)), "unit u: cpu is -1000"),
    (Facts(waiting=(unit("u", submitted=math.inf),)), "submitted is inf"),
    (Facts(waiting=(unit("u", expected=math.nan),)), "expected is nan"),
    (Facts(waiting=(Unit("u", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", 0),)),)),)),
     "cannot be 0"),
    (Facts((Node("n", {}, price=-1),)), "node n: price is -1"),
    (Facts((Node("n", {}, ready_in=math.nan),)), "node n: ready_in is nan"),
    (Facts((Node("n", {"cpu": 1 << 60}),)), "node n: cpu is 1152921504606846976"),
    (Facts((Node("n", {}, (Device("g", "gpu", isolation="firm"),)),)), "no isolation 'firm'"),  # type: ignore[arg-type]
    (Facts(levels=("rack", "rack")), "level 'rack' is there twice"),
    (Facts(queues=(Queue("q", order="best"),)), "queue q: there is no order 'best'"),  # type: ignore[arg-type]
    (Facts(queues=(Queue("q", min_runtime=math.inf),)), "queue q: min_runtime is inf"),
    (Facts(waiting=(unit("u", priority=1.5),)), "unit u: priority is 1.5"),
    (Facts(waiting=(unit("u", pack="tight"),)), "unit u: there is no way to pack 'tight'"),
    (Facts(running=(Running(unit("u"), (), math.nan),)), "unit u: started is nan"),
    (Facts(running=(Running(unit("u"), (), 0.0, math.inf),)), "unit u: expected_end is inf"),
    (Facts(running=(Running(unit("u"), (Seat("w", 0, "n"),) * 2, 0.0),)),
     "unit u: member 'w/0' is there twice"),
    (Facts(running=(Running(unit("u"), (Seat("w", 0, "n", (Grant("g", memory=-1),)),), 0.0),)),
     "unit u: device g: memory is -1"),
    (Facts(reservations=(Reservation("u", math.nan, ()),)), "reservation of u: start is nan"),
]  # fmt: skip


@pytest.mark.parametrize(("facts", "says"), BAD)
def test_facts_that_contradict_themselves_are_refused(facts: Facts, says: str) -> None:
    with pytest.raises(facts_check.BadFacts, match=says):
        state.build(facts)


@pytest.mark.parametrize(
    "event",
    [
        state.NodePut(node("n", cpu=-1)),
        state.QueuePut(Queue("q", weight=0)),
        state.Waits(unit("u", cpu=-1)),
        state.Holds(Running(unit("u", cpu=-1), (), 0.0)),
    ],
)
def test_events_that_contradict_themselves_are_refused_and_change_nothing(
    event: state.Event,
) -> None:
    snapshot = state.build(Facts((node("n"),), (Queue("q"),), waiting=(unit("u"),)))
    before = snapshot.facts()
    with pytest.raises(facts_check.BadFacts):
        state.apply(snapshot, [event])
    assert snapshot.facts() == before


@pytest.mark.parametrize(
    ("queues", "says"),
    [
        ((Queue("q", "r"), Queue("r", "q")), "queue q is below itself: q -> r -> q"),
        ((Queue("q", "nowhere"),), "queue q names the parent nowhere, which does not exist"),
        ((Queue("q", "q"),), "queue q is below itself: q -> q"),
        ((), "queue q does not exist"),
    ],
)
def test_a_queue_that_cannot_be_used_gives_a_verdict(queues: tuple[Queue, ...], says: str) -> None:
    (verdict,) = decided(Facts((node("n"),), queues, waiting=(unit("u"),))).verdicts
    assert verdict.reason is Reason.NO_SUCH_QUEUE
    assert says in verdict.message


def test_nothing_at_all_is_decided_about_nothing() -> None:
    assert decided(Facts()) == cycle.Decision()


def test_fragmentation_goes_where_the_learned_demand_says():
    class TheLast:
        def observe(self, cluster, shape, members):
            pass

        def is_informed(self, cluster, shape):
            return True

        def assign(self, cluster, shape, nodes, room, count):
            return [(int(nodes[-1]), count, ())]

    history = predict.History()
    history.demand = TheLast()
    role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu"),))
    wish = Unit("u", "q", (role,), pack="fragmentation")
    facts = Facts((node("a", gpus=2), node("b", gpus=2)), (Queue("q"),), waiting=(wish,))
    (placement,) = cycle.decide(state.build(facts, history), NOW).placements
    assert [seat.node for seat in placement.seats] == ["b"]


# --- users take turns ---------------------------------------------------------------------------


def by_user(user: str, number: int, at: float, **more: object) -> Unit:
    return unit(f"{user}{number}", user=user, submitted=at, **more)


@pytest.mark.parametrize("queue", [Queue("q", order="fair"), Queue("q", user_fair=True)])
def test_a_burst_of_one_user_does_not_shut_out_another(queue: Queue) -> None:
    waiting = tuple(by_user("ann", n, n) for n in range(6))
    waiting += tuple(by_user("bob", n, 10 + n) for n in range(2))
    placed = started(decided(Facts((node("n"),), (queue,), waiting=waiting)))
    assert placed == ["ann0", "bob0", "ann1", "bob1"]


def test_what_a_user_holds_already_and_how_large_units_are_count() -> None:
    fair = (Queue("q", order="fair"),)
    holds = Running(by_user("ann", 9, 0), seats("n"), 0.0)
    waiting = (by_user("ann", 1, 1), by_user("bob", 1, 2), by_user("bob", 2, 3))
    facts = Facts((node("n", cpu=3),), fair, running=(holds,), waiting=waiting)
    assert started(decided(facts)) == ["bob1", "ann1"]
    large = by_user("ann", 1, 0, cpu=2)
    facts = Facts((node("n"),), fair, waiting=(large, *waiting[1:], by_user("ann", 2, 4)))
    assert started(decided(facts)) == ["ann1", "bob1", "bob2"]


def test_priority_comes_before_turns_and_lifo_within_them() -> None:
    urgent = tuple(by_user("ann", n, n, priority=90) for n in range(2))
    plain = (by_user("ann", 5, 5), by_user("bob", 1, 1), by_user("bob", 2, 2))
    queue = Queue("q", order="lifo", user_fair=True)
    placed = started(decided(Facts((node("n"),), (queue,), waiting=(*plain, *urgent))))
    assert placed == ["ann1", "ann0", "bob2", "bob1"]


def test_a_decision_leaves_nothing_for_the_collector_and_leaves_it_as_it_was() -> None:
    """Its clusters are large: they go once it is made, not when garbage is looked for."""
    facts = synthetic.busy_facts(4, 60, queue_count=3)
    snapshot = state.build(facts)
    for event in cycle.decide(snapshot, 1.0).placements:
        unit = snapshot.waiting[event.unit]
        state.apply(snapshot, [state.Holds(Running(unit, event.seats, 1.0))])
    gc.disable()
    try:
        made = cycle.run(snapshot, 2.0, Policy())
        assert made.decision().verdicts
        assert not gc.isenabled()
        gone = weakref.ref(made)
        del made
        assert gone() is None
    finally:
        gc.enable()
    cycle.decide(snapshot, 3.0)
    assert gc.isenabled()
