"""Laws of preemption over random worlds."""

import dataclasses
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties.generators import dice
from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core.preempting import (
    NOW,
    World,
    node,
    settles,
    takes_surplus,
    two_queues,
    workload,
)
from windlass.core.cycle import cycle
from windlass.core.decision.state import DecisionState
from windlass.core.model.types import (
    Constraint,
    PodAssignment,
    Policy,
    Queue,
    Running,
    Topology,
    by_workload,
)
from windlass.core.preemption import reclaim_from_starts
from windlass.core.prefilter import equivalence_cache
from windlass.core.snapshot.snapshot import RunningPut, WorkloadGone, apply, build

pytestmark = CAMPAIGN


def test_a_borrower_does_not_start_before_an_entitled_workload_behind_a_blocked_head():
    """The head of b can never start; the one behind it is inside b's guarantee."""
    queues = [Queue("a"), Queue("b", guarantee={"gpu": 1000})]
    world = World([node("n1", 1)], queues)
    world.wait(
        workload("borrower", "a"), workload("head", "b", gpus=2, priority=90), workload("mine", "b")
    )
    world.decide()
    assert [each.workload for each in world.decision.placements] == ["mine"]
    assert {each.workload for each in world.decision.verdicts} == {"borrower", "head"}
    world.happen()
    assert world.rounds(5) == []


def behind_a_wide_head(nodes, *, guarantees=(1, 2), running, waiting):
    """Queue a: its first is too large for the guarantee, so queue b has a turn before the others
    of a, which are within their guarantee."""
    world = World(nodes, two_queues(*guarantees))
    for each, where in running:
        world.run(each, *where)
    return world.wait(workload("head", "a", gpus=9, priority=90), *waiting)


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_start_is_retracted_before_any_running_workload_is_evicted_for_it(preemptible):
    """With `late`, queue b holds more than its guarantee. If `late` cannot be stopped once it runs
    it stands before `runs`: that would have to go, though withholding is enough and still can be
    done."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 2)],
        running=[(workload("runs", "b"), ["n0"])],
        waiting=[workload("late", "b", gpus=2, preemptible=preemptible), workload("mine", "a")],
    )
    assert [each.workload for each in world.decide().placements] == ["mine"]
    assert world.evicted == {}
    world.happen()
    assert world.rounds(5) == []


def test_where_retracting_does_not_help_a_non_preemptible_start_stays_before_running_workloads():
    """`mine` fits on n0 only, `firm` starts on n1. Queue b has all of its guarantee in `firm`, so
    `runs` uses what is borrowed: now as in the next decision."""
    here = Constraint(names=frozenset(("n0",)))
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 2)],
        running=[(workload("runs", "b"), ["n0"])],
        waiting=[
            workload("non_preemptible", "b", gpus=2, preemptible=False),
            workload("mine", "a", constraint=here),
        ],
    )
    assert [each.workload for each in world.decide().placements] == ["non_preemptible"]
    assert world.evicted == {"runs": 1}
    settles(world, "mine")


@pytest.mark.parametrize("preemptible", [True, False])
def test_no_workload_is_evicted_because_of_a_start_that_is_then_retracted(preemptible):
    """With `late`, the surplus of `grown` is borrowed. Two of queue a have a right to capacity:
    that of `late` is enough for both, so nothing of `grown` goes for the first of them, and the
    second starts in the same decision."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 1), node("n2", 2)],
        guarantees=(2, 2),
        running=[(workload("grown", "b", most=2), ["n0", "n1"])],
        waiting=[
            workload("late", "b", gpus=2, preemptible=preemptible),
            workload("mine1", "a"),
            workload("mine2", "a"),
        ],
    )
    assert [each.workload for each in world.decide().placements] == ["mine1", "mine2"]
    assert world.evicted == {}
    world.happen()
    assert world.rounds(5) == []


@pytest.mark.parametrize("strict", [True, False])
def test_capacity_of_a_retracted_start_is_offered_to_all_waiting_workloads_in_the_same_decision(
    strict,
):
    """`late` is withheld for `mine`, which needs one of its two GPUs; `small` fits on the other. In
    a strict queue it stays behind `late`, which waits again."""
    queues = [Queue("a", guarantee={"gpu": 1000}), Queue("b", strict=strict)]
    world = World([node("n0", 2)], queues)
    world.wait(workload("head", "a", gpus=9, priority=90), workload("late", "b", gpus=2))
    world.wait(workload("mine", "a"), workload("small", "b"))
    started = ["mine"] if strict else ["mine", "small"]
    assert [each.workload for each in world.decide().placements] == started
    world.happen()
    assert world.rounds(5) == []


