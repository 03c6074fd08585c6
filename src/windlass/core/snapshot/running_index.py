"""Running workloads by queue, as eviction units in arrays.

An eviction unit is the minimum of a workload, which is evicted as a whole, or one pod above it. The
snapshot updates the index event by event; preemption reads it. What one queue's units hold is laid
out in arrays once and kept until the queue changes, so that thousands of possible victims cost a
few array operations. The index lists what runs, not what may be evicted.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.numbering import NOWHERE, Numbers
from windlass.core.model.types import PodAssignment, Role, Running
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import Sums

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class EvictionUnit:
    """Pods of one running workload that go together."""

    running: Running
    pods: tuple[PodAssignment, ...]
    surplus: bool
    """One pod above the minimum; else the minimum, which is evicted only together with all
    surplus."""
    usage: Sums
    size: int
    """Devices it holds, or pods where it holds none."""
    members: tuple[tuple[int, ...], ...]
    """Of each pod: the node, then amounts by column of the cluster's resources."""
    grants: tuple[tuple[int, int, int, int, int], ...]
    """Of each device: its flat number and what is held of it, as `DeviceTable.footprint` has it."""

    @property
    def key(self) -> str:
        return self.running.workload.key


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ResourceRows:
    """What pieces hold, in rows that `Cluster.shift` takes: one per pod, one per grant."""

    pod_of: Ints
    """Which piece a pod belongs to."""
    members: Ints
    """The node, then amounts by column of the cluster's resources."""
    grant_of: Ints
    devices: Ints
    """As `DeviceTable.footprint` has them."""

    def only(self, chosen: Ints) -> ResourceRows:
        """Of these pieces, ascending; they are numbered anew in that order."""
        last = max(self.pod_of.max(initial=-1), chosen.max(initial=-1))
        number = np.full(last + 1, -1, np.int64)
        number[chosen] = np.arange(len(chosen))
        pod_of, grant_of = number[self.pod_of], number[self.grant_of]
        pods, grants = (pod_of >= 0).nonzero()[0], (grant_of >= 0).nonzero()[0]
        return ResourceRows(
            pod_of[pods], self.members.take(pods, axis=1),
            grant_of[grants], self.devices.take(grants, axis=1),
        )  # fmt: skip


def flatten(pieces: Sequence[EvictionUnit], resources: int) -> ResourceRows:
    numbers = np.arange(len(pieces))
    pods = list(chain.from_iterable(piece.members for piece in pieces))
    grants = list(chain.from_iterable(piece.grants for piece in pieces))
    return ResourceRows(
        np.repeat(numbers, [len(piece.members) for piece in pieces]),
        np.array(pods, np.int64).reshape(len(pods), 1 + resources).T,
        np.repeat(numbers, [len(piece.grants) for piece in pieces]),
        np.array(grants, np.int64).reshape(len(grants), 5).T,
    )


def _renumbered(flats: Sequence[ResourceRows], numbers: Sequence[Ints]) -> ResourceRows:
    """The pieces of several as pieces of one, each with its new number (-1: it is not there any
    more), in the order of these."""
    pods = np.concatenate([new[flat.pod_of] for flat, new in zip(flats, numbers, strict=True)])
    grants = np.concatenate([new[flat.grant_of] for flat, new in zip(flats, numbers, strict=True)])
    in_order = [np.argsort(each, kind="stable")[(each < 0).sum() :] for each in (pods, grants)]
    return ResourceRows(
        pods[in_order[0]],
        np.concatenate([flat.members for flat in flats], axis=1)[:, in_order[0]],
        grants[in_order[1]],
        np.concatenate([flat.devices for flat in flats], axis=1)[:, in_order[1]],
    )


def join(flats: Sequence[ResourceRows], sizes: Sequence[int], resources: int) -> ResourceRows:
    """One numbering for the pieces of several."""
    if not flats:
        return flatten((), resources)
    offsets = list(zip(flats, np.cumsum([0, *sizes]), strict=False))
    return ResourceRows(
        np.concatenate([flat.pod_of + offset for flat, offset in offsets]),
        np.concatenate([flat.members for flat in flats], axis=1),
        np.concatenate([flat.grant_of + offset for flat, offset in offsets]),
        np.concatenate([flat.devices for flat in flats], axis=1),
    )


