"""What each queue holds, borrows and lends: from the scheduler's snapshot into `Queue.status`.

Derived between two decisions from the tree that decisions are made on, so that the status shows
what the scheduler uses. It waits a moment after a decision, because the next one often
follows at once, and derives at most every few seconds; the latest snapshot counts, and only queues
whose status differs are written. So a storm of decisions costs few writes, and scheduling never
waits for them.
"""

from __future__ import annotations

import asyncio
import collections
import datetime
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from windlass.control.convert import past_use
from windlass.control.runtime import leader_election
from windlass.control.scheduler.status import queue_metrics
from windlass.core.quota import quota_tree
from windlass.core.snapshot.snapshot import Snapshot
from windlass.core.verdicts import formatting
from windlass.kinds.types import meta, queue
from windlass.kinds.values import quantity, times
from windlass.store import errors, interface
from windlass.store.informer import Change, Informer

log = logging.getLogger(__name__)

NAME = "queuestatus"
SETTLE = 0.3
"""Seconds after a decision in which others may follow it."""
EVERY = 3.0
"""Seconds from one derivation to the next: no queue is written more often."""

Statuses = dict[str, queue.QueueStatus]


class Read(Protocol):
    """Applies a function to the snapshot while no decision is made; None before the first."""

    async def __call__(self, read: Callable[[Snapshot], Statuses]) -> Statuses | None: ...


