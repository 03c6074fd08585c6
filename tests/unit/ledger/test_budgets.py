"""Budgets over time: three months by a controlled clock, with a leap day and daylight saving."""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import AsyncIterator

import pytest

from tests.unit.control import build
from tests.unit.control.conftest import store as store
from tests.unit.control.world import World
from tests.unit.ledger import history
from windlass.kinds.types import meta, pricelist, queue
from windlass.kinds.values import times
from windlass.ledger.accounting import budgets
from windlass.ledger.db import schema
from windlass.ledger.model import Hold, Member, Party
from windlass.ledger.pricing import periods
from windlass.store.informer import Informer
from windlass.telemetry import prometheus

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
HOUR = 3600


def at(year: int, month: int, day: int, hour: int = 0, zone=BERLIN) -> int:
    return int(datetime.datetime(year, month, day, hour, tzinfo=zone).timestamp())


class Clock:
    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> datetime.datetime:
        return times.from_unix(self.now)


@pytest.fixture
async def drill(store, repository) -> AsyncIterator[Drill]:
    made = Drill(store, repository)
    async with made.queues:
        await made.queues.synced()
        yield made


class Drill:
    """Queues with budgets, a ledger, a clock."""

    def __init__(self, store, repository) -> None:
        self.store, self.repository = store, repository
        self.clock = Clock(at(2028, 2, 1))
        self.queues = Informer(store, queue.Queue)
        self.registry = prometheus.Registry()
        self.budgets = budgets.Budgets(
            store, self.queues, repository, self.registry, now=self.clock
        )

    async def add(self, name: str, parent: str | None = None, **budget: object) -> None:
        limit = queue.Budget(**budget) if budget else None
        spec = queue.QueueSpec(parent=parent, budget=limit)
        await self.store.create(queue.Queue(metadata=meta.ObjectMeta(name=name), spec=spec))
        await self._until(lambda: self.queues.get(name) is not None)

    async def look(self, name: str) -> queue.BudgetStatus:
        await self.budgets.step()
        found = (await self.store.get(queue.Queue, name)).status.budget
        assert found is not None
        await self._until(lambda: self.queues.get(name).status.budget == found)
        return found

    async def _until(self, holds) -> None:
        import asyncio

        async with asyncio.timeout(30):
            while not holds():
                await asyncio.sleep(0.001)

    def hold(self, name: str, start: int, end: int | None, gpus: int = 2) -> None:
        node = history.node("n1")
        party = Party(f"run-{name}", "team", "ann", name, name)
        self.repository.observe(node.devices.values(), start, {})
        holds = [
            Hold(party, Member(0, "worker", i), node.devices[f"gpu/{i}"], start, end)
            for i in range(gpus)
        ]
        self.repository.write({party.uid: holds}, start)


async def test_three_months_are_warned_held_stopped_and_opened_on_the_very_hour(drill):
    steps = [
        queue.BudgetStep(percent=80, do="warn"), queue.BudgetStep(percent=100, do="hold"),
        queue.BudgetStep(percent=120, do="stop"),
    ]  # fmt: skip
    limit = {"gpu": "1000"}
    await drill.add("vision", device_hours=limit, time_zone="Europe/Berlin", at=steps)
    drill.hold("vision", at(2028, 2, 1), None)
    seen: list[tuple[str, str]] = []
    while drill.clock.now < at(2028, 5, 1):
        status = await drill.look("vision")
        if not seen or seen[-1][1] != status.state:
            moment = drill.clock().astimezone(BERLIN).isoformat()
            seen.append((moment, status.state))
        drill.clock.now += 4 * HOUR
    # Two GPUs use 1,000 hours in 500: by the wall clock an hour later where clocks went forward.
    assert seen == [
        ("2028-02-01T00:00:00+01:00", "Open"),
        ("2028-02-17T16:00:00+01:00", "Warned"),
        ("2028-02-21T20:00:00+01:00", "Held"),
        ("2028-02-26T00:00:00+01:00", "Stopped"),
        ("2028-03-01T00:00:00+01:00", "Open"),
        ("2028-03-17T16:00:00+01:00", "Warned"),
        ("2028-03-21T20:00:00+01:00", "Held"),
        ("2028-03-26T00:00:00+01:00", "Stopped"),
        ("2028-04-01T01:00:00+02:00", "Open"),  # looked at every four hours, on odd ones since
        ("2028-04-17T17:00:00+02:00", "Warned"),
        ("2028-04-21T21:00:00+02:00", "Held"),
        ("2028-04-26T01:00:00+02:00", "Stopped"),
    ]


