"""Preemption and reclaim: who goes for whom, and that it ends."""

import dataclasses

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from windlass.core import cycle, state
from windlass.core.facts import (
    Device,
    DeviceRequest,
    Facts,
    Grant,
    Node,
    Policy,
    Queue,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
)
from windlass.kinds.reasons import Reason

NOW = 10_000.0


def node(name: str, gpus: int = 8, rack: str = "r0", cpu: int = 64) -> Node:
    devices = tuple(Device(f"g{i}", "gpu", memory=80, forms=FORMS) for i in range(gpus))
    return Node(name, {"cpu": cpu * 1000}, devices, path=(rack,))


FORMS = frozenset(("whole", "share"))


def role(members: int = 1, gpus: int = 1, most: int | None = None, cpu: int = 1, **more) -> Role:
    devices = (DeviceRequest("gpu", gpus),) if gpus else ()
    return Role("w", members, most or members, {"cpu": cpu * 1000}, devices, **more)


def unit(key: str, queue: str, members: int = 1, gpus: int = 1, **more) -> Unit:
    of_role = {
        name: more.pop(name) for name in ("most", "cpu", "constraint", "ports") if name in more
    }
    return Unit(key, queue, (role(members, gpus, **of_role),), **more)


class World:
    """Facts that follow decisions: what is decided happens, victims go and queue again."""

    def __init__(self, nodes, queues, policy=Policy(), levels=("rack",)):  # noqa: B008
        self.snapshot = state.build(Facts(tuple(nodes), tuple(queues), levels=levels))
        self.policy, self.now = policy, NOW
        self.decision = None

    def wait(self, *units: Unit) -> "World":
        state.apply(self.snapshot, [state.Waits(each) for each in units])
        return self

    def start(self, *units: Unit, **more) -> "World":
        """They run, wherever the core itself puts them."""
        for each in units:
            self.wait(each)
            found = cycle.decide(self.snapshot, self.now, Policy(preempt=False, reclaim=False))
            seats = {p.unit: p.seats for p in found.placements}[each.key]
            facts = {"started": self.now - 3600, **more}
            state.apply(self.snapshot, [state.Holds(Running(each, seats, **facts))])
        return self

    def run(self, each: Unit, *where: str, **more) -> "World":
        """It runs on these nodes, on the first devices that nobody holds there."""
        seats = []
        for index, name in enumerate(where):
            held = {
                (s.node, g.device)
                for r in self.snapshot.running.values()
                for s in r.seats
                for g in s.grants
            } | {(s.node, g.device) for s in seats for g in s.grants}
            host = self.snapshot.cluster.nodes[self.snapshot.cluster.index[name]]
            free = [d for d in host.devices if (name, d.id) not in held]
            count = sum(request.count for request in each.roles[0].devices)
            assert len(free) >= count
            grants = tuple(Grant(d.id, memory=d.memory) for d in free[:count])
            seats.append(Seat("w", index, name, grants))
        facts = {"started": self.now - 3600, **more}
        state.apply(self.snapshot, [state.Holds(Running(each, tuple(seats), **facts))])
        return self

    def decide(self):
        before = self.snapshot.facts()
        self.decision = cycle.decide(self.snapshot, self.now, self.policy)
        fresh = cycle.decide(state.build(before), self.now, self.policy)
        assert fresh == self.decision  # what an index remembers never changes an answer
        return self.decision

    def happen(self) -> "World":
        """The decision is carried out; victims are told to go and still hold their room."""
        running = self.snapshot.running
        events = []
        for placement in self.decision.placements:
            if placement.unit in running:
                old = running[placement.unit]
                new = dataclasses.replace(old, seats=(*old.seats, *placement.seats))
            else:
                who = self.snapshot.waiting[placement.unit]
                new = Running(who, placement.seats, self.now)
                events.append(state.NominationGone(placement.unit))
            events.append(state.Holds(new))
        events += [state.Nominated(each) for each in self.decision.nominations]
        for eviction in self.decision.evictions:
            old = running[eviction.unit]
            told = (*old.leaving, *eviction.seats)
            events.append(state.Holds(dataclasses.replace(old, leaving=told)))
        events.append(state.Promised(self.decision.reservations))
        state.apply(self.snapshot, events)
        return self

    def go(self) -> "World":
        """Who was told to go is gone, and queues again if nothing of it is left."""
        self.now += 30
        for key, old in sorted(self.snapshot.running.items()):
            if not old.leaving:
                continue
            left = tuple(s for s in old.seats if (s.role, s.index) not in old.leaving)
            had = old.unit.attained + self.now - old.started
            state.apply(
                self.snapshot,
                [
                    state.Holds(dataclasses.replace(old, seats=left, leaving=()))
                    if left
                    else state.Waits(dataclasses.replace(old.unit, attained=had))
                ],
            )
            assert left or key in self.snapshot.waiting
        return self

    def rounds(self, count: int) -> list:
        """Evictions of so many rounds in which everything that is decided happens."""
        found = []
        for _ in range(count):
            found += self.decide().evictions
            self.happen().go()
        return found

    @property
    def evicted(self) -> dict[str, int]:
        return {e.unit: len(e.seats) for e in self.decision.evictions}

    def runs(self, key: str) -> bool:
        return key in self.snapshot.running


