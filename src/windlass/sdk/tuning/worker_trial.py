"""The trial as the function in a worker sees it. Sent to the worker by value.

Standard library only; imports nothing of windlass, because a worker needs only Python.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


class TrialPruned(Exception):
    """Ends a trial whose values are not promising."""


class WorkerTrial:
    """The trial of the function that runs: its number, its parameters, and its reports."""

    def __init__(self, number: int, params: Mapping[str, Any]) -> None:
        self.number = number
        self.params = dict(params)
        self._step = -1
        self._prune = False

    def report(self, value: float, step: int | None = None) -> None:
        """Reports a value on the way, such as the loss after an epoch. Steps count from 0."""
        import windlass_worker  # type: ignore[import-not-found]

        if step is not None and int(step) < 0:
            raise ValueError(f"step {step} must not be negative")
        self._step = self._step + 1 if step is None else int(step)
        number = float(value)
        if not math.isfinite(number):
            return
        message = {"trial": self.number, "step": self._step, "value": number}
        self._prune = json.loads(windlass_worker.ask(json.dumps(message).encode()))["prune"]

    def should_prune(self) -> bool:
        """Whether the reported values are worse than those of other trials at this step."""
        return self._prune

    def stop(self) -> None:
        """Ends the trial as pruned."""
        raise TrialPruned


def evaluate(
    function: Any, number: int, params: Mapping[str, Any], passes_trial: bool
) -> dict[str, Any]:
    """Calls the function in the worker; what it returned, or that the trial was pruned."""
    trial = WorkerTrial(number, params)
    more = {"trial": trial} if passes_trial else {}
    try:
        value = function(**params, **more)
    except Exception as problem:
        # Optuna's exception has the same name, and may be missing in the worker.
        if type(problem).__name__ == "TrialPruned":
            return {"pruned": True}
        raise
    if isinstance(value, Mapping):
        return {"metrics": {str(key): float(each) for key, each in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"values": [float(each) for each in value]}
    return {"values": [float(value)]}
