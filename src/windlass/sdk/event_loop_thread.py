"""Runs the asynchronous SDK for synchronous callers, on one event loop in a thread.

It also works inside a notebook, whose own loop is busy. The thread starts with the first call, is
shared by all clients of the process and ends with it.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import concurrent.futures.thread
import contextlib
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_owner = 0
"""The process of the loop's thread: a fork copies the variable, but not the thread."""


def loop() -> asyncio.AbstractEventLoop:
    """The SDK's running loop."""
    global _loop, _owner
    with _lock:
        if _loop is None or _owner != os.getpid():
            _loop, _owner = asyncio.new_event_loop(), os.getpid()
            threading.Thread(target=_loop.run_forever, name="windlass-sdk", daemon=True).start()
        return _loop


def start(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Starts `work` on the loop."""
    return asyncio.run_coroutine_threadsafe(work, loop())


def call(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """The result of `work`. Ctrl-C or a timeout of the caller cancels it."""
    if _is_own_thread():
        work.close()
        raise RuntimeError(
            "this is the SDK's own thread, which must not wait for itself; use windlass.AsyncClient"
        )
    future = start(work)
    try:
        return future.result(timeout)
    except BaseException:
        future.cancel()
        raise


def iterate(stream: AsyncGenerator[T, None]) -> Iterator[T]:
    """An asynchronous stream as a synchronous iterator; closing it closes the stream."""
    try:
        while True:
            found = call(_next(stream))
            if not found:
                return
            yield found[0]
    finally:
        # A dropped stream is closed by the thread that runs the garbage collector.
        start(_close(stream)) if _is_own_thread() else call(_close(stream))


def _is_own_thread() -> bool:
    return _owner == os.getpid() and threading.current_thread().name == "windlass-sdk"


async def _next(stream: AsyncGenerator[T, None]) -> tuple[T] | None:
    try:
        return (await anext(stream),)
    except StopAsyncIteration:
        return None


async def _close(stream: AsyncGenerator[Any, None]) -> None:
    while True:
        try:
            return await stream.aclose()
        except RuntimeError:
            # Its last step was cancelled and is still ending.
            await asyncio.sleep(0.01)


class Closing(Protocol):
    def close(self) -> None: ...


at_exit: weakref.WeakSet[Closing] = weakref.WeakSet()
"""What is closed when the program ends: executors, then the clients that they use."""


def _end() -> None:
    if _owner != os.getpid():
        return
    for each in sorted(at_exit, key=lambda each: type(each).__name__ != "Executor"):
        with contextlib.suppress(Exception):
            each.close()


def _after_fork() -> None:
    """The child has neither the parent's thread nor its connections."""
    global _lock
    _lock = threading.Lock()
    at_exit.clear()


# Before the standard library shuts down its thread pools, which the loop uses: exit functions run
# in reverse order, and the import above has registered the pools.
getattr(threading, "_register_atexit", atexit.register)(_end)
os.register_at_fork(after_in_child=_after_fork)