async def test_weeks_a_quarter_and_a_total_over_the_same_months_open_and_close_to_the_second(drill):
    """Two GPUs from New Year on, in a team below a division below a company."""
    hold = [queue.BudgetStep(percent=100, do="hold")]
    zone = "Europe/Berlin"
    for name, parent, hours, per in (
        ("company", None, "5000", "total"),
        ("division", "company", "2000", "quarter"),
        ("team", "division", "100", "week"),
    ):
        limit = {"gpu": hours}
        await drill.add(name, parent, device_hours=limit, per=per, time_zone=zone, at=hold)
    begin = at(2028, 1, 1)
    drill.hold("team", begin, None)
    changes = [
        (begin + 1000 * HOUR, "division", "Open", "Held"),
        (at(2028, 4, 1), "division", "Held", "Open"),
        (begin + 2500 * HOUR, "company", "Open", "Held"),
    ]
    for week in range(14):
        first = datetime.date(2028, 1, 3) + datetime.timedelta(weeks=week)
        monday = at(first.year, first.month, first.day)
        changes.append((monday, "team", "Held" if week else "Open", "Open"))
        changes.append((monday + 50 * HOUR, "team", "Open", "Held"))
    for moment, name, before, after in sorted(changes):
        seen = []
        for now in (moment - 1, moment):
            drill.clock.now = now
            seen.append((await drill.look(name)).state)
        assert seen == [before, after], (name, times.from_unix(moment).astimezone(BERLIN))


async def test_what_is_used_up_holds_admission_until_an_administrator_says_otherwise(drill):
    """From the ledger's hours to the run that waits, and back."""
    await drill.store.create(build.node("n1"))
    await drill.add("default", device_hours={"gpu": "10"}, time_zone="Europe/Berlin")
    drill.hold("default", drill.clock.now, None)
    world = World(drill.store)
    await world.submit("early")
    await world.go(2)
    assert (await world.status("early")).phase == "Running"
    drill.clock.now += 5 * HOUR
    assert (await drill.look("default")).state == "Held"
    await world.submit("late")
    await world.go(2)
    late = await world.status("late")
    assert (late.phase, late.reason) == ("Queued", "BudgetExhausted")
    assert "10.0 of 10 gpu hours are used (100 %)" in late.message
    assert (await world.status("early")).phase == "Running"
    until = times.seconds(times.from_unix(drill.clock.now + HOUR))
    override = {"until": until, "reason": "paper deadline", "by": "root"}
    patch = {"spec": {"budget": {"override": override}}}
    await drill.store.patch(queue.Queue, "default", patch=patch)
    await drill._until(lambda: drill.queues.get("default").spec.budget.override is not None)
    await drill.look("default")
    await world.go(2)
    assert (await world.status("late")).phase == "Running"


async def test_prometheus_has_series_of_existing_budgets(drill):
    await drill.add("vision", device_hours={"gpu": "100"}, time_zone="Europe/Berlin")
    drill.hold("vision", at(2028, 2, 1), None)
    drill.clock.now = at(2028, 2, 2)
    status = await drill.look("vision")
    page = drill.registry.render()
    assert 'windlass_budget_used_ratio{queue="vision"} 0.48' in page
    assert 'windlass_budget_state{queue="vision",state="Open"} 1' in page
    ends = int(times.parse(status.runs_out).timestamp())
    assert f'windlass_budget_runs_out_timestamp_seconds{{queue="vision"}} {ends}' in page
    await drill.store.patch(queue.Queue, "vision", patch={"spec": {"budget": None}})
    await drill._until(lambda: drill.queues.get("vision").spec.budget is None)
    await drill.budgets.step()
    assert 'queue="vision"' not in drill.registry.render()


async def test_a_month_has_as_many_hours_as_it_has(drill):
    await drill.add("all", device_hours={"gpu": "100000"}, time_zone="Europe/Berlin")
    drill.hold("all", at(2028, 2, 1), None)
    told = {}
    for month in (2, 3, 4):
        drill.clock.now = at(2028, month + 1, 1) - 1
        status = await drill.look("all")
        told[month] = (status.since, status.until, status.device_hours["gpu"])
    # 29 days; 31 days less an hour; 30 days; two GPUs each, and a second is missing.
    assert told == {
        2: ("2028-01-31T23:00:00Z", "2028-02-29T23:00:00Z", "1391999m"),
        3: ("2028-02-29T23:00:00Z", "2028-03-31T22:00:00Z", "1485999m"),
        4: ("2028-03-31T22:00:00Z", "2028-04-30T22:00:00Z", "1439999m"),
    }


async def test_the_day_it_runs_out_is_foretold_and_is_that_day(drill):
    await drill.add("vision", device_hours={"gpu": "1000"}, time_zone="Europe/Berlin")
    drill.hold("vision", at(2028, 3, 1), None)
    drill.clock.now = at(2028, 3, 10)
    status = await drill.look("vision")
    assert status.runs_out == "2028-03-21T19:00:00Z"  # 500 hours after the month began
    drill.clock.now = int(times.parse(status.runs_out).timestamp()) - 1
    assert (await drill.look("vision")).state == "Warned"
    drill.clock.now += 1
    assert (await drill.look("vision")).state == "Held"


async def test_what_is_used_below_counts_above_and_beside_does_not(drill):
    await drill.add("company", device_hours={"gpu": "100"}, per="total")
    await drill.add("below", "company")
    await drill.add("beside", device_hours={"gpu": "100"}, per="week")
    drill.hold("below", drill.clock.now, drill.clock.now + 25 * HOUR)
    drill.clock.now += 30 * HOUR
    assert (await drill.look("company")).percent == 50
    assert (await drill.look("beside")).percent == 0


