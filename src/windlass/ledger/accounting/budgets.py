"""Budgets: how much of one is used, what follows, and when it will be used up.

`judge` is pure: a budget, what was used, the time. `Budgets` asks the ledger about once a minute
and writes the answer into `Queue.status.budget`, from where the scheduler reads it as it reads a
pause: nothing new starts, or what runs is stopped by its checkpoint contract as well. So a decision
never waits for the ledger, and a ledger that is away leaves things as they are.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import fractions
import logging
from collections.abc import Callable, Iterable, Mapping

import msgspec
import sqlalchemy as sa

from windlass.control import events, leader, metrics
from windlass.kinds import quantity, queue, times
from windlass.ledger import accounting, calendar, money
from windlass.ledger.book import Book
from windlass.ledger.facts import DAY, WHOLE
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

NAME = "budgets"
EVERY = 60.0
LOOK_BACK = 7 * DAY
"""The forecast goes by what was used in this time, or since the period began if that is shorter."""
USUAL = (queue.BudgetStep(percent=80, do="warn"), queue.BudgetStep(percent=100, do="hold"))
_STATES = {"warn": "Warned", "hold": "Held", "stop": "Stopped"}
_ORDER = ("Open", "Warned", "Held", "Stopped")
_HOUR = 3600


@dataclasses.dataclass(slots=True)
class Used:
    """What a queue and those below it used in a time."""

    held: dict[str, int] = dataclasses.field(default_factory=dict)
    """By `gpu` and `gpu/h100`: millionths of devices times seconds."""
    cost: int = 0
    """Nano-units."""


def used_by(account: accounting.Account, parents: Mapping[str, str | None]) -> dict[str, Used]:
    """By queue, with what is used below it."""
    found: dict[str, Used] = collections.defaultdict(Used)
    for (who, kind, model, _), total in account.sums.items():
        for name in _path(who.queue, parents):
            each = found[name]
            each.cost += total.cost
            each.held[kind] = each.held.get(kind, 0) + total.held
            if model:
                exact = f"{kind}/{model}"
                each.held[exact] = each.held.get(exact, 0) + total.held
    return found


def judge(
    budget: queue.Budget, used: Used, recent: Used, window: int, now: int, currency: str = ""
) -> queue.BudgetStatus:
    """What is in force. `recent`: what was used in the last `window` seconds."""
    since, until = calendar.period(now, budget.per, budget.time_zone)
    parts = _parts(budget, used)
    worst = max((part for part, *_ in parts), default=fractions.Fraction(0))
    percent = int(worst * 100)
    state = "Open"
    for step in sorted(budget.at or USUAL, key=lambda each: each.percent):
        if worst * 100 >= step.percent:
            state = max(state, _STATES[step.do], key=_ORDER.index)
    override = budget.override
    counts = override is not None and now < _unix(override.until)
    if counts and state in ("Held", "Stopped"):
        state = "Warned"
    ends = _runs_out(budget, used, recent, window, now)
    if ends is not None and until is not None and ends >= until:
        ends = None
    return queue.BudgetStatus(
        since=_time(since) if until is not None else None,
        until=_time(until) if until is not None else None,
        device_hours={
            name: quantity.of_milli(used.held.get(name, 0) * 1000 // WHOLE // _HOUR)
            for name in budget.device_hours or ()
        } or None,
        money=money.plain(used.cost) if budget.money is not None else None,
        percent=percent,
        runs_out=_time(ends) if ends is not None else None,
        state=state,  # type: ignore[arg-type]
        message=_message(parts, percent, until, override if counts else None, currency),
    )  # fmt: skip


def _parts(budget: queue.Budget, used: Used) -> list[tuple[fractions.Fraction, str, str, str]]:
    """Of each thing that is limited: the part that is used, and the words for it."""
    found = []
    for name, most in sorted((budget.device_hours or {}).items()):
        hours = fractions.Fraction(used.held.get(name, 0), WHOLE * _HOUR)
        limit = fractions.Fraction(quantity.milli(most), 1000)
        found.append((_part(hours, limit), f"{float(hours):,.1f}", str(most), f"{name} hours"))
    if budget.money is not None:
        limit = fractions.Fraction(budget.money)
        spent = fractions.Fraction(used.cost, 10**9)
        found.append((_part(spent, limit), f"{float(spent):,.2f}", budget.money, "money"))
    return found


def _part(used: fractions.Fraction, limit: fractions.Fraction) -> fractions.Fraction:
    """A budget of nothing is used up by anything, and from the beginning."""
    return used / limit if limit else fractions.Fraction(1)


def _runs_out(budget: queue.Budget, used: Used, recent: Used, window: int, now: int) -> int | None:
    """When the first of its limits is reached if things go on as of late."""
    ends: list[int] = []
    for name, most in (budget.device_hours or {}).items():
        limit = quantity.milli(most) * WHOLE * _HOUR // 1000
        ends += _reached(used.held.get(name, 0), limit, recent.held.get(name, 0), window, now)
    if budget.money is not None:
        limit = int(fractions.Fraction(budget.money) * 10**9)
        ends += _reached(used.cost, limit, recent.cost, window, now)
    return min(ends, default=None)


def _reached(used: int, limit: int, recent: int, window: int, now: int) -> list[int]:
    if used >= limit:
        return [now]
    if recent <= 0 or window <= 0:
        return []
    moment = now + -(-(limit - used) * window // recent)
    return [moment] if moment < 253_402_300_800 else []  # the calendar ends with the year 9999


def _message(
    parts: list[tuple[fractions.Fraction, str, str, str]],
    percent: int,
    until: int | None,
    override: queue.BudgetOverride | None,
    currency: str,
) -> str:
    _, spent, most, what = max(parts, key=lambda each: each[0])
    unit = currency or "money" if what == "money" else what
    words = f"{spent} of {most} {unit} are used ({percent} %)"
    if until is not None:
        words += f"; the next period begins {_time(until)}"
    if override is not None:
        words += f"; overridden until {override.until} by {override.by}: {override.reason}"
    return words


def _path(name: str, parents: Mapping[str, str | None]) -> list[str]:
    found: list[str] = []
    at: str | None = name
    while at is not None and at not in found:
        found.append(at)
        at = parents.get(at)
    return found


def _unix(text: str) -> int:
    return int(times.parse(text).timestamp())


def _time(moment: int) -> str:
    return times.seconds(times.from_unix(moment))


# --- the controller -------------------------------------------------------------------------------


class Budgets:
    """One per leader's term."""

    def __init__(
        self,
        store: client.Store,
        queues: Reflector[queue.Queue],
        book: Book,
        registry: metrics.Registry,
        *,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._queues = queues
        self._book = book
        self._now = now
        self._due = asyncio.Event()
        self._used = registry.gauge(
            "windlass_budget_used_ratio", "Part of the budget that is used.", ("queue",)
        )
        self._states = registry.gauge(
            "windlass_budget_state", "1 for what is in force: Open, Warned, Held or Stopped.",
            ("queue", "state"),
        )  # fmt: skip
        self._ends = registry.gauge(
            "windlass_budget_runs_out_timestamp_seconds",
            "When the budget will be used up if things go on; absent: not in this period.",
            ("queue",),
        )
        queues.add_handler(self._queue_changed)

    async def run(self) -> None:
        """Until cancelled, or until another leads."""
        while True:
            self._due.clear()
            try:
                await self.step()
            except leader.LeadershipLostError:
                raise
            except (sa.exc.SQLAlchemyError, errors.ApiError) as problem:
                log.warning("budgets are looked at again later: %s", " ".join(str(problem).split()))
            try:
                async with asyncio.timeout(EVERY):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Looks at every budget, and writes what is new."""
        listed = list(self._queues)
        limited = [each for each in listed if each.spec.budget is not None]
        found: dict[str, queue.BudgetStatus] = {}
        now = int(self._now().timestamp())
        if limited:
            parents = {each.name: each.spec.parent for each in listed}
            found = await asyncio.to_thread(self._judge, limited, parents, now)
        self._show(found)
        for each in limited:
            await self._write(each, found[each.name], now)
        for each in listed:
            if each.spec.budget is None and each.status.budget is not None:
                await self._patch(each, None)

    def _show(self, found: Mapping[str, queue.BudgetStatus]) -> None:
        """Those that there are: a budget that is taken away is not shown any more."""
        self._used.replace({(name,): each.percent / 100 for name, each in found.items()})
        self._states.replace({(name, each.state): 1 for name, each in found.items()})
        ends = {(name,): each.runs_out for name, each in found.items() if each.runs_out}
        self._ends.replace({labels: _unix(text) for labels, text in ends.items()})

    def _judge(
        self, limited: Iterable[queue.Queue], parents: Mapping[str, str | None], now: int
    ) -> dict[str, queue.BudgetStatus]:
        accounts: dict[int, dict[str, Used]] = {}

        def since(start: int) -> dict[str, Used]:
            if start not in accounts:
                account = accounting.between(self._book, start, now)
                accounts[start] = used_by(account, parents)
            return accounts[start]

        found = {}
        for each in limited:
            budget = each.spec.budget
            assert budget is not None, "the caller looked"  # noqa: S101
            start, _ = calendar.period(now, budget.per, budget.time_zone)
            recent = max(start, (now - LOOK_BACK) // _HOUR * _HOUR)
            nothing = Used()
            found[each.name] = judge(
                budget, since(start).get(each.name, nothing),
                since(recent).get(each.name, nothing), now - recent, now,
                self._book.prices().currency,
            )  # fmt: skip
            found[each.name].observed_generation = each.metadata.generation
        return found

    async def _write(self, each: queue.Queue, status: queue.BudgetStatus, now: int) -> None:
        override = each.spec.budget.override if each.spec.budget else None
        if override is not None:
            row = {"queue": each.name, "by": override.by, "at": now,
                   "until": _unix(override.until), "reason": override.reason}  # fmt: skip
            if await asyncio.to_thread(self._book.note_override, row):
                words = f"budget overridden until {override.until}: {override.reason}"
                log.warning("queue %s: %s (by %s)", each.name, words, override.by)
                await self._tell(each, "BudgetOverridden", f"{words} (by {override.by})")
        if status == each.status.budget:
            return
        before = each.status.budget.state if each.status.budget else "Open"
        await self._patch(each, status)
        if status.state != before:
            await self._tell(each, f"Budget{status.state}", status.message)

    async def _patch(self, each: queue.Queue, status: queue.BudgetStatus | None) -> None:
        told = None
        if status is not None:
            absent = {field.encode_name: None for field in msgspec.structs.fields(status)}
            told = {**absent, **msgspec.to_builtins(status), "state": status.state}
        try:
            await self._store.patch(
                queue.Queue, each.name, subresource="status", patch={"status": {"budget": told}}
            )
        except errors.NotFound:
            return

    async def _tell(self, each: queue.Queue, word: str, words: str) -> None:
        kind = events.NORMAL if word == "BudgetOpen" else events.WARNING
        await events.tell(self._store, each, kind, word, words, NAME)

    def _queue_changed(self, _: str, before: queue.Queue | None, after: queue.Queue | None) -> None:
        if after is not None and (before is None or before.spec.budget != after.spec.budget):
            self._due.set()
