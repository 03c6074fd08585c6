"""Who may be stopped for whom: the rules of rank and of guarantees, and nothing about room.

Between queues only what is borrowed can be taken back, and only by a queue that stays inside its
guarantee. Within a queue the higher priority wins; where the order is `attained`, so does a clearly
smaller index. What is inside a guarantee is never taken by another queue, whatever its priority.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import order, place, predict, roster
from windlass.core.facts import Role, Unit
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Columns, Flat, Piece

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FIRST, SURPLUS, BORROWED, STRADDLING, OUTRANKED = range(5)
"""Who goes first: members above their unit's least; units wholly on borrowed room; units partly
inside their queue's guarantee; units of the gainer's own queue. These come before all where the
queue is inside its guarantee only when they are gone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A waiting unit that wants others to make room, and what its queue's standing allows."""

    unit: Unit
    need: Sums
    scarce: frozenset[str]
    """Resources of which too little is free: borrowed ones of these can be taken back."""
    tree: Tree
    """What every queue will hold at worst while those who were told to go leave."""
    inside: bool
    """Its queue stays inside its guarantee with it."""
    departed: Mapping[str, Sequence[str]]
    """Queue -> units of it that are already told to go, or are being repaired: never victims."""
    starting: Mapping[str, Sequence[tuple[Unit, Sums]]]
    """Queue -> units that got room in this decision, or are promised some, and how much."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """All pieces that may go for one claim; arrays have one entry per piece."""

    pieces: list[Piece]
    least: Ints
    """The piece with the least of the same unit; -1 where that may not go."""
    kind: Ints
    priority: Ints
    started: Floats
    lost: Floats
    """Seconds of work that stopping it now would lose."""
    protected: Floats
    size: Ints
    own: Mask
    """Of the gainer's own queue."""
    flat: Flat

    def __len__(self) -> int:
        return len(self.pieces)


def pool(cycle: Cycle, claim: Claim) -> Pool:
    """Everybody who may be stopped for the claim."""
    known, resources = cycle.snapshot.roster, len(cycle.scene.cluster.resources)
    found: list[tuple[Columns, Mask, Ints, bool]] = []
    own = known.columns(claim.unit.queue, resources)
    mask = _outranked(cycle, claim, own) & _evictable(claim, claim.unit.queue, own)
    if mask.any():
        kinds = (
            np.where(own.surplus, SURPLUS, OUTRANKED) if claim.inside else np.zeros_like(own.size)
        )
        found.append((own, mask, kinds, True))
    borrowers = _Borrowers(cycle, claim, _without(claim, own, mask))
    for name in known.queues():
        if name == claim.unit.queue or name not in claim.tree.queues:
            continue
        columns = known.columns(name, resources)
        mask, straddling = borrowers.of(name, columns)
        mask = mask & _evictable(claim, name, columns)
        if mask.any():
            kinds = np.where(straddling, STRADDLING, BORROWED)
            kinds[columns.surplus] = SURPLUS
            found.append((columns, mask, kinds, False))
    return _joined(found, cycle.now, resources)


def nobody(cycle: Cycle) -> Pool:
    return _joined((), cycle.now, len(cycle.scene.cluster.resources))


def _evictable(claim: Claim, queue: str, columns: Columns) -> Mask:
    mask = ~columns.firm & ~columns.leaving
    for key in claim.departed.get(queue, ()):
        mask[columns.rows(key)] = False
    return np.asarray(mask)


def _without(claim: Claim, own: Columns, gone: Mask) -> Tree:
    """The tree by which the gainer's right is judged: where its queue is outside its guarantee,
    as if all that it outranks there were gone."""
    if claim.inside or not gone.any():
        return claim.tree
    tree = claim.tree.fork()
    for row in np.flatnonzero(gone):
        tree.add(claim.unit.queue, own.pieces[row].held, firm=False, sign=-1)
    return tree


def may_take_back(claim: Claim, tree: Tree, victim: str) -> bool:
    """Whether, at every level below where the two queues part, the gainer's stays inside."""
    mine, _ = tree.parting(claim.unit.queue, victim)
    return all(tree.inside(queue, claim.need) for queue in mine or (claim.unit.queue,))


def scarce_resources(cycle: Cycle, unit: Unit) -> frozenset[str]:
    """What there is too little of for the unit; everything it needs if only together."""
    found: set[str] = set()
    for wish in place.least_of(unit):
        for names, members in _members_by_resource(cycle, wish.role):
            if members < wish.count:
                found |= names
    needed = cycle.need(unit).keys()
    return frozenset(found & needed or needed)


