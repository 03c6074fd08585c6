"""`windlass.tune`: one call for functions and commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from windlass.kinds import codec
from windlass.sdk import event_loop_thread, run_builder
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client
from windlass.sdk.tuning import definition as definitions
from windlass.sdk.tuning import study
from windlass.sdk.tuning.definition import Direction, Pruner, Sampler
from windlass.sdk.tuning.study import StudyOutcome
from windlass.sdk.tuning.trials import Trial


def tune(
    work: Callable[..., Any] | Sequence[str],
    *,
    space: Mapping[str, Any],
    trials: int = 20,
    parallel: int = 2,
    metric: str | Sequence[str] = "value",
    direction: Direction | Sequence[Direction] = "minimize",
    sampler: Sampler = "auto",
    prune: Pruner = "none",
    seed: int | None = None,
    max_failed: int = 10,
    workdir: str | os.PathLike[str] | None = None,
    client: Client | None = None,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    **options: Unpack[Options],
) -> StudyOutcome:
    """Searches the parameters of `space` for which `work` is best.

    A function gets the parameters by name, and the trial if it has a parameter `trial`; it returns
    the value. In a command `$NAME` is replaced, and the job reports `metric` with
    `windlass.report`. The options are those of a run, for each worker or each trial.

    With the same `name` a study that was interrupted continues.
    """
    if trials < 1 or parallel < 1 or max_failed < 0:
        raise ValueError("trials and parallel must be at least 1, and max_failed at least 0")
    name = options.pop("name", "")
    definition = definitions.define(
        space, metric=metric, direction=direction, sampler=sampler, prune=prune, seed=seed
    )
    limits = study.Limits(trials, parallel, max_failed)
    used = client or Client()
    try:
        if callable(work):
            return study.tune_function(
                work, definition, limits, client=used, name=name, workdir=workdir,
                on_trial=on_trial, options=options,
            )  # fmt: skip
        own = name or run_builder.name_for(list(work))
        if workdir is not None:
            options["code"] = event_loop_thread.call(used.aio.upload(workdir))
        built = run_builder.build(list(work), namespace=used.aio.namespace, **options)
        template = codec.to_dict(built)
        return study.tune_run(
            template, definition, limits, client=used, name=own, on_trial=on_trial
        )
    finally:
        if client is None:
            used.close()
