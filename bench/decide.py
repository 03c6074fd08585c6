"""The deciding core: one thread, decision only, from one seeded generator.

    python -m bench.decide [--json] [--quick]

Devices are chosen and every unit gets a verdict. `pods_per_s` counts placed members per second of
CPU; `p50_ms` and `p99_ms` are of single decisions. There is no rival in the same process: rivals'
published figures are in the notes, for orientation only.
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
from windlass.core import cycle, state
from windlass.core.facts import (
    Decision,
    Device,
    DeviceRequest,
    Eviction,
    Facts,
    Grant,
    Nomination,
    Placement,
    Policy,
    Queue,
    Role,
    Running,
    Seat,
    Topology,
    Unit,
)
from windlass.sim import synthetic
from windlass.sim.synthetic import GIB, LEVELS

POLICY = Policy(operations=10**12)
HOUR = 3600.0
_SETTLING = 4
"""Decisions until the line that was there from the start has found its places."""


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


def from_empty(nodes: int, units: int) -> dict[str, Any]:
    """A long line in front of an empty cluster, in one decision."""
    snapshot = state.build(synthetic.busy_facts(nodes, units))
    _settle()
    seconds, decision = _timed(lambda: cycle.decide(snapshot, 1000.0, POLICY))
    placed = sum(len(placement.seats) for placement in decision.placements)
    assert len(decision.placements) + len(decision.verdicts) == units
    return _row("from empty", nodes, units, placed / seconds, [seconds])


def steady(nodes: int, pods: int, cycles: int) -> dict[str, Any]:
    """A full cluster where one unit in a hundred ends between decisions, and as many arrive as
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
            placed += sum(len(placement.seats) for placement in decision.placements)
    waiting = len(world.snapshot.waiting)
    return _row("steady state", nodes, waiting, placed / sum(times), times)


def reclaim(nodes: int) -> dict[str, Any]:
    """A gang of 100 x 8 GPUs takes back its guarantee from 8 single-GPU units on every node."""
    machines = synthetic.cluster(nodes)
    one = DeviceRequest("gpu")
    worker = Role("worker", 1, 1, {"cpu": 4000, "memory": 8 * GIB}, (one,))
    grants = [_whole(device) for device in machines[0].devices]
    running = tuple(
        Running(
            Unit(f"v{node.name}-{j}", "lender", (worker,), submitted=float(j)),
            (Seat("worker", 0, node.name, (grants[j],)),),
            started=float(j),
        )
        for node in machines
        for j in range(8)
    )
    gang = Role("worker", 100, 100, {"cpu": 32_000, "memory": 64 * GIB},
                (DeviceRequest("gpu", 8),))  # fmt: skip
    facts = Facts(
        machines,
        (Queue("owner", guarantee={"gpu": nodes * 8000}), Queue("lender")),
        running,
        (Unit("gainer", "owner", (gang,), submitted=1.0),),
        levels=LEVELS,
    )
    snapshot = state.build(facts)
    _settle()
    cycle.decide(snapshot, HOUR, POLICY)
    times = [_timed(lambda: cycle.decide(snapshot, HOUR, POLICY))[0] for _ in range(5)]
    decision = cycle.decide(snapshot, HOUR, POLICY)
    assert len(decision.evictions) == 800, len(decision.evictions)
    return _row("reclaim 100 x 8 GPUs", nodes, 1, 0.0, times)


def negative(nodes: int) -> dict[str, Any]:
    """One gang that fits nowhere on a full cluster: how soon it is told so."""
    world = _Steady(nodes, 28 * nodes, waiting=0)
    gang = Role("worker", 64, 64, {"cpu": 8000, "memory": 8 * GIB},
                (DeviceRequest("gpu", 8),))  # fmt: skip
    unit = Unit("big", "q000", (gang,), topology=Topology("rack", required=True))
    state.apply(world.snapshot, [state.Waits(unit)])
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
            [state.NodeGone(node.name) for node in some[:-1]],
            [state.NodePut(last)],
            [state.NodePut(node) for node in some],
        ):
            seconds = _timed(functools.partial(state.apply, world.snapshot, events))[0]
            times.append(seconds + _timed(world.decide)[0])
    return _row("nodes change", nodes, len(world.snapshot.waiting), 0.0, times)


