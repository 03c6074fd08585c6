"""Bounds for all waiting workloads at once: which of them certainly cannot start now.

`core.prefilter.prefilter` asks this first. Thousands of workloads wait, nearly each with a slightly
different request, so their requests are rows of arrays. Each row is compared with the free capacity
and with the capacity that evicting every lower-priority workload would leave. Free capacity, quota
and the set of possible victims only shrink during a decision, so an answer stays valid until
another workload is evicted; then only the capacity that its pods leave is computed again. A row
without a refusal does not mean that the workload starts: it is then considered in detail, as is
every workload whose constraints the arrays do not represent.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.request_matrix import Left, RequestMatrix, Sums
from windlass.core.decision import free_capacity, shadows, terminating
from windlass.core.decision.shadows import Reservation
from windlass.core.decision.state import DecisionState
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import Workload
from windlass.core.preemption import future_capacity
from windlass.core.preemption.capacity_bounds import NOT_ENOUGH
from windlass.core.preemption.victims import victim_candidates
from windlass.core.queueing import queue_order
from windlass.core.queueing.workload_info import WorkloadInfo
from windlass.core.quota.quota_tree import QuotaTree
from windlass.core.snapshot.running_index import ResourceRows

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_UNKNOWN, _NO_VICTIMS, _NOT_ENOUGH = range(3)
"""The answer for a row: no statement; no free capacity and no victims; or too little capacity even
if all victims were evicted."""
MANY = 64
"""With fewer waiting workloads, each is considered in detail."""
_OUT_OF_DATE = 16
"""How many workloads may be considered in detail and still wait before all rows are evaluated
again, because free capacity has shrunk. The number grows with the rows, as does the cost."""


# Read for thousands of rows in each decision, without Python code per row.
_FIRST, _COUNT, _PREEMPTS, _KEY, _RANK, _NEED, _SHAPES, _ID = map(
    operator.attrgetter, ("first", "count", "preempts", "key", "rank", "need", "shapes", "id")
)


class _Evaluation(NamedTuple):
    """The result of one evaluation, by row. Free capacity and victims only shrink, so `missing` is
    a lower bound until capacity is released."""

    shape: Ints
    """The shape of the role with the largest shortage."""
    missing: Ints
    short: Mask
    may_preempt: Mask
    """Rows that are short and may preempt."""


class BatchRefusal(NamedTuple):
    """What a workload that surely waits is short of."""

    request: PodSetRequest
    fitting: int
    """How many pods of the request there is free capacity for."""
    topology: bool
    """Enough in all, but not in any one domain."""
    why: str
    """Why preemption does not help; empty: there is no workload that it may preempt."""


class BatchBounds:
    def __init__(self, state: DecisionState, workloads: Iterable[Workload]) -> None:
        self.plain = {name for name in state.tree.queues if _is_plain(state.tree, name)}
        """Queues that consider each workload independently and rank by priority alone."""
        cluster, rows = state.context.cluster, _countable(state, workloads, self.plain)
        shapes = set(itertools.chain.from_iterable(dict.fromkeys(map(_SHAPES, rows))))
        self.matrix = RequestMatrix(sorted(shapes, key=_ID), len(cluster.resources))
        cluster.cache(self.matrix.shapes, state.snapshot.cluster)
        self._row = dict(zip(map(_KEY, rows), itertools.count(), strict=False))
        self._several = [(i, info) for i, info in enumerate(rows) if len(info.requests) > 1]
        number, size = self.matrix.number, len(rows)
        self._shape = np.fromiter(map(number.__getitem__, map(_FIRST, rows)), np.int64, size)
        self._count = np.fromiter(map(_COUNT, rows), np.int64, size)
        self._preempts = np.fromiter(map(_PREEMPTS, rows), np.bool_, size)
        self._level: list[tuple[str, Ints]] = _by_level(rows)
        self._ranks = _Ranks(state, rows, self.matrix)
        self._most = np.array([state.most_when_empty(s) for s in self.matrix.shapes], np.int64)
        self._evaluation: _Evaluation | None = None
        """The last evaluation; None: capacity was released since."""
        self._answers: list[int] = []
        """By row, the answer; empty: not computed since the last eviction."""
        self._shortest: dict[int, PodSetRequest] = {}
        """Row of a workload with several roles -> the request with the largest shortage."""
        self._fitting: list[int] = []
        self._near: list[bool] = []
        """By row, whether enough is free in the cluster, but not in any one domain."""
        self._missed = 0
        self._releases, self._evictions = state.releases, len(state.evictions)
        self._nominations = len(state.nominations)
        """As of which changes of the decision."""

    def count_missed(self) -> None:
        """A workload waits although the bounds did not refuse it."""
        self._missed += 1

    def refusal(self, state: DecisionState, info: WorkloadInfo) -> BatchRefusal | None:
        """What the workload is short of if it surely waits, as far as capacity and rank go."""
        row = self._row.get(info.workload.key)
        if row is None:
            return None
        found = self._current(state)[row]
        if not found:
            return None
        why = NOT_ENOUGH if found == _NOT_ENOUGH else ""
        request = self._shortest.get(row) or info.requests[0]
        return BatchRefusal(request, self._fitting[row], self._near[row], why)

    def may_gain(
        self,
        state: DecisionState,
        info: WorkloadInfo,
        shape: Shape,
        count: int,
        reservations: tuple[Reservation, ...],
    ) -> bool:
        """Whether `count` more pods may fit outside these reservations, once every victim of the
        workload and every evicted workload has ended."""
        row, number = self._row.get(info.workload.key), self.matrix.number.get(shape.id)
        if row is None or number is None:
            return True
        self._current(state)
        return self._ranks.may_gain(state, self.matrix, (row, number), count, reservations)

    def _current(self, state: DecisionState) -> list[int]:
        """By row, the answer as of now."""
        self._follow(state)
        evaluation = self._evaluation
        if evaluation is None or self._missed >= max(_OUT_OF_DATE, len(self._row) // 50):
            evaluation, self._answers = self._evaluate(state), []
        if not self._answers:
            self._answers = self._judged(state, evaluation)
        return self._answers

    def _follow(self, state: DecisionState) -> None:
        """Drops what the changes of the decision since the last question made invalid."""
        if self._evictions != len(state.evictions):
            running = state.snapshot.running
            new = state.evictions[self._evictions :]
            self._evictions, self._answers = len(state.evictions), []
            self._ranks.victims_changed({running[each.workload].workload.queue for each in new})
        if self._nominations != len(state.nominations):
            self._nominations, self._answers = len(state.nominations), []
            self._ranks.nominations_changed()
        if self._releases != state.releases:
            self._releases, self._answers, self._evaluation = state.releases, [], None
            self._ranks.capacity_returned()

    def _evaluate(self, state: DecisionState) -> _Evaluation:
        """Compares all rows with the free capacity and with their possible victims."""
        self._missed, self._shortest = 0, {}
        count, shape, cluster = self._count.copy(), self._shape.copy(), state.context.cluster
        fitting_by_shape = cluster.totals_of(self.matrix.shapes)
        fitting = fitting_by_shape[shape]
        near = np.zeros(len(fitting), np.bool_)
        for level, rows in self._level:
            enough = rows[fitting[rows] >= count[rows]]
            best = self._best_domains(cluster, shape[enough], level)
            near[enough] = best < count[enough]
            fitting[enough[near[enough]]] = best[near[enough]]
        for row, info in self._several:
            request, shape[row], fitting[row] = _shortest(info, self.matrix, fitting_by_shape)
            count[row], self._shortest[row] = request.count, request
        short = fitting < count
        may_preempt = short & self._preempts & (self._most[shape] >= count)
        if not (state.policy.preempt or state.policy.reclaim):
            may_preempt[:] = False
        self._ranks.update(state, self.matrix, may_preempt)
        fits = may_preempt & self._ranks.has_victims
        fits &= self._ranks.enough(state, self.matrix, shape, count - fitting)
        self._ranks.count_on_nodes(self.matrix, self._ranks.pairs(fits, shape))
        self._fitting, self._near = fitting.tolist(), near.tolist()
        state.work.spend(len(cluster))
        self._evaluation = _Evaluation(shape, count - fitting, short, may_preempt)
        return self._evaluation

    def _judged(self, state: DecisionState, evaluation: _Evaluation) -> list[int]:
        """By row, the answer with the capacity that workloads evicted since then leave."""
        found = np.where(evaluation.short, _NO_VICTIMS, _UNKNOWN)
        fits = self._ranks.enough(state, self.matrix, evaluation.shape, evaluation.missing)
        may_preempt = evaluation.may_preempt & self._ranks.has_victims
        found[may_preempt] = _NOT_ENOUGH
        found[may_preempt & fits] = _UNKNOWN
        if state.policy.reclaim:
            found[evaluation.may_preempt & self._ranks.may_be_inside(state)] = _UNKNOWN
        info: list[int] = found.tolist()
        return info

    def _best_domains(self, cluster: Cluster, shape: Ints, level: str) -> Ints:
        """By row, how many pods of its shape fit in the best domain of a level."""
        found = np.zeros(len(self.matrix.shapes), np.int64)
        for i in set(shape.tolist()):
            caps = cluster.pod_capacity(self.matrix.shapes[i])
            if level in cluster.levels:
                caps = cluster.by_domain(cluster.levels.index(level), caps)
            found[i] = caps.max(initial=0)
        return found[shape]


def of(state: DecisionState) -> BatchBounds:
    """The bounds of all waiting workloads; of none where they are few."""
    return state.cache(BatchBounds, lambda: _make(state))


def _make(state: DecisionState) -> BatchBounds:
    waiting = state.snapshot.waiting
    return BatchBounds(state, waiting.values() if len(waiting) >= MANY else ())


class _Ranks:
    """By queue and rank of waiting workloads: possible victims, and the capacity without them."""

    def __init__(
        self, state: DecisionState, rows: list[WorkloadInfo], shapes: RequestMatrix
    ) -> None:
        tree, ranks_of_rows = state.tree, list(map(_RANK, rows))
        ranks = {
            (q, p): (q, queue_order.counted(tree.queues[q], p))
            for q, p in dict.fromkeys(ranks_of_rows)
        }
        self._numbers = {rank: i for i, rank in enumerate(dict.fromkeys(ranks.values()))}
        """(queue, priority) -> number."""
        number = {rank: self._numbers[counts] for rank, counts in ranks.items()}
        self._group = np.fromiter(map(number.__getitem__, ranks_of_rows), np.int64, len(rows))
        self._resources, needs = sorted(tree.guaranteed), list(map(_NEED, rows))
        self._need = np.array(
            [[need.get(resource, 0) for need in needs] for resource in self._resources], np.int64
        ).reshape(len(self._resources), len(rows)).T  # fmt: skip
        self._own = _guarantees(tree, self._numbers, self._resources)
        self._held = np.zeros_like(self._own)
        """By rank, the usage of its possible victims."""
        self._victims = np.zeros(len(self._numbers), np.int64)
        self._bounds = np.zeros((len(self._numbers), len(shapes.shapes)), np.int64)
        """By rank and shape, at most so many pods fit on the nodes of its victims."""
        self._below: dict[int, tuple[_Baseline, list[tuple[ResourceRows, Mask]]]] = {}
        """By rank: the baseline, what the eviction units of some queues hold, and which of them are
        its possible victims: those of its own queue, and surplus of others."""
        self._without_victims: dict[int, Left] = {}
        """By rank, what is free on the nodes of its victims without them. Ranks that are not here
        use the bounds of a higher rank."""
        self._exact: set[tuple[int, int]] = set()
        """Ranks and shapes whose bound was counted node by node."""
        self._known: set[int] = set()
        """Ranks whose victims and bounds were counted since capacity was released."""
        self._outdated: set[str] = set()
        """Queues with a workload that was evicted since."""
        self._inside: Mask | None = None
        self._gains: dict[tuple[Reservation, ...], Ints] = {}
        self._baseline: _Baseline | None = None

    def victims_changed(self, queues: Iterable[str]) -> None:
        """These queues have fewer victims: the bounds hold, and are counted again at the next
        evaluation."""
        self._outdated.update(queues)
        self._inside, self._gains = None, {}

    def nominations_changed(self) -> None:
        """Capacity that evicted workloads leave was nominated to a workload."""
        self._gains = {}

    def capacity_returned(self) -> None:
        self._inside, self._gains, self._baseline = None, {}, None
        self._below, self._without_victims = {}, {}
        self._known.clear()
        self._outdated.clear()

    def update(self, state: DecisionState, shapes: RequestMatrix, may_preempt: Mask) -> None:
        """Counts victims and bounds again for the ranks that need it."""
        self._gains, gone, self._outdated = {}, self._outdated, set()
        self._known -= {number for (queue, _), number in self._numbers.items() if queue in gone}
        asking = set(self._group[may_preempt].tolist()) - self._known
        if asking and state.policy.preempt:
            self._refresh(state, shapes, asking)

    def _refresh(self, state: DecisionState, shapes: RequestMatrix, asking: set[int]) -> None:
        """Of each queue only the victims of its highest rank are laid out. Where all of these are
        too few, those of lower ranks are too few as well."""
        queues: dict[str, list[tuple[int, int]]] = {}
        for (queue, priority), number in self._numbers.items():
            if number in asking:
                queues.setdefault(queue, []).append((priority, number))
        baseline = self._baseline = self._baseline or _Baseline(state)
        self._exact = {each for each in self._exact if each[0] not in asking}
        where, sums = list[list[int]](), list[Sums]()
        for queue, ranks in queues.items():
            self._count_victims(state, baseline, queue, ranks)
            strongest = max(ranks)[1]
            if self._victims[strongest]:
                where.append([number for _, number in ranks])
                sums.append(self._without(strongest).sums())
        for numbers, most in zip(where, shapes.most(sums) if sums else (), strict=True):
            self._bounds[numbers] = most
        self._inside = None
        self._known |= asking

    def count_on_nodes(self, shapes: RequestMatrix, pairs: set[tuple[int, int]]) -> None:
        """Counts node by node for some ranks and shapes: where there is enough in all, there may be
        too little of everything together anywhere."""
        by_rank: dict[int, list[int]] = {}
        for rank, shape in pairs - self._exact:
            if rank in self._below:
                by_rank.setdefault(rank, []).append(shape)
        for rank, numbers in by_rank.items():
            found = shapes.fit_on(np.array(numbers, np.int64), self._without(rank))
            self._bounds[rank, numbers] = np.minimum(self._bounds[rank, numbers], found)
        self._exact |= pairs

    def pairs(self, rows: Mask, shape: Ints) -> set[tuple[int, int]]:
        """Of some rows, with the shape of each."""
        return set(zip(self._group[rows].tolist(), shape[rows].tolist(), strict=True))

    def _count_victims(
        self, state: DecisionState, baseline: _Baseline, queue: str, ranks: list[tuple[int, int]]
    ) -> None:
        """Finds the possible victims of these ranks."""
        columns = victim_candidates.columns_of(state, queue)
        priority = victim_candidates.priorities(state.tree.queues[queue], columns)
        may_go = victim_candidates.may_go(state, queue, columns)
        held = [columns.usage_of(resource) for resource in self._resources]
        others = [
            (each.flat, mask) for _, each, mask in victim_candidates.surplus_of_others(state, queue)
        ]
        surplus = sum(int(mask.sum()) for _, mask in others)
        for rank, number in ranks:
            below = may_go & ((priority < rank) | columns.surplus)
            self._victims[number] = below.sum() + surplus
            self._held[number] = [int(each[below].sum()) for each in held]
            self._below[number] = (baseline, [(columns.flat, below), *others])
            self._without_victims.pop(number, None)

    def _without(self, rank: int) -> Left:
        """What is free on the nodes of the rank's victims without them."""
        known = self._without_victims.get(rank)
        if known is not None:
            return known
        baseline, parts = self._below[rank]
        rows = [_rows_of(flat, mask) for flat, mask in parts]
        members, devices = rows[0]
        if len(rows) > 1:
            members = np.concatenate([each for each, _ in rows], axis=1)
            devices = np.concatenate([each for _, each in rows], axis=1)
        self._without_victims[rank] = left = baseline.without(members, devices)
        return left

    @property
    def has_victims(self) -> Mask:
        """By row, whether it has possible victims."""
        return np.asarray(self._victims[self._group] > 0)

    def enough(
        self, state: DecisionState, shapes: RequestMatrix, shape: Ints, missing: Ints
    ) -> Mask:
        """By row, whether its victims and the evicted workloads may leave what is missing."""
        own, later = self._bounds[self._group, shape], self._gains_outside(state, shapes, ())
        return np.asarray(own + later[shape] >= missing)

    def may_gain(
        self,
        state: DecisionState,
        shapes: RequestMatrix,
        row_and_shape: tuple[int, int],
        count: int,
        reservations: tuple[Reservation, ...],
    ) -> bool:
        """Of one row and shape: whether this might leave so much in addition."""
        row, shape = row_and_shape
        rank = int(self._group[row])
        if rank not in self._known and state.policy.preempt:
            self._refresh(state, shapes, set(self._numbers.values()) - self._known)
        count -= int(self._gains_outside(state, shapes, reservations)[shape])
        if self._bounds[rank, shape] >= count:
            self.count_on_nodes(shapes, {(rank, shape)})
        return bool(self._bounds[rank, shape] >= count)

    def _gains_outside(
        self, state: DecisionState, shapes: RequestMatrix, reservations: tuple[Reservation, ...]
    ) -> Ints:
        """By shape, how many more pods fit outside these reservations once all evicted workloads
        have ended: an upper bound of what may be counted on now."""
        found = self._gains.get(reservations)
        if found is None:
            future, found = future_capacity.of(state), np.zeros(len(shapes.shapes), np.int64)
            if future is not None:
                cluster, out = state.context.cluster, shadows.nodes_of(reservations)
                found = future.later_bound.gains(cluster, shapes, out)
            self._gains[reservations] = found
        return found

    def may_be_inside(self, state: DecisionState) -> Mask:
        """By row: whether its queue would stay within its guarantee without the evicted workloads
        and without its possible victims. Usage only grows until another workload is evicted."""
        if self._inside is None:
            self._inside = self._may_be_inside(state)
        return self._inside

    def _may_be_inside(self, state: DecisionState) -> Mask:
        left, by_queue = terminating.of(state).left(), dict[str, list[int]]()
        below = state.tree.preemptible_below
        for queue in {queue for queue, _ in self._numbers}:
            mine, gone = state.tree.used[queue], left.get(queue, {})
            by_queue[queue] = [
                mine.get(r, 0) - gone.get(r, 0) - below(queue, r) for r in self._resources
            ]
        used = np.array([by_queue[queue] for queue, _ in self._numbers], np.int64)
        used = used.reshape(self._own.shape)
        need, own = self._need, self._own[self._group]
        beyond = (used - self._held)[self._group] + need > own
        counted = (need > 0) & (own > 0)  # only what the queue itself is guaranteed
        return np.asarray(counted.any(axis=1) & ~(beyond & counted).any(axis=1))


