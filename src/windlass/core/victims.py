"""Who may be stopped for whom: the rules of rank and of guarantees, and nothing about room.

Between queues only what is borrowed can be taken back, and only by a queue that stays inside its
guarantee. Within a queue the higher priority wins; where the order is `attained`, so does a clearly
smaller index. What is inside a guarantee is never taken by another queue, whatever its priority.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, looks, order, place, predict, roster
from windlass.core.cluster import Cluster
from windlass.core.facts import Queue, Role, Unit
from windlass.core.gauge import Gauge
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Columns, Flat, Piece
from windlass.core.shadows import Held
from windlass.core.shapes import Shape

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FIRST, SURPLUS, BORROWED, STRADDLING, OUTRANKED, KINDS = range(6)
"""Who goes first: members above their unit's least; units wholly on borrowed room; units partly
inside their queue's guarantee; units of the gainer's own queue. These come before all where the
queue is inside its guarantee only when they are gone. `KINDS` is how many there are."""


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
    departed: Mapping[str, Sequence[Piece]]
    """Queue -> members of its units that are told to go already: never victims again."""
    repaired: Mapping[str, Sequence[str]]
    """Queue -> units of it that are being repaired: never victims."""
    starting: Mapping[str, Sequence[tuple[Unit, Sums]]]
    """Queue -> units that surely start, or are promised room, and how much."""

    @property
    def is_bound(self) -> bool:
        """Whether any quota could ever forbid it to start."""
        return self.tree.is_bound(self.unit.queue, firm=not self.unit.preemptible)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """All pieces that may go for one claim; arrays have one entry per piece."""

    pieces: list[Piece] | Chained
    least: Ints
    """The piece with the least of the same unit; -1 where that may not go."""
    kind: Ints
    priority: Ints
    started: Floats
    lost: Floats
    """Seconds of work that stopping it now would lose."""
    protected: Floats
    size: Ints
    flat: Flat
    queues: list[tuple[str, slice]]
    """Whose they are: the pieces of a queue stand together."""
    held: dict[str, Ints]
    """Of every resource that a rule is about, what each of them holds."""

    def __len__(self) -> int:
        return len(self.pieces)

    def only(self, chosen: Ints) -> Pool:
        """Some of them, ascending."""
        number = np.full(len(self) + 1, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        ends = {
            name: np.searchsorted(chosen, (part.start, part.stop)) for name, part in self.queues
        }
        return Pool(
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


@dataclasses.dataclass(slots=True, eq=False)
class Standing:
    """Those of its own queue whom a unit of some rank may stop at all. `promised` is room that is
    held for others on top of those who leave it."""

    count: int
    held: Sums
    """Of what is guaranteed to anybody."""
    own: Columns
    rows: Ints
    """Which pieces of their queue they are."""
    _hope: Hope | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def hope(self, cluster: Cluster, promised: Flat) -> Hope:
        """Where they are, without them."""
        if self._hope is None:
            flat = self.own.flat.only(self.rows)
            where = arrays.distinct(flat.members[0], len(cluster))
            self._hope = Hope(cluster, where, [flat, promised])
        return self._hope


class Hope:
    """Some nodes of a cluster without what these hold there: how many members would fit at most.
    A bound for the whole decision, since room only shrinks."""

    def __init__(self, cluster: Cluster, where: Ints, flats: Sequence[Flat] = ()) -> None:
        self._part, width = cluster.part(where), cluster.bank.compute.shape[1]
        for flat in flats:
            self._part.shift(*arrays.rows_in(where, width, flat.members, flat.devices), +1)
        self.where = where
        self._caps: tuple[Gauge, Ints] | None = None
        """Of all who wait."""

    def gains(self, cluster: Cluster, shapes: Gauge, out: Ints) -> Ints:
        """By shape, how many more would fit there than fit now, but for nodes that are out."""
        if self._caps is None or self._caps[0] is not shapes:
            self._caps = (shapes, self._part.caps_of(shapes, slice(None)))
        more = np.maximum(self._caps[1] - cluster.kept_caps(shapes, self.where), 0)
        if len(out):
            promised = np.zeros(len(cluster), np.bool_)
            promised[out] = True
            more[:, promised[self.where]] = 0
        return np.asarray(more.sum(axis=1))

    def caps(self, shape: Shape) -> Ints:
        """By node of `where`."""
        return self._part.caps(shape)


def most_with(
    cluster: Cluster, hopes: Sequence[Hope], shape: Shape, level: str, beside: Sequence[Held]
) -> int:
    """Members that fit if all this came true: in one domain of the level, in all without one, away
    from nodes that were promised."""
    caps = cluster.caps_so_far(shape).copy()
    for hope in hopes:
        caps[hope.where] = np.maximum(caps[hope.where], hope.caps(shape))
    for held in beside:
        caps[held.nodes] = 0
    if level in cluster.levels:
        caps = cluster.by_domain(cluster.levels.index(level), caps)
    return int(caps.max(initial=0) if level else caps.sum())


def standing(cycle: Cycle, unit: Unit) -> Standing:
    own = columns_of(cycle, unit.queue)
    rows = np.flatnonzero(_outranked(cycle, unit, own) & may_go(cycle, unit.queue, own))
    if not len(rows):
        return Standing(0, {}, own, rows)
    held = {r: int(own.held_of(r)[rows].sum()) for r in cycle.tree.guaranteed}
    return Standing(len(rows), held, own, rows)


def may_go(cycle: Cycle, queue: str, columns: Columns) -> Mask:
    """Pieces of a queue that can be stopped and were not told to go yet."""
    mask = ~columns.firm & ~columns.leaving
    for piece in cycle.departures.told().values():
        if piece.running.unit.queue == queue:
            mask[columns.rows_told(piece)] = False
    return mask


def columns_of(cycle: Cycle, queue: str) -> Columns:
    """Who runs in a queue; once everybody had a turn, with those who start in this decision."""
    found = cycle.desk.columns.get(queue)
    if found is None:
        cluster = cycle.scene.cluster
        found = cycle.snapshot.roster.columns(queue, len(cluster.resources))
        if cycle.desk.late:
            started = {
                key: roster.pieces_of(cluster, cycle.running[key], cycle.held[key])
                for key in withdrawable(cycle)
                if cycle.running[key].unit.queue == queue
            }
            found = roster.with_more(found, started, len(cluster.resources))
            starts = cycle.desk.starts[queue] = np.zeros(len(found.pieces), np.bool_)
            for key in started:
                starts[found.rows(key)] = True
            if cycle.desk.withholding:
                found = dataclasses.replace(found, firm=found.firm & ~starts)
        cycle.desk.columns[queue] = found
    return found


def withdrawable(cycle: Cycle) -> Iterator[str]:
    """Units that start in this decision, but for those for whom others were stopped before."""
    snapshot = cycle.snapshot
    for key in cycle.placements:
        if key in snapshot.waiting and key not in snapshot.nominations:
            yield key


def has_outranked(cycle: Cycle, claim: Claim) -> bool:
    """Whether there is anybody to stop in its own queue."""
    return bool(_own_victims(cycle, claim)[1].any())


def _own_victims(cycle: Cycle, claim: Claim) -> tuple[Columns, Mask]:
    """Those of its own queue, and which of them it may have stopped."""
    name, own = claim.unit.queue, columns_of(cycle, claim.unit.queue)
    mask = _outranked(cycle, claim.unit, own) & _evictable(claim, name, own)
    return own, _to_withhold(cycle, name, own, mask)


def pool(cycle: Cycle, claim: Claim) -> Pool:
    """Everybody who may be stopped for the claim."""
    found: list[Pool] = []
    own, mask = _own_victims(cycle, claim)
    if mask.any():
        kinds = (
            np.where(own.surplus, SURPLUS, OUTRANKED) if claim.inside else np.zeros_like(own.size)
        )
        found.append(_part(cycle, claim.unit.queue, own, np.flatnonzero(mask), kinds))
    if claim.scarce:
        found += _Borrowers(cycle, claim, _without(claim, own, mask)).parts()
    return _joined(cycle, claim, found)


def nobody(cycle: Cycle, claim: Claim) -> Pool:
    """The same for everybody who asks."""
    if cycle.desk.nobody is None:
        cycle.desk.nobody = _joined(cycle, claim, ())
    return cycle.desk.nobody


def _evictable(claim: Claim, queue: str, columns: Columns) -> Mask:
    mask = ~columns.firm & ~columns.leaving
    for piece in claim.departed.get(queue, ()):
        mask[columns.rows_told(piece)] = False
    for key in claim.repaired.get(queue, ()):
        mask[columns.rows(key)] = False
    return np.asarray(mask)


def _to_withhold(cycle: Cycle, queue: str, columns: Columns, mask: Mask) -> Mask:
    """Of those who may go all; while starts are withheld only these, but for who outranks others
    of its queue that may go: it would stop them itself."""
    if not cycle.desk.withholding:
        return mask
    starts = cycle.desk.starts[queue]
    lowest = columns.priority[mask & ~starts].min(initial=np.iinfo(np.int64).max)
    return np.asarray(mask & starts & (columns.priority <= lowest))


def _without(claim: Claim, own: Columns, gone: Mask) -> Tree:
    """The tree by which the gainer's right is judged: where its queue is outside its guarantee,
    as if all that it outranks there were gone."""
    if claim.inside or not gone.any():
        return claim.tree
    tree = claim.tree.fork()
    left = {resource: int(own.held_of(resource)[gone].sum()) for resource in tree.ruled}
    tree.add(claim.unit.queue, left, firm=False, sign=-1)
    return tree


def may_take_back(claim: Claim, tree: Tree, victim: str) -> bool:
    """Whether, at every level below where the two queues part, the gainer's stays inside."""
    mine, _ = tree.parting(claim.unit.queue, victim)
    return all(tree.inside(queue, claim.need) for queue in mine or (claim.unit.queue,))


