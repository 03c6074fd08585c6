"""Where the members of a unit go: all of its least or nothing, near each other, tightly packed.

`place` takes the room out of the cluster it is given and returns the seats, or leaves the cluster
as it was and says what was missing. `decide`, explanations, reservations and preemption all ask
this one function; they differ only in the cluster they hand in.

For members of one shape the answer is exact: nodes take `caps` of them, sums over domains say
where a gang fits. Several shapes are placed one after another, the scarcest first; where that
fails although each alone fits, the answer is "unresolved", never "impossible".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from windlass.core import affinity, taste
from windlass.core.choosing import Spot
from windlass.core.cluster import Cluster
from windlass.core.crowd import Crowd
from windlass.core.facts import DeviceRequest, Pack, Role, Seat, Topology, Unit
from windlass.core.partitions import Requested
from windlass.core.shapes import Shape
from windlass.core.taste import Taste

if TYPE_CHECKING:
    from windlass.core.shadows import Ceilings, Held

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Where = Ints | None
"""Indexes of the nodes to use, ascending; None: all."""

DOMAIN_TRIES = 32
"""Domains tried for a unit of several shapes before the answer is "unresolved"."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """What was missing."""

    role: Role
    wanted: int
    room: int
    """How many members of the role there was room for, in the best domain that counts."""
    topology: bool = False
    """Enough in all, not enough in any one domain of the required level."""
    resolved: bool = True
    reserved_until: float | None = None
    """There is room, but it is promised to somebody from then on."""


class Scorer(Protocol):
    """How `pack: fragmentation` chooses; see `core.fragmentation`."""

    def is_informed(self, cluster: Cluster, shape: Shape) -> bool:
        """Whether the demand history suffices for this shape; until then `binpack` places it."""
        ...

    def requested_profiles(self, cluster: Cluster, shape: Shape) -> Requested:
        """How often each partition profile was requested; empty: too little is known."""
        ...

    def wanted(self, cluster: Cluster) -> Mask:
        """Nodes with devices that somebody asked for."""
        ...

    def assign(
        self, cluster: Cluster, shape: Shape, nodes: Ints, room: Ints, count: int
    ) -> list[Spot]:
        """Spots for `count` members, where they break the least that is useful."""
        ...


@dataclasses.dataclass(slots=True)
class Work:
    """Counts node-visits against a budget."""

    left: int

    def spend(self, visits: int) -> None:
        self.left -= visits

    @property
    def exhausted(self) -> bool:
        return self.left <= 0


@dataclasses.dataclass(slots=True)
class Scene:
    """What a placement happens in."""

    cluster: Cluster
    work: Work
    crowd: Crowd
    """Who is where, by labels, for affinity and spread terms."""
    ceilings: dict[int, Ints] = dataclasses.field(default_factory=dict)
    """Shape id -> most members per node, where reserved room must stay free."""
    limits: dict[tuple[Held, ...], Ceilings] = dataclasses.field(default_factory=dict)
    """Ceilings that were found before; kept by `shadows`."""
    scorer: Scorer | None = None
    model: str = ""
    """Of several acceptable models, only this one."""
    within: Mask | None = None
    """Only these nodes."""

    def shape(self, role: Role) -> Shape:
        return self.cluster.shape_of(role, self.model)

    def caps(self, shape: Shape) -> Ints:
        caps = self.cluster.caps(shape)
        self.work.spend(len(caps))
        ceiling = self.ceilings.get(shape.id)
        if ceiling is not None:
            caps = np.minimum(caps, ceiling)
        return caps if self.within is None else np.where(self.within, caps, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """So many members of a role, numbered from `first`."""

    role: Role
    count: int
    first: int = 0


def place(scene: Scene, unit: Unit, wishes: Sequence[Wish]) -> tuple[Seat, ...] | Failure:
    """Seats for all wishes of a unit, taken; or why not, and nothing is taken."""
    mark = scene.cluster.mark()
    answer = _place(scene, unit, wishes)
    if isinstance(answer, Failure):
        scene.cluster.rollback(mark)
    return answer


def least_of(unit: Unit) -> list[Wish]:
    """What must start together; a unit that is no gang begins with one member."""
    if unit.gang:
        return [Wish(role, role.least) for role in unit.roles if role.least > 0]
    return [Wish(role, 1) for role in unit.roles[:1]]


def as_told_to(failure: Failure, wishes: Sequence[Wish]) -> Failure:
    """What was missing for one unit, said of another of its kind that asks for as much or more."""
    if len(wishes) > 1:
        return failure
    (wish,) = wishes
    return Failure(
        wish.role, wish.count, failure.room, failure.topology, failure.resolved,
        failure.reserved_until,
    )  # fmt: skip


def _place(scene: Scene, unit: Unit, wishes: Sequence[Wish]) -> tuple[Seat, ...] | Failure:
    for wish in wishes:
        if scene.crowd.concerns(unit, wish.role):
            return affinity.place(scene, unit, wishes)
    if len(wishes) == 1:
        return _place_alike(scene, unit, wishes[0])
    return _place_several(scene, unit, wishes)


# --- members of one shape -----------------------------------------------------------------------


def _place_alike(scene: Scene, unit: Unit, wish: Wish) -> tuple[Seat, ...] | Failure:
    shape = scene.shape(wish.role)
    caps = scene.caps(shape)
    total = int(caps.sum())
    if total < wish.count:
        return Failure(wish.role, wish.count, total, resolved=shape.is_counted_exactly)
    best, resolved = 0, shape.is_counted_exactly
    liked = taste.of(scene.cluster, wish.role)
    for where, sums in _domains(scene.cluster, unit.topology, caps, wish.count, liked):
        if sums is not None:
            best = max(best, sums)
            continue
        spots = _spread_over(scene, unit.pack, shape, caps, where, wish.count, liked)
        seats = _sit(scene.cluster, shape, wish, spots)
        if seats is not None:
            return seats
        resolved = False  # what was counted could not be taken together: that proves nothing
    return Failure(wish.role, wish.count, best, topology=True, resolved=resolved)


def _domains(
    cluster: Cluster, topology: Topology | None, caps: Ints, count: int, liked: Taste | None
) -> Iterator[tuple[Where, int | None]]:
    """Sets of nodes to try, best first: (nodes, None), or (None, room) for one too small.

    The tightest domain that fits, at the level asked for; when that is only preferred, the next
    wider level, and at last everything. One member needs no neighbours: it goes anywhere. A unit
    that asked for no level is kept together only where that costs it no points.
    """
    levels = list(cluster.levels)
    if topology is None or topology.level not in levels:
        if topology is not None and topology.required and topology.level not in ("node", *levels):
            yield None, 0
            return
        start = len(levels) - 1 if topology is None and count > 1 else -1
        if topology is not None and topology.level == "node":
            yield from _one_node(caps, count, liked, required=topology.required)
            if topology.required:
                return
            start = len(levels) - 1
    else:
        start = levels.index(topology.level)
    required = topology is not None and topology.required
    for level in range(start, -1, -1):
        sums = cluster.by_domain(level, caps)
        fitting = (sums >= count).nonzero()[0]
        if len(fitting) and liked is not None:
            order, points = liked.domains(cluster.domains[level], caps, sums, count)
            if topology is not None or points[0] == liked.most(caps, count):
                yield cluster.nodes_in(level, int(order[0])), None
        elif len(fitting):
            tightest = int(fitting[sums[fitting].argmin()])
            yield cluster.nodes_in(level, tightest), None
        elif required:
            yield None, int(sums.max(initial=0))
        if required:
            return
    if not required:
        yield None, None


def _one_node(
    caps: Ints, count: int, liked: Taste | None, *, required: bool
) -> Iterator[tuple[Where, int | None]]:
    fitting = np.flatnonzero(caps >= count)
    if len(fitting) and liked is not None:
        yield liked.nodes(fitting, caps[fitting])[:1], None
    elif len(fitting):
        yield fitting[[int(np.argmin(caps[fitting]))]], None
    elif required:
        yield None, int(caps.max(initial=0))


def _spread_over(
    scene: Scene,
    pack: Pack,
    shape: Shape,
    caps: Ints,
    where: Where,
    count: int,
    liked: Taste | None,
) -> list[Spot]:
    """How many members go to which nodes; the caller made sure that there is room."""
    nodes = (caps > 0).nonzero()[0] if where is None else where[caps[where] > 0]
    if liked is None:
        return _arrange(scene, pack, shape, nodes, caps[nodes], count)
    spots: list[Spot] = []
    for some in liked.groups(nodes):
        part = min(count, int(caps[some].sum()))
        spots += _arrange(scene, pack, shape, some, caps[some], part)
        count -= part
        if not count:
            break
    return spots


def _arrange(
    scene: Scene, pack: Pack, shape: Shape, nodes: Ints, room: Ints, count: int
) -> list[Spot]:
    """So many members over nodes that are liked alike; of equal ones the first are taken."""
    if pack == "spread":
        return _evenly(nodes, room, count)
    scorer = scene.scorer if pack == "fragmentation" else None
    if scorer is not None and not scorer.is_informed(scene.cluster, shape):
        scorer = None
    if not shape.requests:
        return _without_devices(scene.cluster, scorer, shape, nodes, room, count)
    if count == 1 and shape.is_one_partition:
        requested = scorer.requested_profiles(scene.cluster, shape) if scorer else ()
        return [_least_blocking(scene.cluster, shape.requests[0], nodes, room, requested)]
    if scorer is None:
        return _tightly(nodes, room, count)
    return scorer.assign(scene.cluster, shape, nodes, room, count)


def _without_devices(
    cluster: Cluster, scorer: Scorer | None, shape: Shape, nodes: Ints, room: Ints, count: int
) -> list[Spot]:
    """Members that need no device go where devices are not: those nodes are for who needs them.
    With a scorer, those who find no room there go where devices stay the most useful."""
    beside: list[Spot] = []
    if scorer is not None:
        wanted = scorer.wanted(cluster)[nodes]
        rest = max(0, count - int(room[~wanted].sum()))
        if rest:
            beside = scorer.assign(cluster, shape, nodes[wanted], room[wanted], rest)
        nodes, room, count = nodes[~wanted], room[~wanted], count - rest
    if not count:
        return beside
    devices = cluster.bank.unlocked[nodes]
    return [*_tightly(nodes, room, count, devices if devices.any() else None), *beside]


def _tightly(nodes: Ints, room: Ints, count: int, avoid: Ints | None = None) -> list[Spot]:
    """Fewest nodes, and for what is left over the one with the least room that still fits."""
    key = room if avoid is None else avoid * (1 << 20) + np.minimum(room, (1 << 20) - 1)
    if count == 1:  # there is room for one on each of them
        return [(int(nodes[key.argmin()]), 1, ())]
    spots: list[Spot] = []
    holds = (room >= count).nonzero()[0]
    if not len(holds):
        # Whole nodes first, the roomiest of them; of equal ones the first.
        order = np.lexsort((-room,) if avoid is None else (-room, avoid))
        filled = np.cumsum(room[order])
        whole = int(np.searchsorted(filled, count, side="right"))
        spots = [(int(nodes[i]), int(room[i]), ()) for i in order[:whole]]
        count -= int(filled[whole - 1]) if whole else 0
        if count == 0:
            return spots
        rest = order[whole:]
        holds = rest[room[rest] >= count]
    last = int(holds[key[holds].argmin()])
    return [*spots, (int(nodes[last]), count, ())]


def _least_blocking(
    cluster: Cluster, request: DeviceRequest, nodes: Ints, room: Ints, requested: Requested
) -> Spot:
    """The position of one partition that blocks the fewest other placements, over all nodes; of
    equal ones on the node with the least room, then on the first."""
    by_look: dict[tuple[int, bytes], int] = {}
    for i, look in enumerate(cluster.bank.looks(nodes)):
        known = by_look.setdefault(look, i)
        if room[i] < room[known]:
            by_look[look] = i
    places = (
        (*found, i)
        for i in by_look.values()
        if (found := cluster.bank.cheapest_partition(request, int(nodes[i]), requested))
    )
    _, _, position, best = min(places, key=lambda each: (*each[:2], room[each[3]], each[3]))
    return int(nodes[best]), 1, (position,)


def _evenly(nodes: Ints, room: Ints, count: int) -> list[Spot]:
    """One each to the emptiest nodes; in rounds when there are more members than nodes."""
    order = np.argsort(-room, kind="stable")
    nodes, room = nodes[order], room[order]
    taken = np.zeros(len(nodes), np.int64)
    while count > 0:
        open_nodes = np.flatnonzero(taken < room)
        rounds = max(1, count // len(open_nodes))
        rounds = min(rounds, int((room - taken)[open_nodes].min()))
        some = open_nodes if count >= len(open_nodes) * rounds else open_nodes[:count]
        taken[some] += rounds
        count -= rounds * len(some)
    return [(int(node), int(n), ()) for node, n in zip(nodes, taken, strict=True) if n]


def _sit(
    cluster: Cluster, shape: Shape, wish: Wish, spots: Sequence[Spot]
) -> tuple[Seat, ...] | None:
    mark = cluster.mark()
    seats: list[Seat] = []
    index, name = wish.first, wish.role.name
    for node, count, wished in spots:
        grants = cluster.take(shape, node, count, wished)
        if grants is None:
            cluster.rollback(mark)
            return None
        node_name = cluster.nodes[node].name
        seats += [Seat(name, i, node_name, grant) for i, grant in enumerate(grants, index)]
        index += len(grants)
    return tuple(seats)


# --- several shapes -----------------------------------------------------------------------------


def _place_several(scene: Scene, unit: Unit, wishes: Sequence[Wish]) -> tuple[Seat, ...] | Failure:
    """Scarcest shape first, in one domain if the unit asks for one."""
    cluster = scene.cluster
    by_scarcity = sorted(wishes, key=lambda wish: _slack(scene, wish))
    for wish in by_scarcity:
        shape = scene.shape(wish.role)
        room = int(scene.caps(shape).sum())
        if room < wish.count:
            return Failure(wish.role, wish.count, room, resolved=shape.is_counted_exactly)
    first = by_scarcity[0]
    caps = scene.caps(scene.shape(first.role)).copy()  # as it is now, not while it is being tried
    failure = Failure(first.role, first.count, 0, topology=True)
    liked = taste.of(cluster, first.role)
    domains = candidate_domains(cluster, unit.topology, caps, first.count, liked)
    for tries, where in enumerate(domains):
        if tries >= DOMAIN_TRIES or scene.work.exhausted:
            return dataclasses.replace(failure, resolved=False)
        answer = _all_in(scene, unit, by_scarcity, where)
        if isinstance(answer, Failure):
            answer = _all_in(scene, unit, by_scarcity[::-1], where)
        if not isinstance(answer, Failure):
            return answer
        failure = answer
    # Each role fits alone; that they do not fit together in this order proves nothing.
    required = unit.topology is not None and unit.topology.required
    return dataclasses.replace(failure, topology=required, resolved=False)


def _slack(scene: Scene, wish: Wish) -> tuple[float, str]:
    room = int(scene.caps(scene.shape(wish.role)).sum())
    return room / max(1, wish.count), wish.role.name


def candidate_domains(
    cluster: Cluster, topology: Topology | None, caps: Ints, count: int, liked: Taste | None
) -> Iterator[Where]:
    """Domains with room for the scarcest shape, most liked and tightest first, level by level."""
    if topology is not None and topology.level == "node":
        fitting = np.flatnonzero(caps >= count)
        room = caps[fitting]
        order = np.argsort(room, kind="stable")
        for node in fitting[order] if liked is None else liked.nodes(fitting, room):
            yield fitting[fitting == node]
        nearest = cluster.levels[-1] if cluster.levels else "node"
        topology = topology if topology.required else Topology(nearest)
    if topology is not None and topology.level in cluster.levels:
        start = cluster.levels.index(topology.level)
        stop = start - 1 if topology.required else -1
        for level in range(start, stop, -1):
            sums = cluster.by_domain(level, caps)
            fitting = np.flatnonzero(sums >= count)
            fitting = fitting[np.argsort(sums[fitting], kind="stable")]
            if liked is not None:
                fitting, _ = liked.domains(cluster.domains[level], caps, sums, count)
            for domain in fitting:
                yield cluster.nodes_in(level, int(domain))
    if topology is None or not topology.required:
        yield None


def _all_in(
    scene: Scene, unit: Unit, wishes: Sequence[Wish], where: Where
) -> tuple[Seat, ...] | Failure:
    mark = scene.cluster.mark()
    seats: list[Seat] = []
    for wish in wishes:
        shape = scene.shape(wish.role)
        caps = scene.caps(shape)
        room = int((caps if where is None else caps[where]).sum())
        if room >= wish.count:
            liked = taste.of(scene.cluster, wish.role)
            spots = _spread_over(scene, unit.pack, shape, caps, where, wish.count, liked)
            sat = _sit(scene.cluster, shape, wish, spots)
            if sat is not None:
                seats += sat
                continue
        scene.cluster.rollback(mark)
        return Failure(wish.role, wish.count, room)
    order = {wish.role.name: i for i, wish in enumerate(wishes)}
    return tuple(sorted(seats, key=lambda seat: (order[seat.role], seat.index)))


def sit_down(cluster: Cluster, unit: Unit, seats: Sequence[Seat]) -> bool:
    """Takes the very seats if all of them are free; else nothing."""
    roles, mark = {role.name: role for role in unit.roles}, cluster.mark()
    for seat in seats:
        if not cluster.admits(roles[seat.role], seat):
            cluster.rollback(mark)
            return False
        cluster.occupy(roles[seat.role], seat)
    return True
