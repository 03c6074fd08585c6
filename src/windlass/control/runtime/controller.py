"""Drives a reconciler: workers on a work queue, back-off, resync, metrics.

A reconciler is one async function from a key to a `Result`. It reads the objects of that key and
writes the desired state; it keeps no state of its own between calls, so it can be called at any
time, in any order, and tested by calling it. Informer handlers call `Controller.enqueue`.

The runtime never reads objects.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from windlass.control.runtime import work_report, workqueue
from windlass.kinds.values import times
from windlass.store import errors
from windlass.telemetry import prometheus

log = logging.getLogger(__name__)

Key = tuple[str, str]
"""(namespace, name); the namespace is "" for cluster-scoped kinds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The end of a reconcile: done, requeued (`after` seconds), or failed."""

    after: float | None = None
    error: str = ""


DONE = Result()

GRACE = 5.0
"""Seconds that a started reconcile may take to finish when its controller stops."""


def again(after: float) -> Result:
    """No error, but reconcile again in `after` seconds."""
    return Result(after=after)


def failed(message: str) -> Result:
    """It failed; retry with back-off."""
    return Result(error=message)


Reconcile = Callable[[Key], Awaitable[Result]]


class Meters:
    """The metrics of all controllers, by name of the controller."""

    def __init__(self, registry: prometheus.Registry) -> None:
        by = ("controller",)
        prefix = "windlass_controller"
        self.depth = registry.gauge(f"{prefix}_queue_depth", "Keys ready to be worked on.", by)
        self.latency = registry.histogram(
            f"{prefix}_queue_latency_seconds", "How long keys were ready before a worker came.", by
        )
        self.work = registry.histogram(
            f"{prefix}_work_seconds", "How long one reconcile took.", by
        )  # fmt: skip
        self.retries = registry.counter(f"{prefix}_retries_total", "Keys put back to retry.", by)
        self.errors = registry.counter(f"{prefix}_errors_total", "Reconciles that failed.", by)


class Controller:
    """Workers that call one reconciler for the keys that changed."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        keys: Callable[[], Iterable[Key]] = tuple,
        workers: int = 2,
        resync: float = 600.0,
        registry: prometheus.Registry | None = None,
        timers: workqueue.Timers | None = None,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._keys = keys
        """All keys, for the resync: it covers lost wake-ups."""
        self._workers = workers
        self._resync = resync
        self._meters = Meters(registry or prometheus.Registry())
        self._queue: workqueue.WorkQueue[Key] = workqueue.WorkQueue(
            timers=timers, on_wait=self._waited
        )
        self._last_error: dict[Key, str] = {}
        self._last: float | None = None
        self._seconds = 0.0
        self._errors = 0

    def enqueue(self, key: Key) -> None:
        self._queue.add(key)
        self._show_depth()

    def progress(self) -> work_report.Progress:
        return work_report.Progress(
            len(self._queue), self._queue.oldest(), self._last, self._seconds, self._errors
        )

    async def run(self) -> None:
        """Works until cancelled; started reconciles get `GRACE` seconds to finish."""
        workers = [
            asyncio.create_task(self._work(), name=f"{self.name}-worker-{i}")
            for i in range(self._workers)
        ]
        resync = asyncio.create_task(self._resync_forever(), name=f"{self.name}-resync")
        try:
            finished, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in finished:
                worker.result()
        finally:
            resync.cancel()
            self._queue.close()
            await asyncio.wait(workers, timeout=GRACE)
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, resync, return_exceptions=True)

    def close(self) -> None:
        """Makes `run` return after the started reconciles."""
        self._queue.close()

    async def process_next(self) -> bool:
        """Reconciles one key; False when the queue is closed."""
        key = await self._queue.get()
        if key is None:
            return False
        self._show_depth()
        started = time.perf_counter()
        try:
            result, least = await self._call(key)
            self._settle(key, result, least)
        finally:
            self._last, self._seconds = times.now().timestamp(), time.perf_counter() - started
            self._meters.work.observe(self.name, value=self._seconds)
            self._queue.done(key)
            self._show_depth()
        return True

    async def _work(self) -> None:
        while await self.process_next():
            pass

    async def _resync_forever(self) -> None:
        while True:
            await asyncio.sleep(self._resync)
            for key in list(self._keys()):
                self._queue.add(key)

    async def _call(self, key: Key) -> tuple[Result, float]:
        """The result, and the minimum delay before a retry."""
        try:
            return await self._reconcile(key), 0.0
        except errors.Conflict as conflict:
            # Another writer came first: normal with optimistic concurrency, not an error.
            log.debug("%s: %s will be reconciled again: %s", self.name, _shown(key), conflict)
            return Result(after=0.0), 0.0
        except errors.ApiError as error:
            return failed(f"{type(error).__name__}: {error.message}"), error.retry_after or 0.0
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            if self._last_error.get(key) != message:
                log.exception("%s: %s raised", self.name, _shown(key))
            return failed(message), 0.0

    def _settle(self, key: Key, result: Result, least_delay: float) -> None:
        if result.error:
            self._errors += 1
            self._meters.errors.add(self.name)
            if self._last_error.get(key) != result.error:
                log.warning("%s: %s failed: %s", self.name, _shown(key), result.error)
                self._last_error[key] = result.error
        if result.error or result.after == 0.0:
            self._meters.retries.add(self.name)
            self._queue.retry(key, least_delay)
            return
        self._queue.forget(key)
        if self._last_error.pop(key, None) is not None:
            log.info("%s: %s works again", self.name, _shown(key))
        if result.after is not None:
            self._queue.add_after(key, result.after)

    def _waited(self, seconds: float) -> None:
        self._meters.latency.observe(self.name, value=seconds)

    def _show_depth(self) -> None:
        self._meters.depth.set(self.name, to=len(self._queue))


def _shown(key: Key) -> str:
    namespace, name = key
    return f"{namespace}/{name}" if namespace else name
