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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import order, victims
from windlass.core.facts import SHARE_UNIT
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Columns
from windlass.core.victims import (
    BORROWED,
    FIRST,
    OUTRANKED,
    SURPLUS,
    YIELDING,
    Branch,
    Claim,
    Pool,
)

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def pool(cycle: Cycle, claim: Claim, *, wide: bool = False, fair: bool = False) -> Pool:
    """Every workload that may be stopped for the claim: of its own queue those that give way to it,
    of other queues the preferred victims; `wide`: all of queues that borrow. Of surplus that yields
    it holds more than may go at once, so that place can decide which of it goes; `fair`: no more
    than that."""
    found: list[Pool] = []
    own, mask = victims.own_victims(cycle, claim)
    if mask.any():
        first, last = (SURPLUS, OUTRANKED) if claim.inside else (YIELDING, FIRST)
        kinds, rows = np.where(own.surplus, first, last), np.flatnonzero(mask)
        found.append(victims.part_of(cycle, claim.unit.queue, own, rows, kinds))
    conditional = False
    if claim.scarce and cycle.policy.reclaim:
        borrowers = _Borrowers(cycle, claim, _without(claim, own, mask))
        found += borrowers.parts(wide=wide)
        conditional = borrowers.conditional
    if not claim.inside:  # who is inside its guarantee may take back more than surplus
        known = {name for part in found for name, _ in part.queues}
        found += victims.surplus_parts(cycle, claim, known)
    everybody = victims.joined(cycle, claim, found, conditional=conditional)
    return victims.fair_part(cycle, claim, everybody) if fair else everybody


def _without(claim: Claim, own: Columns, gone: Mask) -> Tree:
    """The tree by which the preemptor's right is judged: where its queue is outside its guarantee,
    as if all that it outranks there were gone."""
    tree = claim.tree.fork()
    if not claim.inside and gone.any():
        left = {resource: int(own.held_of(resource)[gone].sum()) for resource in tree.ruled}
        tree.add(claim.unit.queue, left, firm=False, sign=-1)
    return tree


@dataclasses.dataclass(slots=True)
class _Rows:
    """The workloads of one queue, in pieces, and behind them those that are about to start: they
    count, and are nobody's victims."""

    queue: str
    columns: Columns
    held: Ints
    """By resource that is reclaimed; nothing of pieces that were told to go."""
    told: Mask
    new: Mask
    """Starts of this decision, which can still be withheld."""
    firm: Mask
    surplus: Mask
    keys: list[npt.NDArray[np.generic]]
    """By which the queue would keep them, the first key counting most."""
    beyond: Mask
    """Wholly beyond the guarantee at every level so far."""
    above: Ints
    """How far above its share the queue is before the piece goes."""


@dataclasses.dataclass(slots=True)
class _Known:
    """A branch with all its workloads."""

    branch: Branch
    rows: dict[str, _Rows]


