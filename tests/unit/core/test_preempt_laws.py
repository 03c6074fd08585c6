"""Laws of preemption over random worlds."""

import dataclasses
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties.generators import dice
from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core.preempting import NOW, World, node, settles, takes_surplus, two_queues, unit
from windlass.core import alike, cycle, preempt, state
from windlass.core.facts import (
    Constraint,
    Policy,
    Queue,
    Running,
    Seat,
    Topology,
    by_unit,
)

pytestmark = CAMPAIGN


def test_a_borrower_does_not_start_where_somebody_behind_a_hopeless_head_has_a_right():
    """The head of b can never start; the one behind it is inside b's guarantee."""
    queues = [Queue("a"), Queue("b", guarantee={"gpu": 1000})]
    world = World([node("n1", 1)], queues)
    world.wait(unit("borrower", "a"), unit("head", "b", gpus=2, priority=90), unit("mine", "b"))
    world.decide()
    assert [each.unit for each in world.decision.placements] == ["mine"]
    assert {each.unit for each in world.decision.verdicts} == {"borrower", "head"}
    world.happen()
    assert world.rounds(5) == []


def behind_a_wide_head(nodes, *, guarantees=(1, 2), running, waiting):
    """Queue a: its first is too large for the guarantee, so queue b has a turn before the others
    of a, who are inside."""
    world = World(nodes, two_queues(*guarantees))
    for each, where in running:
        world.run(each, *where)
    return world.wait(unit("head", "a", gpus=9, priority=90), *waiting)


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_start_is_withheld_before_anybody_who_runs_goes_for_it(preemptible):
    """With `late`, queue b holds more than its guarantee. If `late` cannot be stopped once it runs
    it stands before `runs`: that would have to go, though withholding is enough and still can be
    done."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 2)],
        running=[(unit("runs", "b"), ["n0"])],
        waiting=[unit("late", "b", gpus=2, preemptible=preemptible), unit("mine", "a")],
    )
    assert [each.unit for each in world.decide().placements] == ["mine"]
    assert world.evicted == {}
    world.happen()
    assert world.rounds(5) == []


def test_where_withholding_does_not_help_who_cannot_be_stopped_stands_before_who_runs():
    """`mine` can be nowhere but on n0, `firm` starts on n1. Queue b has all of its guarantee in
    `firm`, so `runs` holds what is borrowed: now as in the next decision."""
    here = Constraint(names=frozenset(("n0",)))
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 2)],
        running=[(unit("runs", "b"), ["n0"])],
        waiting=[unit("firm", "b", gpus=2, preemptible=False), unit("mine", "a", constraint=here)],
    )
    assert [each.unit for each in world.decide().placements] == ["firm"]
    assert world.evicted == {"runs": 1}
    settles(world, "mine")


@pytest.mark.parametrize("preemptible", [True, False])
def test_nobody_goes_because_of_a_start_that_is_then_withheld(preemptible):
    """With `late`, the surplus of `grown` is borrowed. Two of queue a have a right to room: that of
    `late` is enough for both, so nothing of `grown` goes for the first of them, and the second
    starts in the same decision."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 1), node("n2", 2)],
        guarantees=(2, 2),
        running=[(unit("grown", "b", most=2), ["n0", "n1"])],
        waiting=[
            unit("late", "b", gpus=2, preemptible=preemptible),
            unit("mine1", "a"),
            unit("mine2", "a"),
        ],
    )
    assert [each.unit for each in world.decide().placements] == ["mine1", "mine2"]
    assert world.evicted == {}
    world.happen()
    assert world.rounds(5) == []


@pytest.mark.parametrize("strict", [True, False])
def test_what_a_withheld_start_leaves_is_offered_to_all_who_wait_in_the_same_decision(strict):
    """`late` is withheld for `mine`, which needs one of its two GPUs; `small` fits on the other. In
    a strict queue it stays behind `late`, which waits again."""
    queues = [Queue("a", guarantee={"gpu": 1000}), Queue("b", strict=strict)]
    world = World([node("n0", 2)], queues)
    world.wait(unit("head", "a", gpus=9, priority=90), unit("late", "b", gpus=2))
    world.wait(unit("mine", "a"), unit("small", "b"))
    started = ["mine"] if strict else ["mine", "small"]
    assert [each.unit for each in world.decide().placements] == started
    world.happen()
    assert world.rounds(5) == []


