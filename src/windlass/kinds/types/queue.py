"""Queue: a node of the quota tree, with its amounts and its order.

Written by administrators; the scheduler reads `spec` and writes `status`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from windlass.kinds.types import field_types, pricelist
from windlass.kinds.types.meta import Object, Struct
from windlass.kinds.types.resource import Column, Resource

Amounts = Annotated[dict[field_types.ResourceName, field_types.Quantity], Meta(max_length=64)]
"""Resource -> amount: `{gpu: 16, gpu/h100: 8, cpu: 256, memory: 1Ti}`."""


class BudgetStep(Struct):
    """The action at a percentage of the budget."""

    percent: Annotated[int, Meta(ge=1, le=1000)]
    """Percentage of the budget."""
    do: Literal["warn", "hold", "stop"]
    """`warn` creates an event, `hold` starts nothing new, `stop` also stops preemptible runs."""


class BudgetOverride(Struct, kw_only=True):
    """An administrator's permission to exceed the budget. The ledger records it, with the time at
    which it was first seen."""

    until: field_types.Time
    """When it ends."""
    reason: Annotated[str, Meta(min_length=1, max_length=256)]
    """The reason."""
    by: Annotated[str, Meta(max_length=256)] = ""
    """The user who gave it; the server fills in the caller."""


class Budget(Struct):
    """How much the queue and the queues below it may use in a period."""

    device_hours: Amounts | None = None
    """Device hours: `{gpu: 5000, gpu/h100: 100}`."""
    money: pricelist.Money | None = None
    """Total cost, in the currency of the price lists."""
    per: Literal["day", "week", "month", "quarter", "year", "total"] = "month"
    """The period, by the calendar; weeks begin on Monday. `total`: one period without an end."""
    time_zone: field_types.TimeZone = "UTC"
    """Time zone of the budget period: `Europe/Berlin`."""
    at: Annotated[list[BudgetStep], Meta(max_length=8)] | None = None
    """Thresholds and their effects. Default: warn at 80 percent, hold at 100."""
    override: BudgetOverride | None = None
    """While this is valid the budget holds and stops nothing."""


UserName = Annotated[str, Meta(min_length=1, max_length=253)]
"""A user name, as in `spec.user` of Runs."""


class UserLimit(Struct):
    """What one user may use and submit in the queue, including the queues below it."""

    resources: Amounts | None = None
    """What the user's runs may use together: `{gpu: 4, gpu/h100: 2, cpu: 64}`."""
    running: Annotated[int, Meta(ge=0, le=1000000)] | None = None
    """How many runs of the user may run at the same time."""
    submitted: Annotated[int, Meta(ge=0, le=1000000)] | None = None
    """How many active runs the user may have. The embedded engine refuses the next run; on
    Kubernetes it waits."""


class UserLimits(UserLimit):
    """Limits of every user, and exceptions for some. A limit binds one user and delays no other
    user."""

    users: Annotated[dict[UserName, UserLimit], Meta(max_length=1000)] | None = None
    """Exceptions by user name. An entry overrides only the limits that it names."""


class QueueSpec(Struct):
    """The quota of the queue, and the order of its runs."""

    parent: field_types.ObjectName | None = None
    """The parent queue. A queue without a parent is a root."""
    namespaces: Annotated[list[field_types.DnsLabel], Meta(max_length=256)] | None = None
    """Namespaces whose runs use this queue unless they name another one. Other namespaces may not
    use it. A queue without namespaces and without child queues is open to all namespaces."""
    guarantee: Amounts | None = None
    """Amounts that the queue gets on demand; the scheduler reclaims them from borrowers."""
    limit: Amounts | None = None
    """Amounts that the queue never exceeds, including borrowed capacity."""
    lend: Amounts | None = None
    """How much of the guarantee other queues may borrow. Default: all of it."""
    weight: Annotated[int, Meta(ge=1, le=1000000)] = 1
    """Its share of free capacity, relative to its siblings."""
    order: Literal["fifo", "lifo", "priority", "fair", "shortest", "attained"] = "fifo"
    """Order of runs with the same priority: a higher priority is first under every order.
    `priority` is another name of `fifo`."""
    strict: bool = False
    """The first run blocks the runs behind it: no backfill."""
    reserve: Annotated[int, Meta(ge=0, le=100)] | None = None
    """How many blocked runs get a reservation that backfill must respect. Default: 1; under the
    orders `shortest` and `attained` only for a run that has waited long: 12 times its expected
    duration under `shortest`, or three days if it states none, and under `attained`."""
    min_runtime: field_types.Duration | None = None
    """A run is not preempted before it has run this long."""
    max_priority: field_types.Priority | None = None
    """Upper limit of the priority of its runs."""
    half_life: field_types.DurationOrZero | None = None
    """How past use counts in fair share. Default: only use above or below the entitlement counts,
    halved each day while the queue has what it asks for. A duration such as `7d`: all use counts,
    halved in that time. `0s`: past use does not count."""
    fair_share_preemption: field_types.Duration | None = None
    """Once the queue is behind its entitlement by as much as it is entitled to in this time, its
    runs preempt preemptible runs of queues above theirs. Default: never; the queue gets its share
    as runs of other queues end."""
    user_fair: bool = False
    """Users take turns under any order, by current and past use. All users are equal."""
    user_limits: UserLimits | None = None
    """What each user may use and submit."""
    stop: Literal["hold", "drain"] | None = None
    """`hold`: nothing starts or grows in it or below it; running runs continue. `drain`:
    preemptible runs are also stopped by their checkpoint contract, and wait. Absent: it is open."""
    budget: Budget | None = None
    """Limit of the usage in a period."""


