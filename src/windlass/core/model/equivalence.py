"""Shapes (equal pod requests) and equivalence classes (equal workloads), each with a number.

Thousands of workloads come in tens of shapes. Everything that is cached per shape (what fits where,
why nothing fits) is found by the shape's number; its key holds everything that such answers read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from windlass.core.model.types import Constraint, DeviceRequest, Role, Workload

_REMEMBERED = 200_000
"""Entries of the caches by identity before they are cleared."""
UNIQUE = -1
"""Stands for the kind of workloads that are like no other."""


@dataclasses.dataclass(frozen=True, eq=False)
class Shape:
    id: int
    needs: tuple[tuple[int, int], ...]
    """(column of the cluster's resources, amount), amounts above 0."""
    amounts: tuple[tuple[str, int], ...]
    """The same by name, with what no node has."""
    requests: tuple[DeviceRequest, ...]
    bundle: str
    constraint: Constraint
    ports: tuple[int, ...]
    unknown: bool
    """Asks for a resource that no node has."""

    @functools.cached_property
    def is_counted_exactly(self) -> bool:
        """Whether "how many fit" is the true number: not where requests of one pod compete for
        the same devices, which is counted by trying one order."""
        return len({request.kind for request in self.requests}) == len(self.requests)

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether how many fit on a node follows from what it has of each thing alone."""
        return (
            not (self.ports or self.bundle or self.unknown)
            and len(self.requests) <= 1
            and all(request.form != "partition" for request in self.requests)
        )

    @functools.cached_property
    def is_one_partition(self) -> bool:
        """Whether a pod asks for one partition of a device, no other device and no bundle."""
        return len(self.requests) == 1 and self.requests[0].form == "partition" and not self.bundle

    @functools.cached_property
    def in_arrays(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """What it needs, below one another: the columns, and the amounts."""
        columns, each = zip(*self.needs, strict=True)
        return np.array(columns, np.int64)[:, None], np.array(each, np.int64)[:, None]

    @property
    def resource_class(self) -> str:
        """What it competes for; a blocked head stops only those behind it of its own class."""
        kinds = sorted({f"{r.kind}:{'|'.join(r.models)}" for r in self.requests})
        return "+".join(kinds) or "cpu"


class Shapes:
    """All shapes seen so far."""

    def __init__(self) -> None:
        self.by_id: list[Shape] = []
        self._by_key: dict[object, Shape] = {}
        self._by_role: dict[int, tuple[Role, Shape]] = {}
        self._by_model: dict[tuple[int, str], tuple[Role, Shape]] = {}
        """The same with only one of several acceptable models."""
        self._classes: dict[object, int] = {}
        self.examples: list[Workload] = []
        """Of each kind, the first workload that was seen."""
        self.resource_classes: list[str] = []
        """Of each kind, what it competes for."""
        self._class_by_workload: dict[int, tuple[Workload, int]] = {}

    def of(self, role: Role, resources: Mapping[str, int], model: str = "") -> Shape:
        """The shape of a role's pods; with `model`, only that one of several acceptable."""
        # The same Role value is asked for again and again; its identity is the quickest key.
        known = self._by_model.get((id(role), model)) if model else self._by_role.get(id(role))
        if known is not None and known[0] is role:
            return known[1]
        if len(self._by_role) + len(self._by_model) > _REMEMBERED:
            self._by_role.clear()
            self._by_model.clear()
        shape = self._make(role, resources, model)
        if model:
            self._by_model[id(role), model] = (role, shape)
        else:
            self._by_role[id(role)] = (role, shape)
        return shape

    def _make(self, role: Role, resources: Mapping[str, int], model: str) -> Shape:
        amounts = dict(role.needs)
        if "pods" in resources:
            amounts.setdefault("pods", 1)
        for driver, count in role.attach:
            amounts[f"attach:{driver}"] = count
        wanted = tuple(sorted((name, amount) for name, amount in amounts.items() if amount > 0))
        requests = tuple(_narrowed(request, model) for request in role.devices)
        key = (wanted, requests, role.bundle, role.constraint, role.ports, role.runtime)
        shape = self._by_key.get(key)
        if shape is None:
            needs = tuple((resources[n], amount) for n, amount in wanted if n in resources)
            unknown = len(needs) < len(wanted)
            shape = Shape(
                len(self.by_id), needs, wanted, requests, role.bundle, role.constraint,
                role.ports, unknown,
            )  # fmt: skip
            self.by_id.append(shape)
            self._by_key[key] = shape
        return shape

    def unbundled(self, shape: Shape) -> Shape:
        """The same without its bundle."""
        key = (shape.amounts, shape.requests, "", shape.constraint, shape.ports)
        loose = self._by_key.get(key)
        if loose is None:
            loose = dataclasses.replace(shape, id=len(self.by_id), bundle="")
            self.by_id.append(loose)
            self._by_key[key] = loose
        return loose

    def resource_class_of(self, workload: Workload, resources: Mapping[str, int]) -> str:
        """What a workload competes for, by all of its roles."""
        classes = {self.of(role, resources).resource_class for role in workload.roles}
        return "+".join(sorted(classes))

    def equivalence_class(self, workload: Workload, resources: Mapping[str, int]) -> int:
        """The number of the workload's equivalence class: workloads that ask for the same in the
        same queue with the same rights. They differ only in their position in the queue and how
        long they run. `UNIQUE`: the workload is blocked, or was once, for reasons of its own."""
        known = self._class_by_workload.get(id(workload))
        if known is not None and known[0] is workload:
            return known[1]
        if len(self._class_by_workload) > _REMEMBERED:
            self._class_by_workload.clear()
        roles = tuple(
            (self.of(r, resources).id, r.min_count, r.max_count, r.labels, r.affinities, r.spreads)
            for r in workload.roles
        )
        key = (
            workload.hold_reason is None and not workload.not_before,
            workload.queue,
            roles,
            workload.priority,
            workload.preemptible,
            workload.preempts,
            workload.topology,
            workload.gang,
            workload.namespace,
            _preference_key(workload),
        )
        number = self._classes.setdefault(key, len(self._classes)) if key[0] else UNIQUE
        if number == len(self.examples):
            self.examples.append(workload)
            self.resource_classes.append(self.resource_class_of(workload, resources))
        self._class_by_workload[id(workload)] = (workload, number)
        return number


def _preference_key(workload: Workload) -> object:
    """Which places it would take first, where that may decide whether all of it fits."""
    if len(workload.roles) == 1 and not (workload.roles[0].affinities or workload.roles[0].spreads):
        return ()
    return workload.pack, tuple(role.prefers for role in workload.roles)


def _narrowed(request: DeviceRequest, model: str) -> DeviceRequest:
    if not model or model not in request.models:
        return request
    return dataclasses.replace(request, models=(model,))
