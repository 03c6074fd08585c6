"""The start times of a CronRun: a pure function of its spec, its last start and now.

Times are in the time zone of the CronRun. Named hours (`30 2 * * *`) mean the wall clock: a local
time that does not exist (spring) starts once, right after the gap; one that occurs twice (autumn)
starts once, the first time. `*` for the hour means every elapsed hour.

`control.cron.controller` calls it. It reads no clock and writes nothing.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import itertools
import zoneinfo
from collections.abc import Iterator

import cronsim

from windlass.kinds.schema import cel_rules
from windlass.kinds.types import cronrun
from windlass.kinds.values import duration

UTC = datetime.UTC
COUNT_LIMIT = 100
"""Missed starts are counted up to this number: a year of minutes would be half a million."""


class ScheduleError(ValueError):
    """The schedule or the time zone is invalid; the message has the field and the allowed
    values."""


@dataclasses.dataclass(frozen=True, slots=True)
class Due:
    """The result at `now`."""

    start: datetime.datetime | None
    """The start to create now: the latest that is due and within the deadline."""
    missed: int
    """Starts that are skipped; at most `COUNT_LIMIT`."""
    too_late: datetime.datetime | None
    """The latest start, if even that is beyond the deadline."""
    next: datetime.datetime | None
    """The first start after now; None if the schedule has no more."""


def due(spec: cronrun.CronRunSpec, last: datetime.datetime, now: datetime.datetime) -> Due:
    """The result after `last` (the last start, or the creation of the CronRun) up to `now`."""
    starts = Starts(spec.schedule, spec.time_zone)
    count = sum(1 for _ in itertools.islice(starts.between(last, now), COUNT_LIMIT))
    following = next(starts.after(max(now, last)), None)
    if count == 0:
        return Due(None, 0, None, following)
    latest = starts.latest(last, now)
    if latest is not None and spec.starting_deadline:
        allowed = datetime.timedelta(milliseconds=duration.milliseconds(spec.starting_deadline))
        if now - latest > allowed:
            return Due(None, count, latest, following)
    return Due(latest, count - 1, None, following)


class Starts:
    """The instants (UTC) of a schedule in a time zone."""

    def __init__(self, schedule: str, time_zone: str) -> None:
        self._expression = cel_rules.NAMED_SCHEDULES.get(schedule, schedule)
        try:
            self._zone = zoneinfo.ZoneInfo(time_zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleError(
                f"spec.timeZone {time_zone!r} is not a time zone; write it like Europe/Berlin"
            ) from error
        fields = self._expression.split()
        try:
            sim = cronsim.CronSim(self._expression, datetime.datetime(2000, 1, 1))  # noqa: DTZ001
        except (cronsim.CronSimError, AssertionError) as error:
            raise ScheduleError(
                f"spec.schedule {schedule!r} cannot be read ({error}); "
                "write minute hour day month weekday, like 30 2 * * 1-5"
            ) from error
        if len(fields) != 5:
            raise ScheduleError(f"spec.schedule {schedule!r} has {len(fields)} fields; write 5")
        self._every_hour = len(sim.hours) == 24

    def after(self, moment: datetime.datetime) -> Iterator[datetime.datetime]:
        """All instants later than `moment`, in order, each once."""
        previous = moment
        for instant in self._by_hours(moment) if self._every_hour else self._by_wall(moment):
            if instant > previous:
                yield instant
                previous = instant

    def between(
        self, after: datetime.datetime, until: datetime.datetime
    ) -> Iterator[datetime.datetime]:
        return itertools.takewhile(lambda instant: instant <= until, self.after(after))

    def latest(
        self, after: datetime.datetime, until: datetime.datetime
    ) -> datetime.datetime | None:
        """The last instant in (after, until], found without iterating over all of them."""
        window = datetime.timedelta(hours=1)
        while True:
            begin = max(after, until - window)
            found = collections.deque(self.between(begin, until), maxlen=1)
            if found or begin == after:
                return found.pop() if found else None
            window *= 8

    def _by_hours(self, moment: datetime.datetime) -> Iterator[datetime.datetime]:
        for local in cronsim.CronSim(self._expression, moment.astimezone(self._zone)):
            yield local.astimezone(UTC)

    def _by_wall(self, moment: datetime.datetime) -> Iterator[datetime.datetime]:
        # One day back: the wall clock may have been set back before a local time that is still
        # ahead.
        wall = moment.astimezone(self._zone).replace(tzinfo=None) - datetime.timedelta(days=1)
        for local in cronsim.CronSim(self._expression, wall):
            yield self._instant(local)

    def _instant(self, wall: datetime.datetime) -> datetime.datetime:
        instant = wall.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        if instant.astimezone(self._zone).replace(tzinfo=None) == wall:
            return instant
        return self._end_of_gap(instant)

    def _end_of_gap(self, inside: datetime.datetime) -> datetime.datetime:
        """The instant at which the clock jumped; `inside` is an instant that a wall time in the gap
        maps to with the offset from before the jump, so it lies at or after the jump."""
        offset = inside.astimezone(self._zone).utcoffset()
        low, high = inside - datetime.timedelta(days=2), inside
        while high - low > datetime.timedelta(seconds=1):
            middle = low + (high - low) / 2
            if middle.astimezone(self._zone).utcoffset() == offset:
                high = middle
            else:
                low = middle
        return high.replace(microsecond=0)
