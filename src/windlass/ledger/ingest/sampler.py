"""Samples the fleet once a minute: writes samples and publishes Prometheus metrics.

A loop of its own beside `ledger.ingest.recorder`: slow or missing measurements do not delay the
recording of intervals.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Callable

import msgspec
import sqlalchemy as sa

from windlass.control.runtime.informers import InformerFactory
from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db import samples
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.ingest import extract, fleet_sample, utilization
from windlass.ledger.model import WHOLE, FleetSample, device_name
from windlass.ledger.pricing import periods
from windlass.store import errors
from windlass.telemetry import prometheus

log = logging.getLogger(__name__)

EVERY = 60
"""Seconds between two samples."""
_TIMEOUT = 20.0
"""Seconds within which a measurement must arrive."""
_MONTH_EVERY = 300
"""Seconds between two sums of the month."""
_STATES = ("present", "held", "idle", "used", "measured", "borrowed", "lent", "waiting")
_OF_TEAMS = ("held", "used", "borrowed", "lent", "waiting")


class Sampler:
    """One per leader's term."""

    def __init__(
        self,
        views: InformerFactory,
        repository: LedgerRepository,
        registry: prometheus.Registry,
        meter: utilization.Meter,
        *,
        now: Callable[[], datetime.datetime] = times.now,
    ) -> None:
        self._views = views
        self._repository = repository
        self._meter = meter
        self._now = now
        self._last: int | None = None
        self._month_published = 0
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
            "windlass_usage_device_hours", f"Allocated to a team, {month}.", ("team", "device")
        )
        self._costs = registry.gauge(
            "windlass_usage_cost_units", f"What a team's usage cost, {month}.", ("team",)
        )
        self._idle_hours = registry.gauge(
            "windlass_idle_device_hours", f"Not allocated, {month}.", ("device",)
        )
        self._idle_costs = registry.gauge(
            "windlass_idle_cost_units", f"What idle devices cost, {month}.", ("device",)
        )
        self._wall_costs = registry.gauge(
            "windlass_wall_cost_units", f"What all devices cost, {month}.", ("device",)
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            try:
                await self.step()
            except sa.exc.SQLAlchemyError as problem:
                reason = " ".join(str(problem).split())[:300]
                log.warning("the fleet cannot be sampled, trying again: %s", reason)
            await asyncio.sleep(EVERY - self._now().timestamp() % EVERY)

    async def step(self) -> None:
        """Takes one sample."""
        measured = await self._measure()
        now = int(self._now().timestamp())
        nodes = {each.name: extract.node(each) for each in self._views.nodes}
        seen = self._views
        pods, queues, runs = list(seen.pods), list(seen.queues), list(seen.runs)

        def work() -> FleetSample:
            holds = self._repository.open_holds()
            found = fleet_sample.sample(nodes, pods, holds, queues, runs, measured)
            # The first sample of a process covers no time: the time before it was not observed.
            passed = now - self._last if self._last is not None else 1
            if passed > 0:
                samples.write(self._repository, found, now, min(EVERY, passed))
                samples.compact(self._repository, now)
            if now - self._month_published >= _MONTH_EVERY:
                self._publish_month(now)
                self._month_published = now
            return found

        self._publish(await asyncio.to_thread(work))
        self._last = now

    async def _measure(self) -> utilization.Measured:
        try:
            async with asyncio.timeout(_TIMEOUT):
                return await self._meter()
        except (TimeoutError, errors.ApiError, OSError, ValueError, msgspec.MsgspecError) as error:
            log.info("the usage of nodes is unknown now: %s", error)
            return utilization.NOTHING

    def _publish(self, taken: FleetSample) -> None:
        fleet: dict[prometheus.Labels, float] = {}
        teams: dict[prometheus.Labels, float] = {}
        for (team, device), cell in taken.cells.items():
            amounts = dataclasses.asdict(cell) | {"idle": max(0, cell.present - cell.held)}
            if not cell.measured:
                del amounts["used"]  # not measured is different from zero
            wanted = _OF_TEAMS if team else _STATES
            into, first = (teams, (team, device)) if team else (fleet, (device,))
            for state in wanted:
                if state in amounts:
                    into[*first, state] = amounts[state] / 1000
        self._fleet.replace(fleet)
        self._teams.replace(teams)

    def _publish_month(self, now: int) -> None:
        """Publishes the sums of this month so far."""
        start, _ = periods.period(now, "month")
        account = rollups.between(self._repository, start, now)
        hours: dict[prometheus.Labels, float] = {}
        costs: dict[prometheus.Labels, float] = {}
        for (party, kind, model, _), total in account.sums.items():
            key = party.team, device_name(kind, model)
            hours[key] = hours.get(key, 0) + total.held / WHOLE / 3600
            costs[party.team,] = costs.get((party.team,), 0) + total.cost / 1e9
        self._hours.replace(hours)
        self._costs.replace(costs)
        there = {
            (device_name(kind, model),): each for (kind, model), each in account.hardware.items()
        }
        self._idle_hours.replace({k: each.free / WHOLE / 3600 for k, each in there.items()})
        self._idle_costs.replace({k: each.idle / 1e9 for k, each in there.items()})
        self._wall_costs.replace({k: each.wall / 1e9 for k, each in there.items()})
