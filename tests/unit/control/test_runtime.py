import asyncio
import logging

import pytest

from tests.unit.control.timers import HandTimers
from windlass.control.runtime import controller as runtime_controller
from windlass.store import errors
from windlass.telemetry import prometheus

KEY = ("team", "a")


class Scripted:
    """A reconciler that gives prepared answers, in order; the last one for ever."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.calls: list[runtime_controller.Key] = []

    async def __call__(self, key: runtime_controller.Key) -> runtime_controller.Result:
        self.calls.append(key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def controller(reconcile, **options):
    timers = HandTimers()
    registry = prometheus.Registry()
    made = runtime_controller.Controller(
        "test", reconcile, timers=timers, registry=registry, **options
    )
    return made, timers, registry


async def test_done_leaves_nothing_queued():
    work = Scripted(runtime_controller.DONE)
    made, timers, _ = controller(work)
    made.enqueue(KEY)
    await made.process_next()
    timers.advance(10_000)
    assert work.calls == [KEY]
    assert len(made._queue) == 0


async def test_again_comes_back_after_its_time_and_not_before():
    made, timers, _ = controller(Scripted(runtime_controller.again(30), runtime_controller.DONE))
    made.enqueue(KEY)
    await made.process_next()
    timers.advance(29)
    assert len(made._queue) == 0
    timers.advance(2)
    assert len(made._queue) == 1


@pytest.mark.parametrize(
    "answer",
    [
        runtime_controller.failed("no luck"),
        RuntimeError("bug"),
        errors.Unavailable("down"),
        errors.Conflict("changed"),
    ],
    ids=["failed", "bug", "api error", "conflict"],
)
async def test_whatever_fails_is_retried_with_back_off(answer):
    made, timers, registry = controller(Scripted(answer, runtime_controller.DONE))
    made.enqueue(KEY)
    await made.process_next()
    assert made._queue.waiting() == 1
    timers.advance(1)
    await made.process_next()
    assert made._queue.waiting() == 0
    assert 'windlass_controller_retries_total{controller="test"} 1' in registry.render()


async def test_a_conflict_is_not_counted_as_an_error():
    made, _, registry = controller(Scripted(errors.Conflict("changed")))
    made.enqueue(KEY)
    await made.process_next()
    assert "errors_total{" not in registry.render()


async def test_the_servers_retry_after_is_honoured():
    made, timers, _ = controller(Scripted(errors.TooManyRequests("slow down", retry_after=20)))
    made.enqueue(KEY)
    await made.process_next()
    timers.advance(19)
    assert len(made._queue) == 0
    timers.advance(2)
    assert len(made._queue) == 1


async def test_an_error_is_logged_once_until_it_changes(caplog):
    caplog.set_level(logging.INFO)
    answers = (
        [runtime_controller.failed("one")] * 3
        + [runtime_controller.failed("two")]
        + [runtime_controller.DONE]
    )
    made, timers, _ = controller(Scripted(*answers))
    made.enqueue(KEY)
    for _ in answers:
        await made.process_next()
        timers.advance(60)
    assert [record.message for record in caplog.records] == [
        "test: team/a failed: one",
        "test: team/a failed: two",
        "test: team/a works again",
    ]


async def test_metrics_count_depth_latency_work_and_errors():
    made, timers, registry = controller(Scripted(runtime_controller.failed("no")))
    made.enqueue(KEY)
    made.enqueue(("team", "b"))
    timers.advance(3)
    assert 'queue_depth{controller="test"} 2' in registry.render()
    await made.process_next()
    text = registry.render()
    assert 'queue_depth{controller="test"} 1' in text
    assert 'queue_latency_seconds_sum{controller="test"} 3' in text
    assert 'work_seconds_count{controller="test"} 1' in text
    assert 'errors_total{controller="test"} 1' in text


async def test_stopping_lets_a_reconcile_that_began_finish():
    began, finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_: runtime_controller.Key) -> runtime_controller.Result:
        began.set()
        await finish.wait()
        finished.set()
        return runtime_controller.DONE

    made = runtime_controller.Controller("test", slow)
    made.enqueue(KEY)
    running = asyncio.create_task(made.run())
    await began.wait()
    running.cancel()
    finish.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert finished.is_set()


async def test_two_workers_never_share_a_key():
    active: set[runtime_controller.Key] = set()
    seen = 0
    enough = asyncio.Event()

    async def careful(key: runtime_controller.Key) -> runtime_controller.Result:
        nonlocal seen
        assert key not in active
        active.add(key)
        made.enqueue(key)
        await asyncio.sleep(0)
        active.discard(key)
        seen += 1
        if seen > 50:
            enough.set()
        return runtime_controller.DONE

    made = runtime_controller.Controller("test", careful, workers=4)
    for name in "abc":
        made.enqueue(("team", name))
    running = asyncio.create_task(made.run())
    await enough.wait()
    made.close()
    await running


async def test_resync_brings_every_key_back():
    seen: list[runtime_controller.Key] = []
    both = asyncio.Event()

    async def note(key: runtime_controller.Key) -> runtime_controller.Result:
        seen.append(key)
        if len(set(seen)) == 2:
            both.set()
        return runtime_controller.DONE

    keys = [("team", "a"), ("team", "b")]
    made = runtime_controller.Controller("test", note, keys=lambda: keys, resync=0.001)
    running = asyncio.create_task(made.run())
    await both.wait()
    made.close()
    await running
