"""What is remembered of one unit is told only to those of whom it is true (I12).

Units here are alike but for one or two things, in front of a cluster that is nearly full: what did
not fit for one is just what the next asks for, with another right, place or size. Each world is
decided twice, the second time by a core that remembers nothing of anybody.
"""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

from hypothesis import given, note
from hypothesis import strategies as st

from tests.properties import carry, generators, invariants
from tests.properties.settings import CAMPAIGN, cases
from windlass.core.cycle import cycle
from windlass.core.decision import attempt
from windlass.core.model import equivalence
from windlass.core.model.types import (
    Affinity,
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Domain,
    Node,
    Policy,
    Queue,
    Quota,
    Requirement,
    Role,
    Spread,
    Topology,
    Workload,
)
from windlass.core.snapshot import snapshot

pytestmark = CAMPAIGN
NOW = 100.0
ROUNDS = 3
QUIET = Policy(reclaim=False, preempt=False, grow=False)


def worlds() -> st.SearchStrategy[ClusterFacts]:
    return st.builds(_world, st.integers(0, 1 << 32))


def _world(seed: int) -> ClusterFacts:
    """One kind of unit and its variants on small nodes, a third of them full."""
    throw = generators.dice(seed, "alike")
    queues = tuple(
        Queue(
            name,
            guarantee={"gpu": 1000 * throw.randint(1, 5)} if throw.one_in(2) else {},
            limit={"gpu": 1000 * throw.randint(3, 7)} if throw.one_in(4) else {},
            reserve=throw.choice((0, 0, 1)),
            **_rules(generators.dice(seed, "rules", name)),
        )
        for name in ("a", "b")
    )
    nodes = tuple(_node(i, throw) for i in range(throw.randint(4, 6)))
    model = _model(throw)
    for _ in range(throw.choice((0, 0, 1, 2))):  # what all of them have in common
        model = throw.choice(_CHANGES)(model, throw)
    workloads = [_varied(model, f"u{i:02}", throw) for i in range(12)]
    first = throw.randint(0, 4)
    limits = (
        (Quota("other", "few", {"gpu": 1000 * throw.randint(1, 4)}),) if throw.one_in(4) else ()
    )
    early = ClusterFacts(
        nodes, queues, waiting=tuple(workloads[:first]), levels=generators.LEVELS, quotas=limits
    )
    after = carry.carry_out(early, cycle.decide(snapshot.build(early), 0.0), 0.0)
    return dataclasses.replace(after, waiting=(*after.waiting, *workloads[first:]), reservations=())


def pressed() -> st.SearchStrategy[ClusterFacts]:
    return st.builds(_pressed, st.integers(0, 1 << 32))


def _pressed(seed: int) -> ClusterFacts:
    """A few kinds, several units of each, in front of a cluster full of those whom some of them
    may evict. A verdict holds for the next one until a workload is evicted, a reservation made or a
    start is withheld: all of that happens here between the turns of one kind.

    All wait in one queue. Between queues it does matter which one is skipped: a head that surely
    waits does not keep the next of its queue from a turn, and one that is considered does."""
    throw = generators.dice(seed, "pressed")
    nodes = tuple(_node(i, throw) for i in range(throw.randint(2, 4)))
    gpus = sum(len(node.devices) for node in nodes)
    both = Queue("p", limit={"gpu": 1000 * (gpus - 1)} if throw.one_in(3) else {})
    children = tuple(
        Queue(
            name,
            "p",
            guarantee={"gpu": 1000 * throw.randint(1, 3)} if name == "a" else {},
            limit={"gpu": 1000 * throw.randint(2, 6)} if throw.one_in(4) else {},
            reserve=throw.choice((0, 0, 1)),
            **_rules(generators.dice(seed, "rules", name)),
        )
        for name in ("a", "b")
    )
    fillers = tuple(
        _of_kind(_kind(throw, throw.choice("abb"), 10), f"r{i:02}", throw) for i in range(9)
    )
    early = ClusterFacts(nodes, (both, *children), waiting=fillers, levels=generators.LEVELS)
    after = carry.carry_out(early, cycle.decide(snapshot.build(early), 0.0), 0.0)
    running = tuple(each for each in after.running if not throw.one_in(6))
    kinds = [
        _kind(throw, "a", throw.choice((50, 50, 50, 10, 90))) for _ in range(throw.randint(2, 4))
    ]
    waiting = tuple(_of_kind(throw.choice(kinds), f"u{i:02}", throw) for i in range(10))
    return dataclasses.replace(after, running=running, waiting=waiting, reservations=())


