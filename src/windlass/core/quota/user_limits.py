"""Limits per user of a queue: resources, running workloads, submitted workloads.

A limit of a queue counts what the user holds and has submitted in it and in the queues below it. It
binds that user alone: nothing is preempted for a workload that waits for its user's limit, it gets
no new reservation, and it keeps no workload of another user from starting, in a strict queue
either. Users of queues without limits are not counted.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from windlass.core import alike, models, passing, queues, reserve, verdicts
from windlass.core.facts import Queue, Running, Unit, UserLimit, UserLimits, Verdict
from windlass.core.place import Wish
from windlass.core.queues import Shortage, Sums, Tree

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle
    from windlass.core.state import Snapshot

RULE = "user"
RUNNING, SUBMITTED = "running", "submitted"
"""Stand in a Shortage where a resource does, for limits that count workloads."""

UserKey = tuple[str, str]
"""Queue and user."""


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """What a user holds; never changed, only replaced, so that forks share it."""

    held: Sums
    running: int = 0

    def plus(self, amounts: Mapping[str, int], workloads: int, sign: int) -> Usage:
        held = dict(self.held)
        queues.add(held, amounts, sign)
        return Usage(held, self.running + sign * workloads)


_NOTHING = Usage({})


class UserQuotas:
    """What users hold against their limits, in all queues that have such limits."""

    def __init__(
        self,
        tree: Tree,
        running: Iterable[tuple[Running, Mapping[str, int]]] = (),
        waiting: Iterable[Unit] = (),
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
            for each, held in running:
                self.add(each.unit, held)
            for unit in waiting:
                self.count_waiting(unit, 1)

    def fork(self) -> UserQuotas:
        twin = object.__new__(UserQuotas)
        twin.__dict__.update(self.__dict__)
        twin.used, twin._waiting = dict(self.used), dict(self._waiting)
        return twin

    def settled(self, snapshot: Snapshot) -> UserQuotas:
        """A fork that knows who is beyond the limit of submitted workloads, for a world in which
        not all of them wait."""
        twin = self.fork()
        twin._beyond = self.beyond(snapshot)
        return twin

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

    def keys(self, unit: Unit) -> list[UserKey]:
        """The limits that the workload counts against."""
        return [(queue, unit.user) for queue in self._above.get(unit.queue, ())]

    def add(
        self, unit: Unit, held: Mapping[str, int], *, is_member: bool = False, sign: int = 1
    ) -> None:
        """`is_member`: these are more pods of a workload that is counted already. Pods that no
        workload covers any more (`kin` is None) count with what they hold only."""
        workloads = int(not is_member and unit.kin is not None)
        for key in self.keys(unit):
            usage = self.used.get(key, _NOTHING).plus(held, workloads, sign)
            if usage.running or any(usage.held.values()):
                self.used[key] = usage
            else:
                self.used.pop(key, None)

    def count_waiting(self, unit: Unit, sign: int) -> None:
        for key in self.keys(unit):
            count = self._waiting.get(key, 0) + sign
            if count:
                self._waiting[key] = count
            else:
                self._waiting.pop(key, None)

    def shortage(
        self, unit: Unit, need: Mapping[str, int], *, workloads: int = 1
    ) -> Shortage | None:
        """The first limit that keeps the user from holding so much more; None if none does."""
        for key in self.keys(unit):
            limit, usage = self.limit(*key), self.used.get(key, _NOTHING)
            if limit.running is not None and workloads and usage.running >= limit.running:
                return Shortage(RULE, key[0], RUNNING, 1, 0, limit.running)
            for resource, bound in sorted(limit.resources.items()):
                asked, held = need.get(resource, 0), usage.held.get(resource, 0)
                if asked and held + asked > bound:
                    return Shortage(RULE, key[0], resource, asked, max(0, bound - held), bound)
        return None

    def modelled(self, unit: Unit) -> list[str]:
        """Resources of the form kind/model that a limit of the user is about."""
        return sorted(
            {r for key in self.keys(unit) for r in self.limit(*key).resources if "/" in r}
        )

    def beyond(self, snapshot: Snapshot) -> dict[str, Shortage]:
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
        units = itertools.chain.from_iterable(
            snapshot.members(name)
            for name, above in self._above.items()
            if names.intersection(above)
        )
        for unit in sorted(units, key=lambda unit: (unit.submitted, unit.key)):
            for key in self.keys(unit):
                if key in over:
                    over[key] -= 1
                    if over[key] < 0:
                        bound = self.limit(*key).submitted or 0
                        found.setdefault(unit.key, Shortage(RULE, key[0], SUBMITTED, 1, 0, bound))
        return found

    def permitted(self, queue: str, user: str, asked: Mapping[str, int]) -> Mapping[str, int]:
        """Of what a user asks for in a queue, what the user's limits leave. A limit of running
        workloads leaves all or nothing: how large the next ones are is not looked at."""
        above = self._above.get(queue, ())
        left = dict(asked) if above else asked
        for name in above:
            limit, usage = self.limit(name, user), self.used.get((name, user), _NOTHING)
            if limit.running is not None and usage.running >= limit.running:
                return {}
            for resource, bound in limit.resources.items():
                if asked.get(resource):
                    most = max(0, bound - usage.held.get(resource, 0))
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


# --- in a decision ------------------------------------------------------------------------------


def verdict(cycle: Cycle, unit: Unit) -> Verdict | None:
    """What a waiting workload is told if a limit of its user keeps it waiting."""
    quotas = cycle.user_quotas
    if not quotas.bind(unit.queue):
        return None
    found = cycle.beyond_submitted.get(unit.key)
    if found is None:
        told = cycle.asked(unit)
        found = shortage(cycle, unit, told.wishes, told.need) or _beside_reserved(cycle, unit)
    return None if found is None else verdicts.over_user_limit(unit, found)


def hold_back(cycle: Cycle, unit: Unit, barred: Verdict) -> None:
    """A workload waits for a limit of its user. A reservation that it has stays until it is due:
    the user's other workloads may have ended by then. In a strict queue the user's later workloads
    wait behind it."""
    if barred.user is None:
        return
    held = reserve.lift(cycle, unit)
    reserve.keep(cycle, held)
    if held is not None and unit.key not in cycle.memory.promised:
        alike.forget(cycle)
    if cycle.queue_of(unit).strict:
        cycle.blocked_users.add((unit.queue, unit.user, cycle.asked(unit).resource_class))


def behind_own(cycle: Cycle, unit: Unit) -> Verdict | None:
    """What a workload of a strict queue is told that an earlier one of the same user holds back."""
    if not cycle.blocked_users or unit.key in cycle.memory.promised:
        return None
    key = (unit.queue, unit.user, cycle.asked(unit).resource_class)
    return verdicts.behind_own(unit) if key in cycle.blocked_users else None


def shortage(
    cycle: Cycle,
    unit: Unit,
    wishes: Sequence[Wish],
    need: Mapping[str, int],
    *,
    workloads: int = 1,
) -> Shortage | None:
    """The limit of its user that pods of a workload would exceed. Where a limit names a model, a
    workload that may get this model counts as if it did."""
    quotas = cycle.user_quotas
    if not quotas.bind(unit.queue):
        return None
    modelled = quotas.modelled(unit)
    if modelled:
        cluster = cycle.scene.cluster
        need = {**need, **{r: models.most_of(cluster, wishes, r) for r in modelled}}
    return quotas.shortage(unit, need, workloads=workloads)


def _beside_reserved(cycle: Cycle, unit: Unit) -> Shortage | None:
    """The limit that would be exceeded once workloads of the same user start for which capacity is
    reserved: a user's later workload does not delay the user's reserved one."""
    if not any(held.unit.user == unit.user for held in cycle.reservations):
        return None
    quotas = cycle.user_quotas
    mine = [
        held.unit
        for held in passing.crossed(cycle, unit, cycle.expected_end(unit))
        if held.unit.user == unit.user and quotas.bind(held.unit.queue)
    ]
    for other in mine:
        quotas.add(other, cycle.need(other))
    told = cycle.asked(unit)
    found = shortage(cycle, unit, told.wishes, told.need) if mine else None
    for other in mine:
        quotas.add(other, cycle.need(other), sign=-1)
    return found
