"""The best that any packing could do with a sequence of requests, by trying, and what is done.

Each request is tried once, as it arrives, and none leaves. The optimum knows the whole sequence
beforehand and may skip requests, so no online rule reaches it every time. It shares nothing with
the core but the profiles.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence

from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Device,
    DeviceRequest,
    Node,
    Pack,
    Profile,
    Queue,
    Role,
    Running,
    Workload,
)
from windlass.core.snapshot.snapshot import (
    RunningPut,
    Snapshot,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)

A100 = (
    Profile("1g.5gb", 1, (0, 1, 2, 3, 4, 5, 6), 142),
    Profile("1g.10gb", 2, (0, 2, 4, 6), 142),
    Profile("2g.10gb", 2, (0, 2, 4), 285),
    Profile("3g.20gb", 4, (0, 4), 428),
    Profile("4g.20gb", 4, (0,), 571),
    Profile("7g.40gb", 8, (0,), 1000),
)
"""Slices of memory and legal starts as `nvidia-smi mig -lgipp` lists them; an H100 has the same
under other names."""
SLICES = 8
STAYS = 1e9


def whole_gpu_nodes(count: int, *, cpu: int = 64, gpus: int = 8) -> tuple[Node, ...]:
    return tuple(
        Node(
            f"n{i}",
            {"cpu": cpu * 1000},
            tuple(Device(f"n{i}-{j}", "gpu", "A100", memory=40_960) for j in range(gpus)),
        )
        for i in range(count)
    )


def partitioned_nodes(nodes: int, devices: int) -> tuple[Node, ...]:
    forms = frozenset(("whole", "partition"))
    return tuple(
        Node(
            f"n{i}",
            {"cpu": 256_000},
            tuple(
                Device(f"n{i}-{j}", "gpu", "A100", memory=40_960, slices=SLICES, profiles=A100,
                       forms=forms)
                for j in range(devices)
            ),
        )
        for i in range(nodes)
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Request:
    """One workload of one replica, and what it counts when it is placed."""

    role: Role
    size: int

    def workload(self, key: str, at: float, pack: Pack) -> Workload:
        return Workload(key, "q", (self.role,), at, expected=STAYS, pack=pack)


def whole(gpus: int, cpu_each: int) -> Request:
    needs = {"cpu": 1000 * cpu_each * gpus}
    return Request(Role("w", 1, 1, needs, (DeviceRequest("gpu", gpus),)), gpus)


def partition(profile: Profile) -> Request:
    request = DeviceRequest("gpu", profile=profile.name)
    return Request(Role("w", 1, 1, {"cpu": 1000}, (request,)), profile.slices)


def allocated(
    nodes: tuple[Node, ...],
    arrivals: Sequence[Request],
    pack: Pack,
    history: Iterable[Request] = (),
) -> int:
    """What `decide` places of the arrivals; `history` was requested before and is gone."""
    snapshot = after(nodes, history, pack)
    return sum(
        request.size
        for number, request in enumerate(arrivals, start=1)
        if start_one(snapshot, request.workload(f"u{number:05}", float(number), pack))
    )


def placed_of_possible(
    nodes: tuple[Node, ...],
    arrivals: Sequence[Request],
    stays: Sequence[int],
    pack: Pack,
    history: Iterable[Request] = (),
) -> tuple[int, int]:
    """Slices that `decide` places while partitions come and go, and those that could be placed if
    all that run were moved first. Each placed one leaves after as many arrivals as `stays` says."""
    snapshot, devices = after(nodes, history, pack), sum(len(node.devices) for node in nodes)
    leaving: dict[str, tuple[int, Profile]] = {}
    placed = possible = 0
    for number, (request, stay) in enumerate(zip(arrivals, stays, strict=True), start=1):
        for key in [key for key, (until, _) in leaving.items() if until <= number]:
            apply(snapshot, [WorkloadGone(key)])
            del leaving[key]
        profile = profile_of(request)
        if not all_fit([profile, *(each for _, each in leaving.values())], devices):
            continue
        possible += request.size
        if start_one(snapshot, request.workload(f"u{number:05}", float(number), pack)):
            placed += request.size
            leaving[f"u{number:05}"] = (number + stay, profile)
    return placed, possible


def profile_of(request: Request) -> Profile:
    name = request.role.devices[0].profile
    return next(profile for profile in A100 if profile.name == name)


def after(nodes: tuple[Node, ...], history: Iterable[Request], pack: Pack) -> Snapshot:
    """An empty cluster on which these were requested before."""
    snapshot = build(ClusterFacts(nodes, (Queue("q", reserve=0),)))
    for number, request in enumerate(history):
        past = request.workload(f"h{number:05}", 0.0, pack)
        apply(snapshot, [WaitingPut(past)])
        apply(snapshot, [WorkloadGone(past.key)])
    return snapshot


def start_one(snapshot: Snapshot, workload: Workload) -> bool:
    """Starts the workload if `decide` places it; else it leaves at once."""
    apply(snapshot, [WaitingPut(workload)])
    placements = cycle.decide(snapshot, workload.submitted).placements
    if not placements:
        apply(snapshot, [WorkloadGone(workload.key)])
        return False
    running = Running(workload, placements[0].pods, workload.submitted, workload.submitted + STAYS)
    apply(snapshot, [RunningPut(running)])
    return True


def draw(throw: random.Random, mix: Mapping[Request, float], capacity: int) -> tuple[Request, ...]:
    """Requests of a mix until they ask for as much as there is, or up to half as much again."""
    wanted, asked = capacity * throw.choice((1.0, 1.2, 1.5)), list[Request]()
    while sum(each.size for each in asked) < wanted:
        asked += throw.choices(list(mix), list(mix.values()))
    return tuple(asked)


def most_whole(sizes: Iterable[int], nodes: int, gpus: int = 8) -> int:
    """GPUs that can be allocated of jobs of these sizes, each on one node."""
    states = {(gpus,) * nodes}
    for size in sorted(sizes, reverse=True):
        states |= {
            tuple(sorted((*free[:i], free[i] - size, *free[i + 1 :])))
            for free in states
            for i in range(nodes)
            if free[i] >= size
        }
    return gpus * nodes - min(map(sum, states))


def most_slices(profiles: Sequence[Profile], devices: int) -> int:
    """Slices that can be allocated of partitions of these profiles."""
    best = {(0,) * devices: 0}
    small = [profile for profile in profiles if profile.slices == 1]
    rest = sum(profile.slices for profile in profiles)
    for profile in sorted(profiles, key=lambda each: -each.slices)[: len(profiles) - len(small)]:
        rest -= profile.slices
        found = dict(best)
        for used, had in best.items():
            for then in _with_one(used, profile):
                found[then] = max(found.get(then, 0), had + profile.slices)
        top = max(found.values())
        best = {used: had for used, had in found.items() if had + rest >= top}
    return max(had + min(len(small), _single_slices(used, small)) for used, had in best.items())


def all_fit(profiles: Iterable[Profile], devices: int) -> bool:
    """Whether partitions of all these profiles fit at once."""
    states = {(0,) * devices}
    small = [profile for profile in profiles if profile.slices == 1]
    for profile in sorted(profiles, key=lambda each: (-each.slices, len(each.starts))):
        if profile.slices > 1:
            states = {then for used in states for then in _with_one(used, profile)}
    return any(len(small) <= _single_slices(used, small) for used in states)


def _single_slices(used: tuple[int, ...], small: Sequence[Profile]) -> int:
    """Partitions of one slice never block one another, so those that fit can be counted."""
    starts = small[0].starts if small else ()
    return sum(not taken >> start & 1 for taken in used for start in starts)


def _with_one(used: tuple[int, ...], profile: Profile) -> Iterable[tuple[int, ...]]:
    for j, taken in enumerate(used):
        if taken not in used[:j]:
            for start in profile.starts:
                bits = ((1 << profile.slices) - 1) << start
                if not bits & taken:
                    yield tuple(sorted((*used[:j], taken | bits, *used[j + 1 :])))
