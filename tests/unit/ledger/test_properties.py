"""The ledger's laws, for any history: sums, no overlaps, and that telling twice changes nothing."""

from __future__ import annotations

import dataclasses
import fractions

import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties.settings import CAMPAIGN, cases
from tests.unit.ledger import history
from windlass.kinds.types import pricelist
from windlass.ledger.accounting import reconciliation, rollups
from windlass.ledger.db import schema
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.ingest import extract
from windlass.ledger.model import DAY
from windlass.ledger.pricing import cost_allocation
from windlass.ledger.reports import fleet, usage

pytestmark = CAMPAIGN


@cases(300, 20_000)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), max_size=12))
def test_sharers_never_pay_more_than_the_device_and_all_of_it_where_they_want_more(wall, claims):
    paid = cost_allocation.split(wall, claims)
    assert sum(paid) == min(wall, sum(claims))
    assert all(0 <= part <= claim for part, claim in zip(paid, claims, strict=True))
    if sum(claims) > wall:  # in proportion, to the last unit
        total = sum(claims)
        assert all(abs(p * total - wall * c) < total for p, c in zip(paid, claims, strict=True))


_SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 900), st.integers(0, 10**6)),
    max_size=8,
)


@cases(300, 20_000)
@given(_SPANS, st.lists(st.tuples(st.integers(1, 15), st.integers(0, 5), st.integers(0, 1000)),
                        max_size=4), st.integers(0, 60))  # fmt: skip
def test_a_bill_is_what_counting_every_second_gives_and_may_be_cut_anywhere(spans, there, cut):
    spells, at = [], 0
    for length, away, rate in there:
        spells.append((at, at + length, rate))
        at += length + away
    listed = [cost_allocation.Span(i, a, a + n, c, p, (i,)) for i, (a, n, c, p) in enumerate(spans)]
    whole = cost_allocation.bill(spells, listed, 0, 80)
    assert sum(s.cost for s in whole.shares.values()) + whole.idle == whole.wall
    counted, wall = dict.fromkeys(range(len(listed)), 0), 0
    for second in range(80):
        rate = next((r for a, b, r in spells if a <= second < b), None)
        here = [s for s in listed if s.started <= second < s.ended]
        if rate is not None:
            wall += rate
            for span, paid in zip(
                here, cost_allocation.split(rate, [s.claim for s in here]), strict=True
            ):
                counted[span.key] += paid
    assert whole.wall == wall
    assert {key: share.cost for key, share in whole.shares.items()} == {
        key: cost for key, cost in counted.items() if key in whole.shares
    }
    parts = (
        cost_allocation.bill(spells, listed, 0, cut),
        cost_allocation.bill(spells, listed, cut, 80),
    )
    assert sum(part.idle for part in parts) == whole.idle
    for key, share in whole.shares.items():
        both = [part.shares[key] for part in parts if key in part.shares]
        assert sum(each.cost for each in both) == share.cost
        assert sum(each.held for each in both) == share.held


DEARER = [("price", 0, 3, 5), ("start", 1, 1, 10), ("price", 0, 5, 10), ("end", 1, 0, 5)]
"""A price changes while something is held that ends later."""


def _lived(
    repository: LedgerRepository, steps: list[tuple[str, int, int, int]]
) -> history.Platform:
    platform = history.Platform()
    platform.tell(repository)
    for action, number, choice, wait in steps:
        platform.step(action, number, choice, wait)
        if action in ("tell", "node", "price"):  # nodes and prices are only what the ledger saw
            platform.tell(repository)
    platform.tell(repository)
    return platform


def _rows(repository: LedgerRepository) -> list[tuple[object, ...]]:
    with repository.engine.connect() as connection:
        found: list[tuple[object, ...]] = []
        for table in (schema.interval, schema.open_interval, schema.presence, schema.open_presence):
            names = [column for column in table.c if column.name != "id"]
            found += sorted(map(tuple, connection.execute(sa.select(*names))), key=str)
        return found


def _each_has_the_rate_of_its_time(
    repository: LedgerRepository, platform: history.Platform
) -> None:
    """By the lists themselves: sums alone would hide which run paid too much."""
    lists = [(extract.unix(each.spec.effective_from), each.spec.entries)
             for each in platform.prices]  # fmt: skip
    table = schema.interval
    query = sa.select(
        table.c.started, table.c.ended, table.c.form, table.c.rate, schema.device.c.kind
    ).join(schema.device, schema.device.c.id == table.c.device)
    with repository.engine.connect() as connection:
        rows = connection.execute(query).all()
    for started, ended, form, rate, kind in rows:
        if started == ended:
            continue
        assert not any(started < at < ended for at, _ in lists)
        latest = max((at for at, _ in lists if at <= started), default=None)
        # Of several lists of one second any may count.
        right = {_by_the_hour(entries, kind, form) for at, entries in lists if at == latest}
        assert rate in (right or {0})


def _by_the_hour(entries: list[pricelist.Price], kind: str, form: str) -> int:
    mine = [each for each in entries if each.device == kind and each.form in (None, form)]
    price = max(mine, key=lambda each: each.form is not None)
    assert price.rented is not None
    nano = fractions.Fraction(price.rented.per_hour) * 10**9 / 3600
    return int(nano + fractions.Fraction(1, 2))


