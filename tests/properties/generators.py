"""Random clusters, queue trees, units and events, small enough that cases collide often.

Hypothesis chooses a seed and how many nodes and units there are; each thing is then thrown with
dice of its own, made from the seed and its name. So taking one unit away leaves the others as they
are, and a failing case shrinks. Names, models and sizes come from short lists on purpose: laws
break where units compete, not where everybody has a cluster to themselves.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

from hypothesis import strategies as st

from windlass.core.model.types import (
    Affinity,
    ClusterFacts,
    Constraint,
    Device,
    DeviceRequest,
    Domain,
    Node,
    Policy,
    Preference,
    Profile,
    Queue,
    Quota,
    Requirement,
    Role,
    Running,
    Spread,
    Storage,
    Taint,
    Terms,
    Toleration,
    Topology,
    UserLimit,
    UserLimits,
    Workload,
)
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason

LEVELS = ("zone", "rack")
GIB = 1 << 30
PROFILES = (
    Profile("1g", 1, (0, 1, 2, 3, 4, 5, 6), 142),
    Profile("2g", 2, (0, 2, 4), 285),
    Profile("3g", 4, (0, 4), 428),
    Profile("7g", 8, (0,), 1000),
)
TREES = (("a",), ("a", "b"), ("a", "b", "a1"), ("a", "a1", "a2"), ("a", "b", "a1", "a2", "a1x"))
_PARENTS = {"a": "", "b": "", "a1": "a", "a2": "a", "a1x": "a1"}
_LABELS = (("app", "x"),), (("app", "y"),)
_MATCHES = ((Requirement("app", "In", ("x",)),), (Requirement("app", "Exists"),))
PREFERENCES = (
    (Preference((Requirement("disk", "In", ("ssd",)),), 5),),
    (Preference((Requirement("zone", "In", ("z1",)),), -2), Preference((), 1)),
    (
        Preference((Requirement("metadata.name", "In", ("n0", "n1")),), 1),
        Preference((Requirement("disk", "In", ("hdd",)),), 1),
    ),
)
_IN_Z2 = ((Requirement("zone", "In", ("z2",)),),)
_VOLUMES: tuple[tuple[tuple[str, Terms | None], ...], ...] = (
    (),
    (("v1", None),),
    (("v1", ((Requirement("disk", "In", ("ssd",)),),)), ("v2", None)),
)
_TOPOLOGIES = (
    Topology("rack", required=True),
    Topology("zone", required=True),
    Topology("node", required=True),
    Topology("rack"),
    Topology("node"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeScores:
    """What a generated case is made of."""

    terms: bool = True
    """Affinity and spread."""
    odd: bool = True
    """Units that can never start, nodes that take nobody, resources of which there is none."""
    forms: tuple[str, ...] = ("none", "whole", "whole", "share", "ratio", "partition", "two")
    bundled: bool = False
    """Nodes say what their NUMA nodes have, and all requests for devices ask for a bundle."""


ANYTHING = NodeScores()
BUNDLED = NodeScores(
    terms=False, odd=False, forms=("none", "whole", "whole", "share", "two", "two"), bundled=True
)


class Dice(random.Random):
    def one_in(self, number: int) -> bool:
        return self.randrange(number) == 0


def dice(*seed: object) -> Dice:
    return Dice("/".join(map(str, seed)))


# --- nodes --------------------------------------------------------------------------------------

_FORMS = (
    {"whole"},
    {"whole", "share"},
    {"whole", "ratio"},
    {"whole", "partition"},
    {"whole", "share", "ratio", "partition"},
)


def device_set(throw: Dice, taste: NodeScores) -> tuple[Device, ...]:
    """The devices of a node, alike but for their size, in a mix that machines come in."""
    forms = frozenset(throw.choice(_FORMS))
    model, sliced = throw.choice(("old", "new")), "partition" in forms
    isolation = throw.choice(("none", "soft"))
    gpus = tuple(
        Device(
            f"g{i}", "gpu", model, memory=throw.choice((16_000, 80_000)),
            numa=i // 2, switch=f"s{i // 2}", links=f"l{i // 2}",
            slices=8 if sliced else 0, profiles=PROFILES if sliced else (),
            forms=forms, isolation=isolation, healthy=not (taste.odd and throw.one_in(12)),
        )
        for i in range(throw.choice((0, 1, 2, 4, 4)))
    )  # fmt: skip
    if len(gpus) < 2 or throw.one_in(2):
        return gpus
    return (*gpus, *(Device(f"n{i}", "rdma", "cx", numa=i, switch=f"s{i}") for i in range(2)))


def node(name: str, throw: Dice, taste: NodeScores) -> Node:
    zone = throw.choice(("z1", "z2"))
    path = (zone, f"{zone}-{throw.choice(('r1', 'r2'))}")
    least = 0 if taste.odd else 2
    amounts = {
        "cpu": 1000 * throw.randint(least, 8),
        "memory": GIB * throw.randint(4 * least, 16),
        "pods": throw.choice((2, 10, 10)),
    }
    return Node(
        name,
        amounts,
        device_set(throw, taste),
        labels={"zone": zone, "host": name, "disk": throw.choice(("ssd", "hdd"))},
        taints=(Taint("team", "x"),) if throw.one_in(8) else (),
        ready=not (taste.odd and throw.one_in(10)),
        path=path[: throw.choice((2, 2, 2, 2, 1, 0))],
        ready_in=60.0 if taste.odd and throw.one_in(8) else 0.0,
        attach_limits={"disk": throw.randint(0, 3)} if throw.one_in(2) else {},
        price=throw.choice((0, 100, 300)),
        capabilities=frozenset(throw.choice(((), ("shares",), ("shares", "fast")))),
        numa=numa_nodes(throw, amounts) if taste.bundled or throw.one_in(2) else (),
    )


def numa_nodes(throw: Dice, amounts: Mapping[str, int]) -> tuple[Domain, ...]:
    """Two, as large as each other or not; now and then one does not say all that it has."""
    part = throw.choice((2, 2, 2, 3, 5))
    named = [
        ["cpu", "memory"] if not throw.one_in(6) else [throw.choice(("cpu", "memory"))]
        for _ in range(2)
    ]
    first = {name: amounts[name] // part for name in named[0]}
    rest = {name: amounts[name] - amounts[name] // part for name in named[1]}
    return Domain(0, first), Domain(1, rest)


# --- queues -------------------------------------------------------------------------------------


def _amounts(throw: Dice, most: int) -> dict[str, int]:
    found: dict[str, int] = {}
    if not throw.one_in(3):
        found["gpu"] = 1000 * throw.randint(1, most)
    if throw.one_in(4):
        found["gpu/new"] = 1000 * throw.randint(0, most)
    if throw.one_in(3):
        found["cpu"] = 1000 * throw.randint(1, 3 * most)
    return found


def queue(name: str, throw: Dice) -> Queue:
    return Queue(
        name,
        _PARENTS[name],
        guarantee=_amounts(throw, 6) if throw.one_in(2) else {},
        limit=_amounts(throw, 8) if throw.one_in(3) else {},
        lend=_amounts(throw, 3) if throw.one_in(4) else {},
        weight=throw.randint(1, 3),
        order=throw.choice(("fifo", "lifo", "priority", "fair", "shortest", "attained")),
        strict=throw.one_in(3),
        reserve=throw.choice((0, 1, 2, None)),
        min_runtime=throw.choice((0.0, 0.0, 50.0)),
        max_priority=throw.choice((None, None, 20)),
        half_life=throw.choice((None, None, 0.0, 86400.0)),
        user_fair=throw.one_in(3),
        user_limits=user_limits(dice(throw.random(), name)) if throw.one_in(3) else None,
        paused=(Reason.QUEUE_PAUSED, "paused") if throw.one_in(16) else None,
        namespaces=frozenset(throw.choice((("team",), ("team", "x"))))
        if throw.one_in(10)
        else None,
    )


def user_limits(throw: Dice) -> UserLimits:
    """Small ones, so that they bind; now and then one user has another."""
    own = {"ann": UserLimit(_amounts(throw, 3), throw.choice((None, 1, 4)))}
    return UserLimits(
        _amounts(throw, 4) if not throw.one_in(3) else {},
        throw.choice((None, None, 1, 2)),
        throw.choice((None, None, 1, 3)),
        users=own if throw.one_in(3) else {},
    )


def quotas(throw: Dice) -> tuple[Quota, ...]:
    """Of namespaces; mostly there are none."""
    found = []
    for name in ("compute", "count") if throw.one_in(3) else ():
        hard = {"cpu": 1000 * throw.randint(1, 12)} if name == "compute" else {}
        hard |= {"gpu": 1000 * throw.randint(1, 6)} if throw.one_in(2) else {}
        hard |= {"pods": throw.randint(1, 8)} if name == "count" else {}
        found.append(Quota(throw.choice(("team", "other")), name, hard))
    return tuple(found)


# --- units --------------------------------------------------------------------------------------


def device_requests(throw: Dice, taste: NodeScores) -> tuple[DeviceRequest, ...]:
    models = throw.choice(((), (), (), ("new",), ("new", "old"), ("old", "new")))
    isolation = throw.choice(("none", "none", "none", "soft"))
    match throw.choice(taste.forms):
        case "none":
            return ()
        case "whole":
            return (DeviceRequest("gpu", throw.choice((1, 1, 2, 3)), models=models),)
        case "share":
            compute, memory = throw.choice(
                ((100, 0), (300, 4_000), (500, 9_000), (0, 9_000), (0, 2_000), (100, 40_000))
            )
            return (
                DeviceRequest(
                    "gpu", compute=compute, memory=memory, models=models, isolation=isolation
                ),
            )
        case "ratio":
            return (DeviceRequest("gpu", ratio=throw.choice((2, 4, 8)), models=models),)
        case "twins":  # of one kind, so that they compete for the same devices
            return DeviceRequest("gpu"), DeviceRequest("gpu", memory=40_000)
        case "partition":
            return (DeviceRequest("gpu", profile=throw.choice(("1g", "2g", "3g", "7g"))),)
        case _:
            pair = DeviceRequest("gpu", throw.choice((1, 1, 2)), models=models)
            return (pair, DeviceRequest("rdma"))


def constraint(throw: Dice) -> Constraint:
    return Constraint(
        selector=(("disk", "ssd"),) if throw.one_in(8) else (),
        affinity=((Requirement("zone", "In", ("z1",)),),) if throw.one_in(8) else (),
        tolerations=(Toleration("team", "Exists"),) if throw.one_in(2) else (),
        not_now=frozenset(("node-1",)) if throw.one_in(12) else frozenset(),
        capabilities=frozenset(("fast",)) if throw.one_in(12) else frozenset(),
        names=frozenset(("node-0", "node-2", "n0", "n2")) if throw.one_in(16) else None,
        volumes=(_IN_Z2,) if throw.one_in(20) else (),
        storage=(Storage(throw.choice(_VOLUMES), (_IN_Z2,)),) if throw.one_in(20) else (),
    )


def role(name: str, throw: Dice, taste: NodeScores) -> Role:
    least = throw.choice((1, 1, 2, 3, 4)) if name == "worker" else throw.choice((0, 1, 1))
    affinities: tuple[Affinity, ...] = ()
    spreads: tuple[Spread, ...] = ()
    if taste.terms and throw.one_in(4):
        key, match = throw.choice(("zone", "host")), throw.choice(_MATCHES)
        others = frozenset(throw.choice(((), (), ("other",), ("team", "other"))))
        anti, required = throw.one_in(2), throw.one_in(2)
        affinities = (Affinity(key, match, anti, others, required, throw.randint(1, 3)),)
    if taste.terms and throw.one_in(6):
        spreads = (
            Spread(
                "zone", throw.choice(_MATCHES), throw.randint(1, 2), throw.one_in(2),
                min_domains=throw.choice((0, 0, 2, 3)), by_affinity=not throw.one_in(3),
                by_taints=throw.one_in(3),
            ),
        )  # fmt: skip
    requests = device_requests(throw, taste)
    bundles = ("numa", "pcie") if taste.bundled else ("", "", "", "numa", "pcie")
    return Role(
        name,
        least,
        least + throw.choice((0, 0, 0, 2)),
        {"cpu": throw.choice((0, 500, 1000, 2000)), "memory": GIB * throw.choice((0, 1, 3))},
        requests,
        bundle=throw.choice(bundles) if requests else "",
        constraint=constraint(throw),
        ports=(8080,) if throw.one_in(10) else (),
        attach=(("disk", 1),) if throw.one_in(12) else (),
        labels=throw.choice(((), *_LABELS)) if taste.terms else (),
        affinities=affinities,
        spreads=spreads,
        prefers=throw.choice(PREFERENCES) if throw.one_in(4) else (),
    )


def workload(key: str, queues: tuple[str, ...], throw: Dice, taste: NodeScores) -> Workload:
    names = throw.choice((("worker",), ("worker",), ("worker",), ("worker", "helper")))
    held = taste.odd and throw.one_in(25)
    topology = throw.choice(_TOPOLOGIES) if throw.one_in(3) else None
    if taste.odd and throw.one_in(30):
        topology = Topology("block", required=True)
    return Workload(
        key,
        "nowhere" if taste.odd and throw.one_in(25) else throw.choice(queues),
        tuple(role(name, throw, taste) for name in names),
        submitted=float(throw.randint(0, 20)),
        user=throw.choice(("ann", "bob")),
        namespace=throw.choice(("team", "team", "other")),
        priority=throw.choice((10, 50, 50, 90)),
        gang=not throw.one_in(5),
        pack=throw.choice(("binpack", "binpack", "spread", "fragmentation")),
        topology=topology,
        preemptible=not throw.one_in(5),
        expected=throw.choice((None, 3.0, 30.0, 300.0)),
        not_before=500.0 if taste.odd and throw.one_in(20) else 0.0,
        hold_reason=(Reason.BUDGET_EXHAUSTED, "its budget is used up") if held else None,
        preempts=not throw.one_in(8),
        attained=throw.choice((0.0, 0.0, 40.0, 500.0)),
        history_key=throw.choice(("", "ann/train", "bob/train", None)),
        movable=throw.one_in(3),
    )


# --- everything ---------------------------------------------------------------------------------


def facts(
    *,
    most_nodes: int = 6,
    most_workloads: int = 12,
    taste: NodeScores = ANYTHING,
    running: bool = True,
) -> st.SearchStrategy[ClusterFacts]:
    """A cluster and units that wait for it; what runs comes from decisions, unless `running`:
    then some units already hold room, put there when nobody else waited."""
    return st.builds(
        _facts,
        st.integers(0, 1 << 32),
        st.sampled_from(range(most_nodes, 0, -1)),
        st.sampled_from(range(most_workloads, 0, -1)),
        st.just(taste),
        st.booleans() if running else st.just(False),
    )


def _facts(
    seed: int, node_count: int, workload_count: int, taste: NodeScores, running: bool
) -> ClusterFacts:
    throw = dice(seed)
    names = throw.choice(TREES)
    workloads = tuple(
        workload(f"u{i}", names, dice(seed, "unit", i), taste) for i in range(workload_count)
    )
    found = ClusterFacts(
        nodes=tuple(node(f"node-{i}", dice(seed, "node", i), taste) for i in range(node_count)),
        queues=tuple(queue(name, dice(seed, "queue", name)) for name in names),
        waiting=workloads,
        levels=LEVELS,
        quotas=quotas(dice(seed, "quotas")),
    )
    return _with_running(found, workload_count // 2) if running else found


def _with_running(found: ClusterFacts, first: int) -> ClusterFacts:
    """Lets the first units start before the others come."""
    from tests.properties import carry
    from windlass.core.cycle import cycle

    early = dataclasses.replace(found, waiting=found.waiting[:first])
    after = carry.carry_out(early, cycle.decide(snapshot.build(early), 0.0), 0.0)
    return dataclasses.replace(after, waiting=(*after.waiting, *found.waiting[first:]))


def shuffled(facts: ClusterFacts, choose: random.Random) -> ClusterFacts:
    """The same, listed in another order."""

    def mixed(things: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(choose.sample(things, len(things)))

    return dataclasses.replace(
        facts,
        nodes=mixed(facts.nodes),
        queues=mixed(facts.queues),
        running=mixed(facts.running),
        waiting=mixed(facts.waiting),
        nominations=mixed(facts.nominations),
        quotas=mixed(facts.quotas),
    )


policies = st.sampled_from(
    (
        Policy(),
        Policy(),
        Policy(reclaim=False, preempt=False),
        Policy(grow=False),
        Policy(unknown_runtime="never"),
        Policy(unknown_runtime="preemptible"),
        Policy(operations=60),
        Policy(reservations=1),
    )
)


def event(now: ClusterFacts, seed: int, taste: NodeScores = ANYTHING) -> snapshot.Event:
    """Something that could happen to these facts."""
    throw = dice(seed, "event")
    names = throw.choice(TREES)
    choices = ["node", "node", "node_gone", "queue", "queue_gone", "unit", "unit", "unit", "quotas"]
    choices += ["ends", "ends", "ends", "loses_member", "saves"] if now.running else []
    choices += ["withdrawn"] if now.waiting else []
    match throw.choice(choices):
        case "node":
            return _node_put(now, throw, taste)
        case "node_gone":
            return snapshot.NodeGone(f"node-{throw.randint(0, 6)}")
        case "queue":
            return snapshot.QueuePut(queue(throw.choice(names), throw))
        case "queue_gone":
            return snapshot.QueueGone(throw.choice(names))
        case "unit":
            return snapshot.WaitingPut(workload(f"u{throw.randint(0, 15)}", names, throw, taste))
        case "ends":
            key = throw.choice(now.running).workload.key
            return snapshot.WorkloadGone(key, throw.choice((None, 20.0, 400.0)))
        case "saves":
            return snapshot.CheckpointSaved(
                throw.choice(now.running).workload.key, float(throw.randint(0, 99))
            )
        case "quotas":
            return snapshot.QuotasPut(quotas(throw))
        case "loses_member":
            return snapshot.RunningPut(_without_one(throw.choice(now.running)))
        case _:
            return snapshot.WorkloadGone(throw.choice(now.waiting).key)


def node_event(now: ClusterFacts, throw: Dice, taste: NodeScores = ANYTHING) -> snapshot.Event:
    """A node comes, changes or goes."""
    if now.nodes and throw.one_in(3):
        return snapshot.NodeGone(throw.choice(now.nodes).name)
    return _node_put(now, throw, taste)


def _node_put(now: ClusterFacts, throw: Dice, taste: NodeScores) -> snapshot.Event:
    """A node that is new, or one that changed a little: readiness, labels, sizes."""
    fresh = node(f"node-{throw.randint(0, 6)}", throw, taste)
    if not now.nodes or throw.one_in(3):
        return snapshot.NodePut(fresh)
    old = throw.choice(now.nodes)
    changed = throw.choice(
        ("ready", "ready_in", "labels", "taints", "allocatable", "attach_limits", "numa", "devices")
    )
    return snapshot.NodePut(dataclasses.replace(old, **{changed: getattr(fresh, changed)}))


def _without_one(running: Running) -> Running:
    return dataclasses.replace(running, pods=running.pods[1:])
