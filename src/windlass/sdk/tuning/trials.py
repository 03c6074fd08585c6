"""Trials: evaluations of parameters, as they are stored and as users see them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

State = Literal["running", "complete", "pruned", "failed"]
_MOST_REPORTS = 1000
"""Reported values that are stored of a trial: the server bounds the size of each."""


@dataclasses.dataclass(slots=True)
class Trial:
    """One evaluation of parameters."""

    number: int
    params: dict[str, Any]
    state: State = "running"
    values: list[float] | None = None
    """By metric; None until it is complete."""
    reports: dict[int, float] = dataclasses.field(default_factory=dict)
    """Values that were reported on the way, by step."""
    run: str = ""
    """The run that evaluates it; empty for a call in a worker."""
    message: str = ""
    """Why it failed."""
    started: int = 0
    ended: int = 0

    @property
    def value(self) -> float | None:
        """Of the first metric."""
        return self.values[0] if self.values else None


def to_record(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number, "state": trial.state, "started": trial.started,
        "ended": trial.ended, "run": trial.run,
        "body": {
            "params": trial.params, "values": trial.values, "message": trial.message,
            "reports": [[step, value] for step, value in _thinned(sorted(trial.reports.items()))],
        },
    }  # fmt: skip


def from_record(record: Mapping[str, Any]) -> Trial:
    body = record["body"]
    return Trial(
        record["number"], body["params"], record["state"], body["values"],
        {int(step): float(value) for step, value in body["reports"]}, record["run"],
        body["message"], record["started"], record["ended"],
    )  # fmt: skip


def _thinned(reports: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most so many reports at equal distances, the last one among them."""
    distance = -(-len(reports) // _MOST_REPORTS)
    return reports[::-1][:: max(1, distance)][::-1]


def best(trials: Sequence[Trial], directions: Sequence[str]) -> list[Trial]:
    """The best complete trial; with several metrics all that no other one dominates."""
    complete = [each for each in trials if each.state == "complete" and each.values]
    signs = [1 if each == "minimize" else -1 for each in directions]

    def cost(trial: Trial) -> list[float]:
        return [sign * value for sign, value in zip(signs, trial.values or (), strict=True)]

    if len(signs) == 1:
        return [min(complete, key=cost)] if complete else []
    return [each for each in complete if not any(_dominates(cost(o), cost(each)) for o in complete)]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
