"""Usage reports: rows by the requested groups, and their sums.

The platform API calls it with a query that is restricted to what the caller may see. All numbers of
a report are of one moment (`asOf`). Costs are micros that add up exactly to the total.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.model import MACHINE, WHOLE, Party, device_name
from windlass.ledger.pricing import money

BY = ("team", "user", "queue", "run", "device", "form")
_HOUR = 3600
Group = rollups.Group
_FIELDS: dict[str, Callable[[Group], str]] = {
    "team": lambda group: group[0].team,
    "user": lambda group: group[0].user,
    "queue": lambda group: group[0].queue,
    "run": lambda group: group[0].run,
    "device": lambda group: device_name(group[1], group[2]),
    "form": lambda group: group[3],
}


@dataclasses.dataclass(frozen=True, slots=True)
class UsageQuery:
    """The parameters of a report."""

    start: int
    end: int
    now: int
    by: tuple[str, ...] = ("team", "device")
    team: str = ""
    user: str = ""
    queue: str = ""
    run: str = ""
    everything: bool = False
    """The caller sees the whole platform: idle hardware, and the cost of all hardware."""
    top: int = 0
    """Only the rows with the largest cost or usage; 0: all."""

    @property
    def until(self) -> int:
        return max(self.start, min(self.end, self.now))

    @property
    def only(self) -> dict[str, str]:
        selected = {"team": self.team, "user": self.user, "queue": self.queue, "run": self.run}
        return {name: value for name, value in selected.items() if value}

    def wants(self, party: Party) -> bool:
        return (
            (not self.team or party.team == self.team)
            and (not self.user or party.user == self.user)
            and (not self.queue or party.queue == self.queue)
            and (not self.run or party.run == self.run)
        )


class Row(msgspec.Struct, rename="camel"):
    """One line of a report."""

    labels: dict[str, str]
    device_hours: float = 0.0
    """Of accelerators; parts count as parts."""
    machine_hours: float = 0.0
    """Of machines, by the dominant part of processors and memory."""
    cpu_hours: float = 0.0
    memory_gib_hours: float = 0.0
    cost_micros: int = 0
    cost: str = ""


class Report(msgspec.Struct, rename="camel", omit_defaults=True):
    """A usage report."""

    since: str
    until: str
    as_of: str
    by: list[str]
    currency: str
    rows: list[Row]
    total: Row
    idle: Row | None = None
    """Not allocated; only for callers that see everything."""
    wall: Row | None = None
    """The cost of all hardware."""
    notes: list[str] = []
    """What is not exact, and why."""


def usage(repository: LedgerRepository, query: UsageQuery) -> Report:
    """Usage between two moments, and its cost."""
    if query.top and "run" in query.by:
        return _largest(repository, query)
    by_run = "run" in query.by or bool(query.run)
    account = rollups.between(repository, query.start, query.until, by_run=by_run, only=query.only)
    return _report(repository, query, account)


def _largest(repository: LedgerRepository, query: UsageQuery) -> Report:
    """The largest Runs; totals are computed from sums by team."""
    account = rollups.between(
        repository, query.start, query.until, by_run=True, only=query.only, top=query.top
    )
    found = _report(repository, query, account)
    by = tuple(name for name in query.by if name != "run") or ("team",)
    whole = usage(repository, dataclasses.replace(query, by=by, top=0))
    return msgspec.structs.replace(found, total=whole.total, idle=whole.idle, wall=whole.wall)


def _report(repository: LedgerRepository, query: UsageQuery, account: rollups.Account) -> Report:
    grouped: dict[tuple[str, ...], _Counted] = {}
    total = _Counted()
    for group, each in account.sums.items():
        if query.wants(group[0]):
            key = tuple(_FIELDS[name](group) for name in query.by)
            grouped.setdefault(key, _Counted()).add(group[1], each)
            total.add(group[1], each)
    whole = _whole(account) if query.everything and _asks_for_all(query) else None
    counted = [total] if whole is None else [total, whole[0]]
    currency = repository.prices().currency
    keys = sorted(grouped, key=lambda key: (-grouped[key].cost, -grouped[key].held, key))
    costs = money.micros([*(grouped[key].cost for key in keys), whole[0].cost if whole else 0])
    rows = [
        grouped[key].row(dict(zip(query.by, key, strict=True)), cost, currency)
        for key, cost in zip(keys, costs, strict=False)
    ]
    paid = sum(costs[:-1])
    return Report(
        since=_time(account.since),
        until=_time(account.until),
        notes=_notes(query, account),
        as_of=_time(query.now),
        by=list(query.by),
        currency=currency,
        rows=rows[: query.top] if query.top else rows,
        total=total.row({}, paid, currency),
        idle=counted[1].row({}, costs[-1], currency) if whole else None,
        wall=whole[1].row({}, paid + costs[-1], currency) if whole else None,
    )


def _notes(query: UsageQuery, account: rollups.Account) -> list[str]:
    found = []
    if (account.since, account.until) != (query.start, query.until):
        found.append(
            "single intervals of that time are kept no longer, only sums of whole days: this is "
            f"about {_time(account.since)} to {_time(account.until)}"
        )
    if account.since < account.runs_since:
        found.append(
            f"the usage of single runs before {_time(account.runs_since)} is no longer stored; "
            "ask by team, user, queue or device for that time"
        )
    return found


def _asks_for_all(query: UsageQuery) -> bool:
    return not (query.team or query.user or query.queue or query.run)


def _whole(account: rollups.Account) -> tuple[_Counted, _Counted]:
    """Unallocated hardware, and all hardware."""
    idle, wall = _Counted(), _Counted()
    for (kind, _), each in account.hardware.items():
        idle.add(kind, rollups.Sum(held=each.free, cost=each.idle))
        wall.add(kind, rollups.Sum(held=each.present * WHOLE, cost=each.wall))
    return idle, wall


@dataclasses.dataclass(slots=True)
class _Counted:
    devices: int = 0
    machines: int = 0
    cpu: int = 0
    memory: int = 0
    cost: int = 0

    @property
    def held(self) -> int:
        return self.devices or self.machines

    def add(self, kind: str, each: rollups.Sum) -> None:
        if kind == MACHINE:
            self.machines += each.held
            self.cpu += each.cpu
            self.memory += each.memory
        else:
            self.devices += each.held
        self.cost += each.cost

    def row(self, labels: dict[str, str], cost: int, currency: str) -> Row:
        return Row(
            labels=labels,
            device_hours=round(self.devices / WHOLE / _HOUR, 6),
            machine_hours=round(self.machines / WHOLE / _HOUR, 6),
            cpu_hours=round(self.cpu / 1000 / _HOUR, 6),
            memory_gib_hours=round(self.memory / 1024 / _HOUR, 6),
            cost_micros=cost,
            cost=money.text(cost, currency) if currency else "",
        )


def _time(moment: int) -> str:
    return times.seconds(times.from_unix(moment))