def two_queues(guarantee_a=8, guarantee_b=8, **more) -> list[Queue]:
    return [
        Queue("a", guarantee={"gpu": guarantee_a * 1000}, **more),
        Queue("b", guarantee={"gpu": guarantee_b * 1000}),
    ]


def settles(world: World, gainer: str) -> None:
    """The gainer gets its room, and five more rounds bring no new eviction."""
    assert world.decision.evictions
    assert gainer in {each.unit for each in world.decision.nominations}
    world.happen()
    assert world.decide().evictions == ()  # nothing new happened: nothing new is decided
    world.happen().go()
    assert gainer in {each.unit for each in world.decide().placements}
    assert world.decision.evictions == ()
    world.happen()
    assert world.rounds(5) == []
    assert world.runs(gainer)


# --- reclaim --------------------------------------------------------------------------------------


def test_a_queue_takes_back_its_guarantee_from_who_borrows():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(*(unit(f"b{i}", "b", gpus=4) for i in range(4)))
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert len(world.evicted) == 2
    assert world.decision.verdicts[0].message == "its room is being freed: 2 cpu, 8 gpu in queue b"
    settles(world, "a1")


def test_nothing_inside_a_guarantee_is_taken_whatever_the_priority():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(unit("b1", "b", gpus=8, priority=0), unit("a0", "a", gpus=8, priority=0))
    world.wait(unit("a1", "a", gpus=8, priority=0)).decide()
    world.wait(unit("a2", "a", gpus=1, priority=0)).decide()
    assert world.evicted == {}


def test_only_what_is_above_the_guarantee_goes_the_rest_by_priority_and_age_stays():
    world = World([node("n1", 4), node("n2", 4)], two_queues(4, 4))
    for i, priority in enumerate((90, 10, 50, 50, 50, 50, 50, 50)):
        world.start(unit(f"b{i}", "b", priority=priority), started=NOW - 1000 + i)
    world.wait(unit("a1", "a", 4, 1)).decide()
    assert set(world.evicted) == {"b1", "b5", "b6", "b7"}
    settles(world, "a1")


def test_a_gang_that_is_larger_than_its_queues_guarantee_goes_as_a_whole():
    world = World([node("n1"), node("n2")], two_queues())
    world.start(unit("big", "b", 2, 8))
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {"big": 2}
    settles(world, "a1")