@pytest.mark.parametrize("preemptible", [True, False])
def test_a_workload_that_takes_a_starts_capacity_is_not_blocked_by_its_own_reservation(preemptible):
    """`mine` has a reservation for when `runs` ends, then `late` starts on what it needs now."""
    world = behind_a_wide_head(
        [node("n0", 1), node("n1", 1), node("n2", 1)],
        guarantees=(2, 1),
        running=[],
        waiting=[workload("late", "b", preemptible=preemptible), workload("mine", "a", 2)],
    )
    world.run(workload("runs", "b"), "n0", expected_end=NOW + 100)
    assert [each.workload for each in world.decide().placements] == ["mine"]
    assert world.evicted == {}
    assert "mine" not in {each.workload for each in world.decision.reservations}


# --- laws


class CrowdedCluster:
    """A world that is full: its dice, and so all of it, come from one number."""

    def __init__(self, seed, nodes, running, waiting):
        self.throw = throw = dice(seed, nodes, running, waiting)
        self.modest = throw.one_in(3)
        """No queue borrows and each holds a piece of some node: what does not fit must wait,
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
        """Mostly with guarantees that the cluster can just keep: then a borrowing queue takes from
        another, and one within its guarantee has a right to capacity that may lie in pieces."""
        fair = gpus // len(self.names)
        own = fair if self.modest else self.throw.choice((0, 1, fair, fair, fair))
        return Queue(
            name,
            guarantee={"gpu": 1000 * own},
            limit=self.throw.choice(({}, {}, {}, {"gpu": 4000}, {"gpu": 6000})),
            reserve=self.throw.randint(0, 1),
        )

    def fill(self, count):
        """Workloads sit where the dice put them, not where they would best: what is free lies in
        pieces. Quotas hold."""
        world = self.world
        for number in range(count):
            members, gpus = ((1,), (1,)) if self.modest else ((1, 1, 1, 1, 2), (0, 1, 1, 1, 1, 2))
            each = self.workload(f"r{number}", members, gpus, (10, 10, 50, 90))
            if each.queue == self.late and not self.throw.one_in(3):
                each = dataclasses.replace(each, queue=self.throw.choice(self.names))
            where, tree = self.pods(each), world.snapshot.tree
            more, non_preemptible = {"gpu": _gpus(each) * len(where)}, not each.preemptible
            if self.modest and (
                each.queue == self.late or not tree.within_guarantee(each.queue, more)
            ):
                continue
            if where and not tree.shortage(each.queue, more, non_preemptible=non_preemptible):
                world.run(each, *where, started=NOW - self.throw.randint(0, 5))
        world.policy = Policy(grow=self.throw.one_in(2))

    def pods(self, each):
        """Nodes with capacity for as many pods as the workload may have; none, if they are full."""
        role, cluster = each.roles[0], self.world.snapshot.cluster
        free = {
            n.name: min(
                (int(cluster.device_table.unlocked[i]) * 1000 // _gpus(each)) if _gpus(each) else 9,
                int(cluster.free[cluster.resources["cpu"], i]) // max(1, role.needs["cpu"]),
            )
            for i, n in enumerate(cluster.nodes)
            if each.topology is None or n.path == (self.rack,)
        }
        most = max(free.values(), default=0) if self.modest else 0
        places = [name for name, count in free.items() if count >= most for _ in range(count)]
        members = self.throw.randint(role.min_count, role.max_count)
        return self.throw.sample(places, members) if len(places) >= members else ()

    def comes(self, key):
        members, gpus = (
            ((1, 1, 2), (1, 2, 2)) if self.modest else ((1, 1, 1, 2, 3), (0, 1, 2, 2, 2))
        )
        each = self.workload(key, members, gpus, (10, 50, 90, 90))
        late = self.modest or self.throw.one_in(2)
        return dataclasses.replace(each, queue=self.late) if late else each

    def workload(self, key, members, gpus, priorities):
        throw = self.throw
        least = throw.choice(members)
        return workload(
            key, throw.choice(self.names), least, throw.choice(gpus),
            most=least + throw.choice((0, 0, 2)), priority=throw.choice(priorities),
            preemptible=not throw.one_in(8), cpu=throw.choice((0, 0, 1, 2)),
            topology=Topology("rack", required=True) if throw.one_in(4) else None,
        )  # fmt: skip


def _pod_index(numbers):
    note(f"Crowd{numbers}")  # a failure names it: its printed form would be empty
    return CrowdedCluster(*numbers)


crowds = st.tuples(
    st.integers(0, 1 << 32), st.sampled_from((3, 2, 4, 1)),
    st.sampled_from(range(10, 0, -1)), st.sampled_from((4, 3, 2, 1)),
).map(_pod_index)  # fmt: skip


def remaining(running: Running, told) -> tuple[PodAssignment, ...]:
    return tuple(s for s in running.pods if (s.role, s.index) not in told)


@cases(100, 2500)
@given(crowds)
def test_no_workload_is_evicted_without_a_preemptor_that_then_starts(pod_index):
    """I2 and I5."""
    world = pod_index.world
    found = world.decide()
    note(str(found))
    nominated = {each.workload for each in found.nominations}
    assert {eviction.preemptor for eviction in found.evictions} <= nominated
    for eviction in by_workload(found.evictions):
        victim = world.snapshot.running[eviction.workload]
        left = len(remaining(victim, eviction.pods))
        assert left == 0 or left >= victim.workload.roles[0].min_count
        assert victim.workload.preemptible
    world.happen().go()
    started = {each.workload for each in world.decide().placements}
    assert nominated <= started


@cases(100, 2500)
@given(crowds)
def test_no_victim_could_be_spared(pod_index):
    """I6: with any one victim back, the first preemptor does not fit, or has no right to what is
    taken from other queues for it: workloads that run, and starts that are withheld."""
    world = pod_index.world
    found = world.decide()
    preemptors = [each.preemptor for each in found.evictions]
    if not preemptors or set(preemptors) != {preemptors[0]} or found.placements:
        return  # several changes at once: none can be judged alone
    waiting = world.snapshot.waiting[preemptors[0]]
    base = world.snapshot.facts()
    with mock.patch.object(reclaim_from_starts, "run"):
        first = cycle.decide(world.snapshot, world.now, world.policy)
    withheld = [
        each.workload for each in first.placements if each.workload in world.snapshot.waiting
    ]
    for spared in found.evictions:
        gone = {e.workload: e.pods for e in found.evictions if e is not spared}
        running = [
            dataclasses.replace(r, pods=remaining(r, gone.get(r.workload.key, ())))
            for r in base.running
        ]
        facts = dataclasses.replace(
            base, waiting=(waiting,), running=tuple(r for r in running if r.pods)
        )
        calm = Policy(preempt=False, reclaim=False, grow=False)
        left = build(facts)
        makes_room = [world.snapshot.running[key].workload for key in gone]
        makes_room += [world.snapshot.waiting[key] for key in withheld]
        others = [each for each in makes_room if each.queue != waiting.queue]
        need = DecisionState(left, world.now, calm).need(waiting)
        if others and not left.tree.within_guarantee(waiting.queue, need):
            continue
        assert cycle.decide(left, world.now, calm).placements == ()


@cases(100, 2500)
@given(crowds)
def test_deciding_again_evicts_no_workload_and_all_end(pod_index):
    """I7. But a queue that grew beyond its guarantee may have to give up as much again: what was
    free lay in pieces, and for its pods elsewhere another workload may have a right to capacity.
    For that one, lower workloads of its own queue are evicted too, if only both together help."""
    world = pod_index.world
    before = dict(world.snapshot.running)
    world.decide()
    note(str(world.decision))
    grew, gives = Counter[str](), Counter[str]()
    for each in world.decision.placements:
        if each.workload in before:
            who = before[each.workload].workload
            grew[who.queue] += _devices_of(who, [pod.role for pod in each.pods])
    world.happen()
    again = world.decide()
    note(str(again))
    workloads = {key: each.workload for key, each in world.snapshot.running.items()}
    workloads |= world.snapshot.waiting
    both = {told.preemptor for told in again.evictions if workloads[told.workload].queue in grew}
    for told in again.evictions:
        who, preemptor = workloads[told.workload], workloads[told.preemptor]
        if who.queue != preemptor.queue or told.preemptor not in both:
            gives[who.queue] += _devices_of(who, [role for role, _ in told.pods])
    assert gives <= grew
    world.happen().go()
    world.rounds(6)
    assert world.rounds(3) == []


def _devices_of(who, members):
    roles = {role.name: sum(each.count for each in role.devices) for role in who.roles}
    return sum(roles[name] for name in members)


def test_what_a_queue_grew_by_comes_back_from_the_surplus_that_stands_last():
    """Its workload of higher priority grew by two where they are of no use to the reclaiming
    workload; the other gives up what it grew by, and a pod that it had before, behind the grown
    ones."""
    world = CrowdedCluster(300051, 4, 9, 4).world
    grown = {each.workload: len(each.pods) for each in world.decide().placements}
    assert grown == {"w1": 1, "r2": 2, "r3": 1}
    world.happen()
    (told,) = world.decide().evictions
    assert (told.workload, len(told.pods), told.preemptor) == ("r3", 2, "w3")
    world.happen().go()
    assert "w3" in {each.workload for each in world.decide().placements}
    world.happen()
    assert world.rounds(3) == []


def test_a_workload_pushed_beyond_the_guarantee_by_a_reservation_is_evicted_in_the_same_decision():
    """`w3` has a right to four devices and comes first, but `r2`, which has them, is inside its
    queue's guarantee. Then `w0` of that queue has a reservation and stands before `r2`."""
    world = CrowdedCluster(78, 4, 9, 4).world
    world.decide()
    assert world.evicted == {"r0": 1, "r3": 2, "r2": 2}
    assert {each.workload for each in world.decision.nominations} == {"w0", "w3"}
    world.happen().go()
    assert {each.workload for each in world.decide().placements} >= {"w0", "w3"}
    world.happen()
    assert world.rounds(3) == []


