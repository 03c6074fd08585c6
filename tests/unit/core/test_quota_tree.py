"""The sharing tree: limits, guarantees, lending, borrowing, the next queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.model.types import Queue
from windlass.core.quota.quota_tree import SHARE_UNIT, QuotaTree

CAPACITY = {"gpu": 16_000, "cpu": 100_000}


def gpus(count: float) -> dict[str, int]:
    return {"gpu": int(count * 1000)}


def queue(name: str, parent: str = "", guarantee=None, limit=None, lend=None, **more) -> Queue:
    def amounts(count):
        return {} if count is None else gpus(count)

    return Queue(name, parent, amounts(guarantee), amounts(limit), amounts(lend), **more)


def tree(*queues: Queue, capacity=CAPACITY, **used: float) -> QuotaTree:
    found = QuotaTree(queues, capacity)
    for name, count in used.items():
        found.add(name, gpus(count), non_preemptible=False)
    return found


LIMITS = {
    "room below the limit": (tree(queue("a", limit=4), a=2), "a", 2, None),
    "own limit": (tree(queue("a", limit=4), a=2), "a", 3, ("limit", "a", 2000, 1000)),
    "already over a limit that was lowered": (
        tree(queue("a", limit=4), a=6), "a", 1, ("limit", "a", 0, 1000),
    ),
    "the limit of a queue above counts all below it": (
        tree(queue("org", limit=4), queue("a", "org"), queue("b", "org"), a=1, b=2),
        "a", 2, ("limit", "org", 1000, 1000),
    ),
    "the nearest limit is named first": (
        tree(queue("org", limit=4), queue("a", "org", limit=4), a=4),
        "a", 1, ("limit", "a", 0, 1000),
    ),
    "no limit on what is asked": (tree(queue("a", limit=0), a=0), "a", 0, None),
}  # fmt: skip


@pytest.mark.parametrize(("found", "name", "asked", "answer"), LIMITS.values(), ids=LIMITS)
def test_limits(found, name, asked, answer):
    short = found.shortage(name, gpus(asked), non_preemptible=False)
    told = short and (short.rule, short.queue, short.left, short.deficit)
    assert told == answer


def test_a_non_preemptible_workload_leaves_the_guarantees_of_others():
    found = tree(queue("a", guarantee=4), queue("b", guarantee=10))
    assert found.shortage("a", gpus(6), non_preemptible=True) is None, (
        "2 of 16 are guaranteed to nobody"
    )
    found.add("a", gpus(3), non_preemptible=True)
    short = found.shortage("a", gpus(4), non_preemptible=True)
    assert (short.rule, short.queue, short.left) == ("guarantee", "a", 3000)
    assert found.shortage("a", gpus(9), non_preemptible=False) is None


def test_commitments_follow_every_change_as_if_counted_anew():
    queues = (
        queue("org", guarantee=6), queue("x", "org", guarantee=2), queue("y", "org"), queue("z"),
    )  # fmt: skip
    found = tree(*queues)
    assert found.shortage("z", gpus(10), non_preemptible=True) is None
    steps = [("x", 3, 1), ("org", 4, 1), ("y", 1, 1), ("z", 5, 1), ("org", 4, -1), ("x", 3, -1)]
    for name, count, sign in steps:
        found.add(name, gpus(count), non_preemptible=True, sign=sign)
        fresh = tree(*queues)
        for each, amounts in found.non_preemptible.items():
            direct = amounts.get("gpu", 0) - sum(
                found.non_preemptible[child].get("gpu", 0) for child in found.children.get(each, ())
            )
            fresh.add(each, {"gpu": direct}, non_preemptible=True)
        for each in found.queues:
            one, other = (t.shortage(each, gpus(99), non_preemptible=True) for t in (found, fresh))
            assert one.left == other.left, (name, each)


def test_what_the_queue_is_not_guaranteed_does_not_count_for_its_guarantee():
    found = tree(queue("a", guarantee=4), Queue("b", guarantee={"cpu": 50_000}))
    assert found.within_guarantee("a", {"gpu": 2000, "cpu": 90_000})
    assert not found.within_guarantee("a", {"cpu": 1000})
    assert not found.within_guarantee("b", {"gpu": 2000})


def test_what_is_not_lent_stays_out_of_reach_until_its_owner_uses_it():
    queues = (queue("a", guarantee=8, lend=2), queue("b"))
    found = tree(*queues)
    assert found.shortage("b", gpus(10), non_preemptible=False) is None
    short = found.shortage("b", gpus(11), non_preemptible=False)
    assert (short.rule, short.left) == ("lend", 10_000)
    assert tree(*queues, a=6).shortage("b", gpus(10), non_preemptible=False) is None
    assert tree(*queues, b=10).shortage("a", gpus(8), non_preemptible=False) is None


def test_what_a_queue_below_does_not_lend_is_kept_from_other_branches_too():
    found = tree(queue("org"), queue("a", "org", guarantee=8, lend=0), queue("b"))
    short = found.shortage("b", gpus(9), non_preemptible=False)
    assert (short.rule, short.left) == ("lend", 8000)


def test_everything_is_lent_if_nothing_else_is_said():
    assert (
        tree(queue("a", guarantee=8), queue("b")).shortage("b", gpus(16), non_preemptible=False)
        is None
    )


INSIDE = {
    "up to the guarantee": (tree(queue("a", guarantee=4), a=2), "a", 2, True),
    "not beyond": (tree(queue("a", guarantee=4), a=2), "a", 3, False),
    "not without a guarantee": (tree(queue("a"), queue("b", guarantee=4)), "a", 1, False),
    "nobody has a guarantee": (tree(queue("a")), "a", 1, False),
    "a branch has at least what is promised below it": (
        tree(queue("org"), queue("a", "org", guarantee=4)), "org", 4, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("found", "name", "asked", "answer"), INSIDE.values(), ids=INSIDE)
def test_inside(found, name, asked, answer):
    assert found.within_guarantee(name, gpus(asked)) is answer


def granted(found: QuotaTree) -> dict[str, int]:
    return {name: sums.get("gpu", 0) // 1000 for name, sums in found.guarantee.items()}


def test_guarantees_beyond_what_there_is_are_granted_in_full_one_after_another():
    three = [queue(name, guarantee=8) for name in "abc"]
    assert granted(tree(*three)) == {"a": 8, "b": 8, "c": 0}
    four = [queue(name, guarantee=6) for name in "abcd"]
    assert granted(tree(*four)) == {"a": 6, "b": 6, "c": 4, "d": 0}
    heavy = [*three[:2], queue("c", guarantee=8, weight=3)]
    assert granted(tree(*heavy)) == {"a": 8, "b": 0, "c": 8}


def test_the_last_gets_the_whole_devices_that_are_left():
    found = tree(queue("a", guarantee=5.5), queue("b", guarantee=12), capacity=gpus(16))
    assert found.guarantee == {"a": gpus(5.5), "b": gpus(10)}


def test_the_least_served_queue_is_granted_first_in_turns_of_an_hour_of_its_guarantee():
    """Queues a and b hold their guarantees; c waits."""
    queues, hour = [queue(name, guarantee=8) for name in "abc"], 3600 * 8 / 16
    found = tree(*queues, a=8, b=8)
    found.put_waiting("abc")
    found.put_served({"a": 3.9 * hour, "b": 3.8 * hour, "c": 3 * hour})
    assert granted(found.settled()) == {"a": 8, "b": 8, "c": 0}, "no turn is over yet"
    found.put_served({"a": 4.1 * hour, "b": 4.0 * hour, "c": 3 * hour})
    assert granted(found.settled()) == {"a": 0, "b": 8, "c": 8}
    fresh = tree(*queues, a=8, b=8)
    fresh.put_waiting("abc")
    fresh.put_served(found.served)
    assert fresh.settled().guarantee == found.guarantee
    after = tree(*queues, b=8, c=8)
    after.put_waiting("a")
    after.put_served({"a": 4.1 * hour, "b": 4.2 * hour, "c": 3.2 * hour})
    assert granted(after.settled()) == {"a": 0, "b": 8, "c": 8}, "a has just had its turn"
    after.put_served({"a": 3.9 * hour, "b": 5.2 * hour, "c": 4.1 * hour})
    assert granted(after.settled()) == {"a": 8, "b": 0, "c": 8}
    assert granted(after.resized({"gpu": 24_000}).settled()) == {"a": 8, "b": 8, "c": 8}
    after.put_waiting(())
    assert granted(after.settled()) == {"a": 0, "b": 8, "c": 8}, "a asks for nothing"


def test_children_take_turns_with_what_their_parent_was_granted():
    found = tree(
        queue("org", guarantee=12),
        queue("x", "org", guarantee=8),
        queue("y", "org", guarantee=4),
        queue("other", guarantee=12),
    )
    hour = 3600 * 12 / 16
    assert granted(found) == {"org": 12, "x": 8, "y": 4, "other": 4}
    found.put_served({"org": 1.2 * hour, "x": 1.2 * hour})
    assert granted(found.settled()) == {"org": 4, "x": 0, "y": 4, "other": 12}


def test_a_branch_is_guaranteed_its_own_or_its_childrens_whichever_is_more():
    found = tree(
        queue("org", guarantee=4),
        queue("a", "org", guarantee=3),
        queue("b", "org", guarantee=3),
        queue("wide", guarantee=8),
        queue("c", "wide", guarantee=1),
    )
    assert found.guarantee["org"] == gpus(6)
    assert found.guarantee["wide"] == gpus(8)


def test_a_borrower_holds_more_than_its_guarantee_of_a_counted_resource():
    found = tree(queue("a", guarantee=4), queue("b"), a=5, b=1)
    assert found.borrows("a", ["gpu"])
    assert found.borrows("b", ["gpu", "cpu"])
    assert not found.borrows("a", ["cpu"])
    assert not tree(queue("a", guarantee=4), a=4).borrows("a", ["gpu"])


def test_branches_part_below_the_first_queue_they_share():
    found = tree(
        queue("org"), queue("x", "org"), queue("y", "org"), queue("x1", "x"), queue("other")
    )
    assert found.diverging_paths("x1", "y") == (("x1", "x"), ("y",))
    assert found.diverging_paths("x1", "other") == (("x1", "x", "org"), ("other",))
    assert found.diverging_paths("x1", "x") == (("x1",), ())


def test_queues_within_their_guarantee_come_first_then_the_smallest_weighted_share():
    found = tree(queue("a", guarantee=4), queue("b", weight=4), queue("c"), a=3, b=4, c=2)
    order = sorted("abc", key=lambda name: found.rank(name, gpus(1)))
    assert order == ["a", "b", "c"]
    assert found.share("c") == SHARE_UNIT * 2 // 16
    assert found.share("b") == SHARE_UNIT * 4 // 16 // 4


def test_shares_follow_the_dominant_resource_and_past_use():
    found = tree(queue("a"), queue("b"))
    found.put_past_shares({"b": 0.5})
    found.add("a", {"cpu": 50_000, "gpu": 1000}, non_preemptible=False)
    assert found.share("a") == SHARE_UNIT // 2
    assert found.share("b") == SHARE_UNIT // 2
    assert found.share_with("a", gpus(15)) == SHARE_UNIT


BROKEN = {
    "itself": ([queue("a", "a")], "a", "queue a is below itself: a -> a"),
    "a cycle": ([queue("a", "b"), queue("b", "a")], "a", "queue a is below itself: a -> b -> a"),
    "no such parent": (
        [queue("a", "b"), queue("b", "zz")], "a",
        "queue b names the parent zz, which does not exist",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("queues", "name", "message"), BROKEN.values(), ids=BROKEN)
def test_queues_that_do_not_make_a_tree_are_named(queues, name, message):
    assert tree(*queues).broken[name] == message


def test_a_fork_changes_nothing_in_what_it_came_from():
    found = tree(queue("a", guarantee=4), a=1)
    twin = found.fork()
    twin.add("a", gpus(2), non_preemptible=True)
    assert (found.used["a"], found.non_preemptible["a"], found.total) == (gpus(1), {}, gpus(1))
    assert twin.share("a") != found.share("a")


names = st.sampled_from(["org", "x", "y", "x1", "x2", "z"])
changes = st.lists(st.tuples(names, st.integers(0, 5), st.booleans()), max_size=20)


@given(changes)
def test_a_queue_holds_what_it_and_all_below_it_were_given(changes):
    found = tree(
        queue("org"), queue("x", "org"), queue("y", "org"), queue("x1", "x"), queue("x2", "x"),
        queue("z"),
    )  # fmt: skip
    for name, count, firm in changes:
        found.add(name, gpus(count), non_preemptible=firm)
    for name in found.queues:
        below = [c for n, c, _ in changes if name in found.path(n)]
        firm = [c for n, c, f in changes if f and name in found.path(n)]
        assert found.used[name].get("gpu", 0) == 1000 * sum(below)
        assert found.non_preemptible[name].get("gpu", 0) == 1000 * sum(firm)
    assert found.total.get("gpu", 0) == 1000 * sum(count for _, count, _ in changes)
    for name, count, firm in changes:
        found.add(name, gpus(count), non_preemptible=firm, sign=-1)
    assert all(
        not any(sums.values()) for sums in (*found.used.values(), *found.non_preemptible.values())
    )


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=2, max_size=4),
    st.integers(1, 8),
)
def test_borrowing_never_touches_what_others_keep_back(rows, asked):
    queues = [queue(f"q{i}", guarantee=g, lend=min(g, lend)) for i, (g, lend) in enumerate(rows)]
    found = tree(*queues)
    if found.shortage(
        "q0", gpus(asked), non_preemptible=False
    ) is None and not found.within_guarantee("q0", gpus(asked)):
        found.add("q0", gpus(asked), non_preemptible=False)
        for i in range(1, len(rows)):
            own = found.guarantee[f"q{i}"].get("gpu", 0)
            kept = own - min(own, found.queues[f"q{i}"].lend.get("gpu", own))
            found.add(f"q{i}", {"gpu": kept}, non_preemptible=False)
        assert found.total["gpu"] <= max(CAPACITY["gpu"], 0) or not found.guaranteed