@pytest.mark.parametrize("preemptible", [True, False])
def test_whoever_takes_a_start_s_room_is_not_kept_from_it_by_its_own_promise(preemptible):
    """`mine` was promised a start for when `runs` ends, then `late` starts on what it needs now."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 1), node("n2", 1)],
        guarantees=(2, 1),
        running=[],
        waiting=[unit("late", "b", preemptible=preemptible), unit("mine", "a", 2)],
    )
    world.run(unit("runs", "b"), "n0", expected_end=NOW + 100)
    assert [each.unit for each in world.decide().placements] == ["mine"]
    assert world.evicted == {}
    assert "mine" not in {each.unit for each in world.decision.reservations}


# --- laws


class Crowd:
    """A world that is full: its dice, and so all of it, come from one number."""

    def __init__(self, seed, nodes, running, waiting):
        self.throw = throw = dice(seed, nodes, running, waiting)
        self.modest = throw.one_in(3)
        """Nobody borrows and everybody has a piece of some node: whoever does not fit must wait,
        whatever it is guaranteed."""
        gpus = [
            throw.choice((2, 2, 2, 3) if self.modest else (1, 2, 2, 2, 4)) for _ in range(nodes)
        ]
        self.names = ["a", "b", "c"][: 2 if self.modest else throw.choice((1, 2, 2, 3))]
        self.world = World(
            [node(f"n{i}", count, f"r{i % 2}", cpu=6) for i, count in enumerate(gpus)],
            [self.queue(name, sum(gpus)) for name in self.names],
        )
        self.rack = throw.choice(("r0", "r1"))
        """Where those are that must be in one."""
        self.late = throw.choice(self.names)
        """The queue that comes when others are there."""
        self.fill(running)
        self.world.wait(*(self.comes(f"w{i}") for i in range(waiting)))

    def queue(self, name, gpus):
        """Mostly with guarantees that the cluster can just keep: then who borrows takes from
        somebody, and who is inside has a right to room that may lie in pieces."""
        fair = gpus // len(self.names)
        own = fair if self.modest else self.throw.choice((0, 1, fair, fair, fair))
        return Queue(
            name,
            guarantee={"gpu": 1000 * own},
            limit=self.throw.choice(({}, {}, {}, {"gpu": 4000}, {"gpu": 6000})),
            reserve=self.throw.randint(0, 1),
        )

    def fill(self, count):
        """Units sit where the dice put them, not where they would best: what is free lies in
        pieces. Quotas hold."""
        world = self.world
        for number in range(count):
            members, gpus = ((1,), (1,)) if self.modest else ((1, 1, 1, 1, 2), (0, 1, 1, 1, 1, 2))
            each = self.unit(f"r{number}", members, gpus, (10, 10, 50, 90))
            if each.queue == self.late and not self.throw.one_in(3):
                each = dataclasses.replace(each, queue=self.throw.choice(self.names))
            where, tree = self.seats(each), world.snapshot.tree
            more, firm = {"gpu": _gpus(each) * len(where)}, not each.preemptible
            if self.modest and (each.queue == self.late or not tree.inside(each.queue, more)):
                continue
            if where and not tree.shortage(each.queue, more, firm=firm):
                world.run(each, *where, started=NOW - self.throw.randint(0, 5))
        world.policy = Policy(grow=self.throw.one_in(2))

    def seats(self, each):
        """Nodes with room for as many members as the unit may have; none, if they are full."""
        role, cluster = each.roles[0], self.world.snapshot.cluster
        free = {
            n.name: min(
                (int(cluster.bank.unlocked[i]) * 1000 // _gpus(each)) if _gpus(each) else 9,
                int(cluster.free[cluster.resources["cpu"], i]) // max(1, role.needs["cpu"]),
            )
            for i, n in enumerate(cluster.nodes)
            if each.topology is None or n.path == (self.rack,)
        }
        most = max(free.values(), default=0) if self.modest else 0
        places = [name for name, count in free.items() if count >= most for _ in range(count)]
        members = self.throw.randint(role.least, role.most)
        return self.throw.sample(places, members) if len(places) >= members else ()

    def comes(self, key):
        members, gpus = (
            ((1, 1, 2), (1, 2, 2)) if self.modest else ((1, 1, 1, 2, 3), (0, 1, 2, 2, 2))
        )
        each = self.unit(key, members, gpus, (10, 50, 90, 90))
        late = self.modest or self.throw.one_in(2)
        return dataclasses.replace(each, queue=self.late) if late else each

    def unit(self, key, members, gpus, priorities):
        throw = self.throw
        least = throw.choice(members)
        return unit(
            key, throw.choice(self.names), least, throw.choice(gpus),
            most=least + throw.choice((0, 0, 2)), priority=throw.choice(priorities),
            preemptible=not throw.one_in(8), cpu=throw.choice((0, 0, 1, 2)),
            topology=Topology("rack", required=True) if throw.one_in(4) else None,
        )  # fmt: skip


def _crowd(numbers):
    note(f"Crowd{numbers}")  # a failure names it: its printed form would be empty
    return Crowd(*numbers)


crowds = st.tuples(
    st.integers(0, 1 << 32), st.sampled_from((3, 2, 4, 1)),
    st.sampled_from(range(10, 0, -1)), st.sampled_from((4, 3, 2, 1)),
).map(_crowd)  # fmt: skip


def remaining(running: Running, told) -> tuple[Seat, ...]:
    return tuple(s for s in running.seats if (s.role, s.index) not in told)


@cases(100, 2500)
@given(crowds)
def test_nobody_is_stopped_without_a_gainer_who_then_starts(crowd):
    """I2 and I5."""
    world = crowd.world
    found = world.decide()
    note(str(found))
    nominated = {each.unit for each in found.nominations}
    assert {eviction.gainer for eviction in found.evictions} <= nominated
    for eviction in by_unit(found.evictions):
        victim = world.snapshot.running[eviction.unit]
        left = len(remaining(victim, eviction.seats))
        assert left == 0 or left >= victim.unit.roles[0].least
        assert victim.unit.preemptible
    world.happen().go()
    started = {each.unit for each in world.decide().placements}
    assert nominated <= started


@cases(100, 2500)
@given(crowds)
def test_no_victim_could_be_spared(crowd):
    """I6: with any one victim back, the first gainer does not fit, or has no right to what is taken
    from other queues for it: units that run, and starts that are withheld."""
    world = crowd.world
    found = world.decide()
    gainers = [each.gainer for each in found.evictions]
    if not gainers or set(gainers) != {gainers[0]} or found.placements:
        return  # several changes at once: none can be judged alone
    waiting = world.snapshot.waiting[gainers[0]]
    base = world.snapshot.facts()
    with mock.patch.object(preempt, "second_look"):
        first = cycle.decide(world.snapshot, world.now, world.policy)
    withheld = [each.unit for each in first.placements if each.unit in world.snapshot.waiting]
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
        left = state.build(facts)
        makes_room = [world.snapshot.running[key].unit for key in gone]
        makes_room += [world.snapshot.waiting[key] for key in withheld]
        others = [each for each in makes_room if each.queue != waiting.queue]
        need = cycle.Cycle(left, world.now, calm).need(waiting)
        if others and not left.tree.inside(waiting.queue, need):
            continue
        assert cycle.decide(left, world.now, calm).placements == ()


@cases(100, 2500)
@given(crowds)
def test_deciding_again_stops_nobody_and_it_all_ends(crowd):
    """I7. But a queue that grew beyond its guarantee may have to give up as much again: what was
    free lay in pieces, and for its members elsewhere somebody else may have a right to room. For
    that one those of its own queue go as well whom it outranks, if only both together do."""
    world = crowd.world
    before = dict(world.snapshot.running)
    world.decide()
    note(str(world.decision))
    grew, gives = Counter[str](), Counter[str]()
    for each in world.decision.placements:
        if each.unit in before:
            who = before[each.unit].unit
            grew[who.queue] += _devices_of(who, [seat.role for seat in each.seats])
    world.happen()
    again = world.decide()
    note(str(again))
    units = {key: each.unit for key, each in world.snapshot.running.items()}
    units |= world.snapshot.waiting
    both = {told.gainer for told in again.evictions if units[told.unit].queue in grew}
    for told in again.evictions:
        who, gainer = units[told.unit], units[told.gainer]
        if who.queue != gainer.queue or told.gainer not in both:
            gives[who.queue] += _devices_of(who, [role for role, _ in told.seats])
    assert gives <= grew
    world.happen().go()
    world.rounds(6)
    assert world.rounds(3) == []


def _devices_of(who, members):
    roles = {role.name: sum(each.count for each in role.devices) for role in who.roles}
    return sum(roles[name] for name in members)


def test_what_a_queue_grew_by_comes_back_from_the_surplus_that_stands_last():
    """Its unit of higher priority grew by two where they are of no use to who takes back; the other
    gives up what it grew by, and a member that it had before, behind the grown ones."""
    world = Crowd(300051, 4, 9, 4).world
    grown = {each.unit: len(each.seats) for each in world.decide().placements}
    assert grown == {"w1": 1, "r2": 2, "r3": 1}
    world.happen()
    (told,) = world.decide().evictions
    assert (told.unit, len(told.seats), told.gainer) == ("r3", 2, "w3")
    world.happen().go()
    assert "w3" in {each.unit for each in world.decide().placements}
    world.happen()
    assert world.rounds(3) == []


def test_who_is_pushed_beyond_its_guarantee_by_a_promise_goes_in_the_same_decision():
    """`w3` has a right to four devices and comes first, but `r2`, which has them, is inside its
    queue's guarantee. Then `w0` of that queue is promised room and stands before `r2`."""
    world = Crowd(78, 4, 9, 4).world
    world.decide()
    assert world.evicted == {"r0": 1, "r3": 2, "r2": 2}
    assert {each.unit for each in world.decision.nominations} == {"w0", "w3"}
    world.happen().go()
    assert {each.unit for each in world.decide().placements} >= {"w0", "w3"}
    world.happen()
    assert world.rounds(3) == []


