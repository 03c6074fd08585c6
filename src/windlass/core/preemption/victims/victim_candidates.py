"""Which workloads may be evicted for which: the rules of rank and of guarantees, not of capacity.

Between queues only what is borrowed can be taken back, and only by a queue that stays inside its
guarantee. Within a queue the higher priority wins; where the order is `attained`, so does a clearly
smaller index. What is inside a guarantee is never taken by another queue, whatever its priority.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.decision import terminating
from windlass.core.decision.state import DecisionState
from windlass.core.model import pod_sets
from windlass.core.model.types import Queue, Role, Workload
from windlass.core.prediction import aging
from windlass.core.prediction.predictor import EAGER
from windlass.core.preemption.capacity_bounds import CapacityBound
from windlass.core.preemption.victims import elastic_surplus
from windlass.core.preemption.victims.candidates import (
    NO_BRANCH,
    YIELDING,
    Branch,
    Candidates,
    Chained,
    PreemptionRequest,
    concatenated,
)
from windlass.core.queueing import queue_order
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.snapshot import running_index
from windlass.core.snapshot.running_index import EvictionUnit, QueueColumns, ResourceRows

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

LEAST_RUN = 600.0
"""Seconds that a workload runs at least before it is evicted although that takes its queue below
its guarantee; twice as long after each earlier preemption, so that it makes progress."""


@dataclasses.dataclass(slots=True, eq=False)
class LowerPriorityCandidates:
    """The workloads of its own queue that a workload of some rank may preempt. `nominated` is
    capacity that is kept for other preemptors while their victims still run."""

    count: int
    held: Sums
    """Of resources that any queue is guaranteed."""
    own: QueueColumns
    rows: Ints
    """Their rows in the columns of the queue."""
    others: list[tuple[QueueColumns, Ints]] = dataclasses.field(default_factory=list)
    """Surplus of other queues that may yield to it."""
    _bound: CapacityBound | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def bound(self, cluster: Cluster, nominated: ResourceRows) -> CapacityBound:
        """Where they are, without them."""
        if self._bound is None:
            parts = ((self.own, self.rows), *self.others)
            flats = [columns.flat.only(rows) for columns, rows in parts]
            nodes = np.concatenate([flat.members[0] for flat in flats])
            where = arrays.distinct(nodes, len(cluster))
            self._bound = CapacityBound(cluster, where, [*flats, nominated])
        return self._bound


@dataclasses.dataclass(slots=True)
class CandidateCache:
    """The running workloads of queues as candidates, as of one round of preemption."""

    late: bool = False
    """All waiting workloads had a turn: workloads that start in this decision are as good as
    running."""
    retracting: bool = False
    """Only starts of this decision are candidates, also those that cannot be preempted once they
    run."""
    columns: dict[str, QueueColumns] = dataclasses.field(default_factory=dict)
    """Queue -> its running workloads; in a late round with those that start."""
    starts: dict[str, Mask] = dataclasses.field(default_factory=dict)
    """Queue -> which of its columns are starts of this decision."""
    empty: Candidates | None = None
    pods_by_resource: dict[int, tuple[int, list[tuple[set[str], int]]]] = dataclasses.field(
        default_factory=dict
    )
    """Shape id -> how many pods of it fit by each resource alone, at which version of the
    cluster."""


def cache_of(state: DecisionState) -> CandidateCache:
    return state.cache(CandidateCache)


def lower_priority(state: DecisionState, workload: Workload) -> LowerPriorityCandidates:
    own = columns_of(state, workload.queue)
    rows = np.flatnonzero(_gives_way(state, workload, own) & may_go(state, workload.queue, own))
    others = [
        (each, mask.nonzero()[0]) for _, each, mask in surplus_of_others(state, workload.queue)
    ]
    count = len(rows) + sum(len(each) for _, each in others)
    if not count:
        return LowerPriorityCandidates(0, {}, own, rows)
    held = {r: int(own.usage_of(r)[rows].sum()) for r in state.tree.guaranteed}
    return LowerPriorityCandidates(count, held, own, rows, others)


def surplus_of_others(state: DecisionState, queue: str) -> Iterator[tuple[str, QueueColumns, Mask]]:
    """By queue, the surplus that may yield to a waiting workload of this queue."""
    for name in elastic_surplus.of(state).queues_for(queue) if state.policy.reclaim else ():
        columns = columns_of(state, name)
        mask = columns.surplus & may_go(state, name, columns)
        if mask.any():
            yield name, columns, mask


def may_go(state: DecisionState, queue: str, columns: QueueColumns) -> Mask:
    """Eviction units of a queue that are preemptible and not evicted yet."""
    mask = ~columns.non_preemptible & ~columns.leaving
    for piece in terminating.of(state).evicted().values():
        if piece.running.workload.queue == queue:
            mask[columns.rows_evicted(piece)] = False
    return mask


def columns_of(state: DecisionState, queue: str) -> QueueColumns:
    """The running workloads of a queue; after the main pass, with the starts of this decision."""
    cache = cache_of(state)
    found = cache.columns.get(queue)
    if found is None:
        cluster = state.context.cluster
        found = state.snapshot.running_index.columns(queue, len(cluster.resources))
        if cache.late:
            started = {
                key: running_index.pieces_of(cluster, state.running[key], state.usage[key])
                for key in retractable(state)
                if state.running[key].workload.queue == queue
            }
            found = running_index.with_more(found, started, len(cluster.resources))
            starts = cache.starts[queue] = np.zeros(len(found.pieces), np.bool_)
            for key in started:
                starts[found.rows(key)] = True
            if cache.retracting:
                found = dataclasses.replace(found, non_preemptible=found.non_preemptible & ~starts)
        cache.columns[queue] = found
    return found


def retractable(state: DecisionState) -> Iterator[str]:
    """Workloads that start in this decision, without those for which others were evicted before."""
    snapshot = state.snapshot
    for key in state.placements:
        if key in snapshot.waiting and key not in snapshot.nominations:
            yield key


def has_outranked(state: DecisionState, claim: PreemptionRequest) -> bool:
    """Whether it may preempt any workload of its own queue."""
    return bool(own_victims(state, claim)[1].any())


def own_victims(state: DecisionState, claim: PreemptionRequest) -> tuple[QueueColumns, Mask]:
    """The workloads of its own queue, and which of them it may preempt."""
    name, own = claim.workload.queue, columns_of(state, claim.workload.queue)
    mask = _gives_way(state, claim.workload, own) & evictable(claim, name, own)
    return own, to_retract(state, name, own, mask)


def surplus_parts(
    state: DecisionState, claim: PreemptionRequest, known: Set[str]
) -> Iterator[Candidates]:
    """Surplus of queues that are not among the known."""
    for name, columns, surplus in surplus_of_others(state, claim.workload.queue):
        mask = surplus & evictable(claim, name, columns)
        if name not in known and mask.any():
            rows = np.flatnonzero(to_retract(state, name, columns, mask))
            yield part_of(state, name, columns, rows, np.full_like(columns.size, YIELDING))


def yields(pool: Candidates, queue: str) -> Mask:
    """Which pieces belong to other queues and go only because they are surplus."""
    mask: Mask = np.equal(pool.kind, YIELDING)
    for name, part in pool.queues:
        if name == queue:
            mask[part] = False
    return mask


def fair_part(state: DecisionState, claim: PreemptionRequest, pool: Candidates) -> Candidates:
    """Without surplus of other queues that is more than may go together."""
    mask = yields(pool, claim.workload.queue)
    rows = np.flatnonzero(mask)
    rows = rows[np.lexsort((pool.lost[rows], pool.priority[rows]))]
    chosen: list[EvictionUnit] = []
    for i in rows.tolist():
        goes = elastic_surplus.is_fair(state, claim.workload, claim.need, [*chosen, pool.pieces[i]])
        if goes:
            chosen.append(pool.pieces[i])
            mask[i] = False
    return pool.only(np.flatnonzero(~mask))


def no_candidates(state: DecisionState, claim: PreemptionRequest) -> Candidates:
    """The same for all workloads."""
    cache = cache_of(state)
    if cache.empty is None:
        cache.empty = joined(state, claim, ())
    return cache.empty


def evictable(claim: PreemptionRequest, queue: str, columns: QueueColumns) -> Mask:
    mask = ~columns.non_preemptible & ~columns.leaving
    for piece in claim.departed.get(queue, ()):
        mask[columns.rows_evicted(piece)] = False
    for key in claim.repaired.get(queue, ()):
        mask[columns.rows(key)] = False
    return np.asarray(mask)


def to_retract(state: DecisionState, queue: str, columns: QueueColumns, mask: Mask) -> Mask:
    """All candidates. While starts are retracted: only starts, without those that outrank another
    candidate of their queue, because they would preempt that one."""
    cache = cache_of(state)
    if not cache.retracting:
        return mask
    starts = cache.starts[queue]
    priority = priorities(state.tree.queues[queue], columns)
    lowest = priority[mask & ~starts].min(initial=np.iinfo(np.int64).max)
    return np.asarray(mask & starts & (priority <= lowest))


def may_take_back(claim: PreemptionRequest, tree: QuotaTree, victim: str) -> bool:
    """Whether the preemptor's queue stays within its guarantee at every level below the common
    ancestor of the two queues."""
    mine, _ = tree.diverging_paths(claim.workload.queue, victim)
    return tree.may_reclaim(claim.workload.queue, claim.need, mine)


def scarce_resources(
    state: DecisionState, workload: Workload, over: frozenset[str]
) -> frozenset[str]:
    """What the workload may reclaim: resources that its own queue is guaranteed and of which too
    little is free, or whose quota is exhausted. If enough of each is free alone, but not together
    on nodes: all guaranteed resources that it needs."""
    guaranteed = state.tree.guarantee[workload.queue]
    own = {
        resource for resource, asked in state.need(workload).items() if asked
    } & guaranteed.keys()
    found = set(over)
    for request in pod_sets.minimum(workload):
        for names, members in _members_by_resource(state, request.role):
            if members < request.count:
                found |= names
    return frozenset(found & own if found else own)


def borrowed_resources(tree: QuotaTree, queue: str, need: Sums) -> frozenset[str]:
    """What the need would borrow of the resources that any queue is guaranteed."""
    own, used = tree.guarantee[queue], tree.used[queue]
    return frozenset(
        r
        for r in tree.guaranteed
        if (asked := need.get(r, 0)) and used.get(r, 0) + asked > own.get(r, 0)
    )


def contested_resources(tree: QuotaTree, borrowed: frozenset[str], need: Sums) -> frozenset[str]:
    """Those of them of which less than it needs is free in the whole cluster."""
    free = {r: tree.capacity.get(r, 0) - tree.total.get(r, 0) for r in borrowed}
    return frozenset(r for r in borrowed if free[r] < need[r])


def finds_too_little(
    state: DecisionState, claim: PreemptionRequest, columns: QueueColumns, rows: Mask, resource: str
) -> Mask:
    """Of some pieces, those whose workload would find too little of a resource on its nodes once
    the preemptor has its place: it would be short of it, and take it back if it has the right."""
    found, known = np.zeros(len(columns.pieces), np.bool_), dict[str, bool]()
    for i in np.flatnonzero(rows).tolist():
        workload = columns.pieces[i].running.workload
        short = known.get(workload.key)
        if short is None:
            short = known[workload.key] = _would_take_back(state, claim, workload, resource)
        found[i] = short
    return found


def _would_take_back(
    state: DecisionState, claim: PreemptionRequest, victim: Workload, resource: str
) -> bool:
    """Whether the resource counts as scarce for a victim, as `scarce_resources` has it: too little
    of it is free, or enough of each resource will be, but not together on nodes."""
    short, short_then, together = set[str](), False, True
    cluster, need = state.context.cluster, state.need(victim)
    pods = sum(request.count for request in pod_sets.minimum(victim))
    back = {r: max(0, n - claim.need.get(r, 0)) * pods // n for r, n in need.items() if n}
    for request in pod_sets.minimum(victim):
        for names, members in _members_by_resource(state, request.role):
            if members < request.count:
                short |= names
                returned = min((back[name] for name in names & back.keys()), default=0)
                short_then |= members + returned < request.count
        fitting = int(cluster.pod_capacity(cluster.shape_of(request.role)).sum())
        together &= fitting + min(back.values(), default=0) >= request.count
    return resource in short or not (short_then or together)


def _members_by_resource(state: DecisionState, role: Role) -> list[tuple[set[str], int]]:
    """How many pods fit by each of the role's needs alone. Cached per shape until the cluster
    changes: most workloads are considered with no placement in between."""
    cluster, cache = state.context.cluster, cache_of(state)
    shape = cluster.shape_of(role)
    version, known = cache.pods_by_resource.get(shape.id, (-1, []))
    if version == cluster.version:
        return known
    usable = cluster.mask(role.constraint) & cluster.schedulable(role.constraint)
    known = []
    for name, need in role.needs.items():
        column = cluster.resources.get(name)
        if need and column is not None:
            members = np.maximum(cluster.free[column, usable] // need, 0).sum()
            known.append(({name}, int(members)))
    for request in role.devices:
        members = cluster.device_table.fit_request(request, np.flatnonzero(usable)).sum()
        names = {request.kind, *(f"{request.kind}/{model}" for model in request.models)}
        known.append((names, int(members)))
    cache.pods_by_resource[shape.id] = (cluster.version, known)
    return known


# --- within the queue ---------------------------------------------------------------------------


def _gives_way(state: DecisionState, workload: Workload, columns: QueueColumns) -> Mask:
    """Eviction units of the preemptor's own queue that it may preempt: those that rank below it,
    and surplus of any rank."""
    below = _outranked(state, workload, columns)
    return np.asarray(below | columns.surplus) if state.policy.preempt else below


def _outranked(state: DecisionState, workload: Workload, columns: QueueColumns) -> Mask:
    """Eviction units of the preemptor's own queue that rank clearly below it."""
    if not state.policy.preempt:
        return np.zeros(len(columns.pieces), np.bool_)
    queue = state.queue_of(workload)
    priority, mine = priorities(queue, columns), queue_order.priority(queue, workload)
    below = priority < mine
    if queue.order == "attained":
        below |= (priority == mine) & _attained_more(state, workload, columns)
    return np.asarray(below)


