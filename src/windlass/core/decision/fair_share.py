"""Which queue's turn it is when a reservation of one queue meets a workload of another.

A reservation protects a blocked head against workloads behind it in its own queue and against
backfill by others. It does not outrank the shares of queues: a workload of a queue that is below
its claim passes a tentative reservation of a queue that is not below its own. The claim of a queue
is its entitlement (`core.fairness.entitlement`), less what it got in excess of it lately
(`core.fairness.past_use`). Queues are compared at the level of the tree where their paths part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from windlass.core.fairness import past_use
from windlass.core.model.types import SHARE_UNIT, WHOLE
from windlass.core.quota.quota_tree import QuotaTree
from windlass.core.snapshot.snapshot import Snapshot

_DIVISIBLE = frozenset(("cpu", "memory", "pods", "ephemeral-storage"))
"""Resources that are not counted in devices."""


class FairShares:
    """Of one decision: the claims at its beginning against what queues hold by now."""

    def __init__(self, snapshot: Snapshot, tree: QuotaTree) -> None:
        self._tree = tree
        self.claims = _claims(snapshot)
        """By queue, in millionths of the cluster."""
        waiting = snapshot.demand.by_queue(tree.paused, snapshot.user_quotas)
        self._backlogged = {
            above
            for name, need in waiting.items()
            if any(need.values())
            for above in tree.path(name)
        }
        self._owed: dict[str, str] = {}
        """Parent -> a queue below it that was found to be backlogged and below its claim."""

    def is_overdrawn(self, queue: str) -> bool:
        """Whether the queue, or one above it, is at or above its claim while a sibling waits below
        its own. Its workloads come after all others: what they took by backfill would use up the
        turn of their parent, for which the sibling waits."""
        tree = self._tree
        return any(
            not self.is_below(name) and self._is_owed(tree.queues[name].parent)
            for name in tree.path(queue)
        )

    def overspent(self, queue: str, need: Mapping[str, int]) -> str:
        """The queue on the path that has no claim left at all, while a sibling waits below its
        own: it got its entitlement for hours ahead. Empty: none; what is within a guarantee may
        always start."""
        tree = self._tree
        for name in tree.path(queue):
            if self.claims[name] <= 0 and self._is_owed(tree.queues[name].parent):
                return "" if tree.within_guarantee(name, need) else name
        return ""

    def owed_below(self, parent: str) -> list[str]:
        """Children that wait below their claim."""
        children = self._tree.children.get(parent, ())
        return [name for name in children if name in self._backlogged and self.is_below(name)]

    def _is_owed(self, parent: str) -> bool:
        """Whether a queue below this one waits below its claim."""
        known = self._owed.get(parent)
        if known is None or not self.is_below(known):
            children = self._tree.children.get(parent, ())
            known = next((c for c in children if c in self._backlogged and self.is_below(c)), "")
            self._owed[parent] = known
            if not known:
                del self._owed[parent]
        return bool(known)

    def may_pass(self, queue: str, other: str) -> bool:
        """Whether workloads of a queue pass tentative reservations of another queue: it is below
        its claim, and the other is not, or has the larger share."""
        mine, theirs = self._tree.diverging_paths(queue, other)
        if not mine or not theirs:
            return False  # one of them is above the other: they share one entitlement
        if not self.is_below(mine[-1]):
            return False
        return not self.is_below(theirs[-1]) or self._tree.share(mine[-1]) < self._tree.share(
            theirs[-1]
        )

    def further_behind(self, queue: str, share: int) -> Iterator[str]:
        """Siblings that wait below their claim, and that would have a smaller share against their
        weight than this one if they held nothing."""
        for name in self.owed_below(self._tree.queues[queue].parent):
            if name != queue and self._tree.past_share(name) < share:
                yield name

    def is_below(self, queue: str, change: Mapping[str, int] = {}) -> bool:
        """Whether the queue holds less than its claim, once its use has changed by so much."""
        return self._tree.share_with(queue, change) < self.claims[queue]


def _claims(snapshot: Snapshot) -> dict[str, int]:
    found, accounts = {}, snapshot.accounts
    for name, entitled in snapshot.entitlements().items():
        queue = snapshot.queues[name]
        siblings = [
            (accounts[other, ""], snapshot.queues[other].weight)
            for other in (snapshot.tree.children.get(queue.parent, ()) if queue.half_life else ())
            if other != name and (other, "") in accounts
        ]
        account = accounts.get((name, ""))
        ahead = past_use.share_ahead(account, queue, queue.weight, siblings, snapshot.horizon)
        found[name] = round((entitled - ahead) * SHARE_UNIT)
    return found


def tree_with_owed_shares(snapshot: Snapshot) -> QuotaTree:
    """The sharing tree that a decision works on. Where a queue with fair-share preemption is owed
    enough, every queue counts as guaranteed what it is entitled to: queues above their entitlement
    then give back as much, by the rules of guarantees, and no queue is pushed below its own."""
    if len(snapshot.queues) > 1:
        snapshot.update_past_use()
    tree = snapshot.tree.settled()
    if not any(seconds <= 0 for seconds in _until_owed(snapshot)):
        return tree.fork()
    return tree.with_guarantees(
        {
            name: _at_least(tree.guarantee[name], _amounts(tree, entitled))
            for name, entitled in snapshot.entitlements().items()
        }
    )


def next_preemption(snapshot: Snapshot, now: float) -> Iterator[float]:
    """When queues with fair-share preemption will have been owed enough, if nothing changes."""
    for seconds in _until_owed(snapshot):
        if seconds > 0:
            yield now + seconds


def _until_owed(snapshot: Snapshot) -> Iterator[float]:
    """Of every queue with fair-share preemption that waits below its entitlement: the seconds until
    it is behind by more than it is entitled to in the time that it is to be patient. The time is
    hysteresis: a queue that has its share does not preempt when a single workload of it ends."""
    patient = [q for q in snapshot.queues.values() if q.fair_share_preemption is not None]
    if not patient:
        return
    entitled = snapshot.entitlements()
    for queue in patient:
        owed = entitled[queue.name]
        short = owed - snapshot.tree.used_share(queue.name)
        if short > 1 / SHARE_UNIT:
            account = snapshot.accounts.get((queue.name, ""))
            behind = -account.excess if account is not None else 0.0
            missing = (queue.fair_share_preemption or 0.0) * owed - behind
            # The excess decays meanwhile: a little later than a straight line says.
            yield missing / short * 1.02 + 1.0 if missing > 0 else 0.0


def _amounts(tree: QuotaTree, share: float) -> dict[str, int]:
    """So large a part of every resource, in whole devices."""
    found = {}
    for resource, whole in tree.capacity.items():
        amount = int(share * whole + 1e-6)
        found[resource] = amount if resource in _DIVISIBLE else amount // WHOLE * WHOLE
    return {resource: amount for resource, amount in found.items() if amount > 0}


def _at_least(own: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {r: max(own.get(r, 0), other.get(r, 0)) for r in own.keys() | other.keys()}