def test_who_grew_beyond_a_guarantee_gives_back_as_much_where_it_helps():
    """The first world in which a decision after growth stopped somebody: two pieces of one device
    lie on two nodes; the unit that grows onto the one gives up a member on the other."""
    world = Crowd(1, 3, 10, 4).world
    (grown,) = (each for each in world.decide().placements if each.unit == "r2")
    world.happen()
    (told,) = world.decide().evictions
    assert (told.unit, len(told.seats), told.gainer) == ("r2", len(grown.seats), "w2")
    world.happen().go()
    assert "w2" in {each.unit for each in world.decide().placements}
    world.happen()
    assert world.rounds(3) == []


def test_who_cannot_be_stopped_grows_only_while_its_queue_borrows_nothing():
    """Two devices are free, in pieces; with one of them queue b would hold more than its guarantee,
    and `small`, which runs inside it, would have to go for `mine`."""
    world = World([node(f"n{i}", 2) for i in range(3)], two_queues(3, 3))
    firm = unit("firm", "b", most=3, preemptible=False)
    world.run(firm, "n0").run(unit("fixed", "b", preemptible=False), "n1")
    world.run(unit("small", "b", priority=10), "n2").wait(unit("mine", "a", gpus=2))
    assert world.decide().placements == world.decision.evictions == ()
    world.happen()
    assert world.rounds(3) == []
    state.apply(world.snapshot, [state.Gone("small"), state.Gone("mine")])
    assert [(each.unit, len(each.seats)) for each in world.decide().placements] == [("firm", 1)]