def test_who_holds_only_borrowed_room_goes_before_who_is_partly_inside():
    world = World([node("n1"), node("n2")], two_queues(4, 6))
    world.run(unit("old", "b", gpus=4), "n1", started=1)
    world.run(unit("partly", "b", gpus=4), "n1", started=2)
    world.run(unit("young", "b", gpus=4), "n2", started=3, checkpoint_at=None)
    world.run(unit("mine", "a", gpus=4, preemptible=False), "n2", started=3)
    world.snapshot = state.build(
        dataclasses.replace(world.snapshot.facts(), queues=tuple(two_queues(8, 6)))
    )
    world.wait(unit("a1", "a", gpus=4)).decide()
    assert set(world.evicted) == {"young"}
    settles(world, "a1")


def test_a_unit_that_must_not_be_preempted_is_no_victim():
    world = World([node("n1")], two_queues(8, 8))
    world.run(unit("firm", "b", gpus=8, preemptible=False), "n1")
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {}


def test_borrowing_is_judged_where_the_branches_part():
    queues = [
        Queue("org1", guarantee={"gpu": 8000}),
        Queue("org2", guarantee={"gpu": 8000}),
        Queue("a1", parent="org1", guarantee={"gpu": 4000}),
        Queue("a2", parent="org1", guarantee={"gpu": 4000}),
        Queue("b1", parent="org2"),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.start(*(unit(f"x{i}", "a2", gpus=2) for i in range(4)))
    world.start(*(unit(f"y{i}", "b1", gpus=2) for i in range(4)))
    # b1 has no guarantee of its own, but all it holds is inside that of org2; a2 took from a1.
    world.wait(unit("mine", "a1", gpus=4)).decide()
    assert {key[0] for key in world.evicted} == {"x"}
    assert len(world.evicted) == 2
    settles(world, "mine")


def test_a_parents_limit_is_in_the_way_and_a_sibling_gives_back():
    queues = [
        Queue("org", limit={"gpu": 8000}),
        Queue("a", parent="org", guarantee={"gpu": 4000}),
        Queue("b", parent="org", guarantee={"gpu": 4000}),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.start(*(unit(f"b{i}", "b", gpus=2) for i in range(4)))
    world.wait(unit("mine", "a", gpus=4)).decide()
    assert len(world.evicted) == 2
    settles(world, "mine")


def test_reclaim_can_be_switched_off():
    world = World([node("n1")], two_queues(8, 0), Policy(reclaim=False))
    world.start(unit("b1", "b", gpus=8)).wait(unit("a1", "a", gpus=8)).decide()
    assert world.evicted == {}


# --- within one queue -----------------------------------------------------------------------------

ONE = [Queue("q")]


def test_a_higher_priority_stops_the_lowest_first():
    world = World([node("n1", 4)], ONE)
    world.start(*(unit(f"p{p}", "q", priority=p) for p in (10, 20, 30, 60)))
    world.wait(unit("hi", "q", gpus=2, priority=50)).decide()
    assert set(world.evicted) == {"p10", "p20"}
    settles(world, "hi")


@pytest.mark.parametrize("priority", [40, 50])
def test_who_does_not_outrank_others_waits(priority):
    world = World([node("n1", 4)], ONE).start(unit("x", "q", gpus=4, priority=50))
    world.wait(unit("y", "q", gpus=4, priority=priority)).decide()
    assert world.evicted == {}
    assert world.decision.verdicts[0].reason == Reason.WAITING_FOR_CAPACITY


def test_the_queues_highest_priority_caps_it():
    world = World([node("n1", 4)], [Queue("q", max_priority=50)])
    world.start(unit("x", "q", gpus=4, priority=50))
    world.wait(unit("y", "q", gpus=4, priority=900)).decide()
    assert world.evicted == {}


def test_preemption_can_be_switched_off():
    world = World([node("n1", 4)], ONE, Policy(preempt=False))
    world.start(unit("x", "q", gpus=4, priority=1))
    world.wait(unit("y", "q", gpus=4, priority=90)).decide()
    assert world.evicted == {}


def test_a_limit_is_in_the_way_and_lower_ones_of_the_queue_go_even_if_room_is_free():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(unit(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(unit("hi", "q", gpus=2, priority=90)).decide()
    assert len(world.evicted) == 2
    settles(world, "hi")


def test_priority_does_not_reach_into_another_queue():
    world = World([node("n1")], [Queue("a"), Queue("b")])
    world.start(unit("x", "b", gpus=8, priority=0))
    world.wait(unit("y", "a", gpus=8, priority=1000)).decide()
    assert world.evicted == {}


def test_in_the_attained_order_who_had_clearly_more_goes():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(unit("long", "q", gpus=4), started=NOW - 50_000)
    world.wait(unit("new", "q", gpus=4, attained=100)).decide()
    assert set(world.evicted) == {"long"}
    settles(world, "new")


def test_in_the_attained_order_a_small_difference_changes_nothing():
    world = World([node("n1", 4)], [Queue("q", order="attained")])
    world.start(unit("long", "q", gpus=4), started=NOW - 1000)
    world.wait(unit("new", "q", gpus=4, attained=900)).decide()
    assert world.evicted == {}


def test_own_lower_units_go_first_where_the_queue_is_inside_only_without_them():
    world = World([node("n1"), node("n2")], two_queues(8, 8))
    world.run(unit("low", "a", gpus=6, priority=1), "n1")
    for i in range(10):
        world.run(unit(f"b{i}", "b"), "n2" if i < 8 else "n1", started=NOW - 100 + i)
    world.wait(unit("hi", "a", gpus=8, priority=90)).decide()
    assert set(world.evicted) == {"low", "b8", "b9"}
    settles(world, "hi")


# --- how much goes --------------------------------------------------------------------------------


def test_surplus_goes_before_whole_units_and_the_highest_numbers_first():
    world = World([node("n1")], two_queues(4, 4))
    world.start(unit("elastic", "b", 2, 1, most=6), started=NOW - 9000)
    world.start(unit("young", "b", 2, 1), started=NOW - 1)
    found = world.decide()
    assert found.evictions == ()
    world.happen()
    world.wait(unit("a1", "a", 2, 1)).decide()
    assert world.decision.evictions[0].seats == (("w", 5), ("w", 4))
    assert world.evicted == {"elastic": 2}
    settles(world, "a1")
    assert len(world.snapshot.running["elastic"].seats) >= 2


def test_the_least_work_lost_goes_first_and_checkpoints_count():
    world = World([node("n1", 3)], two_queues(1, 0))
    world.start(unit("x", "b"), started=NOW - 500)
    world.start(unit("saved", "b"), started=NOW - 5000, checkpoint_at=NOW - 10)
    world.start(unit("y", "b"), started=NOW - 400)
    world.wait(unit("a1", "a")).decide()
    assert world.evicted == {"saved": 1}
    settles(world, "a1")


def test_minimum_runtime_protects_and_wakes_when_it_is_over():
    world = World([node("n1")], two_queues(8, 0))
    world.start(unit("x", "b", gpus=4), protected_until=NOW + 100)
    world.start(unit("y", "b", gpus=4), protected_until=NOW + 60)
    world.wait(unit("a1", "a", gpus=8)).decide()
    assert (world.evicted, world.decision.wake_at) == ({}, NOW + 100)
    assert "must first run for their queue's minimum runtime" in world.decision.verdicts[0].message
    world.now = NOW + 100
    assert world.decide().evictions
    settles(world, "a1")


def test_who_is_not_protected_goes_instead():
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(unit("x", "b"), protected_until=NOW + 100, started=NOW - 1)
    world.start(unit("y", "b"), started=NOW - 90)
    world.wait(unit("a1", "a")).decide()
    assert world.evicted == {"y": 1}


def test_the_gainer_takes_free_room_too_and_holds_all_of_it():
    world = World([node("n1", 4)], [Queue("q")])
    world.start(unit("x", "q", gpus=2, priority=1))
    world.wait(unit("hi", "q", gpus=4, priority=90), unit("low", "q", gpus=1, priority=1)).decide()
    assert world.evicted == {"x": 1}
    assert world.decision.placements == ()
    assert len(world.decision.nominations[0].seats[0].grants) == 4
    settles(world, "hi")


def test_a_second_gainer_counts_on_what_the_first_ones_victim_leaves():
    world = World([node("n1"), node("n2")], ONE)
    world.start(unit("x", "q", gpus=8, priority=1), unit("y", "q", gpus=8, priority=2))
    world.wait(unit("h1", "q", gpus=2, priority=90), unit("h2", "q", gpus=2, priority=90)).decide()
    assert world.evicted == {"x": 1}
    assert {each.unit for each in world.decision.nominations} == {"h1", "h2"}
    settles(world, "h1")
    assert world.runs("h2")


def test_a_second_gainer_under_a_limit_stops_no_more_than_it_needs():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(*(unit(f"x{i}", "q", priority=10) for i in range(4)))
    world.wait(unit("h1", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    world.happen().wait(unit("h2", "q", priority=90)).decide()
    assert len(world.evicted) == 1
    settles(world, "h2")


def test_a_required_rack_is_freed_as_one():
    nodes = [node(f"n{i}", 2, rack=f"r{i // 2}") for i in range(4)]
    world = World(nodes, two_queues(4, 0))
    world.run(unit("x0", "b", gpus=2), "n0", started=NOW - 10)
    world.run(unit("x1", "b", gpus=2), "n1", started=NOW - 5000)
    world.run(unit("x2", "b", gpus=2), "n2", started=NOW - 100)
    world.run(unit("x3", "b", gpus=2), "n3", started=NOW - 100)
    world.wait(unit("a1", "a", 2, 2, topology=Topology("rack", required=True))).decide()
    assert set(world.evicted) == {"x2", "x3"}
    settles(world, "a1")


def test_a_unit_of_two_shapes_gets_all_of_its_room():
    both = Unit("a1", "a", (role(2, 2), Role("head", 1, 1, {"cpu": 60_000})))
    world = World([node("n1", 4), node("n2", 4)], two_queues(8, 0))
    world.start(*(unit(f"x{i}", "b", gpus=2, cpu=20) for i in range(4)))
    world.wait(both).decide()
    settles(world, "a1")


def test_shares_of_a_device_are_given_back_together():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 2)], two_queues(1, 0))
    world.start(*(Unit(f"s{i}", "b", (share,)) for i in range(8)))
    world.wait(unit("a1", "a")).decide()
    assert len(world.evicted) == 4
    settles(world, "a1")


def test_a_share_takes_the_place_of_one_share():
    share = Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=250),))
    world = World([node("n1", 1)], [Queue("q")])
    world.start(*(Unit(f"s{i}", "q", (share,), priority=i) for i in range(4)))
    world.wait(Unit("hi", "q", (share,), priority=90)).decide()
    assert world.evicted == {"s0": 1}
    settles(world, "hi")


