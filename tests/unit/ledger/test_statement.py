"""A team's month as a page: tables that add up, days and months with hours and cost."""

from __future__ import annotations

import csv
import io
import re

from tests.unit.ledger import history
from tests.unit.ledger.conftest import Make
from windlass.kinds.types import meta, pricelist
from windlass.kinds.values import times
from windlass.ledger.model import DAY, Hold, Member, Party
from windlass.ledger.reports import statement

JANUARY, FEBRUARY = 1_767_225_600, 1_769_904_000  # of 2026, UTC
HOUR = 3600


def _made(make: Make, team: str = "vision") -> statement.Statement:
    """One gpu of the team from the last day of January to the first of February, 3.60 an hour; and
    another team's."""
    repository = make()
    entry = pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour="3.60"))
    began = times.seconds(times.from_unix(JANUARY))
    listed = pricelist.PriceList(
        metadata=meta.ObjectMeta(name="list", uid="list", creation_timestamp=began),
        spec=pricelist.PriceListSpec(effective_from=began, entries=[entry]),
    )
    repository.list_prices([listed], JANUARY)
    node, start = history.node("n1"), FEBRUARY - DAY
    repository.observe(node.devices.values(), start, {})
    for number, name in enumerate(("vision", "other")):
        party = Party(f"run-{name}", name, "ann", name, "train")
        held = Hold(party, Member(), node.devices[f"gpu/{number}"], start, FEBRUARY + 2 * HOUR)
        repository.write({party.uid: [held]}, FEBRUARY + 2 * HOUR)
    return statement.make(repository, team, "2026-02", FEBRUARY + DAY)


def test_the_month_and_those_before_it_have_hours_and_cost(make: Make) -> None:
    made = _made(make)
    assert (made.total.device_hours, made.total.cost_micros) == (2.0, 7_200_000)
    months = {row.labels["month"]: (row.device_hours, row.cost_micros) for row in made.months}
    assert list(months) == ["2025-09", "2025-10", "2025-11", "2025-12", "2026-01", "2026-02"]
    assert (months["2026-01"], months["2026-02"]) == ((24.0, 86_400_000), (2.0, 7_200_000))
    assert [(day.day, day.device_hours) for day in made.days] == [("2026-02-01", 2.0)]


def test_every_table_adds_up_to_the_month_and_contains_no_other_user(make: Make) -> None:
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


def test_the_statement_of_all_teams_has_each_team_and_the_idle_hardware(make: Make) -> None:
    made = _made(make, team="")
    assert {row.labels["team"]: row.device_hours for row in made.tables["By team"]} == {
        "vision": 2.0, "other": 2.0,
    }  # fmt: skip
    assert made.wall is not None
    assert made.idle is not None
    assert made.wall.cost_micros == made.total.cost_micros + made.idle.cost_micros
    assert [day.device_hours for day in made.days] == [4.0]
    assert "All teams, 2026-02" in (page := statement.as_html(made))
    assert "not allocated" in page
    rows = list(csv.DictReader(io.StringIO(statement.as_csv(made))))
    costs = {row["table"]: float(row["cost"]) for row in rows}
    assert costs["all hardware"] == costs["total"] + costs["not allocated"]


def test_the_picture_has_a_bar_for_each_day_a_legend_units_and_all_days_of_the_month(
    make: Make,
) -> None:
    page = statement.as_html(_made(make))
    assert re.findall(r'class="key s\d"></i>([^<]+)', page) == ["device hours", "EUR"]
    assert re.findall(r"<title>([^<]+)</title></rect>", page) == ["1: 2 device hours", "1: 7.2 EUR"]
    plots = re.findall(r"<svg.*?</svg>", page)
    assert len(plots) == 2
    for plot, unit in zip(plots, ("hours", "EUR"), strict=True):
        texts = re.findall(r"<text[^>]*>([^<]+)", plot)
        assert texts[0] == unit
        days = [text for text in texts[1:] if text.isdecimal()]
        assert days[-28:] == [str(day) for day in range(1, 29)]
        assert "day of February 2026, UTC" in texts
