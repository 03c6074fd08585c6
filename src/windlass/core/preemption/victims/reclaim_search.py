"""Reclaim when the preferred victims do not help: victims are chosen by the nodes they run on.

All preemptible workloads of queues that borrow are candidates, as long as every queue keeps its
guarantee (`victim_budgets.Budget`). Nodes are searched one by one, the cheapest first. On each,
branch and bound finds the cheapest set of workloads whose eviction lets one more pod fit; a gang
takes the cheapest of these, node after node, until all its pods fit. For a single pod the answer is
optimal on the searched nodes; for gangs it is a heuristic. Where that ends with too little and few
workloads are candidates, all sets of them are tried.

A gang is evicted as a whole, so every set that suffices may take a queue below its guarantee. Then,
and only then, one workload of a queue that reaches into the guarantee may be evicted, if it ran
long enough (`Candidates.shielded`). The set that leaves queues the least below is taken.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.devices.device_allocation import HELD, UNLOCKED
from windlass.core.model.equivalence import Shape
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption.victims import reprieve, victim_selection
from windlass.core.preemption.victims.candidates import Candidates, Price
from windlass.core.preemption.victims.quota_check import QuotaCheck
from windlass.core.preemption.victims.simulation import PreemptionSimulation
from windlass.core.preemption.victims.victim_budgets import Budget, Prices
from windlass.core.preemption.victims.victim_selection import Plan

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NODES = 64
"""Nodes that are searched; twice as many as a gang has pods, if that is more."""
DOMAINS = 8
STEPS, STEPS_IN_ALL = 1000, 20_000
"""Sets that are tried on one node, and in one search."""
MOST_PIECES, MOST_NODES = 32, 16
"""Up to so many, all sets of workloads are tried for a gang."""
_WORK = 256
"""Node-visits that one step counts for."""
_OFF_NODE = 24
"""Workloads elsewhere that are tried where a quota is in the way."""


def find(
    trial_of: Callable[[Candidates], PreemptionSimulation],
    pool: Candidates,
    models: tuple[str, ...],
    *,
    at: float,
    straddling: bool = False,
) -> Plan | None:
    """The cheapest plan that was found within the budgets of queues, if it is `at` that time.
    `straddling`: one workload of each queue may reach into the guarantee."""
    may_go = np.flatnonzero(pool.protected <= at)
    if not len(may_go):
        return None
    part = pool if len(may_go) == len(pool) else pool.only(may_go)
    trial = trial_of(part)
    if trial.state.work.exhausted or not trial.fits(np.ones(len(part), np.bool_)):
        return None
    search = _Search(trial, Budget(part, at if straddling else None))
    chosen = search.best()
    if chosen is None:
        return None
    rows = np.array(sorted(chosen), np.int64)
    few = part.only(rows)
    last = trial_of(few)
    gone = np.ones(len(few), np.bool_)
    if not last.suffices(gone):
        return None
    plan = victim_selection.settled(
        last, gone, search.prices.rank[rows].argsort().argsort(), models
    )
    if plan is None:
        return None
    everyone = np.zeros(len(pool), np.bool_)
    everyone[may_go[rows]] = plan.gone
    return dataclasses.replace(plan, gone=everyone)


@dataclasses.dataclass(frozen=True, slots=True)
class _Item:
    """A candidate, and the surplus that is evicted with it."""

    pieces: tuple[int, ...]
    most: tuple[int, ...]
    """What the node would have more of at most."""


class _Search:
    """One preemptor, one pool, one budget."""

    def __init__(self, trial: PreemptionSimulation, budget: Budget) -> None:
        self.trial, self.pool, self.budget = trial, trial.pool, budget
        self.shape, self.count = trial.shape, sum(request.count for request in trial.requests)
        self.prices = Prices(trial.pool, budget)
        self.follow = _followers(trial.pool)
        self.gone: set[int] = set()
        self.steps = STEPS_IN_ALL
        self.nodes = _Nodes(trial, self.shape)
        self.exact = (
            trial.identical and reprieve.is_plain(trial.base, self.shape) and _all_whole(trial.pool)
        )
        """Whether counting tells where a pod fits, without trying."""

    def best(self) -> set[int] | None:
        """The pieces that go; None if no set was found."""
        if len(self.trial.requests) > 1 or (not self.trial.identical and self.count > 1):
            return self._in_sequence()
        most = self._caps(range(len(self.pool)))
        if self.count == 1:
            return self._for_one_pod(most)
        free = self._caps(())
        found: tuple[Price, set[int]] | None = None
        for nodes in self._domains(free, most):
            answer = self._in_domain(nodes, free, most)
            if answer is not None and (found is None or answer[0] < found[0]):
                found = answer
        return None if found is None else found[1]

    def _caps(self, gone: Iterable[int]) -> Ints:
        trial, mask = self.trial, self.mask(gone)
        if trial.identical:
            return trial.caps(mask, self.shape)
        caps = trial.cluster(mask).pod_capacity(self.shape)
        return caps if trial.within is None else np.where(trial.within, caps, 0)

    def mask(self, gone: Iterable[int]) -> Mask:
        found = np.zeros(len(self.pool), np.bool_)
        found[list(gone)] = True
        return found

    def _for_one_pod(self, most: Ints) -> set[int] | None:
        best: tuple[Price, tuple[int, ...]] | None = None
        for node in self.cheapest(np.flatnonzero(most > 0), most):
            found = self.one_more(node, 1, best and best[0])
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return None if best is None else set(best[1])

    # --- gangs of equal pods

    def _domains(self, free: Ints, most: Ints) -> Iterator[Ints]:
        """The nodes of each domain that could hold all pods; first where most of them fit now."""
        ids = self.trial.domains
        sums, there = np.bincount(ids, weights=most), np.bincount(ids, weights=free)
        fitting = np.flatnonzero(sums >= self.count)
        for domain in fitting[np.lexsort((fitting, -there[fitting]))][:DOMAINS].tolist():
            yield np.flatnonzero((ids == domain) & (most > 0))

    def _in_domain(self, nodes: Ints, free: Ints, most: Ints) -> tuple[Price, set[int]] | None:
        """Node after node, the cheapest pod next; if that frees too little, because small pieces
        used up what a larger one would have needed, as many pods of a node at once as can be."""
        for at_once in (False, True):
            filling = _Filling(self, nodes, free, most, at_once=at_once)
            enough = filling.run() and self._until_allowed(filling.chosen)
            chosen = filling.chosen
            found = (self.prices.of(chosen), set(chosen)) if enough else None
            self.undo(chosen)
            self.gone.clear()
            if found is not None:
                return found
        return self._by_all_sets(nodes)

    def _by_all_sets(self, nodes: Ints) -> tuple[Price, set[int]] | None:
        """Of few candidates, the cheapest set without which all pods of the gang fit."""
        here = {i for node in nodes.tolist() for i in self.nodes.gains(node)}
        if not self.exact or len(here) > MOST_PIECES or len(nodes) > MOST_NODES:
            return None
        trying = _AllSets(self, nodes.tolist(), sorted(here, key=self.prices.rank.__getitem__))
        steps = trying.run(min(STEPS, self.steps))
        self.steps -= steps
        self.trial.state.work.spend(_WORK * steps)
        return trying.found

    def _until_allowed(self, chosen: list[int]) -> bool:
        """Adds pieces in the order of prices until no quota is in the way."""
        if self.allow(chosen):
            return True
        for i in self.prices.sequence.tolist():
            pieces = [j for j in (i, *self.follow.get(i, ())) if j not in self.gone]
            if i not in self.gone and self.goes(pieces):
                chosen += pieces
                self.gone.update(pieces)
                if self.allow(chosen):
                    return True
        return False

    def cheapest(self, nodes: Ints, most: Ints) -> list[int]:
        """By the work that would be lost for one pod."""
        cost = self.nodes.sums(self.prices.cost + 1)
        found: list[int] = []
        for node in nodes[np.lexsort((nodes, cost[nodes] / most[nodes]))].tolist():
            if self._may_do(node):
                found.append(node)
                if len(found) >= max(NODES, 2 * self.count):
                    break
        return found

    def _may_do(self, node: int) -> bool:
        """A quick check: whether one more pod would fit without every unit that the budgets let
        go."""
        if not self.exact:
            return True
        missing = self._missing(node, 1 if self.count == 1 else self.pods_on(node) + 1)
        for i, amounts in self.nodes.gains(node).items():
            if self.goes((i,)):
                self.undo((i,))
                missing = _less(missing, amounts)
        self.trial.state.work.spend(len(self.nodes.gains(node)))
        return all(each <= 0 for each in missing)

    def _missing(self, node: int, pods: int) -> list[int]:
        """What so many pods miss, without the units that are chosen already."""
        found = [
            pods * need - have
            for have, need in zip(self.nodes.free(node), self.nodes.per_pod, strict=True)
        ]
        gains = self.nodes.gains(node)
        for i in self.gone & gains.keys():
            found = _less(found, gains[i])
        return found

    def pods_on(self, node: int) -> int:
        if not self.exact:
            return int(self._caps(self.gone)[node])
        missing = self._missing(node, 0)
        per_pod = zip(missing, self.nodes.per_pod, strict=True)
        return max(0, min(-m // need for m, need in per_pod if need))

    # --- one node

    def one_more(
        self, node: int, pods: int, best: Price | None = None
    ) -> tuple[Price, tuple[int, ...]] | None:
        """The cheapest units to evict besides the chosen ones so that so many pods fit there."""
        missing, gains = self._missing(node, pods), self.nodes.gains(node)
        items = []
        for i in sorted(gains.keys() - self.gone, key=self.prices.rank.__getitem__):
            pieces = (i, *self.follow.get(i, ()))
            own = [gains[j] for j in pieces if j in gains]
            most = tuple(map(sum, zip(*own, strict=True)))
            if not self.exact or any(a > 0 < m for a, m in zip(most, missing, strict=True)):
                items.append(_Item(pieces, most))
        if self.trial.quota and self.count == 1:
            items += self._elsewhere({i for item in items for i in item.pieces})
        branching = _Branching(self, node, pods, items, best)
        steps = branching.run(missing, min(STEPS, self.steps))
        self.steps -= steps
        self.trial.state.work.spend(_WORK * steps)
        return branching.found

    def _elsewhere(self, here: set[int]) -> list[_Item]:
        """Units on other nodes: a quota may require that they are evicted."""
        nothing = (0,) * len(self.nodes.per_pod)
        others = (i for i in self.prices.sequence.tolist() if i not in here)
        return [
            _Item((i, *self.follow.get(i, ())), nothing)
            for i in itertools.islice(others, _OFF_NODE)
        ]

    def fits(self, node: int, pods: int, chosen: Sequence[int]) -> bool:
        """Whether so many pods fit on the node, by trying where counting does not tell; and whether
        a single one may start by its quotas."""
        trial, gone = self.trial, (*self.gone, *chosen)
        if not self.exact:
            trial.state.work.spend(len(trial.base))
            if trial.identical:
                if int(self._caps(gone)[node]) < pods:
                    return False
            else:
                mask, only = self.mask(gone), np.zeros(len(trial.base), np.bool_)
                only[node] = trial.within is None or bool(trial.within[node])
                if isinstance(trial.place(trial.cluster(mask), mask, only), PlacementFailure):
                    return False
        return self.count > 1 or self.allow(gone)

    def allow(self, gone: Iterable[int]) -> bool:
        """Whether quotas and the rights of the preemptor's queue allow it."""
        if not self.trial.quota:
            return True
        return QuotaCheck(self.trial.claim, self.pool, self.mask(gone)).allow()

    def goes(self, pieces: Sequence[int]) -> bool:
        """Takes them out of the budgets, all or none."""
        for number, i in enumerate(pieces):
            if not self.budget.take(i):
                self.undo(pieces[:number])
                return False
        return True

    def undo(self, pieces: Sequence[int]) -> None:
        for i in reversed(pieces):
            self.budget.give_back(i)

    # --- several roles

    def _in_sequence(self) -> set[int] | None:
        """Where pods differ or have affinity terms: in the order of prices, and node after node, as
        long as budgets allow."""
        first = np.full(len(self.pool), len(self.trial.base), np.int64)
        flat = self.pool.flat
        np.minimum.at(first, flat.pod_of, flat.members[0])
        for sequence in (self.prices.sequence, np.lexsort((self.prices.rank, first))):
            gone: dict[int, None] = {}
            for i in sequence.tolist():
                pieces = [j for j in (i, *self.follow.get(i, ())) if j not in gone]
                if i not in gone and self.goes(pieces):
                    gone |= dict.fromkeys(pieces)
            self.undo(list(gone))
            if self.trial.suffices(self.mask(gone)):
                return set(gone)
        return None


