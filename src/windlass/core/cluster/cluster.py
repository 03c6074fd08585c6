"""Nodes as arrays: what is free, what fits where, taking and giving back, with undo.

One `Cluster` lives in the snapshot and follows events; `decide` works on a `fork` of it. For every
shape of member it keeps `caps`: how many such members each node could take right now. A change of
a node is noted in a log; a shape that is asked for again recomputes only the nodes noted since.
So the cost of a question grows with what changed, not with the size of the cluster.

Nodes are in the order of their place and name, so that index order is the same however the
snapshot came about, and every tie is broken by index.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core import arrays, devices, kept, locality, reserved
from windlass.core.accepting import Accepting
from windlass.core.choosing import ANYWHERE
from windlass.core.facts import Constraint, DeviceRequest, Grant, Node, Preference, Role, Seat
from windlass.core.gauge import Gauge
from windlass.core.kept import UNKNOWN, Kept
from windlass.core.locality import Locality
from windlass.core.numbers import Numbers, of_domains
from windlass.core.partitions import Position
from windlass.core.ports import clashing
from windlass.core.shapes import Shape, Shapes

if TYPE_CHECKING:
    from windlass.core.asked import Asked

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Needs = locality.Needs

_MANY = np.int64(1 << 40)
_ALL = slice(None)
_SPARE_SHAPES = 256
"""So many that nobody waits with any more are still kept: they may come again."""


class Cluster:
    def __init__(self, nodes: Sequence[Node], levels: tuple[str, ...] = ()) -> None:
        self.nodes = sorted(nodes, key=lambda node: (node.path, node.name))
        self.index = {node.name: i for i, node in enumerate(self.nodes)}
        self._whole: tuple[Cluster, Ints] | None = None
        """Of a part: what it is a part of, and which nodes."""
        self.levels = levels
        self.shapes = Shapes()
        self.resources: dict[str, int] = {}
        for node in self.nodes:
            attached = (f"attach:{driver}" for driver in node.attach_limits)
            for name in (*node.allocatable, *attached, *locality.names(node)):
                self.resources.setdefault(name, len(self.resources))
        size = len(self.nodes)
        self.capacity: Ints = np.zeros((len(self.resources), size), np.int64)
        self.open: Mask = np.zeros(size, np.bool_)
        for i, node in enumerate(self.nodes):
            self._fill_node(i, node)
        self.price: Ints = np.fromiter((node.price for node in self.nodes), np.int64, size)
        self.priced = bool(self.price.any())
        self.free: Ints = self.capacity.copy()
        self.bank = devices.Bank(self.nodes)
        self.locality = Locality(self.nodes, self.resources)
        self.ports: dict[int, set[int]] = {}
        self.domains = [of_domains(self.nodes, depth) for depth in range(len(levels))]
        """Per level, the number of the domain each node is in."""
        self.charges: dict[DeviceRequest, int] = {}
        """What a request counts for in quotas; kept by `amounts`."""
        self.asked: dict[str, Asked] = {}
        """What waiting units ask for, by their keys; kept by `cycle` and the snapshot."""
        self.accepting = Accepting(self.nodes)
        self.reserved = reserved.Table()
        """What advance reservations hold back, as of the decision that is being made."""
        self._all_open = bool(self.open.all())
        self._starts: dict[int, tuple[Ints, Ints]] = {}
        self._domains_of: dict[str, Ints] = {}
        self._when_empty: dict[int, Ints] = {}
        self._kept = Kept(size)
        """Per shape, what fits where, as of when it was last asked for."""
        self._touched: list[int] = []
        """Nodes of which something changed, one after another."""
        self._generation = 0
        """How often that was begun anew."""
        self._origin: tuple[Cluster, int, int] | None = None
        """What it is a fork of, and as of which change and generation of that."""
        self._undo: list[tuple[int, Ints, devices.Row, tuple[int, ...]]] = []

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """By place and name. Of a part, found when somebody asks: most only count."""
        whole, where = self._whole or (self, np.zeros(0, np.int64))
        return [whole.nodes[i] for i in where.tolist()]

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Name -> number."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def __len__(self) -> int:
        return len(self.open)

    def fork(self, shapes: Iterable[Shape] | None = None) -> Cluster:
        """An independent copy of what can change; facts about nodes are shared. What is kept per
        shape comes along, or only that of the shapes named."""
        twin = copy.copy(self)
        if shapes is None:
            self.refresh()
            self._touched.clear()
            self._generation += 1
            self._kept.all_at(0)
            twin._kept, twin._origin = self._kept.copy(), None
        else:
            twin._origin = (self, len(self._touched), self._generation)
            twin._kept = Kept(len(self))
            for shape in shapes:
                twin._kept.add(shape, self.caps(shape), 0)
        twin.free = self.free.copy()
        twin.open = self.open.copy()
        twin.bank = self.bank.fork()
        twin.ports = {port: set(where) for port, where in self.ports.items()}
        twin._touched = []
        twin._undo = []
        return twin

    def emptied(self) -> Cluster:
        """A copy in which nobody holds anything and every node is there."""
        twin = self.fork(())
        twin.free, twin.bank = self.capacity.copy(), self.bank.emptied()
        twin.open, twin._all_open = np.ones(len(self), np.bool_), True
        twin.ports, twin._origin = {}, None
        return twin

    def part(self, where: Ints) -> Cluster:
        """Some of the nodes (ascending) as a cluster of their own, host ports free; rows for it
        come from `arrays.rows_in`."""
        twin = copy.copy(self)
        for found_when_asked in ("nodes", "index"):
            twin.__dict__.pop(found_when_asked, None)
        twin.capacity, twin.free = self.capacity[:, where], self.free[:, where]
        twin.open, twin.price = self.open[where], self.price[where]
        twin._all_open = self._all_open or bool(twin.open.all())
        twin.accepting = self.accepting.part(where)
        twin.reserved = self.reserved.part(where, len(self))
        twin.bank, twin.ports = self.bank.part(where), {}
        twin.locality = self.locality.part(where)
        twin.domains = [ids[where] for ids in self.domains]
        twin._whole, twin._starts = (self, where), {}
        twin._when_empty, twin._domains_of = {}, {}
        twin._kept, twin._touched, twin._undo, twin._origin = Kept(len(where)), [], [], None
        return twin

    def carry_over(self, old: Cluster, numbers: Numbers) -> None:
        """Nodes that stood in another cluster are as full as there, and what was found out about
        them holds. Only where both have the same columns."""
        was, now = numbers.carried
        self._touched = fresh = np.setdiff1d(np.arange(len(self)), now).tolist()
        self.free[:, now] = old.free[:, was]
        self.bank.carry_over(old.bank, was, now)
        for port, where in old.ports.items():
            self.ports[port] = {int(n) for n in numbers.node[list(where)] if n >= 0}
        self.shapes, self.asked, self.charges = old.shapes, old.asked, old.charges
        old.refresh()
        self._kept = old._kept.unreserved().carried_over(len(self), was, now)
        self.accepting.carry_over(old.accepting, numbers, fresh)

    # --- facts about nodes

    def update(self, node: Node) -> None:
        """New facts about a node that keeps its place and devices: readiness, labels, sizes."""
        i = self.index[node.name]
        held = self.capacity[:, i] - self.free[:, i]
        self.nodes[i] = node
        self._fill_node(i, node)
        self.free[:, i] = self.capacity[:, i] - held
        self._all_open = bool(self.open.all())
        self.accepting.update(i, node)
        for shape_id, counts in self._when_empty.items():
            counts[i] = self._fit(self.shapes.by_id[shape_id], np.array([i]), empty=True)[0]
        self._domains_of.clear()
        self.price[i] = node.price
        self.priced = bool(self.price.any())
        self._touched.append(i)

    def _fill_node(self, i: int, node: Node) -> None:
        self.open[i] = node.ready and node.ready_in <= 0
        for name, column in self.resources.items():
            self.capacity[column, i] = node.allocatable.get(name, 0)
        for driver, most in node.attach_limits.items():
            self.capacity[self.resources[f"attach:{driver}"], i] = most
        for name, amount in locality.sizes(node):
            self.capacity[self.resources[name], i] = amount

    def open_also(self, where: Iterable[int]) -> None:
        """Counts nodes that do not exist yet as if they did."""
        for i in where:
            self.open[i] = True
            self._touched.append(i)
        self._all_open = bool(self.open.all())

    def mask(self, constraint: Constraint) -> Mask:
        """Nodes that a constraint accepts, whether or not they take members now. Read only."""
        return self.accepting.mask(constraint)

    def takes(self, constraint: Constraint) -> Mask:
        """Nodes that take such members now, as far as their keepers and they themselves say."""
        if not constraint.not_now and not constraint.reserved:
            return self.open
        found = self.open & ~self.reserved.barred(constraint.reserved, len(self))
        found[[self.index[name] for name in constraint.not_now if name in self.index]] = False
        return found

    def usable(self, constraint: Constraint) -> Mask | None:
        """Nodes that are accepted and take such members now; None: all of them, as mostly."""
        always = self._all_open and not constraint.not_now and not constraint.reserved
        if always and self.accepting.everywhere(constraint):
            return None
        return self.mask(constraint) & self.takes(constraint)

    def points(self, preferences: tuple[Preference, ...]) -> Ints:
        """How much each node is preferred. Read only."""
        return self.accepting.points(preferences)

    def domain(self, key: str) -> Ints:
        """For every node a number for its value of a label; -1: it has no such label. Read only."""
        found = self._domains_of.get(key)
        if found is None:
            numbers: dict[str, int] = {}
            values = (node.labels.get(key) for node in self.nodes)
            ids = (-1 if v is None else numbers.setdefault(v, len(numbers)) for v in values)
            found = self._domains_of[key] = np.fromiter(ids, np.int64, len(self))
        return found

    @property
    def version(self) -> int:
        """Changes whenever what is free changes."""
        return len(self._touched)

    # --- what fits where

    def shape_of(self, role: Role, model: str = "") -> Shape:
        return self.shapes.of(role, self.resources, model)

    def caps(self, shape: Shape) -> Ints:
        """How many more members of the shape each node takes. Read only."""
        known, now = self._kept, len(self._touched)
        row = known.row.get(shape.id)
        if row is None:
            return known.add(shape, self._fit_first(shape), now)
        caps: Ints = known.table[row]
        seen = known.seen[row]
        if seen < now:
            self._catch_up(shape, caps, self._touched[seen:])
            known.seen[row], known.totals[row] = now, UNKNOWN
        return caps

    def _fit_first(self, shape: Shape) -> Ints:
        """`_fit` of all nodes. What a fork was made of knows it but for what changed since."""
        if self._origin is not None:
            origin, version, generation = self._origin
            if generation == origin._generation:
                caps = origin.caps(shape).copy()
                changed = arrays.distinct(origin._touched[version:] + self._touched, len(self))
                caps[changed] = self._fit(shape, changed)
                return caps
        return self._fit(shape, _ALL)

    def _catch_up(self, shape: Shape, caps: Ints, touched: list[int]) -> None:
        """Counts again where something changed."""
        changed = set(touched)
        whole_only = not self.reserved.has_parts(shape.constraint.reserved)
        if len(changed) <= kept.FEW and shape.is_plain and whole_only:
            whole = self.bank.whole_devices(shape)
            if whole is not None:
                usable = self.usable(shape.constraint)
                kept.count_on(changed, caps, shape, self.free, self.bank.unlocked, whole, usable)
                return
        where = np.array(list(changed), np.int64)
        caps[where] = self._fit(shape, where)

    def refresh(self) -> None:
        """Brings every kept shape up to date, all at once."""
        known, now = self._kept, len(self._touched)
        first = min(known.seen, default=now)
        if first < now:
            changed = arrays.distinct(self._touched[first:], len(self))
            known.put(changed, self.caps_of(self.kept_shapes(), changed))
            known.all_at(now)

    def keep(self, shapes: Sequence[Shape], origin: Cluster) -> None:
        """Keeps these shapes from now on, in a fork and in what it is a fork of: the next one then
        finds them up to date but for what changed."""
        for shape in shapes:
            if shape.id not in self._kept.row:
                self._kept.add(shape, origin.caps(shape), 0)
        if len(origin._kept.row) > _SPARE_SHAPES + 2 * len(shapes):
            origin._kept = origin._kept.only(shapes)

    def kept_caps(self, shapes: Gauge, where: Ints) -> Ints:
        """`caps` of shapes that are kept, as they were when last asked for, by shape and node."""
        rows = np.array([self._kept.row[shape.id] for shape in shapes.shapes], np.int64)
        return self._kept.table[rows[:, None], where]

    def totals_of(self, shapes: Sequence[Shape]) -> Ints:
        """How many members of each of these shapes, which are kept, all nodes take together."""
        self.refresh()
        return np.array([self._kept.total(shape) for shape in shapes], np.int64)

    def touched_since(self, version: int) -> list[int]:
        """Nodes of which something changed since then, each as often as it did."""
        return self._touched[version:]

    def caps_so_far(self, shape: Shape) -> Ints:
        """`caps` as they were when last asked for: no less, where room only shrank. Read only."""
        row = self._kept.row.get(shape.id)
        if row is None:
            return self.caps(shape)
        caps: Ints = self._kept.table[row]
        return caps

    def looked_at(self, shape: Shape) -> int:
        """At which version `caps_so_far` were last brought up to date."""
        row = self._kept.row.get(shape.id)
        return -1 if row is None else self._kept.seen[row]

    def caps_at(self, shape: Shape, where: Ints) -> Ints:
        """`caps` of some nodes, found anew: for a cluster that is asked about few of them."""
        return self._fit(shape, where)

    def caps_without(self, shape: Shape, members: Ints, devices: Ints) -> Ints:
        """`caps` if rows as `shift` takes them were given back, for a shape without host ports.
        Nothing changes, and only nodes that the rows name are looked at."""
        caps = self.caps(shape)
        if not members.shape[1]:
            return caps
        nodes = arrays.distinct(members[0], len(self))
        part = self.part_without(nodes, members, devices)
        caps = caps.copy()
        caps[nodes] = part.caps_at(shape, np.arange(len(nodes)))
        return caps

    def part_without(self, where: Ints, members: Ints, devices: Ints) -> Cluster:
        """Some of the nodes (ascending), if rows as `shift` takes them were given back there."""
        part = self.part(where)
        part.shift(*arrays.rows_in(where, self.bank.compute.shape[1], members, devices), +1)
        return part

    def capacity_of(self, shape: Shape) -> Ints:
        """How many members of the shape each node would take if it were empty. Read only."""
        found = self._when_empty.get(shape.id)
        if found is None:
            found = self._fit(shape, _ALL, empty=True)
            self._when_empty[shape.id] = found
        return found

    def _fit(self, shape: Shape, where: Ints | slice, *, empty: bool = False) -> Ints:
        amounts = self.capacity if empty else self.free
        fit = kept.fit_amounts(shape, amounts, where)
        if shape.unknown:
            fit[:] = 0  # asks for a resource that no node has
        if shape.requests:
            rooms = self.locality.rooms(shape, amounts, where)
            np.minimum(fit, self.bank.fit(shape, where, empty=empty, rooms=rooms), out=fit)
        if shape.ports:
            np.minimum(fit, 1, out=fit)
            if not empty:
                taken = set().union(*(self.ports[p] for p in clashing(shape.ports, self.ports)))
                fit[np.isin(np.arange(len(self))[where], list(taken))] = 0
        np.maximum(fit, 0, out=fit)
        usable = self.mask(shape.constraint) if empty else self.usable(shape.constraint)
        if usable is not None:
            fit *= usable[where]
        if shape.constraint.reserved and not empty:
            self.reserved.limit(fit, shape, where, self)
        return fit

    def kept_shapes(self) -> Gauge:
        """All that it keeps `caps` of."""
        return self._kept.gauge(len(self.resources))

    def caps_of(self, shapes: Gauge, where: Ints | slice) -> Ints:
        """`caps` by shape and node, found anew."""
        fit = shapes.by_amounts(self.free[:, where])
        if shapes.requests:
            most = np.array(self.bank.fit_requests(shapes.requests, where))[shapes.requested]
            fit[shapes.requesting] = np.minimum(fit[shapes.requesting], most)
        np.maximum(fit, 0, out=fit)
        for constraint, rows in shapes.by_constraint.items():
            usable = self.usable(constraint)
            if usable is not None:
                fit[rows] *= usable[where]
            for row in rows if self.reserved.has_parts(constraint.reserved) else ():
                self.reserved.limit(fit[row], shapes.shapes[row], where, self)
        for row, shape in shapes.intricate:
            fit[row] = self._fit(shape, where)
        return fit

    # --- taking and giving back

    def take(
        self, shape: Shape, node: int, count: int, wished: Sequence[Position] = ()
    ) -> list[tuple[Grant, ...]] | None:
        """Room for members on one node; None, and nothing taken, when they do not all fit. `wished`
        are the positions of their shares or partitions, one each; none: the bank chooses."""
        self._remember(node)
        grants: list[tuple[Grant, ...]] = [()] * count
        if shape.requests:
            room = self._room(shape, node) if shape.bundle else None
            each_of = zip(wished or (ANYWHERE,) * count, reversed(range(count)), strict=True)
            found = [self.bank.take(shape, node, room, at, more) for at, more in each_of]
            grants = [each for each in found if each is not None]
            if len(grants) < count:
                self.rollback(len(self._undo) - 1)
                return None
        for column, need in shape.needs:
            self.free[column, node] -= need * count
        for each in grants if shape.bundle else ():
            for column, need in self.locality.inside(shape, node, self.bank.numa_of(node, each)):
                self.free[column, node] -= need
        for port in shape.ports:
            self.ports.setdefault(port, set()).add(node)
        self._touched.append(node)
        return grants

    def _room(self, shape: Shape, node: int) -> devices.Room | None:
        rooms = self.locality.rooms(shape, self.free, slice(node, node + 1))
        return rooms[0] if rooms else None

    def needs_of(self, shape: Shape, node: int, grants: Iterable[Grant]) -> Needs:
        """What a member holds that has these devices, by column."""
        if not shape.bundle:
            return shape.needs
        return self.needs_on(shape, node, self.bank.numa_of(node, grants))

    def needs_on(self, shape: Shape, node: int, numa: int) -> Needs:
        """The same of one whose bundle is on that NUMA node; -1: it has none, or nobody knows."""
        return shape.needs + self.locality.inside(shape, node, numa)

    def occupy(self, role: Role, seat: Seat) -> None:
        """Counts a member that is there already, whether or not it fits."""
        self._move(role, seat, -1)

    def release(self, role: Role, seat: Seat) -> None:
        """Counts a member as gone."""
        self._move(role, seat, +1)

    def bar(self, seat: Seat) -> None:
        """Takes those devices of a seat that are free, and nothing else."""
        node = self.index[seat.node]
        for grant in seat.grants:
            if self.bank.admits(node, (grant,)):
                self._remember(node)
                self.bank.move(node, (grant,), -1)
                self._touched.append(node)

    def _move(self, role: Role, seat: Seat, sign: int) -> None:
        node = self.index.get(seat.node)
        if node is None:
            return  # its node is gone; there is nothing to count it against
        shape = self.shape_of(role)
        self._remember(node)
        for column, need in self.needs_of(shape, node, seat.grants):
            self.free[column, node] += sign * need
        self.bank.move(node, seat.grants, sign)
        for port in shape.ports:
            where = self.ports.setdefault(port, set())
            where.add(node) if sign < 0 else where.discard(node)
        self._touched.append(node)

    def shift(self, members: Ints, devices: Ints, sign: int) -> None:
        """Gives back (+1) or takes (-1) rows of `releases` all at once; there is no undo."""
        if not members.shape[1] and not devices.shape[1]:
            return
        where = members[0]
        if len(where) == 1:  # as mostly
            self.free[:, where.item()] += sign * members[1:, 0]
        else:
            for column, amounts in enumerate(members[1:]):
                np.add.at(self.free[column], where, sign * amounts)
        if len(where) > kept.FEW_NODES:
            where = arrays.distinct(where, len(self))
        self._touched += {*where.tolist(), *self.bank.shift(devices, sign).tolist()}

    def touch(self, nodes: Ints) -> None:
        """Somebody else wrote what is free there."""
        self._touched += nodes.tolist()

    def shift_port(self, port: int, node: int, sign: int) -> None:
        where = self.ports.setdefault(port, set())
        where.add(node) if sign < 0 else where.discard(node)
        self._touched.append(node)

    # --- trying things out

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undoes everything since the mark."""
        while len(self._undo) > mark:
            node, column, row, ports = self._undo.pop()
            self.free[:, node] = column
            self.bank.restore(node, row)
            for port, where in self.ports.items():
                where.add(node) if port in ports else where.discard(node)
            self._touched.append(node)

    def settle(self) -> None:
        """What was done so far stays: forgets how to undo it."""
        self._undo.clear()

    def _remember(self, node: int) -> None:
        ports = tuple([port for port, where in self.ports.items() if node in where])
        self._undo.append((node, self.free[:, node].copy(), self.bank.row(node), ports))

    def serves(self, role: Role, seat: Seat) -> bool:
        """Whether the node and the devices of a seat are there and take such members at all."""
        node = self.index.get(seat.node)
        if node is None or not (
            self.takes(role.constraint)[node] and self.mask(role.constraint)[node]
        ):
            return False
        return self.bank.has(node, seat.grants)

    def admits(self, role: Role, seat: Seat) -> bool:
        """Whether what a seat holds is free, down to the very devices."""
        node, shape = self.index[seat.node], self.shape_of(role)
        return (
            not shape.unknown
            and all(
                self.free[column, node] >= need
                for column, need in self.needs_of(shape, node, seat.grants)
            )
            and not any(node in self.ports[port] for port in clashing(shape.ports, self.ports))
            and self.bank.admits(node, seat.grants)
            and not (shape.constraint.reserved and not self._fit(shape, np.array([node]))[0])
        )

    # --- sums

    def totals(self) -> dict[str, int]:
        """All that open nodes have, by resource; devices by kind and by kind/model."""
        usable = self.open
        sums = {
            name: int(self.capacity[column, usable].sum())
            for name, column in self.resources.items()
            if column not in self.locality.columns
        }
        return sums | self.bank.totals(usable)

    def domain_of(self, level: str, names: Iterable[str]) -> Mask | None:
        """The nodes that stand with any of these in one domain of a level; None: no such level,
        or none of these nodes is there."""
        here = [self.index[name] for name in names if name in self.index]
        if not here or level not in ("node", *self.levels):
            return None
        ids = np.arange(len(self))
        if level in self.levels:
            ids = self.domains[self.levels.index(level)]
        return np.isin(ids, ids[here])

    def by_domain(self, level: int, caps: Ints) -> Ints:
        """Sums of a per-node count (the last axis) over the domains of a level."""
        ids, starts = self._bounds(level)
        if not len(ids):
            return caps[..., :0]
        sums = np.add.reduceat(caps, starts[:-1], axis=-1)
        if len(ids) == ids[-1] + 1:
            return sums
        found = np.zeros((*caps.shape[:-1], int(ids[-1]) + 1), np.int64)  # of a part
        found[..., ids] = sums
        return found

    def nodes_in(self, level: int, domain: int) -> Ints:
        """The nodes of one domain of a level, ascending."""
        ids, starts = self._bounds(level)
        at = int(ids.searchsorted(domain))
        return np.arange(starts[at], starts[at + 1])

    def _bounds(self, level: int) -> tuple[Ints, Ints]:
        """The domains of a level, ascending, and where each begins: nodes of one stand together.
        The last number is that of all nodes."""
        found = self._starts.get(level)
        if found is None:
            ids = self.domains[level]
            starts = np.flatnonzero(np.diff(ids, prepend=-1))
            found = self._starts[level] = (ids[starts], np.append(starts, len(ids)))
        return found
