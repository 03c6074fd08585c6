"""`windlass.tune`: searches parameters for which a function or a command is best.

def train(lr, layers, trial):
    for epoch in range(10):
        loss = ...
        trial.report(loss)
        if trial.should_prune():
            trial.stop()
    return loss

found = windlass.tune(train, space={"lr": "log:1e-5..1e-1", "layers": "1..4"}, trials=50)
print(found.best.params)

A trial is stored on the server before its parameters leave this program. If the program is killed,
the next one with the same name continues: ended trials are known, others are evaluated again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from windlass.sdk import event_loop_thread, run_builder
from windlass.sdk.run_options import Options
from windlass.sdk.sync_client import Client
from windlass.sdk.tuning import trials as trial_records
from windlass.sdk.tuning.call_evaluation import CallEvaluation
from windlass.sdk.tuning.definition import Definition
from windlass.sdk.tuning.evaluation import Broken, Ended, Evaluation, Happening, Reported
from windlass.sdk.tuning.run_evaluation import RunEvaluation
from windlass.sdk.tuning.study_client import StudyClient
from windlass.sdk.tuning.suggestions import Suggestions, is_usable
from windlass.sdk.tuning.trials import Trial
from windlass.store import errors

_LONGEST_MESSAGE = 1000
"""Characters of the reason that is stored with a failed trial; the log of its run has all."""


class StudyFailed(Exception):
    """More trials failed than the study allows."""


@dataclasses.dataclass(frozen=True, slots=True)
class StudyOutcome:
    """The result of a study."""

    name: str
    definition: Definition
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The best trial; ValueError if none is complete."""
        found = self.best_trials
        if not found:
            raise ValueError(f"no trial of study {self.name} is complete")
        return found[0]

    @property
    def best_trials(self) -> list[Trial]:
        """With several metrics: all trials that no other one dominates."""
        return trial_records.best(self.trials, self.definition.directions)

    def count(self, state: trial_records.State) -> int:
        return sum(each.state == state for each in self.trials)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """How far a study goes."""

    trials: int
    parallel: int
    most_failed: int


class Study:
    """Evaluates trials until there are enough. It works in the caller's thread."""

    def __init__(
        self,
        name: str,
        definition: Definition,
        limits: Limits,
        client: Client,
        evaluation: Callable[[Callable[[Happening], None]], Evaluation],
        on_trial: Callable[[Trial], None] = lambda _trial: None,
    ) -> None:
        self._name = name
        self._definition = definition
        self._limits = limits
        self._happenings: queue.Queue[Happening] = queue.Queue()
        self._client = StudyClient(client.aio, name)
        self._make_evaluation = evaluation
        self._on_trial = on_trial
        self._trials: list[Trial] = []
        self._running: dict[int, Trial] = {}

    def run(self) -> StudyOutcome:
        """Continues the study to its end. Ctrl-C stops the trials that run; the next program
        evaluates them again."""
        opened = self._client.open(self._definition, self._lost)
        try:
            self._trials = event_loop_thread.call(opened)
            # Made from the stored trials, before anything starts: Optuna may be missing.
            suggestions = Suggestions(self._definition, self._trials)
            evaluation = self._make_evaluation(self._happenings.put)
            aborted = True
            try:
                self._evaluate(suggestions, evaluation)
                aborted = False
            finally:
                evaluation.close(aborted=aborted)
        finally:
            event_loop_thread.call(self._client.close())
        return StudyOutcome(self._name, self._definition, tuple(self._trials))

    def _evaluate(self, suggestions: Suggestions, evaluation: Evaluation) -> None:
        for each in self._trials:
            if each.state == "running":
                self._running[each.number] = each
                evaluation.start(each)
        while True:
            self._start_more(suggestions, evaluation)
            if not self._running:
                return
            self._handle(suggestions, self._happened())

    def _start_more(self, suggestions: Suggestions, evaluation: Evaluation) -> None:
        started: list[Trial] = []
        while (
            len(self._running) < self._limits.parallel and len(self._trials) < self._limits.trials
        ):
            trial = suggestions.next()
            if trial is None:
                break
            trial.started = int(time.time())
            trial.run = evaluation.run_name(trial)
            self._trials.append(trial)
            self._running[trial.number] = trial
            started.append(trial)
        if started:
            event_loop_thread.call(self._client.store(started))
        for each in started:
            evaluation.start(each)

    def _happened(self) -> list[Happening]:
        """What happened since the last call; waits for the first."""
        found = [self._happenings.get()]
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._happenings.get_nowait())
        return found

    def _handle(self, suggestions: Suggestions, happened: list[Happening]) -> None:
        ended: list[Trial] = []
        broken: BaseException | None = None
        for each in happened:
            if isinstance(each, Broken):
                broken = each.problem
                break
            trial = self._running.get(each.number)
            if isinstance(each, Reported):
                # A call that was lost to its worker may still run there, and waits for an answer.
                each.answer(trial is None or suggestions.prunes(trial, each.step, each.value))
            elif trial is not None:
                self._end(trial, each)
                suggestions.end(trial)
                ended.append(trial)
        if ended:
            event_loop_thread.call(self._client.store(ended))
        for trial in ended:
            self._on_trial(trial)
        if broken is not None:
            raise broken
        failed = sum(each.state == "failed" for each in self._trials)
        if failed > self._limits.most_failed:
            last = next(each for each in reversed(self._trials) if each.state == "failed")
            raise StudyFailed(
                f"{failed} trials of study {self._name} failed; the last one, trial "
                f"{last.number}: {last.message}"
            )

    def _end(self, trial: Trial, ended: Ended) -> None:
        del self._running[trial.number]
        trial.ended = int(time.time())
        if ended.pruned:
            trial.state = "pruned"
        elif ended.values is not None and is_usable(ended.values, len(self._definition.metrics)):
            trial.state, trial.values = "complete", [float(each) for each in ended.values]
        else:
            trial.state = "failed"
            expected = len(self._definition.metrics)
            message = ended.message or f"{ended.values!r} is not {expected} finite numbers"
            trial.message = message[:_LONGEST_MESSAGE]

    def _lost(self) -> None:
        self._happenings.put(
            Broken(errors.Conflict(f"another program continues study {self._name}"))
        )


def tune_function(
    function: Callable[..., Any],
    definition: Definition,
    limits: Limits,
    *,
    client: Client,
    name: str = "",
    workdir: str | os.PathLike[str] | None = None,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
    options: Options | None = None,
) -> StudyOutcome:
    """Each trial is a call of the function in a warm worker."""
    own = name or run_builder.name_for([getattr(function, "__name__", "study")])

    def evaluation(happened: Callable[[Happening], None]) -> Evaluation:
        merged: Options = {"name": own, **(options or {})}
        return CallEvaluation(
            function, definition.metrics, happened, client=client, parallel=limits.parallel,
            workdir=workdir, options=merged,
        )  # fmt: skip

    return Study(own, definition, limits, client, evaluation, on_trial).run()


def tune_run(
    template: Mapping[str, Any],
    definition: Definition,
    limits: Limits,
    *,
    client: Client,
    name: str,
    on_trial: Callable[[Trial], None] = lambda _trial: None,
) -> StudyOutcome:
    """Each trial is a run of the template, a Run object as a mapping."""

    def evaluation(happened: Callable[[Happening], None]) -> Evaluation:
        return RunEvaluation(template, name, definition.metrics, happened, client=client.aio)

    return Study(name, definition, limits, client, evaluation, on_trial).run()
