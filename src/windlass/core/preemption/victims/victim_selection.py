"""What if these pieces went: would the gainer fit, and which of them can be spared?

`Trial` answers the first for any set of pieces by a few array operations on a copy of the cluster.
`plan` finds a set: the shortest prefix of an order in which the gainer fits, by bisection (more
gone never means less room), then everybody back who is not needed, dearest first, so that no one
who is left in the set could be spared. It changes nothing but its own copies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, passing, place, releases, sparing, victims
from windlass.core.cluster import Cluster
from windlass.core.facts import Seat, Unit
from windlass.core.place import Failure, Scene
from windlass.core.roster import Flat, Piece
from windlass.core.shapes import Shape
from windlass.core.victims import FIRST, KINDS, Claim, Giving, Pool, Taken

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

Price = tuple[float | Giving, ...]

_FEW = 64
"""Who is looked at first, of those who may go."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Plan:
    gone: Mask
    """Pieces of the pool that go."""
    seats: tuple[Seat, ...]
    """Where the gainer will be."""
    price: Price
    """Smaller is better: the worst kind touched, the queue least above its share, the highest
    priority, work lost, members stopped."""


class Trial:
    """One gainer, and the cluster that it can count on."""

    def __init__(
        self, cycle: Cycle, claim: Claim, pool: Pool, base: Cluster, *, quota: bool
    ) -> None:
        self.cycle, self.claim, self.unit, self.pool = cycle, claim, claim.unit, pool
        others = pool.is_of_others(claim.unit.queue)
        self.quota = (quota and (claim.is_bound or others)) or (pool.conditional and others)
        """Whether quotas are in the way, or would be if the wrong pieces went."""
        self.base, self.nodes = base, np.arange(len(base))
        """What is looked at, and which of the cluster's nodes these are."""
        self.wishes = place.least_of(self.unit)
        self.within = _outside_reservations(cycle, self.unit)
        crowd = cycle.scene.crowd
        terms = any(crowd.concerns(self.unit, wish.role) for wish in self.wishes)
        self.alike = len(self.wishes) == 1 and not terms
        """Members of one shape whose neighbours do not matter: counting is exact."""
        if self.alike and self.unit.pack != "fragmentation":
            self._look_only_where_it_matters()
        self.domains = domains_of(self.base, self.unit)
        """Per node, the number of the domain inside which all members must be."""

    def _look_only_where_it_matters(self) -> None:
        """Of a full cluster few nodes count: those with room, and those where somebody may go."""
        base, flat = self.base, self.pool.flat
        if _is_intricate(self.shape):
            return
        some = base.caps(self.shape) > 0
        some[flat.members[0]] = True
        self.nodes = np.flatnonzero(some)
        rows = arrays.rows_in(self.nodes, base.bank.compute.shape[1], flat.members, flat.devices)
        self.pool = dataclasses.replace(
            self.pool, flat=dataclasses.replace(flat, members=rows[0], devices=rows[1])
        )
        self.base = base.part(self.nodes)
        if self.within is not None:
            self.within = self.within[self.nodes]

    def suffices(self, gone: Mask) -> bool:
        """Whether the gainer may and can start once these are gone."""
        return (not self.quota or sparing.Books(self.claim, self.pool, gone).allow()) and self.fits(
            gone
        )

    def cluster(self, gone: Mask) -> Cluster:
        shapes = [] if self.alike else [self.base.shape_of(wish.role) for wish in self.wishes]
        return without(self.cycle, self.base, self.pool, gone, shapes)

    def fits(self, gone: Mask) -> bool:
        if not self.alike:
            return not isinstance(self.place(self.cluster(gone), gone), Failure)
        return self.enough(self.caps(gone, self.shape))

    def enough(self, caps: Ints) -> bool:
        """Whether members that are alike all find room in one domain."""
        sums = np.bincount(self.domains, weights=caps)
        return bool(len(sums)) and int(sums.max()) >= self.wishes[0].count

    def caps(self, gone: Mask, shape: Shape) -> Ints:
        """Where members of a shape fit once these are gone, looking at nothing else."""
        if _is_intricate(shape):
            return self.allowed(self.cluster(gone).caps(shape))
        return self.allowed(self.base.caps_without(shape, *self.rows(gone)))

    def allowed(self, caps: Ints) -> Ints:
        """Without what is promised to others."""
        self.cycle.work.spend(len(self.base))
        return caps if self.within is None else np.where(self.within, caps, 0)

    @property
    def shape(self) -> Shape:
        return self.base.shape_of(self.wishes[0].role)

    def rows(self, gone: Mask) -> tuple[Ints, Ints]:
        """What these hold, as `Cluster.shift` takes it."""
        flat = self.pool.flat
        return (
            flat.members.compress(gone[flat.seat_of], axis=1),
            flat.devices.compress(gone[flat.grant_of], axis=1),
        )

    def place(
        self,
        cluster: Cluster,
        gone: Mask,
        within: Mask | None = None,
        models: Iterable[str] = ("",),
    ) -> tuple[Seat, ...] | Failure:
        """The very seats; takes them in the given cluster."""
        crowd = self.cycle.scene.crowd
        if not self.alike:
            crowd = crowd.fork()
            for i in np.flatnonzero(gone).tolist():
                piece = self.pool.pieces[i]
                crowd.leave(dataclasses.replace(piece.running, seats=piece.seats))
        scene = Scene(cluster, self.cycle.work, crowd, scorer=self.cycle.scene.scorer)
        scene.within = self.within if within is None else within
        answer: tuple[Seat, ...] | Failure = Failure(self.wishes[0].role, self.wishes[0].count, 0)
        for model in models:
            scene.model = model
            answer = place.place(scene, self.unit, self.wishes)
            if not isinstance(answer, Failure):
                break
        return answer


