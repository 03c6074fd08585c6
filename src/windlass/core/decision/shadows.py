"""Reservations, and the cluster as it will be when each of them starts.

A reservation keeps a *shadow*: the cluster at its start, with the reserved pods in place. A stay
that overlaps the start is tried in the shadow, node by node, down to the specific devices. Reserved
pods may get other devices of the same node, never another node. Nothing here decides which workload
gets a reservation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.request_matrix import RequestMatrix
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import PodAssignment, ReservationRecord, Workload
from windlass.core.placement import gang_placement
from windlass.core.placement.placement_context import PlacementContext
from windlass.core.snapshot import availability_profile

Ints = npt.NDArray[np.int64]

_MANY = np.int64(1 << 40)


@dataclasses.dataclass(slots=True, eq=False)
class Reservation:
    """The capacity of a later start, and the cluster as it will be then."""

    workload: Workload
    start: float
    end: float
    pods: list[PodAssignment]
    shadow: Cluster
    """At `start`, with these pods in place; right on the nodes of the pods, nowhere else."""
    fresh: bool
    """Made, or made again, by this decision."""
    firm: bool
    """See `ReservationRecord`."""
    made: float | None = None
    """See `ReservationRecord`."""
    given: float = 0.0
    """The start that was published; `start` is later once that has passed."""
    by_node: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    """Node -> which of the pods are on it."""
    nodes: Ints = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    names: frozenset[str] = frozenset()
    """Of the same nodes."""
    version: int = 0
    """Changes whenever what is free beside it changes; not where something was only tried."""
    _rows: availability_profile.AllocationRows | None = None
    _beside: tuple[int, RequestMatrix, Ints] | None = None

    def __post_init__(self) -> None:
        for at, pod in enumerate(self.pods):
            self.by_node.setdefault(self.shadow.index[pod.node], []).append(at)
        self.nodes = np.fromiter(self.by_node, np.int64, len(self.by_node))
        self.names = frozenset([pod.node for pod in self.pods])
        self.given = self.given or self.start

    @property
    def record(self) -> ReservationRecord:
        """What the next decision gets to know of it."""
        pods = tuple(self.pods)
        return ReservationRecord(self.workload.key, self.given, pods, self.firm, self.made)

    @property
    def rows(self) -> availability_profile.AllocationRows:
        if self._rows is None:
            self._rows = availability_profile.allocation_rows(self.shadow, self.workload, self.pods)
        return self._rows

    def reseat(self, pods: list[PodAssignment]) -> None:
        """The same members on other devices of the same nodes."""
        self.pods, self._rows = pods, None

    def free_beside(self, shape: Shape, others: RequestMatrix) -> Ints:
        """Pods of a shape that each of `nodes` takes beside the reservation. Read only."""
        row = others.number.get(shape.id)
        if row is None:
            return self.shadow.pod_capacity_at(shape, self.nodes)
        free: Ints = self.free_beside_all(others)[row]
        return free

    def free_beside_all(self, shapes: RequestMatrix) -> Ints:
        """The same of many shapes, by shape and node."""
        known = self._beside
        if known is None or known[0] != self.version or known[1] is not shapes:
            known = (self.version, shapes, self.shadow.pod_capacities(shapes, self.nodes))
            self._beside = known
        return known[2]

    def settle(self) -> None:
        """What was done to the shadow so far stays."""
        self.shadow.settle()
        self.version += 1

    def on(self, node: int) -> list[PodAssignment]:
        return [self.pods[at] for at in self.by_node.get(node, ())]


class Interval:
    """The pods of a workload from one time to another."""

    def __init__(
        self, workload: Workload, start: float, end: float, pods: Sequence[PodAssignment]
    ) -> None:
        self.workload, self.start, self.end = workload, start, end
        self.by_name: dict[str, list[PodAssignment]] = {}
        for pod in pods:
            self.by_name.setdefault(pod.node, []).append(pod)


class ReservationLimits:
    """What some reservations, as they are now, leave to other workloads."""

    def __init__(
        self, reservations: Sequence[Reservation], at: tuple[int, ...], shapes: RequestMatrix
    ) -> None:
        self.at = at
        self._beside, self._shapes = reservations, shapes
        self._nodes = np.concatenate([reservation.nodes for reservation in reservations])
        self._free = np.concatenate(
            [reservation.free_beside_all(shapes) for reservation in reservations], axis=1
        )
        self._limits: dict[int, Ints] = {}

    def of(self, shape: Shape, size: int) -> Ints:
        """Most members of the shape that each of so many nodes may take. Read only."""
        limit = self._limits.get(shape.id)
        if limit is None:
            limit = self._limits[shape.id] = np.full(size, _MANY)
            np.minimum.at(limit, self._nodes, self._free_of(shape))
        return limit

    def _free_of(self, shape: Shape) -> Ints:
        row = self._shapes.number.get(shape.id)
        if row is None:
            parts = [reservation.free_beside(shape, self._shapes) for reservation in self._beside]
            return np.concatenate(parts)
        free: Ints = self._free[row]
        return free


class LimitCache:
    """What groups of reservations leave to other workloads, until one of their shadows changes."""

    def __init__(self) -> None:
        self._limits: dict[tuple[Reservation, ...], ReservationLimits] = {}

    def limits(
        self,
        context: PlacementContext,
        reservations: tuple[Reservation, ...],
        requests: Sequence[PodSetRequest],
        others: RequestMatrix | None = None,
    ) -> dict[int, Ints]:
        """Shape -> most pods that each node may take and still keep all of these reservations.
        Read only. `others`: shapes that may be asked for next; if not given, those for which the
        cluster of the context keeps capacities."""
        if not reservations:
            return {}
        at, known = tuple([each.version for each in reservations]), self._limits.get(reservations)
        if known is None or known.at != at:
            known = ReservationLimits(reservations, at, others or context.cluster.cached_shapes())
            self._limits[reservations] = known
        size, shapes = len(context.cluster), [context.shape(request.role) for request in requests]
        return {shape.id: known.of(shape, size) for shape in shapes}


def nodes_of(reservations: Sequence[Reservation]) -> Ints:
    """Nodes of which anything is reserved."""
    return np.array(
        sorted(set[int]().union(*(reservation.by_node for reservation in reservations))), np.int64
    )


def clashing(reservations: Iterable[Reservation], stay: Interval) -> list[int]:
    """Nodes on which a reservation would not hold beside the stay; changes nothing."""
    met = affected(reservations, stay)
    if not met:
        return []
    index = met[0].shadow.index
    return [
        index[name]
        for name, pods in stay.by_name.items()
        if admit(met, Interval(stay.workload, stay.start, stay.end, pods), keep=False) is not None
    ]


def affected(reservations: Iterable[Reservation], stay: Interval) -> list[Reservation]:
    """Reservations that fall into a stay and share a node with it, by their start; with those after
    it there, which one that has to move for the stay may meet on its new devices."""
    found = near(reservations, stay)
    if not any(reservation.start < stay.end for reservation in found):
        return []
    return sorted(found, key=lambda reservation: reservation.start)


def near(reservations: Iterable[Reservation], stay: Interval) -> list[Reservation]:
    """Reservations that share a node with a stay and start no earlier."""
    names, start = stay.by_name, stay.start
    return [
        reservation
        for reservation in reservations
        if start <= reservation.start and not reservation.names.isdisjoint(names)
    ]


def admit(met: Sequence[Reservation], stay: Interval, *, keep: bool) -> Reservation | None:
    """Takes a stay in the shadows that it overlaps; reserved pods may get other devices of the same
    node. Returns the first reservation that does not hold beside it; then nothing is changed."""
    before = [(reservation, reservation.shadow.mark(), reservation.pods) for reservation in met]
    refused = next(filter(None, (_admit_on(met, stay, name) for name in stay.by_name)), None)
    for reservation, mark, pods in before:
        if reservation.shadow.mark() == mark:
            continue  # it saw nothing of this
        if refused is None and keep:
            reservation.settle()
        else:
            reservation.shadow.rollback(mark)
            if reservation.pods is not pods:
                reservation.reseat(pods)
    return refused


def leave(reservation: Reservation, stay: Interval) -> None:
    """Takes a stay that was admitted out of a shadow again, if it fell into it."""
    if reservation.start >= stay.end:
        return
    for name, pods in stay.by_name.items():
        if name in reservation.names:
            _move(reservation.shadow, stay.workload, pods, +1)
    reservation.settle()


def reallocate_on_node(
    cluster: Cluster, workload: Workload, pods: Sequence[PodAssignment]
) -> list[PodAssignment] | None:
    """Allocates the same pods on the same nodes, on any devices; None: they do not fit, and the
    caller undoes what was taken."""
    roles = {role.name: role for role in workload.roles}
    found = []
    for pod in pods:
        node, role = cluster.index.get(pod.node), roles.get(pod.role)
        if node is None or role is None:
            return None
        shape = cluster.shape_of(role)
        grants = cluster.take(shape, node, 1) if cluster.pod_capacity(shape)[node] else None
        if grants is None:
            return None
        found.append(dataclasses.replace(pod, grants=grants[0]))
    return found


def move_in_shadows(others: Iterable[Reservation], moved: Reservation, sign: int) -> None:
    """A reservation is added (-1) or removed (+1): reservations that start while it runs see it."""
    for reservation in others:
        shared = reservation.by_node.keys() & moved.by_node.keys()
        if shared and moved.start <= reservation.start < moved.end:
            for node in shared:
                _move(reservation.shadow, moved.workload, moved.on(node), sign)
            reservation.settle()


# --- one node


@dataclasses.dataclass(slots=True)
class _Change:
    """On one node, a workload gets other devices than before."""

    workload: Workload
    start: float
    end: float
    before: list[PodAssignment]
    after: list[PodAssignment]


def _admit_on(met: Sequence[Reservation], stay: Interval, name: str) -> Reservation | None:
    """One node, reservation after reservation in the order of their starts: those under way at
    each start sit where they sit, the one that starts takes of what is left. The first for which
    nothing is left, if there is one."""
    here = [reservation for reservation in met if name in reservation.names]
    changes = [_Change(stay.workload, stay.start, stay.end, [], stay.by_name[name])]
    for at, reservation in enumerate(here):
        present = [change for change in changes if change.start <= reservation.start < change.end]
        if not present:
            continue
        node = reservation.shadow.index[name]
        before = reservation.on(node)
        _move(reservation.shadow, reservation.workload, before, +1)
        _change(reservation.shadow, present)
        after = _pod(reservation, node, here[at + 1 :])
        if after is None:
            return reservation
        if after != before:
            change = _Change(
                reservation.workload, reservation.start, reservation.end, before, after
            )
            for other in here[:at]:
                if (
                    other.start == reservation.start < reservation.end
                ):  # it was looked at before this one moved
                    _see_moved(other, node, present, change)
            changes.append(change)
            pods = list(reservation.pods)
            for number, pod in zip(reservation.by_node[node], after, strict=True):
                pods[number] = pod
            reservation.reseat(pods)
    return None


def _change(shadow: Cluster, changes: Sequence[_Change]) -> None:
    """All leave before any comes: a device is in one mode at a time."""
    for change in changes:
        _move(shadow, change.workload, change.before, +1)
    for change in changes:
        _move(shadow, change.workload, change.after, -1)


def _see_moved(
    reservation: Reservation, node: int, present: Sequence[_Change], change: _Change
) -> None:
    """A reservation with the same start moved for the others: until then they shared devices."""
    allocated = [
        (each.workload, each.after) for each in present if each.workload is not reservation.workload
    ]
    allocated.append((reservation.workload, reservation.on(node)))
    for workload, pods in allocated:
        _move(reservation.shadow, workload, pods, +1)
    _change(reservation.shadow, [change])
    for workload, pods in allocated:
        _move(reservation.shadow, workload, pods, -1)


def _pod(
    reservation: Reservation, node: int, later: Sequence[Reservation]
) -> list[PodAssignment] | None:
    """Allocates the reserved pods of a node: on their own devices, or on devices that others do not
    reserve while they run, or on any."""
    shadow, before = reservation.shadow, reservation.on(node)
    if gang_placement.allocate_exact(shadow, reservation.workload, before):
        return before
    met = [other for other in later if reservation.start < other.start < reservation.end]
    for others in (met, ()) if met else ((),):
        mark = shadow.mark()
        for other in others:
            for pod in other.on(node):
                shadow.bar(pod)
        found = reallocate_on_node(shadow, reservation.workload, before)
        shadow.rollback(mark)
        if found is not None:
            _move(shadow, reservation.workload, found, -1)
            return found
    return None


def _move(cluster: Cluster, workload: Workload, pods: Iterable[PodAssignment], sign: int) -> None:
    roles = {role.name: role for role in workload.roles}
    for pod in pods:
        if sign < 0:
            cluster.occupy(roles[pod.role], pod)
        else:
            cluster.release(roles[pod.role], pod)
