"""Looks at the fleet once a minute: writes samples, and tells Prometheus what is and what was.

A loop of its own beside `ledger.keeper`: an agent that is slow to say what its machine does, or a
cluster where nobody measures, keeps nothing from being written down.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from windlass.control import metrics
from windlass.control.views import Views
from windlass.kinds import times
from windlass.ledger import accounting, activity, calendar, looks, reading, reports, samples
from windlass.ledger.book import Book
from windlass.ledger.facts import WHOLE
from windlass.store import errors

log = logging.getLogger(__name__)

EVERY = 60
"""Seconds between two looks."""
_PATIENCE = 20.0
"""Seconds that whoever measures has to answer."""
_MONTH_EVERY = 300
"""Seconds between two looks at the month."""
_STATES = ("present", "held", "idle", "used", "measured", "borrowed", "lent", "waiting")
_OF_TEAMS = ("held", "used", "borrowed", "lent", "waiting")


class Sampler:
    """One per leader's term."""

    def __init__(
        self,
        views: Views,
        book: Book,
        registry: metrics.Registry,
        meter: activity.Meter,
        *,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._views = views
        self._book = book
        self._meter = meter
        self._now = now
        self._last: int | None = None
        self._month_told = 0
        month = "this calendar month (UTC)"
        self._fleet = registry.gauge(
            "windlass_fleet_devices",
            "Devices (of cpu: cores) now; used is a part of those that are measured.",
            ("device", "state"),
        )
        self._teams = registry.gauge(
            "windlass_team_devices", "A team's devices (of cpu: cores) now.",
            ("team", "device", "state"),
        )  # fmt: skip
        self._hours = registry.gauge(
            "windlass_usage_device_hours", f"Held by a team, {month}.", ("team", "device")
        )
        self._costs = registry.gauge(
            "windlass_usage_cost_units", f"What a team's usage cost, {month}.", ("team",)
        )
        self._idle_hours = registry.gauge(
            "windlass_idle_device_hours", f"Held by nobody, {month}.", ("device",)
        )
        self._idle_costs = registry.gauge(
            "windlass_idle_cost_units", f"What idle devices cost, {month}.", ("device",)
        )
        self._wall_costs = registry.gauge(
            "windlass_wall_cost_units", f"What all devices cost, {month}.", ("device",)
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.step()
            except sa.exc.SQLAlchemyError as problem:
                words = " ".join(str(problem).split())[:300]
                log.warning("the fleet is looked at again later: %s", words)
            await asyncio.sleep(EVERY - self._now().timestamp() % EVERY)

    async def step(self) -> None:
        """One look."""
        measured = await self._measure()
        now = int(self._now().timestamp())
        nodes = {each.name: reading.node(each) for each in self._views.nodes}
        seen = self._views
        pods, queues, runs = list(seen.pods), list(seen.queues), list(seen.runs)

        def work() -> looks.Look:
            holds = self._book.open_holds()
            found = looks.look(nodes, pods, holds, queues, runs, measured)
            # The first of a life stands for the moment only: nobody knows what was before.
            passed = now - self._last if self._last is not None else 1
            if passed > 0:
                samples.write(self._book, found, now, min(EVERY, passed))
                samples.put_together(self._book, now)
            if now - self._month_told >= _MONTH_EVERY:
                self._tell_month(now)
                self._month_told = now
            return found

        self._tell(await asyncio.to_thread(work))
        self._last = now

    async def _measure(self) -> activity.Measured:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await self._meter()
        except (TimeoutError, errors.ApiError, OSError, ValueError, msgspec.MsgspecError) as error:
            log.info("what nodes use is not known now: %s", error)
            return activity.NOTHING

    def _tell(self, look: looks.Look) -> None:
        fleet: dict[metrics.Labels, float] = {}
        teams: dict[metrics.Labels, float] = {}
        for (team, device), cell in look.cells.items():
            told = dataclasses.asdict(cell) | {"idle": max(0, cell.present - cell.held)}
            if not cell.measured:
                del told["used"]  # not measured is not nothing
            wanted = _OF_TEAMS if team else _STATES
            into, first = (teams, (team, device)) if team else (fleet, (device,))
            for state in wanted:
                if state in told:
                    into[*first, state] = told[state] / 1000
        self._fleet.replace(fleet)
        self._teams.replace(teams)

    def _tell_month(self, now: int) -> None:
        """What this month was so far."""
        start, _ = calendar.period(now, "month")
        account = accounting.between(self._book, start, now)
        hours: dict[metrics.Labels, float] = {}
        costs: dict[metrics.Labels, float] = {}
        for (who, kind, model, _), total in account.sums.items():
            key = who.team, reports.device_name(kind, model)
            hours[key] = hours.get(key, 0) + total.held / WHOLE / 3600
            costs[who.team,] = costs.get((who.team,), 0) + total.cost / 1e9
        self._hours.replace(hours)
        self._costs.replace(costs)
        there = {
            (reports.device_name(kind, model),): each
            for (kind, model), each in account.hardware.items()
        }
        self._idle_hours.replace({k: each.free / WHOLE / 3600 for k, each in there.items()})
        self._idle_costs.replace({k: each.idle / 1e9 for k, each in there.items()})
        self._wall_costs.replace({k: each.wall / 1e9 for k, each in there.items()})