def _is_intricate(shape: Shape) -> bool:
    """Whether more than sums and whole devices must be told apart: ports, slices of devices."""
    return bool(shape.ports) or any(request.form == "partition" for request in shape.requests)


def has_hope(cycle: Cycle, unit: Unit, cluster: Cluster) -> bool:
    """A quick look: whether each role alone would fit in one domain of such a cluster."""
    domains = domains_of(cluster, unit)
    for wish in place.least_of(unit):
        cycle.work.spend(len(cluster))
        sums = np.bincount(domains, weights=cluster.caps(cluster.shape_of(wish.role)))
        if sums.max(initial=0) < wish.count:
            return False
    return True


def plan(
    trial_of: Callable[[Pool], Trial], pool: Pool, allowed: Mask, models: tuple[str, ...]
) -> Plan | None:
    """The better of two minimal sets: by work lost, and by work lost per device; None if not even
    all who are allowed to go would do."""
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


def plan_with_nobody(trial: Trial, models: tuple[str, ...]) -> Plan | None:
    """Where the gainer will be if nobody goes for it; None: it finds no room."""
    none = np.zeros(0, np.bool_)
    if not trial.suffices(none):
        return None
    seats = _seats(trial, none, models)
    return None if isinstance(seats, Failure) else Plan(none, seats, price(trial.pool, none))


def _orders(pool: Pool, allowed: Mask) -> Iterator[Ints]:
    """The pieces in sequence. First the branch that is furthest above its share gives; in a queue
    lower priority goes first, so that no victim outranks who is spared. The second order looks at
    work alone. The last is for claims that have a right to what is further up in the tree only when
    those below have given. Who is equal stays in place."""
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
    trial_of: Callable[[Pool], Trial],
    pool: Pool,
    sequence: Ints,
    allowed: Mask,
    models: tuple[str, ...],
) -> Plan | None:
    """Thousands may go for who takes back its guarantee, and few have to: the first few are looked
    at, then many more, as long as those are not enough."""
    most, count = int(allowed.sum()), _FEW
    while True:
        first = np.zeros(len(pool), np.bool_)
        first[sequence[: min(count, most)]] = True
        first = _whole_units(pool, first)
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


