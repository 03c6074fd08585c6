"""Guarantees that add up to more than there is, because nodes were lost: which queues keep theirs.

A guarantee that is cut to a fraction is useless: with five of eight devices no workload of eight
runs. So guarantees are granted in full, one queue after another, until capacity is used up; the
last one gets the whole devices that are left. The queue that was served least comes first, by its
recent use against its guarantee (`Account.usage`, which halves in a day). A queue that uses its
guarantee keeps it until it was served for an hour of the guarantee more than one that does not: a
queue that loses its turn loses workloads by it. A queue that neither uses nor asks for anything
comes after all others: its turn would keep capacity from a queue that waits, for borrowers.
Siblings share what their parent was granted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Protocol

from windlass.core.model.types import SHARE_UNIT, WHOLE, Queue

Sums = dict[str, int]
TURN = 3600.0
"""Seconds of use of the whole guarantee that make one turn."""
_SOONEST = 60.0


class Guarantees(Protocol):
    """The part of a quota tree with guarantees and usage."""

    queues: dict[str, Queue]
    capacity: Sums
    children: dict[str, list[str]]
    nominal: dict[str, Sums]
    used: dict[str, Sums]
    served: Mapping[str, float]
    waiting: Set[str]
    is_overcommitted: bool

    def dominant_part(self, amounts: Mapping[str, int], /) -> int: ...

    def used_share(self, name: str, /) -> float: ...


def granted(tree: Guarantees, served: Mapping[str, float]) -> dict[str, Sums]:
    """What of its nominal guarantee each queue is granted. `served`: use of late, in seconds of
    dominant share."""
    found: dict[str, Sums] = {name: {} for name in tree.queues}  # also of queues in no tree

    def divide(names: Iterable[str], there: Mapping[str, int]) -> None:
        left = dict(there)
        for name in sorted(names, key=lambda each: _place(tree, served, each)):
            nominal = tree.nominal[name]
            found[name] = {r: _part(amount, left.get(r, 0)) for r, amount in nominal.items()}
            for resource, amount in found[name].items():
                left[resource] = left.get(resource, 0) - amount
            divide(tree.children.get(name, ()), found[name])

    divide(tree.children.get("", ()), tree.capacity)
    return found


def _place(
    tree: Guarantees, served: Mapping[str, float], name: str
) -> tuple[bool, float, int, str]:
    """Smaller is first."""
    turns = _turns(tree, served, name) - _holds(tree, name)
    return _is_idle(tree, name), turns, -tree.queues[name].weight, name


def _is_idle(tree: Guarantees, name: str) -> bool:
    return name not in tree.waiting and not any(tree.used[name].values())


def _turns(tree: Guarantees, served: Mapping[str, float], name: str) -> float:
    length = _length(tree, name)
    return served.get(name, 0.0) / length if length else 0.0


def _length(tree: Guarantees, name: str) -> float:
    return TURN * _share(tree, tree.nominal[name])


def _holds(tree: Guarantees, name: str) -> bool:
    """Whether the queue uses most of its guarantee, in the resource of which it is guaranteed the
    largest part of the cluster."""
    nominal = tree.nominal[name]
    used = {resource: tree.used[name].get(resource, 0) for resource in nominal}
    return 2 * _share(tree, used) > _share(tree, nominal)


def _share(tree: Guarantees, amounts: Mapping[str, int]) -> float:
    return tree.dominant_part(amounts) / SHARE_UNIT


def _part(amount: int, left: int) -> int:
    """All of it, or what is left in whole devices."""
    if amount <= left:
        return amount
    return max(0, left) // WHOLE * WHOLE if amount % WHOLE == 0 else max(0, left)


def next_turn(tree: Guarantees, at: float | None) -> Iterator[float]:
    """When another queue may have its turn, for use that was counted until `at`."""
    if at is None or not tree.is_overcommitted:
        return
    served = tree.served
    names = [name for name, nominal in tree.nominal.items() if any(nominal.values())]
    waiting = [
        _turns(tree, served, name)
        for name in names
        if not _holds(tree, name) and not _is_idle(tree, name)
    ]
    for name in names:
        if waiting and _holds(tree, name):
            left = 1.0 + min(waiting) - _turns(tree, served, name)
            yield at + max(_SOONEST, left * _length(tree, name) / tree.used_share(name))
