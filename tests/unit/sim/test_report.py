"""Figures and the report: what they say, and that the report is whole by itself."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.unit.sim.building import job, outcome, scenario
from windlass.core.model.types import Queue
from windlass.reporting import svg
from windlass.sim import compare
from windlass.sim.job_progress import Attempt, Record
from windlass.sim.metrics import metrics
from windlass.sim.policy_grid import Variant, combinations
from windlass.sim.report import report_page
from windlass.sim.scenario import FOREVER, Outage

TWO = scenario(
    job("a", 0, 100, queue="red"),
    job("b", 0, 100, queue="blue"),
    job("c", 50, 3600, gpus=4, queue="blue"),
    queues=(Queue("red"), Queue("blue")),
)


def test_figures_of_a_scenario_that_can_be_worked_out_by_hand() -> None:
    found = metrics.summary(outcome(scenario(job("a", 0, 100), job("b", 0, 100, gpus=4))))
    assert found["wait_s"] == {"mean": 50, "p50": 100, "p95": 100, "p99": 100, "max": 100}
    assert found["completion_s"]["mean"] == 150
    assert (found["makespan_s"], found["finished"], found["decisions"]) == (200, 2, 3)
    # 8 of 8 for 100 s, then 4 of 8; a job waited only in the first half.
    assert (found["utilisation"], found["utilisation_while_waiting"]) == (0.75, 1.0)


def test_fragments_are_idle_devices_where_usual_members_do_not_fit() -> None:
    # 2 idle GPUs beside a pod of 6: half of all pods want 6, half want 2.
    found = metrics.summary(outcome(scenario(job("a", 0, 100, gpus=6), job("b", 100, 1, gpus=2))))
    line = outcome(scenario(job("a", 0, 100, gpus=6), job("b", 100, 1, gpus=2))).timeline
    assert (line.idle[0], line.fragments[0]) == (2000, 1000)
    assert found["fragmentation"] == pytest.approx(0.5, abs=0.05)


def test_reservations_are_counted_from_the_first_one() -> None:
    records = [
        Record(job("a"), attempts=[Attempt(0, 10, reserved=10)]),
        Record(job("b"), attempts=[Attempt(0, 25, reserved=10), Attempt(40, 50, reserved=60)]),
        Record(job("c"), attempts=[Attempt(0, 3), Attempt(9, reserved=20)]),
        Record(
            job("d"), attempts=[Attempt(0, 90, reserved=10, withdrawn=9, withdrawn_because="x")]
        ),
        Record(job("e"), attempts=[Attempt(0, reserved=10, withdrawn=9, withdrawn_because="x")]),
    ]
    assert metrics.reservation_counts(records) == {
        "made": 5, "kept": 2, "withdrawn": 2, "withdrawn_because": {"x": 2}, "worst_delay_s": 15,
    }  # fmt: skip


@pytest.mark.parametrize(("part", "value"), [(0.0, 1), (0.5, 3), (0.99, 4), (1.0, 4)])
def test_points_of_a_distribution(part: float, value: float) -> None:
    assert metrics.at([1, 2, 3, 4], part) == value


def test_samples_over_time_keep_the_integral() -> None:
    line = outcome(TWO).timeline
    until = line.times[-1]
    sampled = line.sampled(line.used, 37, until)
    assert sum(sampled) / 37 * (until - line.times[0]) == pytest.approx(line.integral(line.used))


class _Page(HTMLParser):
    """Collects what a browser would fetch, and whether tags are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href")]
        if tag in ("script", "link", "img", "iframe"):
            self.fetched.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_report_is_whole_by_itself_and_the_same_every_time() -> None:
    played = scenario(*TWO.jobs, queues=(Queue("red"), Queue("<blue>"), Queue("blue")))
    pages = {
        report_page.page(compare.compare(played, combinations(["fifo"], ["none", "reserving"])))
        for _ in range(2)
    }
    [text] = pages
    page = _Page()
    page.feed(text)
    assert (page.open, page.fetched) == ([], [])
    assert "url(" not in text
    assert "prefers-color-scheme:dark" in text
    for words in ("fifo, no backfill", "fifo, reserving backfill", "Waits", "red", "makespan"):
        assert words in page.text
    drawings = re.findall(r"<svg.*?</svg>", text)
    assert len(drawings) == 3 + 2 * (1 + 2), "by policy one of all queues and one of each"
    for kind in ("held", "entitled"):
        assert text.count(f'class="line {kind}"') == 4
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing.lower()


def test_the_best_of_a_column_is_marked_only_where_it_differs() -> None:
    queue = scenario(job("a", 0, 100), job("long", 1, 1000), job("short", 2, 10))
    differs = compare.compare(queue, combinations(["fifo", "lifo"], ["none"]))
    same = compare.compare(queue, [Variant(), Variant(preempt=False)])
    assert "<td class=best" in report_page.page(differs)
    assert "<td class=best" not in report_page.page(same)


@pytest.mark.parametrize("high", [0.0, 0.3, 1.0, 7.0, 12.0, 4321.0])
def test_marks_of_an_axis_cover_it_and_are_few(high: float) -> None:
    axis = svg.plain_axis(high, "")
    assert axis.high >= high
    assert axis.marks[-1][0] == pytest.approx(axis.high)
    assert 2 <= len(axis.marks) <= 6


@pytest.mark.parametrize("seconds", [0.5, 30.0, 5000.0, 86400.0 * 3, 86400.0 * 900])
def test_marks_of_time_are_round_and_few(seconds: float) -> None:
    axis = svg.time_axis(seconds)
    assert 1 <= len(axis.marks) <= 8
    assert all(value <= seconds for value, _ in axis.marks)


def test_jobs_that_start_and_never_end_are_counted_and_said_with_the_reason() -> None:
    gang, other = job("gang", 0, 5000, members=2), job("huge", 0, 10, members=9)
    stays = job("server", 0, FOREVER, gpus=0)
    lost = (Outage("node-0000", 1000),)
    played = compare.compare(
        scenario(gang, other, stays, nodes=2, outages=lost), [Variant(backfill="non-reserving")]
    )
    [found] = played.data()["policies"]
    assert (found["finished"], found["never_started"], found["unfinished"]) == (0, 1, 1)
    assert found["makespan_s"] is None
    [row] = compare.rows(played)
    assert row[compare.columns(played).index("makespan")] == "-"
    never, ends = compare.remarks(played)
    assert never.startswith("non-reserving backfill: 1 job never starts: needs 9")
    assert ends.startswith("non-reserving backfill: 1 job started and never ends: needs 2")
    assert ends in html.unescape(report_page.page(played))


def test_an_interrupted_comparison_keeps_what_is_finished() -> None:
    def interrupt(policy: str, done: int, total: int) -> None:
        if policy == "lifo":
            raise KeyboardInterrupt

    found = compare.compare(TWO, [Variant("fifo"), Variant("lifo")], progress=interrupt)
    assert found.interrupted
    data = found.data()
    assert (data["complete"], data["not_played"]) == (False, ["lifo"])
    assert [each["policy"] for each in data["policies"]] == ["fifo"]
    assert len(compare.rows(found)) == 1
