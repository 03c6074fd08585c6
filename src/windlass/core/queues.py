"""The sharing tree: who may use how much, who borrows, what must be kept back, whose turn it is.

Amounts are small dictionaries and the tree is shallow, so this is plain Python: at this size it is
faster than arrays. `used` of a queue includes the queues below it.

A queue's *guarantee* comes back to it on demand. What others do not use may be borrowed up to the
*limit*, except what they do not *lend*. Guarantees that add up to more than there is shrink in
proportion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from windlass.core.facts import Amounts, Queue
from windlass.kinds.reasons import Reason

Sums = dict[str, int]
SHARE_UNIT = 1_000_000
"""Shares are compared as whole millionths."""


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


class Tree:
    def __init__(self, queues: Iterable[Queue], capacity: Amounts) -> None:
        self.queues = {queue.name: queue for queue in queues}
        self.capacity = dict(capacity)
        self.broken = _broken(self.queues)
        """Queue -> why it cannot be used: a cycle, a parent that does not exist."""
        self._paths = {name: self._path_of(name) for name in self.queues}
        self.held = {name: held for name in self.queues if (held := self._held(name))}
        """Queue -> why nothing starts in it: its own reason, or one of a queue above it."""
        self.children: dict[str, list[str]] = {}
        for name in sorted(self.queues):
            self.children.setdefault(self.queues[name].parent, []).append(name)
        self.guarantee = self._fitting_guarantees()
        self.guaranteed = frozenset(r for sums in self.guarantee.values() for r in sums)
        """Resources that are guaranteed to anybody; only these can be borrowed."""
        limited = (r for queue in self.queues.values() for r in queue.limit)
        self.ruled = tuple(sorted(self.guaranteed.union(limited)))
        """Resources that any rule is about."""
        self.withholding = self._who_withholds()
        """Resource -> queues that do not lend all of it, and those above them."""
        self._shares: dict[str, int] = {}
        self._on_models: dict[str, tuple[str, ...]] = {}
        self._bound: dict[str, bool] = {}
        self._past = {name: int(q.past_use * SHARE_UNIT) for name, q in self.queues.items()}
        self._moves = dict.fromkeys(self.queues, 0)
        """Queue -> how often what it holds changed."""
        self.used: dict[str, Sums] = {name: {} for name in self.queues}
        """What is in here is never changed, only replaced, so that forks share it."""
        self.firm: dict[str, Sums] = {name: {} for name in self.queues}
        """The same of what units that cannot be preempted hold."""
        self.total: Sums = {}

    def fork(self) -> Tree:
        twin = object.__new__(Tree)
        twin.__dict__.update(self.__dict__)
        twin.used, twin.firm, twin.total = dict(self.used), dict(self.firm), dict(self.total)
        twin._shares, twin._moves = dict(self._shares), dict(self._moves)
        return twin

    def resized(self, capacity: Amounts) -> Tree:
        """The same queues, with what they hold, in a cluster of another size."""
        if capacity == self.capacity:
            return self
        twin = Tree(self.queues.values(), capacity)
        twin.used, twin.firm, twin.total = self.used, self.firm, self.total
        return twin

    def empty(self) -> Tree:
        """A fork in which nobody holds anything."""
        twin = object.__new__(Tree)
        twin.__dict__.update(self.__dict__)
        twin.used = {name: {} for name in self.queues}
        twin.firm = {name: {} for name in self.queues}
        twin.total, twin._shares, twin._moves = {}, {}, dict(self._moves)
        return twin

    def less(self, one: Tree, other: Tree) -> Tree:
        """A fork in which every queue holds less, by the less of what it holds in two others."""
        twin = self.fork()
        twin._shares = {}
        for mine, first, second in (
            (twin.used, one.used, other.used),
            (twin.firm, one.firm, other.firm),
        ):
            for name, sums in first.items():
                if sums:
                    mine[name] = _less_the_least(mine[name], sums, second[name])
        twin.total = _less_the_least(twin.total, one.total, other.total)
        return twin

    def path(self, name: str) -> tuple[str, ...]:
        """The queue and all above it, itself first; nothing for one that is not there."""
        return self._paths.get(name, ())

    def parting(self, one: str, other: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Both paths up to, but without, the first queue that they share; leaves first."""
        first, second = self._paths[one], self._paths[other]
        shared = set(first) & set(second)
        return (
            tuple(name for name in first if name not in shared),
            tuple(name for name in second if name not in shared),
        )

    def rules_on_models(self, name: str) -> tuple[str, ...]:
        """Resources of the form kind/model that a rule for the queue may be about."""
        found = self._on_models.get(name)
        if found is None:
            limits = {r for queue in self._paths[name] for r in self.queues[queue].limit}
            found = tuple(sorted(r for r in limits | self.guaranteed if "/" in r))
            self._on_models[name] = found
        return found

    def has_rules(self, name: str, preemptible: bool) -> bool:
        """Whether any rule could ever forbid such a unit of the queue to start."""
        return bool(self.rules_on_models(name)) or self.is_bound(name, firm=not preemptible)

    # --- accounting

    def add(self, name: str, amounts: Mapping[str, int], *, firm: bool, sign: int = 1) -> None:
        for queue in self._paths.get(name, ()):
            self.used[queue] = _sum(self.used[queue], amounts, sign)
            self._shares.pop(queue, None)
            self._moves[queue] += 1
            if firm:
                self.firm[queue] = _sum(self.firm[queue], amounts, sign)
        add(self.total, amounts, sign)

    # --- may it start

    def is_bound(self, name: str, *, firm: bool) -> bool:
        """Whether any rule could ever forbid the queue to use more."""
        found = self._bound.get(name)
        if found is None:
            limited = any(self.queues[queue].limit for queue in self._paths[name])
            found = self._bound[name] = limited or bool(self.withholding)
        return found or (firm and bool(self.guaranteed))

    def shortage(self, name: str, need: Mapping[str, int], *, firm: bool) -> Shortage | None:
        """The first rule that forbids the queue to use so much more; None if none does."""
        if not self.is_bound(name, firm=firm):
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
        barred = self._firm_shortage(path, need) if firm else None
        return barred or self._lending_shortage(path, need)

    def _firm_shortage(self, path: tuple[str, ...], need: Mapping[str, int]) -> Shortage | None:
        """Against the guarantee of the queue and of all above it: those below a queue may have
        been promised what units in the queue itself hold firmly."""
        for name in path:
            for resource in sorted(self.guaranteed):
                asked = need.get(resource, 0)
                own = self.guarantee[name].get(resource, 0)
                left = own - self.firm[name].get(resource, 0)
                if asked > max(0, left):
                    return Shortage("guarantee", name, resource, asked, max(0, left), own)
        return None

    def _lending_shortage(self, path: tuple[str, ...], need: Mapping[str, int]) -> Shortage | None:
        name = path[0]
        for resource in sorted(self.guaranteed):
            asked = need.get(resource, 0)
            if not asked or self._inside(name, resource, asked):
                continue
            withholding = self.withholding.get(resource)
            if not withholding:
                continue  # everybody lends all they have
            beside = set(self._beside(path)) & withholding
            kept = sum(self._kept_back(other, resource) for other in beside)
            left = self.capacity.get(resource, 0) - self.total.get(resource, 0) - kept
            if kept and asked > left:
                return Shortage("lend", name, resource, asked, max(0, left))
        return None

    def inside(self, name: str, need: Mapping[str, int]) -> bool:
        """Whether the queue would stay within its guarantee: then it may take back what is lent."""
        own, used, concerned = self.guarantee[name], self.used[name], False
        if not own:
            return False
        guaranteed = self.guaranteed
        for resource, asked in need.items():
            if asked and resource in guaranteed:
                if used.get(resource, 0) + asked > own.get(resource, 0):
                    return False
                concerned = concerned or resource in own
        return concerned

    def _inside(self, name: str, resource: str, asked: int) -> bool:
        own = self.guarantee[name].get(resource, 0)
        return self.used[name].get(resource, 0) + asked <= own

    def _kept_back(self, name: str, resource: str) -> int:
        """Of its unused guarantee, what the queue, or those below it, do not lend."""
        own = self.guarantee[name].get(resource, 0)
        lend = min(own, self.queues[name].lend.get(resource, own))
        below = sum(self._kept_back(child, resource) for child in self.children.get(name, ()))
        return max(0, below, own - lend - self.used[name].get(resource, 0))

    def _beside(self, path: tuple[str, ...]) -> Iterable[str]:
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

    # --- whose turn

    def rank(self, name: str, need: Mapping[str, int]) -> tuple[int, ...]:
        """Smaller is first: at every level from the top, those inside their guarantee, then those
        with the smallest weighted share counted with what they ask for now."""
        rank: list[int] = []
        for queue in reversed(self._paths[name]):
            rank += (0 if self.inside(queue, need) else 1, self.share(queue, need))
        return tuple(rank)

    def last_move(self, name: str) -> int:
        """Another number whenever a rank of the queue may have changed."""
        return self._moves[self._paths[name][-1]]  # what any of them holds, the last holds too

    def share(self, name: str, more: Mapping[str, int] = {}) -> int:
        """The largest part of any resource that the queue holds, against its weight."""
        used, capacity = self.used[name], self.capacity
        largest = self._shares.get(name)
        if largest is None:
            largest = self._shares[name] = self._largest(used)
        for resource, amount in more.items():
            whole = capacity.get(resource, 0)
            if whole > 0:
                part = (used.get(resource, 0) + amount) * SHARE_UNIT // whole
                if part > largest:
                    largest = part
        return (largest + self._past[name]) // self.queues[name].weight

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

    def _held(self, name: str) -> tuple[Reason, str] | None:
        above = (self.queues[each].held for each in self._paths[name])
        return next((held for held in above if held is not None), None)

    def _path_of(self, name: str) -> tuple[str, ...]:
        path: list[str] = []
        while name in self.queues and name not in path:
            path.append(name)
            name = self.queues[name].parent
        return tuple(path)

    def _fitting_guarantees(self) -> dict[str, Sums]:
        """Guarantees as written, or shrunk in proportion where the roots' add up to too much."""
        roots = [name for name, queue in self.queues.items() if queue.parent not in self.queues]
        promised: Sums = {}
        for name in roots:
            add(promised, self._promise(name), 1)
        found = {}
        for name in self.queues:
            found[name] = {
                resource: amount * self.capacity.get(resource, 0) // promised[resource]
                if promised.get(resource, 0) > self.capacity.get(resource, 0)
                else amount
                for resource, amount in self._promise(name).items()
                if amount > 0
            }
        return found

    def _who_withholds(self) -> dict[str, set[str]]:
        """Resource -> queues that, or below which some, do not lend all of their guarantee."""
        found: dict[str, set[str]] = {}
        for name, own in self.guarantee.items():
            for resource, amount in own.items():
                if self.queues[name].lend.get(resource, amount) < amount:
                    found.setdefault(resource, set()).update(self._paths[name])
        return found

    def _promise(self, name: str) -> Sums:
        """What a branch was promised: its own guarantee, or its children's if that is more."""
        below: Sums = {}
        for child in self.children.get(name, ()):
            if name not in self.broken:
                add(below, self._promise(child), 1)
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


def _less_the_least(sums: Sums, one: Mapping[str, int], other: Mapping[str, int]) -> Sums:
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