def priorities(queue: Queue, columns: QueueColumns) -> Ints:
    """The priority of each eviction unit, limited to the maximum of its queue."""
    if queue.max_priority is None:
        return columns.priority
    return np.minimum(columns.priority, queue.max_priority)


def _attained_more(state: DecisionState, workload: Workload, columns: QueueColumns) -> Mask:
    predictor = state.ordering.predictor
    mine = predictor.index(workload, workload.attained)
    theirs = np.zeros(len(columns.pieces), np.float64)
    for i, piece in enumerate(columns.pieces):
        running = piece.running
        ran, before = max(0.0, state.now - running.started), running.workload.attained
        index = predictor.index(running.workload, aging.age(before, ran))
        theirs[i] = EAGER.defended(index, ran, before)
    return np.asarray(theirs > mine)


# --- pools --------------------------------------------------------------------------------------


def part_of(
    state: DecisionState,
    queue: str,
    columns: QueueColumns,
    rows: Ints,
    kinds: Ints,
    branch: tuple[Branch, Ints] | None = None,
) -> Candidates:
    """The candidates of one queue, with its branch, and how far that is above its share before each
    of them is evicted."""
    number = np.full(len(columns.pieces), -1, np.int64)
    number[rows] = np.arange(len(rows))
    started = columns.started[rows]
    priority = priorities(state.tree.queues[queue], columns)
    if columns.surplus.any():
        order_of_surplus = elastic_surplus.of(state).order(queue, priority)
        priority = np.where(kinds == YIELDING, order_of_surplus, priority)
    base = max(state.tree.queues[queue].min_runtime, LEAST_RUN)
    return Candidates(
        columns.pieces[rows].tolist(),
        number[columns.least[rows]],
        kinds[rows],
        priority[rows],
        started,
        np.maximum(0.0, state.now - columns.since[rows]),
        columns.protected[rows],
        columns.size[rows],
        columns.flat.only(rows),
        [(queue, slice(0, len(rows)))],
        {resource: columns.usage_of(resource)[rows] for resource in state.tree.limited_resources},
        np.zeros(len(rows), np.int64) if branch is None else branch[1][rows],
        np.maximum(columns.protected[rows], started + base * columns.doubled[rows]),
        np.full(len(rows), NO_BRANCH if branch is None else 0, np.int64),
        () if branch is None else (branch[0],),
    )


