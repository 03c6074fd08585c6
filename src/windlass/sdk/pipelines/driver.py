"""Executes a pipeline: looks each step up, executes what has no result, stores what it returned.

The function of the pipeline runs in the caller's thread; everything else on the SDK's loop. A step
is a call in a warm worker, or a run if it has several replicas. If the driver is killed, the next
one finds the results that were stored and continues after them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
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
from windlass.sdk.pipelines.step_definition import Pipeline, Step, active, options_key
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client

_ENVIRONMENT = ("python", "requirements", "image", "setup", "env")
"""Options of a step that are part of its environment."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepEvent:
    """How one call of a step ended."""

    step: str
    position: int
    state: str
    """`cached`, `executed` or `failed`."""
    seconds: float
    miss: str
    """Why the result was not known; "" if it was."""


@dataclasses.dataclass(frozen=True, slots=True)
class PipelineOutcome:
    value: Any
    steps: tuple[StepEvent, ...]

    def count(self, state: str) -> int:
        return sum(each.state == state for each in self.steps)


class StepResult:
    """The result of a call of a step that may not have ended yet."""

    def __init__(self, driver: Driver, step: str, position: int) -> None:
        self._driver = driver
        self._name = step if not position else f"{step}[{position}]"
        self.stored: concurrent.futures.Future[Stored] = concurrent.futures.Future()
        """The result on the server."""
        self._value: concurrent.futures.Future[Any] | None = None

    def __repr__(self) -> str:
        state = "has ended" if self.stored.done() else "has not ended"
        return f"<result of step {self._name}, which {state}>"

    def __iter__(self) -> Any:
        return iter(self.result())

    def __bool__(self) -> bool:
        return bool(self.result())

    def result(self, timeout: float | None = None) -> Any:
        """The value that the step returned; raises the exception of the step."""
        stored = self.stored.result(timeout)
        if self._value is None:
            self._value = event_loop_thread.start(self._driver.load(stored))
        return self._value.result(timeout)


class Driver:
    """One execution of a pipeline."""

    def __init__(
        self, pipeline: Pipeline, client: Client, on_step: Callable[[StepEvent], None]
    ) -> None:
        self._pipeline = pipeline
        self._client = client
        self._on_step = on_step
        self._cache = StepCache(client.aio, pipeline.name)
        self._executors: dict[str, Executor] = {}
        self._results: list[StepResult] = []
        self._by_key: dict[str, asyncio.Future[None]] = {}
        """Calls with equal keys: the second waits for the first."""
        self.events: list[StepEvent] = []

    # --- from the caller's thread

    def submit(
        self, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], position: int = 0
    ) -> StepResult:
        bound = _bound(step, args, kwargs)
        result = StepResult(self, step.name, position)
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
        for executor in self._executors.values():
            executor.abort() if aborted else executor.shutdown()
        event_loop_thread.call(self._close())

    # --- on the loop

    async def load(self, stored: Stored) -> Any:
        content = await self._cache.content(stored)
        # Written by a worker or a driver of this namespace, whose members may run code as another.
        return await asyncio.to_thread(pickle.loads, content)

    async def _close(self) -> None:
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
        if step.options.get("workers", 1) > 1:
            bound = functools.partial(call, **kwargs) if kwargs else call
            handle = await self._client.aio.runs.submit(
                bound, *args, workdir=self._pipeline.workdir, **step.options
            )
            by_rank = [
                await asyncio.to_thread(pickle.loads, each) for each in await handle.result()
            ]
            return _dumps(by_rank), handle.name
        executor = self._executor(step.options)
        future = await asyncio.to_thread(executor.submit, call, *args, **kwargs)
        return await asyncio.wrap_future(future), ""

    def _executor(self, options: Options) -> Executor:
        key = options_key(options)
        if key not in self._executors:
            own = cast(Options, {"name": self._pipeline.name.replace("_", "-").lower(), **options})
            own.pop("workers", None)
            self._executors[key] = Executor(
                self._pipeline.parallel, client=self._client, workdir=self._pipeline.workdir, **own
            )
        return self._executors[key]


def execute(
    pipeline: Pipeline,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    client: Client | None,
    on_step: Callable[[StepEvent], None],
) -> PipelineOutcome:
    """Executes a pipeline to its end; Ctrl-C stops its steps and releases its claims."""
    own = client is None
    used = client or Client()
    driver = Driver(pipeline, used, on_step)
    token = active.set(driver)
    aborted = True
    try:
        value = driver.finish(pipeline.function(*args, **kwargs))
        aborted = False
    finally:
        active.reset(token)
        driver.close(aborted=aborted)
        if own:
            used.close()
    return PipelineOutcome(value, tuple(driver.events))


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


def _environment(options: Options) -> str:
    """Of the workers of a step. Libraries that its code refers to are parts of the key."""
    chosen = {name: options[name] for name in _ENVIRONMENT if name in options}  # type: ignore[literal-required]
    here = f"python {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"
    return hashlib.sha256(f"{here} {options_key(chosen)}".encode()).hexdigest()


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
