"""Reprieve: which of the chosen victims need not be evicted after all.

`victim_selection` calls `add_back` with a set of victims without which the preemptor fits;
afterwards no single victim of the set could be added back. Capacity is counted in plain numbers
where that is exact (`CapacityCheck`), else by trying the placement again (`Retry`); quotas are
checked by `QuotaCheck`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from windlass.core.cluster import arrays
from windlass.core.cluster.cluster import Cluster
from windlass.core.cluster.devices.device_allocation import UNLOCKED
from windlass.core.model.equivalence import Shape
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.preemption.victims.quota_check import QuotaCheck
from windlass.core.preemption.victims.simulation import PreemptionSimulation
from windlass.core.snapshot.running_index import EvictionUnit

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def add_back(trial: PreemptionSimulation, gone: Mask, rank: Ints) -> bool:
    """Adds victims back, the most expensive first, as long as the preemptor still fits. Returns
    whether any was added back."""
    quotas = QuotaCheck(trial.claim, trial.pool, gone) if trial.quota else None
    counter = count_for(trial, gone)
    added_back = _add_back_once(trial, gone, rank, quotas, counter)
    if added_back:  # where the minimum of a workload stays now, its surplus may stay, too
        _add_back_once(trial, gone, rank, quotas, counter)
    return added_back


def _add_back_once(
    trial: PreemptionSimulation, gone: Mask, rank: Ints, quotas: QuotaCheck | None, counter: Counter
) -> bool:
    added_back = False
    members = np.flatnonzero(gone)
    for i in members[np.argsort(-rank[members])]:
        least = int(trial.pool.least[i])
        if trial.pool.pieces[i].surplus and least >= 0 and gone[least]:
            continue  # its workload is evicted as a whole
        if quotas is not None and not quotas.stays(int(i)):
            continue
        gone[i] = False
        if counter.stays(trial.pool.pieces[i], gone):
            added_back = True
            continue
        gone[i] = True
        if quotas is not None:
            quotas.goes(int(i))
    return added_back


class Counter(Protocol):
    def stays(self, piece: EvictionUnit, gone: Mask) -> bool:
        """Counts the unit as staying, if the preemptor fits nevertheless."""
        ...


def count_for(trial: PreemptionSimulation, gone: Mask) -> Counter:
    base = trial.base
    plain = [request for request in trial.requests if is_plain(base, base.shape_of(request.role))]
    tallies = [CapacityCheck(trial, gone, request) for request in plain]
    if trial.identical and tallies:
        return tallies[0]
    return Retry(trial, tallies)


def is_plain(cluster: Cluster, shape: Shape) -> bool:
    """Whether it fits is a matter of sums and of whole free devices, of which no advance
    reservation sets any aside."""
    if shape.ports or shape.bundle or len(shape.requests) > 1:
        return False
    if cluster.reserved.has_parts(shape.constraint.reserved):
        return False
    return all(
        request.form == "whole" and (len(request.models) < 2 or request.count == 1)
        for request in shape.requests
    )


class Retry:
    """Tries the placement again for every unit: any shapes, any terms. Where too little is left for
    one of the roles alone, the answer is no without trying."""

    def __init__(self, trial: PreemptionSimulation, tallies: Sequence[CapacityCheck]) -> None:
        self._trial, self._tallies = trial, tallies

    def stays(self, piece: EvictionUnit, gone: Mask) -> bool:
        counted: list[CapacityCheck] = []
        for check in self._tallies:
            if not check.stays(piece, gone):
                break
            counted.append(check)
        else:
            if not self._trial.state.work.exhausted and self._trial.fits(gone):
                return True
        for check in counted:
            check.undo(piece)
        return False


class CapacityCheck:
    """Counts members that fit, piece by piece, in plain numbers."""

    def __init__(self, trial: PreemptionSimulation, gone: Mask, request: PodSetRequest) -> None:
        shape = trial.base.shape_of(request.role)
        members, devices = trial.rows(gone)
        where, caps = arrays.distinct(members[0], len(trial.base)), trial.caps(gone, shape)
        here = trial.nodes[where].tolist()
        part = trial.base.part_without(where, members, devices)
        self._caps = dict(zip(here, caps[where].tolist(), strict=True))
        """Only of nodes with victims: nothing changes elsewhere."""
        self._needs = [
            (c, need, dict(zip(here, part.free[c].tolist(), strict=True)))
            for c, need in shape.needs
        ]
        self._ids = dict(zip(here, trial.domains[where].tolist(), strict=True))
        self._sums = np.bincount(trial.domains, weights=caps).astype(np.int64).tolist()
        self._count = request.count
        self._enough = sum([total >= self._count for total in self._sums])
        self._width = part.device_table.compute.shape[1]
        self._before: list[tuple[int, int]] = []
        self._taken: list[int] = []
        """What the unit that was counted last changed."""
        self._per_member = 0
        self._free: set[int] = set()
        """Devices that a member could have."""
        self._devices: dict[int, int] = {}
        if shape.requests:
            usable = part.device_table.eligible(shape.requests[0]) & (
                part.device_table.mode == UNLOCKED
            )
            self._per_member = shape.requests[0].count
            rows, at = np.nonzero(usable)
            self._free = set((trial.nodes[where][rows] * self._width + at).tolist())
            self._devices = dict(zip(here, usable.sum(axis=1).tolist(), strict=True))

    def stays(self, piece: EvictionUnit, gone: Mask) -> bool:  # noqa: ARG002
        self._taken = self._occupy(piece)
        nodes = {node for node, *_ in piece.members}
        self._before = [(node, self._caps[node]) for node in nodes]
        for node, cap in self._before:
            if cap:
                self._set_cap(node, self._cap(node))
        if not self._enough:
            self.undo(piece)
            return False
        return True

    def undo(self, piece: EvictionUnit) -> None:
        """The unit that was counted last is evicted after all."""
        for node, cap in self._before:
            self._set_cap(node, cap)
        self._vacate(piece, self._taken)

    def _occupy(self, piece: EvictionUnit) -> list[int]:
        for member in piece.members:
            for column, _, free in self._needs:
                free[member[0]] -= member[1 + column]
        taken = []
        if self._per_member:
            for device, *_ in piece.grants:
                if device in self._free:
                    self._free.discard(device)
                    self._devices[device // self._width] -= 1
                    taken.append(device)
        return taken

    def _vacate(self, piece: EvictionUnit, taken: Iterable[int]) -> None:
        for member in piece.members:
            for column, _, free in self._needs:
                free[member[0]] += member[1 + column]
        for device in taken:
            self._free.add(device)
            self._devices[device // self._width] += 1

    def _cap(self, node: int) -> int:
        fit = min((free[node] // need for _, need, free in self._needs), default=1 << 40)
        if self._per_member:
            fit = min(fit, self._devices[node] // self._per_member)
        return max(0, fit)

    def _set_cap(self, node: int, cap: int) -> None:
        domain = self._ids[node]
        total = self._sums[domain]
        self._sums[domain] = total + cap - self._caps[node]
        self._caps[node] = cap
        self._enough += (self._sums[domain] >= self._count) - (total >= self._count)
