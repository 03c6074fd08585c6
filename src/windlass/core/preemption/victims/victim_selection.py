"""Victim selection: a minimal set of candidates without which the preemptor fits.

`PreemptionSimulation` answers for any set whether the preemptor fits, by a few array operations on
a fork of the cluster. `plan` finds a set: the shortest prefix of an order, by bisection (more
victims never free less), then a reprieve adds back every victim that is not needed, the most
expensive first, so that no victim of the final set could be kept. It changes only its own forks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windlass.core.model.types import PodAssignment
from windlass.core.placement import candidate_domains
from windlass.core.placement.placement_context import PlacementFailure
from windlass.core.preemption.victims import candidates, reprieve
from windlass.core.preemption.victims.candidates import (
    FIRST,
    KINDS,
    Candidates,
    Giving,
    Price,
    Taken,
)
from windlass.core.preemption.victims.quota_check import QuotaCheck
from windlass.core.preemption.victims.simulation import PreemptionSimulation, is_intricate

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FEW = 64
"""How many candidates are tried first."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    gone: Mask
    """Candidates that are evicted."""
    pods: tuple[PodAssignment, ...]
    """Where the preemptor's pods will be."""
    price: Price
    """Smaller is better: the worst kind touched, the queue least above its share, the highest
    priority, work lost, members stopped."""


def plan(
    trial_of: Callable[[Candidates], PreemptionSimulation],
    pool: Candidates,
    allowed: Mask,
    models: tuple[str, ...],
) -> Plan | None:
    """The better of two minimal sets: by work lost, and by work lost per device; None if not even
    all allowed candidates would suffice."""
    best: Plan | None = None
    for sequence in _orders(pool, allowed):
        found = _first_enough(trial_of, pool, sequence, allowed, models)
        if found is None and not pool.conditional:
            return best
        if found is not None and (best is None or found.price < best.price):
            best = found
        if best is not None and best.gone.sum() <= 1:
            break  # without it all that cost less do not suffice: nothing is cheaper
    return best


def plan_without_victims(trial: PreemptionSimulation, models: tuple[str, ...]) -> Plan | None:
    """The plan without victims; None: the preemptor does not fit."""
    none = np.zeros(0, np.bool_)
    if not trial.suffices(none):
        return None
    pods = _pods(trial, none, models)
    return None if isinstance(pods, PlacementFailure) else Plan(none, pods, price(trial.pool, none))


def _orders(pool: Candidates, allowed: Mask) -> Iterator[Ints]:
    """The candidates in the order of eviction. In the first order the branch furthest above its
    share gives first; in a queue lower priority is evicted first, so that no victim outranks a
    workload that stays. The second order counts lost work alone. The last is for requests that may
    take from higher levels of the tree only after lower ones gave. The sort is stable."""
    cost, late = pool.lost * pool.size, -pool.started
    kind = np.where(allowed, pool.kind, pool.kind + KINDS)
    keys = [
        (late, pool.size, cost, pool.priority, -pool.above, kind),
        (late, -pool.size, pool.lost, pool.priority, kind),
    ]
    if pool.conditional:
        depth = np.array([*(each.depth for each in pool.branches), -1], np.int64)[pool.branch]
        keys.append((late, cost, pool.priority, -pool.above, pool.kind, depth, ~allowed))
    seen: list[bytes] = []
    for each in keys:
        sequence = np.lexsort(each)
        if sequence.tobytes() not in seen:
            seen.append(sequence.tobytes())
            yield sequence


