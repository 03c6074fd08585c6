"""The deciding core: one thread, decision only, from one seeded generator.

    python -m bench.decide [--json] [--quick]

Devices are chosen and every workload gets a verdict. `pods_per_s` counts placed members per second
of CPU; `p50_ms` and `p99_ms` are of single decisions. There is no rival in the same process:
rivals' published figures are in the notes, for orientation only.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench import report
from windlass.core.cycle import cycle
from windlass.core.model.types import (
    ClusterFacts,
    Decision,
    Device,
    DeviceRequest,
    Eviction,
    Grant,
    Nomination,
    Placement,
    PodAssignment,
    Policy,
    Queue,
    Role,
    Running,
    Topology,
    Workload,
)
from windlass.core.snapshot.snapshot import (
    Event,
    NodeGone,
    NodePut,
    Nominated,
    NominationGone,
    ReservationsPut,
    RunningPut,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)
from windlass.sim.inputs import synthetic
from windlass.sim.inputs.synthetic import GIB, LEVELS

POLICY = Policy(operations=10**12)
HOUR = 3600.0
_SETTLING = 4
"""Decisions until the initial queue is placed."""


def measure(options: report.Options) -> report.Report:
    quick = options.quick
    rows = [from_empty(n, n * 4) for n in ((1000, 5000) if quick else (1000, 5000, 10_000, 30_000))]
    cycles = 10 if quick else 40
    rows += [steady(n, 28 * n, cycles) for n in ((1000,) if quick else (5000, 30_000))]
    rows += [reclaim(1000), negative(1000), other_nodes(1000 if quick else 5000)]
    return report.Report(
        rows,
        notes=[
            "published by others, on their machines: kube-scheduler 492-630 pods/s for gangs of 4 "
            "in racks on 5,000 nodes; KAI 76 s to reclaim on 1,000 nodes, 249 s to say that a "
            "10-pod job does not fit on 500 nodes; Kueue up to 40 s a cycle on 2,000 nodes",
        ],
    )


def from_empty(nodes: int, workloads: int) -> dict[str, Any]:
    """A long queue in front of an empty cluster, in one decision."""
    snapshot = build(synthetic.busy_facts(nodes, workloads))
    _settle()
    seconds, decision = _timed(lambda: cycle.decide(snapshot, 1000.0, POLICY))
    placed = sum(len(placement.pods) for placement in decision.placements)
    assert len(decision.placements) + len(decision.verdicts) == workloads
    return _row("from empty", nodes, workloads, placed / seconds, [seconds])


def steady(nodes: int, pods: int, cycles: int) -> dict[str, Any]:
    """A full cluster where one workload in a hundred ends between decisions, and as many arrive as
    started: 2,000 wait all the time."""
    world = _Steady(nodes, pods)
    times = []
    placed = 0
    for number in range(_SETTLING + cycles):
        world.churn()
        seconds, decision = _timed(world.decide)
        world.carry_out(decision)
        if number >= _SETTLING:
            times.append(seconds)
            placed += sum(len(placement.pods) for placement in decision.placements)
    waiting = len(world.snapshot.waiting)
    return _row("steady state", nodes, waiting, placed / sum(times), times)


def reclaim(nodes: int) -> dict[str, Any]:
    """A gang of 100 x 8 GPUs reclaims its guarantee from 8 single-GPU workloads on every node."""
    machines = synthetic.cluster(nodes)
    one = DeviceRequest("gpu")
    worker = Role("worker", 1, 1, {"cpu": 4000, "memory": 8 * GIB}, (one,))
    grants = [_whole(device) for device in machines[0].devices]
    running = tuple(
        Running(
            Workload(f"v{node.name}-{j}", "lender", (worker,), submitted=float(j)),
            (PodAssignment("worker", 0, node.name, (grants[j],)),),
            started=float(j),
        )
        for node in machines
        for j in range(8)
    )
    gang = Role("worker", 100, 100, {"cpu": 32_000, "memory": 64 * GIB},
                (DeviceRequest("gpu", 8),))  # fmt: skip
    facts = ClusterFacts(
        machines,
        (Queue("owner", guarantee={"gpu": nodes * 8000}), Queue("lender")),
        running,
        (Workload("gainer", "owner", (gang,), submitted=1.0),),
        levels=LEVELS,
    )
    snapshot = build(facts)
    _settle()
    cycle.decide(snapshot, HOUR, POLICY)
    times = [_timed(lambda: cycle.decide(snapshot, HOUR, POLICY))[0] for _ in range(5)]
    decision = cycle.decide(snapshot, HOUR, POLICY)
    assert len(decision.evictions) == 800, len(decision.evictions)
    return _row("reclaim 100 x 8 GPUs", nodes, 1, 0.0, times)


def negative(nodes: int) -> dict[str, Any]:
    """One gang that fits nowhere on a full cluster: how soon it gets its verdict."""
    world = _Steady(nodes, 28 * nodes, waiting=0)
    gang = Role("worker", 64, 64, {"cpu": 8000, "memory": 8 * GIB},
                (DeviceRequest("gpu", 8),))  # fmt: skip
    workload = Workload("big", "q000", (gang,), topology=Topology("rack", required=True))
    apply(world.snapshot, [WaitingPut(workload)])
    world.decide()
    times = [_timed(world.decide)[0] for _ in range(20)]
    return _row("negative verdict", nodes, 1, 0.0, times)


def other_nodes(nodes: int) -> dict[str, Any]:
    """Ten nodes leave a full cluster, a device of another fails, ten come: from event to answer."""
    world, times = _Steady(nodes, 28 * nodes), []
    for number in range(5):
        some = world.snapshot.cluster.nodes[100 * number : 100 * number + 11]
        sick = dataclasses.replace(some[-1].devices[0], healthy=False)
        last = dataclasses.replace(some[-1], devices=(sick, *some[-1].devices[1:]))
        for events in (
            [NodeGone(node.name) for node in some[:-1]],
            [NodePut(last)],
            [NodePut(node) for node in some],
        ):
            seconds = _timed(functools.partial(apply, world.snapshot, events))[0]
            times.append(seconds + _timed(world.decide)[0])
    return _row("nodes change", nodes, len(world.snapshot.waiting), 0.0, times)


class _Steady:
    """A cluster that stays full, and a queue that stays as long as it is."""

    def __init__(self, nodes: int, pods: int, waiting: int = 2000) -> None:
        self._demand = synthetic.Demand(1, tuple(f"q{i:03}" for i in range(50)))
        self._now = 10 * HOUR
        machines = synthetic.cluster(nodes)
        running = tuple(_fill(machines, pods))
        facts = ClusterFacts(
            machines,
            synthetic.queues(50, nodes * 8),
            running,
            tuple(self._small() for _ in range(waiting)),
            levels=LEVELS,
        )
        self.snapshot = build(facts)
        _settle()
        self._order = [each.workload.key for each in running]
        self._line = waiting

    def _small(self) -> Workload:
        workload = self._demand.workload(self._now)
        return (
            workload
            if workload.roles[0].min_count <= 8
            else dataclasses.replace(workload, roles=_EIGHT)
        )

    def churn(self) -> None:
        """The oldest hundredth ends; the queue is filled up."""
        count = max(1, len(self._order) // 100)
        ended, self._order = self._order[:count], self._order[count:]
        events: list[Event] = [WorkloadGone(key, 600.0) for key in ended]
        missing = self._line - len(self.snapshot.waiting)
        events += [WaitingPut(self._small()) for _ in range(missing)]
        self._now += 10.0
        apply(self.snapshot, events)

    def decide(self) -> Decision:
        return cycle.decide(self.snapshot, self._now, POLICY)

    def carry_out(self, decision: Decision) -> None:
        """As the platform would, with victims that go at once and wait again."""
        known = self.snapshot.nominations
        events: list[Event] = [
            NominationGone(key) for key in known if key not in _keys(decision.nominations)
        ]
        for eviction in decision.evictions:
            events += self._evicted(self.snapshot.running[eviction.workload], eviction)
        for placement in decision.placements:
            events.append(self._started(placement))
        events += [Nominated(each) for each in decision.nominations]
        events.append(ReservationsPut(decision.reservations))
        apply(self.snapshot, events)

    def _started(self, placement: Placement) -> RunningPut:
        workload = self.snapshot.waiting[placement.workload]
        self._order.append(workload.key)
        end = self._now + (workload.expected or HOUR)
        return RunningPut(Running(workload, placement.pods, self._now, end))

    def _evicted(self, running: Running, eviction: Eviction) -> list[Event]:
        told = set(eviction.pods)
        stay = tuple(pod for pod in running.pods if (pod.role, pod.index) not in told)
        if stay:
            return [RunningPut(dataclasses.replace(running, pods=stay))]
        self._order.remove(running.workload.key)
        return [WorkloadGone(running.workload.key), WaitingPut(running.workload)]


def _settle() -> None:
    """As the live scheduler does once its caches are filled: permanent objects are not traversed by
    the garbage collector again and again."""
    gc.collect()
    gc.freeze()


def _keys(nominations: tuple[Nomination, ...]) -> set[str]:
    return {nomination.workload for nomination in nominations}


_EIGHT = (Role("worker", 8, 8, {"cpu": 2000, "memory": 4 * GIB}),)


def _fill(machines: tuple[Any, ...], pods: int) -> Iterator[Running]:
    """Four workloads of two GPUs on every node, and CPU workloads of seven members for the rest."""
    pair = Role("worker", 1, 1, {"cpu": 8000, "memory": 32 * GIB}, (DeviceRequest("gpu", 2),))
    small = Role("worker", 7, 7, {"cpu": 1000, "memory": 2 * GIB})
    made = 0
    for number, node in enumerate(machines):
        for j in range(4):
            grants = tuple(_whole(device) for device in node.devices[2 * j : 2 * j + 2])
            workload = Workload(
                f"g{number}-{j}", f"q{(number + j) % 50:03}", (pair,), submitted=float(made)
            )
            yield Running(
                workload,
                (PodAssignment("worker", 0, node.name, grants),),
                float(made),
                12 * HOUR + made,
            )
            made += 1
    for number in range((pods - made) // 7):
        node = machines[number % len(machines)]
        workload = Workload(
            f"c{number}", f"q{number % 50:03}", (small,), submitted=float(made + number)
        )
        assigned_pods = tuple(PodAssignment("worker", i, node.name) for i in range(7))
        yield Running(workload, assigned_pods, float(number), 11 * HOUR + number)


def _whole(device: Device) -> Grant:
    return Grant(device.id, "whole", device.compute, device.memory)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def _row(
    case: str, nodes: int, workloads: int, pods_per_s: float, times: list[float]
) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "case": case,
        "nodes": nodes,
        "units": workloads,
        "pods_per_s": round(pods_per_s),
        "p50_ms": round(1000 * statistics.median(ordered), 2),
        "p99_ms": round(1000 * ordered[int(0.99 * len(ordered))], 2),
    }


if __name__ == "__main__":
    sys.exit(report.main("decide", (__doc__ or "").partition("\n")[0], measure))
