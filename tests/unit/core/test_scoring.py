"""What is liked better among places that fit: points first, then packing, then the price."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.cycle import cycle
from windlass.core.model.types import (
    Affinity,
    ClusterFacts,
    Constraint,
    Device,
    DeviceRequest,
    Node,
    Preference,
    Queue,
    Requirement,
    Role,
    Topology,
    Workload,
)
from windlass.core.snapshot.snapshot import NodePut, apply, build
from windlass.kinds.reasons import Reason

LEVELS = ("rack",)


def node(name, cpu=4, rack="r", gpus=0, **more) -> Node:
    devices = tuple(Device(f"g{i}", "gpu") for i in range(gpus))
    labels = {"disk": more.pop("disk", "hdd"), "host": name}
    return Node(name, {"cpu": cpu}, devices, labels, path=(rack,), **more)


def likes(key="disk", value="ssd", points=1) -> Preference:
    return Preference((Requirement(key, "In", (value,)),), points)


def workload(members=1, *prefers, key="u", cpu=1, gpus=0, **more) -> Workload:
    requests = (DeviceRequest("gpu", gpus),) if gpus else ()
    terms = {name: more.pop(name) for name in ("affinities", "constraint") if name in more}
    role = Role("w", members, members, {"cpu": cpu}, requests, prefers=prefers, **terms)
    return Workload(key, "q", (role,), **more)


def decide(nodes, *workloads):
    facts = ClusterFacts(tuple(nodes), (Queue("q"),), waiting=workloads, levels=LEVELS)
    return cycle.decide(build(facts), 0.0)


def where(nodes, *workloads) -> list[str]:
    placements = decide(nodes, *workloads).placements
    return [pod.node for placement in placements for pod in placement.pods]


# --- points


@pytest.mark.parametrize("pack", ["binpack", "spread", "fragmentation"])
def test_a_preferred_node_comes_before_a_better_packed_one(pack):
    nodes = [node("full", cpu=1), node("liked", cpu=8, disk="ssd"), node("empty", cpu=9)]
    assert where(nodes, workload(1, likes(), pack=pack)) == ["liked"]


def test_points_add_up_and_may_be_below_zero():
    nodes = [node("a", disk="ssd"), node("b", disk="ssd"), node("c")]
    asks = [likes(points=5), likes("host", "a", -9), likes("metadata.name", "b", 1)]
    assert where(nodes, workload(1, *asks)) == ["b"]
    assert where(nodes, workload(1, likes("host", "a", -9), likes("host", "b", -9))) == ["c"]


def test_preferences_yield_to_capacity_and_hold_for_as_many_as_fit():
    nodes = [node("liked", cpu=2, disk="ssd"), node("other", cpu=4)]
    assert sorted(where(nodes, workload(3, likes()))) == ["liked", "liked", "other"]


def test_members_stay_in_one_rack_only_where_that_costs_no_points():
    spread = [node(f"s{i}", cpu=1, rack=f"r{i}", disk="ssd") for i in range(2)]
    nodes = [*spread, node("o", rack="r9")]
    assert sorted(where(nodes, workload(2, likes()))) == ["s0", "s1"]
    assert where(nodes, workload(2, likes(), topology=Topology("rack", required=True))) == [
        "o",
        "o",
    ]
    assert where(nodes, workload(2, likes(), topology=Topology("rack"))) == ["o", "o"]
    assert where([*nodes, node("z", rack="r10", disk="ssd")], workload(2, likes())) == ["z", "z"]


def test_the_preferred_of_several_racks_and_nodes_is_taken():
    nodes = [node("a", cpu=2, rack="r1"), node("b", cpu=9, rack="r2", disk="ssd")]
    for level in ("rack", "node"):
        asks = Topology(level, required=True)
        assert where(nodes, workload(2, likes(), topology=asks)) == ["b", "b"]


def test_preferences_count_beside_terms_over_labels():
    near = Affinity("host", (Requirement("app", "Exists"),), anti=True)
    nodes = [node("a", cpu=1), node("b", disk="ssd")]
    assert where(nodes, workload(1, likes(), affinities=(near,))) == ["b"]


def test_a_label_that_changes_changes_the_answer():
    facts = ClusterFacts(
        (node("a"), node("b")), (Queue("q"),), waiting=(workload(1, likes()),), levels=LEVELS
    )
    snapshot = build(facts)
    assert cycle.decide(snapshot, 0.0).placements[0].pods[0].node == "a"
    apply(snapshot, [NodePut(node("b", disk="ssd"))])
    assert cycle.decide(snapshot, 0.0).placements[0].pods[0].node == "b"


@given(
    rooms=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4),
    points=st.lists(st.integers(-3, 3), min_size=4, max_size=4),
    members=st.integers(1, 5),
    pack=st.sampled_from(["binpack", "spread", "fragmentation"]),
)
def test_no_other_way_to_sit_has_more_points(rooms, points, members, pack):
    nodes = [node(f"n{i}", cpu, rack=f"r{rack}") for i, (cpu, rack) in enumerate(rooms)]
    asks = [likes("host", each.name, points[i]) for i, each in enumerate(nodes)]
    ways = itertools.product(*(range(cpu + 1) for cpu, _ in rooms))
    best = max(
        (sum(n * points[i] for i, n in enumerate(way)) for way in ways if sum(way) == members),
        default=None,
    )
    found = where(nodes, workload(members, *asks, pack=pack))
    assert bool(found) == (best is not None)
    assert not found or sum(points[int(name[1:])] for name in found) == best


# --- prices


@pytest.mark.parametrize("pack", ["binpack", "spread", "fragmentation"])
@pytest.mark.parametrize("gpus", [0, 1])
def test_of_equally_good_nodes_the_cheaper_is_taken(pack, gpus):
    nodes = [node("a", gpus=2, price=30), node("b", gpus=2, price=10), node("c", gpus=2, price=20)]
    assert where(nodes, workload(1, gpus=gpus, pack=pack)) == ["b"]


def test_a_cheaper_node_does_not_break_a_better_fit():
    nodes = [node("tight", cpu=1, price=90), node("wide", cpu=9, price=10)]
    assert where(nodes, workload()) == ["tight"]
    assert where(nodes, workload(1, likes("host", "wide"))) == ["wide"]


def test_of_equally_tight_racks_the_cheaper_is_taken():
    nodes = [
        node("a", rack="r1", price=30), node("b", rack="r1", price=30),
        node("c", rack="r2", price=10), node("d", rack="r2", price=20),
    ]  # fmt: skip
    for asks in (Topology("rack", required=True), None):
        assert sorted(where(nodes, workload(2, cpu=4, topology=asks))) == ["c", "d"]
    assert where(nodes, workload(2, topology=Topology("node", required=True))) == ["c", "c"]


def could_be(name, price, gpus=8, ready_in=60.0, **more) -> Node:
    return node(name, gpus=gpus, price=price, ready_in=ready_in, **more)


def wanted(nodes, *workloads) -> dict[str, tuple[str, ...]]:
    return {each.node: each.workloads for each in decide(nodes, *workloads).wanted}


def test_the_cheapest_nodes_that_would_do_are_wanted():
    small = [could_be(f"small-{i}", 10, gpus=1) for i in range(8)]
    big = [could_be("big-a", 70), could_be("big-b", 60), could_be("big-c", 60, ready_in=5.0)]
    assert wanted([*small, *big], workload(1, gpus=8)) == {"big-c": ("u",)}
    assert wanted([*small, *big], workload(2, gpus=1)) == {"small-0": ("u",), "small-1": ("u",)}
    assert wanted([*small, *big], workload(16, cpu=0, gpus=1)) == {"big-b": ("u",), "big-c": ("u",)}
    assert wanted([*small, *big], workload(1, gpus=9)) == {}


def test_a_later_workload_uses_nodes_that_are_wanted_already():
    nodes = [could_be("a", 50), could_be("b", 10, gpus=2)]
    workloads = [workload(1, gpus=4, key="u1"), workload(1, gpus=2, key="u2", submitted=1.0)]
    assert wanted(nodes, *workloads) == {"a": ("u1", "u2")}


def test_without_prices_whatever_helps_is_wanted():
    assert wanted([could_be("a", 0), could_be("b", 0)], workload(1, gpus=8)) == {"a": ("u",)}


# --- capabilities


def asks_for(*names) -> Constraint:
    return Constraint(capabilities=frozenset(names))


def test_only_nodes_that_offer_what_is_required_are_used():
    nodes = [node("a"), node("b", capabilities=frozenset(("shares", "isolation:hard")))]
    assert where(nodes, workload(constraint=asks_for("shares"))) == ["b"]


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (("partitions",), "partitions"),
        (("shares", "partitions"), "partitions"),
        (("shares", "fast"), "fast and shares"),
    ],
)
def test_a_capability_that_no_node_offers_is_named(names, missing):
    nodes = [
        node("a", capabilities=frozenset(("shares",))),
        node("b", capabilities=frozenset(("fast",))),
    ]
    (verdict,) = decide(nodes, workload(constraint=asks_for(*names))).verdicts
    assert (verdict.reason, verdict.resource) == (Reason.UNSUPPORTED, missing)
    assert verdict.message == (f"needs nodes that offer {missing}; none of those it may use does")


def test_where_labels_rule_out_all_nodes_capabilities_are_not_blamed():
    wants = Constraint(selector=(("disk", "tape"),), capabilities=frozenset(("shares",)))
    (verdict,) = decide([node("a")], workload(constraint=wants)).verdicts
    assert (verdict.reason, verdict.resource) == (Reason.IMPOSSIBLE, "nodes")