class _Filling:
    """A gang that frees capacity for its pods on one node after another."""

    def __init__(
        self, search: _Search, nodes: Ints, free: Ints, most: Ints, *, at_once: bool
    ) -> None:
        self._search, self._most, self._at_once = search, most, at_once
        self._have = {j: int(free[j]) for j in nodes.tolist()}
        self._first = search.cheapest(nodes, most)
        self._heap: list[tuple[int, Price, int]] = []
        self.chosen: list[int] = []

    def run(self) -> bool:
        """Whether all pods fit without the chosen units."""
        search, heap, have = self._search, self._heap, self._have
        for node in self._first:
            self._offer(node)
        while heap and self._missing > 0:
            before = heapq.heappop(heap)
            offer = self._step(before[2])
            if offer is None:
                continue
            if heap and offer[:2] > heap[0][:2]:  # others go by now: it costs more than before
                heapq.heappush(heap, (*offer[:2], before[2]))
                continue
            search.goes(offer[2])
            search.gone.update(offer[2])
            self.chosen += offer[2]
            for touched in search.nodes.of(offer[2]) & have.keys():
                have[touched] = search.pods_on(touched)
            self._offer(before[2])
        return self._missing <= 0

    @property
    def _missing(self) -> int:
        return self._search.count - sum(self._have.values())

    def _offer(self, node: int) -> None:
        found = self._step(node)
        if found is not None:
            heapq.heappush(self._heap, (*found[:2], node))

    def _step(self, node: int) -> tuple[int, Price, tuple[int, ...]] | None:
        """Fewer pods than could be, what it costs, and which units are evicted."""
        have = self._have[node]
        wanted = min(int(self._most[node]) - have, self._missing if self._at_once else 1)
        for more in range(wanted, 0, -1):
            found = self._search.one_more(node, have + more)
            if found is not None:
                return (-more if self._at_once else 0, *found)
        return None


