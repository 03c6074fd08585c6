"""The fleet's series for people and spreadsheets: a page with plots, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from windlass.kinds import times
from windlass.ledger import page
from windlass.ledger.fleet import Point, Series
from windlass.sim import charts

AMOUNTS = ("present", "held", "used", "idle", "borrowed", "lent", "waiting")
_TEAMS = ("held", "used", "borrowed", "lent", "waiting")
_DRAWN = ("present", "held", "used", "lent", "waiting")
_MOST_TEAMS = charts.COLOURS


def as_csv(series: Series) -> str:
    """A line for each stretch, device and team; the team of a device's own line is empty. What
    nobody measured is empty, too."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "device", "team", *AMOUNTS])
    for point in series.points:
        writer.writerow([point.at, page.cell(point.device), "", *_cells(point, AMOUNTS)])
        for name, team in sorted(point.teams.items()):
            cells = dict(zip(_TEAMS, _cells(team, _TEAMS), strict=True))
            line = [cells.get(each, "") for each in AMOUNTS]
            writer.writerow([point.at, page.cell(point.device), page.cell(name), *line])
    return out.getvalue()


def as_html(series: Series) -> str:
    devices: dict[str, list[Point]] = {}
    for point in series.points:
        devices.setdefault(point.device, []).append(point)
    words = (
        f"From {series.since} to {series.until}, averages of {charts.told(series.step_seconds)}. "
        "What nobody measured is not drawn."
    )
    parts = [part for name, points in devices.items() for part in _device(name, points)]
    return page.make("The fleet", words, parts)


def _device(name: str, points: list[Point]) -> Iterator[str]:
    unit = "cores" if name == "cpu" else "devices"
    yield from _plot(f"{name}: {unit}", points, {each: _line(points, each) for each in _DRAWN})
    teams = {team for point in points for team in point.teams}
    held = {
        team: [(p, p.teams[team].held if team in p.teams else 0.0) for p in points]
        for team in teams
    }
    largest = sorted(held, key=lambda team: (-sum(v for _, v in held[team]), team))[:_MOST_TEAMS]
    if largest:
        yield from _plot(f"{name}: held by team", points, {team: held[team] for team in largest})
    rows = [
        [team, *(_mean([getattr(p.teams[team], each) for p in points if team in p.teams],
                       len(points)) for each in _TEAMS)]
        for team in sorted(teams)
    ]  # fmt: skip
    whole = [_mean([getattr(p, each) for p in points], len(points)) for each in _TEAMS]
    yield page.table(f"{name}: averages", ["team", *_TEAMS], [*rows, ["(all)", *whole]])


def _line(points: list[Point], word: str) -> list[tuple[Point, float]]:
    return [(each, getattr(each, word)) for each in points if getattr(each, word) is not None]


def _plot(
    title: str, points: list[Point], lines: dict[str, list[tuple[Point, float]]]
) -> Iterator[str]:
    begin = times.parse(points[0].at).timestamp()
    drawn = [
        charts.Line(
            name, [times.parse(point.at).timestamp() - begin for point, _ in line],
            [value for _, value in line],
        )
        for name, line in lines.items() if line
    ]  # fmt: skip
    seconds = times.parse(points[-1].at).timestamp() - begin
    most = max((value for line in drawn for value in line.y), default=0.0)
    across = charts.time_axis(max(seconds, 1.0), f"since {points[0].at}")
    yield page.legend([line.name for line in drawn])
    yield charts.lines(drawn, across, charts.plain_axis(most or 1.0, ""), title)


def _mean(values: list[float | None], of: int) -> str:
    known = [each for each in values if each is not None]
    return f"{sum(known) / of:.3f}" if known else "not measured"


def _cells(told: object, names: tuple[str, ...]) -> list[str]:
    values = [getattr(told, name) for name in names]
    return ["" if each is None else f"{each:g}" for each in values]