def _members_by_resource(cycle: Cycle, role: Role) -> list[tuple[set[str], int]]:
    """How many members there is room for by each of the role's needs alone. Kept per shape until
    something is taken: most who ask stand in line with nobody placed between them."""
    cluster, desk = cycle.scene.cluster, cycle.desk
    shape = cluster.shape_of(role)
    version, known = desk.members.get(shape.id, (-1, []))
    if version == cluster.version:
        return known
    usable = cluster.mask(role.constraint) & cluster.open
    known = []
    for name, need in role.needs.items():
        column = cluster.resources.get(name)
        if need and column is not None:
            members = np.maximum(cluster.free[column, usable] // need, 0).sum()
            known.append(({name}, int(members)))
    for request in role.devices:
        members = cluster.bank.fit_request(request, np.flatnonzero(usable)).sum()
        names = {request.kind, *(f"{request.kind}/{model}" for model in request.models)}
        known.append((names, int(members)))
    desk.members[shape.id] = (cluster.version, known)
    return known


# --- within the queue ---------------------------------------------------------------------------


def _outranked(cycle: Cycle, claim: Claim, columns: Columns) -> Mask:
    """Pieces of the gainer's own queue that rank clearly below it."""
    if not cycle.policy.preempt:
        return np.zeros(len(columns.pieces), np.bool_)
    unit, queue = claim.unit, cycle.queue_of(claim.unit)
    priority = columns.priority
    if queue.max_priority is not None:
        priority = np.minimum(priority, queue.max_priority)
    mine = order.priority(queue, unit)
    below = priority < mine
    if queue.order == "attained":
        below |= (priority == mine) & _attained_more(cycle, unit, columns)
    return np.asarray(below)


def _attained_more(cycle: Cycle, unit: Unit, columns: Columns) -> Mask:
    predictor = cycle.standing.predictor
    mine = predictor.index(unit, unit.attained)
    theirs = np.zeros(len(columns.pieces), np.float64)
    for i, piece in enumerate(columns.pieces):
        running = piece.running
        ran, before = max(0.0, cycle.now - running.started), running.unit.attained
        index = predictor.index(running.unit, before + ran)
        theirs[i] = predict.EAGER.defended(index, ran, before)
    return np.asarray(theirs > mine)


# --- between queues -----------------------------------------------------------------------------


class _Borrowers:
    """Which running pieces hold what their queue only borrowed."""

    def __init__(self, cycle: Cycle, claim: Claim, hoped: Tree) -> None:
        self._cycle, self._claim, self._hoped = cycle, claim, hoped
        self._scarce = sorted(claim.scarce & claim.tree.guaranteed)
        self._resources = len(cycle.scene.cluster.resources)
        self._known: dict[str, dict[str, tuple[Mask, Mask]]] = {}

    def of(self, name: str, columns: Columns) -> tuple[Mask, Mask]:
        """(borrowed, of these partly inside): what the claim may take back from one queue."""
        claim, tree = self._claim, self._claim.tree
        nothing = np.zeros(len(columns.pieces), np.bool_)
        if not (self._cycle.policy.reclaim and self._scarce):
            return nothing, nothing
        _, theirs = tree.parting(claim.unit.queue, name)
        top = theirs[-1] if theirs else name
        if not tree.borrows(top, self._scarce) or not may_take_back(claim, self._hoped, name):
            return nothing, nothing
        if top not in self._known:
            self._known[top] = self._below(top, whole_branch=bool(theirs))
        return self._known[top].get(name, (nothing, nothing))

    def _below(self, name: str, *, whole_branch: bool = True) -> dict[str, tuple[Mask, Mask]]:
        """For every queue of a branch, what is borrowed at each level up to its top."""
        tree, known = self._claim.tree, self._cycle.snapshot.roster
        own = known.columns(name, self._resources)
        everything = np.ones(len(own.pieces), np.bool_)
        groups = {name: (own, everything, ~everything)}
        guarantee = dict(tree.guarantee[name])
        for child in tree.children.get(name, ()):
            if whole_branch:
                for queue, masks in self._below(child).items():
                    groups[queue] = (known.columns(queue, self._resources), *masks)
            else:
                for resource, amount in tree.guarantee[child].items():
                    guarantee[resource] = guarantee.get(resource, 0) - amount
        return self._outside(groups, guarantee)

    def _outside(
        self, groups: Mapping[str, tuple[Columns, Mask, Mask]], guarantee: Sums
    ) -> dict[str, tuple[Mask, Mask]]:
        names = list(groups)
        columns = [groups[name][0] for name in names]
        lower = np.concatenate([groups[name][1] for name in names])
        partly = np.concatenate([groups[name][2] for name in names])
        held = np.stack([np.concatenate([c.held_of(r) for c in columns]) for r in self._scarce])
        held[:, self._told_to_go(names, columns)] = 0
        room = np.array([max(0, guarantee.get(r, 0)) for r in self._scarce], np.int64)
        inside, straddles = self._fill(names, columns, lower, held, room)
        outside = lower & ~inside & (held > 0).any(axis=0)
        partly = (partly | straddles) & outside
        ends = np.cumsum([len(c.pieces) for c in columns])[:-1]
        split = zip(names, np.split(outside, ends), np.split(partly, ends), strict=True)
        return {name: (out, part) for name, out, part in split}

    def _fill(
        self, names: Sequence[str], columns: Sequence[Columns], lower: Mask, held: Ints, room: Ints
    ) -> tuple[Mask, Mask]:
        """Who is inside the guarantee: first those who cannot be stopped, then the least of units
        by priority and age, then their surplus; and who, left out, straddles its edge."""
        firm = np.concatenate([c.firm for c in columns])
        surplus = np.concatenate([c.surplus for c in columns])
        priority = np.concatenate([c.priority for c in columns])
        started = np.concatenate([c.started for c in columns])
        before = np.cumsum([0, *(len(c.pieces) for c in columns)])
        least = np.concatenate([c.least + at for c, at in zip(columns, before, strict=False)])
        count = len(lower)
        held, priority, extra = self._with_starting(names, held, priority)
        at = np.arange(count + extra)
        more = np.zeros(extra, np.bool_)
        sequence = np.lexsort((
            at,
            np.append(started, np.full(extra, self._cycle.now)),
            -priority,
            np.append(surplus, more),
            np.append(~firm, ~more),
            np.append(lower, ~more),
        ))  # fmt: skip
        is_least = np.append(~surplus, ~more)[sequence]
        inside = np.zeros(count + extra, np.bool_)
        first, rest = sequence[is_least], sequence[~is_least]
        left = _fill_up(first, held, room, inside)
        rest_with_least = rest[inside[least[rest]]] if len(rest) else rest
        _fill_up(rest_with_least, held, left, inside)
        before_it = np.zeros_like(held)
        before_it[:, sequence] = np.cumsum(held[:, sequence], axis=1) - held[:, sequence]
        straddles = ((before_it < room[:, None]) & (held > 0)).any(axis=0) & ~inside
        return inside[:count], straddles[:count]

    def _with_starting(
        self, names: Sequence[str], held: Ints, priority: Ints
    ) -> tuple[Ints, Ints, int]:
        """Units that start in this very decision count too; they are nobody's victims yet."""
        rows = [each for name in names for each in self._claim.starting.get(name, ())]
        if not rows:
            return held, priority, 0
        sums = np.array([[s.get(r, 0) for _, s in rows] for r in self._scarce], np.int64)
        priorities = np.array([unit.priority for unit, _ in rows], np.int64)
        return np.hstack([held, sums]), np.append(priority, priorities), len(rows)

    def _told_to_go(self, names: Sequence[str], columns: Sequence[Columns]) -> Mask:
        masks = []
        for name, each in zip(names, columns, strict=True):
            mask = each.leaving.copy()
            for key in self._claim.departed.get(name, ()):
                mask[each.rows(key)] = key not in self._cycle.placements
            masks.append(mask)
        return np.concatenate(masks)


def _fill_up(sequence: Ints, held: Ints, room: Ints, inside: Mask) -> Ints:
    """Marks, in sequence, everything that still fits; what does not is passed over."""
    room = room.copy()
    while len(sequence):
        sums = np.cumsum(held[:, sequence], axis=1)
        fits = ((sums <= room[:, None]) | (held[:, sequence] == 0)).all(axis=0)
        stop = len(sequence) if fits.all() else int(np.argmin(fits))
        inside[sequence[:stop]] = True
        if stop:
            room = room - sums[:, stop - 1]
        sequence = sequence[stop:]
        small = (held[:, sequence] <= np.maximum(room, 0)[:, None]).all(axis=0)
        sequence = sequence[small]
    return room


def _joined(found: Sequence[tuple[Columns, Mask, Ints, bool]], now: float, resources: int) -> Pool:
    pieces: list[Piece] = []
    least: list[Ints] = []
    flats: list[Flat] = []
    rows = [np.flatnonzero(mask) for _, mask, _, _ in found]
    for (columns, _, _, _), chosen in zip(found, rows, strict=True):
        number = np.full(len(columns.pieces), -1, np.int64)
        number[chosen] = len(pieces) + np.arange(len(chosen))
        least.append(number[columns.least[chosen]])
        pieces += [columns.pieces[row] for row in chosen]
        flats.append(columns.flat.only(chosen))

    def column(name: str) -> npt.NDArray[np.float64]:
        parts = [getattr(c, name)[r] for (c, _, _, _), r in zip(found, rows, strict=True)]
        return np.concatenate(parts) if parts else np.zeros(0)

    kinds = [kinds[chosen] for (_, _, kinds, _), chosen in zip(found, rows, strict=True)]
    own = [np.full(len(chosen), mine) for (*_, mine), chosen in zip(found, rows, strict=True)]
    return Pool(
        pieces,
        np.concatenate(least) if least else np.zeros(0, np.int64),
        np.concatenate(kinds) if kinds else np.zeros(0, np.int64),
        column("priority").astype(np.int64),
        column("started"),
        np.maximum(0.0, now - column("since")),
        column("protected"),
        column("size").astype(np.int64),
        np.concatenate(own).astype(np.bool_) if own else np.zeros(0, np.bool_),
        roster.join(flats, [len(r) for r in rows]) if flats else roster.flatten((), resources),
    )