def test_any_history_adds_up_overlaps_nowhere_and_may_be_replayed(make):
    @cases(25, 3000)
    @example(DEARER)
    @given(history.steps())
    def law(steps):
        repository = make()
        platform = _lived(repository, steps)
        verdict = reconciliation.verify(repository, history.START - 50, platform.now + 50)
        assert verdict.difference == 0
        assert verdict.overlaps == []
        _each_has_the_rate_of_its_time(repository, platform)
        gpus = {}
        account = rollups.between(repository, history.START - 50, platform.now)
        for (who, kind, *_), total in account.sums.items():
            if kind == "gpu":
                gpus[who.team] = gpus.get(who.team, 0) + total.held
        truth = {team: held for team, held in history.device_seconds(platform).items() if held}
        assert {team: held for team, held in gpus.items() if held} == truth
        before = _rows(repository)
        platform.tell(repository)
        platform.tell(repository)
        assert _rows(repository) == before
        repository.close()

    law()


def test_settled_days_say_the_same_as_intervals_and_late_news_is_counted(make):
    @cases(15, 1500)
    @given(history.steps())
    def law(steps):
        repository, platform = make(), history.Platform()
        platform.tell(repository)
        for action, number, choice, wait in steps:
            platform.step(action, number, choice, wait)
            if action in ("node", "price"):
                platform.tell(repository)
        platform.now = max(platform.now, history.MIDNIGHT + 700)
        # The day before is added up although no usage of the runs was reported yet.
        rollups.settle(repository, history.MIDNIGHT)
        platform.tell(repository)
        rollups.settle(repository, history.MIDNIGHT)
        verdict = reconciliation.verify(repository, history.MIDNIGHT - DAY, platform.now)
        assert verdict.holds, verdict
        repository.close()

    law()


def test_a_ledger_that_missed_steps_writes_what_one_that_saw_all_writes(make):
    @cases(15, 1500)
    @given(history.steps())
    def law(steps):
        diligent, lazy = make(), make()
        platform = history.Platform()
        for repository in (diligent, lazy):
            platform.tell(repository)
        for action, number, choice, wait in steps:
            platform.step(action, number, choice, wait)
            if action in ("node", "price"):
                platform.copy().tell(lazy)
            # A copy each: the status forgets only what the ledger has that is settled.
            platform.copy().tell(diligent)
        platform.copy().tell(lazy)
        platform.copy().tell(diligent)
        ends = [
            rollups.between(repository, 0, platform.now + 5, by_run=True)
            for repository in (diligent, lazy)
        ]
        assert ends[0].sums == ends[1].sums
        assert ends[0].hardware == ends[1].hardware
        for repository in (diligent, lazy):
            repository.close()

    law()


def test_what_is_forgotten_stays_in_the_sums_by_day(make):
    repository, platform = make(), history.Platform()
    platform.step("price", 0, 3, 0)
    platform.tell(repository)
    for action, number, wait in (
        ("start", 1, 40),
        ("start", 2, 30),
        ("end", 1, 100),
        ("end", 2, 9),
    ):
        platform.step(action, number, number, wait)  # number 2 is held over midnight
        platform.tell(repository)
    yesterday = history.MIDNIGHT - DAY, history.MIDNIGHT

    def told():
        both = (
            rollups.between(repository, *yesterday),
            rollups.between(repository, *yesterday, by_run=True),
        )
        return [(account.sums, account.hardware) for account in both]

    def ends():
        with repository.engine.connect() as connection:
            return sorted(connection.scalars(sa.select(schema.interval.c.ended)))

    assert rollups.settle(repository, history.MIDNIGHT) == 1
    before, held = told(), ends()
    assert held[0] < history.MIDNIGHT < held[-1]
    # Intervals go, up to the midnight before; of runs that went on into the next day nothing does.
    rollups.prune(repository, history.MIDNIGHT + 5, history.MIDNIGHT - DAY)
    assert ends() == [at for at in held if at > history.MIDNIGHT]
    assert told() == before
    assert reconciliation.verify(repository, history.MIDNIGHT - DAY, platform.now).holds
    # A part of such a day cannot be reported: the whole day is, with a remark.
    part = history.MIDNIGHT - 50, history.MIDNIGHT - 20
    usage_query = usage.UsageQuery(*part, platform.now, by=("team",))
    whole = dataclasses.replace(usage_query, start=yesterday[0], end=yesterday[1])
    asked, day = usage.usage(repository, usage_query), usage.usage(repository, whole)
    assert (asked.since, asked.until, asked.rows) == (day.since, day.until, day.rows)
    assert "only sums of whole days" in asked.notes[0]
    assert day.notes == []
    assert reconciliation.verify(repository, *part).holds
    assert fleet.series(repository, *part, part[1], 300).step_seconds == DAY
    # What single runs cost goes, too: the sums by day, team and user are all that is left.
    rollups.prune(repository, history.MIDNIGHT, history.MIDNIGHT)
    by_day, by_run = told()
    assert by_day == before[0]
    assert by_run[0] == {}
    by_name = usage.usage(repository, dataclasses.replace(whole, by=("run",)))
    assert (by_name.rows, len(by_name.notes)) == ([], 1)


def test_days_that_are_not_added_up_are_not_forgotten(make):
    repository, platform = make(), history.Platform()
    platform.tell(repository)
    for action, wait in (("start", 40), ("end", 5)):
        platform.step(action, 1, 1, wait)
        platform.tell(repository)
    before = _rows(repository)
    rollups.prune(repository, history.MIDNIGHT + 400 * DAY, history.MIDNIGHT + 400 * DAY)
    assert _rows(repository) == before
