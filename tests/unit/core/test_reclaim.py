"""The contract between queues: what may be reclaimed, from which queue, in which order, at what
cost."""

import pytest

from tests.unit.core.preempting import NOW, World, node, settles, two_queues, workload
from windlass.core.model.types import Constraint, Queue
from windlass.kinds.reasons import Reason


def gpus(count):
    return {"gpu": 1000 * count}


# --- several resources: only those that a queue itself is guaranteed count


def test_a_cpu_guarantee_of_another_queue_does_not_void_a_gpu_guarantee():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 64_000}), Queue("c")]
    world = World([node("n1")], queues)
    world.start(*(workload(f"c{i}", "c") for i in range(8)))
    world.wait(workload("a1", "a", gpus=8, cpu=16)).decide()
    assert sum(world.evicted.values()) == 8
    settles(world, "a1")


def test_a_cpu_guarantee_of_another_queue_does_not_keep_non_preemptible_runs_waiting():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 32_000})]
    world = World([node("n1")], queues)
    world.wait(workload("a1", "a", gpus=8, cpu=16, preemptible=False)).decide()
    assert [each.workload for each in world.decision.placements] == ["a1"]


def test_what_a_queue_is_not_guaranteed_it_does_not_reclaim():
    """It finds the resource that it is guaranteed and is short of another."""
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 8000}), Queue("c")]
    world = World([node("n1", cpu=64)], queues)
    world.run(workload("c1", "c", gpus=1, cpu=60), "n1")
    world.wait(workload("a1", "a", gpus=4, cpu=16)).decide()
    assert world.evicted == {}
    queues = [Queue("a", guarantee={"cpu": 8000}), Queue("c")]
    world = World([node("n1", cpu=64)], queues)
    world.run(workload("c1", "c", gpus=8, cpu=8), "n1")
    world.wait(workload("a1", "a", gpus=8, cpu=8)).decide()
    assert world.evicted == {}


@pytest.mark.parametrize(("runs", "waits"), [("a", "b"), ("b", "a")])
def test_of_two_workloads_that_could_stop_each_other_the_running_one_goes_on(runs, waits):
    """One is guaranteed the GPUs, the other the CPU, and both need all of both."""
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 64_000})]
    world = World([node("n1", cpu=64)], queues)
    world.run(workload("first", runs, gpus=8, cpu=64), "n1")
    world.wait(workload("second", waits, gpus=8, cpu=64)).decide()
    assert world.evicted == {}


@pytest.mark.parametrize(("runs", "waits"), [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("place", ["pieces", "one node", "unlike"])
def test_nor_do_they_in_turns_where_enough_is_free_that_they_cannot_use(runs, waits, place):
    """`pieces`: on two nodes of half the size; `one node`: on a node that both do not accept;
    `unlike`: each of them could use what is free of one resource, and not of the other."""
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 64_000})]
    halves = [node("n2", 4, cpu=32), node("n3", 4, cpu=32)]
    there = [node("n1", cpu=64), *([node("n2", cpu=64)] if place == "one node" else halves)]
    only = {"constraint": Constraint(names=frozenset({"n1"}))} if place == "one node" else {}
    a, b = ((8, 32), (4, 64)) if place == "unlike" else ((8, 64), (8, 64))
    size = {"a": a, "b": b}
    world = World(there, queues)
    first, second = size[runs], size[waits]
    world.run(workload("first", runs, gpus=first[0], cpu=first[1], **only), "n1")
    world.wait(workload("second", waits, gpus=second[0], cpu=second[1], **only))
    evictions = 0
    for _ in range(8):
        world.now += 700.0
        evictions += len(world.rounds(1))
    assert evictions == 0


def test_where_the_other_resource_is_not_short_the_guarantee_is_taken_back():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 64_000})]
    world = World([node("n1", cpu=64)], queues)
    world.run(workload("first", "b", gpus=8, cpu=32), "n1")
    world.wait(workload("second", "a", gpus=8, cpu=32)).decide()
    assert world.evicted == {"first": 1}
    settles(world, "second")


