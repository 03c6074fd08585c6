"""Functions there and back without a server: packed, performed as a worker does, unpacked."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import types
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from windlass.sdk import errors, event_loop_thread
from windlass.sdk.executor import worker
from windlass.sdk.transfer import mailbox


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return mailbox.unpack(worker.perform(mailbox.pack(function, args, kwargs)))


def test_closures_lambdas_and_keywords_travel() -> None:
    factor = 3
    assert there_and_back(lambda x, *, plus: factor * x + plus, 5, plus=1) == 16


def test_an_exception_comes_back_as_itself_with_the_traceback_there() -> None:
    def guilty() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here") as caught:
        there_and_back(guilty)
    cause = caught.value.__cause__
    assert isinstance(cause, errors.RemoteTraceback)
    assert "in guilty" in str(cause)


class Stubborn(Exception):
    """Pickles, but its constructor wants what the pickle does not have."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("both")


def test_an_exception_that_cannot_be_pickled_is_reported_by_name() -> None:
    def guilty() -> None:
        raise Stubborn(1, 2)

    with pytest.raises(errors.RemoteError, match="Stubborn: both") as caught:
        there_and_back(guilty)
    assert caught.value.kind == "Stubborn"
    assert "in guilty" in str(caught.value.__cause__)


def test_exit_and_interrupt_come_back_too() -> None:
    def leave() -> None:
        raise SystemExit(4)

    with pytest.raises(SystemExit):
        there_and_back(leave)


def test_a_result_that_cannot_travel_says_so() -> None:
    with pytest.raises(TypeError, match="lock") as caught:
        there_and_back(threading.Lock)
    assert "the result, a lock, cannot be sent back" in str(caught.value.__cause__)


def test_a_call_that_cannot_travel_says_what_to_do() -> None:
    lock = threading.Lock()
    with pytest.raises(errors.CannotShip, match="inside the function"):
        mailbox.pack(lambda: lock, (), {})


def test_a_pod_gets_the_worker_and_cloudpickle_and_nothing_of_windlass() -> None:
    archive = zipfile.ZipFile(io.BytesIO(mailbox.bootstrap()))
    assert {"windlass_worker.py", "cloudpickle/__init__.py"} <= set(archive.namelist())
    assert b"import windlass\n" not in archive.read("windlass_worker.py")
    assert b"from windlass" not in archive.read("windlass_worker.py")


async def test_plain_calls_work_while_a_loop_runs_as_in_a_notebook() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert event_loop_thread.call(answer()) == 42


def test_a_stream_can_be_left_half_way() -> None:
    closed = []

    async def numbers() -> Any:
        try:
            for number in range(1000):
                yield number
        finally:
            closed.append(True)

    stream = event_loop_thread.iterate(numbers())
    assert [next(stream), next(stream)] == [0, 1]
    stream.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert list(event_loop_thread.iterate(numbers())) == list(range(1000))


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    async def pid() -> int:
        return os.getpid()

    assert event_loop_thread.call(pid()) == os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(event_loop_thread.call(pid(), timeout=10)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert int(os.read(reader, 100)) == child
    os.waitpid(child, 0)


def test_the_loop_itself_must_not_wait_for_itself() -> None:
    async def wrong() -> None:
        event_loop_thread.call(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="AsyncClient"):
        event_loop_thread.call(wrong())


class Beating:
    """A mailbox whose heartbeats are given: a number, "gone" for a deleted box, None for a server
    that does not answer. The last one stays."""

    def __init__(self, *beats: object) -> None:
        self.beats = list(beats)
        self.asked = 0

    def heartbeat(self) -> bytes | None:
        self.asked += 1
        found = self.beats[0] if len(self.beats) == 1 else self.beats.pop(0)
        if found == "gone":
            raise worker.Closed
        return None if found is None else str(found).encode()


@pytest.mark.parametrize(
    ("beats", "asked"),
    [((0, 1, 2, "gone"), 4), ((0, 1), 7), ((0, None, None, None, None, None, None, None, 0), 13)],
)
def test_a_worker_ends_when_the_heartbeat_of_its_program_stops(
    monkeypatch: pytest.MonkeyPatch, beats: tuple[object, ...], asked: int
) -> None:
    """It looks every 2 seconds; a server that does not answer says nothing about the program."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(worker, "time", types.SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    box, ended = Beating(*beats), []
    worker.watch(box, lambda: ended.append(True))
    assert ended == [True]
    assert box.asked == asked


class Aged(Beating):
    """Heartbeats that are so old, one after the other."""

    @property
    def age(self) -> float:
        return float(self.ages[0] if len(self.ages) == 1 else self.ages.pop(0))

    def __init__(self, *ages: float) -> None:
        super().__init__(1)
        self.ages = list(ages)


@pytest.mark.parametrize(
    ("ages", "expected"), [((0.0,), True), ((60.0, 60.0, 0.0), True), ((60.0,), False)]
)
def test_a_worker_that_starts_after_its_program_was_killed_takes_no_call(
    monkeypatch: pytest.MonkeyPatch, ages: tuple[float, ...], expected: bool
) -> None:
    """A server that was away for a minute has an old heartbeat until the program sends the next."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(worker, "time", types.SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    assert worker.is_expected(Aged(*ages)) is expected
    if not expected:
        assert worker.serve(Aged(*ages)) == 1  # it has no method to take a call
