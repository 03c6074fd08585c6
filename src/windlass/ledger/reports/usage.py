"""What people and programs are told of usage: rows by whatever they ask for, and what they sum to.

Called by the platform API with what the caller may see already in the question. All numbers of an
answer are of one moment (`asOf`). Costs are micro-units that add up exactly to the total.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec

from windlass.kinds import times
from windlass.ledger import accounting, money
from windlass.ledger.book import Book
from windlass.ledger.facts import MACHINE, WHOLE, Party

BY = ("team", "user", "queue", "run", "device", "form")
_HOUR = 3600
Group = accounting.Group
_FIELDS: dict[str, Callable[[Group], str]] = {
    "team": lambda group: group[0].team,
    "user": lambda group: group[0].user,
    "queue": lambda group: group[0].queue,
    "run": lambda group: group[0].run,
    "device": lambda group: device_name(group[1], group[2]),
    "form": lambda group: group[3],
}


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    start: int
    end: int
    now: int
    by: tuple[str, ...] = ("team", "device")
    team: str = ""
    user: str = ""
    queue: str = ""
    run: str = ""
    everything: bool = False
    """The caller sees the whole platform: what is idle, and what all hardware cost."""
    top: int = 0
    """Only the rows that cost most, or held most; 0: all."""

    @property
    def until(self) -> int:
        return max(self.start, min(self.end, self.now))

    @property
    def only(self) -> dict[str, str]:
        asked = {"team": self.team, "user": self.user, "queue": self.queue, "run": self.run}
        return {name: value for name, value in asked.items() if value}

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
    """An answer."""

    since: str
    until: str
    as_of: str
    by: list[str]
    currency: str
    rows: list[Row]
    total: Row
    idle: Row | None = None
    """What nobody held; only for those who see everything."""
    wall: Row | None = None
    """What all hardware cost."""
    notes: list[str] = []
    """What could not be told exactly, and why."""


def device_name(kind: str, model: str) -> str:
    return f"{kind}/{model}" if model else kind


def usage(book: Book, question: Question) -> Report:
    """Who held what between two moments, and what it cost."""
    if question.top and "run" in question.by:
        return _largest(book, question)
    by_run = "run" in question.by or bool(question.run)
    account = accounting.between(
        book, question.start, question.until, by_run=by_run, only=question.only
    )
    return _report(book, question, account)


def _largest(book: Book, question: Question) -> Report:
    """The largest Runs; sums over all of them are made from sums by team."""
    account = accounting.between(
        book, question.start, question.until, by_run=True, only=question.only, top=question.top
    )
    found = _report(book, question, account)
    by = tuple(name for name in question.by if name != "run") or ("team",)
    whole = usage(book, dataclasses.replace(question, by=by, top=0))
    return msgspec.structs.replace(found, total=whole.total, idle=whole.idle, wall=whole.wall)


def _report(book: Book, question: Question, account: accounting.Account) -> Report:
    grouped: dict[tuple[str, ...], _Counted] = {}
    total = _Counted()
    for group, each in account.sums.items():
        if question.wants(group[0]):
            key = tuple(_FIELDS[name](group) for name in question.by)
            grouped.setdefault(key, _Counted()).add(group[1], each)
            total.add(group[1], each)
    whole = _whole(account) if question.everything and _asks_for_all(question) else None
    counted = [total] if whole is None else [total, whole[0]]
    currency = book.prices().currency
    keys = sorted(grouped, key=lambda key: (-grouped[key].cost, -grouped[key].held, key))
    costs = money.micros([*(grouped[key].cost for key in keys), whole[0].cost if whole else 0])
    rows = [
        grouped[key].row(dict(zip(question.by, key, strict=True)), cost, currency)
        for key, cost in zip(keys, costs, strict=False)
    ]
    paid = sum(costs[:-1])
    return Report(
        since=_time(account.since),
        until=_time(account.until),
        notes=_notes(question, account),
        as_of=_time(question.now),
        by=list(question.by),
        currency=currency,
        rows=rows[: question.top] if question.top else rows,
        total=total.row({}, paid, currency),
        idle=counted[1].row({}, costs[-1], currency) if whole else None,
        wall=whole[1].row({}, paid + costs[-1], currency) if whole else None,
    )


def _notes(question: Question, account: accounting.Account) -> list[str]:
    found = []
    if (account.since, account.until) != (question.start, question.until):
        found.append(
            "single intervals of that time are kept no longer, only sums of whole days: this is "
            f"about {_time(account.since)} to {_time(account.until)}"
        )
    if account.since < account.runs_since:
        found.append(
            f"what single runs held before {_time(account.runs_since)} is kept no longer; "
            "ask by team, user, queue or device for that time"
        )
    return found


def _asks_for_all(question: Question) -> bool:
    return not (question.team or question.user or question.queue or question.run)


def _whole(account: accounting.Account) -> tuple[_Counted, _Counted]:
    """What nobody held, and what all of it was."""
    idle, wall = _Counted(), _Counted()
    for (kind, _), each in account.hardware.items():
        idle.add(kind, accounting.Sum(held=each.free, cost=each.idle))
        wall.add(kind, accounting.Sum(held=each.present * WHOLE, cost=each.wall))
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

    def add(self, kind: str, each: accounting.Sum) -> None:
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
