"""Random clusters, queue trees, units and events, small enough that cases collide often.

Names, models and sizes come from short lists on purpose: laws break where units compete, not
where everybody has a cluster to themselves.
"""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from windlass.core import state
from windlass.core.facts import (
    Affinity,
    Constraint,
    Device,
    DeviceRequest,
    Facts,
    Node,
    Policy,
    Profile,
    Queue,
    Requirement,
    Role,
    Running,
    Spread,
    Taint,
    Toleration,
    Topology,
    Unit,
)
from windlass.kinds.reasons import Reason

LEVELS = ("zone", "rack")
GIB = 1 << 30
PROFILES = (
    Profile("1g", 1, (0, 1, 2, 3, 4, 5, 6), 142),
    Profile("2g", 2, (0, 2, 4), 285),
    Profile("3g", 4, (0, 4), 428),
    Profile("7g", 8, (0,), 1000),
)
QUEUE_NAMES = ("a", "b", "a1", "a2", "a1x")
_PARENTS = {"a": "", "b": "", "a1": "a", "a2": "a", "a1x": "a1"}
_LABELS = (("app", "x"),), (("app", "y"),)
_MATCHES = ((Requirement("app", "In", ("x",)),), (Requirement("app", "Exists"),))


# --- nodes --------------------------------------------------------------------------------------


@st.composite
def device_sets(draw: st.DrawFn) -> tuple[Device, ...]:
    """All devices of a node alike, in one of the forms that machines come in."""
    count = draw(st.integers(0, 4))
    kind = draw(st.sampled_from(("plain", "shared", "ratio", "sliced", "all")))
    model = draw(st.sampled_from(("old", "new")))
    forms = {
        "plain": {"whole"},
        "shared": {"whole", "share"},
        "ratio": {"whole", "ratio"},
        "sliced": {"whole", "partition"},
        "all": {"whole", "share", "ratio", "partition"},
    }[kind]
    sliced = "partition" in forms
    gpus = tuple(
        Device(
            f"g{i}", "gpu", model, memory=draw(st.sampled_from((16_000, 80_000))),
            numa=i // 2, switch=f"s{i // 2}", links=f"l{i // 2}",
            slices=8 if sliced else 0, profiles=PROFILES if sliced else (),
            forms=frozenset(forms), isolation=draw(st.sampled_from(("none", "soft"))),
            healthy=draw(st.integers(0, 9)) > 0,
        )
        for i in range(count)
    )  # fmt: skip
    if count < 2 or draw(st.booleans()):
        return gpus
    nics = tuple(Device(f"n{i}", "rdma", "cx", numa=i, switch=f"s{i}") for i in range(2))
    return gpus + nics


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    zone = draw(st.sampled_from(("z1", "z2")))
    rack = draw(st.sampled_from(("r1", "r2")))
    depth = draw(st.sampled_from((2, 2, 2, 1, 0)))
    taints = (Taint("team", "x"),) if draw(st.integers(0, 5)) == 0 else ()
    return Node(
        name,
        {
            "cpu": 1000 * draw(st.integers(0, 8)),
            "memory": GIB * draw(st.integers(0, 16)),
            "pods": draw(st.sampled_from((2, 10, 10))),
        },
        draw(device_sets()),
        labels={"zone": zone, "host": name, "disk": draw(st.sampled_from(("ssd", "hdd")))},
        taints=taints,
        ready=draw(st.integers(0, 9)) > 0,
        path=(zone, f"{zone}-{rack}")[:depth],
        ready_in=draw(st.sampled_from((0.0,) * 9 + (60.0,))),
        attach_limits={"disk": draw(st.integers(0, 3))} if draw(st.booleans()) else {},
    )


# --- queues -------------------------------------------------------------------------------------


@st.composite
def amounts(draw: st.DrawFn) -> dict[str, int]:
    found: dict[str, int] = {}
    if draw(st.booleans()):
        found["gpu"] = 1000 * draw(st.integers(0, 6))
    if draw(st.integers(0, 3)) == 0:
        found["gpu/new"] = 1000 * draw(st.integers(0, 4))
    if draw(st.integers(0, 2)) == 0:
        found["cpu"] = 1000 * draw(st.integers(0, 12))
    return found


