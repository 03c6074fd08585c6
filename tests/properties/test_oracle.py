"""Negative answers against brute force on tiny clusters (I11), and how tight the packing is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import generators, oracle
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason

pytestmark = CAMPAIGN
NEVER = (Reason.IMPOSSIBLE, Reason.UNSUPPORTED)
NO_ROOM = (Reason.WAITING_FOR_CAPACITY, Reason.WAITING_FOR_TOPOLOGY, *NEVER)
TASTE = generators.NodeScores(
    terms=False, odd=False, forms=(*generators.ANYTHING.forms, "twins", "twins")
)
TINY = st.one_of(
    generators.facts(most_nodes=3, most_workloads=6, taste=taste, running=False)
    for taste in (TASTE, generators.BUNDLED)
)


def small(workload: Workload) -> Workload:
    """Three members at most, so that brute force ends."""
    roles = tuple(
        dataclasses.replace(
            role, min_count=min(role.min_count, 2), max_count=min(role.min_count, 2)
        )
        for role in workload.roles
    )
    return dataclasses.replace(workload, roles=roles, queue="q", preemptible=True)


@cases(250, 4000)
@given(TINY)
def test_no_is_only_said_where_no_assignment_exists(facts: ClusterFacts) -> None:
    """Each unit alone in the empty cluster: placed if and only if brute force can place it, or
    the search gave up; impossible only if even nodes that are not open would not do."""
    for workload in map(small, facts.waiting):
        alone = dataclasses.replace(facts, queues=(Queue("q"),), waiting=(workload,), quotas=())
        decision = cycle.decide(snapshot.build(alone), 100.0)
        note(f"{workload}\n{decision}")
        exists = oracle.can_start(alone, workload, closed_too=False)
        if decision.placements:
            assert exists, "it was placed where brute force finds no place"
            continue
        (verdict,) = decision.verdicts
        assert verdict.reason in NO_ROOM
        if verdict.resolved:
            assert not exists, f"there is room, but: {verdict.message}"
        if verdict.reason in NEVER:
            assert not oracle.can_start(alone, workload, closed_too=True), verdict.message


@cases(150, 3000)
@given(TINY)
def test_impossible_is_only_said_where_even_empty_nodes_would_not_do(facts: ClusterFacts) -> None:
    """Each unit alone in front of nodes that another, as large as can be, has filled."""
    for workload in map(small, facts.waiting):
        world = dataclasses.replace(facts, queues=(Queue("q"),), waiting=(workload,), quotas=())
        full = dataclasses.replace(world, running=tuple(_filling(facts)))
        (verdict,) = cycle.decide(snapshot.build(full), 100.0).verdicts
        note(f"{workload}\n{verdict}")
        if verdict.reason in NEVER:
            assert not oracle.can_start(world, workload, closed_too=True), verdict.message


def _filling(facts: ClusterFacts) -> Iterator[Running]:
    """A workload that holds all of a node, down to its last device."""
    for node in facts.nodes:
        grants = tuple(
            Grant(each.id, compute=each.compute, memory=each.memory) for each in node.devices
        )
        devices = (DeviceRequest("gpu", len(grants)),) if grants else ()
        role = Role("all", 1, 1, {**node.allocatable}, devices)
        pods = (PodAssignment("all", 0, node.name, grants),)
        yield Running(Workload(f"fills-{node.name}", "q", (role,), preemptible=False), pods, 0.0)


@cases(150, 4000)
@given(st.lists(st.sampled_from((100, 200, 250, 300, 400, 500, 600, 700)), max_size=10))
def test_shares_need_at_most_seventeen_tenths_of_the_fewest_devices_and_one(
    sizes: list[int],
) -> None:
    """Placed one after another as they come, tightest device first: the bound of best fit."""
    nodes = tuple(_device_node(i) for i in range(len(sizes)))
    workloads = tuple(
        Workload(f"u{i:02}", "q", (Role("w", 1, 1, {}, (DeviceRequest("gpu", compute=size),)),),
             submitted=float(i))
        for i, size in enumerate(sizes)
    )  # fmt: skip
    facts = ClusterFacts(nodes=nodes, queues=(Queue("q"),), waiting=workloads)
    decision = cycle.decide(snapshot.build(facts), 100.0)
    assert len(decision.placements) == len(sizes)
    used = {pod.node for placement in decision.placements for pod in placement.pods}
    assert 10 * len(used) <= 17 * _fewest(sizes) + 10


def _device_node(number: int) -> Node:
    device = dataclasses.replace(
        generators.device_set(generators.dice("share", 7), generators.NodeScores(odd=False))[0],
        id="g0", forms=frozenset(("share",)), compute=1000, memory=0,
    )  # fmt: skip
    return Node(f"n{number:02}", {"cpu": 1000}, (device,))


def _fewest(sizes: list[int]) -> int:
    """The fewest devices that hold all shares, by trying."""
    best = len(sizes)

    def put(left: list[int], devices: list[int]) -> None:
        nonlocal best
        if len(devices) >= best:
            return
        if not left:
            best = len(devices)
            return
        for i, used in enumerate(devices):
            if used + left[0] <= 1000 and used not in devices[:i]:
                put(left[1:], [*devices[:i], used + left[0], *devices[i + 1 :]])
        put(left[1:], [*devices, left[0]])

    put(sorted(sizes, reverse=True), [])
    return best
