"""Shapes: what one member needs, told once and numbered.

Thousands of units come in tens of shapes. Everything that is kept per shape (what fits where, why
nothing fits) is found by the shape's number; its key holds everything that such answers read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from windlass.core.facts import Constraint, DeviceRequest, Role, Unit

_REMEMBERED = 200_000
"""Roles whose shape is known by identity, before all are forgotten and told again."""
OWN = -1
"""Stands for the kind of units that are like no other."""


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
        """Whether "how many fit" is the true number: not where requests of one member compete for
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
        """Whether a member asks for one partition of a device, no other device and no bundle."""
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
        self._kinds: dict[object, int] = {}
        self.examples: list[Unit] = []
        """Of each kind, the first unit that was seen."""
        self.classes: list[str] = []
        """Of each kind, what it competes for."""
        self._kind_by_unit: dict[int, tuple[Unit, int]] = {}

    def of(self, role: Role, resources: Mapping[str, int], model: str = "") -> Shape:
        """The shape of a role's members; with `model`, only that one of several acceptable."""
        # The same Role value is asked for again and again; its identity is the quickest key.
        known = self._by_model.get((id(role), model)) if model else self._by_role.get(id(role))
        if known is not None and known[0] is role:
            return known[1]
        if len(self._by_role) + len(self._by_model) > _REMEMBERED:
            self._by_role.clear()
            self._by_model.clear()
        shape = self._told(role, resources, model)
        if model:
            self._by_model[id(role), model] = (role, shape)
        else:
            self._by_role[id(role)] = (role, shape)
        return shape

    def _told(self, role: Role, resources: Mapping[str, int], model: str) -> Shape:
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

    def class_of(self, unit: Unit, resources: Mapping[str, int]) -> str:
        """What a unit competes for, by all of its roles."""
        classes = {self.of(role, resources).resource_class for role in unit.roles}
        return "+".join(sorted(classes))

    def kind_of(self, unit: Unit, resources: Mapping[str, int]) -> int:
        """A number that units share which ask for the same in the same queue with the same rights:
        they differ in nothing but their place in line and how long they run. `OWN`: it is held
        back, or was once, for reasons of its own."""
        known = self._kind_by_unit.get(id(unit))
        if known is not None and known[0] is unit:
            return known[1]
        if len(self._kind_by_unit) > _REMEMBERED:
            self._kind_by_unit.clear()
        roles = tuple(
            (self.of(r, resources).id, r.least, r.most, r.labels, r.affinities, r.spreads)
            for r in unit.roles
        )
        key = (
            unit.held is None and not unit.not_before, unit.queue, roles, unit.priority,
            unit.preemptible, unit.preempts, unit.topology, unit.gang, unit.namespace,
            _taste(unit),
        )  # fmt: skip
        kind = self._kinds.setdefault(key, len(self._kinds)) if key[0] else OWN
        if kind == len(self.examples):
            self.examples.append(unit)
            self.classes.append(self.class_of(unit, resources))
        self._kind_by_unit[id(unit)] = (unit, kind)
        return kind


def _taste(unit: Unit) -> object:
    """Which places it would take first, where that may decide whether all of it fits."""
    if len(unit.roles) == 1 and not (unit.roles[0].affinities or unit.roles[0].spreads):
        return ()
    return unit.pack, tuple(role.prefers for role in unit.roles)


def _narrowed(request: DeviceRequest, model: str) -> DeviceRequest:
    if not model or model not in request.models:
        return request
    return dataclasses.replace(request, models=(model,))
