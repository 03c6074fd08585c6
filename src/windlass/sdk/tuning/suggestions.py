"""Optuna's samplers and pruners over the stored trials of a study.

The study in memory is made anew from the stored trials whenever a program opens it, so nothing of
a study lives in memory only. Trials that were in evaluation keep their number and parameters.
"""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from windlass.sdk.tuning.definition import Definition
from windlass.sdk.tuning.trials import State, Trial

if TYPE_CHECKING:
    import optuna


class MissingOptuna(ImportError):
    """Optuna is not installed."""


class Suggestions:
    """Suggests parameters, and judges which trials to prune. Use it from one thread."""

    def __init__(self, definition: Definition, stored: Sequence[Trial]) -> None:
        optuna = _load()
        self._definition = definition
        self._distributions = {name: each.distribution() for name, each in definition.space.items()}
        self._study = optuna.create_study(
            directions=list(definition.directions),
            sampler=self._sampler(len(stored)),
            pruner=self._pruner(),
        )
        for each in stored:
            self._study.add_trial(self._frozen(each))
        self._grid = self._unvisited(stored) if definition.sampler == "grid" else None

    def next(self) -> Trial | None:
        """New parameters, whose trial must be stored before they are used; None after the last
        ones of a grid."""
        if self._grid is not None:
            params = next(self._grid, None)
            if params is None:
                return None
            self._study.enqueue_trial(params)
        asked = self._study.ask(self._distributions)
        return Trial(asked.number, dict(asked.params))

    def prunes(self, trial: Trial, step: int, value: float) -> bool:
        """Records a value of a running trial; whether to stop the trial."""
        if step not in trial.reports:
            trial.reports[step] = value
            if len(self._definition.metrics) > 1:
                return False  # Optuna prunes by one metric only, and refuses reports of others
            # A trial that was in evaluation when the study was opened has no handle of `ask`.
            from optuna import trial as optuna_trial

            stored = self._study.trials[trial.number]
            handle = optuna_trial.Trial(self._study, stored._trial_id)
            handle.report(value, step)
            return bool(handle.should_prune())
        return False

    def end(self, trial: Trial) -> None:
        """Records the end of a trial."""
        from optuna import trial as optuna_trial

        state = optuna_trial.TrialState[_STATES[trial.state]]
        values = trial.values if trial.state == "complete" else None
        self._study.tell(trial.number, values, state=state)

    def _unvisited(self, stored: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        names = list(self._definition.space)
        visited = {tuple(each.params[name] for name in names) for each in stored}
        for values in itertools.product(*(self._definition.space[name].grid() for name in names)):
            if values not in visited:
                yield dict(zip(names, values, strict=True))

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        from optuna import trial as optuna_trial

        made = optuna_trial.create_trial(
            state=optuna_trial.TrialState[_STATES[trial.state]],
            values=trial.values if trial.state == "complete" else None,
            params=trial.params,
            distributions=self._distributions,
            intermediate_values=dict(trial.reports),
        )
        made.datetime_start = datetime.datetime.fromtimestamp(trial.started)  # noqa: DTZ006 - as it does
        return made

    def _sampler(self, stored: int) -> optuna.samplers.BaseSampler:
        from optuna import samplers

        seed = self._definition.seed
        # A study that is continued must not repeat the first suggestions of its seed.
        seed = None if seed is None else seed + stored
        chosen = self._definition.sampler
        if chosen in ("random", "grid"):
            return samplers.RandomSampler(seed=seed)
        if chosen == "cmaes":
            return samplers.CmaEsSampler(seed=seed)
        if chosen == "nsga2" or (chosen == "auto" and len(self._definition.metrics) > 1):
            return samplers.NSGAIISampler(seed=seed)
        return samplers.TPESampler(seed=seed)

    def _pruner(self) -> optuna.pruners.BasePruner:
        from optuna import pruners

        kinds: dict[str, type[optuna.pruners.BasePruner]] = {
            "none": pruners.NopPruner,
            "median": pruners.MedianPruner,
            "hyperband": pruners.HyperbandPruner,
            "halving": pruners.SuccessiveHalvingPruner,
        }
        return kinds[self._definition.pruner]()


_STATES: dict[State, str] = {
    "running": "RUNNING", "complete": "COMPLETE", "pruned": "PRUNED", "failed": "FAIL",
}  # fmt: skip


def is_usable(values: Sequence[Any], count: int) -> bool:
    """Whether these are the values of a complete trial."""
    return len(values) == count and all(
        isinstance(each, (int, float)) and math.isfinite(each) for each in values
    )


def _load() -> Any:
    try:
        import optuna
    except ImportError as problem:
        raise MissingOptuna(
            "tuning needs Optuna; install it with: pip install 'windlass-platform[tuning]'"
        ) from problem
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
