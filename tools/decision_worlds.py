"""Worlds and scenarios drawn from a seed, as documents, for `tools.decisions`.

Worlds are small and tight, so that workloads compete: most decisions then evict, reserve, repair
or refuse. The draws use only `random.Random`, whose sequence Python keeps. Nothing here knows the
core; the keys are those of `tools.decision_inputs` and of docs/guide/simulate.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Document = dict[str, Any]
GIB = 1 << 30
ORDERS = ("fifo", "lifo", "priority", "fair", "shortest", "attained")
_TREES = (("a",), ("a", "b"), ("a", "b"), ("a", "b", "a1"), ("a", "b", "a1", "a2", "a1x"))
_PARENTS = {"a1": "a", "a2": "a", "a1x": "a1"}
_PROFILES = [
    {"name": "1g", "slices": 1, "starts": [0, 1, 2, 3, 4, 5, 6], "compute": 142},
    {"name": "2g", "slices": 2, "starts": [0, 2, 4], "compute": 285},
    {"name": "3g", "slices": 4, "starts": [0, 4], "compute": 428},
    {"name": "7g", "slices": 8, "starts": [0], "compute": 1000},
]
_FORMS = (
    ["whole"], ["whole", "share"], ["ratio", "whole"], ["partition", "whole"],
    ["partition", "ratio", "share", "whole"],
)  # fmt: skip
_POLICIES: tuple[Document, ...] = (
    {}, {}, {}, {"preempt": False, "reclaim": False}, {"grow": False}, {"operations": 60},
    {"unknownRuntime": "never"}, {"unknownRuntime": "preemptible"}, {"reservations": 1},
    {"growthPause": 0.0, "moveEvery": 0.0},
)  # fmt: skip


class Dice(random.Random):
    def one_in(self, number: int) -> bool:
        return self.randrange(number) == 0


def dice(*seed: object) -> Dice:
    return Dice("/".join(map(str, seed)))


# --- small worlds with everything that the core knows ---------------------------------------------


def small(seed: int, steps: int = 14) -> Document:
    """Two to six nodes, a tree of queues, workloads that come, and things that go wrong."""
    throw = dice("small", seed)
    bundled = seed % 4 == 3
    queues = throw.choice(_TREES)
    nodes = [_node(f"n{i}", dice(seed, "node", i), bundled) for i in range(throw.randint(2, 6))]
    first = [_workload(f"w{i}", queues, dice(seed, i), bundled) for i in range(throw.randint(4, 9))]
    world = {
        "name": f"small {seed}",
        "start": 1000.0,
        "policy": throw.choice(_POLICIES),
        "levels": ["zone", "rack"],
        "nodes": nodes,
        "queues": [_queue(name, dice(seed, "queue", name)) for name in queues],
        "waiting": first,
        "quotas": _quotas(throw) if throw.one_in(3) else [],
        "accounts": [{"queue": "a", "excess": float(throw.randint(-900, 900)), "usage": 300.0}]
        if throw.one_in(2)
        else [],
        "windows": [_window(throw, len(nodes))] if throw.one_in(4) else [],
    }
    world["steps"] = [_step(world, seed, number, queues, bundled) for number in range(steps)]
    world["runtimes"] = {
        each["key"]: float(dice(seed, "runtime", each["key"]).choice((90, 200, 400, 900, 3000)))
        for each in _workloads(world)
    }
    return world


def _workloads(world: Document) -> Iterator[Document]:
    yield from world["waiting"]
    for step in world["steps"]:
        yield from (value for kind, value in step["events"] if kind == "waits")


def _step(
    world: Document, seed: int, number: int, queues: tuple[str, ...], bundled: bool
) -> Document:
    throw = dice(seed, "step", number)
    names = [node["name"] for node in world["nodes"]]
    events: list[tuple[str, Any]] = []
    for i in range(throw.choice((0, 1, 1, 2, 3))):
        key = f"w{10 * (number + 1) + i}"
        workload = _workload(key, queues, dice(seed, number, i), bundled)
        workload["submitted"] = 1000.0 + 60 * number
        events.append(("waits", workload))
    if throw.one_in(4):
        events.append(("nodeLost", throw.choice(names)))
    if throw.one_in(3):
        events.append(("nodeBack", throw.choice(names)))
    if throw.one_in(6):
        events.append(("saves", f"w{throw.randint(0, 40)}"))
    if throw.one_in(8):
        events.append(("withdrawn", f"w{throw.randint(0, 40)}"))
    if throw.one_in(10):
        name = throw.choice(queues)
        events.append(("queue", _queue(name, throw)))
    if throw.one_in(10):
        events.append(("quotas", _quotas(throw)))
    return {"after": float(throw.choice((1, 20, 60, 120))), "events": events}


def _node(name: str, throw: Dice, bundled: bool) -> Document:
    zone = throw.choice(("z1", "z2"))
    forms = throw.choice(_FORMS)
    model, sliced = throw.choice(("old", "new")), "partition" in forms
    devices: list[Document] = [
        {
            "id": f"g{i}", "kind": "gpu", "model": model, "memory": 40_000, "numa": i // 2,
            "switch": f"s{i // 2}", "links": f"l{i // 2}", "slices": 8 if sliced else 0,
            "profiles": _PROFILES if sliced else [], "forms": forms,
            "isolation": "soft" if bundled else "none", "healthy": not throw.one_in(16),
        }
        for i in range(throw.choice((1, 2, 4, 4)))
    ]  # fmt: skip
    if len(devices) > 2:
        devices += [{"id": f"r{i}", "kind": "rdma", "numa": i, "switch": f"s{i}"} for i in range(2)]
    cpu, memory = 1000 * throw.randint(4, 10), GIB * throw.randint(8, 16)
    half = {"cpu": cpu // 2, "memory": memory // 2}
    path = [zone, f"{zone}-{throw.choice(('r1', 'r2'))}"]
    return {
        "name": name, "allocatable": {"cpu": cpu, "memory": memory, "pods": 12},
        "devices": devices,
        "labels": {"zone": zone, "host": name, "disk": throw.choice(("ssd", "hdd"))},
        "taints": [{"key": "team", "value": "x"}] if throw.one_in(10) else [],
        "path": path, "readyIn": 120.0 if throw.one_in(10) else 0.0,
        "attachLimits": {"disk": throw.randint(0, 3)} if throw.one_in(2) else {},
        "price": throw.choice((0, 100, 300)),
        "capabilities": ["shares"] if throw.one_in(2) else [],
        "numa": [{"id": i, "allocatable": half} for i in range(2)]
        if bundled or throw.one_in(2) else [],
    }  # fmt: skip


def _amounts(throw: Dice, most: int) -> dict[str, int]:
    found = {"gpu": 1000 * throw.randint(1, most)} if not throw.one_in(4) else {}
    if throw.one_in(4):
        found["gpu/new"] = 1000 * throw.randint(0, most)
    if throw.one_in(3):
        found["cpu"] = 1000 * throw.randint(2, 3 * most)
    return found


def _queue(name: str, throw: Dice) -> Document:
    own = {"ann": {"resources": _amounts(throw, 3), "running": throw.choice((None, 1, 4))}}
    limits = {
        "resources": _amounts(throw, 5) if throw.one_in(2) else {},
        "running": throw.choice((None, 2, 3)), "submitted": throw.choice((None, None, 4)),
        "users": own if throw.one_in(3) else {},
    }  # fmt: skip
    return {
        "name": name, "parent": _PARENTS.get(name, ""),
        "guarantee": _amounts(throw, 6) if throw.one_in(2) else {},
        "limit": _amounts(throw, 8) if throw.one_in(3) else {},
        "lend": _amounts(throw, 3) if throw.one_in(4) else {},
        "weight": throw.randint(1, 3), "order": throw.choice(ORDERS), "strict": throw.one_in(4),
        "reserve": throw.choice((0, 1, 2, None)), "minRuntime": throw.choice((0.0, 0.0, 90.0)),
        "maxPriority": throw.choice((None, None, 20)),
        "halfLife": throw.choice((None, None, 0.0, 3600.0)),
        "fairSharePreemption": throw.choice((None, None, 60.0)),
        "userFair": throw.one_in(3), "userLimits": limits if throw.one_in(3) else None,
        "held": ["QueuePaused", "paused"] if throw.one_in(24) else None,
        "namespaces": ["team"] if throw.one_in(12) else None,
    }  # fmt: skip


def _quotas(throw: Dice) -> list[Document]:
    hard = {"cpu": 1000 * throw.randint(2, 16), "pods": throw.randint(2, 10)}
    return [{"namespace": throw.choice(("team", "other")), "name": "compute", "hard": hard}]


def _window(throw: Dice, nodes: int) -> Document:
    start = 1000.0 + 60 * throw.randint(1, 8)
    window: Document = {"name": "maintenance", "start": start, "end": start + 300.0}
    if throw.one_in(2):
        window["nodes"] = [f"n{throw.randrange(nodes)}"]
    else:
        window["amounts"] = {"gpu": 1000 * throw.randint(1, 4)}
    if throw.one_in(2):
        window["queues"] = ["a"]
    return window


# --- workloads of small worlds --------------------------------------------------------------------


def _requests(throw: Dice, bundled: bool) -> list[Document]:
    models = throw.choice(([], [], [], ["new"], ["new", "old"], ["old", "new"]))
    forms = ("whole", "whole", "two") if bundled else (
        "none", "whole", "whole", "whole", "share", "ratio", "partition", "two"
    )  # fmt: skip
    form = throw.choice(forms)
    if form == "none":
        return []
    if form == "share":
        compute, memory = throw.choice(((100, 0), (300, 4_000), (500, 9_000), (0, 9_000)))
        return [{"kind": "gpu", "compute": compute, "memory": memory, "models": models}]
    if form == "ratio":
        return [{"kind": "gpu", "ratio": throw.choice((2, 4, 8)), "models": models}]
    if form == "partition":
        return [{"kind": "gpu", "profile": throw.choice(("1g", "2g", "3g", "7g"))}]
    whole = {"kind": "gpu", "count": throw.choice((1, 1, 2, 2)), "models": models}
    return [whole, {"kind": "rdma"}] if form == "two" else [whole]


def _constraint(throw: Dice) -> Document:
    found: Document = {"tolerations": [{"key": "team", "operator": "Exists"}]}
    if throw.one_in(10):
        found["selector"] = {"disk": "ssd"}
    if throw.one_in(10):
        found["affinity"] = [[{"key": "zone", "operator": "In", "values": ["z1"]}]]
    if throw.one_in(16):
        found["notNow"] = ["n1"]
    if throw.one_in(16):
        found["capabilities"] = ["shares"]
    if throw.one_in(20):
        found["nodes"] = ["n0", "n2"]
    if throw.one_in(20):
        ssd = [[{"key": "disk", "operator": "In", "values": ["ssd"]}]]
        found["storage"] = [{"candidates": [["v1", ssd], ["v2", None]], "provisioned": [ssd]}]
    return found


def _terms(throw: Dice) -> Document:
    match = [{"key": "app", "operator": "In", "values": [throw.choice(("x", "y"))]}]
    found: Document = {"labels": {"app": throw.choice(("x", "y"))}}
    if throw.one_in(4):
        found["affinities"] = [
            {
                "key": throw.choice(("zone", "host")), "match": match, "anti": throw.one_in(2),
                "required": throw.one_in(2), "weight": throw.randint(1, 3),
            }
        ]  # fmt: skip
    if throw.one_in(6):
        found["spreads"] = [
            {
                "key": throw.choice(("zone", "host")), "match": match, "skew": throw.randint(1, 2),
                "required": throw.one_in(2), "byTaints": throw.one_in(3),
            }
        ]  # fmt: skip
    if throw.one_in(6):
        ssd = {"key": "disk", "operator": "In", "values": ["ssd"]}
        found["prefers"] = [{"match": [ssd], "points": throw.choice((5, -2))}]
    return found


def _role(name: str, throw: Dice, bundled: bool) -> Document:
    least = throw.choice((1, 1, 2, 3, 4)) if name == "worker" else 1
    requests = _requests(throw, bundled)
    bundles = ("numa", "pcie") if bundled else ("", "", "", "", "numa")
    return {
        "name": name, "min": least, "max": least + throw.choice((0, 0, 0, 2, 4)),
        "requests": {"cpu": throw.choice((500, 1000, 2000)), "memory": GIB * throw.choice((1, 3))},
        "devices": requests, "bundle": throw.choice(bundles) if requests else "",
        "constraint": _constraint(throw), "ports": [8080] if throw.one_in(12) else [],
        "attach": {"disk": 1} if throw.one_in(12) else {}, **_terms(throw),
    }  # fmt: skip


def _workload(key: str, queues: tuple[str, ...], throw: Dice, bundled: bool) -> Document:
    names = throw.choice((("worker",), ("worker",), ("worker",), ("worker", "driver")))
    near = throw.choice(("rack", "zone", "node")) if throw.one_in(4) else None
    return {
        "key": key, "queue": throw.choice(queues),
        "roles": [_role(name, throw, bundled) for name in names],
        "submitted": 1000.0 - throw.randint(0, 50), "user": throw.choice(("ann", "bob", "eve")),
        "namespace": throw.choice(("team", "team", "other")),
        "priority": throw.choice((10, 50, 50, 90)), "gang": not throw.one_in(6),
        "pack": throw.choice(("binpack", "binpack", "spread", "fragmentation")),
        "topology": {"level": near, "required": throw.one_in(2)} if near else None,
        "preemptible": not throw.one_in(6), "preempts": not throw.one_in(8),
        "expected": throw.choice((None, 90.0, 300.0, 900.0)),
        "maxRuntime": 2000.0 if throw.one_in(6) else None,
        "attained": throw.choice((0.0, 0.0, 40.0, 500.0)),
        "similarTo": throw.choice(("", "ann/train", "bob/train", "foreign")),
        "notBefore": 1100.0 if throw.one_in(20) else 0.0,
        "held": ["BudgetExhausted", "its budget is used up"] if throw.one_in(30) else None,
        "movable": throw.one_in(3),
    }  # fmt: skip


# --- worlds in which workloads contend for GPUs ---------------------------------------------------


def contest(seed: int, steps: int = 16) -> Document:
    """Queues that share a full cluster, with elastic, movable and urgent workloads: decisions
    reclaim, preempt, shrink, move, nominate, grow and repair."""
    throw = dice("contest", seed)
    count = throw.randint(3, 8)
    total = 4000 * count
    nodes = [_plain_node(f"n{i}", i) for i in range(count)]
    queues = [
        {
            "name": name, "guarantee": {"gpu": part * total // 12}, "order": throw.choice(ORDERS),
            "minRuntime": throw.choice((0.0, 0.0, 60.0)),
            "fairSharePreemption": throw.choice((None, 30.0)),
        }
        for name, part in (("a", 6), ("b", 4), ("c", 0))
    ]  # fmt: skip
    world: Document = {
        "name": f"contest {seed}", "start": 0.0, "levels": ["zone", "rack"], "nodes": nodes,
        "policy": throw.choice(({}, {}, {"growthPause": 0.0}, {"moveEvery": 0.0})),
        "queues": queues, "accountedAt": 0.0,
        "waiting": [_contender(f"w{i}", "bc", dice(seed, i), 0.0) for i in range(2 * count)],
    }  # fmt: skip
    world["steps"] = [_contest_step(seed, number, count) for number in range(steps)]
    world["runtimes"] = {
        each["key"]: float(dice(seed, "runtime", each["key"]).choice((150, 400, 900, 4000)))
        for each in _workloads(world)
    }
    return world


def _plain_node(name: str, number: int, gpus: int = 4) -> Document:
    devices = [
        {
            "id": f"g{i}", "kind": "gpu", "model": "a100", "memory": 80_000, "numa": i * 2 // gpus,
            "switch": f"s{i // 2}", "links": f"l{i // 4}", "forms": ["share", "whole"],
            "isolation": "soft",
        }
        for i in range(gpus)
    ]  # fmt: skip
    return {
        "name": name,
        "allocatable": {"cpu": 16_000 * gpus, "memory": 256 * gpus * GIB, "pods": 110},
        "devices": devices, "path": [f"z{number // 32}", f"r{number // 4}"],
    }  # fmt: skip


def _contender(key: str, queues: str, throw: Dice, submitted: float) -> Document:
    least = throw.choice((1, 1, 1, 2, 3, 4))
    near = throw.one_in(6)
    role = {
        "name": "worker", "min": least, "max": least + throw.choice((0, 0, 2, 6)),
        "requests": {"cpu": 4000, "memory": 8 * GIB},
        "devices": [{"kind": "gpu", "count": throw.choice((1, 1, 2, 2, 4))}],
    }  # fmt: skip
    return {
        "key": key, "queue": throw.choice(queues), "roles": [role], "submitted": submitted,
        "user": throw.choice(("ann", "bob")), "priority": throw.choice((10, 50, 50, 90)),
        "gang": not throw.one_in(8), "preemptible": not throw.one_in(8),
        "topology": {"level": "rack", "required": True} if near else None,
        "expected": throw.choice((None, 150.0, 400.0, 900.0)), "grace": 30.0,
        "movable": throw.one_in(2), "similarTo": throw.choice(("", "ann/train", "bob/train")),
    }  # fmt: skip


def _contest_step(seed: int, number: int, nodes: int) -> Document:
    throw = dice(seed, "contest step", number)
    events: list[tuple[str, Any]] = []
    for i in range(throw.choice((0, 1, 1, 2))):
        key = f"w{100 + 10 * number + i}"
        queues = throw.choice(("a", "a", "b", "abc"))
        events.append(("waits", _contender(key, queues, dice(seed, number, i), 60.0 * number)))
    if throw.one_in(5):
        events.append(("nodeLost", f"n{throw.randrange(nodes)}"))
    if throw.one_in(4):
        events.append(("nodeBack", f"n{throw.randrange(nodes)}"))
    if throw.one_in(10):
        events.append(("deviceFails", (f"n{throw.randrange(nodes)}", throw.randrange(4))))
    if throw.one_in(3):
        events.append(("saves", f"w{throw.randrange(2 * nodes)}"))
    return {"after": float(throw.choice((10, 40, 60, 120))), "events": events}


# --- large worlds in the steady state -------------------------------------------------------------


def steady(nodes: int, waiting: int, steps: int, seed: int = 1) -> Document:
    """A full cluster where workloads end between decisions, and as many arrive."""
    throw = dice("steady", seed)
    running = [
        _started(i, node, half) for i in range(nodes) for node in (f"n{i:04}",) for half in range(4)
    ]
    arrivals = max(1, nodes // 5)
    return {
        "name": f"steady {nodes}", "start": 36_000.0, "levels": ["zone", "rack"],
        "nodes": [_plain_node(f"n{i:04}", i, gpus=8) for i in range(nodes)],
        "queues": [
            {
                "name": f"q{i:02}", "guarantee": {"gpu": 1000 * nodes * 8 // 40},
                "weight": 1 + i % 3, "order": ORDERS[i % 6],
            }
            for i in range(20)
        ],
        "running": running,
        "waiting": [_drawn(f"w{i:05}", throw, 36_000.0 - waiting + i) for i in range(waiting)],
        "runtimes": {
            each["workload"]["key"]: 36_000.0 - each["started"] + 10.0 * (number % 60)
            for number, each in enumerate(running)
        },
        "steps": [
            {
                "after": 10.0,
                "events": [
                    ("waits", _drawn(f"x{step:02}-{i:04}", throw, 36_000.0 + 10 * step))
                    for i in range(arrivals)
                ],
            }
            for step in range(steps)
        ],
    }  # fmt: skip


def _started(number: int, node: str, pair: int) -> Document:
    key = f"g{number}-{pair}"
    role = {
        "name": "worker", "min": 1, "max": 1, "requests": {"cpu": 8000, "memory": 32 * GIB},
        "devices": [{"kind": "gpu", "count": 2}],
    }  # fmt: skip
    grants = [
        {"device": f"g{2 * pair + i}", "form": "whole", "compute": 1000, "memory": 80_000}
        for i in range(2)
    ]
    started = 30_000.0 + number % 100
    return {
        "workload": {
            "key": key, "queue": f"q{(number + pair) % 20:02}", "roles": [role],
            "submitted": started - 100.0,
        },
        "members": [{"role": "worker", "index": 0, "node": node, "grants": grants}],
        "started": started, "expectedEnd": 36_100.0 + 7 * (number % 400),
    }  # fmt: skip


def _drawn(key: str, throw: Dice, submitted: float) -> Document:
    size = throw.choices((1, 2, 4, 8, 16), (60, 14, 9, 7, 2))[0]
    kind = throw.random()
    devices = [{"kind": "gpu", "count": throw.choice((1, 1, 1, 2, 4, 8))}]
    if kind < 0.2:
        part = throw.choice((100, 250, 500))
        size, devices = 1, [{"kind": "gpu", "compute": part, "memory": 80 * part}]
    role = {
        "name": "worker", "min": size, "max": size, "devices": [] if kind > 0.75 else devices,
        "requests": {"cpu": 500 * throw.randint(2, 16), "memory": GIB * throw.randint(2, 32)},
    }  # fmt: skip
    near = throw.random()
    topology = {"level": "rack", "required": True} if near < 0.15 else {"level": "zone"}
    return {
        "key": key, "queue": f"q{throw.randrange(20):02}", "roles": [role],
        "submitted": submitted, "user": f"user{throw.randrange(40)}",
        "priority": 10 * throw.randrange(5), "topology": topology if near < 0.25 else None,
        "expected": float(throw.choice((600, 3600, 4 * 3600, 24 * 3600))),
    }  # fmt: skip


# --- scenarios in the text that the simulator reads -----------------------------------------------


def scenario(seed: int) -> Document:
    """A described cluster, its queues and jobs, in the fields of docs/guide/simulate.md."""
    throw = dice("scenario", seed)
    count, queues = throw.randint(3, 8), ("research", "support", "vision")[: throw.randint(1, 3)]
    document: Document = {
        "name": f"scenario {seed}",
        "nodes": [
            {
                "count": count, "gpus": throw.choice((4, 8)), "model": "a100", "rack": 2,
                "cpu": 64, "memory": "512Gi", "numa": throw.choice((0, 2)),
            },
            {"count": throw.randint(1, 3), "gpus": 4, "model": "h100", "name": "fast"},
        ],
        "queues": [_described_queue(name, throw) for name in queues],
        "jobs": [_job(f"job-{i:03}", queues, throw) for i in range(throw.randint(20, 45))],
        "costs": {"grace": "30s", "checkpoint": throw.choice(("10m", "0s")), "repair": "5m"},
    }  # fmt: skip
    if throw.one_in(2):
        name = f"node-{throw.randrange(count):04}"
        at = f"{throw.randint(1, 5)}h"
        document["outages"] = [{"node": name, "at": at, "for": "1h"}]
    if throw.one_in(3):
        document["trouble"] = {"nodeMtbf": "1d", "repair": "30m", "jobs": 0.1, "seed": seed}
    if throw.one_in(3):
        window = {"name": "course", "from": "2h", "duration": "1h", "amounts": {"gpu": 8}}
        document["reservations"] = [{**window, "for": {"queues": [queues[0]]}}]
    if throw.one_in(3):
        document["pastUse"] = [{"queue": queues[0], "excess": "30m", "usage": "1h"}]
    return document


def _described_queue(name: str, throw: Dice) -> Document:
    found: Document = {"name": name, "order": throw.choice(ORDERS), "weight": throw.randint(1, 3)}
    if throw.one_in(2):
        found["guarantee"] = {"gpu": throw.choice((8, 12))}
    if throw.one_in(4):
        found["limit"] = {"gpu": 20}
    if throw.one_in(3):
        found["minRuntime"] = "10m"
    if throw.one_in(3):
        found["userFair"] = True
    if throw.one_in(4):
        found["userLimits"] = {"running": 4, "users": {"ada": {"resources": {"gpu": 8}}}}
    if throw.one_in(4):
        found["fairSharePreemption"] = "10m"
    if throw.one_in(4):
        found["halfLife"] = "1d"
    return found


def _job(name: str, queues: tuple[str, ...], throw: Dice) -> Document:
    job: Document = {
        "name": name, "queue": throw.choice(queues), "user": throw.choice(("ada", "bob", "eve")),
        "at": 60 * throw.randint(0, 360), "duration": 60 * throw.choice((5, 20, 60, 60, 180)),
        "priority": throw.choice((20, 50, 50, 80)),
    }  # fmt: skip
    kind = throw.choice(("gang", "elastic", "share", "single", "single", "bundle", "roles", "cpu"))
    if kind == "gang":
        job |= {"gpus": throw.choice((1, 2, 4)), "replicas": throw.choice((2, 4, 6))}
        job |= {"topology": "rack"} if throw.one_in(4) else {}
    elif kind == "elastic":
        job |= {"gpus": 1, "members": throw.randint(1, 3), "most": throw.choice((8, 16))}
    elif kind == "share":
        job |= {"share": throw.choice(("1/2", "1/4"))}
    elif kind == "bundle":
        job |= {"gpus": 2, "cpu": 4, "memory": "16Gi", "bundle": "numa"}
    elif kind == "roles":
        worker = {"name": "worker", "replicas": 2, "devices": [{"kind": "gpu", "count": 2}]}
        job |= {"roles": [{"name": "driver", "resources": {"cpu": 2}}, worker]}
    elif kind == "cpu":
        job |= {"gpus": 0, "cpu": throw.choice((2, 8)), "replicas": throw.choice((1, 4))}
    else:
        job |= {"gpus": throw.choice((1, 2, 4)), "movable": throw.one_in(2)}
        job |= {"models": throw.choice((["h100"], ["h100", "a100"]))} if throw.one_in(4) else {}
    job |= {"expected": "unknown"} if throw.one_in(5) else {}
    job |= {"preemptible": False} if throw.one_in(8) else {}
    job |= {"max": "2h"} if throw.one_in(8) else {}
    return job
