"""The quota tree for users: the state of each queue, and the next decision.

`server.platform.handlers.runs` calls it with the snapshot of the Explainer. All callers see amounts
and counts; only callers that may read a run see its name (`shown`). Pure: the functions of the
decision, and `core.explain.forecast` for what-ifs of the tree.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.control.explain import shares
from windlass.control.scheduler.status import queue_status
from windlass.core.cycle import cycle
from windlass.core.explain import forecast
from windlass.core.model import types
from windlass.core.quota import quota_tree
from windlass.core.snapshot.snapshot import Snapshot
from windlass.kinds.values import times

Shown = Callable[[str], str]
"""Uid -> `namespace/name` of a run that the caller may read; "" for any other."""
_MOST_NAMES = 20


def tree(snapshot: Snapshot, now: float, policy: types.Policy, shown: Shown) -> dict[str, Any]:
    """Every queue, parents before children, and the effect of the next decision on each."""
    done = cycle.run(snapshot, now, policy)
    decision = done.decision()
    statuses, positions = queue_status.derive(snapshot), shares.of_queues(snapshot)
    acts = _acts(snapshot, decision, shown)
    demand = _demand(snapshot, done)
    waits = _waits(snapshot, decision)
    items = []
    for depth, name in _in_order(snapshot.tree):
        queue, status = snapshot.queues[name], statuses[name]
        items.append(
            {
                "name": name,
                "parent": queue.parent,
                "depth": depth,
                "weight": queue.weight,
                "held": queue.paused[1] if queue.paused else "",
                "guarantee": queue_status.amounts(queue.guarantee),
                "counts": queue_status.amounts(snapshot.tree.guarantee[name]),
                "limit": queue_status.amounts(queue.limit, zeros=True),
                "used": status.used or {},
                "borrowed": status.borrowed or {},
                "lent": status.lent or {},
                "pending": queue_status.amounts(demand.get(name, {})),
                "running": status.running,
                "waiting": status.pending,
                "share": round(status.share or 0.0, 6),
                "standing": positions[name].to_dict(),
                "pastUse": shares.half_life_text(queue),
                "users": {
                    user: each.to_dict() for user, each in shares.of_users(snapshot, name).items()
                },
                "waits": dict(waits.get(name, {})),
                "next": acts.get(name, {}),
                "troubles": [
                    each.message
                    for each in status.conditions or ()
                    if (each.type, each.status) in (("Ready", "False"), ("OverCommitted", "True"))
                ],
            }
        )
    return {
        "items": items,
        "capacity": queue_status.amounts(snapshot.tree.capacity),
        "due": None if decision.wake_at is None else _moment(decision.wake_at),
    }


def changed(
    snapshot: Snapshot,
    now: float,
    policy: types.Policy,
    wanted: Sequence[types.Queue],
    shown: Shown,
) -> dict[str, Any]:
    """The effect of another tree: shares, starts and evictions."""
    today = forecast.settle(snapshot, now, policy)
    then = forecast.settle(snapshot, now, policy, wanted)
    before, after = snapshot.tree, quota_tree.QuotaTree(wanted, snapshot.tree.capacity)
    rows = []
    for name in sorted({*before.queues, *after.queues}):
        row = {
            "name": name,
            "guarantee": _pair(before.guarantee.get(name), after.guarantee.get(name)),
            "limit": _pair(_limit(before, name), _limit(after, name)),
            "used": _pair(today.used.get(name), then.used.get(name)),
        }
        rows.append(row)
    workloads = {
        **{key: each.workload for key, each in snapshot.running.items()},
        **snapshot.waiting,
    }
    stopped = [key for key in then.stopped if key not in today.stopped]
    shrunk = {key: n for key, n in then.shrunk.items() if n > today.shrunk.get(key, 0)}
    started = [key for key in then.started if key not in today.started]

    def described(key: str, **more: Any) -> dict[str, Any]:
        preemptor = then.preemptors.get(key, "")
        to = workloads[preemptor].queue if preemptor in workloads else ""
        return {"queue": workloads[key].queue, "run": shown(key), "for": to, **more}

    return {
        "queues": rows,
        "stopped": [described(key) for key in stopped],
        "shrunk": [described(key, members=n) for key, n in shrunk.items()],
        "started": [described(key) for key in started],
        "broken": sorted(set(after.broken.values())),
        "settled": then.settled,
    }


# --- parts ----------------------------------------------------------------------------------------


def _in_order(tree: quota_tree.QuotaTree) -> list[tuple[int, str]]:
    """Depth and name, each queue right after its parent; invalid ones come as roots."""
    found: list[tuple[int, str]] = []
    seen: set[str] = set()

    def add(name: str, depth: int) -> None:
        if name not in seen:
            seen.add(name)
            found.append((depth, name))
            for child in tree.children.get(name, ()):
                add(child, depth + 1)

    for name in sorted(tree.queues):
        if tree.queues[name].parent not in tree.queues:
            add(name, 0)
    for name in sorted(tree.queues):
        add(name, 0)
    return found


def _acts(snapshot: Snapshot, decision: types.Decision, shown: Shown) -> dict[str, dict[str, Any]]:
    """Queue -> actions in it: counts for all callers, names for those that may read them."""
    acts: dict[str, dict[str, Any]] = {}

    def note(workload: types.Workload, what: str, **more: Any) -> None:
        entry = acts.setdefault(workload.queue, {}).setdefault(what, {"count": 0, "runs": []})
        entry["count"] += 1
        name = shown(workload.key)
        if name and len(entry["runs"]) < _MOST_NAMES:
            entry["runs"].append({"run": name, **more})

    for placement in decision.placements:
        known = snapshot.running.get(placement.workload)
        if known is not None:
            note(known.workload, "grows", members=len(placement.pods))
        else:
            note(snapshot.waiting[placement.workload], "starts")
    for eviction in types.by_workload(decision.evictions):
        running, gone = snapshot.running[eviction.workload], len(eviction.pods)
        whole = gone + len(running.leaving) >= len(running.pods)
        note(running.workload, "stops" if whole else "shrinks", members=gone)
    for nomination in decision.nominations:
        note(snapshot.waiting[nomination.workload], "takes over")
    for reservation in decision.reservations:
        note(snapshot.waiting[reservation.workload], "is reserved", by=_moment(reservation.start))
    return acts


def _demand(snapshot: Snapshot, done: cycle.Cycle) -> dict[str, quota_tree.Sums]:
    """Queue -> the minimum demand of waiting workloads in it and below."""
    demand: dict[str, quota_tree.Sums] = {}
    for workload in snapshot.waiting.values():
        need = done.state.need(workload)
        for name in snapshot.tree.path(workload.queue):
            quota_tree.add(demand.setdefault(name, {}), need)
    return demand


def _waits(snapshot: Snapshot, decision: types.Decision) -> dict[str, collections.Counter[str]]:
    """Queue -> reason -> the number of waiting workloads in it and below."""
    waits: dict[str, collections.Counter[str]] = {}
    for verdict in decision.verdicts:
        workload = snapshot.waiting[verdict.workload]
        for name in snapshot.tree.path(workload.queue):
            waits.setdefault(name, collections.Counter())[str(verdict.reason)] += 1
    return waits


def _limit(tree: quota_tree.QuotaTree, name: str) -> Mapping[str, int] | None:
    return tree.queues[name].limit if name in tree.queues else None


def _pair(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, Any]:
    return {
        "before": None if before is None else queue_status.amounts(before, zeros=True),
        "after": None if after is None else queue_status.amounts(after, zeros=True),
    }


def _moment(seconds: float) -> str:
    return times.seconds(times.from_unix(seconds))