def _rows_of(flat: ResourceRows, chosen: Mask) -> tuple[Ints, Ints]:
    """What these eviction units hold."""
    if chosen.all():
        return flat.members, flat.devices
    return (
        flat.members.take(chosen[flat.pod_of].nonzero()[0], axis=1),
        flat.devices.take(chosen[flat.grant_of].nonzero()[0], axis=1),
    )


class _Baseline:
    """Free capacity, plus what is nominated to preemptors while their victims still run."""

    def __init__(self, state: DecisionState) -> None:
        cluster, nominated = state.context.cluster, terminating.of(state).nominated()
        table = cluster.device_table
        self._width = max(table.compute.shape[1], 1)
        self._free = np.maximum(cluster.free, 0)
        for column, amounts in enumerate(nominated.members[1:]):
            np.add.at(self._free[column], nominated.members[0], amounts)
        compute, memory = table.compute.copy(), table.memory.copy()
        self._devices = _Devices(compute, memory, table.shareable(), table.full)
        unlocked_again = self._devices.give_back(nominated.devices[0], nominated.devices)
        self._unlocked = table.unlocked + np.bincount(
            unlocked_again // self._width, minlength=len(cluster)
        )

    def without(self, members: Ints, devices: Ints) -> Left:
        """What is free on the nodes of these eviction units without them."""
        size = len(self._unlocked)
        nodes = arrays.distinct(members[0], size)
        number = np.empty(size, np.int64)
        number[nodes] = np.arange(len(nodes))
        free, at = self._free.take(nodes, axis=1), number[members[0]]
        for column, amounts in enumerate(members[1:]):
            np.add.at(free[column], at, amounts)
        there = self._devices.of(nodes)
        owners = devices[0] // self._width
        where = number[owners] * self._width + devices[0] - owners * self._width
        unlocked_again = there.give_back(where, devices)
        unlocked = self._unlocked[nodes] + np.bincount(
            unlocked_again // self._width, minlength=len(nodes)
        )
        return Left(free, unlocked, there.compute, there.memory, there.shared)