class _AllSets:
    """Branch and bound over the pieces of several nodes, the cheapest first."""

    def __init__(self, search: _Search, nodes: list[int], pieces: list[int]) -> None:
        self._search, self._nodes, self._pieces = search, nodes, pieces
        self._steps = 0
        self.found: tuple[Price, set[int]] | None = None

    def run(self, steps: int) -> int:
        """How many steps it took."""
        self._steps = steps
        self._from(0, [])
        return steps - self._steps

    def _from(self, at: int, chosen: list[int]) -> None:
        search = self._search
        if self._steps <= 0 or not self._would_do(chosen, self._pieces[at:]):
            return
        self._steps -= 1
        price = search.prices.of(chosen)
        if self.found is not None and price >= self.found[0]:
            return
        if self._would_do(chosen, ()) and search.allow(chosen):
            self.found = (price, set(chosen))
            return
        if at == len(self._pieces):
            return
        i = self._pieces[at]
        pieces = [j for j in (i, *search.follow.get(i, ())) if j not in chosen]
        if i not in chosen and search.goes(pieces):
            self._from(at + 1, chosen + pieces)
            search.undo(pieces)
        self._from(at + 1, chosen)

    def _would_do(self, chosen: Sequence[int], others: Sequence[int]) -> bool:
        """Whether all pods would fit once these are gone, whatever the budgets say."""
        search = self._search
        search.gone.update(chosen, others)
        pods = sum(search.pods_on(node) for node in self._nodes)
        search.gone.clear()
        return pods >= search.count