@dataclasses.dataclass(slots=True, eq=False)
class QueueColumns:
    """The pieces of one queue, sorted by key, the least of a workload before its surplus. Read
    only."""

    pieces: Objects
    """An array, so that choosing some of them costs little."""
    keys: Objects
    """Of the workloads."""
    first: Ints
    """Workload -> the row of its least; its surplus follows."""
    least: Ints
    """Row -> the row of the same workload's least; its own, if that is what it is."""
    priority: Ints
    started: Floats
    since: Floats
    """What it computed since then would be lost."""
    protected: Floats
    doubled: Floats
    """2 to the power of how often it was preempted before."""
    size: Ints
    non_preemptible: Mask
    surplus: Mask
    leaving: Mask
    flat: ResourceRows
    """What they hold where."""
    usage: dict[str, Ints] = dataclasses.field(default_factory=dict)

    def rows(self, key: str) -> slice:
        """Where the pieces of one workload are."""
        at = bisect.bisect_left(self.keys, key)
        if at == len(self.keys) or self.keys[at] != key:
            return slice(0, 0)
        after = self.first[at + 1] if at + 1 < len(self.keys) else len(self.pieces)
        return slice(int(self.first[at]), int(after))

    def rows_evicted(self, evicted: EvictionUnit) -> Ints:
        """Of a workload of which pods were evicted: where those pieces are."""
        rows = self.rows(evicted.key)
        found = np.arange(rows.start, rows.stop)
        if len(evicted.pods) == len(evicted.running.pods):
            return found
        gone = {(pod.role, pod.index) for pod in evicted.pods}
        pods = (self.pieces[row].pods for row in found)
        go = (any((pod.role, pod.index) in gone for pod in each) for each in pods)
        return found[np.fromiter(go, np.bool_, len(found))]

    def usage_of(self, resource: str) -> Ints:
        found = self.usage.get(resource)
        if found is None:
            values = (piece.usage.get(resource, 0) for piece in self.pieces)
            found = np.fromiter(values, np.int64, len(self.pieces))
            self.usage[resource] = found
        return found


class RunningIndex:
    """Updated by the snapshot: `add` when a workload holds capacity, `remove` when it no longer
    does."""

    def __init__(self) -> None:
        self.leaving: dict[str, None] = {}
        """Workloads of which some pods were evicted."""
        self.growing: dict[str, None] = {}
        """Workloads with fewer pods than they can use."""
        self.movable: dict[str, dict[str, None]] = {}
        """Queue -> workloads that may be moved; only queues with such workloads are named."""
        self.elastic: dict[str, dict[str, None]] = {}
        """Queue -> workloads that have surplus; only queues with such workloads are named."""
        self._queues: dict[str, dict[str, tuple[EvictionUnit, ...]]] = {}
        self._columns: dict[str, QueueColumns] = {}
        self._changed: dict[str, set[str]] = {}
        """Queue -> workloads that came or went since its columns were laid out."""
        self._read: set[str] = set()
        """Queues whose columns the last decision asked for."""

    def add(self, cluster: Cluster, running: Running, amounts: Sums) -> None:
        workload = running.workload
        pieces = pieces_of(cluster, running, amounts)
        self._queues.setdefault(workload.queue, {})[workload.key] = pieces
        if len(pieces) > 1:
            self.elastic.setdefault(workload.queue, {})[workload.key] = None
        if workload.movable and workload.preemptible:
            self.movable.setdefault(workload.queue, {})[workload.key] = None
        self._changed.setdefault(workload.queue, set()).add(workload.key)
        if running.leaving:
            self.leaving[workload.key] = None
        if len(running.pods) < sum(role.max_count for role in workload.roles):
            self.growing[workload.key] = None

    def remove(self, running: Running) -> None:
        workload = running.workload
        self._queues[workload.queue].pop(workload.key, None)
        self._changed.setdefault(workload.queue, set()).add(workload.key)
        self.leaving.pop(workload.key, None)
        self.growing.pop(workload.key, None)
        for index in (self.elastic, self.movable):
            named = index.get(workload.queue, {})
            if named.pop(workload.key, 0) is None and not named:
                del index[workload.queue]

    def carry_over(self, numbers: Numbers) -> None:
        """Nodes have other numbers; no row refers to a node that has none."""
        node, device = numbers.node.tolist(), numbers.device.tolist()
        for name, workloads in self._queues.items():
            moved = {
                key: tuple([_moved(p, node, device) for p in own]) for key, own in workloads.items()
            }
            self._queues[name] = moved
        for name, columns in self._columns.items():
            self._columns[name] = _carried_over(columns, self._queues.get(name, {}), numbers)

    def rebuild(self, resources: int) -> None:
        """Prepares the columns of all queues, so that no decision has to."""
        for name in self._queues:
            self._laid_out(name, resources)

    def refresh(self, resources: int) -> None:
        """Prepares those that the last decision asked for: the next one will ask again."""
        for name in self._read & self._changed.keys():
            self._laid_out(name, resources)

    def begin(self) -> None:
        """A decision begins: what it asks for is what will be prepared for the next."""
        self._read.clear()

    def columns(self, queue: str, resources: int) -> QueueColumns:
        self._read.add(queue)
        return self._laid_out(queue, resources)

    def _laid_out(self, queue: str, resources: int) -> QueueColumns:
        """Anew, or, where little changed, patched."""
        known, changed = self._columns.get(queue), self._changed.pop(queue, set())
        if known is not None and not changed:
            return known
        workloads = self._queues.get(queue, {})
        if known is None or 4 * len(changed) > len(workloads):
            found = _columns(workloads, resources)
        else:
            new = _columns({key: workloads[key] for key in changed & workloads.keys()}, resources)
            found = _patched(known, changed, new)
        self._columns[queue] = found
        return found


