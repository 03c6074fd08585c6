"""Tables of schedules against instants; all instants are written in UTC."""

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.control.cron import schedule
from windlass.kinds.types import cronrun, run

UTC = datetime.UTC


def at(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=UTC)


def spec(cron: str, zone: str = "UTC", deadline: str | None = None) -> cronrun.CronRunSpec:
    template = cronrun.RunTemplate(spec=run.RunSpec(roles=[run.Role(command=["true"])]))
    return cronrun.CronRunSpec(
        schedule=cron, time_zone=zone, starting_deadline=deadline, template=template
    )


def starts(cron: str, zone: str, after: str, count: int) -> list[str]:
    found = schedule.Starts(cron, zone).after(at(after))
    return [f"{next(found):%Y-%m-%dT%H:%M}" for _ in range(count)]


CASES = {
    "every day in UTC": (
        "30 2 * * *",
        "UTC",
        "2026-01-01T00:00",
        ["2026-01-01T02:30", "2026-01-02T02:30"],
    ),
    "exactly at a start the next one follows": (
        "30 2 * * *",
        "UTC",
        "2026-01-01T02:30",
        ["2026-01-02T02:30"],
    ),
    "a zone ahead of UTC": (
        "0 9 * * *",
        "Asia/Tokyo",
        "2026-01-01T00:00",
        ["2026-01-02T00:00", "2026-01-03T00:00"],
    ),
    "a zone with a half hour": (
        "0 9 * * *",
        "Asia/Kolkata",
        "2026-01-01T00:00",
        ["2026-01-01T03:30"],
    ),
    "leap day only": (
        "0 0 29 2 *",
        "UTC",
        "2026-01-01T00:00",
        ["2028-02-29T00:00", "2032-02-29T00:00"],
    ),
    "31st skips short months": (
        "0 0 31 * *",
        "UTC",
        "2026-01-31T12:00",
        ["2026-03-31T00:00", "2026-05-31T00:00"],
    ),
    "year change in local time": (
        "0 0 1 1 *",
        "America/New_York",
        "2026-12-31T12:00",
        ["2027-01-01T05:00"],
    ),
    "year change by name": (
        "@yearly",
        "Pacific/Auckland",
        "2026-06-01T00:00",
        ["2026-12-31T11:00"],
    ),
    "week days": (
        "0 8 * * 1-5",
        "UTC",
        "2026-01-02T09:00",
        ["2026-01-05T08:00", "2026-01-06T08:00"],
    ),
    # Spring: Berlin jumps from 02:00 to 03:00 on 2026-03-29 (01:00 UTC).
    "gap: a time that does not exist starts right after it": (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T00:00",
        ["2026-03-28T01:30", "2026-03-29T01:00", "2026-03-30T00:30"],
    ),
    "gap: several times inside start once": (
        "0,15,30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00",
        ["2026-03-29T01:00", "2026-03-30T00:00", "2026-03-30T00:15"],
    ),
    "gap: steps of minutes in a named hour start once": (
        "*/15 2 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00",
        ["2026-03-29T01:00", "2026-03-30T00:00"],
    ),
    "gap: the time after it is not doubled": (
        "0 2,3 * * *",
        "Europe/Berlin",
        "2026-03-28T12:00",
        ["2026-03-29T01:00", "2026-03-30T00:00"],
    ),
    "gap: steps of hours keep their place": (
        "0 */2 * * *",
        "Europe/Berlin",
        "2026-03-28T23:30",
        ["2026-03-29T01:00", "2026-03-29T02:00", "2026-03-29T04:00"],
    ),
    "gap: every hour is every hour that passes": (
        "30 * * * *",
        "Europe/Berlin",
        "2026-03-29T00:00",
        ["2026-03-29T00:30", "2026-03-29T01:30"],
    ),
    "gap: at midnight": (  # Beirut jumps from 00:00 to 01:00 on 2026-03-29
        "0 0 * * *",
        "Asia/Beirut",
        "2026-03-28T12:00",
        ["2026-03-28T22:00", "2026-03-29T21:00"],
    ),
    "gap: half an hour": (  # Lord Howe jumps from 02:00 to 02:30 on 2026-10-04
        "15 2 * * *",
        "Australia/Lord_Howe",
        "2026-10-03T00:00",
        ["2026-10-03T15:30", "2026-10-04T15:15"],
    ),
    "gap: a whole day": (  # Samoa had no 2011-12-30
        "0 12 * * *",
        "Pacific/Apia",
        "2011-12-29T00:00",
        ["2011-12-29T22:00", "2011-12-30T10:00", "2011-12-30T22:00"],
    ),
    # Autumn: Berlin goes back from 03:00 to 02:00 on 2026-10-25 (01:00 UTC).
    "overlap: a time that comes twice starts once, the first time": (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00",
        ["2026-10-25T00:30", "2026-10-26T01:30"],
    ),
    "overlap: created between the two, waits for the next day": (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-10-25T01:10",
        ["2026-10-26T01:30"],
    ),
    "overlap: a time after it": (
        "30 3 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00",
        ["2026-10-25T02:30", "2026-10-26T02:30"],
    ),
    "overlap: seen from inside it, a later time is not lost": (
        "0 3 * * *",
        "Europe/Berlin",
        "2026-10-25T00:30",
        ["2026-10-25T02:00"],
    ),
    "overlap: steps in a named hour start once each": (
        "*/30 2 * * *",
        "Europe/Berlin",
        "2026-10-24T12:00",
        ["2026-10-25T00:00", "2026-10-25T00:30", "2026-10-26T01:00"],
    ),
    "overlap: every hour is every hour that passes": (
        "0 * * * *",
        "America/New_York",
        "2026-11-01T04:30",
        ["2026-11-01T05:00", "2026-11-01T06:00", "2026-11-01T07:00"],
    ),
    "overlap: New York once": (
        "30 1 * * *",
        "America/New_York",
        "2026-10-31T12:00",
        ["2026-11-01T05:30", "2026-11-02T06:30"],
    ),
}


