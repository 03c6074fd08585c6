"""Past use of queues and users, counted as time passes.

`core.fairness.past_use` defines what past use counts for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol

from windlass.core.fairness import past_use, user_shares
from windlass.core.fairness.demand import Demand
from windlass.core.fairness.user_shares import UserShares
from windlass.core.model.types import SHARE_UNIT, Account, Queue
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree
from windlass.core.quota.user_limits import UserQuotas

_TINY = 1e-12
NEARLY_ALL = 0.9
"""A queue that is guaranteed so much of its entitlement owes nothing for capacity that its siblings
leave idle. About so much of a saturated cluster is in use: the others share less than they are
entitled to, and a queue with a smaller guarantee shares with them."""
MOST_IDLE = 500
"""Accounts of one queue that are kept for users who neither hold nor want anything: those with the
largest past use."""


class Sharing(Protocol):
    """The queues of a sharing with their use, demand and accounts."""

    queues: dict[str, Queue]
    accounts: dict[tuple[str, str], Account]
    tree: QuotaTree
    demand: Demand
    user_shares: UserShares
    user_quotas: UserQuotas

    def entitlements(self) -> dict[str, float]:
        """By queue, the share of the cluster that it is entitled to now."""
        ...

    def contending(self) -> frozenset[str]:
        """Queues that ask for more than they are entitled to."""
        ...


def advance_queues(sharing: Sharing, seconds: float) -> None:
    """Adds what queues held for so many seconds to their accounts. A single queue has no
    other to be compared with."""
    if len(sharing.queues) < 2:
        return
    tree, entitled = sharing.tree, sharing.entitlements()
    contending = sharing.contending()
    for siblings in tree.children.values():
        owed = _owed(tree, siblings, entitled, contending)
        for name in siblings:
            known, queue = sharing.accounts.get((name, "")), sharing.queues[name]
            sharing.accounts[name, ""] = past_use.advance(
                known or Account(name), queue, seconds, tree.used_share(name), owed[name],
                contends=name in contending,
            )  # fmt: skip


def _owed(
    tree: QuotaTree, siblings: Sequence[str], entitled: Mapping[str, float], contending: Set[str]
) -> dict[str, float]:
    """What siblings are entitled to of all that they hold together. What they hold more or less
    than their entitlements is divided in proportion among those that ask for more, without queues
    whose entitlement is nearly all guaranteed. The division is linear in what they hold, so that
    over time a queue is owed its part of their mean use: a bound at every moment would add up."""
    found = {name: entitled[name] for name in siblings}
    rivals = [
        name
        for name in siblings
        if name in contending
        and NEARLY_ALL * entitled[name] > tree.dominant_part(tree.guarantee[name]) / SHARE_UNIT
    ]
    surplus = sum(tree.used_share(name) for name in siblings) - sum(found.values())
    scale = 1 + surplus / max(sum(found[name] for name in rivals), _TINY)
    for name in rivals:
        found[name] *= scale
    return found


def advance_users(sharing: Sharing, seconds: float) -> None:
    """Adds what users held for so many seconds to their accounts."""
    shares = sharing.user_shares
    by_queue: dict[str, dict[str, Account]] = {name: {} for name in shares.held}
    for (name, user), account in sharing.accounts.items():
        if user and name in by_queue:
            by_queue[name][user] = account
    for name, known in by_queue.items():
        for user in known:
            del sharing.accounts[name, user]
        for account in _advanced(sharing, sharing.queues[name], known, seconds):
            sharing.accounts[name, account.user] = account


def entitlements(sharing: Sharing, name: str) -> dict[str, tuple[float, float]]:
    """By user with demand in a queue where users take turns: the share that the user holds, and the
    one that the user is entitled to."""
    tree, held = sharing.tree, sharing.user_shares.held[name]
    asked = {} if name in tree.paused else sharing.demand.by_user(name)
    shares: dict[str, float] = {}
    wanted: dict[str, float] = {}
    for user in sorted(held.keys() | asked.keys()):
        mine = held.get(user, {})
        more = sharing.user_quotas.permitted(name, user, asked.get(user, {}))
        shares[user] = tree.dominant_part(mine) / SHARE_UNIT
        both = dict(mine)
        quota_tree.add(both, more)
        wanted[user] = tree.dominant_part(both) / SHARE_UNIT
    entitled = user_shares.equal_split(sum(shares.values()), wanted)
    return {user: (shares[user], entitled[user]) for user in shares}


def _advanced(
    sharing: Sharing, queue: Queue, known: Mapping[str, Account], seconds: float
) -> list[Account]:
    """The accounts of one queue afterwards; without those of idle users that count for nothing."""
    active = entitlements(sharing, queue.name)
    paused = queue.name in sharing.tree.paused
    waiting = {} if paused else sharing.demand.by_user(queue.name)
    found, idle = list[Account](), list[tuple[int, Account]]()
    for user in sorted(known.keys() | active.keys()):
        if not user:
            continue  # the account of a workload without a user would be the queue's own
        account = known.get(user) or Account(queue.name, user)
        share, entitled = active.get(user, (0.0, 0.0))
        contends = user in waiting
        account = past_use.advance(account, queue, seconds, share, entitled, contends=contends)
        if user in active:
            found.append(account)
        elif past := round(abs(past_use.past_share(account, queue)) * SHARE_UNIT):
            idle.append((past, account))
    idle.sort(key=lambda each: (-each[0], each[1].user))
    return found + [account for _, account in idle[:MOST_IDLE]]
