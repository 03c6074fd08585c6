"""What the steps of a pipeline return, and how they ended."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Callable, Coroutine
from typing import Any

from windlass.sdk import event_loop_thread
from windlass.sdk.pipelines.step_cache import Stored

Load = Callable[[Stored], Coroutine[Any, Any, Any]]
"""Reads the value of a result, on the SDK's loop."""


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

    def __init__(self, load: Load, step: str, position: int) -> None:
        self._load = load
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
            self._value = event_loop_thread.start(self._load(stored))
        return self._value.result(timeout)