class _Branching:
    """Branch and bound over the pieces of one node, the cheapest first."""

    def __init__(
        self, search: _Search, node: int, pods: int, items: Sequence[_Item], best: Price | None
    ) -> None:
        self._search, self._node, self._pods, self._items = search, node, pods, items
        self._best = best
        self.found: tuple[Price, tuple[int, ...]] | None = None
        self._steps = 0
        rest = [(0,) * len(search.nodes.per_pod)]
        for item in reversed(items):
            rest.append(tuple(a + b for a, b in zip(rest[-1], item.most, strict=True)))
        self._rest = rest[::-1]
        """What all from an item on would bring at most."""

    def run(self, missing: list[int], steps: int) -> int:
        """How many steps it took."""
        self._steps = steps
        self._from(0, missing, ())
        return steps - self._steps

    def _from(self, at: int, missing: list[int], chosen: tuple[int, ...]) -> None:
        if self._steps <= 0:
            return
        self._steps -= 1
        search = self._search
        price = search.prices.of((*search.gone, *chosen))
        if self._best is not None and price >= self._best:
            return
        enough = all(each <= 0 for each in missing)
        if enough and search.fits(self._node, self._pods, chosen):
            self.found, self._best = (price, chosen), price
            return
        rest = self._rest[at]
        if at == len(self._items) or any(m > r for m, r in zip(missing, rest, strict=True)):
            return
        pieces = tuple(
            i for i in self._items[at].pieces if i not in chosen and i not in search.gone
        )
        if pieces and search.goes(pieces):
            less, gains = missing, search.nodes.gains(self._node)
            for i in pieces:
                less = _less(less, gains[i]) if i in gains else less
            self._from(at + 1, less, chosen + pieces)
            search.undo(pieces)
        self._from(at + 1, missing, chosen)