def scarce_resources(cycle: Cycle, unit: Unit) -> frozenset[str]:
    """Guaranteed resources of which there is too little for the unit; all that it needs, if it is
    short of something else, or only of everything together."""
    found: set[str] = set()
    for wish in place.least_of(unit):
        for names, members in _members_by_resource(cycle, wish.role):
            if members < wish.count:
                found |= names
    needed = cycle.need(unit).keys() & cycle.tree.guaranteed
    return frozenset(found & needed or needed)


def _members_by_resource(cycle: Cycle, role: Role) -> list[tuple[set[str], int]]:
    """How many members there is room for by each of the role's needs alone. Kept per shape until
    something is taken: most who ask stand in line with nobody placed between them."""
    cluster, desk = cycle.scene.cluster, cycle.desk
    shape = cluster.shape_of(role)
    version, known = desk.members.get(shape.id, (-1, []))
    if version == cluster.version:
        return known
    usable = cluster.mask(role.constraint) & cluster.takes(role.constraint)
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


def _outranked(cycle: Cycle, unit: Unit, columns: Columns) -> Mask:
    """Pieces of the gainer's own queue that rank clearly below it."""
    if not cycle.policy.preempt:
        return np.zeros(len(columns.pieces), np.bool_)
    queue = cycle.queue_of(unit)
    priority, mine = priorities(queue, columns), order.priority(queue, unit)
    below = priority < mine
    if queue.order == "attained":
        below |= (priority == mine) & _attained_more(cycle, unit, columns)
    return np.asarray(below)


