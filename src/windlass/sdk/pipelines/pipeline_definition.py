"""`windlass.pipeline`: a function whose calls of steps are executed on the platform.

@windlass.step(memory="2Gi")
def train(table, rate): ...

@windlass.pipeline
def nightly(rows=1000):
    table = prepare(rows)
    return best(windlass.map(train, [table] * 2, [0.1, 0.2]))

print(nightly())
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from windlass.sdk.pipelines.driver import Driver
from windlass.sdk.pipelines.step_definition import active
from windlass.sdk.pipelines.step_results import PipelineOutcome, StepEvent
from windlass.sdk.sync_client import Client


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline:
    """A function whose calls of steps are executed on the platform."""

    function: Callable[..., Any]
    name: str
    parallel: int
    workdir: str | None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Executes the pipeline and returns its value; inside another pipeline, as a part of it."""
        if active.get() is not None:
            return self.function(*args, **kwargs)
        return self.run(*args, **kwargs).value

    def run(
        self,
        *args: Any,
        client: Client | None = None,
        on_step: Callable[[StepEvent], None] = lambda _event: None,
        **kwargs: Any,
    ) -> PipelineOutcome:
        """Executes the pipeline; the outcome has its value and how each step ended. Ctrl-C stops
        its steps and releases its claims."""
        used = client or Client()
        driver = Driver(self.name, used, on_step, parallel=self.parallel, workdir=self.workdir)
        token = active.set(driver)
        aborted = True
        try:
            value = driver.finish(self.function(*args, **kwargs))
            aborted = False
        finally:
            active.reset(token)
            driver.close(aborted=aborted)
            if client is None:
                used.close()
        return PipelineOutcome(value, tuple(driver.events))


def pipeline(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    parallel: int = 4,
    workdir: str | None = None,
) -> Any:
    """Makes a function a pipeline: at most `parallel` of its steps run at a time, with the files of
    `workdir`."""
    if function is None:
        return functools.partial(pipeline, name=name, parallel=parallel, workdir=workdir)
    if parallel < 1:
        raise ValueError("parallel must be at least 1")
    own_name = name or getattr(function, "__name__", "pipeline")
    return Pipeline(function, own_name, parallel, workdir)
