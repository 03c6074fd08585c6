"""Trials as calls of a function in warm workers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

from windlass.sdk.executor.executor import Executor
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client
from windlass.sdk.tuning import worker_trial
from windlass.sdk.tuning.evaluation import Broken, Ended, Happening, Reported
from windlass.sdk.tuning.trials import Trial

_LOST_WORKERS = 3
"""A trial whose worker was lost, for instance to preemption, starts again this many times."""


class CallEvaluation:
    def __init__(
        self,
        function: Callable[..., Any],
        metrics: tuple[str, ...],
        happened: Callable[[Happening], None],
        *,
        client: Client,
        parallel: int,
        workdir: str | os.PathLike[str] | None,
        options: Options,
    ) -> None:
        self._function = function
        self._metrics = metrics
        self._happened = happened
        self._passes_trial = "trial" in inspect.signature(function).parameters
        self._executor = Executor(
            parallel, client=client, call_retries=_LOST_WORKERS, workdir=workdir,
            on_message=self._message, **options,
        )  # fmt: skip

    def run_name(self, _trial: Trial) -> str:
        return ""

    def start(self, trial: Trial) -> None:
        future = self._executor.submit(
            _by_value(), self._function, trial.number, trial.params, self._passes_trial
        )
        future.add_done_callback(functools.partial(self._ended, trial.number))

    def close(self, *, aborted: bool) -> None:
        self._executor.abort() if aborted else self._executor.shutdown()

    async def _message(self, content: bytes) -> bytes:
        """A report of a trial; the answer says whether to prune it."""
        report = json.loads(content)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def settle(prune: bool) -> None:
            loop.call_soon_threadsafe(_settle, answer, prune)

        self._happened(
            Reported(int(report["trial"]), int(report["step"]), float(report["value"]), settle)
        )
        return json.dumps({"prune": await answer}).encode()

    def _ended(self, number: int, future: concurrent.futures.Future[dict[str, Any]]) -> None:
        if future.cancelled():
            return
        problem = future.exception()
        if problem is None:
            self._happened(self._outcome(number, future.result()))
        elif isinstance(problem, Exception):
            self._happened(Ended(number, message=f"{type(problem).__name__}: {problem}"))
        else:
            self._happened(Broken(problem))

    def _outcome(self, number: int, found: dict[str, Any]) -> Ended:
        if found.get("pruned"):
            return Ended(number, pruned=True)
        if "values" in found:
            return Ended(number, found["values"])
        missing = [name for name in self._metrics if name not in found["metrics"]]
        if missing:
            return Ended(number, message=f"the function did not return {', '.join(missing)}")
        return Ended(number, [found["metrics"][name] for name in self._metrics])


def _settle(answer: asyncio.Future[bool], prune: bool) -> None:
    if not answer.done():
        answer.set_result(prune)


@functools.cache
def _by_value() -> Callable[..., dict[str, Any]]:
    """The function that workers call, pickled with its module, because they have no windlass."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(worker_trial)
    return worker_trial.evaluate