def _plan_in_order(trial: Trial, rank: Ints, allowed: Mask, models: tuple[str, ...]) -> Plan | None:
    low, most = 0, int(allowed.sum())
    if trial.quota:
        books = sparing.Books(trial.claim, trial.pool, np.zeros_like(allowed))
        low = books.go_until_allowed(np.argsort(rank)[:most])
    enough = first_that(_prefix_fits(trial, rank), low, most)
    return settled(trial, _whole_units(trial.pool, rank < enough), rank, models)


def settled(trial: Trial, gone: Mask, rank: Ints, models: tuple[str, ...]) -> Plan | None:
    """Of a set that is enough: where the gainer will be, and who of the set can stay."""
    seats = _seats(trial, gone, models)
    if isinstance(seats, Failure):
        return None
    near = _near_only(trial, gone, seats)
    if not trial.quota or sparing.Books(trial.claim, trial.pool, near).allow():
        gone = near
    # A single one cannot stay: without it not even all that cost less were enough.
    if gone.sum() > 1 and sparing.spare(trial, gone, rank):
        seats = trial.place(trial.cluster(gone), gone, None, models)
    if isinstance(seats, Failure):
        return None
    if trial.pool.conditional and not sparing.Books(trial.claim, trial.pool, gone).allow():
        return None
    return Plan(gone, seats, price(trial.pool, gone))


def _seats(trial: Trial, gone: Mask, models: tuple[str, ...]) -> tuple[Seat, ...] | Failure:
    """Once these are gone: where a member costs the least, else anywhere."""
    found = trial.place(trial.cluster(gone), gone, _cheapest_nodes(trial, gone), models)
    if isinstance(found, Failure):
        found = trial.place(trial.cluster(gone), gone, None, models)
    return found


def _prefix_fits(trial: Trial, rank: Ints) -> Check:
    """Whether the gainer fits once the first so many of an order are gone."""
    if not trial.alike or _is_intricate(trial.shape):
        return lambda n: trial.fits(_whole_units(trial.pool, rank < n))
    prefix = _Prefix(trial, rank)
    return lambda n: trial.enough(trial.allowed(prefix.caps(n)))


class _Prefix:
    """The cluster once the first so many pieces of an order are gone. Asked for another number, it
    moves only those in between."""

    def __init__(self, trial: Trial, rank: Ints) -> None:
        pool, flat = trial.pool, trial.pool.flat
        with_least = np.where(pool.least >= 0, np.minimum(rank, rank[pool.least]), rank)
        self._shape, self._cluster, self._gone = trial.shape, trial.base.fork(()), 0
        self._seats, self._members = _sorted(with_least[flat.seat_of], flat.members)
        self._grants, self._devices = _sorted(with_least[flat.grant_of], flat.devices)

    def caps(self, count: int) -> Ints:
        between = sorted((self._gone, count))
        seats = slice(*np.searchsorted(self._seats, between).tolist())
        grants = slice(*np.searchsorted(self._grants, between).tolist())
        sign = 1 if count > self._gone else -1
        self._cluster.shift(self._members[:, seats], self._devices[:, grants], sign)
        self._gone = count
        return self._cluster.caps(self._shape)


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


def price(pool: Pool, gone: Mask) -> Price:
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


def _giving(pool: Pool, gone: Mask) -> Giving:
    """By queue of other branches, with what it gives."""
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
    return victims.giving(found, own_queue=bool(own_queue.any()))