@st.composite
def queues(draw: st.DrawFn, name: str) -> Queue:
    return Queue(
        name,
        _PARENTS[name],
        guarantee=draw(amounts()) if draw(st.booleans()) else {},
        limit=draw(amounts()) if draw(st.booleans()) else {},
        lend=draw(amounts()) if draw(st.booleans()) else {},
        weight=draw(st.integers(1, 3)),
        order=draw(st.sampled_from(("fifo", "lifo", "priority", "fair", "shortest", "attained"))),
        strict=draw(st.booleans()),
        reserve=draw(st.integers(0, 2)),
        min_runtime=draw(st.sampled_from((0.0, 0.0, 50.0))),
        max_priority=draw(st.sampled_from((None, None, 20))),
        past_use=draw(st.sampled_from((0.0, 0.3))),
        user_fair=draw(st.booleans()),
    )


# --- units --------------------------------------------------------------------------------------


@st.composite
def device_requests(draw: st.DrawFn) -> tuple[DeviceRequest, ...]:
    form = draw(st.sampled_from(("none", "whole", "whole", "share", "ratio", "partition", "two")))
    models = draw(st.sampled_from(((), (), ("new",), ("new", "old"), ("old", "new"))))
    isolation = draw(st.sampled_from(("none", "none", "soft")))
    if form == "none":
        return ()
    if form == "whole":
        return (DeviceRequest("gpu", draw(st.integers(1, 3)), models=models),)
    if form == "share":
        compute = draw(st.sampled_from((0, 100, 300, 500)))
        memory = draw(st.sampled_from((0, 4_000, 9_000, 40_000)))
        if not compute and not memory:
            memory = 2_000
        return (
            DeviceRequest(
                "gpu", compute=compute, memory=memory, models=models, isolation=isolation
            ),
        )
    if form == "ratio":
        return (DeviceRequest("gpu", ratio=draw(st.sampled_from((2, 4, 8))), models=models),)
    if form == "partition":
        return (DeviceRequest("gpu", profile=draw(st.sampled_from(("1g", "2g", "3g", "7g")))),)
    return (DeviceRequest("gpu", draw(st.integers(1, 2)), models=models), DeviceRequest("rdma"))


@st.composite
def constraints(draw: st.DrawFn) -> Constraint:
    return Constraint(
        selector=(("disk", "ssd"),) if draw(st.integers(0, 5)) == 0 else (),
        affinity=((Requirement("zone", "In", ("z1",)),),) if draw(st.integers(0, 5)) == 0 else (),
        tolerations=(Toleration("team", "Exists"),) if draw(st.booleans()) else (),
        avoid=frozenset(("node-1",)) if draw(st.integers(0, 9)) == 0 else frozenset(),
    )


@st.composite
def roles(draw: st.DrawFn, name: str, *, terms: bool) -> Role:
    least = draw(st.integers(0 if name == "helper" else 1, 4))
    requests = draw(device_requests())
    affinities: tuple[Affinity, ...] = ()
    spreads: tuple[Spread, ...] = ()
    if terms and draw(st.integers(0, 3)) == 0:
        affinities = (
            Affinity(
                draw(st.sampled_from(("zone", "host"))),
                draw(st.sampled_from(_MATCHES)),
                anti=draw(st.booleans()),
                required=draw(st.booleans()),
            ),
        )
    if terms and draw(st.integers(0, 4)) == 0:
        match = draw(st.sampled_from(_MATCHES))
        spreads = (Spread("zone", match, draw(st.integers(1, 2)), draw(st.booleans())),)
    return Role(
        name,
        least,
        least + draw(st.sampled_from((0, 0, 0, 2))),
        {"cpu": draw(st.sampled_from((0, 500, 1000, 3000))),
         "memory": GIB * draw(st.sampled_from((0, 1, 5)))},
        requests,
        bundle=draw(st.sampled_from(("", "", "", "numa", "pcie"))) if requests else "",
        constraint=draw(constraints()),
        ports=(8080,) if draw(st.integers(0, 7)) == 0 else (),
        attach=(("disk", 1),) if draw(st.integers(0, 9)) == 0 else (),
        labels=draw(st.sampled_from(((), *_LABELS))) if terms else (),
        affinities=affinities,
        spreads=spreads,
    )  # fmt: skip


