"""Past use in fair share: how far each queue is ahead of its entitlement, or behind it.

Workloads are indivisible and end when they end, so at any one moment queues hold more or less than
their weighted share. The difference is integrated over time and paid back: a queue that was ahead
comes later, a queue that was behind comes earlier. Without this, a weight has no effect where it is
smaller than one workload.

There are two ways to count, chosen per queue by `half_life`:

- None (the default): the *excess* counts, which is usage above entitlement (`core.entitlement`).
  A queue that used capacity which no other queue asked for owes nothing for it. The excess halves
  in a day.
- A duration: when queues are compared, all usage counts, whether or not others asked for it, and
  halves in this time (as in Slurm's multifactor priority). 0: no past use counts.

Accounts are facts: the caller of the core reports elapsed time (`state.Elapsed`) and keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core.facts import Account, Queue

if TYPE_CHECKING:
    from windlass.core.queues import Tree
    from windlass.core.state import Snapshot

HORIZON = 3600.0
"""Seconds of excess that count as much as the same share held now. Shorter corrects faster, and
overshoots where workloads run for long."""
MEMORY = 24 * 3600.0
"""Half-life of the excess, in seconds."""


def advance(
    account: Account, queue: Queue, seconds: float, share: float, entitled: float
) -> Account:
    """The account after so many seconds in which the queue held a share of the cluster."""
    half_life = MEMORY if queue.half_life is None else queue.half_life
    if half_life <= 0:
        return Account(account.queue, account.user)
    kept = 0.5 ** (seconds / half_life)
    # The integral of what is added during the interval, while it decays.
    added = half_life / math.log(2) * (1 - kept)
    return Account(
        account.queue,
        account.user,
        account.excess * kept + (share - entitled) * added,
        account.usage * kept + share * added,
    )


def advance_queues(snapshot: Snapshot, seconds: float) -> None:
    """Adds what queues held for so many seconds to their accounts. A single queue has nobody to be
    compared with."""
    if len(snapshot.queues) < 2:
        return
    entitled = snapshot.entitlements()
    for name, queue in snapshot.queues.items():
        known = snapshot.accounts.get((name, "")) or Account(name)
        share = snapshot.tree.held_share(name)
        snapshot.accounts[name, ""] = advance(known, queue, seconds, share, entitled[name])


def past_share(account: Account, queue: Queue) -> float:
    """What past use adds to the share that the queue holds now, when queues are compared."""
    if queue.half_life is None:
        return account.excess / HORIZON
    return account.usage / HORIZON if queue.half_life > 0 else 0.0


def share_ahead(
    account: Account | None, queue: Queue, weight: int, siblings: Iterable[tuple[Account, int]]
) -> float:
    """The share by which past use puts a queue, or a user of it, ahead; negative: behind. Ahead of
    its entitlement; where a half-life is set, ahead of its part of what it and its siblings (each
    with its weight) used, without those that used nothing."""
    if queue.half_life == 0:
        return 0.0
    own = account or Account(queue.name)
    if queue.half_life is None:
        return own.excess / HORIZON
    others = [(each.usage, weight) for each, weight in siblings if each.usage > 0]
    total = own.usage + sum(usage for usage, _ in others)
    part = weight / (weight + sum(weight for _, weight in others))
    return (own.usage - part * total) / HORIZON


def tell(
    tree: Tree, accounts: Mapping[tuple[str, str], Account], queues: Mapping[str, Queue]
) -> None:
    """What past use means for the sharing tree."""
    tree.put_past_shares(past_shares(accounts, queues))
    tree.put_served({name: each.usage for (name, user), each in accounts.items() if not user})


def past_shares(
    accounts: Mapping[tuple[str, str], Account], queues: Mapping[str, Queue]
) -> dict[str, float]:
    """By queue, without the accounts of single users."""
    return {
        name: past_share(account, queues[name])
        for (name, user), account in accounts.items()
        if not user and name in queues
    }