def test_a_workload_that_grew_beyond_a_guarantee_gives_back_as_much_where_it_helps():
    """The first world in which a decision after growth evicted a workload: two pieces of one device
    lie on two nodes; the workload that grows onto the one gives up a pod on the other."""
    world = CrowdedCluster(1, 3, 10, 4).world
    (grown,) = (each for each in world.decide().placements if each.workload == "r2")
    world.happen()
    (told,) = world.decide().evictions
    assert (told.workload, len(told.pods), told.preemptor) == ("r2", len(grown.pods), "w2")
    world.happen().go()
    assert "w2" in {each.workload for each in world.decide().placements}
    world.happen()
    assert world.rounds(3) == []


def test_a_non_preemptible_workload_grows_only_while_its_queue_borrows_nothing():
    """Two devices are free, in pieces; with one of them queue b would hold more than its guarantee,
    and `small`, which runs inside it, would have to go for `mine`."""
    world = World([node(f"n{i}", 2) for i in range(3)], two_queues(3, 3))
    non_preemptible = workload("non_preemptible", "b", most=3, preemptible=False)
    world.run(non_preemptible, "n0").run(workload("fixed", "b", preemptible=False), "n1")
    world.run(workload("small", "b", priority=10), "n2").wait(workload("mine", "a", gpus=2))
    assert world.decide().placements == world.decision.evictions == ()
    world.happen()
    assert world.rounds(3) == []
    apply(world.snapshot, [WorkloadGone("small"), WorkloadGone("mine")])
    assert [(each.workload, len(each.pods)) for each in world.decide().placements] == [
        ("non_preemptible", 1)
    ]


