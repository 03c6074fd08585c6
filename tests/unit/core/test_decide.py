import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.decide import decide
from windlass.core.snapshot import (
    Group,
    Node,
    Policy,
    Queue,
    Snapshot,
    Taint,
    Toleration,
    Unit,
)
from windlass.kinds.reasons import Reason

Gi = 1 << 30


DEFAULT = (Queue("default"),)


def node(name="n1", cpu=4.0, memory=8, gpu=0, used_cpu=0.0, used_memory=0, **more) -> Node:
    capacity = {"cpu": int(cpu * 1000), "memory": memory * Gi, "gpu": gpu * 1000}
    free = capacity | {
        "cpu": int((cpu - used_cpu) * 1000),
        "memory": (memory - used_memory) * Gi,
    }
    return Node(name, capacity, free, **more)


def group(name="worker", least=1, most=None, cpu=1.0, memory=1, gpu=0) -> Group:
    needs = {"cpu": int(cpu * 1000), "memory": memory * Gi}
    return Group(name, least, most or least, needs | ({"gpu": gpu * 1000} if gpu else {}))


def unit(key="u", *groups: Group, queue="default", priority=50, submitted=0.0, **more) -> Unit:
    return Unit(key, queue, priority, submitted, groups or (group(),), **more)


def decided(nodes, units, queues=DEFAULT, now=100.0, policy=None):
    return decide(Snapshot(tuple(nodes), tuple(units), tuple(queues)), now, policy or Policy())


def placed(decision) -> dict[str, dict[str, tuple[str, ...]]]:
    return {p.unit: dict(p.members) for p in decision.placements}


def test_a_unit_that_fits_goes_to_the_first_node_by_name():
    assert placed(decided([node("b"), node("a")], [unit()])) == {"u": {"worker": ("a",)}}


def test_members_spill_over_to_the_next_node():
    decision = decided([node("a", cpu=2), node("b", cpu=2)], [unit("u", group(least=3))])
    assert placed(decision) == {"u": {"worker": ("a", "a", "b")}}


def test_a_gang_gets_all_of_its_groups_or_nothing_and_takes_no_room_in_vain():
    gang = unit("gang", group("a", least=3), group("b", least=2), priority=90)
    small = unit("small", group(least=4))
    decision = decided([node(cpu=4)], [gang, small])
    assert placed(decision) == {"small": {"worker": ("n1",) * 4}}
    assert [v.unit for v in decision.verdicts] == ["gang"]


def test_an_elastic_unit_takes_up_to_the_most_after_the_least_of_every_group():
    elastic = unit("u", group("a", least=1, most=9), group("b", least=2))
    decision = decided([node(cpu=4)], [elastic])
    assert {name: len(nodes) for name, nodes in placed(decision)["u"].items()} == {"a": 2, "b": 2}


def test_higher_priority_first_then_older():
    units = [
        unit("young", group(cpu=3), submitted=2),
        unit("old", group(cpu=3), submitted=1),
        unit("urgent", group(cpu=3), submitted=3, priority=60),
    ]
    assert list(placed(decided([node("a"), node("b")], units))) == ["urgent", "old"]


def test_the_queues_max_priority_caps_it():
    units = [unit("old", group(cpu=3), submitted=1), unit("loud", group(cpu=3), priority=999)]
    units[1] = dataclasses.replace(units[1], submitted=2)
    assert list(placed(decided([node()], units, [Queue("default", max_priority=50)]))) == ["old"]


VERDICTS = {
    "cpu short": (
        [node(cpu=4, used_cpu=2.5)], unit("u", group(cpu=4)),
        Reason.WAITING_FOR_CAPACITY, "needs 4 cpu; 1.5 free on the roomiest node",
    ),
    "gang partly fits": (
        [node(cpu=4)], unit("u", group(least=6)),
        Reason.WAITING_FOR_CAPACITY,
        "needs 6 x 1 cpu; room for 4 of 6 now; 0 free on the roomiest node",
    ),
    "each dimension somewhere, never together": (
        [node("a", cpu=8, used_cpu=7), node("b", cpu=8, used_memory=6)],
        unit("u", group(cpu=7, memory=8)),
        Reason.WAITING_FOR_CAPACITY,
        "needs 7 cpu and 8Gi memory; no node has all of it free",
    ),
    "never fits": (
        [node("a", cpu=4), node("b", cpu=6)], unit("u", group(cpu=64)),
        Reason.IMPOSSIBLE, "needs 64 cpu on one node; the largest, b, has 6",
    ),
    "memory never fits": (
        [node(memory=8)], unit("u", group(memory=100)),
        Reason.IMPOSSIBLE, "needs 100Gi memory on one node; the largest, n1, has 8Gi",
    ),
    "no device of that kind": (
        [node()], unit("u", group(gpu=2)),
        Reason.IMPOSSIBLE, "needs 2 gpu on one node; the largest, n1, has 0",
    ),
    "no node has the labels": (
        [node()], unit("u", selector={"zone": "a"}),
        Reason.IMPOSSIBLE, "no node has the labels and taints that spec.placement.nodes asks for",
    ),
    "the only node is cordoned": (
        [node(open=False)], unit("u"),
        Reason.WAITING_FOR_CAPACITY, "needs 1 cpu and 1Gi memory; no node that may run it is ready",
    ),
    "no such queue": (
        [node()], unit("u", queue="defualt"),
        Reason.NO_SUCH_QUEUE, "queue defualt does not exist; did you mean default?",
    ),
    "unsupported": (
        [node()], unit("u", unsupported="no images here"), Reason.UNSUPPORTED, "no images here",
    ),
    "no nodes at all": (
        [], unit("u"), Reason.WAITING_FOR_CAPACITY, "no node has joined yet",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "waiting", "reason", "message"), VERDICTS.values(), ids=VERDICTS)
