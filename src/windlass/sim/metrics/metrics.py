"""The results of a simulation in numbers: waits, completion, use, fragments, fairness,
reservations.

The engine notes the state of the cluster after every decision in a `Timeline` and returns the
`Outcome`; `compare` and `report` read `summary`. Nothing here depends on real time.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.model.types import Role, Workload
from windlass.core.snapshot.snapshot import Snapshot
from windlass.sim.job_progress import Record
from windlass.sim.metrics import shares
from windlass.sim.metrics.usage import Usage
from windlass.sim.scenario import FOREVER, weight_of

Floats = npt.NDArray[np.float64]
Values = Sequence[float] | Floats
"""One for every moment of a timeline."""

MOST_REASONS = 10
"""Of the reasons why reservations were withdrawn, so many of the most frequent are named."""
TYPICAL_SHAPES = 8
"""Fragmentation is measured against so many of the most frequent shapes of demand."""


class Timeline:
    """How full the cluster was, moment by moment: each value holds until the next moment."""

    def __init__(self, snapshot: Snapshot, demand: Sequence[Workload]) -> None:
        self.resource = _main_resource(snapshot)
        self.times: list[float] = []
        self.used: list[int] = []
        self.capacity: list[int] = []
        self.waiting: list[int] = []
        self.idle: list[float] = []
        self.fragments: list[float] = []
        self._typical = _typical_roles(demand)
        self._mask: tuple[Cluster, npt.NDArray[np.bool_]] | None = None

    def note(self, now: float, snapshot: Snapshot) -> None:
        tree, resource = snapshot.tree, self.resource
        idle, fragments = self._idle_and_fragments(snapshot.cluster)
        self.times.append(now)
        self.used.append(tree.total.get(resource, 0))
        self.capacity.append(tree.capacity.get(resource, 0))
        self.waiting.append(len(snapshot.waiting))
        self.idle.append(idle)
        self.fragments.append(fragments)

    def integral(self, values: Sequence[float], where: Sequence[bool] | None = None) -> float:
        """Sum of a value over time, in workloads of it times seconds."""
        spans = np.diff(np.asarray(self.times, np.float64))
        weighted = np.asarray(values, np.float64)[:-1] * spans
        return float(weighted.sum() if where is None else weighted[np.asarray(where)[:-1]].sum())

    def sampled(self, values: Values, points: int, until: float) -> list[float]:
        """Means of a value over equal stretches of time from the first moment to `until`."""
        times = np.asarray([*self.times, max(until, self.times[-1])], np.float64)
        steps = np.concatenate(([0.0], np.cumsum(np.asarray(values, np.float64) * np.diff(times))))
        edges = np.linspace(times[0], times[-1], points + 1)
        sums = np.interp(edges, times, steps)
        width = (times[-1] - times[0]) / points
        return [float(part) / width if width else 0.0 for part in np.diff(sums)]

    def _idle_and_fragments(self, cluster: Cluster) -> tuple[float, float]:
        """Idle devices, and how many of them are where typical pods do not fit."""
        if not self._typical or not len(cluster):
            return 0.0, 0.0
        if self._mask is None or self._mask[0] is not cluster:
            self._mask = cluster, _of_kind(cluster, self.resource)
        idle = np.where(self._mask[1], cluster.device_table.compute, 0).sum(axis=1) * cluster.open
        total = float(idle.sum())
        lost = 0.0
        for role, part in self._typical if total else ():
            stuck = cluster.pod_capacity(cluster.shape_of(role)) == 0
            lost += part * float(idle[stuck].sum())
        return total, lost


@dataclasses.dataclass(frozen=True, eq=False)
class Outcome:
    """One policy played to its end."""

    scenario: str
    policy: str
    records: tuple[Record, ...]
    timeline: Timeline
    usage: Usage
    start: float
    end: float
    decisions: int
    verdicts: Mapping[str, str]
    """Why those wait that still do."""
    price: float = 0.0
    """Of all nodes a second; 0: nothing has a price."""

    @functools.cached_property
    def shares(self) -> shares.Shares:
        return shares.Shares(self.usage, self.end)

    def wait(self, record: Record) -> float:
        """Seconds in the queue; of a job that still waits, so far."""
        since = record.waiting_since
        return record.waited + (0.0 if since is None else self.end - since)

    def waits(self) -> list[float]:
        """Of every job, ascending."""
        return sorted(map(self.wait, self.records))

    def completions(self) -> list[float]:
        found = (record.completion for record in self.records)
        return sorted(seconds for seconds in found if seconds is not None)


def summary(outcome: Outcome) -> dict[str, Any]:
    """All figures of one policy, as plain values."""
    records, line = outcome.records, outcome.timeline
    ended = [record.end for record in records if record.end is not None]
    first = min((record.job.workload.submitted for record in records), default=outcome.start)
    busy = [count > 0 for count in line.waiting]
    idle = line.integral(line.idle)
    return {
        "policy": outcome.policy,
        "jobs": len(records),
        "finished": len(ended),
        "never_started": len(never_started(records)),
        "unfinished": len(unfinished(records)),
        "timed_out": sum(record.timed_out is not None for record in records),
        "wait_s": distribution(outcome.waits()),
        "completion_s": distribution(outcome.completions()),
        "makespan_s": _rounded(max(ended) - first) if ended else None,
        "resource": line.resource,
        "utilisation": _part(line.integral(line.used), line.integral(line.capacity)),
        "utilisation_while_waiting": _part(
            line.integral(line.used, busy), line.integral(line.capacity, busy)
        ),
        "fragmentation": _part(line.integral(line.fragments), idle),
        "fairness": {
            "queues": fairness(outcome.shares.queue_fairness()),
            "users": fairness(outcome.shares.user_fairness()),
        },
        "by_queue": by_queue(outcome),
        "by_user": by_user(outcome),
        "preemptions": sum(record.preempted for record in records),
        "moves": sum(len(record.moved) for record in records),
        "shrinks": sum(record.shrunk for record in records),
        "failures": sum(record.failed for record in records),
        "lost_hours": _rounded(
            sum(record.lost * weight_of(record.job.workload) for record in records) / 3600
        ),
        "cost": cost(outcome),
        "promises": reservation_counts(records),
        "decisions": outcome.decisions,
    }


def never_started(records: Iterable[Record]) -> list[Record]:
    return [record for record in records if record.first_start is None]


def unfinished(records: Iterable[Record]) -> list[Record]:
    """Those that started, have an end, and did not come to it."""
    return [
        record
        for record in records
        if record.first_start is not None
        and record.end is None
        and record.timed_out is None
        and record.job.duration != FOREVER
    ]


def distribution(values: Sequence[float]) -> dict[str, float]:
    """Mean and the usual points of ascending values; empty when there are none."""
    if not values:
        return {}
    points = {f"p{percent}": at(values, percent / 100) for percent in (50, 95, 99)}
    mean = math.fsum(values) / len(values)
    return {
        name: _rounded(value) for name, value in {"mean": mean, **points, "max": values[-1]}.items()
    }


def at(values: Sequence[float], part: float) -> float:
    """The value that this part of the ascending values does not exceed."""
    return values[min(len(values) - 1, int(part * len(values)))]


def reached(values: Sequence[float], limit: float) -> float:
    """Which part of the ascending values is at most the limit."""
    return bisect.bisect_right(values, limit) / len(values) if values else 0.0


def fairness(found: shares.Fairness | None) -> dict[str, Any] | None:
    """The least fair group of siblings; None: no two were ever backlogged at the same time."""
    if found is None:
        return None
    return {
        "jain": _rounded(found.jain),
        "worst": _rounded(found.worst),
        "worst_name": found.worst_name,
        "group": found.group,
        "windows": None if found.windows is None else _rounded(found.windows),
    }


def by_queue(outcome: Outcome) -> dict[str, Any]:
    """Every queue, with all that is below it."""
    records: dict[str, list[Record]] = collections.defaultdict(list)
    parents = outcome.usage.parents
    for record in outcome.records:
        name = record.job.workload.queue
        while name:
            records[name].append(record)
            name = parents.get(name, "")
    found = outcome.shares.by_queue()
    return {name: _about(outcome, found[name], records[name]) for name in sorted(found)}


def by_user(outcome: Outcome) -> dict[str, Any]:
    """Every user; a user of several queues is there once for each, as QUEUE/USER."""
    records: dict[tuple[str, str], list[Record]] = collections.defaultdict(list)
    for record in outcome.records:
        records[record.job.workload.queue, record.job.workload.user].append(record)
    found = outcome.shares.by_user()
    queues = collections.Counter(user for _, user in found)
    return {
        user if queues[user] == 1 else f"{queue}/{user}": _about(
            outcome, found[queue, user], records[queue, user]
        )
        for queue, user in sorted(found, key=lambda key: key[::-1])
    }


def _about(outcome: Outcome, share: shares.Share, records: Sequence[Record]) -> dict[str, Any]:
    return {
        "device_seconds": _rounded(share.device_seconds),
        "backlogged_s": _rounded(share.backlogged),
        "share_while_backlogged": None if share.allocated is None else _rounded(share.allocated),
        "entitled_share": None if share.entitled is None else _rounded(share.entitled),
        "wait_s": distribution(sorted(outcome.wait(record) for record in records)),
        "preempted": sum(record.preempted for record in records),
    }


def cost(outcome: Outcome) -> dict[str, Any] | None:
    """What jobs paid, by queue and in all, and what the nodes cost; None without prices."""
    if not outcome.price:
        return None
    queues: dict[str, list[float]] = collections.defaultdict(list)
    for record in outcome.records:
        queues[record.job.workload.queue].append(record.cost)
    paid = {name: math.fsum(parts) for name, parts in sorted(queues.items())}
    return {
        "jobs": _rounded(math.fsum(paid.values())),
        "nodes": _rounded(outcome.price * (outcome.end - outcome.start)),
        "queues": {name: _rounded(amount) for name, amount in paid.items()},
    }


def reservation_counts(records: Iterable[Record]) -> dict[str, Any]:
    """Firm reservations, the first of each attempt: how many, how many were kept or withdrawn
    before they were due, and by how much the worst of the others was missed."""
    reserved = [a for record in records for a in record.attempts if a.reservation]
    late = [
        attempt.started - attempt.reserved
        for attempt in reserved
        if attempt.reservation == "late"
        and attempt.started is not None
        and attempt.reserved is not None
    ]
    count = collections.Counter(attempt.reservation for attempt in reserved)
    why = collections.Counter(
        attempt.withdrawn_because for attempt in reserved if attempt.reservation == "withdrawn"
    )
    frequent = sorted(why.items(), key=lambda pair: (-pair[1], pair[0]))[:MOST_REASONS]
    return {
        "made": len(reserved) - count["open"],
        "kept": count["kept"],
        "withdrawn": count["withdrawn"],
        "withdrawn_because": dict(frequent),
        "worst_delay_s": _rounded(max(late, default=0.0)),
    }


def _main_resource(snapshot: Snapshot) -> str:
    """What utilisation is about: GPUs where there are any, else another device, else CPU."""
    kinds = {device.kind for node in snapshot.cluster.nodes for device in node.devices}
    return "gpu" if "gpu" in kinds else min(kinds, default="cpu")


def _typical_roles(demand: Iterable[Workload]) -> list[tuple[Role, float]]:
    """The most frequent shapes that ask for devices, and how frequent each is among them."""
    count: collections.Counter[tuple[Any, ...]] = collections.Counter()
    example: dict[tuple[Any, ...], Role] = {}
    for workload in demand:
        for role in workload.roles:
            if role.devices:
                key = (tuple(sorted(role.needs.items())), role.devices, role.bundle)
                count[key] += role.min_count
                example.setdefault(key, role)
    chosen = sorted(count.items(), key=lambda pair: (-pair[1], repr(pair[0])))[:TYPICAL_SHAPES]
    total = sum(number for _, number in chosen)
    return [(example[key], number / total) for key, number in chosen if total]


def _of_kind(cluster: Cluster, kind: str) -> npt.NDArray[np.bool_]:
    mask = np.zeros(cluster.device_table.compute.shape, np.bool_)
    for i, node in enumerate(cluster.nodes):
        for j, device in enumerate(node.devices):
            mask[i, j] = device.kind == kind and device.healthy
    return mask


def _part(some: float, whole: float) -> float | None:
    return _rounded(some / whole) if whole > 0 else None


def _rounded(value: float) -> float:
    """Six digits: what differs beyond them between machines is noise of summation."""
    return float(f"{value:.6g}")
