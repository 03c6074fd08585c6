"""Times in objects: RFC 3339 in UTC, whole seconds, or microseconds in Leases."""

from __future__ import annotations

import datetime


def parse(text: str) -> datetime.datetime:
    """The time in UTC; ValueError if the text is not a time."""
    moment = datetime.datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write it as 2026-01-01T10:20:00Z")
    return moment.astimezone(datetime.UTC)


def seconds(moment: datetime.datetime) -> str:
    """`2026-01-01T10:20:00Z`; parts of a second are dropped."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micros(moment: datetime.datetime) -> str:
    """`2026-01-01T10:20:00.000000Z`, as Leases and event times are written."""
    return moment.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def from_unix(moment: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC)
