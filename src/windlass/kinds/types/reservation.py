"""Reservation: capacity that is reserved for a time window, or closed for maintenance.

Written by administrators; the scheduler reads `spec` and writes `status`. The rules are in
docs/guide/reserve-capacity.md.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from windlass.kinds.types import field_types
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Column, Resource

MOST_NODES_SHOWN = 64
"""Maximum number of node names in the status."""

Amounts = Annotated[dict[field_types.ResourceName, field_types.Quantity], Meta(max_length=64)]
"""Resource -> amount: `{gpu: 16}`, `{gpu/h100: 8}`, `{cpu: 256, memory: 1Ti}`."""


class ReservedNodes(Struct):
    """Whole nodes, by name or by label."""

    names: Annotated[list[field_types.ObjectName], Meta(min_length=1, max_length=4096)] | None = (
        None
    )
    """These nodes."""
    selector: (
        Annotated[dict[field_types.LabelKey, field_types.LabelValue], Meta(max_length=64)] | None
    ) = None
    """All nodes with these labels, including nodes that are added later."""


class Beneficiaries(Struct):
    """Workloads that may use the reserved capacity: those that match any of these."""

    queues: Annotated[list[field_types.ObjectName], Meta(max_length=256)] | None = None
    """Workloads of these queues and of the queues below them."""
    namespaces: Annotated[list[field_types.DnsLabel], Meta(max_length=256)] | None = None
    """Workloads of these namespaces."""
    users: Annotated[list[field_types.Text], Meta(max_length=256)] | None = None
    """Workloads of these users."""


class ReservationSpec(Struct):
    """What is reserved, when, and for which workloads."""

    start: field_types.Time | None = msgspec.field(default=None, name="from")
    """Start of the window. Give either this or `schedule`."""
    end: field_types.Time | None = msgspec.field(default=None, name="to")
    """End of the window. Give either this or `duration`."""
    schedule: field_types.Schedule | None = None
    """When it begins, repeatedly, as in cron: `0 20 * * 6`."""
    time_zone: field_types.TimeZone = "UTC"
    """Time zone of the schedule: `Europe/Berlin`."""
    duration: field_types.Duration | None = None
    """Length of the window: `8h`."""
    nodes: ReservedNodes | None = None
    """Whole nodes. Give either this or `amounts`."""
    amounts: Amounts | None = None
    """Amounts per resource, on any nodes: `{gpu: 16}`."""
    beneficiaries: Beneficiaries | None = msgspec.field(default=None, name="for")
    """Workloads that may use it. Absent: a maintenance window, in which nothing may run there."""
    reason: field_types.Text | None = None
    """The reason; runs that wait because of it show it."""


class Window(Struct, kw_only=True):
    """One time window."""

    start: field_types.Time = msgspec.field(name="from")
    """Start of the window."""
    end: field_types.Time = msgspec.field(name="to")
    """End of the window."""


class ReservationStatus(Struct):
    """The state of the reservation. Only the platform writes it."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    state: Literal["Scheduled", "Active", "Ended"] | None = None
    """`Scheduled`: its next window has not started. `Active`: a window is open. `Ended`: it has no
    more windows."""
    window: Window | None = None
    """The open window, or the next one; after the end, the last one."""
    nodes: Annotated[list[str], Meta(max_length=MOST_NODES_SHOWN)] | None = None
    """Nodes that are reserved whole, the first 64. For amounts: the current choice, which may
    change until the window is over."""
    node_count: int = 0
    """How many nodes are reserved whole."""
    reserved: Annotated[dict[str, field_types.Quantity], Meta(max_length=64)] | None = None
    """Reserved amount of each resource that it names, or of cpu, memory and devices of its
    nodes."""
    used: Annotated[dict[str, field_types.Quantity], Meta(max_length=64)] | None = None
    """How much of that its beneficiaries use now."""
    staying: int = 0
    """Other workloads on its nodes that cannot be stopped and stay until they end."""
    conditions: field_types.Conditions | None = None
    """Satisfied: whether all of it is reserved, and how much is missing. Conflicts: whether another
    reservation has the same nodes at the same time for other workloads."""


class Reservation(Object, kw_only=True):
    """Capacity that is reserved for a time window, or closed for maintenance."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Reservation", "reservations", namespaced=False,
        short_names=("wres",), categories=("windlass",), subresources=("status",),
        columns=(
            Column("State", ".status.state", description="Scheduled, Active or Ended"),
            Column("From", ".status.window.from", description="Start of its window"),
            Column("To", ".status.window.to", description="End of its window"),
            Column("Nodes", ".status.nodeCount", "integer", description="Reserved nodes"),
            Column("Reason", ".spec.reason", description="Why"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: ReservationSpec
    status: ReservationStatus = msgspec.field(default_factory=ReservationStatus)