def with_more(
    columns: QueueColumns, workloads: Mapping[str, tuple[EvictionUnit, ...]], resources: int
) -> QueueColumns:
    """Columns with workloads that are not among them yet."""
    return _patched(columns, set(), _columns(workloads, resources)) if workloads else columns


def pieces_of(cluster: Cluster, running: Running, amounts: Sums) -> tuple[EvictionUnit, ...]:
    """The least first, then the surplus, highest number first."""
    roles = {role.name: role for role in running.workload.roles}
    extra = surplus(running)
    if not extra:
        return (_piece(cluster, running, roles, running.pods, False, amounts),)
    taken = {(pod.role, pod.index) for pod in extra}
    groups = [tuple(s for s in running.pods if (s.role, s.index) not in taken)]
    groups += [(pod,) for pod in extra]
    return tuple(
        _piece(cluster, running, roles, pods, number > 0,
               usage.of_pods(cluster, running.workload.roles, pods))
        for number, pods in enumerate(groups)
    )  # fmt: skip


def surplus(running: Running) -> list[PodAssignment]:
    """Pods above the least of their role, the highest number first; never number 0."""
    found: list[PodAssignment] = []
    for role in running.workload.roles:
        if role.max_count <= role.min_count:
            continue
        pods = sorted((s for s in running.pods if s.role == role.name), key=lambda s: -s.index)
        above = max(0, len(pods) - max(role.min_count, 1))
        found += [pod for pod in pods if pod.index != 0][:above]
    return found


def part_of(cluster: Cluster, running: Running, pods: Iterable[PodAssignment]) -> EvictionUnit:
    """Some pods of a workload as one piece, whatever they are."""
    roles = {role.name: role for role in running.workload.roles}
    chosen = tuple(pods)
    amounts = usage.of_pods(cluster, running.workload.roles, chosen)
    return _piece(cluster, running, roles, chosen, False, amounts)


def _piece(
    cluster: Cluster,
    running: Running,
    roles: dict[str, Role],
    pods: tuple[PodAssignment, ...],
    is_surplus: bool,
    amounts: Sums,
) -> EvictionUnit:
    members: list[tuple[int, ...]] = []
    grants: list[tuple[int, int, int, int, int]] = []
    for pod in pods:
        node, role = cluster.index.get(pod.node), roles.get(pod.role)
        if node is None or role is None:
            continue
        by_column = dict(cluster.needs_of(cluster.shape_of(role), node, pod.grants))
        columns = range(len(cluster.resources))
        members.append((node, *map(by_column.get, columns, repeat(0))))
        grants += cluster.device_table.footprint(node, pod.grants)
    size = len(grants) or len(members)
    return EvictionUnit(running, pods, is_surplus, amounts, size, tuple(members), tuple(grants))


def _columns(workloads: Mapping[str, tuple[EvictionUnit, ...]], resources: int) -> QueueColumns:
    keys = _objects(sorted(workloads))
    pieces = list(chain.from_iterable(workloads[key] for key in keys))
    running = [piece.running for piece in pieces]
    started = np.array([each.started for each in running], np.float64)
    saved = [each.started if each.checkpoint_at is None else each.checkpoint_at for each in running]
    surplus_rows = np.array([piece.surplus for piece in pieces], np.bool_)
    return QueueColumns(
        _objects(pieces),
        keys,
        np.flatnonzero(~surplus_rows),
        _least(surplus_rows),
        np.array([each.workload.priority for each in running], np.int64),
        started,
        np.maximum(started, np.array(saved, np.float64)),
        np.array([each.protected_until for each in running], np.float64),
        np.array([2.0 ** min(each.workload.preemptions, 40) for each in running], np.float64),
        np.array([piece.size for piece in pieces], np.int64),
        np.array([not each.workload.preemptible for each in running], np.bool_),
        surplus_rows,
        np.array([_is_leaving(piece) for piece in pieces], np.bool_),
        flatten(pieces, resources),
    )


