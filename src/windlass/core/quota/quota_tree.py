"""The quota tree: guarantees, limits, borrowing, lending and the order of queues.

Amounts are small dictionaries and the tree is shallow, so this is plain Python: at this size it is
faster than arrays. `used` of a queue includes the queues below it.

A queue's *guarantee* comes back to it on demand. What others do not use may be borrowed up to the
*limit*, except what they do not *lend*. Guarantees that add up to more than there is are granted to
some queues after others (`core.quota.overcommit`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set

from windlass.core.model.types import SHARE_UNIT, Amounts, Queue
from windlass.core.quota import overcommit
from windlass.kinds.reasons import Reason

Sums = dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Shortage:
    """Which rule of which queue stands against an amount."""

    rule: str
    """limit | guarantee | lend"""
    queue: str
    resource: str
    need: int
    left: int
    bound: int = 0
    """The limit or guarantee itself."""

    @property
    def deficit(self) -> int:
        return self.need - self.left


class QuotaTree:
    def __init__(self, queues: Iterable[Queue], capacity: Amounts) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.capacity = {resource: int(amount) for resource, amount in capacity.items()}
        self.broken = _broken(self.queues)
        """Queue -> why it cannot be used: a cycle, a parent that does not exist."""
        self._paths = {name: self._path_of(name) for name in self.queues}
        self.paused = {name: reason for name in self.queues if (reason := self._paused(name))}
        """Queue -> why nothing starts in it: its own reason, or one of a queue above it."""
        self.children: dict[str, list[str]] = {}
        for name in sorted(self.queues):
            self.children.setdefault(self.queues[name].parent, []).append(name)
        self.nominal = {name: self._nominal(name) for name in self.queues}
        """What each branch is guaranteed as written: its own, or its children's if that is more."""
        self.is_overcommitted = self._is_overcommitted()
        self.served: Mapping[str, float] = {}
        """Queue -> its use of late, in seconds of dominant share."""
        self.waiting: Set[str] = frozenset()
        """Queues that ask for something, and those above them; kept where guarantees exceed
        capacity."""
        self.used: dict[str, Sums] = {name: {} for name in self.queues}
        """What is in here is never changed, only replaced, so that forks share it."""
        self.guarantee = self._granted()
        self.guaranteed = frozenset(r for sums in self.guarantee.values() for r in sums)
        """Resources with a guarantee in any queue; only these can be borrowed."""
        limited = (r for queue in self.queues.values() for r in queue.limit)
        self.limited_resources = tuple(sorted(self.guaranteed.union(limited)))
        """Resources that any rule is about."""
        self.withholding = self._find_withholding()
        """Resource -> queues that do not lend all of it, and those above them."""
        self.shares_are_owed = False
        """Whether entitlements count as guarantees for this decision
        (`core.fairness.fair_share`)."""
        self._shares: dict[str, int] = {}
        self._limited_models: dict[str, tuple[str, ...]] = {}
        self._bound: dict[str, bool] = {}
        self._past: dict[str, int] = {}
        """Queue -> share that its past use adds to what it holds now; below 0: it is owed some."""
        self._changes = dict.fromkeys(self.queues, 0)
        """Queue -> how often what it holds changed."""
        self.generation = 0
        """How often what any queue holds changed."""
        self.non_preemptible: dict[str, Sums] = {name: {} for name in self.queues}
        """The same of what workloads that cannot be preempted hold."""
        self._committed: tuple[dict[str, Sums], Sums] | None = None
        """Loads and commitments, once asked for; what is in here is replaced, never changed."""
        self.total: Sums = {}

    def fork(self) -> QuotaTree:
        fork = object.__new__(QuotaTree)
        fork.__dict__.update(self.__dict__)
        fork.used, fork.non_preemptible, fork.total = (
            dict(self.used),
            dict(self.non_preemptible),
            dict(self.total),
        )
        fork._shares, fork._changes = dict(self._shares), dict(self._changes)
        return fork

    def with_guarantees(self, guarantees: Mapping[str, Sums]) -> QuotaTree:
        """A fork in which queues have other guarantees."""
        fork = self.fork()
        fork.guarantee = {name: guarantees.get(name, own) for name, own in self.guarantee.items()}
        fork.guaranteed = frozenset(r for sums in fork.guarantee.values() for r in sums)
        fork.limited_resources = tuple(sorted({*self.limited_resources, *fork.guaranteed}))
        fork._bound, fork._limited_models, fork._committed = {}, {}, None
        fork.shares_are_owed = True
        return fork

    def resized(self, capacity: Amounts) -> QuotaTree:
        """The same queues, with what they hold, in a cluster of another size."""
        if capacity == self.capacity:
            return self
        fork = QuotaTree(self.queues.values(), capacity)
        fork.used, fork.non_preemptible, fork.total = self.used, self.non_preemptible, self.total
        fork._past = self._past
        fork.served, fork.waiting = self.served, self.waiting
        return fork

    def empty(self) -> QuotaTree:
        """A fork without any usage."""
        fork = object.__new__(QuotaTree)
        fork.__dict__.update(self.__dict__)
        fork.used = {name: {} for name in self.queues}
        fork.non_preemptible, fork._committed = {name: {} for name in self.queues}, None
        fork.total, fork._shares, fork._changes = {}, {}, dict(self._changes)
        return fork

    def minus(self, one: QuotaTree, other: QuotaTree) -> QuotaTree:
        """A fork in which every queue holds less, by the less of what it holds in two others."""
        fork = self.fork()
        fork._shares, fork._committed = {}, None
        for mine, first, second in (
            (fork.used, one.used, other.used),
            (fork.non_preemptible, one.non_preemptible, other.non_preemptible),
        ):
            for name, sums in first.items():
                if sums:
                    mine[name] = _minus_smaller(mine[name], sums, second[name])
        fork.total = _minus_smaller(fork.total, one.total, other.total)
        return fork

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and all above it, itself first; nothing for one that is not there."""
        return self._paths.get(name, ())

    def diverging_paths(self, one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Both paths up to, but without, the first queue that they share; leaves first."""
        first, second = self._paths[one], self._paths[other]
        shared = set(first) & set(second)
        return (
            tuple(name for name in first if name not in shared),
            tuple(name for name in second if name not in shared),
        )

    def limited_models(self, name: str) -> tuple[str, ...]:
        """Resources of the form kind/model that a rule for the queue may be about."""
        found = self._limited_models.get(name)
        if found is None:
            limits = {r for queue in self._paths[name] for r in self.queues[queue].limit}
            found = tuple(sorted(r for r in limits | self.guaranteed if "/" in r))
            self._limited_models[name] = found
        return found

    def is_restricted(self, name: str, preemptible: bool) -> bool:
        """Whether any rule could ever forbid such a workload of the queue to start."""
        return bool(self.limited_models(name)) or self.is_bound(
            name, non_preemptible=not preemptible
        )

    # --- accounting

    def add(
        self, name: str, amounts: Mapping[str, int], *, non_preemptible: bool, sign: int = 1
    ) -> None:
        self.generation += 1
        for queue in self._paths.get(name, ()):
            self.used[queue] = _sum(self.used[queue], amounts, sign)
            self._shares.pop(queue, None)
            self._changes[queue] += 1
            if non_preemptible:
                self.non_preemptible[queue] = _sum(self.non_preemptible[queue], amounts, sign)
        if non_preemptible and name in self._paths:
            self._commit(self._paths[name], amounts, sign)
        add(self.total, amounts, sign)

    # --- may it start

    def is_bound(self, name: str, *, non_preemptible: bool) -> bool:
        """Whether any rule could ever forbid the queue to use more."""
        found = self._bound.get(name)
        if found is None:
            limited = any(self.queues[queue].limit for queue in self._paths[name])
            found = self._bound[name] = limited or bool(self.withholding)
        return found or (non_preemptible and bool(self.guaranteed))

    def shortage(
        self, name: str, need: Mapping[str, int], *, non_preemptible: bool
    ) -> Shortage | None:
        """The first rule that forbids the queue to use so much more; None if none does."""
        if not self.is_bound(name, non_preemptible=non_preemptible):
            return None
        path = self._paths[name]
        for queue in path:
            used = self.used[queue]
            for resource, limit in sorted(self.queues[queue].limit.items()):
                asked = need.get(resource, 0)
                if asked and used.get(resource, 0) + asked > limit:
                    left = max(0, limit - used.get(resource, 0))
                    return Shortage("limit", queue, resource, asked, left, limit)
        if not self.guaranteed:
            return None
        barred = self._non_preemptible_shortage(path, need) if non_preemptible else None
        return barred or self._lending_shortage(path, need)

    def _non_preemptible_shortage(
        self, path: tuple[str, ...], need: Mapping[str, int]
    ) -> Shortage | None:
        """Whether what non-preemptible workloads hold would reach into the guarantees of other
        queues. Within the guarantees on its path a workload commits nothing more; beyond them it
        may use what is not committed to any queue."""
        for resource in sorted(self.guaranteed):
            asked = need.get(resource, 0)
            if not asked:
                continue
            loads, total = self._commitments()
            slack = sum(
                max(0, self.guarantee[name].get(resource, 0) - loads[name].get(resource, 0))
                for name in path
            )
            left = slack + max(0, self.capacity.get(resource, 0) - total.get(resource, 0))
            if asked > left:
                own = self.guarantee[path[0]].get(resource, 0)
                return Shortage("guarantee", path[0], resource, asked, left, own)
        return None

    def _commitments(self) -> tuple[dict[str, Sums], Sums]:
        """The commitment of a queue is its guarantee, or its load if that is more: what its own
        non-preemptible workloads hold and what its children are committed to. Returns the load of
        every queue and the commitments of all roots together."""
        if self._committed is None:
            loads: dict[str, Sums] = {name: {} for name in self.queues}
            total: Sums = {}
            for name in sorted(self.queues, key=lambda each: -len(self._paths[each])):
                load, tree = loads[name], name not in self.broken
                add(load, self.non_preemptible[name])
                for child in self.children.get(name, ()) if tree else ():
                    add(load, self.non_preemptible[child], -1)
                above = loads.get(self.queues[name].parent, total) if tree else total
                for resource in load.keys() | self.guarantee[name].keys():
                    amount = max(load.get(resource, 0), self.guarantee[name].get(resource, 0))
                    above[resource] = above.get(resource, 0) + amount
            self._committed = (loads, total)
        return self._committed

    def _commit(self, path: Sequence[str], amounts: Mapping[str, int], sign: int) -> None:
        """Follows a non-preemptible workload that came or went, level by level."""
        if self._committed is None or path[0] in self.broken:
            self._committed = None
            return
        loads, total = dict(self._committed[0]), self._committed[1]
        more: Mapping[str, int] = amounts
        for name in path:
            before, own = loads[name], self.guarantee[name]
            loads[name] = after = _sum(before, more, sign)
            more = {
                r: sign * (max(own.get(r, 0), after[r]) - max(own.get(r, 0), before.get(r, 0)))
                for r in more
            }
        self._committed = (loads, _sum(total, more, sign))

    def _lending_shortage(self, path: tuple[str, ...], need: Mapping[str, int]) -> Shortage | None:
        name = path[0]
        for resource in sorted(self.guaranteed):
            asked = need.get(resource, 0)
            if not asked or self._within_guarantee(name, resource, asked):
                continue
            withholding = self.withholding.get(resource)
            if not withholding:
                continue  # every queue lends all that it has
            beside = set(self._siblings(path)) & withholding
            kept = sum(self._not_lent(other, resource) for other in beside)
            left = self.capacity.get(resource, 0) - self.total.get(resource, 0) - kept
            if kept and asked > left:
                return Shortage("lend", name, resource, asked, max(0, left))
        return None

    def within_guarantee(self, name: str, need: Mapping[str, int]) -> bool:
        """Whether the queue stays within its guarantee with this need. Only resources that the
        queue itself is guaranteed count, and the need must include at least one of them: what
        other queues are guaranteed of other resources does not weaken this guarantee."""
        used, concerned = self.used[name], False
        for resource, own in self.guarantee[name].items():
            asked = need.get(resource, 0)
            if asked:
                if used.get(resource, 0) + asked > own:
                    return False
                concerned = True
        return concerned

    def may_reclaim(self, name: str, need: Mapping[str, int], levels: Iterable[str]) -> bool:
        """Whether the queue may reclaim for this need: it stays within its guarantee, and so do
        these queues above it in the resources that the queue itself is guaranteed."""
        if not self.within_guarantee(name, need):
            return False
        counted = [(r, need[r]) for r in self.guarantee[name] if need.get(r)]
        return all(
            self.used[level].get(r, 0) + asked <= self.guarantee[level].get(r, 0)
            for level in levels
            if level != name
            for r, asked in counted
        )

    def direct(self, sums: Mapping[str, Mapping[str, int]], name: str, resource: str) -> int:
        """Of an amount by queue, what belongs to the queue itself and to none below it."""
        below = sum(sums[child].get(resource, 0) for child in self.children.get(name, ()))
        return sums[name].get(resource, 0) - below

    def preemptible_below(self, name: str, resource: str) -> int:
        """What preemptible workloads in queues below this one hold."""
        return sum(
            self.used[child].get(resource, 0) - self.non_preemptible[child].get(resource, 0)
            for child in self.children.get(name, ())
        )

    def displaces(self, name: str, need: Mapping[str, int]) -> bool:
        """Whether a non-preemptible need would push preemptible workloads of the queue, or of one
        above it, out of the guarantee inside which they run."""
        for queue in self._paths[name]:
            used, fixed_usage = self.used[queue], self.non_preemptible[queue]
            for resource, own in self.guarantee[queue].items():
                fixed = fixed_usage.get(resource, 0)
                exposed = used.get(resource, 0) - fixed  # what could be reclaimed
                if min(exposed, own - fixed) > max(0, own - fixed - need.get(resource, 0)):
                    return True
        return False

    def _within_guarantee(self, name: str, resource: str, asked: int) -> bool:
        own = self.guarantee[name].get(resource, 0)
        return self.used[name].get(resource, 0) + asked <= own

    def _not_lent(self, name: str, resource: str) -> int:
        """Of its unused guarantee, what the queue, or those below it, do not lend."""
        own = self.guarantee[name].get(resource, 0)
        lend = min(own, self.queues[name].lend.get(resource, own))
        below = sum(self._not_lent(child, resource) for child in self.children.get(name, ()))
        return max(0, below, own - lend - self.used[name].get(resource, 0))

    def _siblings(self, path: tuple[str, ...]) -> Iterable[str]:
        """Siblings of the queue and of everything above it."""
        for queue in path:
            for other in self.children.get(self.queues[queue].parent, ()):
                if other != queue:
                    yield other

    def borrows(self, name: str, resources: Iterable[str]) -> bool:
        """Whether the queue holds more than its guarantee of any of these."""
        return any(
            self.used[name].get(r, 0) > self.guarantee[name].get(r, 0)
            for r in resources
            if r in self.guaranteed
        )

    # --- order of queues

    def put_past_shares(self, shares: Mapping[str, float]) -> None:
        """What past use adds to the share of each queue, as a part of the cluster."""
        self._past = {name: round(share * SHARE_UNIT) for name, share in shares.items()}

    def put_served(self, seconds: Mapping[str, float]) -> None:
        """What each queue used of late, in seconds of dominant share."""
        self.served = seconds

    def put_waiting(self, names: Iterable[str]) -> None:
        """Queues in which workloads wait that may start, without those above them."""
        self.waiting = {above for name in names for above in self.path(name)}

    def settled(self) -> QuotaTree:
        """The tree at the start of a decision: where guarantees add up to more than there is, they
        are granted anew, by what queues use now and were served before."""
        if self.is_overcommitted and (granted := self._granted()) != self.guarantee:
            self.guarantee, self._committed = granted, None
            self.withholding, self._bound, self._limited_models = self._find_withholding(), {}, {}
            self._changes = {name: moves + 1 for name, moves in self._changes.items()}
            self.generation += 1
        return self

    def rank(self, name: str, need: Mapping[str, int]) -> tuple[int, ...]:
        """Smaller is first: at every level from the top, those inside their guarantee, then those
        with the smallest weighted share. What is asked for now is not part of the share: queues
        below a common parent would be compared by the size of their heads there."""
        rank: list[int] = []
        for queue in reversed(self._paths[name]):
            rank += (0 if self.within_guarantee(queue, need) else 1, self.share(queue))
        return tuple(rank)

    def last_change(self, name: str) -> int:
        """Another number whenever a rank of the queue may have changed."""
        return self._changes[self._paths[name][-1]]  # what any of them holds, the last holds too

    def share(self, name: str) -> int:
        """The dominant share of the queue with its past use, against its weight."""
        return (self.dominant_share(name) + self._past.get(name, 0)) // self.queues[name].weight

    def share_after(self, name: str, change: Mapping[str, int]) -> int:
        """The same once its use has changed by so much."""
        return (self.share_with(name, change) + self._past.get(name, 0)) // self.queues[name].weight

    def past_share(self, name: str) -> int:
        """The same if it held nothing."""
        return self._past.get(name, 0) // self.queues[name].weight

    def dominant_share(self, name: str) -> int:
        """The largest part of any resource that the queue holds, in millionths of the cluster."""
        largest = self._shares.get(name)
        if largest is None:
            largest = self._shares[name] = self._largest(self.used[name])
        return largest

    def share_with(self, name: str, change: Mapping[str, int]) -> int:
        """The same once its use has changed by so much."""
        return (
            self._largest(_sum(self.used[name], change, 1)) if change else self.dominant_share(name)
        )

    def dominant_part(self, amounts: Mapping[str, int]) -> int:
        """The largest part of any resource of the cluster, in millionths."""
        return self._largest(amounts)

    def used_share(self, name: str) -> float:
        """The dominant share that the queue holds now, as a part of the cluster."""
        return self.dominant_share(name) / SHARE_UNIT

    def share_of(self, name: str, amounts: Mapping[str, int]) -> int:
        """The share that the queue would have if it held these amounts."""
        return (self._largest(amounts) + self._past.get(name, 0)) // self.queues[name].weight

    def _largest(self, amounts: Mapping[str, int]) -> int:
        capacity, largest = self.capacity, 0
        for resource, amount in amounts.items():
            whole = capacity.get(resource, 0)
            if whole > 0:
                part = amount * SHARE_UNIT // whole
                if part > largest:
                    largest = part
        return largest

    # --- building

    def _paused(self, name: str) -> tuple[Reason, str] | None:
        above = (self.queues[each].paused for each in self._paths[name])
        return next((reason for reason in above if reason is not None), None)

    def _path_of(self, name: str) -> tuple[str, ...]:
        path: list[str] = []
        while name in self.queues and name not in path:
            path.append(name)
            name = self.queues[name].parent
        return tuple(path)

    def _is_overcommitted(self) -> bool:
        total: Sums = {}
        for name, queue in self.queues.items():
            if queue.parent not in self.queues:
                add(total, self.nominal[name])
        return any(amount > self.capacity.get(r, 0) for r, amount in total.items())

    def _granted(self) -> dict[str, Sums]:
        """Guarantees as written, or what is granted of them where there is too little for all."""
        found = self.nominal
        if self.is_overcommitted:
            found = overcommit.granted(self, self.served)
        return {name: {r: n for r, n in sums.items() if n > 0} for name, sums in found.items()}

    def _find_withholding(self) -> dict[str, set[str]]:
        """Resource -> queues that, or below which some, do not lend all of their guarantee."""
        found: dict[str, set[str]] = {}
        for name, own in self.guarantee.items():
            for resource, amount in own.items():
                if self.queues[name].lend.get(resource, amount) < amount:
                    found.setdefault(resource, set()).update(self._paths[name])
        return found

    def _nominal(self, name: str) -> Sums:
        """The nominal guarantee of a branch: its own, or its children's if that is more."""
        below: Sums = {}
        for child in self.children.get(name, ()):
            if name not in self.broken:
                add(below, self._nominal(child), 1)
        own = self.queues[name].guarantee
        return {r: max(own.get(r, 0), below.get(r, 0)) for r in own.keys() | below.keys()}


def add(sums: Sums, amounts: Mapping[str, int], sign: int = 1) -> None:
    for resource, amount in amounts.items():
        sums[resource] = sums.get(resource, 0) + sign * amount


def _sum(sums: Sums, amounts: Mapping[str, int], sign: int) -> Sums:
    found = dict(sums)
    for resource, amount in amounts.items():
        found[resource] = found.get(resource, 0) + sign * amount
    return found


def _minus_smaller(sums: Sums, one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
    found = dict(sums)
    for resource, amount in one.items():
        least = min(amount, other.get(resource, 0))
        if least:
            found[resource] = found.get(resource, 0) - least
    return found


def _broken(queues: Mapping[str, Queue]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in queues:
        seen: list[str] = []
        at = name
        while at in queues and at not in seen:
            seen.append(at)
            at = queues[at].parent
        if at in seen:
            found[name] = f"queue {name} is below itself: {' -> '.join([*seen, at])}"
        elif at:
            found[name] = f"queue {seen[-1]} names the parent {at}, which does not exist"
    return found