class BudgetStatus(Struct, kw_only=True):
    """Usage of the budget. The ledger writes this, about once a minute."""

    observed_generation: int = 0
    """The generation of the spec that was read; a newer budget is not in force yet."""
    since: field_types.Time | None = None
    """When the period began; absent for `total`."""
    until: field_types.Time | None = None
    """When it ends."""
    device_hours: Amounts | None = None
    """Device hours used so far, of the devices in the budget."""
    money: str | None = None
    """Cost so far, if the budget has money."""
    percent: int = 0
    """The largest percentage of these."""
    runs_out: field_types.Time | None = None
    """When it will be used up at the current rate; absent: not within the period."""
    state: Literal["Open", "Warned", "Held", "Stopped"] = "Open"
    """The action in force."""
    message: str = ""
    """Message with amounts."""


class UserAccount(Struct):
    """Decayed past usage of one user in the queue, in seconds of dominant share."""

    excess: float = 0.0
    """Usage above the entitlement; negative: below it."""
    usage: float = 0.0
    """All usage."""


class QueueAccount(UserAccount, kw_only=True):
    """Past use of the queue and those below it, in seconds of dominant share, decayed by its
    half-life. The scheduler continues from it after a restart."""

    at: field_types.Time
    """The time until which use is counted."""
    users: Annotated[dict[UserName, UserAccount], Meta(max_length=1000)] | None = None
    """By user name, with `userFair`; the users with the most usage."""


class QueueStatus(Struct):
    """Usage of the queue and the queues below it. Only the platform writes this, a few seconds
    after a change."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    used: Amounts | None = None
    """Usage of its runs and of the queues below it."""
    borrowed: Amounts | None = None
    """The part of it above its guarantee."""
    lent: Amounts | None = None
    """How much of its guarantee other queues use."""
    running: int = 0
    """How many runs have an assignment, and external pods or gangs of them are placed."""
    pending: int = 0
    """Number of waiting runs."""
    share: float | None = None
    """Its dominant share relative to its weight; used for the order of queues."""
    entitlement: float | None = None
    """The share of the cluster that it is entitled to, by weights, guarantees and demand."""
    account: QueueAccount | None = None
    """Its past usage, written at most every 30 seconds."""
    budget: BudgetStatus | None = None
    """Usage of the budget."""
    conditions: field_types.Conditions | None = None
    """Ready: its position in the tree is valid. OverCommitted: guarantees exceed the capacity, so
    its guarantee is cut."""


class Queue(Object):
    """A node of the quota tree: what a team may use, and in which order its runs start."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Queue", "queues", namespaced=False, short_names=("wq",),
        categories=("windlass",), subresources=("status",),
        columns=(
            Column("Parent", ".spec.parent", description="The queue above it"),
            Column("Order", ".spec.order", description="Order of its runs"),
            Column("Weight", ".spec.weight", "integer", description="Its share of free capacity"),
            Column("Running", ".status.running", "integer", description="Runs with an assignment"),
            Column("Pending", ".status.pending", "integer", description="Runs that wait"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: QueueSpec = msgspec.field(default_factory=QueueSpec)
    status: QueueStatus = msgspec.field(default_factory=QueueStatus)