@cases(100, 2500)
@given(crowds)
def test_what_is_freed_is_held_for_the_preemptor_however_slowly_victims_go(pod_index):
    """I5 and I7: they go one by one, others come and ask for what is there already; the preemptors
    start all the same, and at the latest when the last victim is gone."""
    world = pod_index.world
    found = world.decide()
    note(str(found))
    preemptors = {each.workload for each in found.nominations}
    world.happen()
    greedy = [workload(f"x{i}", name, preempts=False) for i, name in enumerate(pod_index.names)]
    world.wait(*greedy, workload("x9", pod_index.names[0], gpus=0, preempts=False))
    while told := sorted(k for k, r in world.snapshot.running.items() if r.leaving):
        note(str(world.decide()))
        world.happen()
        leaves = world.snapshot.running[pod_index.throw.choice(told)]
        left = remaining(leaves, leaves.leaving)
        stays = RunningPut(dataclasses.replace(leaves, pods=left, leaving=()))
        apply(world.snapshot, [stays if left else WorkloadGone(leaves.workload.key)])
    note(str(world.decide()))
    world.happen()
    assert preemptors <= world.snapshot.running.keys()


@cases(100, 2500)
@given(crowds)
def test_no_other_queue_takes_what_is_inside_a_guarantee(pod_index):
    """I8: what other queues leave of a victim's queue plus the largest of the victims is more than
    its guarantee. What a workload of its own queue takes, that queue keeps; what starts in the same
    decision or reserves more than it takes there counts, for it may stand before a gang that is
    then beyond the guarantee."""
    world = pod_index.world
    found = world.decide()
    tree, snapshot = world.snapshot.tree, world.snapshot
    gone: dict[str, int] = {}
    taken: dict[str, int] = {}
    """By other queues."""
    promised = {
        each.workload: _gpus(snapshot.waiting[each.workload]) * len(each.pods)
        for each in found.nominations
    }
    """Beyond what is taken in its own queue for it."""
    kept, largest = dict[str, int](), dict[str, int]()
    """Queue -> what it keeps beyond its guarantee, and its largest victim."""
    for eviction in found.evictions:
        victim = snapshot.running[eviction.workload]
        given = _gpus(victim.workload) * len(eviction.pods)
        gone[eviction.workload] = gone.get(eviction.workload, 0) + given
        if snapshot.waiting[eviction.preemptor].queue != victim.workload.queue:
            taken[victim.workload.queue] = taken.get(victim.workload.queue, 0) + given
        else:
            promised[eviction.preemptor] = max(0, promised[eviction.preemptor] - given)
    for eviction in found.evictions:
        victim, preemptor = (
            snapshot.running[eviction.workload].workload,
            snapshot.waiting[eviction.preemptor],
        )
        if takes_surplus(snapshot, eviction):
            continue  # it yields to any minimum: test_yielding
        if victim.queue == preemptor.queue:
            assert victim.priority < preemptor.priority
            continue
        guaranteed = tree.guarantee[victim.queue].get("gpu", 0)
        assert _would_be_inside(world, found, preemptor), "it would borrow itself"
        left = tree.used[victim.queue].get("gpu", 0) - taken[victim.queue]
        left += sum(n for k, n in promised.items() if snapshot.waiting[k].queue == victim.queue)
        left += sum(
            1000 * len(pod.grants)
            for placement in found.placements
            if getattr(snapshot.waiting.get(placement.workload), "queue", "") == victim.queue
            for pod in placement.pods
        )
        # A gang across the edge goes whole: with smaller ones that came after it, its queue may
        # be inside.
        largest[victim.queue] = max(largest.get(victim.queue, 0), gone[eviction.workload])
        kept[victim.queue] = left - guaranteed
    assert all(more + largest[queue] > 0 for queue, more in kept.items())


