"""Past use of queues and users in `Queue.status.account`. Pure.

The scheduler computes it in its snapshot (`core.fairness.past_use`) and writes it with the status
of each queue, so that it survives a restart or a change of the leader. All other components read
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.control.convert import run_workloads
from windlass.core.fairness import past_use
from windlass.core.model import types
from windlass.core.snapshot.snapshot import AccountsPut, Snapshot
from windlass.kinds.types import queue
from windlass.kinds.values import times

EVERY = 30.0
"""Seconds after which past use is written although nothing else of a queue changed. A scheduler
that is killed loses no more than this."""
MATTERS = 0.001
"""The difference, as a part of the cluster, from which on it is written again."""
MOST_USERS = 100
"""Users of a queue whose past use is stored: those with the most."""


class Accounts:
    """The past use in the scheduler cache."""

    def __init__(self, *, follow: bool) -> None:
        """`follow`: every stored change takes effect, for components that only read. The scheduler,
        which writes it, reads it once."""
        self._follow = follow
        self._at: float | None = None

    def first(
        self, listed: Iterable[queue.Queue]
    ) -> tuple[tuple[types.Account, ...], float | None]:
        found, self._at = read(listed)
        return found, self._at

    def changed(self, listed: Iterable[queue.Queue]) -> AccountsPut | None:
        """What was written since the last call."""
        if not self._follow:
            return None
        before = self._at
        found, at = read(listed)
        if at is None or at == before:
            return None
        self._at = at
        return AccountsPut(found, at)


def read(listed: Iterable[queue.Queue]) -> tuple[tuple[types.Account, ...], float | None]:
    """All accounts as of the latest moment at which one was written; None if none was."""
    written = {each.name: each for each in listed if each.status.account is not None}
    moments = {name: _moment(each) for name, each in written.items()}
    if not moments:
        return (), None
    at = max(moments.values())
    found: list[types.Account] = []
    for name, each in sorted(written.items()):
        fact = _queue_of(each)
        found += [
            past_use.advance(account, fact, at - moments[name], 0.0, 0.0)
            for account in _accounts(each)
        ]
    return tuple(found), at


def write(snapshot: Snapshot) -> dict[str, queue.QueueAccount]:
    """By queue, the account to store; nothing for queues without any use."""
    if snapshot.accounted_at is None:
        return {}
    users: dict[str, list[types.Account]] = {}
    own: dict[str, types.Account] = {}
    for (name, user), account in snapshot.accounts.items():
        if name not in snapshot.queues:
            continue
        if user:
            users.setdefault(name, []).append(account)
        else:
            own[name] = account
    moment = times.seconds(times.from_unix(snapshot.accounted_at))
    found: dict[str, queue.QueueAccount] = {}
    for name in sorted(own.keys() | users.keys()):
        account = own.get(name) or types.Account(name)
        listed = _largest(snapshot.queues[name], users.get(name, ()))
        if _is_nothing(account) and not listed:
            continue
        found[name] = queue.QueueAccount(
            round(account.excess, 3), round(account.usage, 3), at=moment, users=listed or None
        )
    return found


def is_due(each: queue.Queue, account: queue.QueueAccount | None) -> bool:
    """Whether an account must be written although nothing else of the queue changed."""
    known = each.status.account
    if account is None or known is None:
        return account is not known
    elapsed = times.parse(account.at).timestamp() - _moment(each)
    if 0 <= elapsed < EVERY:
        return False
    fact = _queue_of(each)
    before = {"": known, **(known.users or {})}
    now = {"": account, **(account.users or {})}
    return any(
        abs(
            _past(fact, now.get(user), 0.0) - _past(fact, before.get(user), max(0.0, elapsed))
        ) > MATTERS
        for user in before.keys() | now.keys()
    )  # fmt: skip


def patch(
    old: queue.QueueAccount | None, new: queue.QueueAccount | None
) -> dict[str, object] | None:
    """The merge patch that replaces one by the other."""
    if new is None:
        return None
    gone = dict.fromkeys((old.users if old else None) or ())
    users = {name: _values(each) for name, each in (new.users or {}).items()}
    return {**_values(new), "at": new.at, "users": {**gone, **users} or None}


def _values(account: queue.UserAccount) -> dict[str, float]:
    return {"excess": account.excess, "usage": account.usage}


def _past(fact: types.Queue, account: queue.UserAccount | None, elapsed: float) -> float:
    """The additional share after so many seconds without usage."""
    if account is None:
        return 0.0
    stored = types.Account(fact.name, "", account.excess, account.usage)
    return past_use.past_share(past_use.advance(stored, fact, elapsed, 0.0, 0.0), fact)


def _largest(fact: types.Queue, listed: Iterable[types.Account]) -> dict[str, queue.UserAccount]:
    ranked = sorted(
        (each for each in listed if not _is_nothing(each)),
        key=lambda each: (-abs(past_use.past_share(each, fact)), each.user),
    )[:MOST_USERS]
    return {
        each.user: queue.UserAccount(round(each.excess, 3), round(each.usage, 3))
        for each in sorted(ranked, key=lambda each: each.user)
    }


def _is_nothing(account: types.Account) -> bool:
    return not round(account.excess, 3) and not round(account.usage, 3)


def _accounts(each: queue.Queue) -> list[types.Account]:
    account = each.status.account
    assert account is not None, "the caller checked it"  # noqa: S101
    named: Mapping[str, queue.UserAccount] = {"": account, **(account.users or {})}
    return [
        types.Account(each.name, user, found.excess, found.usage) for user, found in named.items()
    ]


def _moment(each: queue.Queue) -> float:
    assert each.status.account is not None, "the caller checked it"  # noqa: S101
    return times.parse(each.status.account.at).timestamp()


def _queue_of(each: queue.Queue) -> types.Queue:
    return run_workloads.read_queue(each)