class QueueStatuses:
    """One per leader's term."""

    def __init__(
        self,
        store: interface.Store,
        listed: Informer[queue.Queue],
        *,
        read: Read,
        decided: asyncio.Event,
        metrics: queue_metrics.QueueMetrics | None = None,
        now: Callable[[], datetime.datetime] = times.now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`decided` is set whenever the scheduler has decided."""
        self._store = store
        self._listed = listed
        self._read = read
        self._due = decided
        self._metrics = metrics
        self._now = now
        self._sleep = sleep
        listed.add_handler(self._queue_changed)

    async def run(self) -> None:
        """Writes what differs, until cancelled or until another leads."""
        try:
            while True:
                await self._due.wait()
                await self._sleep(SETTLE)
                self._due.clear()
                try:
                    await self.write()
                except leader_election.LeadershipLostError:
                    return
                except errors.ApiError as error:
                    log.warning("a queue's status could not be written: %s", error.message)
                    self._due.set()
                await self._sleep(EVERY - SETTLE)
        finally:
            if self._metrics is not None:
                self._metrics.clear()

    async def write(self) -> None:
        """Derives the statuses from the snapshot, and writes those that differ."""
        found = await self._read(self._derive)
        for each in list(self._listed) if found else ():
            status = (found or {}).get(each.name)
            if status is not None:
                await self._write(each, status)

    def _derive(self, snapshot: Snapshot) -> Statuses:
        if self._metrics is not None:
            self._metrics.show(queue_metrics.read(snapshot, self._now().timestamp()))
        return derive(snapshot)

    async def _write(self, each: queue.Queue, status: queue.QueueStatus) -> None:
        patch = changes(each, status, self._now())
        if not patch:
            return
        version = {"resourceVersion": each.metadata.resource_version}
        try:
            await self._store.patch(
                queue.Queue, each.name, subresource="status",
                patch={"metadata": version, "status": patch},
            )  # fmt: skip
        except (errors.Conflict, errors.NotFound):
            self._due.set()  # it changed since: the next derivation uses the change

    def _queue_changed(self, _: Change, __: queue.Queue | None, after: queue.Queue | None) -> None:
        """A change that decisions do not depend on is observed, too."""
        if after is not None and after.status.observed_generation != after.metadata.generation:
            self._due.set()


# --- pure ---------------------------------------------------------------------------------------


def derive(snapshot: Snapshot) -> Statuses:
    """What is true of each queue, the queues below it included. Conditions carry no times yet."""
    tree = snapshot.tree
    running = _counted(
        tree,
        # A pod of another scheduler is in no queue.
        collections.Counter(
            each.workload.queue for each in snapshot.running.values() if each.workload.queue
        ),
    )
    pending = _counted(
        tree, collections.Counter(workload.queue for workload in snapshot.waiting.values())
    )
    lent = lending(tree)
    entitled, past = snapshot.entitlements(), past_use.write(snapshot)
    return {
        name: queue.QueueStatus(
            used=amounts(tree.used[name]),
            borrowed=amounts(borrowing(tree, name)),
            lent=amounts(lent.get(name, {})),
            running=running[name],
            pending=pending[name],
            share=tree.used_share(name) / tree.queues[name].weight,
            entitlement=round(entitled[name], 6),
            account=past.get(name),
            conditions=[_ready(tree, name), _over_committed(tree, name)],
        )
        for name in tree.queues
    }


def changes(each: queue.Queue, status: queue.QueueStatus, now: datetime.datetime) -> dict[str, Any]:
    """The merge-patch that makes the queue's status this one; empty if it is so already."""
    old = each.status
    known = {condition.type: condition for condition in old.conditions or ()}
    conditions = []
    for condition in status.conditions or ():
        before = known.get(condition.type)
        stays = before is not None and before.status == condition.status
        since = before.last_transition_time if before and stays else times.seconds(now)
        conditions.append(msgspec.structs.replace(condition, last_transition_time=since))
    same = msgspec.structs.replace(
        status,
        observed_generation=old.observed_generation,
        conditions=conditions,
        budget=old.budget,  # the ledger writes it
        # Past use and what others want change all the time: they come along with other changes.
        entitlement=old.entitlement,
        account=old.account,
    )
    if old.observed_generation == each.metadata.generation and old == same:
        if not past_use.is_due(each, status.account):
            return {}
        return {
            "entitlement": status.entitlement,
            "account": past_use.patch(old.account, status.account),
        }
    return {
        "observedGeneration": each.metadata.generation,
        "used": _replacing(old.used, status.used),
        "borrowed": _replacing(old.borrowed, status.borrowed),
        "lent": _replacing(old.lent, status.lent),
        "running": status.running,
        "pending": status.pending,
        "share": status.share,
        "entitlement": status.entitlement,
        "account": past_use.patch(old.account, status.account),
        "conditions": msgspec.to_builtins(conditions),
    }


def borrowing(tree: quota_tree.QuotaTree, name: str) -> quota_tree.Sums:
    """What a queue holds above its guarantee, of resources that are guaranteed to any queue."""
    used, own = tree.used[name], tree.guarantee[name]
    return {r: used.get(r, 0) - own.get(r, 0) for r in tree.guaranteed}


def lending(tree: quota_tree.QuotaTree) -> dict[str, quota_tree.Sums]:
    """Queue -> what others hold of its guarantee.

    Siblings can still have at once what is free above them. What their guarantees exceed that by
    is held by others; it is counted against the lending queues, in proportion to what they lend.
    """
    lent: dict[str, quota_tree.Sums] = {name: {} for name in tree.queues}
    roots = [name for name, each in tree.queues.items() if each.parent not in tree.queues]
    for resource in tree.guaranteed:
        free = max(0, tree.capacity.get(resource, 0) - tree.total.get(resource, 0))
        levels = [(sorted(roots), free)]
        while levels:
            names, free = levels.pop()
            idle = {name: _idle(tree, name, resource) for name in names}
            open_to = {name: _lendable(tree, name, resource) for name in names}
            held = min(sum(idle.values()) - free, sum(open_to.values()))
            for name, part in _shared_out(max(0, held), open_to).items():
                lent[name][resource] = part
                levels.append((tree.children.get(name, []), idle[name] - part))
    return lent


def _idle(tree: quota_tree.QuotaTree, name: str, resource: str) -> int:
    """Of its guarantee, what the queue does not use."""
    return max(0, tree.guarantee[name].get(resource, 0) - tree.used[name].get(resource, 0))


def _lendable(tree: quota_tree.QuotaTree, name: str, resource: str) -> int:
    """Of that, what others may have."""
    own = tree.guarantee[name].get(resource, 0)
    return min(_idle(tree, name, resource), tree.queues[name].lend.get(resource, own))


def _shared_out(total: int, parts: Mapping[str, int]) -> quota_tree.Sums:
    """The total in proportion to the parts, in the largest pieces of which all are multiples: of
    whole devices, no queue lends a third."""
    whole = sum(parts.values())
    if not total:
        return dict.fromkeys(parts, 0)
    piece = math.gcd(total, *parts.values())
    found = {name: total * part // whole // piece * piece for name, part in parts.items()}
    rest = total - sum(found.values())
    for name in sorted(parts, key=lambda each: found[each] * whole - total * parts[each]):
        more = min(piece, rest, parts[name] - found[name])
        found[name] += more
        rest -= more
    return found


def _counted(tree: quota_tree.QuotaTree, own: Mapping[str, int]) -> collections.Counter[str]:
    """The same with what is counted below each queue."""
    found: collections.Counter[str] = collections.Counter()
    for name, count in own.items():
        for above in tree.path(name):
            found[above] += count
    return found


def _ready(tree: quota_tree.QuotaTree, name: str) -> meta.Condition:
    broken = tree.broken.get(name)
    if broken:
        return meta.Condition(type="Ready", status="False", reason="BadParent", message=broken)
    return meta.Condition(type="Ready", status="True", reason="Ready")


def _over_committed(tree: quota_tree.QuotaTree, name: str) -> meta.Condition:
    """Whether there is less than was guaranteed, so that not all guarantees count."""
    own = tree.guarantee[name]
    short = [
        f"{formatting.amount(r, amount)} is guaranteed and counts as "
        f"{formatting.amount(r, own.get(r, 0))}"
        for r, amount in sorted(tree.queues[name].guarantee.items())
        if own.get(r, 0) < amount
    ]
    if not short:
        return meta.Condition(type="OverCommitted", status="False", reason="Covered")
    return meta.Condition(
        type="OverCommitted", status="True", reason="TooLittleCapacity",
        message="; ".join(short) + ": more is guaranteed in all than there is, queues take turns",
    )  # fmt: skip


def amounts(sums: Mapping[str, int], *, zeros: bool = False) -> queue.Amounts:
    """As people write them; what is zero is left out unless it means something."""
    return {name: _amount(name, sums[name]) for name in sorted(sums) if sums[name] > 0 or zeros}


def _amount(name: str, amount: int) -> str:
    """The opposite of how `snapshots` reads a quota."""
    if name == "memory":
        return quantity.of_bytes(amount)
    return str(amount) if name == "pods" else quantity.of_milli(amount)


def _replacing(old: queue.Amounts | None, new: queue.Amounts | None) -> dict[str, Any]:
    """The merge-patch that leaves only the new names."""
    return {**dict.fromkeys(old or ()), **(new or {})}