def priorities(queue: Queue, columns: Columns) -> Ints:
    """Of the pieces of a queue, as far as it lets them count."""
    if queue.max_priority is None:
        return columns.priority
    return np.minimum(columns.priority, queue.max_priority)


def _attained_more(cycle: Cycle, unit: Unit, columns: Columns) -> Mask:
    predictor = cycle.standing.predictor
    mine = predictor.index(unit, unit.attained)
    theirs = np.zeros(len(columns.pieces), np.float64)
    for i, piece in enumerate(columns.pieces):
        running = piece.running
        ran, before = max(0.0, cycle.now - running.started), running.unit.attained
        index = predictor.index(running.unit, looks.age(before, ran))
        theirs[i] = predict.EAGER.defended(index, ran, before)
    return np.asarray(theirs > mine)


# --- between queues -----------------------------------------------------------------------------


class _Borrowers:
    """Which running pieces hold what their queue only borrowed, and which of them reach into its
    guarantee: gangs go whole, so these go too, but after all others."""

    def __init__(self, cycle: Cycle, claim: Claim, hoped: Tree) -> None:
        self._cycle, self._claim, self._hoped = cycle, claim, hoped
        self._scarce = sorted(claim.scarce & claim.tree.guaranteed)
        self._known: dict[str, dict[str, tuple[Mask, Mask]]] = {}

    def parts(self) -> Iterator[Pool]:
        """What the claim may take back, queue by queue."""
        if not (self._cycle.policy.reclaim and self._scarce):
            return
        claim, tree, may = self._claim, self._claim.tree, dict[str, bool]()
        above = set(tree.path(claim.unit.queue))
        for name in sorted(tree.queues.keys() - {claim.unit.queue}):
            top, shared = _branch(tree.path(name), above)
            if shared not in may:  # the same for all that part from the gainer's queue there
                may[shared] = may_take_back(claim, self._hoped, name)
            if not may[shared] or not tree.borrows(top, self._scarce):
                continue
            part = self._of(name, top, whole_branch=name not in above)
            if part is not None:
                yield part

    def _of(self, name: str, top: str, *, whole_branch: bool) -> Pool | None:
        """Who holds what is borrowed in a queue is the same for everybody who asks, until somebody
        there starts or goes."""
        known, key = self._cycle.desk.borrowed, (name, top, whole_branch, *self._scarce)
        at = self._changes(top)
        if key not in known or known[key][0] != at:
            known[key] = (at, self._borrowed(name, top, whole_branch=whole_branch))
        return known[key][1]

    def _changes(self, top: str) -> tuple[int, ...]:
        """Of a branch: how many started there, and how many were told to go."""
        claim = self._claim
        gone = sum(len(piece.seats) for piece in claim.departed.get(top, ()))
        found: tuple[int, ...] = (len(claim.starting.get(top, ())), gone)
        for child in claim.tree.children.get(top, ()):
            found += self._changes(child)
        return found

    def _borrowed(self, name: str, top: str, *, whole_branch: bool) -> Pool | None:
        if top not in self._known:
            self._known[top] = self._below(top, whole_branch=whole_branch)
        if name not in self._known[top]:
            return None
        (mask, partly), columns = self._known[top][name], columns_of(self._cycle, name)
        mask = mask & _evictable(self._claim, name, columns)
        mask = _to_withhold(self._cycle, name, columns, mask)
        if not mask.any():
            return None
        kinds = np.where(partly, STRADDLING, BORROWED)
        kinds[columns.surplus & ~partly] = SURPLUS
        return _part(self._cycle, name, columns, np.flatnonzero(mask), kinds)

    def _below(self, name: str, *, whole_branch: bool = True) -> dict[str, tuple[Mask, Mask]]:
        """For every queue of a branch, what is borrowed at each level up to its top."""
        tree = self._claim.tree
        own = columns_of(self._cycle, name)
        everything = np.ones(len(own.pieces), np.bool_)
        groups = {name: (own, everything, ~everything)}
        guarantee = dict(tree.guarantee[name])
        for child in tree.children.get(name, ()):
            if whole_branch:
                for queue, masks in self._below(child).items():
                    groups[queue] = (columns_of(self._cycle, queue), *masks)
            else:
                for resource, amount in tree.guarantee[child].items():
                    guarantee[resource] = guarantee.get(resource, 0) - amount
        return self._outside(groups, guarantee)

    def _outside(
        self, groups: Mapping[str, tuple[Columns, Mask, Mask]], guarantee: Sums
    ) -> dict[str, tuple[Mask, Mask]]:
        """Pieces come in order: those inside a guarantee further down, those who cannot be
        stopped, the least of units by priority and age, their surplus. Whoever goes beyond the
        guarantee, in anything that is scarce, holds borrowed room."""
        names = list(groups)
        columns = [groups[name][0] for name in names]
        lower = np.concatenate([groups[name][1] for name in names])
        partly = np.concatenate([groups[name][2] for name in names])
        held = np.stack([np.concatenate([c.held_of(r) for c in columns]) for r in self._scarce])
        told = self._told_to_go(names, columns)
        held[:, told] = 0
        priority = np.concatenate([c.priority for c in columns])
        held, priority, extra = self._with_starting(names, held, priority)
        surplus = np.concatenate([c.surplus for c in columns])
        firm = np.concatenate([c.firm for c in columns])
        group = np.append(4 * lower + 2 * ~firm + surplus, np.full(extra, 4 + 2))
        started = np.concatenate([*(c.started for c in columns), np.full(extra, self._cycle.now)])
        sequence = np.lexsort((started, -priority, group))
        before = np.zeros_like(held)
        before[:, sequence] = np.cumsum(held[:, sequence], axis=1) - held[:, sequence]
        room = np.array([[max(0, guarantee.get(r, 0))] for r in self._scarce], np.int64)
        before, held = before[:, : len(lower)], held[:, : len(lower)]
        beyond = lower & ((before + held > room) & (held > 0)).any(axis=0)
        partly = beyond & (partly | ((before < room) & (held > 0)).any(axis=0))
        ends = np.cumsum([len(c.pieces) for c in columns])[:-1]
        parts = (np.split(each, ends) for each in (beyond, partly, told))
        return {
            name: (_with_all_surplus(each, mask, gone), reach)
            for name, each, mask, reach, gone in zip(names, columns, *parts, strict=True)
        }

    def _with_starting(
        self, names: Sequence[str], held: Ints, priority: Ints
    ) -> tuple[Ints, Ints, int]:
        """Units that surely start, or will, count too; they are nobody's victims."""
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
            for piece in self._claim.departed.get(name, ()):
                mask[each.rows_told(piece)] = True
            masks.append(mask)
        return np.concatenate(masks)