class _Borrowers:
    """Of one claim: the branches that borrow what its queue is guaranteed."""

    def __init__(self, cycle: Cycle, claim: Claim, hoped: Tree) -> None:
        self._cycle, self._claim, self._hoped = cycle, claim, hoped
        self._scarce = sorted(claim.scarce)
        self._excess: dict[str, Sums] = {}
        self._spare: dict[str, Sums] = {}
        self.conditional = False
        """Whether the claim may take from some branches only once others have given."""

    def parts(self, *, wide: bool) -> Iterator[Pool]:
        """Queue by queue, from the level of the preemptor upwards. At each level the right is
        judged as if all had gone that may go below it: what is chosen is checked again."""
        claim, tree, hoped = self._claim, self._claim.tree, self._hoped
        name = claim.unit.queue
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
        for name in sorted(tree.queues.keys() - {self._claim.unit.queue}):
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
        """Counts everything preemptible of these branches as gone, for the levels above."""
        tree = self._claim.tree
        for top in tops if shared else ():
            amounts = {
                r: tree.used[top].get(r, 0) - tree.firm[top].get(r, 0)
                for r in tree.guarantee[self._claim.unit.queue]
            }
            if top == shared:  # of an ancestor only its own workloads
                amounts = {
                    r: tree.direct(tree.used, top, r) - tree.direct(tree.firm, top, r)
                    for r in amounts
                }
            self._hoped.add(shared, amounts, firm=False, sign=-1)

    # --- the workloads of a branch

    def _part(self, name: str, top: str, depth: int, *, whole: bool, wide: bool) -> Pool | None:
        """The same for all claims, until a workload of the branch starts or goes."""
        kept = self._would_take_back(name, top) if self._claim.contested else ()
        known = self._cycle.desk.borrowed
        key = (name, top, whole, depth, wide, kept, *self._scarce)
        at = self._changes(top)
        if key not in known or known[key][0] != at:
            known[key] = (at, self._victims(name, top, depth, kept, whole=whole, wide=wide))
        return known[key][1]

    def _would_take_back(self, name: str, top: str) -> tuple[str, ...]:
        """Contested resources in which the queue is inside its guarantee, up to the top of the
        branch. Where each of two workloads has a right to what the other borrows, the one that
        runs goes on: they would stop each other in turns for ever."""
        tree, found = self._claim.tree, list[str]()
        levels = tree.path(name)[: tree.path(name).index(top) + 1]
        for resource in sorted(self._claim.contested):
            if tree.guarantee[name].get(resource) and all(
                tree.used[level].get(resource, 0) <= tree.guarantee[level].get(resource, 0)
                for level in levels
            ):
                found.append(resource)
        return tuple(found)

    def _changes(self, top: str) -> tuple[int, ...]:
        """Of a branch: how many started there, and how many were told to go."""
        claim = self._claim
        gone = sum(len(piece.seats) for piece in claim.departed.get(top, ()))
        found: tuple[int, ...] = (len(claim.starting.get(top, ())), gone)
        for child in claim.tree.children.get(top, ()):
            found += self._changes(child)
        return found

    def _victims(
        self, name: str, top: str, depth: int, kept: Sequence[str], *, whole: bool, wide: bool
    ) -> Pool | None:
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
            mask &= columns.held_of(resource) == 0
        mask = _with_all_surplus(columns, mask, rows.told[:size])
        mask = mask & victims.evictable(self._claim, name, columns)
        mask = victims.to_withhold(self._cycle, name, columns, mask)
        if not mask.any():
            return None
        kinds = np.where(columns.surplus, SURPLUS, BORROWED)
        branch = (known.branch, rows.above[:size])
        return victims.part_of(self._cycle, name, columns, np.flatnonzero(mask), kinds, branch)

    def _known(self, top: str, depth: int, *, whole: bool) -> _Known:
        known, at = self._cycle.desk.branches, self._changes(top)
        key = (top, whole, depth, *self._scarce)
        if key not in known or known[key][0] != at:
            self._excess, self._spare = {}, {}
            rows = {each.queue: each for each in self._below(top, whole=whole)}
            tree = self._claim.tree
            levels = {name: tree.path(name)[: tree.path(name).index(top) + 1] for name in rows}
            weights = {name: tree.queues[name].weight for name in rows}
            branch = Branch(top, depth, weights, self._excess, self._spare, levels, tree.capacity)
            known[key] = (at, _Known(branch, rows))
        found: _Known = known[key][1]
        return found

    def _below(self, name: str, *, whole: bool = True) -> list[_Rows]:
        """Every queue of a branch, looked at level by level up to its top. Not `whole`: only the
        workloads of the queue itself, against what its children are not guaranteed."""
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
        columns, claim = victims.columns_of(self._cycle, name), self._claim
        told = columns.leaving.copy()
        for piece in claim.departed.get(name, ()):
            told[columns.rows_told(piece)] = True
        held = np.stack([columns.held_of(r) for r in self._scarce])
        held[:, told] = 0
        queue = claim.tree.queues[name]
        priority, since, started = (
            victims.priorities(queue, columns),
            columns.since,
            columns.started,
        )
        firm, surplus, starting = columns.firm, columns.surplus, claim.starting.get(name, ())
        new = self._cycle.desk.starts.get(name)
        new = np.zeros(len(told), np.bool_) if new is None else new
        if starting:
            count, now = len(starting), np.full(len(starting), self._cycle.now)
            sums = np.array([[s.get(r, 0) for _, s in starting] for r in self._scarce], np.int64)
            held, no = np.hstack([held, sums]), np.zeros(count, np.bool_)
            priority = np.append(priority, [order.priority(queue, unit) for unit, _ in starting])
            since, started = np.append(since, now), np.append(started, now)
            firm, surplus, told, new = (np.append(each, no) for each in (firm, surplus, told, new))
        keys: list[npt.NDArray[np.generic]] = [-priority, since, started]
        beyond, above = np.ones(len(priority), np.bool_), np.zeros(len(priority), np.int64)
        return _Rows(name, columns, held, told, new, firm, surplus, keys, beyond, above)

    def _judge(self, level: str, rows: list[_Rows], guarantee: Sums, weight: int) -> None:
        """At one level of the tree: what lies beyond its guarantee, and how far above it is before
        each piece goes. Those stay longest that are inside a guarantee further down, then those
        that cannot be stopped, then those of children that are least above their own share."""
        held = np.concatenate([each.held for each in rows], axis=1)
        beyond = np.concatenate([each.beyond for each in rows])
        firm = np.concatenate([each.firm for each in rows])
        surplus = np.concatenate([each.surplus for each in rows])
        above = np.concatenate([each.above for each in rows])
        keys = [np.concatenate(each) for each in zip(*(each.keys for each in rows), strict=True)]
        sequence = _in_order([4 * beyond + 2 * ~firm + surplus, above, *keys])
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
        """What a queue uses above its guarantee; and what it can spare, so that it keeps its
        guarantee, or what it held before this decision if that is less."""
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
    """The numbers in the order of the keys, the first key counting most. Among equals the last
    comes first, so that from the end the first goes first."""
    size = len(keys[0])
    told = [key[::-1] for key in keys if size and not (key == key[0]).all()]
    return size - 1 - (np.lexsort(told[::-1]) if told else np.arange(size))


def _branch(path: Sequence[str], above: Set[str]) -> tuple[str, str]:
    """On the way up, the last queue before one that is above the preemptor's too, and that one. At
    least the first of all; "": they share none."""
    top = path[0]
    for name in path:
        if name in above:
            return top, name
        top = name
    return top, ""


def _with_all_surplus(columns: Columns, mask: Mask, told: Mask) -> Mask:
    """A unit's least goes only where all above it may go with it, or was told to go before."""
    if columns.surplus.any() and mask.any():
        mask[columns.first] &= np.logical_and.reduceat(mask | told, columns.first)
    return mask
