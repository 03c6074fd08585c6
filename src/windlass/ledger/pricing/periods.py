"""Periods by the calendar: days, weeks, months, quarters, years, in a time zone. Pure."""

from __future__ import annotations

import datetime
import re
import zoneinfo

PERIODS = ("day", "week", "month", "quarter", "year", "total")
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])\Z")


class PeriodError(ValueError):
    """The text names no period; the message lists the valid forms."""


def period(at: int, per: str, zone: str = "UTC") -> tuple[int, int | None]:
    """The first second of the period with this moment, and that of the next one; a day has 23 or 25
    hours when clocks change. `total` has no beginning and no end."""
    if per == "total":
        return 0, None
    place = zoneinfo.ZoneInfo(zone)
    day = datetime.datetime.fromtimestamp(at, place).date()
    first = _first(day, per)
    return _midnight(first, place), _midnight(_following(first, per), place)


def month(text: str, zone: str = "UTC") -> tuple[int, int]:
    """`2026-11`: its start and end."""
    found = _MONTH.match(text)
    if found is None or int(found[1]) < 1970:
        raise PeriodError(f"{text!r} is no month; write it as 2026-11")
    place = zoneinfo.ZoneInfo(zone)
    first = datetime.date(int(found[1]), int(found[2]), 1)
    return _midnight(first, place), _midnight(_following(first, "month"), place)


def month_of(at: int, zone: str = "UTC") -> str:
    return datetime.datetime.fromtimestamp(at, zoneinfo.ZoneInfo(zone)).strftime("%Y-%m")


def months_before(text: str, count: int) -> list[str]:
    """This many months up to and including this one, oldest first."""
    start, _ = month(text)
    day = datetime.datetime.fromtimestamp(start, datetime.UTC).date()
    found = []
    for _ in range(count):
        found.append(day.strftime("%Y-%m"))
        day = (day - datetime.timedelta(days=1)).replace(day=1)
    return found[::-1]


def _first(day: datetime.date, per: str) -> datetime.date:
    if per == "week":
        return day - datetime.timedelta(days=day.weekday())
    if per == "month":
        return day.replace(day=1)
    if per == "quarter":
        return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
    return day.replace(month=1, day=1) if per == "year" else day


def _following(first: datetime.date, per: str) -> datetime.date:
    if per in ("day", "week"):
        return first + datetime.timedelta(days=1 if per == "day" else 7)
    months = first.year * 12 + first.month - 1 + {"month": 1, "quarter": 3, "year": 12}[per]
    return datetime.date(months // 12, months % 12 + 1, 1)


def _midnight(day: datetime.date, place: zoneinfo.ZoneInfo) -> int:
    """The day's first second: where clocks are put forward at midnight, that is one o'clock."""
    return int(datetime.datetime.combine(day, datetime.time(), place).timestamp())