def _kind(throw: generators.Dice, queue: str, priority: int) -> Workload:
    """Small or large, of any right; now and then without devices, so that a preemptor
    finds a victim and no capacity."""
    model = _model(throw)
    workload = dataclasses.replace(
        _role(model, devices=()) if throw.one_in(5) else model,
        priority=priority,
        preemptible=not throw.one_in(5),
        preempts=not throw.one_in(5),
    )
    workload = throw.choice(_CHANGES)(workload, throw) if throw.one_in(3) else workload
    return dataclasses.replace(workload, queue=queue)


def _of_kind(workload: Workload, key: str, throw: generators.Dice) -> Workload:
    """The duration changes no class, but decides which reservations are in its way."""
    return dataclasses.replace(
        workload,
        key=key,
        submitted=float(throw.randint(0, 9)),
        expected=throw.choice((None, 30.0, 150.0, 300.0, 900.0)),
        user=throw.choice(("ann", "bob")),
    )


def _rules(throw: generators.Dice) -> dict[str, Any]:
    """Mostly those of a plain queue, so that it is what units ask for that makes them differ."""
    found: dict[str, Any] = {}
    if throw.one_in(4):
        found["lend"] = {"gpu": 1000 * throw.randint(0, 3)}
    if throw.one_in(4):
        found["order"] = throw.choice(("lifo", "fair", "shortest", "attained", "priority"))
    if throw.one_in(6):
        found["max_priority"] = throw.choice((20, 60))
    if throw.one_in(6):
        found["min_runtime"] = 50.0
    if throw.one_in(6):
        found["namespaces"] = frozenset(("", throw.choice(("", "other"))))
    if throw.one_in(4):
        found["user_limits"] = generators.user_limits(throw)
    return found | {"strict": throw.one_in(6), "user_fair": throw.one_in(6)}


