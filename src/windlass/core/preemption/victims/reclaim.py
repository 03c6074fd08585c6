"""What a queue may reclaim from other queues: from which workloads, and how much of each queue.

A queue that uses more than its guarantee borrows the difference. What is borrowed is an amount, not
a set of workloads. Workloads stand in the order in which their queue would keep them: first those
that cannot be preempted, then by priority, work that would be lost and age, then surplus members of
elastic workloads. Those that lie wholly beyond the guarantee are *preferred* victims: any of them
may go, in any combination. If these do not help, because they are in the wrong place, any workload
of a queue that borrows may go instead, as long as every queue above it keeps its guarantee
(`Branch.excess` is how much may be taken; `reclaim_search` chooses).

Between branches of the tree, the branch furthest above its guarantee for its weight gives first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence, Set

import numpy as np
import numpy.typing as npt

from windlass.core.decision.state import DecisionState
from windlass.core.model.types import SHARE_UNIT
from windlass.core.preemption.victims import victim_candidates
from windlass.core.preemption.victims.candidates import (
    BORROWED,
    FIRST,
    OUTRANKED,
    SURPLUS,
    YIELDING,
    Branch,
    Candidates,
    PreemptionRequest,
)
from windlass.core.queueing import queue_order
from windlass.core.quota.quota_tree import QuotaTree, Sums
from windlass.core.snapshot.running_index import QueueColumns

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def pool(
    state: DecisionState, claim: PreemptionRequest, *, wide: bool = False, fair: bool = False
) -> Candidates:
    """Every workload that may be evicted for the request: of its own queue those that it outranks,
    of other queues the preferred victims; `wide`: all workloads of queues that borrow. Of surplus
    it contains more than may be evicted at once, so that placement can choose; `fair`: no more than
    that."""
    found: list[Candidates] = []
    own, mask = victim_candidates.own_victims(state, claim)
    if mask.any():
        first, last = (SURPLUS, OUTRANKED) if claim.inside else (YIELDING, FIRST)
        kinds, rows = np.where(own.surplus, first, last), np.flatnonzero(mask)
        found.append(victim_candidates.part_of(state, claim.workload.queue, own, rows, kinds))
    conditional = False
    if claim.scarce and state.policy.reclaim:
        borrowers = _Borrowers(state, claim, _without(claim, own, mask))
        found += borrowers.parts(wide=wide)
        conditional = borrowers.conditional
    if not claim.inside:  # within its guarantee it may take back more than surplus
        known = {name for part in found for name, _ in part.queues}
        found += victim_candidates.surplus_parts(state, claim, known)
    all_candidates = victim_candidates.joined(state, claim, found, conditional=conditional)
    return victim_candidates.fair_part(state, claim, all_candidates) if fair else all_candidates


def _without(claim: PreemptionRequest, own: QueueColumns, gone: Mask) -> QuotaTree:
    """The tree by which the preemptor's right is judged. Where its queue is outside its guarantee:
    without the workloads of the queue that it outranks."""
    tree = claim.tree.fork()
    if not claim.inside and gone.any():
        left = {
            resource: int(own.usage_of(resource)[gone].sum()) for resource in tree.limited_resources
        }
        tree.add(claim.workload.queue, left, non_preemptible=False, sign=-1)
    return tree


@dataclasses.dataclass(slots=True)
class _Rows:
    """The eviction units of one queue, followed by the workloads that are about to start: these
    count, but are never victims."""

    queue: str
    columns: QueueColumns
    held: Ints
    """By resource that is reclaimed; 0 for units that are evicted already."""
    leaving: Mask
    new: Mask
    """Starts of this decision, which can still be retracted."""
    non_preemptible: Mask
    surplus: Mask
    keys: list[npt.NDArray[np.generic]]
    """The order in which the queue keeps them; the first key counts most."""
    beyond: Mask
    """Wholly beyond the guarantee at every level so far."""
    above: Ints
    """How far above its share the queue is before the unit is evicted."""


@dataclasses.dataclass(slots=True)
class _Known:
    """A branch with all its workloads."""

    branch: Branch
    rows: dict[str, _Rows]


@dataclasses.dataclass(slots=True)
class ReclaimCache:
    """Results of one round of preemption about queues that borrow."""

    candidates: dict[object, tuple[object, Candidates | None]] = dataclasses.field(
        default_factory=dict
    )
    """Candidates of a queue, and the version of its branch for which they hold."""
    branches: dict[object, tuple[object, _Known]] = dataclasses.field(default_factory=dict)
    """The same of branches of the tree."""


class _Borrowers:
    """For one request: the branches that borrow what its queue is guaranteed."""

    def __init__(self, state: DecisionState, claim: PreemptionRequest, hoped: QuotaTree) -> None:
        self._state, self._claim, self._hoped = state, claim, hoped
        self._scarce = sorted(claim.scarce)
        self._excess: dict[str, Sums] = {}
        self._spare: dict[str, Sums] = {}
        self.conditional = False
        """Whether the request may take from some branches only after it took from others."""

    def parts(self, *, wide: bool) -> Iterator[Candidates]:
        """Queue by queue, from the level of the preemptor upwards. At each level the right is
        judged as if all candidates below it were evicted; the chosen set is checked again."""
        claim, tree, hoped = self._claim, self._claim.tree, self._hoped
        name = claim.workload.queue
        path = tree.path(name)
        meeting = self._by_meeting_point(path)
        for depth, shared in enumerate((*path, "")):
            tops = [t for t in sorted(meeting.get(shared, ())) if self._borrows(t, t not in path)]
            if depth == 0:
                self._give_back(shared, tops)
            if not hoped.may_reclaim(name, claim.need, path[:depth]):
                return  # nor at any level above: nothing there changes what those below use
            if not tree.may_reclaim(name, claim.need, path[:depth]):
                self.conditional = bool(tops) or self.conditional
            for top in tops:
                for queue in meeting[shared][top]:
                    part = self._part(queue, top, depth, whole=top not in path, wide=wide)
                    if part is not None:
                        yield part
            if depth > 0:
                self._give_back(shared, tops)

    def _by_meeting_point(self, path: Sequence[str]) -> dict[str, dict[str, list[str]]]:
        """Where the paths meet -> the last queue before that -> queues below it, with it."""
        tree, above = self._claim.tree, set(path)
        found: dict[str, dict[str, list[str]]] = {}
        for name in sorted(tree.queues.keys() - {self._claim.workload.queue}):
            top, shared = _branch(tree.path(name), above)
            found.setdefault(shared, {}).setdefault(top, []).append(name)
        return found

    def _borrows(self, top: str, whole: bool) -> bool:
        """Whether the branch uses more than its guarantee; of a queue above the preemptor's, its
        own workloads more than is left of its guarantee beside its children's."""
        tree = self._claim.tree
        if whole:
            return tree.borrows(top, self._scarce)
        return any(
            tree.direct(tree.used, top, r) > tree.direct(tree.guarantee, top, r)
            for r in self._scarce
        )

    def _give_back(self, shared: str, tops: Sequence[str]) -> None:
        """Subtracts the preemptible usage of these branches, for the levels above."""
        tree = self._claim.tree
        for top in tops if shared else ():
            amounts = {
                r: tree.used[top].get(r, 0) - tree.non_preemptible[top].get(r, 0)
                for r in tree.guarantee[self._claim.workload.queue]
            }
            if top == shared:  # of an ancestor only its own workloads
                amounts = {
                    r: tree.direct(tree.used, top, r) - tree.direct(tree.non_preemptible, top, r)
                    for r in amounts
                }
            self._hoped.add(shared, amounts, non_preemptible=False, sign=-1)

    # --- the workloads of a branch

    def _part(
        self, name: str, top: str, depth: int, *, whole: bool, wide: bool
    ) -> Candidates | None:
        """The same for all requests, until a workload of the branch starts or is evicted."""
        kept = self._would_take_back(name, top) if self._claim.borrowed else ()
        known = self._state.cache(ReclaimCache).candidates
        key: tuple[object, ...] = (name, top, whole, depth, wide, kept, *self._scarce)
        at: tuple[int, ...] = self._changes(top)
        if kept:  # what its victims would take back depends on what the preemptor leaves them
            key = (*key, self._claim.contested, *sorted(self._claim.need.items()))
            at = (self._state.context.cluster.version, *at)
        if key not in known or known[key][0] != at:
            known[key] = (at, self._victims(name, top, depth, kept, whole=whole, wide=wide))
        return known[key][1]

    def _would_take_back(self, name: str, top: str) -> tuple[str, ...]:
        """Borrowed resources in which the queue is inside its guarantee, up to the top of the
        branch. Where each of two workloads may reclaim what the other borrows, and would be short
        of it, the running one stays: otherwise they would preempt each other forever."""
        tree, found = self._claim.tree, list[str]()
        levels = tree.path(name)[: tree.path(name).index(top) + 1]
        for resource in sorted(self._claim.borrowed):
            if tree.guarantee[name].get(resource) and all(
                tree.used[level].get(resource, 0) <= tree.guarantee[level].get(resource, 0)
                for level in levels
            ):
                found.append(resource)
        return tuple(found)

    def _changes(self, top: str) -> tuple[int, ...]:
        """The version of a branch: how many workloads started there, and how many pods were
        evicted."""
        claim = self._claim
        gone = sum(len(piece.pods) for piece in claim.departed.get(top, ()))
        found: tuple[int, ...] = (len(claim.starting.get(top, ())), gone)
        for child in claim.tree.children.get(top, ()):
            found += self._changes(child)
        return found

    def _victims(
        self, name: str, top: str, depth: int, kept: Sequence[str], *, whole: bool, wide: bool
    ) -> Candidates | None:
        known = self._known(top, depth, whole=whole)
        rows = known.rows[name]
        columns, size = rows.columns, len(rows.columns.pieces)
        if wide:
            spare = [known.branch.spare[level] for level in known.branch.levels[name]]
            open_ = [all(sums[r] > 0 for sums in spare) for r in self._scarce]
            mask = ((rows.held[:, :size] > 0) & np.array(open_)[:, None]).any(axis=0)
        else:
            mask = rows.beyond[:size].copy()
        for resource in kept:
            holds = columns.usage_of(resource) > 0
            if resource not in self._claim.contested:
                holds &= victim_candidates.finds_too_little(
                    self._state, self._claim, columns, holds & mask, resource
                )
            mask &= ~holds
        mask = _with_all_surplus(columns, mask, rows.leaving[:size])
        mask = mask & victim_candidates.evictable(self._claim, name, columns)
        mask = victim_candidates.to_retract(self._state, name, columns, mask)
        if not mask.any():
            return None
        kinds = np.where(columns.surplus, SURPLUS, BORROWED)
        branch = (known.branch, rows.above[:size])
        return victim_candidates.part_of(
            self._state, name, columns, np.flatnonzero(mask), kinds, branch
        )

    def _known(self, top: str, depth: int, *, whole: bool) -> _Known:
        known, at = self._state.cache(ReclaimCache).branches, self._changes(top)
        key = (top, whole, depth, *self._scarce)
        if key not in known or known[key][0] != at:
            self._excess, self._spare = {}, {}
            rows = {each.queue: each for each in self._below(top, whole=whole)}
            tree = self._claim.tree
            levels = {name: tree.path(name)[: tree.path(name).index(top) + 1] for name in rows}
            weights = {name: tree.queues[name].weight for name in rows}
            branch = Branch(top, depth, weights, self._excess, self._spare, levels, tree.capacity)
            known[key] = (at, _Known(branch, rows))
        return known[key][1]

    def _below(self, name: str, *, whole: bool = True) -> list[_Rows]:
        """Every queue of a branch, judged level by level up to its top. Not `whole`: only the
        workloads of the queue itself, against what is left of its guarantee beside its
        children's."""
        tree = self._claim.tree
        guarantee = {r: tree.guarantee[name].get(r, 0) for r in self._scarce}
        rest = dict(guarantee)
        children: list[_Rows] = []
        for child in tree.children.get(name, ()):
            children += self._below(child) if whole else ()
            for resource in rest:
                rest[resource] -= tree.guarantee[child].get(resource, 0)
        own = self._direct(name)
        weight = tree.queues[name].weight
        if not children:
            self._judge(name, [own], guarantee if whole else rest, weight)
            return [own]
        self._judge("", [own], rest, weight)  # as if they were a queue beside its children
        own.beyond[:] = True
        found = [own, *children]
        self._judge(name, found, guarantee, weight)
        return found

    def _direct(self, name: str) -> _Rows:
        columns, claim = victim_candidates.columns_of(self._state, name), self._claim
        leaving = columns.leaving.copy()
        for piece in claim.departed.get(name, ()):
            leaving[columns.rows_evicted(piece)] = True
        held = np.stack([columns.usage_of(r) for r in self._scarce])
        held[:, leaving] = 0
        queue = claim.tree.queues[name]
        priority, since, started = (
            victim_candidates.priorities(queue, columns),
            columns.since,
            columns.started,
        )
        non_preemptible, surplus, starting = (
            columns.non_preemptible,
            columns.surplus,
            claim.starting.get(name, ()),
        )
        new = victim_candidates.cache_of(self._state).starts.get(name)
        new = np.zeros(len(leaving), np.bool_) if new is None else new
        if starting:
            count, now = len(starting), np.full(len(starting), self._state.now)
            sums = np.array([[s.get(r, 0) for _, s in starting] for r in self._scarce], np.int64)
            held, no = np.hstack([held, sums]), np.zeros(count, np.bool_)
            priority = np.append(
                priority, [queue_order.priority(queue, workload) for workload, _ in starting]
            )
            since, started = np.append(since, now), np.append(started, now)
            non_preemptible, surplus, leaving, new = (
                np.append(each, no) for each in (non_preemptible, surplus, leaving, new)
            )
        keys: list[npt.NDArray[np.generic]] = [-priority, since, started]
        beyond, above = np.ones(len(priority), np.bool_), np.zeros(len(priority), np.int64)
        return _Rows(
            name, columns, held, leaving, new, non_preemptible, surplus, keys, beyond, above
        )

    def _judge(self, level: str, rows: list[_Rows], guarantee: Sums, weight: int) -> None:
        """At one level of the tree: which units lie beyond its guarantee, and how far above it the
        level is before each is evicted. Units within a guarantee further down are kept longest,
        then non-preemptible ones, then those of children that are least above their share."""
        held = np.concatenate([each.held for each in rows], axis=1)
        beyond = np.concatenate([each.beyond for each in rows])
        non_preemptible = np.concatenate([each.non_preemptible for each in rows])
        surplus = np.concatenate([each.surplus for each in rows])
        above = np.concatenate([each.above for each in rows])
        keys = [np.concatenate(each) for each in zip(*(each.keys for each in rows), strict=True)]
        sequence = _in_order([4 * beyond + 2 * ~non_preemptible + surplus, above, *keys])
        upto = np.empty_like(held)
        upto[:, sequence] = np.cumsum(held[:, sequence], axis=1)
        excess = upto - np.array([[guarantee[r]] for r in self._scarce], np.int64)
        if level:
            new = np.concatenate([each.new for each in rows])
            self._note(level, held.sum(axis=1), held[:, ~new].sum(axis=1), guarantee)
        beyond = beyond & ((excess >= held) | (held == 0)).all(axis=0) & (held > 0).any(axis=0)
        above, place = self._shares(excess) // weight, np.empty(len(sequence), np.int64)
        place[sequence] = np.arange(len(sequence))
        begin = 0
        for each in rows:
            own = slice(begin, begin + len(each.beyond))
            each.beyond, each.above, each.keys = beyond[own], above[own], [place[own]]
            begin = own.stop

    def _note(self, level: str, used: Ints, before: Ints, guarantee: Sums) -> None:
        """Records what a queue uses above its guarantee, and what can be taken from it so that it
        keeps its guarantee, or its usage before this decision if that is less."""
        excess, spare = self._excess.setdefault(level, {}), self._spare.setdefault(level, {})
        for r, now, then in zip(self._scarce, used.tolist(), before.tolist(), strict=True):
            excess[r], spare[r] = now - guarantee[r], now - min(max(0, guarantee[r]), then)

    def _shares(self, excess: Ints) -> Ints:
        """As `Branch.above_share`, of many."""
        capacity = self._claim.tree.capacity
        parts = [
            excess[i] * SHARE_UNIT // capacity[r]
            for i, r in enumerate(self._scarce)
            if capacity.get(r, 0) > 0
        ]
        return np.maximum.reduce(parts) if parts else np.zeros(excess.shape[1], np.int64)


def _in_order(keys: Sequence[npt.NDArray[np.generic]]) -> Ints:
    """The numbers in the order of the keys; the first key counts most. Equal ones are in reverse
    order, so that read from the end the first comes first."""
    size = len(keys[0])
    leaving = [key[::-1] for key in keys if size and not (key == key[0]).all()]
    return size - 1 - (np.lexsort(leaving[::-1]) if leaving else np.arange(size))


def _branch(path: Sequence[str], above: Set[str]) -> tuple[str, str]:
    """On the way up, the last queue before one that is above the preemptor's too, and that one. At
    least the first of all; "": they share none."""
    top = path[0]
    for name in path:
        if name in above:
            return top, name
        top = name
    return top, ""


def _with_all_surplus(columns: QueueColumns, mask: Mask, leaving: Mask) -> Mask:
    """Without minimums whose surplus is neither a candidate nor evicted already: the minimum of a
    workload is evicted only together with its surplus."""
    if columns.surplus.any() and mask.any():
        mask[columns.first] &= np.logical_and.reduceat(mask | leaving, columns.first)
    return mask
