"""Who may be stopped for whom: the rules of rank and of guarantees, and nothing about room.

Between queues only what is borrowed can be taken back, and only by a queue that stays inside its
guarantee. Within a queue the higher priority wins; where the order is `attained`, so does a clearly
smaller index. What is inside a guarantee is never taken by another queue, whatever its priority.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, looks, order, place, predict, roster, yielding
from windlass.core.bounds import Hope
from windlass.core.cluster import Cluster
from windlass.core.facts import SHARE_UNIT, Queue, Role, Unit
from windlass.core.queues import Sums, Tree
from windlass.core.roster import Columns, Flat, Piece

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

YIELDING, FIRST, SURPLUS, BORROWED, OUTRANKED, KINDS = range(6)
"""Who goes first: surplus that yields to any waiting minimum (`core.yielding`); members above their
unit's least; units of queues that borrow; units of the gainer's own queue. These come before all
where the queue is inside its guarantee only when they are gone. `KINDS` is how many there are."""
NO_BRANCH = -1
LEAST_RUN = 600.0
"""Seconds that a workload runs at least before it goes although that leaves its queue below its
guarantee; twice as long each time that it was preempted before, so that its work goes forward."""


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
    """What is taken from one queue of a branch, and the piece of it that goes last."""

    amounts: Sums
    last: Sums
    above: int
    """Of the last piece, by which pieces are in order."""

    def also(self, other: Taken) -> Taken:
        amounts = {r: n + other.amounts[r] for r, n in self.amounts.items()}
        last = self if self.above <= other.above else other
        return Taken(amounts, last.last, last.above)


Giving = tuple[int, ...]
"""How little the queue is above its share that gives what it should least give: from the top of its
branch down, each before the last of its pieces goes. Smaller is better; empty: no queue gives."""


def giving(taken: Iterable[tuple[Branch, str, Taken]], *, own_queue: bool) -> Giving:
    """Of what is taken from some queues, each with its branch. The preemptor's own queue, where it
    need not give, counts as one that is not above its share."""
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
class Claim:
    """A waiting unit that wants others to make room, and what its queue's standing allows."""

    unit: Unit
    need: Sums
    scarce: frozenset[str]
    """Resources that can be reclaimed: its queue is guaranteed them and too little is free."""
    contested: frozenset[str]
    """Resources that it would borrow and of which too little is free: a workload that it takes them
    from, and that is inside its own guarantee of them, would take them back at once."""
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
    others: list[tuple[Columns, Ints]] = dataclasses.field(default_factory=list)
    """Surplus of other queues that may yield to it."""
    _hope: Hope | None = None

    def __bool__(self) -> bool:
        return self.count > 0

    def hope(self, cluster: Cluster, promised: Flat) -> Hope:
        """Where they are, without them."""
        if self._hope is None:
            parts = ((self.own, self.rows), *self.others)
            flats = [columns.flat.only(rows) for columns, rows in parts]
            nodes = np.concatenate([flat.members[0] for flat in flats])
            where = arrays.distinct(nodes, len(cluster))
            self._hope = Hope(cluster, where, [*flats, promised])
        return self._hope


def standing(cycle: Cycle, unit: Unit) -> Standing:
    own = columns_of(cycle, unit.queue)
    rows = np.flatnonzero(_gives_way(cycle, unit, own) & may_go(cycle, unit.queue, own))
    others = [(each, mask.nonzero()[0]) for _, each, mask in surplus_of_others(cycle, unit.queue)]
    count = len(rows) + sum(len(each) for _, each in others)
    if not count:
        return Standing(0, {}, own, rows)
    held = {r: int(own.held_of(r)[rows].sum()) for r in cycle.tree.guaranteed}
    return Standing(count, held, own, rows, others)


def surplus_of_others(cycle: Cycle, queue: str) -> Iterator[tuple[str, Columns, Mask]]:
    """By queue, the surplus that may yield to a waiting workload of this queue."""
    for name in cycle.yielding.queues_for(queue) if cycle.policy.reclaim else ():
        columns = columns_of(cycle, name)
        mask = columns.surplus & may_go(cycle, name, columns)
        if mask.any():
            yield name, columns, mask


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
    return bool(own_victims(cycle, claim)[1].any())


def own_victims(cycle: Cycle, claim: Claim) -> tuple[Columns, Mask]:
    """Those of its own queue, and which of them it may have stopped."""
    name, own = claim.unit.queue, columns_of(cycle, claim.unit.queue)
    mask = _gives_way(cycle, claim.unit, own) & evictable(claim, name, own)
    return own, to_withhold(cycle, name, own, mask)


def surplus_parts(cycle: Cycle, claim: Claim, known: Set[str]) -> Iterator[Pool]:
    """Surplus of queues that are not among the known."""
    for name, columns, surplus in surplus_of_others(cycle, claim.unit.queue):
        mask = surplus & evictable(claim, name, columns)
        if name not in known and mask.any():
            rows = np.flatnonzero(to_withhold(cycle, name, columns, mask))
            yield part_of(cycle, name, columns, rows, np.full_like(columns.size, YIELDING))


def yields(pool: Pool, queue: str) -> Mask:
    """Which pieces belong to other queues and go only because they are surplus."""
    mask: Mask = np.equal(pool.kind, YIELDING)
    for name, part in pool.queues:
        if name == queue:
            mask[part] = False
    return mask