def _moved(piece: EvictionUnit, node: Sequence[int], device: Sequence[int]) -> EvictionUnit:
    """The same where nodes and devices have other numbers."""
    return EvictionUnit(
        piece.running, piece.pods, piece.surplus, piece.usage, piece.size,
        tuple([(node[member[0]], *member[1:]) for member in piece.members]),
        tuple([(device[grant[0]], *grant[1:]) for grant in piece.grants]),
    )  # fmt: skip


def _looked_up(table: Ints, old: Ints) -> Ints:
    """New numbers for old ones. Rows of workloads that changed since they were laid out may have
    numbers that no node has any more."""
    found = np.full(len(old), NOWHERE, np.int64)
    known = (old >= 0) & (old < len(table))
    found[known] = table[old[known]]
    return found


def _carried_over(
    columns: QueueColumns, workloads: Mapping[str, tuple[EvictionUnit, ...]], numbers: Numbers
) -> QueueColumns:
    """Columns with the units by their new numbers. Rows of workloads that changed since the layout
    stay as they were: the next reader replaces them."""
    flat, old = columns.flat, columns.pieces
    members, devices = flat.members.copy(), flat.devices.copy()
    members[0] = _looked_up(numbers.node, members[0])
    devices[0] = _looked_up(numbers.device, devices[0])
    lengths = np.diff(np.append(columns.first, len(old)))
    pieces: list[EvictionUnit] = []
    for key, begin, length in zip(columns.keys, columns.first, lengths, strict=True):
        own = workloads.get(key, ())
        pieces.extend(own if len(own) == length else old[begin : begin + length])
    return dataclasses.replace(
        columns,
        pieces=_objects(pieces),
        flat=dataclasses.replace(flat, members=members, devices=devices),
    )


def _is_leaving(piece: EvictionUnit) -> bool:
    """Whether pods of it were evicted."""
    leaving = piece.running.leaving
    return bool(leaving) and any((pod.role, pod.index) in leaving for pod in piece.pods)


def _objects(values: Sequence[object]) -> Objects:
    found = np.empty(len(values), np.object_)
    found[:] = values
    return found


def _least(surplus_rows: Mask) -> Ints:
    rows = np.where(surplus_rows, 0, np.arange(len(surplus_rows)))
    return np.maximum.accumulate(rows) if len(rows) else rows


def _patched(old: QueueColumns, changed: Set[str], new: QueueColumns) -> QueueColumns:
    """Without the workloads that changed, with those that are there now, all in order."""
    stays = np.ones(len(old.pieces), np.bool_)
    for key in changed:
        stays[old.rows(key)] = False
    kept = np.flatnonzero(stays)
    kept_keys = old.keys[stays[old.first]]
    kept_first = np.flatnonzero(~old.surplus[kept])
    workloads_before = [bisect.bisect_left(kept_keys, key) for key in new.keys]
    starts = np.append(kept_first, len(kept))[workloads_before]
    lengths = np.diff(np.append(new.first, len(new.pieces)))
    order = np.insert(
        np.arange(len(kept)),
        np.repeat(starts, lengths),
        len(kept) + np.arange(len(new.pieces)),
    )

    def merged(name: str) -> npt.NDArray[Any]:
        values = np.concatenate([getattr(old, name)[kept], getattr(new, name)])[order]
        return np.asarray(values)

    number = np.full(len(order), -1, np.int64)
    number[order] = np.arange(len(order))
    of_old = np.full(len(old.pieces), -1, np.int64)
    of_old[kept] = number[: len(kept)]
    surplus_rows = merged("surplus")
    amounts = {
        resource: np.concatenate([values[kept], new.usage_of(resource)])[order]
        for resource, values in old.usage.items()
    }
    return QueueColumns(
        merged("pieces"),
        np.insert(kept_keys, workloads_before, new.keys),
        np.flatnonzero(~surplus_rows),
        _least(surplus_rows),
        merged("priority"),
        merged("started"),
        merged("since"),
        merged("protected"),
        merged("doubled"),
        merged("size"),
        merged("non_preemptible"),
        surplus_rows,
        merged("leaving"),
        _renumbered([old.flat, new.flat], [of_old, number[len(kept) :]]),
        amounts,
    )
