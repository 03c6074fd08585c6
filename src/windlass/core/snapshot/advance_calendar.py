"""The windows of all advance reservations of a snapshot."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from windlass.core.model.types import AdvanceReservation, Role, Workload

_REMEMBERED = 100_000


class Calendar:
    """All windows by their start, and the workloads that earlier decisions bound by them."""

    def __init__(self, windows: Sequence[AdvanceReservation] = ()) -> None:
        self.windows = tuple(sorted(windows, key=lambda each: (each.start, each.name, each.end)))
        self._roles: dict[tuple[int, tuple[str, ...]], tuple[Role, Role]] = {}
        self._workloads: dict[tuple[int, tuple[str, ...]], tuple[Workload, Workload]] = {}

    def bound(self, workload: Workload, windows: tuple[str, ...]) -> Workload:
        """The workload, kept from what these windows hold back. The same object again and again,
        so that what is known about it stays known."""
        if all(role.constraint.reserved == windows for role in workload.roles):
            return workload
        known = self._workloads.get((id(workload), windows))
        if known is not None and known[0] is workload:
            return known[1]
        if max(len(self._workloads), len(self._roles)) > _REMEMBERED:
            self._workloads.clear()
            self._roles.clear()
        roles = tuple([self.bound_role(role, windows) for role in workload.roles])
        made = dataclasses.replace(workload, roles=roles)
        self._workloads[id(workload), windows] = (workload, made)
        return made

    def bound_role(self, role: Role, windows: tuple[str, ...]) -> Role:
        if role.constraint.reserved == windows:
            return role
        known = self._roles.get((id(role), windows))
        if known is not None and known[0] is role:
            return known[1]
        constraint = dataclasses.replace(role.constraint, reserved=windows)
        made = dataclasses.replace(role, constraint=constraint)
        self._roles[id(role), windows] = (role, made)
        return made