def _first_enough(
    trial_of: Callable[[Candidates], PreemptionSimulation],
    pool: Candidates,
    sequence: Ints,
    allowed: Mask,
    models: tuple[str, ...],
) -> Plan | None:
    """A queue that reclaims its guarantee may have thousands of candidates and needs few: the first
    few are tried, then eight times as many, until they suffice."""
    most, count = int(allowed.sum()), _FEW
    while True:
        first = np.zeros(len(pool), np.bool_)
        first[sequence[: min(count, most)]] = True
        first = _whole_workloads(pool, first)
        chosen = np.flatnonzero(first)
        trial = trial_of(pool if first.all() else pool.only(chosen))
        if trial.suffices(allowed[chosen]):
            rank = np.empty(len(pool), np.int64)
            rank[sequence[first[sequence]]] = np.arange(len(chosen))
            found = _plan_in_order(trial, rank[chosen], allowed[chosen], models)
            if found is not None:
                first[chosen] = found.gone
                return dataclasses.replace(found, gone=first)
        if count >= most:
            return None
        count *= 8


def _plan_in_order(
    trial: PreemptionSimulation, rank: Ints, allowed: Mask, models: tuple[str, ...]
) -> Plan | None:
    low, max_count = 0, int(allowed.sum())
    if trial.quota:
        quotas = QuotaCheck(trial.claim, trial.pool, np.zeros_like(allowed))
        low = quotas.go_until_allowed(np.argsort(rank)[:max_count])
    enough = first_that(_prefix_fits(trial, rank), low, max_count)
    return settled(trial, _whole_workloads(trial.pool, rank < enough), rank, models)


def settled(
    trial: PreemptionSimulation, gone: Mask, rank: Ints, models: tuple[str, ...]
) -> Plan | None:
    """From a set that suffices: the assignment of the preemptor, and the victims after the
    reprieve."""
    pods = _pods(trial, gone, models)
    if isinstance(pods, PlacementFailure):
        return None
    near = _near_only(trial, gone, pods)
    if not trial.quota or QuotaCheck(trial.claim, trial.pool, near).allow():
        gone = near
    # A single victim is needed: all cheaper ones together did not suffice.
    if gone.sum() > 1 and reprieve.add_back(trial, gone, rank):
        pods = trial.place(trial.cluster(gone), gone, None, models)
    if isinstance(pods, PlacementFailure):
        return None
    if trial.pool.conditional and not QuotaCheck(trial.claim, trial.pool, gone).allow():
        return None
    return Plan(gone, pods, price(trial.pool, gone))


def _pods(
    trial: PreemptionSimulation, gone: Mask, models: tuple[str, ...]
) -> tuple[PodAssignment, ...] | PlacementFailure:
    """The assignment without these victims: where a pod costs the least, else anywhere."""
    found = trial.place(trial.cluster(gone), gone, _cheapest_nodes(trial, gone), models)
    if isinstance(found, PlacementFailure):
        found = trial.place(trial.cluster(gone), gone, None, models)
    return found


def _prefix_fits(trial: PreemptionSimulation, rank: Ints) -> Check:
    """Whether the preemptor fits without the first `n` of an order."""
    if not trial.identical or is_intricate(trial.shape):
        return lambda n: trial.fits(_whole_workloads(trial.pool, rank < n))
    prefix = _Prefix(trial, rank)
    return lambda n: trial.enough(trial.allowed(prefix.caps(n)))


class _Prefix:
    """The cluster without the first `n` units of an order. For another `n` only the units in
    between are changed."""

    def __init__(self, trial: PreemptionSimulation, rank: Ints) -> None:
        pool, flat = trial.pool, trial.pool.flat
        with_least = np.where(pool.least >= 0, np.minimum(rank, rank[pool.least]), rank)
        self._shape, self._cluster, self._gone = trial.shape, trial.base.fork(()), 0
        self._pods, self._members = _sorted(with_least[flat.pod_of], flat.members)
        self._grants, self._devices = _sorted(with_least[flat.grant_of], flat.devices)

    def caps(self, count: int) -> Ints:
        between = sorted((self._gone, count))
        pods = slice(*np.searchsorted(self._pods, between).tolist())
        grants = slice(*np.searchsorted(self._grants, between).tolist())
        sign = 1 if count > self._gone else -1
        self._cluster.shift(self._members[:, pods], self._devices[:, grants], sign)
        self._gone = count
        return self._cluster.pod_capacity(self._shape)


