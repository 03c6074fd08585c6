"""Functions there and back without a server: packed, performed as a worker does, unpacked."""

from __future__ import annotations

import asyncio
import io
import os
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import pytest

from windlass.sdk import failures, functions, portal, worker


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return functions.unpack(worker.perform(functions.pack(function, args, kwargs)))


def test_closures_lambdas_and_keywords_travel() -> None:
    factor = 3
    assert there_and_back(lambda x, *, plus: factor * x + plus, 5, plus=1) == 16


def test_an_exception_comes_back_as_itself_with_the_traceback_there() -> None:
    def guilty() -> None:
        raise LookupError("nothing here")

    with pytest.raises(LookupError, match="nothing here") as caught:
        there_and_back(guilty)
    cause = caught.value.__cause__
    assert isinstance(cause, failures.RemoteTraceback)
    assert "in guilty" in str(cause)


class Stubborn(Exception):
    """Pickles, but its constructor wants what the pickle does not have."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("both")


def test_an_exception_that_cannot_travel_is_told_by_name() -> None:
    def guilty() -> None:
        raise Stubborn(1, 2)

    with pytest.raises(failures.RemoteError, match="Stubborn: both") as caught:
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
    with pytest.raises(failures.CannotShip, match="must be made inside the function"):
        functions.pack(lambda: lock, (), {})


def test_a_pod_gets_the_worker_and_cloudpickle_and_nothing_of_windlass() -> None:
    archive = zipfile.ZipFile(io.BytesIO(functions.bootstrap()))
    assert {"windlass_worker.py", "cloudpickle/__init__.py"} <= set(archive.namelist())
    assert b"import windlass\n" not in archive.read("windlass_worker.py")
    assert b"from windlass" not in archive.read("windlass_worker.py")


async def test_plain_calls_work_while_a_loop_runs_as_in_a_notebook() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert portal.call(answer()) == 42


def test_a_stream_can_be_left_half_way() -> None:
    closed = []

    async def numbers() -> Any:
        try:
            for number in range(1000):
                yield number
        finally:
            closed.append(True)

    stream = portal.iterate(numbers())
    assert [next(stream), next(stream)] == [0, 1]
    stream.close()  # type: ignore[attr-defined]
    assert closed == [True]
    assert list(portal.iterate(numbers())) == list(range(1000))


def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    async def pid() -> int:
        return os.getpid()

    assert portal.call(pid()) == os.getpid()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(portal.call(pid(), timeout=10)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    assert int(os.read(reader, 100)) == child
    os.waitpid(child, 0)


def test_the_loop_itself_must_not_wait_for_itself() -> None:
    async def wrong() -> None:
        portal.call(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="AsyncClient"):
        portal.call(wrong())
