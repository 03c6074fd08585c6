"""How much of the cluster each queue is entitled to at one moment: weighted hierarchical DRF.

Progressive filling (Ghodsi et al., NSDI 2011), level by level from the roots. Every queue asks for
what it uses and what waits in it or below it. Shares of siblings rise together in proportion to
their weights until a queue has all that it asks for, reaches its limit, or a resource that it needs
is used up. A guarantee is a floor: a queue gets the smaller of its guarantee and its demand before
any sibling gets more. What a queue is entitled to is then divided among the queues below it in the
same way, after the workloads that are queued in the parent itself.

Shares are dominant shares: the largest part of any resource of the cluster, between 0 and 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree, Sums

_EPSILON = 1e-12
"""Shares below this are rounding."""


@dataclasses.dataclass(slots=True)
class _Bidder:
    """A queue while its level is divided."""

    name: str
    weight: float
    profile: dict[str, float]
    """By resource, the part of the cluster that comes with one unit of dominant share."""
    most: float
    """Dominant share of all that it asks for, no more than its limit allows."""
    floor: float
    """Dominant share that its guarantee covers, no more than `most`."""
    share: float = 0.0
    frozen: bool = False


def entitlements(tree: QuotaTree, waiting: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    """By queue, the dominant share that it is entitled to, with what waits in each queue itself
    (without the queues below it)."""
    demand = _demands(tree, waiting)
    found = dict.fromkeys(tree.queues, 0.0)
    roots = [name for name in sorted(tree.queues) if tree.queues[name].parent not in tree.queues]
    everything = {r: 1.0 for r, amount in tree.capacity.items() if amount > 0}
    _divide(tree, demand, roots, everything, found)
    return found


def contending(
    tree: QuotaTree, waiting: Mapping[str, Mapping[str, int]], entitled: Mapping[str, float]
) -> frozenset[str]:
    """Queues that ask for more than they are entitled to, and for no more than their limit."""
    bidders = [_bidder(tree, name, sums) for name, sums in _demands(tree, waiting).items()]
    return frozenset(
        each.name for each in bidders if each and each.most > entitled[each.name] + 1e-9
    )


def _demands(tree: QuotaTree, waiting: Mapping[str, Mapping[str, int]]) -> dict[str, Sums]:
    """What each queue uses and asks for, with the queues below it. What a limit forbids is not
    asked for: it would entitle the queues above to capacity that they cannot use."""
    found: dict[str, Sums] = {}
    for name in sorted(tree.queues, key=lambda name: -len(tree.path(name))):
        sums = dict(tree.used[name])
        quota_tree.add(sums, waiting.get(name, {}))
        for child in tree.children.get(name, ()):
            if child in found:  # not in a broken tree, where a queue is below itself
                quota_tree.add(sums, found[child])
                quota_tree.add(sums, tree.used[child], -1)
        for resource, limit in tree.queues[name].limit.items():
            if sums.get(resource, 0) > limit:
                sums[resource] = max(limit, tree.used[name].get(resource, 0))
        found[name] = sums
    return found


def _divide(
    tree: QuotaTree,
    demand: Mapping[str, Sums],
    names: Iterable[str],
    available: dict[str, float],
    found: dict[str, float],
) -> None:
    bidders = [bidder for name in names if (bidder := _bidder(tree, name, demand[name]))]
    _fill(bidders, dict(available))
    for bidder in bidders:
        found[bidder.name] = bidder.share
        children = tree.children.get(bidder.name, ())
        if children and bidder.share > _EPSILON:
            # Of every resource as much as of the dominant one: its children may ask for others
            # in another proportion than all of their demand together does.
            granted = dict.fromkeys(bidder.profile, bidder.share)
            _divide(tree, demand, children, _less_own(tree, demand, bidder, granted), found)


def _less_own(
    tree: QuotaTree, demand: Mapping[str, Sums], bidder: _Bidder, granted: dict[str, float]
) -> dict[str, float]:
    """What is left for the children once the workloads of the queue itself have theirs."""
    below: Sums = {}
    for child in tree.children.get(bidder.name, ()):
        for resource, amount in demand[child].items():
            below[resource] = below.get(resource, 0) + amount
    own = demand[bidder.name]
    return {
        r: max(0.0, part - (own.get(r, 0) - below.get(r, 0)) / tree.capacity[r])
        for r, part in granted.items()
    }


def _bidder(tree: QuotaTree, name: str, demand: Sums) -> _Bidder | None:
    """None: it asks for nothing that the cluster has."""
    parts = {
        r: amount / tree.capacity[r]
        for r, amount in demand.items()
        if amount > 0 and tree.capacity.get(r, 0) > 0
    }
    dominant = max(parts.values(), default=0.0)
    if dominant <= _EPSILON:
        return None
    profile = {r: part / dominant for r, part in parts.items()}
    queue = tree.queues[name]
    most = dominant
    for resource, limit in queue.limit.items():
        if resource in profile and tree.capacity.get(resource, 0) > 0:
            most = min(most, limit / tree.capacity[resource] / profile[resource])
    floor = most
    guarantee = tree.guarantee[name]
    covered = [r for r in profile if guarantee.get(r, 0) > 0]
    for resource in covered:
        floor = min(floor, guarantee[resource] / tree.capacity[resource] / profile[resource])
    return _Bidder(name, float(queue.weight), profile, most, floor if covered else 0.0)


def _fill(bidders: list[_Bidder], left: dict[str, float]) -> None:
    """Raises the shares of all bidders together, until nothing is left that they ask for."""
    level = 0.0
    for bidder in bidders:
        bidder.share = bidder.floor
        _take(bidder, bidder.floor, left)
    while active := [bidder for bidder in bidders if not bidder.frozen]:
        target = _next_level(active, level, left)
        for bidder in active:
            rise = min(target * bidder.weight, bidder.most) - bidder.share
            if rise > 0:
                bidder.share += rise
                _take(bidder, rise, left)
        level = target
        for bidder in active:
            full = bidder.share >= bidder.most - _EPSILON
            bidder.frozen = full or _is_blocked(bidder, left)


def _take(bidder: _Bidder, share: float, left: dict[str, float]) -> None:
    for resource, part in bidder.profile.items():
        left[resource] = left.get(resource, 0.0) - part * share


def _is_blocked(bidder: _Bidder, left: Mapping[str, float]) -> bool:
    return any(left.get(resource, 0.0) <= _EPSILON for resource in bidder.profile)


def _next_level(active: list[_Bidder], level: float, left: Mapping[str, float]) -> float:
    """The next water level at which a bidder has all it asks for, leaves its floor, or a resource
    runs out."""
    levels = [bidder.most / bidder.weight for bidder in active]
    levels += [b.floor / b.weight for b in active if b.floor / b.weight > level + _EPSILON]
    rising: dict[str, float] = {}
    for bidder in active:
        if bidder.share <= level * bidder.weight + _EPSILON:
            for resource, part in bidder.profile.items():
                rising[resource] = rising.get(resource, 0.0) + part * bidder.weight
    for resource, rate in rising.items():
        if rate > _EPSILON:
            levels.append(level + max(0.0, left.get(resource, 0.0)) / rate)
    return max(level, min(levels))