def test_a_models_limit_is_respected_and_another_model_freed():
    def of(model: str) -> Node:
        devices = tuple(Device(f"g{i}", "gpu", model, memory=80) for i in range(2))
        return Node(f"n-{model}", {"cpu": 64_000}, devices, path=("r",))

    queue = Queue("q", limit={"gpu/h100": 1000})
    world = World([of("h100"), of("a100")], [queue])
    either = Role("w", 1, 1, {"cpu": 1000}, (DeviceRequest("gpu", 2, models=("h100", "a100")),))
    world.run(unit("x", "q", priority=1), "n-h100").run(unit("y", "q", priority=2), "n-a100")
    world.wait(Unit("hi", "q", (either,), priority=9)).decide()
    assert world.evicted == {"y": 1}
    settles(world, "hi")


def test_a_host_port_is_freed_by_who_holds_it():
    world = World([node("n1")], [Queue("q")])
    world.start(unit("x", "q", ports=(80,), priority=1), unit("y", "q", priority=0))
    world.wait(unit("hi", "q", ports=(80,), priority=9)).decide()
    assert world.evicted == {"x": 1}
    settles(world, "hi")


def test_a_negative_answer_stops_nobody_and_costs_the_next_ones_nothing():
    def operations(units: int, **policy) -> int:
        world = World([node("n1", 4), node("n2", 4)], ONE, Policy(**policy))
        world.start(unit("x", "q", gpus=4, priority=1), unit("keep", "q", gpus=4, priority=99))
        world.wait(*(unit(f"w{i}", "q", 2, 4, priority=50) for i in range(units))).decide()
        assert world.evicted == {}
        return world.decision.operations

    for_one = operations(1) - operations(1, preempt=False, reclaim=False)
    assert for_one > 0
    assert operations(50) - operations(50, preempt=False, reclaim=False) == for_one


