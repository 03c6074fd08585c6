"""Nodes as arrays: free resources, how many pods fit where, allocation and release, with undo.

One `Cluster` lives in the snapshot and follows events; `decide` works on a `fork` of it. For every
shape of pod it caches the pod capacity: how many such pods each node could take now. A change of a
node is noted in a log; a shape that is asked for again recomputes only the nodes noted since. So
the cost of a question grows with what changed, not with the size of the cluster.

Nodes are in the order of their topology path and name, so that index order is the same however the
snapshot came about, and every tie is broken by index.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays, capacity, constraints, reserved_capacity
from windlass.core.cluster.capacity import UNKNOWN, CapacityCache
from windlass.core.cluster.devices import numa as cluster_numa
from windlass.core.cluster.devices.device_allocation import ANYWHERE
from windlass.core.cluster.devices.device_table import DeviceTable, DomainCapacity, Row
from windlass.core.cluster.devices.numa import Needs, NumaTopology
from windlass.core.cluster.devices.partitions import Position
from windlass.core.cluster.host_ports import clashing
from windlass.core.cluster.node_filter import NodeFilter
from windlass.core.cluster.numbering import Numbers
from windlass.core.cluster.request_matrix import RequestMatrix
from windlass.core.cluster.topology_domains import TopologyDomains
from windlass.core.model.equivalence import Shape, Shapes
from windlass.core.model.types import (
    Constraint,
    DeviceRequest,
    Grant,
    Node,
    PodAssignment,
    Preference,
    Role,
)

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_MANY = np.int64(1 << 40)
_ALL = slice(None)
_SPARE_SHAPES = 256
"""Cached shapes that no waiting workload has any more, kept in case they come again."""


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
            for name in (*node.allocatable, *attached, *cluster_numa.names(node)):
                self.resources.setdefault(name, len(self.resources))
        size = len(self.nodes)
        self.allocatable: Ints = np.zeros((len(self.resources), size), np.int64)
        self.open: Mask = np.zeros(size, np.bool_)
        for i, node in enumerate(self.nodes):
            self._fill_node(i, node)
        self.price: Ints = np.fromiter((node.price for node in self.nodes), np.int64, size)
        self.priced = bool(self.price.any())
        self.free: Ints = self.allocatable.copy()
        self.device_table = DeviceTable(self.nodes)
        self.numa = NumaTopology(self.nodes, self.resources)
        self.ports: dict[int, set[int]] = {}
        self.domains = TopologyDomains.of(self.nodes, len(levels))
        """Per level, the number of the domain each node is in."""
        self.charges: dict[DeviceRequest, int] = {}
        """What a request counts for in quotas; filled by `core.quota.usage`."""
        self.node_filter = NodeFilter(self.nodes)
        self.reserved = reserved_capacity.Table()
        """What advance reservations hold back, as of the decision that is being made."""
        self._all_open = bool(self.open.all())
        self._domains_of: dict[str, Ints] = {}
        self._when_empty: dict[int, Ints] = {}
        self._cache = CapacityCache(size)
        """Per shape, what fits where, as of when it was last asked for."""
        self._touched: list[int] = []
        """Nodes of which something changed, one after another."""
        self._generation = 0
        """How often that was begun anew."""
        self._origin: tuple[Cluster, int, int] | None = None
        """What it is a fork of, and as of which change and generation of that."""
        self._undo: list[tuple[int, Ints, Row, tuple[int, ...]]] = []

    @functools.cached_property
    def nodes(self) -> list[Node]:
        """By topology path and name. Of a part, computed on first use: most parts only count."""
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
        fork = copy.copy(self)
        if shapes is None:
            self.refresh()
            self._touched.clear()
            self._generation += 1
            self._cache.all_at(0)
            fork._cache, fork._origin = self._cache.copy(), None
        else:
            fork._origin = (self, len(self._touched), self._generation)
            fork._cache = CapacityCache(len(self))
            for shape in shapes:
                fork._cache.add(shape, self.pod_capacity(shape), 0)
        fork.free = self.free.copy()
        fork.open = self.open.copy()
        fork.device_table = self.device_table.fork()
        fork.ports = {port: set(where) for port, where in self.ports.items()}
        fork._touched = []
        fork._undo = []
        return fork

    def emptied(self) -> Cluster:
        """A copy in which every node is there and nothing is allocated."""
        fork = self.fork(())
        fork.free, fork.device_table = self.allocatable.copy(), self.device_table.emptied()
        fork.open, fork._all_open = np.ones(len(self), np.bool_), True
        fork.ports, fork._origin = {}, None
        return fork

    def part(self, where: Ints) -> Cluster:
        """Some of the nodes (ascending) as a cluster of their own, host ports free; rows for it
        come from `arrays.rows_in`."""
        fork = copy.copy(self)
        for found_when_asked in ("nodes", "index"):
            fork.__dict__.pop(found_when_asked, None)
        fork.allocatable, fork.free = self.allocatable[:, where], self.free[:, where]
        fork.open, fork.price = self.open[where], self.price[where]
        fork._all_open = self._all_open or bool(fork.open.all())
        fork.node_filter = self.node_filter.part(where)
        fork.reserved = self.reserved.part(where, len(self))
        fork.device_table, fork.ports = self.device_table.part(where), {}
        fork.numa = self.numa.part(where)
        fork.domains, fork._whole = self.domains.part(where), (self, where)
        fork._when_empty, fork._domains_of = {}, {}
        fork._cache, fork._touched, fork._undo, fork._origin = (
            CapacityCache(len(where)),
            [],
            [],
            None,
        )
        return fork

    def carry_over(self, old: Cluster, numbers: Numbers) -> None:
        """Nodes of another cluster keep their allocations, and what was found out about
        them holds. Only where both have the same columns."""
        was, now = numbers.carried
        self._touched = fresh = np.setdiff1d(np.arange(len(self)), now).tolist()
        self.free[:, now] = old.free[:, was]
        self.device_table.carry_over(old.device_table, was, now)
        for port, where in old.ports.items():
            self.ports[port] = {int(n) for n in numbers.node[list(where)] if n >= 0}
        self.shapes, self.charges = old.shapes, old.charges
        old.refresh()
        self._cache = old._cache.unreserved().carried_over(len(self), was, now)
        self.node_filter.carry_over(old.node_filter, numbers, fresh)

    # --- facts about nodes

    def update(self, node: Node) -> None:
        """New facts about a node that keeps its place and devices: readiness, labels, sizes."""
        i = self.index[node.name]
        used = self.allocatable[:, i] - self.free[:, i]
        self.nodes[i] = node
        self._fill_node(i, node)
        self.free[:, i] = self.allocatable[:, i] - used
        self._all_open = bool(self.open.all())
        self.node_filter.update(i, node)
        for shape_id, counts in self._when_empty.items():
            counts[i] = self.fit(self.shapes.by_id[shape_id], np.array([i]), empty=True)[0]
        self._domains_of.clear()
        self.price[i] = node.price
        self.priced = bool(self.price.any())
        self._touched.append(i)

    def _fill_node(self, i: int, node: Node) -> None:
        self.open[i] = node.ready and node.ready_in <= 0
        for name, column in self.resources.items():
            self.allocatable[column, i] = node.allocatable.get(name, 0)
        for driver, most in node.attach_limits.items():
            self.allocatable[self.resources[f"attach:{driver}"], i] = most
        for name, amount in cluster_numa.sizes(node):
            self.allocatable[self.resources[name], i] = amount

    def open_also(self, where: Iterable[int]) -> None:
        """Counts nodes that do not exist yet as if they did."""
        for i in where:
            self.open[i] = True
            self._touched.append(i)
        self._all_open = bool(self.open.all())

    def mask(self, constraint: Constraint) -> Mask:
        """Nodes that a constraint accepts, whether or not they take pods now. Read only."""
        return self.node_filter.mask(constraint)

    def lasting_mask(self, constraint: Constraint) -> Mask:
        """Nodes that it accepts when they are in good condition. Read only."""
        return self.mask(constraints.lasting(constraint))

    def schedulable(self, constraint: Constraint) -> Mask:
        """Nodes that take such pods now, as far as their keepers and they themselves say."""
        if not constraint.not_now and not constraint.reserved:
            return self.open
        found = self.open & ~self.reserved.barred(constraint.reserved, len(self))
        found[[self.index[name] for name in constraint.not_now if name in self.index]] = False
        return found

    def usable(self, constraint: Constraint) -> Mask | None:
        """Nodes that are accepted and take such pods now; None: all of them, as mostly."""
        always = self._all_open and not constraint.not_now and not constraint.reserved
        if always and self.node_filter.everywhere(constraint):
            return None
        return self.mask(constraint) & self.schedulable(constraint)

    def preference_scores(self, preferences: tuple[Preference, ...]) -> Ints:
        """How much each node is preferred. Read only."""
        return self.node_filter.scores(preferences)

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

    def pod_capacity(self, shape: Shape) -> Ints:
        """How many more pods of the shape each node takes. Read only."""
        known, now = self._cache, len(self._touched)
        row = known.row.get(shape.id)
        if row is None:
            return known.add(shape, self._fit_first(shape), now)
        capacities: Ints = known.table[row]
        seen = known.seen[row]
        if seen < now:
            self._catch_up(shape, capacities, self._touched[seen:])
            known.seen[row], known.totals[row] = now, UNKNOWN
        return capacities

    def _fit_first(self, shape: Shape) -> Ints:
        """`_fit` of all nodes. What a fork was made of knows it but for what changed since."""
        if self._origin is not None:
            origin, version, generation = self._origin
            if generation == origin._generation:
                capacities = origin.pod_capacity(shape).copy()
                changed = arrays.distinct(origin._touched[version:] + self._touched, len(self))
                capacities[changed] = self.fit(shape, changed)
                return capacities
        return self.fit(shape, _ALL)

    def _catch_up(self, shape: Shape, capacities: Ints, touched: list[int]) -> None:
        """Counts again where something changed."""
        changed = set(touched)
        whole_only = not self.reserved.has_parts(shape.constraint.reserved)
        if len(changed) <= capacity.FEW and shape.is_plain and whole_only:
            whole = self.device_table.whole_devices(shape)
            if whole is not None:
                usable = self.usable(shape.constraint)
                capacity.count_on(
                    changed, capacities, shape, self.free, self.device_table.unlocked, whole, usable
                )
                return
        where = np.array(list(changed), np.int64)
        capacities[where] = self.fit(shape, where)

    def refresh(self) -> None:
        """Brings every kept shape up to date, all at once."""
        known, now = self._cache, len(self._touched)
        first = min(known.seen, default=now)
        if first < now:
            changed = arrays.distinct(self._touched[first:], len(self))
            known.put(changed, self.pod_capacities(self.cached_shapes(), changed))
            known.all_at(now)

    def cache(self, shapes: Sequence[Shape], origin: Cluster) -> None:
        """Keeps these shapes from now on, in a fork and in what it is a fork of: the next one then
        finds them up to date but for what changed."""
        for shape in shapes:
            if shape.id not in self._cache.row:
                self._cache.add(shape, origin.pod_capacity(shape), 0)
        if len(origin._cache.row) > _SPARE_SHAPES + 2 * len(shapes):
            origin._cache = origin._cache.only(shapes)

    def cached_pod_capacity(self, shapes: RequestMatrix, where: Ints) -> Ints:
        """The cached pod capacity, as of its last update, by shape and node."""
        rows = np.array([self._cache.row[shape.id] for shape in shapes.shapes], np.int64)
        return self._cache.table[rows[:, None], where]

    def totals_of(self, shapes: Sequence[Shape]) -> Ints:
        """How many pods of each of these shapes, which are kept, all nodes take together."""
        self.refresh()
        return np.array([self._cache.total(shape) for shape in shapes], np.int64)

    def touched_since(self, version: int) -> list[int]:
        """Nodes of which something changed since then, each as often as it did."""
        return self._touched[version:]

    def known_pod_capacity(self, shape: Shape) -> Ints:
        """The pod capacity as of its last update: an upper bound as long as capacity only shrank.
        Read only."""
        row = self._cache.row.get(shape.id)
        if row is None:
            return self.pod_capacity(shape)
        capacities: Ints = self._cache.table[row]
        return capacities

    def version_of(self, shape: Shape) -> int:
        """At which version `caps_so_far` were last brought up to date."""
        row = self._cache.row.get(shape.id)
        return -1 if row is None else self._cache.seen[row]

    def pod_capacity_at(self, shape: Shape, where: Ints) -> Ints:
        """The pod capacity of some nodes, computed anew: for a cluster that is asked about few of
        them."""
        return self.fit(shape, where)

    def pod_capacity_without(self, shape: Shape, members: Ints, devices: Ints) -> Ints:
        """The pod capacity if rows as `shift` takes them were given back, for a shape without host
        ports. Nothing changes, and only nodes that the rows name are computed."""
        capacities = self.pod_capacity(shape)
        if not members.shape[1]:
            return capacities
        nodes = arrays.distinct(members[0], len(self))
        part = self.part_without(nodes, members, devices)
        capacities = capacities.copy()
        capacities[nodes] = part.pod_capacity_at(shape, np.arange(len(nodes)))
        return capacities

    def part_without(self, where: Ints, members: Ints, devices: Ints) -> Cluster:
        """Some of the nodes (ascending), if rows as `shift` takes them were given back there."""
        part = self.part(where)
        part.shift(*arrays.rows_in(where, self.device_table.compute.shape[1], members, devices), +1)
        return part

    def empty_pod_capacity(self, shape: Shape) -> Ints:
        """Pods of the shape each node would take, empty and in good condition. Read only."""
        found = self._when_empty.get(shape.id)
        if found is None:
            found = self.fit(shape, _ALL, empty=True)
            self._when_empty[shape.id] = found
        return found

    def fit(self, shape: Shape, where: Ints | slice, *, empty: bool = False) -> Ints:
        amounts = self.allocatable if empty else self.free
        fit = capacity.fit_amounts(shape, amounts, where)
        if shape.unknown:
            fit[:] = 0  # asks for a resource that no node has
        if shape.requests:
            domain_capacities = self.numa.domain_capacities(shape, amounts, where)
            np.minimum(
                fit,
                self.device_table.fit(
                    shape, where, empty=empty, domain_capacities=domain_capacities
                ),
                out=fit,
            )
        if shape.ports:
            np.minimum(fit, 1, out=fit)
            if not empty:
                taken = set().union(*(self.ports[p] for p in clashing(shape.ports, self.ports)))
                fit[np.isin(np.arange(len(self))[where], list(taken))] = 0
        np.maximum(fit, 0, out=fit)
        usable = self.lasting_mask(shape.constraint) if empty else self.usable(shape.constraint)
        if usable is not None:
            fit *= usable[where]
        if shape.constraint.reserved and not empty:
            self.reserved.limit(fit, shape, where, self.resources, self.free, self.device_table)
        return fit

    def cached_shapes(self) -> RequestMatrix:
        """All shapes whose pod capacity is cached."""
        return self._cache.requests(len(self.resources))

    def pod_capacities(self, shapes: RequestMatrix, where: Ints | slice) -> Ints:
        """The pod capacity by shape and node, computed anew."""
        fit = shapes.by_amounts(self.free[:, where])
        if shapes.requests:
            most = np.array(self.device_table.fit_requests(shapes.requests, where))[
                shapes.requested
            ]
            fit[shapes.requesting] = np.minimum(fit[shapes.requesting], most)
        np.maximum(fit, 0, out=fit)
        for constraint, rows in shapes.by_constraint.items():
            usable = self.usable(constraint)
            if usable is not None:
                fit[rows] *= usable[where]
            for row in rows if self.reserved.has_parts(constraint.reserved) else ():
                held_back = (self.resources, self.free, self.device_table)
                self.reserved.limit(fit[row], shapes.shapes[row], where, *held_back)
        for row, shape in shapes.intricate:
            fit[row] = self.fit(shape, where)
        return fit

    # --- taking and giving back

    def take(
        self, shape: Shape, node: int, count: int, preferred: Sequence[Position] = ()
    ) -> list[tuple[Grant, ...]] | None:
        """Capacity for pods on one node; None, and nothing taken, when they do not all fit.
        `preferred` are the positions of their shares or partitions, one each; none: the table
        chooses."""
        self._remember(node)
        grants: list[tuple[Grant, ...]] = [()] * count
        if shape.requests:
            on_numa = self._numa_capacity(shape, node) if shape.bundle else None
            each_of = zip(preferred or (ANYWHERE,) * count, reversed(range(count)), strict=True)
            found = [self.device_table.take(shape, node, on_numa, at, more) for at, more in each_of]
            grants = [each for each in found if each is not None]
            if len(grants) < count:
                self.rollback(len(self._undo) - 1)
                return None
        for column, need in shape.needs:
            self.free[column, node] -= need * count
        for each in grants if shape.bundle else ():
            for column, need in self.numa.inside(
                shape, node, self.device_table.numa_of(node, each)
            ):
                self.free[column, node] -= need
        for port in shape.ports:
            self.ports.setdefault(port, set()).add(node)
        self._touched.append(node)
        return grants

    def _numa_capacity(self, shape: Shape, node: int) -> DomainCapacity | None:
        domain_capacities = self.numa.domain_capacities(shape, self.free, slice(node, node + 1))
        return domain_capacities[0] if domain_capacities else None

    def needs_of(self, shape: Shape, node: int, grants: Iterable[Grant]) -> Needs:
        """What a pod holds that has these devices, by column."""
        if not shape.bundle:
            return shape.needs
        return self.needs_on(shape, node, self.device_table.numa_of(node, grants))

    def needs_on(self, shape: Shape, node: int, numa: int) -> Needs:
        """The same for a pod whose bundle is on that NUMA node; -1: it has none, or it is
        unknown."""
        return shape.needs + self.numa.inside(shape, node, numa)

    def occupy(self, role: Role, pod: PodAssignment) -> None:
        """Counts a pod that is there already, whether or not it fits."""
        self._move(role, pod, -1)

    def release(self, role: Role, pod: PodAssignment) -> None:
        """Counts a pod as gone."""
        self._move(role, pod, +1)

    def bar(self, pod: PodAssignment) -> None:
        """Takes those devices of a pod that are free, and nothing else."""
        node = self.index[pod.node]
        for grant in pod.grants:
            if self.device_table.admits(node, (grant,)):
                self._remember(node)
                self.device_table.move(node, (grant,), -1)
                self._touched.append(node)

    def _move(self, role: Role, pod: PodAssignment, sign: int) -> None:
        node = self.index.get(pod.node)
        if node is None:
            return  # its node is gone; there is nothing to count it against
        shape = self.shape_of(role)
        self._remember(node)
        for column, need in self.needs_of(shape, node, pod.grants):
            self.free[column, node] += sign * need
        self.device_table.move(node, pod.grants, sign)
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
        if len(where) > capacity.FEW_NODES:
            where = arrays.distinct(where, len(self))
        self._touched += {*where.tolist(), *self.device_table.shift(devices, sign).tolist()}

    def touch(self, nodes: Ints) -> None:
        """Marks nodes whose free resources another component changed."""
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
            self.device_table.restore(node, row)
            for port, where in self.ports.items():
                where.add(node) if port in ports else where.discard(node)
            self._touched.append(node)

    def settle(self) -> None:
        """What was done so far stays: forgets how to undo it."""
        self._undo.clear()

    def _remember(self, node: int) -> None:
        ports = tuple([port for port, where in self.ports.items() if node in where])
        self._undo.append((node, self.free[:, node].copy(), self.device_table.row(node), ports))

    # --- sums

    def totals(self) -> dict[str, int]:
        """All that open nodes have, by resource; devices by kind and by kind/model."""
        usable = self.open
        sums = {
            name: int(self.allocatable[column, usable].sum())
            for name, column in self.resources.items()
            if column not in self.numa.columns
        }
        return sums | self.device_table.totals(usable)

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

    def by_domain(self, level: int, capacities: Ints) -> Ints:
        """Sums of a per-node count (the last axis) over the domains of a level."""
        return self.domains.sums(level, capacities)

    def nodes_in(self, level: int, domain: int) -> Ints:
        """The nodes of one domain of a level, ascending."""
        return self.domains.nodes(level, domain)
