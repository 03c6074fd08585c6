"""Prints the output that docs/reference/scheduling.md shows: `python -m tools.pictures`.

It comes from the very function that decides; `tests/unit/core/test_pictures.py` holds the page to
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from windlass.core.cycle import cycle
from windlass.core.explain import explain
from windlass.core.model.types import (
    ClusterFacts,
    Constraint,
    Decision,
    Device,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Preference,
    Profile,
    Queue,
    Requirement,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.snapshot.snapshot import build

PARTITIONED = Device(
    "g0", "gpu", "a100", memory=40_960, forms=frozenset(("partition",)), slices=8,
    profiles=(
        Profile("1g", 1, (0, 1, 2, 3, 4, 5, 6), 142),
        Profile("2g", 2, (0, 2, 4), 285),
        Profile("3g", 4, (0, 4), 428),
        Profile("4g", 4, (0,), 571),
        Profile("7g", 8, (0,), 1000),
    ),
)  # fmt: skip
NOW = 1_790_000_000.0
HOUR = 3600.0
RACKS = ("block", "rack")


def node(name: str, gpus: int = 8, path: tuple[str, ...] = (), **more: Any) -> Node:
    model = more.pop("model", "")
    devices = tuple(
        Device(
            f"g{i}", "gpu", model, memory=80_000, switch=f"s{i // 2}", links=f"l{i // 4}",
            forms=frozenset(("whole", "share")),
        )
        for i in range(gpus)
    )  # fmt: skip
    return Node(name, {"cpu": 64_000}, devices, path=path, **more)


def workload(key: str, members: int = 1, gpus: int = 8, **more: Any) -> Workload:
    request = more.pop("request", DeviceRequest("gpu", gpus) if gpus else None)
    terms = {name: more.pop(name) for name in ("prefers", "constraint", "bundle") if name in more}
    requests = more.pop("requests", (request,) if request else ())
    most = more.pop("most", members)
    role = Role("worker", members, most, {"cpu": 1000}, requests, **terms)
    return Workload(key, more.pop("queue", "team"), (role,), more.pop("at", 0.0), **more)


def held(what: Workload, *pods: tuple[str, range], end: float | None = None) -> Running:
    places = tuple(
        PodAssignment("worker", number, name, tuple(Grant(f"g{i}") for i in devices))
        for number, (name, devices) in enumerate(pods)
    )
    return Running(what, places, NOW - 600, None if end is None else NOW + end)


def facts(*nodes: Node, queues: tuple[Queue, ...] = (Queue("team"),), **more: Any) -> ClusterFacts:
    levels = RACKS if any(each.path for each in nodes) else ()
    return ClusterFacts(nodes, queues, levels=levels, **more)


EIGHT = range(8)
TWO = (node("n0"), node("n1"))
BLOCK = tuple(node(f"n{i}", path=("b1", f"r{i // 2}")) for i in range(4))
H100 = DeviceRequest("gpu", 8, models=("h100",))
SSD = (Preference((Requirement("disk", "In", ("ssd",)),), 10),)


def share(percent: int) -> DeviceRequest:
    return DeviceRequest("gpu", compute=10 * percent, memory=800 * percent)


def pcie() -> Node:
    devices = [Device(f"g{i}", "gpu", switch=f"s{i // 2}") for i in range(4)]
    devices += [Device(f"nic{i}", "rdma", switch=f"s{i}") for i in range(2)]
    return Node("n0", {"cpu": 64_000}, tuple(devices))


def in_line(order: Any) -> ClusterFacts:
    return facts(
        node("n0"),
        queues=(Queue("team", order=order, reserve=0),),
        waiting=(
            workload("old-long", at=1.0, expected=2 * HOUR),
            workload("mid", at=2.0, expected=600.0),
            workload("new", at=3.0, expected=HOUR),
        ),
    )


def rooms(*, slow: bool = False) -> ClusterFacts:
    small = (
        workload("slow", at=2.0, expected=2 * HOUR)
        if slow
        else workload("short", at=2.0, expected=1800.0)
    )
    return facts(
        *TWO,
        running=(held(workload("long"), ("n0", EIGHT), end=HOUR),),
        waiting=(workload("big", 2, at=1.0, expected=HOUR), small),
    )


def lent(waits: Workload) -> ClusterFacts:
    red = Queue("red", guarantee={"gpu": 8000}, lend={"gpu": 4000})
    return facts(*TWO, queues=(red, Queue("blue")), waiting=(waits,))


CASES: dict[str, ClusterFacts] = {
    "gang": facts(*TWO, waiting=(workload("a", 2), workload("b", 2, at=1.0)), queues=(
        Queue("team", reserve=0),)),
    "topology": facts(
        *BLOCK,
        running=(held(workload("x"), ("n0", EIGHT)),),
        waiting=(
            workload("rack-job", 2, topology=Topology("rack", required=True)),
            workload("wide", 3, at=1.0, topology=Topology("rack", required=True)),
        ),
    ),
    "binpack": facts(
        *TWO, running=(held(workload("x", gpus=4), ("n0", range(4))),), waiting=(workload("two", 2,
        2),)
    ),
    "spread": facts(
        *TWO, running=(held(workload("x", gpus=4), ("n0", range(4))),),
        waiting=(workload("two", 2, 2, pack="spread"),),
    ),
    "bundle": facts(
        pcie(),
        waiting=(workload("pair", bundle="pcie", requests=(
            DeviceRequest("gpu", 2), DeviceRequest("rdma"))),),
    ),
    "partitions": facts(
        Node("n0", {"cpu": 64_000}, (PARTITIONED,)),
        waiting=tuple(
            workload(key, request=DeviceRequest("gpu", profile=profile), at=float(number))
            for number, (key, profile) in enumerate((("a", "1g"), ("b", "3g"), ("c", "1g")))
        ),
    ),
    "shares": facts(
        node("n0", 2),
        queues=(Queue("team", reserve=0),),
        waiting=tuple(
            workload(f"s{i}", request=share(part), at=float(i))
            for i, part in enumerate((60, 30, 40, 70))
        ),
    ),
    "guarantee": facts(
        *TWO,
        queues=(Queue("red", guarantee={"gpu": 8000}), Queue("blue", guarantee={"gpu": 8000})),
        running=(
            held(workload("b1", queue="blue"), ("n0", EIGHT)),
            held(workload("b2", queue="blue", at=1.0), ("n1", EIGHT)),
        ),
        waiting=(workload("r", queue="red"),),
    ),
    "whole gang": facts(
        *TWO, queues=(Queue("red", guarantee={"gpu": 8000}), Queue("blue", guarantee={"gpu":
        8000})), running=(held(workload("gang", 2, queue="blue", preemptions=1), ("n0", EIGHT),
        ("n1", EIGHT)),), waiting=(workload("r", gpus=1, queue="red"),),
    ),
    "limit": facts(
        *TWO, queues=(Queue("team", limit={"gpu": 2000}),), waiting=(workload("four", gpus=4),)
    ),
    "lend": lent(workload("twelve", 3, 4, queue="blue")),
    "lend more": lent(workload("sixteen", 4, 4, queue="blue")),
    "firm": facts(
        *TWO, queues=(Queue("red", guarantee={"gpu": 8000}), Queue("blue")),
        waiting=(workload("firm", 2, queue="blue", preemptible=False),),
    ),
    "fifo": in_line("fifo"),
    "lifo": in_line("lifo"),
    "shortest": in_line("shortest"),
    "strict": facts(
        node("a", model="a100"), node("h", model="h100"),
        queues=(Queue("team", strict=True, reserve=0),),
        running=(held(workload("x", request=H100), ("h", EIGHT)),),
        waiting=(
            workload("head", request=H100, at=1.0),
            workload("small", request=DeviceRequest("gpu", 1, models=("h100",)), at=2.0),
            workload("other", request=DeviceRequest("gpu", 8, models=("a100",)), at=3.0),
        ),
    ),
    "preemption": facts(
        node("n0"),
        running=(held(workload("low", priority=10), ("n0", EIGHT)),),
        waiting=(workload("high", priority=90),),
    ),
    "backfill": rooms(),
    "held back": rooms(slow=True),
    "grow": facts(node("n0", 6), waiting=(workload("elastic", 2, 2, most=3),)),
    "shrink": facts(
        node("n0"),
        running=(
            held(workload("elastic", 2, 2, most=4, priority=10),
                 *(("n0", range(2 * i, 2 * i + 2)) for i in range(4))),
        ),
        waiting=(workload("high", 2, 2, priority=90),),
    ),
    "move": facts(
        *TWO,
        running=(
            held(workload("left", gpus=4, movable=True), ("n0", range(4))),
            held(workload("right", gpus=4), ("n1", range(4))),
        ),
        waiting=(workload("whole"),),
    ),
    "no move": facts(
        *TWO,
        running=(
            held(workload("left", gpus=4), ("n0", range(4))),
            held(workload("right", gpus=4, preemptible=False), ("n1", range(4))),
        ),
        waiting=(workload("whole"),),
    ),
    "repair": facts(
        *TWO,
        running=(
            held(workload("gang", 2), ("n0", EIGHT)),
            held(workload("low", priority=10), ("n1", EIGHT)),
        ),
    ),
    "preferred": facts(
        node("n0", labels={"disk": "hdd"}), node("n1", labels={"disk": "ssd"}),
        running=(held(workload("x", gpus=4), ("n0", range(4))),),
        waiting=(workload("two", 2, 2), workload("near-data", gpus=2, prefers=SSD, at=1.0)),
    ),
    "price": facts(
        node("n0", price=2_000_000), node("n1", price=1_000_000), waiting=(workload("one", gpus=1),)
    ),
    "capability": facts(
        node("n0", capabilities=frozenset(("shares",))),
        waiting=(workload("cut", constraint=Constraint(capabilities=frozenset(("partitions",)))),),
    ),
    "wanted": facts(
        node("n0"), node("cloud-a", ready_in=300.0, price=9_000_000),
        node("cloud-b", ready_in=300.0, price=8_000_000),
        queues=(Queue("team", reserve=0),),
        running=(held(workload("x"), ("n0", EIGHT)),), waiting=(workload("big"),),
    ),
    "impossible": facts(
        *BLOCK,
        waiting=(
            workload("nine", gpus=9), workload("five", 5, at=1.0),
            workload("rack3", 3, at=2.0, topology=Topology("rack", required=True)),
        ),
    ),
}  # fmt: skip
EXPLAINED = {
    "no move": ("whole",),
    "limit": ("four",),
    "backfill": ("big",),
    "impossible": ("rack3",),
    "wanted": ("big",),
}


def lines(decision: Decision) -> Iterator[str]:
    """One line for everything that was decided."""
    for placement in decision.placements:
        yield f"start {placement.workload} {_pods(placement.pods)}"
    for eviction in decision.evictions:
        count, preemptor = len(eviction.pods), eviction.preemptor
        yield f"stop  {eviction.workload} {count} pods for {preemptor} - {eviction.reason}"
    for nomination in decision.nominations:
        yield f"hold  {nomination.workload} {sorted({pod.node for pod in nomination.pods})}"
    for promise in decision.reservations:
        places = sorted({pod.node for pod in promise.pods})
        yield f"promise {promise.workload} at +{promise.start - NOW:.0f}s {places}"
    for verdict in decision.verdicts:
        yield f"wait  {verdict.workload} {verdict.reason}: {verdict.message}"
    for wanted in decision.wanted:
        yield f"wanted {wanted.node} {wanted.workloads}"


def _pods(pods: tuple[PodAssignment, ...]) -> str:
    places: dict[str, list[str]] = {}
    for pod in pods:
        places.setdefault(pod.node, []).append(",".join(map(_part, pod.grants)))
    return " ".join(f"{name}[{' '.join(each)}]" for name, each in places.items())


def _part(grant: Grant) -> str:
    if grant.form == "whole":
        return grant.device
    if grant.form == "partition":
        return f"{grant.device}:{grant.profile}@{grant.start}"
    return f"{grant.device}:{grant.compute // 10}%"


def all_lines() -> Iterator[tuple[str, str]]:
    """(case, line) for everything that the page may show."""
    for name, case in CASES.items():
        snapshot = build(dataclasses.replace(case))
        for line in lines(cycle.decide(snapshot, NOW)):
            yield name, line
        for key in EXPLAINED.get(name, ()):
            for line in explain.explain(snapshot, key, NOW).sentences():
                yield name, line


def main() -> None:
    last = ""
    for name, line in all_lines():
        if name != last:
            print(f"\n{name}")
        print(f"      {line}")
        last = name


if __name__ == "__main__":
    main()
