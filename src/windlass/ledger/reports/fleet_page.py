"""The time series of the fleet as a page with plots, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from html import escape

from windlass.kinds.values import times
from windlass.ledger.reports.fleet import Point, Series
from windlass.reporting import html, svg

AMOUNTS = ("present", "held", "used", "idle", "borrowed", "lent", "waiting")
_TEAMS = ("held", "used", "borrowed", "lent", "waiting")
_DRAWN = ("present", "held", "used", "lent", "waiting")
_MOST_TEAMS = svg.COLOURS


def as_csv(series: Series) -> str:
    """A line for each span, device and team; the team of a device's own line is empty. What was not
    measured is empty, too."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["from", "device", "team", *AMOUNTS])
    for point in series.points:
        writer.writerow([point.at, html.cell(point.device), "", *_cells(point, AMOUNTS)])
        for name, team in sorted(point.teams.items()):
            cells = dict(zip(_TEAMS, _cells(team, _TEAMS), strict=True))
            line = [cells.get(each, "") for each in AMOUNTS]
            writer.writerow([point.at, html.cell(point.device), html.cell(name), *line])
    return out.getvalue()


def as_html(series: Series) -> str:
    devices: dict[str, list[Point]] = {}
    for point in series.points:
        devices.setdefault(point.device, []).append(point)
    summary = (
        f"From {series.since} to {series.until}, "
        f"averages of {svg.duration_text(series.step_seconds)}. "
        "What was not measured is not drawn."
    )
    parts = [part for name, points in devices.items() for part in _device(name, points)]
    return html.make("The fleet", summary, parts)


def _device(name: str, points: list[Point]) -> Iterator[str]:
    measure = "cores" if name == "cpu" else "devices"
    yield from _plot(f"{name}: {measure}", points, {each: _line(points, each) for each in _DRAWN})
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
    yield html.table(f"{name}: averages", ["team", *_TEAMS], [*rows, ["(all)", *whole]])


def _line(points: list[Point], field: str) -> list[tuple[Point, float]]:
    return [(each, getattr(each, field)) for each in points if getattr(each, field) is not None]


def _plot(
    title: str, points: list[Point], lines: dict[str, list[tuple[Point, float]]]
) -> Iterator[str]:
    begin = times.parse(points[0].at).timestamp()
    drawn = [
        svg.Line(
            name, [times.parse(point.at).timestamp() - begin for point, _ in line],
            [value for _, value in line],
        )
        for name, line in lines.items() if line
    ]  # fmt: skip
    seconds = times.parse(points[-1].at).timestamp() - begin
    most = max((value for line in drawn for value in line.y), default=0.0)
    across = svg.date_axis(begin, max(seconds, 1.0))
    yield f"<h2>{escape(title)}</h2>"
    yield html.legend([line.name for line in drawn])
    yield html.wide(svg.lines(drawn, across, svg.plain_axis(most or 1.0, ""), title))


def _mean(values: list[float | None], of: int) -> str:
    known = [each for each in values if each is not None]
    return f"{sum(known) / of:.3f}" if known else "not measured"


def _cells(row: object, names: tuple[str, ...]) -> list[str]:
    values = [getattr(row, name) for name in names]
    return ["" if each is None else f"{each:g}" for each in values]
