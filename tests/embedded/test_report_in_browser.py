"""The report of `windlass simulate` in a real browser: whole by itself, readable, wide and narrow,
in light and dark, and where nothing ever started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness import browser
from tests.unit.cli.invoking import invoke
from windlass.cli.lib import exit_codes
from windlass.ledger.reports import statement, usage

pytestmark = pytest.mark.skipif(
    browser.program() is None and os.environ.get("CI") != "true",
    reason="there is no browser; try: python -m tests.harness.browser",
)

TEAMS = """name: two <teams>
nodes: [{count: 4, gpus: 8}]
queues: [{name: red, guarantee: {gpu: 16}}, {name: blue}]
load: {jobs: 80, over: 12h, seed: 3, median: 1h}
"""
NOBODY = """name: too large
nodes: [{count: 1, gpus: 1}]
queues: [{name: red}]
jobs: [{name: big, at: 0s, duration: 1h, queue: red, gpus: 2}]
"""

MARKS = """[...document.querySelectorAll("svg")].map(svg =>
  [...svg.querySelectorAll("text")].map(text => {
    const box = text.getBoundingClientRect();
    return {text: text.textContent, left: box.left, right: box.right,
            top: box.top, bottom: box.bottom};
  }))"""
KEYS = """[...document.querySelectorAll("section")].map(section => ({
  named: [...section.querySelectorAll(".key span")].map(each => getComputedStyle(each).color),
  drawn: [...section.querySelectorAll("svg")].map(svg =>
    [...svg.querySelectorAll("path.line, path.area")].map(each => {
      const style = getComputedStyle(each);
      return each.classList.contains("line") ? style.stroke : style.fill;
    }))}))"""

BARS = """[...document.querySelectorAll("svg")].map(svg => {
  const bars = [...svg.querySelectorAll("rect.bar")];
  const keys = svg.parentElement.previousElementSibling.querySelectorAll(".key");
  const colours = (all, name) => [...new Set([...all].map(each => getComputedStyle(each)[name]))];
  return {heights: bars.map(each => each.getBoundingClientRect().height),
          bars: colours(bars, "fill"), legend: colours(keys, "backgroundColor")};
})"""


def report(tmp_path: Path, described: str, *arguments: str) -> Path:
    source, page = tmp_path / "cluster.yaml", tmp_path / "report.html"
    source.write_text(described)
    result = invoke("simulate", source, *arguments, "--html", page)
    assert result.code == exit_codes.OK, result.err
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420], ids=["wide", "narrow"])
@pytest.mark.parametrize("described", [TEAMS, NOBODY], ids=["teams", "nobody starts"])
async def test_a_report_is_readable_and_asks_for_nothing(
    tmp_path: Path, described: str, width: int, dark: bool
) -> None:
    path = report(tmp_path, described, "--order", "fifo,lifo", "--backfill", "none,reserving")
    async with browser.opened(path.as_uri(), width=width, dark=dark) as page:
        assert page.fetched == [path.as_uri()]
        assert page.problems == []
        wide = await page.asks("document.documentElement.scrollWidth")
        assert wide <= width, "one must not push the whole page sideways"
        assert is_dark(await page.asks("getComputedStyle(document.body).backgroundColor")) is dark
        drawings = await page.asks(MARKS)
        assert len(drawings) >= 3
        for marks in drawings:
            assert_readable(marks)
        for section in await page.asks(KEYS):
            for drawn in section["drawn"]:
                assert section["named"] == drawn, "a legend in the colours of its lines"
            assert len(set(section["named"])) == len(section["named"])


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (420, True)])
async def test_a_statement_is_readable_and_asks_for_nothing(
    tmp_path: Path, width: int, dark: bool
) -> None:
    row = usage.Row({"user": "ann"}, 1234.5, 56.7, 890.1, 2345.6, 123_000_000, "123.00 EUR")
    days = [statement.Day(f"2026-01-{n:02}", 11.5 * n, 30.0 / n, 10**8 * n) for n in range(1, 32)]
    made = statement.Statement(
        "a <team>", "2026-01", "2026-02-01T00:00:00Z", "EUR", row, {"By user": [row]}, days, [row]
    )
    path = tmp_path / "statement.html"
    path.write_text(statement.as_html(made))
    async with browser.opened(path.as_uri(), width=width, dark=dark) as page:
        assert page.fetched == [path.as_uri()]
        assert page.problems == []
        assert await page.asks("document.documentElement.scrollWidth") <= width
        drawings = await page.asks(MARKS)
        assert len(drawings) == 2
        for marks in drawings:
            assert_readable(marks)
        bars = await page.asks(BARS)
        assert [len(each["heights"]) for each in bars] == [62, 31]
        for each in bars:
            assert min(each["heights"]) > 0
            assert each["bars"] == each["legend"], "a legend in the colours of its bars"


def is_dark(colour: str) -> bool:
    """Of `rgb(r, g, b)`."""
    parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(parts) < 3 * 128


def assert_readable(marks: list[dict[str, float]]) -> None:
    """Not too small, and none on another."""
    for mark in marks:
        assert mark["bottom"] - mark["top"] >= 10, mark
    for number, one in enumerate(marks):
        for other in marks[number + 1 :]:
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            # Lines of text may touch: their boxes are higher than what is printed.
            apart |= one["bottom"] <= other["top"] + 3 or other["bottom"] <= one["top"] + 3
            assert apart, f"{one} covers {other}"
