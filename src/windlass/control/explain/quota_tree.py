"""The sharing tree as people ask about it: what each queue has, and what is decided next.

`server.platform` asks, through the Explainer's snapshot. Amounts and counts are for everybody;
which run it is only for those who may read it (`shown`). Pure: the same functions that decide, and
`core.forecast` for "what if the tree were this".
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.control import queuestatus, shares
from windlass.core import cycle, facts, forecast, queues, state
from windlass.kinds import times

Shown = Callable[[str], str]
"""Uid -> `namespace/name` of a run that the caller may read; "" of any other."""
_MOST_NAMES = 20


def tree(
    snapshot: state.Snapshot, now: float, policy: facts.Policy, shown: Shown
) -> dict[str, Any]:
    """Every queue, parents before children, and what the next decision does in each."""
    done = cycle.run(snapshot, now, policy)
    decision = done.decision()
    statuses, standings = queuestatus.derive(snapshot), shares.of_queues(snapshot)
    acts = _acts(snapshot, decision, shown)
    asked = _asked(snapshot, done)
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
                "held": queue.held[1] if queue.held else "",
                "guarantee": queuestatus.amounts(queue.guarantee),
                "counts": queuestatus.amounts(snapshot.tree.guarantee[name]),
                "limit": queuestatus.amounts(queue.limit, zeros=True),
                "used": status.used or {},
                "borrowed": status.borrowed or {},
                "lent": status.lent or {},
                "pending": queuestatus.amounts(asked.get(name, {})),
                "running": status.running,
                "waiting": status.pending,
                "share": round(status.share or 0.0, 6),
                "standing": standings[name].to_dict(),
                "pastUse": shares.half_life_words(queue),
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
        "capacity": queuestatus.amounts(snapshot.tree.capacity),
        "due": None if decision.wake_at is None else _moment(decision.wake_at),
    }


def changed(
    snapshot: state.Snapshot,
    now: float,
    policy: facts.Policy,
    wanted: Sequence[facts.Queue],
    shown: Shown,
) -> dict[str, Any]:
    """What another tree would do: who gains and loses, who starts, who would be stopped."""
    today = forecast.settle(snapshot, now, policy)
    then = forecast.settle(snapshot, now, policy, wanted)
    before, after = snapshot.tree, queues.Tree(wanted, snapshot.tree.capacity)
    rows = []
    for name in sorted({*before.queues, *after.queues}):
        row = {
            "name": name,
            "guarantee": _pair(before.guarantee.get(name), after.guarantee.get(name)),
            "limit": _pair(_limit(before, name), _limit(after, name)),
            "used": _pair(today.used.get(name), then.used.get(name)),
        }
        rows.append(row)
    units = {**{key: each.unit for key, each in snapshot.running.items()}, **snapshot.waiting}
    stopped = [key for key in then.stopped if key not in today.stopped]
    shrunk = {key: n for key, n in then.shrunk.items() if n > today.shrunk.get(key, 0)}
    started = [key for key in then.started if key not in today.started]

    def told(key: str, **more: Any) -> dict[str, Any]:
        gainer = then.gainers.get(key, "")
        to = units[gainer].queue if gainer in units else ""
        return {"queue": units[key].queue, "run": shown(key), "for": to, **more}

    return {
        "queues": rows,
        "stopped": [told(key) for key in stopped],
        "shrunk": [told(key, members=n) for key, n in shrunk.items()],
        "started": [told(key) for key in started],
        "broken": sorted(set(after.broken.values())),
        "settled": then.settled,
    }


# --- parts ----------------------------------------------------------------------------------------


def _in_order(tree: queues.Tree) -> list[tuple[int, str]]:
    """Depth and name, each queue right after the one above it; broken ones come as roots."""
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


def _acts(
    snapshot: state.Snapshot, decision: facts.Decision, shown: Shown
) -> dict[str, dict[str, Any]]:
    """Queue -> what is done in it: counts for everybody, names for those who may read them."""
    acts: dict[str, dict[str, Any]] = {}

    def note(unit: facts.Unit, what: str, **more: Any) -> None:
        entry = acts.setdefault(unit.queue, {}).setdefault(what, {"count": 0, "runs": []})
        entry["count"] += 1
        name = shown(unit.key)
        if name and len(entry["runs"]) < _MOST_NAMES:
            entry["runs"].append({"run": name, **more})

    for placement in decision.placements:
        known = snapshot.running.get(placement.unit)
        if known is not None:
            note(known.unit, "grows", members=len(placement.seats))
        else:
            note(snapshot.waiting[placement.unit], "starts")
    for eviction in facts.by_unit(decision.evictions):
        running, gone = snapshot.running[eviction.unit], len(eviction.seats)
        whole = gone + len(running.leaving) >= len(running.seats)
        note(running.unit, "stops" if whole else "shrinks", members=gone)
    for nomination in decision.nominations:
        note(snapshot.waiting[nomination.unit], "takes over")
    for promise in decision.reservations:
        note(snapshot.waiting[promise.unit], "is promised", by=_moment(promise.start))
    return acts


def _asked(snapshot: state.Snapshot, done: cycle.Cycle) -> dict[str, queues.Sums]:
    """Queue -> what those who wait in it, or below, need at least."""
    asked: dict[str, queues.Sums] = {}
    for unit in snapshot.waiting.values():
        need = done.need(unit)
        for name in snapshot.tree.path(unit.queue):
            queues.add(asked.setdefault(name, {}), need)
    return asked


def _waits(
    snapshot: state.Snapshot, decision: facts.Decision
) -> dict[str, collections.Counter[str]]:
    """Queue -> reason -> how many wait in it, or below, because of that."""
    waits: dict[str, collections.Counter[str]] = {}
    for verdict in decision.verdicts:
        unit = snapshot.waiting[verdict.unit]
        for name in snapshot.tree.path(unit.queue):
            waits.setdefault(name, collections.Counter())[str(verdict.reason)] += 1
    return waits


def _limit(tree: queues.Tree, name: str) -> Mapping[str, int] | None:
    return tree.queues[name].limit if name in tree.queues else None


def _pair(before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> dict[str, Any]:
    return {
        "before": None if before is None else queuestatus.amounts(before, zeros=True),
        "after": None if after is None else queuestatus.amounts(after, zeros=True),
    }


def _moment(seconds: float) -> str:
    return times.seconds(times.from_unix(seconds))