def test_a_victim_that_fits_elsewhere_with_what_is_left_of_its_place_is_evicted():
    """It is short of nothing then, and takes nothing back."""
    queues = [Queue("a", guarantee=gpus(4)), Queue("b", guarantee={"cpu": 64_000})]
    world = World([node("n0", cpu=64), node("n1", 4, cpu=64)], queues)
    world.run(workload("first", "b", members=2, gpus=4), "n0", "n0")
    only = Constraint(names=frozenset({"n0"}))
    world.wait(workload("second", "a", gpus=4, constraint=only)).decide()
    assert world.evicted == {"first": 2}
    settles(world, "second")
    assert world.runs("first")


def test_two_starts_that_could_withhold_each_other_end_the_decision():
    """Both have a right to what the other would borrow, and neither runs yet."""
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee={"cpu": 64_000})]
    world = World([node("n1", cpu=64)], queues)
    world.wait(workload("one", "a", gpus=8, cpu=64), workload("two", "b", gpus=8, cpu=64)).decide()
    assert len(world.decision.placements) == 1


def test_a_queue_reclaims_what_it_is_guaranteed_where_only_the_combination_is_missing():
    queues = [Queue("a", guarantee=gpus(8)), Queue("c")]
    world = World([node("gpus", 8, cpu=4), node("cpus", 8, cpu=64)], queues)
    world.run(workload("c1", "c", gpus=0, cpu=4), "gpus").run(
        workload("c2", "c", gpus=8, cpu=4), "cpus"
    )
    world.wait(workload("a1", "a", gpus=8, cpu=16)).decide()
    assert world.evicted == {"c2": 1}
    settles(world, "a1")


def test_above_the_queue_only_resources_of_its_own_guarantee_are_judged():
    """The CPU of org is used up by a sibling; the GPUs of a are reclaimed all the same."""
    queues = [
        Queue("org", guarantee={"gpu": 8000, "cpu": 16_000}),
        Queue("a", parent="org", guarantee=gpus(8)),
        Queue("b", parent="org"),
        Queue("c"),
    ]
    world = World([node("n1"), node("n2", 0)], queues)
    world.run(workload("b1", "b", gpus=0, cpu=16), "n2")
    world.start(*(workload(f"c{i}", "c") for i in range(8)))
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert {key[0] for key in world.evicted} == {"c"}
    settles(world, "a1")


# --- non-preemptible workloads: what is guaranteed to no queue is for all


def test_capacity_without_a_guarantee_may_be_used_by_non_preemptible_workloads():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b")]
    world = World([node(f"n{i}") for i in range(8)], queues)
    firm = [workload(f"b{i}", "b", gpus=8, preemptible=False) for i in range(8)]
    world.wait(*firm).decide()
    assert len(world.decision.placements) == 7, "56 of 64 GPUs are guaranteed to nobody"
    (verdict,) = world.decision.verdicts
    assert verdict.reason is Reason.WAITING_FOR_QUOTA
    assert verdict.message == (
        "needs 8 gpu and must not be preempted; non-preemptible workloads of queue b may use 0 "
        "gpu more of what is not guaranteed to other queues"
    )
    assert verdict.deficit == 8000


def test_beyond_its_guarantee_a_queue_commits_only_what_is_guaranteed_to_no_queue():
    queues = [Queue("a", guarantee=gpus(4)), Queue("b", guarantee=gpus(6))]
    world = World([node("n1"), node("n2")], queues)
    world.wait(workload("b1", "b", gpus=7, preemptible=False)).decide()
    assert [each.workload for each in world.decision.placements] == ["b1"]
    world.happen()
    world.wait(workload("b2", "b", gpus=6, preemptible=False)).decide()
    (verdict,) = world.decision.verdicts
    assert verdict.deficit == 1000, "6 guaranteed and 6 that nobody is guaranteed, less 7 in use"


