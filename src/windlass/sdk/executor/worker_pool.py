"""The workers of an executor: runs that take calls from its mailbox, on the SDK's event loop."""

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
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, cast

from windlass.kinds.types import core, run
from windlass.sdk import event_loop_thread, remote_functions, run_builder, watching
from windlass.sdk.async_client import AsyncClient
from windlass.sdk.errors import CannotShip, WorkerLost
from windlass.sdk.run_options import Options
from windlass.sdk.transfer import mailbox
from windlass.sdk.transfer.mailbox import Mailbox
from windlass.store import errors

LABEL = "windlass.dev/executor"
_RETRY = 0.5
_BEAT_EVERY = 3.0
"""Seconds between two heartbeats; workers end 9 to 12 seconds after the last one."""
_ABORT_SECONDS = 5.0
"""The longest time in which an interrupted program asks its workers to stop."""
OnMessage = Callable[[bytes], Awaitable[bytes]]
"""Answers messages that calls send with `windlass_worker.ask`; it is called on the SDK's loop."""
_AHEAD = 1
"""Calls that are ready in the mailbox beside those in progress, so that a worker never waits."""


@dataclasses.dataclass(eq=False, slots=True)
class Call:
    future: concurrent.futures.Future[Any]
    packed: bytes
    key: str = ""
    worker: str = ""
    """The run of the worker that has the call."""
    attempt: int = 0
    """The attempt of that run."""
    tries: int = 0
    heard: int = 0
    """The number of its last message."""


@dataclasses.dataclass(eq=False, slots=True)
class _Slot:
    """A worker: its run, and whether it has contacted the mailbox."""

    name: str
    heard: bool = False
    attempt: int = 0


class WorkerPool:
    """The executor on the SDK's loop."""

    def __init__(
        self,
        client: AsyncClient,
        size: int,
        retries: int,
        idle_timeout: float,
        workdir: str | os.PathLike[str] | None,
        options: Options,
        on_message: OnMessage | None,
    ) -> None:
        self._client = client
        self._on_message = on_message
        self._answers: set[asyncio.Task[None]] = set()
        self._size = size
        self._retries = retries
        self._idle = idle_timeout
        self._workdir = workdir
        self._options = options
        # Another executor of the same name may have ended a moment ago, its runs still listed.
        self._name = run_builder.name_for([options.get("name", "calls")[:28]])
        self._pending: collections.deque[Call] = collections.deque()
        self._flying: dict[str, Call] = {}
        self._slots: dict[str, _Slot] = {}
        self._made: list[run.Run] = []
        self._numbers = itertools.count()
        self._box: Mailbox | None = None
        self._secret = ""
        self._wake = asyncio.Event()
        self._closing = False
        self._aborting = False
        self._is_deaf = False
        """A background task has failed: the next call needs a new mailbox and new workers."""
        self._task: asyncio.Task[None] | None = None

    # --- from any thread

    def add(self, call: Call) -> None:
        event_loop_thread.loop().call_soon_threadsafe(self._accept, call)

    def close_from_outside(self) -> None:
        event_loop_thread.start(self.close(cancel_pending=False))

    # --- on the loop

    def _accept(self, call: Call) -> None:
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
                if self._is_deaf:
                    self._is_deaf = False
                    await _ended(helpers)
                    await self._tidy()
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
            await _ended(helpers)
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

    async def _put(self, box: Mailbox, call: Call) -> None:
        """Puts a call under one key, and retries while the server is unreachable. The server may
        have it although its answer was lost; a call that is put twice under one key runs once."""
        while True:
            try:
                return await box.put(call.key, call.packed)
            except errors.PASSING:
                await asyncio.sleep(_RETRY)

    async def _for_ever(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a background task; if it fails, all calls fail, because none would complete."""
        try:
            await work
        except Exception as problem:
            self._is_deaf = True
            self._break(problem)

    async def _beat(self, box: Mailbox) -> None:
        """Sends heartbeats to the workers, forever."""
        for number in itertools.count(1):
            await asyncio.sleep(_BEAT_EVERY)
            with contextlib.suppress(*errors.PASSING):
                await box.beat(number)

    async def _hear(self, box: Mailbox) -> None:
        """Handles events of the mailbox, forever."""
        epoch, after = "", 0
        while True:
            try:
                news = await box.events(epoch, after)
            except errors.PASSING:
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
        call = self._flying.get(item["call"].removeprefix("m"))
        if call is None:
            return
        if item["call"].startswith("m"):
            await self._heard(box, call, item)
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

    async def _heard(self, box: Mailbox, call: Call, item: dict[str, Any]) -> None:
        """A message of a call: answered beside the other events. A server that was restarted
        repeats events, so a message may come again."""
        inline = item.get("result")
        key = item["call"]
        message = base64.b64decode(inline) if inline is not None else await box.result(key)
        number, _, content = (message or b"0\n").partition(b"\n")
        if self._on_message is None or int(number) <= call.heard:
            return
        call.heard = int(number)

        async def answer(reply: Awaitable[bytes]) -> None:
            packed = number + b"\n" + await reply
            while True:
                try:
                    return await box.put(key, packed)
                except errors.PASSING:
                    await asyncio.sleep(_RETRY)
                except errors.ApiError:  # the mailbox was closed meanwhile
                    return None

        task = asyncio.create_task(answer(self._on_message(content)))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

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

    async def _finish(self, box: Mailbox, call: Call, result: bytes) -> None:
        self._flying.pop(call.key, None)
        try:
            value = await asyncio.to_thread(mailbox.unpack, result)
        except BaseException as error:
            call.future.set_exception(error)
        else:
            call.future.set_result(value)
        await self._forget(box, call)

    async def _forget(self, box: Mailbox, call: Call) -> None:
        with contextlib.suppress(errors.ApiError):
            await box.forget(call.key)
            if call.heard:
                await box.forget(f"m{call.key}")

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

    async def _left(self, calls: list[Call], why: str) -> None:
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

    async def _lost(self, call: Call, why: str) -> None:
        self._flying.pop(call.key, None)
        if self._box is not None:
            await self._forget(self._box, call)
        call.heard = 0
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


async def _ended(helpers: list[asyncio.Task[None]]) -> None:
    for helper in helpers:
        helper.cancel()
    await asyncio.gather(*helpers, return_exceptions=True)
