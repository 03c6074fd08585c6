"""`windlass.Executor`: a `concurrent.futures.Executor` whose workers are runs.

Each slot is a Run of one worker that starts when there are calls for it, takes calls from the
executor's mailbox and ends when it has been idle for a while. `worker_pool` runs on the SDK's event
loop; `Executor` is its synchronous interface.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, Unpack

from windlass.sdk import event_loop_thread
from windlass.sdk.async_client import check
from windlass.sdk.errors import CannotShip
from windlass.sdk.executor.worker_pool import Call, OnMessage, WorkerPool
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client
from windlass.sdk.transfer import mailbox

T = TypeVar("T")


class Executor(concurrent.futures.Executor):
    """Calls functions in workers of the platform.

        with windlass.Executor(max_workers=4, gpus=1) as pool:
            scores = list(pool.map(evaluate, checkpoints))

    Functions and arguments are pickled with cloudpickle, also those of a notebook or a script.
    Modules of your own must exist in the worker (`workdir=`). Workers start when there are calls,
    each as a run that waits in the queue like any other, and end after `idle_timeout` seconds
    without a call.

    A call whose worker is lost fails with `WorkerLost`, or is retried up to `call_retries` times.
    The options of a run (`gpus`, `memory`, `queue` ...) apply to each worker.
    """

    def __init__(
        self,
        max_workers: int = 4,
        *,
        client: Client | None = None,
        call_retries: int = 0,
        idle_timeout: float = 60.0,
        workdir: str | os.PathLike[str] | None = None,
        on_message: OnMessage | None = None,
        **options: Unpack[Options],
    ) -> None:
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if options.get("workers", 1) != 1:
            raise TypeError(
                "workers is not an option of an Executor, whose workers are runs of one replica "
                "each; did you mean max_workers?"
            )
        check(mailbox.command(options), options)
        self._own_client = client is None
        self._client = client or Client()
        self._pool = WorkerPool(
            self._client.aio, max_workers, call_retries, idle_timeout, workdir, options, on_message
        )
        self._lock = threading.Lock()
        self._shut = False
        self._finalizer = weakref.finalize(self, WorkerPool.close_from_outside, self._pool)
        self._finalizer.atexit = False
        event_loop_thread.at_exit.add(self)

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        """The future result of `fn(*args, **kwargs)` in a worker."""
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            try:
                packed = mailbox.pack(fn, args, kwargs)
            except CannotShip as problem:
                future.set_exception(problem)
                return future
            self._pool.add(Call(future, packed))
        return future

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """As the built-in `map`; `chunksize` calls are sent as one."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return self._interruptible(super().map(fn, *iterables, timeout=timeout))
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        found = super().map(_for_each(fn), chunks, timeout=timeout)
        return self._interruptible(itertools.chain.from_iterable(found))

    def _interruptible(self, results: Iterator[T]) -> Iterator[T]:
        try:
            yield from results
        except KeyboardInterrupt:
            self.abort()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Waits for the submitted calls; after Ctrl-C and on exit, cancels them."""
        if kind is not None and not issubclass(kind, Exception):
            self.abort()
        else:
            self.shutdown(wait=True)

    def close(self) -> None:
        """As in the standard library: a program exits when its submitted calls have ended, unless
        Ctrl-C ends it."""
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            self.abort()
        else:
            self.shutdown(wait=True)

    def abort(self) -> None:
        """Cancels all calls, also those that run, and stops the workers."""
        with self._lock:
            if self._shut:
                return
            self._shut = True
        event_loop_thread.at_exit.discard(self)
        self._finalizer.detach()
        calls, workers = event_loop_thread.start(self._pool.abort()).result()
        if calls or workers:
            _report_interrupt(f"interrupted: {calls} calls are cancelled, {workers} workers stop")
        if self._own_client:
            self._client.close()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accepts no more calls; with `wait` returns when the submitted calls have ended."""
        with self._lock:
            self._shut = True
        event_loop_thread.at_exit.discard(self)
        closing = event_loop_thread.start(self._pool.close(cancel_pending=cancel_futures))
        if wait:
            closing.result()
            self._finalizer.detach()
            if self._own_client:
                self._client.close()


def _report_interrupt(message: str) -> None:
    """Replaces the traceback of this Ctrl-C by one line, unless the program handles it itself."""

    def hook(kind: type[BaseException], value: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print(f"windlass: {message}", file=sys.stderr)  # noqa: T201 - instead of a traceback
        else:
            sys.__excepthook__(kind, value, trace)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = hook


def _chunks(items: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    source = iter(items)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def _for_each(function: Callable[..., T]) -> Callable[[list[tuple[Any, ...]]], list[T]]:
    """A function that calls `function` for each of several arguments. A closure is pickled by
    value, so the worker does not need windlass."""

    def each(chunk: list[tuple[Any, ...]]) -> list[T]:
        return [function(*args) for args in chunk]

    return each
