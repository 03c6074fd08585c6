"""Which workloads may be stopped for a preemptor, and at what cost, by trying every set.

The contract of reclaim, restated in plain Python from the facts alone: one resource (`gpu`), a
tree of queues, few workloads. Nothing of the core is used but the facts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

from windlass.core.model.types import ClusterFacts, Queue, Running, Workload

Cost = tuple[object, ...]
YIELDING, FIRST, SURPLUS, BORROWED, OWN = range(5)
LEAST_RUN = 600.0


@dataclasses.dataclass(frozen=True)
class EvictionUnit:
    """The least of a workload, or one member above it."""

    running: Running
    index: int
    """Of the member, if it is surplus; -1: the least."""
    nodes: tuple[str, ...]
    gpus: int

    @property
    def workload(self) -> Workload:
        return self.running.workload

    @property
    def surplus(self) -> bool:
        return self.index >= 0


class World:
    def __init__(self, facts: ClusterFacts, preemptor: Workload, now: float) -> None:
        self.facts, self.preemptor, self.now = facts, preemptor, now
        self.queues = {queue.name: queue for queue in facts.queues}
        self.pieces = [piece for running in facts.running for piece in _pieces(running)]
        role = preemptor.roles[0]
        self.pods, self.per_pod = role.min_count, sum(each.count for each in role.devices)
        used: dict[str, int] = {node.name: 0 for node in facts.nodes}
        for piece in self.pieces:
            for name in piece.nodes:
                used[name] += piece.gpus // len(piece.nodes)
        self.free = {node.name: len(node.devices) - used[node.name] for node in facts.nodes}
        self.capacity = sum(len(node.devices) for node in facts.nodes)
        self.usage = {name: self._usage(name, self.pieces) for name in self.queues}
        self.guarantee = {name: self._guarantee(name) for name in self.queues}

    # --- what may be chosen

    def sets(self, *, straddling: bool) -> Iterator[tuple[EvictionUnit, ...]]:
        """Every set that suffices and keeps the contract; a least goes with all its surplus."""
        able = [piece for piece in self.pieces if self._is_able(piece)]
        for size in range(len(able) + 1):
            for chosen in itertools.combinations(able, size):
                if self._is_whole(chosen) and self._fits(chosen) and self._entitled(chosen):
                    below = self.below(chosen)
                    if not below or (straddling and self._straddles(chosen)):
                        yield chosen

    def _is_able(self, piece: EvictionUnit) -> bool:
        if not piece.workload.preemptible or piece.running.protected_until > self.now:
            return False
        if piece.workload.queue == self.preemptor.queue:
            mine, theirs = self._priority(self.preemptor), self._priority(piece.workload)
            return theirs < mine or piece.surplus
        return piece.gpus > 0

    def _is_whole(self, chosen: tuple[EvictionUnit, ...]) -> bool:
        return all(
            other in chosen
            for piece in chosen
            if not piece.surplus
            for other in self.pieces
            if other.running is piece.running
        )

    def _fits(self, chosen: Iterable[EvictionUnit]) -> bool:
        free = dict(self.free)
        for piece in chosen:
            for name in piece.nodes:
                free[name] += piece.gpus // len(piece.nodes)
        return sum(count // self.per_pod for count in free.values()) >= self.pods

    def _entitled(self, chosen: tuple[EvictionUnit, ...]) -> bool:
        """At every level below where two queues part, the preemptor's is inside its guarantee once
        all these are gone."""
        need = 1000 * self.pods * self.per_pod
        stay = [piece for piece in self.pieces if piece not in chosen]
        own = self.preemptor.queue
        for name in {piece.workload.queue for piece in chosen} - {own}:
            mine = [each for each in self._path(own) if each not in self._path(name)] or [own]
            for level in {*mine, own}:
                if self._usage(level, stay) + need > self.guarantee[level]:
                    return False
            if not self.guarantee[own]:
                return False
        return True

    def below(self, chosen: tuple[EvictionUnit, ...]) -> int:
        """By how much queues would be below their guarantees because others take these."""
        return sum(max(0, taken - self._may_take(level)) for level, taken, _ in self._taken(chosen))

    def _straddles(self, chosen: tuple[EvictionUnit, ...]) -> bool:
        """Whether at every level one workload alone, which ran long enough, reaches into the
        guarantee."""
        for level, taken, pieces in self._taken(chosen):
            limit = self._may_take(level)
            ripe = [1000 * p.gpus for p in pieces if self.shielded(p) <= self.now]
            if taken > limit and taken - max(ripe, default=0) >= limit:
                return False
        return True

    def shielded(self, piece: EvictionUnit) -> float:
        base = max(self.queues[piece.workload.queue].min_runtime, LEAST_RUN)
        return piece.running.started + base * 2**piece.workload.preemptions

    def _taken(
        self, chosen: tuple[EvictionUnit, ...]
    ) -> Iterator[tuple[str, int, list[EvictionUnit]]]:
        """By queue of which something is taken for the preemptor's: how much. `name!`: of what a
        queue above the preemptor's holds itself."""
        levels: dict[str, list[EvictionUnit]] = {}
        for piece in chosen:
            for level in self._levels(piece.workload.queue):
                levels.setdefault(level, []).append(piece)
        for level, pieces in levels.items():
            yield level, sum(1000 * piece.gpus for piece in pieces), pieces

    def _levels(self, name: str) -> list[str]:
        """From a queue up to the last before one that is above the preemptor's, too."""
        if name == self.preemptor.queue:
            return []
        above = self._path(self.preemptor.queue)
        if name in above:
            return [f"{name}!"]
        return [each for each in self._path(name) if each not in above]

    def _may_take(self, level: str) -> int:
        if not level.endswith("!"):
            return max(0, self.usage[level] - self.guarantee[level])
        name = level[:-1]
        below = [each for each in self.queues.values() if each.parent == name]
        used = self.usage[name] - sum(self.usage[each.name] for each in below)
        own = self.guarantee[name] - sum(self.guarantee[each.name] for each in below)
        return max(0, used - max(0, own))

    # --- what it costs, in a tree of one level

    def cost(self, chosen: tuple[EvictionUnit, ...]) -> Cost:
        if not chosen:
            return (0,)
        return (
            max(map(self._kind, chosen)),
            self._giving(chosen),
            max(map(self._dearness, chosen)),
            round(sum(self._lost(piece) * piece.gpus for piece in chosen), 6),
            sum(piece.gpus for piece in chosen),
            len(chosen),
        )

    def _kind(self, piece: EvictionUnit) -> int:
        own = piece.workload.queue == self.preemptor.queue
        need = 1000 * self.pods * self.per_pod
        if own and self.usage[piece.workload.queue] + need > self.guarantee[piece.workload.queue]:
            return YIELDING if piece.surplus else FIRST  # else its queue would not be inside
        return SURPLUS if piece.surplus else OWN if own else BORROWED

    def _giving(self, chosen: tuple[EvictionUnit, ...]) -> tuple[int, ...]:
        own_kinds = {self._kind(p) for p in chosen if p.workload.queue == self.preemptor.queue}
        found: list[tuple[int, ...]] = [(0,)] if own_kinds - {YIELDING, FIRST} else []
        for name in {piece.workload.queue for piece in chosen} - {self.preemptor.queue}:
            own = [piece for piece in chosen if piece.workload.queue == name]
            last = min(own, key=lambda piece: (self._place(piece), piece.workload.key))
            taken = 1000 * (sum(piece.gpus for piece in own) - last.gpus)
            above = self.usage[name] - self.guarantee[name] - taken
            share = above * 1_000_000 // (1000 * self.capacity) // self.queues[name].weight
            found.append((-share,))
        return max(found, default=())

    def _place(self, piece: EvictionUnit) -> tuple[float, ...]:
        """The workload that stays longest in its queue is first."""
        saved = piece.running.checkpoint_at or 0.0
        since = max(piece.running.started, saved)
        return (piece.surplus, -self._priority(piece.workload), since, piece.running.started)

    def _dearness(self, piece: EvictionUnit) -> int:
        """By priority; surplus that yields to anybody counts less than any."""
        yields = self._kind(piece) == YIELDING
        return self._priority(piece.workload) - (1000 if yields else 0)

    def _lost(self, piece: EvictionUnit) -> float:
        return self.now - max(piece.running.started, piece.running.checkpoint_at or 0.0)

    # --- queues

    def _priority(self, workload: Workload) -> int:
        most = self.queues[workload.queue].max_priority
        return workload.priority if most is None else min(workload.priority, most)

    def _path(self, name: str) -> list[str]:
        found = []
        while name:
            found.append(name)
            name = self.queues[name].parent
        return found

    def _usage(self, name: str, pieces: Iterable[EvictionUnit]) -> int:
        return sum(1000 * p.gpus for p in pieces if name in self._path(p.workload.queue))

    def _guarantee(self, name: str) -> int:
        below = [q for q in self.queues.values() if q.parent == name]
        queue: Queue = self.queues[name]
        return max(queue.guarantee.get("gpu", 0), sum(self._guarantee(q.name) for q in below))


def _pieces(running: Running) -> Iterator[EvictionUnit]:
    role = running.workload.roles[0]
    pods = sorted(running.pods, key=lambda pod: pod.index)
    least, above = pods[: role.min_count], pods[role.min_count :]
    yield EvictionUnit(running, -1, tuple(s.node for s in least), sum(len(s.grants) for s in least))
    for pod in above:
        yield EvictionUnit(running, pod.index, (pod.node,), len(pod.grants))
