"""Small clusters and workloads for tests of reservations."""

from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    PodAssignment,
    Profile,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import build

NOW = 1000.0
PROFILES = (Profile("1g", 1, tuple(range(7)), 142), Profile("3g", 4, (0, 4), 428))
FORMS = frozenset(("whole", "share", "ratio", "partition"))


def node(name="a", cpu=8, gpus=0, rack="r1", **more) -> Node:
    devices = tuple(
        Device(f"g{i}", "gpu", memory=1000, slices=8, profiles=PROFILES, forms=FORMS)
        for i in range(gpus)
    )
    return Node(name, {"cpu": cpu * 1000}, devices, path=(rack,), **more)


def role(members=1, cpu=1, *requests, name="w", most=None, **more) -> Role:
    return Role(name, members, most or members, {"cpu": cpu * 1000}, requests, **more)


def gpus(count) -> DeviceRequest:
    return DeviceRequest("gpu", count)


def workload(key, *roles, queue="q", expected=None, submitted=0.0, **more) -> Workload:
    return Workload(key, queue, roles or (role(),), submitted, expected=expected, **more)


def runs(key, *nodes, end=None, cpu=8, grants=(), started=0.0, **more) -> Running:
    """One pod of so many cpu on each of the nodes."""
    pods = tuple(PodAssignment("w", i, name, grants) for i, name in enumerate(nodes))
    what = workload(key, role(len(nodes), cpu), **more)
    return Running(what, pods, started, expected_end=end)


DEFAULT = (Queue("q"),)


def snapshot(nodes, running=(), waiting=(), queues=DEFAULT, reservations=(), accounts=()):
    return build(
        ClusterFacts(tuple(nodes), tuple(queues), tuple(running), tuple(waiting), levels=("rack",),
              reservations=tuple(reservations), accounts=tuple(accounts))
    )  # fmt: skip


def promises(decision) -> dict[str, float]:
    return {each.workload: each.start for each in decision.reservations}


def started(decision) -> set[str]:
    return {placement.workload for placement in decision.placements}


def verdict(decision, key):
    return next(each for each in decision.verdicts if each.workload == key)


HEAD = workload("head", role(2, 8), expected=100.0)
"""Needs both nodes whole."""
