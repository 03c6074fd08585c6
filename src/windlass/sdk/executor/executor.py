"""`windlass.Executor`: a `concurrent.futures.Executor` whose workers are runs.

Each slot is a Run of one worker that starts when there are calls for it, takes calls from the
executor's mailbox and ends when it has been idle for a while. `_Pool` runs on the SDK's event loop;
`Executor` is its synchronous interface.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, TypeVar, Unpack, cast

from windlass.kinds.types import core, run
from windlass.sdk import event_loop_thread, remote_functions, run_builder, watching
from windlass.sdk.async_client import AsyncClient, check
from windlass.sdk.errors import CannotShip, WorkerLost
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client
from windlass.sdk.transfer import mailbox
from windlass.sdk.transfer.mailbox import Mailbox
from windlass.store import errors

T = TypeVar("T")

LABEL = "windlass.dev/executor"
_RETRY = 0.5
_BEAT_EVERY = 3.0
"""Seconds between two heartbeats; workers end 9 to 12 seconds after the last one."""
_ABORT_SECONDS = 5.0
"""The longest time in which an interrupted program asks its workers to stop."""
_AHEAD = 1
"""Calls that are ready in the mailbox beside those in progress, so that a worker never waits."""


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
        **options: Unpack[Options],
    ) -> None:
        if max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        check(mailbox.command(options), options)
        self._own_client = client is None
        self._client = client or Client()
        self._pool = _Pool(
            self._client.aio, max_workers, call_retries, idle_timeout, workdir, options
        )
        self._lock = threading.Lock()
        self._shut = False
        self._finalizer = weakref.finalize(self, _Pool.close_from_outside, self._pool)
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
            self._pool.add(_Call(future, packed))
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


@dataclasses.dataclass(eq=False, slots=True)
class _Call:
    future: concurrent.futures.Future[Any]
    packed: bytes
    key: str = ""
    worker: str = ""
    """The run of the worker that has the call."""
    attempt: int = 0
    """The attempt of that run."""
    tries: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _Slot:
    """A worker: its run, and whether it has contacted the mailbox."""

    name: str
    heard: bool = False
    attempt: int = 0


class _Pool:
    """The executor on the SDK's loop."""

    def __init__(
        self,
        client: AsyncClient,
        size: int,
        retries: int,
        idle_timeout: float,
        workdir: str | os.PathLike[str] | None,
        options: Options,
    ) -> None:
        self._client = client
        self._size = size
        self._retries = retries
        self._idle = idle_timeout
        self._workdir = workdir
        self._options = options
        # Another executor of the same name may have ended a moment ago, its runs still listed.
        self._name = run_builder.name_for([options.get("name", "calls")[:28]])
        self._pending: collections.deque[_Call] = collections.deque()
        self._flying: dict[str, _Call] = {}
        self._slots: dict[str, _Slot] = {}
        self._made: list[run.Run] = []
        self._numbers = itertools.count()
        self._box: Mailbox | None = None
        self._secret = ""
        self._wake = asyncio.Event()
        self._closing = False
        self._aborting = False
        self._task: asyncio.Task[None] | None = None

    # --- from any thread

    def add(self, call: _Call) -> None:
        event_loop_thread.loop().call_soon_threadsafe(self._accept, call)

    def close_from_outside(self) -> None:
        event_loop_thread.start(self.close(cancel_pending=False))

    # --- on the loop

    def _accept(self, call: _Call) -> None:
        self._pending.append(call)
        self._poll()

    def _poll(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._wake.set()

    async def close(self, *, cancel_pending: bool) -> None:
        """Returns when every call has ended and the workers were asked to exit."""
        if cancel_pending:
            for call in self._pending:
                call.future.cancel()
        self._closing = True
        self._poll()
        if self._task is not None:
            await asyncio.shield(self._task)

    async def abort(self) -> tuple[int, int]:
        """Cancels all calls and stops the workers; returns how many of each."""
        self._closing = self._aborting = True
        calls = [*self._flying.values(), *self._pending]
        workers = len(self._slots)
        for call in calls:
            if not call.future.cancel():
                with contextlib.suppress(concurrent.futures.InvalidStateError):
                    call.future.set_exception(concurrent.futures.CancelledError())
        self._flying.clear()
        self._pending.clear()
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_ABORT_SECONDS)
        return len(calls), workers

    async def _run(self) -> None:
        helpers: list[asyncio.Task[None]] = []
        try:
            while True:
                self._wake.clear()
                self._drop_cancelled()
                if self._pending and self._box is None:
                    box = await self._open()
                    helpers = [
                        asyncio.create_task(self._for_ever(self._hear(box))),
                        asyncio.create_task(self._for_ever(self._watch_workers())),
                        asyncio.create_task(self._for_ever(self._beat(box))),
                    ]
                await self._hire()
                await self._feed()
                if self._closing and not self._pending and not self._flying:
                    return
                await self._wake.wait()
        except Exception as problem:
            self._break(problem)
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            await self._tidy()
            self._task = None

    def _drop_cancelled(self) -> None:
        kept = [call for call in self._pending if not call.future.cancelled()]
        if len(kept) < len(self._pending):
            for call in self._pending:
                if call.future.cancelled():
                    call.future.set_running_or_notify_cancel()
            self._pending = collections.deque(kept)

    async def _open(self) -> Mailbox:
        client = self._client
        if self._workdir is not None and "code" not in self._options:
            self._options["code"] = await client.upload(self._workdir)
        self._box = box = await Mailbox.create(client.store, client.namespace)
        await box.beat(0)
        self._secret = f"{self._name}-calls"
        await client.store.create(box.secret(self._secret))
        return box

    async def _hire(self) -> None:
        """Starts workers for the waiting calls."""
        work = len(self._pending) + len(self._flying)
        while len(self._slots) < min(self._size, work):
            name = f"{self._name}-{next(self._numbers)}"
            options = cast(Options, dict(self._options))
            options["name"] = name
            options["labels"] = {**self._options.get("labels", {}), LABEL: self._name}
            options["secrets"] = [*self._options.get("secrets", ()), self._secret]
            idle = {"WINDLASS_CALLS_IDLE": f"{self._idle:g}"}
            options["env"] = {**self._options.get("env", {}), **idle}
            options.setdefault("retries", 0)
            options.setdefault("keep", "1m")
            self._slots[name] = _Slot(name)
            program = self._box.command(self._options) if self._box else []
            made = await self._client.runs.submit(program, force=True, **options)
            self._made.append(made.run)
            await remote_functions.own(self._client.store, self._secret, self._made)

    async def _feed(self) -> None:
        """Puts calls into the mailbox, for as many as there are workers."""
        box = self._box
        ready = sum(slot.heard for slot in self._slots.values())
        while box is not None and ready and self._pending:
            if len(self._flying) >= ready + _AHEAD:
                return
            call = self._pending.popleft()
            if not call.tries and not call.future.set_running_or_notify_cancel():
                continue
            call.key = str(next(self._numbers))
            call.worker = ""
            call.tries += 1
            self._flying[call.key] = call
            try:
                await self._put(box, call)
            except errors.ApiError as problem:
                self._flying.pop(call.key)
                call.future.set_exception(problem)

    async def _put(self, box: Mailbox, call: _Call) -> None:
        """Puts a call under one key, and retries while the server is unreachable. The server may
        have it although its answer was lost; a call that is put twice under one key runs once."""
        while True:
            try:
                return await box.put(call.key, call.packed)
            except errors.Unavailable:
                await asyncio.sleep(_RETRY)

    async def _for_ever(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a background task; if it fails, all calls fail, because none would complete."""
        try:
            await work
        except Exception as problem:
            self._break(problem)

    async def _beat(self, box: Mailbox) -> None:
        """Sends heartbeats to the workers, forever."""
        for number in itertools.count(1):
            await asyncio.sleep(_BEAT_EVERY)
            with contextlib.suppress(errors.Unavailable):
                await box.beat(number)

    async def _hear(self, box: Mailbox) -> None:
        """Handles events of the mailbox, forever."""
        epoch, after = "", 0
        while True:
            try:
                news = await box.events(epoch, after)
            except errors.Unavailable:
                await asyncio.sleep(_RETRY)
                continue
            epoch, after = news["epoch"], news["after"]
            for item in news["events"]:
                await self._happened(box, item)
            self._wake.set()

    async def _happened(self, box: Mailbox, item: dict[str, Any]) -> None:
        if item["type"] == "worker":
            self._met(item["worker"], item["python"])
            return
        call = self._flying.get(item["call"])
        if call is None:
            return
        if item["type"] == "taken":
            call.worker, _, attempt = item["worker"].rpartition(".")
            call.attempt = int(attempt)
            slot = self._slots.get(call.worker)
            if slot is None or call.attempt < slot.attempt:
                await self._lost(call, f"worker {call.worker} is gone")
            return
        inline = item.get("result")
        result = base64.b64decode(inline) if inline is not None else await box.result(call.key)
        if result is not None:
            await self._finish(box, call, result)

    def _met(self, worker: str, python: str) -> None:
        slot = self._slots.get(worker.rpartition(".")[0])
        if slot is None:
            return
        slot.heard = True
        ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
        if python != ours:
            self._break(
                CannotShip(
                    f"workers run Python {python} and this program runs {ours}: functions cannot "
                    f"be sent between them; use python={ours!r}, or start this program with the "
                    "other"
                )
            )

    async def _finish(self, box: Mailbox, call: _Call, result: bytes) -> None:
        self._flying.pop(call.key, None)
        try:
            value = await asyncio.to_thread(mailbox.unpack, result)
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(value)
        with contextlib.suppress(errors.ApiError):
            await box.forget(call.key)

    async def _watch_workers(self) -> None:
        """Watches the runs of the workers, forever."""
        client = self._client
        stream = watching.changes(
            client.store, run.Run, client.namespace, label_selector=f"{LABEL}={self._name}"
        )
        async with contextlib.aclosing(stream) as changes:
            async for change, current in changes:
                if current.name in self._slots:
                    if change == "DELETED" or current.finished:
                        await self._ended(current)
                    elif current.status.attempt > self._slots[current.name].attempt:
                        await self._started_again(current)
                    elif current.status.reason == "Impossible":
                        self._never(current)

    async def _ended(self, ended: run.Run) -> None:
        slot = self._slots.pop(ended.name)
        status = ended.status
        why = f"{status.reason}: {status.message}" if status.message else status.reason or "deleted"
        had = [call for call in self._flying.values() if call.worker == slot.name]
        await self._left(had, f"worker {slot.name} ended ({why})")
        if not slot.heard and not any(each.heard for each in self._slots.values()):
            self._break(
                WorkerLost(
                    f"worker {slot.name} ended before its first call ({why}); read its log: "
                    f"windlass logs {slot.name}"
                )
            )
        self._wake.set()

    async def _started_again(self, current: run.Run) -> None:
        """The run was preempted, suspended or moved: the calls of its last attempt are lost."""
        slot, status = self._slots[current.name], current.status
        slot.attempt = status.attempt
        had = [
            call
            for call in self._flying.values()
            if call.worker == slot.name and call.attempt < slot.attempt
        ]
        await self._left(had, f"worker {slot.name} was stopped ({status.reason})")
        self._wake.set()

    async def _left(self, calls: list[_Call], why: str) -> None:
        """Handles the calls of a lost worker: those with a result are done, the others are lost."""
        box = self._box
        for call in calls:
            result = await box.result(call.key) if box is not None else None
            if box is not None and result is not None:
                await self._finish(box, call, result)
            else:
                await self._lost(call, why)

    def _never(self, waiting: run.Run) -> None:
        if not any(slot.heard for slot in self._slots.values()):
            self._break(
                WorkerLost(f"no worker can ever start: {waiting.status.message}; request less")
            )

    async def _lost(self, call: _Call, why: str) -> None:
        self._flying.pop(call.key, None)
        if self._box is not None:
            with contextlib.suppress(errors.ApiError):
                await self._box.forget(call.key)
        if call.tries <= self._retries:
            self._pending.appendleft(call)
            return
        call.future.set_exception(
            WorkerLost(
                f"{why} while it worked on this call, which may have had effects; "
                "Executor(call_retries=...) retries such calls"
            )
        )

    def _break(self, problem: Exception) -> None:
        """Fails all submitted calls; later calls are tried again."""
        for call in (*self._flying.values(), *self._pending):
            # A future that is cancelled at this moment needs no exception.
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                call.future.set_exception(problem)
        self._flying.clear()
        self._pending.clear()
        self._wake.set()

    async def _tidy(self) -> None:
        """Workers end when their mailbox is gone; those that have not started are deleted. After an
        abort, workers stop without the end of their call."""
        box, self._box = self._box, None
        slots, self._slots = self._slots, {}
        store, namespace = self._client.store, self._client.namespace
        work: list[Coroutine[Any, Any, Any]] = [] if box is None else [box.delete()]
        for slot in slots.values():
            if not slot.heard:
                work.append(store.delete(run.Run, slot.name, namespace))
            elif self._aborting:
                patch = {"spec": {"stop": True}}
                work.append(store.patch(run.Run, slot.name, namespace, patch=patch))
        if self._secret:
            work.append(store.delete(core.Secret, self._secret, namespace))
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, errors.ApiError):
                raise outcome
        self._made.clear()


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
