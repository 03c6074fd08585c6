import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.control.timers import HandTimers
from windlass.control.runtime.workqueue import Backoff, WorkQueue


def queue_with(timers: HandTimers | None = None, **options) -> tuple[WorkQueue[str], HandTimers]:
    timers = timers or HandTimers()
    return WorkQueue(timers=timers, rng=random.Random(1), **options), timers


async def test_a_key_added_often_is_handed_out_once():
    queue, _ = queue_with()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


async def test_a_key_added_while_worked_on_comes_again_only_after_done():
    queue, _ = queue_with()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    getter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    assert not getter.done()
    queue.done("a")
    assert await getter == "a"


async def test_a_busy_key_does_not_starve_the_others():
    queue, _ = queue_with()
    for key in ("busy", "b", "c"):
        queue.add(key)
    order = []
    for _ in range(4):
        key = await queue.get()
        queue.add("busy")
        order.append(key)
        queue.done(key)
    assert order == ["busy", "b", "c", "busy"]


async def test_delayed_keys_become_ready_in_order_of_time():
    queue, timers = queue_with()
    queue.add_after("late", 20)
    queue.add_after("soon", 5)
    assert (len(queue), queue.waiting()) == (0, 2)
    timers.advance(4.9)
    assert len(queue) == 0
    timers.advance(0.2)
    assert await queue.get() == "soon"
    timers.advance(15)
    assert await queue.get() == "late"


async def test_the_earliest_of_several_delays_holds_and_fires_once():
    queue, timers = queue_with()
    for delay in (30, 10, 20):
        queue.add_after("a", delay)
    timers.advance(11)
    assert await queue.get() == "a"
    queue.done("a")
    timers.advance(100)
    assert (len(queue), queue.waiting()) == (0, 0)


async def test_adding_now_replaces_a_delayed_add():
    queue, timers = queue_with()
    queue.add_after("a", 10)
    queue.add("a")
    assert await queue.get() == "a"
    queue.done("a")
    timers.advance(60)
    assert len(queue) == 0


async def test_a_delay_asked_for_while_working_holds_after_done():
    queue, timers = queue_with()
    queue.add("a")
    await queue.get()
    queue.add_after("a", 10)
    queue.done("a")
    assert len(queue) == 0
    timers.advance(11)
    assert await queue.get() == "a"


async def test_failures_back_off_doubling_up_to_the_limit_and_reset_on_success():
    queue, _ = queue_with(backoff=Backoff(first=1, limit=10, jitter=0))
    delays = [queue.retry("a") for _ in range(6)]
    assert delays == [1, 2, 4, 8, 10, 10]
    queue.forget("a")
    assert queue.retry("a") == 1


async def test_retry_waits_at_least_as_long_as_the_server_asked():
    queue, timers = queue_with(backoff=Backoff(first=1, limit=10, jitter=0))
    assert queue.retry("a", at_least=7) == 7
    timers.advance(6)
    assert len(queue) == 0


@given(failures=st.integers(1, 10_000), seed=st.integers())
def test_back_off_stays_between_its_bounds(failures, seed):
    backoff = Backoff(first=0.5, limit=30, jitter=0.5)
    assert 0.25 <= backoff.delay(failures, random.Random(seed)) <= 30


async def test_close_wakes_every_worker_and_takes_no_more():
    queue, timers = queue_with()
    getters = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add_after("later", 5)
    queue.close()
    assert await asyncio.gather(*getters) == [None] * 3
    queue.add("a")
    timers.advance(10)
    assert (len(queue), queue.waiting()) == (0, 0)


async def test_a_cancelled_worker_passes_its_wake_up_on():
    queue, _ = queue_with()
    first, second = (asyncio.create_task(queue.get()) for _ in range(2))
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second == "a"


async def test_pulling_a_key_forward_again_and_again_does_not_grow_memory():
    queue, _ = queue_with()
    for step in range(5000):
        queue.add_after("a", 10_000 - step)
    assert len(queue._heap) < 64


@given(
    st.lists(st.tuples(st.sampled_from(["add", "after", "get", "done"]), st.sampled_from("abc")))
)
def test_no_key_is_ever_with_two_workers_and_none_is_lost(steps):
    async def scenario() -> None:
        queue, timers = queue_with()
        working: set[str] = set()
        wanted: set[str] = set()
        for what, key in steps:
            if what == "add":
                queue.add(key)
                wanted.add(key)
            elif what == "after":
                queue.add_after(key, 3)
                wanted.add(key)
            elif what == "get" and queue._ready:
                got = await queue.get()
                assert got is not None
                assert got not in working
                working.add(got)
                if got not in queue._again and got not in queue._due:
                    wanted.discard(got)
            elif what == "done" and key in working:
                working.discard(key)
                queue.done(key)
        for key in working:
            queue.done(key)
        timers.advance(10)
        assert set(queue._ready) == wanted

    asyncio.run(scenario())
