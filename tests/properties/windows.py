"""Random windows of advance reservations, over the worlds of `generators`."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from tests.properties import generators
from windlass.core.model.types import AdvanceReservation, ClusterFacts, Workload
from windlass.core.snapshot import snapshot

NOW = 100.0


def window(name: str, throw: generators.Dice, now: float = NOW) -> AdvanceReservation:
    start = now + throw.choice((-60.0, -5.0, 0.0, 5.0, 31.0, 90.0, 300.0, 5000.0))
    made = AdvanceReservation(
        name,
        start,
        start + throw.choice((10.0, 80.0, 700.0)),
        queues=frozenset(throw.choice(((), ("a",), ("b",), ("a1", "a2")))),
        namespaces=frozenset(throw.choice(((), (), ("team",)))),
        users=frozenset(throw.choice(((), (), ("bob",)))),
    )
    match throw.choice(("names", "names", "labels", "amounts", "amounts")):
        case "names":
            names = throw.sample([f"node-{i}" for i in range(6)], throw.randint(1, 6))
            return dataclasses.replace(made, nodes=frozenset(names))
        case "labels":
            return dataclasses.replace(made, selector=(("zone", throw.choice(("z1", "z2"))),))
        case _:
            amounts = throw.choice(
                ({"gpu": 1000 * throw.randint(1, 8)}, {"gpu/new": 2000}, {"cpu": 6000},
                 {"gpu": 3000, "cpu": 3000})
            )  # fmt: skip
            return dataclasses.replace(made, amounts=amounts)


def windows(throw: generators.Dice, now: float = NOW) -> tuple[AdvanceReservation, ...]:
    return tuple(window(f"res{i}", throw, now) for i in range(throw.randint(0, 3)))


def worlds(**more: object) -> st.SearchStrategy[ClusterFacts]:
    """As `generators.facts`, with windows, graces and maximum durations."""
    return st.builds(_with_windows, generators.facts(**more), st.integers(0, 1 << 32))


def event(facts: ClusterFacts, seed: int, now: float) -> snapshot.Event:
    """As `generators.event`; now and then an administrator changes the windows."""
    throw = generators.dice(seed, "advance")
    if throw.one_in(4):
        return snapshot.AdvancePut(windows(throw, now))
    found = generators.event(facts, seed)
    if isinstance(found, snapshot.WaitingPut):
        return snapshot.WaitingPut(_timed(found.workload, throw))
    return found


def _with_windows(facts: ClusterFacts, seed: int) -> ClusterFacts:
    throw = generators.dice(seed, "windows")
    return dataclasses.replace(
        facts,
        waiting=tuple(
            _timed(workload, generators.dice(seed, workload.key)) for workload in facts.waiting
        ),
        running=tuple(
            dataclasses.replace(
                each, workload=_timed(each.workload, generators.dice(seed, each.workload.key))
            )
            for each in facts.running
        ),
        advance=windows(throw) or (window("res", throw),),
    )


def _timed(workload: Workload, throw: generators.Dice) -> Workload:
    limit = throw.choice((None, None, 20.0, 500.0))
    return dataclasses.replace(workload, grace=throw.choice((0.0, 10.0, 60.0)), max_runtime=limit)
