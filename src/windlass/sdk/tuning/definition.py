"""What a study is: its parameters, objectives, sampler and pruner. Stored with its trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from windlass.sdk.tuning import search_space
from windlass.sdk.tuning.search_space import Parameter

Direction = Literal["minimize", "maximize"]
Sampler = Literal["auto", "tpe", "random", "grid", "nsga2", "cmaes"]
Pruner = Literal["none", "median", "hyperband", "halving"]
SAMPLERS = ("auto", "tpe", "random", "grid", "nsga2", "cmaes")
PRUNERS = ("none", "median", "hyperband", "halving")


@dataclasses.dataclass(frozen=True, slots=True)
class Definition:
    """The definition of a study. Trials of another definition do not mix with these."""

    space: Mapping[str, Parameter]
    metrics: tuple[str, ...]
    directions: tuple[Direction, ...]
    sampler: Sampler
    pruner: Pruner
    seed: int | None

    def plain(self) -> dict[str, Any]:
        return {
            "space": {name: search_space.plain(each) for name, each in self.space.items()},
            "metrics": list(self.metrics), "directions": list(self.directions),
            "sampler": self.sampler, "pruner": self.pruner, "seed": self.seed,
        }  # fmt: skip


def define(
    space: Mapping[str, Any],
    *,
    metric: str | Sequence[str] = "value",
    direction: Direction | Sequence[Direction] = "minimize",
    sampler: Sampler = "auto",
    prune: Pruner = "none",
    seed: int | None = None,
) -> Definition:
    """A checked definition; ValueError names what is wrong."""
    metrics = (metric,) if isinstance(metric, str) else tuple(metric)
    directions = (direction,) if isinstance(direction, str) else tuple(direction)
    if len(directions) == 1:
        directions *= len(metrics)
    if not metrics or len(directions) != len(metrics):
        raise ValueError("each metric needs one direction")
    if any(each not in ("minimize", "maximize") for each in directions):
        raise ValueError(f"direction {direction!r} is neither minimize nor maximize")
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler {sampler!r} is none of {', '.join(SAMPLERS)}")
    if prune not in PRUNERS:
        raise ValueError(f"prune {prune!r} is none of {', '.join(PRUNERS)}")
    if prune != "none" and len(metrics) > 1:
        raise ValueError("trials of several metrics cannot be pruned")
    found = Definition(search_space.read(space), metrics, directions, sampler, prune, seed)
    if sampler == "grid":
        for name, parameter in found.space.items():
            try:
                parameter.grid()
            except ValueError as problem:
                raise ValueError(f"parameter {name}: {problem}") from None
    return found


def from_plain(body: Mapping[str, Any]) -> Definition:
    return define(
        body["space"], metric=body["metrics"], direction=body["directions"],
        sampler=body["sampler"], prune=body["pruner"], seed=body["seed"],
    )  # fmt: skip
