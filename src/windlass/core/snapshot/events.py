"""What can happen to a snapshot: facts that come, change or go. Applied by
`core.snapshot.snapshot`."""

from __future__ import annotations

import dataclasses

from windlass.core.model.types import (
    Account,
    AdvanceReservation,
    Node,
    Nomination,
    Queue,
    Quota,
    ReservationRecord,
    Running,
    Workload,
)


@dataclasses.dataclass(frozen=True, slots=True)
class NodePut:
    node: Node


@dataclasses.dataclass(frozen=True, slots=True)
class NodeGone:
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class QueuePut:
    queue: Queue


@dataclasses.dataclass(frozen=True, slots=True)
class QueueGone:
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class QuotasPut:
    """All quotas of all namespaces; they change rarely."""

    quotas: tuple[Quota, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AdvancePut:
    """All windows of all advance reservations that have not ended; they change rarely."""

    windows: tuple[AdvanceReservation, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPut:
    """A workload waits, or what it asks for has changed."""

    workload: Workload


@dataclasses.dataclass(frozen=True, slots=True)
class RunningPut:
    """A workload holds capacity, or other capacity than before."""

    running: Running


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A workload that holds capacity saved its state: what it computed until then is not lost."""

    key: str
    at: float


@dataclasses.dataclass(frozen=True, slots=True)
class WorkloadGone:
    """A workload neither waits nor holds anything any more; `ran` seconds if it ended by itself."""

    key: str
    ran: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Nominated:
    nomination: Nomination


@dataclasses.dataclass(frozen=True, slots=True)
class NominationGone:
    workload: str


@dataclasses.dataclass(frozen=True, slots=True)
class ReservationsPut:
    """The reservations of a decision; they replace those of earlier ones."""

    reservations: tuple[ReservationRecord, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Elapsed:
    """It is `now`: what queues held since the last such event is added to their accounts. It comes
    before everything that happened at this moment."""

    now: float


@dataclasses.dataclass(frozen=True, slots=True)
class AccountsPut:
    """Accounts as they were counted elsewhere, until a moment; they replace all others."""

    accounts: tuple[Account, ...]
    at: float


Event = (
    NodePut
    | NodeGone
    | QueuePut
    | QueueGone
    | QuotasPut
    | AdvancePut
    | WaitingPut
    | RunningPut
    | CheckpointSaved
    | WorkloadGone
    | Nominated
    | NominationGone
    | ReservationsPut
    | Elapsed
    | AccountsPut
)