def _node(number: int, throw: generators.Dice) -> Node:
    zone, count = f"z{number // 4}", throw.choice((2, 2, 3))
    devices = tuple(
        Device(f"g{i}", "gpu", "new", memory=16_000, numa=i % 2, switch=f"s{i % 2}")
        for i in range(count)
    )
    labels = {"zone": zone, "host": f"n{number}", "disk": throw.choice(("ssd", "hdd"))}
    path, cpu = (zone, f"{zone}-r{number // 2}"), 1000 * throw.randint(3, 9)
    numa = (Domain(0, {"cpu": cpu // 3}), Domain(1, {"cpu": cpu // 2})) if throw.one_in(2) else ()
    return Node(f"n{number}", {"cpu": cpu}, devices, labels, path=path, numa=numa)


def _model(throw: generators.Dice) -> Workload:
    least, count = throw.choice((1, 1, 2, 3)), throw.choice((1, 1, 2))
    role = Role("worker", least, least, {"cpu": 1000}, (DeviceRequest("gpu", count),))
    return Workload("model", "a", (role,), priority=50, expected=300.0)


def _varied(workload: Workload, key: str, throw: generators.Dice) -> Workload:
    workload = dataclasses.replace(workload, key=key, submitted=float(throw.randint(0, 9)))
    for _ in range(throw.choice((0, 1, 1, 1, 2))):
        workload = throw.choice(_CHANGES)(workload, throw)
    return workload


def _role(workload: Workload, **changes: object) -> Workload:
    roles = (dataclasses.replace(workload.roles[0], **changes), *workload.roles[1:])
    return dataclasses.replace(workload, roles=roles)


def _other_size(workload: Workload, throw: generators.Dice) -> Workload:
    least = throw.randint(1, 4)
    return _role(workload, min_count=least, max_count=throw.choice((least, 4)))


def _other_devices(workload: Workload, throw: generators.Dice) -> Workload:
    return _role(workload, devices=(DeviceRequest("gpu", throw.randint(1, 2)),))


def _other_bundle(workload: Workload, throw: generators.Dice) -> Workload:
    bundle = throw.choice(("", "numa", "pcie"))
    return _role(workload, bundle=bundle if workload.roles[0].devices else "")


def _other_neighbours(workload: Workload, throw: generators.Dice) -> Workload:
    mine = (Requirement("app", "In", ("x",)),)
    return _role(
        workload,
        labels=throw.choice(((), (("app", "x"),))),
        affinities=throw.choice(
            (
                (),
                (Affinity("host", mine, anti=True),),
                (Affinity("zone", mine),),
                (Affinity("zone", mine, anti=True, namespaces=frozenset(("", "other"))),),
            )
        ),
        spreads=throw.choice(
            ((), (), (Spread("zone", mine),), (Spread("host", mine, min_domains=4),))
        ),
    )


def _second_role(workload: Workload, throw: generators.Dice) -> Workload:
    count = throw.randint(1, 3)
    return dataclasses.replace(
        workload, roles=(workload.roles[0], Role("helper", count, count, {"cpu": 1000}))
    )


def _other_place(workload: Workload, throw: generators.Dice) -> Workload:
    level, required = throw.choice(("rack", "zone", "node")), not throw.one_in(3)
    return dataclasses.replace(workload, topology=Topology(level, required))


_CHANGES = (
    _other_size,
    _other_devices,
    _other_bundle,
    _other_neighbours,
    _second_role,
    _other_place,
    _other_place,
    lambda workload, throw: _role(workload, constraint=generators.constraint(throw)),
    lambda workload, throw: _role(workload, ports=throw.choice(((), (8080,)))),
    lambda workload, throw: dataclasses.replace(workload, priority=throw.choice((10, 50, 90))),
    lambda workload, throw: dataclasses.replace(workload, queue=throw.choice(("a", "b"))),
    lambda workload, throw: dataclasses.replace(workload, namespace=throw.choice(("", "other"))),
    lambda workload, throw: dataclasses.replace(
        workload, expected=throw.choice((None, 30.0, 900.0))
    ),
    lambda workload, throw: dataclasses.replace(workload, preemptible=throw.one_in(2)),
    lambda workload, throw: dataclasses.replace(workload, preempts=throw.one_in(2)),
    lambda workload, throw: dataclasses.replace(workload, gang=throw.one_in(2)),
    lambda workload, throw: dataclasses.replace(
        workload, pack=throw.choice(("spread", "binpack", "fragmentation"))
    ),
    lambda workload, throw: _role(workload, prefers=throw.choice(((), *generators.PREFERENCES))),
    lambda workload, throw: dataclasses.replace(
        workload, user=throw.choice(("ann", "bob")), attained=throw.choice((0.0, 100.0))
    ),
    lambda workload, throw: dataclasses.replace(workload, not_before=throw.choice((50.0, 500.0))),
)


@cases(400, 6000)
@given(st.one_of(worlds(), pressed()), st.sampled_from((Policy(), QUIET)))
def test_a_core_that_remembers_nothing_decides_the_same(
    facts: ClusterFacts, policy: Policy
) -> None:
    for number in range(ROUNDS):  # then victims are terminating, and reservations exist
        now = NOW + 10 * number
        quick = cycle.decide(snapshot.build(facts), now, policy)
        after = carry.carry_out(facts, quick, now)
        invariants.check(facts, quick, after)
        with (
            mock.patch.object(attempt, "equivalence_key", _unlike_all),
            mock.patch.object(
                equivalence.Shapes, "equivalence_class", return_value=equivalence.UNIQUE
            ),
        ):
            slow = cycle.decide(snapshot.build(facts), now, policy)
        note(f"{quick}\n{slow}")
        assert outcome(quick) == outcome(slow)
        facts = after


def _unlike_all(*_: object) -> object:
    return object()


def outcome(decision: Decision) -> object:
    """What is decided, and which workloads wait. Why, may differ: a shared verdict names
    what was in the way then; by now it may be more."""
    waits = {each.workload for each in decision.verdicts}
    return (
        decision.placements, decision.evictions, decision.nominations, decision.reservations, waits
    )  # fmt: skip