def _would_be_inside(world, found, preemptor):
    """Whether a queue stays inside its guarantee with a workload, once all are gone that must
    go."""
    snapshot = world.snapshot
    gone = [(snapshot.running[e.workload].workload, len(e.pods)) for e in found.evictions]
    held = world.snapshot.tree.used[preemptor.queue].get("gpu", 0)
    held -= sum(_gpus(victim) * n for victim, n in gone if victim.queue == preemptor.queue)
    more = _gpus(preemptor) * preemptor.roles[0].min_count
    return held + more <= snapshot.tree.guarantee[preemptor.queue].get("gpu", 0)


def _gpus(each):
    return 1000 * sum(request.count for request in each.roles[0].devices)


@cases(100, 2500)
@given(crowds)
def test_a_workload_that_is_passed_over_would_have_waited_if_considered(pod_index):
    """Screening saves work and changes no answer. One waits alone, so that only the answer counts,
    not whose turn it was; nothing is reserved: a workload that may reserve is always considered."""
    world = pod_index.world
    facts = world.snapshot.facts()
    queues = tuple(dataclasses.replace(queue, reserve=0) for queue in facts.queues)
    for each in facts.waiting:
        alone = dataclasses.replace(facts, queues=queues, waiting=(each,))
        quick = cycle.decide(build(alone), world.now, world.policy)
        with mock.patch.object(equivalence_cache, "pass_over", return_value=False):
            asked = cycle.decide(build(alone), world.now, world.policy)
        note(f"{quick}\n{asked}")
        assert dataclasses.replace(quick, operations=0) == dataclasses.replace(asked, operations=0)