def test_a_promise_whose_victims_did_not_go_is_made_anew():
    world = World([node("n1")], two_queues(8, 0))
    world.start(unit("b1", "b", gpus=8)).wait(unit("a1", "a", gpus=8)).decide()
    state.apply(world.snapshot, [state.Nominated(world.decision.nominations[0])])
    assert set({e.unit for e in world.decide().evictions}) == {"b1"}  # it never heard of it
    settles(world, "a1")


def test_who_gets_a_victims_quota_does_not_start_before_the_victim_is_gone():
    world = World([node("n1")], [Queue("q", limit={"gpu": 4000})])
    world.start(unit("low", "q", gpus=4, priority=1)).wait(unit("hi", "q", gpus=4, priority=9))
    world.decide()
    assert world.evicted == {"low": 1}
    world.happen().decide()
    assert world.decision.placements == ()
    assert [each.unit for each in world.decision.nominations] == ["hi"]
    world.go()
    assert [each.unit for each in world.decide().placements] == ["hi"]


# --- scenarios that went wrong elsewhere ----------------------------------------------------------


def test_kueue_3779_two_borrowers_above_their_share_do_not_evict_each_other_for_ever():
    queues = [Queue(n, guarantee={"gpu": 2000}) for n in ("a", "b", "c")]
    world = World([node("n1", 6)], queues)
    world.start(unit("a1", "a", 3, 1), unit("b1", "b", 3, 1))
    world.wait(unit("a2", "a", 3, 1), unit("b2", "b", 3, 1), unit("c1", "c", 2, 1)).decide()
    assert len(world.evicted) == 1
    settles(world, "c1")


