"""Positions of partitions: which one blocks the least, on devices worked out by hand."""

from __future__ import annotations

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices import partitions
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    Profile,
    Queue,
    Role,
    Workload,
)
from windlass.core.packing.scorer import ENOUGH_PROFILES, Fragmentation
from windlass.core.snapshot.snapshot import WaitingPut, apply, build

PROFILES = (
    Profile("1g", 1, (0, 1, 2, 3, 4, 5, 6), 142),
    Profile("2g", 2, (0, 2, 4), 285),
    Profile("3g", 4, (0, 4), 428),
    Profile("4g", 4, (0,), 571),
    Profile("7g", 8, (0,), 1000),
)


def device(name: str = "d", profiles: tuple[Profile, ...] = PROFILES) -> Device:
    forms = frozenset(("whole", "partition"))
    return Device(name, "gpu", "A", memory=40_960, slices=8, profiles=profiles, forms=forms)


def role(profile: str, members: int = 1) -> Role:
    return Role("w", members, members, {"cpu": 1000}, (DeviceRequest("gpu", profile=profile),))


def start(profile: str, used: int, requested: partitions.Requested = ()) -> int:
    best = partitions.cheapest(device(), profile, used, requested)
    assert best is not None
    return best[1]


def test_a_small_partition_goes_where_no_2g_can_begin() -> None:
    assert start("1g", 0) == 6
    assert start("1g", 0b0100_0000) == 4, "the half that can hold no 3g any more"


def test_a_large_partition_leaves_the_only_start_of_another() -> None:
    assert start("3g", 0) == 4, "a 4g begins at slice 0 only"


def test_profiles_that_no_workload_requests_are_not_kept_possible() -> None:
    """Slices 0 and 1 are used. Where 3g are requested, a 1g stays in the half that can hold none
    any more; where 2g are, it goes to slice 6, where no 2g can begin."""
    assert start("1g", 0b0000_0011, (("1g", 1), ("3g", 1))) == 2
    assert start("1g", 0b0000_0011, (("1g", 1), ("2g", 1))) == 6


def test_a_full_device_has_no_position() -> None:
    assert partitions.cheapest(device(), "3g", 0b0001_0001, ()) is None


def test_a_device_that_is_also_granted_whole_is_not_opened_without_need() -> None:
    """None of its profiles covers the device, so the device itself counts as a placement."""
    plain = device(profiles=(Profile("1g", 1, tuple(range(8))),))
    fresh, opened = (partitions.cheapest(plain, "1g", used, ()) for used in (0, 1))
    assert fresh is not None
    assert opened is not None
    assert opened < fresh


def test_one_partition_goes_to_the_node_where_it_blocks_the_least() -> None:
    """Both nodes take as many 1g; on the second the first three slices are used, so that a 1g in
    the fourth blocks nothing but one of its own kind."""
    nodes = tuple(Node(name, {"cpu": 8000}, (device(f"{name}-0"),)) for name in ("a", "b"))
    snapshot = build(ClusterFacts(nodes, (Queue("q"),)))
    fill = snapshot.cluster
    for profile, at in (("2g", 4), ("1g", 6)):
        fill.device_table.move(0, [_grant("a-0", profile, at)], -1)
    for profile, at in (("2g", 0), ("1g", 2)):
        fill.device_table.move(1, [_grant("b-0", profile, at)], -1)
    apply(snapshot, [WaitingPut(Workload("u", "q", (role("1g"),)))])
    (placement,) = cycle.decide(snapshot, 1.0).placements
    (pod,) = placement.pods
    assert (pod.node, pod.grants[0].start) == ("b", 3)


def _grant(name: str, profile: str, at: int) -> Grant:
    return Grant(name, "partition", 100, 0, 0, profile, at)


def test_requested_profiles_are_known_after_enough_workloads_and_follow_the_demand() -> None:
    cluster = Cluster([Node("a", {"cpu": 8000}, (device(),))])
    rule, shape = Fragmentation(), cluster.shape_of(role("1g"))
    for _ in range(ENOUGH_PROFILES - 1):
        rule.observe(cluster, shape, members=16)
    assert rule.requested_profiles(cluster, shape) == (), "members of a workload count once"
    rule.observe(cluster, shape)
    assert rule.requested_profiles(cluster, shape) == (("1g", ENOUGH_PROFILES),)
    for _ in range(50_000):
        rule.observe(cluster, cluster.shape_of(role("3g")))
    counts = dict(rule.requested_profiles(cluster, shape))
    assert counts["3g"] > 1000 * counts.get("1g", 0), "the past fades"