def _cheapest_nodes(trial: Trial, gone: Mask) -> Mask | None:
    """Of the nodes with room once all these are gone, those where a member costs the least."""
    if not trial.alike:
        return None
    (wish,), pool = trial.wishes, trial.pool
    caps = trial.caps(gone, trial.shape)
    flat, seats = pool.flat, gone[pool.flat.seat_of]
    cost = np.bincount(
        flat.members[0, seats], (pool.lost * pool.size + 1)[flat.seat_of[seats]], len(caps)
    )
    ids = trial.domains
    sums, costs = np.bincount(ids, weights=caps), np.bincount(ids, weights=cost)
    fitting = np.flatnonzero(sums >= wish.count)
    fitting = fitting[np.lexsort((fitting, costs[fitting] / sums[fitting]))]
    best: tuple[float, Ints] | None = None
    for domain in fitting[: place.DOMAIN_TRIES]:
        nodes = np.flatnonzero((ids == domain) & (caps > 0))
        nodes = nodes[np.lexsort((nodes, cost[nodes] / caps[nodes]))]
        enough = int(np.searchsorted(np.cumsum(caps[nodes]), wish.count)) + 1
        total = float(cost[nodes[:enough]].sum())
        if best is None or total < best[0]:
            best = (total, nodes[:enough])
    if best is None:
        return None
    mask = np.zeros(len(caps), np.bool_)
    mask[best[1]] = True
    return mask


def _whole_units(pool: Pool, gone: Mask) -> Mask:
    """With the surplus of those whose least goes: a unit that loses its least goes whole."""
    return np.asarray(gone | ((pool.least >= 0) & gone[pool.least]))


def _near_only(trial: Trial, gone: Mask, seats: Iterable[Seat]) -> Mask:
    """Without those who hold nothing where the gainer sits."""
    pool, cluster = trial.pool, trial.base
    here = np.zeros(len(cluster), np.bool_)
    here[[cluster.index[seat.node] for seat in seats]] = True
    touching = np.zeros(len(pool), np.bool_)
    touching[pool.flat.seat_of[here[pool.flat.members[0]]]] = True
    return _whole_units(pool, gone & touching)


# --- copies of the cluster ----------------------------------------------------------------------


def without(
    cycle: Cycle,
    base: Cluster,
    pool: Pool,
    gone: Mask | None = None,
    shapes: Iterable[Shape] = (),
) -> Cluster:
    """A copy once these of a pool (all of them without a mask) are gone, with what is promised; it
    will be asked about these shapes."""
    trial = relieved(base, pool.flat, gone, shapes)
    if trial.ports:
        chosen = range(len(pool)) if gone is None else np.flatnonzero(gone).tolist()
        free_ports(trial, [pool.pieces[i] for i in chosen])
    keep_promised(cycle, trial)
    return trial


def relieved(
    cluster: Cluster, flat: Flat, gone: Mask | None, shapes: Iterable[Shape] = ()
) -> Cluster:
    """A copy in which these pieces (all of them without a mask) hold nothing any more."""
    trial = cluster.fork(shapes)
    if gone is None:
        trial.shift(flat.members, flat.devices, +1)
    elif gone.any():
        trial.shift(flat.members[:, gone[flat.seat_of]], flat.devices[:, gone[flat.grant_of]], +1)
    return trial


def free_ports(cluster: Cluster, pieces: Iterable[Piece]) -> None:
    for piece in pieces:
        roles = {role.name: role for role in piece.running.unit.roles}
        for seat in piece.seats:
            role, node = roles.get(seat.role), cluster.index.get(seat.node)
            for port in role.ports if role is not None and node is not None else ():
                cluster.ports[port].discard(node)


def keep_promised(cycle: Cycle, cluster: Cluster) -> None:
    """Ports and slices that are promised stay taken, also where a victim still has them."""
    for role, seat in cycle.departures.insistent():
        releases.insist(cluster, role, seat)


def domains_of(cluster: Cluster, unit: Unit) -> Ints:
    topology = unit.topology
    if topology is not None and topology.required:
        if topology.level in cluster.levels:
            return cluster.domains[cluster.levels.index(topology.level)]
        return np.arange(len(cluster))
    return np.zeros(len(cluster), np.int64)


def _outside_reservations(cycle: Cycle, unit: Unit) -> Mask | None:
    """Nodes that nobody was promised, for a unit that may run into such a promise."""
    beside = passing.crossed(cycle, unit, cycle.expected_end(unit))
    if not beside:
        return None
    mask = np.ones(len(cycle.scene.cluster), np.bool_)
    for held in beside:
        mask[list(held.by_node)] = False
    return mask