def _sorted(ranks: Ints, rows: Ints) -> tuple[Ints, Ints]:
    order = np.argsort(ranks, kind="stable")
    return ranks[order], rows[:, order]


def first_that(works: Check, low: int, high: int) -> int:
    """The smallest n in low..high that works, where all above it do; high is known to."""
    while low < high:
        middle = (low + high) // 2
        if works(middle):
            high = middle
        else:
            low = middle + 1
    return high


class Check(Protocol):
    def __call__(self, n: int, /) -> bool: ...


def price(pool: Candidates, gone: Mask) -> Price:
    if not gone.any():
        return (0,)
    return (
        float(pool.kind[gone].max()),
        _giving(pool, gone),
        float(pool.priority[gone].max()),
        float((pool.lost * pool.size)[gone].sum()),
        float(pool.size[gone].sum()),
        float(gone.sum()),
    )


def _giving(pool: Candidates, gone: Mask) -> Giving:
    """The fairness of what queues of other branches give."""
    found = []
    for name, rows in pool.queues if pool.branches else ():
        own = np.flatnonzero(gone[rows]) + rows.start
        if len(own) and pool.branch[own[0]] >= 0:
            branch, last = pool.branches[pool.branch[own[0]]], own[np.argmin(pool.above[own])]
            held = {r: pool.held[r] for r in branch.excess[branch.top]}
            amounts = {r: int(each[own].sum()) for r, each in held.items()}
            at_last = {r: int(each[last]) for r, each in held.items()}
            found.append((branch, name, Taken(amounts, at_last, int(pool.above[last]))))
    own_queue = gone & (pool.branch < 0) & (pool.kind > FIRST)
    return candidates.giving(found, own_queue=bool(own_queue.any()))


def _cheapest_nodes(trial: PreemptionSimulation, gone: Mask) -> Mask | None:
    """Of the nodes that fit pods without these victims, those where a pod costs the least."""
    if not trial.identical:
        return None
    (request,), pool = trial.requests, trial.pool
    caps = trial.caps(gone, trial.shape)
    flat, pods = pool.flat, gone[pool.flat.pod_of]
    cost = np.bincount(
        flat.members[0, pods], (pool.lost * pool.size + 1)[flat.pod_of[pods]], len(caps)
    )
    ids = trial.domains
    sums, costs = np.bincount(ids, weights=caps), np.bincount(ids, weights=cost)
    fitting = np.flatnonzero(sums >= request.count)
    fitting = fitting[np.lexsort((fitting, costs[fitting] / sums[fitting]))]
    best: tuple[float, Ints] | None = None
    for domain in fitting[: candidate_domains.DOMAIN_TRIES]:
        nodes = np.flatnonzero((ids == domain) & (caps > 0))
        nodes = nodes[np.lexsort((nodes, cost[nodes] / caps[nodes]))]
        enough = int(np.searchsorted(np.cumsum(caps[nodes]), request.count)) + 1
        total = float(cost[nodes[:enough]].sum())
        if best is None or total < best[0]:
            best = (total, nodes[:enough])
    if best is None:
        return None
    mask = np.zeros(len(caps), np.bool_)
    mask[best[1]] = True
    return mask


def _whole_workloads(pool: Candidates, gone: Mask) -> Mask:
    """With the surplus of each minimum: a workload that loses its minimum is evicted as a whole."""
    return np.asarray(gone | ((pool.least >= 0) & gone[pool.least]))


def _near_only(trial: PreemptionSimulation, gone: Mask, pods: Iterable[PodAssignment]) -> Mask:
    """Without victims that hold nothing on the preemptor's nodes."""
    pool, cluster = trial.pool, trial.base
    here = np.zeros(len(cluster), np.bool_)
    here[[cluster.index[pod.node] for pod in pods]] = True
    touching = np.zeros(len(pool), np.bool_)
    touching[pool.flat.pod_of[here[pool.flat.members[0]]]] = True
    return _whole_workloads(pool, gone & touching)
