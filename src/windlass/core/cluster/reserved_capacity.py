"""What advance reservations withhold from workloads that may not use them, node by node.

`core.calendar.advance_windows` writes the table before a decision; `Cluster` reads it when it
counts how many pods of a shape fit. A shape names the windows that bind it (`Constraint.reserved`),
so that everything that is cached per shape stays right. Withheld devices are counted, not named:
which ones they are is open until they are allocated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from windlass.core.cluster.devices.device_allocation import UNLOCKED
from windlass.core.cluster.devices.device_table import DeviceTable
from windlass.core.model.equivalence import Shape
from windlass.core.model.types import DeviceRequest

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Where = Ints | slice
_MANY = 1 << 40


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Hold:
    """What one window holds back."""

    start: float
    end: float
    nodes: frozenset[int] = frozenset()
    """Nodes that are held back whole."""
    parts: Mapping[tuple[str, int], int] = dataclasses.field(default_factory=dict)
    """(resource, node) -> so much must stay free there: columns of the cluster in their workload,
    devices by number."""

    def differs(self, other: Hold | None) -> set[int]:
        """Nodes of which it holds back something else."""
        if other is None:
            return {*self.nodes, *(node for _, node in self.parts)}
        found = set(self.nodes ^ other.nodes)
        for place in self.parts.keys() | other.parts.keys():
            if self.parts.get(place) != other.parts.get(place):
                found.add(place[1])
        return found


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Limit:
    """What several windows hold back together, as arrays over nodes."""

    barred: Mask
    columns: Sequence[tuple[int, Ints]]
    devices: Sequence[tuple[DeviceRequest, Ints]]


class Table:
    """Never changed once a decision reads it: what is held back next is in a new one."""

    def __init__(self, holds: Mapping[str, Hold] | None = None) -> None:
        self.holds = holds or {}
        self._limits: dict[tuple[str, ...], _Limit] = {}
        self._whole: tuple[Table, Ints, int] | None = None
        """Of a part of a cluster: the table of the whole, which nodes, and of how many."""

    def part(self, where: Ints, size: int) -> Table:
        """The table of some of so many nodes."""
        fork = Table()
        fork._whole = (self, where, size)
        return fork

    def changed(self, holds: Mapping[str, Hold]) -> set[int]:
        """Nodes of which these withhold something else than the table does."""
        found: set[int] = set()
        for key, hold in holds.items():
            found |= hold.differs(self.holds.get(key))
        for key, hold in self.holds.items():
            if key not in holds:
                found |= hold.differs(None)
        return found

    def has_parts(self, windows: tuple[str, ...]) -> bool:
        """Whether these windows hold back parts of nodes, and not only whole ones."""
        if not windows:
            return False
        if self._whole is not None:
            return self._whole[0].has_parts(windows)
        return any(hold.parts for hold in self._named(windows))

    def barred(self, windows: tuple[str, ...], size: int) -> Mask:
        """Nodes that these windows hold back whole. Read only."""
        if not windows:
            return np.zeros(size, np.bool_)
        if self._whole is not None:
            whole, where, size = self._whole
            return whole.barred(windows, size)[where]
        limit = self._limits.get(windows)
        if limit is not None:
            return limit.barred
        barred = np.zeros(size, np.bool_)
        barred[sorted(set[int]().union(*(hold.nodes for hold in self._named(windows))))] = True
        return barred

    def limit(
        self,
        fit: Ints,
        shape: Shape,
        where: Where,
        resources: Mapping[str, int],
        free: Ints,
        bank: DeviceTable,
    ) -> None:
        """Lowers the number of pods that fit on each of these nodes, by what is free there."""
        limit = self._limit(shape.constraint.reserved, resources, free.shape[1])
        for column, held in limit.columns:
            for needed, need in shape.needs:
                if needed == column:
                    _lower(fit, held[where], free[column, where], need)
        for held_request, held in limit.devices:
            for request in shape.requests:
                if _may_take(request, held_request):
                    unlocked = bank.mode[where] == UNLOCKED
                    unlocked_devices = (bank.eligible(held_request)[where] & unlocked).sum(axis=1)
                    # A share may lock a device that no pod holds yet: it counts as one.
                    each = request.count if request.form == "whole" else 1
                    _lower(fit, held[where], unlocked_devices, each)

    def _limit(self, windows: tuple[str, ...], resources: Mapping[str, int], size: int) -> _Limit:
        found = self._limits.get(windows)
        if found is None and self._whole is not None:
            whole, where, size = self._whole
            of = whole._limit(windows, resources, size)
            found = _Limit(
                of.barred[where],
                [(column, withheld[where]) for column, withheld in of.columns],
                [(request, withheld[where]) for request, withheld in of.devices],
            )
        elif found is None:
            found = self._combined(windows, resources, size)
        self._limits[windows] = found
        return found

    def _combined(
        self, windows: tuple[str, ...], resources: Mapping[str, int], size: int
    ) -> _Limit:
        parts: dict[str, Ints] = {}
        for (resource, node), amount in _together(self._named(windows)).items():
            parts.setdefault(resource, np.zeros(size, np.int64))[node] = amount
        return _Limit(
            self.barred(windows, size),
            [(resources[name], withheld) for name, withheld in parts.items() if name in resources],
            [
                (request_for(name), withheld)
                for name, withheld in parts.items()
                if name not in resources
            ],
        )

    def _named(self, windows: Iterable[str]) -> list[Hold]:
        return [self.holds[name] for name in windows if name in self.holds]


def request_for(resource: str) -> DeviceRequest:
    """`gpu`, `gpu/h100`: one whole device of it."""
    kind, _, model = resource.partition("/")
    return DeviceRequest(kind, models=(model,) if model else ())


def _together(holds: Sequence[Hold]) -> dict[tuple[str, int], int]:
    """What they hold back at most at the same time: windows that overlap add up, others do not."""
    found: dict[tuple[str, int], int] = {}
    for first in holds:
        at_once: dict[tuple[str, int], int] = {}
        for hold in holds:
            if hold.start <= first.start < hold.end:
                for place, amount in hold.parts.items():
                    at_once[place] = at_once.get(place, 0) + amount
        for place, amount in at_once.items():
            found[place] = max(found.get(place, 0), amount)
    return found


def _may_take(request: DeviceRequest, withheld: DeviceRequest) -> bool:
    """Whether pods with such a request might be given devices that are held back."""
    if request.kind != withheld.kind:
        return False
    return not (request.models and withheld.models) or not set(request.models).isdisjoint(
        withheld.models
    )


def _lower(fit: Ints, withheld: Ints, free: Ints, each: int) -> None:
    most = np.maximum(free - withheld, 0) // each
    np.minimum(fit, np.where(withheld > 0, most, _MANY), out=fit)