@cases(100, 2500)
@given(crowds)
def test_what_is_freed_is_held_for_the_gainer_however_slowly_victims_go(crowd):
    """I5 and I7: they go one by one, others come and ask for what is there already; the gainers
    start all the same, and at the latest when the last victim is gone."""
    world = crowd.world
    found = world.decide()
    note(str(found))
    gainers = {each.unit for each in found.nominations}
    world.happen()
    greedy = [unit(f"x{i}", name, preempts=False) for i, name in enumerate(crowd.names)]
    world.wait(*greedy, unit("x9", crowd.names[0], gpus=0, preempts=False))
    while told := sorted(k for k, r in world.snapshot.running.items() if r.leaving):
        note(str(world.decide()))
        world.happen()
        leaves = world.snapshot.running[crowd.throw.choice(told)]
        left = remaining(leaves, leaves.leaving)
        stays = state.Holds(dataclasses.replace(leaves, seats=left, leaving=()))
        state.apply(world.snapshot, [stays if left else state.Gone(leaves.unit.key)])
    note(str(world.decide()))
    world.happen()
    assert gainers <= world.snapshot.running.keys()


@cases(100, 2500)
@given(crowds)
def test_no_other_queue_takes_what_is_inside_a_guarantee(crowd):
    """I8: what other queues leave of a victim's queue plus the largest of the victims is more than
    its guarantee. What a unit of its own queue takes, that queue keeps; who starts in the same
    decision or is promised more than it takes there counts, for it may stand before a gang that is
    then beyond the guarantee."""
    world = crowd.world
    found = world.decide()
    tree, snapshot = world.snapshot.tree, world.snapshot
    gone: dict[str, int] = {}
    taken: dict[str, int] = {}
    """By other queues."""
    promised = {
        each.unit: _gpus(snapshot.waiting[each.unit]) * len(each.seats)
        for each in found.nominations
    }
    """Beyond what is taken in its own queue for it."""
    kept, largest = dict[str, int](), dict[str, int]()
    """Queue -> what it keeps beyond its guarantee, and its largest victim."""
    for eviction in found.evictions:
        victim = snapshot.running[eviction.unit]
        given = _gpus(victim.unit) * len(eviction.seats)
        gone[eviction.unit] = gone.get(eviction.unit, 0) + given
        if snapshot.waiting[eviction.gainer].queue != victim.unit.queue:
            taken[victim.unit.queue] = taken.get(victim.unit.queue, 0) + given
        else:
            promised[eviction.gainer] = max(0, promised[eviction.gainer] - given)
    for eviction in found.evictions:
        victim, gainer = snapshot.running[eviction.unit].unit, snapshot.waiting[eviction.gainer]
        if takes_surplus(snapshot, eviction):
            continue  # it yields to any minimum: test_yielding
        if victim.queue == gainer.queue:
            assert victim.priority < gainer.priority
            continue
        guaranteed = tree.guarantee[victim.queue].get("gpu", 0)
        assert _would_be_inside(world, found, gainer), "it would borrow itself"
        left = tree.used[victim.queue].get("gpu", 0) - taken[victim.queue]
        left += sum(n for k, n in promised.items() if snapshot.waiting[k].queue == victim.queue)
        left += sum(
            1000 * len(seat.grants)
            for placement in found.placements
            if getattr(snapshot.waiting.get(placement.unit), "queue", "") == victim.queue
            for seat in placement.seats
        )
        # A gang across the edge goes whole: with smaller ones that came after it, its queue may
        # be inside.
        largest[victim.queue] = max(largest.get(victim.queue, 0), gone[eviction.unit])
        kept[victim.queue] = left - guaranteed
    assert all(more + largest[queue] > 0 for queue, more in kept.items())