def test_kueue_2821_without_priority_order_equal_units_do_not_swap_places():
    queues = [
        Queue("a", guarantee={"gpu": 2000}, order="lifo"),
        Queue("b", guarantee={"gpu": 2000}, order="lifo"),
    ]
    world = World([node("n1", 4)], queues)
    world.start(unit("a1", "a", gpus=3, submitted=1), unit("b1", "b", gpus=1, submitted=2))
    world.wait(unit("b2", "b", gpus=1, submitted=3), unit("a2", "a", gpus=3, submitted=4)).decide()
    assert set(world.evicted) == {"a1"}
    settles(world, "b2")


def test_kueue_13662_victims_that_leave_at_different_times_are_not_replaced_by_new_ones():
    world = World([node("n1", 4)], two_queues(4, 0))
    world.start(*(unit(f"b{i}", "b") for i in range(4)))
    world.wait(unit("a1", "a", gpus=4)).decide()
    assert len(world.evicted) == 4
    world.happen()
    for key in sorted(world.evicted):
        world.now += 60
        state.apply(world.snapshot, [state.Waits(world.snapshot.running[key].unit)])
        assert world.decide().evictions == ()
        assert [p.unit for p in world.decision.placements] in ([], ["a1"])
        world.happen()
    assert world.runs("a1")
    assert world.rounds(5) == []