def _branch(path: Sequence[str], above: Set[str]) -> tuple[str, str]:
    """On the way up, the first queue that is above another too, and the last before it; at least
    the first of all. "": they share none."""
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


def _part(cycle: Cycle, queue: str, columns: Columns, rows: Ints, kinds: Ints) -> Pool:
    """Those of one queue that may go."""
    number = np.full(len(columns.pieces), -1, np.int64)
    number[rows] = np.arange(len(rows))
    return Pool(
        columns.pieces[rows].tolist(),
        number[columns.least[rows]],
        kinds[rows],
        columns.priority[rows],
        columns.started[rows],
        np.maximum(0.0, cycle.now - columns.since[rows]),
        columns.protected[rows],
        columns.size[rows],
        columns.flat.only(rows),
        [(queue, slice(0, len(rows)))],
        {resource: columns.held_of(resource)[rows] for resource in cycle.tree.ruled},
    )


def _joined(cycle: Cycle, claim: Claim, parts: Sequence[Pool]) -> Pool:
    sizes = [len(part) for part in parts]
    begins = np.cumsum([0, *sizes]).tolist()[: len(parts)]
    least, queues = list[Ints](), list[tuple[str, slice]]()
    for part, begin in zip(parts, begins, strict=True):
        least.append(np.where(part.least < 0, -1, part.least + begin))
        queues += [(name, slice(at.start + begin, at.stop + begin)) for name, at in part.queues]

    def column(name: str) -> npt.NDArray[Any]:
        return _concatenated([getattr(part, name) for part in parts])

    return Pool(
        Chained([part.pieces for part in parts]),
        _concatenated(least),
        column("kind"),
        column("priority"),
        column("started"),
        column("lost"),
        column("protected"),
        column("size"),
        roster.join([part.flat for part in parts], sizes, len(cycle.scene.cluster.resources)),
        queues,
        {r: _concatenated([part.held[r] for part in parts]) for r in claim.tree.ruled},
    )


class Chained:
    """Lists one after another. Thousands may go, and of few of them is asked who they are."""

    def __init__(self, lists: Sequence[list[Piece] | Chained]) -> None:
        self._lists = lists
        self._ends = list(itertools.accumulate(len(each) for each in lists))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, at: int) -> Piece:
        number = bisect.bisect_right(self._ends, at)
        return self._lists[number][at - self._ends[number]]  # counted from its end


def _concatenated(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
