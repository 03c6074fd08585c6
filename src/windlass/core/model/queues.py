"""The sharing tree as the core sees it: queues, limits of users, past use, namespace quotas.

Part of `core.model.types`, from where everything else imports these types.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from windlass.kinds.reasons import Reason

Amounts = Mapping[str, int]
Order = Literal["fifo", "lifo", "priority", "fair", "shortest", "attained"]


@dataclasses.dataclass(frozen=True, slots=True)
class UserLimit:
    """What one user may hold and submit in a queue and the queues below it."""

    resources: Amounts = dataclasses.field(default_factory=dict)
    """As of a Queue's limit; a resource that is not named has no limit."""
    running: int | None = None
    """Workloads that hold capacity at the same time; None: no limit."""
    submitted: int | None = None
    """Workloads that have not ended, waiting or running; None: no limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class UserLimits(UserLimit):
    """The same for every user, and what differs for some."""

    users: Mapping[str, UserLimit] = dataclasses.field(default_factory=dict)
    """By user name. What an entry does not name is as for every user."""

    def of(self, user: str) -> UserLimit:
        own = self.users.get(user)
        if own is None:
            return self
        return UserLimit(
            {**self.resources, **own.resources},
            self.running if own.running is None else own.running,
            self.submitted if own.submitted is None else own.submitted,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Queue:
    """A node of the sharing tree. Resources are `cpu`, `memory`, a device kind (`gpu`, in
    thousandths) or a kind and model (`gpu/h100`)."""

    name: str
    parent: str = ""
    guarantee: Amounts = dataclasses.field(default_factory=dict)
    limit: Amounts = dataclasses.field(default_factory=dict)
    lend: Amounts = dataclasses.field(default_factory=dict)
    """How much of the guarantee others may borrow; what is not named, all."""
    weight: int = 1
    order: Order = "fifo"
    strict: bool = False
    reserve: int | None = None
    """How many blocked heads get a reservation; None: as many as suit its order."""
    min_runtime: float = 0.0
    max_priority: int | None = None
    half_life: float | None = None
    """Seconds in which past use counts half. None: only use above or below the entitlement counts,
    for a day; 0: no past use counts (`core.fairness.past_use`)."""
    fair_share_preemption: float | None = None
    """Seconds. Once the queue is behind its entitlement by as much as it is entitled to in this
    time, it preempts workloads of queues above theirs; None: never."""
    user_fair: bool = False
    """Users of the queue take turns by what they hold and have had
    (`core.fairness.user_shares`)."""
    user_limits: UserLimits | None = None
    """What each user may hold and submit; None: no limit (`core.quota.user_limits`)."""
    paused: tuple[Reason, str] | None = None
    """Why nothing starts or grows in it or below it, whatever is free: a pause, a budget."""
    namespaces: frozenset[str] | None = None
    """Only workloads of these may use it; None: those of all."""

    @property
    def max_reservations(self) -> int:
        """How many blocked heads get a reservation."""
        return 1 if self.reserve is None else self.reserve

    @property
    def delays_reservations(self) -> bool:
        """Whether only workloads that have waited long get a reservation. A queue that puts short
        workloads first aims at a short mean wait, and keeping capacity free for each head costs
        much of the gain."""
        return self.reserve is None and self.order in ("shortest", "attained")


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """Past use of a queue, or of one of its users, in seconds of dominant share, decayed."""

    queue: str
    user: str = ""
    """Empty: the queue itself, with those below it."""
    excess: float = 0.0
    """Use above the entitlement; negative: below it."""
    usage: float = 0.0
    """All use."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quota:
    """What all workloads of a namespace may hold together. Resources as of a Queue, and `pods`."""

    namespace: str
    name: str
    hard: Amounts
