"""Pieces of running workloads that may be evicted for one preemptor, as arrays."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core.model.types import SHARE_UNIT, Workload
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.snapshot.running_index import EvictionUnit, ResourceRows

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

YIELDING, FIRST, SURPLUS, BORROWED, OUTRANKED, KINDS = range(6)
"""The order in which pieces are evicted: surplus that yields to a waiting minimum,
pods above the minimum of their workload, workloads of queues that borrow, workloads of the
preemptor's own queue. The latter come first where the queue is within its guarantee only without
them. `KINDS` is how many there are."""
NO_BRANCH = -1


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A part of the sharing tree from which a preemptor may reclaim: the queue below the point
    where the paths of preemptor and victim part, and all below that."""

    top: str
    depth: int
    """How far up the preemptor's path that point is."""
    weights: Mapping[str, int]
    excess: Mapping[str, Sums]
    """Queue of the branch -> what it uses above its guarantee, of every resource that is reclaimed.
    Below 0: it uses less."""
    spare: Mapping[str, Sums]
    """The same -> what may be taken from it so that it keeps its guarantee."""
    levels: Mapping[str, tuple[str, ...]]
    """Queue of the branch -> itself and those above it, up to the top."""
    capacity: Mapping[str, int]

    def above_share(self, level: str, taken: Mapping[str, int]) -> int:
        """How far a queue is above its guarantee once so much is taken, against its weight: the
        largest part of any resource that is reclaimed, in millionths of the cluster."""
        parts = [
            (excess - taken.get(resource, 0)) * SHARE_UNIT // whole
            for resource, excess in self.excess[level].items()
            if (whole := self.capacity.get(resource, 0)) > 0
        ]
        return max(parts, default=0) // self.weights[level]


@dataclasses.dataclass(slots=True)
class Taken:
    """What is taken from one queue of a branch, and the eviction unit that is evicted last."""

    amounts: Sums
    last: Sums
    above: int
    """Of the last eviction unit; they are ordered by it."""

    def also(self, other: Taken) -> Taken:
        amounts = {r: n + other.amounts[r] for r, n in self.amounts.items()}
        last = self if self.above <= other.above else other
        return Taken(amounts, last.last, last.above)


Giving = tuple[int, ...]
"""How fair the choice of queues is. For each queue that gives, its distance above its share before
its last eviction unit is evicted, negated, from the top of its branch down; the worst queue counts.
Smaller is better; empty: no queue gives."""

Price = tuple[float | Giving, ...]
"""What a set of victims costs; smaller is better."""


def giving(taken: Iterable[tuple[Branch, str, Taken]], *, own_queue: bool) -> Giving:
    """The fairness of what is taken from some queues, each with its branch. Preempting in the
    preemptor's own queue counts as taking from a queue that is not above its share."""
    levels: dict[tuple[str, str], Taken] = {}
    queues: list[tuple[Branch, str]] = []
    for branch, queue, own in taken:
        queues.append((branch, queue))
        for level in branch.levels[queue]:
            known = levels.get((branch.top, level))
            levels[branch.top, level] = own if known is None else known.also(own)

    def share(branch: Branch, level: str) -> int:
        own = levels[branch.top, level]
        before = {r: n - own.last[r] for r, n in own.amounts.items()}
        return branch.above_share(level, before)

    found: list[Giving] = [(0,)] if own_queue else []
    for branch, queue in queues:
        levels_down = reversed(branch.levels[queue])
        found.append(tuple([-share(branch, level) for level in levels_down]))
    return max(found, default=())


@dataclasses.dataclass(frozen=True, slots=True)
class PreemptionRequest:
    """A waiting workload that may preempt, and what the usage of its queue allows."""

    workload: Workload
    need: Sums
    scarce: frozenset[str]
    """Resources that can be reclaimed: its queue is guaranteed them and too little is free."""
    contested: frozenset[str]
    """Resources that it would borrow and of which too little is free: a workload that it takes them
    from, and that is inside its own guarantee of them, would take them back at once."""
    borrowed: frozenset[str]
    """The same, whether or not too little is free."""
    tree: QuotaTree
    """The highest usage of every queue while evicted workloads end."""
    inside: bool
    """Its queue stays inside its guarantee with it."""
    departed: Mapping[str, Sequence[EvictionUnit]]
    """Queue -> its eviction units that are evicted already: never victims again."""
    repaired: Mapping[str, Sequence[str]]
    """Queue -> gangs that are being repaired: never victims."""
    starting: Mapping[str, Sequence[tuple[Workload, Sums]]]
    """Queue -> workloads that certainly start or have a nomination, and their usage."""

    @property
    def is_bound(self) -> bool:
        """Whether any quota could ever forbid it to start."""
        return self.tree.is_bound(
            self.workload.queue, non_preemptible=not self.workload.preemptible
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """All pieces that may go for one claim; arrays have one entry per piece."""

    pieces: list[EvictionUnit] | Chained
    least: Ints
    """The piece with the least of the same unit; -1 where that may not go."""
    kind: Ints
    priority: Ints
    started: Floats
    lost: Floats
    """Seconds of work that stopping it now would lose."""
    protected: Floats
    size: Ints
    flat: ResourceRows
    queues: list[tuple[str, slice]]
    """Whose they are: the pieces of a queue stand together."""
    held: dict[str, Ints]
    """Of every resource that a rule is about, what each of them holds."""
    above: Ints
    """How far above its guarantee its branch is before it goes, if those of its branch go in their
    order; see `Branch.above_share`."""
    shielded: Floats
    """Until when it does not go for other queues if that leaves its queue below its guarantee."""
    branch: Ints
    """Which of the branches it belongs to; -1: it is of the gainer's own queue, or yields."""
    branches: tuple[Branch, ...] = ()
    conditional: bool = False
    """Whether some may go only because others of them go, too."""

    def __len__(self) -> int:
        return len(self.pieces)

    def only(self, chosen: Ints) -> Candidates:
        """Some of them, ascending."""
        number = np.full(len(self) + 1, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        ends = {
            name: np.searchsorted(chosen, (part.start, part.stop)) for name, part in self.queues
        }
        return Candidates(
            [self.pieces[i] for i in chosen.tolist()],
            number[self.least[chosen]],
            self.kind[chosen],
            self.priority[chosen],
            self.started[chosen],
            self.lost[chosen],
            self.protected[chosen],
            self.size[chosen],
            self.flat.only(chosen),
            [(name, slice(*end.tolist())) for name, end in ends.items() if end[0] < end[1]],
            {resource: held[chosen] for resource, held in self.held.items()},
            self.above[chosen],
            self.shielded[chosen],
            self.branch[chosen],
            self.branches,
            self.conditional,
        )

    def is_of_others(self, queue: str) -> bool:
        """Whether any of them belong to another queue."""
        return any(name != queue for name, _ in self.queues)

    def held_by(self, gone: Mask) -> Iterator[tuple[str, int, Sums]]:
        """Of some of them, by queue: how many they are and what they hold."""
        for name, part in self.queues:
            some = gone[part]
            sums = {r: int(held[part][some].sum()) for r, held in self.held.items()}
            yield name, int(some.sum()), sums


class Chained:
    """Lists one after another. Thousands may be evicted, and few of them are looked up by name."""

    def __init__(self, lists: Sequence[list[EvictionUnit] | Chained]) -> None:
        self._lists = lists
        self._ends = list(itertools.accumulate(len(each) for each in lists))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int) -> EvictionUnit:
        number = bisect.bisect_right(self._ends, at)
        return self._lists[number][at - self._ends[number]]  # counted from its end


def concatenated(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
