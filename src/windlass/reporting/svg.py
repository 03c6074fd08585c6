"""Small plots as SVG text: lines, stacked areas and bars with axes, for the reports.

Colours are classes (`s0`, `s1`, ...) that the page's style fills in, so that light and dark both
work. Numbers are rounded, so that the same data gives the same bytes.
"""

from __future__ import annotations

import dataclasses
import datetime
import html
import math
from collections.abc import Sequence

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 10, 34
COLOURS = 8
_BAR_PART = 0.8
"""Of the width of a place, what its bars take."""
_UNIT = 14
"""Height of the line above a plot that names the unit."""
_DESCENT = 3
"""Height of letters below the last line of text."""
_STEPS = (1, 2, 2.5, 5, 10)
_TIMES = (
    1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400,
    7 * 86400, 14 * 86400, 28 * 86400, 91 * 86400, 182 * 86400, 364 * 86400,
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclasses.dataclass(frozen=True, slots=True)
class Axis:
    """A range, where its marks are, and what they say."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    title: str

    def place(self, value: float, begin: float, end: float) -> float:
        width = self.high - self.low
        part = (value - self.low) / width if width else 0.0
        return begin + part * (end - begin)


def lines(series: Sequence[Line], x: Axis, y: Axis, label: str, classes: Sequence[str] = ()) -> str:
    """One path for each series; its name shows when the pointer rests on it. Without `classes` of
    their own, series differ by colour and dashes."""
    drawn = [
        f'<path class="line {classes[number] if classes else f"s{number % COLOURS}"}" '
        f'd="{_path(line.x, line.y, x, y)}">'
        f"<title>{html.escape(line.name)}</title></path>"
        for number, line in enumerate(series)
    ]
    return _svg([*_frame(x, y), *drawn], label)


def stacked(series: Sequence[Line], x: Axis, y: Axis, label: str) -> str:
    """Series on top of each other; all have the same x."""
    drawn = []
    below = [0.0] * len(series[0].x) if series else []
    for number, line in enumerate(series):
        above = [low + value for low, value in zip(below, line.y, strict=True)]
        there = _path(line.x, above, x, y)
        back = _path(list(reversed(line.x)), list(reversed(below)), x, y).replace("M", "L", 1)
        drawn.append(
            f'<path class="area s{number % COLOURS}" d="{there}{back}Z">'
            f"<title>{html.escape(line.name)}</title></path>"
        )
        below = above
    return _svg([*_frame(x, y), *drawn], label)


@dataclasses.dataclass(frozen=True, slots=True)
class Bars:
    """One series of bars: a value for each place of the axis, from the first on."""

    name: str
    values: Sequence[float]


def bars(series: Sequence[Bars], places: Sequence[str], y: Axis, label: str, title: str) -> str:
    """Bars side by side at each of the named places of the x axis. `y.title` is the unit: it stands
    above the axis. `title` says what the places are."""
    width = (WIDTH - RIGHT - LEFT) / max(1, len(places))
    each = width * _BAR_PART / max(1, len(series))
    marks = tuple((number + 0.5, name) for number, name in enumerate(places))
    x = Axis(0.0, float(max(1, len(places))), marks, title)
    floor, drawn = HEIGHT - BOTTOM, []
    for number, one in enumerate(series):
        for place, value in enumerate(one.values):
            if value <= 0:
                continue
            left = LEFT + width * (place + (1 - _BAR_PART) / 2) + each * number
            up = _up(value, y)
            drawn.append(
                f'<rect class="bar s{number % COLOURS}" x="{left:.1f}" y="{up:.1f}" '
                f'width="{each:.1f}" height="{floor - up:.1f}">'
                f"<title>{html.escape(f'{places[place]}: {value:g} {one.name}')}</title></rect>"
            )
    unit = _text(LEFT - 6, 12, "end", y.title)
    plot = f'<g transform="translate(0 {_UNIT})">{"".join([*_frame(x, y), *drawn])}</g>'
    return _svg([unit, plot], label, HEIGHT + _UNIT + _DESCENT)


def time_axis(seconds: float, title: str = "time since the first arrival") -> Axis:
    """From 0 to so many seconds, with marks at round times."""
    step = next((size for size in _TIMES if seconds / size <= 7), _TIMES[-1])
    count = int(seconds // step)
    marks = tuple((number * step, duration_text(number * step)) for number in range(count + 1))
    return Axis(0.0, max(seconds, 1.0), marks, title)


def date_axis(begin: float, seconds: float) -> Axis:
    """From a moment on, so many seconds, with marks at round times of UTC: dates, or times of the
    day."""
    step = next((size for size in _TIMES if seconds / size <= 7), _TIMES[-1])
    first = math.ceil(begin / step) * step
    count = int((begin + seconds - first) // step) + 1
    form = "%d %b" if step >= 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    marks = tuple(
        (at - begin, datetime.datetime.fromtimestamp(at, datetime.UTC).strftime(form))
        for at in (first + number * step for number in range(count))
    )
    start = datetime.datetime.fromtimestamp(begin, datetime.UTC)
    return Axis(0.0, max(seconds, 1.0), marks, start.strftime("UTC, from %Y-%m-%d %H:%M"))


def log_time_axis(seconds: float, title: str) -> Axis:
    """Logarithmic from one second up; values are logarithms to the base 10."""
    top = max(1.0, math.ceil(10 * math.log10(max(seconds, 10.0))) / 10)
    named = [1, 10, 60, 600, 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400]
    marks = [(math.log10(size), duration_text(size)) for size in named if math.log10(size) <= top]
    return Axis(0.0, top, tuple(marks), title)


def plain_axis(high: float, title: str, *, percent: bool = False) -> Axis:
    """From 0 to a round number."""
    step = _round_step(high / 4) if high > 0 else 1.0
    top = step * math.ceil(high / step - 1e-9) if high > 0 else 1.0
    count = round(top / step)
    marks = [(n * step, f"{100 * n * step:.0f}%" if percent else f"{n * step:g}")
             for n in range(count + 1)]  # fmt: skip
    return Axis(0.0, top, tuple(marks), title)


def duration_text(seconds: float) -> str:
    for name, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds / size:g}{name}"
    return f"{seconds:g}s"


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * step for step in _STEPS if rough <= size * step * (1 + 1e-9))


def _path(xs: Sequence[float], ys: Sequence[float], x: Axis, y: Axis) -> str:
    points = [
        f"{_across(value, x):.1f} {_up(height, y):.1f}"
        for value, height in zip(xs, ys, strict=True)
    ]
    return "M" + "L".join(points) if points else ""


def _across(value: float, axis: Axis) -> float:
    return axis.place(value, LEFT, WIDTH - RIGHT)


def _up(value: float, axis: Axis) -> float:
    return axis.place(value, HEIGHT - BOTTOM, TOP)


def _frame(x: Axis, y: Axis) -> list[str]:
    floor, end = HEIGHT - BOTTOM, WIDTH - RIGHT
    below = floor + (16 if x.title else 22)  # small plots have no title and larger letters
    parts = []
    for value, text in y.marks:
        up = _up(value, y)
        parts.append(f'<path class="grid" d="M{LEFT} {up:.1f}H{end}"/>')
        parts.append(_text(LEFT - 6, up + 4, "end", text))
    for value, text in x.marks:
        across = _across(value, x)
        parts.append(f'<path class="grid" d="M{across:.1f} {floor}v4"/>')
        parts.append(_text(across, below, "middle", text))
    if x.title:
        parts.append(_text(end, HEIGHT - 2, "end", x.title))
    parts.append(f'<path class="axis" d="M{LEFT} {floor}H{end}"/>')
    return parts


def _text(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="mark" {place}>{html.escape(text)}</text>'


def _svg(parts: Sequence[str], label: str, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(label)}">'
        + "".join(parts)
        + "</svg>"
    )