def joined(
    state: DecisionState,
    claim: PreemptionRequest,
    parts: Sequence[Candidates],
    *,
    conditional: bool = False,
) -> Candidates:
    sizes = [len(part) for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()[: len(parts)]
    least, queues = list[Ints](), list[tuple[str, slice]]()
    branches: list[Branch] = []
    numbers: list[Ints] = []
    for part, begin in zip(parts, begins, strict=True):
        least.append(np.where(part.least < 0, -1, part.least + begin))
        queues += [(name, slice(at.start + begin, at.stop + begin)) for name, at in part.queues]
        if part.branches and part.branches[0] not in branches:
            branches.append(part.branches[0])
        own = branches.index(part.branches[0]) if part.branches else NO_BRANCH
        numbers.append(np.full(len(part), own, np.int64))

    def column(name: str) -> npt.NDArray[Any]:
        return concatenated([getattr(part, name) for part in parts])

    return Candidates(
        Chained([part.pieces for part in parts]),
        concatenated(least),
        column("kind"),
        column("priority"),
        column("started"),
        column("lost"),
        column("protected"),
        column("size"),
        running_index.join(
            [part.flat for part in parts], sizes, len(state.context.cluster.resources)
        ),
        queues,
        {r: concatenated([part.held[r] for part in parts]) for r in claim.tree.limited_resources},
        column("above"),
        column("shielded"),
        concatenated(numbers),
        tuple(branches),
        conditional,
    )