def _would_be_inside(world, found, gainer):
    """Whether a queue stays inside its guarantee with a unit, once all are gone that must go."""
    snapshot = world.snapshot
    gone = [(snapshot.running[e.unit].unit, len(e.seats)) for e in found.evictions]
    held = world.snapshot.tree.used[gainer.queue].get("gpu", 0)
    held -= sum(_gpus(victim) * n for victim, n in gone if victim.queue == gainer.queue)
    more = _gpus(gainer) * gainer.roles[0].least
    return held + more <= snapshot.tree.guarantee[gainer.queue].get("gpu", 0)


def _gpus(each):
    return 1000 * sum(request.count for request in each.roles[0].devices)


@cases(100, 2500)
@given(crowds)
def test_who_is_passed_over_would_have_waited_if_asked(crowd):
    """Screening saves work and changes no answer. One waits alone, so that only the answer counts,
    not whose turn it was; nothing is promised: who may be promised a start is always asked."""
    world = crowd.world
    facts = world.snapshot.facts()
    queues = tuple(dataclasses.replace(queue, reserve=0) for queue in facts.queues)
    for each in facts.waiting:
        alone = dataclasses.replace(facts, queues=queues, waiting=(each,))
        quick = cycle.decide(state.build(alone), world.now, world.policy)
        with mock.patch.object(alike, "pass_over", return_value=False):
            asked = cycle.decide(state.build(alone), world.now, world.policy)
        note(f"{quick}\n{asked}")
        assert dataclasses.replace(quick, operations=0) == dataclasses.replace(asked, operations=0)
