"""Builds Reservation objects from dates, durations and names."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.kinds import codec, validate
from windlass.kinds.types.reservation import Reservation
from windlass.kinds.values import duration, times
from windlass.store import errors

Moment = str | datetime.datetime


def build(
    name: str,
    *,
    start: Moment | None = None,
    end: Moment | None = None,
    lasts: str | None = None,
    schedule: str | None = None,
    time_zone: str | None = None,
    nodes: Sequence[str] = (),
    selector: Mapping[str, str] | None = None,
    amounts: Mapping[str, Any] | None = None,
    queues: Sequence[str] = (),
    namespaces: Sequence[str] = (),
    users: Sequence[str] = (),
    reason: str | None = None,
) -> Reservation:
    """A Reservation; without queues, namespaces and users a maintenance window. `start` is a time,
    `now`, or a duration from now (`+2h`). Raises Invalid with a sentence for each wrong field."""
    chosen: dict[str, Any] = {
        "names": list(nodes) or None,
        "selector": dict(selector or {}) or None,
    }
    beneficiaries = {"queues": list(queues), "namespaces": list(namespaces), "users": list(users)}
    spec = {
        "from": None if start is None else moment(start),
        "to": None if end is None else moment(end),
        "duration": lasts,
        "schedule": schedule,
        "timeZone": time_zone,
        "nodes": {key: value for key, value in chosen.items() if value} or None,
        "amounts": dict(amounts or {}) or None,
        "for": {key: value for key, value in beneficiaries.items() if value} or None,
        "reason": reason,
    }
    value = {
        "apiVersion": Reservation.resource.api_version,
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {key: each for key, each in spec.items() if each is not None},
    }
    faults = validate.validate(Reservation, validate.defaulted(Reservation, value))
    if faults:
        causes = tuple(errors.Cause(fault.path, fault.message) for fault in faults)
        raise errors.Invalid(f"reservation {name} is not valid", causes=causes)
    return codec.from_dict(Reservation, value)


def moment(given: Moment, now: datetime.datetime | None = None) -> str:
    """`now`, `+2h` and dates in the API's time format; other strings unchanged."""
    if isinstance(given, datetime.datetime):
        if given.tzinfo is None:
            raise ValueError("the time has no time zone; set one, for example datetime.UTC")
        return times.seconds(given)
    since = now or times.now()
    if given == "now":
        return times.seconds(since)
    if given.startswith("+"):
        ahead = datetime.timedelta(milliseconds=duration.milliseconds(given[1:]))
        return times.seconds(since + ahead)
    return given
