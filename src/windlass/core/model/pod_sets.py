"""How many pods of which role are placed together."""

from __future__ import annotations

import dataclasses

from windlass.core.model.types import Role, Workload


@dataclasses.dataclass(frozen=True, slots=True)
class PodSetRequest:
    """So many pods of a role, numbered from `first`."""

    role: Role
    count: int
    first: int = 0


def minimum(workload: Workload) -> list[PodSetRequest]:
    """The pods that must start together. A workload that is no gang begins with one pod."""
    if workload.gang:
        return [
            PodSetRequest(role, role.min_count) for role in workload.roles if role.min_count > 0
        ]
    return [PodSetRequest(role, 1) for role in workload.roles[:1]]
