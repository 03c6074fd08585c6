"""The fleet over time: allocated, used, idle, lent and requested devices by model and by team.
Allocated and idle amounts come from intervals; the rest are averages of samples."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from windlass.kinds.values import times
from windlass.ledger.accounting import rollups
from windlass.ledger.db import samples
from windlass.ledger.db.repository import PRUNED, LedgerRepository
from windlass.ledger.model import CPU, DAY, MACHINE, WHOLE, device_name
from windlass.ledger.pricing import money

MOST_POINTS = 400
STEPS = (60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)


class Team(msgspec.Struct, rename="camel", omit_defaults=True):
    """The amounts of a team. An absent amount was not sampled or not measured."""

    held: float
    used: float | None = None
    borrowed: float | None = None
    lent: float | None = None
    waiting: float | None = None


class Point(msgspec.Struct, rename="camel", omit_defaults=True):
    """One span of one device model. Amounts are devices (of `cpu`: cores), on average. An absent
    amount was not sampled or not measured."""

    at: str
    device: str
    """`gpu/a100`; `gpu` for requests and lending without a model; `machine`; `cpu`."""
    present: float
    held: float
    idle: float
    """Not allocated."""
    teams: dict[str, Team]
    used: float | None = None
    """Active, of those that are measured."""
    measured: float | None = None
    """Devices whose activity was measured."""
    borrowed: float | None = None
    """Allocated above guarantees."""
    lent: float | None = None
    """Guaranteed, and used by other queues."""
    waiting: float | None = None
    """Requested by runs that wait."""
    cost_micros: int = 0
    idle_micros: int = 0


class Sample(msgspec.Struct, rename="camel"):
    """Usage, lending and demand of a queue and its descendants, on average."""

    at: str
    queue: str
    resource: str
    used: float
    borrowed: float
    lent: float
    waiting: float


class Series(msgspec.Struct, rename="camel"):
    since: str
    until: str
    step_seconds: int
    currency: str
    points: list[Point]
    queues: list[Sample]


def series(repository: LedgerRepository, start: int, end: int, now: int, step: int = 0) -> Series:
    """Spans of `step` seconds; 0 chooses a resolution. Averages cover the time in which the fleet
    existed: not days before it."""
    start = _since_there_is_one(repository, start, end)
    step = step or next((s for s in STEPS if (end - start) / s <= 60), STEPS[-1])
    step = max(step, -(-(end - start) // MOST_POINTS))
    step = _multiple(step, samples.finest(start, now))
    with repository.reading() as connection:
        start, end = rollups.covered(connection, start, end)
    if start < (repository.get_mark(PRUNED) or 0):
        step = _multiple(step, DAY)  # only sums of whole days are left of that time
    with repository.reading() as connection:
        seen = samples.read(connection, start // step * step, end, step)
    points: list[Point] = []
    for first in range(start // step * step if start < end else end, end, step):
        since, until = max(start, first), min(end, first + step)
        account = rollups.between(repository, since, until)
        points += _points(account, seen, first, (since, until - since))
    return Series(
        since=_time(start),
        until=_time(end),
        step_seconds=step,
        currency=repository.prices().currency,
        points=points,
        queues=[
            Sample(_time(max(start, at)), name, resource, **amounts)
            for at, cells in sorted(seen.queues.items())
            for (name, resource), amounts in sorted(cells.items())
        ],
    )


def _since_there_is_one(repository: LedgerRepository, start: int, end: int) -> int:
    if repository.get_mark(PRUNED):
        return start  # the first intervals are pruned
    with repository.reading() as connection:
        began = rollups.began(connection)
    return start if began is None else min(max(start, began), end)


def _points(
    account: rollups.Account, seen: samples.Averages, stretch: int, when: tuple[int, int]
) -> list[Point]:
    """One span; `when`: its start and its length in seconds."""
    found = _counted(account, *when)
    for (team, device), amounts in seen.fleet.get(stretch, {}).items():
        point = found.setdefault(device, _empty(when[0], device))
        sampled: Point | Team = point.teams.setdefault(team, Team(0.0)) if team else point
        sampled.borrowed, sampled.lent, sampled.waiting = (
            amounts["borrowed"], amounts["lent"], amounts["waiting"]
        )  # fmt: skip
        sampled.used = amounts["used"] if amounts["measured"] else None
        if isinstance(sampled, Point):
            sampled.measured = amounts["measured"]
            if device == CPU:  # the ledger counts machines; samples have their cores
                sampled.present = amounts["present"]
                sampled.idle = max(0.0, round(sampled.present - sampled.held, 3))
    if stretch in seen.fleet:
        _nothing(found)
    return [found[name] for name in sorted(found)]


def _nothing(found: Mapping[str, Point]) -> None:
    """Sets zero for parties without a sample in a time that was sampled."""
    for point in found.values():
        listed: list[Point | Team] = [point, *point.teams.values()]
        for sampled in listed:
            sampled.borrowed = sampled.borrowed or 0.0
            sampled.lent = sampled.lent or 0.0
            sampled.waiting = sampled.waiting or 0.0


def _counted(account: rollups.Account, at: int, seconds: int) -> dict[str, Point]:
    """Exact amounts from the intervals."""
    found: dict[str, Point] = {}
    costs: dict[str, int] = {}
    held: dict[tuple[str, str], int] = {}
    for (party, kind, model, _), total in account.sums.items():
        device = device_name(kind, model)
        costs[device] = costs.get(device, 0) + total.cost
        held[device, party.team] = held.get((device, party.team), 0) + total.held
        if kind == MACHINE:
            cores = CPU, party.team
            held[cores] = held.get(cores, 0) + total.cpu * (WHOLE // 1000)
    for (kind, model), there in account.hardware.items():
        device = device_name(kind, model)
        paid, idle = money.micros([costs.get(device, 0), there.idle])
        found[device] = Point(
            at=_time(at),
            device=device,
            present=round(there.present / seconds, 3),
            held=round((there.present * WHOLE - there.free) / WHOLE / seconds, 3),
            idle=round(there.free / WHOLE / seconds, 3),
            teams={},
            cost_micros=paid,
            idle_micros=idle,
        )
    for (device, team), amount in held.items():
        point = found.setdefault(device, _empty(at, device))
        part = round(amount / WHOLE / seconds, 3)
        point.teams[team] = Team(held=part)
        point.held = round(point.held + part, 3) if device == CPU else point.held
    return found


def _empty(at: int, device: str) -> Point:
    return Point(_time(at), device, 0.0, 0.0, 0.0, {})


def _multiple(step: int, of: int) -> int:
    return -(-step // of) * of


def _time(moment: int) -> str:
    return times.seconds(times.from_unix(moment))