@st.composite
def units(draw: st.DrawFn, key: str, *, terms: bool = True) -> Unit:
    names = draw(st.sampled_from((("worker",), ("worker",), ("worker", "helper"))))
    held = draw(st.integers(0, 19)) == 0
    return Unit(
        key,
        draw(st.sampled_from((*QUEUE_NAMES, "nowhere") if held else QUEUE_NAMES)),
        tuple(draw(roles(name, terms=terms)) for name in names),
        submitted=float(draw(st.integers(0, 20))),
        user=draw(st.sampled_from(("ann", "bob"))),
        namespace=draw(st.sampled_from(("team", "team", "other"))),
        priority=draw(st.sampled_from((10, 50, 50, 90))),
        gang=draw(st.integers(0, 4)) > 0,
        pack=draw(st.sampled_from(("binpack", "spread", "fragmentation"))),
        topology=draw(topologies()),
        preemptible=draw(st.integers(0, 4)) > 0,
        expected=draw(st.sampled_from((None, 30.0, 300.0))),
        not_before=draw(st.sampled_from((0.0,) * 9 + (500.0,))),
        held=(Reason.BUDGET_EXHAUSTED, "its budget is used up") if held else None,
    )


def topologies() -> st.SearchStrategy[Topology | None]:
    return st.sampled_from(
        (
            None,
            None,
            None,
            Topology("rack", required=True),
            Topology("zone", required=True),
            Topology("node", required=True),
            Topology("rack"),
            Topology("block", required=True),
        )
    )


@st.composite
def facts(draw: st.DrawFn, *, most_nodes: int = 6, most_units: int = 8, terms: bool = True) -> Facts:
    """An empty cluster and units that wait for it; what runs comes from decisions."""
    chosen = draw(st.sets(st.sampled_from(QUEUE_NAMES), min_size=1))
    for name in list(chosen):  # ancestors must exist
        while _PARENTS[name]:
            name = _PARENTS[name]
            chosen.add(name)
    count = draw(st.integers(1, most_nodes))
    waiting = tuple(
        draw(units(f"u{i}", terms=terms)) for i in range(draw(st.integers(1, most_units)))
    )
    return Facts(
        nodes=tuple(draw(nodes(f"node-{i}")) for i in range(count)),
        queues=tuple(draw(queues(name)) for name in sorted(chosen)),
        waiting=waiting,
        levels=LEVELS,
    )


policies = st.sampled_from(
    (
        Policy(),
        Policy(),
        Policy(reclaim=False, preempt=False),
        Policy(grow=False),
        Policy(unknown_runtime="never"),
        Policy(unknown_runtime="preemptible"),
        Policy(operations=40),
    )
)


# --- events -------------------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn, now: Facts) -> state.Event:
    """Something that could happen to these facts."""
    choices: list[str] = ["node", "node_gone", "queue", "queue_gone", "unit", "unit"]
    choices += ["ends", "ends", "loses_member"] if now.running else []
    choices += ["withdrawn"] if now.waiting else []
    match draw(st.sampled_from(choices)):
        case "node":
            return state.NodePut(draw(nodes(f"node-{draw(st.integers(0, 6))}")))
        case "node_gone":
            return state.NodeGone(f"node-{draw(st.integers(0, 6))}")
        case "queue":
            return state.QueuePut(draw(queues(draw(st.sampled_from(QUEUE_NAMES)))))
        case "queue_gone":
            return state.QueueGone(draw(st.sampled_from(QUEUE_NAMES)))
        case "unit":
            return state.Waits(draw(units(f"u{draw(st.integers(0, 12))}")))
        case "ends":
            running = draw(st.sampled_from(now.running))
            return state.Gone(running.unit.key, draw(st.sampled_from((None, 20.0, 400.0))))
        case "loses_member":
            return state.Holds(_without_one(draw(st.sampled_from(now.running))))
        case _:
            return state.Gone(draw(st.sampled_from(now.waiting)).key)


def _without_one(running: Running) -> Running:
    return dataclasses.replace(running, seats=running.seats[1:])
