"""Queue: a node of the sharing tree. Who may use how much, and in which order.

Written by administrators; the scheduler reads `spec` and writes `status`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from windlass.kinds import fields, pricelist
from windlass.kinds.meta import Object, Struct
from windlass.kinds.resources import Column, Resource

Amounts = Annotated[dict[fields.ResourceName, fields.Quantity], Meta(max_length=64)]
"""Resource -> amount: `{gpu: 16, gpu/h100: 8, cpu: 256, memory: 1Ti}`."""


class BudgetStep(Struct):
    """What happens when a part of the budget is used."""

    percent: Annotated[int, Meta(ge=1, le=1000)]
    """Of the budget."""
    do: Literal["warn", "hold", "stop"]
    """`warn` tells, `hold` starts nothing new, `stop` stops what runs."""


class BudgetOverride(Struct, kw_only=True):
    """An administrator's leave to go on although the budget is used up. It is written into the
    ledger, too, with the moment it was first seen."""

    until: fields.Time
    """Until when it counts."""
    reason: Annotated[str, Meta(min_length=1, max_length=256)]
    """Why, for those who read it later."""
    by: Annotated[str, Meta(max_length=256)] = ""
    """Who gave it; the server fills in the caller."""


class Budget(Struct):
    """How much may be used in a period, by the queue and those below it."""

    device_hours: Amounts | None = None
    """Hours of devices: `{gpu: 5000, gpu/h100: 100}`."""
    money: pricelist.Money | None = None
    """What all of it together may cost, in the currency of the price lists."""
    per: Literal["day", "week", "month", "quarter", "year", "total"] = "month"
    """The period, by the calendar; weeks begin on Monday. `total`: once and for all."""
    time_zone: fields.TimeZone = "UTC"
    """Where the calendar hangs: `Europe/Berlin`."""
    at: Annotated[list[BudgetStep], Meta(max_length=8)] | None = None
    """What happens at which part of it. Default: warn at 80 percent, hold at 100."""
    override: BudgetOverride | None = None
    """Nothing is held or stopped while this counts."""


UserName = Annotated[str, Meta(min_length=1, max_length=253)]
"""As Runs name their user in `spec.user`."""


class UserLimit(Struct):
    """What one user may hold and submit in the queue, the queues below it included."""

    resources: Amounts | None = None
    """What the user's runs may hold together: `{gpu: 4, gpu/h100: 2, cpu: 64}`."""
    running: Annotated[int, Meta(ge=0, le=1000000)] | None = None
    """How many runs of the user may hold capacity at the same time."""
    submitted: Annotated[int, Meta(ge=0, le=1000000)] | None = None
    """How many runs of the user that have not ended there may be. The embedded engine refuses a run
    beyond it; on Kubernetes it waits."""


class UserLimits(UserLimit):
    """The same for every user, and what differs for some. A limit binds one user and delays no
    other user."""

    users: Annotated[dict[UserName, UserLimit], Meta(max_length=1000)] | None = None
    """By user name, what differs. What an entry does not name is as for every user."""


class QueueSpec(Struct):
    """What the queue may use."""

    parent: fields.ObjectName | None = None
    """The queue above it. None: a root."""
    namespaces: Annotated[list[fields.DnsLabel], Meta(max_length=256)] | None = None
    """Namespaces whose runs use this queue unless they name another one. Nobody else's may; a queue
    that names none takes everybody's, unless it has queues below it."""
    guarantee: Amounts | None = None
    """What it always gets back on demand, whoever borrowed it."""
    limit: Amounts | None = None
    """What it never exceeds, borrowed room included."""
    lend: Amounts | None = None
    """How much of the guarantee others may borrow. Default: all of it."""
    weight: Annotated[int, Meta(ge=1, le=1000000)] = 1
    """Its part of what is free, against its siblings."""
    order: Literal["fifo", "lifo", "priority", "fair", "shortest", "attained"] = "fifo"
    """Who is next, among runs of the same priority."""
    strict: bool = False
    """The head blocks those behind it: no backfill."""
    reserve: Annotated[int, Meta(ge=0, le=100)] | None = None
    """How many blocked heads get a reservation that backfill must respect. Default: 1; under the
    order `shortest` only for a head that waited 12 times as long as it says it runs; 0 under
    `attained`."""
    min_runtime: fields.Duration | None = None
    """A run is not preempted earlier than this after it started."""
    max_priority: fields.Priority | None = None
    """Caps the priority of its runs."""
    half_life: fields.DurationOrZero | None = None
    """How past use counts in fair share. Default: only use above or below the entitlement counts,
    halved each day. A duration such as `7d`: all use counts, halved in that time. `0s`: past use
    does not count."""
    fair_share_preemption: fields.Duration | None = None
    """Once the queue is behind its entitlement by as much as it is entitled to in this time, its
    runs preempt preemptible runs of queues above theirs. Default: never; the queue gets its share
    as runs of others end."""
    user_fair: bool = False
    """Users take turns under any order, by what they hold and have had: equal users, no weights."""
    user_limits: UserLimits | None = None
    """What each user may hold and submit."""
    stop: Literal["hold", "drain"] | None = None
    """`hold`: nothing starts or grows in it or below it; what runs goes on. `drain`: what runs and
    is preemptible is stopped by its checkpoint contract, too, and waits. None: it is open."""
    budget: Budget | None = None
    """How much may be used in a period."""