def test_verdicts_name_the_dimension_and_the_deficit(nodes, waiting, reason, message):
    decision = decided(nodes, [waiting])
    assert decision.placements == ()
    (verdict,) = decision.verdicts
    assert verdict.reason == reason
    assert verdict.message == message


def test_a_queues_limit_counts_what_it_and_the_queues_below_it_hold():
    queues = [
        Queue("company", limit={"cpu": 5000}),
        Queue("default", parent="company", used={"cpu": 1000}),
        Queue("other", parent="company", used={"cpu": 2000}),
    ]
    decision = decided([node(cpu=32)], [unit("a", group(cpu=3)), unit("b", group(cpu=2))], queues)
    assert list(placed(decision)) == ["b"]
    assert decision.verdicts[0].reason == Reason.WAITING_FOR_QUOTA
    assert decision.verdicts[0].message == "needs 3 cpu; queue company may use 2 more"


def test_what_was_just_placed_counts_against_the_limit():
    queues = [Queue("default", limit={"cpu": 1500})]
    decision = decided([node(cpu=32)], [unit("a"), unit("b", submitted=1)], queues)
    assert list(placed(decision)) == ["a"]


def test_in_a_strict_queue_the_head_blocks_those_behind_it():
    units = [unit("head", group(cpu=3), submitted=1), unit("tail", submitted=2)]
    nodes = [node(cpu=4, used_cpu=2)]
    assert list(placed(decided(nodes, units))) == ["tail"]
    strict = decided(nodes, units, [Queue("default", strict=True)])
    assert [v.reason for v in strict.verdicts] == [
        Reason.WAITING_FOR_CAPACITY,
        Reason.BEHIND_IN_QUEUE,
    ]


def test_taints_keep_out_who_does_not_tolerate_them():
    tainted = node("a", taints=(Taint("gpu", "yes", "NoSchedule"),))
    assert placed(decided([tainted, node("b")], [unit()])) == {"u": {"worker": ("b",)}}
    tolerant = unit("u", tolerations=(Toleration("gpu", "Exists", "", ""),))
    assert placed(decided([tainted, node("b")], [tolerant])) == {"u": {"worker": ("a",)}}


def test_a_unit_before_its_time_is_not_judged_and_sets_the_next_wake():
    decision = decided([node()], [unit("u", not_before=130.0)], now=100.0)
    assert (decision.placements, decision.verdicts, decision.wake_at) == ((), (), 130.0)
    assert list(placed(decided([node()], [unit("u", not_before=130.0)], now=130.0))) == ["u"]


def test_a_decision_places_only_so_many_and_asks_to_be_called_again():
    decision = decided([node()], [unit("a"), unit("b")], policy=Policy(most_placements=1))
    assert len(decision.placements) == 1
    assert decision.wake_at == 100.0


amounts = st.integers(0, 4000)
groups = st.builds(
    lambda name, least, extra, cpu, gpu: Group(
        name, least, least + extra, {"cpu": cpu, "gpu": gpu}
    ),
    st.just("worker"), st.integers(1, 4), st.integers(0, 3), amounts, st.integers(0, 2000),
)  # fmt: skip
units = st.lists(
    st.builds(
        lambda g, p, s: (g, p, s), groups, st.integers(0, 100), st.floats(0, 100)
    ),
    max_size=12,
).map(
    lambda rows: [
        unit(f"u{i}", g, priority=p, submitted=s) for i, (g, p, s) in enumerate(rows)
    ]
)  # fmt: skip
nodes = st.lists(st.tuples(amounts, st.integers(0, 4000)), max_size=6).map(
    lambda rows: [
        Node(f"n{i}", {"cpu": 4000, "gpu": 4000}, {"cpu": c, "gpu": g})
        for i, (c, g) in enumerate(rows)
    ]
)


@given(nodes, units)
def test_nothing_is_given_twice_and_every_unit_gets_an_answer(nodes, units):
    decision = decided(nodes, units)
    left = {n.name: dict(n.free) for n in nodes}
    by_key = {u.key: u for u in units}
    for placement in decision.placements:
        (only,) = by_key[placement.unit].groups
        chosen = placement.members["worker"]
        assert only.least <= len(chosen) <= only.most
        for name in chosen:
            for dimension, needed in only.needs.items():
                left[name][dimension] -= needed
                assert left[name][dimension] >= 0
    answered = [p.unit for p in decision.placements] + [v.unit for v in decision.verdicts]
    assert sorted(answered) == sorted(by_key)
    assert decision == decided(reversed(nodes), reversed(units))


@given(nodes, units)
def test_who_waits_for_capacity_really_does_not_fit_in_what_is_left(nodes, units):
    decision = decided(nodes, units)
    left = {n.name: dict(n.free) for n in nodes}
    by_key = {u.key: u for u in units}
    for placement in decision.placements:
        for name in placement.members["worker"]:
            for dimension, needed in by_key[placement.unit].groups[0].needs.items():
                left[name][dimension] -= needed
    for verdict in decision.verdicts:
        (only,) = by_key[verdict.unit].groups
        holds = sum(
            min((n[d] // needed for d, needed in only.needs.items() if needed), default=only.least)
            for n in left.values()
        )
        assert holds < only.least or not nodes
