"""Executes a pipeline: looks each step up, executes what has no result, stores what it returned.

The function of the pipeline runs in the caller's thread; everything else on the SDK's loop. A step
is a call in a warm worker, or a run if it has several replicas. If the driver is killed, the next
one finds the results that were stored and continues after them.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import hashlib
import inspect
import pickle
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from windlass.pipelines.fingerprint.collector import CannotFingerprint
from windlass.pipelines.fingerprint.step_key import StepKey, step_key
from windlass.sdk import event_loop_thread
from windlass.sdk.executor.executor import Executor
from windlass.sdk.pipelines.step_cache import StepCache, Stored
from windlass.sdk.pipelines.step_definition import Step
from windlass.sdk.pipelines.step_results import StepEvent, StepResult
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client

_IDLE_SECONDS = 1.0
_ENVIRONMENT = ("python", "requirements", "image", "setup", "env")
"""Options of a step that are part of its environment."""


class Driver:
    """One execution of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        client: Client,
        on_step: Callable[[StepEvent], None],
        *,
        parallel: int,
        workdir: str | None,
    ) -> None:
        self._pipeline = pipeline
        self._parallel = parallel
        self._workdir = workdir
        self._client = client
        self._on_step = on_step
        self._cache = StepCache(client.aio, pipeline)
        self._executors: dict[str, Executor] = {}
        self._calls: collections.Counter[str] = collections.Counter()
        """Calls that wait or run, by the options of their workers."""
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._results: list[StepResult] = []
        self._by_key: dict[str, asyncio.Future[None]] = {}
        """Calls with equal keys: the second waits for the first."""
        self.events: list[StepEvent] = []

    # --- from the caller's thread

    def submit(
        self, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], position: int = 0
    ) -> StepResult:
        bound = _bound(step, args, kwargs)
        result = StepResult(self.load, step.name, position)
        self._results.append(result)
        event_loop_thread.start(self._run(step, bound, position, result))
        return result

    def finish(self, value: Any) -> Any:
        """Waits for all steps; the value with results of steps in it replaced by theirs."""
        index = 0
        while index < len(self._results):  # a step may be submitted while another is awaited
            self._results[index].stored.result()
            index += 1
        return _resolved(value, lambda each: each.result())

    def close(self, *, aborted: bool) -> None:
        for executor in list(self._executors.values()):
            executor.abort() if aborted else executor.shutdown()
        event_loop_thread.call(self._close())

    # --- on the loop

    async def load(self, stored: Stored) -> Any:
        content = await self._cache.content(stored)
        # Written by a worker or a driver of this namespace, whose members may run code as another.
        return await asyncio.to_thread(pickle.loads, content)

    async def _close(self) -> None:
        for task in self._retiring.values():
            task.cancel()
        await self._cache.give_up()
        await self._cache.close()

    async def _run(
        self, step: Step, bound: inspect.BoundArguments, position: int, result: StepResult
    ) -> None:
        began, miss = time.monotonic(), ""
        try:
            inputs = await self._inputs(bound)
            key, miss = await self._key(step, bound, inputs)
            stored = None if key is None else await self._known(step, key, position)
            state = "executed" if stored is None else "cached"
            if stored is None:
                if key is not None:
                    miss = await self._cache.why_missed(step.name, key, position)
                stored = await self._execute(step, bound, key, position, miss)
        except BaseException as problem:
            self._ended(StepEvent(step.name, position, "failed", time.monotonic() - began, miss))
            if not result.stored.done():
                result.stored.set_exception(problem)
            if not isinstance(problem, Exception):
                raise
            return
        self._ended(StepEvent(step.name, position, state, time.monotonic() - began, miss))
        result.stored.set_result(stored)

    def _ended(self, event: StepEvent) -> None:
        self.events.append(event)
        self._on_step(event)

    async def _inputs(self, bound: inspect.BoundArguments) -> dict[int, Stored]:
        """The results that the arguments contain, by identity, when they are there."""
        found: dict[int, Stored] = {}
        for each in _contained(bound.arguments):
            found[id(each)] = await asyncio.wrap_future(each.stored)
        return found

    async def _key(
        self, step: Step, bound: inspect.BoundArguments, inputs: Mapping[int, Stored]
    ) -> tuple[StepKey | None, str]:
        """The key, or why there is none."""
        if not step.cache:
            return None, "cache=False"

        def make() -> StepKey:
            parameters, digests = {}, {}
            for name, value in bound.arguments.items():
                if isinstance(value, StepResult):
                    digests[name] = inputs[id(value)].digest
                else:
                    parameters[name] = _resolved(
                        value, lambda each: ("result of a step", inputs[id(each)].digest)
                    )
            return step_key(
                step.function, parameters, inputs=digests, environment=_environment(step.options),
                salt=step.salt, ignore=step.ignore,
            )  # fmt: skip

        try:
            return await asyncio.to_thread(make), ""
        except CannotFingerprint as problem:
            return None, f"not cached: {problem}"

    async def _known(self, step: Step, key: StepKey, position: int) -> Stored | None:
        """The result; None after the step was claimed for this driver."""
        while (same := self._by_key.get(key.digest)) is not None:
            await asyncio.shield(same)
        running: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_key[key.digest] = running
        stored: Stored | None = None
        try:
            stored = await self._cache.claim(step.name, key, position)
            return stored
        finally:
            if stored is not None or sys.exc_info()[0] is not None:
                self._settle(key)

    def _settle(self, key: StepKey) -> None:
        running = self._by_key.pop(key.digest, None)
        if running is not None and not running.done():
            running.set_result(None)

    async def _execute(
        self,
        step: Step,
        bound: inspect.BoundArguments,
        key: StepKey | None,
        position: int,
        miss: str,
    ) -> Stored:
        try:
            content, run = await self._called(step, bound)
            if key is None:
                digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
                return Stored(digest, len(content), content)
            stored = await self._cache.put(key, content, run, miss)
            if stored is None:  # another driver took over the claim and was first
                stored = await self._cache.claim(step.name, key, position)
            return stored or Stored("", len(content), content)
        except BaseException:
            if key is not None:
                await self._cache.give_up(key)
            raise
        finally:
            if key is not None:
                self._settle(key)

    async def _called(self, step: Step, bound: inspect.BoundArguments) -> tuple[bytes, str]:
        """What the step returned, pickled, and the run that executed it."""
        values: dict[int, Any] = {}
        for each in _contained(bound.arguments):
            values[id(each)] = await self.load(await asyncio.wrap_future(each.stored))
        arguments = inspect.BoundArguments(
            bound.signature,
            {
                name: _resolved(value, lambda each: values[id(each)])
                for name, value in bound.arguments.items()
            },
        )
        call = _pickled(step.function)
        for tries_left in range(step.retries, -1, -1):
            try:
                return await self._once(step, call, arguments)
            except Exception:
                if not tries_left:
                    raise
        raise AssertionError("unreachable")  # pragma: no cover

    async def _once(
        self, step: Step, call: Callable[..., bytes], arguments: inspect.BoundArguments
    ) -> tuple[bytes, str]:
        args, kwargs = arguments.args, arguments.kwargs
        pool = _options_key(step.options)
        self._calls[pool] += 1
        self._retire_idle()
        try:
            return await self._sent(step, call, args, kwargs)
        finally:
            self._calls[pool] -= 1
            self._retire_idle()

    async def _sent(
        self,
        step: Step,
        call: Callable[..., bytes],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> tuple[bytes, str]:
        if step.options.get("workers", 1) > 1:
            bound = functools.partial(call, **kwargs) if kwargs else call
            handle = await self._client.aio.runs.submit(
                bound, *args, workdir=self._workdir, **step.options
            )
            by_rank = [
                await asyncio.to_thread(pickle.loads, each) for each in await handle.result()
            ]
            return _dumps(by_rank), handle.name
        executor = self._executor(step.options)
        future = await asyncio.to_thread(executor.submit, call, *args, **kwargs)
        return await asyncio.wrap_future(future), ""

    def _retire_idle(self) -> None:
        """Ends workers that have no calls while steps with other options wait for capacity, which
        they may occupy."""
        for pool in self._executors:
            if not self._calls[pool] and pool not in self._retiring:
                self._retiring[pool] = asyncio.create_task(self._retire(pool))

    async def _retire(self, pool: str) -> None:
        await asyncio.sleep(_IDLE_SECONDS)
        del self._retiring[pool]
        if self._calls[pool] or not self._calls.total():
            return
        executor = self._executors.pop(pool)
        await asyncio.to_thread(executor.shutdown)

    def _executor(self, options: Options) -> Executor:
        key = _options_key(options)
        if key not in self._executors:
            own = cast(Options, {"name": self._pipeline.replace("_", "-").lower(), **options})
            own.pop("workers", None)
            self._executors[key] = Executor(
                self._parallel, client=self._client, workdir=self._workdir, **own
            )
        return self._executors[key]


def _bound(step: Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
    """The arguments by name; TypeError at once if they do not fit."""
    bound = inspect.signature(step.function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound


def _contained(value: Any) -> list[StepResult]:
    """The results of steps in a value, in lists, tuples and dictionaries of any depth."""
    if isinstance(value, StepResult):
        return [value]
    if isinstance(value, dict):
        return [each for item in value.values() for each in _contained(item)]
    if isinstance(value, (list, tuple)):
        return [each for item in value for each in _contained(item)]
    return []


def _resolved(value: Any, replace: Callable[[StepResult], Any]) -> Any:
    """The value with each result of a step replaced; the same object if it contains none."""
    if not _contained(value):
        return value
    if isinstance(value, StepResult):
        return replace(value)
    if isinstance(value, dict):
        return {key: _resolved(each, replace) for key, each in value.items()}
    items = [_resolved(each, replace) for each in value]
    return items if isinstance(value, list) else tuple(items)


def _options_key(options: Mapping[str, Any]) -> str:
    """Equal for equal options of workers."""
    return repr(sorted(options.items()))


def _environment(options: Options) -> str:
    """Of the workers of a step. Libraries that its code refers to are parts of the key."""
    chosen = {name: options[name] for name in _ENVIRONMENT if name in options}  # type: ignore[literal-required]
    here = f"python {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"
    return hashlib.sha256(f"{here} {_options_key(chosen)}".encode()).hexdigest()


def _pickled(function: Callable[..., Any]) -> Callable[..., bytes]:
    """A function whose result is pickled in the worker: its content is compared and stored, and
    seldom needed by the driver. A closure is sent by value, so the worker needs no windlass."""

    def call(*args: Any, **kwargs: Any) -> bytes:
        import cloudpickle

        return cast(bytes, cloudpickle.dumps(function(*args, **kwargs)))

    return call


def _dumps(value: Any) -> bytes:
    import cloudpickle

    return cast(bytes, cloudpickle.dumps(value))
