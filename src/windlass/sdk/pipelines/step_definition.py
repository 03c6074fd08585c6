"""`windlass.step` and `windlass.map`: functions that a pipeline executes on the platform.

Inside a pipeline a call of a step returns a `StepResult` at once; passed to another step, it is
awaited there. Outside a pipeline a step is the plain function.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Unpack, cast

from windlass.sdk.pipelines.step_results import StepResult
from windlass.sdk.run_options import Options


class Submitter(Protocol):
    """The driver of a pipeline."""

    def submit(
        self, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], position: int = 0
    ) -> StepResult: ...


active: contextvars.ContextVar[Submitter | None] = contextvars.ContextVar("pipeline", default=None)
"""The driver of the pipeline whose function runs in this context."""


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """A function that a pipeline executes on the platform, unless its result is known."""

    function: Callable[..., Any]
    name: str
    cache: bool
    salt: str
    ignore: tuple[str, ...]
    retries: int
    options: Options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        driver = active.get()
        if driver is None:
            return self.function(*args, **kwargs)
        return driver.submit(self, args, kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        raise TypeError(
            f"step {self.name} is a method; a step is a function of a module or a notebook"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # In a worker, and in a key, a step is its function.
        return _function_of, (self.function,)


def _function_of(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def step(
    function: Callable[..., Any] | None = None,
    *,
    cache: bool = True,
    salt: str = "",
    ignore: Sequence[str] = (),
    **options: Unpack[Options],
) -> Any:
    """Makes a function a step of pipelines.

    `cache=False` executes it each time. `salt` is part of the key: another salt, another result.
    `ignore` names parameters that do not change the result. The options of a run (`gpus`, `memory`,
    `requirements` ...) apply to its execution: with `workers` it is a run of that many replicas,
    whose result is the list of theirs. `retries` repeats a step that failed, `name` names it.
    """
    if function is None:
        return functools.partial(step, cache=cache, salt=salt, ignore=ignore, **options)
    own = cast(Options, dict(options))
    name, retries = own.pop("name", getattr(function, "__name__", "step")), own.pop("retries", 0)
    made = Step(function, name, cache, salt, tuple(ignore), retries, own)
    object.__setattr__(made, "__doc__", function.__doc__)
    object.__setattr__(made, "__wrapped__", function)
    return made


def map_step(stepped: Step, *iterables: Iterable[Any] | StepResult) -> list[Any]:
    """One call of a step for each tuple of items, as the built-in `map`. An argument that is not a
    sequence of items, such as the result of a step that returns a table, is wrapped in
    `itertools.repeat` by the caller; the result of a step is awaited and iterated."""
    driver = active.get()
    lists = [each.result() if isinstance(each, StepResult) else each for each in iterables]
    calls = zip(*lists, strict=False)
    if driver is None:
        return list(itertools.starmap(stepped, calls))
    return [driver.submit(stepped, args, {}, position) for position, args in enumerate(calls)]
