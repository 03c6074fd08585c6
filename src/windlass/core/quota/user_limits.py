"""Limits per user of a queue: resources, running workloads, submitted workloads.

A limit of a queue counts what the user holds and has submitted in it and in the queues below it. It
binds that user alone: nothing is preempted for a workload that waits for its user's limit, it gets
no new reservation, and it keeps no workload of another user from starting, in a strict queue
either. Users of queues without limits are not counted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping

from windlass.core.model.types import Queue, Running, UserLimit, UserLimits, Workload
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree, Shortage, Sums

RULE = "user"
RUNNING, SUBMITTED = "running", "submitted"
"""Stand in a Shortage where a resource does, for limits that count workloads."""

UserKey = tuple[str, str]
"""Queue and user."""
WaitingIn = Callable[[str], Iterable[Workload]]
"""Queue -> the workloads that wait in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a user holds; never changed, only replaced, so that forks share it."""

    amounts: Sums
    running: int = 0

    def plus(self, amounts: Mapping[str, int], workloads: int, sign: int) -> Usage:
        used = dict(self.amounts)
        quota_tree.add(used, amounts, sign)
        return Usage(used, self.running + sign * workloads)


_NOTHING = Usage({})


class UserQuotas:
    """What users hold against their limits, in all queues that have such limits."""

    def __init__(
        self,
        tree: QuotaTree,
        running: Iterable[tuple[Running, Mapping[str, int]]] = (),
        waiting: Iterable[Workload] = (),
    ) -> None:
        """`running`: workloads that hold capacity, and what that counts for."""
        self._limits = {
            name: each.user_limits for name, each in tree.queues.items() if each.user_limits
        }
        self._above = {
            name: found
            for name in (tree.queues if self._limits else ())
            if (found := tuple(above for above in tree.path(name) if above in self._limits))
        }
        """Queue -> itself and the queues above it that have limits per user."""
        self._of: dict[UserKey, UserLimit] = {}
        self.used: dict[UserKey, Usage] = {}
        self._waiting: dict[UserKey, int] = {}
        self._beyond: dict[str, Shortage] | None = None
        if self._above:
            for each, used in running:
                self.add(each.workload, used)
            for workload in waiting:
                self.count_waiting(workload, 1)

    def fork(self) -> UserQuotas:
        fork = object.__new__(UserQuotas)
        fork.__dict__.update(self.__dict__)
        fork.used, fork._waiting = dict(self.used), dict(self._waiting)
        return fork

    def settled(self, waiting_in: WaitingIn) -> UserQuotas:
        """A fork that knows which users are beyond the limit of submitted workloads, where not
        all of them wait."""
        copy = self.fork()
        copy._beyond = self.beyond(waiting_in)
        return copy

    def __bool__(self) -> bool:
        """Whether any queue limits its users."""
        return bool(self._above)

    def bind(self, queue: str) -> bool:
        """Whether users have limits in the queue, or in one above it."""
        return queue in self._above

    def limit(self, queue: str, user: str) -> UserLimit:
        found = self._of.get((queue, user))
        if found is None:
            found = self._of[queue, user] = self._limits[queue].of(user)
        return found

    def keys(self, workload: Workload) -> list[UserKey]:
        """The limits that the workload counts against."""
        return [(queue, workload.user) for queue in self._above.get(workload.queue, ())]

    def add(
        self, workload: Workload, used: Mapping[str, int], *, is_member: bool = False, sign: int = 1
    ) -> None:
        """`is_member`: these are more pods of a workload that is counted already. Pods without a
        workload (`history_key` is None) count with what they hold only."""
        workloads = int(not is_member and workload.history_key is not None)
        for key in self.keys(workload):
            usage = self.used.get(key, _NOTHING).plus(used, workloads, sign)
            if usage.running or any(usage.amounts.values()):
                self.used[key] = usage
            else:
                self.used.pop(key, None)

    def count_waiting(self, workload: Workload, sign: int) -> None:
        for key in self.keys(workload):
            count = self._waiting.get(key, 0) + sign
            if count:
                self._waiting[key] = count
            else:
                self._waiting.pop(key, None)

    def shortage(
        self, workload: Workload, need: Mapping[str, int], *, workloads: int = 1
    ) -> Shortage | None:
        """The first limit that keeps the user from holding so much more; None if none does."""
        for key in self.keys(workload):
            limit, usage = self.limit(*key), self.used.get(key, _NOTHING)
            if limit.running is not None and workloads and usage.running >= limit.running:
                return Shortage(RULE, key[0], RUNNING, 1, 0, limit.running)
            for resource, bound in sorted(limit.resources.items()):
                asked, in_use = need.get(resource, 0), usage.amounts.get(resource, 0)
                if asked and in_use + asked > bound:
                    return Shortage(RULE, key[0], resource, asked, max(0, bound - in_use), bound)
        return None

    def modelled(self, workload: Workload) -> list[str]:
        """Resources of the form kind/model that a limit of the user is about."""
        return sorted(
            {r for key in self.keys(workload) for r in self.limit(*key).resources if "/" in r}
        )

    def beyond(self, waiting_in: WaitingIn) -> dict[str, Shortage]:
        """Waiting workloads that their users submitted beyond their limit: the oldest are within
        it. The API server of the embedded engine refuses them; on Kubernetes, and where a limit was
        lowered or a workload moved, they wait."""
        if self._beyond is not None:
            return self._beyond
        over = {
            key: limit.submitted - self.used.get(key, _NOTHING).running
            for key, count in self._waiting.items()
            if (limit := self.limit(*key)).submitted is not None
            and count + self.used.get(key, _NOTHING).running > limit.submitted
        }
        if not over:
            return {}
        names, found = {queue for queue, _ in over}, dict[str, Shortage]()
        workloads = itertools.chain.from_iterable(
            waiting_in(name) for name, above in self._above.items() if names.intersection(above)
        )
        for workload in sorted(workloads, key=lambda workload: (workload.submitted, workload.key)):
            for key in self.keys(workload):
                if key in over:
                    over[key] -= 1
                    if over[key] < 0:
                        bound = self.limit(*key).submitted or 0
                        found.setdefault(
                            workload.key, Shortage(RULE, key[0], SUBMITTED, 1, 0, bound)
                        )
        return found

    def permitted(self, queue: str, user: str, asked: Mapping[str, int]) -> Mapping[str, int]:
        """Of what a user asks for in a queue, what the user's limits leave. A limit of running
        workloads leaves all or nothing: the sizes of the next ones are not considered."""
        above = self._above.get(queue, ())
        left = dict(asked) if above else asked
        for name in above:
            limit, usage = self.limit(name, user), self.used.get((name, user), _NOTHING)
            if limit.running is not None and usage.running >= limit.running:
                return {}
            for resource, bound in limit.resources.items():
                if asked.get(resource):
                    most = max(0, bound - usage.amounts.get(resource, 0))
                    left = {**left, resource: min(left[resource], most)}
        return left


def raised(queue: Queue, user: str, resource: str, amount: int) -> Queue:
    """The queue if it let a user have so much more."""
    limits = queue.user_limits or UserLimits()
    own = limits.of(user)
    if resource == RUNNING:
        own = UserLimit(own.resources, (own.running or 0) + amount, own.submitted)
    elif resource == SUBMITTED:
        own = UserLimit(own.resources, own.running, (own.submitted or 0) + amount)
    else:
        more = {**own.resources, resource: own.resources.get(resource, 0) + amount}
        own = UserLimit(more, own.running, own.submitted)
    changed = dataclasses.replace(limits, users={**limits.users, user: own})
    return dataclasses.replace(queue, user_limits=changed)
