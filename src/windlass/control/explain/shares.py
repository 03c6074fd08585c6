"""The usage of a queue and its users against their entitlement, in numbers for users.

Past use is stored in seconds of dominant share. The output is in hours of the resource of which the
queue uses or requests the largest part: "behind its share by 3.2 gpu-hours". Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from windlass.core.fairness import accounts, past_use
from windlass.core.model import types
from windlass.core.quota import quota_tree
from windlass.core.snapshot.snapshot import Snapshot

MOST_USERS = 20
_HOUR = 3600.0
_GIB = 1 << 30


@dataclasses.dataclass(frozen=True, slots=True)
class ShareOfQueue:
    """The share of a queue, or of one of its users."""

    share: float
    """The present usage, as a part of the cluster."""
    entitlement: float
    hours: float
    """Ahead of its share by so many hours of the resource; negative: behind. With a half-life: all
    recent usage."""
    resource: str
    half_life: float | None

    @property
    def sentence(self) -> str:
        """`behind its share by 3.2 gpu-hours`; empty: neither, or past use does not count."""
        if self.half_life == 0 or abs(self.hours) < 0.05:
            return ""
        amount = f"{abs(self.hours):.1f} {'GiB' if self.resource == 'memory' else self.resource}"
        if self.half_life is not None:
            return f"used {amount}-hours lately"
        return f"{'ahead of' if self.hours > 0 else 'behind'} its share by {amount}-hours"

    def to_dict(self) -> dict[str, Any]:
        return {
            "share": round(self.share, 6),
            "entitlement": round(self.entitlement, 6),
            "hours": round(self.hours, 3),
            "resource": self.resource,
            "sentence": self.sentence,
        }


def of_queues(snapshot: Snapshot) -> dict[str, ShareOfQueue]:
    entitled = snapshot.entitlements()
    return {name: _of_queue(snapshot, name, entitled[name]) for name in snapshot.queues}


def of_users(snapshot: Snapshot, name: str) -> dict[str, ShareOfQueue]:
    """For a queue in which users take turns: users with usage or demand, or with the most past
    use."""
    if name not in snapshot.user_shares.held:
        return {}
    queue, active = snapshot.queues[name], accounts.entitlements(snapshot, name)
    known = {user for key, user in snapshot.accounts if key == name and user}
    found = {
        user: _share_of(snapshot, queue, user, *active.get(user, (0.0, 0.0)))
        for user in sorted(known | active.keys())
        if user
    }
    ranked = sorted(found, key=lambda user: (user not in active, -abs(found[user].hours), user))
    return {user: found[user] for user in sorted(ranked[:MOST_USERS])}


def of_user(snapshot: Snapshot, name: str, user: str) -> ShareOfQueue | None:
    """None: users do not take turns there."""
    if name not in snapshot.user_shares.held or not user:
        return None
    shares = accounts.entitlements(snapshot, name).get(user, (0.0, 0.0))
    return _share_of(snapshot, snapshot.queues[name], user, *shares)


def of_queue(snapshot: Snapshot, name: str) -> ShareOfQueue | None:
    """None: there is no such queue, or no other to compare it with."""
    if name not in snapshot.queues or len(snapshot.queues) < 2:
        return None
    return _of_queue(snapshot, name, snapshot.entitlements()[name])


def _of_queue(snapshot: Snapshot, name: str, entitled: float) -> ShareOfQueue:
    return _share_of(snapshot, snapshot.queues[name], "", snapshot.tree.used_share(name), entitled)


def _share_of(
    snapshot: Snapshot, queue: types.Queue, user: str, share: float, entitled: float
) -> ShareOfQueue:
    account = snapshot.accounts.get((queue.name, user)) or types.Account(queue.name, user)
    resource = _main_resource(snapshot, queue.name)
    seconds = account.excess if queue.half_life is None else account.usage
    if queue.half_life == 0:
        seconds = 0.0
    whole = _whole(snapshot.tree.capacity, resource)
    return ShareOfQueue(share, entitled, seconds * whole / _HOUR, resource, queue.half_life)


def _main_resource(snapshot: Snapshot, name: str) -> str:
    """The resource of which the queue uses, or else requests, the largest part."""
    tree = snapshot.tree
    pending: quota_tree.Sums = {}
    for other, sums in snapshot.demand.by_queue(()).items():
        if name in tree.path(other):
            quota_tree.add(pending, sums)
    for amounts in (tree.used[name], pending):
        parts = {
            resource: amount / tree.capacity[resource]
            for resource, amount in amounts.items()
            if amount > 0 and tree.capacity.get(resource) and "/" not in resource
        }
        if parts:
            return max(sorted(parts), key=lambda resource: parts[resource])
    return "gpu" if tree.capacity.get("gpu") else "cpu"


def _whole(capacity: Mapping[str, int], resource: str) -> float:
    """The capacity of the cluster: devices, cores, GiB."""
    amount = capacity.get(resource, 0)
    if resource == "memory":
        return amount / _GIB
    return float(amount) if resource == "pods" else amount / 1000


def half_life_text(queue: types.Queue) -> str:
    """A short text for how past use counts in the queue."""
    if queue.half_life is None:
        hours = past_use.MEMORY / _HOUR
        return f"use above or below the entitlement counts, halved in {hours:.0f} h without backlog"
    if queue.half_life == 0:
        return "past use does not count"
    return f"all use counts, halved in {queue.half_life / _HOUR:g} h"