def test_what_is_held_in_a_parent_counts_against_its_own_slack_first():
    queues = [
        Queue("org", guarantee=gpus(8)),
        Queue("x", parent="org", guarantee=gpus(4)),
        Queue("y", guarantee=gpus(8)),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.wait(workload("o1", "org", gpus=4, preemptible=False)).decide()
    assert world.decision.placements
    world.happen()
    world.wait(workload("o2", "org", gpus=1, preemptible=False)).decide()
    assert not world.decision.placements, "the other 4 of org are guaranteed to x"
    world.wait(workload("x1", "x", gpus=4, preemptible=False)).decide()
    assert [each.workload for each in world.decision.placements] == ["x1"]


def test_a_non_preemptible_workload_grows_by_the_same_rule():
    queues = [Queue("a", guarantee=gpus(4)), Queue("b")]
    world = World([node("n1")], queues)
    world.run(workload("b1", "b", most=8, preemptible=False), "n1").decide()
    assert [len(each.pods) for each in world.decision.placements] == [3]


# --- what is borrowed is an amount, not a set of workloads


def test_what_is_borrowed_is_reclaimed_in_the_place_where_it_is_needed():
    """The youngest workloads of b lie on both nodes; a needs all of one node."""
    world = World([node("n1"), node("n2")], two_queues())
    for i in range(16):
        world.run(workload(f"b{i:02}", "b"), f"n{i % 2 + 1}", started=NOW - 1000 + i)
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert sum(world.evicted.values()) == 8
    settles(world, "a1")
    assert sum(len(r.pods) for r in world.snapshot.running.values()) == 9, "b keeps its 8"


def test_a_gang_reclaims_whole_nodes_from_several_queues_within_what_each_borrows():
    queues = [Queue("a", guarantee=gpus(16)), *(Queue(n, guarantee=gpus(4)) for n in "bcd")]
    world = World([node(f"n{i}") for i in range(4)], queues)
    for i in range(30):
        world.run(workload(f"{'bcd'[i % 3]}{i:02}", "bcd"[i % 3]), f"n{i // 8}", started=NOW - i)
    world.wait(workload("a1", "a", 2, 8)).decide()
    assert 14 <= sum(world.evicted.values()) <= 16
    settles(world, "a1")
    for name in "bcd":
        assert world.snapshot.tree.used[name]["gpu"] >= 4000


def test_by_place_no_queue_is_taken_below_its_guarantee():
    """On each node b and c hold four. Both are guaranteed six of eight: two may go of each."""
    queues = [Queue("a", guarantee=gpus(4)), *(Queue(n, guarantee=gpus(6)) for n in "bc")]
    world = World([node("n1"), node("n2")], queues)
    for i in range(16):
        name = "bc"[i // 4 % 2]
        world.run(workload(f"{name}{i:02}", name), f"n{i // 8 + 1}", started=NOW - 1000 + i)
    world.wait(workload("a1", "a", gpus=4)).decide()
    victims = sorted(key[0] for key in world.evicted)
    assert victims == ["b", "b", "c", "c"]
    settles(world, "a1")


# --- entitlement is judged on the state after the victims


def cousins():
    """Queue a is guaranteed all of org; its sibling borrows from it, and so does c, beside org."""
    return [
        Queue("org", guarantee=gpus(8)),
        Queue("a", parent="org", guarantee=gpus(8)),
        Queue("b", parent="org"),
        Queue("c"),
    ]


def test_a_gang_takes_one_half_from_a_sibling_and_the_other_from_a_cousin():
    world = World([node("n1")], cousins())
    world.run(workload("b1", "b", gpus=4), "n1").run(workload("c1", "c", gpus=4), "n1")
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert world.evicted == {"b1": 1, "c1": 1}
    settles(world, "a1")


@pytest.mark.parametrize("sibling", [True, False])
def test_a_cousin_gives_nothing_that_the_parent_is_not_guaranteed(sibling):
    """Org is guaranteed eight and b holds four of them. As long as these stay, a has no right to
    eight from beside org."""
    world = World([node("n1"), node("n2")], cousins())
    world.run(workload("b1", "b", gpus=4, preemptible=sibling), "n1")
    world.run(workload("c1", "c", gpus=4), "n1").run(workload("c2", "c", gpus=8), "n2")
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert set(world.evicted) == ({"b1", "c1"} if sibling else set())


def test_a_queue_takes_back_what_a_queue_below_it_borrows():
    queues = [Queue("org", guarantee=gpus(8)), Queue("x", parent="org", guarantee=gpus(2))]
    world = World([node("n1")], queues)
    world.start(*(workload(f"x{i}", "x") for i in range(8)))
    world.wait(workload("mine", "org", gpus=6)).decide()
    assert sum(world.evicted.values()) == 6
    settles(world, "mine")


def test_what_is_used_in_a_parent_itself_is_given_back_to_its_children():
    """All of org's guarantee is a's nominal guarantee; a workload of org itself holds it."""
    queues = [Queue("org", guarantee=gpus(8)), Queue("a", parent="org", guarantee=gpus(8))]
    world = World([node("n1")], queues)
    world.run(workload("direct", "org", gpus=8), "n1")
    world.wait(workload("a1", "a", gpus=8)).decide()
    assert world.evicted == {"direct": 1}
    settles(world, "a1")


# --- the order of victims


def test_the_queue_that_borrows_most_gives_first():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b"), Queue("c")]
    world = World([node("n1")], queues)
    world.run(workload("c1", "c", priority=10), "n1", started=NOW - 10)
    for i in range(7):
        world.run(workload(f"b{i}", "b", priority=90), "n1", started=NOW - 9000)
    world.wait(workload("a1", "a")).decide()
    assert {key[0] for key in world.evicted} == {"b"}


def test_what_is_borrowed_counts_against_the_weight():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", weight=4), Queue("c")]
    world = World([node("n1")], queues)
    for i in range(8):
        world.run(workload(f"{'bc'[i // 6]}{i}", "bc"[i // 6]), "n1")
    world.wait(workload("a1", "a")).decide()
    assert {key[0] for key in world.evicted} == {"c"}, "6 at weight 4 is less than 2 at weight 1"


def test_several_victims_are_taken_so_that_the_larger_borrower_gives_more():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b"), Queue("c")]
    world = World([node("n1")], queues)
    for i in range(8):
        world.run(workload(f"{'bc'[i // 5]}{i}", "bc"[i // 5]), "n1")
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert sorted(key[0] for key in world.evicted) == ["b", "b", "b", "c"], "5 and 3 become 2 and 2"


def test_a_priority_counts_only_as_far_as_its_queue_allows_also_between_queues():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", max_priority=50)]
    world = World([node("n1")], queues)
    world.run(workload("loud", "b", gpus=4, priority=99), "n1", started=NOW - 10)
    world.run(workload("quiet", "b", gpus=4, priority=50), "n1", started=NOW - 9000)
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert world.evicted == {"loud": 1}, "both count 50: the one that loses less work goes"


def test_in_a_queue_the_workload_that_loses_least_goes_first():
    world = World([node("n1")], two_queues(4, 4))
    world.run(workload("saved", "b", gpus=4), "n1", started=NOW - 9000, checkpoint_at=NOW - 5)
    world.run(workload("young", "b", gpus=4), "n1", started=NOW - 600)
    world.wait(workload("a1", "a", gpus=4)).decide()
    assert world.evicted == {"saved": 1}


def test_below_a_parent_the_child_furthest_above_its_share_gives_first():
    queues = [
        Queue("a", guarantee=gpus(8)),
        Queue("org"),
        Queue("x", parent="org", guarantee=gpus(1)),
        Queue("y", parent="org"),
    ]
    world = World([node("n1")], queues)
    for i in range(8):
        name = "xy"[i > 2]
        world.run(workload(f"{name}{i}", name, priority=10 if name == "x" else 90), "n1")
    world.wait(workload("a1", "a", gpus=2)).decide()
    assert {key[0] for key in world.evicted} == {"y"}


# --- gangs that reach into a guarantee


def gang_of_sixteen(**more):
    """Queue b holds 16 of 16 in one gang and is guaranteed 8."""
    world = World([node("n1"), node("n2")], two_queues())
    return world.run(workload("gang", "b", 2, 8, **more.pop("workload", {})), "n1", "n2", **more)


def test_a_gang_goes_below_its_guarantee_only_when_nothing_else_does():
    world = World([node(f"n{i}") for i in range(3)], two_queues(8, 9))
    world.run(workload("gang", "b", 2, 8), "n0", "n1", started=NOW - 7000)
    for i in range(8):
        world.run(workload(f"b{i}", "b"), "n2", started=NOW - 9000)
    world.wait(workload("a1", "a")).decide()
    assert len(world.evicted) == 1
    assert "gang" not in world.evicted


def test_of_two_gangs_the_one_goes_that_leaves_its_queue_least_below():
    queues = [
        Queue("a", guarantee=gpus(4)),
        Queue("b", guarantee=gpus(6)),
        Queue("c", guarantee=gpus(6)),
    ]
    world = World([node("n1"), node("n2")], queues)
    world.run(workload("b1", "b", gpus=8), "n1", started=NOW - 700)
    world.run(workload("c1", "c", 2, 4), "n2", "n2", started=NOW - 90_000)
    world.wait(workload("a1", "a", gpus=2)).decide()
    assert world.evicted == {"b1": 1}, "both leave 6 too little: less work is lost"
    queues[1] = Queue("b", guarantee=gpus(7))
    world = World([node("n1"), node("n2")], queues)
    world.run(workload("b1", "b", gpus=8), "n1", started=NOW - 700)
    world.run(workload("c1", "c", 2, 4), "n2", "n2", started=NOW - 90_000)
    world.wait(workload("a1", "a", gpus=1)).decide()
    assert world.evicted == {"c1": 2}


def test_a_gang_that_reaches_into_its_guarantee_runs_for_ten_minutes_at_least():
    world = gang_of_sixteen(started=NOW - 60)
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {}
    (verdict,) = world.decision.verdicts
    assert "reaches into its queue's guarantee; it is protected until" in verdict.message
    assert world.decision.wake_at == NOW + 540
    world.now = NOW + 540
    world.decide()
    assert world.evicted == {"gang": 2}
    settles(world, "a1")


def test_each_preemption_doubles_the_time_that_it_runs_before_the_next():
    world = gang_of_sixteen(started=NOW - 3600, workload={"preemptions": 3})
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {}
    assert world.decision.wake_at == NOW - 3600 + 600 * 2**3


def test_a_longer_minimum_run_time_of_the_queue_counts_instead():
    queues = [Queue("a", guarantee=gpus(8)), Queue("b", guarantee=gpus(8), min_runtime=1800)]
    world = World([node("n1"), node("n2")], queues)
    world.run(workload("gang", "b", 2, 8, preemptions=1), "n1", "n2", started=NOW - 3000)
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {}
    assert world.decision.wake_at == NOW + 600


def test_the_surplus_of_an_elastic_gang_goes_before_the_gang():
    world = World([node("n1"), node("n2")], two_queues())
    world.run(workload("wide", "b", 1, 8, most=2), "n1", "n2", started=NOW - 60)
    world.wait(workload("a1", "a")).decide()
    assert world.evicted == {"wide": 1}


def test_a_start_that_is_withheld_gives_no_right_to_what_runs_inside_a_guarantee():
    """`mine` needs a port on two nodes: n1, where `late` is about to start, and n0, where `grown`
    has surplus. Queue b holds its guarantee in `grown`; only with `late` would it borrow, and
    without `late` it would be left below. So `late` starts, and `mine` waits until `late`, which
    goes only as a whole, has run long enough."""
    world = World([node("n0", 2), node("n1", 2)], two_queues(2, 2))
    world.run(workload("grown", "b", most=2), "n0", "n0")
    world.wait(workload("head", "a", gpus=9, priority=90), workload("late", "b", gpus=2))
    world.wait(workload("mine", "a", 2, ports=(8080,)))
    assert [each.workload for each in world.decide().placements] == ["late"]
    assert world.evicted == {}
    world.happen()
    assert world.decide().evictions == ()
    assert world.decision.wake_at == NOW + 600
    world.now = NOW + 600
    assert {each.workload for each in world.decide().evictions} == {"grown", "late"}
    settles(world, "mine")


# --- guarantees that add up to more than there is


def test_a_queue_that_asks_for_nothing_takes_no_turn_of_one_that_waits():
    """Three guarantees of a node, of which two are left. Those of `a` would be its turn."""
    queues = [*(Queue(name, guarantee=gpus(8)) for name in "abc"), Queue("guest")]
    world = World([node("n0"), node("n1")], queues)
    world.run(workload("b1", "b", gpus=8), "n0").run(workload("guest1", "guest", gpus=8), "n1")
    world.wait(workload("c1", "c", gpus=8)).decide()
    assert world.evicted == {"guest1": 1}
    settles(world, "c1")
    world.wait(workload("a1", "a", gpus=8))
    assert world.rounds(3) == [], "b and c use their turns"


def test_starts_of_one_decision_do_not_stop_workloads_in_the_next():
    """With nodes lost, which guarantees hold depends on what queues use, which starts change."""
    queues = [*(Queue(name, guarantee=gpus(8)) for name in "abcd")]
    world = World([node("n0"), node("n1", 4), node("n2", 4)], queues)
    for name in "dcba":
        world.wait(*(workload(f"{name}{number}", name, gpus=4) for number in range(3)))
    assert world.rounds(1) == []
    assert len(world.snapshot.running) == 4
    assert world.rounds(5) == []
