"""Past use in fair share: how far each queue is ahead of its entitlement, or behind it.

Workloads are indivisible and end when they end, so at any one moment queues hold more or less than
their weighted share. The difference is integrated over time and paid back: a queue that was ahead
comes later, a queue that was behind comes earlier. Without this, a weight has no effect where it is
smaller than one workload.

There are two ways to count, chosen per queue by `half_life`:

- None (the default): the *excess* counts, which is usage above entitlement
(`core.fairness.entitlement`).
  A queue that used capacity which no other queue asked for owes nothing for it. Capacity that lies
  idle while queues wait is not owed to any of them: their shortfall is compared with that of their
  siblings. While a queue asks for more than it is entitled to, its excess is kept in full: if it
  decayed, a queue whose single workloads exceed its share would be forgiven a part of each, and get
  more than its weight says. At other times the excess halves in a day.
- A duration: when queues are compared, all usage counts, whether or not others asked for it, and
  halves in this time (as in Slurm's multifactor priority). 0: no past use counts.

Accounts are facts: the caller of the core reports elapsed time (`state.Elapsed`) and keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core.model.types import Account, Queue

if TYPE_CHECKING:
    from windlass.core.quota.quota_tree import QuotaTree

HORIZON, LONGEST_HORIZON = 3600.0, 48 * 3600.0
"""Bounds of the seconds of excess that count as much as the same share held now. Between them it is
as many as running workloads take: what starts now holds its share for so long. A shorter horizon
corrects faster, and overshoots: a queue that is behind would get all that comes free, and keep it
until these workloads end."""
MEMORY = 24 * 3600.0
"""Half-life of the excess of a queue that has what it asks for, in seconds."""
MOST_EXCESS = 3 * 24 * 3600.0
"""Seconds of the whole cluster that a queue is ahead or behind at most. It bounds what a queue
saves up that cannot use its share, because its workloads fit few nodes."""


def advance(
    account: Account,
    queue: Queue,
    seconds: float,
    share: float,
    entitled: float,
    *,
    contends: bool = False,
) -> Account:
    """The account after so many seconds in which the queue, or a user of it, held a share of the
    cluster; `contends`: it asked for more than it was entitled to."""
    half_life = MEMORY if queue.half_life is None else queue.half_life
    if half_life <= 0:
        return Account(account.queue, account.user)
    kept = 0.5 ** (seconds / half_life)
    # The integral of what is added during the interval, while it decays.
    added = half_life / math.log(2) * (1 - kept)
    usage = account.usage * kept + share * added
    if contends and queue.half_life is None:
        excess = account.excess + (share - entitled) * seconds
    else:
        excess = account.excess * kept + (share - entitled) * added
    excess = min(MOST_EXCESS, max(-MOST_EXCESS, excess))
    return Account(account.queue, account.user, excess, usage)


def past_share(account: Account, queue: Queue, horizon: float = HORIZON) -> float:
    """What past use adds to the share that the queue holds now, when queues are compared."""
    if queue.half_life is None:
        return account.excess / horizon
    return account.usage / HORIZON if queue.half_life > 0 else 0.0


def share_ahead(
    account: Account | None,
    queue: Queue,
    weight: int,
    siblings: Iterable[tuple[Account, int]],
    horizon: float = HORIZON,
) -> float:
    """The share by which past use puts a queue, or a user of it, ahead; negative: behind. Ahead of
    its entitlement; where a half-life is set, ahead of its part of what it and its siblings (each
    with its weight) used, without those that used nothing."""
    if queue.half_life == 0:
        return 0.0
    own = account or Account(queue.name)
    if queue.half_life is None:
        return own.excess / horizon
    others = [(each.usage, weight) for each, weight in siblings if each.usage > 0]
    total = own.usage + sum(usage for usage, _ in others)
    part = weight / (weight + sum(weight for _, weight in others))
    return (own.usage - part * total) / HORIZON


def apply(
    tree: QuotaTree,
    accounts: Mapping[tuple[str, str], Account],
    queues: Mapping[str, Queue],
    horizon: float = HORIZON,
) -> None:
    """What past use means for the sharing tree."""
    tree.put_past_shares(past_shares(accounts, queues, horizon))
    tree.put_served({name: each.usage for (name, user), each in accounts.items() if not user})


def past_shares(
    accounts: Mapping[tuple[str, str], Account], queues: Mapping[str, Queue], horizon: float
) -> dict[str, float]:
    """By queue, without the accounts of single users."""
    return {
        name: past_share(account, queues[name], horizon)
        for (name, user), account in accounts.items()
        if not user and name in queues
    }