def test_kueue_10131_as_few_as_needed_and_the_same_ones_whatever_the_order_of_facts():
    found = []
    for flip in (False, True):
        world = World([node(f"n{i}", 4) for i in range(3)], two_queues(4, 0))
        names = [f"b{i}" for i in range(6)]
        for i, name in enumerate(reversed(names) if flip else names):
            world.run(unit(name, "b", gpus=2), f"n{(5 - i if flip else i) // 2}")
        world.wait(unit("a1", "a", gpus=4)).decide()
        found.append(world.decision.evictions)
    assert found[0] == found[1]
    assert len(found[0]) == 2
    settles(world, "a1")


def test_kai_1565_a_small_claim_takes_no_more_than_it_needs_from_a_large_borrower():
    world = World([node(f"n{i}") for i in range(12)], two_queues(48, 8))
    world.start(*(unit(f"b{i}", "b", 2, 4) for i in range(12)))
    world.wait(unit("a1", "a", 6, 8)).decide()
    assert sum(world.evicted.values()) * 4 == 48
    settles(world, "a1")


def test_kai_1750_an_unrelated_protected_queue_does_not_stop_a_reclaim():
    queues = [*two_queues(4, 0), Queue("c")]
    world = World([node("n1", 4), node("n2", 4)], queues)
    world.run(unit("c1", "c", gpus=4), "n1", protected_until=NOW + 9000)
    world.run(unit("b1", "b", gpus=4), "n2")
    world.wait(unit("a1", "a", gpus=4)).decide()
    assert world.evicted == {"b1": 1}
    settles(world, "a1")


def test_volcano_5994_needs_one_victim_and_stops_one():
    world = World([node(f"n{i}", 2) for i in range(10)], ONE)
    world.start(*(unit(f"x{i}", "q", gpus=2, priority=1) for i in range(10)))
    world.wait(unit("hi", "q", gpus=2, priority=9)).decide()
    assert len(world.evicted) == 1
    settles(world, "hi")


def test_volcano_4926_the_sum_would_be_enough_but_no_node_is_so_nobody_is_stopped():
    world = World([node(f"n{i}", 2) for i in range(4)], ONE)
    for i in range(4):
        world.run(unit(f"low{i}", "q", gpus=1, priority=1), f"n{i}")
        world.run(unit(f"keep{i}", "q", gpus=1, priority=99), f"n{i}")
    world.wait(unit("hi", "q", gpus=2, priority=50)).decide()
    assert world.evicted == {}
    assert "would not make enough room" in world.decision.verdicts[0].message
    assert world.rounds(5) == []


# --- invariants -----------------------------------------------------------------------------------


@st.composite
def worlds(draw):
    count = draw(st.integers(1, 4))
    nodes = [node(f"n{i}", draw(st.integers(1, 4)), f"r{i % 2}", cpu=6) for i in range(count)]
    names = ["a", "b", "c"][: draw(st.integers(1, 3))]
    queues = [
        Queue(
            name,
            guarantee={"gpu": 1000 * draw(st.integers(0, 4))},
            limit=draw(st.sampled_from([{}, {}, {"gpu": 4000}, {"gpu": 6000}])),
        )
        for name in names
    ]
    world = World(nodes, queues)
    running = draw(st.lists(units(names, "r"), max_size=8))
    for number, each in enumerate(running):
        world.wait(dataclasses.replace(each, key=f"r{number}"))
    world.policy = Policy(preempt=False, reclaim=False, grow=draw(st.booleans()))
    world.decide()
    world.happen()
    for number in range(len(running)):
        if f"r{number}" in world.snapshot.waiting:
            state.apply(world.snapshot, [state.Gone(f"r{number}")])
        else:
            old = world.snapshot.running[f"r{number}"]
            age = draw(st.integers(0, 5))
            state.apply(world.snapshot, [state.Holds(dataclasses.replace(old, started=NOW - age))])
    state.apply(world.snapshot, [state.Promised(())])
    world.policy = Policy(grow=draw(st.booleans()))
    waiting = draw(st.lists(units(names, "w"), min_size=1, max_size=4))
    return world.wait(*(dataclasses.replace(u, key=f"w{i}") for i, u in enumerate(waiting)))


