"""User fairness inside a queue: users take turns by what they hold and what they have had.

In a queue with the order `fair`, or with `user_fair`, the next turn goes to the user with the
smallest dominant share of what the user's workloads hold together in this queue, past use included.
Past use counts as it does for queues (`core.fairness.past_use`), by the queue's half-life. What a
queue holds is split equally among the users who hold or want something in it, but no user is
entitled to more than that user holds and asks for. Users have no weights; weights are for queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.core.fairness import past_use
from windlass.core.model.types import SHARE_UNIT, Account, Queue, Running, Workload
from windlass.core.queueing import queue_order
from windlass.core.quota import quota_tree
from windlass.core.quota.quota_tree import QuotaTree, Sums

Accounts = Mapping[tuple[str, str], Account]


class UserShares:
    """What each user holds, in queues where users take turns, without the queues below them."""

    def __init__(
        self,
        listed: Iterable[Queue],
        running: Iterable[tuple[Running, Mapping[str, int]]] = (),
    ) -> None:
        """`running`: workloads that hold capacity, and what that counts for."""
        self.held: dict[str, dict[str, Sums]] = {
            each.name: {} for each in listed if queue_order.is_fair(each)
        }
        if self.held:
            for each, amounts in running:
                self.add(each.workload, amounts)

    def add(self, workload: Workload, amounts: Mapping[str, int], sign: int = 1) -> None:
        users = self.held.get(workload.queue)
        if users is None:
            return
        sums = users.setdefault(workload.user, {})
        quota_tree.add(sums, amounts, sign)
        if not any(sums.values()):
            del users[workload.user]

    def shares(
        self, tree: QuotaTree, accounts: Accounts, horizon: float
    ) -> dict[tuple[str, str], int]:
        """(queue, user) -> dominant share with past use, in millionths of the cluster."""
        found = {
            (name, user): tree.dominant_part(sums)
            for name, users in self.held.items()
            for user, sums in users.items()
        }
        for key, account in accounts.items() if self.held else ():
            if key[1] and key[0] in self.held:
                past = past_use.past_share(account, tree.queues[key[0]], horizon)
                found[key] = found.get(key, 0) + round(past * SHARE_UNIT)
        return found


def equal_split(total: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Max-min fairness: equal parts of the total, but no user gets more than that user wants."""
    found: dict[str, float] = {}
    left, users = total, sorted(wanted, key=lambda user: (wanted[user], user))
    for number, user in enumerate(users):
        found[user] = min(wanted[user], left / (len(users) - number))
        left -= found[user]
    return found
