"""Budgets: the part of a budget that is used, the consequence, and the expected end.

`judge` is pure: a budget, its usage, the time. `Budgets` queries the ledger about once a minute
and writes the result to `Queue.status.budget`. The scheduler reads it like a pause: it starts
nothing new, or also stops running workloads by their checkpoint contract. So a decision never waits
for the ledger, and while the ledger is unavailable the last result stays in force.
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

from windlass.control.runtime import event_recorder, leader_election
from windlass.kinds.types import queue
from windlass.kinds.values import quantity, times
from windlass.ledger.accounting import rollups
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.model import DAY, WHOLE
from windlass.ledger.pricing import money, periods
from windlass.store import errors, interface
from windlass.store.informer import Informer
from windlass.telemetry import prometheus

log = logging.getLogger(__name__)

NAME = "budgets"
EVERY = 60.0
WINDOW = 7 * DAY
"""The forecast extrapolates the usage of this time, or since the period began if shorter."""
USUAL = (queue.BudgetStep(percent=80, do="warn"), queue.BudgetStep(percent=100, do="hold"))
_STATES = {"warn": "Warned", "hold": "Held", "stop": "Stopped"}
_ORDER = ("Open", "Warned", "Held", "Stopped")
_HOUR = 3600


@dataclasses.dataclass(slots=True)
class Used:
    """The usage of a queue and its descendants in an interval."""

    held: dict[str, int] = dataclasses.field(default_factory=dict)
    """By `gpu` and `gpu/h100`: millionths of devices times seconds."""
    cost: int = 0
    """In nano (billionths of the currency)."""


def used_by(account: rollups.Account, parents: Mapping[str, str | None]) -> dict[str, Used]:
    """By queue, including the usage of its descendants."""
    found: dict[str, Used] = collections.defaultdict(Used)
    for (owner, kind, model, _), total in account.sums.items():
        for name in _path(owner.queue, parents):
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
    """The state in force. `recent`: the usage of the last `window` seconds."""
    since, until = periods.period(now, budget.per, budget.time_zone)
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
    """For each limit: the part that is used, and the texts that describe it."""
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
    """A budget of zero is used up from the beginning."""
    return used / limit if limit else fractions.Fraction(1)


def _runs_out(budget: queue.Budget, used: Used, recent: Used, window: int, now: int) -> int | None:
    """When the first limit is reached if the usage continues at the recent rate."""
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
    return [moment] if moment < 253_402_300_800 else []  # datetime ends with the year 9999


def _message(
    parts: list[tuple[fractions.Fraction, str, str, str]],
    percent: int,
    until: int | None,
    override: queue.BudgetOverride | None,
    currency: str,
) -> str:
    _, spent, most, what = max(parts, key=lambda each: each[0])
    unit = currency or "money" if what == "money" else what
    sentence = f"{spent} of {most} {unit} are used ({percent} %)"
    if until is not None:
        sentence += f"; the next period begins {_time(until)}"
    if override is not None:
        sentence += f"; overridden until {override.until} by {override.by}: {override.reason}"
    return sentence


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
        store: interface.Store,
        queues: Informer[queue.Queue],
        repository: LedgerRepository,
        registry: prometheus.Registry,
        *,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._store = store
        self._queues = queues
        self._repository = repository
        self._now = now
        self._due = asyncio.Event()
        self._used = registry.gauge(
            "windlass_budget_used_ratio", "Part of the budget that is used.", ("queue",)
        )
        self._states = registry.gauge(
            "windlass_budget_state", "1 for the state in force: Open, Warned, Held or Stopped.",
            ("queue", "state"),
        )  # fmt: skip
        self._ends = registry.gauge(
            "windlass_budget_runs_out_timestamp_seconds",
            "When the budget will be used up if things go on; absent: not in this period.",
            ("queue",),
        )
        queues.add_handler(self._queue_changed)

    async def run(self) -> None:
        """Runs until cancelled, or until another process leads."""
        while True:
            self._due.clear()
            try:
                await self.step()
            except leader_election.LeadershipLostError:
                raise
            except (sa.exc.SQLAlchemyError, errors.ApiError) as problem:
                log.warning(
                    "budgets cannot be updated, trying again: %s", " ".join(str(problem).split())
                )
            try:
                async with asyncio.timeout(EVERY):
                    await self._due.wait()
            except TimeoutError:
                continue

    async def step(self) -> None:
        """Evaluates every budget and writes what changed."""
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
        """Publishes the budgets that exist; a removed budget has no metric."""
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
                account = rollups.between(self._repository, start, now)
                accounts[start] = used_by(account, parents)
            return accounts[start]

        found = {}
        for each in limited:
            budget = each.spec.budget
            assert budget is not None, "the caller checked it"  # noqa: S101
            start, _ = periods.period(now, budget.per, budget.time_zone)
            recent = max(start, (now - WINDOW) // _HOUR * _HOUR)
            nothing = Used()
            found[each.name] = judge(
                budget, since(start).get(each.name, nothing),
                since(recent).get(each.name, nothing), now - recent, now,
                self._repository.prices().currency,
            )  # fmt: skip
            found[each.name].observed_generation = each.metadata.generation
        return found

    async def _write(self, each: queue.Queue, status: queue.BudgetStatus, now: int) -> None:
        override = each.spec.budget.override if each.spec.budget else None
        if override is not None:
            row = {"queue": each.name, "by": override.by, "at": now,
                   "until": _unix(override.until), "reason": override.reason}  # fmt: skip
            if await asyncio.to_thread(self._repository.note_override, row):
                summary = f"budget overridden until {override.until}: {override.reason}"
                log.warning("queue %s: %s (by %s)", each.name, summary, override.by)
                await self._record_event(each, "BudgetOverridden", f"{summary} (by {override.by})")
        if status == each.status.budget:
            return
        before = each.status.budget.state if each.status.budget else "Open"
        await self._patch(each, status)
        if status.state != before:
            await self._record_event(each, f"Budget{status.state}", status.message)

    async def _patch(self, each: queue.Queue, status: queue.BudgetStatus | None) -> None:
        value = None
        if status is not None:
            absent = {field.encode_name: None for field in msgspec.structs.fields(status)}
            value = {**absent, **msgspec.to_builtins(status), "state": status.state}
        try:
            await self._store.patch(
                queue.Queue, each.name, subresource="status", patch={"status": {"budget": value}}
            )
        except errors.NotFound:
            return

    async def _record_event(self, each: queue.Queue, reason: str, message: str) -> None:
        kind = event_recorder.NORMAL if reason == "BudgetOpen" else event_recorder.WARNING
        await event_recorder.record(self._store, each, kind, reason, message, NAME)

    def _queue_changed(self, _: str, before: queue.Queue | None, after: queue.Queue | None) -> None:
        if after is not None and (before is None or before.spec.budget != after.spec.budget):
            self._due.set()