def units(names, key):
    return st.builds(
        lambda queue, members, extra, gpus, priority, keeps, rack, cpu: unit(
            key, queue, members, gpus, most=members + extra, priority=priority,
            preemptible=not keeps, cpu=cpu,
            topology=Topology("rack", required=True) if rack else None,
        ),
        st.sampled_from(names), st.integers(1, 3), st.sampled_from([0, 0, 2]), st.integers(0, 2),
        st.sampled_from([10, 50, 90]), st.sampled_from([False] * 4 + [True]), st.booleans(),
        st.integers(0, 2),
    )  # fmt: skip


def remaining(running: Running, told) -> tuple[Seat, ...]:
    return tuple(s for s in running.seats if (s.role, s.index) not in told)


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_nobody_is_stopped_without_a_gainer_who_then_starts(world):
    """I2 and I5."""
    found = world.decide()
    note(str(found))
    nominated = {each.unit for each in found.nominations}
    for eviction in found.evictions:
        assert eviction.gainer in nominated
        victim = world.snapshot.running[eviction.unit]
        left = len(remaining(victim, eviction.seats))
        assert left == 0 or left >= victim.unit.roles[0].least
        assert victim.unit.preemptible
    world.happen().go()
    started = {each.unit for each in world.decide().placements}
    assert nominated <= started


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_no_victim_could_be_spared(world):
    """I6: with any one victim back, the first gainer does not fit."""
    found = world.decide()
    gainers = [each.gainer for each in found.evictions]
    if not gainers or set(gainers) != {gainers[0]} or found.placements:
        return  # several changes at once: none can be judged alone
    waiting = world.snapshot.waiting[gainers[0]]
    base = world.snapshot.facts()
    for spared in found.evictions:
        gone = {e.unit: e.seats for e in found.evictions if e is not spared}
        running = [
            dataclasses.replace(r, seats=remaining(r, gone.get(r.unit.key, ())))
            for r in base.running
        ]
        facts = dataclasses.replace(
            base, waiting=(waiting,), running=tuple(r for r in running if r.seats)
        )
        calm = Policy(preempt=False, reclaim=False, grow=False)
        assert cycle.decide(state.build(facts), world.now, calm).placements == ()


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_deciding_again_stops_nobody_and_it_all_ends(world):
    """I7."""
    world.decide()
    note(str(world.decision))
    world.happen()
    again = world.decide()
    note(str(again))
    assert again.evictions == ()
    world.happen().go()
    world.rounds(6)
    assert world.rounds(3) == []


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_no_other_queue_takes_what_is_inside_a_guarantee(world):
    """I8: what is left of a victim's queue plus any one of the victims is more than its guarantee;
    and the gainer's queue stays inside its own."""
    found = world.decide()
    tree, snapshot = world.snapshot.tree, world.snapshot
    gone: dict[str, int] = {}
    for eviction in found.evictions:
        victim = snapshot.running[eviction.unit]
        gpus = victim.unit.roles[0].devices[0].count if victim.unit.roles[0].devices else 0
        gone[eviction.unit] = 1000 * gpus * len(eviction.seats)
    for eviction in found.evictions:
        victim, gainer = snapshot.running[eviction.unit].unit, snapshot.waiting[eviction.gainer]
        if victim.queue == gainer.queue:
            assert victim.priority < gainer.priority
            continue
        guaranteed = tree.guarantee[victim.queue].get("gpu", 0)
        others = sum(
            n for key, n in gone.items() if snapshot.running[key].unit.queue == victim.queue
        )
        left = tree.used[victim.queue].get("gpu", 0) - others
        # Smaller units of its queue may have filled the guarantee before it.
        assert left + gone[eviction.unit] > guaranteed