class _Nodes:
    """What nodes have, and what pieces hold there, in the measures of one pod."""

    def __init__(self, trial: PreemptionSimulation, shape: Shape) -> None:
        self._base, self._flat, self._needs = trial.base, trial.pool.flat, shape.needs
        self.per_pod = (*(need for _, need in shape.needs), *(r.count for r in shape.requests))
        self._eligible = [trial.base.device_table.eligible(request) for request in shape.requests]
        self._width = max(1, trial.base.device_table.compute.shape[1])
        size = np.arange(len(trial.base) + 1)
        self._pods = np.argsort(self._flat.members[0], kind="stable")
        self._pods_begin = np.searchsorted(self._flat.members[0][self._pods], size)
        owners = self._flat.devices[0] // self._width
        self._grants = np.argsort(owners, kind="stable")
        self._grants_begin = np.searchsorted(owners[self._grants], size)
        self._gains: dict[int, dict[int, tuple[int, ...]]] = {}

    def free(self, node: int) -> tuple[int, ...]:
        base = self._base
        amounts = tuple(int(base.free[column, node]) for column, _ in self._needs)
        unlocked = base.device_table.mode[node] == UNLOCKED
        return amounts + tuple(int((each[node] & unlocked).sum()) for each in self._eligible)

    def gains(self, node: int) -> dict[int, tuple[int, ...]]:
        """By eviction unit on the node, what the node would have more of without it."""
        found = self._gains.get(node)
        if found is None:
            found = self._gains[node] = self._find(node)
        return found

    def _find(self, node: int) -> dict[int, tuple[int, ...]]:
        flat, sums, width = self._flat, dict[int, list[int]](), len(self._needs)
        for at in self._pods[self._pods_begin[node] : self._pods_begin[node + 1]].tolist():
            own = sums.setdefault(int(flat.pod_of[at]), [0] * len(self.per_pod))
            for number, (column, _) in enumerate(self._needs):
                own[number] += int(flat.members[1 + column, at])
        for at in self._grants[self._grants_begin[node] : self._grants_begin[node + 1]].tolist():
            device = int(flat.devices[0, at]) - node * self._width
            own = sums.setdefault(int(flat.grant_of[at]), [0] * len(self.per_pod))
            for number, each in enumerate(self._eligible):
                own[width + number] += int(each[node, device])
        return {i: tuple(own) for i, own in sums.items()}

    def of(self, pieces: Iterable[int]) -> set[int]:
        """The nodes of these units."""
        flat, found = self._flat, set[int]()
        for i in pieces:
            begin, end = np.searchsorted(flat.pod_of, (i, i + 1)).tolist()
            found.update(flat.members[0, begin:end].tolist())
        return found

    def sums(self, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """By node, the sum of the weights of its eviction units."""
        flat = self._flat
        found = np.bincount(flat.members[0], weights[flat.pod_of], len(self._base))
        return found.astype(np.float64)


def _less(missing: Sequence[int], amounts: Sequence[int]) -> list[int]:
    return [m - amount for m, amount in zip(missing, amounts, strict=True)]


def _followers(pool: Candidates) -> dict[int, tuple[int, ...]]:
    """Minimum of an elastic workload -> its surplus, which is evicted with it."""
    found: dict[int, list[int]] = {}
    rows = np.flatnonzero((pool.least >= 0) & (pool.least != np.arange(len(pool))))
    for i in rows.tolist():
        found.setdefault(int(pool.least[i]), []).append(i)
    return {least: tuple(rows) for least, rows in found.items()}


def _all_whole(pool: Candidates) -> bool:
    """Whether every device that these hold is held by one of them alone."""
    return bool((pool.flat.devices[4] == HELD).all())
