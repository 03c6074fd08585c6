"""The packing rule on the live cluster: what it learns, where members go, what it follows."""

from __future__ import annotations

import numpy as np
import pytest

from windlass.core import fragmentation
from windlass.core.cluster import Cluster
from windlass.core.facts import Device, DeviceRequest, Node, Profile, Role
from windlass.core.fragmentation import Fragmentation

GIB = 2**30


def node(name: str, devices: int = 4, model: str = "A", cpu: int = 64) -> Node:
    owned = tuple(
        Device(f"{name}-{i}", "gpu", model, memory=81_920, forms=frozenset(("whole", "share")))
        for i in range(devices)
    )
    return Node(name, {"cpu": cpu * 1000, "memory": 512 * GIB}, owned)


def role(cpu: int = 4, **request: object) -> Role:
    wanted = (DeviceRequest("gpu", **request),) if request else ()  # type: ignore[arg-type]
    return Role("main", 1, 1, {"cpu": cpu * 1000, "memory": GIB}, wanted)


def assign(rule: Fragmentation, cluster: Cluster, wish: Role, count: int) -> list[tuple[int, int]]:
    shape = cluster.shape_of(wish)
    caps = cluster.caps(shape)
    nodes = np.flatnonzero(caps)
    return rule.assign(cluster, shape, nodes, caps[nodes], count)


def learned(cluster: Cluster, wishes: list[Role], times: int = 40) -> Fragmentation:
    rule = Fragmentation()
    for _ in range(times):
        for wish in wishes:
            rule.observe(cluster, cluster.shape_of(wish))
    return rule


def test_share_joins_the_one_it_fills_a_device_with() -> None:
    cluster = Cluster([node("a"), node("b"), node("c")])
    large, small, half = role(compute=650), role(compute=320), role(compute=500)
    rule = learned(cluster, [large, small, half])
    assert cluster.take(cluster.shape_of(half), 0, 1)
    assert cluster.take(cluster.shape_of(large), 1, 1)
    assert assign(rule, cluster, small, 1) == [(1, 1)]
    assert assign(rule, cluster, half, 1) == [(0, 1)]


def test_share_by_memory_counts_as_its_part_of_a_device() -> None:
    cluster = Cluster([node("a"), node("b"), node("c")])
    large, small = role(memory=53_248), role(memory=26_214)
    rule = learned(cluster, [large, small, role(memory=40_960)])
    assert cluster.take(cluster.shape_of(role(memory=40_960)), 0, 1)
    assert cluster.take(cluster.shape_of(large), 1, 1)
    assert assign(rule, cluster, small, 1) == [(1, 1)]


def test_scarce_model_is_left_to_who_needs_it() -> None:
    cluster = Cluster([node("a", model="A"), node("b", model="B")])
    bound, free = role(count=1, models=("A",)), role(count=1)
    rule = learned(cluster, [bound, free])
    assert assign(rule, cluster, free, 2) == [(1, 2)]
    assert assign(rule, cluster, bound, 1) == [(0, 1)]


def test_members_of_a_gang_see_each_other() -> None:
    cluster = Cluster([node("a", devices=2), node("b", devices=2), node("c", devices=1)])
    rule = learned(cluster, [role(count=1), role(count=2)])
    placed = dict(assign(rule, cluster, role(count=1), 3))
    assert placed.pop(2) == 1  # the single device, and one node whole for who needs two
    assert list(placed.values()) == [2]
    assert sum(cluster.caps(cluster.shape_of(role(count=2)))) == 2, "nothing was really taken"


def test_room_of_the_caller_is_never_exceeded() -> None:
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(count=1)])
    shape = cluster.shape_of(role(count=1))
    assert rule.assign(cluster, shape, np.array([0, 1]), np.array([1, 2]), 3) == [(0, 1), (1, 2)]


def test_caller_knows_better_what_fits() -> None:
    third = role(memory=27_306)  # three fit a device of 81,920 exactly; in thousandths they do not
    cluster = Cluster([node("a", devices=1), node("b", devices=1)])
    rule = learned(cluster, [third])
    shape = cluster.shape_of(third)
    assert cluster.take(shape, 1, 2)
    assert rule.assign(cluster, shape, np.array([0, 1]), np.array([0, 1]), 1) == [(1, 1)]


def test_rollback_of_the_cluster_is_followed() -> None:
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(compute=650), role(compute=320)])
    before = assign(rule, cluster, role(compute=320), 1)
    mark = cluster.mark()
    assert cluster.take(cluster.shape_of(role(compute=650)), 1, 1)
    assert assign(rule, cluster, role(compute=320), 1) == [(1, 1)]
    cluster.rollback(mark)
    assert assign(rule, cluster, role(compute=320), 1) == before


def test_nodes_that_come_are_used() -> None:
    rule = learned(Cluster([node("a")]), [role(count=8), role(count=1)])
    larger = Cluster([node("a"), node("b", devices=8, model="B", cpu=256)])
    assert assign(rule, larger, role(count=8), 1) == [(1, 1)]


@pytest.mark.parametrize("cpu", [1, 4096], ids=["smaller", "larger"])
def test_a_node_that_changes_its_size_is_followed(cpu: int) -> None:
    """Its place stays, and what was learned is judged by its new size."""
    cluster = Cluster([node("a"), node("b")])
    rule = learned(cluster, [role(count=1), role(cpu=16, count=1)])
    assign(rule, cluster, role(count=1), 1)
    cluster.update(node("b", cpu=cpu))
    fresh = learned(cluster, [role(count=1), role(cpu=16, count=1)])
    assert assign(rule, cluster, role(count=1), 2) == assign(fresh, cluster, role(count=1), 2)


@pytest.mark.parametrize(
    "nodes", [[], [Node("cpu-only", {"cpu": 8000})]], ids=["no nodes", "no devices"]
)
def test_demand_is_learned_before_there_are_devices(nodes: list[Node]) -> None:
    cluster = Cluster(nodes)
    rule = learned(cluster, [role(count=1), role(compute=500), role()])
    grown = Cluster([*nodes, node("gpu")])
    (assigned,) = assign(rule, grown, role(compute=500), 1)
    assert grown.nodes[assigned[0]].name == "gpu"


def test_profiles_count_by_their_slices() -> None:
    profiles = (Profile("3g", 4, (0, 4)), Profile("1g", 1, tuple(range(8))))
    forms = frozenset(("whole", "partition"))
    owned = (Device("d", "gpu", "A", slices=8, profiles=profiles, forms=forms),)
    cluster = Cluster([Node("a", {"cpu": 8000}, owned)])
    layout = fragmentation._Layout(cluster, "gpu")
    sizes = [layout.translate(cluster.shape_of(role(profile=each))).milli for each in ("3g", "1g")]
    assert sizes == [500, 125]
