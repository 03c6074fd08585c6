"""How trials are evaluated: what a study starts, and what it hears from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from windlass.sdk.tuning.trials import Trial


@dataclasses.dataclass(frozen=True, slots=True)
class Reported:
    """A running trial reported a value."""

    number: int
    step: int
    value: float
    answer: Callable[[bool], None]
    """Called with whether the trial is to be pruned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """A trial ended: with values, pruned, or with an error."""

    number: int
    values: list[float] | None = None
    pruned: bool = False
    message: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
    """The study cannot continue."""

    problem: BaseException


Happening = Reported | Ended | Broken


class Evaluation(Protocol):
    """Evaluates trials somewhere; what happens goes to the function that it was made with."""

    def run_name(self, trial: Trial) -> str:
        """The run of the trial; "" if it is a call in a worker."""
        ...

    def start(self, trial: Trial) -> None:
        """Evaluates a stored trial. Of a trial that another program started, the evaluation in
        progress is continued if there is one."""
        ...

    def close(self, *, aborted: bool) -> None: ...
