"""Reservation: capacity that is set aside for a window of time, or closed for maintenance.

Written by administrators; the scheduler reads `spec` and writes `status`. What it promises is in
docs/reservations.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from windlass.kinds import fields
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Column, Resource

MOST_NODES_SHOWN = 64
"""Names of nodes that the status lists."""

Amounts = Annotated[dict[fields.ResourceName, fields.Quantity], Meta(max_length=64)]
"""Resource -> amount: `{gpu: 16}`, `{gpu/h100: 8}`, `{cpu: 256, memory: 1Ti}`."""


class ReservedNodes(Struct):
    """Whole nodes, by name or by label."""

    names: Annotated[list[fields.ObjectName], Meta(min_length=1, max_length=4096)] | None = None
    """These nodes."""
    selector: Annotated[dict[fields.LabelKey, fields.LabelValue], Meta(max_length=64)] | None = None
    """All nodes with these labels, also those that come later."""


class Beneficiaries(Struct):
    """Who may use the reserved capacity: every workload that matches any of these."""

    queues: Annotated[list[fields.ObjectName], Meta(max_length=256)] | None = None
    """Workloads of these queues and of the queues below them."""
    namespaces: Annotated[list[fields.DnsLabel], Meta(max_length=256)] | None = None
    """Workloads of these namespaces."""
    users: Annotated[list[fields.Text], Meta(max_length=256)] | None = None
    """Workloads of these users."""


class ReservationSpec(Struct):
    """What is reserved, when, and for whom."""

    start: fields.Time | None = msgspec.field(default=None, name="from")
    """When it begins. Give either this or `schedule`."""
    end: fields.Time | None = msgspec.field(default=None, name="to")
    """When it ends. Give either this or `duration`."""
    schedule: fields.Schedule | None = None
    """When it begins again and again, as in cron: `0 20 * * 6`."""
    time_zone: fields.TimeZone = "UTC"
    """Time zone of the schedule: `Europe/Berlin`."""
    duration: fields.Duration | None = None
    """How long it lasts: `8h`."""
    nodes: ReservedNodes | None = None
    """Whole nodes. Give either this or `amounts`."""
    amounts: Amounts | None = None
    """So much of each resource, on whichever nodes: `{gpu: 16}`."""
    beneficiaries: Beneficiaries | None = msgspec.field(default=None, name="for")
    """Who may use it. Absent: a maintenance window, in which nothing may run there."""
    reason: fields.Text | None = None
    """Why, for those who wait because of it."""


class Window(Struct, kw_only=True):
    """One window of time."""

    start: fields.Time = msgspec.field(name="from")
    """When it begins."""
    end: fields.Time = msgspec.field(name="to")
    """When it ends."""


class ReservationStatus(Struct):
    """What became of it. Only the platform writes this."""

    observed_generation: int = 0
    """The generation of the spec that this status is about."""
    state: Literal["Scheduled", "Active", "Ended"] | None = None
    """`Scheduled`: its next window has not begun. `Active`: a window is open. `Ended`: there are no
    more windows."""
    window: Window | None = None
    """The open window, or the next one; of one that has ended, the last."""
    nodes: Annotated[list[str], Meta(max_length=MOST_NODES_SHOWN)] | None = None
    """Nodes that it holds whole, the first 64. Of amounts: as of now; until the window is over
    others may be chosen."""
    node_count: int = 0
    """How many nodes it holds whole."""
    reserved: Annotated[dict[str, fields.Quantity], Meta(max_length=64)] | None = None
    """How much it holds of each resource that it names, or of cpu, memory and devices of its
    nodes."""
    used: Annotated[dict[str, fields.Quantity], Meta(max_length=64)] | None = None
    """How much of that its beneficiaries hold now."""
    staying: int = 0
    """Workloads of others on its nodes that cannot be stopped and stay until they end."""
    conditions: fields.Conditions | None = None
    """Satisfied: whether it holds all that it names, and how much is missing. Conflicts: whether
    another reservation holds the same nodes at the same time for others."""


class Reservation(Object, kw_only=True):
    """Capacity that is set aside for a window of time, or closed for maintenance."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Reservation", "reservations", namespaced=False,
        short_names=("wres",), categories=("windlass",), subresources=("status",),
        columns=(
            Column("State", ".status.state", description="Scheduled, Active or Ended"),
            Column("From", ".status.window.from", description="Begin of its window"),
            Column("To", ".status.window.to", description="End of its window"),
            Column("Nodes", ".status.nodeCount", "integer", description="Nodes that it holds"),
            Column("Reason", ".spec.reason", description="Why"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: ReservationSpec
    status: ReservationStatus = msgspec.field(default_factory=ReservationStatus)
