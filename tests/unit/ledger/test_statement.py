"""A team's month as a page: tables that add up, days and months with hours and cost."""

from __future__ import annotations

import csv
import io

from tests.unit.ledger import history
from tests.unit.ledger.conftest import Make
from windlass.kinds import meta, pricelist, times
from windlass.ledger import statement
from windlass.ledger.facts import DAY, Hold, Member, Party

JANUARY, FEBRUARY = 1_767_225_600, 1_769_904_000  # of 2026, UTC
HOUR = 3600


def _made(make: Make) -> statement.Statement:
    """One gpu of the team from the last day of January to the first of February, 3.60 an hour; and
    somebody else's."""
    book = make()
    entry = pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour="3.60"))
    began = times.seconds(times.from_unix(JANUARY))
    listed = pricelist.PriceList(
        metadata=meta.ObjectMeta(name="list", uid="list", creation_timestamp=began),
        spec=pricelist.PriceListSpec(effective_from=began, entries=[entry]),
    )
    book.list_prices([listed], JANUARY)
    node, start = history.node("n1"), FEBRUARY - DAY
    book.observe(node.devices.values(), start, {})
    for number, team in enumerate(("vision", "other")):
        party = Party(f"run-{team}", team, "ann", team, "train")
        held = Hold(party, Member(), node.devices[f"gpu/{number}"], start, FEBRUARY + 2 * HOUR)
        book.write({party.uid: [held]}, FEBRUARY + 2 * HOUR)
    return statement.make(book, "vision", "2026-02", FEBRUARY + DAY)


def test_the_month_and_those_before_it_have_hours_and_cost(make: Make) -> None:
    made = _made(make)
    assert (made.total.device_hours, made.total.cost_micros) == (2.0, 7_200_000)
    months = {row.labels["month"]: (row.device_hours, row.cost_micros) for row in made.months}
    assert list(months) == ["2025-09", "2025-10", "2025-11", "2025-12", "2026-01", "2026-02"]
    assert (months["2026-01"], months["2026-02"]) == ((24.0, 86_400_000), (2.0, 7_200_000))
    assert [(day.day, day.device_hours) for day in made.days] == [("2026-02-01", 2.0)]


def test_every_table_adds_up_to_the_month_and_nobody_else_is_in_it(make: Make) -> None:
    made = _made(make)
    for title, rows in made.tables.items():
        assert sum(row.cost_micros for row in rows) == made.total.cost_micros, title
    told = list(csv.DictReader(io.StringIO(statement.as_csv(made))))
    assert {row["team"] for row in told} == {"vision"}
    assert [row["cost"] for row in told if row["table"] == "total"] == ["7.200000"]
    page = statement.as_html(made)
    assert "2026-01" in page
    assert "24.00" in page
    assert "other" not in page
