"""The cycle: reservations that are kept or void, orders, bounds of the work, and input that is
bad."""

from __future__ import annotations

import dataclasses
import gc
import math
import weakref

import pytest

from windlass.core.cycle import cycle
from windlass.core.model import validation
from windlass.core.model.types import (
    Affinity,
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Nomination,
    PodAssignment,
    Policy,
    Profile,
    Queue,
    Requirement,
    ReservationRecord,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.prediction import predictor
from windlass.core.snapshot.snapshot import (
    Event,
    NodePut,
    QueuePut,
    RunningPut,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.kinds.reasons import Reason
from windlass.sim.inputs import synthetic

NOW = 1000.0


def node(name: str, cpu: int = 4, gpus: int = 0, **more: object) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", memory=1000) for i in range(gpus))
    return Node(name, {"cpu": cpu * 1000}, devices, **more)


def workload(key: str, members: int = 1, cpu: int = 1, **more: object) -> Workload:
    role = Role("w", members, int(more.pop("most", members)), {"cpu": cpu * 1000})
    return Workload(key, str(more.pop("queue", "q")), (role,), **more)


def pods(*names: str) -> tuple[PodAssignment, ...]:
    return tuple(PodAssignment("w", i, name) for i, name in enumerate(names))


def decided(facts: ClusterFacts, policy: Policy = Policy()) -> cycle.Decision:  # noqa: B008
    return cycle.decide(build(facts), NOW, policy)


def started(decision: cycle.Decision) -> list[str]:
    return [placement.workload for placement in decision.placements]


# --- reservations -------------------------------------------------------------------------------

PROMISED = (Nomination("me", pods("n0")),)


def test_nominated_capacity_is_held_until_it_is_free_and_then_taken() -> None:
    leaving = Running(workload("old", cpu=4), pods("n0"), 0.0, leaving=(("w", 0),))
    facts = ClusterFacts(
        (node("n0"),), (Queue("q"),), (leaving,), (workload("me", cpu=4), workload("x")), PROMISED
    )
    first = decided(facts)
    assert (started(first), first.nominations) == ([], PROMISED)
    assert started(decided(dataclasses.replace(facts, running=()))) == ["me"]


@pytest.mark.parametrize(
    "nodes",
    [(node("n1"),), (node("n0", ready=False), node("n1")), (node("n0", ready_in=9.0), node("n1"))],
    ids=["node-gone", "node-closed", "node-not-there"],
)
def test_a_reservation_whose_node_is_gone_is_void(nodes: tuple[Node, ...]) -> None:
    facts = ClusterFacts(nodes, (Queue("q"),), waiting=(workload("me"),), nominations=PROMISED)
    decision = decided(facts)
    assert [pod.node for p in decision.placements for pod in p.pods] == ["n1"]
    assert decision.nominations == ()


def test_a_reservation_of_a_deleted_workload_holds_nothing() -> None:
    facts = ClusterFacts(
        (node("n0"),), (Queue("q"),), waiting=(workload("x", 4),), nominations=PROMISED
    )
    assert started(decided(facts)) == ["x"]


@pytest.mark.parametrize(
    "event",
    [RunningPut(Running(workload("me"), pods("n0"), NOW)), WorkloadGone("me")],
    ids=["starts", "goes"],
)
def test_held_capacity_is_forgotten_with_a_start_or_an_end(event: Event) -> None:
    """Else a workload that waits again later would find capacity held for it."""
    facts = ClusterFacts(
        (node("n0"),), (Queue("q"),), waiting=(workload("me"),), nominations=PROMISED
    )
    snapshot = apply(build(facts), [event, WaitingPut(workload("me", cpu=2))])
    assert snapshot.nominations == {}


def test_a_workload_that_is_added_twice_is_demand_once() -> None:
    class Counts:
        seen = 0

        def observe(self, cluster, shape, members):
            self.seen += members

    snapshot = build(ClusterFacts((node("n0"),), (Queue("q"),)))
    snapshot.history.demand = counts = Counts()
    apply(snapshot, [WaitingPut(workload("me", 3))] * 2)
    apply(snapshot, [RunningPut(Running(workload("me", 3), pods("n0", "n0", "n0"), NOW))])
    apply(snapshot, [WaitingPut(workload("me", 3))])
    assert counts.seen == 3


def test_a_reservation_for_another_request_is_void() -> None:
    facts = ClusterFacts(
        (node("n0"),), (Queue("q"),), waiting=(workload("me", 2),), nominations=PROMISED
    )
    assert [len(p.pods) for p in decided(facts).placements] == [2]


def test_reserved_devices_are_not_free_while_they_are_partitioned_otherwise() -> None:
    """The compute would suffice, but a device is in one ratio at a time."""
    device = Device("g0", "gpu", forms=frozenset(("ratio",)))
    old_role = Role("w", 1, 1, {}, (DeviceRequest("gpu", ratio=4),))
    new_role = Role("w", 1, 1, {}, (DeviceRequest("gpu", ratio=2),))
    old = Running(
        Workload("old", "q", (old_role,)),
        (PodAssignment("w", 0, "n", (Grant("g0", "ratio", 250, ratio=4),)),),
        0.0, leaving=(("w", 0),),
    )  # fmt: skip
    promise = (
        Nomination("me", (PodAssignment("w", 0, "n", (Grant("g0", "ratio", 500, ratio=2),)),)),
    )
    me = Workload("me", "q", (new_role,))
    facts = ClusterFacts((Node("n", {}, (device,)),), (Queue("q"),), (old,), (me,), promise)
    assert started(decided(facts)) == []
    assert started(decided(dataclasses.replace(facts, running=()))) == ["me"]


# --- elastic workloads and repair stay in bounds -------------------------------------------------


def test_an_elastic_workload_grows_inside_the_domain_it_requires() -> None:
    nodes = tuple(node(f"n{i}", cpu=2, path=(f"r{i // 2}",)) for i in range(4))
    me = workload("me", 2, cpu=2, most=4, topology=Topology("rack", required=True))
    other = Running(workload("x", 1, cpu=2), pods("n1"), 0.0)
    facts = ClusterFacts(nodes, (Queue("q"),), (other,), (me,), levels=("rack",))
    (placement,) = decided(facts).placements
    assert {pod.node for pod in placement.pods} == {"n2", "n3"}


def test_a_gang_that_cannot_be_completed_does_not_grow_member_by_member() -> None:
    hurt = Running(workload("me", 5, cpu=2, most=6), pods("n0"), 0.0)
    facts = ClusterFacts((node("n0"), node("n1")), (Queue("q"),), (hurt,))
    assert decided(facts).placements == ()


def test_repair_stays_on_the_node_that_is_required() -> None:
    me = workload("me", 3, topology=Topology("node", required=True))
    facts = ClusterFacts(
        (node("n0"), node("n1", 2)), (Queue("q"),), (Running(me, pods("n1"), 0.0),)
    )
    assert decided(facts).placements == ()
    roomy = dataclasses.replace(facts, nodes=(node("n0"), node("n1", 3)))
    (placement,) = decided(roomy).placements
    assert {pod.node for pod in placement.pods} == {"n1"}


def test_repair_stays_near_the_rest_where_that_is_preferred_and_possible() -> None:
    nodes = tuple(node(f"n{i}", cpu=1, path=(f"r{i // 2}",)) for i in range(4))
    me = Running(workload("me", 2, topology=Topology("rack")), pods("n3"), 0.0)
    facts = ClusterFacts(nodes, (Queue("q"),), (me,), levels=("rack",))
    (placement,) = decided(facts).placements
    assert [pod.node for pod in placement.pods] == ["n2"]
    full = dataclasses.replace(facts, nodes=(*nodes[:2], node("n2", cpu=0, path=("r1",)), nodes[3]))
    (placement,) = decided(full).placements
    assert [pod.node for pod in placement.pods] == ["n0"]


def test_repair_does_not_pass_a_limit() -> None:
    me = Running(workload("me", 3), pods("n0", "n0"), 0.0)
    facts = ClusterFacts((node("n0"),), (Queue("q", limit={"cpu": 2000}),), (me,))
    assert decided(facts).placements == ()


def test_repair_takes_a_model_that_its_queue_may_use() -> None:
    """Any model would do; of the one with most capacity its queue may use none."""
    pair = Role("w", 2, 2, {}, (DeviceRequest("gpu"),))
    hurt = Running(
        Workload("me", "q", (pair,)), (PodAssignment("w", 0, "old", (Grant("g0"),)),), 0.0
    )
    new, old = (
        Node(name, {}, tuple(Device(f"g{i}", "gpu", name) for i in range(count)))
        for name, count in (("new", 2), ("old", 2))
    )
    queue = Queue("q", limit={"gpu/new": 0})
    (placement,) = decided(ClusterFacts((new, old), (queue,), (hurt,))).placements
    assert [(pod.index, pod.node) for pod in placement.pods] == [(1, "old")]
    full = dataclasses.replace(old, devices=old.devices[:1])
    assert decided(ClusterFacts((new, full), (queue,), (hurt,))).placements == ()


def test_members_placed_in_one_decision_keep_those_of_the_same_decision_away() -> None:
    apart = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)
    plain = Role("w", 1, 1, {"cpu": 1000}, labels=(("app", "x"),))
    shy = Role("w", 1, 1, {"cpu": 1000}, affinities=(apart,))
    nodes = tuple(node(f"n{i}", labels={"host": f"n{i}"}) for i in range(2))
    waiting = (
        Workload("plain", "q", (plain,), submitted=1.0),
        Workload("shy", "q", (shy,), submitted=2.0),
    )
    placed = decided(ClusterFacts(nodes, (Queue("q"),), waiting=waiting)).placements
    assert len({pod.node for p in placed for pod in p.pods}) == 2


def test_several_roles_fit_on_the_one_node_they_require() -> None:
    roles = (Role("a", 1, 1, {"cpu": 1000}), Role("b", 2, 2, {"cpu": 1000}))
    me = Workload("me", "q", roles, topology=Topology("node", required=True))
    (placement,) = decided(
        ClusterFacts((node("n0", 2), node("n1")), (Queue("q"),), waiting=(me,))
    ).placements
    assert {pod.node for pod in placement.pods} == {"n1"}


# --- bounded work -------------------------------------------------------------------------------


def test_what_was_not_looked_at_is_unresolved_never_impossible() -> None:
    waiting = tuple(workload(f"u{i}", submitted=float(i)) for i in range(5))
    facts = ClusterFacts(tuple(node(f"n{i}") for i in range(10)), (Queue("q"),), waiting=waiting)
    decision = decided(facts, Policy(operations=15, grow=False))
    assert 0 < len(decision.placements) < 5
    assert {(v.reason, v.resolved) for v in decision.verdicts} == {
        (Reason.WAITING_FOR_CAPACITY, False)
    }


def test_of_those_not_looked_at_one_for_which_a_reservation_finds_capacity_now_starts() -> None:
    """A reservation for this very moment would start at one that no wake-up names."""
    waiting = tuple(workload(f"u{i}", submitted=float(i)) for i in range(5))
    facts = ClusterFacts(tuple(node(f"n{i}") for i in range(10)), (Queue("q"),), waiting=waiting)
    decision = decided(facts, Policy(operations=1, grow=False))
    assert [placement.workload for placement in decision.placements] == ["u0"]
    assert decision.reservations == ()
    assert {(v.reason, v.resolved) for v in decision.verdicts} == {
        (Reason.WAITING_FOR_CAPACITY, False)
    }


# --- events -------------------------------------------------------------------------------------


def test_growth_ends_with_the_work_that_a_decision_may_take() -> None:
    """What is left is grown into by the next decision."""
    facts = ClusterFacts((node("n0", cpu=64),), (Queue("q"),), waiting=(workload("me", most=60),))
    some = decided(facts, Policy(operations=20))
    assert 1 < len(some.placements[0].pods) < 60
    assert len(decided(facts).placements[0].pods) == 60


def test_a_node_may_start_to_count_volumes() -> None:
    snapshot = build(ClusterFacts((node("n"),), (Queue("q"),)))
    apply(snapshot, [NodePut(node("n", attach_limits={"disk": 1}))])
    role = Role("w", 2, 2, {}, attach=(("disk", 1),))
    apply(snapshot, [WaitingPut(Workload("me", "q", (role,)))])
    assert cycle.decide(snapshot, NOW).verdicts[0].reason is Reason.IMPOSSIBLE


def test_a_node_that_arrives_adds_to_what_guarantees_are_measured_by() -> None:
    facts = ClusterFacts(
        (node("n"), node("m", ready_in=60.0)), (Queue("q", guarantee={"cpu": 8000}),)
    )
    snapshot = build(facts)
    assert snapshot.tree.guarantee["q"] == {"cpu": 4000}
    apply(snapshot, [NodePut(node("m"))])
    assert snapshot.tree.guarantee["q"] == {"cpu": 8000}


def test_a_device_that_was_set_up_anew_under_a_partition_is_counted_as_taken() -> None:
    small = Device("g0", "gpu", slices=2, profiles=(Profile("half", 1, (0, 1)),),
                   forms=frozenset(("partition",)))  # fmt: skip
    held = Running(
        Workload("old", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", profile="third"),)),)),
        (PodAssignment("w", 0, "n", (Grant("g0", "partition", 0, profile="third"),)),), 0.0,
    )  # fmt: skip
    me = Workload("me", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", profile="half"),)),))
    assert (
        started(decided(ClusterFacts((Node("n", {}, (small,)),), (Queue("q"),), (held,), (me,))))
        == []
    )


# --- a shared verdict holds only for its equivalence class ----------------------------------------


def several(key: str, workers: int, helpers: int) -> Workload:
    roles = (Role("w", workers, workers, {"gpu": 1}), Role("h", helpers, helpers, {"cpu": 3000}))
    return Workload(key, "q", roles)


def test_as_many_members_in_other_roles_may_fit() -> None:
    """One helper fits, so that two do not; as many pods with one helper do."""
    host = Node("n", {"cpu": 4000, "gpu": 4})
    facts = ClusterFacts((host,), (Queue("q"),), waiting=(several("a", 1, 2), several("b", 2, 1)))
    assert started(decided(facts)) == ["b"]


def test_a_verdict_on_a_workload_with_terms_does_not_apply_to_one_without() -> None:
    apart = Affinity("host", (Requirement("app", "In", ("x",)),), anti=True)
    shy = Role("w", 2, 2, {"cpu": 1000}, labels=(("app", "x"),), affinities=(apart,))
    plain = Role("w", 2, 2, {"cpu": 1000})
    host = node("n", labels={"host": "n"})
    facts = ClusterFacts(
        (host,), (Queue("q"),), waiting=(Workload("a", "q", (shy,)), Workload("b", "q", (plain,)))
    )
    assert started(decided(facts)) == ["b"]


def test_others_are_stopped_for_a_small_workload_though_in_vain_for_a_large_one() -> None:
    low = Running(workload("low", cpu=2, priority=10), pods("n0"), 0.0)
    firm = Running(workload("firm", cpu=2, priority=90, preemptible=False), pods("n1"), 0.0)
    large, small = workload("large", 2, cpu=2, priority=50), workload("small", cpu=2, priority=50)
    nodes = (node("n0", cpu=2), node("n1", cpu=2))
    found = decided(
        ClusterFacts(nodes, (Queue("q", guarantee={"cpu": 2000}),), (low, firm), (large, small))
    )
    assert [(each.workload, each.preemptor) for each in found.evictions] == [("low", "small")]


# --- bad input ----------------------------------------------------------------------------------

BAD = [
    (ClusterFacts((node("n", cpu=-1),)), "node n: cpu is -1000"),
    (ClusterFacts((Node("n", {"cpu": math.nan}),)), "node n: cpu is nan"),
    (ClusterFacts((Node("n", {"cpu": 1.5}),)), "node n: cpu is 1.5"),
    (ClusterFacts((node("n"), node("n"))), "node 'n' is there twice"),
    (ClusterFacts((Node("n", {}, (Device("g", "gpu"),) * 2),)), "device 'g' is there twice"),
    (ClusterFacts((Node("n", {}, (Device("g", "gpu", compute=0),)),)), "device g has no compute"),
    (ClusterFacts((Node("n", {}, (Device("g", "gpu", memory=-5),)),)), "memory is -5"),
    (
        ClusterFacts(
            (Node("n", {}, (Device("g", "gpu", slices=1, profiles=(Profile("p", 2, (0,)),)),)),)
        ),
        "profile p does not fit",
    ),
    (ClusterFacts(queues=(Queue("q"), Queue("q"))), "queue 'q' is there twice"),
    (ClusterFacts(queues=(Queue("q", weight=0),)), "queue q: weight is 0"),
    (ClusterFacts(queues=(Queue("q", limit={"gpu": -1}),)), "queue q: gpu is -1"),
    (ClusterFacts(queues=(Queue("q", half_life=math.nan),)), "queue q: half_life is nan"),
    (ClusterFacts(waiting=(workload("u"), workload("u"))), "workload 'u' is there twice"),
    (ClusterFacts(waiting=(workload("u", -1),)), "role w wants -1 to -1 pods"),
    (ClusterFacts(waiting=(workload("u", cpu=-1),)), "workload u: cpu is -1000"),
    (ClusterFacts(waiting=(workload("u", submitted=math.inf),)), "submitted is inf"),
    (ClusterFacts(waiting=(workload("u", expected=math.nan),)), "expected is nan"),
    (
        ClusterFacts(
            waiting=(Workload("u", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", 0),)),)),)
        ),
        "cannot be 0",
    ),
    (ClusterFacts((Node("n", {}, price=-1),)), "node n: price is -1"),
    (ClusterFacts((Node("n", {}, ready_in=math.nan),)), "node n: ready_in is nan"),
    (ClusterFacts((Node("n", {"cpu": 1 << 60}),)), "node n: cpu is 1152921504606846976"),
    (
        ClusterFacts((Node("n", {}, (Device("g", "gpu", isolation="firm"),)),)),
        "no isolation 'firm'",
    ),
    (ClusterFacts(levels=("rack", "rack")), "level 'rack' is there twice"),
    (ClusterFacts(queues=(Queue("q", order="best"),)), "queue q: there is no order 'best'"),
    (ClusterFacts(queues=(Queue("q", min_runtime=math.inf),)), "queue q: min_runtime is inf"),
    (ClusterFacts(waiting=(workload("u", priority=1.5),)), "workload u: priority is 1.5"),
    (
        ClusterFacts(waiting=(workload("u", pack="tight"),)),
        "workload u: there is no way to pack 'tight'",
    ),
    (ClusterFacts(running=(Running(workload("u"), (), math.nan),)), "workload u: started is nan"),
    (
        ClusterFacts(running=(Running(workload("u"), (), 0.0, math.inf),)),
        "workload u: expected_end is inf",
    ),
    (
        ClusterFacts(running=(Running(workload("u"), (PodAssignment("w", 0, "n"),) * 2, 0.0),)),
        "workload u: pod 'w/0' is there twice",
    ),
    (
        ClusterFacts(
            running=(
                Running(
                    workload("u"), (PodAssignment("w", 0, "n", (Grant("g", memory=-1),)),), 0.0
                ),
            )
        ),
        "workload u: device g: memory is -1",
    ),
    (
        ClusterFacts(reservations=(ReservationRecord("u", math.nan, ()),)),
        "reservation of u: start is nan",
    ),
]


@pytest.mark.parametrize(("facts", "says"), BAD)
def test_facts_that_contradict_themselves_are_refused(facts: ClusterFacts, says: str) -> None:
    with pytest.raises(validation.BadFacts, match=says):
        build(facts)


@pytest.mark.parametrize(
    "event",
    [
        NodePut(node("n", cpu=-1)),
        QueuePut(Queue("q", weight=0)),
        WaitingPut(workload("u", cpu=-1)),
        RunningPut(Running(workload("u", cpu=-1), (), 0.0)),
    ],
)
def test_events_that_contradict_themselves_are_refused_and_change_nothing(
    event: Event,
) -> None:
    snapshot = build(ClusterFacts((node("n"),), (Queue("q"),), waiting=(workload("u"),)))
    before = snapshot.facts()
    with pytest.raises(validation.BadFacts):
        apply(snapshot, [event])
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
    (verdict,) = decided(ClusterFacts((node("n"),), queues, waiting=(workload("u"),))).verdicts
    assert verdict.reason is Reason.NO_SUCH_QUEUE
    assert says in verdict.message


def test_nothing_at_all_is_decided_about_nothing() -> None:
    assert decided(ClusterFacts()) == cycle.Decision()


def test_fragmentation_goes_where_the_learned_demand_says():
    class TheLast:
        def observe(self, cluster, shape, members):
            pass

        def is_informed(self, cluster, shape):
            return True

        def assign(self, cluster, shape, nodes, room, count):
            return [(int(nodes[-1]), count, ())]

    history = predictor.History()
    history.demand = TheLast()
    role = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu"),))
    request = Workload("u", "q", (role,), pack="fragmentation")
    facts = ClusterFacts((node("a", gpus=2), node("b", gpus=2)), (Queue("q"),), waiting=(request,))
    (placement,) = cycle.decide(build(facts, history), NOW).placements
    assert [pod.node for pod in placement.pods] == ["b"]


# --- users take turns ---------------------------------------------------------------------------


def by_user(user: str, number: int, at: float, **more: object) -> Workload:
    return workload(f"{user}{number}", user=user, submitted=at, **more)


@pytest.mark.parametrize("queue", [Queue("q", order="fair"), Queue("q", user_fair=True)])
def test_a_burst_of_one_user_does_not_shut_out_another(queue: Queue) -> None:
    waiting = tuple(by_user("ann", n, n) for n in range(6))
    waiting += tuple(by_user("bob", n, 10 + n) for n in range(2))
    placed = started(decided(ClusterFacts((node("n"),), (queue,), waiting=waiting)))
    assert placed == ["ann0", "bob0", "ann1", "bob1"]


def test_what_a_user_holds_already_and_how_large_workloads_are_count() -> None:
    fair = (Queue("q", order="fair"),)
    holds = Running(by_user("ann", 9, 0), pods("n"), 0.0)
    waiting = (by_user("ann", 1, 1), by_user("bob", 1, 2), by_user("bob", 2, 3))
    facts = ClusterFacts((node("n", cpu=3),), fair, running=(holds,), waiting=waiting)
    assert started(decided(facts)) == ["bob1", "ann1"]
    large = by_user("ann", 1, 0, cpu=2)
    facts = ClusterFacts((node("n"),), fair, waiting=(large, *waiting[1:], by_user("ann", 2, 4)))
    assert started(decided(facts)) == ["ann1", "bob1", "bob2"]


def test_priority_comes_before_turns_and_lifo_within_them() -> None:
    urgent = tuple(by_user("ann", n, n, priority=90) for n in range(2))
    plain = (by_user("ann", 5, 5), by_user("bob", 1, 1), by_user("bob", 2, 2))
    queue = Queue("q", order="lifo", user_fair=True)
    placed = started(decided(ClusterFacts((node("n"),), (queue,), waiting=(*plain, *urgent))))
    assert placed == ["ann1", "ann0", "bob2", "bob1"]


def test_a_decision_leaves_nothing_for_the_collector_and_leaves_it_as_it_was() -> None:
    """Its clusters are large: they go once it is made, not when garbage is looked for."""
    facts = synthetic.busy_facts(4, 60, queue_count=3)
    snapshot = build(facts)
    for event in cycle.decide(snapshot, 1.0).placements:
        workload = snapshot.waiting[event.workload]
        apply(snapshot, [RunningPut(Running(workload, event.pods, 1.0))])
    gc.disable()
    try:
        made = cycle.run(snapshot, 2.0, Policy())
        assert made.decision().verdicts
        assert not gc.isenabled()
        gone = weakref.ref(made.state)
        del made
        assert gone() is None
    finally:
        gc.enable()
    cycle.decide(snapshot, 3.0)
    assert gc.isenabled()