class _Devices:
    """By node and device: what is free of it, and whether it can be shared."""

    def __init__(self, compute: Ints, memory: Ints, shared: Mask, full: tuple[Ints, Ints]) -> None:
        """The arrays are changed in place. `full` has the rows of all nodes."""
        self.compute, self.memory, self.shared, self._full = compute, memory, shared, full

    def of(self, nodes: Ints) -> _Devices:
        """The devices of some nodes, renumbered."""
        return _Devices(self.compute[nodes], self.memory[nodes], self.shared[nodes], self._full)

    def give_back(self, at: Ints, devices: Ints) -> Ints:
        """Returns what is held of the devices at these numbers; the result is the devices that are
        free as a whole afterwards."""
        left = (self.compute.reshape(-1), self.memory.reshape(-1))
        np.add.at(left[0], at, devices[1])
        np.add.at(left[1], at, devices[2])
        self.shared.reshape(-1)[at] = True
        whole = left[0][at] == self._full[0].reshape(-1)[devices[0]]
        whole &= left[1][at] == self._full[1].reshape(-1)[devices[0]]
        return arrays.distinct(at[whole], self.compute.size)


# --- the arrays


def _countable(
    state: DecisionState, workloads: Iterable[Workload], plain: Set[str]
) -> list[WorkloadInfo]:
    """Workloads whose constraints the arrays represent exactly."""
    asked = (state.info(workload) for workload in workloads if workload.queue in plain)
    found = [info for info in asked if info.countable]
    if not state.context.pod_index.has_anti_affinity:
        return found
    return [info for info in found if free_capacity.is_counted(state, info)]