class _Steady:
    """A cluster that stays full, and a line that stays as long as it is."""

    def __init__(self, nodes: int, pods: int, waiting: int = 2000) -> None:
        self._demand = synthetic.Demand(1, tuple(f"q{i:03}" for i in range(50)))
        self._now = 10 * HOUR
        machines = synthetic.cluster(nodes)
        running = tuple(_fill(machines, pods))
        facts = Facts(
            machines,
            synthetic.queues(50, nodes * 8),
            running,
            tuple(self._small() for _ in range(waiting)),
            levels=LEVELS,
        )
        self.snapshot = state.build(facts)
        _settle()
        self._order = [each.unit.key for each in running]
        self._line = waiting

    def _small(self) -> Unit:
        unit = self._demand.unit(self._now)
        return unit if unit.roles[0].least <= 8 else dataclasses.replace(unit, roles=_EIGHT)

    def churn(self) -> None:
        """The oldest hundredth ends; the line is filled up."""
        count = max(1, len(self._order) // 100)
        ended, self._order = self._order[:count], self._order[count:]
        events: list[state.Event] = [state.Gone(key, 600.0) for key in ended]
        missing = self._line - len(self.snapshot.waiting)
        events += [state.Waits(self._small()) for _ in range(missing)]
        self._now += 10.0
        state.apply(self.snapshot, events)

    def decide(self) -> Decision:
        return cycle.decide(self.snapshot, self._now, POLICY)

    def carry_out(self, decision: Decision) -> None:
        """As the platform would, with victims that go at once and wait again."""
        known = self.snapshot.nominations
        events: list[state.Event] = [
            state.NominationGone(key) for key in known if key not in _keys(decision.nominations)
        ]
        for eviction in decision.evictions:
            events += self._evicted(self.snapshot.running[eviction.unit], eviction)
        for placement in decision.placements:
            events.append(self._started(placement))
        events += [state.Nominated(each) for each in decision.nominations]
        events.append(state.Promised(decision.reservations))
        state.apply(self.snapshot, events)

    def _started(self, placement: Placement) -> state.Holds:
        unit = self.snapshot.waiting[placement.unit]
        self._order.append(unit.key)
        end = self._now + (unit.expected or HOUR)
        return state.Holds(Running(unit, placement.seats, self._now, end))

    def _evicted(self, running: Running, eviction: Eviction) -> list[state.Event]:
        told = set(eviction.seats)
        stay = tuple(seat for seat in running.seats if (seat.role, seat.index) not in told)
        if stay:
            return [state.Holds(dataclasses.replace(running, seats=stay))]
        self._order.remove(running.unit.key)
        return [state.Gone(running.unit.key), state.Waits(running.unit)]


def _settle() -> None:
    """As the live scheduler does once it has seen everything: what is there to stay is not looked
    through for garbage again and again."""
    gc.collect()
    gc.freeze()


def _keys(nominations: tuple[Nomination, ...]) -> set[str]:
    return {nomination.unit for nomination in nominations}


_EIGHT = (Role("worker", 8, 8, {"cpu": 2000, "memory": 4 * GIB}),)


def _fill(machines: tuple[Any, ...], pods: int) -> Iterator[Running]:
    """Four units of two GPUs on every node, and CPU units of seven members for the rest."""
    pair = Role("worker", 1, 1, {"cpu": 8000, "memory": 32 * GIB}, (DeviceRequest("gpu", 2),))
    small = Role("worker", 7, 7, {"cpu": 1000, "memory": 2 * GIB})
    made = 0
    for number, node in enumerate(machines):
        for j in range(4):
            grants = tuple(_whole(device) for device in node.devices[2 * j : 2 * j + 2])
            unit = Unit(
                f"g{number}-{j}", f"q{(number + j) % 50:03}", (pair,), submitted=float(made)
            )
            yield Running(
                unit, (Seat("worker", 0, node.name, grants),), float(made), 12 * HOUR + made
            )
            made += 1
    for number in range((pods - made) // 7):
        node = machines[number % len(machines)]
        unit = Unit(f"c{number}", f"q{number % 50:03}", (small,), submitted=float(made + number))
        seats = tuple(Seat("worker", i, node.name) for i in range(7))
        yield Running(unit, seats, float(number), 11 * HOUR + number)


def _whole(device: Device) -> Grant:
    return Grant(device.id, "whole", device.compute, device.memory)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = work()
    return time.process_time() - begun, result


def _row(
    case: str, nodes: int, units: int, pods_per_s: float, times: list[float]
) -> dict[str, Any]:
    ordered = sorted(times)
    return {
        "case": case,
        "nodes": nodes,
        "units": units,
        "pods_per_s": round(pods_per_s),
        "p50_ms": round(1000 * statistics.median(ordered), 2),
        "p99_ms": round(1000 * ordered[int(0.99 * len(ordered))], 2),
    }


if __name__ == "__main__":
    sys.exit(report.main("decide", (__doc__ or "").partition("\n")[0], measure))
