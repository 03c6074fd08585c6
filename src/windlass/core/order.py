"""Who is next inside one queue. Each order is one small function; add yours to `ORDERS`.

Higher priority goes first in every order; the order decides among equals. A key says only what
sorts: the smallest key is next, and the unit's own key breaks the last tie, so that the same facts
always give the same order.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from windlass.core.facts import Amounts, Queue, Unit

Key = tuple[float, ...]


class Predictor(Protocol):
    """What is known about how long units run; see `core.predict`."""

    def estimate(self, unit: Unit) -> float | None:
        """Seconds it says it runs, as far as that is believed; None when it says nothing."""
        ...

    def expected(self, unit: Unit) -> float | None:
        """Seconds it will probably still run; None when nothing is known."""
        ...

    def left(self, unit: Unit, attained: float) -> float | None:
        """Seconds it will probably still run, having run for so long; None: nothing is known."""
        ...

    def index(self, unit: Unit, attained: float) -> float:
        """Device-seconds to invest per completion, by what units like it did: small goes first."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Standing:
    """What an order may look at besides the unit."""

    predictor: Predictor
    held_by_user: Mapping[tuple[str, str], int]
    """(queue, user) -> dominant share of what the user's units of this queue hold together."""
    used_by_user: Mapping[str, Mapping[str, Amounts]] = dataclasses.field(default_factory=dict)
    """Queue -> user -> what these units hold, by resource."""


class _Ignorance:
    """Knows nothing about durations."""

    def estimate(self, unit: Unit) -> float | None:
        return unit.expected

    def expected(self, unit: Unit) -> float | None:  # noqa: ARG002
        return None

    def left(self, unit: Unit, attained: float) -> float | None:  # noqa: ARG002
        return None

    def index(self, unit: Unit, attained: float) -> float:  # noqa: ARG002
        return attained


NOTHING_KNOWN = Standing(_Ignorance(), {})


def rank(queue: Queue, unit: Unit, standing: Standing) -> tuple[Key, str]:
    """Where the unit stands in its queue; smaller is earlier."""
    turn = (standing.held_by_user.get((unit.queue, unit.user), 0),) if queue.user_fair else ()
    return (-priority(queue, unit), *turn, *ORDERS[queue.order](unit, standing)), unit.key


def priority(queue: Queue, unit: Unit) -> int:
    return counted(queue, unit.priority)


def counted(queue: Queue, said: int) -> int:
    """A priority, as far as the queue lets it count."""
    return said if queue.max_priority is None else min(said, queue.max_priority)


def is_steady(queue: Queue) -> bool:
    """Whether ranks depend on the unit alone, so that a sorted queue stays sorted."""
    return queue.order in ("fifo", "lifo", "priority") and not queue.user_fair


def is_fair(queue: Queue) -> bool:
    """Whether users take turns."""
    return queue.order == "fair" or queue.user_fair


def in_turns(
    queue: Queue,
    units: Iterable[Unit],
    standing: Standing,
    need: Callable[[Unit], Amounts],
    share: Callable[[Amounts], int],
) -> list[Unit]:
    """Users of a fair queue one after another: always the next unit of the user with the smallest
    dominant share, with everything of theirs that stands before it in the line. The share is that
    of the sums: who holds CPU in one unit and devices in another does not hold both twice.
    Priorities come first."""
    own = fifo if queue.order == "fair" else ORDERS[queue.order]

    def key(unit: Unit) -> tuple[Key, str]:
        return own(unit, standing), unit.key

    lines: dict[tuple[int, str], list[Unit]] = {}
    for unit in sorted(units, key=key, reverse=True):
        lines.setdefault((-priority(queue, unit), unit.user), []).append(unit)
    held = {user: standing.held_by_user.get((queue.name, user), 0) for _, user in lines}
    known = standing.used_by_user.get(queue.name, {})
    used = {user: known.get(user, {}) for _, user in lines}
    turns = [(first, held[user], key(line[-1]), user) for (first, user), line in lines.items()]
    heapq.heapify(turns)
    found: list[Unit] = []
    while turns:
        first, counted, place, user = heapq.heappop(turns)
        if counted < held[user]:  # it got more in a higher class meanwhile
            heapq.heappush(turns, (first, held[user], place, user))
            continue
        line = lines[first, user]
        unit = line.pop()
        found.append(unit)
        before, used[user] = share(used[user]), _sum(used[user], need(unit))
        held[user] += share(used[user]) - before
        if line:
            heapq.heappush(turns, (first, held[user], key(line[-1]), user))
    return found


def _sum(one: Amounts, other: Amounts) -> Amounts:
    return {r: one.get(r, 0) + other.get(r, 0) for r in one.keys() | other.keys()}


def fifo(unit: Unit, _: Standing) -> Key:
    return (unit.submitted,)


def lifo(unit: Unit, _: Standing) -> Key:
    return (-unit.submitted,)


def fair(unit: Unit, standing: Standing) -> Key:
    """The user who holds the least, then the oldest."""
    return (standing.held_by_user.get((unit.queue, unit.user), 0), unit.submitted)


def shortest(unit: Unit, standing: Standing) -> Key:
    """The least work first; what says nothing and of which nothing is known goes last."""
    seconds = standing.predictor.estimate(unit)
    if seconds is None:
        seconds = standing.predictor.expected(unit)
    return (float("inf") if seconds is None else seconds * size(unit), unit.submitted)


def attained(unit: Unit, standing: Standing) -> Key:
    """Nothing is known about durations: by what units like it did and what it has had."""
    return (standing.predictor.index(unit, unit.attained), unit.submitted)


ORDERS: dict[str, Callable[[Unit, Standing], Key]] = {
    "fifo": fifo,
    "lifo": lifo,
    "priority": fifo,
    "fair": fair,
    "shortest": shortest,
    "attained": attained,
}


def size(unit: Unit) -> int:
    """Devices that its least members hold, or members where it asks for none."""
    whole = sum(role.least * sum(request.count for request in role.devices) for role in unit.roles)
    return max(1, whole or sum(role.least for role in unit.roles))