async def test_money_is_a_limit_as_well_and_a_price_change_counts_from_its_moment(drill):
    steps = [queue.BudgetStep(percent=100, do="hold")]
    await drill.add("rich", money="100", at=steps, time_zone="Europe/Berlin")
    now = drill.clock.now
    lists = []
    for number, price in ((0, "1.00"), (10, "4.00")):
        moment = times.seconds(times.from_unix(now + number * HOUR))
        entry = pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour=price))
        lists.append(
            pricelist.PriceList(
                metadata=meta.ObjectMeta(name=f"p{number}", uid=f"p{number}",
                                         creation_timestamp=times.seconds(times.from_unix(now))),
                spec=pricelist.PriceListSpec(effective_from=moment, entries=[entry]),
            )
        )  # fmt: skip
    drill.repository.list_prices(lists, now)
    drill.hold("rich", now, None)
    drill.clock.now = now + 19 * HOUR
    status = await drill.look("rich")  # 20 for ten hours, then 8 an hour
    assert (status.money, status.state) == ("92.000009", "Open")
    drill.clock.now = now + 20 * HOUR
    assert (await drill.look("rich")).state == "Held"


async def test_an_override_opens_it_for_a_time_and_leaves_a_trace(drill):
    await drill.add("late", device_hours={"gpu": "10"}, per="month")
    drill.hold("late", drill.clock.now, None)
    drill.clock.now += 10 * HOUR
    assert (await drill.look("late")).state == "Held"
    until = times.seconds(times.from_unix(drill.clock.now + 5 * HOUR))
    override = {"until": until, "reason": "paper deadline", "by": "root"}
    await drill.store.patch(queue.Queue, "late", patch={"spec": {"budget": {"override": override}}})
    await drill._until(lambda: drill.queues.get("late").spec.budget.override is not None)
    status = await drill.look("late")
    assert status.state == "Warned"
    assert status.observed_generation == drill.queues.get("late").metadata.generation > 1
    assert "by root: paper deadline" in status.message
    drill.clock.now += 5 * HOUR
    assert (await drill.look("late")).state == "Held"
    with drill.repository.engine.connect() as connection:
        (row,) = connection.execute(schema.override.select()).mappings()
    assert (row["queue"], row["by"], row["reason"]) == ("late", "root", "paper deadline")


async def test_nothing_starts_when_a_budget_is_used_up_and_what_runs_goes_on_or_is_stopped(store):
    await store.create(build.node("n1"))
    await store.create(build.a_queue())
    world = World(store)
    await store.patch(
        queue.Queue, "default", patch={"spec": {"budget": {"deviceHours": {"gpu": 1}}}}
    )
    await world.submit("early")
    await world.go(2)

    async def tell(state: str) -> None:
        patch = {"status": {"budget": {"state": state, "message": "9 of 8 gpu hours are used"}}}
        await store.patch(queue.Queue, "default", subresource="status", patch=patch)

    await tell("Held")
    await world.submit("late")
    await world.go(3)
    late = await world.status("late")
    assert (late.phase, late.reason) == ("Queued", "BudgetExhausted")
    assert "queue default: 9 of 8 gpu hours" in late.message
    assert (await world.status("early")).phase == "Running"
    await tell("Stopped")
    await world.go(3)
    early = await world.status("early")
    assert (early.phase, early.reason) == ("Queued", "BudgetExhausted")
    await tell("Open")
    await world.go(3)
    assert {(await world.status(name)).phase for name in ("early", "late")} == {"Running"}


@pytest.mark.parametrize(
    ("per", "moment", "zone", "since", "hours"),
    [
        ("day", at(2028, 3, 26, 12), "Europe/Berlin", "2028-03-25T23:00:00Z", 23),
        ("day", at(2028, 10, 29, 12), "Europe/Berlin", "2028-10-28T22:00:00Z", 25),
        ("week", at(2028, 3, 1), "UTC", "2028-02-28T00:00:00Z", 168),
        ("month", at(2028, 2, 29, 23), "UTC", "2028-02-01T00:00:00Z", 696),
        ("month", at(2100, 2, 28), "UTC", "2100-02-01T00:00:00Z", 672),
        ("quarter", at(2028, 2, 29), "Europe/Berlin", "2027-12-31T23:00:00Z", 91 * 24 - 1),
        ("year", at(2028, 7, 1), "UTC", "2028-01-01T00:00:00Z", 366 * 24),
        ("year", at(2028, 7, 1), "Asia/Kolkata", "2027-12-31T18:30:00Z", 366 * 24),
    ],
)
def test_periods_follow_the_calendar(per, moment, zone, since, hours):
    start, end = periods.period(moment, per, zone)
    assert times.seconds(times.from_unix(start)) == since
    assert end is not None
    assert (end - start) / HOUR == hours
    assert start <= moment < end
