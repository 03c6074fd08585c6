"""The metrics of queues, of the process that decides: what waits, what runs, shares and waits.

Counts of workloads are each queue's own, so that they can be added up; amounts and shares include
the queues below it, as in `Queue.status`. A process that does not lead has none of the gauges.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping

from windlass.core.model import types
from windlass.core.snapshot.snapshot import Snapshot
from windlass.telemetry.prometheus import Labels, Registry

_WAITS = (
    1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0,
    7 * 86400.0,
)  # fmt: skip
"""Buckets of waits in seconds: from at once to a week."""

Values = Mapping[Labels, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Decided:
    """What one decision starts and stops."""

    waits: tuple[tuple[str, float], ...] = ()
    """Queue, and seconds from submission, of workloads that start for the first time."""
    restarts: tuple[str, ...] = ()
    """Queues of workloads that start again."""
    evicted: tuple[str, ...] = ()
    """Queues of workloads that are stopped or lose replicas."""


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The values of the gauges."""

    waiting: Values
    running: Values
    oldest: Values
    used: Values
    guarantee: Values
    shares: Values
    entitlements: Values


class QueueMetrics:
    """Asking twice for those of one registry gives the same metrics."""

    def __init__(self, registry: Registry) -> None:
        by, of = ["queue"], ["queue", "resource"]
        self._wait = registry.histogram(
            "windlass_queue_wait_seconds",
            "From the submission of a workload to its first start.", by, _WAITS,
        )  # fmt: skip
        self._restarts = registry.counter(
            "windlass_queue_restarts_total", "Workloads that were started again.", by
        )
        self._evicted = registry.counter(
            "windlass_queue_evictions_total", "Workloads that were stopped, or lost replicas.", by
        )
        self._waiting = registry.gauge(
            "windlass_queue_waiting_workloads", "Runs and gangs of pods that wait.", by
        )
        self._running = registry.gauge(
            "windlass_queue_admitted_workloads", "Runs and pods that hold capacity.", by
        )
        self._oldest = registry.gauge(
            "windlass_queue_oldest_wait_seconds", "Since the oldest waiting one was submitted.", by
        )
        self._used = registry.gauge(
            "windlass_queue_used", "Held by the queue and those below it (cpu: cores, memory: "
            "bytes).", of,
        )  # fmt: skip
        self._guarantee = registry.gauge(
            "windlass_queue_guarantee", "Guaranteed to the queue, as far as it counts now.", of
        )
        self._shares = registry.gauge(
            "windlass_queue_share", "Dominant share of the cluster that the queue holds.", by
        )
        self._entitlements = registry.gauge(
            "windlass_queue_entitlement", "Dominant share that the queue is entitled to now.", by
        )

    def count(self, decided: Decided) -> None:
        for name, seconds in decided.waits:
            self._wait.observe(name, value=max(0.0, seconds))
        for name in decided.restarts:
            self._restarts.add(name)
        for name in decided.evicted:
            self._evicted.add(name)

    def show(self, state: State) -> None:
        self._waiting.replace(state.waiting)
        self._running.replace(state.running)
        self._oldest.replace(state.oldest)
        self._used.replace(state.used)
        self._guarantee.replace(state.guarantee)
        self._shares.replace(state.shares)
        self._entitlements.replace(state.entitlements)

    def clear(self) -> None:
        """Another process leads now."""
        self.show(State({}, {}, {}, {}, {}, {}, {}))


# --- pure -----------------------------------------------------------------------------------------


def decided(snapshot: Snapshot, decision: types.Decision, now: float) -> Decided:
    """Before the decision is carried out: what waits now is still in `snapshot.waiting`."""
    starts = [
        snapshot.waiting[each.workload]
        for each in decision.placements
        if each.workload in snapshot.waiting
    ]
    first = [each for each in starts if not (each.attained or each.preemptions)]
    again = [each.queue for each in starts if each.attained or each.preemptions]
    stopped = {each.workload for each in decision.evictions}
    victims = (snapshot.running.get(key) for key in sorted(stopped))
    return Decided(
        tuple((each.queue, now - each.submitted) for each in first),
        tuple(again),
        tuple(each.workload.queue for each in victims if each is not None),
    )


def read(snapshot: Snapshot, now: float) -> State:
    tree, entitled = snapshot.tree, snapshot.entitlements()
    waiting = collections.Counter(each.queue for each in snapshot.waiting.values())
    running = collections.Counter(each.workload.queue for each in snapshot.running.values())
    oldest: dict[str, float] = {}
    for each in snapshot.waiting.values():
        oldest[each.queue] = min(oldest.get(each.queue, now), each.submitted)
    names = sorted(tree.queues)
    return State(
        waiting={(name,): waiting[name] for name in names},
        running={(name,): running[name] for name in names},
        oldest={(name,): now - oldest.get(name, now) for name in names},
        used=_amounts(tree.used, names),
        guarantee=_amounts(tree.guarantee, names),
        shares={(name,): tree.used_share(name) for name in names},
        entitlements={(name,): entitled[name] for name in names},
    )


def _amounts(by_queue: Mapping[str, Mapping[str, int]], names: list[str]) -> Values:
    return {
        (name, resource): _number(resource, amount)
        for name in names
        for resource, amount in by_queue.get(name, {}).items()
    }


def _number(resource: str, amount: int) -> float:
    """Quotas count thousandths, but bytes of memory and whole pods."""
    return float(amount) if resource in ("memory", "pods") else amount / 1000