class BudgetStatus(Struct, kw_only=True):
    """How much of the budget is used. The ledger writes this, about once a minute."""

    observed_generation: int = 0
    """The generation of the spec that was looked at; a younger budget is not in force yet."""
    since: fields.Time | None = None
    """When the period began; absent for `total`."""
    until: fields.Time | None = None
    """When it ends."""
    device_hours: Amounts | None = None
    """Used so far, of what the budget names."""
    money: str | None = None
    """Used so far, if the budget names money."""
    percent: int = 0
    """The largest part of any of these."""
    runs_out: fields.Time | None = None
    """When it will be used up if things go on like this; absent: not within the period."""
    state: Literal["Open", "Warned", "Held", "Stopped"] = "Open"
    """What is in force."""
    message: str = ""
    """The same for people, with amounts."""


class UserAccount(Struct):
    """Past use of one user in the queue, in seconds of dominant share, decayed."""

    excess: float = 0.0
    """Use above the user's entitlement; negative: below it."""
    usage: float = 0.0
    """All use."""


class QueueAccount(UserAccount, kw_only=True):
    """Past use of the queue and those below it, in seconds of dominant share, decayed by its
    half-life. The scheduler goes on from it after a restart."""

    at: fields.Time
    """Until when use is counted here."""
    users: Annotated[dict[UserName, UserAccount], Meta(max_length=1000)] | None = None
    """By user name, where users take turns; those with the most."""


class QueueStatus(Struct):
    """How much of it is used, the queues below it included. Only the platform writes this, a few
    seconds after it changed."""

    observed_generation: int = 0
    """The generation of the spec that this status is about."""
    used: Amounts | None = None
    """What its runs, and those of the queues below it, hold."""
    borrowed: Amounts | None = None
    """How much of that is above its guarantee."""
    lent: Amounts | None = None
    """How much of its guarantee others hold."""
    running: int = 0
    """How many runs hold room."""
    pending: int = 0
    """How many runs wait."""
    share: float | None = None
    """Its largest part of any resource against its weight; the fair order compares it."""
    entitlement: float | None = None
    """The share of the cluster that it is entitled to now, by weights, guarantees and demand."""
    account: QueueAccount | None = None
    """Its past use, written at most every 30 seconds."""
    budget: BudgetStatus | None = None
    """How much of the budget is used."""
    conditions: fields.Conditions | None = None
    """Ready: its place in the tree is sound. OverCommitted: more is guaranteed than there is, so
    that its guarantee counts for less."""


class Queue(Object):
    """A node of the sharing tree: who may use how much, and in which order."""

    resource: ClassVar = Resource(
        "windlass.dev", "v1alpha1", "Queue", "queues", namespaced=False, short_names=("wq",),
        categories=("windlass",), subresources=("status",),
        columns=(
            Column("Parent", ".spec.parent", description="The queue above it"),
            Column("Order", ".spec.order", description="Who is next"),
            Column("Weight", ".spec.weight", "integer", description="Its part of what is free"),
            Column("Running", ".status.running", "integer", description="Runs that hold room"),
            Column("Pending", ".status.pending", "integer", description="Runs that wait"),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
    )  # fmt: skip
    spec: QueueSpec = msgspec.field(default_factory=QueueSpec)
    status: QueueStatus = msgspec.field(default_factory=QueueStatus)
