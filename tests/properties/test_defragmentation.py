"""Moves against brute force on tiny clusters: where at most two suffice, some are found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.snapshot import snapshot

pytestmark = CAMPAIGN
NOW = 10_000.0


def worlds() -> st.SearchStrategy[ClusterFacts]:
    return st.builds(_world, st.integers(0, 1 << 32))


def _world(seed: int) -> ClusterFacts:
    """Two to four nodes, small workloads of which most may move, and one that waits."""
    throw = generators.dice(seed, "moves")
    sizes = {f"n{i}": throw.randint(2, 4) for i in range(throw.randint(2, 4))}
    nodes = tuple(
        Node(name, {"cpu": 64_000}, tuple(Device(f"g{i}", "gpu") for i in range(count)))
        for name, count in sizes.items()
    )
    running = []
    for name, count in sizes.items():
        used = 0
        for number in range(throw.randint(0, 2)):
            gpus = throw.randint(1, 2)
            if used + gpus > count:
                break
            workload = _workload(f"{name}-{number}", 1, gpus, movable=not throw.one_in(4))
            grants = tuple(Grant(f"g{used + i}") for i in range(gpus))
            running.append(Running(workload, (PodAssignment("w", 0, name, grants),), NOW - 60))
            used += gpus
    near = Topology("node", required=True) if throw.one_in(3) else None
    waiting = _workload("waits", throw.randint(1, 3), throw.randint(1, 4), topology=near)
    return ClusterFacts(nodes, (Queue("q"),), tuple(running), (waiting,))


def _workload(key: str, members: int, gpus: int, **more: object) -> Workload:
    role = Role("w", members, members, {"cpu": 1000}, (DeviceRequest("gpu", gpus),))
    return Workload(key, "q", (role,), **more)


@cases(400, 8000)
@given(worlds())
def test_moves_are_found_where_at_most_two_suffice(facts: ClusterFacts) -> None:
    policy = Policy(preempt=False, reclaim=False)
    decision = cycle.decide(snapshot.build(facts), NOW, policy)
    note(f"{decision}")
    (workload,) = facts.waiting
    started = {each.workload for each in decision.placements}
    moved = {each.workload for each in decision.evictions}
    if workload.key in started:
        assert not moved
        return
    assert bool(moved) or not any(_suffices(facts, some) for some in _sets(facts))
    if not moved:
        return
    assert all(each.move for each in decision.evictions)
    assert moved <= {each.workload.key for each in facts.running if each.workload.movable}
    after = carry.carry_out(facts, decision, NOW)
    invariants.check(facts, decision, after)
    assert not cycle.decide(snapshot.build(after), NOW, policy).evictions
    left = carry.after(after, carry.members_left(after))
    again = cycle.decide(snapshot.build(left), NOW + 30, policy)
    assert {each.workload for each in again.placements} == {workload.key, *moved}
    invariants.check(left, again, carry.carry_out(left, again, NOW + 30))


def _sets(facts: ClusterFacts) -> Iterator[tuple[Running, ...]]:
    movable = [each for each in facts.running if each.workload.movable]
    for count in (1, 2):
        yield from itertools.combinations(movable, count)


def _suffices(facts: ClusterFacts, gone: tuple[Running, ...]) -> bool:
    """Whether these leave place for the one that waits and fit elsewhere in what is free now."""
    (workload,) = facts.waiting
    free = {node.name: len(node.devices) for node in facts.nodes}
    for each in facts.running:
        free[each.pods[0].node] -= len(each.pods[0].grants)
    freed = dict.fromkeys(free, 0)
    for each in gone:
        freed[each.pods[0].node] += len(each.pods[0].grants)
    gpus = workload.roles[0].devices[0].count
    for counts in _spreads(workload, list(free)):
        left = dict(free)
        for name, members in counts.items():
            left[name] -= max(0, members * gpus - freed[name])
        if min(left.values()) >= 0 and _fit(left, [len(each.pods[0].grants) for each in gone]):
            return True
    return False


def _spreads(workload: Workload, names: list[str]) -> Iterator[dict[str, int]]:
    """How many members on which node."""
    members = workload.roles[0].min_count
    if workload.topology is not None:
        yield from ({name: members} for name in names)
        return
    for chosen in itertools.combinations_with_replacement(names, members):
        yield {name: chosen.count(name) for name in set(chosen)}


def _fit(free: dict[str, int], sizes: list[int]) -> bool:
    if not sizes:
        return True
    for name, left in free.items():
        if left >= sizes[0] and _fit({**free, name: left - sizes[0]}, sizes[1:]):
            return True
    return False