def fair_part(cycle: Cycle, claim: Claim, pool: Pool) -> Pool:
    """Without surplus of other queues that is more than may go together."""
    mask = yields(pool, claim.unit.queue)
    rows = np.flatnonzero(mask)
    rows = rows[np.lexsort((pool.lost[rows], pool.priority[rows]))]
    may_go = yielding.fair_part(cycle, claim.unit, claim.need, pool, rows)
    return pool.only(np.flatnonzero(~mask | may_go))


def nobody(cycle: Cycle, claim: Claim) -> Pool:
    """The same for everybody who asks."""
    if cycle.desk.nobody is None:
        cycle.desk.nobody = joined(cycle, claim, ())
    return cycle.desk.nobody


def evictable(claim: Claim, queue: str, columns: Columns) -> Mask:
    mask = ~columns.firm & ~columns.leaving
    for piece in claim.departed.get(queue, ()):
        mask[columns.rows_told(piece)] = False
    for key in claim.repaired.get(queue, ()):
        mask[columns.rows(key)] = False
    return np.asarray(mask)


def to_withhold(cycle: Cycle, queue: str, columns: Columns, mask: Mask) -> Mask:
    """Of those who may go all; while starts are withheld only these, but for who outranks others
    of its queue that may go: it would stop them itself."""
    if not cycle.desk.withholding:
        return mask
    starts = cycle.desk.starts[queue]
    priority = priorities(cycle.tree.queues[queue], columns)
    lowest = priority[mask & ~starts].min(initial=np.iinfo(np.int64).max)
    return np.asarray(mask & starts & (priority <= lowest))


def may_take_back(claim: Claim, tree: Tree, victim: str) -> bool:
    """Whether, at every level below where the two queues part, the gainer's stays inside."""
    mine, _ = tree.parting(claim.unit.queue, victim)
    return tree.may_reclaim(claim.unit.queue, claim.need, mine)


def scarce_resources(cycle: Cycle, unit: Unit, over: frozenset[str]) -> frozenset[str]:
    """What the unit may reclaim: resources that its own queue is guaranteed and of which it finds
    too little, or whose quota is in its way. All that it needs of them, if there is enough of each
    alone and only too little of everything together."""
    guaranteed = cycle.tree.guarantee[unit.queue]
    own = {resource for resource, asked in cycle.need(unit).items() if asked} & guaranteed.keys()
    found = set(over)
    for wish in place.least_of(unit):
        for names, members in _members_by_resource(cycle, wish.role):
            if members < wish.count:
                found |= names
    return frozenset(found & own if found else own)


def contested_resources(tree: Tree, queue: str, need: Sums) -> frozenset[str]:
    """What the need would borrow of the resources that any queue is guaranteed, where less than it
    needs is free in the whole cluster."""
    own, used = tree.guarantee[queue], tree.used[queue]
    return frozenset(
        r
        for r in tree.guaranteed
        if (asked := need.get(r, 0))
        and used.get(r, 0) + asked > own.get(r, 0)
        and tree.capacity.get(r, 0) - tree.total.get(r, 0) < asked
    )


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


def _gives_way(cycle: Cycle, unit: Unit, columns: Columns) -> Mask:
    """Pieces of the preemptor's own queue that it may have stopped: those that rank below it, and
    surplus whatever its rank."""
    below = _outranked(cycle, unit, columns)
    return np.asarray(below | columns.surplus) if cycle.policy.preempt else below


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


# --- pools --------------------------------------------------------------------------------------


def part_of(
    cycle: Cycle,
    queue: str,
    columns: Columns,
    rows: Ints,
    kinds: Ints,
    branch: tuple[Branch, Ints] | None = None,
) -> Pool:
    """Those of one queue that may go; with its branch, and how far above its share that is before
    each of them goes."""
    number = np.full(len(columns.pieces), -1, np.int64)
    number[rows] = np.arange(len(rows))
    started = columns.started[rows]
    priority = priorities(cycle.tree.queues[queue], columns)
    if columns.surplus.any():
        order_of_surplus = cycle.yielding.order(queue, priority)
        priority = np.where(kinds == YIELDING, order_of_surplus, priority)
    base = max(cycle.tree.queues[queue].min_runtime, LEAST_RUN)
    return Pool(
        columns.pieces[rows].tolist(),
        number[columns.least[rows]],
        kinds[rows],
        priority[rows],
        started,
        np.maximum(0.0, cycle.now - columns.since[rows]),
        columns.protected[rows],
        columns.size[rows],
        columns.flat.only(rows),
        [(queue, slice(0, len(rows)))],
        {resource: columns.held_of(resource)[rows] for resource in cycle.tree.ruled},
        np.zeros(len(rows), np.int64) if branch is None else branch[1][rows],
        np.maximum(columns.protected[rows], started + base * columns.doubled[rows]),
        np.full(len(rows), NO_BRANCH if branch is None else 0, np.int64),
        () if branch is None else (branch[0],),
    )


def joined(cycle: Cycle, claim: Claim, parts: Sequence[Pool], *, conditional: bool = False) -> Pool:
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
        column("above"),
        column("shielded"),
        _concatenated(numbers),
        tuple(branches),
        conditional,
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
