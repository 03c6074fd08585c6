"""Advance reservations: capacity that an administrator sets aside for a window of time.

`control` and `sim` turn calendars (a date, a cron schedule) into concrete windows; the core knows
only [start, end), the nodes or amounts, and which workloads may use them. Not to be confused with
`types.ReservationRecord`, the reserved start of a blocked workload.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class AdvanceReservation:
    """One window of a reservation. Whole nodes, or `amounts` of resources on any nodes."""

    name: str
    start: float
    end: float
    nodes: frozenset[str] | None = None
    """Names of the reserved nodes; None: all nodes that the selector accepts."""
    selector: tuple[tuple[str, str], ...] = ()
    """Labels of the reserved nodes."""
    amounts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """If not empty, so much of each resource is set aside anywhere, and no particular nodes.
    Resources as of a Queue."""
    queues: frozenset[str] = frozenset()
    """Workloads of these queues, and of queues below them, may use it."""
    namespaces: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """Names this window: one reservation may have several."""
        return f"{self.name}@{self.start!r}"

    @property
    def is_maintenance(self) -> bool:
        """No workload may use it."""
        return not (self.queues or self.namespaces or self.users)

    def admits(self, path: Collection[str], namespace: str, user: str) -> bool:
        """Whether a workload may use it; `path`: its queue and all queues above it."""
        return (
            namespace in self.namespaces or user in self.users or not self.queues.isdisjoint(path)
        )

    def overlaps(self, start: float, end: float) -> bool:
        return self.start < end and start < self.end
