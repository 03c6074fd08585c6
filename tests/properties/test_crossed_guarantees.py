"""Queues that are guaranteed different resources do not stop each other's workloads in turns: G4
and G6 of docs/reference/sharing.md.

Small random clusters in which no workload ends. What each decision says is carried out, and more
than an hour passes between two, so that no minimum run time hides a cycle.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import example, given, note
from hypothesis import strategies as st

from tests.properties.settings import CAMPAIGN, cases
from tests.unit.core.preempting import World, node, workload
from windlass.core.model.types import Constraint, Node, Queue, Workload

pytestmark = CAMPAIGN
ROUNDS = 30
MOST = 2
"""Evictions of one workload: each new workload may change whose right it is."""
PAUSE = 4000.0
"""Seconds between two decisions."""


def guaranteed(throw: random.Random, nodes: list[Node]) -> list[Queue]:
    """One queue has most of the GPUs and another most of the CPUs; a third may have what is left,
    or nothing."""
    whole = {
        "gpu": 1000 * sum(len(each.devices) for each in nodes),
        "cpu": sum(each.allocatable["cpu"] for each in nodes),
    }
    own = {r: int(n * throw.choice((0.5, 0.75, 1.0))) // 1000 * 1000 for r, n in whole.items()}
    left = {r: n - own[r] for r, n in whole.items() if n > own[r]}
    third = [Queue("c", guarantee=left if throw.random() < 0.5 else {})]
    return [
        Queue("a", guarantee={"gpu": own["gpu"]}),
        Queue("b", guarantee={"cpu": own["cpu"]}),
        *(third if throw.random() < 0.5 else []),
    ]


def crossed(seed: int) -> tuple[World, list[Workload]]:
    throw = random.Random(seed)
    nodes = [
        node(f"n{number}", throw.choice((4, 8)), cpu=throw.choice((16, 32)))
        for number in range(throw.randint(1, 3))
    ]
    queues, names = guaranteed(throw, nodes), [each.name for each in nodes]
    coming = []
    for number in range(throw.randint(3, 8)):
        bound = throw.sample(names, throw.randint(1, len(names)))
        only = {"constraint": Constraint(names=frozenset(bound))} if throw.random() < 0.4 else {}
        coming.append(
            workload(
                f"w{number}", throw.choice(queues).name, throw.choice((1, 1, 1, 2, 3)),
                gpus=throw.choice((0, 2, 4, 4, 8)), cpu=throw.choice((1, 8, 8, 16, 32)), **only,
            )
        )  # fmt: skip
    return World(nodes, queues), coming


def evictions(seed: int) -> Counter[str]:
    """Of each workload. One comes in every round, until all are there."""
    (world, coming), found = crossed(seed), Counter[str]()
    for number in range(ROUNDS):
        world.now += PAUSE
        world.wait(*coming[number : number + 1])
        found.update(eviction.workload for eviction in world.rounds(1))
    return found


@cases(15, 3000)
@example(19)  # two that stop each other wherever neither is short in the whole cluster
@example(54)
@example(118)  # enough of each resource is free, but not together on a node
@example(861)  # nor once the preemptor has its place
@given(st.integers(0, 1 << 32))
def test_preemption_between_queues_comes_to_an_end(seed: int) -> None:
    found = evictions(seed)
    note(f"{found}")
    assert max(found.values(), default=0) <= MOST
