"""User fairness inside a queue: users take turns by what they hold and what they have had.

In a queue with the order `fair`, or with `user_fair`, the next turn goes to the user with the
smallest dominant share of what the user's workloads hold together in this queue, past use included.
Past use counts as it does for queues (`core.accounting`), by the queue's half-life. What a queue
holds is split equally among the users who hold or want something in it, but no user is entitled to
more than that user holds and asks for. Users have no weights; weights are for queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from windlass.core import accounting, order, queues
from windlass.core.facts import SHARE_UNIT, Account, Queue, Running, Unit
from windlass.core.queues import Sums, Tree

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle
    from windlass.core.state import Snapshot

MOST_IDLE = 500
"""Accounts of one queue that are kept for users who neither hold nor want anything: those with the
largest past use."""

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
            each.name: {} for each in listed if order.is_fair(each)
        }
        if self.held:
            for each, amounts in running:
                self.add(each.unit, amounts)

    def add(self, unit: Unit, amounts: Mapping[str, int], sign: int = 1) -> None:
        users = self.held.get(unit.queue)
        if users is None:
            return
        sums = users.setdefault(unit.user, {})
        queues.add(sums, amounts, sign)
        if not any(sums.values()):
            del users[unit.user]

    def shares(self, tree: Tree, accounts: Accounts) -> dict[tuple[str, str], int]:
        """(queue, user) -> dominant share with past use, in millionths of the cluster."""
        found = {
            (name, user): tree.dominant_part(sums)
            for name, users in self.held.items()
            for user, sums in users.items()
        }
        for key, account in accounts.items() if self.held else ():
            if key[1] and key[0] in self.held:
                past = accounting.past_share(account, tree.queues[key[0]])
                found[key] = found.get(key, 0) + round(past * SHARE_UNIT)
        return found


# --- reservations where users take turns --------------------------------------------------------


def comes_later(cycle: Cycle, other: Unit, unit: Unit) -> bool:
    """Whether a workload with a reservation comes after another of its queue because its user has
    more. It keeps its reservation and does not use up that of the other: else one user, whose next
    workload gets a reservation whenever one has started, would keep them all."""
    queue = cycle.queue_of(unit)
    if other.user == unit.user or not order.is_fair(queue):
        return False
    if order.priority(queue, other) > order.priority(queue, unit):
        return False
    shares = cycle.standing.held_by_user
    return shares.get((other.queue, other.user), 0) > shares.get((unit.queue, unit.user), 0)


def may_reserve(cycle: Cycle, unit: Unit) -> bool:
    """Whether a user of the workload's queue who has less than its own may still reserve."""
    queue = cycle.queue_of(unit)
    if not order.is_fair(queue) or not queue.promises:
        return False
    least = cycle.least_shares.get(queue.name)
    shares = cycle.standing.held_by_user
    if least is None:
        users = {other.user for other in cycle.snapshot.members(queue.name)}
        least = min((shares.get((queue.name, user), 0) for user in users), default=0)
        cycle.least_shares[queue.name] = least
    before = [
        held
        for held in cycle.reservations
        if held.unit.queue == queue.name and shares.get((queue.name, held.unit.user), 0) <= least
    ]
    return len(before) < queue.promises


# --- past use -----------------------------------------------------------------------------------


def advance(snapshot: Snapshot, seconds: float) -> None:
    """Adds what users held for so many seconds to their accounts."""
    shares = snapshot.user_shares
    by_queue: dict[str, dict[str, Account]] = {name: {} for name in shares.held}
    for (name, user), account in snapshot.accounts.items():
        if user and name in by_queue:
            by_queue[name][user] = account
    for name, known in by_queue.items():
        for user in known:
            del snapshot.accounts[name, user]
        for account in _advanced(snapshot, snapshot.queues[name], known, seconds):
            snapshot.accounts[name, account.user] = account


def entitlements(snapshot: Snapshot, name: str) -> dict[str, tuple[float, float]]:
    """By user with demand in a queue where users take turns: the share that the user holds, and the
    one that the user is entitled to."""
    tree, held = snapshot.tree, snapshot.user_shares.held[name]
    asked = {} if name in tree.held else snapshot.demand.by_user(name)
    shares: dict[str, float] = {}
    wanted: dict[str, float] = {}
    for user in sorted(held.keys() | asked.keys()):
        mine = held.get(user, {})
        more = snapshot.user_quotas.permitted(name, user, asked.get(user, {}))
        shares[user] = tree.dominant_part(mine) / SHARE_UNIT
        both = dict(mine)
        queues.add(both, more)
        wanted[user] = tree.dominant_part(both) / SHARE_UNIT
    entitled = equal_split(sum(shares.values()), wanted)
    return {user: (shares[user], entitled[user]) for user in shares}


def equal_split(total: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Max-min fairness: equal parts of the total, nobody more than that user wants."""
    found: dict[str, float] = {}
    left, users = total, sorted(wanted, key=lambda user: (wanted[user], user))
    for number, user in enumerate(users):
        found[user] = min(wanted[user], left / (len(users) - number))
        left -= found[user]
    return found


def _advanced(
    snapshot: Snapshot, queue: Queue, known: Mapping[str, Account], seconds: float
) -> list[Account]:
    """The accounts of one queue afterwards; without those of idle users that count for nothing."""
    active = entitlements(snapshot, queue.name)
    found, idle = list[Account](), list[tuple[int, Account]]()
    for user in sorted(known.keys() | active.keys()):
        if not user:
            continue  # the account of a workload without a user would be the queue's own
        account = known.get(user) or Account(queue.name, user)
        share, entitled = active.get(user, (0.0, 0.0))
        account = accounting.advance(account, queue, seconds, share, entitled)
        if user in active:
            found.append(account)
        elif past := round(abs(accounting.past_share(account, queue)) * SHARE_UNIT):
            idle.append((past, account))
    idle.sort(key=lambda each: (-each[0], each[1].user))
    return found + [account for _, account in idle[:MOST_IDLE]]