@pytest.mark.parametrize(("cron", "zone", "after", "expected"), CASES.values(), ids=CASES)
def test_starts(cron, zone, after, expected):
    assert starts(cron, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "zone", "message"),
    [
        ("61 * * * *", "UTC", "spec.schedule '61"),
        ("* * * *", "UTC", "spec.schedule"),
        ("* * * * * *", "UTC", "has 6 fields"),
        ("@sometimes", "UTC", "spec.schedule '@sometimes'"),
        ("0 0 31 2 *", "UTC", "spec.schedule"),
        ("0 0 * * *", "Mars/Base", "spec.timeZone 'Mars/Base'"),
        ("0 0 * * *", "../etc/passwd", "spec.timeZone"),
    ],
)
def test_what_cannot_be_read_says_which_field(cron, zone, message):
    with pytest.raises(schedule.ScheduleError, match=message):
        schedule.due(spec(cron, zone), at("2026-01-01T00:00"), at("2026-01-02T00:00"))


def test_nothing_is_due_before_the_first_start():
    plan = schedule.due(spec("0 3 * * *"), at("2026-01-01T04:00"), at("2026-01-02T02:59"))
    assert plan == schedule.Due(None, 0, None, at("2026-01-02T03:00"))


def test_due_in_the_very_second():
    plan = schedule.due(spec("0 3 * * *"), at("2026-01-01T04:00"), at("2026-01-02T03:00"))
    assert plan == schedule.Due(at("2026-01-02T03:00"), 0, None, at("2026-01-03T03:00"))


def test_only_the_latest_of_the_missed_starts_is_made():
    plan = schedule.due(spec("0 * * * *"), at("2026-01-01T00:00"), at("2026-01-01T05:30"))
    assert plan == schedule.Due(at("2026-01-01T05:00"), 4, None, at("2026-01-01T06:00"))


def test_a_start_missed_by_more_than_the_deadline_is_skipped():
    late = spec("0 * * * *", deadline="10m")
    plan = schedule.due(late, at("2026-01-01T00:00"), at("2026-01-01T05:10:01"))
    assert plan == schedule.Due(None, 5, at("2026-01-01T05:00"), at("2026-01-01T06:00"))
    plan = schedule.due(late, at("2026-01-01T00:00"), at("2026-01-01T05:10:00"))
    assert plan.start == at("2026-01-01T05:00")


def test_a_year_away_is_counted_only_up_to_the_limit():
    plan = schedule.due(spec("* * * * *"), at("2025-01-01T00:00"), at("2026-01-01T00:00:30"))
    assert plan.start == at("2026-01-01T00:00")
    assert plan.missed == schedule.COUNT_LIMIT - 1


def test_a_last_start_in_the_future_waits_for_the_one_after_it():
    plan = schedule.due(spec("0 3 * * *"), at("2026-01-05T03:00"), at("2026-01-02T00:00"))
    assert plan == schedule.Due(None, 0, None, at("2026-01-06T03:00"))


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
SCHEDULES = ["*/17 * * * *", "30 2 * * *", "0 */3 * * *", "5,35 1-3 * * *", "0 0 29 2 *", "@weekly"]
moments = st.integers(1_577_836_800, 1_893_456_000).map(
    lambda second: datetime.datetime.fromtimestamp(second, UTC)
)


@given(st.sampled_from(SCHEDULES), st.sampled_from(ZONES), moments, st.integers(0, 40 * 86400))
def test_the_next_start_becomes_the_one_that_is_due(cron, zone, moment, seconds):
    when = spec(cron, zone)
    first = schedule.due(when, moment, moment).next
    assert first is not None
    assert first > moment
    plan = schedule.due(when, moment, moment + datetime.timedelta(seconds=seconds))
    if plan.start is None:
        assert moment + datetime.timedelta(seconds=seconds) < first
    else:
        assert plan.start >= first
        assert plan.next is not None
        assert plan.next > plan.start


@given(st.sampled_from(SCHEDULES[:4]), st.sampled_from(ZONES), moments)
def test_the_latest_is_the_last_of_all(cron, zone, moment):
    found = schedule.Starts(cron, zone)
    until = moment + datetime.timedelta(days=3)
    everything = list(found.between(moment, until))
    assert everything == sorted(set(everything))
    assert found.latest(moment, until) == (everything[-1] if everything else None)