def _is_plain(tree: QuotaTree, name: str) -> bool:
    queue = tree.queues[name]
    return not (queue.strict or queue.order == "attained" or name in tree.broken)


def _by_level(rows: list[WorkloadInfo]) -> list[tuple[str, Ints]]:
    """Level -> rows of workloads with one role that must be in one domain of it."""
    found: dict[str, list[int]] = {}
    for i, info in enumerate(rows):
        if info.level and len(info.requests) == 1:
            found.setdefault(info.level, []).append(i)
    return [(level, np.array(at, np.int64)) for level, at in sorted(found.items())]


def _shortest(
    info: WorkloadInfo, shapes: RequestMatrix, fitting_by_shape: Ints
) -> tuple[PodSetRequest, int, int]:
    """The request with the largest shortage, its shape, and how many of its pods fit."""
    found = []
    for request, shape in zip(info.requests, info.shapes, strict=True):
        number = shapes.number[shape.id]
        found.append((fitting_by_shape[number] / request.count, request.role.name, number, request))
    _, _, number, request = min(found, key=lambda each: each[:2])
    return request, number, fitting_by_shape[number]


def _guarantees(
    tree: QuotaTree, ranks: Mapping[tuple[str, int], int], resources: Sequence[str]
) -> Ints:
    """By rank, the guarantee of its queue."""
    found = np.zeros((len(ranks), len(resources)), np.int64)
    for (queue, _), number in ranks.items():
        found[number] = [tree.guarantee[queue].get(r, 0) for r in resources]
    return found
