"""`windlass.Executor`: a `concurrent.futures.Executor` whose workers are runs.

Each slot is a Run of one worker that starts when there is work for it, takes call after call out
of the executor's mailbox and ends when it has been idle for a while. `_Pool` lives on the SDK's
loop; `Executor` is its face for plain threads.
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

from windlass.kinds import kubernetes, run
from windlass.sdk import failures, functions, portal, runs, watching
from windlass.sdk.aio import AsyncClient, check
from windlass.sdk.client import Client
from windlass.sdk.functions import Mailbox
from windlass.sdk.options import Options
from windlass.store import errors

T = TypeVar("T")

LABEL = "windlass.dev/executor"
_RETRY = 0.5
_AHEAD = 1
"""Calls that lie ready in the mailbox beside those that are worked on: a worker never waits."""


class Executor(concurrent.futures.Executor):
    """Calls functions in workers of the platform.

        with windlass.Executor(max_workers=4, gpus=1) as pool:
            scores = list(pool.map(evaluate, checkpoints))

    Functions and arguments are packed with cloudpickle: what a notebook or a script defines goes
    along; modules of your own must be there at the other end (`workdir=`). Workers start when
    there is work, each as a run of its own that waits in the queue like any other, take call after
    call, and end after `idle_timeout` seconds without one.

    A call whose worker is lost fails with `WorkerLost`, or is made again up to `call_retries`
    times. The words for a run (`gpus`, `memory`, `queue` ...) hold for each worker.
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
        check(functions.command(options), options)
        self._own_client = client is None
        self._client = client or Client()
        self._pool = _Pool(
            self._client.aio, max_workers, call_retries, idle_timeout, workdir, options
        )
        self._lock = threading.Lock()
        self._shut = False
        self._finalizer = weakref.finalize(self, _Pool.close_from_outside, self._pool)
        self._finalizer.atexit = False
        portal.at_exit.add(self)

    def submit(
        self, fn: Callable[..., T], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[T]:
        """The future result of `fn(*args, **kwargs)` in a worker."""
        with self._lock:
            if self._shut:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future: concurrent.futures.Future[T] = concurrent.futures.Future()
            try:
                packed = functions.pack(fn, args, kwargs)
            except failures.CannotShip as problem:
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
        """As the built-in `map`; with a `chunksize`, so many calls travel as one."""
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = _chunks(zip(*iterables, strict=False), chunksize)
        found = super().map(_for_each(fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(found)

    def close(self) -> None:
        """As the standard library's: a program ends when what it handed in has ended."""
        self.shutdown(wait=True)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Takes no more calls; with `wait` returns when those handed in have ended."""
        with self._lock:
            self._shut = True
        portal.at_exit.discard(self)
        closing = portal.start(self._pool.close(cancel_pending=cancel_futures))
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
    """The run that has it."""
    attempt: int = 0
    """The attempt of it that has it."""
    tries: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class _Slot:
    """A worker: the run that it is, and whether it has been heard of."""

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
        self._name = runs.name_for([options.get("name", "calls")[:28]])
        self._pending: collections.deque[_Call] = collections.deque()
        self._flying: dict[str, _Call] = {}
        self._slots: dict[str, _Slot] = {}
        self._made: list[run.Run] = []
        self._numbers = itertools.count()
        self._box: Mailbox | None = None
        self._secret = ""
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    # --- from any thread

    def add(self, call: _Call) -> None:
        portal.loop().call_soon_threadsafe(self._accept, call)

    def close_from_outside(self) -> None:
        portal.start(self.close(cancel_pending=False))

    # --- on the loop

    def _accept(self, call: _Call) -> None:
        self._pending.append(call)
        self._look()

    def _look(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        self._wake.set()

    async def close(self, *, cancel_pending: bool) -> None:
        """Returns when every call has ended and the workers have been told to go."""
        if cancel_pending:
            for call in self._pending:
                call.future.cancel()
        self._closing = True
        self._look()
        if self._task is not None:
            await asyncio.shield(self._task)

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
                        asyncio.create_task(self._for_ever(self._mind())),
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
        self._secret = f"{self._name}-calls"
        await client.store.create(box.secret(self._secret))
        return box

    async def _hire(self) -> None:
        """As many workers as there is work for."""
        work = len(self._pending) + len(self._flying)
        while len(self._slots) < min(self._size, work):
            name = f"{self._name}-{next(self._numbers)}"
            words = cast(Options, dict(self._options))
            words["name"] = name
            words["labels"] = {**self._options.get("labels", {}), LABEL: self._name}
            words["secrets"] = [*self._options.get("secrets", ()), self._secret]
            idle = {"WINDLASS_CALLS_IDLE": f"{self._idle:g}"}
            words["env"] = {**self._options.get("env", {}), **idle}
            words.setdefault("retries", 0)
            words.setdefault("keep", "1m")
            self._slots[name] = _Slot(name)
            program = self._box.command(self._options) if self._box else []
            made = await self._client.runs.submit(program, **words)
            self._made.append(made.run)
            await functions.own(self._client.store, self._secret, self._made)

    async def _feed(self) -> None:
        """Puts calls into the mailbox, as many as workers are there to take them."""
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
        """Under one key, however often the server is away: it may have it although nobody was
        told, and what is put twice under one key is done once."""
        while True:
            try:
                return await box.put(call.key, call.packed)
            except errors.Unavailable:
                await asyncio.sleep(_RETRY)

    async def _for_ever(self, work: Coroutine[Any, Any, None]) -> None:
        """What ends it ends the calls as well: nobody would tell of them any more."""
        try:
            await work
        except Exception as problem:
            self._break(problem)

    async def _hear(self, box: Mailbox) -> None:
        """News of the mailbox, for ever."""
        epoch, after = "", 0
        while True:
            try:
                told = await box.events(epoch, after)
            except errors.Unavailable:
                await asyncio.sleep(_RETRY)
                continue
            epoch, after = told["epoch"], told["after"]
            for item in told["events"]:
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
                failures.CannotShip(
                    f"workers run Python {python} and this program runs {ours}: functions cannot "
                    f"travel between them; give python={ours!r}, or start this program with the "
                    "other"
                )
            )

    async def _finish(self, box: Mailbox, call: _Call, result: bytes) -> None:
        self._flying.pop(call.key, None)
        try:
            value = await asyncio.to_thread(functions.unpack, result)
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(value)
        with contextlib.suppress(errors.ApiError):
            await box.forget(call.key)

    async def _mind(self) -> None:
        """Watches the workers' runs, for ever."""
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
                failures.WorkerLost(
                    f"worker {slot.name} ended before its first call ({why}); see what it printed: "
                    f"windlass logs {slot.name}"
                )
            )
        self._wake.set()

    async def _started_again(self, current: run.Run) -> None:
        """It was preempted, held or moved: what its last attempt had taken is lost."""
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
        """Calls whose worker is no more: what it has done is done, the rest is lost."""
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
                failures.WorkerLost(
                    f"no worker can ever start: {waiting.status.message}; ask for less"
                )
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
            failures.WorkerLost(
                f"{why} while it worked on this call, which may have had effects; "
                "Executor(call_retries=...) makes such calls again"
            )
        )

    def _break(self, problem: Exception) -> None:
        """Nothing that was handed in will be done; what comes later is tried anew."""
        for call in (*self._flying.values(), *self._pending):
            # One that was cancelled, or is at this moment, needs no other end.
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                call.future.set_exception(problem)
        self._flying.clear()
        self._pending.clear()
        self._wake.set()

    async def _tidy(self) -> None:
        """Workers end when their mailbox is gone; those that have not started are deleted."""
        box, self._box = self._box, None
        slots, self._slots = self._slots, {}
        with contextlib.suppress(errors.ApiError):
            if box is not None:
                await box.delete()
            for slot in slots.values():
                if not slot.heard:
                    await self._client.store.delete(run.Run, slot.name, self._client.namespace)
            if self._secret:
                await self._client.store.delete(
                    kubernetes.Secret, self._secret, self._client.namespace
                )
        self._made.clear()


def _chunks(items: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    source = iter(items)
    while chunk := list(itertools.islice(source, size)):
        yield chunk


def _for_each(function: Callable[..., T]) -> Callable[[list[tuple[Any, ...]]], list[T]]:
    """Calls a function for each of several arguments. A closure travels by value: the worker need
    not have windlass."""

    def each(chunk: list[tuple[Any, ...]]) -> list[T]:
        return [function(*args) for args in chunk]

    return each
