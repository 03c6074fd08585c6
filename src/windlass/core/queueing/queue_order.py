"""The order of workloads inside one queue. Each order is one small function; add yours to `ORDERS`.

Higher priority comes first in every order; the order decides among equals. The smallest key is
next, and the workload's own key breaks the last tie, so that the same facts always give the same
order.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from windlass.core.model.types import Amounts, Queue, Workload

Key = tuple[float, ...]


class Predictor(Protocol):
    """What is known about how long workloads run; see `core.prediction.predictor`."""

    def estimate(self, workload: Workload) -> float | None:
        """The stated runtime in seconds, as far as it is trusted; None when none is stated."""
        ...

    def expected(self, workload: Workload) -> float | None:
        """Seconds it will probably still run; None when nothing is known."""
        ...

    def left(self, workload: Workload, attained: float) -> float | None:
        """Seconds it will probably still run, having run for so long; None: nothing is known."""
        ...

    def index(self, workload: Workload, attained: float) -> float:
        """Device-seconds to invest per completion, by what similar workloads did: small goes
        first."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class OrderingContext:
    """What an order may read besides the workload."""

    predictor: Predictor
    share_by_user: Mapping[tuple[str, str], int]
    """(queue, user) -> dominant share of what the user's workloads of this queue hold together."""
    usage_by_user: Mapping[str, Mapping[str, Amounts]] = dataclasses.field(default_factory=dict)
    """Queue -> user -> what these workloads hold, by resource."""


class _NoPrediction:
    """Knows nothing about durations."""

    def estimate(self, workload: Workload) -> float | None:
        return workload.expected

    def expected(self, workload: Workload) -> float | None:  # noqa: ARG002
        return None

    def left(self, workload: Workload, attained: float) -> float | None:  # noqa: ARG002
        return None

    def index(self, workload: Workload, attained: float) -> float:  # noqa: ARG002
        return attained


NOTHING_KNOWN = OrderingContext(_NoPrediction(), {})


def rank(queue: Queue, workload: Workload, context: OrderingContext) -> tuple[Key, str]:
    """Where the workload stands in its queue; smaller is earlier."""
    turn = (
        (context.share_by_user.get((workload.queue, workload.user), 0),) if queue.user_fair else ()
    )
    return (
        -priority(queue, workload),
        *turn,
        *ORDERS[queue.order](workload, context),
    ), workload.key


def priority(queue: Queue, workload: Workload) -> int:
    return counted(queue, workload.priority)


def counted(queue: Queue, requested: int) -> int:
    """A priority, as far as the queue lets it count."""
    return requested if queue.max_priority is None else min(requested, queue.max_priority)


def is_steady(queue: Queue) -> bool:
    """Whether ranks depend on the workload alone, so that a sorted queue stays sorted."""
    return queue.order in ("fifo", "lifo", "priority") and not queue.user_fair


def is_fair(queue: Queue) -> bool:
    """Whether users take turns."""
    return queue.order == "fair" or queue.user_fair


def in_turns(
    queue: Queue,
    workloads: Iterable[Workload],
    context: OrderingContext,
    need: Callable[[Workload], Amounts],
    share: Callable[[Amounts], int],
) -> list[Workload]:
    """Users of a fair queue one after another: always the next workload of the user with the
    smallest dominant share, counting all earlier workloads of the user in this order. The share is
    that of the sums: a user with CPU in one workload and devices in another is not charged for both
    twice. Priorities come first."""
    own = fifo if queue.order == "fair" else ORDERS[queue.order]

    def key(workload: Workload) -> tuple[Key, str]:
        return own(workload, context), workload.key

    pending: dict[tuple[int, str], list[Workload]] = {}
    for workload in sorted(workloads, key=key, reverse=True):
        pending.setdefault((-priority(queue, workload), workload.user), []).append(workload)
    shares = {user: context.share_by_user.get((queue.name, user), 0) for _, user in pending}
    known = context.usage_by_user.get(queue.name, {})
    used = {user: known.get(user, {}) for _, user in pending}
    turns = [(first, shares[user], key(mine[-1]), user) for (first, user), mine in pending.items()]
    heapq.heapify(turns)
    found: list[Workload] = []
    while turns:
        first, counted, place, user = heapq.heappop(turns)
        if counted < shares[user]:  # it got more in a higher class meanwhile
            heapq.heappush(turns, (first, shares[user], place, user))
            continue
        mine = pending[first, user]
        workload = mine.pop()
        found.append(workload)
        before, used[user] = share(used[user]), _sum(used[user], need(workload))
        shares[user] += share(used[user]) - before
        if mine:
            heapq.heappush(turns, (first, shares[user], key(mine[-1]), user))
    return found


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {r: one.get(r, 0) + other.get(r, 0) for r in one.keys() | other.keys()}


def fifo(workload: Workload, _: OrderingContext) -> Key:
    return (workload.submitted,)


def lifo(workload: Workload, _: OrderingContext) -> Key:
    return (-workload.submitted,)


def fair(workload: Workload, context: OrderingContext) -> Key:
    """The user with the smallest share first, then the oldest workload."""
    return (context.share_by_user.get((workload.queue, workload.user), 0), workload.submitted)


def shortest(workload: Workload, context: OrderingContext) -> Key:
    """The least work first; workloads without a stated or predicted runtime come last."""
    seconds = context.predictor.estimate(workload)
    if seconds is None:
        seconds = context.predictor.expected(workload)
    return (float("inf") if seconds is None else seconds * size(workload), workload.submitted)


def attained(workload: Workload, context: OrderingContext) -> Key:
    """Without known durations: by what similar workloads did and the attained service."""
    return (context.predictor.index(workload, workload.attained), workload.submitted)


ORDERS: dict[str, Callable[[Workload, OrderingContext], Key]] = {
    "fifo": fifo,
    "lifo": lifo,
    "priority": fifo,
    "fair": fair,
    "shortest": shortest,
    "attained": attained,
}


def size(workload: Workload) -> int:
    """Devices that its least pods hold, or pods where it asks for none."""
    whole = sum(
        role.min_count * sum(request.count for request in role.devices) for role in workload.roles
    )
    return max(1, whole or sum(role.min_count for role in workload.roles))
