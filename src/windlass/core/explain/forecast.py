"""What decisions lead to when evicted workloads leave at once and nothing else happens.

For questions such as "what would be stopped if this queue had more": the same `decide`, round after
round on a copy, until nothing changes any more. Pure; the given snapshot stays as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core.cycle import cycle
from windlass.core.model.types import Decision, PodAssignment, Policy, Queue, Running
from windlass.core.quota.quota_tree import Sums
from windlass.core.snapshot.snapshot import (
    Event,
    Nominated,
    NominationGone,
    ReservationsPut,
    RunningPut,
    Snapshot,
    WaitingPut,
    WorkloadGone,
    apply,
    build,
)

ROUNDS = 24


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """How the world is then, against how it was."""

    started: tuple[str, ...]
    stopped: tuple[str, ...]
    shrunk: dict[str, int]
    """Workload -> pods that it gives and has not got back."""
    preemptors: dict[str, str]
    """Workload that had to give -> workload that it gave to first."""
    guarantee: dict[str, Sums]
    """Queue -> what it is guaranteed, after shrinking to what there is."""
    used: dict[str, Sums]
    rounds: int
    settled: bool
    """Nothing moved in the last round."""


def settle(
    snapshot: Snapshot,
    now: float,
    policy: Policy,
    queues: Iterable[Queue] | None = None,
    rounds: int = ROUNDS,
) -> Forecast:
    """From the snapshot as it is; with these queues instead of its own, if given."""
    facts = snapshot.facts()
    if queues is not None:
        facts = dataclasses.replace(facts, queues=tuple(queues))
    world = build(facts)
    before = {key: len(each.pods) for key, each in world.running.items()}
    waited = set(world.waiting)
    preemptors: dict[str, str] = {}
    done, settled = 0, False
    while done < rounds and not settled:
        decision = cycle.decide(world, now, policy)
        done += 1
        for eviction in decision.evictions:
            preemptors.setdefault(eviction.workload, eviction.preemptor)
        settled = not _happen(world, decision, now)
    after = {key: len(each.pods) for key, each in world.running.items()}
    return Forecast(
        started=tuple(sorted(key for key in waited if key in after)),
        stopped=tuple(sorted(key for key in before if key not in after)),
        shrunk={key: n - after[key] for key, n in before.items() if 0 < after.get(key, 0) < n},
        preemptors=preemptors,
        guarantee={name: dict(sums) for name, sums in world.tree.guarantee.items()},
        used={name: dict(sums) for name, sums in world.tree.used.items()},
        rounds=done,
        settled=settled,
    )


def _happen(world: Snapshot, decision: Decision, now: float) -> bool:
    """Carries a decision out; returns whether that started or stopped any workload."""
    going: dict[str, set[tuple[str, int]]] = {}
    for key, running in world.running.items():
        if running.leaving:
            going[key] = set(running.leaving)
    for eviction in decision.evictions:
        going.setdefault(eviction.workload, set()).update(eviction.pods)
    events: list[Event] = []
    for placement in decision.placements:
        events.append(NominationGone(placement.workload))
        events.append(RunningPut(_placed(world, placement.workload, placement.pods, now)))
    events += [Nominated(each) for each in decision.nominations]
    for key, pods in going.items():
        events += _gone(world.running[key], pods)
    events.append(ReservationsPut(decision.reservations))
    apply(world, events)
    return bool(decision.placements or going)


def _placed(world: Snapshot, key: str, pods: tuple[PodAssignment, ...], now: float) -> Running:
    known = world.running.get(key)
    if known is not None:
        return dataclasses.replace(known, pods=(*known.pods, *pods))
    workload = world.waiting[key]
    queue = world.queues.get(workload.queue)
    return Running(workload, pods, now, protected_until=now + queue.min_runtime if queue else 0.0)


def _gone(running: Running, pods: set[tuple[str, int]]) -> list[Event]:
    left = tuple(pod for pod in running.pods if (pod.role, pod.index) not in pods)
    if left:
        return [RunningPut(dataclasses.replace(running, pods=left, leaving=()))]
    if running.workload.history_key is None:
        return [WorkloadGone(running.workload.key)]  # an external pod: it does not queue here
    return [WaitingPut(running.workload)]
