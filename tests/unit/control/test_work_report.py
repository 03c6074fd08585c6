"""What leaders report of their work, and that it is in the lease."""

import asyncio
import json

from tests.unit.control.test_leader import Clock, candidate
from windlass.control.runtime import leader_election, work_report
from windlass.kinds.types import core


def test_a_change_that_waits_is_lag_until_it_is_handled():
    clock = Clock()
    meter = work_report.WorkMeter(clock=clock)
    assert meter.progress() == work_report.Progress()
    meter.changed()
    clock.now += 3
    assert (meter.progress().waiting, meter.progress().lag) == (1, 3.0)
    meter.begin()
    meter.changed()
    clock.now += 2
    assert meter.progress().lag == 5.0, "what is being handled still waits"
    meter.finished(0.25)
    meter.end()
    assert (meter.progress().lag, meter.progress().seconds) == (2.0, 0.25)
    assert meter.progress().last is not None


def test_what_failed_waits_again_since_its_change():
    clock = Clock()
    meter = work_report.WorkMeter(clock=clock)
    meter.changed()
    meter.begin()
    clock.now += 4
    meter.failed()
    assert (meter.progress().lag, meter.progress().errors) == (4.0, 1)


def test_errors_of_more_than_five_minutes_ago_are_not_recent():
    clock, errors = Clock(), 0
    reporter = work_report.Reporter(lambda: work_report.Progress(errors=errors), clock=clock)

    def reported():
        facts = json.loads(reporter.text())
        return facts["errors"], facts["recentErrors"]

    errors = 7
    clock.now += 10
    assert reported() == (7, 7)
    for _ in range(31):
        clock.now += 10
        reported()
    errors = 8
    assert reported() == (8, 1)


def test_of_several_kinds_of_work_the_slowest_and_the_latest_count():
    one = work_report.Progress(waiting=1, lag=5.0, last=10.0, seconds=1.0, errors=2)
    other = work_report.Progress(waiting=2, lag=1.0, last=20.0, seconds=3.0, errors=1)
    assert work_report.together([one, other]) == work_report.Progress(3, 5.0, 20.0, 3.0, 3)


async def test_a_leader_reports_with_each_renewal_and_its_successor_does_not_inherit_it(store):
    clock = Clock()
    one = candidate(store, "a", clock)
    one.report = lambda: '{"errors":1}'

    async def annotations():
        found = await store.get(core.Lease, "scheduler", "team")
        return found.metadata.annotations or {}

    async with one.term():
        await clock.until(clock.now + leader_election.Timing().retry + 1)
        while work_report.ANNOTATION not in await annotations():
            await asyncio.sleep(0)
        assert (await annotations())[work_report.ANNOTATION] == '{"errors":1}'
    async with candidate(store, "b", clock).term():
        assert work_report.ANNOTATION not in await annotations()
